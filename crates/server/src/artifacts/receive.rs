//! Receives an artifact from a node.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farrier_fleet::fleet::NodeId;
use farrier_wire::hex::hex;
use farrier_wire::limits::{ARTIFACT_BYTES_MAX, ARTIFACT_CHUNK_BYTES};
use farrier_wire::proto::{ArtifactHeader, ArtifactPart, artifact_part};
use hyper::body::Bytes;
use jiff::Timestamp;
use sha2::{Digest, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinError;
use tokio::time::Instant;
use tokio_stream::{Stream, StreamExt};
use tonic::Status;

use super::store::{ArtifactStore, Incoming, Record};
use crate::controller::Controller;
use crate::space::Space;

/// Artifacts that are received at a time.
const AT_A_TIME: usize = 8;
/// How long a node may take for its next part.
const PART_WAIT: Duration = Duration::from_secs(30);
/// How long the whole may take: 32 MiB over a link of 0.5 Mbit/s.
const WHOLE_WAIT: Duration = Duration::from_secs(600);
/// How often it is looked whether the node may still send it.
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// Chunks that wait for the disk.
const CHUNKS_MAX: usize = 4;
/// Attempts to send the artifact of one order, whatever became of them. An agent makes about twenty
/// while its lease lasts, where none succeeds.
const ATTEMPTS_MAX: u32 = 32;

/// Why an artifact is not taken.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("{AT_A_TIME} artifacts, or one of this node, are being received; try again")]
    Busy,
    #[error("disk space is low; try again later")]
    LowSpace,
    #[error("a part took longer than {} s, or the whole than {} s", PART_WAIT.as_secs(), WHOLE_WAIT.as_secs())]
    Slow,
    #[error("the first part must be a header, and only the first")]
    Header,
    #[error(
        "an artifact has 1 to {ARTIFACT_BYTES_MAX} bytes and a SHA-256, and a chunk at most {ARTIFACT_CHUNK_BYTES} bytes"
    )]
    Bounds,
    #[error("no order of this node asks for artifact {0}")]
    NoOrder(u64),
    #[error("the certificate was revoked")]
    Revoked,
    #[error("the node has sent the artifact of this order {ATTEMPTS_MAX} times")]
    Often,
    #[error("the content is not what its header says")]
    Mismatch,
    #[error("failed to store the artifact")]
    Store(#[source] io::Error),
    #[error("the server is stopping")]
    Stopping,
}

/// Of a writer that did not end by itself.
impl From<JoinError> for Refusal {
    fn from(err: JoinError) -> Self {
        if err.is_panic() { Self::Store(io::Error::other(err)) } else { Self::Stopping }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let text = refusal.to_string();
        match refusal {
            Refusal::Busy | Refusal::LowSpace => Self::resource_exhausted(text),
            Refusal::Slow => Self::deadline_exceeded(text),
            Refusal::Header | Refusal::Bounds | Refusal::Mismatch => Self::invalid_argument(text),
            Refusal::NoOrder(_) | Refusal::Often => Self::failed_precondition(text),
            Refusal::Revoked => Self::permission_denied(text),
            // A full disk is over some day: the node tries again while its order is wanted.
            Refusal::Store(err) => {
                tracing::error!(%err, "failed to store an artifact");
                Self::resource_exhausted(text)
            }
            Refusal::Stopping => Self::unavailable(text),
        }
    }
}

/// Receives artifacts.
#[derive(Debug)]
pub(crate) struct Receiver {
    store: Arc<ArtifactStore>,
    space: Arc<Space>,
    slots: Arc<Semaphore>,
    senders: Arc<Mutex<Senders>>,
    numbers: AtomicU64,
    /// Bytes that are being received: the disk has to have room for all of them.
    expected_bytes: Arc<AtomicU64>,
}

/// By node and the entry with which it enrolled.
type Senders = BTreeMap<(NodeId, u64), Sender>;

/// A node that has sent artifacts.
#[derive(Debug, Default)]
struct Sender {
    is_sending: bool,
    /// The last order for which it sent one, and how often it has tried.
    generation: u64,
    attempts: u32,
}

/// A node's turn to send, and its slot. The writer has it: a stream that is reset may end before.
struct Turn {
    senders: Arc<Mutex<Senders>>,
    sender: (NodeId, u64),
    _slot: OwnedSemaphorePermit,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut senders = locked(&self.senders);
        senders.entry(self.sender.clone()).or_default().is_sending = false;
    }
}

fn locked(senders: &Mutex<Senders>) -> MutexGuard<'_, Senders> {
    senders.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Room on disk for an artifact that is being received.
