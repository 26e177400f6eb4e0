//! The fleet: events, the state that is folded from them, and decisions.
//!
//! ```text
//! agents, operators, schedulers ─> Event ─┐
//!                                         ├─ FleetState::apply ─> FleetState ─┐
//!                        log ── Entry ────┘                                   ├─ decide
//!                                                     Policy, now ────────────┘    │
//!                                                         log <── Event + Report ──┘
//! ```
//!
//! The log is the source of truth. The state is a fold over the log, and a decision is a function
//! of the state, the policy and `now`. Every input of a decision is an event, so a replay reaches
//! the same decisions.

pub mod access;
pub mod attention;
pub mod budget;
pub mod coverage;
pub mod decide;
pub mod describe_event;
pub mod event;
pub mod explain;
pub mod history;
pub mod identity;
pub mod ledger;
pub mod next_step;
pub mod order;
pub mod policy;
pub mod reason;
pub mod reconnect;
pub mod replay;
pub mod state;
pub mod window;

pub use access::{AccessChange, Permission, Role};
pub use attention::{AttentionCause, NodeAttention, attention};
pub use decide::{Decision, Impact, LOGIC_VERSION, Report, decide, impact};
pub use event::{Entry, Event};
pub use identity::{Domain, Location, NodeId, Pool, Tenant};
pub use next_step::{NextStep, next_step};
pub use order::{Order, OrderKind, OrderStatus, VerificationLevel};
pub use policy::{Policy, PolicyError};
pub use reason::{Rationale, Reason, UnblockedBy};
pub use state::{FleetState, Node, NodePhase};
