//! What agents and the server say to each other.
//!
//! ```text
//! agent ── Hello, Report, OrderAnswer ─> Up   ─┐   one stream a node, many streams a connection,
//! agent <─ Welcome, Ack, Order ───────── Down ─┘   HTTP/2 over TLS with certificates on both sides
//! ```
//!
//! [`proto`] is made from `proto/farrier/v1/agents.proto`. [`form`] makes of it what the fleet works with, and back; what
//! comes from outside is bounded there ([`limits`]). [`proof`] and [`identity`] are what enrolment rests on. With the feature
//! `client` there is a connection, too: [`client`]. See `docs/adr/0012-agent-server-protocol.md`.

#[cfg(feature = "client")]
pub mod client;
pub mod codec;
pub mod file_mode;
pub mod form;
pub mod hex;
pub mod hidden;
pub mod identity;
pub mod limits;
pub mod pem;
pub mod proof;
pub mod rest;
pub mod strict_json;

/// The messages, as they travel.
#[allow(
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    reason = "made from the proto file, which says it"
)]
pub mod proto {
    tonic::include_proto!("farrier.v1");
}
