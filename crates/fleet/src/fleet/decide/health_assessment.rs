//! Health assessment: what open findings, failed verifications and missing data mean for the
//! service of a node.

use jiff::Timestamp;

use crate::fleet::order::VerificationLevel;
use crate::fleet::policy::PoolPolicy;
use crate::fleet::reason::Reason;
use crate::fleet::state::{FaultKey, Node, NodePhase};
use crate::health::{Action, Finding, FindingKind, GpuUuid, Severity};

/// Maximum number of findings that a reason lists. Every decision is a log entry, and a node may
/// have thousands of findings. The limit keeps the entries small.
const FINDINGS_MAX: usize = 16;

/// Impact on service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Impact {
    /// The node stays in service.
    None,
    /// The node may be unfit, or its state is unknown.
    Suspect,
    Unfit,
}

/// The faults of a node, and the action that may repair them.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct HealthAssessment {
    pub(super) impact: Impact,
    /// The action of the worst fault, or a stronger one that a failed verification requires.
    pub(super) action: Action,
    /// The GPU of the worst fault. It is reset if the action is a GPU reset.
    pub(super) gpu: Option<GpuUuid>,
    /// The worst fault, as in [`Node::faults`]. `None` if no fault is known.
    pub(super) fault: Option<FaultKey>,
    /// Codes of the findings that affect service.
    pub(super) codes: Vec<String>,
    /// `None` if nothing is wrong.
    reason: Option<Reason>,
}

impl HealthAssessment {
    pub(super) fn new(node: &Node, pool: &PoolPolicy, now: Timestamp) -> Self {
        let assessed = node.findings().values().map(|finding| (finding_impact(finding), finding));
        let mut worst: Vec<(Impact, &Finding)> =
            assessed.filter(|(impact, _)| *impact > Impact::None).collect();
        worst.sort_by_key(|(impact, finding)| {
            (std::cmp::Reverse((*impact, finding.action)), finding.id)
        });
        let mut assessment = Self {
            impact: worst.first().map_or(Impact::None, |(impact, _)| *impact),
            action: worst.first().map_or(Action::Ignore, |(_, finding)| finding.action),
            gpu: worst.first().and_then(|(_, finding)| finding.subject.gpu().cloned()),
            fault: worst.first().map(|(_, finding)| FaultKey::from_finding(finding)),
            codes: worst.iter().map(|(_, finding)| finding.code.clone()).collect(),
            reason: worst.first().map(|(_, finding)| Reason::OpenFindings {
                worst: node.summary(finding),
                more: u32::try_from(worst.len() - 1).unwrap_or(u32::MAX),
                findings: worst.iter().take(FINDINGS_MAX).map(|(_, finding)| finding.id).collect(),
            }),
        };
        assessment.add_failed_verification(node);
        if assessment.impact == Impact::None {
            assessment.suspect_unknown_state(node);
        }
        if assessment.impact == Impact::None {
            assessment.suspect_missing_coverage(node, pool, now);
        }
        assessment
    }

    /// A failed verification counts as a separate fault, even without a finding. This does not
    /// apply to a joining node, because that node is verified again.
    fn add_failed_verification(&mut self, node: &Node) {
        let Some(failure) = node.verification.failure() else { return };
        if self.impact == Impact::Unfit || node.phase() == NodePhase::Joining {
            return;
        }
        self.impact = Impact::Unfit;
        // V0 fails if the loaded driver differs from the driver on disk. A reboot loads the driver
        // on disk.
        let repair_action = if failure.level == VerificationLevel::V0 {
            Action::RebootNode
        } else {
            Action::Investigate
        };
        self.action = self.action.max(repair_action);
        self.fault = Some(failure.fault());
        let findings =
            self.reason.as_ref().map(|reason| reason.findings().to_vec()).unwrap_or_default();
        self.reason = Some(failure.reason(findings));
    }

    /// Whether the only problem of the node is that something cannot be read.
    pub(super) fn is_missing_coverage(&self) -> bool {
        self.reason.as_ref().is_some_and(Reason::is_missing_coverage)
    }

    /// Why the node is unfit or suspect.
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
        self.impact = Impact::Suspect;
    }

    /// Makes the node suspect if a verification that an operator requested has no result, or if a
    /// coverage gap has lasted too long.
    fn suspect_missing_coverage(&mut self, node: &Node, pool: &PoolPolicy, now: Timestamp) {
        let phase = node.phase();
        let inconclusive = node.verification.inconclusive().filter(|_| phase.in_service());
        let is_out = matches!(phase, NodePhase::Quarantined | NodePhase::Repairing);
        let counts = !is_out || pool.coverage_gap_quarantines;
        let gap = node.lasting_gap(pool, now).filter(|_| counts);
        self.reason = match (gap, inconclusive) {
            (Some(gap), _) => Some(Reason::CoverageGap {
                gap: Box::new(node.gap_summary(gap)),
                since: gap.since,
                more: node.coverage().count().unwrap_or_default().saturating_sub(1),
            }),
            (None, Some(inconclusive)) => Some(inconclusive.inconclusive_reason()),
            (None, None) => return,
        };
        self.impact = Impact::Suspect;
        self.action = Action::Investigate;
    }
}

/// Whether the finding makes a node suspect or unfit.
pub fn affects_service(finding: &Finding) -> bool {
    finding_impact(finding) > Impact::None
}

/// Whether the finding makes a node unfit.
pub(in crate::fleet) fn ends_service(finding: &Finding) -> bool {
    finding_impact(finding) == Impact::Unfit
}

fn finding_impact(finding: &Finding) -> Impact {
    impact(finding.kind, finding.severity, finding.action)
}

/// The impact of a finding with this kind, severity and action.
pub fn impact(kind: FindingKind, severity: Severity, action: Action) -> Impact {
    let needs_action = action >= Action::Investigate;
    match (kind, severity) {
        (FindingKind::Fault, Severity::Critical | Severity::Fatal) if needs_action => Impact::Unfit,
        (FindingKind::Fault, Severity::Warning) if action >= Action::ResetGpu => Impact::Suspect,
        _ => Impact::None,
    }
}
