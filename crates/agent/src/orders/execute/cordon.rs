//! Cordon and uncordon. A cordon is set only if there is none. Only a cordon that Farrier set is
//! removed.

use farrier_fleet::fleet::event::Cordon;

use super::super::ledger::OrderEffect;
use super::super::scheduler::{SchedulerError, reason};
use super::super::task::{Abort, OrderTask};
use super::{Outcome, boot, done, failed};

pub(super) fn cordon(task: &mut OrderTask<'_>) -> Outcome {
    let scheduler = task.inner.scheduler.name();
    match read_cordon(task)? {
        Cordon::ByFarrier => return done(format!("already cordoned by farrier ({scheduler})")),
        Cordon::External { owner, reason } => {
            return Err(external_cordon(scheduler, &owner, &reason));
        }
        Cordon::None | Cordon::Unknown => {}
    }
    let boot = boot(task)?;
    let reason = reason(&task.order().reason.to_string(), task.order().generation);
    let inner = task.inner;
    let made = task.act(OrderEffect::Cordon { reason: reason.clone() }, &boot, |_| {
        inner.scheduler.cordon(&reason)
    })?;
    match read_cordon(task)? {
        Cordon::ByFarrier => done(format!("cordoned ({scheduler}): \"{reason}\"")),
        state => failed(format!("{} {}", describe_attempt(made), describe(scheduler, &state))),
    }
}

pub(super) fn uncordon(task: &mut OrderTask<'_>) -> Outcome {
    let scheduler = task.inner.scheduler.name();
    match read_cordon(task)? {
        Cordon::None => return done(format!("not cordoned ({scheduler})")),
        Cordon::External { owner, reason } => {
            return Err(external_cordon(scheduler, &owner, &reason));
        }
        Cordon::ByFarrier | Cordon::Unknown => {}
    }
    // The finding may have opened after the server sent the order.
    if let Some(finding) = task.retry(|| task.inner.inspector.blocking_finding())? {
        return failed(format!("the node has an open finding and stays cordoned: {finding}"));
    }
    let boot = boot(task)?;
    let inner = task.inner;
    let made = task.act(OrderEffect::Uncordon, &boot, |_| inner.scheduler.uncordon())?;
    match read_cordon(task)? {
        Cordon::None => done(format!("uncordoned ({scheduler})")),
        state => failed(format!("{} {}", describe_attempt(made), describe(scheduler, &state))),
    }
}

/// Reads the cordon state. Retries while it is unknown.
pub(super) fn read_cordon(task: &OrderTask<'_>) -> Result<Cordon, Abort> {
    task.retry(|| match task.inner.cordon()? {
        Cordon::Unknown => Err(SchedulerError::CordonUnknown),
        state => Ok(state),
    })
}

fn external_cordon(scheduler: &str, owner: &str, reason: &str) -> Abort {
    Abort::CannotExecute(format!(
        "cordoned by {owner} ({scheduler}): {reason}; farrier does not change an external cordon"
    ))
}

fn describe_attempt(made: Result<(), SchedulerError>) -> String {
    made.map_or_else(
        |err| format!("{err};"),
        |()| "the command succeeded but had no effect:".to_owned(),
    )
}

fn describe(scheduler: &str, cordon: &Cordon) -> String {
    match cordon {
        Cordon::Unknown => format!("cordon state unknown ({scheduler})"),
        Cordon::None => format!("not cordoned ({scheduler})"),
        Cordon::ByFarrier => format!("cordoned by farrier ({scheduler})"),
        Cordon::External { owner, reason } => {
            format!("cordoned by {owner} ({scheduler}): {reason}")
        }
    }
}
