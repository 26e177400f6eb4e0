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
use super::{CollectorContext, Known};
use crate::monitor::{Collector, CollectorMessage, SkippedCheck};

/// A check cheaper than this runs every minute. A costlier one runs every ten, and when packages
/// change.
const CHEAP_US: u64 = 20_000;
const OFTEN: Duration = Collector::CHECK_PERIOD;
const SELDOM: Duration = Duration::from_secs(600);
/// How often to test whether the driver was loaded, unloaded or replaced. Each invalidates the last
/// check.
const DRIVER: Duration = Duration::from_secs(5);

/// The check gets no NVML reading: the agent monitors NVML itself, with a child that is always
/// there.
const NVML: &str = "the agent watches NVML apart from this";

/// Checks that depend on NVML, or on whether the driver is loaded.
const OF_NVML: [&str; 4] = ["nvml-silent", "settings-unknown", "gpu-count", "module-not-loaded"];

/// Paths whose modification time changes with package changes.
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

pub(super) fn run(surroundings: &CollectorContext, _known: &Known) {
    let root = &surroundings.config.root;
    let mut last: Option<(Instant, Duration)> = None;
    let mut alive_at: Option<Instant> = None;
    let mut stamps = Vec::new();
    let mut loaded = None;
    let mut drift = Drift::of(surroundings);
    loop {
        let now_loaded = std::fs::read(root.join("sys/module/nvidia/version")).ok();
        let same = now_loaded == loaded;
        if same && alive_at.is_some_and(|at| at.elapsed() < OFTEN) {
            if surroundings.stop.wait(DRIVER) {
                return;
            }
            continue;
        }
        loaded = now_loaded;
        let now_stamps: Vec<_> = PACKAGES
            .iter()
            .map(|file| std::fs::metadata(root.join(file)).and_then(|it| it.modified()).ok())
            .collect();
        let due = last.is_none_or(|(at, period)| at.elapsed() >= period);
        let drifted = drift.look_if_due();
        if due || !same || drifted || now_stamps != stamps {
            stamps = now_stamps;
            let before = clock::thread_cpu_us();
            let (mut items, mut unseen) = look(root, surroundings.facts);
            let cost_us = clock::thread_cpu_us() - before;
            tracing::debug!(cost_us, "the node was checked");
            let period = if cost_us < CHEAP_US { OFTEN } else { SELDOM };
            last = Some((Instant::now(), period));
            items.extend(drift.items.iter().cloned());
            unseen.extend(drift.unseen.iter().cloned());
            if surroundings.inbox.send(CollectorMessage::Checked { items, unseen }).is_err() {
                return;
            }
        }
        if surroundings.inbox.send(CollectorMessage::Alive(Collector::Check)).is_err() {
            return;
        }
        alive_at = Some(Instant::now());
    }
}

/// Checks the node whose files are below `root`, from its files alone.
pub fn look(root: &Path, facts: &FactSet) -> (Vec<CheckItem>, Vec<SkippedCheck>) {
    let root = Root::unrecorded(root);
    let nvml = NvmlReading::NotAsked { why: NVML.to_owned() };
    let observation = observe::observe(&root, nvml, &PythonChoice::for_root(None));
    let report = node::evaluate(facts, &observation, today(), false);
    let mut items = Vec::new();
    let mut unseen = Vec::new();
    for item in report.items.into_iter().filter(is_ours) {
        match item.verdict {
            Verdict::Ok => (),
            Verdict::Unknown => {
                unseen.push(SkippedCheck { code: item.code.to_owned(), why: item.text })
            }
            Verdict::Caveat | Verdict::Blocked => items.push(check_item(item)),
        }
    }
    (items, unseen)
}

/// Skips Python and framework checks, since jobs bring their own. Separate rules watch NVML and the
/// driver module.
fn is_ours(item: &Item) -> bool {
    let framework = ["framework-", "python-", "cuda-"];
    !framework.iter().any(|prefix| item.code.starts_with(prefix)) && !OF_NVML.contains(&item.code)
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
