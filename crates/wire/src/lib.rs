//! The protocol between agents and the server, and the types of the REST API.
//!
//! ```text
//! agent ── Hello, Report, OrderStatus ─> AgentMessage  ─┐  one stream per node, many streams per
//! agent <─ Welcome, Ack, Order ───────── ServerMessage ─┘  connection, HTTP/2 over mutual TLS
//! ```
//!
//! [`proto`] is generated from `proto/farrier/v1/agents.proto`. [`convert`] converts its messages
//! to and from the types of the fleet, and enforces [`limits`] on everything that comes from
//! outside. Enrolment uses [`proof`] and [`identity`]. The feature `client` adds [`client`], which
//! opens connections. See `docs/adr/0012-agent-server-protocol.md`.

#[cfg(feature = "client")]
pub mod client;
pub mod codec;
pub mod convert;
pub mod file_mode;
pub mod hex;
pub mod hidden;
pub mod identity;
pub mod limits;
pub mod pem;
pub mod proof;
pub mod rest;
pub mod strict_json;

/// The generated messages.
#[allow(
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    reason = "generated from the proto file"
)]
pub mod proto {
    tonic::include_proto!("farrier.v1");
}
