//! CUDA toolkits and how far one driver carries them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::origin::Origin;
use crate::version::{Branch, CudaVersion, DriverVersion, ToolkitVersion};

/// What `data/cuda/` holds.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CudaFacts {
    /// Releases, newest first.
    pub toolkit: Vec<Toolkit>,
    /// Major versions.
    pub family: Vec<Family>,
    /// The `cuda-compat` packages.
    pub forward_compatibility: ForwardCompatibility,
    /// What changed when.
    pub event: Vec<SupportChange>,
}

impl CudaFacts {
    /// The major version that `cuda` belongs to.
    pub fn family(&self, major: u32) -> Option<&Family> {
        self.family.iter().find(|family| family.major == major)
    }

    /// All releases of `cuda`, newest first.
    pub fn releases(&self, cuda: CudaVersion) -> impl Iterator<Item = &Toolkit> {
        self.toolkit.iter().filter(move |toolkit| toolkit.version.cuda == cuda)
    }

    /// The first release of `cuda`.
    pub fn first_release(&self, cuda: CudaVersion) -> Option<&Toolkit> {
        self.releases(cuda).min_by_key(|toolkit| toolkit.version)
    }

    /// Every `major.minor`, newest first, each once.
    pub fn minors(&self) -> Vec<CudaVersion> {
        let mut minors: Vec<CudaVersion> =
            self.toolkit.iter().map(|toolkit| toolkit.version.cuda).collect();
        minors.dedup();
        minors
    }
}

/// A CUDA toolkit release.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Toolkit {
    /// What NVIDIA calls it, such as `CUDA 12.8 Update 1`.
    pub name: String,
    /// Such as `12.8.1`.
    pub version: ToolkitVersion,
    /// The Linux driver that ships with it; absent since the two are shipped apart.
    pub driver: Option<DriverVersion>,
    /// What a person should know besides.
    pub note: Option<String>,
    /// Of the values above.
    pub origin: Origin,
}

/// A major version: inside it, a driver runs programs of newer minors than its own.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Family {
    /// `12` of `12.8`.
    pub major: u32,
    /// The oldest Linux driver that runs programs of this major version.
    pub driver_min: DriverVersion,
    /// What a person should know besides.
    pub note: Option<String>,
    /// Of the values above.
    pub origin: Origin,
}

/// `cuda-compat-X-Y`: the user-space driver of a newer branch on an older kernel driver.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForwardCompatibility {
    /// Where the package puts its libraries.
    pub library_dir: String,
    /// GPUs of which only selected parts are supported.
    pub conditional_gpus: Vec<String>,
    /// The packages.
    pub package: Vec<CompatPackage>,
    /// Of the values above and of the packages.
    pub origin: Origin,
}

impl ForwardCompatibility {
    /// The package that carries `cuda`.
    pub fn package(&self, cuda: CudaVersion) -> Option<&CompatPackage> {
        self.package.iter().find(|package| package.cuda == cuda)
    }
}

/// One `cuda-compat` package.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompatPackage {
    /// The CUDA whose user-space driver it carries.
    pub cuda: CudaVersion,
    /// What it does on each base branch, keyed `r535`. A branch that is not here is not supported.
    pub base: BTreeMap<String, BaseSupport>,
}

impl CompatPackage {
    /// Its name in the package manager.
    pub fn name(&self) -> String {
        format!("cuda-compat-{}-{}", self.cuda.major, self.cuda.minor)
    }

    /// What it does on a base branch.
    pub fn on(&self, branch: Branch) -> Option<BaseSupport> {
        self.base.get(&format!("r{}", branch.0)).copied()
    }
}

/// What a `cuda-compat` package does on a base branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BaseSupport {
    /// It works.
    Works,
    /// It does not work (the base is newer).
    Refused,
    /// The base is of the same branch: nothing to add.
    NotNeeded,
}

/// A change in what CUDA supports.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SupportChange {
    /// The release that brought it.
    pub cuda: CudaVersion,
    /// The change.
    pub what: String,
    /// Of the change.
    pub origin: Origin,
}
