//! What a request for many nodes will do: which nodes it affects, which nodes it skips, and how the
//! capacity of their pools changes. Pure, so that two previews can be compared.

use std::collections::{BTreeMap, BTreeSet};

use farrier_fleet::fleet::access::is_within;
use farrier_fleet::fleet::{Domain, NodeId, NodePhase};
use farrier_wire::rest::{DomainRow, NodeRow};

use super::node_names::{folded, natural_order};
use super::nodes::counted;

/// The effect of a request on a node, as far as the preview needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestEffect {
    /// Takes the node out of service.
    TakesOut,
    /// Needs a node that takes no work.
    NeedsIdle,
    /// Needs a node that is not in service.
    NeedsOutOfService,
    /// Needs a repair that waits for an approval.
    NeedsDeferredRepair,
    /// Needs nothing.
    Any,
}

/// Why a selected node is skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Skipped {
    TakesWork,
    InService,
    NothingToApprove,
}

impl std::fmt::Display for Skipped {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::TakesWork => "takes work; hold it first (`farrier fleet cordon`)",
            Self::InService => "in service, so there is nothing to repair",
            Self::NothingToApprove => "no repair waits for approval",
        })
    }
}

/// How many nodes of a domain take work, before and after the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Capacity {
    domain: Domain,
    members: u32,
    before: Option<u32>,
    /// Nodes that stop taking work.
    leaving: u32,
    /// `None` if there is none, or if the caller may not see it.
    floor: Option<u32>,
}

impl Capacity {
    fn after(&self) -> Option<u32> {
        self.before.map(|before| before.saturating_sub(self.leaving))
    }

    /// Whether the request leads below the floor.
    fn is_below_floor(&self) -> bool {
        self.after().zip(self.floor).is_some_and(|(after, floor)| after < floor)
    }

    fn describe(&self) -> String {
        let Self { domain, members, leaving, .. } = self;
        let after = match self.after() {
            Some(after) => format!("{after} of {members} nodes still take work"),
            None => format!("{members} nodes"),
        };
        let floor = match self.floor {
            Some(floor) if self.is_below_floor() => format!(
                ", below the capacity floor of {floor}: Farrier then takes no other node of it out of service, not even an unfit one"
            ),
            Some(floor) => format!("; the capacity floor is {floor}"),
            None => String::new(),
        };
        format!("{domain}: {} fewer, {after}{floor}", counted_u32(*leaving))
    }
}

fn counted_u32(nodes: u32) -> String {
    usize::try_from(nodes).map_or_else(|_| format!("{nodes} nodes"), counted)
}

/// The nodes that a request will go to.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Preview {
    /// In natural order.
    pub(super) nodes: Vec<NodeId>,
    pub(super) skipped: BTreeMap<Skipped, Vec<NodeId>>,
    phases: BTreeMap<NodePhase, usize>,
    capacities: Vec<Capacity>,
}

impl Preview {
    pub(super) fn new(
        effect: RequestEffect,
        mut rows: Vec<NodeRow>,
        domains: &[DomainRow],
    ) -> Self {
        rows.sort_by(|one, other| natural_order(one.node.as_str(), other.node.as_str()));
        let mut preview = Self {
            nodes: Vec::new(),
            skipped: BTreeMap::new(),
            phases: BTreeMap::new(),
            capacities: Vec::new(),
        };
        let (selected, skipped): (Vec<_>, Vec<_>) =
            rows.into_iter().partition(|row| skip(effect, row).is_none());
        for row in skipped {
            let Some(reason) = skip(effect, &row) else { continue };
            preview.skipped.entry(reason).or_default().push(row.node);
        }
        if effect == RequestEffect::TakesOut {
            preview.capacities = capacities(&selected, domains);
        }
        for row in selected {
            *preview.phases.entry(row.phase).or_default() += 1;
            preview.nodes.push(row.node);
        }
        preview
    }

    /// The preview as lines: a name and a text.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let names = folded(self.nodes.iter().map(NodeId::as_str));
        let phases: Vec<String> =
            self.phases.iter().map(|(phase, count)| format!("{count} {phase}")).collect();
        let mut lines = vec![("nodes", names), ("phases", phases.join(", "))];
        lines.extend(self.capacities.iter().map(|capacity| {
            let name = if capacity.is_below_floor() { "warning" } else { "capacity" };
            (name, capacity.describe())
        }));
        lines.extend(self.skipped.iter().map(|(reason, nodes)| {
            let names = folded(nodes.iter().map(NodeId::as_str));
            ("skipped", format!("{}, {names}: {reason}", counted(nodes.len())))
        }));
        lines
    }

    /// What changed until `current` was made.
    pub(super) fn drift(&self, current: &Self) -> PreviewDrift {
        let [before, now] = [self, current]
            .map(|preview| preview.nodes.iter().cloned().collect::<BTreeSet<NodeId>>());
        let below = |preview: &Self| -> BTreeSet<Domain> {
            let below = preview.capacities.iter().filter(|capacity| capacity.is_below_floor());
            below.map(|capacity| capacity.domain.clone()).collect()
        };
        PreviewDrift {
            gone: before.difference(&now).cloned().collect(),
            added: now.difference(&before).cloned().collect(),
            newly_below_floor: below(current).difference(&below(self)).cloned().collect(),
        }
    }
}

/// How the fleet changed since a preview.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PreviewDrift {
    /// Nodes that the request no longer fits or selects.
    pub(super) gone: BTreeSet<NodeId>,
    /// Nodes that it would select now. They were not shown, so it does not touch them.
    pub(super) added: BTreeSet<NodeId>,
    /// Domains that the request would now take below their capacity floor.
    pub(super) newly_below_floor: BTreeSet<Domain>,
}

