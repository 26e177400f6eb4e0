//! Receives artifacts from nodes.

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

use super::store::{ArtifactRecord, ArtifactStore, Incoming};
use crate::controller::Controller;
use crate::space::DiskSpace;

const CONCURRENT_MAX: usize = 8;
const PART_TIMEOUT: Duration = Duration::from_secs(30);
/// This is enough time for 32 MiB over a link of 0.5 Mbit/s.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(600);
/// How often the server checks whether the node may still send.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum chunks that wait for the disk.
const CHUNKS_MAX: usize = 4;
/// Maximum number of attempts to send the artifact of one order, including failed attempts. An
/// agent whose attempts all fail makes about twenty attempts within the lease of the order.
const ATTEMPTS_MAX: u32 = 32;

#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(
        "{CONCURRENT_MAX} artifacts, or one from this node, are already being received; try again"
    )]
    Busy,
    #[error("disk space is low; try again later")]
    LowSpace,
    #[error("a part took longer than {} s, or the artifact longer than {} s", PART_TIMEOUT.as_secs(), TOTAL_TIMEOUT.as_secs())]
    Slow,
    #[error("the first part, and only the first, must be a header")]
    Header,
    #[error(
        "an artifact has 1 to {ARTIFACT_BYTES_MAX} bytes and a SHA-256, and a chunk at most {ARTIFACT_CHUNK_BYTES} bytes"
    )]
    Bounds,
    #[error("no order of this node requests artifact {0}")]
    NoOrder(u64),
    #[error("the certificate was revoked")]
    Revoked,
    #[error("the node has sent the artifact of this order {ATTEMPTS_MAX} times")]
    TooOften,
    #[error("the content does not match its header")]
    Mismatch,
    #[error("failed to store the artifact")]
    Store(#[source] io::Error),
    #[error("the server is stopping")]
    Stopping,
}

/// The writer panicked or was cancelled.
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
            Refusal::NoOrder(_) | Refusal::TooOften => Self::failed_precondition(text),
            Refusal::Revoked => Self::permission_denied(text),
            // The node may try again: disk space may become free while the order is pending.
            Refusal::Store(err) => {
                tracing::error!(%err, "failed to store an artifact");
                Self::resource_exhausted(text)
            }
            Refusal::Stopping => Self::unavailable(text),
        }
    }
}

#[derive(Debug)]
pub(crate) struct ArtifactReceiver {
    store: Arc<ArtifactStore>,
    space: Arc<DiskSpace>,
    slots: Arc<Semaphore>,
    senders: Arc<Mutex<Senders>>,
    numbers: AtomicU64,
    /// Total size of all uploads in progress. The disk must have room for all of them.
    expected_bytes: Arc<AtomicU64>,
}

/// The uploads of each node. The key is the node and the log entry of its enrolment.
type Senders = BTreeMap<(NodeId, u64), NodeUploads>;

#[derive(Debug, Default)]
struct NodeUploads {
    is_sending: bool,
    /// The last order for which the node sent an artifact.
    generation: u64,
    /// How often the node tried to send that artifact.
    attempts: u32,
}

/// A slot for an upload in progress. The writer owns the slot, because the writer may still run
/// after the stream was reset.
struct Upload {
    senders: Arc<Mutex<Senders>>,
    sender: (NodeId, u64),
    _slot: OwnedSemaphorePermit,
}

impl Drop for Upload {
    fn drop(&mut self) {
        let mut senders = lock(&self.senders);
        senders.entry(self.sender.clone()).or_default().is_sending = false;
    }
}

fn lock(senders: &Mutex<Senders>) -> MutexGuard<'_, Senders> {
    senders.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Disk space that is reserved for an upload.
struct DiskReservation {
    expected_bytes: Arc<AtomicU64>,
    bytes: u64,
}

