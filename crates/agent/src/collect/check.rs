//! Continuous check (V0) of the whole node, with the same values that `farrier check` reads. It
//! finds a faulty upgrade before the next reboot would break the node. It also finds settings that
//! keep work from running.

use std::path::Path;
use std::sync::Arc;

use farrier_facts::FactSet;
use farrier_facts::check::Verdict;
use farrier_facts::node::{
    self, Area, CaveatSeverity, ITEMS, Item, NodeObservation, Nvml, NvmlReading,
};
use farrier_fleet::health::{Action, CheckItem, Finding, FindingKind, Severity};
use farrier_hardware::python::PythonChoice;
use farrier_hardware::{Root, observe};
use jiff::civil::Date;

use crate::monitor::SkippedCheck;

/// Why the check has no reading of NVML. The NVML collector reports what is wrong.
const NVML: &str = "the NVML collector has no reading yet";

/// The last reading of the node's files and of NVML, and the momentary items of the last
/// evaluation. A momentary item is a problem that may be gone at the next reading.
pub struct NodeCheck {
    root: Root,
    facts: &'static FactSet,
    observation: Option<NodeObservation>,
    nvml: Option<Arc<Nvml>>,
    /// Momentary items of the previous and of the latest reading of NVML.
    momentary_before: Vec<&'static str>,
    momentary: Vec<&'static str>,
}

impl NodeCheck {
    /// Creates the check of the node whose files are below `root`.
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

    /// Sets a new reading of NVML. `None` means that the last reading is no longer valid.
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
                Verdict::Caveat | Verdict::Blocked if item.monitoring.is_momentary => {
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

/// Removes items for which a rule already has an open finding of at least the same severity.
pub fn drop_reported<'f>(items: &mut Vec<CheckItem>, findings: impl Iterator<Item = &'f Finding>) {
    let faults: Vec<&Finding> =
        findings.filter(|finding| finding.kind == FindingKind::Fault).collect();
    items.retain(|item| {
        let known = ITEMS.iter().find(|(code, _)| *code == item.code);
        let Some((_, monitoring)) = known else { return true };
        !faults.iter().any(|finding| {
            finding.severity >= item.severity
                && monitoring.reported_by.contains(&finding.code.as_str())
        })
    });
}

/// Whether the continuous check uses an item. Checks of Python and frameworks are skipped, because
/// jobs bring their own versions. Checks of NVML and the driver module are skipped, because rules
/// watch these.
fn is_relevant(item: &Item) -> bool {
    item.monitoring.area != Area::Job && !item.monitoring.is_left_to_rules
}

fn check_item(item: Item) -> CheckItem {
    let severity = match (item.monitoring.severity, item.verdict) {
        (CaveatSeverity::Coherence, _) => Severity::Warning,
        (_, Verdict::Blocked) => Severity::Critical,
        (CaveatSeverity::Warning, _) => Severity::Warning,
        (CaveatSeverity::Info, _) => Severity::Info,
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
    fn every_rule_that_reports_an_item_exists() {
        let rules = Rules::embedded().unwrap();
        for (item, monitoring) in ITEMS {
            for code in monitoring.reported_by {
                assert!(rules.get(code).is_some(), "{item}: there is no rule `{code}`");
            }
        }
    }
}
