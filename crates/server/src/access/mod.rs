//! Access control: join tokens, certificates, user tokens and revocations. The data directory
//! stores them in the file `access`, next to the log.
//!
//! ```text
//! farrier server token create ─> token (stored as a hash) ─> agent ─ Enrol ─> AccessStore::join
//!                                                               <─ certificate ─ Authority
//! farrier server revoke NODE ──> AccessStore: a new generation invalidates older certificates
//! farrier server user add ─────> user token with role and scope ─> AccessStore::user, per request
//! ```
//!
//! One transaction contains both a change and its record ([`AccessRecord`]). The server copies the
//! record into the log. If the store lacks a change that the log has, the server refuses the store.
//! Such a store can be rebuilt from the log ([`AccessStore::rebuild`]).

mod authority;
mod changes;
mod join;
mod last_start;
mod name_lock;
mod rebuild;
mod store;
mod token;
mod users;

pub use authority::{Authority, AuthorityError, Issued, NODE_LIFE};
pub use changes::{AccessRecord, is_local, local};
pub use join::{JoinError, Joined, LocationUpdate};
pub use last_start::LastStart;
pub use rebuild::{LostToken, RebuildSummary, changes_in};
pub use store::{AccessError, AccessStore, JoinTokenRow, NewJoinToken};
pub use token::{AccessTokenKind, Secret, TokenDigest};
pub use users::{NewUser, TokenState, User, UserError, UserRow};
