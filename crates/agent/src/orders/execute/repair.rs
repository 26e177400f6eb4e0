//! Repairs. Each repair requires a cordoned and idle node.

use farrier_fleet::fleet::event::Cordon;
use farrier_fleet::health::GpuUuid;

use super::super::ledger::{OrderEffect, Started};
use super::super::repair_note::{self, RepairNote};
use super::super::task::{Abort, OrderTask};
use super::cordon::read_cordon;
use super::{Outcome, boot, done, failed, join_names};

/// Maximum number of checks of a GPU or a service after a repair. If none of them is good, the
/// repair counts as failed.
const CHECKS_MAX: u32 = 60;

pub(super) fn reset_gpu(task: &mut OrderTask<'_>, gpu: &GpuUuid) -> Outcome {
    if let Some(started) = task.last_started().cloned() {
        return resume_reset(task, gpu, &started);
    }
    let boot = boot(task)?;
    ensure_drained(task)?;
    let processes = task.retry(|| task.inner.inspector.processes(task.since()))?;
    let on_gpu: Vec<_> = processes.into_iter().filter(|process| process.gpu == *gpu).collect();
    if !on_gpu.is_empty() {
        return Err(Abort::CannotExecute(format!("the GPU is in use: {}", join_names(&on_gpu))));
    }
    let wrong = task.retry(|| task.inner.inspector.gpu(gpu))?.reset_reasons;
    let inner = task.inner;
    let effect = OrderEffect::ResetGpu { gpu: gpu.clone(), wrong };
    let made = task.act(effect, &boot, |lock| inner.actuator.reset_gpu(gpu, lock))?;
    if let Err(err) = made {
        return failed(err);
    }
    confirm_reset(task, gpu)
}

/// Acknowledges a manual repair. The note is written first, because a restarted agent reads it.
/// Then the running health monitor is notified. This is idempotent, because the time in the note is
/// the time at which the order was accepted.
pub(super) fn acknowledge(task: &OrderTask<'_>, repair: String) -> Outcome {
    let note = RepairNote { at: task.accepted(), repair };
    if let Err(err) = repair_note::write(task.inner.state_dir(), &note) {
        return failed(format!("failed to write the repair note: {err}"));
    }
    (task.inner.repaired)(note);
    done("findings that waited for the repair are cleared, and counters restart")
}

/// Checks the GPU after a reset, until it needs no further reset.
fn confirm_reset(task: &OrderTask<'_>, gpu: &GpuUuid) -> Outcome {
    let mut last = String::new();
    for _ in 0..CHECKS_MAX {
        match task.inner.inspector.gpu(gpu) {
            Ok(health) if health.reset_reasons.is_empty() => {
                return done(format!("the GPU was reset; {}", health.summary));
            }
            Ok(health) => last = join_names(&health.reset_reasons),
            Err(err) => last = err.to_string(),
        }
        if !task.has_time() {
            break;
        }
        task.pause(1)?;
    }
    failed(format!("the GPU was reset, but the fault remains: {last}"))
}

/// Determines the outcome of a reset that an earlier agent process started. The GPU is never reset
/// a second time.
fn resume_reset(task: &OrderTask<'_>, gpu: &GpuUuid, started: &Started) -> Outcome {
    match started {
        Started { ended: true, failed: Some(why), .. } => return failed(why),
        Started { ended: true, failed: None, .. } => return confirm_reset(task, gpu),
        Started { ended: false, .. } => task.wait_for_earlier_change()?,
    }
    let unknown = "the agent stopped during the reset, so the outcome of the reset is unknown";
    let was_wrong =
        matches!(&started.effect, OrderEffect::ResetGpu { wrong, .. } if !wrong.is_empty());
    match task.inner.inspector.gpu(gpu) {
        // The fault that required the reset is gone, so the reset happened.
        Ok(health) if was_wrong && health.reset_reasons.is_empty() => {
            done(format!("the GPU was reset while the agent restarted; {}", health.summary))
        }
        Ok(health) if health.reset_reasons.is_empty() => failed(unknown),
        Ok(health) => failed(format!("{unknown}: {}", join_names(&health.reset_reasons))),
        Err(err) => failed(format!("{unknown}: {err}")),
    }
}

