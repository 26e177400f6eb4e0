//! Keeps the child from NVML for a while: a GPU that some process has open cannot be reset, and a module not be unloaded.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often a child that should go is looked at.
const AGAIN: Duration = Duration::from_millis(20);

/// Word between the one who wants NVML left alone and the one who watches.
#[derive(Debug, Default)]
pub struct Hold {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// How many want it.
    wanted: u32,
    /// Whether it is so: no child is there. None: nobody has looked since it was wanted.
    is_free: Option<bool>,
}

/// While this lives no child is started.
#[derive(Debug)]
pub struct Held {
    hold: Arc<Hold>,
}

impl Hold {
    /// Waits until the child is gone, but no longer than `patience`; none: it is not, and goes on.
    pub fn take(hold: &Arc<Self>, patience: Duration) -> Option<Held> {
        // Lets go again, whatever comes of it.
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

    /// Says whether no child is there, and waits for so long or until it may be started again.
    pub(super) fn keep(&self, is_free: bool, limit: Duration) {
        let mut state = self.lock();
        state.is_free = Some(is_free);
        self.changed.notify_all();
        // One that is on its way out takes moments.
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
    fn it_is_held_when_the_child_is_gone_and_no_longer_than_it_is_wanted() {
        let hold = Arc::new(Hold::default());
        assert!(Hold::take(&hold, Duration::from_millis(5)).is_none(), "nobody watches");
        assert!(!hold.is_wanted());
        let watcher = {
            let hold = Arc::clone(&hold);
            std::thread::spawn(move || {
                while !hold.is_wanted() {
                    std::thread::yield_now();
                }
                // It takes a while to go.
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
