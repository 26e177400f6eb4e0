//! Who may speak: tokens to join with, certificates, and what was revoked. Beside the log, in `access` of the server's folder.
//!
//! ```text
//! farrier server token create ─> token (only its hash is kept) ─> agent ─ Enrol ─> Store::join ─> Authority ─> certificate
//! farrier server revoke NODE ──> Store: a new generation; certificates of older ones count no more
//! farrier server user add ─────> token of a person: a role and where it holds ─> Store::person, at each request
//! ```
//!
//! Each change is written down in the transaction that makes it ([`Change`]); the server brings it into the log. A store that lacks what the log
//! has is refused, and can be rebuilt from the log ([`Store::rebuild`]).

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
pub use changes::{Change, is_local, local};
pub use join::{JoinError, Joined, LocationUpdate};
pub use last_start::LastStart;
pub use rebuild::{LostToken, RebuildSummary, changes_in};
pub use store::{AccessError, JoinTokenRow, NewJoinToken, Store};
pub use token::{Secret, TokenDigest, TokenKind};
pub use users::{NewUser, TokenState, User, UserError, UserRow};
