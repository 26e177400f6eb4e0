//! Kills the server over and over while nodes send records, at any point: during an append, between
//! an append and its acknowledgement, during a snapshot, during the start.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use farrier_fleet::fleet::Event;
use farrier_fleet::fleet::event::NodeInventory;
use farrier_fleet::health::{Change, Finding};
use farrier_wire::proto::{
    self, AgentMessage, ServerMessage, agent_message, report, server_message,
};
use farrier_wire::{client, convert};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;

use crate::server::TestServer;
use crate::support::run;

const NODES: usize = 8;
const KILLS: u64 = 20;

fn finding(id: u64) -> Finding {
    serde_json::from_value(json!({
        "id": id, "code": "gpu.xid", "detail": "Xid 63", "subject": { "gpu": "GPU-1" }, "kind": "fault",
        "severity": "warning", "text": "a row was remapped", "action": "ignore",
        "rule_action": "ignore", "action_by": "rule",
        "evidence": [{ "check": { "text": "seen", "at": "2026-11-15T00:00:00Z" } }],
        "first_seen": "2026-11-15T00:00:00Z", "last_seen": "2026-11-15T00:00:00Z", "count": 1,
        "clears": "never",
    }))
    .unwrap()
}

/// A node that sends records in sequence, and remembers the last acknowledged one.
struct Node {
    name: String,
    acked: Arc<AtomicU64>,
}

impl Node {
    /// Runs one stream until it breaks; `None` if the server was unreachable.
    async fn talk(&self, url: &str) -> Option<()> {
        let mut agents = client::connect(&url.parse().unwrap(), client::no_tls()).await.ok()?;
        let (out, outbound) = mpsc::channel(64);
        let mut request = Request::new(ReceiverStream::new(outbound));
        request.metadata_mut().insert("farrier-node", self.name.parse().unwrap());
        let inventory = NodeInventory {
            boot: "b".to_owned(),
            gpus: Some(Vec::new()),
            ..NodeInventory::default()
        };
        let hello = proto::Hello {
            inventory: Some(convert::inventory_message(&inventory)),
            journal: "j".to_owned(),
            ..proto::Hello::default()
        };
        let say = |what| out.send(AgentMessage { what: Some(what) });
        say(agent_message::What::Hello(hello)).await.ok()?;
        let mut inbound = agents.session(request).await.ok()?.into_inner();
        let said = |what| agent_message::What::Report(proto::Report { what: Some(what) });
        while let Ok(Some(ServerMessage { what: Some(what) })) = inbound.message().await {
            let known = match what {
                server_message::What::Welcome(welcome) => welcome.acked_record,
                server_message::What::Ack(ack) => Some(ack.record),
                _ => continue,
            };
            let acked = self.acked.load(Ordering::SeqCst);
            let known = known.unwrap_or_default();
            assert!(
                known >= acked,
                "{}: {acked} was acknowledged, and {known} is there",
                self.name
            );
            self.acked.store(known, Ordering::SeqCst);
            let (record, next) = (known + 1, finding(known + 1));
            let next = if known == 0 {
                report::What::Open(convert::findings_message(record, [next]))
            } else {
                let opened = vec![Change::Opened(next)];
                report::What::Changes(convert::changes_message(record, known, opened).unwrap())
            };
            say(said(next)).await.ok()?;
        }
        Some(())
    }

    async fn live(self, url: String) {
        loop {
            let _ = self.talk(&url).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Record numbers of a node, in log order.
fn records(server: &TestServer, name: &str) -> Vec<u64> {
    let of = |event: Event| match event {
        Event::FindingsReported { node, record, .. }
        | Event::FindingsSnapshot { node, record, .. }
            if node.as_str() == name =>
        {
            Some(record.number)
        }
        _ => None,
    };
    server.entries().into_iter().filter_map(|entry| of(entry.event)).collect()
}

#[test]
fn killed_over_and_over_it_has_what_it_acknowledged_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let start = |listen: &str, turn: u64| {
        let plain = ["--plain", "train"];
        TestServer::start_with(Path::new(path), listen, &format!("server-{turn}.log"), &plain)
    };
    let mut server = start("127.0.0.1:0", 0);
    let address = server.said("address=").unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let names: Vec<String> = (0..NODES).map(|number| format!("n{number}")).collect();
    let acked: Vec<Arc<AtomicU64>> = names.iter().map(|_| Arc::default()).collect();
    let mut lives = Vec::new();
    for (name, acked) in names.iter().zip(&acked) {
        let node = Node { name: name.clone(), acked: Arc::clone(acked) };
        lives.push(runtime.spawn(node.live(format!("http://{address}"))));
    }
    let all = || acked.iter().map(|it| it.load(Ordering::SeqCst)).sum::<u64>();
    for turn in 1..=KILLS {
        // Wait for more acknowledgements each time, so that the kill does not depend on the clock.
        let enough = all() + 3 * turn;
        crate::server::until("more is acknowledged", || all() >= enough);
        server.kill();
        server = start(&address, turn);
    }
    let enough = all() + 10;
    crate::server::until("it goes on", || all() >= enough);
    assert!(lives.iter().all(|life| !life.is_finished()), "a node found that something was lost");
    drop(runtime);
    server.kill();
    let server = start(&address, KILLS + 1);
    for (name, acked) in names.iter().zip(&acked) {
        let (found, acked) = (records(&server, name), acked.load(Ordering::SeqCst));
        let each_once: Vec<u64> = (1..=found.len() as u64).collect();
        assert_eq!(found, each_once, "{name}");
        assert!(found.len() as u64 >= acked, "{name}: {acked} were acknowledged");
    }
    server.stop();
    let dir = path.join("server");
    let verified = run(&["server", "verify-log", dir.to_str().unwrap(), "--replay"]);
    assert_eq!(verified.code, 0, "{}", verified.stdout);
}
