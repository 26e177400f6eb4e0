//! Reasons as English, in one place. The wording is free to change: nothing compares or reads it.

use std::fmt;

use super::{
    BudgetCounts, FindingSummary, GpuLocation, OrderFailure, Reason, RepairsTried, SymptomCounts,
    UnblockedBy,
};
use crate::fleet::order::{OrderKind, span};
use crate::fleet::policy::Autonomy;
use crate::health::{GpuUuid, Subject};

impl fmt::Display for Reason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Enrolled => out.write_str("it has enrolled and is not proven yet"),
            Self::OpenFindings { worst, more, .. } => {
                write!(out, "{worst}")?;
                if *more > 0 { write!(out, ", and {more} more") } else { Ok(()) }
            }
            Self::VerificationFailed { level, evidence, .. } => {
                write!(out, "it did not pass {level}: {evidence}")
            }
            Self::HeartbeatLost { since } => {
                write!(out, "nothing was heard of it since {since:.0}")
            }
            Self::FindingsUnreadable => out.write_str(
                "the server cannot read its findings: its agent may be newer than the server",
            ),
            Self::InventoryUnknown => out.write_str("it has not said yet what it is made of"),
            Self::GpusUnreadable => out.write_str("its GPUs could not be read"),
            Self::FindingsCleared { verifying: false } => {
                out.write_str("nothing speaks against it any longer")
            }
            Self::FindingsCleared { verifying: true } => out.write_str(
                "nothing speaks against it any longer; it is proven before it comes back",
            ),
            Self::Repaired => out.write_str("it was mended, and is proven before it comes back"),
            Self::HoldEnded => {
                out.write_str("nobody holds it any longer; it is proven before it comes back")
            }
            Self::Verified { joining: true } => {
                out.write_str("it has enrolled and passed what its pool asks for")
            }
            Self::Verified { joining: false } => out.write_str("it passed what its pool asks for"),
            Self::OperatorHold { by, reason } => write!(out, "{by} holds it: {reason}"),
            Self::ExternalCordon { owner, reason, verified: false } => {
                write!(out, "it is cordoned by {owner}: {reason}")
            }
            Self::ExternalCordon { owner, reason, verified: true } => {
                write!(out, "it is fit, and cordoned by {owner}: {reason}")
            }
            Self::CertificateRevoked { since } => write!(
                out,
                "its certificates were revoked at {since:.0}: it may not speak, and nobody knows how it is"
            ),
            Self::DisruptionBudget { domain, counts: None } => {
                write!(out, "as many nodes of {domain} are out of service as may be")
            }
            Self::DisruptionBudget { domain, counts: Some(counts) } => {
                let BudgetCounts { out: gone, members, limit } = counts;
                write!(
                    out,
                    "{gone} of {members} nodes of {domain} are out of service, and {limit} may be"
                )
            }
            Self::FailureDomainFault { domain, symptom, cause: None } => {
                write!(out, "{domain} is to blame for {}, and not the node", symptom.words())
            }
            Self::FailureDomainFault { domain, cause: Some(cause), .. } => {
                write!(out, "{cause}: {domain} is to blame, and not the node")
            }
            Self::CommonSymptom { domain, symptom, counts: None, .. } => write!(
                out,
                "several nodes of {domain} began to show {}: one cause, outside of them",
                symptom.words()
            ),
            Self::CommonSymptom { domain, symptom, window_s, counts: Some(counts) } => {
                let SymptomCounts { nodes, members } = counts;
                write!(
                    out,
                    "{nodes} of {members} nodes of {domain} began to show {} within {}: one cause, outside of them",
                    symptom.words(),
                    span(*window_s)
                )
            }
            Self::NoCommonSymptom { domain, symptom } => {
                write!(out, "too few nodes of {domain} show {} for a common cause", symptom.words())
            }
            other => other.fmt_order(out),
        }
    }
}

