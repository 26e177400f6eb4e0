//! How much anybody may ask for: so many requests a second, and so many at a time, for each token.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::failure::Failure;

/// A body: a policy of many pools is the largest.
pub(super) const BODY_BYTES_MAX: usize = 1 << 20;
/// How long a body may take to come.
pub(super) const BODY_WAIT: Duration = Duration::from_secs(10);
/// How long an answer may take to come about.
pub(super) const ANSWER_WAIT: Duration = Duration::from_secs(20);
/// How long a reader of a stream may take for what was sent.
pub(super) const READ_WAIT: Duration = Duration::from_secs(60);
/// A path with its query.
pub(super) const PATH_BYTES_MAX: usize = 4096;
/// Answers to one token at a time, streams among them.
const AT_A_TIME: usize = 16;
/// Streams and exports to everybody at a time.
const STREAMS_MAX: usize = 1024;
/// Tokens that are remembered; beyond it those who have not asked for longest are forgotten.
const TOKENS_MAX: usize = 4096;

/// How often one token may ask.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Requests a second, for ever.
    pub per_s: f64,
    /// Requests at once, after a while of silence.
    pub burst: f64,
}

impl Default for Rate {
    fn default() -> Self {
        Self { per_s: 50.0, burst: 200.0 }
    }
}

#[derive(Debug)]
struct Account {
    left: f64,
    at: Instant,
    places: Arc<Semaphore>,
}

/// What each token has asked for lately.
#[derive(Debug)]
pub(super) struct Limits {
    rate: Rate,
    accounts: Mutex<HashMap<i64, Account>>,
    streams: Arc<Semaphore>,
}

impl Limits {
    pub(super) fn new(rate: Rate) -> Self {
        Self { rate, accounts: Mutex::default(), streams: Arc::new(Semaphore::new(STREAMS_MAX)) }
    }

    /// A place for one answer.
    pub(super) fn admit(&self, token: i64, now: Instant) -> Result<OwnedSemaphorePermit, Failure> {
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        if accounts.len() >= TOKENS_MAX && !accounts.contains_key(&token) {
            let oldest = accounts.iter().min_by_key(|(_, it)| it.at).map(|(token, _)| *token);
            oldest.and_then(|token| accounts.remove(&token));
        }
        let account = accounts.entry(token).or_insert_with(|| Account {
            left: self.rate.burst,
            at: now,
            places: Arc::new(Semaphore::new(AT_A_TIME)),
        });
        let since_s = now.saturating_duration_since(account.at).as_secs_f64();
        account.left = (account.left + since_s * self.rate.per_s).min(self.rate.burst);
        account.at = now;
        if account.left < 1.0 {
            return Err(Failure::too_many("your token asks too often", 1));
        }
        account.left -= 1.0;
        let place = Arc::clone(&account.places).try_acquire_owned();
        place.map_err(|_| Failure::too_many("too many answers to your token are on their way", 1))
    }

    /// A place for a stream.
    pub(super) fn stream(&self) -> Result<OwnedSemaphorePermit, Failure> {
        let place = Arc::clone(&self.streams).try_acquire_owned();
        place.map_err(|_| Failure::too_many("too many follow the log at once", 10))
    }

    /// Streams that are open.
    pub(super) fn streams_open(&self) -> usize {
        STREAMS_MAX - self.streams.available_permits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_a_burst_then_its_rate_and_others_are_not_held_up() {
        let limits = Limits::new(Rate { per_s: 2.0, burst: 3.0 });
        let start = Instant::now();
        let admitted = |token, ms| {
            let at = start + Duration::from_millis(ms);
            (0..5).filter(|_| limits.admit(token, at).is_ok()).count()
        };
        assert_eq!(admitted(1, 0), 3);
        assert_eq!(admitted(2, 0), 3);
        assert_eq!(admitted(1, 1000), 2);
        assert_eq!(admitted(1, 1001), 0);
        assert_eq!(admitted(1, 100_000), 3, "what was not used is not saved for ever");
    }

    #[test]
    fn so_many_answers_at_a_time_and_no_more() {
        let limits = Limits::new(Rate { per_s: 0.0, burst: 100.0 });
        let now = Instant::now();
        let mut held: Vec<_> = (0..AT_A_TIME).map(|_| limits.admit(1, now).unwrap()).collect();
        assert_eq!(limits.admit(1, now).unwrap_err().problem.status, 429);
        held.pop();
        assert!(limits.admit(1, now).is_ok());
    }
}
