//! Writes a signed repository: a folder that any HTTP server can serve.
//!
//! New files are written before the timestamp, which is the last file of a change, so a client sees
//! either the old or the new repository.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::client::{METADATA, PACKAGES, TARGETS, target_path};
use super::metadata::{
    FileVersion, Hashes, MetadataRole, RoleKeys, RootMetadata, SPEC_VERSION, SignedFile,
    TargetFile, TargetsMetadata, VersionsMetadata, file_name,
};
use super::trust::signed_bytes;
use super::{SigningKey, TrustError, TrustedMetadata};
use crate::store::{BundleStoreError, Store, read_limited, write_atomically};
use crate::{Bundle, BundleError, BundleId, Sha256Digest};

/// Why the repository was not changed.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    #[error("`{}` has a repository already", folder.display())]
    Exists { folder: PathBuf },
    #[error("`{}` is no repository", folder.display())]
    NoRepository { folder: PathBuf },
    #[error("a role needs at least one key, and a threshold of at most its keys: {role}")]
    Keys { role: MetadataRole },
    #[error("none of the given keys may sign for the role {role}")]
    NoKeyFor { role: MetadataRole },
    #[error("bundle {id} is not in the repository")]
    NoBundle { id: BundleId },
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error(transparent)]
    Store(#[from] BundleStoreError),
    #[error(transparent)]
    Bundle(#[from] BundleError),
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
    #[error("failed to encode the {role} metadata")]
    Encode {
        role: MetadataRole,
        #[source]
        err: serde_json::Error,
    },
}

/// When the metadata that a change writes expires.
#[derive(Debug, Clone, Copy)]
pub struct Expiry {
    pub root: Timestamp,
    pub targets: Timestamp,
    pub snapshot: Timestamp,
    pub timestamp: Timestamp,
}

/// The keys of a role in a new root.
#[derive(Debug, Clone)]
pub struct RolePlan {
    pub keys: Vec<super::metadata::PublicKey>,
    pub threshold: u32,
}

/// A repository in a folder.
#[derive(Debug)]
pub struct Publisher {
    folder: PathBuf,
}

impl Publisher {
    /// Creates a repository without bundles. Returns the root that agents have to be given.
    pub fn create(
        folder: &Path,
        roles: &BTreeMap<MetadataRole, RolePlan>,
        keys: &[SigningKey],
        expiry: Expiry,
    ) -> Result<(Self, Vec<u8>), PublishError> {
        let publisher = Self { folder: folder.to_owned() };
        if publisher.folder.join(METADATA).exists() {
            return Err(PublishError::Exists { folder: publisher.folder });
        }
        for name in [METADATA, TARGETS, PACKAGES] {
            let path = publisher.folder.join(name);
            fs::create_dir_all(&path).map_err(|err| PublishError::Write { path, err })?;
        }
        let root = publisher.write_root(1, roles, keys, &[], expiry)?;
        publisher.write_rest(BTreeMap::new(), keys, expiry)?;
        Ok((publisher, root))
    }

    pub fn open(folder: &Path) -> Result<Self, PublishError> {
        if folder.join(METADATA).join("timestamp.json").exists() {
            Ok(Self { folder: folder.to_owned() })
        } else {
            Err(PublishError::NoRepository { folder: folder.to_owned() })
        }
    }

    /// Writes the next root, with other keys. `keys` have to include enough keys of the current
    /// root, besides those of the new one.
    pub fn rotate(
        &self,
        roles: &BTreeMap<MetadataRole, RolePlan>,
        keys: &[SigningKey],
        expiry: Expiry,
    ) -> Result<Vec<u8>, PublishError> {
        let (old, _) = self.newest_root()?;
        let old_keys = &old.roles[MetadataRole::Root.name()].keyids;
        let root = self.write_root(old.version + 1, roles, keys, old_keys, expiry)?;
        // What the replaced keys signed is signed again.
        let targets = self.newest::<TargetsMetadata>(MetadataRole::Targets)?.targets;
        self.write_rest(targets, keys, expiry)?;
        Ok(root)
    }

    /// Publishes bundles of a store.
    pub fn add(
        &self,
        store: &Store,
        bundles: &[BundleId],
        keys: &[SigningKey],
        expiry: Expiry,
    ) -> Result<Vec<Bundle>, PublishError> {
        let mut targets = self.newest::<TargetsMetadata>(MetadataRole::Targets)?.targets;
        let mut added = Vec::new();
        for id in bundles {
            let bundle = store.bundle(*id)?;
            let bytes = bundle.encode()?;
            for package in &bundle.packages {
                store.copy_package(package, &self.folder.join(PACKAGES))?;
            }
            let name = target_name(&bundle);
            let path = self.folder.join(target_path(&name, *id));
            self.write(&path, &bytes)?;
            let hashes = Hashes { sha256: id.digest() };
            targets.retain(|_, target| target.hashes != hashes);
            targets.insert(name, TargetFile { length: bytes.len() as u64, hashes });
            added.push(bundle);
        }
        self.write_rest(targets, keys, expiry)?;
        Ok(added)
    }

    /// Withdraws bundles: they can no longer be imported. Their files stay.
    pub fn remove(
        &self,
        bundles: &[BundleId],
        keys: &[SigningKey],
        expiry: Expiry,
    ) -> Result<(), PublishError> {
        let mut targets = self.newest::<TargetsMetadata>(MetadataRole::Targets)?.targets;
        for id in bundles {
            let before = targets.len();
            targets.retain(|_, target| target.hashes.sha256 != id.digest());
            if targets.len() == before {
                return Err(PublishError::NoBundle { id: *id });
            }
        }
        self.write_rest(targets, keys, expiry)
    }

    /// Signs the timestamp again, so that it does not expire. Nothing else changes.
    pub fn refresh(&self, keys: &[SigningKey], expiry: Expiry) -> Result<(), PublishError> {
        let old: VersionsMetadata = self.newest(MetadataRole::Timestamp)?;
        let timestamp =
            VersionsMetadata { version: old.version + 1, expires: expiry.timestamp, ..old };
        self.write_signed(MetadataRole::Timestamp, timestamp.version, &timestamp, keys, &[])?;
        Ok(())
    }

    fn write_root(
        &self,
        version: u64,
        roles: &BTreeMap<MetadataRole, RolePlan>,
        keys: &[SigningKey],
        also_signed_by: &[String],
        expiry: Expiry,
    ) -> Result<Vec<u8>, PublishError> {
        let mut root = RootMetadata {
            kind: MetadataRole::Root.name().to_owned(),
            spec_version: SPEC_VERSION.to_owned(),
            version,
            expires: expiry.root,
            consistent_snapshot: true,
            keys: BTreeMap::new(),
            roles: BTreeMap::new(),
        };
        for role in MetadataRole::ALL {
            let plan = roles.get(&role).ok_or(PublishError::Keys { role })?;
            let mut keyids = BTreeSet::new();
            for key in &plan.keys {
                let id = key.id().map_err(|err| TrustError::Encoding { role, err })?.to_string();
                root.keys.insert(id.clone(), key.clone());
                keyids.insert(id);
            }
            if plan.threshold == 0 || keyids.len() < plan.threshold as usize {
                return Err(PublishError::Keys { role });
            }
            let keyids = keyids.into_iter().collect();
            root.roles
                .insert(role.name().to_owned(), RoleKeys { keyids, threshold: plan.threshold });
        }
        let mut signers = root.roles[MetadataRole::Root.name()].keyids.clone();
        signers.extend(also_signed_by.iter().cloned());
        let role = MetadataRole::Root;
        let bytes = encode(role, &root, keys, &signers)?;
        // A root that clients would refuse is not written.
        match self.newest_root() {
            Ok((_, current)) => TrustedMetadata::new(&current)?.update_root(&bytes)?,
            Err(_) => drop(TrustedMetadata::new(&bytes)?),
        }
        self.write(&self.metadata_path(role, version), &bytes)?;
        Ok(bytes)
    }

    /// Writes targets, snapshot and timestamp, each with the next version.
    fn write_rest(
        &self,
        targets: BTreeMap<String, TargetFile>,
        keys: &[SigningKey],
        expiry: Expiry,
    ) -> Result<(), PublishError> {
        let version = |role| match self.newest_version(role) {
            Ok(version) => Ok(version + 1),
            Err(PublishError::NoRepository { .. }) => Ok(1),
            Err(err) => Err(err),
        };
        let head = |role: MetadataRole| (role.name().to_owned(), SPEC_VERSION.to_owned());
        let (kind, spec_version) = head(MetadataRole::Targets);
        let targets_version = version(MetadataRole::Targets)?;
        let targets = TargetsMetadata {
            kind,
            spec_version,
            version: targets_version,
            expires: expiry.targets,
            targets,
        };
        let snapshot_version = version(MetadataRole::Snapshot)?;
        let timestamp_version = version(MetadataRole::Timestamp)?;
        let bytes =
            self.write_signed(MetadataRole::Targets, targets_version, &targets, keys, &[])?;
        let snapshot = versions(
            MetadataRole::Snapshot,
            snapshot_version,
            expiry.snapshot,
            MetadataRole::Targets,
            targets_version,
            &bytes,
        );
        let bytes =
            self.write_signed(MetadataRole::Snapshot, snapshot_version, &snapshot, keys, &[])?;
        let timestamp = versions(
            MetadataRole::Timestamp,
            timestamp_version,
            expiry.timestamp,
            MetadataRole::Snapshot,
            snapshot_version,
            &bytes,
        );
        self.write_signed(MetadataRole::Timestamp, timestamp_version, &timestamp, keys, &[])?;
        Ok(())
    }

    fn write_signed(
        &self,
        role: MetadataRole,
        version: u64,
        metadata: &impl Serialize,
        keys: &[SigningKey],
        also_signed_by: &[String],
    ) -> Result<Vec<u8>, PublishError> {
        let (root, _) = self.newest_root()?;
        let listed = &root.roles[role.name()];
        let mut signers = listed.keyids.clone();
        signers.extend(also_signed_by.iter().cloned());
        let bytes = encode(role, metadata, keys, &signers)?;
        let signed = keys.iter().filter(|key| listed.keyids.contains(&key.id().to_string()));
        let valid = u32::try_from(signed.count()).unwrap_or(u32::MAX);
        if valid < listed.threshold {
            let threshold = listed.threshold;
            return Err(TrustError::Threshold { role, threshold, valid }.into());
        }
        self.write(&self.metadata_path(role, version), &bytes)?;
        Ok(bytes)
    }

    fn metadata_path(&self, role: MetadataRole, version: u64) -> PathBuf {
        self.folder.join(METADATA).join(file_name(role, version))
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), PublishError> {
        let folder = path.parent().unwrap_or(&self.folder);
        fs::create_dir_all(folder)
            .map_err(|err| PublishError::Write { path: folder.to_owned(), err })?;
        Ok(write_atomically(folder, path, bytes)?)
    }

    fn newest_version(&self, role: MetadataRole) -> Result<u64, PublishError> {
        if role == MetadataRole::Timestamp {
            return Ok(self.newest::<VersionsMetadata>(role)?.version);
        }
        let folder = self.folder.join(METADATA);
        let entries =
            fs::read_dir(&folder).map_err(|err| PublishError::Read { path: folder, err })?;
        let suffix = format!(".{role}.json");
        let versions = entries.filter_map(|entry| {
            let name = entry.ok()?.file_name();
            name.to_str()?.strip_suffix(&suffix)?.parse::<u64>().ok()
        });
        versions.max().ok_or_else(|| PublishError::NoRepository { folder: self.folder.clone() })
    }

    fn newest_file(&self, role: MetadataRole) -> Result<Vec<u8>, PublishError> {
        let version = if role == MetadataRole::Timestamp { 0 } else { self.newest_version(role)? };
        let path = self.metadata_path(role, version);
        read_limited(&path, role.bytes_max()).map_err(|err| match err.kind() {
            io::ErrorKind::NotFound => PublishError::NoRepository { folder: self.folder.clone() },
            _ => PublishError::Read { path, err },
        })
    }

    fn newest<T: DeserializeOwned>(&self, role: MetadataRole) -> Result<T, PublishError> {
        let form = |err| PublishError::Trust(TrustError::Form { role, err });
        let file: SignedFile = serde_json::from_slice(&self.newest_file(role)?).map_err(form)?;
        serde_json::from_value(file.signed).map_err(form)
    }

    fn newest_root(&self) -> Result<(RootMetadata, Vec<u8>), PublishError> {
        let bytes = self.newest_file(MetadataRole::Root)?;
        Ok((self.newest(MetadataRole::Root)?, bytes))
    }
}

/// A name that people recognise; the identity is in the metadata.
fn target_name(bundle: &Bundle) -> String {
    let platform = &bundle.platform;
    format!(
        "bundles/{}-{}-{}-{}-{}-{}.json",
        bundle.driver,
        bundle.flavour.name(),
        platform.distribution,
        platform.release,
        platform.architecture,
        bundle.id().short()
    )
}

fn versions(
    role: MetadataRole,
    version: u64,
    expires: Timestamp,
    named: MetadataRole,
    named_version: u64,
    named_bytes: &[u8],
) -> VersionsMetadata {
    let file = FileVersion {
        version: named_version,
        length: Some(named_bytes.len() as u64),
        hashes: Some(Hashes { sha256: Sha256Digest::of(named_bytes) }),
    };
    VersionsMetadata {
        kind: role.name().to_owned(),
        spec_version: SPEC_VERSION.to_owned(),
        version,
        expires,
        meta: BTreeMap::from([(format!("{named}.json"), file)]),
    }
}

/// Signs metadata with those of the keys that may sign it.
fn encode(
    role: MetadataRole,
    metadata: &impl Serialize,
    keys: &[SigningKey],
    signers: &[String],
) -> Result<Vec<u8>, PublishError> {
    let error = |err| PublishError::Encode { role, err };
    let signed = serde_json::to_value(metadata).map_err(error)?;
    let message = signed_bytes(role, &signed)?;
    let may_sign = |key: &&SigningKey| signers.contains(&key.id().to_string());
    let signatures: Vec<_> = keys.iter().filter(may_sign).map(|key| key.sign(&message)).collect();
    if signatures.is_empty() {
        return Err(PublishError::NoKeyFor { role });
    }
    serde_json::to_vec_pretty(&SignedFile { signatures, signed }).map_err(error)
}
