//! A run that somebody ends: what it had come to is said, as nothing else of it is left.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use farrier_facts::diag::{Grade, Test};
use tokio::signal::unix::{SignalKind, signal};

/// Tests that have ended, by the number of their GPU.
type Ended = BTreeMap<u32, Vec<(Test, Grade)>>;

/// What has ended so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress(Arc<Mutex<Ended>>);

impl Progress {
    /// A test has ended.
    pub(super) fn ended(&self, gpu: u32, test: Test, grade: Grade) {
        let mut ended = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ended.entry(gpu).or_default().push((test, grade));
    }

    /// In words.
    fn words(&self) -> String {
        let ended = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if ended.is_empty() {
            return "no test had ended".to_owned();
        }
        let of = |(gpu, tests): (&u32, &Vec<(Test, Grade)>)| {
            let each: Vec<String> =
                tests.iter().map(|(test, grade)| format!("{test} {grade}")).collect();
            format!("GPU {gpu}: {}", each.join(", "))
        };
        let each: Vec<String> = ended.iter().map(of).collect();
        format!("{}; the rest was not tested", each.join("; "))
    }

    /// From here on a signal that ends the run is answered with what it had come to. Children end with us.
    pub(super) fn told_when_interrupted(&self) {
        let progress = self.clone();
        // Without it a signal ends us as it ends everybody, only without a word.
        std::thread::spawn(move || {
            let Ok(number) = signalled() else { return };
            let text = format!(
                "\ninterrupted: {}. No verdict, and nothing of it is kept.\n",
                progress.words()
            );
            let _ = std::io::stderr().write_all(text.as_bytes());
            std::process::exit(128 + number);
        });
    }
}

/// Waits for a signal that ends us, and gives its number.
fn signalled() -> std::io::Result<i32> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let kind = tokio::select! {
            _ = interrupt.recv() => SignalKind::interrupt(),
            _ = terminate.recv() => SignalKind::terminate(),
            _ = hangup.recv() => SignalKind::hangup(),
        };
        Ok(kind.as_raw_value())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_ended_is_named_by_gpu() {
        let progress = Progress::default();
        assert_eq!(progress.words(), "no test had ended");
        progress.ended(1, Test::Allocate, Grade::Pass);
        progress.ended(0, Test::Allocate, Grade::Fail);
        progress.ended(1, Test::Compute, Grade::Pass);
        assert_eq!(
            progress.words(),
            "GPU 0: allocate fail; GPU 1: allocate pass, compute pass; the rest was not tested"
        );
    }
}
