//! Executes an order: inspect the node, check the precondition, make the change, inspect the node
//! again.
//!
//! ```text
//! inspect ─ nothing to do ──> Done
//!    │ not allowed ─────────> Refused
//!    └─ started on disk ─ act ─ ended on disk ─ inspect ─> Done with evidence, or Failed
//! ```
//!
//! A restarted agent knows from the journal which changes were started, and inspects the node
//! first. The order fails if it is unknown whether a change was made, and the change must not be
//! made twice.

mod artifact;
mod collect_logs;
mod cordon;
mod drain;
mod repair;
mod requested_order;
mod verify;

use std::fmt;

use farrier_fleet::fleet::order::{OrderKind, OrderStatus};

use super::task::{Abort, OrderTask};

/// Final status of an order, or why the execution stopped.
type Outcome = Result<OrderStatus, Abort>;

/// A permission in the node's configuration. Without it, the order is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OrderPermission<'o> {
    Reset,
    Reboot,
    Tune,
    /// Restart of this unit.
    Service(&'o str),
}

type Execute<'o> = Box<dyn FnOnce(&mut OrderTask<'_>) -> Outcome + 'o>;

/// How an order kind is executed, and the permission that it needs.
pub(super) struct Executor<'o> {
    /// The permission. `None` if the configuration cannot forbid the order.
    pub(super) needs: Option<OrderPermission<'o>>,
    execute: Execute<'o>,
}

impl<'o> Executor<'o> {
    fn new(execute: impl FnOnce(&mut OrderTask<'_>) -> Outcome + 'o) -> Self {
        Self { needs: None, execute: Box::new(execute) }
    }

    fn needing(
        needs: OrderPermission<'o>,
        execute: impl FnOnce(&mut OrderTask<'_>) -> Outcome + 'o,
    ) -> Self {
        Self { needs: Some(needs), execute: Box::new(execute) }
    }
}

/// The table of order kinds. A new kind needs an entry here, and an executor in this directory.
pub(super) fn executor(kind: &OrderKind) -> Executor<'_> {
    match kind {
        OrderKind::Cordon => Executor::new(cordon::cordon),
        OrderKind::Uncordon => Executor::new(cordon::uncordon),
        OrderKind::Drain { wait_s } => Executor::new(|task| drain::drain(task, *wait_s)),
        OrderKind::ResetGpu { gpu } => {
            Executor::needing(OrderPermission::Reset, |task| repair::reset_gpu(task, gpu))
        }
        OrderKind::Reboot => Executor::needing(OrderPermission::Reboot, repair::reboot),
        OrderKind::RestartService { unit } => {
            Executor::needing(OrderPermission::Service(unit), |task| {
                repair::restart_service(task, unit)
            })
        }
        OrderKind::AcknowledgeRepair { repair } => {
            Executor::new(|task| repair::acknowledge(task, repair.clone()))
        }
        OrderKind::Verify { level } => Executor::new(|task| verify::verify(task, *level)),
        OrderKind::Diag { level, minutes } => {
            Executor::new(|task| requested_order::diag(task, *level, *minutes))
        }
        OrderKind::Tune { profile } => {
            Executor::needing(OrderPermission::Tune, |task| requested_order::tune(task, profile))
        }
        OrderKind::CollectLogs => Executor::new(|task| collect_logs::collect(task)),
    }
}

/// Executes an order. Returns `None` if the order is no longer active, or if the agent is stopping.
pub(super) fn run(task: &mut OrderTask<'_>) -> Option<OrderStatus> {
    let kind = task.order().kind.clone();
    let outcome = (executor(&kind).execute)(task);
    match outcome {
        Ok(status) => Some(status),
        Err(Abort::Cancelled) => None,
        Err(Abort::CannotExecute(reason)) if task.started().is_empty() => {
            Some(OrderStatus::Refused { reason })
        }
        Err(Abort::CannotExecute(reason)) => Some(OrderStatus::Failed { reason }),
    }
}

#[expect(clippy::unnecessary_wraps, reason = "same return type as the other outcomes")]
fn done(evidence: impl Into<String>) -> Outcome {
    Ok(OrderStatus::Done { evidence: evidence.into() })
}

#[expect(clippy::unnecessary_wraps, reason = "same return type as the other outcomes")]
fn failed(reason: impl fmt::Display) -> Outcome {
    Ok(OrderStatus::Failed { reason: reason.to_string() })
}

/// The current boot ID. Fails if the order is valid only in another boot.
fn boot(task: &OrderTask<'_>) -> Result<String, Abort> {
    let boot = task.retry(|| task.inner.actuator.boot())?;
    match &task.order().boot {
        Some(expected) if *expected != boot => Err(Abort::CannotExecute(format!(
            "the order is for boot {expected}, but the current boot is {boot}"
        ))),
        _ => Ok(boot),
    }
}

/// Joins the first few names.
fn join_names<T: ToString>(items: &[T]) -> String {
    const NAMED_MAX: usize = 8;
    let mut names: Vec<String> = items.iter().take(NAMED_MAX).map(T::to_string).collect();
    if items.len() > NAMED_MAX {
        names.push(format!("and {} more", items.len() - NAMED_MAX));
    }
    names.join(", ")
}
