//! Who may publish bundles: metadata of The Update Framework (TUF), verified and written.
//!
//! ```text
//! root.json (configured) ─ chain of roots ─> keys and thresholds
//! timestamp ─> snapshot ─> targets ─> bundle manifest (SHA-256) ─> packages (SHA-256)
//! ```
//!
//! [`TrustedMetadata`] is pure: it takes bytes and `now`, and each attack has its own error. The
//! shells are [`client`], which downloads, and [`publisher`], which signs with keys in files.

pub mod client;
pub mod key;
pub mod metadata;
pub mod publisher;
mod trust;
mod trust_error;
#[cfg(test)]
mod trust_tests;

pub use key::{KeyFileError, SigningKey};
pub use metadata::{KeyId, MetadataRole};
pub use trust::TrustedMetadata;
pub use trust_error::TrustError;
