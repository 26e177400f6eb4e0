//! The whole way, with a server that decides: Slurm's nodes with an agent each, a GPU that falls off the bus, and nobody who types
//! anything where the policy asks for nobody.

use std::fs;

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::server::{TestServer, TestUser, until};
use crate::support::run;
use crate::support::wait::wait_for;
use crate::world::{Agent, World};

/// A node of Slurm's with an agent that is enrolled and carries out orders.
struct Member {
    name: &'static str,
    world: World,
}

impl Member {
    fn enrol(name: &'static str, pool: &str, server: &TestServer) -> Self {
        // Each has GPUs of its own.
        let world = World::with(&["--gpus", "2", "--seed", &name[4..]]);
        let identity = world.text("identity");
        let enrolled = server.enrol(name, &identity, &server.token(&["--pool", pool]));
        assert_eq!(enrolled.code, 0, "{}", enrolled.stderr);
        let config = format!(
            "[server]\nurl = {:?}\nidentity = {identity:?}\n[orders]\nenabled = true\nscheduler = \"slurm\"\n\
             slurm_node = {name:?}\nsettle_s = 60\n",
            server.url(),
        );
        fs::write(world.path("agent.toml"), world.config(&config)).unwrap();
        Self { name, world }
    }

    fn agent(&self, cluster: &Cluster) -> Agent<'_> {
        self.world.agent_with(|command| {
            command.envs(cluster.environment());
        })
    }

    fn lose_gpu(&self) {
        self.world.inject(&["--gpu", "1", "xid", "79"]);
    }

    /// Waits until the server says that the node stands so; gives what it says.
    fn until(&self, ann: &TestUser, standing: &str) -> Value {
        let explain = || {
            let log = fs::read_to_string(self.world.path("log")).unwrap();
            format!("{} is not {standing}: {:#}\n{log}", self.name, ann.node(self.name))
        };
        wait_for(explain, || Some(ann.node(self.name)).filter(|node| node["standing"] == standing))
    }
}

/// The server may take out all of so few nodes; what runs is moved soon; and repairs of the pool `lab` are left to people.
fn policy(ann: &TestUser, folder: &World) {
    let mut policy: Value = serde_json::from_str(&ann.fine(&["fleet", "policy", "show"])).unwrap();
    for kind in ["fleet", "pool"] {
        policy["breakers"][kind]["share"] = json!(1.0);
    }
    policy["pools_default"]["drain_wait_s"] = json!(1);
    policy["pools"]["lab"] = policy["pools_default"].clone();
    policy["pools"]["lab"]["autonomy"] = json!("quarantine");
    let file = folder.path("policy.json");
    fs::write(&file, policy.to_string()).unwrap();
    ann.fine(&["fleet", "policy", "set", file.to_str().unwrap()]);
}

