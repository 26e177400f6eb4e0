//! Pauses the probe: a GPU cannot be reset, nor the driver module unloaded, while a process has it
//! open.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often to check whether an exiting child is gone.
const AGAIN: Duration = Duration::from_millis(20);

/// Synchronises a task that needs NVML unused with the watch thread.
#[derive(Debug, Default)]
pub struct Hold {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Number of outstanding pause requests.
    wanted: u32,
    /// Whether no child is running; `None` until the watch thread has checked since the last
    /// request.
    is_free: Option<bool>,
}

/// No child is started while this guard lives.
#[derive(Debug)]
pub struct Held {
    hold: Arc<Hold>,
}

impl Hold {
    /// Waits up to `timeout` for the child to exit. `None` if it did not; monitoring then
    /// continues.
    pub fn take(hold: &Arc<Self>, patience: Duration) -> Option<Held> {
        // Dropping the guard withdraws the request, whatever the outcome.
        let taken = Held { hold: Arc::clone(hold) };
        let mut state = hold.lock();
        state.wanted += 1;
        state.is_free = None;
        hold.changed.notify_all();
        let waiting = |state: &mut State| state.is_free != Some(true);
        let waited = hold.changed.wait_timeout_while(state, patience, waiting);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let is_free = state.is_free == Some(true);
        drop(state);
        is_free.then_some(taken)
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.lock().wanted > 0
    }

    /// Publishes whether no child is running, then waits up to `limit` or until the pause ends.
    pub(super) fn keep(&self, is_free: bool, limit: Duration) {
        let mut state = self.lock();
        state.is_free = Some(is_free);
        self.changed.notify_all();
        // An exiting child takes only moments.
        let limit = if is_free { limit } else { limit.min(AGAIN) };
        drop(self.changed.wait_timeout_while(state, limit, |state| state.wanted > 0));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut state = self.hold.lock();
        state.wanted = state.wanted.saturating_sub(1);
        drop(state);
        self.hold.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_starts_when_the_child_exits_and_ends_with_the_guard() {
        let hold = Arc::new(Hold::default());
        assert!(Hold::take(&hold, Duration::from_millis(5)).is_none(), "no watch thread");
        assert!(!hold.is_wanted());
        let watcher = {
            let hold = Arc::clone(&hold);
            std::thread::spawn(move || {
                while !hold.is_wanted() {
                    std::thread::yield_now();
                }
                // The child takes a while to exit.
                hold.keep(false, Duration::from_secs(300));
                hold.keep(true, Duration::from_secs(300));
            })
        };
        let taken = Hold::take(&hold, Duration::from_secs(300)).unwrap();
        assert!(hold.is_wanted());
        drop(taken);
        watcher.join().unwrap();
        assert!(!hold.is_wanted());
    }
}
