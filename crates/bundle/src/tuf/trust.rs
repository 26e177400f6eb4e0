//! The client workflow of the TUF specification (section 5), without IO.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use ring::signature::{ED25519, UnparsedPublicKey};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::TrustError;
use super::metadata::{
    FileVersion, KeyId, MetadataRole, RootMetadata, SignedFile, TargetFile, TargetsMetadata,
    VersionsMetadata,
};
use crate::{Sha256Digest, canonical, digest};

const SNAPSHOT: &str = "snapshot.json";
const TARGETS: &str = "targets.json";

/// A public key and its identity.
type KeyBytes = Vec<u8>;

/// The keys of a role, and how many of them have to sign.
#[derive(Debug, Clone)]
struct Signers {
    keys: BTreeMap<KeyId, KeyBytes>,
    threshold: u32,
}

/// Verified metadata, from the configured root on.
#[derive(Debug)]
pub struct TrustedMetadata {
    root: RootMetadata,
    signers: BTreeMap<MetadataRole, Signers>,
    /// Keys of earlier roots that the current one does not have for the role.
    revoked: BTreeSet<(MetadataRole, KeyId)>,
    /// What was trusted in an earlier update.
    previous: Previous,
    timestamp: Option<VersionsMetadata>,
    snapshot: Option<VersionsMetadata>,
    targets: Option<TargetsMetadata>,
}

#[derive(Debug, Default)]
struct Previous {
    timestamp: Option<(VersionsMetadata, Sha256Digest)>,
    snapshot: Option<VersionsMetadata>,
    targets: Option<u64>,
}

impl TrustedMetadata {
    /// Starts from the root that the operator configured. Its signatures are checked, but it is
    /// trusted because of where it comes from. It may have expired: the chain leads to a newer one.
    pub fn new(root: &[u8]) -> Result<Self, TrustError> {
        let file = parse(MetadataRole::Root, root)?;
        let (root, signers) = read_root(&file)?;
        verify(MetadataRole::Root, &file, &signers[&MetadataRole::Root], &BTreeSet::new())?;
        Ok(Self {
            root,
            signers,
            revoked: BTreeSet::new(),
            previous: Previous::default(),
            timestamp: None,
            snapshot: None,
            targets: None,
        })
    }

    pub fn root(&self) -> &RootMetadata {
        &self.root
    }

    /// Moves to the next root: signed with the keys of this one, and with its own.
    pub fn update_root(&mut self, bytes: &[u8]) -> Result<(), TrustError> {
        let role = MetadataRole::Root;
        let file = parse(role, bytes)?;
        // Signatures first: what an attacker wrote is not worth another error.
        verify(role, &file, &self.signers[&role], &self.revoked)?;
        let (root, signers) = read_root(&file)?;
        verify(role, &file, &signers[&role], &BTreeSet::new())?;
        if root.version <= self.root.version {
            let (trusted, found) = (self.root.version, root.version);
            return Err(TrustError::Rollback { role, trusted, found });
        }
        let expected = self.root.version.saturating_add(1);
        if root.version != expected {
            return Err(TrustError::RootGap { expected, found: root.version });
        }
        for (role, old) in &self.signers {
            let gone = old.keys.keys().filter(|key| !signers[role].keys.contains_key(*key));
            self.revoked.extend(gone.map(|key| (*role, *key)));
        }
        self.revoked.retain(|(role, key)| !signers[role].keys.contains_key(key));
        (self.root, self.signers) = (root, signers);
        Ok(())
    }

    /// Fails if the newest root has expired. Call it at the end of the chain.
    pub fn check_root(&self, now: Timestamp) -> Result<(), TrustError> {
        check_expiry(MetadataRole::Root, self.root.expires, now)
    }

