//! Describes reasons in English. The wording may change freely, because nothing compares or parses
//! it.

use std::fmt;

use super::{
    BudgetCounts, CapacityCounts, FindingSummary, GapSummary, GpuLocation, NodeNames, OrderFailure,
    Reason, RepairsAttempted, SymptomCounts, UnblockedBy,
};
use crate::fleet::order::{OrderKind, span};
use crate::fleet::policy::Autonomy;
use crate::health::{GpuUuid, Subject};

impl fmt::Display for Reason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Enrolled => out.write_str("enrolled; not verified yet"),
            Self::OpenFindings { worst, more, .. } => {
                write!(out, "{worst}")?;
                if *more > 0 { write!(out, ", and {more} more") } else { Ok(()) }
            }
            Self::VerificationFailed { level, evidence, .. } => {
                write!(out, "verification {level} failed: {evidence}")
            }
            Self::HeartbeatLost { since } => {
                write!(out, "no heartbeat since {since:.0}")
            }
            Self::FindingsUnreadable => out.write_str(
                "the server cannot read its findings; its agent may be newer than the server",
            ),
            Self::CoverageGap { gap, since, more } => {
                write!(out, "{gap} since {since:.0}")?;
                if *more > 0 { write!(out, ", and {more} more coverage gaps") } else { Ok(()) }
            }
            Self::VerificationInconclusive { level, evidence } => {
                write!(out, "verification {level} has no result: {evidence}")
            }
            Self::InventoryUnknown => out.write_str("no inventory reported yet"),
            Self::GpusUnreadable => out.write_str("the agent could not read its GPUs"),
            Self::FindingsCleared { verifying: false } => out.write_str("no open findings"),
            Self::FindingsCleared { verifying: true } => {
                out.write_str("no open findings; running verification before return to service")
            }
            Self::Repaired => {
                out.write_str("repaired; running verification before return to service")
            }
            Self::HoldEnded => {
                out.write_str("hold ended; running verification before return to service")
            }
            Self::Verified { joining: true } => {
                out.write_str("enrolled, and passed all required verifications")
            }
            Self::Verified { joining: false } => out.write_str("passed all required verifications"),
            Self::OperatorHold { by, reason } => write!(out, "held by {by}: {reason}"),
            Self::ExternalCordon { owner, reason, verified: false } => {
                write!(out, "cordoned by {owner}: {reason}")
            }
            Self::ExternalCordon { owner, reason, verified: true } => {
                write!(out, "healthy, but cordoned by {owner}: {reason}")
            }
            Self::CertificateRevoked { since } => {
                write!(out, "its certificate was revoked at {since:.0}; its state is unknown")
            }
            Self::DisruptionBudget { .. }
            | Self::CapacityFloor { .. }
            | Self::MaintenanceBudget { .. }
            | Self::FaultsWaiting { .. } => self.fmt_slot(out),
            Self::FailureDomainFault { domain, symptom, cause: None } => {
                write!(out, "{domain} has a fault ({symptom}); the node itself is not the cause")
            }
            Self::FailureDomainFault { domain, cause: Some(cause), .. } => {
                write!(out, "{cause}; {domain} has a fault, the node itself is not the cause")
            }
            Self::DomainRecovering { domain, symptom } => {
                write!(
                    out,
                    "the fault of {domain} ({symptom}) has ended; findings may take a while to clear"
                )
            }
            Self::CommonSymptom { domain, symptom, counts: None, .. } => write!(
                out,
                "several nodes of {domain} started to show {symptom}: common cause outside the nodes"
            ),
            Self::CommonSymptom { domain, symptom, window_s, counts: Some(counts) } => {
                let SymptomCounts { nodes, members } = counts;
                write!(
                    out,
                    "{nodes} of {members} nodes of {domain} started to show {symptom} within {}: common cause outside the nodes",
                    span(*window_s)
                )
            }
            Self::NoCommonSymptom { domain, symptom } => {
                write!(out, "too few nodes of {domain} still show {symptom} for a common cause")
            }
            other => other.fmt_order(out),
        }
    }
}

