use std::io;
use std::path::PathBuf;

use crate::{BundleError, BundleId, Sha256Digest};

/// Why the store cannot do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum BundleStoreError {
    #[error("`{}` is no bundle store", folder.display())]
    NoStore { folder: PathBuf },
    #[error("the store has no bundle {id}")]
    NoBundle { id: BundleId },
    #[error("the store has no bundle whose identity starts with `{start}`")]
    NoMatch { start: String },
    #[error("the store has several bundles whose identity starts with `{start}`")]
    Ambiguous { start: String },
    #[error("the manifest of bundle {id} is damaged: its SHA-256 is {found}")]
    DamagedManifest { id: BundleId, found: Sha256Digest },
    #[error("the manifest of bundle {id} cannot be used")]
    Manifest {
        id: BundleId,
        #[source]
        err: Box<BundleError>,
    },
    #[error("the file of package `{package}` is missing")]
    MissingPackage { package: String },
    #[error("the file of package `{package}` has SHA-256 {found}, expected {expected}")]
    WrongHash { package: String, expected: Sha256Digest, found: Sha256Digest },
    #[error("the file of package `{package}` has {}{found} bytes, expected {expected}", if *is_longer { "more than " } else { "" })]
    WrongLength {
        package: String,
        expected: u64,
        found: u64,
        /// Reading stopped at the expected length.
        is_longer: bool,
    },
    #[error("`{}` has {free} bytes free, and {needed} are needed", folder.display())]
    NoSpace { folder: PathBuf, needed: u64, free: u64 },
    #[error("failed to read `{}`", path.display())]
    Read {
        path: PathBuf,
        #[source]
        err: io::Error,
    },
    #[error("failed to write `{}`", path.display())]
    Write {
        path: PathBuf,
        #[source]
        err: io::Error,
    },
    #[error("failed to receive package `{package}`")]
    Receive {
        package: String,
        #[source]
        err: io::Error,
    },
}

/// A file in the store that is not used.
#[derive(Debug, thiserror::Error)]
pub enum StoreProblem {
    #[error("`{}` is no file of a store", path.display())]
    Foreign { path: PathBuf },
    #[error("a bundle cannot be used")]
    Bundle(#[source] BundleStoreError),
    #[error("no bundle needs package file `{}`", path.display())]
    Unused { path: PathBuf },
}
