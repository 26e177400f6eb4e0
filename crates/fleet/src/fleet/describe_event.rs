//! Describes log entries in English, one line each.

use farrier_facts::text::first_sentence;

use super::access::AccessChange;
use super::coverage::CoverageReport;
use super::event::{Cordon, Event, OperatorRequest};
use super::identity::Domain;
use super::order::OrderStatus;
use super::reason::Rationale;
use super::state::{FaultKey, Node};
use crate::health::{Change, Finding, Severity};

/// The kinds of all events, as in JSON.
pub const KINDS: [&str; 28] = [
    "enrolled",
    "location-changed",
    "retired",
    "inventory-reported",
    "heartbeat-lost",
    "heartbeat-restored",
    "findings-reported",
    "findings-snapshot",
    "cordon-observed",
    "order-status-reported",
    "order-generation-observed",
    "operator-requested",
    "policy-set",
    "access-changed",
    "tick",
    "clock-stepped",
    "controller-resumed",
    "quota-exceeded",
    "quota-restored",
    "reports-unreadable",
    "reports-readable",
    "coverage-reported",
    "phase-changed",
    "order-issued",
    "order-cancelled",
    "deferred",
    "domain-fault-detected",
    "domain-fault-cleared",
];

impl Event {
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Enrolled { .. } => "enrolled",
            Self::LocationChanged { .. } => "location-changed",
            Self::Retired { .. } => "retired",
            Self::InventoryReported { .. } => "inventory-reported",
            Self::HeartbeatLost { .. } => "heartbeat-lost",
            Self::HeartbeatRestored { .. } => "heartbeat-restored",
            Self::FindingsReported { .. } => "findings-reported",
            Self::FindingsSnapshot { .. } => "findings-snapshot",
            Self::CordonObserved { .. } => "cordon-observed",
            Self::OrderStatusReported { .. } => "order-status-reported",
            Self::OrderGenerationObserved { .. } => "order-generation-observed",
            Self::OperatorRequested { .. } => "operator-requested",
            Self::PolicySet { .. } => "policy-set",
            Self::AccessChanged { .. } => "access-changed",
            Self::Tick => "tick",
            Self::ClockStepped { .. } => "clock-stepped",
            Self::ControllerResumed { .. } => "controller-resumed",
            Self::QuotaExceeded { .. } => "quota-exceeded",
            Self::QuotaRestored { .. } => "quota-restored",
            Self::ReportsUnreadable { .. } => "reports-unreadable",
            Self::ReportsReadable { .. } => "reports-readable",
            Self::CoverageReported { .. } => "coverage-reported",
            Self::PhaseChanged { .. } => "phase-changed",
            Self::OrderIssued { .. } => "order-issued",
            Self::OrderCancelled { .. } => "order-cancelled",
            Self::Deferred { .. } => "deferred",
            Self::DomainFaultDetected { .. } => "domain-fault-detected",
            Self::DomainFaultCleared { .. } => "domain-fault-cleared",
        }
    }

    /// The node that the event is about. Unlike [`Event::node`], also covers operator requests and
    /// changes of certificates.
    pub fn subject(&self) -> Option<&super::NodeId> {
        match self {
            Self::OperatorRequested { request } => request.node(),
            Self::AccessChanged {
                change:
                    AccessChange::CertificateRevoked { node } | AccessChange::NodeEnrolled { node, .. },
                ..
            } => Some(node),
            _ => self.node(),
        }
    }

    /// The highest severity of the findings that the event reports as open. `None` if the event
    /// reports none.
    pub fn severity(&self) -> Option<Severity> {
        match self {
            Self::FindingsReported { changes, .. } => {
                changes.iter().map(|change| change.finding().severity).max()
            }
            Self::FindingsSnapshot { open, .. } => {
                open.iter().map(|finding| finding.severity).max()
            }
            _ => None,
        }
    }

    /// Describes the event in one line, without the name of the node.
    pub fn describe(&self) -> String {
        self.describe_on(None)
    }

    /// Like [`Self::describe`]. If the node of the event is given, a GPU is described by its index
    /// and its UUID.
    pub fn describe_on(&self, node: Option<&Node>) -> String {
        match self {
            Self::Enrolled { location, .. } => format!("joined pool {}", location.pool),
            Self::LocationChanged { location, .. } => {
                let last =
                    location.domains().pop().map(|domain| domain.to_string()).unwrap_or_default();
                format!("moved to pool {}, {last}", location.pool)
            }
            Self::Retired { reason, .. } => format!("retired: {reason}"),
            Self::InventoryReported { inventory, .. } => {
                let driver = inventory.driver.as_deref().unwrap_or("unknown");
                let gpus = inventory.gpus.as_ref();
                let gpus = gpus.map_or_else(
                    || "an unknown number of".to_owned(),
                    |gpus| gpus.len().to_string(),
                );
                format!("reports {gpus} GPUs, driver {driver}")
            }
            Self::HeartbeatLost { since, .. } => format!("heartbeat lost, last at {since:.0}"),
            Self::HeartbeatRestored { .. } => "heartbeat restored".to_owned(),
            Self::FindingsReported { changes, .. } => {
                let each = changes.iter().map(|change| describe_change(change, node));
                each.collect::<Vec<_>>().join("; ")
            }
            Self::FindingsSnapshot { open, .. } => match open.as_slice() {
                [] => "no open findings".to_owned(),
                open => {
                    let each: Vec<String> =
                        open.iter().map(|finding| describe_finding(finding, node)).collect();
                    format!("open findings: {}", each.join("; "))
                }
            },
            Self::CordonObserved { cordon, .. } => match cordon {
                Cordon::Unknown => "cordon state unknown".to_owned(),
                Cordon::None => "not cordoned".to_owned(),
                Cordon::ByFarrier => "cordoned by farrier".to_owned(),
                Cordon::External { owner, reason } => format!("cordoned by {owner}: {reason}"),
            },
            Self::OrderStatusReported { generation, status, .. } => match status {
                OrderStatus::Accepted => format!("order {generation} accepted"),
                OrderStatus::Done { evidence } => format!("order {generation} done: {evidence}"),
                OrderStatus::Failed { reason } => format!("order {generation} failed: {reason}"),
                OrderStatus::Inconclusive { reason } => {
                    format!("order {generation} has no result: {reason}")
                }
                OrderStatus::Refused { reason } => format!("order {generation} refused: {reason}"),
            },
            Self::OrderGenerationObserved { generation, .. } => {
                format!("already received orders up to {generation}, which the log does not have")
            }
            Self::OperatorRequested { request } => describe_request(request),
            Self::PolicySet { .. } => "policy changed".to_owned(),
            Self::AccessChanged { change, .. } => describe_access(change),
            Self::Tick => "timers checked".to_owned(),
            Self::ClockStepped { from, to } => {
                format!(
                    "server clock stepped from {from:.0} to {to:.0}; timers keep their remaining time"
                )
            }
            Self::ControllerResumed { last_ran } => {
                format!(
                    "controller resumed; time since {last_ran:.0} does not count towards timeouts"
                )
            }
            Self::QuotaExceeded { .. } => {
                "over its report quota; its reports are delayed".to_owned()
            }
            Self::QuotaRestored { .. } => "within its report quota again".to_owned(),
            Self::ReportsUnreadable { .. } => {
                "reports findings that this server cannot read".to_owned()
            }
            Self::ReportsReadable { .. } => "its findings are readable again".to_owned(),
            Self::CoverageReported { coverage, .. } => describe_coverage(coverage),
            Self::PhaseChanged { to, rationale, .. } => format!("is {to}: {}", rationale.reason),
            Self::OrderIssued { order } => {
                let kind = node.map_or_else(
                    || order.kind.to_string(),
                    |node| node.describe_order(&order.kind),
                );
                format!("order {} issued: {kind}", order.generation)
            }
            Self::OrderCancelled { generation, reason, .. } => {
                format!("order {generation} cancelled: {reason}")
            }
            Self::Deferred { rationale, .. } => {
                let Rationale { reason, unblocked_by } = rationale;
                format!("deferred: {reason}; unblocked by: {unblocked_by}")
            }
            Self::DomainFaultDetected { domain, rationale, .. } => {
                format!("fault of {domain}: {}", rationale.reason)
            }
            Self::DomainFaultCleared { domain, rationale } => {
                format!("fault of {domain} cleared: {}", rationale.reason)
            }
        }
    }
}

