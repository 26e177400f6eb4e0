//! What a notification says. All of its sentences are made here.

use std::collections::BTreeSet;
use std::fmt::Write;

use farrier_facts::FactSet;
use jiff::Timestamp;

use super::condition::{self, Condition, IncidentKey};
use super::group::{GroupId, IncidentEnd, digest};
use super::incident::{ActionsTaken, Incident};
use super::notification::{
    AffectedNode, GapId, NODES_MAX, Notification, NotificationKind, NotificationStatus,
};
use super::policy::{AlertMatch, NotificationPolicy, NotificationRoute};
use crate::fleet::identity::{Domain, Location, NodeId};
use crate::fleet::reason::{Reason, UnblockedBy, order_text, subject_text, times_text};
use crate::fleet::state::{NodePhase, RepairAttempt};
use crate::health::{Action, Severity};
use crate::runbook;

/// The notification of incidents that fire. `None` if there are none. Its key is set for each
/// receiver.
pub(super) fn firing(
    group: &GroupId,
    incidents: &[(&IncidentKey, &Incident)],
    route: &NotificationRoute,
    policy: &NotificationPolicy,
    now: Timestamp,
) -> Option<Notification> {
    let mut incidents = incidents.to_vec();
    incidents.sort_by_cached_key(|(key, incident)| {
        (incident.worst().map(Condition::rank), incident.started, (*key).clone())
    });
    let (_, first) = *incidents.first()?;
    let worst = first.worst()?;
    let places = &route.matches;
    let nodes: BTreeSet<&str> = incidents
        .iter()
        .flat_map(|(_, incident)| nodes_at(incident, places))
        .map(|(node, _)| node.as_str())
        .collect();
    let needed = incidents.iter().find_map(|(_, incident)| action_needed(incident, places));
    let page = runbook_page(worst);
    Some(Notification {
        key: String::new(),
        group: group.0.clone(),
        status: NotificationStatus::Firing,
        severity: first.severity(),
        kind: worst.kind(),
        code: worst.code().to_owned(),
        cause: cause(first, &incidents, places)?,
        nodes: affected(&incidents, places),
        nodes_total: u32::try_from(nodes.len()).unwrap_or(u32::MAX),
        action_taken: actions_taken(&incidents),
        action_needed: needed,
        runbook_url: page.and_then(|page| policy.runbook_url(&page)),
        started: incidents.iter().map(|(_, incident)| incident.started).min().unwrap_or(now),
        at: now,
    })
}

/// Whether people who got `before` have to know `now`. Progress of a repair alone is no news.
pub(super) fn is_news(before: &Notification, now: &Notification) -> bool {
    now.severity > before.severity
        || now.nodes_total > before.nodes_total
        || now.code != before.code && now.severity >= before.severity
        || now.action_needed.is_some() && now.action_needed != before.action_needed
}

/// The code of the runbook page, if there is one.
fn runbook_page(condition: &Condition) -> Option<String> {
    match condition {
        Condition::Finding { summary, .. } => {
            Some(runbook::page_code(FactSet::embedded(), &summary.code, &summary.detail))
        }
        _ => None,
    }
}

/// The nodes of an incident that the route is about. A failure domain may have nodes of several
/// owners, and each owner is told of their own.
fn nodes_at<'i>(
    incident: &'i Incident,
    places: &'i AlertMatch,
) -> impl Iterator<Item = &'i (NodeId, Location)> {
    incident.nodes.iter().filter(|(_, location)| places.is_place(location))
}

/// A condition of the incident as the people of the route may see it.
fn for_route(condition: &Condition, incident: &Incident, places: &AlertMatch) -> Condition {
    match nodes_at(incident, places).next().map(|(_, location)| places.scope(location)) {
        Some(Domain::Fleet) | None => condition.clone(),
        Some(scope) => condition.redacted(&scope),
    }
}

fn cause(
    first: &Incident,
    incidents: &[(&IncidentKey, &Incident)],
    places: &AlertMatch,
) -> Option<String> {
    let codes: BTreeSet<&str> = incidents
        .iter()
        .filter_map(|(_, incident)| incident.worst())
        .map(Condition::code)
        .collect();
    let worst = for_route(first.worst()?, first, places);
    let mut text = describe(&worst);
    if worst.nodes_at_detection().is_some_and(|nodes| first.nodes.len() > nodes) {
        let _ = write!(text, "; {} nodes by now", first.nodes.len());
    }
    if codes.len() > 1 {
        let _ = write!(text, "; and {} other causes", codes.len() - 1);
    }
    Some(text)
}

