//! Waits between connection attempts. An urgent finding ends a wait early.

use std::time::Duration;

use ring::rand::{SecureRandom, SystemRandom};
use tokio::sync::watch;
use tokio::time::Instant;

use super::back_off::BackOff;
use super::urgent::Urgent;

/// Environment variable with a number of seconds. Each wait then has this length instead of the
/// back-off, so that a test gets a long wait already at the first attempt.
const FIXED_WAIT: &str = "FARRIER_TEST_RECONNECT_WAIT_S";

/// The fixed wait from the environment, for tests.
pub fn fixed_wait_from_environment() -> Option<Duration> {
    // A release build ignores the variable. The policy check ensures that heartbeat timeouts are
    // longer than the maximum back-off, and a fixed wait could be longer than that.
    if !cfg!(debug_assertions) {
        return None;
    }
    std::env::var(FIXED_WAIT).ok()?.parse().ok().map(Duration::from_secs)
}

#[derive(Debug)]
pub(super) struct Reconnect {
    back_off: BackOff,
    urgent: watch::Receiver<Urgent>,
    fixed_wait: Option<Duration>,
    /// The newest urgent record at the time of the last attempt.
    attempted_for: u64,
}

impl Reconnect {
    pub(super) fn new(urgent: watch::Receiver<Urgent>, fixed_wait: Option<Duration>) -> Self {
        Self { back_off: BackOff::default(), urgent, fixed_wait, attempted_for: 0 }
    }

    /// Records that an attempt begins.
    pub(super) fn begin(&mut self) {
        self.attempted_for = self.urgent.borrow_and_update().record;
        self.back_off.begin(Instant::now());
    }

    /// Records that the server accepted the session. The length of the session does not matter.
    pub(super) fn accepted(&mut self, spread: Duration) {
        self.back_off.accepted(spread);
    }

    /// Restarts the back-off, because the agent itself ended the session.
    pub(super) fn reset(&mut self) {
        self.back_off.reset();
    }

    /// Waits until the next attempt is due. The server has acknowledged all records up to
    /// `reported`.
    pub(super) async fn wait(&mut self, reported: u64) {
        let now = Instant::now();
        let is_urgent = self.urgent.borrow().record > reported;
        let mut due = self.back_off.next_attempt(now, is_urgent, random());
        if let Some(fixed) = self.fixed_wait.filter(|_| !is_urgent) {
            due = now + fixed;
        }
        loop {
            if self.urgent.borrow().record > self.attempted_for.max(reported) {
                let urgent_due = self.back_off.urgent_attempt(Instant::now());
                if urgent_due < due {
                    self.back_off.cut_short(urgent_due);
                    due = urgent_due;
                }
            }
            tokio::select! {
                () = tokio::time::sleep_until(due) => return,
                Ok(()) = self.urgent.changed() => {}
            }
        }
    }
}

/// A random number in 0..=1.
fn random() -> f64 {
    let mut bytes = [0; 4];
    match SystemRandom::new().fill(&mut bytes) {
        Ok(()) => f64::from(u32::from_ne_bytes(bytes)) / f64::from(u32::MAX),
        Err(_) => 0.5,
    }
}

#[cfg(test)]
mod tests {
    use farrier_fleet::health::Severity;

    use super::super::back_off::URGENT_WAIT_MAX;
    use super::*;
    use crate::journal::tests::finding;
    use crate::state::PublishedFinding;

    /// One hour: no wait in a passing test lasts this long.
    const LONG: Duration = Duration::from_secs(3600);

    fn reconnect(fixed_wait: Option<Duration>) -> (watch::Sender<Urgent>, Reconnect) {
        let (sender, receiver) = watch::channel(Urgent::default());
        (sender, Reconnect::new(receiver, fixed_wait))
    }

    /// Reports that a fatal finding is on disk with this record.
    fn find_fatal(sender: &watch::Sender<Urgent>, record: u64) {
        let finding = finding(record, 1);
        let fatal = farrier_fleet::health::Finding { severity: Severity::Fatal, ..finding };
        let shown = [PublishedFinding { finding: fatal, durable: true }];
        sender.send_if_modified(|urgent| urgent.update(&shown, record));
    }

    async fn measure_wait(reconnect: &mut Reconnect, reported: u64) -> Duration {
        let start = Instant::now();
        reconnect.wait(reported).await;
        start.elapsed()
    }

    /// Grows the back-off to its maximum.
    async fn fail_often(reconnect: &mut Reconnect) {
        for _ in 0..10 {
            reconnect.begin();
            reconnect.wait(0).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_accepted_session_restarts_the_back_off() {
        let (_sender, mut reconnect) = reconnect(None);
        for _ in 0..50 {
            fail_often(&mut reconnect).await;
            reconnect.begin();
            reconnect.accepted(Duration::ZERO);
            // Tokio's timers have millisecond resolution.
            let wait = measure_wait(&mut reconnect, 0).await;
            assert!(wait <= Duration::from_millis(1001), "{wait:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_fatal_finding_cuts_the_wait_short() {
        let (sender, mut reconnect) = reconnect(Some(LONG));
        reconnect.begin();
        let later = async {
            tokio::time::sleep(Duration::from_secs(60)).await;
            find_fatal(&sender, 1);
        };
        let (wait, ()) = tokio::join!(measure_wait(&mut reconnect, 0), later);
        assert_eq!(wait.as_secs(), 60);
        // The server is still away. The agent retries every few seconds until the server has the
        // finding.
        reconnect.begin();
        let wait = measure_wait(&mut reconnect, 0).await;
        assert!(wait <= URGENT_WAIT_MAX + Duration::from_millis(1), "{wait:?}");
        // The server has the finding.
        reconnect.begin();
        reconnect.accepted(Duration::ZERO);
        assert_eq!(measure_wait(&mut reconnect, 1).await, LONG);
    }

    #[tokio::test(start_paused = true)]
    async fn a_fatal_finding_during_an_attempt_triggers_the_next_one() {
        let (sender, mut reconnect) = reconnect(Some(LONG));
        reconnect.begin();
        tokio::time::sleep(Duration::from_secs(10)).await;
        find_fatal(&sender, 1);
        assert_eq!(measure_wait(&mut reconnect, 0).await, Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_drops_sessions_is_tried_at_most_once_a_second() {
        let (_sender, mut reconnect) = reconnect(None);
        let start = Instant::now();
        for _ in 0..600 {
            reconnect.begin();
            reconnect.accepted(Duration::ZERO);
            reconnect.wait(0).await;
        }
        assert!(start.elapsed() >= Duration::from_secs(600), "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn many_fatal_findings_do_not_cause_many_attempts() {
        let (sender, mut reconnect) = reconnect(Some(LONG));
        let flood = async {
            for record in 1.. {
                find_fatal(&sender, record);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let mut attempts = 0;
        let reconnects = async {
            loop {
                reconnect.begin();
                attempts += 1;
                // Report each finding, so that only new findings are urgent.
                let reported = reconnect.attempted_for;
                reconnect.wait(reported).await;
            }
        };
        let both = async { tokio::join!(flood, reconnects) };
        let _ = tokio::time::timeout(Duration::from_secs(600), both).await;
        assert!((100..=122).contains(&attempts), "{attempts} in 600 s");
    }
}