impl OperatorRequest {
    pub fn node(&self) -> Option<&super::NodeId> {
        match self {
            Self::Hold { node, .. }
            | Self::Release { node }
            | Self::Repaired { node, .. }
            | Self::Approve { node }
            | Self::Verify { node, .. }
            | Self::RunOrder { node, .. } => Some(node),
            Self::Mute { matches, .. } => matches.node.as_ref(),
            Self::Freeze { .. }
            | Self::Unfreeze { .. }
            | Self::DomainRepaired { .. }
            | Self::Unmute { .. }
            | Self::AcknowledgeAlerts { .. }
            | Self::RetryNotifications { .. }
            | Self::DropNotifications { .. } => None,
        }
    }
}

fn describe_coverage(coverage: &CoverageReport) -> String {
    let Some(first) = coverage.gaps.first() else { return "no coverage gaps".to_owned() };
    let count = coverage.gaps.len() + coverage.more as usize;
    let gap = format!("{}: {} ({})", first.subject, first.source, first.cause);
    if count == 1 {
        return format!("coverage gap: {gap}");
    }
    format!("{count} coverage gaps, the first: {gap}")
}

fn describe_change(change: &Change, node: Option<&Node>) -> String {
    let finding = change.finding();
    let text = describe_finding(finding, node);
    match change {
        Change::Opened(_) => format!("{} {text}", finding.severity),
        Change::Updated(_) if finding.count == 1 => format!("changed: {} {text}", finding.severity),
        Change::Updated(_) => format!("seen {} times: {text}", finding.count),
        Change::Cleared(_) => format!("cleared: {text}"),
    }
}