    /// Reads what an earlier update trusted. Metadata that the current keys do not sign is dropped,
    /// so that an operator who replaced a key can publish lower versions; it may have expired.
    pub fn load_previous(&mut self, role: MetadataRole, bytes: &[u8]) {
        let Ok(file) = parse(role, bytes) else { return };
        if verify(role, &file, &self.signers[&role], &self.revoked).is_err() {
            return;
        }
        match role {
            MetadataRole::Root => {}
            MetadataRole::Timestamp => {
                let read = read::<VersionsMetadata>(role, &file).ok();
                self.previous.timestamp = read.map(|metadata| (metadata, Sha256Digest::of(bytes)));
            }
            MetadataRole::Snapshot => self.previous.snapshot = read(role, &file).ok(),
            MetadataRole::Targets => {
                let read = read::<TargetsMetadata>(role, &file).ok();
                self.previous.targets = read.map(|metadata| metadata.version);
            }
        }
    }

    pub fn update_timestamp(&mut self, bytes: &[u8], now: Timestamp) -> Result<(), TrustError> {
        let role = MetadataRole::Timestamp;
        let metadata: VersionsMetadata = self.read_verified(role, bytes)?;
        if let Some((previous, sha256)) = &self.previous.timestamp {
            check_rollback(role, previous.version, metadata.version)?;
            if previous.version == metadata.version && *sha256 != Sha256Digest::of(bytes) {
                return Err(TrustError::Replaced { role, version: metadata.version });
            }
            let (trusted, found) = (previous.meta.get(SNAPSHOT), metadata.meta.get(SNAPSHOT));
            if let (Some(trusted), Some(found)) = (trusted, found) {
                check_rollback(MetadataRole::Snapshot, trusted.version, found.version)?;
            }
        }
        only(role, &metadata, SNAPSHOT, MetadataRole::Snapshot)?;
        check_expiry(role, metadata.expires, now)?;
        self.timestamp = Some(metadata);
        Ok(())
    }

    /// The version and limits of the snapshot, which the timestamp names.
    pub fn expected_snapshot(&self) -> Result<&FileVersion, TrustError> {
        let role = MetadataRole::Timestamp;
        let timestamp = self.timestamp.as_ref().ok_or(TrustError::NotVerified { role })?;
        only(role, timestamp, SNAPSHOT, MetadataRole::Snapshot)
    }

    pub fn update_snapshot(&mut self, bytes: &[u8], now: Timestamp) -> Result<(), TrustError> {
        let role = MetadataRole::Snapshot;
        let expected = self.expected_snapshot()?.clone();
        check_file(role, bytes, &expected)?;
        let metadata: VersionsMetadata = self.read_verified(role, bytes)?;
        check_version(role, MetadataRole::Timestamp, expected.version, metadata.version)?;
        let targets = only(role, &metadata, TARGETS, MetadataRole::Targets)?;
        if let Some(previous) = &self.previous.snapshot {
            check_rollback(role, previous.version, metadata.version)?;
            if let Some(trusted) = previous.meta.get(TARGETS) {
                check_rollback(MetadataRole::Targets, trusted.version, targets.version)?;
            }
        }
        check_expiry(role, metadata.expires, now)?;
        self.snapshot = Some(metadata);
        Ok(())
    }

    /// The version and limits of the targets, which the snapshot names.
    pub fn expected_targets(&self) -> Result<&FileVersion, TrustError> {
        let role = MetadataRole::Snapshot;
        let snapshot = self.snapshot.as_ref().ok_or(TrustError::NotVerified { role })?;
        only(role, snapshot, TARGETS, MetadataRole::Targets)
    }

    pub fn update_targets(&mut self, bytes: &[u8], now: Timestamp) -> Result<(), TrustError> {
        let role = MetadataRole::Targets;
        let expected = self.expected_targets()?.clone();
        check_file(role, bytes, &expected)?;
        let metadata: TargetsMetadata = self.read_verified(role, bytes)?;
        check_version(role, MetadataRole::Snapshot, expected.version, metadata.version)?;
        if let Some(trusted) = self.previous.targets {
            check_rollback(role, trusted, metadata.version)?;
        }
        if let Some(name) = metadata.targets.keys().find(|name| !is_path_below(name)) {
            return Err(TrustError::PathEscape { name: name.clone() });
        }
        check_expiry(role, metadata.expires, now)?;
        self.targets = Some(metadata);
        Ok(())
    }