/// A condition in one line.
pub(super) fn describe(condition: &Condition) -> String {
    match condition {
        Condition::Finding { summary, text, .. } if summary.detail.is_empty() => text.clone(),
        Condition::Finding { summary, text, .. } => format!("{}: {text}", summary.detail),
        Condition::HeartbeatLost { since, .. } => {
            format!("no heartbeat from the agent since {since:.0}")
        }
        Condition::Phase { phase: NodePhase::Suspect, rationale } => {
            format!("suspect: {}", rationale.reason)
        }
        Condition::Phase { rationale, .. } => format!("out of service: {}", rationale.reason),
        Condition::Deferred { rationale } | Condition::DomainFault { rationale, .. } => {
            rationale.reason.to_string()
        }
        Condition::OrderFailed { order, gpu, count, last } => {
            let order = order_text(order, gpu.as_ref());
            format!("`{order}` failed {}: {last}", times_text(*count))
        }
    }
}

/// The nodes of the worst incidents, with the affected part.
fn affected(incidents: &[(&IncidentKey, &Incident)], places: &AlertMatch) -> Vec<AffectedNode> {
    let mut nodes: Vec<AffectedNode> = Vec::new();
    let mut named: BTreeSet<&str> = BTreeSet::new();
    for (_, incident) in incidents {
        let subject = incident.worst().and_then(Condition::subject);
        let part = subject.map(|(subject, gpu)| subject_text(subject, gpu));
        for (node, location) in nodes_at(incident, places) {
            if nodes.len() == NODES_MAX {
                return nodes;
            }
            if named.insert(node.as_str()) {
                nodes.push(AffectedNode {
                    node: node.clone(),
                    pool: Some(location.pool.clone()),
                    site: location.site.clone(),
                    tenant: location.tenant.clone(),
                    part: part.clone(),
                });
            }
        }
    }
    nodes
}

fn actions_taken(incidents: &[(&IncidentKey, &Incident)]) -> Option<String> {
    let actions: Vec<&ActionsTaken> =
        incidents.iter().filter_map(|(_, incident)| incident.actions.as_ref()).collect();
    match &actions[..] {
        [] => None,
        [one] => describe_actions(one),
        several => {
            let out = several.iter().filter(|actions| is_out(actions.phase)).count();
            (out > 0).then(|| format!("{out} nodes taken out of service"))
        }
    }
}

fn is_out(phase: NodePhase) -> bool {
    !phase.in_service() && phase != NodePhase::Joining
}

fn describe_actions(actions: &ActionsTaken) -> Option<String> {
    let mut steps: Vec<String> = Vec::new();
    if is_out(actions.phase) {
        steps.push(actions.phase.to_string());
    }
    if actions.is_cordoned {
        let cordoned = if actions.is_drained { "cordoned and drained" } else { "cordoned" };
        steps.push(cordoned.to_owned());
    }
    steps.extend(actions.repairs.iter().map(|attempt| match attempt {
        RepairAttempt::Ordered { order, .. } => format!("`{order}` done"),
        RepairAttempt::Manual { .. } => "repaired by hand".to_owned(),
    }));
    steps.extend(
        actions
            .pending
            .iter()
            .map(|(order, gpu)| format!("`{}` ordered", order_text(order, gpu.as_ref()))),
    );
    (!steps.is_empty()).then(|| steps.join("; "))
}

/// What a person has to do. `None` if nothing, or if the controller repairs it.
fn action_needed(incident: &Incident, places: &AlertMatch) -> Option<String> {
    let conditions: Vec<Condition> = incident
        .conditions
        .iter()
        .map(|condition| for_route(condition, incident, places))
        .collect();
    let rationales = conditions.iter().filter_map(|condition| match condition {
        // A deferral says what the phase waits for, so it comes first.
        Condition::Deferred { rationale } => Some((0, rationale)),
        Condition::Phase { rationale, .. } | Condition::DomainFault { rationale, .. } => {
            Some((1, rationale))
        }
        _ => None,
    });
    let mut rationales: Vec<_> = rationales.collect();
    rationales.sort_by_key(|(order, _)| *order);
    let task = rationales
        .into_iter()
        .find_map(|(_, rationale)| Some((condition::operator_task(rationale)?, &rationale.reason)));
    if let Some((task, reason)) = task {
        return Some(task_text(&task, reason, incident.conditions.iter().find_map(remedy)));
    }
    match incident.worst()? {
        worst @ Condition::Finding { affects_service: false, .. } => remedy(worst),
        _ => None,
    }
}