struct SlotPool {
    expected_bytes: Arc<AtomicU64>,
    bytes: u64,
}

impl Drop for SlotPool {
    fn drop(&mut self) {
        self.expected_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Receiver {
    pub(crate) fn new(store: Arc<ArtifactStore>, space: Arc<Space>) -> Self {
        let slots = Arc::new(Semaphore::new(AT_A_TIME));
        let (senders, expected_bytes) = (Arc::default(), Arc::default());
        Self { store, space, slots, senders, numbers: AtomicU64::new(0), expected_bytes }
    }

    /// One at a time of each node: others need slots too.
    fn turn(&self, node: &NodeId, record: &Record) -> Result<Turn, Refusal> {
        let slot = Arc::clone(&self.slots).try_acquire_owned().map_err(|_| Refusal::Busy)?;
        let id = (node.clone(), record.first_seq);
        let mut senders = locked(&self.senders);
        let sender = senders.entry(id.clone()).or_default();
        if sender.is_sending {
            return Err(Refusal::Busy);
        }
        if sender.generation != record.generation {
            (sender.generation, sender.attempts) = (record.generation, 0);
        }
        if sender.attempts >= ATTEMPTS_MAX {
            return Err(Refusal::Often);
        }
        (sender.is_sending, sender.attempts) = (true, sender.attempts + 1);
        Ok(Turn { senders: Arc::clone(&self.senders), sender: id, _slot: slot })
    }

    fn room(&self, bytes: u64) -> SlotPool {
        self.expected_bytes.fetch_add(bytes, Ordering::Relaxed);
        SlotPool { expected_bytes: Arc::clone(&self.expected_bytes), bytes }
    }

    /// Receives what an order of this node asks for. It is on disk when this returns. `is_admitted`: whether its
    /// certificate still counts.
    pub(crate) async fn receive(
        &self,
        brain: &Controller,
        node: &NodeId,
        is_admitted: impl Fn() -> bool,
        parts: impl Stream<Item = Result<ArtifactPart, Status>> + Unpin,
    ) -> Result<(), Status> {
        let asked_for = |generation| {
            let is_admitted = is_admitted();
            async move {
                if !is_admitted {
                    return Err(Refusal::Revoked);
                }
                asked_for(brain, node, generation).await
            }
        };
        self.receive_asked(node, parts, asked_for).await
    }

    /// Receives it where `asked_for` has a record for its generation.
    async fn receive_asked<A: Future<Output = Result<Record, Refusal>>>(
        &self,
        node: &NodeId,
        parts: impl Stream<Item = Result<ArtifactPart, Status>> + Unpin,
        asked_for: impl Fn(u64) -> A,
    ) -> Result<(), Status> {
        let whole = tokio::time::timeout(WHOLE_WAIT, self.receive_parts(node, parts, asked_for));
        whole.await.map_err(|_| Refusal::Slow)?
    }

    async fn receive_parts<A: Future<Output = Result<Record, Refusal>>>(
        &self,
        node: &NodeId,
        parts: impl Stream<Item = Result<ArtifactPart, Status>> + Unpin,
        asked_for: impl Fn(u64) -> A,
    ) -> Result<(), Status> {
        let mut parts = Parts(parts);
        let Some(artifact_part::What::Header(header)) = parts.next().await? else {
            return Err(Refusal::Header.into());
        };
        if !(1..=ARTIFACT_BYTES_MAX).contains(&header.bytes) || header.sha256.len() != 32 {
            return Err(Refusal::Bounds.into());
        }
        if self.space.is_low() {
            return Err(Refusal::LowSpace.into());
        }
        let (generation, record) = (header.generation, asked_for(header.generation).await?);
        // Only for a node that has an order to send one.
        let turn = self.turn(node, &record)?;
        let (first_seq, room) = (record.first_seq, self.room(header.bytes));
        let (chunks, written) = self.writer(node.clone(), record, header, (turn, room));
        // The order may end meanwhile, and the node may be revoked or retired.
        let check = || async {
            match asked_for(generation).await {
                Ok(record) if record.first_seq == first_seq => Ok(()),
                Ok(_) => Err(Refusal::NoOrder(generation)),
                Err(err) => Err(err),
            }
        };
        let sent = parts.send_to(&chunks, check).await;
        drop(chunks);
        // Also where it was refused: when the node hears of that its turn has ended.
        let written = written.await.unwrap_or_else(|err| Err(Refusal::from(err)));
        sent?;
        written?;
        Ok(())
    }

    /// Writes on a thread that may wait for the disk.
    fn writer(
        &self,
        node: NodeId,
        mut record: Record,
        header: ArtifactHeader,
        (turn, room): (Turn, SlotPool),
    ) -> (mpsc::Sender<Piece>, tokio::task::JoinHandle<Result<(), Refusal>>) {
        let (send, mut pieces) = mpsc::channel(CHUNKS_MAX);
        let (store, space) = (Arc::clone(&self.store), Arc::clone(&self.space));
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let written = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let expected_bytes = room.expected_bytes.load(Ordering::Relaxed);
            if !space.has_room(store.dir(), expected_bytes).map_err(Refusal::Store)? {
                return Err(Refusal::LowSpace);
            }
            let mut incoming = store.begin(number).map_err(Refusal::Store)?;
            let content = write(&mut incoming, &mut pieces, header.bytes)?;
            if content.bytes != header.bytes || content.sha256 != header.sha256[..] {
                return Err(Refusal::Mismatch);
            }
            record.bytes = content.bytes;
            record.sha256 = hex(&content.sha256);
            let is_kept = store.finish(&node, &record, incoming).map_err(Refusal::Store)?;
            is_kept.then_some(()).ok_or(Refusal::NoOrder(record.generation))
        });
        (send, written)
    }
}

