//! Rate and concurrency limits per token.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::failure::Failure;

/// Maximum bytes of a request body. The largest is a policy with many pools.
pub(super) const BODY_BYTES_MAX: usize = 1 << 20;
pub(super) const BODY_TIMEOUT: Duration = Duration::from_secs(10);
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a client may read nothing of an answer.
pub(super) const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// How often the token of a stream, an export or a download is checked.
pub(super) const TOKEN_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum bytes of the path and the query together.
pub(super) const PATH_BYTES_MAX: usize = 4096;
/// Maximum concurrent answers per token.
const CONCURRENT_MAX: usize = 16;
/// Maximum concurrent streams and exports per token. Streams and exports last long, so they do not
/// count as concurrent answers.
const STREAMS_PER_TOKEN_MAX: usize = 16;
/// Maximum concurrent streams and exports of all tokens together.
const STREAMS_MAX: usize = 1024;
/// Maximum number of tokens whose usage is tracked. At this limit, the least recently used token is
/// no longer tracked.
const TOKENS_MAX: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Sustained requests per second.
    pub per_s: f64,
    pub burst: f64,
}

impl Default for Rate {
    fn default() -> Self {
        Self { per_s: 50.0, burst: 200.0 }
    }
}

#[derive(Debug)]
struct TokenUsage {
    remaining: f64,
    at: Instant,
    slots: Arc<Semaphore>,
    streams: Arc<Semaphore>,
}

/// The slot of a stream. It consists of a slot of the token and a slot of the server.
#[derive(Debug)]
pub(super) struct StreamSlot {
    _of_token: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

#[derive(Debug)]
pub(super) struct Limits {
    rate: Rate,
    usage: Mutex<HashMap<i64, TokenUsage>>,
    streams: Arc<Semaphore>,
}

impl Limits {
    pub(super) fn new(rate: Rate) -> Self {
        Self { rate, usage: Mutex::default(), streams: Arc::new(Semaphore::new(STREAMS_MAX)) }
    }

    /// Takes a slot for one answer. Fails if the token exceeds its rate or has no free slot.
    pub(super) fn admit(&self, token: i64, now: Instant) -> Result<OwnedSemaphorePermit, Failure> {
        let mut usage = self.usage();
        if usage.len() >= TOKENS_MAX && !usage.contains_key(&token) {
            let oldest =
                usage.iter().min_by_key(|(_, token_usage)| token_usage.at).map(|(token, _)| *token);
            oldest.and_then(|token| usage.remove(&token));
        }
        let token_usage = usage.entry(token).or_insert_with(|| TokenUsage {
            remaining: self.rate.burst,
            at: now,
            slots: Arc::new(Semaphore::new(CONCURRENT_MAX)),
            streams: Arc::new(Semaphore::new(STREAMS_PER_TOKEN_MAX)),
        });
        let since_s = now.saturating_duration_since(token_usage.at).as_secs_f64();
        token_usage.remaining =
            (token_usage.remaining + since_s * self.rate.per_s).min(self.rate.burst);
        token_usage.at = now;
        if token_usage.remaining < 1.0 {
            let per_s = self.rate.per_s;
            let text = format!("your token exceeds the rate limit of {per_s} requests per second");
            return Err(Failure::too_many_requests(&text, 1));
        }
        token_usage.remaining -= 1.0;
        let slot = Arc::clone(&token_usage.slots).try_acquire_owned();
        slot.map_err(|_| {
            let text =
                format!("your token reached the limit of {CONCURRENT_MAX} concurrent requests");
            Failure::too_many_requests(&text, 1)
        })
    }

    /// Takes a slot for a stream of an admitted token.
    pub(super) fn stream(&self, token: i64) -> Result<StreamSlot, Failure> {
        let own = self.usage().get(&token).map(|token_usage| Arc::clone(&token_usage.streams));
        // If the token is no longer tracked, its open streams do not count.
        let own = own.unwrap_or_else(|| Arc::new(Semaphore::new(STREAMS_PER_TOKEN_MAX)));
        let of_token = own.try_acquire_owned().map_err(|_| {
            let text = format!(
                "your token reached the limit of {STREAMS_PER_TOKEN_MAX} concurrent streams and exports"
            );
            Failure::too_many_requests(&text, 10)
        })?;
        let of_all = Arc::clone(&self.streams).try_acquire_owned().map_err(|_| {
            let text = format!(
                "the server reached the limit of {STREAMS_MAX} concurrent streams and exports"
            );
            Failure::too_many_requests(&text, 10)
        })?;
        Ok(StreamSlot { _of_token: of_token, _of_all: of_all })
    }

    fn usage(&self) -> MutexGuard<'_, HashMap<i64, TokenUsage>> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn streams_open(&self) -> usize {
        STREAMS_MAX - self.streams.available_permits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_a_burst_and_then_its_rate_and_others_are_not_affected() {
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
        assert_eq!(admitted(1, 100_000), 3, "unused quota does not accumulate");
    }

    #[test]
    fn concurrent_answers_are_limited() {
        let limits = Limits::new(Rate { per_s: 0.0, burst: 100.0 });
        let now = Instant::now();
        let mut admitted: Vec<_> =
            (0..CONCURRENT_MAX).map(|_| limits.admit(1, now).unwrap()).collect();
        assert_eq!(limits.admit(1, now).unwrap_err().problem.status, 429);
        admitted.pop();
        assert!(limits.admit(1, now).is_ok());
    }
}
