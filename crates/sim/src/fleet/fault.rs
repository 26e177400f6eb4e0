//! What befalls simulated nodes, and what matches it.

use farrier_fleet::health::finding::ActionBy;
use farrier_fleet::health::{Action, Finding, FindingKind, GpuUuid, Severity, Subject};
use jiff::Timestamp;

use crate::rng::SeededRng;

/// What makes a fault go away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Repair {
    /// It passes.
    SelfClearing {
        /// After this long.
        after_s: u32,
    },
    /// A reset of the GPU.
    Reset,
    /// A reboot.
    Reboot,
    /// Nothing but a person with a spare part.
    ReplacePart,
}

/// A kind of fault. Codes and actions are those of the agent's rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeFault {
    /// The rule's code.
    pub code: &'static str,
    /// What tells it from others of the code.
    pub detail: &'static str,
    /// In words.
    pub text: &'static str,
    /// How bad.
    pub severity: Severity,
    /// What the rule asks for.
    pub action: Action,
    /// What would really help, which the rule does not know.
    pub repair: Repair,
    /// How often, against the others.
    weight: u64,
}

/// What a node may meet by itself. The shares follow Meta's Llama 3 run, where GPUs and their memory were about half of all interruptions
/// (arXiv 2407.21783, table 5); they are the simulation's, and no forecast.
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
        text: "an error of memory that could not be corrected",
        severity: Severity::Fatal,
        action: Action::ResetGpu,
        repair: Repair::Reset,
        weight: 30,
    },
    NodeFault {
        code: "gpu.xid",
        detail: "Xid 119",
        text: "the GPU's own processor does not answer",
        severity: Severity::Fatal,
        action: Action::ResetGpu,
        repair: Repair::Reboot,
        weight: 15,
    },
    NodeFault {
        code: "gpu.rows-failed",
        detail: "",
        text: "no spare row of memory is left",
        severity: Severity::Fatal,
        action: Action::DrainAndReplace,
        repair: Repair::ReplacePart,
        weight: 5,
    },
    NodeFault {
        code: "gpu.slowdown-thermal",
        detail: "",
        text: "the GPU is too hot and holds its clocks down",
        severity: Severity::Critical,
        action: Action::Investigate,
        repair: Repair::SelfClearing { after_s: 900 },
        weight: 10,
    },
    NodeFault {
        code: "nic.flapping",
        detail: "",
        text: "the port goes down and up again",
        severity: Severity::Warning,
        action: Action::Investigate,
        repair: Repair::SelfClearing { after_s: 600 },
        weight: 15,
    },
    NodeFault {
        code: "gpu.ecc-corrected-storm",
        detail: "",
        text: "errors of memory are corrected again and again",
        severity: Severity::Warning,
        action: Action::ResetGpu,
        repair: Repair::SelfClearing { after_s: 300 },
        weight: 5,
    },
];

/// What all nodes of a leaf switch meet when it fails.
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
    /// One of them.
    pub(super) fn random(rng: &mut SeededRng) -> Self {
        let mut left = rng.below(NODE_FAULTS.iter().map(|fault| fault.weight).sum());
        for fault in NODE_FAULTS {
            match left.checked_sub(fault.weight) {
                Some(rest) => left = rest,
                None => return fault,
            }
        }
        NODE_FAULTS[0]
    }

    /// The fault of a code and detail, for a story that is written beforehand.
    pub fn by_code(code: &str, detail: &str) -> Option<Self> {
        let mut all = NODE_FAULTS.into_iter().chain([LEAF_SWITCH_FAILURE]);
        all.find(|fault| fault.code == code && fault.detail == detail)
    }

    /// What the node's agent would say of it.
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
            own_severity: None,
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
            clears: "it is mended".to_owned(),
            cleared: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use farrier_fleet::health::Rules;

    use super::*;

    #[test]
    fn every_trouble_is_one_that_a_rule_finds() {
        let rules = Rules::embedded().unwrap();
        for fault in NODE_FAULTS.iter().chain([&LEAF_SWITCH_FAILURE]) {
            assert!(rules.iter().any(|rule| rule.code == fault.code), "{}", fault.code);
        }
    }

    #[test]
    fn a_trouble_has_a_name_for_stories() {
        let lost = NodeFault::by_code("gpu.xid", "Xid 79").unwrap();
        assert_eq!(lost.repair, Repair::Reboot);
        assert_eq!(NodeFault::by_code("gpu.xid", "Xid 80"), None);
    }
}
