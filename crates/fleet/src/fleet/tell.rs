//! The log in words: one sentence an entry, for people who follow it.

use farrier_facts::text::first_sentence;

use super::access::AccessChange;
use super::event::{Ask, Cordon, Event};
use super::order::Answer;
use super::state::FaultKey;
use crate::health::{Change, Finding};

/// Every kind of event, as [`Event::kind`] names it.
pub const KINDS: [&str; 27] = [
    "enrolled",
    "placed",
    "retired",
    "seen",
    "silent",
    "heard",
    "found",
    "resynced",
    "cordon-seen",
    "answered",
    "orders-seen",
    "asked",
    "policy-set",
    "access",
    "time-passed",
    "clock-stepped",
    "controller-resumed",
    "quota-exceeded",
    "quota-kept",
    "reports-unreadable",
    "reports-readable",
    "moved",
    "ordered",
    "withdrawn",
    "held-back",
    "blamed",
    "absolved",
];

impl Event {
    /// The name of its kind, as the log writes it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Enrolled { .. } => "enrolled",
            Self::Placed { .. } => "placed",
            Self::Retired { .. } => "retired",
            Self::Seen { .. } => "seen",
            Self::Silent { .. } => "silent",
            Self::Heard { .. } => "heard",
            Self::Found { .. } => "found",
            Self::Resynced { .. } => "resynced",
            Self::CordonSeen { .. } => "cordon-seen",
            Self::Answered { .. } => "answered",
            Self::OrdersSeen { .. } => "orders-seen",
            Self::Asked { .. } => "asked",
            Self::PolicySet { .. } => "policy-set",
            Self::Access { .. } => "access",
            Self::TimePassed => "time-passed",
            Self::ClockStepped { .. } => "clock-stepped",
            Self::ControllerResumed { .. } => "controller-resumed",
            Self::QuotaExceeded { .. } => "quota-exceeded",
            Self::QuotaKept { .. } => "quota-kept",
            Self::ReportsUnreadable { .. } => "reports-unreadable",
            Self::ReportsReadable { .. } => "reports-readable",
            Self::Moved { .. } => "moved",
            Self::Ordered { .. } => "ordered",
            Self::Withdrawn { .. } => "withdrawn",
            Self::HeldBack { .. } => "held-back",
            Self::Blamed { .. } => "blamed",
            Self::Absolved { .. } => "absolved",
        }
    }

    /// The node that it is about, also where a person asks for something.
    pub fn subject(&self) -> Option<&super::NodeId> {
        match self {
            Self::Asked { what } => what.node(),
            Self::Access {
                what:
                    AccessChange::CertificateRevoked { node } | AccessChange::NodeEnrolled { node, .. },
                ..
            } => Some(node),
            _ => self.node(),
        }
    }

    /// What happened, in words that do not name the node.
    pub fn words(&self) -> String {
        match self {
            Self::Enrolled { place, .. } => format!("joined pool {}", place.pool),
            Self::Placed { place, .. } => {
                let last = place.domains().pop().map(|it| it.to_string()).unwrap_or_default();
                format!("stands in pool {}, {last}", place.pool)
            }
            Self::Retired { why, .. } => format!("is gone for good: {why}"),
            Self::Seen { makeup, .. } => {
                let driver = makeup.driver.as_deref().unwrap_or("not known");
                let gpus = makeup.gpus.as_ref();
                let gpus = gpus
                    .map_or_else(|| "an unknown number of".to_owned(), |it| it.len().to_string());
                format!("has {gpus} GPUs, driver {driver}")
            }
            Self::Silent { since, .. } => format!("was last heard at {since:.0}"),
            Self::Heard { .. } => "is heard again".to_owned(),
            Self::Found { changes, .. } => {
                changes.iter().map(change).collect::<Vec<_>>().join("; ")
            }
            Self::Resynced { open, .. } => match open.as_slice() {
                [] => "has no open findings".to_owned(),
                open => {
                    let each: Vec<String> = open.iter().map(told).collect();
                    format!("has open findings: {}", each.join("; "))
                }
            },
            Self::CordonSeen { cordon, .. } => match cordon {
                Cordon::Unknown => "nobody knows whether it takes work".to_owned(),
                Cordon::None => "takes work".to_owned(),
                Cordon::Ours => "takes no work, by our mark".to_owned(),
                Cordon::Theirs { owner, reason } => format!("takes no work, by {owner}: {reason}"),
            },
            Self::Answered { generation, answer, .. } => match answer {
                Answer::Accepted => format!("is at order {generation}"),
                Answer::Done { evidence } => format!("has done order {generation}: {evidence}"),
                Answer::Failed { why } => format!("failed at order {generation}: {why}"),
                Answer::Refused { why } => format!("refused order {generation}: {why}"),
            },
            Self::OrdersSeen { generation, .. } => {
                format!("had orders up to {generation}, which are not in the log")
            }
            Self::Asked { what } => asked(what),
            Self::PolicySet { .. } => "there is a new policy".to_owned(),
            Self::Access { what, .. } => access(what),
            Self::TimePassed => "time passed".to_owned(),
            Self::ClockStepped { from, to } => {
                format!(
                    "the server's clock was stepped from {from:.0} to {to:.0}; timers keep what is left of them"
                )
            }
            Self::ControllerResumed { last_ran } => {
                format!(
                    "the controller runs again; time since {last_ran:.0} counts towards no timeout"
                )
            }
            Self::QuotaExceeded { .. } => {
                "reports more than its quota; its reports wait".to_owned()
            }
            Self::QuotaKept { .. } => "keeps to its report quota again".to_owned(),
            Self::ReportsUnreadable { .. } => {
                "reports findings that this server cannot read".to_owned()
            }
            Self::ReportsReadable { .. } => "reports findings that this server can read".to_owned(),
            Self::Moved { to, why, .. } => format!("is {}: {}", to.words(), why.reason),
            Self::Ordered { order } => format!("order {}: {}", order.generation, order.what),
            Self::Withdrawn { generation, why, .. } => format!("order {generation} is over: {why}"),
            Self::HeldBack { why, .. } => {
                format!("held back: {}; until {}", why.reason, why.unblocked_by)
            }
            Self::Blamed { domain, why, .. } => format!("{domain} is to blame: {}", why.reason),
            Self::Absolved { domain, why } => format!("{domain} is not to blame: {}", why.reason),
        }
    }
}

