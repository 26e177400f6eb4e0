//! Artifacts that nodes sent for orders.

use std::fs::File;
use std::io::Read;
use std::sync::Arc;

use farrier_fleet::fleet::NodeId;
use farrier_wire::rest::{ArtifactList, ArtifactRow, HintCode};
use hyper::body::Bytes;
use jiff::Timestamp;
use tokio::sync::mpsc;

use super::Call;
use super::failure::{Failure, internal_error};
use super::limits::READ_TIMEOUT;
use super::reply::{self, Reply};
use crate::artifacts::{ArtifactRecord, ArtifactStore};

const CHUNK_BYTES: usize = 64 << 10;

pub(super) async fn list(call: Call) -> Result<Reply, Failure> {
    let (node, first_seq) = visible_node(&call).await?;
    let caller = call.caller()?.clone();
    let mut listed =
        with_store(&call, move |store| store.list(&node, first_seq, Timestamp::now())).await?;
    listed.retain(|row| caller.sees(&row.location));
    let artifacts = listed.into_iter().map(row).collect();
    Reply::json(&ArtifactList { artifacts })
}

fn row(record: ArtifactRecord) -> ArtifactRow {
    let ArtifactRecord { generation, order, at, bytes, sha256, .. } = record;
    ArtifactRow { generation, order, at, bytes, sha256 }
}

pub(super) async fn download(mut call: Call) -> Result<Reply, Failure> {
    let (node, first_seq) = visible_node(&call).await?;
    let generation = call.path.number("generation").unwrap_or_default();
    let read =
        move |store: &ArtifactStore| store.read(&node, first_seq, generation, Timestamp::now());
    let artifact = with_store(&call, read).await?;
    let caller = call.caller()?.clone();
    let Some((record, file)) = artifact.filter(|(record, _)| caller.sees(&record.location)) else {
        let text = "there is no such artifact, or it is from before the node entered your scope";
        return Err(Failure::not_found(text, HintCode::ListArtifacts));
    };
    let slot = Arc::new(call.stream_slot()?);
    let (bytes, (out, reply)) = (record.bytes, Reply::stream(reply::GZIP, &slot));
    tokio::spawn(async move {
        let (chunks, mut read) = mpsc::channel(2);
        tokio::task::spawn_blocking(move || send_chunks(file, bytes, &chunks));
        let write = async {
            while let Some(chunk) = read.recv().await {
                match tokio::time::timeout(READ_TIMEOUT, out.send(chunk)).await {
                    Ok(Ok(())) => {}
                    _ => return,
                }
            }
        };
        // If the token becomes invalid, the download ends early. The client notices this, because
        // bytes are missing.
        tokio::select! {
            () = write => {}
            _ = call.token_invalidated() => {}
        }
        drop(slot);
    });
    Ok(reply.with_length(bytes))
}

fn send_chunks(file: File, bytes: u64, out: &mpsc::Sender<Bytes>) {
    let mut file = file.take(bytes);
    loop {
        let mut chunk = Vec::with_capacity(CHUNK_BYTES);
        match file.by_ref().take(CHUNK_BYTES as u64).read_to_end(&mut chunk) {
            Ok(0) => return,
            Ok(_) if out.blocking_send(chunk.into()).is_ok() => {}
            Ok(_) => return,
            Err(err) => {
                tracing::error!(%err, "failed to read an artifact");
                return;
            }
        }
    }
}

/// Deletes the artifacts of a retired node. If the deletion fails, they stay hidden until they
/// expire.
pub(super) async fn delete(call: &Call, node: NodeId, first_seq: u64) {
    let _ = with_store(call, move |store| store.delete_node(&node, first_seq)).await;
}

/// Returns the node that the path names, and the log entry of its enrolment. Fails if the caller's
/// scope does not include the node.
async fn visible_node(call: &Call) -> Result<(NodeId, u64), Failure> {
    let (id, caller) = (call.path.node()?, call.caller()?.clone());
    let name = id.clone();
    let first_seq = call.app.controller.read(move |state| {
        state.nodes.get(&id).filter(|node| caller.sees(&node.location)).map(|node| node.first_seq)
    });
    let first_seq = first_seq.await?.ok_or_else(|| Failure::node_not_found(name.as_str()))?;
    Ok((name, first_seq))
}

async fn with_store<T: Send + 'static>(
    call: &Call,
    access: impl FnOnce(&ArtifactStore) -> std::io::Result<T> + Send + 'static,
) -> Result<T, Failure> {
    let store = Arc::clone(&call.app.artifacts);
    let result = tokio::task::spawn_blocking(move || access(&store)).await;
    result.map_err(|_| Failure::stopping())?.map_err(|err| internal_error(&err))
}
