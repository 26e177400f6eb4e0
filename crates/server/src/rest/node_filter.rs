//! Filters of node lists. A node has to pass all filters. It passes a filter if it matches one of
//! the filter's values.

use std::str::FromStr;

use farrier_facts::names::fold;
use farrier_fleet::fleet::identity::Unit;
use farrier_fleet::fleet::{Node, NodeId, NodePhase, Pool};
use farrier_fleet::health::Finding;
use farrier_fleet::health::engine::event_detail;

use super::caller::Caller;
use super::failure::Failure;
use super::query::Params;

/// Value of the filters `gpu` and `driver` that selects nodes whose GPU or driver is unknown.
const UNKNOWN: &str = "unknown";

/// The filters of a request. An empty list selects every node.
#[derive(Debug, Default)]
pub(super) struct NodeFilter {
    nodes: Vec<NodeId>,
    pools: Vec<Pool>,
    racks: Vec<Unit>,
    leaves: Vec<Unit>,
    sites: Vec<Unit>,
    phases: Vec<NodePhase>,
    gpus: Vec<String>,
    drivers: Vec<String>,
    findings: Vec<String>,
    pub(super) needs_attention: bool,
    pub(super) text: Option<String>,
}

impl NodeFilter {
    pub(super) fn from_query(query: &Params) -> Result<Self, Failure> {
        let phase = |word: &str| NodePhase::ALL.into_iter().find(|phase| phase.code() == word);
        Ok(Self {
            nodes: parsed(query, "node")?,
            pools: parsed(query, "pool")?,
            racks: parsed(query, "rack")?,
            leaves: parsed(query, "leaf")?,
            sites: parsed(query, "site")?,
            phases: query
                .values("phase")
                .map(|word| {
                    phase(word).ok_or_else(|| Failure::bad_request("there is no such phase"))
                })
                .collect::<Result<_, _>>()?,
            gpus: query.values("gpu").map(fold).collect(),
            drivers: query.values("driver").map(str::to_owned).collect(),
            findings: query.values("finding").map(str::to_lowercase).collect(),
            needs_attention: query.text("needs_attention") == Some("true"),
            text: query.text("text").map(str::to_lowercase).filter(|text| !text.is_empty()),
        })
    }

    /// Whether the node passes every filter except `needs_attention`, which depends on the time.
    pub(super) fn matches(&self, caller: &Caller, id: &NodeId, node: &Node) -> bool {
        (self.nodes.is_empty() || self.nodes.contains(id))
            && self.matches_location(node)
            && self.matches_inventory(node)
            && self.matches_findings(node)
            && self.text.as_ref().is_none_or(|text| node_matches(caller, id, node, text))
    }

    /// Whether the location and the phase of the node pass their filters.
    pub(super) fn matches_location(&self, node: &Node) -> bool {
        let location = &node.location;
        let is_in = |unit: &Option<Unit>, units: &[Unit]| {
            units.is_empty() || unit.as_ref().is_some_and(|unit| units.contains(unit))
        };
        (self.pools.is_empty() || self.pools.contains(&location.pool))
            && is_in(&location.rack, &self.racks)
            && is_in(&location.leaf, &self.leaves)
            && is_in(&location.site, &self.sites)
            && (self.phases.is_empty() || self.phases.contains(&node.phase()))
    }

    fn matches_inventory(&self, node: &Node) -> bool {
        let inventory = node.reported_inventory();
        let driver = inventory.and_then(|inventory| inventory.driver.as_deref());
        let gpus = inventory.and_then(|inventory| inventory.gpus.as_ref());
        let has_gpu = |wanted: &String| {
            let mut names = gpus.into_iter().flatten().filter_map(|gpu| gpu.name.as_deref());
            if wanted == UNKNOWN {
                return names.next().is_none();
            }
            // Most nodes have eight equal GPUs.
            let mut last = None;
            names
                .filter(|name| last.replace(*name) != Some(*name))
                .any(|name| fold(name).contains(wanted))
        };
        let has_driver = |wanted: &String| match driver {
            Some(driver) => is_version_prefix(wanted, driver),
            None => wanted == UNKNOWN,
        };
        (self.drivers.is_empty() || self.drivers.iter().any(has_driver))
            && (self.gpus.is_empty() || self.gpus.iter().any(has_gpu))
    }

