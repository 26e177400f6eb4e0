//! Prints the steps of a change on stderr, with the time of each.

use std::io::Write;
use std::time::Duration;

use farrier_fleet::change::{ActionFailure, ChangeAction, ChangeReason, ChangeRecord, ChangeState};
use farrier_hardware::change::{ChangeClock, ChangeProgress};
use jiff::Timestamp;

/// The longest wait between two observations, so that a cordon that someone else removed is back
/// soon.
const WAIT_MAX: Duration = Duration::from_secs(15);

/// The system's clock.
pub(super) struct LocalClock;

impl ChangeClock for LocalClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn wait_until(&mut self, until: Timestamp) {
        let left = until.duration_since(Timestamp::now());
        let left = Duration::try_from(left).unwrap_or_default();
        std::thread::sleep(left.min(WAIT_MAX));
    }
}

/// Lines on stderr.
#[derive(Default)]
pub(super) struct StepLines {
    /// The last reason for waiting, which is printed once.
    waiting: String,
}

impl StepLines {
    fn print(text: &str) {
        let now = Timestamp::now().strftime("%H:%M:%S");
        // The journal has the same, so a lost line does no harm.
        let _ = writeln!(std::io::stderr(), "{now} {text}");
    }
}

impl ChangeProgress for StepLines {
    fn moved(&mut self, record: &ChangeRecord) {
        self.waiting.clear();
        match record.reason {
            ChangeReason::StepDone => Self::print(record.state.code()),
            _ => Self::print(&format!("{}: {}", record.state, record.reason)),
        }
        if record.state == ChangeState::Installing(farrier_fleet::change::ChangeDirection::Forward)
        {
            Self::print("  past the point of no return");
        }
    }

    fn begun(&mut self, _record: &ChangeRecord, action: &ChangeAction) {
        Self::print(&format!("  {action}"));
    }

    fn failed(&mut self, action: &ChangeAction, failure: &ActionFailure) {
        Self::print(&format!("  {} failed: {failure}", action.code()));
    }

    fn waiting(&mut self, _record: &ChangeRecord, reason: &ChangeReason, until: Timestamp) {
        let text = reason.to_string();
        if text != self.waiting {
            let until = until.strftime("%H:%M:%S");
            Self::print(&format!("  {text} (until {until} at most)"));
            self.waiting = text;
        }
    }
}
