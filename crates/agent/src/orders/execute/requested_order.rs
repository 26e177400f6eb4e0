//! Operator-requested orders: diag and tune.

use super::super::actuator::Proof;
use super::super::ledger::{Effect, Started};
use super::super::task::{Abort, Task};
use super::repair::emptied;
use super::{Ended, boot, done, failed, listed};

/// Read-only: a restarted agent runs it again.
pub(super) fn diag(task: &Task<'_>, level: u8, minutes: u32) -> Ended {
    emptied(task)?;
    let proof = task.inner.eyes.examine(level, minutes, &|| task.is_wanted());
    if !task.is_wanted() {
        return Err(Abort::Unwanted);
    }
    if proof.has_passed() {
        return done(format!("level {level}: {}", proof.passed.join("; ")));
    }
    let why = format!("level {level}: {}", shortfall(&proof));
    // A test without a result says nothing about a GPU.
    if proof.failed.is_empty() { Err(Abort::Because(why)) } else { failed(why) }
}

/// Lists every failure, since an operator asked for it.
fn shortfall(proof: &Proof) -> String {
    match (proof.failed.as_slice(), proof.unknown.as_slice()) {
        ([], []) => "nothing was seen".to_owned(),
        (failed, []) => listed(failed),
        ([], unknown) => format!("not known: {}", listed(unknown)),
        (failed, unknown) => format!("{}; not known: {}", listed(failed), listed(unknown)),
    }
}

/// Idempotent: settings already in place are not applied again, so it may be started twice.
pub(super) fn tune(task: &mut Task<'_>, profile: &str) -> Ended {
    match task.last_begun().cloned() {
        Some(Started { ended: true, failed: Some(why), .. }) => return failed(why),
        Some(Started { ended: true, failed: None, .. }) => {
            return done(format!("the node is as `{profile}` wants it"));
        }
        Some(Started { ended: false, .. }) => task.wait_for_others()?,
        None => {}
    }
    let boot = boot(task)?;
    emptied(task)?;
    let inner = task.inner;
    let mut said = String::new();
    let effect = Effect::Tune { profile: profile.to_owned() };
    let made = task.act(effect, &boot, |alive| {
        inner.hands.tune(profile, alive).map(|evidence| said = evidence)
    })?;
    match made {
        Ok(()) => done(said),
        Err(why) => failed(why),
    }
}
