//! A GPU falls off the bus on a Slurm node: the node is drained with a reason, its job is requeued,
//! and the node is rebooted, verified and resumed. Drains by others stay.

use std::fs;

use serde_json::json;

use crate::agent_node::AgentNode;
use crate::cluster::Cluster;
use crate::orders::{OrdersProcess, hopeless_order, order};

fn executor(agent_node: &AgentNode, cluster: &Cluster) -> OrdersProcess {
    let environment = cluster.environment();
    let environment: Vec<(&str, &str)> =
        environment.iter().map(|(key, value)| (*key, value.as_str())).collect();
    OrdersProcess::start_with(
        &agent_node.path("agent.toml"),
        &agent_node.path("orders.log"),
        None,
        &environment,
    )
}

fn boot(agent_node: &AgentNode) -> String {
    let path = agent_node.path("node/root/proc/sys/kernel/random/boot_id");
    fs::read_to_string(path).unwrap().trim().to_owned()
}

#[test]
fn a_node_with_a_lost_gpu_is_drained_repaired_and_resumed() {
    let Some(cluster) = Cluster::start() else { return };
    let agent_node = AgentNode::with_gpus(2);
    let orders = "[orders]\nscheduler = \"auto\"\nslurm_node = \"node1\"\nsettle_s = 60\n";
    fs::write(agent_node.path("agent.toml"), agent_node.config(orders)).unwrap();
    let agent = agent_node.agent().ready();
    let job = cluster.start_job("node1", &["--requeue"]);
    agent_node.inject(&["--gpu", "1", "xid", "79"]);
    agent.until_found("gpu.lost");

    let mut orders = executor(&agent_node, &cluster);
    assert_eq!(orders.cordon(), json!("none"));
    let evidence = orders.done(&order(1, json!("cordon"), None));
    assert!(evidence.starts_with("cordoned (Slurm): "), "{evidence}");
    let node = cluster.node("node1");
    assert!(node.contains("+DRAIN "), "{node}");
    // Slurm shows the owner and the reason in its own field, where every Slurm user looks.
    assert!(
        node.contains("Reason=farrier: critical gpu.xid (Xid 79) on GPU 1 (order 1) [root@"),
        "{node}"
    );
    assert_eq!(orders.cordon(), json!("by-farrier"));
    let before = boot(&agent_node);
    let reason = orders.fails(&order(2, json!("reboot"), Some(&before)));
    assert!(
        reason.contains(&format!("the node is not drained: job {job} (job.sh) of root, running")),
        "{reason}"
    );

    // The job cannot finish on a lost GPU: it is requeued elsewhere.
    let evidence = orders.done(&order(3, json!({ "drain": { "wait_s": 1 } }), None));
    assert_eq!(evidence, format!("no job runs on the node (Slurm); requeued: {job}"));
    let requeued = cluster.job(&job);
    assert!(requeued.contains("Restarts=1") && !requeued.contains("NodeList=node1"), "{requeued}");

    orders.send(&json!({ "order": order(4, json!("reboot"), Some(&before)) }));
    while orders.next_line().is_some() {}
    assert!(orders.wait_for_exit().success());
    agent.kill();
    let agent = agent_node.agent();
    let mut orders = executor(&agent_node, &cluster);
    orders.done(&order(5, json!({ "verify": { "level": "v0" } }), None));
    orders.done(&order(6, json!({ "verify": { "level": "v1" } }), None));
    orders.done(&order(7, json!("uncordon"), Some(&boot(&agent_node))));
    let node = cluster.node("node1");
    assert!(!node.contains("DRAIN") && !node.contains("Reason="), "{node}");
    agent.stop();
}

#[test]
fn nodes_drained_by_others_stay_drained() {
    let Some(cluster) = Cluster::start() else { return };
    let agent_node = AgentNode::with_gpus(1);
    let configured = |node: &str| {
        let orders = format!("[orders]\nscheduler = \"slurm\"\nslurm_node = \"{node}\"\n");
        fs::write(agent_node.path("agent.toml"), agent_node.config(&orders)).unwrap();
        executor(&agent_node, &cluster)
    };
    // Drained by another owner: farrier neither overwrites the reason nor resumes the node.
    cluster.drain("node2", "bad disk");
    let mut orders = configured("node2");
    let external = json!({ "external": { "owner": "root", "reason": "bad disk" } });
    assert_eq!(orders.cordon(), external);
    for (generation, kind) in [(1, "cordon"), (2, "uncordon")] {
        let reason = orders.fails(&order(generation, json!(kind), None));
        assert_eq!(
            reason,
            "cordoned by root (Slurm): bad disk; farrier does not change an external cordon"
        );
    }
    assert!(cluster.node("node2").contains("Reason=bad disk [root@"));
    assert!(orders.wait_for_exit().success());

    // A cordon by farrier becomes external when a person replaces its reason.
    let mut orders = configured("node3");
    orders.done(&order(3, json!("cordon"), None));
    cluster.drain("node3", "farrier: and the disk, do not resume");
    let reason = orders.fails(&order(4, json!("uncordon"), None));
    assert!(reason.contains("do not resume"), "{reason}");
    let node = cluster.node("node3");
    assert!(node.contains("+DRAIN") && node.contains("do not resume"), "{node}");

    // A job that cannot be requeued is named, and left alone.
    let job = cluster.start_job("node4", &["--no-requeue", "--nodelist=node4"]);
    assert!(orders.wait_for_exit().success());
    let mut orders = configured("node4");
    orders.done(&order(5, json!("cordon"), None));
    let reason = orders.fails(&hopeless_order(6, json!({ "drain": { "wait_s": 1 } }), None));
    assert!(
        reason.contains(&format!("job {job} (job.sh) of root, running (requeue failed: ")),
        "{reason}"
    );
    assert!(cluster.job(&job).contains("JobState=RUNNING"));

    // If Slurm does not know the node, or does not respond, the cordon state is unknown.
    assert!(orders.wait_for_exit().success());
    let mut orders = configured("node9");
    assert_eq!(orders.cordon(), json!("unknown"));
    let reason = orders.fails(&hopeless_order(7, json!("cordon"), None));
    assert!(reason.contains("not found"), "{reason}");
}
