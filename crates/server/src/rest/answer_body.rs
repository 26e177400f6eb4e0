//! The body of an answer. It holds the request's slot until the body is sent. The limit on slots
//! therefore also covers answers that clients do not read.
//!
//! A connection takes a whole chunk even if the client's window is tiny, so chunks are small.
//! HTTP/2 does not poll a body while the window is closed. A separate task therefore detects a
//! client that does not read, and drops the rest of the body after [`READ_TIMEOUT`].

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::limits::{READ_TIMEOUT, StreamSlot};
use crate::serve::ActiveRequest;

/// Size of the chunks that the connection gets. If the client's window is one byte, this much of an
/// answer can stay in memory after the slot was released.
const CHUNK_BYTES: usize = 4 << 10;

#[derive(Debug)]
pub(super) enum AnswerContent {
    Whole(Bytes),
    /// A writer produces the content while the body is sent.
    Written(mpsc::Receiver<Bytes>),
}

/// What a request holds until its answer is sent: a slot of its token for answers or streams, and
/// the activity of its connection.
#[derive(Debug, Clone)]
pub(super) struct AnswerHold {
    _answer: Option<Arc<OwnedSemaphorePermit>>,
    _stream: Option<Arc<StreamSlot>>,
    _active: Arc<ActiveRequest>,
}

impl AnswerHold {
    pub(super) fn new(slot: OwnedSemaphorePermit, active: ActiveRequest) -> Self {
        Self { _answer: Some(Arc::new(slot)), _stream: None, _active: Arc::new(active) }
    }

