//! Who may speak: tokens to join with, certificates, and what was revoked. Beside the log, in `access` of the server's folder.
//!
//! ```text
//! farrier server token create ─> token (only its hash is kept) ─> agent ─ Enrol ─> Store::join ─> Authority ─> certificate
//! farrier server revoke NODE ──> Store: a new generation; certificates of older ones count no more
//! ```

mod authority;
mod store;
mod token;

pub use authority::{Authority, AuthorityError, Issued};
pub use store::{AccessError, JoinError, Listed, Store, Wanted};
pub use token::{Secret, TokenDigest};
