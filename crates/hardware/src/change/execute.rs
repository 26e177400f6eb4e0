//! The loop that executes a change: observe, decide, journal, act, journal.

use farrier_fleet::change::{
    ActionFailure, ChangeAction, ChangeDecision, ChangeEntry, ChangeReason, ChangeRecord,
    ChangeState, next,
};
use jiff::Timestamp;

use super::actuator::ChangeActuator;
use super::failpoint::ChangeFailpointSite;
use super::journal::{ChangeJournal, ChangeJournalError};

/// The clock of the loop. Tests replace it.
pub trait ChangeClock {
    fn now(&self) -> Timestamp;
    /// Waits until a time, or shorter.
    fn wait_until(&mut self, until: Timestamp);
}

/// Is told what happens.
pub trait ChangeProgress {
    fn moved(&mut self, record: &ChangeRecord);
    fn begun(&mut self, record: &ChangeRecord, action: &ChangeAction);
    fn failed(&mut self, action: &ChangeAction, failure: &ActionFailure);
    fn waiting(&mut self, record: &ChangeRecord, reason: &ChangeReason, until: Timestamp);
}

#[derive(Debug, thiserror::Error)]
pub enum ExecuteError {
    #[error("the change journal cannot be written; nothing more is done to the node")]
    Journal(#[from] ChangeJournalError),
    #[error("there is no change to execute")]
    NoChange,
}

/// Executes the last change in the journal until it ends or waits for the controller. After a
/// restart, write [`ChangeEntry::Resumed`] first.
pub fn execute(
    journal: &mut ChangeJournal,
    actuator: &mut dyn ChangeActuator,
    clock: &mut dyn ChangeClock,
    progress: &mut dyn ChangeProgress,
) -> Result<ChangeState, ExecuteError> {
    loop {
        let record = journal.history().last().ok_or(ExecuteError::NoChange)?;
        let observation = actuator.observe(record);
        let now = clock.now();
        match next(record, &observation, now) {
            ChangeDecision::Finish(state) => return Ok(state),
            ChangeDecision::Wait { until, reason } => {
                progress.waiting(record, &reason, until);
                clock.wait_until(until);
            }
            ChangeDecision::Move(to) => {
                let boot = observation.boot.value().cloned();
                journal.write(now, &ChangeEntry::Moved { to, boot })?;
                if let Some(record) = journal.history().last() {
                    progress.moved(record);
                }
            }
            ChangeDecision::Act(action) => {
                journal.write(now, &ChangeEntry::Begun(action.clone()))?;
                let record = journal.history().last().ok_or(ExecuteError::NoChange)?;
                progress.begun(record, &action);
                let result = actuator.act(record, &action);
                journal.failpoint().hit(ChangeFailpointSite::Acted);
                let code = action.code();
                let entry = match result {
                    Ok(evidence) => ChangeEntry::Done { action: code, evidence },
                    Err(failure) => {
                        progress.failed(&action, &failure);
                        ChangeEntry::Failed { action: code, failure }
                    }
                };
                journal.write(clock.now(), &entry)?;
            }
        }
    }
}
