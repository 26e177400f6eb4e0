//! Operator-requested orders: diag and tune.

use super::super::actuator::VerificationReport;
use super::super::ledger::{OrderEffect, Started};
use super::super::task::{Abort, OrderTask};
use super::repair::ensure_drained;
use super::{Outcome, boot, done, failed, join_names};

/// Runs `farrier diag`. The command does not change the node, so a restarted agent runs it again.
pub(super) fn diag(task: &OrderTask<'_>, level: u8, minutes: u32) -> Outcome {
    ensure_drained(task)?;
    let report = task.inner.inspector.run_diag(level, minutes, &|| task.is_active());
    if !task.is_active() {
        return Err(Abort::Cancelled);
    }
    if report.has_passed() {
        return done(format!("level {level}: {}", report.passed.join("; ")));
    }
    let reason = format!("level {level}: {}", describe_shortfall(&report));
    // If no test failed, the tests without a result say nothing about the GPU.
    if report.failed.is_empty() { Err(Abort::CannotExecute(reason)) } else { failed(reason) }
}

/// Describes what is missing for a pass. Several failures are listed, because an operator requested
/// the test.
fn describe_shortfall(report: &VerificationReport) -> String {
    match (report.failed.as_slice(), report.unknown.as_slice()) {
        ([], []) => "no check has a result".to_owned(),
        (failed, []) => join_names(failed),
        ([], unknown) => format!("no result: {}", join_names(unknown)),
        (failed, unknown) => format!("{}; no result: {}", join_names(failed), join_names(unknown)),
    }
}

/// Applies a profile. Settings that already have their value are not applied again, so a restarted
/// agent may start this a second time.
pub(super) fn tune(task: &mut OrderTask<'_>, profile: &str) -> Outcome {
    match task.last_started().cloned() {
        Some(Started { ended: true, failed: Some(why), .. }) => return failed(why),
        Some(Started { ended: true, failed: None, .. }) => {
            return done(format!("profile `{profile}` is applied"));
        }
        Some(Started { ended: false, .. }) => task.wait_for_earlier_change()?,
        None => {}
    }
    let boot = boot(task)?;
    ensure_drained(task)?;
    let inner = task.inner;
    let mut summary = String::new();
    let effect = OrderEffect::Tune { profile: profile.to_owned() };
    let made = task.act(effect, &boot, |lock| {
        inner.actuator.tune(profile, lock).map(|evidence| summary = evidence)
    })?;
    match made {
        Ok(()) => done(summary),
        Err(err) => failed(err),
    }
}
