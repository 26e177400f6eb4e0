//! Verifies the node. Findings clear some time after their cause, and a new agent needs time for
//! its first readings, so a failed verification is retried for a while.

use std::time::Duration;

use farrier_fleet::fleet::order::VerificationLevel;

use super::super::actuator::Proof;
use super::super::task::{Abort, Task};
use super::{Ended, done, failed};

/// Polling intervals between attempts. Each one starts a child process for NVML.
const LOOKS_APART: u32 = 5;

pub(super) fn verify(task: &Task<'_>, level: VerificationLevel) -> Ended {
    let settled = task.after(Duration::from_secs(task.inner.limits.settle_s.into()));
    loop {
        let proof = task.inner.eyes.prove(level, &|| task.is_wanted());
        if !task.is_wanted() {
            return Err(Abort::Unwanted);
        }
        if proof.has_passed() {
            return done(proof.passed.join("; "));
        }
        if proof.is_final || !task.has_time() || task.now() >= settled {
            return failed(why(&proof));
        }
        task.pause(LOOKS_APART)?;
    }
}

/// One sentence on why it failed. The details are on the node.
fn why(proof: &Proof) -> String {
    let (first, unknown) = (shortly(&proof.failed), shortly(&proof.unknown));
    match (first, unknown) {
        (Some(failed), None) => failed,
        (Some(failed), Some(_)) => {
            format!("{failed}; {} more could not be seen", proof.unknown.len())
        }
        (None, Some(unknown)) => format!("not known: {unknown}"),
        (None, None) => "nothing was seen".to_owned(),
    }
}

/// The first item, and the number of others.
fn shortly(items: &[String]) -> Option<String> {
    let more = items.len().saturating_sub(1);
    items.first().map(|it| if more == 0 { it.clone() } else { format!("{it}, and {more} more") })
}
