use std::sync::atomic::AtomicBool;

use farrier_fleet::fleet::event::{Event, OperatorRequest};
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{Location, OrderKind};
use tokio::task::JoinHandle;
use tokio::time::advance;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use super::*;
use crate::clock::ClockWatch;
use crate::ingest::{ReportQuota, SessionRegistry};
use crate::log::sqlite::SqliteLog;
use crate::state_machine::StateMachine;

struct TestReceiver {
    dir: tempfile::TempDir,
    receiver: Arc<ArtifactReceiver>,
    /// Whether an order requests the artifact.
    is_requested: Arc<AtomicBool>,
    /// The log entry with which the nodes enrolled.
    first_seq: Arc<AtomicU64>,
}

struct Sender {
    parts: mpsc::Sender<Result<ArtifactPart, Status>>,
    received: JoinHandle<Result<(), Status>>,
}

fn record(generation: u64, first_seq: u64) -> ArtifactRecord {
    let location = Location::in_pool("train".parse().unwrap());
    ArtifactRecord::new(
        generation,
        "collect-logs".to_owned(),
        first_seq,
        location,
        Timestamp::now(),
    )
}

impl TestReceiver {
    fn new() -> Self {
        Self::with_reserve(0)
    }

    fn with_reserve(bytes: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(ArtifactStore::open(dir.path(), Timestamp::now()).unwrap());
        let receiver =
            Arc::new(ArtifactReceiver::new(store, Arc::new(DiskSpace::new(Some(bytes)))));
        let is_requested = Arc::new(AtomicBool::new(true));
        Self { dir, receiver, is_requested, first_seq: Arc::new(AtomicU64::new(1)) }
    }

    fn sender(&self, node: &str) -> Sender {
        let (parts, stream) = mpsc::channel(1);
        let (artifacts, node): (_, NodeId) = (Arc::clone(&self.receiver), node.parse().unwrap());
        let (is_requested, first_seq) =
            (Arc::clone(&self.is_requested), Arc::clone(&self.first_seq));
        let received = tokio::spawn(async move {
            let (is_requested, first_seq) = (&is_requested, &first_seq);
            let requested_by = |generation| async move {
                if !is_requested.load(Ordering::Relaxed) {
                    return Err(Refusal::NoOrder(generation));
                }
                Ok(record(generation, first_seq.load(Ordering::Relaxed)))
            };
            artifacts.receive_requested(&node, ReceiverStream::new(stream), requested_by).await
        });
        Sender { parts, received }
    }

    async fn send(&self, node: &str, content: &'static str) -> Result<(), Code> {
        let sender = self.sender(node);
        sender.begin(content).await;
        sender.chunk(content).await;
        sender.end().await
    }

    fn stored(&self, node: &str) -> Vec<String> {
        let listed = self.receiver.store.list(&node.parse().unwrap(), 1, Timestamp::now()).unwrap();
        listed.into_iter().map(|record| record.sha256).collect()
    }

    /// Waits until no upload is left, because writers end on their own threads.
    async fn until_nothing_is_incoming(&self) {
        let incoming = self.dir.path().join("artifacts/incoming");
        while std::fs::read_dir(&incoming).unwrap().count() > 0 {
            tokio::task::yield_now().await;
        }
    }
}

impl Sender {
    /// Sends the header. Returns when the receiver waits for a chunk or has refused the header.
    async fn begin(&self, content: &str) {
        let sha256 = Sha256::digest(content).to_vec().into();
        let header = ArtifactHeader { generation: 7, bytes: content.len() as u64, sha256 };
        self.part(artifact_part::What::Header(header)).await;
        while self.parts.capacity() == 0 && !self.parts.is_closed() {
            tokio::task::yield_now().await;
        }
    }

    async fn chunk(&self, content: &'static str) {
        self.part(artifact_part::What::Chunk(content.into())).await;
    }

    /// Has no effect if the receiver has ended.
    async fn part(&self, what: artifact_part::What) {
        let _ = self.parts.send(Ok(ArtifactPart { what: Some(what) })).await;
    }

    async fn end(self) -> Result<(), Code> {
        drop(self.parts);
        self.received.await.unwrap().map_err(|status| status.code())
    }
}

