//! CUDA toolkits and their compatibility with drivers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::origin::Origin;
use crate::version::{Branch, CudaVersion, DriverVersion, ToolkitVersion};

/// Contents of `data/cuda/`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CudaFacts {
    /// Releases, newest first.
    pub toolkit: Vec<Toolkit>,
    pub family: Vec<CudaFamily>,
    /// The `cuda-compat` packages.
    pub forward_compatibility: ForwardCompatibility,
    /// Changes of support, by release.
    pub event: Vec<SupportChange>,
}

impl CudaFacts {
    /// The facts of a major version.
    pub fn family(&self, major: u32) -> Option<&CudaFamily> {
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
    /// NVIDIA's name, such as `CUDA 12.8 Update 1`.
    pub name: String,
    /// Such as `12.8.1`.
    pub version: ToolkitVersion,
    /// The Linux driver bundled with the toolkit; `None` for newer releases, which NVIDIA ships
    /// without a driver.
    pub driver: Option<DriverVersion>,
    pub note: Option<String>,
    pub origin: Origin,
}

/// A CUDA major version. A driver also runs programs built with newer minors of its major version.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CudaFamily {
    /// `12` of `12.8`.
    pub major: u32,
    /// The oldest Linux driver that runs programs of this major version.
    pub driver_min: DriverVersion,
    pub note: Option<String>,
    pub origin: Origin,
}

/// `cuda-compat-X-Y` packages: the user-space driver of a newer branch on an older kernel driver.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForwardCompatibility {
    /// Install path of the libraries.
    pub library_dir: String,
    /// GPU families of which only selected SKUs are supported.
    pub conditional_gpus: Vec<String>,
    pub package: Vec<CompatPackage>,
    /// Origin of the values above and of the packages.
    pub origin: Origin,
}

impl ForwardCompatibility {
    /// The package that contains the user-space driver of `cuda`.
    pub fn package(&self, cuda: CudaVersion) -> Option<&CompatPackage> {
        self.package.iter().find(|package| package.cuda == cuda)
    }
}

/// One `cuda-compat` package.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompatPackage {
    /// The CUDA version of the bundled user-space driver.
    pub cuda: CudaVersion,
    /// Support by base branch, keyed `r535`. Missing branches are unsupported.
    pub base: BTreeMap<String, BaseSupport>,
}

impl CompatPackage {
    /// Package name.
    pub fn name(&self) -> String {
        format!("cuda-compat-{}-{}", self.cuda.major, self.cuda.minor)
    }

    /// Support on a base branch.
    pub fn on(&self, branch: Branch) -> Option<BaseSupport> {
        self.base.get(&format!("r{}", branch.0)).copied()
    }
}

/// Whether a `cuda-compat` package works on a base branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BaseSupport {
    Works,
    /// Fails to load: the base is newer.
    Refused,
    /// Same branch as the base: adds nothing.
    NotNeeded,
}

/// A change in what CUDA supports.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SupportChange {
    pub cuda: CudaVersion,
    pub what: String,
    pub origin: Origin,
}