    /// All targets, after `update_targets`.
    pub fn targets(&self) -> Result<&BTreeMap<String, TargetFile>, TrustError> {
        let role = MetadataRole::Targets;
        Ok(&self.targets.as_ref().ok_or(TrustError::NotVerified { role })?.targets)
    }

    /// Checks the bytes of a target.
    pub fn check_target(&self, name: &str, bytes: &[u8]) -> Result<(), TrustError> {
        let target = self.targets()?.get(name);
        let target = target.ok_or_else(|| TrustError::NoTarget { name: name.to_owned() })?;
        let (expected, found) = (target.length, bytes.len() as u64);
        if expected != found {
            return Err(TrustError::WrongLength { name: name.to_owned(), expected, found });
        }
        let (expected, found) = (target.hashes.sha256, Sha256Digest::of(bytes));
        if expected != found {
            return Err(TrustError::WrongHash { name: name.to_owned(), expected, found });
        }
        Ok(())
    }

    fn read_verified<T: DeserializeOwned>(
        &self,
        role: MetadataRole,
        bytes: &[u8],
    ) -> Result<T, TrustError> {
        let file = parse(role, bytes)?;
        verify(role, &file, &self.signers[&role], &self.revoked)?;
        read(role, &file)
    }
}

fn parse(role: MetadataRole, bytes: &[u8]) -> Result<SignedFile, TrustError> {
    let max = role.bytes_max();
    if bytes.len() as u64 > max {
        return Err(TrustError::TooLong { role, max });
    }
    serde_json::from_slice(bytes).map_err(|err| TrustError::Form { role, err })
}

/// Reads the content, of which the signatures were verified over the same JSON value.
fn read<T: DeserializeOwned>(role: MetadataRole, file: &SignedFile) -> Result<T, TrustError> {
    #[derive(Deserialize)]
    struct Head {
        #[serde(rename = "_type")]
        kind: String,
        spec_version: String,
    }
    let form = |err| TrustError::Form { role, err };
    let head = Head::deserialize(&file.signed).map_err(form)?;
    if head.kind != role.name() {
        return Err(TrustError::WrongType { role, found: head.kind });
    }
    let mut numbers = head.spec_version.split('.');
    if (numbers.next(), numbers.next()) != (Some("1"), Some("0")) {
        return Err(TrustError::SpecVersion { role, found: head.spec_version });
    }
    T::deserialize(&file.signed).map_err(form)
}

fn read_root(
    file: &SignedFile,
) -> Result<(RootMetadata, BTreeMap<MetadataRole, Signers>), TrustError> {
    let root: RootMetadata = read(MetadataRole::Root, file)?;
    if !root.consistent_snapshot {
        return Err(TrustError::InconsistentSnapshot);
    }
    let is_known = |name: &&String| MetadataRole::ALL.iter().any(|role| role.name() == *name);
    if let Some(name) = root.roles.keys().find(|name| !is_known(name)) {
        return Err(TrustError::UnknownRole { name: name.clone() });
    }
    let mut keys: BTreeMap<&str, (KeyId, KeyBytes)> = BTreeMap::new();
    for (listed, key) in &root.keys {
        if key.keytype != "ed25519" || key.scheme != "ed25519" {
            return Err(TrustError::KeyType { keytype: key.keytype.clone() });
        }
        let mismatch = || TrustError::KeyIdMismatch { listed: listed.clone() };
        let id = key.id().map_err(|err| TrustError::Encoding { role: MetadataRole::Root, err })?;
        if id.to_string() != *listed {
            return Err(mismatch());
        }
        let bytes = digest::unhex(&key.keyval.public).ok_or_else(mismatch)?;
        keys.insert(listed, (id, bytes));
    }
    let mut signers = BTreeMap::new();
    for role in MetadataRole::ALL {
        let listed = root.roles.get(role.name()).ok_or(TrustError::RoleMissing { role })?;
        if listed.threshold == 0 {
            return Err(TrustError::ZeroThreshold { role });
        }
        let found = listed.keyids.iter().map(|keyid| {
            let key = keys.get(keyid.as_str()).cloned();
            key.ok_or_else(|| TrustError::KeyMissing { role, keyid: keyid.clone() })
        });
        let found = found.collect::<Result<_, _>>()?;
        signers.insert(role, Signers { keys: found, threshold: listed.threshold });
    }
    Ok((root, signers))
}

