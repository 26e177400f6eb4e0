//! End-to-end tests of `farrier diag`, on simulated GPUs and without GPUs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/kill.rs"]
mod kill;
mod node;
#[path = "../support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value, json};
use support::wait::wait_until;
use support::{CommandOutput, farrier, run};

/// A directory with a file of simulated GPUs. Each element passed to `new` is the list of faults of
/// one GPU.
struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new(gpus: &[Value]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let healthy = json!({
            "name": "NVIDIA H200", "compute_capability": [9, 0], "processors": 132, "memory_mib": 16,
            "memory_gb_per_s": 4400.0, "pcie_gb_per_s": 55.0, "peer_gb_per_s": 390.0, "peers": 0,
            "tflops": 760.0, "launch_us": [3.6, 0.6], "has_library": true,
        });
        let gpu = |faults: &Value| {
            let mut gpu = healthy.clone();
            gpu["ailments"] = faults.clone();
            gpu
        };
        let list: Vec<Value> = gpus.iter().map(gpu).collect();
        std::fs::write(folder.path().join("gpus.json"), Value::from(list).to_string()).unwrap();
        Self { folder }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("gpus.json")
    }

    fn args<'a>(file: &'a str, history: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let mut args = vec!["diag", "--simulated", file, "--history", history];
        args.extend(more);
        args
    }

    fn run(&self, more: &[&str]) -> CommandOutput {
        let (file, history) = (self.file(), self.folder.path().join("history"));
        run(&Self::args(file.to_str().unwrap(), history.to_str().unwrap(), more))
    }

    fn json(&self, more: &[&str]) -> (i32, Value) {
        let mut args = vec!["--output", "json"];
        args.extend(more);
        let output = self.run(&args);
        (output.code, serde_json::from_str(&output.stdout).unwrap())
    }
}

/// Grade of a test on a GPU, and the reason.
fn grade<'v>(report: &'v Value, gpu: usize, test: &str) -> (&'v str, &'v str) {
    let tests = report["gpus"][gpu]["tests"].as_array().unwrap();
    let row = tests.iter().find(|row| row["test"] == test).unwrap();
    (row["grade"].as_str().unwrap(), row["why"].as_str().unwrap())
}

#[test]
fn a_healthy_gpu_passes_every_level() {
    let bench = Bench::new(&[json!([])]);
    let output = bench.run(&[]);
    assert_eq!(output.code, 0, "{}{}", output.stdout, output.stderr);
    assert!(output.stdout.starts_with("SIMULATED: no real GPU was measured"));
    assert!(output.stdout.contains("launch-graph") && !output.stdout.contains("hbm-read"));
    let page = bench.folder.path().join("page.html");
    let (code, report) =
        bench.json(&["--level", "3", "--minutes", "0.2", "--html", page.to_str().unwrap()]);
    assert_eq!((code, report["grade"].as_str()), (0, Some("pass")), "{report:#}");
    assert_eq!(report["gpus"][0]["tests"].as_array().unwrap().len(), 19);
    assert_eq!(grade(&report, 0, "peer-copy").0, "not-run");
    assert_eq!(report["complete"], true, "there is no peer to copy to");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("Simulated: no real GPU was measured") && page.ends_with("</html>\n"));
}

#[test]
fn a_slow_gpu_is_degraded_and_a_corrupting_one_fails() {
    let bench = Bench::new(&[
        json!([{"slow-memory": 0.6}]),
        json!([{"wrong-processor": {"processor": 17, "after": 300}}]),
        json!([{"slow-pcie": 0.5}, {"slow-products": 0.5}]),
        json!([]),
    ]);
    let (code, report) = bench.json(&["--level", "3", "--minutes", "0.5"]);
    assert_eq!((code, report["grade"].as_str()), (1, Some("fail")));
    let grades: Vec<&str> =
        (0..4).map(|gpu| report["gpus"][gpu]["grade"].as_str().unwrap()).collect();
    assert_eq!(grades, ["degraded", "fail", "degraded", "pass"]);
    assert_eq!(grade(&report, 0, "hbm-read").0, "degraded");
    assert!(grade(&report, 0, "hbm-read").1.contains("65.5 % of the minimum for this SKU"));
    let (corrupt, reason) = grade(&report, 1, "corruption");
    assert_eq!(corrupt, "fail");
    assert!(reason.contains("SM 17 gave"), "{reason}");
    assert_eq!(grade(&report, 2, "pcie-to-gpu").0, "degraded");
    assert_eq!(grade(&report, 2, "gemm-bf16").0, "degraded");
    // `--gpu` selects one GPU by its index.
    let (code, report) = bench.json(&["--gpu", "3"]);
    assert_eq!((code, report["gpus"].as_array().unwrap().len()), (0, 1));
}

