//! The whole node's coherence (V0), all the time: an upgrade is found before the reboot that breaks the node.

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
use super::{Known, Surroundings};
use crate::brain::{Collector, Seen, Unseen};

/// A look that costs less than this is made every minute; a dearer one every ten, and when packages change.
const CHEAP_US: u64 = 20_000;
const OFTEN: Duration = Collector::CHECK_PERIOD;
const SELDOM: Duration = Duration::from_secs(600);
/// How often it is looked whether another driver is loaded, or none: the check before that is of no use then.
const DRIVER: Duration = Duration::from_secs(5);

/// What the check is told of NVML. The agent watches what NVML says itself, with a child that is always there.
const NVML: &str = "the agent watches NVML apart from this";

/// Items that say what NVML would, or whether the driver is loaded.
const OF_NVML: [&str; 4] = ["nvml-silent", "settings-unknown", "gpu-count", "module-not-loaded"];

/// Files that change when packages do.
const PACKAGES: [&str; 3] = ["var/lib/dpkg/status", "var/lib/rpm", "lib/modules"];

/// What works now and is of two versions, or will be after the next boot or load: found before it bites.
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

pub(super) fn run(surroundings: &Surroundings, _known: &Known) {
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
            if surroundings.inbox.send(Seen::Checked { items, unseen }).is_err() {
                return;
            }
        }
        if surroundings.inbox.send(Seen::Alive(Collector::Check)).is_err() {
            return;
        }
        alive_at = Some(Instant::now());
    }
}

/// Judges the node whose files are below `root`, by its files alone.
pub fn look(root: &Path, facts: &FactSet) -> (Vec<CheckItem>, Vec<Unseen>) {
    let root = Root::unrecorded(root);
    let nvml = NvmlReading::NotAsked { why: NVML.to_owned() };
    let observation = observe::observe(&root, nvml, &PythonChoice::for_root(None));
    let report = node::evaluate(facts, &observation, today(), false);
    let mut items = Vec::new();
    let mut unseen = Vec::new();
    for item in report.items.into_iter().filter(is_ours) {
        match item.verdict {
            Verdict::Ok => (),
            Verdict::Unknown => unseen.push(Unseen { code: item.code.to_owned(), why: item.text }),
            Verdict::Caveat | Verdict::Blocked => items.push(check_item(item)),
        }
    }
    (items, unseen)
}

/// Jobs bring their own Python; what NVML would say, and whether the driver is loaded, is watched by rules of its own.
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

/// Today, in UTC.
pub(crate) fn today() -> Date {
    jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date()
}