    fn matches_findings(&self, node: &Node) -> bool {
        let is_wanted = |finding: &Finding| {
            self.findings.iter().any(|wanted| finding_has_code(finding, wanted.as_str()))
        };
        self.findings.is_empty() || node.open_findings().any(|finding| is_wanted(&finding))
    }
}

/// Whether the code of the finding begins with `wanted`, or `wanted` is its Xid, such as `xid.79`.
fn finding_has_code(finding: &Finding, wanted: &str) -> bool {
    let is_item = |item: &str| finding.code == "check" && finding.detail.starts_with(item);
    finding.code.starts_with(wanted)
        || wanted.strip_prefix("check.").is_some_and(is_item)
        || (wanted.starts_with("xid.") && finding.detail == event_detail(wanted))
}

/// Whether a version equals `wanted` or begins with its components. For example, 580 and 580.95
/// both select 580.95.05.
fn is_version_prefix(wanted: &str, version: &str) -> bool {
    let rest = version.strip_prefix(wanted);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn parsed<T: FromStr>(query: &Params, name: &str) -> Result<Vec<T>, Failure>
where
    T::Err: std::fmt::Display,
{
    let value = |text: &str| {
        text.parse().map_err(|err: T::Err| Failure::bad_request(format!("`{name}`: {err}")))
    };
    query.values(name).map(value).collect()
}

/// Whether the node's name, reason, driver, GPUs, findings or coverage gaps match the text.
fn node_matches(caller: &Caller, id: &NodeId, node: &Node, text: &str) -> bool {
    let has = |field: &str| field.to_lowercase().contains(text);
    let inventory = node.reported_inventory();
    let gpus = inventory.and_then(|inventory| inventory.gpus.as_ref()).into_iter().flatten();
    has(id.as_str())
        || has(&node.phase.rationale().reason.redacted(caller.scope()).to_string())
        || inventory.and_then(|inventory| inventory.driver.as_deref()).is_some_and(has)
        || gpus
            .into_iter()
            .any(|gpu| gpu.uuid.0.to_lowercase() == text || gpu.name.as_deref().is_some_and(has))
        || node.open_findings().any(|finding| finding_matches(&finding, text))
        || node.coverage().gaps().iter().any(|gap| has(&node.describe_gap(gap)))
}

pub(super) fn finding_matches(finding: &Finding, text: &str) -> bool {
    let has = |field: &str| field.to_lowercase().contains(text);
    has(&finding.code) || has(&finding.text) || has(&finding.detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_selects_its_releases_and_no_other_branch() {
        assert!(
            is_version_prefix("580", "580.95.05") && is_version_prefix("580.95.05", "580.95.05")
        );
        for other in ["58", "580.9", "580.95.05.1", "570", ""] {
            assert!(!is_version_prefix(other, "580.95.05"), "{other}");
        }
    }

    #[test]
    fn an_xid_is_selected_by_its_number() {
        let finding = |detail: &str| -> Finding {
            serde_json::from_value(serde_json::json!({
                "id": 1, "code": "gpu.xid", "detail": detail, "subject": { "gpu": "GPU-1" },
                "kind": "fault", "severity": "fatal", "text": "", "action": "reboot-node",
                "rule_action": "reboot-node", "action_by": "rule", "evidence": [],
                "first_seen": "2026-11-15T00:00:00Z", "last_seen": "2026-11-15T00:00:00Z",
                "count": 1, "clears": "",
            }))
            .unwrap()
        };
        assert!(finding_has_code(&finding("Xid 79"), "xid.79"));
        assert!(finding_has_code(&finding("Xid 79"), "gpu."));
        assert!(!finding_has_code(&finding("Xid 79"), "xid.7"));
        assert!(!finding_has_code(&finding("Xid 79"), "gpu.lost"));
    }
}