/// The code, the subject and the first sentence of a finding. The remedy is left out.
fn describe_finding(finding: &Finding, node: Option<&Node>) -> String {
    let key = FaultKey::from_finding(finding).to_string();
    let gpu = finding.subject.gpu();
    let name = node.zip(gpu).filter(|(node, _)| node.gpu_location(&finding.subject).is_some());
    let name =
        name.map_or(key, |(node, gpu)| format!("{} ({gpu})", node.describe_finding(finding)));
    format!("{name}: {}", first_sentence(&finding.text))
}

fn describe_request(request: &OperatorRequest) -> String {
    match request {
        OperatorRequest::Hold { reason, .. } => format!("hold: {reason}"),
        OperatorRequest::Release { .. } => "release the hold".to_owned(),
        OperatorRequest::Repaired { repair, .. } => format!("repaired: {repair}"),
        OperatorRequest::Approve { .. } => "approve the waiting repair".to_owned(),
        OperatorRequest::Freeze { domain, until, reason } => {
            format!("freeze {domain} until {until:.0}: {reason}")
        }
        OperatorRequest::Unfreeze { domain } => format!("unfreeze {domain}"),
        OperatorRequest::DomainRepaired { domain, repair } => {
            format!("{domain} is repaired: {repair}")
        }
        OperatorRequest::Verify { level, .. } => format!("verify {level}"),
        OperatorRequest::RunOrder { order, .. } => format!("run {order}"),
        OperatorRequest::Mute { matches, scope: Domain::Fleet, until, reason } => {
            format!("mute {matches} until {until:.0}: {reason}")
        }
        OperatorRequest::Mute { matches, scope, until, reason } => {
            format!("mute {matches} in {scope} until {until:.0}: {reason}")
        }
        OperatorRequest::Unmute { mute } => format!("end mute {mute}"),
        OperatorRequest::AcknowledgeAlerts { group } => {
            format!("acknowledge alert group {group}")
        }
        OperatorRequest::RetryNotifications { receiver, key } => {
            format!("retry {}", notifications_text(receiver, key.as_deref()))
        }
        OperatorRequest::DropNotifications { receiver, key } => {
            format!("drop {}", notifications_text(receiver, key.as_deref()))
        }
    }
}

fn notifications_text(receiver: &str, key: Option<&str>) -> String {
    match key {
        Some(key) => format!("notification {key} to `{receiver}`"),
        None => format!("all notifications to `{receiver}`"),
    }
}

fn describe_access(change: &AccessChange) -> String {
    match change {
        AccessChange::JoinTokenCreated { token, pool, uses, .. } => {
            format!("created token {token}: {uses} nodes may join pool {pool}")
        }
        AccessChange::UserAdded { token, name, role, scope, .. } => {
            format!("added user {name}, {role} of {scope} (token {token})")
        }
        AccessChange::TokenRevoked { token, name: None } => format!("revoked token {token}"),
        AccessChange::TokenRevoked { token, name: Some(name) } => {
            format!("revoked token {token} of {name}")
        }
        AccessChange::NodeEnrolled { token, generation, .. } => {
            format!(
                "enrolled with token {token}; certificates before generation {generation} are invalid"
            )
        }
        AccessChange::CertificateRevoked { .. } => {
            "certificate revoked; out of service until it enrols again".to_owned()
        }
    }
}
