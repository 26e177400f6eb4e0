//! The model: the last sample and its history.

use farrier_wire::rest::{NodeDetail, NodeRow};
use jiff::Timestamp;

use super::history::NodeHistory;
use super::sample::{HostSample, NodeSample, SourceOutage};

#[derive(Debug)]
pub(super) enum SourceUpdate {
    Node(Box<NodeSample>),
    /// The host alone, while the driver does not answer.
    Host(Box<HostSample>),
    Fleet(Box<FleetSample>),
    /// The server does not answer.
    FleetUnavailable(SourceOutage),
}

/// The fleet as reported by the server.
#[derive(Debug, Clone, Default)]
pub(super) struct FleetSample {
    pub(super) url: String,
    pub(super) at: Option<Timestamp>,
    /// All nodes whose phase is not `in-service`, and a limited number of the others.
    pub(super) nodes: Vec<NodeRow>,
    /// More nodes in service exist than were requested.
    pub(super) has_more: bool,
    /// Details of the opened node.
    pub(super) open: Option<NodeDetail>,
    /// Why the opened node could not be read.
    pub(super) open_failed: Option<String>,
    pub(super) outage: Option<SourceOutage>,
}

/// Everything that can be shown.
#[derive(Debug, Clone, Default)]
pub(super) struct TopModel {
    /// Time of the first request.
    pub(super) requested_at: Option<Timestamp>,
    pub(super) node: Option<NodeSample>,
    pub(super) history: NodeHistory,
    pub(super) fleet: Option<FleetSample>,
}

impl TopModel {
    /// Time of the last values.
    pub(super) fn at(&self) -> Option<Timestamp> {
        let node_at = self.node.as_ref().map(|node| node.at);
        node_at.or_else(|| self.fleet.as_ref()?.at)
    }

    /// Whether the source of the node does not answer.
    pub(super) fn is_unavailable(&self) -> bool {
        let is_silent = |node: &NodeSample| node.outage.is_some() || node.pending_call.is_some();
        self.node.as_ref().is_some_and(is_silent)
    }

    pub(super) fn apply(&mut self, update: SourceUpdate) {
        match update {
            SourceUpdate::Node(node) => {
                // A new sample adds a history point. A repeated sample adds one only during an outage.
                let is_new = self.node.as_ref().is_none_or(|last| last.at != node.at);
                if is_new || node.outage.is_some() {
                    self.history.push(&node);
                }
                self.node = Some(*node);
            }
            SourceUpdate::Host(host) => {
                if let Some(node) = &mut self.node {
                    node.host = *host;
                }
            }
            SourceUpdate::Fleet(fleet) => self.fleet = Some(*fleet),
            SourceUpdate::FleetUnavailable(outage) => {
                let before = self.fleet.take().unwrap_or_default();
                // The outage started with the first failure.
                let since = before.outage.as_ref().map_or(outage.since, |first| first.since);
                let outage = Some(SourceOutage { since, ..outage });
                // The last answer is outdated, so drop it.
                self.fleet =
                    Some(FleetSample { url: before.url, outage, ..FleetSample::default() });
            }
        }
    }
}
