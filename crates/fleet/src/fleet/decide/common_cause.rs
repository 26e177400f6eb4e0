//! Detects domain faults: if several nodes of a rack, switch or NVLink domain show the same
//! symptom, the cause lies outside the nodes.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::fleet::event::Event;
use crate::fleet::identity::{Domain, NodeId};
use crate::fleet::reason::{Rationale, Reason, SymptomCounts, UnblockedBy};
use crate::fleet::state::{FleetState, Node, Symptom};

/// The domain faults that are active when this decision is in the log.
pub(super) type ActiveFaults = BTreeMap<Domain, Symptom>;

/// Detects faults of the domains that changed nodes are in. Clears faults that no longer hold.
pub(super) fn detect_faults(
    state: &FleetState,
    dirty: &BTreeSet<NodeId>,
    now: Timestamp,
) -> Vec<Event> {
    let nodes = dirty.iter().filter_map(|id| state.nodes.get(id));
    let mut affected: BTreeSet<Domain> =
        nodes.flat_map(|node| node.location.domains()).filter(Domain::fails_as_one).collect();
    // Nodes may have left a faulty domain although no node that is still in it changed.
    affected.extend(state.domain_faults.keys().cloned());
    let mut events = Vec::new();
    let mut suspects: Vec<Suspect> = Vec::new();
    for domain in affected {
        match state.domain_faults.get(&domain) {
            None => suspects.extend(common(state, &domain, now)),
            Some(fault) if !is_common(state, &domain, fault.symptom) => {
                let symptom = fault.symptom;
                let reason = Reason::NoCommonSymptom { domain: domain.clone(), symptom };
                let rationale = Rationale::new(reason, UnblockedBy::SymptomReturn);
                suspects.extend(common(state, &domain, now));
                events.push(Event::DomainFaultCleared { domain, rationale });
            }
            Some(_) => {}
        }
    }
    // Prefer the domain that covers the most affected nodes, then the one with the highest share of
    // affected nodes. Drop a domain if other domain faults already explain all its affected nodes.
    suspects.sort_by(|a, b| {
        let by_nodes = b.nodes.len().cmp(&a.nodes.len());
        by_nodes.then(b.share.total_cmp(&a.share)).then_with(|| a.domain.cmp(&b.domain))
    });
    let mut explained: BTreeSet<(Symptom, NodeId)> = BTreeSet::new();
    for (domain, fault) in &state.domain_faults {
        let nodes = affected_nodes(state, domain, fault.symptom).into_keys();
        explained.extend(nodes.map(|id| (fault.symptom, id)));
    }
    for suspect in suspects {
        let symptoms: Vec<_> =
            suspect.nodes.iter().map(|id| (suspect.symptom, id.clone())).collect();
        if symptoms.iter().any(|symptom| !explained.contains(symptom)) {
            explained.extend(symptoms);
            events.push(fault_detected(state, suspect));
        }
    }
    events
}

/// A domain that may be faulty.
struct Suspect {
    domain: Domain,
    symptom: Symptom,
    nodes: Vec<NodeId>,
    /// Share of its nodes that are affected.
    share: f64,
}

/// The domain faults that are active after these events.
pub(super) fn active_faults(state: &FleetState, events: &[Event]) -> ActiveFaults {
    let mut faults: ActiveFaults =
        state.domain_faults.iter().map(|(domain, fault)| (domain.clone(), fault.symptom)).collect();
    for event in events {
        match event {
            Event::DomainFaultDetected { domain, symptom, .. } => {
                faults.insert(domain.clone(), *symptom);
            }
            Event::DomainFaultCleared { domain, .. } => {
                faults.remove(domain);
            }
            _ => {}
        }
    }
    faults
}

/// Nodes whose wait these events explain.
pub(super) fn concerned_nodes(events: &[Event]) -> BTreeSet<NodeId> {
    let mut concerned = BTreeSet::new();
    for event in events {
        if let Event::DomainFaultDetected { nodes, .. } = event {
            concerned.extend(nodes.iter().cloned());
        }
    }
    concerned
}

/// Returns the faulty domain that explains everything that is wrong with the node, if there is one.
pub(super) fn explaining_domain<'a>(
    node: &Node,
    codes: &[String],
    active_faults: &'a ActiveFaults,
) -> Option<(&'a Domain, Symptom)> {
    let domains = node.location.domains();
    active_faults.iter().find_map(|(domain, symptom)| {
        let explains = |code: &String| Symptom::from_code(code) == Some(*symptom);
        let is_lost = node.liveness.heartbeat_loss().is_some();
        let is_heartbeat_explained =
            codes.is_empty() && *symptom == Symptom::HeartbeatLost && is_lost;
        let is_explained =
            is_heartbeat_explained || (!codes.is_empty() && codes.iter().all(explains));
        (domains.contains(domain) && is_explained).then_some((domain, *symptom))
    })
}

fn affected_nodes(
    state: &FleetState,
    domain: &Domain,
    symptom: Symptom,
) -> BTreeMap<NodeId, Timestamp> {
    state
        .symptoms
        .get(domain)
        .and_then(|symptoms| symptoms.get(&symptom))
        .cloned()
        .unwrap_or_default()
}

/// Whether enough nodes still show the symptom. Half the share of the detection is enough, so that
/// the fault does not flap.
fn is_common(state: &FleetState, domain: &Domain, symptom: Symptom) -> bool {
    let policy = &state.policy.common_cause;
    let count = u32::try_from(affected_nodes(state, domain, symptom).len()).unwrap_or(u32::MAX);
    let members = state.domain_counts.get(domain).map_or(0, |counts| counts.members);
    count >= policy.nodes && f64::from(count) >= f64::from(members) * policy.share / 2.0
}

/// Returns the symptom that enough nodes of the domain began to show within the window, with these
/// nodes.
fn common(state: &FleetState, domain: &Domain, now: Timestamp) -> Option<Suspect> {
    let policy = &state.policy.common_cause;
    let members = state.domain_counts.get(domain)?.members;
    let from = now - SignedDuration::from_secs(i64::from(policy.window_s));
    for (symptom, nodes) in state.symptoms.get(domain)? {
        let recent = nodes.iter().filter(|(_, at)| **at >= from).map(|(id, _)| id.clone());
        let nodes: Vec<NodeId> = recent.collect();
        let count = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
        let share = f64::from(count) / f64::from(members.max(1));
        if count >= policy.nodes && share >= policy.share {
            return Some(Suspect { domain: domain.clone(), symptom: *symptom, nodes, share });
        }
    }
    None
}

fn fault_detected(state: &FleetState, suspect: Suspect) -> Event {
    let Suspect { domain, symptom, nodes, .. } = suspect;
    let members = state.domain_counts.get(&domain).map_or(0, |counts| counts.members);
    let count = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
    let reason = Reason::CommonSymptom {
        domain: domain.clone(),
        symptom,
        window_s: state.policy.common_cause.window_s,
        counts: Some(SymptomCounts { nodes: count, members }),
    };
    let rationale = Rationale::new(reason, UnblockedBy::FewerSymptoms { symptom });
    Event::DomainFaultDetected { domain, symptom, nodes, rationale }
}