#[test]
fn a_gpu_is_compared_with_its_own_history() {
    let healthy = Bench::new(&[json!([])]);
    for _ in 0..3 {
        assert_eq!(healthy.run(&["--only", "gemm-bf16"]).code, 0);
    }
    // This GPU is above the minimum for its SKU, but below its own history.
    let slower = Bench::new(&[json!([{"slow-products": 0.94}])]);
    let history = healthy.folder.path().join("history");
    let file = slower.file();
    let args = ["--only", "gemm-bf16", "--output", "json"];
    let output = run(&Bench::args(file.to_str().unwrap(), history.to_str().unwrap(), &args));
    let report: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(output.code, 1);
    let (grade, reason) = grade(&report, 0, "gemm-bf16");
    assert_eq!(grade, "degraded");
    assert!(reason.starts_with("94.0 % of the typical value of this GPU, 760 TFLOP/s"), "{reason}");
    assert!(reason.contains("--forget-history"), "{reason}");
    // Degraded results do not enter the history.
    let stored = std::fs::read_to_string(history.join("GPU-simulated-0.jsonl")).unwrap();
    assert_eq!(stored.lines().count(), 3);
    // Results of a forced run do not enter the history either.
    assert_eq!(healthy.run(&["--only", "gemm-bf16", "--force"]).code, 0);
    let stored = std::fs::read_to_string(history.join("GPU-simulated-0.jsonl")).unwrap();
    assert_eq!(stored.lines().count(), 3);
    let args = ["--only", "gemm-bf16", "--forget-history"];
    let output = run(&Bench::args(file.to_str().unwrap(), history.to_str().unwrap(), &args));
    assert_eq!(output.code, 0, "{}", output.stdout);
    let stored = std::fs::read_to_string(history.join("GPU-simulated-0.jsonl")).unwrap();
    assert_eq!(stored.lines().count(), 1, "the history starts over");
}

#[test]
fn without_cublas_the_built_in_gemm_is_graded() {
    let change = |bench: &Bench, key: &str, value: Value| {
        let text = std::fs::read_to_string(bench.file()).unwrap();
        let mut list: Value = serde_json::from_str(&text).unwrap();
        list[0][key] = value;
        std::fs::write(bench.file(), list.to_string()).unwrap();
    };
    let bench = Bench::new(&[json!([])]);
    change(&bench, "has_library", json!(false));
    let (code, report) = bench.json(&["--level", "2"]);
    assert_eq!(code, 0, "{report:#}");
    assert_eq!(report["complete"], true, "the built-in GEMM replaces cuBLAS: {report:#}");
    let slow = Bench::new(&[json!([{"slow-products": 0.05}])]);
    change(&slow, "has_library", json!(false));
    let (code, report) = slow.json(&["--level", "2"]);
    assert_eq!((code, grade(&report, 0, "gemm-own").0), (1, "degraded"));
    // An unknown SKU has no baseline.
    let unknown = Bench::new(&[json!([])]);
    change(&unknown, "has_library", json!(false));
    change(&unknown, "name", json!("NVIDIA Q9000"));
    let (code, report) = unknown.json(&["--level", "2"]);
    assert_eq!((code, report["grade"].as_str()), (1, Some("pass")), "incomplete is not a pass");
    assert_eq!(report["complete"], false);
    let missing = report["gpus"][0]["missing"].as_array().unwrap();
    assert!(missing.contains(&json!("gemm-bf16")) && !missing.contains(&json!("peer-copy")));
    let output = unknown.run(&["--level", "2"]);
    assert!(output.stdout.contains("incomplete: gemm-bf16,"), "{}", output.stdout);
    assert!(output.stdout.contains("PASS, INCOMPLETE  level 2"), "{}", output.stdout);
}

#[test]
fn an_unwritable_page_fails_before_the_tests() {
    let bench = Bench::new(&[json!([{"hung": {"after": 0}}])]);
    let output = bench.run(&["--html", "/nowhere/page.html"]);
    assert_eq!(output.code, 2);
    assert!(output.stderr.contains("failed to open `/nowhere/page.html`"), "{}", output.stderr);
    assert!(!output.stderr.contains("hangs"), "no test was started: {}", output.stderr);
    assert_eq!(output.stdout, "", "no test was started");
}

