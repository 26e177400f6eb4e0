//! Why metadata or a target is refused.

use jiff::Timestamp;

use super::metadata::{KeyId, MetadataRole};
use crate::Sha256Digest;
use crate::canonical::CanonicalError;

#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("the {role} metadata cannot be parsed")]
    Form {
        role: MetadataRole,
        #[source]
        err: serde_json::Error,
    },
    #[error("the {role} metadata has no canonical encoding")]
    Encoding {
        role: MetadataRole,
        #[source]
        err: CanonicalError,
    },
    /// Endless data.
    #[error("the {role} metadata has more than {max} bytes")]
    TooLong { role: MetadataRole, max: u64 },
    #[error(
        "the {role} metadata is for version {found} of the TUF specification; this build reads 1.0"
    )]
    SpecVersion { role: MetadataRole, found: String },
    #[error("the {role} metadata says that it is `{found}`")]
    WrongType { role: MetadataRole, found: String },
    #[error("the root metadata has the role `{name}`, which is unknown")]
    UnknownRole { name: String },
    #[error("the root metadata has no keys for the role {role}")]
    RoleMissing { role: MetadataRole },
    #[error("the root metadata asks for no signature of {role}")]
    ZeroThreshold { role: MetadataRole },
    #[error("the root metadata has a key of type `{keytype}`, expected ed25519")]
    KeyType { keytype: String },
    #[error("the root metadata lists a key as {listed}, which is not its identity")]
    KeyIdMismatch { listed: String },
    #[error("the root metadata gives {role} a key that it does not list: {keyid}")]
    KeyMissing { role: MetadataRole, keyid: String },
    #[error("the repository has no consistent snapshots")]
    InconsistentSnapshot,
    #[error("the {role} metadata has {valid} of the {threshold} signatures that it needs")]
    Threshold { role: MetadataRole, threshold: u32, valid: u32 },
    #[error("the {role} metadata is signed with a revoked key: {keyid}")]
    RevokedKey { role: MetadataRole, keyid: KeyId },
    #[error("the {role} metadata expired at {expired}, and it is {now}")]
    Expired { role: MetadataRole, expired: Timestamp, now: Timestamp },
    /// Rollback: older metadata than was trusted before.
    #[error("the {role} metadata has version {found}; version {trusted} was trusted before")]
    Rollback { role: MetadataRole, trusted: u64, found: u64 },
    #[error(
        "the {role} metadata of version {version} has other content than the one trusted before"
    )]
    Replaced { role: MetadataRole, version: u64 },
    #[error("the next root metadata has version {found}, expected {expected}: the chain has a gap")]
    RootGap { expected: u64, found: u64 },
    /// Mix and match: files of different releases of the repository.
    #[error("the {role} metadata has version {found}, and {by} names version {expected}")]
    MixAndMatch { role: MetadataRole, by: MetadataRole, expected: u64, found: u64 },
    #[error("the {by} metadata names no version of {role}")]
    NotListed { role: MetadataRole, by: MetadataRole },
    #[error("the {by} metadata names `{name}`, which is unknown")]
    UnknownFile { by: MetadataRole, name: String },
    #[error("the {role} metadata has SHA-256 {found}, expected {expected}")]
    WrongMetadataHash { role: MetadataRole, expected: Sha256Digest, found: Sha256Digest },
    #[error("the {role} metadata has {found} bytes, expected {expected}")]
    WrongMetadataLength { role: MetadataRole, expected: u64, found: u64 },
    #[error("the targets metadata has the name `{name}`, which is not a path below the targets")]
    PathEscape { name: String },
    #[error("the targets metadata has no `{name}`")]
    NoTarget { name: String },
    #[error("`{name}` has SHA-256 {found}, expected {expected}")]
    WrongHash { name: String, expected: Sha256Digest, found: Sha256Digest },
    #[error("`{name}` has {found} bytes, expected {expected}")]
    WrongLength { name: String, expected: u64, found: u64 },
    /// The caller skipped a step.
    #[error("the {role} metadata was not verified yet")]
    NotVerified { role: MetadataRole },
}
