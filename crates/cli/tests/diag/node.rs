//! `farrier diag` with NVML on a simulated node: lost GPUs, and faults from before the tests.

use serde_json::{Value, json};

use crate::support::{CommandOutput, run};
use crate::{Bench, grade};

/// A simulated node; CUDA tests run on healthy simulated GPUs.
struct Node {
    folder: tempfile::TempDir,
    bench: Bench,
}

impl Node {
    fn with_gpus(gpus: u32) -> Self {
        let node = Self { folder: tempfile::tempdir().unwrap(), bench: Bench::new(&[json!([])]) };
        let count = gpus.to_string();
        let created =
            run(&["simulate", "node", &node.dir(), "--sku", "H200-SXM5", "--gpus", &count]);
        assert_eq!(created.code, 0, "{}", created.stderr);
        node
    }

    fn dir(&self) -> String {
        self.folder.path().join("node").to_str().unwrap().to_owned()
    }

    fn inject(&self, args: &[&str]) {
        let dir = self.dir();
        let output = run(&[&["simulate", "inject", &dir], args].concat());
        assert_eq!(output.code, 0, "{args:?}: {}", output.stderr);
    }

    fn diag(&self, more: &[&str]) -> CommandOutput {
        let library = format!("{}/lib/libnvidia-ml.so.1", self.dir());
        self.bench.run(&[&["--nvml", &library], more].concat())
    }

    fn json(&self, more: &[&str]) -> (i32, Value) {
        let output = self.diag(&[&["--output", "json"], more].concat());
        (output.code, serde_json::from_str(&output.stdout).unwrap())
    }
}

#[test]
fn a_gpu_off_the_bus_fails_and_the_others_are_tested() {
    let node = Node::with_gpus(3);
    node.inject(&["lost", "--gpu", "2"]);
    let (code, report) = node.json(&["--gpu", "2"]);
    assert_eq!((code, &report["gpus"][0]["grade"]), (1, &json!("fail")), "{report:#}");
    let (first, reason) = grade(&report, 0, "allocate");
    assert_eq!((first, reason), ("fail", "it fell off the bus: NVML_ERROR_GPU_IS_LOST"));
    assert_eq!(report["gpus"][0]["uuid"], Value::Null);
    assert!(report["gpus"][0]["remedy"].as_str().unwrap().contains("reboot"), "{report:#}");
    let output = node.diag(&[]);
    assert_eq!(output.code, 1, "{}{}", output.stdout, output.stderr);
    for part in [
        "GPU 2 without a UUID: fail",
        "no test was run: it fell off the bus",
        "what to do: take the node out of service and reboot it",
        "FAIL (2 pass, 1 fail), INCOMPLETE  level 1",
    ] {
        assert!(output.stdout.contains(part), "{part}: {}", output.stdout);
    }
}

#[test]
fn a_pending_reset_is_not_a_pass() {
    let node = Node::with_gpus(2);
    let (code, report) = node.json(&["--gpu", "1"]);
    assert_eq!(code, 0, "{report:#}");
    assert!(grade(&report, 0, "watched").1.contains("no new Xid"), "{report:#}");
    node.inject(&["xid", "48", "--gpu", "1"]);
    let (code, report) = node.json(&["--gpu", "1"]);
    assert_eq!(code, 1, "{report:#}");
    let (watched, reason) = grade(&report, 0, "watched");
    assert!(watched == "fail" && reason.starts_with("before the tests: "), "{reason}");
    assert!(report["gpus"][0]["remedy"].as_str().unwrap().starts_with("reset-gpu"), "{report:#}");
    let (code, report) = node.json(&["--gpu", "0"]);
    assert_eq!(code, 0, "the other GPU is healthy: {report:#}");
}
