//! Waiting for what other processes and threads do.
#![allow(dead_code, reason = "not every test waits, and few wait for all of it")]

use std::time::{Duration, Instant};

/// A deadline in a test ends a hang and says nothing about speed: on a machine with four busy
/// processes a core everything takes ten times as long. nextest kills a test some minutes later.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// From one look to the next.
const PAUSE: Duration = Duration::from_millis(10);

/// Waits until something is found; gives it. `explain` says what is there instead.
#[track_caller]
pub(crate) fn wait_for<T>(
    explain: impl FnOnce() -> String,
    mut find: impl FnMut() -> Option<T>,
) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "it did not come about: {}", explain());
        std::thread::sleep(PAUSE);
    }
}

/// Waits until something holds.
#[track_caller]
pub(crate) fn wait_until(explain: impl FnOnce() -> String, mut holds: impl FnMut() -> bool) {
    wait_for(explain, || holds().then_some(()));
}
