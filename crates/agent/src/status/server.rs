//! The fleet's server and its orders, as an agent sees them.

use farrier_fleet::fleet::{NodeId, OrderKind};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::uplink::Link;

/// The server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStatus {
    /// Where it is; none: the agent works alone.
    pub url: Option<String>,
    /// Under what name it knows this node; none: the node has not enrolled, or that could not be read.
    pub node: Option<NodeId>,
    /// Whether it is told what is found.
    pub link: Link,
    /// The last record of the journal that it has; none: that is not known.
    pub acknowledged: Option<u64>,
    /// Until when the node's certificate counts; none: it has none, or that is not known.
    pub certificate_until: Option<Timestamp>,
}

/// Orders.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OrdersStatus {
    /// This agent carries none out.
    Off,
    /// They should be carried out and are not.
    Failed { why: String },
    /// Whether one is in hand could not be seen.
    Unknown { why: String },
    /// They are carried out.
    On {
        /// The one in hand.
        in_hand: Option<OrderInHand>,
        /// Answers that the server does not have yet.
        unacknowledged: usize,
    },
}

/// An order that is being carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderInHand {
    pub generation: u64,
    /// What is to be done.
    pub what: OrderKind,
    pub reason: String,
    /// Since when it is in hand.
    pub accepted: Timestamp,
    /// Until when it must be answered.
    pub lease_until: Timestamp,
}
