//! Cordon and uncordon: sets a cordon if there is none, and removes only our own.

use farrier_fleet::fleet::event::Cordon;

use super::super::ledger::Effect;
use super::super::scheduler::{SchedulerError, reason};
use super::super::task::{Abort, Task};
use super::{Ended, boot, done, failed};

pub(super) fn cordon(task: &mut Task<'_>) -> Ended {
    let scheduler = task.inner.scheduler.name();
    match look(task)? {
        Cordon::ByFarrier => return done(format!("{scheduler} gives no new work, by our mark")),
        Cordon::External { owner, reason } => return Err(others(scheduler, &owner, &reason)),
        Cordon::None | Cordon::Unknown => {}
    }
    let boot = boot(task)?;
    let reason = reason(&task.order().reason.to_string(), task.order().generation);
    let inner = task.inner;
    let made = task.act(Effect::Cordon { reason: reason.clone() }, &boot, |_| {
        inner.scheduler.cordon(&reason)
    })?;
    match look(task)? {
        Cordon::ByFarrier => done(format!("{scheduler} gives no new work: \"{reason}\"")),
        seen => failed(format!("{} {}", told(made), words(scheduler, &seen))),
    }
}

pub(super) fn uncordon(task: &mut Task<'_>) -> Ended {
    let scheduler = task.inner.scheduler.name();
    match look(task)? {
        Cordon::None => return done(format!("{scheduler} gives new work")),
        Cordon::External { owner, reason } => return Err(others(scheduler, &owner, &reason)),
        Cordon::ByFarrier | Cordon::Unknown => {}
    }
    // The finding may have opened after the server sent the order.
    if let Some(finding) = task.look(|| task.inner.eyes.finding_against())? {
        return failed(format!("the node has an open finding and stays cordoned: {finding}"));
    }
    let boot = boot(task)?;
    let inner = task.inner;
    let made = task.act(Effect::Uncordon, &boot, |_| inner.scheduler.uncordon())?;
    match look(task)? {
        Cordon::None => done(format!("{scheduler} gives new work: our mark is gone")),
        seen => failed(format!("{} {}", told(made), words(scheduler, &seen))),
    }
}

/// Reads the cordon state. Unknown is an error.
pub(super) fn look(task: &Task<'_>) -> Result<Cordon, Abort> {
    task.look(|| match task.inner.cordon()? {
        Cordon::Unknown => Err(SchedulerError::CordonUnknown),
        known => Ok(known),
    })
}

fn others(scheduler: &str, owner: &str, reason: &str) -> Abort {
    Abort::Because(format!(
        "{scheduler} has a mark of {owner}, which only they take away: {reason}"
    ))
}

fn told(made: Result<(), SchedulerError>) -> String {
    made.map_or_else(
        |why| format!("{why};"),
        |()| "it was done, and did not come about:".to_owned(),
    )
}

fn words(scheduler: &str, cordon: &Cordon) -> String {
    match cordon {
        Cordon::Unknown => format!("{scheduler} does not say whether it gives new work"),
        Cordon::None => format!("{scheduler} gives new work"),
        Cordon::ByFarrier => format!("{scheduler} gives no new work, by our mark"),
        Cordon::External { owner, reason } => {
            format!("{scheduler} gives no new work, by {owner}: {reason}")
        }
    }
}
