//! `--once`: with NVML, with an agent, with neither.

use std::fs;
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::simulated_node::{SimulatedNode, borrowed};
use crate::support::wait::wait_for;
use crate::support::{CommandOutput, farrier, run};
use crate::terminal::Terminal;

fn once(node: &SimulatedNode, more: &[&str]) -> CommandOutput {
    let args = node.args(&[&["--once", "--interval", "0.2"], more].concat());
    run(&borrowed(&args))
}

#[test]
fn a_table_without_escape_codes_and_json() {
    let node = SimulatedNode::with_gpus(2);
    node.inject(&["throttle", "sw-power-cap", "--gpu", "1"]);
    node.inject(&["activity", "--nvlink-tx", "60e9", "--nvlink-rx", "60e9", "--gpu", "1"]);
    let output = once(&node, &[]);
    assert_eq!(output.code, 0, "{}{}", output.stdout, output.stderr);
    assert!(!output.stdout.contains('\x1b'));
    for part in ["NVIDIA H100 80GB HBM3", "500/700W", "power cap", "Slurm job 7411", "120G"] {
        assert!(output.stdout.contains(part), "{part}: {}", output.stdout);
    }
    assert!(
        output.stdout.contains("GPU 1: the power limit of 700 W reduces the clocks, 500 W drawn")
    );
    assert_eq!(output.stderr, "");

    let output = once(&node, &["--output", "json"]);
    let sample: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!((&sample["v"], &sample["source"]), (&1.into(), &"nvml".into()));
    assert_eq!(sample["gpus"][1]["limit"]["kind"], "power-cap");
    assert_eq!(sample["gpus"][1]["readings"]["gpu.power_w"]["value"], 500.0);
    assert_eq!(sample["processes"][0]["job"], "Slurm job 7411.0");
    assert_eq!(sample["gpus"][0]["links"]["up"], 18);
    assert_eq!(sample["cuda"], "13.0");
}

#[test]
fn low_clocks_are_named() {
    let node = SimulatedNode::with_gpus(2);
    node.inject(&["clocks", "--sm-mhz", "345", "--gpu", "0"]);
    node.inject(&["clocks", "--memory-mhz", "810", "--gpu", "1"]);
    let output = once(&node, &[]);
    for text in [
        "GPU 0: the SM clock is 345 of 1980 MHz: no throttle reason: locked clocks?",
        "GPU 1: the memory clock is 810 of 2619 MHz",
    ] {
        assert!(output.stdout.contains(text), "{text}: {}", output.stdout);
    }
}

#[test]
fn a_gpu_that_hangs_from_the_start_has_a_row_and_the_others_are_read() {
    let node = SimulatedNode::with_gpus(2);
    node.inject(&["hang", "nvmlDeviceGetName", "forever", "--gpu", "1"]);
    let output = once(&node, &["--output", "json"]);
    let sample: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(output.code, 0, "{}", sample["outage"]);
    assert_eq!(sample["gpus"][0]["limit"]["kind"], "compute");
    assert_eq!(sample["gpus"][1]["identity"]["index"], 1);
    assert_eq!(sample["gpus"][1]["limit"]["kind"], "hung");
}

#[test]
fn a_missing_driver_or_library_is_reported_with_a_hint() {
    let node = SimulatedNode::with_gpus(1);
    let root = node.text("node/root");
    let args = ["top", "--once", "--nvml", "/nonexistent/libnvidia-ml.so.1", "--root", &root];
    let output = run(&args);
    assert_eq!(output.code, 1, "{}{}", output.stdout, output.stderr);
    assert!(output.stdout.contains("no NVML library: "), "{}", output.stdout);
    assert!(output.stdout.contains("try: farrier check"), "{}", output.stdout);
    assert!(output.stdout.contains(", GPUs unknown, "), "{}", output.stdout);
    assert!(output.stdout.contains("processes: unknown"), "{}", output.stdout);

    node.inject(&["driver-unloaded"]);
    let output = once(&node, &[]);
    assert_eq!(output.code, 1);
    assert!(output.stdout.contains("NVML_ERROR_DRIVER_NOT_LOADED"), "{}", output.stdout);
    let json: Value = serde_json::from_str(&once(&node, &["--output", "json"]).stdout).unwrap();
    assert_eq!(json["processes"], Value::Null);
    assert!(json["outage"]["since"].is_string(), "{json:#}");
}

#[test]
fn a_node_without_gpus() {
    let node = SimulatedNode::with_gpus(1);
    fs::remove_file(node.path("node/gpus/0.json")).unwrap();
    let output = once(&node, &[]);
    assert_eq!(output.code, 0, "{}", output.stdout);
    assert!(output.stdout.contains("no NVIDIA GPU found"), "{}", output.stdout);
    let sample: Value = serde_json::from_str(&once(&node, &["--output", "json"]).stdout).unwrap();
    assert_eq!((&sample["gpus"], &sample["outage"]), (&Value::Array(Vec::new()), &Value::Null));
}