#[test]
fn concurrent_runs_on_a_gpu_are_refused() {
    let bench = Bench::new(&[json!([{"hung": {"after": 0}}])]);
    let (file, history) = (bench.file(), bench.folder.path().join("history"));
    let args = Bench::args(file.to_str().unwrap(), history.to_str().unwrap(), &[]);
    let mut first = farrier(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // The first run locks the GPU before it starts a child.
    let children = || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", first.id()));
        let children_of =
            |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children"));
        tasks
            .into_iter()
            .flatten()
            .flatten()
            .any(|task| children_of(task).is_ok_and(|children| !children.is_empty()))
    };
    wait_until(|| "a child starts".to_owned(), children);
    let second = bench.run(&[]);
    assert_eq!(second.code, 2);
    assert!(
        second.stderr.contains("GPU 0 is being tested by another `farrier diag`"),
        "{}",
        second.stderr
    );
    first.kill().unwrap();
    first.wait().unwrap();
}

#[test]
fn diag_exits_with_its_parent() {
    let bench = Bench::new(&[json!([])]);
    // Process 1 is not the parent of diag, so diag concludes that its parent has exited.
    let output = bench.run(&["--ends-with", "1"]);
    assert_eq!(output.code, 2);
    assert!(
        output.stderr.contains("failed to bind to the lifetime of the parent process"),
        "{}",
        output.stderr
    );
    let me = std::process::id().to_string();
    assert_eq!(bench.run(&["--ends-with", &me]).code, 0);
}

#[test]
fn the_report_states_the_selected_tests() {
    let bench = Bench::new(&[json!([])]);
    let (_, report) = bench.json(&["--only", "corruption", "--minutes", "0.1"]);
    assert_eq!((&report["level"], &report["only"]), (&json!(3), &json!(["corruption"])));
    let output = bench.run(&["--level", "2", "--minutes", "5"]);
    assert_eq!(output.code, 2);
    assert!(output.stderr.contains("level 2 has no sustained load"), "{}", output.stderr);
    let text = std::fs::read_to_string(bench.file()).unwrap();
    std::fs::write(bench.file(), text.replace("[9,0]", "[8,0]")).unwrap();
    let output = bench.run(&["--only", "gemm-fp8"]);
    assert_eq!(output.code, 2);
    assert!(output.stderr.contains("this GPU does not support FP8"), "{}", output.stderr);
    assert!(output.stderr.contains("hint: the GPU was opened"), "{}", output.stderr);
}

#[test]
fn a_lost_gpu_fails_and_gets_no_further_tests() {
    let bench = Bench::new(&[json!([{"lost": {"after": 0}}])]);
    let (code, report) = bench.json(&["--level", "2"]);
    assert_eq!(code, 1);
    let (first, reason) = grade(&report, 0, "allocate");
    assert!(first == "fail" && reason.contains("CUDA_ERROR_ECC_UNCORRECTABLE"), "{reason}");
    assert_eq!(grade(&report, 0, "hbm-read"), ("not-run", "`allocate` failed"));
}

#[test]
fn a_gpu_that_stays_lost_is_reopened_only_once() {
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("lost");
    let bench = Bench::new(&[json!([{"gone": {"after": 60, "mark": mark}}])]);
    let (code, report) = bench.json(&["--level", "2"]);
    assert_eq!((code, report["grade"].as_str()), (1, Some("fail")));
    let tests = report["gpus"][0]["tests"].as_array().unwrap();
    let count = |grade: &str| tests.iter().filter(|row| row["grade"] == grade).count();
    // The test in which the GPU was lost, and the test for which it could not be reopened.
    assert_eq!(count("fail"), 2, "{report:#}");
    let (last, reason) = grade(&report, 0, "memory-patterns");
    assert_eq!(last, "not-run");
    assert!(
        reason.starts_with("the GPU could not be opened again: failed to create a CUDA context"),
        "{reason}"
    );
}

