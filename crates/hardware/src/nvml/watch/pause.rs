//! Pauses the probe, because a GPU cannot be reset and the driver module cannot be unloaded while a
//! process uses them.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often to check whether a child that was asked to exit is gone.
const EXIT_POLL: Duration = Duration::from_millis(20);

/// Lets a task wait until the watch thread has released NVML.
#[derive(Debug, Default)]
pub struct ProbePause {
    state: Mutex<PauseState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct PauseState {
    /// Number of outstanding pause requests.
    requests: u32,
    /// Whether no child is running. `None` until the watch thread has checked that after the last
    /// request.
    is_stopped: Option<bool>,
}

/// No child is started while this guard lives.
#[derive(Debug)]
pub struct PauseGuard {
    pause: Arc<ProbePause>,
}

impl ProbePause {
    /// Waits up to `timeout` for the child to exit. `None` if it did not exit. Then monitoring
    /// continues.
    pub fn acquire(pause: &Arc<Self>, timeout: Duration) -> Option<PauseGuard> {
        // Dropping the guard withdraws the request, whatever the outcome.
        let guard = PauseGuard { pause: Arc::clone(pause) };
        let mut state = pause.lock();
        state.requests += 1;
        state.is_stopped = None;
        pause.changed.notify_all();
        let waiting = |state: &mut PauseState| state.is_stopped != Some(true);
        let waited = pause.changed.wait_timeout_while(state, timeout, waiting);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let is_stopped = state.is_stopped == Some(true);
        drop(state);
        is_stopped.then_some(guard)
    }

    pub(super) fn is_requested(&self) -> bool {
        self.lock().requests > 0
    }

    /// Publishes whether no child is running, then waits up to `limit` or until the pause ends.
    pub(super) fn hold(&self, is_stopped: bool, limit: Duration) {
        let mut state = self.lock();
        state.is_stopped = Some(is_stopped);
        self.changed.notify_all();
        // A child exits within moments, so check again soon.
        let limit = if is_stopped { limit } else { limit.min(EXIT_POLL) };
        drop(self.changed.wait_timeout_while(state, limit, |state| state.requests > 0));
    }

    fn lock(&self) -> MutexGuard<'_, PauseState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PauseGuard {
    fn drop(&mut self) {
        let mut state = self.pause.lock();
        state.requests = state.requests.saturating_sub(1);
        drop(state);
        self.pause.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_starts_when_the_child_exits_and_ends_with_the_guard() {
        let pause = Arc::new(ProbePause::default());
        assert!(ProbePause::acquire(&pause, Duration::from_millis(5)).is_none(), "no watch thread");
        assert!(!pause.is_requested());
        let watcher = {
            let pause = Arc::clone(&pause);
            std::thread::spawn(move || {
                while !pause.is_requested() {
                    std::thread::yield_now();
                }
                // The child takes a while to exit.
                pause.hold(false, Duration::from_secs(300));
                pause.hold(true, Duration::from_secs(300));
            })
        };
        let guard = ProbePause::acquire(&pause, Duration::from_secs(300)).unwrap();
        assert!(pause.is_requested());
        drop(guard);
        watcher.join().unwrap();
        assert!(!pause.is_requested());
    }
}
