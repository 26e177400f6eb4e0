//! Waits until no job runs on the node. If a job runs longer than the wait, it is requeued on
//! another node, provided that the scheduler supports this. Other jobs may run until the lease
//! ends.

use std::time::Duration;

use farrier_fleet::fleet::event::Cordon;
use farrier_fleet::fleet::order::OrderStatus;
use jiff::Timestamp;

use super::super::ledger::{FailureText, OrderEffect};
use super::super::scheduler::{ScheduledJob, SchedulerError};
use super::super::task::{Abort, OrderTask};
use super::cordon::read_cordon;
use super::{Outcome, boot, done, failed, join_names};

pub(super) fn drain(task: &mut OrderTask<'_>, wait_s: u32) -> Outcome {
    let boot = boot(task)?;
    let requeue_from = task.after(Duration::from_secs(wait_s.into()));
    loop {
        // If the cordon was removed in the meantime, the node never becomes idle.
        if read_cordon(task)? == Cordon::None {
            return Err(Abort::cannot_execute("the node accepts new work: cordon it first"));
        }
        let jobs = task.inner.scheduler.jobs(task.since());
        match &jobs {
            Ok(jobs) if jobs.is_empty() => return done(drained_evidence(task)),
            Ok(jobs) if task.now() >= requeue_from => requeue(task, jobs, &boot)?,
            _ => {}
        }
        if !task.has_time() {
            return time_out(task, jobs);
        }
        let next = if task.now() < requeue_from { requeue_from } else { task.deadline() };
        task.pause(poll_interval(task.now(), task.accepted(), next.min(task.deadline())))?;
    }
}

/// How many polling intervals to wait before the next check. The wait ends at `next` at the latest.
/// It grows over time, because thousands of nodes may poll the controller of one scheduler.
fn poll_interval(now: Timestamp, since: Timestamp, next: Timestamp) -> u32 {
    let wait = match now.duration_since(since).as_secs() {
        ..60 => 1,
        60..600 => 5,
        _ => 30,
    };
    let remaining = u32::try_from(next.duration_since(now).as_secs()).unwrap_or(0);
    remaining.clamp(1, wait)
}

/// Requeues each job once. If the scheduler refuses, the job is left alone.
fn requeue(task: &mut OrderTask<'_>, jobs: &[ScheduledJob], boot: &str) -> Result<(), Abort> {
    for job in jobs.iter().filter(|job| !job.is_ending) {
        let effect = OrderEffect::Requeue { job: job.id.clone() };
        if task.started().iter().any(|change| change.effect == effect && change.ended) {
            continue;
        }
        let inner = task.inner;
        let made = task.act(effect, boot, |_| inner.scheduler.requeue(job))?;
        if let Err(err) = made {
            tracing::warn!(job = %job.text, %err, "failed to requeue job");
        }
    }
    Ok(())
}

fn drained_evidence(task: &OrderTask<'_>) -> String {
    let scheduler = task.inner.scheduler.name();
    let requeued_jobs: Vec<&str> =
        requeued(task).filter(|(_, failed)| failed.is_none()).map(|(job, _)| job).collect();
    let suffix = match requeued_jobs.len() {
        0 => String::new(),
        _ => format!("; requeued: {}", join_names(&requeued_jobs)),
    };
    format!("no job runs on the node ({scheduler}){suffix}")
}

/// Jobs that the agent tried to requeue. If the requeue failed, the error is included.
fn requeued<'t>(
    task: &'t OrderTask<'_>,
) -> impl Iterator<Item = (&'t str, Option<&'t FailureText>)> {
    task.started().iter().filter_map(|change| match &change.effect {
        OrderEffect::Requeue { job } => Some((job.as_str(), change.failed.as_ref())),
        _ => None,
    })
}

fn time_out(
    task: &OrderTask<'_>,
    jobs: Result<Vec<ScheduledJob>, SchedulerError>,
) -> Result<OrderStatus, Abort> {
    let jobs = match jobs {
        Ok(jobs) => jobs,
        Err(err) => return failed(format!("failed to list the jobs on the node: {err}")),
    };
    let names = jobs.iter().map(|job| {
        let failure = requeued(task).filter(|(id, _)| *id == job.id).find_map(|(_, failed)| failed);
        failure.map_or_else(
            || job.text.clone(),
            |failure| format!("{} (requeue failed: {failure})", job.text),
        )
    });
    let names: Vec<String> = names.collect();
    failed(format!("jobs still on the node when the lease ended: {}", join_names(&names)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_backs_off_but_not_past_the_next_deadline() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        assert_eq!(poll_interval(at(10), at(0), at(10_000)), 1);
        assert_eq!(poll_interval(at(100), at(0), at(10_000)), 5);
        assert_eq!(poll_interval(at(5000), at(0), at(10_000)), 30);
        assert_eq!(poll_interval(at(9990), at(0), at(10_000)), 10);
        assert_eq!(poll_interval(at(10_001), at(0), at(10_000)), 1);
    }
}