/// Why the server would refuse the request for this node, as far as the node's row shows the
/// reason.
fn skip(effect: RequestEffect, row: &NodeRow) -> Option<Skipped> {
    let deferred = row.deferred.as_ref().map(|deferred| deferred.code.as_str());
    match effect {
        RequestEffect::NeedsIdle if takes_work(row) => Some(Skipped::TakesWork),
        RequestEffect::NeedsOutOfService if row.phase == NodePhase::InService => {
            Some(Skipped::InService)
        }
        RequestEffect::NeedsDeferredRepair
            if !matches!(deferred, Some("needs-approval" | "outside-window")) =>
        {
            Some(Skipped::NothingToApprove)
        }
        _ => None,
    }
}

fn takes_work(row: &NodeRow) -> bool {
    row.phase.in_service() || row.phase == NodePhase::Joining
}

/// The fleet, the pools and the domains with a floor, if any of their nodes leaves service.
fn capacities(rows: &[NodeRow], domains: &[DomainRow]) -> Vec<Capacity> {
    let leaving: Vec<&NodeRow> = rows.iter().filter(|row| takes_work(row)).collect();
    let capacity = |row: &DomainRow| {
        let within = leaving.iter().filter(|node| is_within(&node.location, &row.domain));
        Capacity {
            domain: row.domain.clone(),
            members: row.members,
            before: row.schedulable,
            leaving: u32::try_from(within.count()).unwrap_or(u32::MAX),
            floor: row.floor,
        }
    };
    let is_shown = |row: &&DomainRow| {
        row.floor.is_some() || matches!(row.domain, Domain::Fleet | Domain::Pool(_))
    };
    let capacities = domains.iter().filter(is_shown).map(capacity);
    capacities.filter(|capacity| capacity.leaving > 0).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(node: &str, phase: &str, deferred: Option<&str>) -> NodeRow {
        let deferred = deferred.map(|code| json!({ "code": code, "text": "" }));
        serde_json::from_value(json!({
            "node": node, "location": { "pool": "train" }, "phase": phase,
            "since": "2026-11-15T12:00:00Z", "findings": 0,
            "reason": { "code": "verified", "text": "" }, "deferred": deferred,
        }))
        .unwrap()
    }

    fn domain(name: &str, schedulable: u32, floor: Option<u32>) -> DomainRow {
        serde_json::from_value(json!({
            "domain": name, "members": 10, "out": 0, "schedulable": schedulable, "floor": floor,
        }))
        .unwrap()
    }

    fn text(preview: &Preview) -> String {
        let lines = preview.lines();
        let lines = lines.iter().map(|(name, text)| format!("{name}: {text}"));
        lines.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_preview_names_the_nodes_and_the_capacity_that_is_left() {
        let rows = || {
            vec![
                row("gpu-10", "in-service", None),
                row("gpu-2", "suspect", None),
                row("gpu-3", "held", None),
            ]
        };
        let domains = [
            domain("fleet", 9, Some(5)),
            domain("pool:train", 6, Some(5)),
            domain("rack:r1", 9, None),
            domain("pool:serve", 9, None),
        ];
        let preview = Preview::new(RequestEffect::TakesOut, rows(), &domains);
        insta::assert_snapshot!(text(&preview));
        // A request that takes no node out of service has no effect on capacity.
        assert_eq!(Preview::new(RequestEffect::Any, rows(), &domains).lines().len(), 2);
    }

    #[test]
    fn nodes_that_the_request_does_not_fit_are_skipped_with_the_reason() {
        let rows = || {
            vec![
                row("a", "in-service", None),
                row("b", "held", None),
                row("c", "repairing", Some("needs-approval")),
            ]
        };
        let skipped = |effect| {
            let preview = Preview::new(effect, rows(), &[]);
            let names = |nodes: &[NodeId]| folded(nodes.iter().map(NodeId::as_str));
            let skipped = preview.skipped.iter();
            let skipped: Vec<_> =
                skipped.map(|(reason, nodes)| format!("{} {reason:?}", names(nodes))).collect();
            (names(&preview.nodes), skipped.join("; "))
        };
        let pair = |nodes: &str, skipped: &str| (nodes.to_owned(), skipped.to_owned());
        assert_eq!(skipped(RequestEffect::Any), pair("a, b, c", ""));
        assert_eq!(skipped(RequestEffect::NeedsIdle), pair("b, c", "a TakesWork"));
        assert_eq!(skipped(RequestEffect::NeedsOutOfService), pair("b, c", "a InService"));
        assert_eq!(skipped(RequestEffect::NeedsDeferredRepair), pair("c", "a, b NothingToApprove"));
    }

    #[test]
    fn drift_names_what_changed_and_new_breaches_of_a_floor() {
        let rows =
            |names: &[&str]| names.iter().map(|name| row(name, "in-service", None)).collect();
        let before = Preview::new(
            RequestEffect::TakesOut,
            rows(&["a", "b"]),
            &[domain("fleet", 9, Some(5))],
        );
        assert_eq!(
            before.drift(&before.clone()),
            PreviewDrift { gone: [].into(), added: [].into(), newly_below_floor: [].into() }
        );
        let now = Preview::new(
            RequestEffect::TakesOut,
            rows(&["b", "c"]),
            &[domain("fleet", 6, Some(5))],
        );
        let drift = before.drift(&now);
        assert_eq!(drift.gone, ["a".parse().unwrap()].into());
        assert_eq!(drift.added, ["c".parse().unwrap()].into());
        assert_eq!(drift.newly_below_floor, [Domain::Fleet].into());
        // The capacity was already below the floor when the preview was shown.
        assert!(now.drift(&now.clone()).newly_below_floor.is_empty());
    }
}
