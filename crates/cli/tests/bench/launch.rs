//! `farrier bench launch` against drivers that are not there, see no GPU, are too old, lose work, or do all of it.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Ran, farrier};

/// Runs with the library of a folder in place of any real one.
fn launch(folder: &Path, words: &[&str]) -> Ran {
    let all: Vec<&str> = ["bench", "launch"].iter().chain(words).copied().collect();
    farrier(&all).env("LD_LIBRARY_PATH", folder).output().unwrap().into()
}

/// A driver that does what its flags say.
pub(crate) fn driver(flags: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bench/fake_cuda.c");
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", "-O1", "-o"]).arg(folder.path().join("libcuda.so"));
    assert!(command.arg(source).args(flags).status().unwrap().success());
    folder
}

#[test]
fn without_a_library_it_says_so() {
    let folder = tempfile::tempdir().unwrap();
    // The loader does not look further where a file of that name is no library.
    for name in ["libcuda.so", "libcuda.so.1"] {
        fs::write(folder.path().join(name), "no library at all").unwrap();
    }
    let ran = launch(folder.path(), &[]);
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""));
    assert!(ran.stderr.contains("failed to load CUDA's driver library `libcuda.so.1`"), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("hint: this needs a machine with NVIDIA's driver"),
        "{}",
        ran.stderr
    );
    assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
}

#[test]
fn without_a_gpu_it_says_so() {
    let ran = launch(driver(&["-DCOUNT=0"]).path(), &[]);
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""));
    let said = "CUDA finds no GPU: CUDA_ERROR_NO_DEVICE, no CUDA-capable device is detected";
    assert!(ran.stderr.contains(said), "{}", ran.stderr);
}

#[test]
fn a_gpu_that_is_not_there_is_named() {
    let ran = launch(driver(&["-DCOUNT=2"]).path(), &["--gpu", "2"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("no GPU 2: CUDA finds 2"), "{}", ran.stderr);
}

#[test]
fn a_driver_that_is_too_old_is_named() {
    let ran = launch(driver(&["-DCOUNT=1", "-DOLD"]).path(), &[]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("has no `cuGraphUpload`"), "{}", ran.stderr);
}

#[test]
fn times_of_launches_that_did_not_happen_are_not_told() {
    let ran = launch(driver(&["-DCOUNT=1", "-DLOSES"]).path(), &["--repeats", "2"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""));
    assert!(ran.stderr.contains("the times mean nothing"), "{}", ran.stderr);
}

#[test]
fn every_kind_of_work_has_its_cost() {
    let driver = driver(&["-DCOUNT=1"]);
    let ran = launch(driver.path(), &["--repeats", "5", "--output", "json"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["gpu"], "A GPU of no kind");
    assert_eq!(report["compute_capability"], "9.0");
    let costs = report["costs"].as_array().unwrap();
    let names: Vec<&str> = costs.iter().map(|it| it["name"].as_str().unwrap()).collect();
    let all = ["stream", "graph", "launch-and-wait", "synchronise", "copy-to-gpu", "copy-to-host"];
    assert_eq!(names, all);
    for cost in costs {
        let total = &cost["total_us"];
        assert_eq!(total["count"], 5, "{cost}");
        let number = |key: &str| total[key].as_f64().unwrap();
        assert!(number("least") > 0.0, "{cost}");
        assert!(number("least") <= number("median") && number("median") <= number("most"));
        let waits = ["launch-and-wait", "synchronise", "copy-to-host"];
        let waits = waits.contains(&cost["name"].as_str().unwrap());
        assert_eq!(cost["submit_us"].is_null(), waits, "{cost}");
    }
    let table = launch(driver.path(), &["--repeats", "2", "--launches", "10"]);
    assert_eq!(table.code, 0, "{}", table.stderr);
    for word in ["A GPU of no kind, compute capability 9.0", "stream", "waits", "10 between two"] {
        assert!(table.stdout.contains(word), "{word}: {}", table.stdout);
    }
}
