//! Why a manifest is refused.

use farrier_facts::version::{Branch, DriverVersion};

use super::{MANIFEST_BYTES_MAX, MANIFEST_VERSION, PackageRole};
use crate::canonical::CanonicalError;

/// Why bytes or a manifest are no bundle.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    #[error("failed to parse the manifest")]
    Form(#[source] serde_json::Error),
    #[error("the manifest has version {found}, this build reads version {MANIFEST_VERSION}")]
    Version { found: u32 },
    #[error("the manifest has {bytes} bytes, expected at most {MANIFEST_BYTES_MAX}")]
    TooLong { bytes: usize },
    #[error("the manifest is not in canonical JSON, so its SHA-256 does not identify it")]
    NotCanonical,
    #[error("failed to encode the manifest")]
    Encoding(#[source] CanonicalError),
    #[error("the manifest is invalid: {}", list(problems))]
    Invalid { problems: Vec<ManifestProblem> },
}

fn list(problems: &[ManifestProblem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// One thing that is wrong with a manifest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestProblem {
    #[error("it has version {found}, this build reads version {MANIFEST_VERSION}")]
    Version { found: u32 },
    #[error("it has no packages")]
    NoPackages,
    #[error("it has no package with kernel modules")]
    NoKernelModule,
    #[error("it supports no kernel")]
    NoKernel,
    /// `kernels` says `dkms` without a package with the source, or the other way round.
    #[error("the kernels that it lists do not fit the role of package `{package}`")]
    KernelSupport { package: String },
    #[error("it lists no GPU architecture")]
    NoGpuArchitecture,
    #[error("`{field}` is `{text}`, which has a character that is not allowed")]
    Text { field: &'static str, text: String },
    #[error("the list `{field}` is not sorted, or has an entry twice")]
    Order { field: &'static str },
    #[error("several packages have the file name `{file}`")]
    DuplicateFile { file: String },
    #[error("package `{package}` is there in several architectures or versions")]
    DuplicatePackage { package: String },
    #[error(
        "the file of package `{package}` is named `{file}`, expected a name that ends in `.{extension}`"
    )]
    FileName { package: String, file: String, extension: &'static str },
    #[error("the file of package `{package}` is empty")]
    EmptyFile { package: String },
    #[error("package `{package}` is for {architecture}, the bundle for {expected}")]
    ForeignArchitecture { package: String, architecture: String, expected: String },
    /// Fabric manager, NSCQ or a library of another driver.
    #[error(
        "`{package}` ({role}) has version {version}, which has to be that of the driver: {driver}"
    )]
    VersionDiffers { package: String, role: PackageRole, version: String, driver: DriverVersion },
    #[error("`{package}` ({role}) is from branch {branch}, the driver is {driver}")]
    MixedBranch { package: String, role: PackageRole, branch: Branch, driver: DriverVersion },
    #[error("package `{package}` is both in the bundle and in the list `{field}`")]
    Contradiction { package: String, field: &'static str },
    #[error("the packages have more than {max} bytes in total")]
    TooLarge { max: u64 },
}
