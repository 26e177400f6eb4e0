//! Activity of a connection: whether it has requests in progress from an authenticated user or
//! node, and for how long it had none.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

#[derive(Debug)]
pub(crate) struct ConnectionActivity {
    /// Authenticated requests in progress.
    active: AtomicUsize,
    /// Whether there ever was an authenticated request.
    is_authenticated: AtomicBool,
    /// When an authenticated request last started or ended.
    last: Mutex<Instant>,
}

impl ConnectionActivity {
    pub(crate) fn new() -> Self {
        let last = Mutex::new(Instant::now());
        Self { active: AtomicUsize::new(0), is_authenticated: AtomicBool::new(false), last }
    }

    pub(super) fn is_authenticated(&self) -> bool {
        self.is_authenticated.load(Ordering::Relaxed)
    }

    fn touch(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Waits until the connection has been without an authenticated request for the time `limit`.
    pub(crate) async fn idle_for(&self, limit: Duration) {
        loop {
            let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
            let quiet = last.elapsed();
            let is_busy = self.active.load(Ordering::Relaxed) > 0;
            if !is_busy && quiet >= limit {
                return;
            }
            let remaining = if is_busy { limit } else { limit.saturating_sub(quiet) };
            tokio::time::sleep(remaining.max(Duration::from_millis(10))).await;
        }
    }
}

/// Guard for an authenticated request in progress.
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
    async fn a_connection_idles_out_without_authenticated_requests() {
        let activity = Arc::new(ConnectionActivity::new());
        let start = Instant::now();
        activity.idle_for(LIMIT).await;
        assert_eq!(start.elapsed().as_secs(), LIMIT.as_secs());
        // A stream that lasts a hundred seconds, then a request just before the timeout.
        let stream = ActiveRequest::new(&activity);
        let start = Instant::now();
        let watched = Arc::clone(&activity);
        let idle = tokio::spawn(async move { watched.idle_for(LIMIT).await });
        tokio::time::sleep(Duration::from_secs(100)).await;
        drop(stream);
        tokio::time::sleep(Duration::from_secs(29)).await;
        drop(ActiveRequest::new(&activity));
        idle.await.unwrap();
        let stayed_s = start.elapsed().as_secs();
        assert!((159..=161).contains(&stayed_s), "{stayed_s} s");
    }
}
