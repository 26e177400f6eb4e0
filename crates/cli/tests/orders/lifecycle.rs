//! Lifecycle of a node whose GPU falls off the bus: cordon, drain, reboot, verify, uncordon.

use std::fs;

use serde_json::{Value, json};

use crate::agent_node::AgentNode;
use crate::orders::{OrdersProcess, hopeless_order, order};

/// Writes the configuration of a node that executes orders.
pub(crate) fn configure(agent_node: &AgentNode, more: &str) -> std::path::PathBuf {
    let path = agent_node.path("agent.toml");
    let services = "services = [\"nvidia-fabricmanager.service\"]";
    fs::write(
        &path,
        agent_node.config(&format!("[orders]\nscheduler = \"host\"\n{services}\n{more}")),
    )
    .unwrap();
    path
}

pub(crate) fn boot(agent_node: &AgentNode) -> String {
    let path = agent_node.path("node/root/proc/sys/kernel/random/boot_id");
    fs::read_to_string(path).unwrap().trim().to_owned()
}

fn start_executor(agent_node: &AgentNode) -> OrdersProcess {
    OrdersProcess::start(&agent_node.path("agent.toml"), &agent_node.path("orders.log"), None)
}

#[test]
fn a_node_with_a_lost_gpu_is_drained_rebooted_verified_and_uncordoned() {
    let agent_node = AgentNode::with_gpus(2);
    configure(&agent_node, "");
    let agent = agent_node.agent().ready();
    let mut orders = start_executor(&agent_node);
    // The node passes verification before the fault.
    let evidence = orders.done(&order(1, json!({ "verify": { "level": "v1" } }), None));
    assert!(evidence.contains("NVML lists 2 GPUs"), "{evidence}");
    agent_node.inject(&["--gpu", "0", "process", "4242", "--command", "python train.py"]);
    agent_node.inject(&["--gpu", "1", "xid", "79"]);
    agent.until_found("gpu.lost");
    let before = boot(&agent_node);

    let why = orders.fails(&order(2, json!("reboot"), Some(&before)));
    assert!(why.contains("the node accepts new work"), "{why}");
    let evidence = orders.done(&order(3, json!("cordon"), None));
    assert!(
        evidence.contains("farrier: critical gpu.xid (Xid 79) on GPU 1 (order 3)"),
        "{evidence}"
    );
    // The cordon file records the owner, the reason and the start, so that others can see them.
    let cordon: Value =
        serde_json::from_slice(&fs::read(agent_node.path("state/cordon.json")).unwrap()).unwrap();
    assert_eq!(cordon["owner"], "farrier");
    assert!(
        cordon["reason"].as_str().unwrap().starts_with("farrier: critical gpu.xid"),
        "{cordon}"
    );
    cordon["since"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    assert_eq!(orders.cordon(), json!("by-farrier"));

    // The drain waits for running jobs. Until the reboot, the node cannot pass verification.
    let drain = order(4, json!({ "drain": { "wait_s": 600 } }), None);
    orders.send(&json!({ "order": drain }));
    agent.until(|status| status["gpus"][0]["processes"][0]["pid"] == 4242);
    assert_eq!(orders.next_line().unwrap()["order-status"]["status"], "accepted");
    agent_node.inject(&["--gpu", "0", "process", "4242", "--end"]);
    assert!(orders.done(&drain).starts_with("no job runs on the node"));
    let why = orders.fails(&hopeless_order(6, json!({ "verify": { "level": "v1" } }), None));
    assert!(why.starts_with("fatal gpu.xid (Xid 79) on GPU 1 at "), "{why}");

    // The reboot ends every process on the node.
    orders.send(&json!({ "order": order(7, json!("reboot"), Some(&before)) }));
    while orders.next_line().is_some() {}
    assert!(orders.wait_for_exit().success());
    agent.kill();
    assert_ne!(boot(&agent_node), before);
    let agent = agent_node.agent();
    let mut orders = start_executor(&agent_node);
    let lines: Vec<Value> = std::iter::from_fn(|| orders.next_line()).take(6).collect();
    let rebooted = lines.iter().find(|line| line["order-status"]["generation"] == 7).unwrap();
    let evidence = rebooted["order-status"]["status"]["done"]["evidence"].as_str().unwrap();
    assert_eq!(evidence, format!("boot {}, previous boot {before}", boot(&agent_node)));

    let evidence = orders.done(&order(8, json!({ "verify": { "level": "v0" } }), None));
    assert!(evidence.contains("checks of driver, kernel and packages passed"), "{evidence}");
    // When the node passes verification, findings from before the reboot are cleared. Until then,
    // the node stays cordoned.
    orders.done(&order(9, json!({ "verify": { "level": "v1" } }), None));
    orders.done(&order(10, json!("uncordon"), Some(&boot(&agent_node))));
    assert!(!agent_node.path("state/cordon.json").exists());
    assert_eq!(orders.cordon(), json!("none"));
    // An order for the previous boot is refused.
    let why = orders.fails(&order(11, json!("reboot"), Some(&before)));
    assert!(why.contains("the order is for boot"), "{why}");
    agent.stop();
}

#[test]
fn an_external_cordon_stays() {
    let agent_node = AgentNode::with_gpus(1);
    configure(&agent_node, "");
    fs::create_dir_all(agent_node.path("state")).unwrap();
    let cordon = agent_node.path("state/cordon.json");
    for (text, owner) in [
        ("{\"owner\":\"alice\",\"reason\":\"disk\",\"ticket\":7}", "alice"),
        ("do not use", "unknown"),
    ] {
        fs::write(&cordon, text).unwrap();
        let mut orders = start_executor(&agent_node);
        let generation = u64::from(owner == "unknown") * 2 + 1;
        assert_eq!(orders.cordon()["external"]["owner"], owner);
        for (offset, kind) in [(0, "cordon"), (1, "uncordon")] {
            let why = orders.fails(&order(generation + offset, json!(kind), None));
            assert!(why.contains(&format!("cordoned by {owner} (host): ")), "{why}");
            assert!(why.contains("farrier does not change an external cordon"), "{why}");
        }
        assert_eq!(fs::read_to_string(&cordon).unwrap(), text);
    }
}

/// Simulates two H100 CUDA devices. The second one has these faults.
fn cuda(agent_node: &AgentNode, faults: &Value) {
    let gpu = |faults: &Value| {
        json!({
            "name": "NVIDIA H100 80GB HBM3", "compute_capability": [9, 0], "processors": 132,
            "memory_mib": 16, "memory_gb_per_s": 3100.0, "pcie_gb_per_s": 55.0,
            "peer_gb_per_s": 390.0, "peers": 1, "tflops": 760.0, "launch_us": [3.6, 0.6],
            "has_library": true, "ailments": faults,
        })
    };
    let gpus = json!([gpu(&json!([])), gpu(faults)]);
    fs::write(agent_node.path("cuda.json"), gpus.to_string()).unwrap();
}

#[test]
fn gpus_are_verified_under_load() {
    let agent_node = AgentNode::with_gpus(2);
    cuda(&agent_node, &json!([]));
    let file = agent_node.path("cuda.json");
    let config = agent_node.config("[orders]\nscheduler = \"host\"\n");
    fs::write(agent_node.path("agent.toml"), format!("cuda = {file:?}\n{config}")).unwrap();
    let mut orders = start_executor(&agent_node);
    let level = |level: &str| json!({ "verify": { "level": level } });
    let evidence = orders.done(&order(1, level("v2"), None));
    assert!(evidence.starts_with("GPU 0 passed 7 tests; GPU 1 passed 7"), "{evidence}");
    // Only the level that measures bandwidth finds slow memory.
    cuda(&agent_node, &json!([{ "slow-memory": 0.5 }]));
    orders.done(&order(2, level("v2"), None));
    let why = orders.fails(&order(3, level("v3"), None));
    assert!(why.contains("GPU 1 degraded: hbm-read"), "{why}");
    assert!(!why.contains("GPU 0"), "{why}");
    // Run the same tests with a diag order, on a cordoned node.
    let agent = agent_node.agent().ready();
    let diag = |level: u8| json!({ "diag": { "level": level, "minutes": 0 } });
    let why = orders.fails(&hopeless_order(4, diag(1), None));
    assert!(why.contains("the node accepts new work"), "{why}");
    orders.done(&order(5, json!("cordon"), None));
    let evidence = orders.done(&order(6, diag(1), None));
    assert!(evidence.starts_with("level 1: GPU 0 passed 7 tests"), "{evidence}");
    let why = orders.fails(&order(7, diag(2), None));
    assert!(why.starts_with("level 2: GPU 1 degraded: hbm-read"), "{why}");
    agent.stop();
    // The tests do not run on a GPU that is in use.
    agent_node.inject(&["--gpu", "0", "process", "4242"]);
    let why = orders.fails(&hopeless_order(8, level("v2"), None));
    assert!(why.contains("GPU 0 is in use by process 4242"), "{why}");
}

#[test]
fn a_drained_node_is_tuned() {
    let agent_node = AgentNode::with_gpus(2);
    let config = agent_node.config("[orders]\nscheduler = \"host\"\n");
    fs::write(agent_node.path("agent.toml"), config).unwrap();
    let agent = agent_node.agent().ready();
    let mut orders = start_executor(&agent_node);
    let tune = |profile: &str| json!({ "tune": { "profile": profile } });
    let why = orders.fails(&hopeless_order(1, tune("training"), None));
    assert!(why.contains("the node accepts new work"), "{why}");
    orders.done(&order(2, json!("cordon"), None));
    let evidence = orders.done(&order(3, tune("training"), None));
    assert!(evidence.contains("changes made"), "{evidence}");
    let applied = agent_node.path("node/root/var/lib/farrier-tune/applied.json");
    assert!(fs::read_to_string(applied).unwrap().contains("\"name\":\"training\""));
    let why = orders.fails(&order(4, tune("trainig"), None));
    assert!(why.contains("there is no profile `trainig`"), "{why}");
    agent.stop();
    // If a setting changes after the order, the agent reports drift.
    let pages = agent_node.path("node/root/sys/kernel/mm/transparent_hugepage/enabled");
    fs::write(pages, "[always] madvise never\n").unwrap();
    let agent = agent_node.agent();
    let finding = agent.until_found("check");
    assert_eq!(finding["detail"], "tune-drift");
    let text = finding["text"].as_str().unwrap();
    let expected =
        "drift from the profile `training`: host.transparent-hugepages is always, expected madvise";
    assert!(text.contains(expected), "{text}");
    assert_eq!(finding["severity"], "warning");
    agent.stop();
}