#[test]
fn a_lost_gpu_is_a_row_and_a_finding_and_does_not_affect_others() {
    let node = SimulatedNode::with_gpus(3);
    node.inject(&["lost", "--gpu", "2"]);
    let output = once(&node, &["--output", "json"]);
    let sample: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(sample["gpus"].as_array().unwrap().len(), 3, "{sample:#}");
    assert_eq!(sample["gpus"][2]["limit"]["kind"], "lost", "{sample:#}");
    assert_eq!(sample["coverage_gaps"], Value::Array(Vec::new()));
    let found = sample["findings"].as_array().unwrap();
    let lost = found.iter().find(|finding| finding["subject"] == "GPU 2").unwrap();
    assert_eq!((&lost["severity"], &lost["action"]), (&"fatal".into(), &"reboot-node".into()));
    for gpu in 0..2 {
        for signal in ["gpu.pcie_transmit_bytes_per_s", "gpu.nvlink_transmit_bytes_per_s"] {
            let reading = &sample["gpus"][gpu]["readings"][signal];
            assert!(reading["value"].is_number(), "GPU {gpu}, {signal}: {reading}");
        }
    }
    let output = once(&node, &["--ascii"]);
    assert!(output.stdout.contains("GPU 2: it fell off the bus"), "{}", output.stdout);
    assert!(
        output.stdout.is_ascii() && output.stdout.contains("GPU 2 > reboot-node"),
        "{}",
        output.stdout
    );
}

#[test]
fn conflicting_flags_are_rejected() {
    for args in [
        &["top", "--server", "--nvml"][..],
        &["top", "--output", "json"],
        &["top", "--interval", "0"],
        &["top", "--once", "--root", "/tmp"],
    ] {
        let output = run(args);
        assert_eq!(output.code, 2, "{args:?}: {}", output.stdout);
    }
}

/// An agent that does not outlive its test.
struct Agent(Child);

impl Agent {
    fn start(node: &SimulatedNode) -> Self {
        let text = format!(
            "state_dir = {:?}\nlisten = \"off\"\nroot = {:?}\nnvml = {:?}\n[socket]\npath = {:?}\n",
            node.text("state"),
            node.text("node/root"),
            node.text("node/lib/libnvidia-ml.so.1"),
            node.text("agent.sock"),
        );
        fs::write(node.path("agent.toml"), text).unwrap();
        let log = fs::File::create(node.path("log")).unwrap();
        let mut command = farrier(&["agent", "--config", &node.text("agent.toml")]);
        Self(command.stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn agent_args(node: &SimulatedNode) -> Vec<String> {
    let (socket, root) = (node.text("agent.sock"), node.text("node/root"));
    ["top", "--socket", &socket, "--root", &root].map(str::to_owned).to_vec()
}

#[test]
fn values_findings_and_jobs_from_an_agent_until_it_exits() {
    let node = SimulatedNode::with_gpus(2);
    node.inject(&["throttle", "sw-thermal", "--gpu", "0"]);
    let mut agent = Agent::start(&node);
    let args = agent_args(&node);
    let json = [&borrowed(&args)[..], &["--once", "--output", "json"]].concat();
    let sample = wait_for(
        || run(&json).stdout,
        || {
            let sample: Value = serde_json::from_str(&run(&json).stdout).unwrap();
            // Wait for processes and NVLinks too, which are read less often than power.
            let is_complete = sample["outage"].is_null()
                && sample["processes"].as_array().is_some_and(|processes| processes.len() == 2)
                && sample["gpus"][0]["links"]["up"] == 18;
            is_complete.then_some(sample)
        },
    );
    assert_eq!(sample["source"], "agent");
    assert_eq!(sample["gpus"][0]["limit"]["kind"], "sw-thermal");
    assert_eq!(sample["processes"][0]["job"], "Slurm job 7411.0");
    assert!(sample["findings"].is_array() && sample["verdict"].is_string(), "{sample:#}");

    node.inject(&["xid", "79", "--gpu", "1"]);
    let live = [&borrowed(&args)[..], &["--interval", "0.2"]].concat();
    let terminal = Terminal::run(&live, (100, 30));
    let text = terminal.until("found", |text| text.contains("fatal") && text.contains("GPU 1"));
    assert!(text.contains("via agent"), "{text}");
    agent.0.kill().unwrap();
    agent.0.wait().unwrap();
    let text = terminal.until_shown("no answer for");
    let row = text.lines().find(|line| line.starts_with("  0 ")).unwrap();
    assert!(row.contains('?') && row.contains("unknown"), "outdated values are unknown: {row}");
    drop(terminal);
    let _again = Agent::start(&node);
}

#[test]
fn a_missing_agent_is_reported() {
    let node = SimulatedNode::with_gpus(1);
    let args = agent_args(&node);
    let output = run(&[&borrowed(&args)[..], &["--once"]].concat());
    assert_eq!(output.code, 1);
    assert!(output.stdout.contains("no agent at `"), "{}", output.stdout);
}
