//! Executes the changes of a plan.

use std::error::Error;
use std::path::Path;

use farrier_facts::node::Reading;
use farrier_facts::tune::{Applied, PlannedChange, Step, StepOutcome, Target, Value};
use jiff::Timestamp;

use super::actuator::{SettingActuator, SettingActuatorError};
use super::failpoint::FailpointSite;
use super::journal::{JournalEntry, OpenChange, TuneJournal, TuneJournalError};

/// Makes the changes of the steps, in order. After a failed step, the other steps continue. If the
/// journal cannot be written or contact with NVML is lost, the remaining steps are not done.
pub fn apply(
    profile: &str,
    steps: &[Step],
    actuator: &mut dyn SettingActuator,
    journal: &mut TuneJournal,
    at: Timestamp,
) -> Vec<Applied> {
    let mut applied = Vec::new();
    let mut lost: Option<String> = None;
    for step in steps {
        let Some(change) = &step.change else { continue };
        let outcome = if let Some(why) = &lost {
            StepOutcome::NotDone(why.clone())
        } else {
            let number = journal.next();
            match one(profile, change, actuator, journal, at) {
                Ok((outcome, err)) => {
                    lost = err.filter(SettingActuatorError::is_lost).map(|err| err.to_string());
                    outcome
                }
                Err(err) => {
                    let why = error_chain(&err);
                    lost = Some(why.clone());
                    // If the change was begun, it is in the journal and can be reverted.
                    let is_this_change =
                        |open: &OpenChange| open.number >= number && !open.is_side_effect;
                    let begun = journal.open_changes().iter().any(is_this_change);
                    if begun { StepOutcome::Unknown(why) } else { StepOutcome::NotDone(why) }
                }
            }
        };
        applied.push(Applied { step: step.clone(), outcome });
    }
    applied
}

fn one(
    profile: &str,
    change: &PlannedChange,
    actuator: &mut dyn SettingActuator,
    journal: &mut TuneJournal,
    at: Timestamp,
) -> Result<(StepOutcome, Option<SettingActuatorError>), TuneJournalError> {
    let old = match actuator.read(&change.target) {
        Reading::Value(old) => old,
        Reading::Absent => {
            return Ok((StepOutcome::NotDone("it no longer exists".to_owned()), None));
        }
        Reading::Unreadable(why) => {
            let why = format!("failed to read the current value, which a revert would need: {why}");
            return Ok((StepOutcome::NotDone(why), None));
        }
    };
    if is_equivalent(&old, &change.value) {
        return Ok((StepOutcome::Already, None));
    }
    if let Some(why) = record_side_effects(profile, change, actuator, journal, at)? {
        return Ok((StepOutcome::NotDone(why), None));
    }
    let number = journal.next();
    let folders = cleanup_directories(&change.target, actuator, journal);
    journal.write(
        at,
        JournalEntry::Begun(OpenChange {
            number,
            profile: profile.to_owned(),
            target: change.target.clone(),
            old: old.clone(),
            new: change.value.clone(),
            folders: folders.clone(),
            made: None,
            is_side_effect: false,
        }),
    )?;
    journal.failpoint().hit(FailpointSite::Begun);
    let written = actuator.write(&change.target, &change.value);
    journal.failpoint().hit(FailpointSite::Acted);
    let now = actuator.read(&change.target);
    let outcome = match (&written, now) {
        (Ok(()), Reading::Value(now)) if is_equivalent(&now, &change.value) => {
            journal.write(at, JournalEntry::Ended { number })?;
            StepOutcome::Done
        }
        // A command that timed out may still be running, so the current value proves nothing.
        (Err(err), _) if err.is_timed_out() => StepOutcome::Unknown(error_chain(err)),
        (written, Reading::Value(now)) if now.is_same(&old) => {
            let why = written.as_ref().err().map_or_else(
                || "the write succeeded but changed nothing".to_owned(),
                |err| error_chain(err),
            );
            // The value did not change, so only temporary files and directories need to be removed.
            if actuator.clean_up(&change.target, &folders).is_ok() {
                journal.write(at, JournalEntry::Failed { number, why: why.clone() })?;
            }
            let permission =
                written.as_ref().err().is_some_and(SettingActuatorError::is_permission);
            StepOutcome::Failed { why, permission }
        }
        (Ok(()), Reading::Value(now)) => {
            let words = change.target.words(&now);
            journal.write(at, JournalEntry::Made { number, now })?;
            StepOutcome::Otherwise(words)
        }
        (written, now) => StepOutcome::Unknown(match (written, now) {
            (Err(err), _) => error_chain(err),
            (Ok(()), Reading::Value(now)) => change.target.words(&now),
            (Ok(()), Reading::Absent) => "it no longer exists".to_owned(),
            (Ok(()), Reading::Unreadable(why)) => why.to_string(),
        }),
    };
    journal.failpoint().hit(FailpointSite::Ended);
    Ok((outcome, written.err()))
}

/// Directories that a revert removes if they are empty: those created for this change, and those
/// created for other open changes. The other changes may be reverted before this one.
fn cleanup_directories(
    target: &Target,
    actuator: &mut dyn SettingActuator,
    journal: &TuneJournal,
) -> Vec<String> {
    let mut folders = actuator.missing_directories(target);
    if let Target::File { path } = target {
        let ours = journal.open_changes().iter().flat_map(|open| &open.folders);
        folders.extend(ours.filter(|dir| Path::new(path).starts_with(dir)).cloned());
    }
    // Sorting puts the outermost directory first, because a parent sorts before its children.
    folders.sort_unstable();
    folders.dedup();
    folders
}

/// Records the old values of possible side effects. The journal has them before the change itself,
/// because a revert goes backwards and has to restore them after it has reverted the change.
/// Returns a reason if a value cannot be read.
fn record_side_effects(
    profile: &str,
    change: &PlannedChange,
    actuator: &mut dyn SettingActuator,
    journal: &mut TuneJournal,
    at: Timestamp,
) -> Result<Option<String>, TuneJournalError> {
    let mut side_effects = Vec::new();
    for target in &change.beside {
        match actuator.read(target) {
            Reading::Value(old @ Value::Switch(on)) => {
                side_effects.push((target, old, Value::Switch(!on)));
            }
            Reading::Value(_) | Reading::Absent => {}
            Reading::Unreadable(why) => {
                return Ok(Some(format!(
                    "failed to read a possible side effect, which a revert would need: {why}"
                )));
            }
        }
    }
    for (target, old, new) in side_effects {
        // An existing entry already has the value from before all changes.
        if journal.open_changes().iter().any(|open| open.is_side_effect && open.target == *target) {
            continue;
        }
        let change = OpenChange {
            number: journal.next(),
            profile: profile.to_owned(),
            target: target.clone(),
            old,
            new,
            folders: Vec::new(),
            made: None,
            is_side_effect: true,
        };
        journal.write(at, JournalEntry::Begun(change))?;
    }
    Ok(None)
}

/// Compares values without owner and mode of a file, because a profile does not request these.
fn is_equivalent(now: &Value, requested: &Value) -> bool {
    match (now, requested) {
        (Value::File(now), Value::File(requested)) => {
            now.content.bytes() == requested.content.bytes()
        }
        _ => now == requested,
    }
}

/// An error with its chain of sources.
pub(super) fn error_chain(err: &dyn Error) -> String {
    let mut words = err.to_string();
    let mut cause = err.source();
    while let Some(err) = cause {
        words.push_str(&format!(": {err}"));
        cause = err.source();
    }
    words
}
