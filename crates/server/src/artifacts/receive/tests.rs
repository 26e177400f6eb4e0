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

/// A server's artifacts.
struct TestReceiver {
    dir: tempfile::TempDir,
    receiver: Arc<Receiver>,
    /// Whether an order asks for what is sent.
    is_asked: Arc<AtomicBool>,
    /// The entry with which the nodes enrolled.
    first_seq: Arc<AtomicU64>,
}

struct Sender {
    parts: mpsc::Sender<Result<ArtifactPart, Status>>,
    received: JoinHandle<Result<(), Status>>,
}

fn record(generation: u64, first_seq: u64) -> Record {
    let place = Location::in_pool("train".parse().unwrap());
    Record::new(generation, "collect-logs".to_owned(), first_seq, place, Timestamp::now())
}

impl TestReceiver {
    fn new() -> Self {
        Self::with_reserve(0)
    }

    fn with_reserve(bytes: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(ArtifactStore::open(dir.path(), Timestamp::now()).unwrap());
        let receiver = Arc::new(Receiver::new(store, Arc::new(Space::new(Some(bytes)))));
        let is_asked = Arc::new(AtomicBool::new(true));
        Self { dir, receiver, is_asked, first_seq: Arc::new(AtomicU64::new(1)) }
    }

    fn sender(&self, node: &str) -> Sender {
        let (parts, stream) = mpsc::channel(1);
        let (artifacts, node): (_, NodeId) = (Arc::clone(&self.receiver), node.parse().unwrap());
        let (is_asked, first_seq) = (Arc::clone(&self.is_asked), Arc::clone(&self.first_seq));
        let received = tokio::spawn(async move {
            let (is_asked, first_seq) = (&is_asked, &first_seq);
            let asked_for = |generation| async move {
                if !is_asked.load(Ordering::Relaxed) {
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
        listed.into_iter().map(|it| it.sha256).collect()
    }

    /// Writers end on their own threads.
    async fn until_nothing_is_incoming(&self) {
        let incoming = self.dir.path().join("artifacts/incoming");
        while std::fs::read_dir(&incoming).unwrap().count() > 0 {
            tokio::task::yield_now().await;
        }
    }
}

impl Sender {
    /// Sends the header, and returns once the receiver waits for a chunk or has refused it.
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

    /// Fails if the receiver has ended.
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
    let site = TestReceiver::new();
    let silent = site.sender("a");
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
    let site = TestReceiver::new();
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
async fn a_node_has_one_turn_and_all_have_a_few_slots() {
    let site = TestReceiver::new();
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

/// A stream that is reset while the file is written drops the handler, and not the writer.
#[tokio::test]
async fn a_turn_and_a_slot_last_until_the_writer_has_ended() {
    let TestReceiver { receiver, dir, .. } = TestReceiver::new();
    let incoming = dir.path().join("artifacts/incoming");
    let node: NodeId = "a".parse().unwrap();
    let record = record(7, 1);
    let turn = receiver.turn(&node, &record).unwrap();
    let header = ArtifactHeader { generation: 7, bytes: 7, sha256: vec![0; 32].into() };
    let room = receiver.room(header.bytes);
    let (chunks, written) = receiver.writer(node.clone(), record.clone(), header, (turn, room));
    drop(written);
    while std::fs::read_dir(&incoming).unwrap().count() == 0 {
        tokio::task::yield_now().await;
    }
    assert!(matches!(receiver.turn(&node, &record), Err(Refusal::Busy)));
    assert_eq!(receiver.slots.available_permits(), AT_A_TIME - 1);
    drop(chunks);
    while receiver.slots.available_permits() < AT_A_TIME {
        tokio::task::yield_now().await;
    }
    assert!(receiver.turn(&node, &record).is_ok());
}

#[tokio::test]
async fn a_writer_that_panics_is_not_a_server_that_stops() {
    let panicked = tokio::spawn(async { panic!("a bug") }).await.unwrap_err();
    assert!(matches!(Refusal::from(panicked), Refusal::Store(_)));
    let stopped = tokio::spawn(std::future::pending::<()>());
    stopped.abort();
    assert!(matches!(Refusal::from(stopped.await.unwrap_err()), Refusal::Stopping));
}

/// As with a full disk: the node keeps its file and sends it later.
#[tokio::test]
async fn a_store_that_takes_nothing_is_tried_again() {
    let site = TestReceiver::new();
    let in_the_way = site.dir.path().join("artifacts/node-a");
    std::fs::write(&in_the_way, "").unwrap();
    assert_eq!(fixture.send("a", "content").await, Err(Code::ResourceExhausted));
    fixture.until_nothing_is_incoming().await;
    std::fs::remove_file(&in_the_way).unwrap();
    assert_eq!(fixture.send("a", "content").await, Ok(()));
    assert_eq!(fixture.stored("a").len(), 1);
}

/// Cancelled, revoked or retired: an upload in progress is discarded.
#[tokio::test(start_paused = true)]
async fn one_that_is_not_asked_for_any_longer_is_not_kept() {
    let site = TestReceiver::new();
    let sender = site.sender("a");
    sender.begin("content").await;
    sender.chunk("content").await;
    fixture.is_requested.store(false, Ordering::Relaxed);
    assert_eq!(sender.end().await, Err(Code::FailedPrecondition));
    // It does not hold a slot forever either.
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

/// The last check came before the node was retired, and the file is written after that.
#[tokio::test]
async fn one_of_a_node_that_was_retired_meanwhile_is_not_kept() {
    let site = TestReceiver::new();
    let sender = site.sender("a");
    sender.begin("content").await;
    sender.chunk("content").await;
    site.receiver.store.delete_node(&"a".parse().unwrap(), 1).unwrap();
    assert_eq!(sender.end().await, Err(Code::FailedPrecondition));
    assert!(!site.dir.path().join("artifacts/node-a").exists());
    site.until_nothing_is_incoming().await;
}

/// The order of the later node of that name has the same number.
#[tokio::test]
async fn one_of_a_node_that_has_enrolled_again_meanwhile_is_not_kept() {
    let site = TestReceiver::new();
    let sender = site.sender("a");
    sender.begin("content").await;
    sender.chunk("content").await;
    site.first_seq.store(2, Ordering::Relaxed);
    assert_eq!(sender.end().await, Err(Code::FailedPrecondition));
    site.until_nothing_is_incoming().await;
    assert!(!site.dir.path().join("artifacts/node-a").exists());
    assert_eq!(site.send("a", "content").await, Ok(()), "the later node has a turn of its own");
}

/// A controller that has ordered node `a` to send its logs, and the number of that order.
async fn controller(dir: &std::path::Path) -> (Controller, u64) {
    let core = StateMachine::open(Box::new(SqliteLog::open(&dir.join("log")).unwrap())).unwrap();
    let roster = Arc::new(SessionRegistry::new(ReportQuota::default()));
    let (log_end, watching) = (tokio::sync::watch::channel(0).0, ClockWatch::default());
    let (brain, _) =
        Controller::spawn(core, roster, Arc::default(), log_end, watching, None).unwrap();
    let node: NodeId = "a".parse().unwrap();
    let place = Location::in_pool("train".parse().unwrap());
    let enrolled = Event::Enrolled { node: node.clone(), location: place };
    brain.take(Actor::Server, enrolled).await.unwrap();
    let what = OperatorRequest::RunOrder { node: node.clone(), order: OrderKind::CollectLogs };
    brain
        .take(Actor::User("ann".into()), Event::OperatorRequested { request: what })
        .await
        .unwrap();
    let ordered = brain.look(move |state| {
        let order = &state.nodes[&node].orders.pending().unwrap().order;
        assert_eq!(order.kind, OrderKind::CollectLogs);
        order.generation
    });
    let generation = ordered.await.unwrap();
    (brain, generation)
}

#[tokio::test]
async fn a_node_whose_certificate_was_revoked_sends_nothing() {
    let site = TestReceiver::new();
    let (brain, generation) = controller(site.dir.path()).await;
    let node: NodeId = "a".parse().unwrap();
    let content = b"content".as_slice();
    let sha256 = Sha256::digest(content).to_vec().into();
    let header = ArtifactHeader { generation, bytes: content.len() as u64, sha256 };
    let whats = [artifact_part::What::Header(header), artifact_part::What::Chunk(content.into())];
    // Whether it is admitted is asked at the beginning and in the end.
    for (admissions, wanted) in [
        ([false, false], Err(Code::PermissionDenied)),
        ([true, false], Err(Code::PermissionDenied)),
        ([true, true], Ok(())),
    ] {
        let asked = std::cell::Cell::new(0);
        let is_admitted = || admissions[asked.replace(asked.get() + 1)];
        let parts = whats.clone().map(|what| Ok(ArtifactPart { what: Some(what) }));
        let received =
            site.receiver.receive(&brain, &node, is_admitted, tokio_stream::iter(parts)).await;
        assert_eq!(received.map_err(|status| status.code()), wanted, "{admissions:?}");
        let is_kept = site.dir.path().join("artifacts/node-a").exists();
        assert_eq!(is_kept, wanted.is_ok());
    }
}

#[tokio::test]
async fn the_disk_has_to_have_room_for_all_that_is_being_received() {
    let site = TestReceiver::new();
    let senders = [site.sender("a"), site.sender("b")];
    for (sender, content) in senders.iter().zip(["content", "more content"]) {
        sender.begin(content).await;
    }
    let expected = || site.receiver.expected_bytes.load(Ordering::Relaxed);
    assert_eq!(expected(), "content".len() as u64 + "more content".len() as u64);
    for (sender, content) in senders.into_iter().zip(["content", "more content"]) {
        sender.chunk(content).await;
        assert_eq!(sender.end().await, Ok(()));
    }
    assert_eq!(expected(), 0);
    // What another sends is beyond any disk.
    let other = site.receiver.room(u64::MAX / 2);
    assert_eq!(site.send("a", "content").await, Err(Code::ResourceExhausted));
    drop(other);
    assert_eq!(site.send("a", "content").await, Ok(()));
}

#[tokio::test]
async fn an_order_has_a_few_artifacts_and_the_disk_its_reserve() {
    let site = TestReceiver::new();
    for _ in 0..ATTEMPTS_MAX - 1 {
        assert_eq!(site.send("a", "content").await, Ok(()));
    }
    // One that fails counts too.
    let wrong = site.sender("a");
    wrong.begin("content").await;
    wrong.chunk("CONTENT").await;
    assert_eq!(wrong.end().await, Err(Code::InvalidArgument));
    assert_eq!(site.send("a", "content").await, Err(Code::FailedPrecondition));
    let full = TestReceiver::with_reserve(u64::MAX);
    assert_eq!(full.send("a", "content").await, Err(Code::ResourceExhausted));
    assert_eq!(
        full.receiver.expected_bytes.load(Ordering::Relaxed),
        0,
        "the reservation is released"
    );
}

/// After a crash between storing it and sending the receipt.
#[tokio::test]
async fn one_that_is_sent_again_replaces_the_one_before() {
    let site = TestReceiver::new();
    for content in ["first", "first", "second"] {
        assert_eq!(fixture.send("a", content).await, Ok(()));
        assert_eq!(fixture.stored("a"), [hex(&Sha256::digest(content))]);
        let files = std::fs::read_dir(fixture.dir.path().join("artifacts/node-a")).unwrap();
        assert_eq!(files.count(), 2, "one record and its content");
    }
}
