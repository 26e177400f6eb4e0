//! Waits until no job runs on the node. Jobs that outlast the wait are requeued elsewhere if the
//! scheduler supports it. The rest may run until the lease ends.

use std::time::Duration;

use farrier_fleet::fleet::event::Cordon;
use farrier_fleet::fleet::order::OrderStatus;
use jiff::Timestamp;

use super::super::ledger::{Effect, FailureText};
use super::super::scheduler::{Job, SchedulerError};
use super::super::task::{Abort, Task};
use super::cordon::look;
use super::{Ended, boot, done, failed, listed};

pub(super) fn drain(task: &mut Task<'_>, wait_s: u32) -> Ended {
    let boot = boot(task)?;
    let requeue_from = task.after(Duration::from_secs(wait_s.into()));
    loop {
        // If the cordon was removed meanwhile, the node never becomes idle.
        if look(task)? == Cordon::None {
            return Err(Abort::because("the node takes new work: it has to be cordoned first"));
        }
        let jobs = task.inner.scheduler.jobs(task.since());
        match &jobs {
            Ok(jobs) if jobs.is_empty() => return done(emptied(task)),
            Ok(jobs) if task.now() >= requeue_from => requeue(task, jobs, &boot)?,
            _ => {}
        }
        if !task.has_time() {
            return late(task, jobs);
        }
        let next = if task.now() < requeue_from { requeue_from } else { task.deadline() };
        task.pause(looks_apart(task.now(), task.accepted(), next.min(task.deadline())))?;
    }
}

/// Polling intervals until the next look. Backs off, because thousands of nodes may poll one
/// controller. Never goes beyond `next`.
fn looks_apart(now: Timestamp, since: Timestamp, next: Timestamp) -> u32 {
    let wait = match now.duration_since(since).as_secs() {
        ..60 => 1,
        60..600 => 5,
        _ => 30,
    };
    let left = u32::try_from(next.duration_since(now).as_secs()).unwrap_or(0);
    left.clamp(1, wait)
}

/// Requeues each job once. Leaves a job alone if the scheduler refuses.
fn requeue(task: &mut Task<'_>, jobs: &[Job], boot: &str) -> Result<(), Abort> {
    for job in jobs.iter().filter(|job| !job.is_ending) {
        let effect = Effect::Requeue { job: job.id.clone() };
        if task.begun().iter().any(|begun| begun.effect == effect && begun.ended) {
            continue;
        }
        let inner = task.inner;
        let made = task.act(effect, boot, |_| inner.scheduler.requeue(job))?;
        if let Err(why) = made {
            tracing::warn!(job = %job.text, %why, "a job is left where it is");
        }
    }
    Ok(())
}

fn emptied(task: &Task<'_>) -> String {
    let scheduler = task.inner.scheduler.name();
    let moved: Vec<&str> =
        requeued(task).filter(|(_, failed)| failed.is_none()).map(|it| it.0).collect();
    let moved = match moved.len() {
        0 => String::new(),
        _ => format!("; started anew elsewhere: {}", listed(&moved)),
    };
    format!("nothing runs on the node by {scheduler}{moved}")
}

/// Requeued jobs, with the error if the requeue failed.
fn requeued<'t>(task: &'t Task<'_>) -> impl Iterator<Item = (&'t str, Option<&'t FailureText>)> {
    task.begun().iter().filter_map(|begun| match &begun.effect {
        Effect::Requeue { job } => Some((job.as_str(), begun.failed.as_ref())),
        _ => None,
    })
}

fn late(task: &Task<'_>, jobs: Result<Vec<Job>, SchedulerError>) -> Result<OrderStatus, Abort> {
    let jobs = match jobs {
        Ok(jobs) => jobs,
        Err(why) => return failed(format!("what runs on the node is not known: {why}")),
    };
    let named = jobs.iter().map(|job| {
        let why = requeued(task).filter(|(id, _)| *id == job.id).find_map(|(_, failed)| failed);
        why.map_or_else(|| job.text.clone(), |why| format!("{} (not moved: {why})", job.text))
    });
    let named: Vec<String> = named.collect();
    failed(format!("the time is over and this still runs on the node: {}", listed(&named)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_wait_is_looked_at_seldom_and_what_comes_next_is_not_missed() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        assert_eq!(looks_apart(at(10), at(0), at(10_000)), 1);
        assert_eq!(looks_apart(at(100), at(0), at(10_000)), 5);
        assert_eq!(looks_apart(at(5000), at(0), at(10_000)), 30);
        assert_eq!(looks_apart(at(9990), at(0), at(10_000)), 10);
        assert_eq!(looks_apart(at(10_001), at(0), at(10_000)), 1);
    }
}