impl Reason {
    /// What keeps an order back, or ended it.
    fn fmt_order(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QuarantineNotAllowed { cause } => {
                write!(out, "it would be quarantined for {cause}; the pool only observes")
            }
            Self::OrderNotAllowed { order, autonomy: Autonomy::Observe } => {
                write!(out, "`{order}` would be ordered; the pool only observes")
            }
            Self::OrderNotAllowed { order, .. } => {
                write!(out, "`{order}` would be ordered; repairs of the pool are left to people")
            }
            Self::TakesWork => {
                out.write_str("it takes work, and is neither tested nor changed under it")
            }
            Self::NeedsRepair { cause, action, tried } => {
                write!(out, "{cause}: {}", action.instruction())?;
                match tried {
                    RepairsTried::None => Ok(()),
                    RepairsTried::All => {
                        out.write_str("; what could be ordered was, and did not help")
                    }
                    RepairsTried::Limit { order, gpu, times } => {
                        let order = order_text(order, gpu.as_ref());
                        write!(
                            out,
                            "; `{order}` was done {times} times since it was last in service, for other faults, and is not ordered again"
                        )
                    }
                }
            }
            Self::RepeatedQuarantines { times, days } => write!(
                out,
                "it was out of service {times} times in {days} days: the cause was not mended"
            ),
            Self::Frozen { domain, by, reason, .. } => {
                write!(out, "{domain} is frozen by {by}: {reason}")
            }
            Self::NeedsApproval { order } => write!(out, "a {order} waits for approval"),
            Self::OutsideWindow { order, pool, .. } => {
                write!(out, "`{order}` waits for a window of pool {pool}")
            }
            Self::OrderFailed { order, failures, last } => {
                write!(out, "`{order}` failed {failures} times, last: {last}")
            }
            Self::OrderExpired { order, lease_until } => {
                write!(out, "`{order}` was not answered until {lease_until:.0}")
            }
            Self::OrderSuperseded { by } => {
                write!(out, "`{by}` is more urgent; it is ordered again afterwards")
            }
            Self::OperatorRequest { by } => write!(out, "{by} asked for it"),
            Self::Withheld { of } => write!(out, "not shown here ({of})"),
            Self::Rendered { text, .. } | Self::Legacy { text, .. } => out.write_str(text),
            _ => out.write_str(self.code()),
        }
    }
}

impl fmt::Display for UnblockedBy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Verification => "what its pool asks for is passed",
            Self::Finding => "something speaks against it",
            Self::ConditionChange => "that is over, or lasts too long, or gets worse",
            Self::VerificationResult => "it passes, and comes back; or it does not, and is mended",
            Self::Repair => "it is mended, by an order or by hand",
            Self::RepairAndVerification => "it is mended and proven",
            Self::Drain => "it is drained anew: its cordon was taken away, and work may run there",
            Self::Release => "whoever holds it releases it",
            Self::ExternalUncordon => "whoever cordoned it takes that away",
            Self::Enrolment { pool, node } => {
                return write!(
                    out,
                    "it enrols anew (`farrier server token create --pool {pool} --node {node}`) and is proven, or is retired"
                );
            }
            Self::PolicyOrHold => "the pool's policy allows it, or a person holds the node",
            Self::Policy => "the pool's policy allows it",
            Self::DomainRepair { domain } => return write!(out, "{domain} is mended"),
            Self::BudgetSlot { domain } => {
                return write!(
                    out,
                    "a node of {domain} is back in service, or the policy allows more"
                );
            }
            Self::FewerSymptoms { symptom } => {
                return write!(out, "fewer of them show {}", symptom.words());
            }
            Self::SymptomReturn => "several of its nodes show the same again",
            Self::OperatorHold => "a person holds it (`farrier fleet cordon`)",
            Self::OperatorRepair => "a person repairs it and says so (`farrier fleet repaired`)",
            Self::OperatorReview => "a person looks, and says that it is repaired or holds it",
            Self::Unfreeze { at } => return write!(out, "{at:.0}, or whoever froze it thaws it"),
            Self::Approval => "a person approves it (`farrier fleet approve`)",
            Self::WindowOrApproval { at } => {
                return write!(out, "{at:.0}, or a person approves it (`farrier fleet approve`)");
            }
            Self::Retry { at } => return write!(out, "it passes: it is tried again at {at:.0}"),
            Self::Legacy { text, .. } => text,
        };
        out.write_str(text)
    }
}

impl fmt::Display for OrderFailure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reported(text) => out.write_str(text),
            Self::Withdrawn(reason) => reason.fmt(out),
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

fn gpu_text(uuid: &GpuUuid, location: Option<&GpuLocation>) -> String {
    location.map_or_else(|| uuid.to_string(), ToString::to_string)
}

/// What a finding is about, as people find it: `GPU 3 at 0000:3b:00.0`; its UUID where no more is known.
pub(crate) fn subject_text(subject: &Subject, location: Option<&GpuLocation>) -> String {
    match subject {
        Subject::Gpu(gpu) => gpu_text(gpu, location),
        Subject::Link { gpu, link } => format!("link {link} of {}", gpu_text(gpu, location)),
        Subject::Node => "the node".to_owned(),
        Subject::Agent => "the agent".to_owned(),
        Subject::Nic { .. } | Subject::Pci(_) => subject.to_string(),
    }
}

/// An order, with its GPU as people find it.
pub(crate) fn order_text(order: &OrderKind, location: Option<&GpuLocation>) -> String {
    match order {
        OrderKind::ResetGpu { gpu } => format!("reset {}", gpu_text(gpu, location)),
        other => other.to_string(),
    }
}