impl Reason {
    /// Describes why a quarantine or a change has to wait for other nodes.
    fn fmt_slot(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DisruptionBudget { domain, counts: Some(counts), used_by } => {
                let BudgetCounts { out: gone, members, limit } = counts;
                write!(
                    out,
                    "disruption budget of {domain} used up: Farrier keeps {gone} of {members} nodes out of service, {limit} allowed{used_by}"
                )
            }
            Self::DisruptionBudget { domain, .. } => {
                write!(out, "the disruption budget of {domain} is used up")
            }
            Self::CapacityFloor { domain, counts: Some(counts), out: others } => {
                let CapacityCounts { schedulable, members, minimum } = counts;
                write!(
                    out,
                    "capacity floor of {domain} reached: {schedulable} of {members} nodes take work, at least {minimum} must{others}"
                )
            }
            Self::CapacityFloor { domain, .. } => {
                write!(out, "the capacity floor of {domain} is reached")
            }
            Self::MaintenanceBudget { domain, counts: Some(counts), out: others } => {
                let BudgetCounts { out: gone, members, limit } = counts;
                write!(
                    out,
                    "{gone} of {members} nodes of {domain} take no work, {limit} may while nodes are changed{others}"
                )
            }
            Self::MaintenanceBudget { domain, .. } => {
                write!(out, "as many nodes of {domain} take no work as may while nodes are changed")
            }
            Self::FaultsWaiting { domain, nodes } => {
                write!(
                    out,
                    "nodes of {domain} wait for their quarantine, which takes precedence{nodes}"
                )
            }
            _ => out.write_str(self.code()),
        }
    }

    /// Describes reasons that defer or end an order.
    fn fmt_order(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QuarantineNotAllowed { cause } => {
                write!(
                    out,
                    "would be quarantined ({cause}), but the policy of the pool only observes"
                )
            }
            Self::OrderNotAllowed { order, autonomy: Autonomy::Observe } => {
                write!(out, "`{order}` would be ordered, but the policy of the pool only observes")
            }
            Self::OrderNotAllowed { order, .. } => {
                write!(
                    out,
                    "`{order}` would be ordered, but the policy of the pool leaves repairs to operators"
                )
            }
            Self::InUse => {
                out.write_str("the node takes work; it is not tested or changed while in use")
            }
            Self::NeedsRepair { cause, action, attempted } => match attempted {
                RepairsAttempted::None => write!(out, "{cause}: {}", action.instruction()),
                RepairsAttempted::All => write!(
                    out,
                    "{cause}: all automatic repairs were attempted without success; it needs service or a new part"
                ),
                RepairsAttempted::Limit { order, gpu, times } => {
                    let order = order_text(order, gpu.as_ref());
                    write!(
                        out,
                        "{cause}: {}; `{order}` already ran {} since the node was last in service, for other faults, and is not ordered again",
                        action.instruction(),
                        times_text(*times)
                    )
                }
            },
            Self::RepeatedQuarantines { times, days } => {
                write!(out, "quarantined {times} times in {days} days; the cause was not repaired")
            }
            Self::Frozen { domain, by, reason, .. } => {
                write!(out, "{domain} is frozen by {by}: {reason}")
            }
            Self::NeedsApproval { order } => write!(out, "`{order}` needs approval"),
            Self::OutsideWindow { order, pool, .. } => {
                write!(out, "`{order}` waits for a repair window of pool {pool}")
            }
            Self::OrderFailed { order, failures, last } => {
                write!(out, "`{order}` failed {}, last error: {last}", times_text(*failures))
            }
            Self::OrderExpired { order, lease_until } => {
                write!(
                    out,
                    "the agent did not answer: `{order}` was not finished before its lease ended at {lease_until:.0}"
                )
            }
            Self::OrderSuperseded { by } => {
                write!(out, "replaced by the more urgent `{by}`; ordered again afterwards")
            }
            Self::OperatorRequest { by } => write!(out, "requested by {by}"),
            Self::Withheld { original_code } => write!(out, "not shown here ({original_code})"),
            Self::Rendered { text, .. } | Self::Legacy { text, .. } => out.write_str(text),
            _ => out.write_str(self.code()),
        }
    }
}

