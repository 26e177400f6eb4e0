//! Replayed, reordered, oversized and malformed messages. Their findings are not logged. The server
//! only logs that a node's reports are unreadable.

use std::time::Duration;

use farrier_fleet::fleet::Event;
use farrier_fleet::fleet::event::NodeInventory;
use farrier_fleet::health::Change;
use farrier_wire::limits::MESSAGE_BYTES_MAX;
use farrier_wire::proto::{
    self, AgentMessage, ServerMessage, agent_message, report, server_message,
};
use farrier_wire::{client, convert};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tonic::{Code, Request, Status, Streaming};

use crate::test_server::{PATIENCE, TestNode, TestServer, finding, until};

pub(crate) struct Raw {
    out: mpsc::Sender<AgentMessage>,
    inbound: Streaming<ServerMessage>,
}

impl Raw {
    pub(crate) async fn open(server: &TestServer, name: &str) -> Result<Self, Status> {
        Self::over(connection(server).await, name).await
    }

    pub(crate) async fn over(mut agents: client::Agents, name: &str) -> Result<Self, Status> {
        let (out, outbound) = mpsc::channel(64);
        let mut request = Request::new(tokio_stream::wrappers::ReceiverStream::new(outbound));
        request.metadata_mut().insert("farrier-node", name.parse().unwrap());
        let inbound = agents.session(request).await?.into_inner();
        Ok(Self { out, inbound })
    }

    pub(crate) async fn welcomed(server: &TestServer, name: &str) -> Self {
        let mut raw = Self::open(server, name).await.unwrap();
        raw.send(agent_message::What::Hello(hello())).await;
        let first = raw.receive().await.unwrap();
        assert!(matches!(first, server_message::What::Welcome(_)), "{first:?}");
        raw
    }

    pub(crate) async fn send(&self, what: agent_message::What) {
        self.out.send(AgentMessage { what: Some(what) }).await.unwrap();
    }

    pub(crate) async fn report(&self, what: report::What) {
        self.send(agent_message::What::Report(proto::Report { what: Some(what) })).await;
    }

    pub(crate) async fn changes(&self, record: u64, after: u64, ids: &[u64]) {
        let changes: Vec<_> = ids.iter().map(|id| Change::Opened(finding(*id))).collect();
        let changes = convert::changes_message(record, after, changes).unwrap();
        self.report(report::What::Changes(changes)).await;
    }

    pub(crate) async fn resync(&self, record: u64) {
        self.report(report::What::Open(convert::findings_message(record, []))).await;
    }

    /// The server's next message that is not an order.
    pub(crate) async fn receive(&mut self) -> Result<server_message::What, Status> {
        loop {
            let next = tokio::time::timeout(PATIENCE, self.inbound.message());
            match next.await.expect("the server answers")? {
                Some(ServerMessage { what: Some(server_message::What::Order(_)) }) => (),
                Some(ServerMessage { what: Some(what) }) => return Ok(what),
                other => return Err(Status::cancelled(format!("{other:?}"))),
            }
        }
    }

    pub(crate) async fn acked(&mut self) -> u64 {
        match self.receive().await.unwrap() {
            server_message::What::Ack(ack) => ack.record,
            other => panic!("{other:?}"),
        }
    }

    /// Like `acked`. If `expects_resync`, the server first asks for a snapshot of the findings,
    /// because the last report was unreadable.
    async fn acked_after_resync(&mut self, expects_resync: bool) -> u64 {
        if expects_resync {
            let first = self.receive().await.unwrap();
            assert!(matches!(first, server_message::What::Resync(_)), "{first:?}");
        }
        self.acked().await
    }

    /// The status with which the server ends the session. Skips resync requests.
    pub(crate) async fn refused(&mut self) -> Code {
        loop {
            match self.receive().await {
                Ok(server_message::What::Resync(_)) => {}
                other => return other.unwrap_err().code(),
            }
        }
    }
}

pub(crate) async fn connection(server: &TestServer) -> client::Agents {
    let tls = farrier_wire::client::no_tls();
    let agents = client::connect(&server.url().parse().unwrap(), tls).await.unwrap();
    agents.max_encoding_message_size(usize::MAX)
}

