//! Waits until nothing runs on the node. What has not ended in its time is started anew elsewhere, where the scheduler can; the
//! rest is waited for until the lease is over.

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
        // Somebody may have taken the mark away meanwhile: then it never gets empty.
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

/// How many seconds until the next look: work ends soon or late, and thousands of nodes may ask one controller. Never beyond what
/// comes next.
fn looks_apart(now: Timestamp, since: Timestamp, next: Timestamp) -> u32 {
    let wait = match now.duration_since(since).as_secs() {
        ..60 => 1,
        60..600 => 5,
        _ => 30,
    };
    let left = u32::try_from(next.duration_since(now).as_secs()).unwrap_or(0);
    left.clamp(1, wait)
}

/// Asks for each job once. One that the scheduler refuses to move is left as it is.
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

/// The jobs that were asked to start anew elsewhere, and why they were not.
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
