//! Verifies the node. A failed verification is retried for a while, because findings clear some
//! time after their cause has gone, and because a new agent needs time for its first readings.

use std::time::Duration;

use farrier_fleet::fleet::order::{OrderStatus, VerificationLevel};

use super::super::actuator::VerificationReport;
use super::super::task::{Abort, OrderTask};
use super::{Outcome, done, failed};

/// Number of polling intervals between attempts. Each attempt starts a child process for NVML.
const RETRY_POLLS: u32 = 5;

pub(super) fn verify(task: &OrderTask<'_>, level: VerificationLevel) -> Outcome {
    let settle_until = task.after(Duration::from_secs(task.inner.limits.settle_s.into()));
    loop {
        let report = task.inner.inspector.verify(level, &|| task.is_active());
        if !task.is_active() {
            return Err(Abort::Cancelled);
        }
        if report.has_passed() {
            return done(report.passed.join("; "));
        }
        if report.is_final || !task.has_time() || task.now() >= settle_until {
            return ended(level, &report);
        }
        task.pause(RETRY_POLLS)?;
    }
}

/// The final status. If no check failed but some have no result, V0 and V1 have no result either,
/// because a reading is missing and may return. If a test of V2 or V3 does not run, the level
/// fails, because the GPU may be the cause.
fn ended(level: VerificationLevel, report: &VerificationReport) -> Outcome {
    let reads_only = matches!(level, VerificationLevel::V0 | VerificationLevel::V1);
    match summarize(&report.unknown) {
        Some(reason) if reads_only && report.failed.is_empty() => {
            Ok(OrderStatus::Inconclusive { reason })
        }
        _ => failed(failure_reason(report)),
    }
}

/// One sentence that says why the verification failed. The details are on the node.
fn failure_reason(report: &VerificationReport) -> String {
    let (first, unknown) = (summarize(&report.failed), summarize(&report.unknown));
    match (first, unknown) {
        (Some(failed), None) => failed,
        (Some(failed), Some(_)) => {
            format!("{failed}; {} more without a result", report.unknown.len())
        }
        (None, Some(unknown)) => format!("no result: {unknown}"),
        (None, None) => "no check has a result".to_owned(),
    }
}

/// The first item, followed by the number of other items.
fn summarize(items: &[String]) -> Option<String> {
    let more = items.len().saturating_sub(1);
    items
        .first()
        .map(|first| if more == 0 { first.clone() } else { format!("{first}, and {more} more") })
}
