//! What of a reason a caller with a narrower scope than the fleet sees. It works on values, and a reason without a rule shows its code only.

use super::{OrderFailure, Rationale, Reason, UnblockedBy};
use crate::fleet::identity::Domain;

/// Whether no node of a caller's scope is in the domain: another pool for a caller of a pool,
/// another tenant for a caller of a tenant. A node that came from another pool has reasons from
/// there in its history.
fn is_foreign(domain: &Domain, scope: &Domain) -> bool {
    domain.kind() == scope.kind() && domain != scope
}

impl Rationale {
    /// As a caller of this scope may see it, who sees the node itself.
    #[must_use]
    pub fn redacted(&self, scope: &Domain) -> Self {
        Self {
            reason: self.reason.redacted(scope),
            unblocked_by: self.unblocked_by.redacted(scope),
        }
    }
}

impl OrderFailure {
    /// As a caller of this scope may see it, who sees the node itself.
    #[must_use]
    pub fn redacted(&self, scope: &Domain) -> Self {
        match self {
            Self::Reported(_) => self.clone(),
            Self::Cancelled(reason) => Self::Cancelled(Box::new(reason.redacted(scope))),
        }
    }
}

impl UnblockedBy {
    /// As a caller of this scope may see it, who sees the node itself. None of these counts nodes, but for sentences of an earlier version.
    #[must_use]
    pub fn redacted(&self, scope: &Domain) -> Self {
        let is_foreign = match self {
            Self::Legacy { .. } => *scope != Domain::Fleet,
            Self::DomainRepair { domain } | Self::BudgetSlot { domain } => {
                is_foreign(domain, scope)
            }
            Self::Enrolment { pool, .. } => is_foreign(&Domain::Pool(pool.clone()), scope),
            _ => false,
        };
        if !is_foreign {
            return self.clone();
        }
        Self::Legacy {
            text: format!("not shown here ({})", self.code()),
            changes_at: self.changes_at(),
            approvable: self.is_approvable(),
        }
    }
}

impl Reason {
    /// As a caller of this scope may see it, who sees the node itself: without what counts nodes of others.
    #[must_use]
    pub fn redacted(&self, scope: &Domain) -> Self {
        if *scope == Domain::Fleet {
            return self.clone();
        }
        let inner = |cause: &Self| Box::new(cause.redacted(scope));
        if self.domain().is_some_and(|it| is_foreign(&it, scope)) {
            return Self::Withheld { original_code: self.code().to_owned() };
        }
        match self {
            // These name the node, its pool, its own findings and orders, and who asked for something there.
            Self::Enrolled
            | Self::OpenFindings { .. }
            | Self::VerificationFailed { .. }
            | Self::HeartbeatLost { .. }
            | Self::FindingsUnreadable
            | Self::InventoryUnknown
            | Self::GpusUnreadable
            | Self::FindingsCleared { .. }
            | Self::Repaired
            | Self::HoldEnded
            | Self::Verified { .. }
            | Self::OperatorHold { .. }
            | Self::ExternalCordon { .. }
            | Self::CertificateRevoked { .. }
            | Self::NoCommonSymptom { .. }
            | Self::OrderNotAllowed { .. }
            | Self::InUse
            | Self::RepeatedQuarantines { .. }
            | Self::Frozen { .. }
            | Self::NeedsApproval { .. }
            | Self::OutsideWindow { .. }
            | Self::OrderExpired { .. }
            | Self::OrderSuperseded { .. }
            | Self::OperatorRequest { .. } => self.clone(),
            Self::DisruptionBudget { domain, counts } => Self::DisruptionBudget {
                domain: domain.clone(),
                counts: counts.filter(|_| domain == scope),
            },
            Self::CommonSymptom { domain, symptom, window_s, counts } => Self::CommonSymptom {
                domain: domain.clone(),
                symptom: *symptom,
                window_s: *window_s,
                counts: counts.filter(|_| domain == scope),
            },
            Self::FailureDomainFault { domain, symptom, cause } => Self::FailureDomainFault {
                domain: domain.clone(),
                symptom: *symptom,
                cause: cause.as_deref().map(inner),
            },
            Self::QuarantineNotAllowed { cause } => {
                Self::QuarantineNotAllowed { cause: inner(cause) }
            }
            Self::NeedsRepair { cause, action, attempted } => Self::NeedsRepair {
                cause: inner(cause),
                action: *action,
                attempted: attempted.clone(),
            },
            Self::OrderFailed { order, failures, last } => {
                let (order, last) = (order.clone(), last.redacted(scope));
                Self::OrderFailed { order, failures: *failures, last }
            }
            // Sentences of an earlier version may count nodes of others. A variant that is added gets no more until somebody decides.
            _ => Self::Withheld { original_code: self.code().to_owned() },
        }
    }

    /// The domain that it names.
    fn domain(&self) -> Option<Domain> {
        match self {
            Self::DisruptionBudget { domain, .. }
            | Self::FailureDomainFault { domain, .. }
            | Self::CommonSymptom { domain, .. }
            | Self::NoCommonSymptom { domain, .. }
            | Self::Frozen { domain, .. } => Some(domain.clone()),
            Self::OutsideWindow { pool, .. } => Some(Domain::Pool(pool.clone())),
            _ => None,
        }
    }
}
