//! Redacts reasons for callers whose scope is narrower than the fleet. It changes the values before
//! they are rendered as text. A reason without a rule in this file shows only its code.

use super::{NodeNames, OrderFailure, Rationale, Reason, UnblockedBy};
use crate::fleet::identity::Domain;

/// Whether none of the domain's nodes is in the caller's scope. This is the case if the domain and
/// the scope are of the same kind, such as two pools or two tenants, and differ. Such a domain
/// occurs in the history of a node that came from another pool.
fn is_foreign(domain: &Domain, scope: &Domain) -> bool {
    domain.kind() == scope.kind() && domain != scope
}

impl Rationale {
    /// Redacts the value for a caller with this scope. The scope has to include the node.
    #[must_use]
    pub fn redacted(&self, scope: &Domain) -> Self {
        Self {
            reason: self.reason.redacted(scope),
            unblocked_by: self.unblocked_by.redacted(scope),
        }
    }
}

impl OrderFailure {
    /// Redacts the value for a caller with this scope. The scope has to include the node.
    #[must_use]
    pub fn redacted(&self, scope: &Domain) -> Self {
        match self {
            Self::Reported(_) => self.clone(),
            Self::Cancelled(reason) => Self::Cancelled(Box::new(reason.redacted(scope))),
        }
    }
}

impl NodeNames {
    /// Shows the names of a domain's nodes only if the caller's scope is exactly that domain. A
    /// node may have left the domain since, but it was in the caller's scope at the time.
    fn redacted(&self, domain: &Domain, scope: &Domain) -> Self {
        if domain == scope { self.clone() } else { Self::default() }
    }
}

impl UnblockedBy {
    /// Redacts the value for a caller with this scope. The scope has to include the node. Only
    /// legacy sentences can contain counts of nodes.
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
    /// Redacts the value for a caller with this scope, and removes counts of other nodes. The scope
    /// has to include the node.
    #[must_use]
    pub fn redacted(&self, scope: &Domain) -> Self {
        if *scope == Domain::Fleet {
            return self.clone();
        }
        let inner = |cause: &Self| Box::new(cause.redacted(scope));
        if self.domain().is_some_and(|domain| is_foreign(&domain, scope)) {
            return Self::Withheld { original_code: self.code().to_owned() };
        }
        match self {
            // These reasons name only the node, its pool, its findings and orders, and the people
            // who requested something for the node.
            Self::Enrolled
            | Self::OpenFindings { .. }
            | Self::VerificationFailed { .. }
            | Self::HeartbeatLost { .. }
            | Self::FindingsUnreadable
            | Self::CoverageGap { .. }
            | Self::VerificationInconclusive { .. }
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
            | Self::DomainRecovering { .. }
            | Self::OrderNotAllowed { .. }
            | Self::InUse
            | Self::RepeatedQuarantines { .. }
            | Self::Frozen { .. }
            | Self::NeedsApproval { .. }
            | Self::OutsideWindow { .. }
            | Self::OrderExpired { .. }
            | Self::OrderSuperseded { .. }
            | Self::OperatorRequest { .. } => self.clone(),
            Self::DisruptionBudget { domain, counts, used_by } => Self::DisruptionBudget {
                domain: domain.clone(),
                counts: counts.filter(|_| domain == scope),
                used_by: used_by.redacted(domain, scope),
            },
            Self::CapacityFloor { domain, counts, out } => Self::CapacityFloor {
                domain: domain.clone(),
                counts: counts.filter(|_| domain == scope),
                out: out.redacted(domain, scope),
            },
            Self::MaintenanceBudget { domain, counts, out } => Self::MaintenanceBudget {
                domain: domain.clone(),
                counts: counts.filter(|_| domain == scope),
                out: out.redacted(domain, scope),
            },
            Self::FaultsWaiting { domain, nodes } => {
                Self::FaultsWaiting { domain: domain.clone(), nodes: nodes.redacted(domain, scope) }
            }
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
            // Legacy sentences may contain counts of other nodes. A new variant shows only its code
            // until it gets a rule above.
            _ => Self::Withheld { original_code: self.code().to_owned() },
        }
    }

    /// The domain that the reason names.
    fn domain(&self) -> Option<Domain> {
        match self {
            Self::DisruptionBudget { domain, .. }
            | Self::CapacityFloor { domain, .. }
            | Self::MaintenanceBudget { domain, .. }
            | Self::FaultsWaiting { domain, .. }
            | Self::FailureDomainFault { domain, .. }
            | Self::CommonSymptom { domain, .. }
            | Self::NoCommonSymptom { domain, .. }
            | Self::DomainRecovering { domain, .. }
            | Self::Frozen { domain, .. } => Some(domain.clone()),
            Self::OutsideWindow { pool, .. } => Some(Domain::Pool(pool.clone())),
            _ => None,
        }
    }
}
