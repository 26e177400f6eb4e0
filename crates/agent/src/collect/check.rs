//! Continuous coherence check (V0) of the whole node: finds a bad upgrade before the reboot that
//! would break the node.

use std::path::Path;
use std::time::{Duration, Instant};

use farrier_facts::FactSet;
use farrier_facts::check::Verdict;
use farrier_facts::node::{self, Item, NvmlReading};
use farrier_fleet::health::{Action, CheckItem, Severity};
use farrier_hardware::python::PythonChoice;
use farrier_hardware::{Root, clock, observe};
use jiff::civil::Date;

use super::drift::Drift;
use super::{CollectorContext, SharedInventory};
use crate::monitor::{Collector, CollectorMessage, SkippedCheck};

/// A check that costs less CPU time than this repeats every `SHORT_PERIOD`, a costlier one every
/// `LONG_PERIOD`. A change of the driver, of packages or of drift starts a check earlier.
const CHEAP_CPU_US: u64 = 20_000;
const SHORT_PERIOD: Duration = Collector::CHECK_PERIOD;
const LONG_PERIOD: Duration = Duration::from_secs(600);
/// How often to test whether the driver was loaded, unloaded or replaced. After each of these
/// changes, the last check is no longer valid.
const DRIVER_POLL: Duration = Duration::from_secs(5);

/// Why the check does not read NVML. The NVML collector reads it, in a child process that keeps
/// running.
const NVML: &str = "the agent monitors NVML separately";

/// Checks that depend on NVML, or on whether the driver is loaded.
const NVML_CHECKS: [&str; 4] =
    ["nvml-silent", "settings-unknown", "gpu-count", "module-not-loaded"];

/// Paths whose modification time changes when a package is installed, updated or removed.
const PACKAGES: [&str; 3] = ["var/lib/dpkg/status", "var/lib/rpm", "lib/modules"];

/// Version mismatches that are harmless now, or that take effect at the next boot or module load.
pub(crate) const COHERENCE: [&str; 12] = [
    "module-on-disk-differs",
    "module-on-disk-missing",
    "packages-version-differs",
    "packages-versions-mixed",
    "dkms-differs",
    "dkms-not-built",
    "reboot-required",
    "cdi-stale",
    "library-stray",
    "next-kernel-without-module",
    "next-boot-mismatch",
    "fabric-manager-not-enabled",
];

pub(super) fn run(context: &CollectorContext, _inventory: &SharedInventory) {
    let root = &context.config.root;
    let mut last: Option<(Instant, Duration)> = None;
    let mut heartbeat_at: Option<Instant> = None;
    let mut modified = Vec::new();
    let mut loaded = None;
    let mut drift = Drift::new(context);
    loop {
        let loaded_now = std::fs::read(root.join("sys/module/nvidia/version")).ok();
        let same_driver = loaded_now == loaded;
        if same_driver && heartbeat_at.is_some_and(|at| at.elapsed() < SHORT_PERIOD) {
            if context.stop.wait(DRIVER_POLL) {
                return;
            }
            continue;
        }
        loaded = loaded_now;
        let modified_now: Vec<_> = PACKAGES
            .iter()
            .map(|file| std::fs::metadata(root.join(file)).and_then(|meta| meta.modified()).ok())
            .collect();
        let due = last.is_none_or(|(at, period)| at.elapsed() >= period);
        let drift_changed = drift.check_if_due();
        if due || !same_driver || drift_changed || modified_now != modified {
            modified = modified_now;
            let before = clock::thread_cpu_us();
            let (mut items, mut skipped) = check_node(root, context.facts);
            let cost_us = clock::thread_cpu_us() - before;
            tracing::debug!(cost_us, "checked the node");
            let period = if cost_us < CHEAP_CPU_US { SHORT_PERIOD } else { LONG_PERIOD };
            last = Some((Instant::now(), period));
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

/// Checks the node whose files are below `root`, and reads only these files.
pub fn check_node(root: &Path, facts: &FactSet) -> (Vec<CheckItem>, Vec<SkippedCheck>) {
    let root = Root::unrecorded(root);
    let nvml = NvmlReading::NotAsked { why: NVML.to_owned() };
    let observation = observe::observe(&root, nvml, &PythonChoice::for_root(None));
    let report = node::evaluate(facts, &observation, today(), false);
    let mut items = Vec::new();
    let mut skipped = Vec::new();
    for item in report.items.into_iter().filter(is_relevant) {
        match item.verdict {
            Verdict::Ok => (),
            Verdict::Unknown => {
                skipped.push(SkippedCheck { code: item.code.to_owned(), reason: item.text });
            }
            Verdict::Caveat | Verdict::Blocked => items.push(check_item(item)),
        }
    }
    (items, skipped)
}

/// Skips checks of Python and frameworks, because jobs bring their own. Also skips checks of NVML
/// and the driver module, because separate rules watch them.
fn is_relevant(item: &Item) -> bool {
    let prefixes = ["framework-", "python-", "cuda-"];
    !prefixes.iter().any(|prefix| item.code.starts_with(prefix))
        && !NVML_CHECKS.contains(&item.code)
}

fn check_item(item: Item) -> CheckItem {
    let severity = if COHERENCE.contains(&item.code) {
        Severity::Warning
    } else if item.verdict == Verdict::Blocked {
        Severity::Critical
    } else {
        Severity::Info
    };
    CheckItem {
        code: item.code.to_owned(),
        severity,
        action: Action::Investigate,
        text: item.text,
        remedy: item.remedy,
    }
}

pub(crate) fn today() -> Date {
    jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date()
}