/// What a person does about a finding.
fn remedy(condition: &Condition) -> Option<String> {
    match condition {
        Condition::Finding { remedy: Some(remedy), .. } => Some(remedy.clone()),
        Condition::Finding { action: Action::Ignore, .. } => None,
        Condition::Finding { action, .. } => Some(action.instruction().to_owned()),
        _ => None,
    }
}

/// A task as an instruction. The controller only knows what it waits for.
fn task_text(task: &UnblockedBy, reason: &Reason, remedy: Option<String>) -> String {
    // Without counts and names of nodes: each change of the text is sent.
    let full = match reason {
        Reason::DisruptionBudget { domain, .. } => {
            Some(format!("the disruption budget of {domain} is used up"))
        }
        Reason::CapacityFloor { domain, .. } => {
            Some(format!("the capacity floor of {domain} is reached"))
        }
        _ => None,
    };
    if let Some(full) = full {
        return format!(
            "the node still takes work, because {full}: cordon it by hand, or return other nodes to service"
        );
    }
    match task {
        UnblockedBy::PolicyOrHold => {
            let remedy = remedy.unwrap_or_else(|| "look at the node".to_owned());
            format!("Farrier only observes this pool: cordon the node by hand; {remedy}")
        }
        UnblockedBy::DomainRepair { domain } => {
            let name = String::from(domain.clone());
            format!(
                "repair {domain}; if its nodes do not recover then, run `farrier fleet domain repaired {name}`"
            )
        }
        task => task.to_string(),
    }
}

/// What ended a group.
pub(super) fn outcome_text(outcome: Option<IncidentEnd>) -> String {
    match outcome {
        Some(IncidentEnd::ReturnedToService) => "returned to service",
        Some(IncidentEnd::Retired) => "the node was retired",
        Some(IncidentEnd::Moved) => "the node moved to another place or owner",
        Some(IncidentEnd::Cleared) | None => "cleared",
    }
    .to_owned()
}

impl Notification {
    /// A message about the notifications themselves.
    fn about_notifications(key: String, code: &str, cause: String, at: Timestamp) -> Self {
        Self {
            group: key.clone(),
            key,
            status: NotificationStatus::Firing,
            severity: Severity::Warning,
            kind: NotificationKind::Notifier,
            code: code.to_owned(),
            cause,
            nodes: Vec::new(),
            nodes_total: 0,
            action_taken: None,
            action_needed: None,
            runbook_url: None,
            started: at,
            at,
        }
    }

    /// A test message to a receiver.
    pub fn test(receiver: &str, by: &str, at: Timestamp) -> Self {
        let key = digest(["test", receiver, by, &at.to_string()].into_iter(), 32);
        let cause = format!("test message to `{receiver}`, requested by {by}");
        Self {
            severity: Severity::Info,
            kind: NotificationKind::Test,
            ..Self::about_notifications(key, "test", cause, at)
        }
    }

    /// Says that the server lost track of the log, so notifications may be missing.
    pub fn gap(receiver: &str, gap: &GapId, at: Timestamp) -> Self {
        let parts = ["gap", receiver, &gap.database, &gap.number.to_string()];
        let key = digest(parts.into_iter(), 32);
        let cause = "notifications may be missing: the server lost its record of what was notified"
            .to_owned();
        Self {
            action_taken: Some("everything that fires now is notified again".to_owned()),
            action_needed: Some(
                "close alerts that fired before and ended meanwhile (`farrier fleet nodes` shows the fleet)"
                    .to_owned(),
            ),
            ..Self::about_notifications(key, "notification-gap", cause, at)
        }
    }

    /// Replaces notifications that did not fit into the queue of a receiver.
    pub fn summary(key: String, count: u64, worst: Severity, at: Timestamp) -> Self {
        let cause =
            format!("{count} notifications did not fit into the queue and are not sent one by one");
        Self {
            severity: worst,
            action_needed: Some(
                "see `farrier fleet findings` and `farrier fleet nodes`".to_owned(),
            ),
            ..Self::about_notifications(key, "notifications-summarised", cause, at)
        }
    }
}
