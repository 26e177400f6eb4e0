//! Driver branches and releases.

use jiff::civil::Date;
use serde::{Deserialize, Serialize};

use crate::origin::{Origin, PartialDate};
use crate::version::{Branch, CudaVersion, DriverVersion};

/// Contents of `data/drivers/`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriverFacts {
    /// Branches, oldest first.
    pub branch: Vec<BranchFacts>,
    /// Releases with a known date.
    pub release: Vec<Release>,
    /// The open kernel modules.
    pub open_modules: OpenModules,
    /// Coherent driver-based memory management.
    pub cdmm: Cdmm,
    /// Fabric manager.
    pub fabric_manager: FabricManager,
    pub packages: Packages,
}

impl DriverFacts {
    /// The facts of a branch.
    pub fn branch(&self, branch: Branch) -> Option<&BranchFacts> {
        self.branch.iter().find(|facts| facts.branch == branch)
    }

    /// The newest branch in the data.
    pub fn newest(&self) -> &BranchFacts {
        self.branch.last().expect("a valid set has branches")
    }

    /// The oldest branch in the data.
    pub fn oldest(&self) -> &BranchFacts {
        self.branch.first().expect("a valid set has branches")
    }
}

/// A driver branch.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BranchFacts {
    pub branch: Branch,
    pub lifecycle: Lifecycle,
    /// The first data-centre release.
    pub first_release: PartialDate,
    /// Last day or month of fixes; `None` if no source gives a date.
    pub end_of_support: Option<PartialDate>,
    /// Why the end of support is missing, or what it is based on.
    pub end_of_support_note: Option<String>,
    /// The newest CUDA that the branch's own user-space driver supports.
    pub native_cuda: CudaVersion,
    /// The newest release seen.
    pub latest: DriverVersion,
    pub latest_date: Option<Date>,
    /// Names of fields that no source confirms.
    #[serde(default)]
    pub unverified: Vec<String>,
    /// Values on which sources disagree.
    #[serde(default)]
    pub disputed: Vec<crate::gpu::Dispute>,
    pub note: Option<String>,
    pub origin: Origin,
}

/// NVIDIA's support class of a branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lifecycle {
    /// Three years of fixes (LTSB).
    LongTerm,
    /// Up to one year of fixes (PB).
    Production,
    /// No long-term updates (NFB).
    NewFeature,
    /// For evaluation only.
    Developer,
}

impl Lifecycle {
    /// Name for display.
    pub fn name(self) -> &'static str {
        match self {
            Self::LongTerm => "long-term support branch",
            Self::Production => "production branch",
            Self::NewFeature => "new feature branch",
            Self::Developer => "developer branch",
        }
    }
}

/// Support of a branch on a given day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SupportStatus {
    /// Still receives fixes.
    Supported,
    /// First released after that day.
    NotYet,
    /// No longer receives fixes.
    Ended,
    /// No source gives an end date.
    Unknown,
}

impl SupportStatus {
    /// Name for display.
    pub fn name(self) -> &'static str {
        match self {
            Self::Supported => "supported",
            Self::NotYet => "not yet out",
            Self::Ended => "ended",
            Self::Unknown => "unknown",
        }
    }
}

impl BranchFacts {
    /// Whether no source confirms a field.
    pub fn is_unverified(&self, field: &str) -> bool {
        self.unverified.iter().any(|unverified| unverified == field)
    }

    /// Support status on day `on`.
    pub fn support(&self, on: Date) -> SupportStatus {
        match self.end_of_support {
            _ if self.first_release.last_day() > on => SupportStatus::NotYet,
            None => SupportStatus::Unknown,
            Some(end) if end.last_day() < on => SupportStatus::Ended,
            Some(_) => SupportStatus::Supported,
        }
    }
}

/// A driver release.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Release {
    /// Such as `580.65.06`.
    pub version: DriverVersion,
    pub date: Date,
    pub origin: Origin,
}

/// The open kernel modules.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenModules {
    /// The first branch that includes the open modules.
    pub first_branch: Branch,
    /// The first branch whose default install uses the open modules.
    pub default_from_branch: Branch,
    /// The first branch that includes only the open modules, according to a third party.
    pub only_from_branch: Branch,
    /// Names of fields that no source confirms.
    #[serde(default)]
    pub unverified: Vec<String>,
    pub origin: Origin,
}

/// Coherent driver-based memory management: the driver, not the kernel's NUMA layer, manages GPU
/// memory on hardware-coherent platforms.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cdmm {
    pub first_driver: DriverVersion,
    /// GPUs for which NVIDIA documents CDMM.
    pub documented_gpus: Vec<String>,
    /// Module option that enables CDMM.
    pub enable: String,
    /// Command that shows whether CDMM is on.
    pub verify: String,
    /// CDMM is the default from this branch on, according to a third party.
    pub default_from_branch: Branch,
    /// Names of fields that no source confirms.
    #[serde(default)]
    pub unverified: Vec<String>,
    pub origin: Origin,
}

/// How NVIDIA's Debian and Ubuntu repository names the driver.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Packages {
    /// From this branch on, a pinning package pins the branch, and the names of driver packages
    /// have no version number.
    pub unversioned_from_branch: Branch,
    pub origin: Origin,
}

/// The service that programs `NVSwitch`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FabricManager {
    /// Required relation between the version of fabric manager and the version of the driver.
    pub rule: String,
    pub origin: Origin,
}