    /// Replaces the answer slot with a stream slot.
    pub(super) fn with_stream_slot(self, slot: Arc<StreamSlot>) -> Self {
        Self { _answer: None, _stream: Some(slot), ..self }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the client read nothing for {} s", READ_TIMEOUT.as_secs())]
pub(super) struct ClientNotReading;

#[derive(Debug)]
enum BodyState {
    Unsent(Unsent),
    Sent,
    Dropped,
}

#[derive(Debug)]
struct Unsent {
    content: AnswerContent,
    /// What remains of the current chunk.
    remaining: Bytes,
    /// When the client last read, or when there was last nothing to read.
    last_read: Instant,
    _hold: Option<AnswerHold>,
}

impl Unsent {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let remaining = match &mut self.content {
            AnswerContent::Whole(remaining) => remaining,
            AnswerContent::Written(pieces) => {
                while self.remaining.is_empty() {
                    match ready!(pieces.poll_recv(context)) {
                        Some(piece) => self.remaining = piece,
                        None => return Poll::Ready(None),
                    }
                }
                &mut self.remaining
            }
        };
        if remaining.is_empty() {
            return Poll::Ready(None);
        }
        self.last_read = Instant::now();
        Poll::Ready(Some(remaining.split_to(remaining.len().min(CHUNK_BYTES))))
    }

    /// Whether the body waits for its writer and not for the client.
    fn waits_for_writer(&self) -> bool {
        match &self.content {
            AnswerContent::Whole(_) => false,
            AnswerContent::Written(pieces) => {
                self.remaining.is_empty() && pieces.is_empty() && !pieces.is_closed()
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct AnswerBody {
    state: Arc<Mutex<BodyState>>,
    watch: Option<AbortHandle>,
}

impl AnswerBody {
    /// Creates a body. A body without a hold is small and belongs to no token, so no task watches
    /// it.
    pub(super) fn new(content: AnswerContent, hold: Option<AnswerHold>) -> Self {
        let is_watched = hold.is_some();
        let unsent =
            Unsent { content, remaining: Bytes::new(), last_read: Instant::now(), _hold: hold };
        let state = Arc::new(Mutex::new(BodyState::Unsent(unsent)));
        let watched = is_watched.then(|| Arc::clone(&state));
        let watch = watched.map(|state| tokio::spawn(drop_when_stalled(state)).abort_handle());
        Self { state, watch }
    }
}

/// Drops the rest of the body if the client does not read it.
async fn drop_when_stalled(state: Arc<Mutex<BodyState>>) {
    loop {
        let Some(last_read) = check_stalled(&mut locked(&state)) else { return };
        tokio::time::sleep_until(last_read + READ_TIMEOUT).await;
    }
}

/// Returns when the client last read, or `None` if nothing remains to be sent.
fn check_stalled(state: &mut BodyState) -> Option<Instant> {
    let BodyState::Unsent(unsent) = state else { return None };
    if unsent.waits_for_writer() {
        unsent.last_read = Instant::now();
    }
    let last_read = unsent.last_read;
    if last_read.elapsed() >= READ_TIMEOUT {
        *state = BodyState::Dropped;
        return None;
    }
    Some(last_read)
}

fn locked(state: &Mutex<BodyState>) -> MutexGuard<'_, BodyState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = ClientNotReading;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ClientNotReading>>> {
        let mut state = locked(&self.state);
        let piece = match &mut *state {
            BodyState::Unsent(unsent) => ready!(unsent.poll_piece(context)),
            BodyState::Sent => None,
            BodyState::Dropped => return Poll::Ready(Some(Err(ClientNotReading))),
        };
        if piece.is_none() {
            *state = BodyState::Sent;
        }
        Poll::Ready(piece.map(|chunk| Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        match &*locked(&self.state) {
            BodyState::Unsent(Unsent { content: AnswerContent::Whole(remaining), .. }) => {
                remaining.is_empty()
            }
            BodyState::Unsent(_) | BodyState::Dropped => false,
            BodyState::Sent => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &*locked(&self.state) {
            BodyState::Unsent(Unsent { content: AnswerContent::Whole(remaining), .. }) => {
                SizeHint::with_exact(remaining.len() as u64)
            }
            _ => SizeHint::default(),
        }
    }
}

impl Drop for AnswerBody {
    fn drop(&mut self) {
        *locked(&self.state) = BodyState::Sent;
        if let Some(watch) = &self.watch {
            watch.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http_body_util::BodyExt;
    use tokio::sync::Semaphore;

    use super::*;
    use crate::serve::ConnectionActivity;

    fn hold(slots: &Arc<Semaphore>) -> AnswerHold {
        let slot = Arc::clone(slots).try_acquire_owned().unwrap();
        AnswerHold::new(slot, ActiveRequest::new(&Arc::new(ConnectionActivity::new())))
    }

    fn text(bytes: usize) -> Bytes {
        Bytes::from(vec![b'x'; bytes])
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_holds_its_slot_until_it_is_dropped_or_stalled() {
        let slots = Arc::new(Semaphore::new(1));
        let content = text(CHUNK_BYTES * 2 + 1);
        let mut body = AnswerBody::new(AnswerContent::Whole(content.clone()), Some(hold(&slots)));
        assert_eq!(body.size_hint().exact(), Some(content.len() as u64));
        let mut sent = Vec::new();
        while !body.is_end_stream() {
            // The client reads just before the timeout.
            tokio::time::sleep(READ_TIMEOUT.mul_f64(0.9)).await;
            assert_eq!(slots.available_permits(), 0);
            let piece = body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert!(piece.len() <= CHUNK_BYTES);
            sent.extend(piece);
        }
        assert_eq!(sent, content);
        assert_eq!(slots.available_permits(), 0, "the last chunk may not be sent yet");
        drop(body);
        assert_eq!(slots.available_permits(), 1);
        assert!(content.is_unique());

        let mut body = AnswerBody::new(AnswerContent::Whole(content.clone()), Some(hold(&slots)));
        body.frame().await.unwrap().unwrap();
        tokio::time::sleep(READ_TIMEOUT + Duration::from_millis(1)).await;
        assert_eq!(slots.available_permits(), 1);
        assert!(content.is_unique(), "nothing of it is in memory");
        assert!(!body.is_end_stream());
        assert!(body.frame().await.unwrap().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_waits_for_its_writer_and_times_out_for_its_reader() {
        let slots = Arc::new(Semaphore::new(1));
        let (out, pieces) = mpsc::channel(2);
        let mut body = AnswerBody::new(AnswerContent::Written(pieces), Some(hold(&slots)));
        tokio::time::sleep(READ_TIMEOUT * 10).await;
        out.send(text(1)).await.unwrap();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), text(1));
        out.send(text(CHUNK_BYTES + 1)).await.unwrap();
        body.frame().await.unwrap().unwrap();
        assert_eq!(slots.available_permits(), 0);
        tokio::time::sleep(READ_TIMEOUT * 2).await;
        assert_eq!(slots.available_permits(), 1);
        assert!(out.is_closed(), "the writer notices");
        assert!(body.frame().await.unwrap().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_finished_writers_data_holds_its_slot_until_it_is_read() {
        let slots = Arc::new(Semaphore::new(1));
        let (out, pieces) = mpsc::channel(2);
        let mut body = AnswerBody::new(AnswerContent::Written(pieces), Some(hold(&slots)));
        out.send(text(1)).await.unwrap();
        drop(out);
        tokio::time::sleep(READ_TIMEOUT / 2).await;
        assert_eq!(slots.available_permits(), 0);
        assert!(body.frame().await.unwrap().is_ok());
        assert!(body.frame().await.is_none());
        assert_eq!(slots.available_permits(), 1);
        assert!(body.is_end_stream());
        // A body whose writer has finished also times out if the client does not read it.
        let (out, pieces) = mpsc::channel(2);
        let _body = AnswerBody::new(AnswerContent::Written(pieces), Some(hold(&slots)));
        out.send(text(1)).await.unwrap();
        drop(out);
        tokio::time::sleep(READ_TIMEOUT * 2).await;
        assert_eq!(slots.available_permits(), 1);
    }
}