impl fmt::Display for UnblockedBy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Verification => "all required verifications pass",
            Self::Finding => "a new finding",
            Self::ConditionChange => "the condition clears, lasts too long or gets worse",
            Self::Coverage { retry_at: None } => "what cannot be read is readable again",
            Self::Coverage { retry_at: Some(at) } => {
                return write!(
                    out,
                    "the verification is repeated when everything is readable again, or else at {at:.0}"
                );
            }
            Self::VerificationResult => "verification passes (return to service) or fails (repair)",
            Self::Repair => "a repair, by order or by hand",
            Self::RepairAndVerification => "a repair and a passed verification",
            Self::Drain => "a new drain: the cordon was removed, and work may run on the node",
            Self::Release => "an operator releases the hold (`farrier fleet uncordon`)",
            Self::ExternalUncordon => "the owner of the cordon removes it",
            Self::Enrolment { pool, node } => {
                return write!(
                    out,
                    "the node enrols again (`farrier server token create --pool {pool} --node {node}`) and passes verification, or is retired"
                );
            }
            Self::PolicyOrHold => "the policy of the pool allows it, or an operator holds the node",
            Self::Policy => "the policy of the pool allows it",
            Self::DomainRepair { domain } => {
                let name = String::from(domain.clone());
                return write!(
                    out,
                    "{domain} is repaired: its nodes recover, or an operator says so (`farrier fleet domain repaired {name}`)"
                );
            }
            Self::BudgetSlot { domain } => {
                return write!(
                    out,
                    "a node of {domain} returns to service, or the policy allows more"
                );
            }
            Self::Settled { at } => {
                return write!(
                    out,
                    "the findings clear, or {at:.0}: then the node is judged on its own"
                );
            }
            Self::FewerSymptoms { symptom } => {
                return write!(out, "fewer nodes show {symptom}");
            }
            Self::SymptomReturn => "several of its nodes show the symptom again",
            Self::OperatorHold => "an operator holds the node (`farrier fleet cordon`)",
            Self::OperatorRepair => {
                "an operator repairs the node and reports it (`farrier fleet repaired`)"
            }
            Self::OperatorReview => {
                "an operator investigates, then reports a repair or holds the node"
            }
            Self::Unfreeze { at } => {
                return write!(
                    out,
                    "{at:.0}, or an operator ends the freeze (`farrier fleet unfreeze`)"
                );
            }
            Self::Approval => "an approver approves it (`farrier fleet approve`)",
            Self::WindowOrApproval { at } => {
                return write!(
                    out,
                    "{at:.0}, or an approver approves it (`farrier fleet approve`)"
                );
            }
            Self::Retry { at } => return write!(out, "the next attempt, at {at:.0}"),
            Self::Legacy { text, .. } => text,
        };
        out.write_str(text)
    }
}

impl fmt::Display for NodeNames {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((first, others)) = self.first.split_first() else { return Ok(()) };
        write!(out, " ({first}")?;
        others.iter().try_for_each(|node| write!(out, ", {node}"))?;
        if self.more > 0 {
            write!(out, " and {} more", self.more)?;
        }
        out.write_str(")")
    }
}

impl fmt::Display for OrderFailure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reported(text) => out.write_str(text),
            Self::Cancelled(reason) => reason.fmt(out),
        }
    }
}

impl fmt::Display for FindingSummary {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.severity, self.code)?;
        if !self.detail.is_empty() {
            write!(out, " ({})", self.detail)?;
        }
        write!(out, " on {}", subject_text(&self.subject, self.gpu.as_ref()))
    }
}

impl fmt::Display for GapSummary {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.subject.gpu().is_some() || matches!(self.subject, Subject::Nic { .. }) {
            write!(out, "{}: ", subject_text(&self.subject, self.gpu.as_ref()))?;
        }
        write!(out, "{} ({})", self.source, self.cause)
    }
}

impl fmt::Display for GpuLocation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.index, &self.pci) {
            (Some(index), Some(pci)) => write!(out, "GPU {index} at {pci}"),
            (Some(index), None) => write!(out, "GPU {index}"),
            (None, Some(pci)) => write!(out, "the GPU at {pci}"),
            (None, None) => out.write_str("a GPU"),
        }
    }
}

/// `once`, `3 times`
pub(crate) fn times_text(times: u32) -> String {
    if times == 1 { "once".to_owned() } else { format!("{times} times") }
}

fn gpu_text(uuid: &GpuUuid, location: Option<&GpuLocation>) -> String {
    location.map_or_else(|| uuid.to_string(), ToString::to_string)
}

/// Describes the subject of a finding, such as `GPU 3 at 0000:3b:00.0`. Uses the UUID if the
/// location is unknown.
pub(crate) fn subject_text(subject: &Subject, location: Option<&GpuLocation>) -> String {
    match subject {
        Subject::Gpu(gpu) => gpu_text(gpu, location),
        Subject::Link { gpu, link } => format!("link {link} of {}", gpu_text(gpu, location)),
        Subject::Node => "the node".to_owned(),
        Subject::Agent => "the agent".to_owned(),
        Subject::Nic { .. } | Subject::Pci(_) => subject.to_string(),
    }
}

/// Describes an order with the location of its GPU.
pub(crate) fn order_text(order: &OrderKind, location: Option<&GpuLocation>) -> String {
    match order {
        OrderKind::ResetGpu { gpu } => format!("reset {}", gpu_text(gpu, location)),
        other => other.to_string(),
    }
}
