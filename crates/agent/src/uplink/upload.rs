//! Uploads an artifact on a separate stream, while the session is open.

use std::fs::File;
use std::io::{self, Read};
use std::time::Duration;

use farrier_wire::client::Agents;
use farrier_wire::limits::ARTIFACT_CHUNK_BYTES;
use farrier_wire::proto::{ArtifactHeader, ArtifactPart, artifact_part};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::{Code, Extensions, Request, Status};

use crate::artifact::{ArtifactUpload, SendError};

/// Maximum chunks queued in memory.
const CHUNKS_MAX: usize = 4;
/// Timeout of an upload, enough for the largest file over a slow link. The order's lease usually
/// ends earlier.
const UPLOAD_WAIT: Duration = Duration::from_secs(600);

/// Uploads a file and reports the result to the order executor.
pub(super) async fn upload(agents: Agents, metadata: MetadataMap, upload: ArtifactUpload) {
    let result = send(agents, metadata, &upload).await;
    if let Err(err) = &result {
        tracing::warn!(generation = upload.generation, %err, "failed to upload an artifact");
    }
    upload.end(result);
}

async fn send(
    mut agents: Agents,
    metadata: MetadataMap,
    upload: &ArtifactUpload,
) -> Result<(), SendError> {
    let (out, parts) = mpsc::channel(CHUNKS_MAX);
    let header = ArtifactHeader {
        generation: upload.generation,
        bytes: upload.bytes,
        sha256: upload.sha256.to_vec().into(),
    };
    let path = upload.path.clone();
    let reading = tokio::task::spawn_blocking(move || read(&path, header, &out));
    let request = Request::from_parts(metadata, Extensions::default(), ReceiverStream::new(parts));
    let response = tokio::time::timeout(UPLOAD_WAIT, agents.send_artifact(request)).await;
    // A read error ends the stream early, so the server also returns an error. Return the read
    // error, because it is the cause.
    if let Ok(Err(err)) = reading.await {
        return Err(SendError::Read { path: upload.path.clone(), why: err.to_string() });
    }
    match response {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(status)) => Err(from_status(&status)),
        Err(_) => Err(SendError::Busy(format!("no response after {} s", UPLOAD_WAIT.as_secs()))),
    }
}

/// Reads the file in chunks until the stream closes.
fn read(
    path: &std::path::Path,
    header: ArtifactHeader,
    out: &mpsc::Sender<ArtifactPart>,
) -> io::Result<()> {
    let mut file = File::open(path)?;
    let mut next = artifact_part::What::Header(header);
    loop {
        if out.blocking_send(ArtifactPart { what: Some(next) }).is_err() {
            return Ok(());
        }
        let mut chunk = Vec::with_capacity(ARTIFACT_CHUNK_BYTES);
        let limit = ARTIFACT_CHUNK_BYTES as u64;
        if file.by_ref().take(limit).read_to_end(&mut chunk)? == 0 {
            return Ok(());
        }
        next = artifact_part::What::Chunk(chunk.into());
    }
}

fn from_status(status: &Status) -> SendError {
    let message = status.message().to_owned();
    match status.code() {
        Code::ResourceExhausted | Code::DeadlineExceeded => SendError::Busy(message),
        Code::InvalidArgument
        | Code::FailedPrecondition
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::Unimplemented => SendError::Refused(message),
        _ => SendError::Disconnected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_temporary_errors_are_retried() {
        for (code, is_temporary) in [
            // Retry: another node has the slot, the disk is full, or the link is slow.
            (Code::ResourceExhausted, true),
            (Code::DeadlineExceeded, true),
            // Retry: the session ended.
            (Code::Unavailable, true),
            (Code::Cancelled, true),
            (Code::Unknown, true),
            (Code::Internal, true),
            // No retry: the server would reject the same file again.
            (Code::InvalidArgument, false),
            (Code::FailedPrecondition, false),
            (Code::PermissionDenied, false),
            (Code::Unauthenticated, false),
            (Code::Unimplemented, false),
        ] {
            let err = from_status(&Status::new(code, "reason"));
            assert_eq!(err.is_temporary(), is_temporary, "{code:?}: {err:?}");
        }
    }
}
