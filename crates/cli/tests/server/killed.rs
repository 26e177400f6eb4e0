//! The server is killed over and over while nodes pour records in, wherever that finds it: in an append, between the append and its
//! acknowledgement, while it keeps its state, while it starts.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use farrier_fleet::fleet::Event;
use farrier_fleet::fleet::event::Makeup;
use farrier_fleet::health::{Change, Finding};
use farrier_wire::proto::{self, Down, Up, down, report, up};
use farrier_wire::{client, form};
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

/// A node that sends one record after the other, and remembers the last that was acknowledged.
struct Node {
    name: String,
    acked: Arc<AtomicU64>,
}

impl Node {
    /// One stream, until it breaks off. None: nobody was there.
    async fn talk(&self, url: &str) -> Option<()> {
        let mut agents = client::connect(&url.parse().unwrap(), client::no_tls()).await.ok()?;
        let (out, outbound) = mpsc::channel(64);
        let mut request = Request::new(ReceiverStream::new(outbound));
        request.metadata_mut().insert("farrier-node", self.name.parse().unwrap());
        let makeup = Makeup { boot: "b".to_owned(), gpus: Some(Vec::new()), ..Makeup::default() };
        let hello = proto::Hello {
            makeup: Some(form::makeup_message(&makeup)),
            journal: "j".to_owned(),
            ..proto::Hello::default()
        };
        let say = |what| out.send(Up { what: Some(what) });
        say(up::What::Hello(hello)).await.ok()?;
        let mut inbound = agents.session(request).await.ok()?.into_inner();
        let said = |what| up::What::Report(proto::Report { what: Some(what) });
        while let Ok(Some(Down { what: Some(what) })) = inbound.message().await {
            let known = match what {
                down::What::Welcome(welcome) => welcome.acked_record,
                down::What::Ack(ack) => Some(ack.record),
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
                report::What::Open(form::findings_message(record, [next]))
            } else {
                let opened = vec![Change::Opened(next)];
                report::What::Changes(form::changes_message(record, known, opened).unwrap())
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

/// The records of a node in the log, in its order.
fn records(server: &TestServer, name: &str) -> Vec<u64> {
    let of = |event: Event| match event {
        Event::Found { node, record, .. } | Event::Resynced { node, record, .. }
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
        // So much later each time, by what was acknowledged and not by the clock.
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
