//! Status of the server connection and of the orders.

use farrier_fleet::fleet::{NodeId, OrderKind};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::uplink::Link;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStatus {
    /// `None` if the agent works without a server.
    pub url: Option<String>,
    /// The node's enrolled name. `None` if the node has not enrolled, or its identity is
    /// unreadable.
    pub node: Option<NodeId>,
    pub link: Link,
    /// The last journal record that the server acknowledged. `None` if unknown.
    pub acknowledged: Option<u64>,
    /// When the certificate expires. `None` if there is no certificate, or its validity is unknown.
    pub certificate_until: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OrdersStatus {
    /// This agent executes no orders.
    Off,
    /// Orders are enabled, but the executor failed to start.
    Failed { why: String },
    /// The executor did not report its state.
    Unknown { why: String },
    On {
        /// The active order.
        in_hand: Option<OrderInHand>,
        /// Order statuses that the server has not acknowledged.
        unacknowledged: usize,
    },
}

/// An active order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderInHand {
    pub generation: u64,
    pub what: OrderKind,
    pub reason: String,
    pub accepted: Timestamp,
    /// When the order's status is due.
    pub lease_until: Timestamp,
}
