//! The whole way of a node whose GPU falls off the bus: marked, emptied, rebooted, proven, given back.

use std::fs;

use serde_json::{Value, json};

use crate::orders::{OrdersProcess, hopeless_order, order};
use crate::world::World;

/// The configuration of a node that carries out orders.
pub(crate) fn configured(world: &World, more: &str) -> std::path::PathBuf {
    let path = world.path("agent.toml");
    let services = "services = [\"nvidia-fabricmanager.service\"]";
    fs::write(&path, world.config(&format!("[orders]\nscheduler = \"host\"\n{services}\n{more}")))
        .unwrap();
    path
}

pub(crate) fn boot(world: &World) -> String {
    let path = world.path("node/root/proc/sys/kernel/random/boot_id");
    fs::read_to_string(path).unwrap().trim().to_owned()
}

fn desk(world: &World) -> OrdersProcess {
    OrdersProcess::start(&world.path("agent.toml"), &world.path("orders.log"), None)
}

#[test]
fn a_node_with_a_lost_gpu_is_emptied_rebooted_proven_and_given_back() {
    let world = World::of(2);
    configured(&world, "");
    let agent = world.agent().ready();
    let mut orders = desk(&world);
    // Well before anything happens.
    let evidence = orders.done(&order(1, json!({ "verify": { "rung": "v1" } }), None));
    assert!(evidence.contains("NVML lists 2 GPUs"), "{evidence}");
    world.inject(&["--gpu", "0", "process", "4242", "--command", "python train.py"]);
    world.inject(&["--gpu", "1", "xid", "79"]);
    agent.until_found("gpu.lost");
    let before = boot(&world);

    let why = orders.not_done(&order(2, json!("reboot"), Some(&before)));
    assert!(why.contains("the node takes new work"), "{why}");
    let evidence = orders.done(&order(3, json!("cordon"), None));
    assert!(
        evidence.contains("farrier: critical gpu.xid (Xid 79) on GPU 1 (order 3)"),
        "{evidence}"
    );
    // Others can read who, why and since when.
    let mark: Value =
        serde_json::from_slice(&fs::read(world.path("state/cordon.json")).unwrap()).unwrap();
    assert_eq!(mark["owner"], "farrier");
    assert!(mark["reason"].as_str().unwrap().starts_with("farrier: critical gpu.xid"), "{mark}");
    mark["since"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    assert_eq!(orders.cordon(), json!("ours"));

    // Work is waited for; meanwhile the node cannot pass.
    let drain = order(4, json!({ "drain": { "wait_s": 600 } }), None);
    orders.say(&json!({ "order": drain }));
    agent.until(|status| status["gpus"][0]["processes"][0]["pid"] == 4242);
    assert_eq!(orders.hear().unwrap()["answer"]["answer"], "accepted");
    world.inject(&["--gpu", "0", "process", "4242", "--end"]);
    assert!(orders.done(&drain).starts_with("nothing runs on the node"));
    let why = orders.not_done(&hopeless_order(6, json!({ "verify": { "rung": "v1" } }), None));
    assert!(why.starts_with("fatal gpu.xid (Xid 79) on GPU 1 at "), "{why}");

    // The reboot ends everybody on the node.
    orders.say(&json!({ "order": order(7, json!("reboot"), Some(&before)) }));
    while orders.hear().is_some() {}
    assert!(orders.ended().success());
    agent.kill();
    assert_ne!(boot(&world), before);
    let agent = world.agent();
    let mut orders = desk(&world);
    let told: Vec<Value> = std::iter::from_fn(|| orders.hear()).take(6).collect();
    let rebooted = told.iter().find(|told| told["answer"]["generation"] == 7).unwrap();
    let evidence = rebooted["answer"]["answer"]["done"]["evidence"].as_str().unwrap();
    assert_eq!(evidence, format!("boot {}, before it boot {before}", boot(&world)));

    let evidence = orders.done(&order(8, json!({ "verify": { "rung": "v0" } }), None));
    assert!(
        evidence.contains("items of the node's check on driver, kernel and packages"),
        "{evidence}"
    );
    // What was found before the reboot is over when the node passes; until then it stays cordoned.
    orders.done(&order(9, json!({ "verify": { "rung": "v1" } }), None));
    orders.done(&order(10, json!("uncordon"), Some(&boot(&world))));
    assert!(!world.path("state/cordon.json").exists());
    assert_eq!(orders.cordon(), json!("none"));
    // An order for the boot before comes too late.
    let why = orders.not_done(&order(11, json!("reboot"), Some(&before)));
    assert!(why.contains("it is for boot"), "{why}");
    agent.stop();
}

#[test]
fn a_mark_of_somebody_elses_stays() {
    let world = World::of(1);
    configured(&world, "");
    fs::create_dir_all(world.path("state")).unwrap();
    let mark = world.path("state/cordon.json");
    for (text, owner) in [
        ("{\"owner\":\"alice\",\"reason\":\"disk\",\"ticket\":7}", "alice"),
        ("do not use", "somebody"),
    ] {
        fs::write(&mark, text).unwrap();
        let mut orders = desk(&world);
        let generation = u64::from(owner == "somebody") * 2 + 1;
        assert_eq!(orders.cordon()["theirs"]["owner"], owner);
        for (at, what) in [(0, "cordon"), (1, "uncordon")] {
            let why = orders.not_done(&order(generation + at, json!(what), None));
            assert!(
                why.contains(&format!("a mark of {owner}, which only they take away")),
                "{why}"
            );
        }
        assert_eq!(fs::read_to_string(&mark).unwrap(), text);
    }
}

/// Two H100 that CUDA would see, the second with these ailments.
fn cuda(world: &World, ailments: &Value) {
    let gpu = |ailments: &Value| {
        json!({
            "name": "NVIDIA H100 80GB HBM3", "compute_capability": [9, 0], "processors": 132,
            "memory_mib": 16, "memory_gb_per_s": 3100.0, "pcie_gb_per_s": 55.0,
            "peer_gb_per_s": 390.0, "peers": 1, "tflops": 760.0, "launch_us": [3.6, 0.6],
            "has_library": true, "ailments": ailments,
        })
    };
    let gpus = json!([gpu(&json!([])), gpu(ailments)]);
    fs::write(world.path("cuda.json"), gpus.to_string()).unwrap();
}

#[test]
fn gpus_are_proven_with_work() {
    let world = World::of(2);
    cuda(&world, &json!([]));
    let file = world.path("cuda.json");
    let config = world.config("[orders]\nscheduler = \"host\"\n");
    fs::write(world.path("agent.toml"), format!("cuda = {file:?}\n{config}")).unwrap();
    let mut orders = desk(&world);
    let rung = |rung: &str| json!({ "verify": { "rung": rung } });
    let evidence = orders.done(&order(1, rung("v2"), None));
    assert!(evidence.starts_with("GPU 0 passed 7 tests; GPU 1 passed 7"), "{evidence}");
    // Slow memory is seen by the rung that measures it.
    cuda(&world, &json!([{ "slow-memory": 0.5 }]));
    orders.done(&order(2, rung("v2"), None));
    let why = orders.not_done(&order(3, rung("v3"), None));
    assert!(why.contains("GPU 1 degraded: hbm-read"), "{why}");
    assert!(!why.contains("GPU 0"), "{why}");
    // The same tests, asked for by a person, on a node that takes no work.
    let agent = world.agent().ready();
    let diag = |level: u8| json!({ "diag": { "level": level, "minutes": 0 } });
    let why = orders.not_done(&hopeless_order(4, diag(1), None));
    assert!(why.contains("the node takes new work"), "{why}");
    orders.done(&order(5, json!("cordon"), None));
    let evidence = orders.done(&order(6, diag(1), None));
    assert!(evidence.starts_with("level 1: GPU 0 passed 7 tests"), "{evidence}");
    let why = orders.not_done(&order(7, diag(2), None));
    assert!(why.starts_with("level 2: GPU 1 degraded: hbm-read"), "{why}");
    agent.stop();
    // A GPU that somebody uses is not proven, and not disturbed.
    world.inject(&["--gpu", "0", "process", "4242"]);
    let why = orders.not_done(&hopeless_order(8, rung("v2"), None));
    assert!(why.contains("GPU 0 is in use by process 4242"), "{why}");
}

#[test]
fn a_node_is_made_right_for_its_work_when_it_is_empty() {
    let world = World::of(2);
    let config = world.config("[orders]\nscheduler = \"host\"\n");
    fs::write(world.path("agent.toml"), config).unwrap();
    let agent = world.agent().ready();
    let mut orders = desk(&world);
    let tune = |profile: &str| json!({ "tune": { "profile": profile } });
    let why = orders.not_done(&hopeless_order(1, tune("training"), None));
    assert!(why.contains("the node takes new work"), "{why}");
    orders.done(&order(2, json!("cordon"), None));
    let evidence = orders.done(&order(3, tune("training"), None));
    assert!(evidence.contains("changes made"), "{evidence}");
    let kept = world.path("node/root/var/lib/farrier-tune/applied.json");
    assert!(fs::read_to_string(kept).unwrap().contains("\"name\":\"training\""));
    let why = orders.not_done(&order(4, tune("trainig"), None));
    assert!(why.contains("there is no profile `trainig`"), "{why}");
    agent.stop();
    // What somebody changes afterwards is a finding of the agent's.
    let pages = world.path("node/root/sys/kernel/mm/transparent_hugepage/enabled");
    fs::write(pages, "[always] madvise never\n").unwrap();
    let agent = world.agent();
    let found = agent.until_found("check");
    assert_eq!(found["detail"], "tune-drift");
    let text = found["text"].as_str().unwrap();
    let said = "not as the profile `training` wants it: host.transparent-hugepages is always and not madvise";
    assert!(text.contains(said), "{text}");
    assert_eq!(found["severity"], "warning");
    agent.stop();
}
