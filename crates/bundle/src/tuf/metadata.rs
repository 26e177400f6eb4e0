//! The JSON of TUF metadata (specification 1.0).
//!
//! Fields that the specification does not have are refused: one of them may restrict what a
//! signature covers.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Sha256Digest, canonical};

/// The version of the specification that we write; others with the same major number are read.
pub const SPEC_VERSION: &str = "1.0.31";

/// The top-level roles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MetadataRole {
    Root,
    Timestamp,
    Snapshot,
    Targets,
}

impl MetadataRole {
    pub const ALL: [Self; 4] = [Self::Root, Self::Timestamp, Self::Snapshot, Self::Targets];

    pub fn name(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Timestamp => "timestamp",
            Self::Snapshot => "snapshot",
            Self::Targets => "targets",
        }
    }

    /// The longest metadata that is read. A longer one is an endless-data attack.
    pub fn bytes_max(self) -> u64 {
        match self {
            Self::Root => 512 << 10,
            Self::Timestamp => 16 << 10,
            Self::Snapshot => 1 << 20,
            Self::Targets => 8 << 20,
        }
    }
}

impl fmt::Display for MetadataRole {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// Identifies a key: the SHA-256 of its canonical JSON.
pub type KeyId = Sha256Digest;

/// A signed file. The content stays JSON until its signatures are verified.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignedFile {
    pub signatures: Vec<MetadataSignature>,
    pub signed: Value,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetadataSignature {
    /// A key id; text, because the signatures of unknown keys are ignored.
    pub keyid: String,
    /// Hexadecimal. Empty for a signature that is still missing.
    pub sig: String,
}

/// The content of `root.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RootMetadata {
    #[serde(rename = "_type")]
    pub kind: String,
    pub spec_version: String,
    pub version: u64,
    pub expires: Timestamp,
    pub consistent_snapshot: bool,
    pub keys: BTreeMap<String, PublicKey>,
    pub roles: BTreeMap<String, RoleKeys>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublicKey {
    pub keytype: String,
    pub scheme: String,
    pub keyval: PublicKeyValue,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublicKeyValue {
    /// Hexadecimal.
    pub public: String,
}

/// The keys of a role.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoleKeys {
    pub keyids: Vec<String>,
    pub threshold: u32,
}

/// The content of `timestamp.json` and `snapshot.json`: versions of other files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VersionsMetadata {
    #[serde(rename = "_type")]
    pub kind: String,
    pub spec_version: String,
    pub version: u64,
    pub expires: Timestamp,
    pub meta: BTreeMap<String, FileVersion>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileVersion {
    pub version: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hashes: Option<Hashes>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hashes {
    pub sha256: Sha256Digest,
}

/// The content of `targets.json`: the manifests of bundles.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetsMetadata {
    #[serde(rename = "_type")]
    pub kind: String,
    pub spec_version: String,
    pub version: u64,
    pub expires: Timestamp,
    pub targets: BTreeMap<String, TargetFile>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetFile {
    pub length: u64,
    pub hashes: Hashes,
}

impl PublicKey {
    pub fn ed25519(public: &[u8]) -> Self {
        Self {
            keytype: "ed25519".to_owned(),
            scheme: "ed25519".to_owned(),
            keyval: PublicKeyValue { public: crate::digest::hex(public) },
        }
    }

    /// The key's identity.
    pub fn id(&self) -> Result<KeyId, canonical::CanonicalError> {
        Ok(Sha256Digest::of(&canonical::to_vec(self)?))
    }
}

/// The path of a role's file in a repository with consistent snapshots.
pub fn file_name(role: MetadataRole, version: u64) -> String {
    match role {
        MetadataRole::Timestamp => "timestamp.json".to_owned(),
        _ => format!("{version}.{role}.json"),
    }
}
