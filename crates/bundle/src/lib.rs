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
//! [`canonical`], [`digest`], [`manifest`], [`classify`], [`closure`], [`compose`], [`check`],
//! [`diff`], [`deb`], [`rpm`] and [`tuf::TrustedMetadata`] are pure: `now` is an argument. IO is in
//! [`fetch`], [`create`], [`store`], [`tuf::client`] and [`tuf::publisher`].

pub mod canonical;
pub mod check;
pub mod classify;
pub mod closure;
pub mod compose;
mod compression;
pub mod create;
pub mod deb;
pub mod diff;
pub mod digest;
pub mod fetch;
pub mod manifest;
pub mod rpm;
pub mod store;
pub mod tuf;

pub use compression::DecompressError;
pub use digest::Sha256Digest;
pub use manifest::{
    Activation, Bundle, BundleError, BundleId, BundleManifest, BundlePackage, KernelSupport,
    ManifestProblem, ModuleFlavour, ModuleOption, PackageFormat, PackageRole, Platform, WayBack,
};
