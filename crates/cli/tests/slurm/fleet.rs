//! End to end with a server that decides: Slurm nodes with an agent each, and a GPU that falls off
//! the bus. No operator acts unless the policy requires one.

use std::fs;

use serde_json::{Value, json};

use crate::agent_node::{Agent, AgentNode};
use crate::cluster::Cluster;
use crate::server::{TestServer, TestUser, until};
use crate::support::run;
use crate::support::wait::wait_for;

/// A Slurm node with an enrolled agent that executes orders.
struct SlurmNode {
    name: &'static str,
    agent_node: AgentNode,
}

impl SlurmNode {
    fn enrol(name: &'static str, pool: &str, server: &TestServer) -> Self {
        // A seed per node, so that GPUs differ.
        let agent_node = AgentNode::with(&["--gpus", "2", "--seed", &name[4..]]);
        let identity = agent_node.text("identity");
        let enrolled = server.enrol(name, &identity, &server.token(&["--pool", pool]));
        assert_eq!(enrolled.code, 0, "{}", enrolled.stderr);
        let config = format!(
            "[server]\nurl = {:?}\nidentity = {identity:?}\n[orders]\nenabled = true\nscheduler = \"slurm\"\n\
             slurm_node = {name:?}\nsettle_s = 60\n",
            server.url(),
        );
        fs::write(agent_node.path("agent.toml"), agent_node.config(&config)).unwrap();
        Self { name, agent_node }
    }

    fn agent(&self, cluster: &Cluster) -> Agent<'_> {
        self.agent_node.agent_with(|command| {
            command.envs(cluster.environment());
        })
    }

    fn lose_gpu(&self) {
        self.agent_node.inject(&["--gpu", "1", "xid", "79"]);
    }

    /// Waits until the node is in this phase; returns its details.
    fn until(&self, ann: &TestUser, phase: &str) -> Value {
        let explain = || {
            let log = fs::read_to_string(self.agent_node.path("log")).unwrap();
            format!("{} is not {phase}: {:#}\n{log}", self.name, ann.node(self.name))
        };
        wait_for(explain, || Some(ann.node(self.name)).filter(|node| node["phase"] == phase))
    }
}

/// Sets a policy with a disruption budget that lets all of these nodes be out of service, a short
/// drain timeout, and no autonomous repairs in pool `lab`.
fn policy(ann: &TestUser, folder: &AgentNode) {
    let mut policy: Value = serde_json::from_str(&ann.run_ok(&["policy", "show"])).unwrap();
    for kind in ["fleet", "pool"] {
        policy["disruption_budgets"][kind]["share"] = json!(1.0);
    }
    policy["pools_default"]["drain_timeout_s"] = json!(1);
    policy["pools"]["lab"] = policy["pools_default"].clone();
    policy["pools"]["lab"]["autonomy"] = json!("quarantine");
    let file = folder.path("policy.json");
    fs::write(&file, policy.to_string()).unwrap();
    ann.run_ok(&["policy", "set", "--yes", file.to_str().unwrap()]);
}