impl Ask {
    /// The node that it is about.
    pub fn node(&self) -> Option<&super::NodeId> {
        match self {
            Self::Hold { node, .. }
            | Self::Release { node }
            | Self::Repaired { node, .. }
            | Self::Approve { node }
            | Self::Verify { node, .. }
            | Self::Errand { node, .. } => Some(node),
            Self::Freeze { .. } | Self::Thaw { .. } => None,
        }
    }
}

fn change(change: &Change) -> String {
    let finding = change.finding();
    match change {
        Change::Opened(_) => format!("{} {}", finding.severity, told(finding)),
        Change::Updated(_) => format!("again ({} times): {}", finding.count, told(finding)),
        Change::Cleared(_) => format!("over: {}", told(finding)),
    }
}

/// Which, on what, and what it means; what to do about it stands in the finding.
fn told(finding: &Finding) -> String {
    format!("{}: {}", FaultKey::of(finding), first_sentence(&finding.text))
}

fn asked(what: &Ask) -> String {
    match what {
        Ask::Hold { reason, .. } => format!("hold it: {reason}"),
        Ask::Release { .. } => "release it".to_owned(),
        Ask::Repaired { what, .. } => format!("it was repaired: {what}"),
        Ask::Approve { .. } => "what waits may go on".to_owned(),
        Ask::Freeze { domain, until, reason } => {
            format!("freeze {domain} until {until:.0}: {reason}")
        }
        Ask::Thaw { domain } => format!("thaw {domain}"),
        Ask::Verify { rung, .. } => format!("prove it: {rung}"),
        Ask::Errand { what, .. } => format!("have it done: {what}"),
    }
}

fn access(what: &AccessChange) -> String {
    match what {
        AccessChange::JoinTokenMade { token, pool, uses, .. } => {
            format!("token {token}: {uses} may join pool {pool}")
        }
        AccessChange::PersonAdded { token, name, role, scope, .. } => {
            format!("token {token}: {name} is {role} of {scope}")
        }
        AccessChange::TokenRevoked { token, name: None } => format!("token {token} was taken back"),
        AccessChange::TokenRevoked { token, name: Some(name) } => {
            format!("token {token} of {name} was taken back")
        }
        AccessChange::NodeEnrolled { token, generation, .. } => {
            format!(
                "enrolled with token {token}: certificates from generation {generation} on count"
            )
        }
        AccessChange::CertificateRevoked { .. } => {
            "no certificate of it counts any more: it is out of service until it enrols anew"
                .to_owned()
        }
    }
}
