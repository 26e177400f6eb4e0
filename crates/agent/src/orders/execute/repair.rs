//! Repairs. Each requires a node that is cordoned and idle.

use farrier_fleet::fleet::event::Cordon;
use farrier_fleet::health::GpuUuid;

use super::super::ledger::{Effect, Started};
use super::super::repair_note::{self, RepairNote};
use super::super::task::{Abort, Task};
use super::cordon::look;
use super::{Ended, boot, done, failed, listed};

/// How often to check a GPU or a service after a repair before it counts as failed.
const LOOKS_MAX: u32 = 60;

pub(super) fn reset_gpu(task: &mut Task<'_>, gpu: &GpuUuid) -> Ended {
    if let Some(begun) = task.last_begun().cloned() {
        return was_reset(task, gpu, &begun);
    }
    let boot = boot(task)?;
    emptied(task)?;
    let held = task.look(|| task.inner.eyes.processes(task.since()))?;
    let held: Vec<_> = held.into_iter().filter(|held| held.gpu == *gpu).collect();
    if !held.is_empty() {
        return Err(Abort::Because(format!("it is in use: {}", listed(&held))));
    }
    let wrong = task.look(|| task.inner.eyes.gpu(gpu))?.wrong;
    let inner = task.inner;
    let effect = Effect::ResetGpu { gpu: gpu.clone(), wrong };
    let made = task.act(effect, &boot, |alive| inner.hands.reset_gpu(gpu, alive))?;
    if let Err(why) = made {
        return failed(why);
    }
    reset_seen(task, gpu)
}

/// Acknowledges a manual repair: writes the note first, for a restarted agent, then notifies the
/// running one. Idempotent, because the note has the time at which the order was accepted.
pub(super) fn acknowledge(task: &Task<'_>, what: String) -> Ended {
    let note = RepairNote { at: task.accepted(), what };
    if let Err(err) = repair_note::write(task.inner.state_dir(), &note) {
        return failed(format!("the repair could not be noted: {err}"));
    }
    (task.inner.repaired)(note);
    done("what waited for a part is over, and what is counted begins anew")
}

/// State of a GPU after its reset.
fn reset_seen(task: &Task<'_>, gpu: &GpuUuid) -> Ended {
    let mut last = String::new();
    for _ in 0..LOOKS_MAX {
        match task.inner.eyes.gpu(gpu) {
            Ok(seen) if seen.wrong.is_empty() => {
                return done(format!("it was reset; {}", seen.text));
            }
            Ok(seen) => last = listed(&seen.wrong),
            Err(err) => last = err.to_string(),
        }
        if !task.has_time() {
            break;
        }
        task.pause(1)?;
    }
    failed(format!("it was reset, and still: {last}"))
}

/// Outcome of a reset that an earlier agent process started. Never resets twice.
fn was_reset(task: &Task<'_>, gpu: &GpuUuid, begun: &Started) -> Ended {
    match begun {
        Started { ended: true, failed: Some(why), .. } => return failed(why),
        Started { ended: true, failed: None, .. } => return reset_seen(task, gpu),
        Started { ended: false, .. } => task.wait_for_others()?,
    }
    let unknown = "the agent ended while the GPU was being reset, and whether it was is not known";
    let was_wrong = matches!(&begun.effect, Effect::ResetGpu { wrong, .. } if !wrong.is_empty());
    match task.inner.eyes.gpu(gpu) {
        // The cause of the reset is gone.
        Ok(seen) if was_wrong && seen.wrong.is_empty() => {
            done(format!("it was reset, while the agent was started anew; {}", seen.text))
        }
        Ok(seen) if seen.wrong.is_empty() => failed(unknown),
        Ok(seen) => failed(format!("{unknown}: {}", listed(&seen.wrong))),
        Err(why) => failed(format!("{unknown}: {why}")),
    }
}

