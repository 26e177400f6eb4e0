//! Executes the changes of a plan.

use std::error::Error;
use std::path::Path;

use farrier_facts::node::Reading;
use farrier_facts::tune::{Applied, Change, Outcome, Step, Target, Value};
use jiff::Timestamp;

use super::hands::{HandError, Hands};
use super::interrupt::Point;
use super::journal::{Journal, JournalError, Note, Open};

/// Makes the changes of the steps, in order. A failed step does not prevent the others; a journal
/// that cannot be written and a lost NVML do.
pub fn apply(
    profile: &str,
    steps: &[Step],
    hands: &mut dyn Hands,
    journal: &mut Journal,
    at: Timestamp,
) -> Vec<Applied> {
    let mut applied = Vec::new();
    let mut lost: Option<String> = None;
    for step in steps {
        let Some(change) = &step.change else { continue };
        let outcome = if let Some(why) = &lost {
            Outcome::NotDone(why.clone())
        } else {
            let number = journal.next();
            match one(profile, change, hands, journal, at) {
                Ok((outcome, err)) => {
                    lost = err.filter(HandError::is_lost).map(|err| err.to_string());
                    outcome
                }
                Err(err) => {
                    let why = in_words(&err);
                    lost = Some(why.clone());
                    // A change that was begun is in the journal and can be reverted.
                    let is_it = |open: &Open| open.number >= number && !open.is_beside;
                    let begun = journal.open_changes().iter().any(is_it);
                    if begun { Outcome::Unknown(why) } else { Outcome::NotDone(why) }
                }
            }
        };
        applied.push(Applied { step: step.clone(), outcome });
    }
    applied
}

fn one(
    profile: &str,
    change: &Change,
    hands: &mut dyn Hands,
    journal: &mut Journal,
    at: Timestamp,
) -> Result<(Outcome, Option<HandError>), JournalError> {
    let old = match hands.read(&change.target) {
        Reading::Value(old) => old,
        Reading::Absent => {
            return Ok((Outcome::NotDone("it no longer exists".to_owned()), None));
        }
        Reading::Unreadable(why) => {
            let why = format!("failed to read the current value, which a revert would need: {why}");
            return Ok((Outcome::NotDone(why), None));
        }
    };
    if is_wanted(&old, &change.value) {
        return Ok((Outcome::Already, None));
    }
    if let Some(why) = note_beside(profile, change, hands, journal, at)? {
        return Ok((Outcome::NotDone(why), None));
    }
    let number = journal.next();
    let folders = folders_of(&change.target, hands, journal);
    journal.write(
        at,
        Note::Begun(Open {
            number,
            profile: profile.to_owned(),
            target: change.target.clone(),
            old: old.clone(),
            new: change.value.clone(),
            folders: folders.clone(),
            made: None,
            is_beside: false,
        }),
    )?;
    journal.interrupt().reach(Point::Begun);
    let written = hands.write(&change.target, &change.value);
    journal.interrupt().reach(Point::Acted);
    let now = hands.read(&change.target);
    let outcome = match (&written, now) {
        (Ok(()), Reading::Value(now)) if is_wanted(&now, &change.value) => {
            journal.write(at, Note::Ended { number })?;
            Outcome::Done
        }
        // A command that timed out may still be running, so the current value proves nothing.
        (Err(err), _) if err.is_late() => Outcome::Unknown(in_words(err)),
        (written, Reading::Value(now)) if now.is_same(&old) => {
            let why = written.as_ref().err().map_or_else(
                || "the write succeeded but changed nothing".to_owned(),
                |err| in_words(err),
            );
            // Nothing was changed, so only directories need to be cleaned up.
            if hands.tidy(&change.target, &folders).is_ok() {
                journal.write(at, Note::Failed { number, why: why.clone() })?;
            }
            let permission = written.as_ref().err().is_some_and(HandError::is_permission);
            Outcome::Failed { why, permission }
        }
        (Ok(()), Reading::Value(now)) => {
            let words = change.target.words(&now);
            journal.write(at, Note::Made { number, now })?;
            Outcome::Otherwise(words)
        }
        (written, now) => Outcome::Unknown(match (written, now) {
            (Err(err), _) => in_words(err),
            (Ok(()), Reading::Value(now)) => change.target.words(&now),
            (Ok(()), Reading::Absent) => "it no longer exists".to_owned(),
            (Ok(()), Reading::Unreadable(why)) => why.to_string(),
        }),
    };
    journal.interrupt().reach(Point::Ended);
    Ok((outcome, written.err()))
}

/// Directories to remove on revert if they are empty: those created for this change, and those
/// created for other open changes, which may be reverted before this one.
fn folders_of(target: &Target, hands: &mut dyn Hands, journal: &Journal) -> Vec<String> {
    let mut folders = hands.missing_folders(target);
    if let Target::File { path } = target {
        let ours = journal.open_changes().iter().flat_map(|open| &open.folders);
        folders.extend(ours.filter(|folder| Path::new(path).starts_with(folder)).cloned());
    }
    // Outermost first: a parent sorts before its children.
    folders.sort_unstable();
    folders.dedup();
    folders
}

/// Records the old values of possible side effects, before the change itself, so that they are
/// reverted after it. Returns a reason if one cannot be read.
fn note_beside(
    profile: &str,
    change: &Change,
    hands: &mut dyn Hands,
    journal: &mut Journal,
    at: Timestamp,
) -> Result<Option<String>, JournalError> {
    let mut seen = Vec::new();
    for target in &change.beside {
        match hands.read(target) {
            Reading::Value(old @ Value::Switch(on)) => seen.push((target, old, Value::Switch(!on))),
            Reading::Value(_) | Reading::Absent => {}
            Reading::Unreadable(why) => {
                return Ok(Some(format!(
                    "failed to read a possible side effect, which a revert would need: {why}"
                )));
            }
        }
    }
    for (target, old, new) in seen {
        // An existing entry already has the value from before all changes.
        if journal.open_changes().iter().any(|open| open.is_beside && open.target == *target) {
            continue;
        }
        let change = Open {
            number: journal.next(),
            profile: profile.to_owned(),
            target: target.clone(),
            old,
            new,
            folders: Vec::new(),
            made: None,
            is_beside: true,
        };
        journal.write(at, Note::Begun(change))?;
    }
    Ok(None)
}

/// Ownership and mode are not part of what a profile requests.
fn is_wanted(now: &Value, wanted: &Value) -> bool {
    match (now, wanted) {
        (Value::File(now), Value::File(wanted)) => now.content.bytes() == wanted.content.bytes(),
        _ => now == wanted,
    }
}

/// An error with its chain of sources.
pub(super) fn in_words(err: &dyn Error) -> String {
    let mut words = err.to_string();
    let mut cause = err.source();
    while let Some(err) = cause {
        words.push_str(&format!(": {err}"));
        cause = err.source();
    }
    words
}