#[tokio::test(start_paused = true)]
async fn a_sender_that_stalls_is_cut_off() {
    let fixture = TestReceiver::new();
    let silent = fixture.sender("a");
    assert_eq!(silent.received.await.unwrap().unwrap_err().code(), Code::DeadlineExceeded);
    let stalled = fixture.sender("a");
    stalled.begin("content").await;
    advance(PART_TIMEOUT).await;
    assert_eq!(stalled.received.await.unwrap().unwrap_err().code(), Code::DeadlineExceeded);
    fixture.until_nothing_is_incoming().await;
    assert_eq!(fixture.send("a", "content").await, Ok(()), "the slot is free");
}

#[tokio::test(start_paused = true)]
async fn a_sender_that_trickles_is_cut_off() {
    let fixture = TestReceiver::new();
    let begin = Instant::now();
    let sender = fixture.sender("a");
    let content: &'static str = Box::leak("x".repeat(1000).into_boxed_str());
    sender.begin(content).await;
    while !sender.received.is_finished() {
        sender.chunk("x").await;
        advance(PART_TIMEOUT / 2).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(sender.end().await, Err(Code::DeadlineExceeded));
    let took = begin.elapsed();
    assert!(took >= TOTAL_TIMEOUT && took <= TOTAL_TIMEOUT + PART_TIMEOUT, "{took:?}");
    fixture.until_nothing_is_incoming().await;
    assert!(fixture.stored("a").is_empty());
}

#[tokio::test]
async fn uploads_are_limited_per_node_and_in_total() {
    let fixture = TestReceiver::new();
    let mut senders = Vec::new();
    for number in 0..CONCURRENT_MAX {
        let sender = fixture.sender(&format!("n{number}"));
        sender.begin("content").await;
        senders.push(sender);
    }
    assert_eq!(
        fixture.send("n0", "content").await,
        Err(Code::ResourceExhausted),
        "one upload per node"
    );
    assert_eq!(fixture.send("other", "content").await, Err(Code::ResourceExhausted), "no slot");
    let broken = senders.pop().unwrap();
    broken.parts.send(Err(Status::cancelled("reset"))).await.unwrap();
    assert_eq!(broken.end().await, Err(Code::Cancelled));
    assert_eq!(fixture.send("other", "content").await, Ok(()), "the slot is free again");
    for sender in senders {
        sender.chunk("content").await;
        assert_eq!(sender.end().await, Ok(()), "uploads in progress continue");
    }
}

/// If a stream is reset while the file is written, the handler is dropped, but the writer
/// continues.
#[tokio::test]
async fn an_upload_keeps_its_slot_until_the_writer_has_ended() {
    let TestReceiver { receiver, dir, .. } = TestReceiver::new();
    let incoming = dir.path().join("artifacts/incoming");
    let node: NodeId = "a".parse().unwrap();
    let record = record(7, 1);
    let upload = receiver.begin_upload(&node, &record).unwrap();
    let header = ArtifactHeader { generation: 7, bytes: 7, sha256: vec![0; 32].into() };
    let reservation = receiver.reserve(header.bytes);
    let (chunks, written) =
        receiver.writer(node.clone(), record.clone(), header, (upload, reservation));
    drop(written);
    while std::fs::read_dir(&incoming).unwrap().count() == 0 {
        tokio::task::yield_now().await;
    }
    assert!(matches!(receiver.begin_upload(&node, &record), Err(Refusal::Busy)));
    assert_eq!(receiver.slots.available_permits(), CONCURRENT_MAX - 1);
    drop(chunks);
    while receiver.slots.available_permits() < CONCURRENT_MAX {
        tokio::task::yield_now().await;
    }
    assert!(receiver.begin_upload(&node, &record).is_ok());
}

#[tokio::test]
async fn a_panic_of_the_writer_is_a_storage_error() {
    let panicked = tokio::spawn(async { panic!("a bug") }).await.unwrap_err();
    assert!(matches!(Refusal::from(panicked), Refusal::Store(_)));
    let stopped = tokio::spawn(std::future::pending::<()>());
    stopped.abort();
    assert!(matches!(Refusal::from(stopped.await.unwrap_err()), Refusal::Stopping));
}

/// As with a full disk: the node keeps its file and sends it again later.
#[tokio::test]
async fn a_failed_write_can_be_retried() {
    let fixture = TestReceiver::new();
    let obstacle = fixture.dir.path().join("artifacts/node-a");
    std::fs::write(&obstacle, "").unwrap();
    assert_eq!(fixture.send("a", "content").await, Err(Code::ResourceExhausted));
    fixture.until_nothing_is_incoming().await;
    std::fs::remove_file(&obstacle).unwrap();
    assert_eq!(fixture.send("a", "content").await, Ok(()));
    assert_eq!(fixture.stored("a").len(), 1);
}

/// If the order was cancelled or the node was revoked or retired, an upload in progress is
/// discarded.
#[tokio::test(start_paused = true)]
async fn an_artifact_whose_order_has_ended_is_discarded() {
    let fixture = TestReceiver::new();
    let sender = fixture.sender("a");
    sender.begin("content").await;
    sender.chunk("content").await;
    fixture.is_requested.store(false, Ordering::Relaxed);
    assert_eq!(sender.end().await, Err(Code::FailedPrecondition));
    // A slow upload is ended by the periodic check.
    fixture.is_requested.store(true, Ordering::Relaxed);
    let slow = fixture.sender("b");
    slow.begin("content").await;
    fixture.is_requested.store(false, Ordering::Relaxed);
    advance(CHECK_INTERVAL).await;
    slow.chunk("c").await;
    assert_eq!(slow.received.await.unwrap().unwrap_err().code(), Code::FailedPrecondition);
    fixture.until_nothing_is_incoming().await;
    assert!(fixture.stored("a").is_empty() && fixture.stored("b").is_empty());
}

/// The node is retired between the last check and the rename.
#[tokio::test]
async fn an_artifact_of_a_node_retired_meanwhile_is_discarded() {
    let fixture = TestReceiver::new();
    let sender = fixture.sender("a");
    sender.begin("content").await;
    sender.chunk("content").await;
    fixture.receiver.store.delete_node(&"a".parse().unwrap(), 1).unwrap();
    assert_eq!(sender.end().await, Err(Code::FailedPrecondition));
    assert!(!fixture.dir.path().join("artifacts/node-a").exists());
    fixture.until_nothing_is_incoming().await;
}

/// The order of the later node with the same name has the same generation.
#[tokio::test]
async fn an_artifact_of_a_node_enrolled_again_meanwhile_is_discarded() {
    let fixture = TestReceiver::new();
    let sender = fixture.sender("a");
    sender.begin("content").await;
    sender.chunk("content").await;
    fixture.first_seq.store(2, Ordering::Relaxed);
    assert_eq!(sender.end().await, Err(Code::FailedPrecondition));
    fixture.until_nothing_is_incoming().await;
    assert!(!fixture.dir.path().join("artifacts/node-a").exists());
    assert_eq!(fixture.send("a", "content").await, Ok(()), "the later node has its own upload");
}

/// Returns a controller with a pending order that collects the logs of node `a`, and the generation
/// of this order.
async fn controller(dir: &std::path::Path) -> (Controller, u64) {
    let state_machine =
        StateMachine::open(Box::new(SqliteLog::open(&dir.join("log")).unwrap())).unwrap();
    let sessions = Arc::new(SessionRegistry::new(ReportQuota::default()));
    let (log_end, clock_watch) = (tokio::sync::watch::channel(0).0, ClockWatch::default());
    let (controller, _) =
        Controller::spawn(state_machine, sessions, Arc::default(), log_end, clock_watch, None)
            .unwrap();
    let node: NodeId = "a".parse().unwrap();
    let location = Location::in_pool("train".parse().unwrap());
    let enrolled = Event::Enrolled { node: node.clone(), location };
    controller.submit(Actor::Server, enrolled).await.unwrap();
    let request = OperatorRequest::RunOrder { node: node.clone(), order: OrderKind::CollectLogs };
    controller
        .submit(Actor::User("ann".into()), Event::OperatorRequested { request })
        .await
        .unwrap();
    let ordered = controller.read(move |state| {
        let order = &state.nodes[&node].orders.pending().unwrap().order;
        assert_eq!(order.kind, OrderKind::CollectLogs);
        order.generation
    });
    let generation = ordered.await.unwrap();
    (controller, generation)
}

#[tokio::test]
async fn a_revoked_node_cannot_send() {
    let fixture = TestReceiver::new();
    let (controller, generation) = controller(fixture.dir.path()).await;
    let node: NodeId = "a".parse().unwrap();
    let content = b"content".as_slice();
    let sha256 = Sha256::digest(content).to_vec().into();
    let header = ArtifactHeader { generation, bytes: content.len() as u64, sha256 };
    let whats = [artifact_part::What::Header(header), artifact_part::What::Chunk(content.into())];
    // Admission is checked at the beginning and at the end.
    for (admissions, expected) in [
        ([false, false], Err(Code::PermissionDenied)),
        ([true, false], Err(Code::PermissionDenied)),
        ([true, true], Ok(())),
    ] {
        let checks = std::cell::Cell::new(0);
        let is_admitted = || admissions[checks.replace(checks.get() + 1)];
        let parts = whats.clone().map(|what| Ok(ArtifactPart { what: Some(what) }));
        let received = fixture
            .receiver
            .receive(&controller, &node, is_admitted, tokio_stream::iter(parts))
            .await;
        assert_eq!(received.map_err(|status| status.code()), expected, "{admissions:?}");
        let is_stored = fixture.dir.path().join("artifacts/node-a").exists();
        assert_eq!(is_stored, expected.is_ok());
    }
}

#[tokio::test]
async fn disk_space_is_reserved_for_all_uploads_in_progress() {
    let fixture = TestReceiver::new();
    let senders = [fixture.sender("a"), fixture.sender("b")];
    for (sender, content) in senders.iter().zip(["content", "more content"]) {
        sender.begin(content).await;
    }
    let expected = || fixture.receiver.expected_bytes.load(Ordering::Relaxed);
    assert_eq!(expected(), "content".len() as u64 + "more content".len() as u64);
    for (sender, content) in senders.into_iter().zip(["content", "more content"]) {
        sender.chunk(content).await;
        assert_eq!(sender.end().await, Ok(()));
    }
    assert_eq!(expected(), 0);
    // Another upload reserves more than any disk has.
    let other = fixture.receiver.reserve(u64::MAX / 2);
    assert_eq!(fixture.send("a", "content").await, Err(Code::ResourceExhausted));
    drop(other);
    assert_eq!(fixture.send("a", "content").await, Ok(()));
}

#[tokio::test]
async fn attempts_per_order_and_disk_space_are_limited() {
    let fixture = TestReceiver::new();
    for _ in 0..ATTEMPTS_MAX - 1 {
        assert_eq!(fixture.send("a", "content").await, Ok(()));
    }
    // Failed attempts count too.
    let wrong = fixture.sender("a");
    wrong.begin("content").await;
    wrong.chunk("CONTENT").await;
    assert_eq!(wrong.end().await, Err(Code::InvalidArgument));
    assert_eq!(fixture.send("a", "content").await, Err(Code::FailedPrecondition));
    let full = TestReceiver::with_reserve(u64::MAX);
    assert_eq!(full.send("a", "content").await, Err(Code::ResourceExhausted));
    assert_eq!(
        full.receiver.expected_bytes.load(Ordering::Relaxed),
        0,
        "the reservation is released"
    );
}

/// The server crashed after it stored the artifact and before it sent the receipt.
#[tokio::test]
async fn a_repeated_upload_replaces_the_previous_one() {
    let fixture = TestReceiver::new();
    for content in ["first", "first", "second"] {
        assert_eq!(fixture.send("a", content).await, Ok(()));
        assert_eq!(fixture.stored("a"), [hex(&Sha256::digest(content))]);
        let files = std::fs::read_dir(fixture.dir.path().join("artifacts/node-a")).unwrap();
        assert_eq!(files.count(), 2, "one record and its content");
    }
}