pub(super) fn reboot(task: &mut Task<'_>) -> Ended {
    if let Some(evidence) = rebooted(task)? {
        return done(evidence);
    }
    let last = task.last_begun().cloned();
    match last {
        None => {}
        Some(Started { ended: true, failed: Some(why), .. }) => return failed(why),
        Some(Started { ended: true, failed: None, .. }) => return reboot_seen(task),
        // Same boot: even if the reboot was started, it has not happened.
        Some(Started { ended: false, .. }) => task.wait_for_others()?,
    }
    let boot = boot(task)?;
    emptied(task)?;
    let inner = task.inner;
    if let Err(why) = task.act(Effect::Reboot, &boot, |alive| inner.hands.reboot(alive))? {
        return failed(why);
    }
    reboot_seen(task)
}

/// Waits for the reboot, which also ends this process.
fn reboot_seen(task: &Task<'_>) -> Ended {
    while task.has_time() {
        if let Some(evidence) = rebooted(task)? {
            return done(evidence);
        }
        task.pause(1)?;
    }
    failed("the reboot was asked for, and the node still runs")
}

/// Evidence that this is not the boot in which the order was accepted.
fn rebooted(task: &Task<'_>) -> Result<Option<String>, Abort> {
    let boot = task.look(|| task.inner.hands.boot())?;
    let before = task.boot_before();
    Ok((boot != before).then(|| format!("boot {boot}, before it boot {before}")))
}

pub(super) fn restart_service(task: &mut Task<'_>, unit: &str) -> Ended {
    let last = task.last_begun().cloned();
    match &last {
        None => {}
        Some(Started { ended: true, failed: Some(why), .. }) => return failed(why),
        Some(Started { ended: true, failed: None, effect, .. }) => {
            return service_seen(task, unit, before(effect));
        }
        Some(Started { ended: false, effect, .. }) => {
            task.wait_for_others()?;
            let now = task.look(|| task.inner.hands.service(unit))?;
            if now.run.is_some() && now.run.as_ref() != before(effect) {
                return service_seen(task, unit, before(effect));
            }
            // Same run: the service was not restarted.
        }
    }
    let boot = boot(task)?;
    emptied(task)?;
    let run = task.look(|| task.inner.hands.service(unit))?.run;
    let inner = task.inner;
    let effect = Effect::RestartService { unit: unit.to_owned(), run: run.clone() };
    let made = task.act(effect, &boot, |alive| inner.hands.restart_service(unit, alive))?;
    if let Err(why) = made {
        return failed(why);
    }
    service_seen(task, unit, run.as_ref())
}

fn before(effect: &Effect) -> Option<&String> {
    match effect {
        Effect::RestartService { run, .. } => run.as_ref(),
        _ => None,
    }
}

/// State of a service after its restart.
fn service_seen(task: &Task<'_>, unit: &str, before: Option<&String>) -> Ended {
    let mut last = String::new();
    for _ in 0..LOOKS_MAX {
        match task.inner.hands.service(unit) {
            Ok(seen) if seen.is_active && seen.run.as_ref() != before => {
                return done(format!("`{unit}` was started anew and is {}", seen.state));
            }
            Ok(seen) => last = seen.state,
            Err(err) => last = err.to_string(),
        }
        if !task.has_time() {
            break;
        }
        task.pause(1)?;
    }
    failed(format!("`{unit}` was started anew, and does not run: {last}"))
}

/// Precondition of every change: a node that is cordoned and idle.
pub(super) fn emptied(task: &Task<'_>) -> Result<(), Abort> {
    if look(task)? == Cordon::None {
        return Err(Abort::because(
            "the node takes new work: it has to be cordoned and drained first",
        ));
    }
    let since = task.since();
    let jobs = task.look(|| task.inner.scheduler.jobs(since))?;
    if jobs.is_empty() {
        return Ok(());
    }
    let jobs: Vec<String> = jobs.into_iter().map(|job| job.text).collect();
    Err(Abort::Because(format!("the node is not empty: {}", listed(&jobs))))
}