#[test]
fn the_server_repairs_and_resumes_its_nodes_and_leaves_external_drains() {
    let Some(cluster) = Cluster::start() else { return };
    let home = AgentNode::with_gpus(1);
    let interval = ["--heartbeat-interval", "1"];
    let server = TestServer::start_with(&home.path(""), "127.0.0.1:0", "server.log", &interval);
    policy(&server.log_in("ann", "admin"), &home);
    let bob = server.log_in("bob", "operator");
    let slurm_nodes = [("node1", "train"), ("node2", "train"), ("node3", "lab")]
        .map(|(name, pool)| SlurmNode::enrol(name, pool, &server));
    let [node1, node2, node3] = &slurm_nodes;
    let [mut first, second, third] =
        slurm_nodes.each_ref().map(|slurm_node| slurm_node.agent(&cluster));
    for slurm_node in &slurm_nodes {
        slurm_node.until(&bob, "in-service");
    }

    // An administrator drains node2 while it is healthy. A job runs on node1 when its GPU falls off
    // the bus.
    cluster.drain("node2", "bad disk");
    let job = cluster.start_ending_job("node1");
    node1.lose_gpu();
    let node = cluster.until_node("node1", |node| node.contains("+DRAIN"));
    // The reason is the Xid from the kernel log or the error from NVML, whichever reaches the
    // server first.
    let has_reason = ["gpu.xid (Xid 79)", "gpu.lost"].iter().any(|code| {
        node.contains(&format!("Reason=farrier: fatal {code} on GPU 1 at 0000:43:00.0"))
    });
    assert!(has_reason, "{node}");
    assert!(node.contains(" [root@"), "Slurm records the user: {node}");
    node3.lose_gpu();
    requeued_and_completed(&cluster, &job);

    // A node drained by another owner is held, and left alone whatever happens to it.
    let held = node2.until(&bob, "held");
    assert_eq!(held["rationale"]["reason"]["text"], "cordoned by root: bad disk");
    node2.lose_gpu();
    let findings = |node: &str| bob.node(node)["findings"].as_array().map(Vec::len);
    until("node2 reports its finding", || findings("node2") >= Some(1));

    // The drained node is rebooted, which ends its agent. The test restarts the agent, as a service
    // manager would.
    assert!(first.wait_for_exit().success());
    first = node1.agent(&cluster);

    // Farrier drained node3, but the policy leaves its repair to people. An administrator replaces
    // the drain reason.
    let waiting = node3.until(&bob, "repairing");
    let unblocked_by = waiting["deferred"]["unblocked_by"]["text"].as_str().unwrap();
    assert_eq!(
        unblocked_by,
        "an operator repairs the node and reports it (`farrier fleet repaired`)"
    );
    let node = cluster.node("node3");
    assert!(node.contains("+DRAIN") && node.contains("Reason=farrier: "), "{node}");
    cluster.drain("node3", "its PSU, too");
    for (slurm_node, agent) in [(node2, second), (node3, third)] {
        // A manual reboot, which also ends the agent.
        agent.kill();
        slurm_node.agent_node.inject(&["reboot"]);
    }
    let (second, third) = (node2.agent(&cluster), node3.agent(&cluster));
    let output = bob.run_ok(&["fleet", "repaired", "node3", "--repair", "the riser was reseated"]);
    assert!(output.starts_with("node3 is recorded as repaired: its agent resets"), "{output}");

    // node1 passes its verifications and returns to service: farrier's drain is gone.
    let returned = node1.until(&bob, "in-service");
    assert_eq!(returned["rationale"]["reason"]["text"], "passed all required verifications");
    assert_eq!(passed(&returned), ["v0", "v1"]);
    let node = cluster.node("node1");
    assert!(!node.contains("DRAIN") && !node.contains("Reason="), "{node}");
    // External drains stay, although both nodes are healthy and farrier was first to drain node3.
    let verified = node3.until(&bob, "held");
    assert_eq!(
        verified["rationale"]["reason"]["text"],
        "healthy, but cordoned by root: its PSU, too"
    );
    assert_eq!(passed(&verified), ["v0", "v1"]);
    until("the finding of node2 clears", || findings("node2") == Some(0));
    for (name, reason) in [("node2", "bad disk"), ("node3", "its PSU, too")] {
        let node = cluster.node(name);
        assert!(node.contains("+DRAIN"), "{node}");
        assert!(node.contains(&format!("Reason={reason} [root@")), "{node}");
    }
    check_log(&bob);
    for agent in [first, second, third] {
        agent.stop();
    }
    let verified = run(&["server", "verify-log", &server.dir(), "--replay"]);
    assert_eq!(verified.code, 0, "{}{}", verified.stdout, verified.stderr);
    assert!(verified.stdout.contains("every decision reproduced"), "{}", verified.stdout);
    server.stop();
}

/// The job is requeued on the only node left, and completes there.
fn requeued_and_completed(cluster: &Cluster, job: &str) {
    cluster.wait("requeued job", |cluster| {
        cluster.release(job);
        let job = cluster.job(job);
        job.contains("Restarts=1") && job.contains("JobState=RUNNING")
    });
    let requeued = cluster.job(job);
    assert!(requeued.contains(" NodeList=node4"), "{requeued}");
    fs::write(cluster.path("job.may-end"), "").unwrap();
    cluster.wait("completed job", |cluster| cluster.job(job).contains("JobState=COMPLETED"));
}

/// Verification levels that the node has passed.
fn passed(node: &Value) -> Vec<&str> {
    let verifications = node["verifications"].as_array().unwrap().iter();
    verifications
        .filter(|result| result["passed"] == true)
        .filter_map(|result| result["level"].as_str())
        .collect()
}

/// The log has each order and decision once, in order.
fn check_log(bob: &TestUser) {
    let steps = |node: &str| {
        let events = bob.run_ok(&["fleet", "events", "--node", node, "--limit", "200"]);
        let decisions = events
            .lines()
            .filter(|line| line.contains("  phase-changed  ") || line.contains("  order-issued  "));
        // `node1 is quarantined: ...`, `node1 order 4 issued: drain, waiting up to 1 s`.
        let step = |line: &str| {
            let text = line.split_once(&format!("{node} ")).unwrap().1;
            let ends: &[char] = if text.starts_with("is ") { &[':'] } else { &[',', '(', '['] };
            text.split(ends).next().unwrap().trim().to_owned()
        };
        decisions.map(step).collect::<Vec<_>>()
    };
    let joined = ["order 1 issued: verify V0", "order 2 issued: verify V1", "is in service"];
    let quarantined =
        ["is quarantined", "order 3 issued: cordon", "order 4 issued: drain", "is repairing"];
    let repaired = [
        "order 5 issued: reboot",
        "is verifying",
        "order 6 issued: verify V0",
        "order 7 issued: verify V1",
        "order 8 issued: uncordon",
        "is in service",
    ];
    assert_eq!(steps("node1"), [&joined[..], &quarantined, &repaired].concat());
    assert_eq!(steps("node2"), [&joined[..], &["is held"]].concat());
    let held = [
        "is verifying",
        "order 5 issued: acknowledge the repair",
        "order 6 issued: verify V0",
        "order 7 issued: verify V1",
        "is held",
    ];
    assert_eq!(steps("node3"), [&joined[..], &quarantined, &held].concat());
}
