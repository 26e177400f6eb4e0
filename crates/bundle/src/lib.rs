//! Driver bundles: the exact packages of one driver for one platform, identified by their content.
//!
//! ```text
//! BundleManifest ─ Bundle::new (validates) ─> Bundle ─ canonical JSON ─ SHA-256 ─> BundleId
//! ```
//!
//! The modules [`canonical`], [`digest`] and [`manifest`] are pure, and code that plans a driver
//! change needs no others.

pub mod canonical;
pub mod digest;
pub mod manifest;

pub use digest::Sha256Digest;
pub use manifest::{
    Activation, Bundle, BundleError, BundleId, BundleManifest, BundlePackage, KernelSupport,
    ManifestProblem, ModuleFlavour, ModuleOption, PackageFormat, PackageRole, Platform, WayBack,
};
