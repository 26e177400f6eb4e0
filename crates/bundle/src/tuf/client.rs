//! Imports bundles from a signed repository into a store.
//!
//! ```text
//! configured root.json ─ metadata/2.root.json, 3.root.json, … ─ timestamp ─ snapshot ─ targets
//!     ─ targets/bundles/SHA256.NAME (manifest) ─ packages/SHA256 ─> Store
//! ```
//!
//! Verified metadata is kept in the store, so that an older repository is recognised later. Nothing
//! is contacted besides the repository, which may be a folder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::metadata::{MetadataRole, TargetFile, file_name};
use super::{TrustError, TrustedMetadata};
use crate::fetch::{FetchError, Mirror};
use crate::manifest::MANIFEST_BYTES_MAX;
use crate::store::{BundleStoreError, Store, read_limited, write_atomically};
use crate::{Bundle, BundleError, BundleId};

/// Folder of metadata files in a repository.
pub(super) const METADATA: &str = "metadata";
/// Folder of target files in a repository.
pub(super) const TARGETS: &str = "targets";
/// Folder of package files in a repository, which the manifests identify.
pub(super) const PACKAGES: &str = "packages";

/// Newer roots that are read in one update. A repository that has more never ends.
const ROOTS_MAX: u64 = 256;

/// Why nothing was imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error(transparent)]
    Store(#[from] BundleStoreError),
    #[error("failed to read the trusted root `{}`", path.display())]
    Root {
        path: PathBuf,
        #[source]
        err: io::Error,
    },
    /// The operator configured the root of another repository, or the file is damaged.
    #[error("the stored root `{}` does not follow the configured one", path.display())]
    StoredRoot {
        path: PathBuf,
        #[source]
        err: TrustError,
    },
    #[error("the repository has more than {ROOTS_MAX} roots after version {version}")]
    EndlessRoots { version: u64 },
    #[error("no signed bundle {id} is in the repository")]
    NotSigned { id: BundleId },
    #[error("the signed manifest `{name}` cannot be used")]
    Manifest {
        name: String,
        #[source]
        err: Box<BundleError>,
    },
}

/// A repository whose metadata was verified.
#[derive(Debug)]
pub struct VerifiedRepository<'s> {
    mirror: Mirror,
    store: &'s Store,
    trusted: TrustedMetadata,
}

/// Verifies the metadata of a repository, from the root file that the operator configured.
pub fn open<'s>(
    mirror: Mirror,
    root_file: &Path,
    store: &'s Store,
    now: Timestamp,
) -> Result<VerifiedRepository<'s>, ImportError> {
    let path = || root_file.to_owned();
    let root = read_limited(root_file, MetadataRole::Root.bytes_max())
        .map_err(|err| ImportError::Root { path: path(), err })?;
    let mut repository =
        VerifiedRepository { mirror, store, trusted: TrustedMetadata::new(&root)? };
    repository.update_root(now)?;
    for role in [MetadataRole::Timestamp, MetadataRole::Snapshot, MetadataRole::Targets] {
        if let Some(bytes) = repository.stored(&format!("{role}.json"), role)? {
            repository.trusted.load_previous(role, &bytes);
        }
    }
    repository.update_other_roles(now)?;
    Ok(repository)
}

