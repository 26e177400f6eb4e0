//! Carries out the changes of a plan.

use std::error::Error;

use farrier_facts::node::Reading;
use farrier_facts::tune::{Change, Step, Value};
use jiff::Timestamp;
use serde::Serialize;

use super::hands::{HandError, Hands};
use super::interrupt::Point;
use super::journal::{Journal, JournalError, Note, Open};

/// What came of one step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It is as wanted now.
    Done,
    /// It was as wanted already when it was looked at again.
    Already,
    /// It was not changed, and why.
    Failed {
        /// In words.
        why: String,
        /// Whether another user may do it.
        permission: bool,
    },
    /// It was not tried, and why.
    NotDone(String),
    /// It may have been changed: what is there could not be read. It can be given back.
    Unknown(String),
}

/// One step and what came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Applied {
    /// The step.
    pub step: Step,
    /// What came of it.
    pub outcome: Outcome,
}

/// Makes the changes of the steps, in their order. A step that fails keeps no other from being tried; a journal that
/// cannot be written and an NVML that is lost do.
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
                    // What was begun is in the journal, and can be given back.
                    let begun = journal.open_changes().iter().any(|open| open.number == number);
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
            return Ok((Outcome::NotDone("it is no longer there".to_owned()), None));
        }
        Reading::Unreadable(why) => {
            let why =
                format!("what is there could not be read, so it could not be given back: {why}");
            return Ok((Outcome::NotDone(why), None));
        }
    };
    if is_wanted(&old, &change.value) {
        return Ok((Outcome::Already, None));
    }
    let number = journal.next();
    let folders = hands.missing_folders(&change.target);
    journal.write(
        at,
        Note::Begun(Open {
            number,
            profile: profile.to_owned(),
            target: change.target.clone(),
            old: old.clone(),
            new: change.value.clone(),
            folders: folders.clone(),
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
        (written, Reading::Value(now)) if now.is_same(&old) => {
            let why = written.as_ref().err().map_or_else(
                || "it was taken without an error, and nothing changed".to_owned(),
                |err| in_words(err),
            );
            // Nothing was changed, so that there is nothing to give back but folders.
            if hands.tidy(&change.target, &folders).is_ok() {
                journal.write(at, Note::Failed { number, why: why.clone() })?;
            }
            let permission = written.as_ref().err().is_some_and(HandError::is_permission);
            Outcome::Failed { why, permission }
        }
        (written, now) => Outcome::Unknown(match (written, now) {
            (Err(err), _) => in_words(err),
            (Ok(()), Reading::Value(now)) => format!("now it is {}", change.target.words(&now)),
            (Ok(()), Reading::Absent) => "it is no longer there".to_owned(),
            (Ok(()), Reading::Unreadable(why)) => why,
        }),
    };
    journal.interrupt().reach(Point::Ended);
    Ok((outcome, written.err()))
}

/// Who owns a file, and who may read it, is no part of what is wanted.
fn is_wanted(now: &Value, wanted: &Value) -> bool {
    match (now, wanted) {
        (Value::File(now), Value::File(wanted)) => now.content.bytes() == wanted.content.bytes(),
        _ => now == wanted,
    }
}

/// An error with all that stands behind it.
pub(super) fn in_words(err: &dyn Error) -> String {
    let mut words = err.to_string();
    let mut cause = err.source();
    while let Some(err) = cause {
        words.push_str(&format!(": {err}"));
        cause = err.source();
    }
    words
}