pub(super) fn reboot(task: &mut OrderTask<'_>) -> Outcome {
    if let Some(evidence) = rebooted(task)? {
        return done(evidence);
    }
    let last = task.last_started().cloned();
    match last {
        None => {}
        Some(Started { ended: true, failed: Some(why), .. }) => return failed(why),
        Some(Started { ended: true, failed: None, .. }) => return wait_for_reboot(task),
        // The boot is the same. The reboot has therefore not happened, even if it was requested.
        Some(Started { ended: false, .. }) => task.wait_for_earlier_change()?,
    }
    let boot = boot(task)?;
    ensure_drained(task)?;
    let inner = task.inner;
    if let Err(err) = task.act(OrderEffect::Reboot, &boot, |lock| inner.actuator.reboot(lock))? {
        return failed(err);
    }
    wait_for_reboot(task)
}

/// Waits for the reboot, which ends this process too.
fn wait_for_reboot(task: &OrderTask<'_>) -> Outcome {
    while task.has_time() {
        if let Some(evidence) = rebooted(task)? {
            return done(evidence);
        }
        task.pause(1)?;
    }
    failed("the reboot was requested, but the node has not rebooted")
}

/// Evidence that the node was rebooted after the order was accepted. `None` if the boot is still
/// the same.
fn rebooted(task: &OrderTask<'_>) -> Result<Option<String>, Abort> {
    let boot = task.retry(|| task.inner.actuator.boot())?;
    let before = task.boot_before();
    Ok((boot != before).then(|| format!("boot {boot}, previous boot {before}")))
}

pub(super) fn restart_service(task: &mut OrderTask<'_>, unit: &str) -> Outcome {
    let last = task.last_started().cloned();
    match &last {
        None => {}
        Some(Started { ended: true, failed: Some(why), .. }) => return failed(why),
        Some(Started { ended: true, failed: None, effect, .. }) => {
            return confirm_restart(task, unit, previous_run(effect));
        }
        Some(Started { ended: false, effect, .. }) => {
            task.wait_for_earlier_change()?;
            let service = task.retry(|| task.inner.actuator.service(unit))?;
            if service.run.is_some() && service.run.as_ref() != previous_run(effect) {
                return confirm_restart(task, unit, previous_run(effect));
            }
            // The service is still in the same run, so it was not restarted.
        }
    }
    let boot = boot(task)?;
    ensure_drained(task)?;
    let run = task.retry(|| task.inner.actuator.service(unit))?.run;
    let inner = task.inner;
    let effect = OrderEffect::RestartService { unit: unit.to_owned(), run: run.clone() };
    let made = task.act(effect, &boot, |lock| inner.actuator.restart_service(unit, lock))?;
    if let Err(err) = made {
        return failed(err);
    }
    confirm_restart(task, unit, run.as_ref())
}

fn previous_run(effect: &OrderEffect) -> Option<&String> {
    match effect {
        OrderEffect::RestartService { run, .. } => run.as_ref(),
        _ => None,
    }
}

/// Checks the service after its restart, until it is active in a new run.
fn confirm_restart(task: &OrderTask<'_>, unit: &str, previous_run: Option<&String>) -> Outcome {
    let mut last = String::new();
    for _ in 0..CHECKS_MAX {
        match task.inner.actuator.service(unit) {
            Ok(service) if service.is_active && service.run.as_ref() != previous_run => {
                return done(format!("`{unit}` was restarted and is {}", service.state));
            }
            Ok(service) => last = service.state,
            Err(err) => last = err.to_string(),
        }
        if !task.has_time() {
            break;
        }
        task.pause(1)?;
    }
    failed(format!("`{unit}` was restarted but is not active: {last}"))
}

/// Checks the precondition of every repair: the node is cordoned and idle.
pub(super) fn ensure_drained(task: &OrderTask<'_>) -> Result<(), Abort> {
    if read_cordon(task)? == Cordon::None {
        return Err(Abort::cannot_execute("the node accepts new work: cordon and drain it first"));
    }
    let since = task.since();
    let jobs = task.retry(|| task.inner.scheduler.jobs(since))?;
    if jobs.is_empty() {
        return Ok(());
    }
    let jobs: Vec<String> = jobs.into_iter().map(|job| job.text).collect();
    Err(Abort::CannotExecute(format!("the node is not drained: {}", join_names(&jobs))))
}