impl VerifiedRepository<'_> {
    pub fn trusted(&self) -> &TrustedMetadata {
        &self.trusted
    }

    /// Reads the roots after the configured one: those that were verified before, then newer ones.
    fn update_root(&mut self, now: Timestamp) -> Result<(), ImportError> {
        let role = MetadataRole::Root;
        let first = self.trusted.root().version;
        for version in first.saturating_add(1)..=first.saturating_add(ROOTS_MAX) {
            let name = file_name(role, version);
            if let Some(bytes) = self.stored(&name, role)? {
                let path = || self.store.trust_folder().join(&name);
                let updated = self.trusted.update_root(&bytes);
                updated.map_err(|err| ImportError::StoredRoot { path: path(), err })?;
                continue;
            }
            let path = format!("{METADATA}/{name}");
            let Some(bytes) = self.read_metadata(&path, role)? else {
                return Ok(self.trusted.check_root(now)?);
            };
            self.trusted.update_root(&bytes)?;
            self.keep(&name, &bytes)?;
        }
        Err(ImportError::EndlessRoots { version: first })
    }

    fn update_other_roles(&mut self, now: Timestamp) -> Result<(), ImportError> {
        let role = MetadataRole::Timestamp;
        let timestamp = self.read_required(&file_name(role, 0), role)?;
        self.trusted.update_timestamp(&timestamp, now)?;
        let role = MetadataRole::Snapshot;
        let version = self.trusted.expected_snapshot()?.version;
        let snapshot = self.read_required(&file_name(role, version), role)?;
        self.trusted.update_snapshot(&snapshot, now)?;
        let role = MetadataRole::Targets;
        let version = self.trusted.expected_targets()?.version;
        let targets = self.read_required(&file_name(role, version), role)?;
        self.trusted.update_targets(&targets, now)?;
        // Only a consistent set is kept, so that an interrupted attack does not block updates.
        self.keep("targets.json", &targets)?;
        self.keep("snapshot.json", &snapshot)?;
        self.keep("timestamp.json", &timestamp)
    }

    fn read_metadata(
        &self,
        path: &str,
        role: MetadataRole,
    ) -> Result<Option<Vec<u8>>, ImportError> {
        let max = role.bytes_max();
        match self.mirror.read_if_present(path, max) {
            Err(FetchError::TooLong { .. }) => Err(TrustError::TooLong { role, max }.into()),
            read => Ok(read?),
        }
    }

    fn read_required(&self, name: &str, role: MetadataRole) -> Result<Vec<u8>, ImportError> {
        let path = format!("{METADATA}/{name}");
        let read = self.read_metadata(&path, role)?;
        read.ok_or(ImportError::Fetch(FetchError::NotFound { what: path }))
    }

    fn stored(&self, name: &str, role: MetadataRole) -> Result<Option<Vec<u8>>, ImportError> {
        let path = self.store.trust_folder().join(name);
        match read_limited(&path, role.bytes_max()) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(err) => Err(BundleStoreError::Read { path, err }.into()),
        }
    }

    fn keep(&self, name: &str, bytes: &[u8]) -> Result<(), ImportError> {
        let folder = self.store.trust_folder();
        let path = folder.join(name);
        if fs::read(&path).is_ok_and(|stored| stored == bytes) {
            return Ok(());
        }
        Ok(write_atomically(&self.store.incoming_folder(), &path, bytes)?)
    }

    /// The bundles that the repository offers, by the names of their manifests.
    pub fn bundles(&self) -> Result<Vec<(&str, BundleId)>, ImportError> {
        let targets = self.trusted.targets()?;
        Ok(targets.iter().map(|(name, target)| (name.as_str(), id_of(target))).collect())
    }

    /// Reads the manifest of a bundle.
    pub fn bundle(&self, id: BundleId) -> Result<Bundle, ImportError> {
        let bundles = self.bundles()?;
        let found = bundles.iter().find(|(_, other)| *other == id);
        let (name, _) = found.ok_or(ImportError::NotSigned { id })?;
        let path = target_path(name, id);
        let length = self.trusted.targets()?[*name].length;
        let max = length.min(MANIFEST_BYTES_MAX as u64);
        let bytes = match self.mirror.read(&path, max) {
            Err(FetchError::TooLong { .. }) => {
                let (name, found) = ((*name).to_owned(), max.saturating_add(1));
                return Err(TrustError::WrongLength { name, expected: length, found }.into());
            }
            read => read?,
        };
        self.trusted.check_target(name, &bytes)?;
        let manifest_error =
            |err| ImportError::Manifest { name: (*name).to_owned(), err: Box::new(err) };
        Bundle::parse(&bytes).map_err(manifest_error)
    }

    /// Copies a bundle into the store. `progress` gets the name of each package before it is read.
    pub fn import(
        &self,
        id: BundleId,
        mut progress: impl FnMut(&str),
    ) -> Result<Bundle, ImportError> {
        let bundle = self.bundle(id)?;
        self.store.check_space(&bundle)?;
        for package in &bundle.packages {
            if self.store.check_package(package).is_ok() {
                continue;
            }
            progress(&package.name);
            let content = self.mirror.reader(&format!("{PACKAGES}/{}", package.sha256))?;
            self.store.insert_package(package, content)?;
        }
        self.store.insert_bundle(&bundle)?;
        Ok(bundle)
    }
}

/// The SHA-256 of a manifest is the bundle's identity.
fn id_of(target: &TargetFile) -> BundleId {
    target.hashes.sha256.into()
}

/// Path of a target in a repository with consistent snapshots: the SHA-256 precedes the file name.
pub(super) fn target_path(name: &str, id: BundleId) -> String {
    let (folder, file) = name.rsplit_once('/').map_or(("", name), |(folder, file)| (folder, file));
    let slash = if folder.is_empty() { "" } else { "/" };
    format!("{TARGETS}/{folder}{slash}{id}.{file}")
}
