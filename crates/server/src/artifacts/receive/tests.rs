use std::sync::atomic::AtomicBool;

use tokio::task::JoinHandle;
use tokio::time::advance;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use super::*;

struct Fixture {
    dir: tempfile::TempDir,
    receiver: Arc<Receiver>,
    /// Whether an order requests the artifact.
    is_requested: Arc<AtomicBool>,
}

struct Sender {
    parts: mpsc::Sender<Result<ArtifactPart, Status>>,
    received: JoinHandle<Result<(), Status>>,
}

impl Fixture {
    fn new() -> Self {
        Self::with_reserve(0)
    }

    fn with_reserve(bytes: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(ArtifactStore::open(dir.path()).unwrap());
        let receiver = Arc::new(Receiver::new(store, Arc::new(DiskSpace::new(Some(bytes)))));
        Self { dir, receiver, is_requested: Arc::new(AtomicBool::new(true)) }
    }

    fn sender(&self, node: &str) -> Sender {
        let (parts, stream) = mpsc::channel(1);
        let (artifacts, node): (_, NodeId) = (Arc::clone(&self.receiver), node.parse().unwrap());
        let is_requested = Arc::clone(&self.is_requested);
        let received = tokio::spawn(async move {
            let is_requested = &is_requested;
            let requested_by = |generation| async move {
                if !is_requested.load(Ordering::Relaxed) {
                    return Err(Refusal::NoOrder(generation));
                }
                let location = farrier_fleet::fleet::Location::in_pool("train".parse().unwrap());
                let order = "collect-logs".to_owned();
                Ok(ArtifactRecord::new(generation, order, 1, location, Timestamp::now()))
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
        let listed = self.receiver.store.list(&node.parse().unwrap(), 1).unwrap();
        listed.into_iter().map(|row| row.sha256).collect()
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
async fn a_stalled_upload_times_out() {
    let fixture = Fixture::new();
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
async fn a_trickling_upload_times_out() {
    let fixture = Fixture::new();
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
    let fixture = Fixture::new();
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

/// Like a full disk: the node keeps its file and sends it later.
#[tokio::test]
async fn a_failed_write_can_be_retried() {
    let fixture = Fixture::new();
    let in_the_way = fixture.dir.path().join("artifacts/node-a");
    std::fs::write(&in_the_way, "").unwrap();
    assert_eq!(fixture.send("a", "content").await, Err(Code::ResourceExhausted));
    fixture.until_nothing_is_incoming().await;
    std::fs::remove_file(&in_the_way).unwrap();
    assert_eq!(fixture.send("a", "content").await, Ok(()));
    assert_eq!(fixture.stored("a").len(), 1);
}

/// Cancelled, revoked or retired: an upload in progress is discarded.
#[tokio::test(start_paused = true)]
async fn an_upload_is_discarded_when_its_order_ends() {
    let fixture = Fixture::new();
    let sender = fixture.sender("a");
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

#[tokio::test]
async fn uploads_are_limited_per_order_and_by_the_disk_reserve() {
    let fixture = Fixture::new();
    for _ in 0..PER_ORDER_MAX {
        assert_eq!(fixture.send("a", "content").await, Ok(()));
    }
    assert_eq!(fixture.send("a", "content").await, Err(Code::FailedPrecondition));
    let full = Fixture::with_reserve(u64::MAX);
    assert_eq!(full.send("a", "content").await, Err(Code::ResourceExhausted));
    assert_eq!(
        full.receiver.expected_bytes.load(Ordering::Relaxed),
        0,
        "the reservation is released"
    );
}

/// After a crash between storing it and sending the receipt.
#[tokio::test]
async fn a_repeated_upload_replaces_the_previous_one() {
    let fixture = Fixture::new();
    for content in ["first", "first", "second"] {
        assert_eq!(fixture.send("a", content).await, Ok(()));
        assert_eq!(fixture.stored("a"), [hex(&Sha256::digest(content))]);
        let files = std::fs::read_dir(fixture.dir.path().join("artifacts/node-a")).unwrap();
        assert_eq!(files.count(), 2, "one record and its content");
    }
}
