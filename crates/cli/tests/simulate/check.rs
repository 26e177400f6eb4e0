//! `farrier check` on a simulated node: faults visible in a single run.

use serde_json::Value;

use crate::support::{CommandOutput, run};
use crate::test_node::TestNode;

fn check(node: &TestNode, more: &[&str]) -> CommandOutput {
    let (root, nvml) = (node.path().join("root"), node.path().join("lib/libnvidia-ml.so.1"));
    let mut args = vec!["check", "--root", root.to_str().unwrap(), "--on", "2026-11-15"];
    args.extend(["--nvml", nvml.to_str().unwrap()]);
    args.extend(more);
    run(&args)
}

fn report(output: &CommandOutput) -> Value {
    serde_json::from_str(&output.stdout)
        .unwrap_or_else(|_| panic!("{}{}", output.stdout, output.stderr))
}

/// Codes of the items in the report that are not ok.
fn open(report: &Value) -> Vec<&str> {
    let items = report["items"].as_array().unwrap().iter();
    items
        .filter(|item| item["verdict"] != "ok")
        .map(|item| item["code"].as_str().unwrap())
        .collect()
}

#[test]
fn live_faults_fail_the_check_and_its_capture() {
    let node = TestNode::eight_h100();
    let healthy = check(&node, &["--output", "json"]);
    let before = report(&healthy);
    assert_eq!(healthy.code, 0, "{:?}", open(&before));
    let cases: [(&[&str], &str, &str); 6] = [
        (&["--gpu", "1", "nvlink-down", "5"], "nvlink-down", "blocked"),
        (&["--gpu", "2", "ecc", "--uncorrected", "3"], "ecc-uncorrected", "blocked"),
        (
            &["--gpu", "3", "throttle", "hw-thermal", "hw-power-brake"],
            "hardware-slowdown",
            "blocked",
        ),
        (&["--gpu", "4", "pcie", "--generation", "1", "--width", "4"], "pcie-narrow", "blocked"),
        (&["nic", "mlx5_3", "--state", "DOWN"], "port-down", "blocked"),
        (&["--gpu", "5", "xid", "95"], "xid-critical", "blocked"),
    ];
    for (args, ..) in &cases {
        node.inject(args);
    }
    let folder = node.path().join("capture");
    let folder = folder.to_str().unwrap();
    let output = check(&node, &["--output", "json", "--capture", folder]);
    let now = report(&output);
    assert_eq!(output.code, 1);
    for (_, code, verdict) in cases {
        let items = now["items"].as_array().unwrap();
        let item = items.iter().find(|item| item["code"] == code);
        let item = item.unwrap_or_else(|| panic!("no {code} in {:?}", open(&now)));
        assert_eq!(item["verdict"], verdict, "{item}");
    }
    let again = run(&["check", "--root", folder, "--on", "2026-11-15", "--output", "json"]);
    assert_eq!((again.code, report(&again)), (1, now));
    let table = check(&node, &[]).stdout;
    for part in ["What to do", "--gpu-reset -i 2", "Not judged:", "farrier status"] {
        assert!(table.contains(part), "{part}: {table}");
    }
}

#[test]
fn hung_call_is_reported_and_other_gpus_are_checked() {
    let node = TestNode::eight_h100();
    node.inject(&["--gpu", "1", "ecc", "--uncorrected", "3"]);
    node.inject(&["--gpu", "3", "hang", "nvmlDeviceGetHandleByIndex_v2", "forever"]);
    let output = check(&node, &["--output", "json", "--nvml-deadline", "3"]);
    let report = report(&output);
    let item = |code: &str| {
        let items = report["items"].as_array().unwrap();
        let item = items.iter().find(|item| item["code"] == code);
        item.unwrap_or_else(|| panic!("no {code} in {:?}", open(&report)))
    };
    let text = item("nvml-hung")["text"].as_str().unwrap();
    assert!(text.contains("nvmlDeviceGetHandleByIndex_v2 of GPU 3"), "{text}");
    assert_eq!(item("gpus-unread")["subject"], "GPUs 3, 4, 5, 6, 7");
    assert_eq!(item("ecc-uncorrected")["subject"], "GPU 1", "GPUs that were read are checked");
}
