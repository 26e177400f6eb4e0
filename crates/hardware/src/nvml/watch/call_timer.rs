//! Measures how long the calls of the watch child take, and reports slow ones to the parent.

use std::fs;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// A call of this length is slow. The costliest regular call takes 70 ms on an H200.
const SLOW: Duration = Duration::from_secs(1);

/// Maximum slow calls in one response. More slow calls would take longer than the parent waits.
const SLOW_MAX: usize = 8;

/// Calls that initialise the driver or open a GPU. Without persistence mode, they take seconds.
const STARTING: [&str; 4] = ["dlopen", "nvmlInit", "nvmlShutdown", "nvmlDeviceGetHandleBy"];

/// A call that took long and returned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SlowCall {
    pub(super) call: String,
    /// NVML index of the GPU that the call is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) gpu: Option<u32>,
    pub(super) ms: u64,
}

/// Measures one call after the other.
#[derive(Debug, Default)]
pub(super) struct CallTimer {
    /// The current call. The buffer is reused.
    name: String,
    gpu: Option<u32>,
    since: Option<Instant>,
    /// Time for which this process had waited for a CPU when the request began.
    waited: Option<Duration>,
    slow: Vec<SlowCall>,
}

impl CallTimer {
    /// Starts a request.
    pub(super) fn start_request(&mut self) {
        self.waited = cpu_wait();
    }

    /// Ends the current call, if any, and begins the next one.
    pub(super) fn begin(&mut self, call: &str, gpu: Option<u32>) {
        self.end();
        self.name.clear();
        self.name.push_str(call);
        self.gpu = gpu;
        self.since = Some(Instant::now());
    }

    /// Ends the current call.
    pub(super) fn end(&mut self) {
        let Some(since) = self.since.take() else { return };
        let elapsed = since.elapsed();
        if elapsed < SLOW || STARTING.iter().any(|start| self.name.starts_with(start)) {
            return;
        }
        let waited = cpu_wait().zip(self.waited).map(|(now, before)| now.saturating_sub(before));
        let in_driver = time_in_driver(elapsed, waited);
        if in_driver >= SLOW && self.slow.len() < SLOW_MAX {
            let ms = u64::try_from(in_driver.as_millis()).unwrap_or(u64::MAX);
            self.slow.push(SlowCall { call: self.name.clone(), gpu: self.gpu, ms });
        }
    }

    /// The slow calls since the last response.
    pub(super) fn take_slow(&mut self) -> Vec<SlowCall> {
        std::mem::take(&mut self.slow)
    }
}

/// The time that a call spent in the driver. On an overloaded host, part of the elapsed time is a
/// wait for a CPU, which is subtracted.
fn time_in_driver(elapsed: Duration, waited: Option<Duration>) -> Duration {
    elapsed.saturating_sub(waited.unwrap_or_default())
}

/// How long this process has waited for a CPU in total: the second number of
/// `/proc/self/schedstat`, in nanoseconds (Linux `Documentation/scheduler/sched-stats.rst`). `None`
/// if the kernel does not measure it.
fn cpu_wait() -> Option<Duration> {
    let text = fs::read_to_string("/proc/self/schedstat").ok()?;
    text.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A timer whose current call began `ago` before now.
    fn timer(call: &str, ago: Duration) -> CallTimer {
        let mut timer = CallTimer::default();
        timer.begin(call, Some(3));
        timer.since = Instant::now().checked_sub(ago);
        timer
    }

    #[test]
    fn a_call_of_a_second_is_slow() {
        let mut slow = timer("nvmlDeviceGetTemperature", Duration::from_secs(4));
        slow.begin("nvmlDeviceGetName", None);
        let calls = slow.take_slow();
        assert_eq!(calls.len(), 1);
        assert_eq!((calls[0].call.as_str(), calls[0].gpu), ("nvmlDeviceGetTemperature", Some(3)));
        assert!((4000..60_000).contains(&calls[0].ms), "{calls:?}");
        slow.end();
        assert_eq!(slow.take_slow(), [], "a slow call is reported once");
    }

    #[test]
    fn fast_and_starting_calls_are_not_slow() {
        for (call, ago_ms) in [("nvmlDeviceGetName", 0), ("nvmlInit_v2", 9000)] {
            let mut timer = timer(call, Duration::from_millis(ago_ms));
            timer.end();
            assert_eq!(timer.take_slow(), [], "{call}");
        }
    }

    #[test]
    fn waiting_for_a_cpu_does_not_count() {
        let ms = Duration::from_millis;
        assert_eq!(time_in_driver(ms(1500), Some(ms(1000))), ms(500));
        assert_eq!(time_in_driver(ms(1500), None), ms(1500), "the kernel does not measure it");
        assert_eq!(time_in_driver(ms(100), Some(ms(1000))), ms(0));
    }
}
