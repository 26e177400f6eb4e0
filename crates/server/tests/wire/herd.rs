//! Simulated nodes on the real wire: they join, fall ill, are taken out, mended, proven and given back; the log says why, and replays.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::replay::Replay;
use farrier_fleet::fleet::{Event, NodeId, Reason, Standing};
use farrier_server::log::Log;
use farrier_server::log::sqlite::SqliteLog;
use farrier_server::run::{Running, log_path};
use farrier_sim::fleet::wire::ConnectedFleet;
use farrier_sim::fleet::{FleetSpec, NodeFault, SimFleet};
use jiff::Timestamp;

use crate::world::{PATIENCE, Site};

async fn standings(running: &Running) -> BTreeMap<NodeId, Standing> {
    let standings = |it: &farrier_fleet::fleet::FleetState| {
        it.nodes.iter().map(|(id, node)| (id.clone(), node.standing())).collect()
    };
    running.brain().look(standings).await.unwrap()
}

async fn until_all(running: &Running, what: &str, holds: impl Fn(&NodeId, Standing) -> bool) {
    let end = Instant::now() + PATIENCE;
    loop {
        let all = standings(running).await;
        if all.iter().all(|(id, standing)| holds(id, *standing)) {
            return;
        }
        assert!(Instant::now() < end, "{what}: {all:#?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn simulated_nodes_join_fall_ill_and_come_back() {
    let mut site = Site::plain().await;
    let running = site.running.take().unwrap();
    let plan =
        FleetSpec { nodes: 24, mean_fault_interval_s: 0, time_scale: 600, ..FleetSpec::default() };
    let fleet = SimFleet::new(plan, Timestamp::now());
    for (node, place) in fleet.locations() {
        let joined = Event::Enrolled { node: node.clone(), place: place.clone() };
        running.brain().take(Actor::Server, joined).await.unwrap();
    }
    let url = format!("http://{}", running.address()).parse().unwrap();
    let herd = ConnectedFleet::start(fleet, &url, 2).await.unwrap();
    until_all(&running, "all join", |_, it| it == Standing::InService).await;

    // One that a reset mends, and one for which nothing but a reboot does.
    let ill: [NodeId; 2] = ["node-00003".parse().unwrap(), "node-00011".parse().unwrap()];
    let names = [("gpu.xid", "Xid 48"), ("gpu.xid", "Xid 119")];
    let (mut tail, mut seen) = (running.tail(), running.tail().end());
    for (node, (code, detail)) in ill.iter().zip(names) {
        herd.inject_fault(node.clone(), NodeFault::by_code(code, detail).unwrap()).await;
    }
    let mut out = BTreeSet::new();
    while out.len() < ill.len() {
        for entry in tail.next(seen, 64).await.unwrap().unwrap() {
            seen = entry.seq;
            if let Event::Moved { node, to: Standing::Quarantined, why } = entry.event {
                assert!(
                    matches!(&why.reason, Reason::OpenFindings { worst, .. } if worst.code == "gpu.xid"),
                    "{why:?}"
                );
                out.insert(node);
            }
        }
    }
    assert!(out.iter().eq(&ill));
    until_all(&running, "they are back", |_, it| it == Standing::InService).await;
    assert!(herd.faulty_nodes().await.is_empty());
    drop(herd);
    running.stop().await.unwrap();

    let log = SqliteLog::open_to_read(&log_path(&site.dir())).unwrap();
    let mut replay = Replay::default();
    let mut orders: BTreeMap<NodeId, Vec<String>> = BTreeMap::new();
    for stored in log.read(0, usize::MAX).unwrap() {
        let entry = stored.entry().unwrap();
        if let Event::Ordered { order } = &entry.event {
            let what = order.what.to_string();
            let word = what.split([' ', ',']).next().unwrap().to_owned();
            orders.entry(order.node.clone()).or_default().push(word);
        }
        replay.take(entry).unwrap();
    }
    replay.finish().unwrap();
    let way = "verify verify cordon drain reset verify verify uncordon";
    assert_eq!(orders[&ill[0]].join(" "), way);
    assert!(orders[&ill[1]].contains(&"reboot".to_owned()), "{:?}", orders[&ill[1]]);
}
