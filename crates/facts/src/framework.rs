//! Frameworks: the CUDA version and the GPU targets of published builds.

use serde::{Deserialize, Serialize};

use crate::origin::Origin;
use crate::version::{ComputeCapability, CudaVersion, PackageVersion};

/// Contents of `data/frameworks/`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FrameworkFacts {
    pub package: Vec<FrameworkPackage>,
    pub build: Vec<Build>,
    /// GPU targets of the builds.
    pub coverage: Vec<TargetCoverage>,
}

/// A framework.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FrameworkPackage {
    /// Its name in the Python index.
    pub name: String,
    /// Other names that people use.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// Build selected by a plain install.
    pub default_build: String,
    /// What a plain install (no extra, no tag) lacks, if anything.
    pub plain_install_note: Option<String>,
    pub origin: Origin,
}

/// A published build of a version.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Build {
    /// The [`FrameworkPackage::name`].
    pub package: String,
    pub version: PackageVersion,
    /// `index` for the PyPI wheel, else a tag (`cu128`) or an extra (`cuda12`).
    pub build: String,
    /// Lowest CUDA that the build installs; `None` if no source says.
    pub cuda: Option<CudaVersion>,
    /// Exclusive upper bound of the CUDA that the build installs, if the package allows a range.
    pub cuda_below: Option<CudaVersion>,
    /// Exact torch version required, for frameworks built on torch.
    pub torch: Option<PackageVersion>,
    /// cuDNN requirement.
    pub cudnn: Option<String>,
    /// NCCL requirement.
    pub nccl: Option<String>,
    /// Triton requirement.
    pub triton: Option<String>,
    /// Python requirement.
    pub requires_python: Option<String>,
    pub note: Option<String>,
    pub origin: Origin,
}

/// GPU targets of some builds.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetCoverage {
    /// The [`FrameworkPackage::name`].
    pub package: String,
    /// `2.11` for every `2.11.x`.
    pub versions: Vec<PackageVersion>,
    /// CUDA that the builds were compiled with.
    pub cuda: CudaVersion,
    /// Targets with machine code (cubins); empty if the source gives only a minimum.
    #[serde(default)]
    pub machine_code: Vec<ComputeCapability>,
    /// Targets with PTX, which the driver can JIT-compile for newer GPUs.
    #[serde(default)]
    pub ptx: Vec<ComputeCapability>,
    /// Minimum compute capability that the vendor supports, if no list is published.
    pub minimum: Option<ComputeCapability>,
    pub note: Option<String>,
    pub origin: Origin,
}

impl FrameworkFacts {
    /// The package of that name or alias, ignoring case.
    pub fn package(&self, name: &str) -> Option<&FrameworkPackage> {
        self.package.iter().find(|package| {
            package.name.eq_ignore_ascii_case(name)
                || package.aliases.iter().any(|alias| alias.eq_ignore_ascii_case(name))
        })
    }

    /// The builds of a package.
    pub fn builds<'a>(&'a self, package: &'a str) -> impl Iterator<Item = &'a Build> {
        self.build.iter().filter(move |build| build.package == package)
    }

    /// GPU targets of a build. If no source lists them, those of an earlier version with the same
    /// CUDA major version.
    pub fn coverage(
        &self,
        package: &str,
        version: &PackageVersion,
        cuda: CudaVersion,
    ) -> Option<CoverageMatch<'_>> {
        let rows = || self.coverage.iter().filter(|row| row.package == package);
        let lists_version =
            |row: &&TargetCoverage| row.versions.iter().any(|covered| covered.covers(version));
        let same_major = |row: &&TargetCoverage| row.cuda.major == cuda.major;
        let exact = rows().find(|row| lists_version(row) && row.cuda == cuda);
        let by_minimum =
            || rows().find(|row| lists_version(row) && row.minimum.is_some() && same_major(row));
        if let Some(coverage) = exact.or_else(by_minimum) {
            return Some(CoverageMatch { coverage, assumed: false });
        }
        let earlier = rows().filter(|row| same_major(row) && row.cuda <= cuda);
        let newest = earlier.filter_map(|row| {
            let version = row.versions.iter().filter(|covered| *covered < version).max()?;
            Some(((version, row.cuda), row))
        });
        let (_, coverage) = newest.max_by(|(left, _), (right, _)| left.cmp(right))?;
        Some(CoverageMatch { coverage, assumed: true })
    }

    /// The torch build that a build depends on; `Err` with the version if the data lacks it.
    pub fn torch_dependency<'a>(
        &'a self,
        build: &'a Build,
    ) -> Option<Result<&'a Build, &'a PackageVersion>> {
        let version = build.torch.as_ref()?;
        let package = self.package("torch")?;
        let tag = build.cuda.map(|cuda| format!("cu{}{}", cuda.major, cuda.minor));
        let tag = tag.as_deref().unwrap_or(&package.default_build);
        let torch_build =
            self.builds("torch").find(|torch| torch.version == *version && torch.build == tag);
        Some(torch_build.ok_or(version))
    }
}

/// GPU targets found for a build.
#[derive(Debug, Clone, Copy)]
pub struct CoverageMatch<'a> {
    pub coverage: &'a TargetCoverage,
    /// Taken from an earlier version.
    pub assumed: bool,
}

impl TargetCoverage {
    /// The targets, for display.
    pub fn list(&self) -> String {
        if let Some(minimum) = self.minimum {
            return format!("compute capability {minimum} and later");
        }
        let mut list: Vec<String> = self.machine_code.iter().map(|target| target.sm()).collect();
        list.extend(self.ptx.iter().map(|target| format!("PTX {target}")));
        list.join(", ")
    }
}