#[test]
fn tests_without_resources_are_not_run() {
    let bench = Bench::new(&[json!([{"full": {"left_mib": 0}}])]);
    let output = bench.run(&["--output", "json"]);
    let report: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(grade(&report, 0, "allocate").0, "not-run");
    assert!(grade(&report, 0, "allocate").1.contains("not enough free GPU memory"));
    let bench = Bench::new(&[json!(["no-pinned-memory"])]);
    let (code, report) = bench.json(&[]);
    assert_eq!((code, report["grade"].as_str()), (1, Some("pass")), "{report:#}");
    assert_eq!(grade(&report, 0, "pcie-to-gpu").0, "not-run");
    let bench = Bench::new(&[json!([{"few-processors": 8}])]);
    let (code, report) = bench.json(&["--only", "corruption", "--minutes", "0.1"]);
    assert_eq!((code, &report["grade"]), (2, &json!("not-run")), "{report:#}");
    let bench = Bench::new(&[json!([{"full": {"left_mib": 4}}])]);
    let (code, report) = bench.json(&["--level", "2"]);
    assert_eq!((code, report["complete"].as_bool()), (1, Some(false)), "{report:#}");
    let (patterns, reason) = grade(&report, 0, "memory-patterns");
    assert!(patterns == "not-run" && reason.contains("other processes hold the rest"), "{reason}");
}

#[test]
fn a_hung_gpu_times_out() {
    let bench = Bench::new(&[json!([{"hung": {"after": 0}}])]);
    let (code, report) = bench.json(&[]);
    assert_eq!(code, 1);
    assert!(grade(&report, 0, "allocate").1.contains("the GPU or its driver hangs"));
}

#[test]
fn an_interrupt_leaves_no_process_behind() {
    let bench = Bench::new(&[json!([{"hung": {"after": 0}}])]);
    let (file, history) = (bench.file(), bench.folder.path().join("history"));
    let page = bench.folder.path().join("new.html");
    let html = ["--html", page.to_str().unwrap()];
    let args = Bench::args(file.to_str().unwrap(), history.to_str().unwrap(), &html);
    let log = bench.folder.path().join("stderr");
    let stderr = std::fs::File::create(&log).unwrap();
    let mut child = farrier(&args).stdout(Stdio::null()).stderr(stderr).spawn().unwrap();
    let children = || {
        let path = format!("/proc/{0}/task/{0}/children", child.id());
        // Each thread has its own list of the children it started.
        let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id()));
        let mut pids = std::fs::read_to_string(path).unwrap_or_default();
        for task in tasks.into_iter().flatten().flatten() {
            let path = task.path().join("children");
            pids.push_str(&std::fs::read_to_string(path).unwrap_or_default());
        }
        pids.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()).collect::<Vec<_>>()
    };
    wait_until(|| "a child starts".to_owned(), || !children().is_empty());
    let grandchildren = children();
    kill::kill("-INT", &child.id().to_string());
    let status = child.wait().unwrap();
    assert!(!status.success());
    assert!(!page.exists(), "an empty page is left behind");
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains("interrupted: no test completed. No verdict"), "{log}");
    let is_running = |pid: &i32| Path::new(&format!("/proc/{pid}/exe")).read_link().is_ok();
    let explain = || "a child process outlives its parent".to_owned();
    wait_until(explain, || !grandchildren.iter().any(is_running));
}

#[test]
fn errors_state_the_reason_and_a_hint() {
    let output = run(&["diag", "--nvml", "/nowhere/libnvidia-ml.so.1"]);
    assert_eq!(output.code, 2);
    assert!(output.stderr.contains("no GPU can be tested: no NVML library"), "{}", output.stderr);
    assert!(output.stderr.contains("hint: this needs a machine with the NVIDIA driver"));
    let bench = Bench::new(&[json!([])]);
    let output = bench.run(&["--gpu", "7"]);
    assert_eq!(output.code, 2);
    assert!(output.stderr.contains("no GPU `7`") && output.stderr.contains("0 (GPU-simulated-0)"));
    for (args, expected) in [
        (["--level", "4"], "4 is not in 1..=3"),
        (["--minutes", "0"], "expected more than 0"),
        (["--only", "gemm"], "unknown test `gemm`"),
    ] {
        let output = bench.run(&args);
        assert_eq!(output.code, 2);
        assert!(output.stderr.contains(expected), "{}", output.stderr);
    }
    std::fs::write(bench.file(), "[]").unwrap();
    let output = bench.run(&[]);
    assert_eq!(output.code, 2);
    assert!(output.stderr.contains("gpus.json` lists no GPU"), "{}", output.stderr);
    let bench = Bench::new(&[json!([{"slow-memory": -3}])]);
    let output = bench.run(&[]);
    assert_eq!(output.code, 2);
    assert!(output.stderr.contains("GPU 0: `slow-memory` is -3"), "{}", output.stderr);
    std::fs::write(bench.file(), "{}").unwrap();
    assert!(bench.run(&[]).stderr.contains("is not a list of simulated GPUs"));
}
