//! Prints the completed tests when a signal interrupts a run. The results of an interrupted run are
//! not stored.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use farrier_facts::diag::{Grade, Test};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Completed tests by GPU index.
type Completed = BTreeMap<u32, Vec<(Test, Grade)>>;

/// The tests completed so far.
#[derive(Debug, Clone, Default)]
pub(super) struct DiagProgress(Arc<Mutex<Completed>>);

impl DiagProgress {
    pub(super) fn record(&self, gpu: u32, test: Test, grade: Grade) {
        let mut completed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        completed.entry(gpu).or_default().push((test, grade));
    }

    fn describe(&self) -> String {
        let completed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if completed.is_empty() {
            return "no test completed".to_owned();
        }
        let describe_gpu = |(gpu, tests): (&u32, &Vec<(Test, Grade)>)| {
            let each: Vec<String> =
                tests.iter().map(|(test, grade)| format!("{test} {grade}")).collect();
            format!("GPU {gpu}: {}", each.join(", "))
        };
        let each: Vec<String> = completed.iter().map(describe_gpu).collect();
        format!("{}; other tests were not run", each.join("; "))
    }

    /// From now on, prints the progress and exits when SIGINT, SIGTERM or SIGHUP arrives. Children
    /// exit with this process.
    pub(super) fn print_on_signal(&self) {
        let progress = self.clone();
        // If signal handling cannot be set up, the default action ends the process without a
        // message.
        let Ok(signals) = TerminatingSignals::handle() else { return };
        std::thread::spawn(move || {
            let number = signals.wait();
            let text = format!(
                "\ninterrupted: {}. No verdict; no results were stored.\n",
                progress.describe()
            );
            let _ = std::io::stderr().write_all(text.as_bytes());
            std::process::exit(128 + number);
        });
    }
}

/// The signals that end a run. They are handled from [`Self::handle`] on, even before
/// [`Self::wait`].
struct TerminatingSignals {
    runtime: Runtime,
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl TerminatingSignals {
    fn handle() -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let guard = runtime.enter();
        let interrupt = signal(SignalKind::interrupt())?;
        let terminate = signal(SignalKind::terminate())?;
        let hangup = signal(SignalKind::hangup())?;
        drop(guard);
        Ok(Self { runtime, interrupt, terminate, hangup })
    }

    /// Waits for a signal and returns its number.
    fn wait(self) -> i32 {
        let Self { runtime, mut interrupt, mut terminate, mut hangup } = self;
        let kind = runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => SignalKind::interrupt(),
                _ = terminate.recv() => SignalKind::terminate(),
                _ = hangup.recv() => SignalKind::hangup(),
            }
        });
        kind.as_raw_value()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completed_tests_are_listed_by_gpu() {
        let progress = DiagProgress::default();
        assert_eq!(progress.describe(), "no test completed");
        progress.record(1, Test::Allocate, Grade::Pass);
        progress.record(0, Test::Allocate, Grade::Fail);
        progress.record(1, Test::Compute, Grade::Pass);
        assert_eq!(
            progress.describe(),
            "GPU 0: allocate fail; GPU 1: allocate pass, compute pass; other tests were not run"
        );
    }
}
