//! Faults of simulated fleet nodes, and the repairs that clear them.

use farrier_fleet::health::finding::ActionBy;
use farrier_fleet::health::{Action, Finding, FindingKind, GpuUuid, Severity, Subject};
use jiff::Timestamp;

use crate::rng::SeededRng;

/// The repair that clears a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Repair {
    /// The fault clears without intervention.
    SelfClearing {
        after_s: u32,
    },
    Reset,
    Reboot,
    /// A technician replaces the component.
    ReplacePart,
}

/// A type of fault, with the code and action of the matching agent rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeFault {
    /// Rule code.
    pub code: &'static str,
    /// Distinguishes faults with the same code.
    pub detail: &'static str,
    pub text: &'static str,
    pub severity: Severity,
    /// Action that the rule recommends.
    pub action: Action,
    /// Repair that clears the fault. The rule does not know this repair, so the action of the rule
    /// may differ.
    pub repair: Repair,
    /// Frequency relative to the other faults.
    weight: u64,
}

/// Random faults of single nodes. The frequencies follow Meta's Llama 3 run, where GPUs and their
/// memory caused about half of all interruptions (arXiv 2407.21783, table 5). The frequencies are
/// an input of the simulation, not a forecast.
const NODE_FAULTS: [NodeFault; 7] = [
    NodeFault {
        code: "gpu.xid",
        detail: "Xid 79",
        text: "the GPU has fallen off the bus",
        severity: Severity::Fatal,
        action: Action::RebootNode,
        repair: Repair::Reboot,
        weight: 20,
    },
    NodeFault {
        code: "gpu.xid",
        detail: "Xid 48",
        text: "uncorrectable memory error",
        severity: Severity::Fatal,
        action: Action::ResetGpu,
        repair: Repair::Reset,
        weight: 30,
    },
    NodeFault {
        code: "gpu.xid",
        detail: "Xid 119",
        text: "GSP RPC timeout",
        severity: Severity::Fatal,
        action: Action::ResetGpu,
        repair: Repair::Reboot,
        weight: 15,
    },
    NodeFault {
        code: "gpu.rows-failed",
        detail: "",
        text: "no spare memory rows left",
        severity: Severity::Fatal,
        action: Action::DrainAndReplace,
        repair: Repair::ReplacePart,
        weight: 5,
    },
    NodeFault {
        code: "gpu.slowdown-thermal",
        detail: "",
        text: "thermal slowdown",
        severity: Severity::Critical,
        action: Action::Investigate,
        repair: Repair::SelfClearing { after_s: 900 },
        weight: 10,
    },
    NodeFault {
        code: "nic.flapping",
        detail: "",
        text: "the port is flapping",
        severity: Severity::Warning,
        action: Action::Investigate,
        repair: Repair::SelfClearing { after_s: 600 },
        weight: 15,
    },
    NodeFault {
        code: "gpu.ecc-corrected-storm",
        detail: "",
        text: "high rate of corrected memory errors",
        severity: Severity::Warning,
        action: Action::ResetGpu,
        repair: Repair::SelfClearing { after_s: 300 },
        weight: 5,
    },
];

/// The fault that all nodes behind a failed leaf switch get.
pub(super) const LEAF_SWITCH_FAILURE: NodeFault = NodeFault {
    code: "nic.down",
    detail: "",
    text: "the port is down",
    severity: Severity::Critical,
    action: Action::Investigate,
    repair: Repair::SelfClearing { after_s: 1800 },
    weight: 0,
};

impl NodeFault {
    /// Draws a random fault according to the frequencies.
    pub(super) fn random(rng: &mut SeededRng) -> Self {
        let mut remaining = rng.below(NODE_FAULTS.iter().map(|fault| fault.weight).sum());
        for fault in NODE_FAULTS {
            match remaining.checked_sub(fault.weight) {
                Some(rest) => remaining = rest,
                None => return fault,
            }
        }
        NODE_FAULTS[0]
    }

    /// Finds a fault by code and detail, for scripted scenarios.
    pub fn by_code(code: &str, detail: &str) -> Option<Self> {
        let mut all = NODE_FAULTS.into_iter().chain([LEAF_SWITCH_FAILURE]);
        all.find(|fault| fault.code == code && fault.detail == detail)
    }

    /// The finding that the agent would report.
    pub fn finding(&self, id: u64, gpu: &GpuUuid, at: Timestamp) -> Finding {
        let subject = if self.code.starts_with("nic.") {
            Subject::Nic { device: "mlx5_0".to_owned(), port: 1 }
        } else {
            Subject::Gpu(gpu.clone())
        };
        Finding {
            id,
            code: self.code.to_owned(),
            detail: self.detail.to_owned(),
            subject,
            kind: FindingKind::Fault,
            severity: self.severity,
            default_severity: None,
            text: self.text.to_owned(),
            action: self.action,
            remedy: None,
            rule_action: self.action,
            action_by: ActionBy::Rule,
            evidence: Vec::new(),
            first_seen: at,
            last_seen: at,
            opened_in: None,
            last_in: None,
            count: 1,
            clears_when: "when the fault is repaired".to_owned(),
            cleared: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use farrier_fleet::health::Rules;

    use super::*;

    #[test]
    fn every_fault_has_a_rule() {
        let rules = Rules::embedded().unwrap();
        for fault in NODE_FAULTS.iter().chain([&LEAF_SWITCH_FAILURE]) {
            assert!(rules.iter().any(|rule| rule.code == fault.code), "{}", fault.code);
        }
    }

    #[test]
    fn faults_are_found_by_code_and_detail() {
        let lost = NodeFault::by_code("gpu.xid", "Xid 79").unwrap();
        assert_eq!(lost.repair, Repair::Reboot);
        assert_eq!(NodeFault::by_code("gpu.xid", "Xid 80"), None);
    }
}
