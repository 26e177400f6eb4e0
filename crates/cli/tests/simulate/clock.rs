//! The frozen clock and the values that follow it.

use std::fs;

use crate::support::run;
use crate::test_node::{TestNode, python};

const START_MS: u64 = 1_800_000_000_000;

fn clock(node: &TestNode, args: &[&str]) {
    let dir = node.dir();
    let mut command = vec!["simulate", "clock", &dir];
    command.extend(args);
    let ran = run(&command);
    assert_eq!(ran.code, 0, "{args:?}: {}", ran.stderr);
}

#[test]
fn files_follow_the_frozen_clock() {
    let node = TestNode::eight_h100();
    let read = |path: &str| fs::read_to_string(node.path().join("root").join(path)).unwrap();
    let booted: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(node.path().join("node.json")).unwrap()).unwrap();
    let booted = booted["booted_unix_ms"].as_u64().unwrap();
    clock(&node, &["--set-unix-ms", &(booted + 90_000_000).to_string()]);
    assert!(read("proc/uptime").starts_with("90000.00 "));
    clock(&node, &["--advance-s", "3600.5"]);
    assert!(read("proc/uptime").starts_with("93600.50 "));
    node.inject(&["xid", "94"]);
    let last = read("dev/kmsg").lines().last().unwrap().to_owned();
    assert_eq!(last.split(',').nth(2), Some("93600500000"));
    clock(&node, &["--real"]);
    let text = fs::read_to_string(node.path().join("node.json")).unwrap();
    assert!(!text.contains("clock_unix_ms"), "{text}");
    assert_eq!(run(&["simulate", "clock", &node.dir()]).code, 2, "a time argument is required");
}

#[test]
fn nvml_follows_the_frozen_clock() {
    let Some(python) = python() else { return };
    let node = TestNode::eight_h100();
    clock(&node, &["--set-unix-ms", &START_MS.to_string()]);
    node.inject(&["power", "500"]);
    node.inject(&["throttle", "hw-thermal"]);
    node.inject(&[
        "activity",
        "--nvlink-tx",
        "18432000",
        "--nvlink-rx",
        "36864000",
        "--pcie-tx",
        "2e6",
    ]);
    let read = "
one = gpu(0)
fields = nvmlDeviceGetFieldValues(one, [83, 270, (138, 0), (139, 4294967295), 197])
print(json.dumps([fields[0].timestamp, nvmlDeviceGetTotalEnergyConsumption(one)] + [field.value.ullVal for field in fields[1:4]] + [fields[4].value.uiVal]))
";
    let numbers = |text: &str| -> Vec<i64> { serde_json::from_str(text).unwrap() };
    let before = numbers(&node.python(&python, read));
    assert_eq!(before, numbers(&node.python(&python, read)), "the clock is frozen");
    assert_eq!(before[0], i64::try_from(START_MS).unwrap() * 1000);
    clock(&node, &["--advance-s", "60"]);
    let after = numbers(&node.python(&python, read));
    let mut moved: Vec<i64> =
        before.iter().zip(&after).map(|(before, after)| after - before).collect();
    // The last field has 32 bits and wraps around.
    moved[5] = moved[5].rem_euclid(1 << 32);
    // Time in microseconds, energy in millijoules, throttled time in nanoseconds, traffic of one
    // link and of all links in KiB, and PCIe traffic in bytes.
    assert_eq!(moved, [60_000_000, 30_000_000, 60_000_000_000, 60_000, 18 * 120_000, 120_000_000]);
}

/// Takes two GPM samples and returns the requested metrics.
const METRICS: &str = "
def metrics(index, ids):
    one = gpu(index)
    samples = [nvmlGpmSampleAlloc() for _ in range(2)]
    for sample in samples:
        nvmlGpmSampleGet(one, sample)
    request = c_nvmlGpmMetricsGet_t()
    request.version = NVML_GPM_METRICS_GET_VERSION
    request.numMetrics = len(ids)
    request.sample1, request.sample2 = samples
    for place, number in enumerate(ids):
        request.metrics[place].metricId = number
    nvmlGpmMetricsGet(request)
    return [round(request.metrics[place].value, 3) for place in range(len(ids))]
";

#[test]
fn gpm_metrics_reflect_activity() {
    let Some(python) = python() else { return };
    let node = TestNode::eight_h100();
    node.inject(&[
        "activity",
        "--graphics",
        "1",
        "--sm",
        "0.9",
        "--tensor",
        "0.1",
        "--dram",
        "0.8",
        "--fp64",
        "0.05",
    ]);
    node.inject(&[
        "activity",
        "--nvlink-tx",
        &(18 << 20).to_string(),
        "--nvlink-rx",
        &(36 << 20).to_string(),
    ]);
    let source =
        format!("{METRICS}\nprint(json.dumps(metrics(0, [1, 2, 5, 10, 11, 60, 61, 62, 63])))");
    let output = node.python(&python, &source);
    assert_eq!(output.trim(), "[100.0, 90.0, 10.0, 80.0, 5.0, 36.0, 18.0, 2.0, 1.0]");
    let refused = run(&["simulate", "inject", &node.dir(), "activity", "--sm", "1.2"]);
    assert_eq!(refused.code, 2, "{}", refused.stderr);
}
