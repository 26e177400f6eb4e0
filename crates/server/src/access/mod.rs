//! Access control: join tokens, certificates, user tokens and revocations. They are stored in the
//! file `access`, beside the log in the data directory.
//!
//! ```text
//! farrier server token create ─> token (stored as a hash) ─> agent ─ Enrol ─> AccessStore::join
//!                                                               <─ certificate ─ Authority
//! farrier server revoke NODE ──> AccessStore: a new generation invalidates older certificates
//! farrier server user add ─────> user token with role and scope ─> AccessStore::user, per request
//! ```
//!
//! Each change is one transaction with a record of it ([`AccessRecord`]), and the server copies the
//! record into the log. The server refuses a store that lacks changes that the log has. Such a
//! store can be rebuilt from the log ([`AccessStore::rebuild`]).

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
