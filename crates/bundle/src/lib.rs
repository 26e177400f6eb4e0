//! Driver bundles: the exact packages of one driver for one platform, identified by their content.
//!
//! ```text
//! BundleManifest ─ Bundle::new (validates) ─> Bundle ─ canonical JSON ─ SHA-256 ─> BundleId
//!
//! apt, dnf, folder ─ create::Offer ─> Bundle and package files ─> store::Store
//! Store ─ tuf::publisher (signing keys) ─> repository in a folder ─ any HTTP server
//! repository ─ tuf::client (root.json) ─> Store of a node
//! Bundle, FactSet ─ check::check, diff::diff ─> what is known of a driver, and of a change
//! ```
//!
//! [`canonical`], [`check`], [`classify`], [`diff`], [`digest`] and [`manifest`] need no feature and
//! do no IO. The Cargo feature `io` has the rest. Of it, `closure`, `compose`, `deb`, `rpm` and
//! `tuf::TrustedMetadata` are pure too: `now` is an argument.

pub mod canonical;
pub mod check;
pub mod classify;
#[cfg(feature = "io")]
pub mod closure;
#[cfg(feature = "io")]
pub mod compose;
#[cfg(feature = "io")]
mod compression;
#[cfg(feature = "io")]
pub mod create;
#[cfg(feature = "io")]
pub mod deb;
pub mod diff;
pub mod digest;
#[cfg(feature = "io")]
pub mod fetch;
pub mod manifest;
#[cfg(feature = "io")]
pub mod rpm;
#[cfg(feature = "io")]
pub mod store;
#[cfg(feature = "io")]
pub mod tuf;

#[cfg(feature = "io")]
pub use compression::DecompressError;
pub use digest::Sha256Digest;
pub use manifest::{
    Activation, Bundle, BundleError, BundleId, BundleManifest, BundlePackage, KernelSupport,
    ManifestProblem, ModuleFlavour, ModuleOption, PackageFormat, PackageRole, Platform, WayBack,
};
