//! Waiting for what other processes and threads do.
#![allow(dead_code, reason = "not every test waits, and few wait for all of it")]

use std::time::{Duration, Instant};

/// A deadline in a test ends a hang and says nothing about speed: on a machine with four busy
/// processes a core everything takes ten times as long. nextest kills a test some minutes later.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(300);

/// From one look to the next.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Waits until something is found; gives it. `explain` says what is there instead.
#[track_caller]
pub(crate) fn wait_for<T>(
    explain: impl FnOnce() -> String,
    mut poll: impl FnMut() -> Option<T>,
) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(start.elapsed() < TEST_TIMEOUT, "it did not come about: {}", explain());
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Waits until something condition.
#[track_caller]
pub(crate) fn wait_until(explain: impl FnOnce() -> String, mut condition: impl FnMut() -> bool) {
    wait_for(explain, || condition().then_some(()));
}
