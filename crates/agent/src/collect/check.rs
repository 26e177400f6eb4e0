//! Continuous check (V0) of the whole node, with the values that `farrier check` reads: finds a bad
//! upgrade before the reboot that would break the node, and settings that keep work from running.

use std::path::Path;
use std::sync::Arc;

use farrier_facts::FactSet;
use farrier_facts::check::Verdict;
use farrier_facts::node::{self, Item, NodeObservation, Nvml, NvmlReading};
use farrier_fleet::health::{Action, CheckItem, Finding, FindingKind, Severity};
use farrier_hardware::python::PythonChoice;
use farrier_hardware::{Root, observe};
use jiff::civil::Date;

use crate::monitor::SkippedCheck;

/// Why the check has no reading of NVML. The NVML collector reports what is wrong.
const NVML: &str = "the NVML collector has no reading yet";

/// Checks that depend on whether NVML answers, or on whether the driver is loaded. Rules watch both
/// every few seconds.
const NVML_CHECKS: [&str; 4] =
    ["nvml-silent", "settings-unknown", "gpu-count", "module-not-loaded"];

/// Items about a state that may last less than a second. The agent reports them if two readings in
/// a row, a minute apart, have them.
const MOMENTARY: [&str; 2] = ["hardware-slowdown", "pcie-slow"];

/// Items that rules report as well, usually sooner and for each GPU. While such a rule has a
/// finding that is at least as severe, the item is not reported again.
const REPORTED_BY: [(&str, &[&str]); 16] = [
    // Without the driver, nvidia-uvm is not loaded either.
    ("uvm-not-loaded", &["driver.not-loaded"]),
    ("gpu-unreachable", &["gpu.lost", "gpu.reset-required", "gpu.unreadable", "node.gpus-unseen"]),
    (
        "recovery-needed",
        &[
            "gpu.recovery-reset",
            "gpu.recovery-reboot",
            "gpu.recovery-drain-and-reset",
            "gpu.recovery-other",
        ],
    ),
    ("row-remap-failed", &["gpu.rows-failed"]),
    ("row-remap-pending", &["gpu.rows-pending"]),
    ("ecc-uncorrected", &["gpu.ecc-uncorrected"]),
    ("ecc-off", &["gpu.ecc-off"]),
    ("persistence-off", &["gpu.persistence-off"]),
    ("power-limit-lowered", &["gpu.power-limit-low"]),
    ("pcie-narrow", &["gpu.pcie-narrow", "gpu.pcie-below-peers"]),
    ("pcie-slow", &["gpu.pcie-slow"]),
    (
        "hardware-slowdown",
        &["gpu.slowdown-thermal", "gpu.slowdown-power-brake", "gpu.slowdown-hardware"],
    ),
    ("nvlink-down", &["link.down"]),
    ("fabric-not-joined", &["gpu.fabric-not-ready", "gpu.fabric-failed"]),
    ("nvml-mismatch", &["driver.nvml-silent"]),
    ("file-system-read-only", &["host.read-only"]),
];

/// Version mismatches that are harmless now, or that take effect at the next boot or module load.
pub(crate) const COHERENCE: [&str; 14] = [
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
    "module-load-disabled",
    "uvm-next-boot-differs",
];

/// Caveats that get worse without action.
const WARNINGS: [&str; 2] = ["clock-unsynchronised", "disk-nearly-full"];

/// The node's files and NVML's values as last read, and the momentary items of the last evaluation.
pub struct NodeCheck {
    root: Root,
    facts: &'static FactSet,
    observation: Option<NodeObservation>,
    nvml: Option<Arc<Nvml>>,
    /// Momentary items of the reading of NVML before this one, and of this one.
    momentary_before: Vec<&'static str>,
    momentary: Vec<&'static str>,
}

impl NodeCheck {
    /// The node whose files are below `root`.
    pub fn new(root: &Path, facts: &'static FactSet) -> Self {
        Self {
            root: Root::unrecorded(root),
            facts,
            observation: None,
            nvml: None,
            momentary_before: Vec::new(),
            momentary: Vec::new(),
        }
    }

    /// Sets a new reading of NVML. `None` if the last one is no longer valid.
    pub fn set_nvml(&mut self, nvml: Option<Arc<Nvml>>) {
        self.momentary_before = std::mem::take(&mut self.momentary);
        self.nvml = nvml;
    }

    /// Reads the node's files.
    pub fn read_files(&mut self) {
        let nvml = NvmlReading::NotAsked { why: NVML.to_owned() };
        let python = PythonChoice::for_root(None);
        self.observation = Some(observe::observe(&self.root, nvml, &python));
    }

    /// Evaluates the files and NVML's values. Returns the problems, and the checks without a
    /// result.
    pub fn evaluate(&mut self) -> (Vec<CheckItem>, Vec<SkippedCheck>) {
        if self.observation.is_none() {
            self.read_files();
        }
        let Some(observation) = &mut self.observation else { return Default::default() };
        observation.nvml = match &self.nvml {
            Some(nvml) => NvmlReading::Answered(Nvml::clone(nvml)),
            None => NvmlReading::NotAsked { why: NVML.to_owned() },
        };
        let report = node::evaluate(self.facts, observation, today(), false);
        let mut items = Vec::new();
        let mut skipped = Vec::new();
        self.momentary.clear();
        for item in report.items.into_iter().filter(is_relevant) {
            match item.verdict {
                Verdict::Ok => (),
                Verdict::Unknown => {
                    skipped.push(SkippedCheck { code: item.code.to_owned(), reason: item.text });
                }
                Verdict::Caveat | Verdict::Blocked if MOMENTARY.contains(&item.code) => {
                    self.momentary.push(item.code);
                    if self.momentary_before.contains(&item.code) {
                        items.push(check_item(item));
                    }
                }
                Verdict::Caveat | Verdict::Blocked => items.push(check_item(item)),
            }
        }
        (items, skipped)
    }
}

/// Removes the items that an open finding of a rule already reports with at least their severity.
pub fn drop_reported<'f>(items: &mut Vec<CheckItem>, findings: impl Iterator<Item = &'f Finding>) {
    let faults: Vec<&Finding> =
        findings.filter(|finding| finding.kind == FindingKind::Fault).collect();
    items.retain(|item| {
        let rules = REPORTED_BY.iter().find(|(code, _)| *code == item.code);
        let Some((_, rules)) = rules else { return true };
        !faults.iter().any(|finding| {
            finding.severity >= item.severity && rules.contains(&finding.code.as_str())
        })
    });
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
    } else if WARNINGS.contains(&item.code) {
        Severity::Warning
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

#[cfg(test)]
mod tests {
    use farrier_fleet::health::Rules;

    use super::*;

    #[test]
    fn every_covering_rule_exists() {
        let rules = Rules::embedded().unwrap();
        for (item, codes) in REPORTED_BY {
            for code in codes {
                assert!(rules.get(code).is_some(), "{item}: there is no rule `{code}`");
            }
        }
    }
}
