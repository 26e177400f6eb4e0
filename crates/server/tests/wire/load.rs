//! Simulated nodes over a real connection. They enrol, fail, are quarantined, repaired, verified
//! and returned to service. The log explains why, and can be replayed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::replay::Replay;
use farrier_fleet::fleet::{Event, NodeId, NodePhase, Reason};
use farrier_server::log::Log;
use farrier_server::log::sqlite::SqliteLog;
use farrier_server::run::{Running, log_path};
use farrier_sim::fleet::wire::ConnectedFleet;
use farrier_sim::fleet::{FleetSpec, NodeFault, SimFleet};
use jiff::Timestamp;

use crate::test_server::{PATIENCE, TestServer};

async fn phases(running: &Running) -> BTreeMap<NodeId, NodePhase> {
    let phases = |state: &farrier_fleet::fleet::FleetState| {
        state.nodes.iter().map(|(id, node)| (id.clone(), node.phase())).collect()
    };
    running.controller().read(phases).await.unwrap()
}

async fn until_all(running: &Running, what: &str, holds: impl Fn(&NodeId, NodePhase) -> bool) {
    let end = Instant::now() + PATIENCE;
    loop {
        let phases = phases(running).await;
        if phases.iter().all(|(id, phase)| holds(id, *phase)) {
            return;
        }
        assert!(Instant::now() < end, "{what}: {phases:#?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn simulated_nodes_enrol_fail_and_return() {
    let mut server = TestServer::plain().await;
    let running = server.running.take().unwrap();
    let spec =
        FleetSpec { nodes: 24, mean_fault_interval_s: 0, time_scale: 600, ..FleetSpec::default() };
    let fleet = SimFleet::new(spec, Timestamp::now());
    for (node, location) in fleet.locations() {
        let joined = Event::Enrolled { node: node.clone(), location: location.clone() };
        running.controller().submit(Actor::Server, joined).await.unwrap();
    }
    let url = format!("http://{}", running.address()).parse().unwrap();
    let connected = ConnectedFleet::start(fleet, &url, 2).await.unwrap();
    until_all(&running, "all nodes join", |_, phase| phase == NodePhase::InService).await;

    // One fault needs a reset, the other needs a reboot.
    let faulty: [NodeId; 2] = ["node-00003".parse().unwrap(), "node-00011".parse().unwrap()];
    let names = [("gpu.xid", "Xid 48"), ("gpu.xid", "Xid 119")];
    let (mut tail, mut last_seq) = (running.tail(), running.tail().end());
    for (node, (code, detail)) in faulty.iter().zip(names) {
        connected.inject_fault(node.clone(), NodeFault::by_code(code, detail).unwrap()).await;
    }
    let mut out = BTreeSet::new();
    while out.len() < faulty.len() {
        for entry in tail.next(last_seq, 64).await.unwrap().unwrap() {
            last_seq = entry.seq;
            if let Event::PhaseChanged { node, to: NodePhase::Quarantined, rationale } = entry.event
            {
                assert!(
                    matches!(&rationale.reason, Reason::OpenFindings { worst, .. } if worst.code == "gpu.xid"),
                    "{rationale:?}"
                );
                out.insert(node);
            }
        }
    }
    assert!(out.iter().eq(&faulty));
    until_all(&running, "all nodes return", |_, phase| phase == NodePhase::InService).await;
    assert!(connected.faulty_nodes().await.is_empty());
    drop(connected);
    running.stop().await.unwrap();

    let log = SqliteLog::open_to_read(&log_path(&server.dir())).unwrap();
    let mut replay = Replay::default();
    let mut orders: BTreeMap<NodeId, Vec<String>> = BTreeMap::new();
    for stored in log.read(0, usize::MAX).unwrap() {
        let entry = stored.entry().unwrap();
        if let Event::OrderIssued { order } = &entry.event {
            let order_text = order.kind.to_string();
            let word = order_text.split([' ', ',']).next().unwrap().to_owned();
            orders.entry(order.node.clone()).or_default().push(word);
        }
        replay.apply(entry).unwrap();
    }
    replay.finish().unwrap();
    let expected = "verify verify cordon drain reset verify verify uncordon";
    assert_eq!(orders[&faulty[0]].join(" "), expected);
    assert!(orders[&faulty[1]].contains(&"reboot".to_owned()), "{:?}", orders[&faulty[1]]);
}