#[test]
fn the_server_drains_mends_proves_and_resumes_and_leaves_what_others_drained() {
    let Some(cluster) = Cluster::start() else { return };
    let home = World::of(1);
    let often = ["--report-interval", "1"];
    let server = TestServer::start_with(&home.path(""), "127.0.0.1:0", "server.log", &often);
    policy(&server.log_in("ann", "admin"), &home);
    let bob = server.log_in("bob", "operator");
    let members = [("node1", "train"), ("node2", "train"), ("node3", "lab")]
        .map(|(name, pool)| Member::enrol(name, pool, &server));
    let [one, two, three] = &members;
    let [mut first, second, third] = members.each_ref().map(|member| member.agent(&cluster));
    for member in &members {
        member.until(&bob, "in-service");
    }

    // Somebody drains the second before anything is wrong with it. On the first a job runs, and a GPU falls off the bus.
    cluster.drain("node2", "bad disk");
    let job = cluster.start_ending_job("node1");
    one.lose_gpu();
    let node = cluster.until_node("node1", |node| node.contains("+DRAIN"));
    // The kernel's line or NVML, whichever reaches the server first.
    let is_told = ["gpu.xid (Xid 79)", "gpu.lost"].iter().any(|code| {
        node.contains(&format!("Reason=farrier: fatal {code} on GPU 1 at 0000:43:00.0"))
    });
    assert!(is_told, "{node}");
    assert!(node.contains(" [root@"), "who did it is told: {node}");
    three.lose_gpu();
    moved_and_ended(&cluster, &job);

    // What somebody else has drained is seen and left alone, whatever happens to it.
    let held = two.until(&bob, "held");
    assert_eq!(held["why"]["reason"]["text"], "it is cordoned by root: bad disk");
    two.lose_gpu();
    let findings = |node: &str| bob.node(node)["findings"].as_array().map(Vec::len);
    until("the second's fault is known", || findings("node2") >= Some(1));

    // The node without work is rebooted, which ends its agent; a service manager starts that anew.
    assert!(first.ended().success());
    first = one.agent(&cluster);

    // The third was drained by us, and its repair is left to people. One of them writes a reason of their own.
    let waits = three.until(&bob, "in-repair");
    let unblocked_by = waits["held_back"]["unblocked_by"]["text"].as_str().unwrap();
    assert_eq!(unblocked_by, "a person repairs it and says so (`farrier fleet repaired`)");
    let node = cluster.node("node3");
    assert!(node.contains("+DRAIN") && node.contains("Reason=farrier: "), "{node}");
    cluster.drain("node3", "its PSU, too");
    for (member, agent) in [(two, second), (three, third)] {
        // By hand: no agent outlives it.
        agent.kill();
        member.world.inject(&["reboot"]);
    }
    let (second, third) = (two.agent(&cluster), three.agent(&cluster));
    let told = bob.fine(&["fleet", "repaired", "node3", "--what", "the riser was reseated"]);
    assert!(told.starts_with("node3 was repaired: its agent counts anew"), "{told}");

    // Proven, the first is given back: our drain is gone.
    let back = one.until(&bob, "in-service");
    assert_eq!(back["why"]["reason"]["text"], "it passed what its pool asks for");
    assert_eq!(passed(&back), ["v0", "v1"]);
    let node = cluster.node("node1");
    assert!(!node.contains("DRAIN") && !node.contains("Reason="), "{node}");
    // The others' are not, though both nodes are fit, and the third was drained by us at first.
    let fit = three.until(&bob, "held");
    assert_eq!(fit["why"]["reason"]["text"], "it is fit, and cordoned by root: its PSU, too");
    assert_eq!(passed(&fit), ["v0", "v1"]);
    until("the second's fault is over", || findings("node2") == Some(0));
    for (name, reason) in [("node2", "bad disk"), ("node3", "its PSU, too")] {
        let node = cluster.node(name);
        assert!(node.contains("+DRAIN"), "{node}");
        assert!(node.contains(&format!("Reason={reason} [root@")), "{node}");
    }
    told_by_the_log(&bob);
    for agent in [first, second, third] {
        agent.stop();
    }
    let whole = run(&["server", "verify-log", &server.dir(), "--replay"]);
    assert_eq!(whole.code, 0, "{}{}", whole.stdout, whole.stderr);
    assert!(whole.stdout.contains("and what was decided follows from it"), "{}", whole.stdout);
    server.stop();
}

/// The job starts anew on the one node that is left, and ends well there.
fn moved_and_ended(cluster: &Cluster, job: &str) {
    cluster.wait("job that was moved", |cluster| {
        cluster.release(job);
        let job = cluster.job(job);
        job.contains("Restarts=1") && job.contains("JobState=RUNNING")
    });
    let moved = cluster.job(job);
    assert!(moved.contains(" NodeList=node4"), "{moved}");
    fs::write(cluster.path("job.may-end"), "").unwrap();
    cluster.wait("job that ended", |it| it.job(job).contains("JobState=COMPLETED"));
}

/// The rungs that a node has passed.
fn passed(node: &Value) -> Vec<&str> {
    let proven = node["proven"].as_array().unwrap().iter();
    proven.filter(|it| it["passed"] == true).filter_map(|it| it["rung"].as_str()).collect()
}

/// What was ordered and decided, in order and once.
fn told_by_the_log(bob: &TestUser) {
    let told = |node: &str| {
        let all = bob.fine(&["fleet", "events", "--node", node, "--limit", "200"]);
        let steps = all.lines().filter(|it| it.contains("  moved  ") || it.contains("  ordered  "));
        // `node1 is quarantined: ...`, `node1 order 4: drain, waiting up to 1 s`.
        let step = |line: &str| {
            let text = line.split_once(&format!("{node} ")).unwrap().1;
            let ends: &[char] = if text.starts_with("is ") { &[':'] } else { &[',', '(', '['] };
            text.split(ends).next().unwrap().trim().to_owned()
        };
        steps.map(step).collect::<Vec<_>>()
    };
    let joined = ["order 1: verify V0", "order 2: verify V1", "is in service"];
    let cared = ["is quarantined", "order 3: cordon", "order 4: drain", "is in repair"];
    let back = [
        "order 5: reboot",
        "is verifying",
        "order 6: verify V0",
        "order 7: verify V1",
        "order 8: uncordon",
        "is in service",
    ];
    assert_eq!(told("node1"), [&joined[..], &cared, &back].concat());
    assert_eq!(told("node2"), [&joined[..], &["is held"]].concat());
    let fit = [
        "is verifying",
        "order 5: take note of the repair",
        "order 6: verify V0",
        "order 7: verify V1",
        "is held",
    ];
    assert_eq!(told("node3"), [&joined[..], &cared, &fit].concat());
}