impl Drop for DiskReservation {
    fn drop(&mut self) {
        self.expected_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl ArtifactReceiver {
    pub(crate) fn new(store: Arc<ArtifactStore>, space: Arc<DiskSpace>) -> Self {
        let slots = Arc::new(Semaphore::new(CONCURRENT_MAX));
        let (senders, expected_bytes) = (Arc::default(), Arc::default());
        Self { store, space, slots, senders, numbers: AtomicU64::new(0), expected_bytes }
    }

    /// Takes a slot for an upload. A node gets one slot at a time, because all nodes share the
    /// slots.
    fn begin_upload(&self, node: &NodeId, record: &ArtifactRecord) -> Result<Upload, Refusal> {
        let slot = Arc::clone(&self.slots).try_acquire_owned().map_err(|_| Refusal::Busy)?;
        let id = (node.clone(), record.first_seq);
        let mut senders = lock(&self.senders);
        let sender = senders.entry(id.clone()).or_default();
        if sender.is_sending {
            return Err(Refusal::Busy);
        }
        if sender.generation != record.generation {
            (sender.generation, sender.attempts) = (record.generation, 0);
        }
        if sender.attempts >= ATTEMPTS_MAX {
            return Err(Refusal::TooOften);
        }
        (sender.is_sending, sender.attempts) = (true, sender.attempts + 1);
        Ok(Upload { senders: Arc::clone(&self.senders), sender: id, _slot: slot })
    }

    fn reserve(&self, bytes: u64) -> DiskReservation {
        self.expected_bytes.fetch_add(bytes, Ordering::Relaxed);
        DiskReservation { expected_bytes: Arc::clone(&self.expected_bytes), bytes }
    }

    /// Receives an artifact that a pending order of this node requests. When this function returns,
    /// the artifact is on disk. `is_admitted` returns true while the node's certificate is valid.
    pub(crate) async fn receive(
        &self,
        controller: &Controller,
        node: &NodeId,
        is_admitted: impl Fn() -> bool,
        parts: impl Stream<Item = Result<ArtifactPart, Status>> + Unpin,
    ) -> Result<(), Status> {
        let requested_by = |generation| {
            let is_admitted = is_admitted();
            async move {
                if !is_admitted {
                    return Err(Refusal::Revoked);
                }
                requested_by(controller, node, generation).await
            }
        };
        self.receive_requested(node, parts, requested_by).await
    }

    /// `requested_by` returns the record for the order with the given generation, or a refusal if
    /// that order requests no artifact.
    async fn receive_requested<A: Future<Output = Result<ArtifactRecord, Refusal>>>(
        &self,
        node: &NodeId,
        parts: impl Stream<Item = Result<ArtifactPart, Status>> + Unpin,
        requested_by: impl Fn(u64) -> A,
    ) -> Result<(), Status> {
        let upload =
            tokio::time::timeout(TOTAL_TIMEOUT, self.receive_parts(node, parts, requested_by));
        upload.await.map_err(|_| Refusal::Slow)?
    }

    async fn receive_parts<A: Future<Output = Result<ArtifactRecord, Refusal>>>(
        &self,
        node: &NodeId,
        parts: impl Stream<Item = Result<ArtifactPart, Status>> + Unpin,
        requested_by: impl Fn(u64) -> A,
    ) -> Result<(), Status> {
        let mut parts = PartReader(parts);
        let Some(artifact_part::What::Header(header)) = parts.next().await? else {
            return Err(Refusal::Header.into());
        };
        if !(1..=ARTIFACT_BYTES_MAX).contains(&header.bytes) || header.sha256.len() != 32 {
            return Err(Refusal::Bounds.into());
        }
        if self.space.is_low() {
            return Err(Refusal::LowSpace.into());
        }
        let (generation, record) = (header.generation, requested_by(header.generation).await?);
        // A node gets a slot only if its order requests an artifact.
        let upload = self.begin_upload(node, &record)?;
        let (first_seq, reservation) = (record.first_seq, self.reserve(header.bytes));
        let (chunks, written) = self.writer(node.clone(), record, header, (upload, reservation));
        // While the artifact is received, the order may end, and the node may be revoked or
        // retired.
        let check = || async {
            match requested_by(generation).await {
                Ok(record) if record.first_seq == first_seq => Ok(()),
                Ok(_) => Err(Refusal::NoOrder(generation)),
                Err(err) => Err(err),
            }
        };
        let sent = parts.send_to(&chunks, check).await;
        drop(chunks);
        // Wait for the writer even after a refusal, so that the upload has ended before the node
        // gets the status.
        let written = written.await.unwrap_or_else(|err| Err(Refusal::from(err)));
        sent?;
        written?;
        Ok(())
    }

    /// Spawns a writer on a blocking thread. The writer writes the chunks that it receives from the
    /// channel.
    fn writer(
        &self,
        node: NodeId,
        mut record: ArtifactRecord,
        header: ArtifactHeader,
        (upload, reservation): (Upload, DiskReservation),
    ) -> (mpsc::Sender<WriterInput>, tokio::task::JoinHandle<Result<(), Refusal>>) {
        let (send, mut inputs) = mpsc::channel(CHUNKS_MAX);
        let (store, space) = (Arc::clone(&self.store), Arc::clone(&self.space));
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let written = tokio::task::spawn_blocking(move || {
            let _upload = upload;
            let expected_bytes = reservation.expected_bytes.load(Ordering::Relaxed);
            if !space.has_room(store.dir(), expected_bytes).map_err(Refusal::Store)? {
                return Err(Refusal::LowSpace);
            }
            let mut incoming = store.begin(number).map_err(Refusal::Store)?;
            let content = write(&mut incoming, &mut inputs, header.bytes)?;
            if content.bytes != header.bytes || content.sha256 != header.sha256[..] {
                return Err(Refusal::Mismatch);
            }
            record.bytes = content.bytes;
            record.sha256 = hex(&content.sha256);
            let is_stored = store.finish(&node, &record, incoming).map_err(Refusal::Store)?;
            is_stored.then_some(()).ok_or(Refusal::NoOrder(record.generation))
        });
        (send, written)
    }
}

enum WriterInput {
    Chunk(Bytes),
    End,
}

struct Received {
    bytes: u64,
    sha256: [u8; 32],
}

fn write(
    incoming: &mut Incoming,
    inputs: &mut mpsc::Receiver<WriterInput>,
    bytes_max: u64,
) -> Result<Received, Refusal> {
    let (mut hash, mut bytes) = (Sha256::new(), 0_u64);
    loop {
        match inputs.blocking_recv() {
            Some(WriterInput::Chunk(chunk)) => {
                bytes += chunk.len() as u64;
                if bytes > bytes_max {
                    return Err(Refusal::Mismatch);
                }
                hash.update(&chunk);
                incoming.write_all(&chunk).map_err(Refusal::Store)?;
            }
            Some(WriterInput::End) => {
                return Ok(Received { bytes, sha256: hash.finalize().into() });
            }
            // The stream was aborted before its end.
            None => return Err(Refusal::Mismatch),
        }
    }
}

/// Reads the parts of an upload. Each part has to arrive within the timeout.
struct PartReader<S>(S);

impl<S: Stream<Item = Result<ArtifactPart, Status>> + Unpin> PartReader<S> {
    async fn next(&mut self) -> Result<Option<artifact_part::What>, Status> {
        let part = tokio::time::timeout(PART_TIMEOUT, self.0.next()).await;
        match part.map_err(|_| Refusal::Slow)?.transpose()? {
            None => Ok(None),
            Some(ArtifactPart { what: Some(what) }) => Ok(Some(what)),
            Some(ArtifactPart { what: None }) => Err(Refusal::Header.into()),
        }
    }

    /// Passes the chunks and the end of the stream to the writer. Checks periodically, and at the
    /// end, whether the node may still send.
    async fn send_to<C: Future<Output = Result<(), Refusal>>>(
        &mut self,
        chunks: &mpsc::Sender<WriterInput>,
        check: impl Fn() -> C,
    ) -> Result<(), Status> {
        let mut last_check = Instant::now();
        while let Some(part) = self.next().await? {
            if last_check.elapsed() >= CHECK_INTERVAL {
                check().await?;
                last_check = Instant::now();
            }
            let artifact_part::What::Chunk(chunk) = part else {
                return Err(Refusal::Header.into());
            };
            if !(1..=ARTIFACT_CHUNK_BYTES).contains(&chunk.len()) {
                return Err(Refusal::Bounds.into());
            }
            // A send fails only if the writer has failed.
            if chunks.send(WriterInput::Chunk(chunk)).await.is_err() {
                break;
            }
        }
        check().await?;
        // A writer that gets no `End`, such as after an aborted stream, discards the artifact.
        let _ = chunks.send(WriterInput::End).await;
        Ok(())
    }
}

/// Returns a record for the artifact that the node's pending order requests, or a refusal.
async fn requested_by(
    controller: &Controller,
    node: &NodeId,
    generation: u64,
) -> Result<ArtifactRecord, Refusal> {
    let id = node.clone();
    let pending = controller.read(move |state| {
        let node = state.nodes.get(&id)?;
        let order = &node.orders.pending()?.order;
        let is_requested = order.generation == generation && order.kind.spec().has_artifact;
        is_requested
            .then(|| (order.kind.spec().code.to_owned(), node.first_seq, node.location.clone()))
    });
    let pending = pending.await.map_err(|_| Refusal::Stopping)?;
    let (order, first_seq, location) = pending.ok_or(Refusal::NoOrder(generation))?;
    Ok(ArtifactRecord::new(generation, order, first_seq, location, Timestamp::now()))
}

#[cfg(test)]
mod tests;
