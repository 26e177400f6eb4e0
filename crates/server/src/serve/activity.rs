//! Whether somebody known is at the other end of a connection: a person by their token, or a node that is being active.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// What is known of a connection.
#[derive(Debug)]
pub(crate) struct ConnectionActivity {
    /// Requests of somebody known that are being active.
    active: AtomicUsize,
    /// Whether there was one.
    is_authenticated: AtomicBool,
    /// When the last of them was.
    last: Mutex<Instant>,
}

impl ConnectionActivity {
    pub(crate) fn new() -> Self {
        let last = Mutex::new(Instant::now());
        Self { active: AtomicUsize::new(0), is_authenticated: AtomicBool::new(false), last }
    }

    /// Whether somebody known was ever active.
    pub(super) fn is_authenticated(&self) -> bool {
        self.is_authenticated.load(Ordering::Relaxed)
    }

    fn touch(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Returns when nobody known was answered for so long.
    pub(crate) async fn idle_for(&self, limit: Duration) {
        loop {
            let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
            let quiet = last.elapsed();
            let is_busy = self.active.load(Ordering::Relaxed) > 0;
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
pub(crate) struct ActiveRequest(Arc<ConnectionActivity>);

impl ActiveRequest {
    pub(crate) fn new(activity: &Arc<ConnectionActivity>) -> Self {
        activity.active.fetch_add(1, Ordering::Relaxed);
        activity.is_authenticated.store(true, Ordering::Relaxed);
        activity.touch();
        Self(Arc::clone(activity))
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.0.touch();
        self.0.active.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn a_stranger_goes_soon_and_somebody_known_when_they_are_answered() {
        let activity = Arc::new(ConnectionActivity::new());
        let start = Instant::now();
        activity.idle_for(LIMIT).await;
        assert_eq!(start.elapsed().as_secs(), LIMIT.as_secs());
        // A stream of a hundred seconds, and then a request at the last moment.
        let stream = ActiveRequest::new(&activity);
        let start = Instant::now();
        let watched = Arc::clone(&activity);
        let gone = tokio::spawn(async move { watched.idle_for(LIMIT).await });
        tokio::time::sleep(Duration::from_secs(100)).await;
        drop(stream);
        tokio::time::sleep(Duration::from_secs(29)).await;
        drop(ActiveRequest::new(&activity));
        gone.await.unwrap();
        let stayed_s = start.elapsed().as_secs();
        assert!((159..=161).contains(&stayed_s), "{stayed_s} s");
    }
}