/// Counts the keys of a role that signed. A second signature of a key does not count.
fn verify(
    role: MetadataRole,
    file: &SignedFile,
    signers: &Signers,
    revoked: &BTreeSet<(MetadataRole, KeyId)>,
) -> Result<(), TrustError> {
    let message = signed_bytes(role, &file.signed)?;
    let mut valid = BTreeSet::new();
    let mut revoked_by = None;
    for signature in &file.signatures {
        let Ok(keyid) = signature.keyid.parse::<KeyId>() else { continue };
        if revoked.contains(&(role, keyid)) {
            revoked_by = Some(keyid);
        }
        let (Some(key), Some(bytes)) = (signers.keys.get(&keyid), digest::unhex(&signature.sig))
        else {
            continue;
        };
        if UnparsedPublicKey::new(&ED25519, key).verify(&message, &bytes).is_ok() {
            valid.insert(keyid);
        }
    }
    let threshold = signers.threshold;
    let valid = u32::try_from(valid.len()).unwrap_or(u32::MAX);
    match revoked_by {
        _ if valid >= threshold => Ok(()),
        Some(keyid) => Err(TrustError::RevokedKey { role, keyid }),
        None => Err(TrustError::Threshold { role, threshold, valid }),
    }
}

/// The bytes that signatures are over.
pub(super) fn signed_bytes(role: MetadataRole, signed: &Value) -> Result<Vec<u8>, TrustError> {
    canonical::encode(signed).map_err(|err| TrustError::Encoding { role, err })
}

fn check_expiry(role: MetadataRole, expires: Timestamp, now: Timestamp) -> Result<(), TrustError> {
    if expires <= now {
        return Err(TrustError::Expired { role, expired: expires, now });
    }
    Ok(())
}

fn check_rollback(role: MetadataRole, trusted: u64, found: u64) -> Result<(), TrustError> {
    if found < trusted {
        return Err(TrustError::Rollback { role, trusted, found });
    }
    Ok(())
}

fn check_version(
    role: MetadataRole,
    by: MetadataRole,
    expected: u64,
    found: u64,
) -> Result<(), TrustError> {
    if found != expected {
        return Err(TrustError::MixAndMatch { role, by, expected, found });
    }
    Ok(())
}

fn check_file(role: MetadataRole, bytes: &[u8], expected: &FileVersion) -> Result<(), TrustError> {
    let found = bytes.len() as u64;
    if let Some(expected) = expected.length
        && expected != found
    {
        return Err(TrustError::WrongMetadataLength { role, expected, found });
    }
    if let Some(hashes) = &expected.hashes {
        let (expected, found) = (hashes.sha256, Sha256Digest::of(bytes));
        if expected != found {
            return Err(TrustError::WrongMetadataHash { role, expected, found });
        }
    }
    Ok(())
}

/// The one file that the metadata of a role may name.
fn only<'m>(
    by: MetadataRole,
    metadata: &'m VersionsMetadata,
    name: &str,
    role: MetadataRole,
) -> Result<&'m FileVersion, TrustError> {
    if let Some(name) = metadata.meta.keys().find(|other| *other != name) {
        return Err(TrustError::UnknownFile { by, name: name.clone() });
    }
    metadata.meta.get(name).ok_or(TrustError::NotListed { role, by })
}

/// Whether a target's name is a relative path without `..`, in characters that no file system and
/// no URL treats specially.
fn is_path_below(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"+._-~".contains(&byte);
    let is_part =
        |part: &str| !part.is_empty() && !part.starts_with('.') && part.bytes().all(is_allowed);
    name.len() <= 512 && name.split('/').all(is_part)
}
