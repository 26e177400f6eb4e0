//! Status of the server connection and of the orders.

use farrier_fleet::fleet::{NodeId, OrderKind};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::uplink::UplinkState;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStatus {
    /// `None` if the agent works without a server.
    pub url: Option<String>,
    /// The node's enrolled name. `None` if the node has not enrolled, or its identity is
    /// unreadable.
    pub node: Option<NodeId>,
    pub connection: UplinkState,
    /// The last journal record that the server acknowledged. `None` if it is unknown.
    pub acknowledged: Option<u64>,
    /// When the certificate expires. `None` if there is no certificate, or its validity is unknown.
    pub certificate_expires: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OrdersStatus {
    /// This agent executes no orders.
    Off,
    /// Orders are enabled, but the executor failed to start.
    Failed { reason: String },
    /// The executor did not report its state.
    Unknown { reason: String },
    On {
        /// The active order.
        active: Option<ActiveOrderStatus>,
        /// Order statuses that the server has not acknowledged.
        unacknowledged: usize,
    },
}

/// An active order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActiveOrderStatus {
    pub generation: u64,
    pub kind: OrderKind,
    pub reason: String,
    pub accepted: Timestamp,
    /// When the status of the order is due.
    pub lease_until: Timestamp,
}
