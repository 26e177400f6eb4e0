//! Requests from peers without an admitted certificate: enrolments, and calls that will be refused.
//! Anyone who reaches the port can send them. Their messages are therefore small, limited in
//! number, and read completely before they are decoded. Together they hold at most
//! [`MESSAGE_BYTES_MAX`] × [`REQUESTS_MAX`] bytes. At the limit, the oldest request is evicted, so
//! unfinished requests do not block enrolments.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes};
use tokio::time::timeout;
use tonic::Status;

use super::slot_pool::SlotPool;
use crate::counters::RequestFailure;

/// Maximum bytes of a message. An enrolment has some hundred bytes.
pub(super) const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// gRPC's prefix of a message: the compression flag and the length.
const PREFIX_BYTES: usize = 5;
/// Maximum number of concurrent requests. All of them together hold up to 64 MiB.
const REQUESTS_MAX: usize = 1024;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum RequestReadError {
    #[error("a message without a certificate has at most {MESSAGE_BYTES_MAX} bytes")]
    TooLarge,
    #[error("the message did not arrive in time")]
    Slow,
    #[error("too many concurrent requests without a certificate; try again")]
    Displaced,
    #[error("the message was truncated")]
    CutOff,
}

impl From<RequestReadError> for Status {
    fn from(err: RequestReadError) -> Self {
        let text = err.to_string();
        match err {
            RequestReadError::TooLarge => Self::out_of_range(text),
            RequestReadError::Slow => Self::deadline_exceeded(text),
            RequestReadError::Displaced => Self::resource_exhausted(text),
            RequestReadError::CutOff => Self::cancelled(text),
        }
    }
}

impl RequestReadError {
    pub(super) fn metric(self) -> RequestFailure {
        match self {
            Self::TooLarge => RequestFailure::TooLarge,
            Self::Slow => RequestFailure::Slow,
            Self::Displaced => RequestFailure::Displaced,
            Self::CutOff => RequestFailure::CutOff,
        }
    }
}

#[derive(Debug)]
pub(super) struct Requests {
    pool: Arc<SlotPool<()>>,
}

impl Requests {
    pub(super) fn new() -> Self {
        Self::with_capacity(REQUESTS_MAX)
    }

    fn with_capacity(requests: usize) -> Self {
        Self { pool: SlotPool::new(requests) }
    }

    /// Reads a whole body, unless it is too large, takes too long or is evicted.
    pub(super) async fn read(
        &self,
        body: impl Body<Data = Bytes> + Unpin,
    ) -> Result<Bytes, RequestReadError> {
        let mut slot = self.pool.acquire(());
        tokio::select! {
            read = timeout(REQUEST_TIMEOUT, read_whole(body)) => read.unwrap_or(Err(RequestReadError::Slow)),
            () = slot.evicted() => Err(RequestReadError::Displaced),
        }
    }
}

/// Reads a whole body. The data is copied, because even a frame of one byte can keep a whole
/// receive buffer in memory.
async fn read_whole(mut body: impl Body<Data = Bytes> + Unpin) -> Result<Bytes, RequestReadError> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| RequestReadError::CutOff)?;
        let data = frame.data_ref().map_or(&[][..], |data| data);
        if bytes.len() + data.len() > PREFIX_BYTES + MESSAGE_BYTES_MAX {
            return Err(RequestReadError::TooLarge);
        }
        bytes.extend_from_slice(data);
    }
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use farrier_wire::proof::{NodeKey, Purpose};
    use farrier_wire::proto::EnrolRequest;
    use http_body_util::{Full, StreamBody};
    use hyper::body::Frame;
    use prost::Message;
    use tokio_stream::StreamExt;

    use super::*;

    fn unfinished(bytes: usize) -> impl Body<Data = Bytes> + Unpin {
        let data = Ok::<_, Infallible>(Frame::data(Bytes::from(vec![0; bytes])));
        StreamBody::new(tokio_stream::iter([data]).chain(tokio_stream::pending()))
    }

    #[test]
    fn the_largest_enrolment_is_far_below_the_limit() {
        let node = "n".repeat(253);
        let token = format!("fjoin_{}", "t".repeat(128));
        let purpose = Purpose::Enrol { node: &node, token: &token };
        let key = Some(NodeKey::generate().unwrap().prove(purpose).unwrap());
        let request = EnrolRequest { node: node.clone(), token: token.clone(), key };
        let bytes = request.encoded_len();
        assert!(bytes * 64 < MESSAGE_BYTES_MAX, "{bytes} bytes");
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_is_read_completely_and_in_time() {
        let requests = Requests::new();
        let largest = PREFIX_BYTES + MESSAGE_BYTES_MAX;
        let read = requests.read(Full::new(Bytes::from(vec![0; largest]))).await;
        assert_eq!(read.map(|bytes| bytes.len()), Ok(largest));
        let large = requests.read(unfinished(largest + 1)).await;
        assert_eq!(large, Err(RequestReadError::TooLarge), "without waiting for the rest");
        assert_eq!(requests.read(unfinished(largest)).await, Err(RequestReadError::Slow));
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_request_is_evicted_and_complete_ones_are_read() {
        let requests = Arc::new(Requests::with_capacity(2));
        let begin = || {
            let requests = Arc::clone(&requests);
            tokio::spawn(async move { requests.read(unfinished(100)).await })
        };
        let (first, second) = (begin(), begin());
        // Let both requests start.
        tokio::task::yield_now().await;
        let read = requests.read(Full::new(Bytes::from_static(b"enrol"))).await;
        assert_eq!(read.as_deref(), Ok(&b"enrol"[..]));
        assert_eq!(first.await.unwrap(), Err(RequestReadError::Displaced));
        assert_eq!(second.await.unwrap(), Err(RequestReadError::Slow));
    }
}
