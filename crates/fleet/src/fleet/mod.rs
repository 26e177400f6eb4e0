//! The whole fleet: what happened (events), what is so (state), what to do (decisions).
//!
//! ```text
//! agents, people, schedulers ─> Event ─┐
//!                                      ├─ FleetState::apply ─> FleetState ─┐
//!                  log ── Entry ───────┘                                   ├─ decide ─> Event + Report
//!                                                   Policy, now ───────────┘     (back into the log)
//! ```
//!
//! The log is the truth: state is a fold over it, and a decision is a function of state, policy and `now`. Whatever
//! a decision read is an event, so that a replay decides the same.

pub mod access;
pub mod decide;
pub mod describe;
pub mod event;
pub mod explain;
pub mod identity;
pub mod order;
pub mod policy;
mod policy_check;
pub mod reason;
pub mod reconnect;
pub mod replay;
pub mod state;
pub mod window;

pub use access::{AccessChange, Permission, Role};
pub use decide::{Decision, LOGIC_VERSION, Report, decide};
pub use event::{Entry, Event};
pub use identity::{Domain, Location, NodeId, Pool, Tenant};
pub use order::{Order, OrderKind, OrderStatus, VerificationLevel};
pub use policy::Policy;
pub use policy_check::PolicyError;
pub use reason::{Rationale, Reason, UnblockedBy};
pub use state::{FleetState, Node, NodePhase};
