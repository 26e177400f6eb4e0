//! Output of the agent from ten minutes on a real H200 (`bench/gpu/agent.py watch`) still parses.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use farrier_agent::status::{NodeVerdict, Status, VERSION};
use farrier_facts::node::Reading;
use farrier_fleet::health::Change;

fn fixture(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/agent");
    std::fs::read_to_string(folder.join(format!("h200_580.159.04_{name}"))).unwrap()
}

#[test]
fn the_status_parses() {
    let status: Status = serde_json::from_str(&fixture("status.json")).unwrap();
    assert_eq!((status.v, status.verdict), (VERSION, NodeVerdict::Healthy));
    assert_eq!(status.driver.as_deref(), Some("580.159.04"));
    let [gpu] = status.gpus.as_slice() else { panic!("{:?}", status.gpus) };
    assert_eq!(gpu.identity.name.as_deref(), Some("NVIDIA H200"));
    assert!(matches!(gpu.power_w, Reading::Value(watts) if watts > 500.0), "{:?}", gpu.power_w);
    let [advice] = status.findings.as_slice() else { panic!("{:?}", status.findings) };
    assert_eq!(advice.finding.code, "advice.power-capped");
}

#[test]
fn the_changes_parse_and_each_appears_once() {
    let mut opened = Vec::new();
    let mut last = 0;
    for line in fixture("sink.jsonl").lines().skip(1) {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let seq = line["seq"].as_u64().unwrap();
        assert!(seq == last + 1 || line["n"].as_u64().unwrap() > 1, "{seq} after {last}");
        last = seq;
        let change: Change = serde_json::from_value(line["change"].clone()).unwrap();
        if let Change::Opened(finding) = change {
            opened.push(finding.detail);
        }
    }
    for number in 900..1100 {
        let xid = format!("Xid {number}");
        assert_eq!(opened.iter().filter(|detail| **detail == xid).count(), 1, "{xid}");
    }
}

#[test]
fn the_metrics_have_dcgm_and_farrier_names() {
    let text = fixture("metrics.txt");
    for name in
        ["DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"]
    {
        let line = text.lines().find(|line| line.starts_with(&format!("{name}{{"))).unwrap();
        let value: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(value > 0.0 && line.contains("modelName=\"NVIDIA H200\""), "{line}");
    }
    assert!(text.contains("\nfarrier_gpu_sm_active_ratio{"));
}
