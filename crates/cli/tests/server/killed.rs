//! Kills the server again and again while nodes send records. A kill may come at any point: during
//! an append, between an append and its acknowledgement, or during a snapshot.

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
        "evidence": [{ "check": { "text": "observed", "at": "2026-11-15T00:00:00Z" } }],
        "first_seen": "2026-11-15T00:00:00Z", "last_seen": "2026-11-15T00:00:00Z", "count": 1,
        "clears": "never",
    }))
    .unwrap()
}

/// A node that sends records in sequence, and remembers the last record that was acknowledged.
struct Node {
    name: String,
    acked: Arc<AtomicU64>,
}

impl Node {
    /// Runs one stream until it breaks; `None` if the server was unreachable.
    async fn run_session(&self, url: &str) -> Option<()> {
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
        let send = |what| out.send(AgentMessage { what: Some(what) });
        send(agent_message::What::Hello(hello)).await.ok()?;
        let mut inbound = agents.session(request).await.ok()?.into_inner();
        let as_report = |what| agent_message::What::Report(proto::Report { what: Some(what) });
        while let Ok(Some(ServerMessage { what: Some(what) })) = inbound.message().await {
            let stored = match what {
                server_message::What::Welcome(welcome) => welcome.acked_record,
                server_message::What::Ack(ack) => Some(ack.record),
                _ => continue,
            };
            let acked = self.acked.load(Ordering::SeqCst);
            let stored = stored.unwrap_or_default();
            assert!(
                stored >= acked,
                "{}: record {acked} was acknowledged, but the server has only {stored}",
                self.name
            );
            self.acked.store(stored, Ordering::SeqCst);
            let (record, next) = (stored + 1, finding(stored + 1));
            let next = if stored == 0 {
                report::What::Open(convert::findings_message(record, [next]))
            } else {
                let opened = vec![Change::Opened(next)];
                report::What::Changes(convert::changes_message(record, stored, opened).unwrap())
            };
            send(as_report(next)).await.ok()?;
        }
        Some(())
    }

    async fn run(self, url: String) {
        loop {
            let _ = self.run_session(&url).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Record numbers of a node, in log order.
fn records(server: &TestServer, name: &str) -> Vec<u64> {
    let number = |event: Event| match event {
        Event::FindingsReported { node, record, .. }
        | Event::FindingsSnapshot { node, record, .. }
            if node.as_str() == name =>
        {
            Some(record.number)
        }
        _ => None,
    };
    server.entries().into_iter().filter_map(|entry| number(entry.event)).collect()
}

#[test]
fn a_killed_server_keeps_every_acknowledged_record_exactly_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let start = |listen: &str, turn: u64| {
        let plain = ["--plain", "train"];
        TestServer::start_with(Path::new(path), listen, &format!("server-{turn}.log"), &plain)
    };
    let mut server = start("127.0.0.1:0", 0);
    let address = server.log_field("address=").unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let names: Vec<String> = (0..NODES).map(|number| format!("n{number}")).collect();
    let acked: Vec<Arc<AtomicU64>> = names.iter().map(|_| Arc::default()).collect();
    let mut nodes = Vec::new();
    for (name, acked) in names.iter().zip(&acked) {
        let node = Node { name: name.clone(), acked: Arc::clone(acked) };
        nodes.push(runtime.spawn(node.run(format!("http://{address}"))));
    }
    let acked_total = || acked.iter().map(|count| count.load(Ordering::SeqCst)).sum::<u64>();
    for turn in 1..=KILLS {
        // Wait for acknowledgements rather than for a time, so that a slow machine gets as far as a
        // fast one. Wait for more of them each time, so that the kills come at different points.
        let enough = acked_total() + 3 * turn;
        crate::server::until("more records are acknowledged", || acked_total() >= enough);
        server.kill();
        server = start(&address, turn);
    }
    let enough = acked_total() + 10;
    crate::server::until("the server continues", || acked_total() >= enough);
    assert!(nodes.iter().all(|node| !node.is_finished()), "a node lost an acknowledged record");
    drop(runtime);
    server.kill();
    let server = start(&address, KILLS + 1);
    for (name, acked) in names.iter().zip(&acked) {
        let (stored, acked) = (records(&server, name), acked.load(Ordering::SeqCst));
        let each_once: Vec<u64> = (1..=stored.len() as u64).collect();
        assert_eq!(stored, each_once, "{name}");
        assert!(stored.len() as u64 >= acked, "{name}: {acked} were acknowledged");
    }
    server.stop();
    let dir = path.join("server");
    let verified = run(&["server", "verify-log", dir.to_str().unwrap(), "--replay"]);
    assert_eq!(verified.code, 0, "{}", verified.stdout);
}