/// What the writer is given.
enum Piece {
    Chunk(Bytes),
    End,
}

struct Content {
    bytes: u64,
    sha256: [u8; 32],
}

fn write(
    incoming: &mut Incoming,
    pieces: &mut mpsc::Receiver<Piece>,
    bytes_max: u64,
) -> Result<Content, Refusal> {
    let (mut hash, mut bytes) = (Sha256::new(), 0_u64);
    loop {
        match pieces.blocking_recv() {
            Some(Piece::Chunk(chunk)) => {
                bytes += chunk.len() as u64;
                if bytes > bytes_max {
                    return Err(Refusal::Mismatch);
                }
                hash.update(&chunk);
                incoming.write_all(&chunk).map_err(Refusal::Store)?;
            }
            Some(Piece::End) => return Ok(Content { bytes, sha256: hash.finalize().into() }),
            // The stream broke off.
            None => return Err(Refusal::Mismatch),
        }
    }
}

/// The stream, part by part, each within its time.
struct Parts<S>(S);

impl<S: Stream<Item = Result<ArtifactPart, Status>> + Unpin> Parts<S> {
    async fn next(&mut self) -> Result<Option<artifact_part::What>, Status> {
        let part = tokio::time::timeout(PART_WAIT, self.0.next()).await;
        match part.map_err(|_| Refusal::Slow)?.transpose()? {
            None => Ok(None),
            Some(ArtifactPart { what: Some(what) }) => Ok(Some(what)),
            Some(ArtifactPart { what: None }) => Err(Refusal::Header.into()),
        }
    }

    /// Gives the chunks to the writer, and tells it when that was all. It checks now and then, and
    /// in the end, whether the node may still send it.
    async fn send_to<C: Future<Output = Result<(), Refusal>>>(
        &mut self,
        chunks: &mpsc::Sender<Piece>,
        check: impl Fn() -> C,
    ) -> Result<(), Status> {
        let mut checked = Instant::now();
        while let Some(part) = self.next().await? {
            if checked.elapsed() >= CHECK_EVERY {
                check().await?;
                checked = Instant::now();
            }
            let artifact_part::What::Chunk(chunk) = part else {
                return Err(Refusal::Header.into());
            };
            if !(1..=ARTIFACT_CHUNK_BYTES).contains(&chunk.len()) {
                return Err(Refusal::Bounds.into());
            }
            // The writer ends early where it fails.
            if chunks.send(Piece::Chunk(chunk)).await.is_err() {
                break;
            }
        }
        check().await?;
        // A stream that breaks off never gets here: the writer then ends without this.
        let _ = chunks.send(Piece::End).await;
        Ok(())
    }
}

/// The record of what the node's present order asks for.
async fn asked_for(brain: &Controller, node: &NodeId, generation: u64) -> Result<Record, Refusal> {
    let id = node.clone();
    let found = brain.look(move |state| {
        let node = state.nodes.get(&id)?;
        let order = &node.orders.pending()?.order;
        let is_it = order.generation == generation && order.kind.spec().has_artifact;
        is_it.then(|| (order.kind.spec().code.to_owned(), node.first_seq, node.location.clone()))
    });
    let found = found.await.map_err(|_| Refusal::Stopping)?;
    let (order, first_seq, place) = found.ok_or(Refusal::NoOrder(generation))?;
    Ok(Record::new(generation, order, first_seq, place, Timestamp::now()))
}

#[cfg(test)]
mod tests;
