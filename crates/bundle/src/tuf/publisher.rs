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

/// The roles that the root does not sign itself.
const OTHER_ROLES: [MetadataRole; 3] =
    [MetadataRole::Targets, MetadataRole::Snapshot, MetadataRole::Timestamp];

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
        if Self::open(folder).is_ok() {
            return Err(PublishError::Exists { folder: folder.to_owned() });
        }
        let publisher = Self { folder: folder.to_owned() };
        let (root, bytes) = encode_root(1, roles, keys, None, expiry)?;
        for name in [METADATA, TARGETS, PACKAGES] {
            let path = publisher.folder.join(name);
            fs::create_dir_all(&path).map_err(|err| PublishError::Write { path, err })?;
        }
        publisher.write(&publisher.metadata_path(MetadataRole::Root, root.version), &bytes)?;
        publisher.write_rest(BTreeMap::new(), keys, expiry)?;
        Ok((publisher, bytes))
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
        let old = self.newest_file(MetadataRole::Root)?;
        let old_root: RootMetadata = self.newest(MetadataRole::Root)?;
        let version = old_root.version + 1;
        let (_, bytes) = encode_root(version, roles, keys, Some((&old_root, &old)), expiry)?;
        let targets = self.newest::<TargetsMetadata>(MetadataRole::Targets)?.targets;
        self.write(&self.metadata_path(MetadataRole::Root, version), &bytes)?;
        // What the replaced keys signed is signed again.
        self.write_rest(targets, keys, expiry)?;
        Ok(bytes)
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
        let root: RootMetadata = self.newest(MetadataRole::Root)?;
        check_signers(&root, keys, &[MetadataRole::Timestamp])?;
        let bytes = encode(MetadataRole::Timestamp, &timestamp, keys, &root)?;
        self.write(&self.metadata_path(MetadataRole::Timestamp, timestamp.version), &bytes)
    }

    /// Writes targets, snapshot and timestamp, each with the next version.
    fn write_rest(
        &self,
        targets: BTreeMap<String, TargetFile>,
        keys: &[SigningKey],
        expiry: Expiry,
    ) -> Result<(), PublishError> {
        let root: RootMetadata = self.newest(MetadataRole::Root)?;
        check_signers(&root, keys, &OTHER_ROLES)?;
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
        let bytes = encode(MetadataRole::Targets, &targets, keys, &root)?;
        self.write(&self.metadata_path(MetadataRole::Targets, targets_version), &bytes)?;
        let named = (MetadataRole::Targets, targets_version, bytes.as_slice());
        let snapshot = versions(MetadataRole::Snapshot, snapshot_version, expiry.snapshot, named);
        let bytes = encode(MetadataRole::Snapshot, &snapshot, keys, &root)?;
        self.write(&self.metadata_path(MetadataRole::Snapshot, snapshot_version), &bytes)?;
        let named = (MetadataRole::Snapshot, snapshot_version, bytes.as_slice());
        let timestamp =
            versions(MetadataRole::Timestamp, timestamp_version, expiry.timestamp, named);
        let bytes = encode(MetadataRole::Timestamp, &timestamp, keys, &root)?;
        self.write(&self.metadata_path(MetadataRole::Timestamp, timestamp_version), &bytes)
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
}

/// The root of a repository, signed. `previous` is the root that it follows.
fn encode_root(
    version: u64,
    roles: &BTreeMap<MetadataRole, RolePlan>,
    keys: &[SigningKey],
    previous: Option<(&RootMetadata, &[u8])>,
    expiry: Expiry,
) -> Result<(RootMetadata, Vec<u8>), PublishError> {
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
        let (keyids, threshold) = (keyids.into_iter().collect(), plan.threshold);
        root.roles.insert(role.name().to_owned(), RoleKeys { keyids, threshold });
    }
    // The other roles have to be signed again with it.
    check_signers(&root, keys, &OTHER_ROLES)?;
    let role = MetadataRole::Root;
    let signers = root.roles[role.name()].keyids.iter();
    let old_signers = previous.iter().flat_map(|(old, _)| &old.roles[role.name()].keyids);
    let signers: Vec<&String> = signers.chain(old_signers).collect();
    let bytes = sign(role, &root, keys, &signers)?;
    // A root that clients would refuse is not written.
    match previous {
        Some((_, old)) => TrustedMetadata::new(old)?.update_root(&bytes)?,
        None => drop(TrustedMetadata::new(&bytes)?),
    }
    Ok((root, bytes))
}

/// Fails unless the keys can sign for these roles.
fn check_signers(
    root: &RootMetadata,
    keys: &[SigningKey],
    roles: &[MetadataRole],
) -> Result<(), PublishError> {
    for role in roles {
        let RoleKeys { keyids, threshold } = &root.roles[role.name()];
        let may_sign = |key: &&SigningKey| keyids.contains(&key.id().to_string());
        let valid: BTreeSet<_> = keys.iter().filter(may_sign).map(SigningKey::id).collect();
        let valid = u32::try_from(valid.len()).unwrap_or(u32::MAX);
        if valid < *threshold {
            let (role, threshold) = (*role, *threshold);
            return Err(TrustError::Threshold { role, threshold, valid }.into());
        }
    }
    Ok(())
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

/// Metadata that names the version and content of another role's file.
fn versions(
    role: MetadataRole,
    version: u64,
    expires: Timestamp,
    (named, named_version, bytes): (MetadataRole, u64, &[u8]),
) -> VersionsMetadata {
    let file = FileVersion {
        version: named_version,
        length: Some(bytes.len() as u64),
        hashes: Some(Hashes { sha256: Sha256Digest::of(bytes) }),
    };
    VersionsMetadata {
        kind: role.name().to_owned(),
        spec_version: SPEC_VERSION.to_owned(),
        version,
        expires,
        meta: BTreeMap::from([(format!("{named}.json"), file)]),
    }
}

/// Signs the metadata of a role with its keys.
fn encode(
    role: MetadataRole,
    metadata: &impl Serialize,
    keys: &[SigningKey],
    root: &RootMetadata,
) -> Result<Vec<u8>, PublishError> {
    let signers: Vec<&String> = root.roles[role.name()].keyids.iter().collect();
    sign(role, metadata, keys, &signers)
}

/// Signs metadata with those of the keys that may sign it.
fn sign(
    role: MetadataRole,
    metadata: &impl Serialize,
    keys: &[SigningKey],
    signers: &[&String],
) -> Result<Vec<u8>, PublishError> {
    let error = |err| PublishError::Encode { role, err };
    let signed = serde_json::to_value(metadata).map_err(error)?;
    let message = signed_bytes(role, &signed)?;
    let may_sign = |key: &&SigningKey| signers.contains(&&key.id().to_string());
    let signatures: BTreeMap<_, _> =
        keys.iter().filter(may_sign).map(|key| (key.id(), key.sign(&message))).collect();
    let signatures = signatures.into_values().collect();
    serde_json::to_vec_pretty(&SignedFile { signatures, signed }).map_err(error)
}
