//! Polling for the effects of other processes and threads.
#![allow(dead_code, reason = "shared by test binaries that use only parts of it")]

use std::time::{Duration, Instant};

/// How long a test waits before it fails. Only a test that hangs reaches this limit, even on a
/// machine with four busy processes per core, where everything takes ten times as long. nextest
/// kills a test only after a longer time, so that a hanging test fails with its own message.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(300);

const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Polls until `poll` returns a value. `explain` describes the state on a timeout.
#[track_caller]
pub(crate) fn wait_for<T>(
    explain: impl FnOnce() -> String,
    mut poll: impl FnMut() -> Option<T>,
) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = poll() {
            return value;
        }
        assert!(start.elapsed() < TEST_TIMEOUT, "timed out: {}", explain());
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Polls until the condition is true.
#[track_caller]
pub(crate) fn wait_until(explain: impl FnOnce() -> String, mut condition: impl FnMut() -> bool) {
    wait_for(explain, || condition().then_some(()));
}