pub(crate) fn hello() -> proto::Hello {
    let inventory =
        NodeInventory { boot: "b".to_owned(), gpus: Some(Vec::new()), ..NodeInventory::default() };
    proto::Hello {
        inventory: Some(convert::inventory_message(&inventory)),
        journal: "j".to_owned(),
        ..proto::Hello::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replays_are_acknowledged_and_gaps_cause_a_resync() {
    let server = TestServer::plain().await;
    let mut raw = Raw::welcomed(&server, "a").await;
    // The server has no record of this node yet, so it cannot apply changes that follow record 2.
    raw.changes(3, 2, &[1]).await;
    assert!(matches!(raw.receive().await.unwrap(), server_message::What::Resync(_)));
    raw.resync(3).await;
    assert_eq!(raw.acked().await, 3);
    raw.changes(4, 3, &[4]).await;
    assert_eq!(raw.acked().await, 4);
    for (record, after) in [(4, 3), (1, 0), (4, 9)] {
        raw.changes(record, after, &[7]).await;
        assert_eq!(raw.acked().await, 4, "record {record} or a later one is already logged");
    }
    for (record, after) in [(9, 8), (6, 5), (9, 3), (9, 9)] {
        raw.changes(record, after, &[8]).await;
        assert!(
            matches!(raw.receive().await.unwrap(), server_message::What::Resync(_)),
            "{record} {after}"
        );
    }
    raw.resync(2).await;
    assert_eq!(raw.acked().await, 4, "the snapshot is older than the last logged record");
    assert_eq!(server.logged_findings("a"), [4]);
    assert_eq!(server.count(|event| matches!(event, Event::FindingsSnapshot { .. })), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_messages_end_the_session_and_log_no_finding() {
    let server = TestServer::plain().await;
    let changes = |change: &[u8]| {
        let changes = vec![change.to_vec().into()];
        report::What::Changes(proto::Changes { record: 1, after: 0, changes })
    };
    let valid_change = || {
        let opened = vec![Change::Opened(finding(1))];
        let encoded = convert::changes_message(1, 0, opened).unwrap().changes.remove(0);
        proto::Change::decode(encoded).unwrap()
    };
    let tampered = |change: &dyn Fn(&mut proto::Change)| {
        let mut message = valid_change();
        change(&mut message);
        changes(&message.encode_to_vec())
    };
    let cases = [
        changes(b"nothing"),
        changes(b""),
        tampered(&|change| change.kind = proto::ChangeKind::Cleared.into()),
        tampered(&|change| change.finding.as_mut().unwrap().severity = 99),
        tampered(&|change| change.finding.as_mut().unwrap().count = None),
        report::What::Open(proto::Findings { record: 1, open: vec![b"{}".to_vec().into()] }),
        report::What::Inventory(proto::NodeInventory {
            boot: "x".repeat(1000),
            ..proto::NodeInventory::default()
        }),
    ];
    for (at, case) in cases.into_iter().enumerate() {
        let mut raw = Raw::welcomed(&server, "a").await;
        raw.resync(0).await;
        assert_eq!(raw.acked_after_resync(at > 0).await, 0);
        raw.report(case).await;
        assert_eq!(raw.refused().await, Code::InvalidArgument, "case {at}");
    }
    let mut raw = Raw::welcomed(&server, "a").await;
    raw.send(agent_message::What::Hello(hello())).await;
    assert_eq!(raw.refused().await, Code::InvalidArgument, "a second hello");
    let mut raw = Raw::open(&server, "a").await.unwrap();
    raw.resync(1).await;
    assert_eq!(raw.refused().await, Code::InvalidArgument, "no hello");
    let mut raw = Raw::open(&server, "a").await.unwrap();
    raw.send(agent_message::What::Hello(proto::Hello { last_order: u64::MAX, ..hello() })).await;
    assert_eq!(
        raw.refused().await,
        Code::FailedPrecondition,
        "the last order is too far ahead of the log"
    );
    let refused = Raw::open(&server, "a b").await.err().unwrap();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert_eq!(server.logged_findings("a"), Vec::<u64>::new());
    // An unreadable report is logged unless the report before it was unreadable too. Each of the
    // seven cases follows a readable snapshot, so each is logged. Six of these snapshots follow an
    // unreadable report, so each of the six is logged as readable again.
    assert_eq!(server.count(|event| matches!(event, Event::ReportsUnreadable { .. })), 7);
    assert_eq!(server.count(|event| matches!(event, Event::ReportsReadable { .. })), 6);
    // The server ignores messages of unknown kinds, which a newer agent may send.
    let mut raw = Raw::welcomed(&server, "a").await;
    raw.out.send(AgentMessage { what: None }).await.unwrap();
    raw.send(agent_message::What::Report(proto::Report { what: None })).await;
    raw.resync(1).await;
    assert_eq!(raw.acked_after_resync(true).await, 1);
    let is_unreadable = server.running().controller().read(|state| {
        state.nodes[&crate::test_server::node("a")].reports.unreadable_since().is_some()
    });
    assert!(!is_unreadable.await.unwrap(), "the last snapshot was readable");
}

#[tokio::test(flavor = "multi_thread")]
async fn oversized_messages_are_refused() {
    let server = TestServer::plain().await;
    let mut raw = Raw::welcomed(&server, "a").await;
    let open = vec![vec![0; MESSAGE_BYTES_MAX + 1].into()];
    raw.report(report::What::Open(proto::Findings { record: 1, open })).await;
    assert_eq!(raw.refused().await, Code::OutOfRange);
    server
        .wait_for("the server logs that the report is unreadable", |entries| {
            entries.iter().any(|entry| matches!(entry.event, Event::ReportsUnreadable { .. }))
        })
        .await;
    // The server still accepts reports from other nodes.
    let mut agent = TestNode::new("b");
    agent.find(1);
    agent.connect(&server);
    agent.acked(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nodes_later_session_replaces_the_earlier() {
    let server = TestServer::plain().await;
    let mut first = Raw::welcomed(&server, "a").await;
    let mut second = Raw::welcomed(&server, "a").await;
    assert_eq!(first.refused().await, Code::Aborted);
    second.resync(1).await;
    assert_eq!(second.acked().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_nodes_share_one_connection_and_enrol_at_once() {
    let server = TestServer::plain().await;
    let agents = connection(&server).await;
    let mut joining = tokio::task::JoinSet::new();
    for at in 0..2000 {
        let agents = agents.clone();
        joining.spawn(async move {
            let mut raw = Raw::over(agents, &format!("n{at}")).await.unwrap();
            raw.send(agent_message::What::Hello(hello())).await;
            assert!(matches!(raw.receive().await.unwrap(), server_message::What::Welcome(_)));
            raw.resync(0).await;
            assert_eq!(raw.acked().await, 0);
            raw.changes(1, 0, &[1]).await;
            assert_eq!(raw.acked().await, 1);
            raw
        });
    }
    let all = joining.join_all().await;
    assert_eq!(server.count(|event| matches!(event, Event::FindingsReported { .. })), 2000);
    drop(all);
}

#[tokio::test(flavor = "multi_thread")]
async fn random_bytes_on_the_port_are_harmless() {
    for server in [TestServer::plain().await, TestServer::with_tls().await] {
        for noise in
            [&b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"[..], b"\x16\x03\x01\xff\xff", &[0xff; 4096]]
        {
            let mut socket = tokio::net::TcpStream::connect(server.address).await.unwrap();
            let _ = socket.write_all(noise).await;
            let mut reply = Vec::new();
            let read = socket.read_to_end(&mut reply);
            let _ = tokio::time::timeout(Duration::from_millis(300), read).await;
        }
        let mut agent = TestNode::new("a");
        if !server.is_plain {
            server.enrol("a", &agent.identity(), &server.token(None, 1)).await.unwrap();
        }
        agent.find(1);
        agent.connect(&server);
        agent.acked(1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_from_one_node_is_throttled_and_others_are_served() {
    let server = TestServer::plain().await;
    let flooding = Raw::welcomed(&server, "a").await;
    flooding.resync(0).await;
    let flood = tokio::spawn(async move {
        // Nothing reads the server's acknowledgements.
        for record in 1..=3000 {
            let changes = vec![Change::Opened(finding(1))];
            let changes = convert::changes_message(record, record - 1, changes).unwrap();
            let what = report::What::Changes(changes);
            let report = agent_message::What::Report(proto::Report { what: Some(what) });
            if flooding.out.send(AgentMessage { what: Some(report) }).await.is_err() {
                return;
            }
        }
    });
    let mut agent = TestNode::new("b");
    agent.connect(&server);
    for id in 1..=20 {
        agent.find(id);
        agent.acked(id).await;
    }
    until("the server throttles or disconnects the flooding node", || {
        flood.is_finished()
            || server.count(|event| matches!(event, Event::QuotaExceeded { .. })) == 1
    })
    .await;
    flood.abort();
}
