//! What speaks against a node.

use crate::fleet::order::VerificationLevel;
use crate::fleet::reason::Reason;
use crate::fleet::state::{FaultKey, Node, NodePhase};
use crate::health::{Action, Finding, FindingKind, GpuUuid, Severity};

/// The worst findings that a reason names. Each decision is an entry of the log, so a node with thousands must not make each one large.
const FINDINGS_MAX: usize = 16;

/// How much speaks against a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Impact {
    /// Nothing.
    None,
    /// It may be unfit, or nobody knows.
    Suspect,
    /// It is unfit.
    Unfit,
}

/// What speaks against a node, and what would help.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct HealthAssessment {
    pub(super) weight: Impact,
    /// The most that any of it asks for.
    pub(super) action: Action,
    /// The GPU that is to be reset, where the action is that.
    pub(super) gpu: Option<GpuUuid>,
    /// The worst of it, as [`Node::faults`] has it; none where nothing is known to be wrong.
    pub(super) fault: Option<FaultKey>,
    /// The codes of the findings that weigh.
    pub(super) codes: Vec<String>,
    /// What it is; none where nothing speaks against the node.
    reason: Option<Reason>,
}

impl HealthAssessment {
    pub(super) fn of(node: &Node) -> Self {
        let weighed = node.findings().values().map(|finding| (weight(finding), finding));
        let mut worst: Vec<(Impact, &Finding)> =
            weighed.filter(|(it, _)| *it > Impact::None).collect();
        worst.sort_by_key(|(weight, finding)| {
            (std::cmp::Reverse((*weight, finding.action)), finding.id)
        });
        let mut assessment = Self {
            weight: worst.first().map_or(Impact::None, |(weight, _)| *weight),
            action: worst.first().map_or(Action::Ignore, |(_, finding)| finding.action),
            gpu: worst.first().and_then(|(_, finding)| finding.subject.gpu().cloned()),
            fault: worst.first().map(|(_, finding)| FaultKey::of(finding)),
            codes: worst.iter().map(|(_, finding)| finding.code.clone()).collect(),
            reason: worst.first().map(|(_, finding)| Reason::OpenFindings {
                worst: node.summary(finding),
                more: u32::try_from(worst.len() - 1).unwrap_or(u32::MAX),
                findings: worst.iter().take(FINDINGS_MAX).map(|(_, it)| it.id).collect(),
            }),
        };
        assessment.add_failed_verification(node);
        if assessment.weight == Impact::None {
            assessment.suspect_unknown_state(node);
        }
        assessment
    }

    /// A proof that was not passed speaks against a node for itself, whether there is a finding or not. One that joins is tried again.
    fn add_failed_verification(&mut self, node: &Node) {
        let Some(failure) = node.verification.failure() else { return };
        if self.weight == Impact::Unfit || node.phase() == NodePhase::Joining {
            return;
        }
        self.weight = Impact::Unfit;
        // What is loaded and what is on disk are the same after a boot.
        let helps = if failure.level == VerificationLevel::V0 {
            Action::RebootNode
        } else {
            Action::Investigate
        };
        self.action = self.action.max(helps);
        self.fault = Some(failure.fault());
        let findings = self.reason.as_ref().map(|it| it.findings().to_vec()).unwrap_or_default();
        self.reason = Some(failure.reason(findings));
    }

    /// Why the node is unfit or in doubt.
    pub(super) fn reason(&self) -> Reason {
        self.reason.clone().unwrap_or(Reason::FindingsCleared { verifying: false })
    }

    fn suspect_unknown_state(&mut self, node: &Node) {
        self.reason =
            Some(match (node.liveness.heartbeat_lost_since(), node.reported_inventory()) {
                (Some(since), _) => Reason::HeartbeatLost { since },
                _ if node.reports.unreadable_since().is_some() => Reason::FindingsUnreadable,
                (None, None) => Reason::InventoryUnknown,
                (None, Some(inventory)) if inventory.gpus.is_none() => Reason::GpusUnreadable,
                (None, Some(_)) => return,
            });
        self.weight = Impact::Suspect;
    }
}

/// Whether a finding keeps a node from service, or brings it into doubt.
pub fn affects_service(finding: &Finding) -> bool {
    weight(finding) > Impact::None
}

fn weight(finding: &Finding) -> Impact {
    let takes_it_out = finding.action >= Action::Investigate;
    match (finding.kind, finding.severity) {
        (FindingKind::Fault, Severity::Critical | Severity::Fatal) if takes_it_out => Impact::Unfit,
        (FindingKind::Fault, Severity::Warning) if finding.action >= Action::ResetGpu => {
            Impact::Suspect
        }
        _ => Impact::None,
    }
}
