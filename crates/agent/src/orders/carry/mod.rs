//! How an order is carried out: look, ask whether it may be done, do it, look again.
//!
//! ```text
//! observe ─ so already ─> Done
//!    │ may not ─────────> Refused
//!    └─ begun on disk ─ act ─ ended on disk ─ observe ─> Done with what was seen, or Failed
//! ```
//!
//! An agent that was started anew comes here with what was begun before. It looks first; what cannot be known to have been done
//! and must not be done twice is answered as failed.

mod drain;
mod errand;
mod mark;
mod repair;
mod verify;

use farrier_fleet::fleet::order::{Answer, OrderKind};

use super::task::{Break, Task};

/// How an order ended; an error is a reason why it was not done.
type Ended = Result<Answer, Break>;

/// Carries an order out; none: it is not wanted any longer, or the agent ends.
pub(super) fn carry(task: &mut Task<'_>) -> Option<Answer> {
    let ended = match task.order().what.clone() {
        OrderKind::Cordon => mark::cordon(task),
        OrderKind::Uncordon => mark::uncordon(task),
        OrderKind::Drain { wait_s } => drain::drain(task, wait_s),
        OrderKind::ResetGpu { gpu } => repair::reset_gpu(task, &gpu),
        OrderKind::Reboot => repair::reboot(task),
        OrderKind::RestartService { unit } => repair::restart_service(task, &unit),
        OrderKind::NoteRepair { what } => repair::note(task, what),
        OrderKind::Verify { rung } => verify::verify(task, rung),
        OrderKind::Diag { level, minutes } => errand::diag(task, level, minutes),
        OrderKind::Tune { profile } => errand::tune(task, &profile),
    };
    match ended {
        Ok(answer) => Some(answer),
        Err(Break::Unwanted) => None,
        Err(Break::Because(why)) if task.begun().is_empty() => Some(Answer::Refused { why }),
        Err(Break::Because(why)) => Some(Answer::Failed { why }),
    }
}

#[expect(clippy::unnecessary_wraps, reason = "each way to end has this form")]
fn done(evidence: impl Into<String>) -> Ended {
    Ok(Answer::Done { evidence: evidence.into() })
}

#[expect(clippy::unnecessary_wraps, reason = "each way to end has this form")]
fn failed(why: impl Into<String>) -> Ended {
    Ok(Answer::Failed { why: why.into() })
}

/// The boot that is now. An order that must not outlive a reboot is not begun in another.
fn boot(task: &Task<'_>) -> Result<String, Break> {
    let boot = task.look(|| task.inner.hands.boot())?;
    match &task.order().boot {
        Some(meant) if *meant != boot => {
            Err(Break::Because(format!("it is for boot {meant}, and this is boot {boot}")))
        }
        _ => Ok(boot),
    }
}

/// Names, the first few.
fn listed<T: ToString>(items: &[T]) -> String {
    const NAMED_MAX: usize = 8;
    let mut names: Vec<String> = items.iter().take(NAMED_MAX).map(T::to_string).collect();
    if items.len() > NAMED_MAX {
        names.push(format!("and {} more", items.len() - NAMED_MAX));
    }
    names.join(", ")
}
