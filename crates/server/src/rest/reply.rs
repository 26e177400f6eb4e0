//! Answers of the REST API.

use std::io::{self, Write};
use std::sync::Arc;

use farrier_wire::rest::Problem;
use hyper::body::Bytes;
use hyper::header::{
    CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Response, StatusCode};
use serde::Serialize;
use tokio::sync::mpsc;
use tonic::body::Body;

use super::answer_body::{AnswerBody, AnswerContent, AnswerHold};
use super::failure::{Failure, internal_error};
use super::limits::StreamSlot;

pub(super) const JSON: &str = "application/json";
pub(super) const LINES: &str = "application/x-ndjson";
pub(super) const EVENTS: &str = "text/event-stream";
pub(super) const GZIP: &str = "application/gzip";
pub(super) const TEXT: &str = "text/plain; charset=utf-8";
pub(super) const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Number of chunks that may wait for a client. A chunk has about
/// [`crate::log_tail::READ_BYTES_MAX`] bytes. All later content stays on disk.
const PIECES_MAX: usize = 2;

pub(super) struct Reply {
    status: StatusCode,
    media: &'static str,
    content: AnswerContent,
    /// The slot of a stream. It replaces the answer slot.
    stream_slot: Option<Arc<StreamSlot>>,
    /// Length of a stream, if it is known. With the length, a client can detect that the stream was
    /// truncated.
    length: Option<u64>,
}

impl Reply {
    pub(super) fn json(value: &impl Serialize) -> Result<Self, Failure> {
        let bytes = serde_json::to_vec(value).map_err(|err| internal_error(&err))?;
        Ok(Self::bytes(JSON, bytes))
    }

    pub(super) fn created(value: &impl Serialize) -> Result<Self, Failure> {
        Ok(Self { status: StatusCode::CREATED, ..Self::json(value)? })
    }

    pub(super) fn bytes(media: &'static str, bytes: impl Into<Bytes>) -> Self {
        let content = AnswerContent::Whole(bytes.into());
        Self { status: StatusCode::OK, media, content, stream_slot: None, length: None }
    }

    pub(super) fn unavailable(text: &'static str) -> Self {
        Self { status: StatusCode::SERVICE_UNAVAILABLE, ..Self::bytes(TEXT, text) }
    }

    /// Returns a stream and the sender for its chunks.
    pub(super) fn stream(
        media: &'static str,
        slot: &Arc<StreamSlot>,
    ) -> (mpsc::Sender<Bytes>, Self) {
        let (send, pieces) = mpsc::channel(PIECES_MAX);
        let (content, stream_slot) = (AnswerContent::Written(pieces), Some(Arc::clone(slot)));
        (send, Self { status: StatusCode::OK, media, content, stream_slot, length: None })
    }

    pub(super) fn with_length(self, bytes: u64) -> Self {
        Self { length: Some(bytes), ..self }
    }

    /// Creates the response. Its body keeps `hold` until the body is sent.
    pub(super) fn into_response(self, hold: Option<AnswerHold>) -> Response<Body> {
        let hold = hold.map(|hold| match self.stream_slot {
            Some(slot) => hold.with_stream_slot(slot),
            None => hold,
        });
        let mut response = Response::new(Body::new(AnswerBody::new(self.content, hold)));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.media));
        if let Some(bytes) = self.length {
            headers.insert(CONTENT_LENGTH, bytes.into());
        }
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        response
    }
}

/// Encoded size of a value as JSON.
pub(super) fn json_bytes(value: &impl Serialize) -> usize {
    struct Count(usize);

    impl Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let mut count = Count(0);
    // A value that cannot be serialised is not sent, so its size does not matter.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

pub(super) fn failed(failure: &Failure, hold: Option<AnswerHold>) -> Response<Body> {
    let bytes = serde_json::to_vec(&*failure.problem).unwrap_or_default();
    let status = StatusCode::from_u16(failure.problem.status);
    let reply = Reply {
        status: status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
        ..Reply::bytes(Problem::MEDIA_TYPE, bytes)
    };
    let mut response = reply.into_response(hold);
    for (name, value) in &failure.headers {
        if let Ok(value) = HeaderValue::from_str(value) {
            response.headers_mut().insert(name.clone(), value);
        }
    }
    response
}
