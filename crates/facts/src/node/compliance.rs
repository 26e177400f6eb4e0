//! What auditors ask about a node: TPM, encrypted volumes, and the signature policy for images.

use serde::{Deserialize, Serialize};

use super::reading::Reading;

/// Security features of the node. Secure Boot has its own observation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComplianceObservation {
    /// Major version of the TPM. Absent if there is none.
    pub tpm_version: Reading<u32>,
    /// Data volumes: mounted disk file systems, except those that the node boots from.
    pub volumes: Reading<Vec<DataVolume>>,
    /// What the policy of `containers-policy.json(5)` requires by default. Absent without a policy.
    pub image_policy: Reading<ImagePolicy>,
}

/// A mounted disk file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataVolume {
    /// Mount point.
    pub path: String,
    /// Whether LUKS encrypts it.
    pub encrypted: Reading<bool>,
}

/// The default requirement for container images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ImagePolicy {
    /// Every image is accepted.
    AcceptAnything,
    /// Images without a rule of their own are rejected.
    Reject,
    /// Images must be signed.
    Signed,
    /// A requirement that Farrier does not know.
    Other,
}
