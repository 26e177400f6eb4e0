//! A GPU falls off the bus on a node of Slurm: drained with a reason, its job moved, mended, proven, resumed; and what others have
//! drained stays.

use std::fs;

use serde_json::json;

use crate::cluster::Cluster;
use crate::orders::{OrdersProcess, hopeless_order, order};
use crate::world::World;

fn desk(world: &World, cluster: &Cluster) -> OrdersProcess {
    let environment = cluster.environment();
    let environment: Vec<(&str, &str)> =
        environment.iter().map(|(key, value)| (*key, value.as_str())).collect();
    OrdersProcess::start_with(
        &world.path("agent.toml"),
        &world.path("orders.log"),
        None,
        &environment,
    )
}

fn boot(world: &World) -> String {
    let path = world.path("node/root/proc/sys/kernel/random/boot_id");
    fs::read_to_string(path).unwrap().trim().to_owned()
}

#[test]
fn a_node_with_a_lost_gpu_is_drained_mended_and_resumed() {
    let Some(cluster) = Cluster::start() else { return };
    let world = World::of(2);
    let orders = "[orders]\nscheduler = \"auto\"\nslurm_node = \"node1\"\nsettle_s = 60\n";
    fs::write(world.path("agent.toml"), world.config(orders)).unwrap();
    let agent = world.agent().ready();
    let job = cluster.start_job("node1", &["--requeue"]);
    world.inject(&["--gpu", "1", "xid", "79"]);
    agent.until_found("gpu.lost");

    let mut orders = desk(&world, &cluster);
    assert_eq!(orders.cordon(), json!("none"));
    let evidence = orders.done(&order(1, json!("cordon"), None));
    assert!(evidence.starts_with("Slurm gives no new work: "), "{evidence}");
    let node = cluster.node("node1");
    assert!(node.contains("+DRAIN "), "{node}");
    // Who and why stand where every user of Slurm looks.
    assert!(
        node.contains("Reason=farrier: critical gpu.xid (Xid 79) on GPU 1 (order 1) [root@"),
        "{node}"
    );
    assert_eq!(orders.cordon(), json!("ours"));
    let before = boot(&world);
    let why = orders.not_done(&order(2, json!("reboot"), Some(&before)));
    assert!(
        why.contains(&format!("the node is not empty: job {job} (job.sh) of root, running")),
        "{why}"
    );

    // The job cannot end on a GPU that is lost: it starts anew elsewhere.
    let evidence = orders.done(&order(3, json!({ "drain": { "wait_s": 1 } }), None));
    assert_eq!(
        evidence,
        format!("nothing runs on the node by Slurm; started anew elsewhere: {job}")
    );
    let moved = cluster.job(&job);
    assert!(moved.contains("Restarts=1") && !moved.contains("NodeList=node1"), "{moved}");

    orders.say(&json!({ "order": order(4, json!("reboot"), Some(&before)) }));
    while orders.hear().is_some() {}
    assert!(orders.ended().success());
    agent.kill();
    let agent = world.agent();
    let mut orders = desk(&world, &cluster);
    orders.done(&order(5, json!({ "verify": { "rung": "v0" } }), None));
    orders.done(&order(6, json!({ "verify": { "rung": "v1" } }), None));
    orders.done(&order(7, json!("uncordon"), Some(&boot(&world))));
    let node = cluster.node("node1");
    assert!(!node.contains("DRAIN") && !node.contains("Reason="), "{node}");
    agent.stop();
}

#[test]
fn what_others_have_drained_stays_drained() {
    let Some(cluster) = Cluster::start() else { return };
    let world = World::of(1);
    let configured = |node: &str| {
        let orders = format!("[orders]\nscheduler = \"slurm\"\nslurm_node = \"{node}\"\n");
        fs::write(world.path("agent.toml"), world.config(&orders)).unwrap();
        desk(&world, &cluster)
    };
    // Drained by somebody: neither marked over nor resumed.
    cluster.drain("node2", "bad disk");
    let mut orders = configured("node2");
    let theirs = json!({ "theirs": { "owner": "root", "reason": "bad disk" } });
    assert_eq!(orders.cordon(), theirs);
    for (generation, what) in [(1, "cordon"), (2, "uncordon")] {
        let why = orders.not_done(&order(generation, json!(what), None));
        assert_eq!(why, "Slurm has a mark of root, which only they take away: bad disk");
    }
    assert!(cluster.node("node2").contains("Reason=bad disk [root@"));
    assert!(orders.ended().success());

    // Ours, until a person writes a reason of their own.
    let mut orders = configured("node3");
    orders.done(&order(3, json!("cordon"), None));
    cluster.drain("node3", "farrier: and the disk, do not resume");
    let why = orders.not_done(&order(4, json!("uncordon"), None));
    assert!(why.contains("do not resume"), "{why}");
    let node = cluster.node("node3");
    assert!(node.contains("+DRAIN") && node.contains("do not resume"), "{node}");

    // A job that may not be moved is named, and left.
    let job = cluster.start_job("node4", &["--no-requeue", "--nodelist=node4"]);
    assert!(orders.ended().success());
    let mut orders = configured("node4");
    orders.done(&order(5, json!("cordon"), None));
    let why = orders.not_done(&hopeless_order(6, json!({ "drain": { "wait_s": 1 } }), None));
    assert!(why.contains(&format!("job {job} (job.sh) of root, running (not moved: ")), "{why}");
    assert!(cluster.job(&job).contains("JobState=RUNNING"));

    // A Slurm that does not know the node, or does not answer, says nothing that could be gone by.
    assert!(orders.ended().success());
    let mut orders = configured("node9");
    assert_eq!(orders.cordon(), json!("unknown"));
    let why = orders.not_done(&hopeless_order(7, json!("cordon"), None));
    assert!(why.contains("not found"), "{why}");
}
