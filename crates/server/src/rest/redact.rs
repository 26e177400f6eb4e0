//! Redacts the log for a caller. The caller sees only events about nodes in their scope. If an
//! event names several nodes, the caller sees only the names of these nodes.
//!
//! Visibility depends on the current location of a node: if that location is in the caller's scope,
//! the caller sees the node's history since its enrolment. Retired nodes have no location. Only
//! callers with the whole fleet as scope see them, even after another node got the same name.

use farrier_fleet::fleet::event::OperatorRequest;
use farrier_fleet::fleet::policy::NodeSelector;
use farrier_fleet::fleet::{Domain, Entry, Event, FleetState, NodeId, Policy};

use farrier_fleet::notify::NotificationPolicy;

use super::caller::Caller;
use super::extent::Extent;
use super::failure::Failure;
use crate::controller::Controller;

/// Returns the entries that the caller may see, redacted.
pub(super) async fn visible_entries(
    controller: &Controller,
    caller: &Caller,
    entries: Vec<Entry>,
) -> Result<Vec<Entry>, Failure> {
    if caller.is_fleet_wide() {
        let sees = |entry: &Entry| {
            caller.sees_access() || !matches!(entry.event, Event::AccessChanged { .. })
        };
        return Ok(entries.into_iter().filter(sees).collect());
    }
    let extent = if entries.iter().any(|entry| depends_on_extent(&entry.event)) {
        Extent::count(controller, caller).await?
    } else {
        Extent::uncounted(caller)
    };
    let caller = caller.clone();
    let visible = controller.read(move |state| {
        let redactor = Redactor { state, caller: &caller, extent: &extent };
        entries.into_iter().filter_map(|entry| redactor.redact(entry)).collect()
    });
    Ok(visible.await?)
}

/// Whether the visibility of the event depends on the domains of the caller's nodes.
fn depends_on_extent(event: &Event) -> bool {
    matches!(
        event,
        Event::PolicySet { .. }
            | Event::DomainFaultCleared { .. }
            | Event::OperatorRequested {
                request: OperatorRequest::Freeze { .. }
                    | OperatorRequest::Unfreeze { .. }
                    | OperatorRequest::DomainRepaired { .. }
                    | OperatorRequest::Mute { .. }
            }
    )
}

struct Redactor<'s> {
    state: &'s FleetState,
    caller: &'s Caller,
    /// The domains of the caller's nodes. They are counted only if the visibility of an entry
    /// depends on them.
    extent: &'s Extent,
}

impl Redactor<'_> {
    fn redact(&self, mut entry: Entry) -> Option<Entry> {
        let seq = entry.seq;
        let is_seen = match &mut entry.event {
            Event::AccessChanged { .. } => false,
            Event::Tick | Event::ClockStepped { .. } | Event::ControllerResumed { .. } => true,
            Event::PolicySet { policy } => {
                **policy = visible_policy(self.extent, policy);
                true
            }
            Event::DomainFaultDetected { nodes, rationale, .. } => {
                nodes.retain(|id| self.is_visible(id, seq));
                *rationale = rationale.redacted(self.caller.scope());
                !nodes.is_empty()
            }
            Event::Deferred { node, rationale } | Event::PhaseChanged { node, rationale, .. } => {
                *rationale = rationale.redacted(self.caller.scope());
                self.is_visible(node, seq)
            }
            Event::OrderCancelled { node, reason, .. } => {
                *reason = reason.redacted(self.caller.scope());
                self.is_visible(node, seq)
            }
            Event::OrderIssued { order } => {
                order.reason = order.reason.redacted(self.caller.scope());
                self.is_visible(&order.node, seq)
            }
            Event::DomainFaultCleared { domain, rationale } => {
                *rationale = rationale.redacted(self.caller.scope());
                self.extent.touches(domain)
            }
            Event::OperatorRequested {
                request:
                    OperatorRequest::Freeze { domain, .. }
                    | OperatorRequest::Unfreeze { domain }
                    | OperatorRequest::DomainRepaired { domain, .. },
            } => self.extent.touches(domain),
            Event::OperatorRequested { request: OperatorRequest::Mute { matches, .. } } => {
                let node = matches.node.as_ref().is_none_or(|id| self.is_visible(id, seq));
                let domain = matches.domain.as_ref();
                node && domain.is_none_or(|domain| self.extent.touches(domain))
            }
            event => event.subject().is_some_and(|id| self.is_visible(id, seq)),
        };
        is_seen.then_some(entry)
    }

    /// Whether the caller may see an entry about this node. An entry from before the node's
    /// enrolment is about an earlier node with the same name, which may have had another owner.
    fn is_visible(&self, id: &NodeId, seq: u64) -> bool {
        let node = self.state.nodes.get(id);
        node.is_some_and(|node| self.caller.sees(&node.location) && seq >= node.first_seq)
    }
}

/// Keeps only what can concern the caller's nodes: rules and pins of other tenants and other pools
/// tell what others run.
fn visible_changes(extent: &Extent, policy: &mut Policy) {
    let domains: Vec<&Domain> = extent.counts().map(|(domain, _)| domain).collect();
    let is_visible = |selector: &NodeSelector| selector.may_select_in(&domains);
    let changes = &mut policy.changes;
    changes.rules.retain(|_, rule| is_visible(&rule.select));
    changes.tenants.retain(|tenant, _| extent.touches(&Domain::Tenant(tenant.clone())));
    changes.freezes.retain(|_, freeze| extent.touches(&freeze.scope));
    changes.overlays.retain(|site, _| extent.touches(&Domain::Site(site.clone())));
    changes.exceptions.retain(|_, exception| is_visible(&exception.select));
    policy.signatures.clear();
}

/// The policy without pools that are not the caller's.
pub(super) fn visible_policy(extent: &Extent, policy: &Policy) -> Policy {
    let mut policy = policy.clone();
    // Receivers are people and URLs of the operators of the fleet.
    if !extent.is_fleet_wide() {
        policy.notifications = NotificationPolicy::default();
    }
    if !extent.is_fleet_wide() {
        visible_changes(extent, &mut policy);
    }
    policy.pools.retain(|pool, _| extent.touches(&Domain::Pool(pool.clone())));
    policy
}
