//! All that is known: what was told last, and what was before.

use farrier_wire::rest::{NodeDetail, NodeRow};
use jiff::Timestamp;

use super::history::History;
use super::now::{HostNow, NodeNow, Silence};

/// What a source tells.
#[derive(Debug)]
pub(super) enum Told {
    /// A node.
    Node(Box<NodeNow>),
    /// The host alone: the driver does not answer.
    Host(Box<HostNow>),
    /// A fleet.
    Fleet(Box<Fleet>),
    /// The server does not answer.
    FleetSilent(Silence),
}

/// A fleet as its server tells it.
#[derive(Debug, Clone, Default)]
pub(super) struct Fleet {
    /// Where the server is.
    pub(super) url: String,
    pub(super) at: Option<Timestamp>,
    /// All that are not in service, and of the others as many as are shown.
    pub(super) nodes: Vec<NodeRow>,
    /// Nodes in service that were not asked for, as there are so many.
    pub(super) has_more: bool,
    /// The node that is open.
    pub(super) open: Option<NodeDetail>,
    /// Why the node that is open could not be read.
    pub(super) open_failed: Option<String>,
    pub(super) silence: Option<Silence>,
}

/// The state of what is shown.
#[derive(Debug, Clone, Default)]
pub(super) struct Board {
    /// Since when somebody is asked.
    pub(super) asked: Option<Timestamp>,
    pub(super) node: Option<NodeNow>,
    pub(super) history: History,
    pub(super) fleet: Option<Fleet>,
}

impl Board {
    /// When something was last told.
    pub(super) fn at(&self) -> Option<Timestamp> {
        let of_node = self.node.as_ref().map(|node| node.at);
        of_node.or_else(|| self.fleet.as_ref()?.at)
    }

    /// Whether nobody tells anything of a node.
    pub(super) fn is_silent(&self) -> bool {
        self.node.as_ref().is_some_and(|node| node.silence.is_some())
    }

    pub(super) fn take(&mut self, told: Told) {
        match told {
            Told::Node(now) => {
                // A point a value: what only says that nobody answers is none.
                let is_news = self.node.as_ref().is_none_or(|before| before.at != now.at);
                if is_news || now.silence.is_some() {
                    self.history.take(&now);
                }
                self.node = Some(*now);
            }
            Told::Host(host) => {
                if let Some(node) = &mut self.node {
                    node.host = *host;
                }
            }
            Told::Fleet(fleet) => self.fleet = Some(*fleet),
            Told::FleetSilent(silence) => {
                let before = self.fleet.take().unwrap_or_default();
                // Since when is known from the first time.
                let since = before.silence.as_ref().map_or(silence.since, |it| it.since);
                let silence = Some(Silence { since, ..silence });
                // What was told is not so any more.
                self.fleet = Some(Fleet { url: before.url, silence, ..Fleet::default() });
            }
        }
    }
}
