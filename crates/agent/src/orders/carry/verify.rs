//! Proves the node. Findings clear some time after their cause, and a new agent has to look around first: what does not pass is
//! looked at again for a while.

use std::time::Duration;

use farrier_fleet::fleet::order::Rung;

use super::super::hands::Proof;
use super::super::task::Task;
use super::{Ended, done, failed, listed};

/// A look costs a child that asks NVML.
const LOOKS_APART: u32 = 5;

pub(super) fn verify(task: &Task<'_>, rung: Rung) -> Ended {
    let settled = task.after(Duration::from_secs(task.inner.limits.settle_s.into()));
    loop {
        let proof = task.inner.eyes.prove(rung);
        if proof.has_passed() {
            return done(format!("{rung}: {}", proof.passed.join("; ")));
        }
        if proof.is_final || !task.has_time() || task.now() >= settled {
            return failed(format!("{rung}: {}", shortfall(&proof)));
        }
        task.pause(LOOKS_APART)?;
    }
}

/// What a proof that was not passed lacks.
pub(super) fn shortfall(proof: &Proof) -> String {
    let mut why = Vec::new();
    if !proof.failed.is_empty() {
        why.push(listed(&proof.failed));
    }
    if !proof.unknown.is_empty() {
        why.push(format!("not known: {}", listed(&proof.unknown)));
    }
    if why.is_empty() {
        why.push("nothing was seen".to_owned());
    }
    why.join("; ")
}
