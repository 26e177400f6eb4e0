//! The thread of the node check: decides when to read the node's files, and evaluates them again
//! with each new reading of NVML.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use farrier_hardware::clock;

use super::check::NodeCheck;
use super::drift::Drift;
use super::{CollectorContext, SharedInventory};
use crate::monitor::{Collector, CollectorMessage};

/// The files are read at most this often, unless one of [`WATCHED`] changes.
const PERIOD_MIN: Duration = Collector::CHECK_PERIOD;
const PERIOD_MAX: Duration = Duration::from_secs(600);
/// Between these limits, the period grows with the CPU time of a read, so that reading takes less
/// than 0.05 % of a core.
const PERIOD_PER_COST: u32 = 2000;
/// How often to test whether the driver was loaded, unloaded or replaced, and whether NVML was read
/// again. After each of these changes, the last check is no longer valid.
const POLL: Duration = Duration::from_secs(5);

/// Paths whose modification time changes with packages, firmware, module options, services and
/// device files.
const WATCHED: [&str; 10] = [
    "var/lib/dpkg/status",
    "var/lib/rpm",
    "lib/modules",
    "lib/firmware/nvidia",
    "etc/modprobe.d",
    "etc/systemd/system",
    "etc/cdi",
    "etc/containerd",
    "run/nvidia",
    "dev",
];

pub(super) fn run(context: &CollectorContext, inventory: &SharedInventory) {
    let root = &context.config.root;
    let mut check = NodeCheck::new(root, context.facts);
    let mut drift = Drift::new(context);
    let mut due_at: Option<Instant> = None;
    let mut read_at: Option<Instant> = None;
    let mut heartbeat_at: Option<Instant> = None;
    let mut modified = Vec::new();
    let mut loaded = None;
    let mut nvml = None;
    loop {
        let loaded_now = std::fs::read(root.join("sys/module/nvidia/version")).ok();
        let same_driver = loaded_now == loaded;
        let nvml_now = inventory.node_check();
        let same_nvml = match (&nvml, &nvml_now) {
            (Some(before), Some(now)) => Arc::ptr_eq(before, now),
            (before, now) => before.is_none() && now.is_none(),
        };
        let is_due = due_at.is_none_or(|at| at <= Instant::now());
        let reads_files =
            is_due || !same_driver || has_passed(read_at) && modification_times(root) != modified;
        if !reads_files && same_nvml && !has_passed(heartbeat_at) {
            if context.stop.wait(POLL) {
                return;
            }
            continue;
        }
        if !same_nvml {
            check.set_nvml(nvml_now.clone());
        } else if !same_driver {
            // NVML described the other driver.
            check.set_nvml(None);
        }
        (loaded, nvml) = (loaded_now, nvml_now);
        if reads_files {
            modified = modification_times(root);
            let before = clock::thread_cpu_us();
            check.read_files();
            let cost = Duration::from_micros(clock::thread_cpu_us().saturating_sub(before));
            tracing::debug!(cost_us = cost.as_micros(), "read the node's files");
            let period = (cost * PERIOD_PER_COST).clamp(PERIOD_MIN, PERIOD_MAX);
            due_at = Some(Instant::now() + period);
            read_at = Some(Instant::now());
        }
        if drift.check_if_due() || reads_files || !same_nvml {
            let (mut items, mut skipped) = check.evaluate();
            items.extend(drift.items.iter().cloned());
            skipped.extend(drift.skipped.iter().cloned());
            if context.inbox.send(CollectorMessage::Checked { items, skipped }).is_err() {
                return;
            }
        }
        if context.inbox.send(CollectorMessage::Heartbeat(Collector::Check)).is_err() {
            return;
        }
        heartbeat_at = Some(Instant::now());
    }
}

/// Whether the shortest period has passed since then.
fn has_passed(since: Option<Instant>) -> bool {
    since.is_none_or(|at| at.elapsed() >= PERIOD_MIN)
}

fn modification_times(root: &Path) -> Vec<Option<SystemTime>> {
    let modified =
        |path: &&str| std::fs::metadata(root.join(path)).and_then(|meta| meta.modified()).ok();
    WATCHED.iter().map(modified).collect()
}
