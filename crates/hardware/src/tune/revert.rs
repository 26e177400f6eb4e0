//! Restores old values, newest change first.

use farrier_facts::node::{ReadError, Reading};
use farrier_facts::tune::{Given, GpuControl, Need, Target, Value};
use jiff::Timestamp;
use serde::Serialize;

use super::apply::in_words;
use super::hands::{HandError, Hands};
use super::interrupt::Point;
use super::journal::{Journal, JournalError, Note, Open};

/// A change and the outcome of reverting it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reverted {
    pub change: Open,
    pub given: Given,
}

/// Reverts all open changes. A value that was changed by someone else since is left alone, unless
/// `force`.
pub fn revert(
    hands: &mut dyn Hands,
    journal: &mut Journal,
    force: bool,
    at: Timestamp,
) -> Vec<Reverted> {
    let changes: Vec<Open> = journal.open_changes().iter().rev().cloned().collect();
    let mut reverted: Vec<Reverted> = Vec::new();
    let mut lost: Option<String> = None;
    for change in changes {
        // An older change of the same target restores the value from before both. Skip it if the
        // newer one was left alone.
        let newer = reverted
            .iter()
            .any(|newer| newer.change.target == change.target && !newer.given.is_back());
        let given = match &lost {
            Some(why) => Given::NotDone(why.clone()),
            None if newer => {
                Given::NotDone("a newer change of the same target is not reverted".to_owned())
            }
            None => match one(&change, hands, journal, force, at) {
                Ok((given, err)) => {
                    lost = err.filter(HandError::is_lost).map(|err| err.to_string());
                    given
                }
                Err(err) => {
                    let why = in_words(&err);
                    lost = Some(why.clone());
                    Given::Failed { why, permission: false }
                }
            },
        };
        reverted.push(Reverted { change, given });
    }
    // Not fatal: the file merely keeps its size.
    let _ = journal.fold();
    reverted
}

fn one(
    change: &Open,
    hands: &mut dyn Hands,
    journal: &mut Journal,
    force: bool,
    at: Timestamp,
) -> Result<(Given, Option<HandError>), JournalError> {
    let failed = |err: HandError| {
        let given = Given::Failed { why: in_words(&err), permission: err.is_permission() };
        (given, Some(err))
    };
    let failure = |why: String| (Given::Failed { why, permission: false }, None);
    let unread = |why: &ReadError| failure(format!("failed to read the current value: {why}"));
    let now = match hands.read(&change.target) {
        Reading::Value(now) => now,
        Reading::Absent if force => {
            journal.write(at, Note::Reverted { number: change.number })?;
            return Ok((Given::Forgotten, None));
        }
        Reading::Absent => {
            let why = "it no longer exists; --force drops it from the journal";
            return Ok(failure(why.to_owned()));
        }
        Reading::Unreadable(why) => return Ok(unread(&why)),
    };
    let mut given = Given::Already;
    if !is_exactly(&now, &change.old) {
        if !is_ours(&now, change) && !force {
            return Ok((Given::Foreign(change.target.words(&now)), None));
        }
        if let Err(err) = hands.write(&change.target, &change.old) {
            return Ok(failed(err));
        }
        match hands.read(&change.target) {
            Reading::Value(now) if is_exactly(&now, &change.old) => given = Given::Back,
            Reading::Value(now) => {
                let now = change.target.words(&now);
                return Ok(failure(format!("the write succeeded, but the value is {now}")));
            }
            Reading::Absent => return Ok(failure("it no longer exists".to_owned())),
            Reading::Unreadable(why) => return Ok(unread(&why)),
        }
    }
    if let Err(err) = hands.tidy(&change.target, &change.folders) {
        return Ok(failed(err));
    }
    match hands.in_force(&change.target) {
        Reading::Unreadable(why) => {
            return Ok(failure(format!(
                "it is restored, but whether it is in force is unknown: {why}"
            )));
        }
        Reading::Value(counts) if !is_exactly(&counts, &change.old) => {
            given = Given::Waits(vec![Need::Reset]);
        }
        Reading::Value(_) | Reading::Absent => {}
    }
    journal.interrupt().reach(Point::GivenBack);
    journal.write(at, Note::Reverted { number: change.number })?;
    journal.interrupt().reach(Point::Ended);
    Ok((given, None))
}

/// Whether the value is what the change produced, would have produced, or produced in part: a
/// service is changed in two steps.
fn is_ours(now: &Value, change: &Open) -> bool {
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
                || change.made.as_ref().map_or_else(|| is_rounded(change), |made| now.is_same(made))
        }
    }
}

/// Whether a card may have rounded the value and the result was not recorded.
fn is_rounded(change: &Open) -> bool {
    let rounding = [GpuControl::PowerLimit, GpuControl::ApplicationClocks];
    matches!(&change.target, Target::Gpu { control, .. } if rounding.contains(control))
}

/// Compares with mode and owner of a file as well.
fn is_exactly(now: &Value, old: &Value) -> bool {
    match (now, old) {
        (Value::File(now), Value::File(old)) => {
            now.content.bytes() == old.content.bytes()
                && now.mode == old.mode
                && (now.owner == old.owner || old.owner.is_none())
        }
        _ => now == old,
    }
}
