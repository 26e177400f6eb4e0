//! Restores old values, newest change first.

use farrier_facts::node::{ReadError, Reading};
use farrier_facts::tune::{GpuControl, Need, RevertOutcome, Target, Value};
use jiff::Timestamp;
use serde::Serialize;

use super::actuator::{SettingActuator, SettingActuatorError};
use super::apply::error_chain;
use super::failpoint::FailpointSite;
use super::journal::{JournalEntry, OpenChange, TuneJournal, TuneJournalError};

/// A change and the outcome of reverting it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RevertedChange {
    pub change: OpenChange,
    #[serde(rename = "given")]
    pub outcome: RevertOutcome,
}

/// Reverts all open changes. A value that someone else has changed since is left alone, unless
/// `force` is set.
pub fn revert(
    actuator: &mut dyn SettingActuator,
    journal: &mut TuneJournal,
    force: bool,
    at: Timestamp,
) -> Vec<RevertedChange> {
    let changes: Vec<OpenChange> = journal.open_changes().iter().rev().cloned().collect();
    let mut reverted: Vec<RevertedChange> = Vec::new();
    let mut lost: Option<String> = None;
    for change in changes {
        // An older change of the same target would restore the value from before both changes. Skip
        // the older change if the newer change was not reverted.
        let newer = reverted
            .iter()
            .any(|newer| newer.change.target == change.target && !newer.outcome.is_back());
        let outcome = match &lost {
            Some(why) => RevertOutcome::NotDone(why.clone()),
            None if newer => RevertOutcome::NotDone(
                "a newer change of the same target is not reverted".to_owned(),
            ),
            None => match one(&change, actuator, journal, force, at) {
                Ok((outcome, err)) => {
                    lost = err.filter(SettingActuatorError::is_lost).map(|err| err.to_string());
                    outcome
                }
                Err(err) => {
                    let why = error_chain(&err);
                    lost = Some(why.clone());
                    RevertOutcome::Failed { why, permission: false }
                }
            },
        };
        reverted.push(RevertedChange { change, outcome });
    }
    // Ignore an error, because a journal that is not compacted is only larger than needed.
    let _ = journal.compact();
    reverted
}

fn one(
    change: &OpenChange,
    actuator: &mut dyn SettingActuator,
    journal: &mut TuneJournal,
    force: bool,
    at: Timestamp,
) -> Result<(RevertOutcome, Option<SettingActuatorError>), TuneJournalError> {
    let failed = |err: SettingActuatorError| {
        let outcome =
            RevertOutcome::Failed { why: error_chain(&err), permission: err.is_permission() };
        (outcome, Some(err))
    };
    let failure = |why: String| (RevertOutcome::Failed { why, permission: false }, None);
    let unread = |why: &ReadError| failure(format!("failed to read the current value: {why}"));
    let now = match actuator.read(&change.target) {
        Reading::Value(now) => now,
        Reading::Absent if force => {
            journal.write(at, JournalEntry::Reverted { number: change.number })?;
            return Ok((RevertOutcome::Forgotten, None));
        }
        Reading::Absent => {
            let why = "it no longer exists; --force drops it from the journal";
            return Ok(failure(why.to_owned()));
        }
        Reading::Unreadable(why) => return Ok(unread(&why)),
    };
    let mut outcome = RevertOutcome::Already;
    if !is_identical(&now, &change.old) {
        if !is_ours(&now, change) && !force {
            return Ok((RevertOutcome::Foreign(change.target.words(&now)), None));
        }
        if let Err(err) = actuator.write(&change.target, &change.old) {
            return Ok(failed(err));
        }
        match actuator.read(&change.target) {
            Reading::Value(now) if is_identical(&now, &change.old) => outcome = RevertOutcome::Back,
            Reading::Value(now) => {
                let now = change.target.words(&now);
                return Ok(failure(format!("the write succeeded, but the value is {now}")));
            }
            Reading::Absent => return Ok(failure("it no longer exists".to_owned())),
            Reading::Unreadable(why) => return Ok(unread(&why)),
        }
    }
    if let Err(err) = actuator.clean_up(&change.target, &change.folders) {
        return Ok(failed(err));
    }
    match actuator.in_force(&change.target) {
        Reading::Unreadable(why) => {
            return Ok(failure(format!(
                "it is restored, but whether it is in force is unknown: {why}"
            )));
        }
        Reading::Value(counts) if !is_identical(&counts, &change.old) => {
            outcome = RevertOutcome::Waits(vec![Need::Reset]);
        }
        Reading::Value(_) | Reading::Absent => {}
    }
    journal.failpoint().hit(FailpointSite::GivenBack);
    journal.write(at, JournalEntry::Reverted { number: change.number })?;
    journal.failpoint().hit(FailpointSite::Ended);
    Ok((outcome, None))
}

/// Whether the value comes from the change. A service is changed in two steps, so it may have the
/// result of only one step.
fn is_ours(now: &Value, change: &OpenChange) -> bool {
    match (now, &change.old, &change.new) {
        (
            Value::Service { enabled, running },
            Value::Service { enabled: old_enabled, running: old_running },
            Value::Service { enabled: new_enabled, running: new_running },
        ) => {
            [old_enabled, new_enabled].contains(&enabled)
                && [old_running, new_running].contains(&running)
        }
        _ => {
            now.is_same(&change.new)
                || change
                    .made
                    .as_ref()
                    .map_or_else(|| may_be_rounded(change), |made| now.is_same(made))
        }
    }
}

/// Whether the GPU may have rounded the value. Called only if the resulting value was not recorded.
fn may_be_rounded(change: &OpenChange) -> bool {
    let rounding = [GpuControl::PowerLimit, GpuControl::ApplicationClocks];
    matches!(&change.target, Target::Gpu { control, .. } if rounding.contains(control))
}

/// Compares values, including mode and owner of a file.
fn is_identical(now: &Value, old: &Value) -> bool {
    match (now, old) {
        (Value::File(now), Value::File(old)) => {
            now.content.bytes() == old.content.bytes()
                && now.mode == old.mode
                && (now.owner == old.owner || old.owner.is_none())
        }
        _ => now == old,
    }
}
