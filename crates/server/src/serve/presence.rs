//! Whether somebody known is at the other end of a connection that has no certificate.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What is known of a connection.
#[derive(Debug)]
pub(crate) struct Presence {
    /// Requests of somebody known that are being answered.
    answered: AtomicUsize,
    /// When the last of them was.
    last: Mutex<Instant>,
}

impl Presence {
    pub(crate) fn new() -> Self {
        Self { answered: AtomicUsize::new(0), last: Mutex::new(Instant::now()) }
    }

    fn touch(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Returns when nobody known was answered for so long.
    pub(crate) async fn absent_for(&self, limit: Duration) {
        loop {
            let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
            let quiet = last.elapsed();
            let is_busy = self.answered.load(Ordering::Relaxed) > 0;
            if !is_busy && quiet >= limit {
                return;
            }
            let left = if is_busy { limit } else { limit.saturating_sub(quiet) };
            tokio::time::sleep(left.max(Duration::from_millis(10))).await;
        }
    }
}

/// Somebody known is being answered, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Present(Arc<Presence>);

impl Present {
    pub(crate) fn new(presence: &Arc<Presence>) -> Self {
        presence.answered.fetch_add(1, Ordering::Relaxed);
        presence.touch();
        Self(Arc::clone(presence))
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        self.0.touch();
        self.0.answered.fetch_sub(1, Ordering::Relaxed);
    }
}
