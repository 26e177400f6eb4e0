//! `farrier diag` on a simulated node, where NVML reports which GPUs exist and which are busy.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

use crate::support::{CommandOutput, run};
use crate::test_node::TestNode;

/// Simulated CUDA results of healthy GPUs.
const HEALTHY: &str = r#"[{"name":"NVIDIA H100 80GB HBM3","compute_capability":[9,0],"processors":132,"memory_mib":16,"memory_gb_per_s":3000.0,
"pcie_gb_per_s":55.0,"peer_gb_per_s":390.0,"peers":1,"tflops":760.0,"launch_us":[3.6,0.6],"has_library":true}]"#;

fn diag(node: &TestNode, more: &[&str]) -> CommandOutput {
    let nvml = node.path().join("lib/libnvidia-ml.so.1");
    let (file, history) = (node.path().join("cuda.json"), node.path().join("history"));
    std::fs::write(&file, HEALTHY).unwrap();
    let mut args = vec!["diag", "--nvml", nvml.to_str().unwrap()];
    args.extend(["--history", history.to_str().unwrap()]);
    if !more.contains(&"real") {
        args.extend(["--simulated", file.to_str().unwrap()]);
    }
    args.extend(more.iter().filter(|word| **word != "real"));
    run(&args)
}

#[test]
fn busy_gpu_is_skipped_without_force() {
    let node = TestNode::new("H100-SXM5-80GB", 2, "580.95.05");
    let output = diag(&node, &["--gpu", "1", "--output", "json"]);
    assert_eq!(output.code, 0, "{}{}", output.stdout, output.stderr);
    let report: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(report["gpus"][0]["part"], "H100-SXM5-80GB");
    assert_eq!(report["driver"], "580.95.05");
    node.inject(&["--gpu", "1", "process", "4711"]);
    let output = diag(&node, &["--gpu", "1"]);
    assert_eq!(output.code, 2);
    assert!(output.stderr.contains("GPU 1 is in use by process 4711"), "{}", output.stderr);
    assert!(output.stderr.contains("hint: tests use all GPU memory"), "{}", output.stderr);
    let output = diag(&node, &["--gpu", "1", "--force"]);
    assert_eq!(output.code, 0, "{}{}", output.stdout, output.stderr);
    assert!(output.stdout.contains("note: GPU 1 is in use by process 4711"), "{}", output.stdout);
    // The other GPU is idle.
    assert_eq!(diag(&node, &["--gpu", "0"]).code, 0);
}

/// A node whose GPUs no other process on this machine has. Without simulated CUDA results,
/// `farrier diag` locks a GPU by its UUID for the whole machine, and the UUIDs follow from the seed.
fn node_with_own_uuids() -> TestNode {
    static NODES: AtomicU32 = AtomicU32::new(0);
    let number = NODES.fetch_add(1, Ordering::Relaxed);
    let seed = (u64::from(std::process::id()) * 16 + u64::from(number)).to_string();
    let sku = ["--sku", "H100-SXM5-80GB", "--gpus", "1", "--driver", "580.95.05"];
    TestNode::with_args(&[&sku[..], &["--seed", &seed]].concat())
}

#[test]
fn a_gpu_is_tested_by_one_process_at_a_time() {
    let node = node_with_own_uuids();
    let gpu: Value =
        serde_json::from_slice(&std::fs::read(node.path().join("gpus/0.json")).unwrap()).unwrap();
    let uuid = gpu["uuid"].as_str().unwrap();
    let name = SocketAddr::from_abstract_name(format!("farrier-diag-{uuid}")).unwrap();
    let other = UnixListener::bind_addr(&name).unwrap();
    let output = diag(&node, &["real"]);
    assert_eq!((output.code, output.stdout.as_str()), (2, ""));
    assert!(output.stderr.contains("is being tested by another"), "{}", output.stderr);
    drop(other);
    assert!(diag(&node, &["real"]).stderr.contains("nothing was tested"));
}

#[test]
fn missing_cuda_library_is_an_error() {
    let node = node_with_own_uuids();
    let output = diag(&node, &["real"]);
    assert_eq!(output.code, 2, "{}", output.stdout);
    assert!(
        output.stdout.contains("not run") && !output.stdout.contains("pass"),
        "{}",
        output.stdout
    );
    assert!(
        output.stderr.contains("nothing was tested: failed to load CUDA's driver library"),
        "{}",
        output.stderr
    );
}

#[test]
fn lost_gpu_fails_and_other_gpus_are_tested() {
    let node = TestNode::new("H100-SXM5-80GB", 2, "580.95.05");
    node.inject(&["--gpu", "0", "lost"]);
    let output = diag(&node, &["--output", "json"]);
    let report: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(report["gpus"][0]["grade"], "fail", "{report:#}");
    assert_eq!(report["gpus"][1]["grade"], "pass");
    assert_eq!(output.code, 1, "a missing GPU is not a pass");
}
