//! `farrier diag` on a simulated node: NVML says who is there and who is busy.

use serde_json::Value;

use crate::support::{Ran, run};
use crate::world::World;

/// Simulated CUDA for GPUs that have nothing.
const HEALTHY: &str = r#"[{"name":"NVIDIA H100 80GB HBM3","compute_capability":[9,0],"processors":132,"memory_mib":16,"memory_gb_per_s":3000.0,
"pcie_gb_per_s":55.0,"peer_gb_per_s":390.0,"peers":1,"tflops":760.0,"launch_us":[3.6,0.6],"has_library":true}]"#;

fn diag(world: &World, more: &[&str]) -> Ran {
    let nvml = world.path().join("lib/libnvidia-ml.so.1");
    let (file, history) = (world.path().join("cuda.json"), world.path().join("history"));
    std::fs::write(&file, HEALTHY).unwrap();
    let mut words = vec!["diag", "--nvml", nvml.to_str().unwrap()];
    words.extend(["--history", history.to_str().unwrap()]);
    if !more.contains(&"real") {
        words.extend(["--simulated", file.to_str().unwrap()]);
    }
    words.extend(more.iter().filter(|word| **word != "real"));
    run(&words)
}

#[test]
fn a_gpu_in_use_is_left_alone_unless_it_is_said() {
    let world = World::of("H100-SXM5-80GB", 2, "580.95.05");
    let ran = diag(&world, &["--gpu", "1", "--output", "json"]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["gpus"][0]["part"], "H100-SXM5-80GB");
    assert_eq!(report["driver"], "580.95.05");
    world.inject(&["--gpu", "1", "process", "4711"]);
    let ran = diag(&world, &["--gpu", "1"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("GPU 1 is in use by process 4711"), "{}", ran.stderr);
    assert!(ran.stderr.contains("hint: tests use all GPU memory"), "{}", ran.stderr);
    let ran = diag(&world, &["--gpu", "1", "--force"]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("note: GPU 1 is in use by process 4711"), "{}", ran.stdout);
    // The other one is free.
    assert_eq!(diag(&world, &["--gpu", "0"]).code, 0);
}

#[test]
fn without_cuda_nothing_is_said_of_the_gpu() {
    let world = World::of("H100-SXM5-80GB", 1, "580.95.05");
    let ran = diag(&world, &["real"]);
    assert_eq!(ran.code, 2, "{}", ran.stdout);
    assert!(ran.stdout.contains("not run") && !ran.stdout.contains("pass"), "{}", ran.stdout);
    assert!(ran.stderr.contains("nothing was tested: CUDA's driver library"), "{}", ran.stderr);
}

#[test]
fn a_gpu_that_fell_off_the_bus_fails_and_the_others_are_tested() {
    let world = World::of("H100-SXM5-80GB", 2, "580.95.05");
    world.inject(&["--gpu", "0", "lost"]);
    let ran = diag(&world, &["--output", "json"]);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["gpus"][0]["grade"], "fail", "{report:#}");
    assert_eq!(report["gpus"][1]["grade"], "pass");
    assert_eq!(ran.code, 1, "a GPU that is gone is no pass");
}
