//! Driver branches and releases.

use jiff::civil::Date;
use serde::{Deserialize, Serialize};

use crate::origin::{Origin, PartialDate};
use crate::version::{Branch, CudaVersion, DriverVersion};

/// What `data/drivers/` holds.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriverFacts {
    /// Branches, oldest first.
    pub branch: Vec<BranchFacts>,
    /// Releases whose date is known.
    pub release: Vec<Release>,
    /// The open kernel modules.
    pub open_modules: OpenModules,
    /// Coherent driver-based memory management.
    pub cdmm: Cdmm,
    /// Fabric manager.
    pub fabric_manager: FabricManager,
    /// Names of packages.
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
    /// Its number.
    pub branch: Branch,
    /// How long NVIDIA looks after it.
    pub lifecycle: Lifecycle,
    /// The first data-centre release.
    pub first_release: PartialDate,
    /// The last day or month of fixes. Absent where no source gives one.
    pub end_of_support: Option<PartialDate>,
    /// Why there is no end of support, or what it rests on.
    pub end_of_support_note: Option<String>,
    /// The newest CUDA that its own user-space driver speaks.
    pub native_cuda: CudaVersion,
    /// The newest release seen.
    pub latest: DriverVersion,
    /// Its date.
    pub latest_date: Option<Date>,
    /// Fields that no source confirms.
    #[serde(default)]
    pub unverified: Vec<String>,
    /// Values on which sources disagree.
    #[serde(default)]
    pub disputed: Vec<crate::gpu::Dispute>,
    /// What a person should know besides.
    pub note: Option<String>,
    /// Of the values above.
    pub origin: Origin,
}

/// How long NVIDIA looks after a branch.
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
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::LongTerm => "long-term support branch",
            Self::Production => "production branch",
            Self::NewFeature => "new feature branch",
            Self::Developer => "developer branch",
        }
    }
}

/// A branch's support on some day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SupportStatus {
    /// Fixes still come.
    Supported,
    /// Its first release lies in the future of that day.
    NotYet,
    /// Fixes have ended.
    Ended,
    /// No source says until when.
    Unknown,
}

impl SupportStatus {
    /// In a word.
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

    /// Whether fixes still come on day `on`.
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
    /// The day it came out.
    pub date: Date,
    /// Of the date.
    pub origin: Origin,
}

/// The open kernel modules.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenModules {
    /// The first branch that ships them.
    pub first_branch: Branch,
    /// From here on they are what a plain install gives.
    pub default_from_branch: Branch,
    /// From here on a third party reports that nothing else ships.
    pub only_from_branch: Branch,
    /// Fields that no source confirms.
    #[serde(default)]
    pub unverified: Vec<String>,
    /// Of the values above.
    pub origin: Origin,
}

/// Coherent driver-based memory management: the driver, not the kernel's NUMA layer, manages GPU
/// memory on hardware-coherent platforms.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cdmm {
    /// The first driver with it.
    pub first_driver: DriverVersion,
    /// GPUs for which NVIDIA documents it.
    pub documented_gpus: Vec<String>,
    /// The module option that turns it on.
    pub enable: String,
    /// How to see whether it is on.
    pub verify: String,
    /// The branch from which a third party reports it as the default.
    pub default_from_branch: Branch,
    /// Fields that no source confirms.
    #[serde(default)]
    pub unverified: Vec<String>,
    /// Of the values above.
    pub origin: Origin,
}

/// How NVIDIA's Debian and Ubuntu repository names the driver.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Packages {
    /// From here on a pinning package holds the branch and the driver packages carry no number.
    pub unversioned_from_branch: Branch,
    /// Of the value above.
    pub origin: Origin,
}

/// The service that programs `NVSwitch`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FabricManager {
    /// What must hold between its version and the driver's.
    pub rule: String,
    /// Of the rule.
    pub origin: Origin,
}
