//! The bundles of this node. A change looks at them before each decision, so files that did not
//! change are not hashed again.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use farrier_bundle::store::{BundleStoreError, Store};
use farrier_bundle::{Bundle, BundleId, BundlePackage};
use farrier_fleet::change::ActionFailure;

use super::programs::io_failure;

/// What identifies the content of a file between two reads.
type FileStamp = (u64, u64, i64, i64);

/// A bundle store that remembers which files it has checked.
#[derive(Debug)]
pub struct BundleFiles {
    store: Store,
    checked: RefCell<BTreeMap<PathBuf, FileStamp>>,
}

impl BundleFiles {
    pub fn new(store: Store) -> Self {
        Self { store, checked: RefCell::default() }
    }

    pub fn folder(&self) -> &Path {
        self.store.folder()
    }

    /// Reads a manifest, and checks its hash.
    pub fn bundle(&self, id: BundleId) -> Result<Bundle, BundleStoreError> {
        self.store.bundle(id)
    }

    /// Path of a package's file.
    pub fn package(&self, package: &BundlePackage) -> PathBuf {
        self.store.package_file(package.sha256)
    }

    /// Checks the hash of every file of a bundle.
    pub fn check(&self, id: BundleId) -> Result<Bundle, BundleStoreError> {
        let bundle = self.bundle(id)?;
        for package in &bundle.packages {
            self.check_package(package)?;
        }
        Ok(bundle)
    }

    fn check_package(&self, package: &BundlePackage) -> Result<(), BundleStoreError> {
        let path = self.package(package);
        // Taken before the file is read, so that a change while it is read is noticed.
        let stamp = fs::metadata(&path)
            .ok()
            .map(|meta| (meta.ino(), meta.len(), meta.ctime(), meta.ctime_nsec()));
        if stamp.is_some() && self.checked.borrow().get(&path) == stamp.as_ref() {
            return Ok(());
        }
        self.store.check_package(package)?;
        if let Some(stamp) = stamp {
            self.checked.borrow_mut().insert(path, stamp);
        }
        Ok(())
    }
}

/// The failure of an action that needs a bundle.
pub(super) fn store_failure(folder: &Path, err: &BundleStoreError) -> ActionFailure {
    match err {
        BundleStoreError::DamagedManifest { id, .. } | BundleStoreError::Manifest { id, .. } => {
            ActionFailure::Tampered { file: format!("{id}.json") }
        }
        BundleStoreError::WrongHash { package, .. }
        | BundleStoreError::WrongLength { package, .. } => {
            ActionFailure::Tampered { file: package.clone() }
        }
        BundleStoreError::NoStore { .. }
        | BundleStoreError::NoBundle { .. }
        | BundleStoreError::MissingPackage { .. } => {
            ActionFailure::Network { detail: err.to_string() }
        }
        BundleStoreError::Read { path, err } | BundleStoreError::Write { path, err } => {
            io_failure(&path.display().to_string(), err)
        }
        BundleStoreError::Busy
        | BundleStoreError::NoMatch { .. }
        | BundleStoreError::Ambiguous { .. }
        | BundleStoreError::NoSpace { .. }
        | BundleStoreError::Receive { .. } => {
            ActionFailure::Io { path: folder.display().to_string(), detail: err.to_string() }
        }
    }
}
