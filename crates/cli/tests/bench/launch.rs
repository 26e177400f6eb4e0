//! `farrier bench launch` with fake drivers: missing, without a GPU, too old, losing work, or
//! working.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{CommandOutput, farrier};

/// Runs `farrier bench launch` with the CUDA library in `folder` instead of the real library.
fn launch(folder: &Path, args: &[&str]) -> CommandOutput {
    let all: Vec<&str> = ["bench", "launch"].iter().chain(args).copied().collect();
    farrier(&all).env("LD_LIBRARY_PATH", folder).output().unwrap().into()
}

/// Compiles a fake driver with these flags.
pub(crate) fn driver(flags: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bench/fake_cuda.c");
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", "-O1", "-o"]).arg(folder.path().join("libcuda.so"));
    assert!(command.arg(source).args(flags).status().unwrap().success());
    folder
}

#[test]
fn a_missing_library_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    // The loader stops at a file of that name, even if the file is not a library.
    for name in ["libcuda.so", "libcuda.so.1"] {
        fs::write(folder.path().join(name), "not a library").unwrap();
    }
    let output = launch(folder.path(), &[]);
    assert_eq!((output.code, output.stdout.as_str()), (2, ""));
    assert!(
        output.stderr.contains("failed to load CUDA's driver library `libcuda.so.1`"),
        "{}",
        output.stderr
    );
    assert!(
        output.stderr.contains("hint: this needs a machine with the NVIDIA driver"),
        "{}",
        output.stderr
    );
    assert!(!output.stderr.contains("panicked"), "{}", output.stderr);
}

#[test]
fn no_gpu_is_an_error() {
    let output = launch(driver(&["-DCOUNT=0"]).path(), &[]);
    assert_eq!((output.code, output.stdout.as_str()), (2, ""));
    let expected = "CUDA finds no GPU: CUDA_ERROR_NO_DEVICE, no CUDA-capable device is detected";
    assert!(output.stderr.contains(expected), "{}", output.stderr);
}

#[test]
fn an_invalid_gpu_index_is_an_error() {
    let output = launch(driver(&["-DCOUNT=2"]).path(), &["--gpu", "2"]);
    assert_eq!(output.code, 2);
    assert!(output.stderr.contains("no GPU 2: CUDA finds 2"), "{}", output.stderr);
}

#[test]
fn an_old_driver_is_an_error() {
    let output = launch(driver(&["-DCOUNT=1", "-DOLD"]).path(), &[]);
    assert_eq!(output.code, 2);
    assert!(output.stderr.contains("has no `cuGraphUpload`"), "{}", output.stderr);
}

#[test]
fn lost_launches_are_an_error() {
    let output = launch(driver(&["-DCOUNT=1", "-DLOSES"]).path(), &["--repeats", "2"]);
    assert_eq!((output.code, output.stdout.as_str()), (2, ""));
    assert!(output.stderr.contains("the measurement is invalid"), "{}", output.stderr);
}

#[test]
fn every_operation_has_a_cost() {
    let driver = driver(&["-DCOUNT=1"]);
    let output = launch(driver.path(), &["--repeats", "5", "--output", "json"]);
    assert_eq!(output.code, 0, "{}", output.stderr);
    let report: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(report["gpu"], "Fake GPU");
    assert_eq!(report["compute_capability"], "9.0");
    let costs = report["costs"].as_array().unwrap();
    let names: Vec<&str> = costs.iter().map(|cost| cost["name"].as_str().unwrap()).collect();
    let all = ["stream", "graph", "launch-and-wait", "synchronise", "copy-to-gpu", "copy-to-host"];
    assert_eq!(names, all);
    for cost in costs {
        let total = &cost["total_us"];
        assert_eq!(total["count"], 5, "{cost}");
        let number = |key: &str| total[key].as_f64().unwrap();
        assert!(number("least") > 0.0, "{cost}");
        assert!(number("least") <= number("median") && number("median") <= number("most"));
        let synchronous = ["launch-and-wait", "synchronise", "copy-to-host"];
        let synchronous = synchronous.contains(&cost["name"].as_str().unwrap());
        assert_eq!(cost["submit_us"].is_null(), synchronous, "{cost}");
    }
    let table = launch(driver.path(), &["--repeats", "2", "--launches", "10"]);
    assert_eq!(table.code, 0, "{}", table.stderr);
    for text in ["Fake GPU, compute capability 9.0", "stream", "synchronous", "10 per"] {
        assert!(table.stdout.contains(text), "{text}: {}", table.stdout);
    }
}
