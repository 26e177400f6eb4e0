//! Detects domain faults: if several nodes of a rack, switch or NVLink domain show the same
//! symptom, the cause lies outside the nodes.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::fleet::access::is_within;
use crate::fleet::event::Event;
use crate::fleet::identity::{Domain, NodeId};
use crate::fleet::reason::{Rationale, Reason, SymptomCounts, UnblockedBy};
use crate::fleet::state::{DomainRecovery, FleetState, Node, Symptom};

/// The domain faults that are active after the events of this decision.
pub(super) struct ActiveFaults {
    pub(super) faults: BTreeMap<Domain, Symptom>,
    /// Faults that have ended, but whose findings may still be open.
    recoveries: BTreeMap<Domain, DomainRecovery>,
}

/// Detects faults in the domains of changed nodes. Ends a domain fault when too few nodes still
/// show its symptom.
pub(super) fn detect_faults(
    state: &FleetState,
    dirty: &BTreeSet<NodeId>,
    now: Timestamp,
) -> Vec<Event> {
    let nodes = dirty.iter().filter_map(|id| state.nodes.get(id));
    let mut affected: BTreeSet<Domain> =
        nodes.flat_map(|node| node.location.domains()).filter(Domain::fails_as_one).collect();
    // Also check faulty domains without changed nodes, because nodes may have left these domains.
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
    /// The share of the domain's nodes that are affected.
    share: f64,
}

/// The domain faults after these events.
pub(super) fn active_faults(state: &FleetState, events: &[Event], now: Timestamp) -> ActiveFaults {
    let faults = state.domain_faults.iter();
    let mut faults: BTreeMap<Domain, Symptom> =
        faults.map(|(domain, fault)| (domain.clone(), fault.symptom)).collect();
    let mut recoveries = state.domain_recoveries.clone();
    for event in events {
        match event {
            Event::DomainFaultDetected { domain, symptom, .. } => {
                faults.insert(domain.clone(), *symptom);
            }
            Event::DomainFaultCleared { domain, .. } => {
                if let Some(symptom) = faults.remove(domain) {
                    let recovery = DomainRecovery { symptom, at: now, repaired: false };
                    recoveries.insert(domain.clone(), recovery);
                }
            }
            _ => {}
        }
    }
    ActiveFaults { faults, recoveries }
}

/// Nodes whose wait is explained or changed by these events.
pub(super) fn concerned_nodes(state: &FleetState, events: &[Event]) -> BTreeSet<NodeId> {
    let mut concerned = BTreeSet::new();
    for event in events {
        match event {
            Event::DomainFaultDetected { nodes, .. } => concerned.extend(nodes.iter().cloned()),
            Event::DomainFaultCleared { domain, .. } => {
                let fault = state.domain_faults.get(domain);
                let affected = fault.map(|fault| affected_nodes(state, domain, fault.symptom));
                concerned.extend(affected.into_iter().flat_map(BTreeMap::into_keys));
            }
            _ => {}
        }
    }
    concerned
}

/// Whether this symptom explains everything that is wrong with the node.
fn explains(node: &Node, codes: &[String], symptom: Symptom) -> bool {
    if codes.is_empty() {
        return symptom == Symptom::HeartbeatLost && node.liveness.heartbeat_loss().is_some();
    }
    codes.iter().all(|code| Symptom::from_code(code) == Some(symptom))
}

impl ActiveFaults {
    /// Returns the faulty domain that explains everything that is wrong with the node, if there is
    /// one.
    pub(super) fn explanation(&self, node: &Node, codes: &[String]) -> Option<(&Domain, Symptom)> {
        let mut faults = self.faults.iter();
        let (domain, symptom) = faults.find(|(domain, symptom)| {
            is_within(&node.location, domain) && explains(node, codes, **symptom)
        })?;
        Some((domain, *symptom))
    }

    /// Like [`Self::explanation`], but for a domain fault that has ended after the node began to
    /// show its symptom.
    pub(super) fn recovery(
        &self,
        node: &Node,
        codes: &[String],
    ) -> Option<(&Domain, DomainRecovery)> {
        let mut recoveries = self.recoveries.iter();
        let (domain, recovery) = recoveries.find(|(domain, recovery)| {
            let shown_since = node.symptoms.get(&recovery.symptom);
            is_within(&node.location, domain)
                && shown_since.is_some_and(|since| *since <= recovery.at)
                && explains(node, codes, recovery.symptom)
        })?;
        Some((domain, *recovery))
    }
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

/// Whether enough nodes still show the symptom. Detection requires a higher share: here, half of
/// that share is enough, so that the fault does not flap.
fn is_common(state: &FleetState, domain: &Domain, symptom: Symptom) -> bool {
    let policy = &state.policy.common_cause;
    if !symptom.can_come_from(domain.kind()) {
        return false; // Only an earlier version detected such a fault.
    }
    let count = u32::try_from(affected_nodes(state, domain, symptom).len()).unwrap_or(u32::MAX);
    let members = state.domain_counts.get(domain).map_or(0, |counts| counts.members);
    count >= policy.nodes && f64::from(count) >= f64::from(members) * policy.share / 2.0
}

/// Returns the symptom that enough nodes of the domain began to show within the window. The result
/// includes these nodes.
fn common(state: &FleetState, domain: &Domain, now: Timestamp) -> Option<Suspect> {
    let policy = &state.policy.common_cause;
    let members = state.domain_counts.get(domain)?.members;
    let from = now - SignedDuration::from_secs(i64::from(policy.window_s));
    // What the nodes showed before a repair of the domain does not indicate another fault.
    let repaired = state.domain_recoveries.get(domain).filter(|recovery| recovery.repaired);
    let is_recent = |at: Timestamp| at >= from && repaired.is_none_or(|recovery| at > recovery.at);
    let symptoms = state.symptoms.get(domain)?.iter();
    for (symptom, nodes) in symptoms.filter(|(symptom, _)| symptom.can_come_from(domain.kind())) {
        let recent = nodes.iter().filter(|(_, at)| is_recent(**at)).map(|(id, _)| id.clone());
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
