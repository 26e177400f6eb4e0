//! What a bundle is: the exact packages of one driver, and what a node needs to know before it
//! installs them.
//!
//! A manifest has exact versions and no ranges. It has one encoding, canonical JSON with sorted
//! lists, and the SHA-256 of that encoding is the bundle's identity.

mod problem;
mod role;
mod validate;

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use farrier_facts::version::DriverVersion;
use serde::{Deserialize, Serialize};

use crate::canonical;
use crate::digest::{DigestError, Sha256Digest, hex};

pub use problem::{BundleError, ManifestProblem};
pub use role::PackageRole;
pub use validate::driver_version_of;

/// Version of the serialised form.
pub const MANIFEST_VERSION: u32 = 1;

/// A manifest of a driver with all of Debian's packages has 40 KB.
pub const MANIFEST_BYTES_MAX: usize = 4 << 20;

/// Identifies a bundle: the SHA-256 of its manifest. It covers the digest of each package.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BundleId(Sha256Digest);

impl BundleId {
    pub fn digest(self) -> Sha256Digest {
        self.0
    }

    /// Whether the identity begins with these digits, of which there is at least one.
    pub fn begins_with(self, digits: &str) -> bool {
        !digits.is_empty() && hex(self.0.as_bytes()).starts_with(digits)
    }

    /// The first twelve digits, for tables.
    pub fn short(self) -> String {
        self.0.to_string()[..12].to_owned()
    }
}

impl From<Sha256Digest> for BundleId {
    fn from(digest: Sha256Digest) -> Self {
        Self(digest)
    }
}

impl fmt::Display for BundleId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl FromStr for BundleId {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

/// The content of a manifest. [`Bundle::new`] validates it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BundleManifest {
    /// [`MANIFEST_VERSION`].
    pub v: u32,
    pub driver: DriverVersion,
    pub flavour: ModuleFlavour,
    pub platform: Platform,
    /// All packages of the driver, sorted by name and architecture.
    pub packages: Vec<BundlePackage>,
    /// Names of packages that must not be installed after the change, sorted. A change removes them
    /// in the transaction that installs `packages`.
    pub absent: Vec<String>,
    /// Names of packages that the node has to have already, such as `libc6` or `dkms`, sorted. The
    /// rehearsal of the package transaction checks their versions.
    pub requires: Vec<String>,
    /// Options for `/etc/modprobe.d`, sorted by module and name.
    pub module_options: Vec<ModuleOption>,
    pub kernels: KernelSupport,
    /// GPU architectures that the driver supports, as `farrier facts` names them, sorted.
    pub gpu_architectures: Vec<String>,
    /// Who signed prebuilt modules, as `modinfo -F signer` shows it. `None` for modules that are
    /// built on the node, which the node's own key signs.
    pub secure_boot_signer: Option<String>,
    pub activation: Activation,
    pub way_back: WayBack,
}

/// NVIDIA's open or proprietary kernel modules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModuleFlavour {
    Open,
    Proprietary,
}

impl fmt::Display for ModuleFlavour {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl ModuleFlavour {
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Proprietary => "proprietary",
        }
    }
}

/// The operating system that the packages are for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Platform {
    /// `ID` of `/etc/os-release`, such as `debian`.
    pub distribution: String,
    /// `VERSION_ID` of `/etc/os-release`, such as `12`.
    pub release: String,
    /// The package manager's name of the architecture: `amd64` or `x86_64`.
    pub architecture: String,
    pub format: PackageFormat,
}

impl fmt::Display for Platform {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {} {}", self.distribution, self.release, self.architecture)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PackageFormat {
    Deb,
    Rpm,
}

impl PackageFormat {
    /// Extension of package files.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Deb => "deb",
            Self::Rpm => "rpm",
        }
    }

    /// Architecture of packages that run on all architectures.
    pub fn any_architecture(self) -> &'static str {
        match self {
            Self::Deb => "all",
            Self::Rpm => "noarch",
        }
    }
}

/// One package: its name for the package manager, and the bytes of its file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BundlePackage {
    pub name: String,
    /// The full version: `1:535.261.03-1` (dpkg) or `3:535.261.03-1.el9` (rpm, with the epoch if it
    /// has one).
    pub version: String,
    pub architecture: String,
    /// Name of the file, without a directory.
    pub file: String,
    pub bytes: u64,
    pub sha256: Sha256Digest,
    pub role: PackageRole,
}

/// The kernels on which the modules load.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum KernelSupport {
    /// DKMS builds the modules on the node, which needs the headers of each kernel.
    Dkms,
    /// The bundle has modules for these kernel releases (`uname -r`), sorted.
    Prebuilt(Vec<String>),
}

/// An option of a kernel module.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModuleOption {
    /// Such as `nvidia`.
    pub module: String,
    /// Such as `NVreg_CoherentGPUMemoryMode`.
    pub option: String,
    /// Such as `driver`.
    pub value: String,
}

/// How the node starts to use the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Activation {
    /// The old modules are unloaded and the new ones loaded.
    Reload,
    /// The node is rebooted.
    Reboot,
}

impl Activation {
    pub fn name(self) -> &'static str {
        match self {
            Self::Reload => "reload",
            Self::Reboot => "reboot",
        }
    }
}

/// The bundles to which a node that has this bundle can return.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum WayBack {
    Any,
    /// Only these, sorted.
    Only(Vec<BundleId>),
    Never,
}

impl WayBack {
    /// Whether a node may return from this bundle to `to`.
    pub fn allows(&self, to: BundleId) -> bool {
        match self {
            Self::Any => true,
            Self::Only(bundles) => bundles.contains(&to),
            Self::Never => false,
        }
    }
}

/// A valid manifest, with its identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bundle {
    id: BundleId,
    manifest: BundleManifest,
}

impl Bundle {
    /// Validates a manifest. Its lists have to be sorted; [`BundleManifest::sort`] does that.
    pub fn new(manifest: BundleManifest) -> Result<Self, BundleError> {
        let problems = validate::problems(&manifest);
        if !problems.is_empty() {
            return Err(BundleError::Invalid { problems });
        }
        let bytes = canonical::to_vec(&manifest).map_err(BundleError::Encoding)?;
        Ok(Self { id: BundleId(Sha256Digest::of(&bytes)), manifest })
    }

    /// Parses the canonical encoding. Any other encoding of the same manifest is refused, because
    /// its bytes have another SHA-256.
    pub fn parse(bytes: &[u8]) -> Result<Self, BundleError> {
        if bytes.len() > MANIFEST_BYTES_MAX {
            return Err(BundleError::TooLong { bytes: bytes.len() });
        }
        let manifest = serde_json::from_slice(bytes).map_err(|err| match version_of(bytes) {
            Some(found) if found != MANIFEST_VERSION => BundleError::Version { found },
            _ => BundleError::Form(err),
        })?;
        let bundle = Self::new(manifest)?;
        if bundle.encode()? == bytes { Ok(bundle) } else { Err(BundleError::NotCanonical) }
    }

    /// The canonical encoding, of which the identity is the SHA-256.
    pub fn encode(&self) -> Result<Vec<u8>, BundleError> {
        canonical::to_vec(&self.manifest).map_err(BundleError::Encoding)
    }

    pub fn id(&self) -> BundleId {
        self.id
    }

    pub fn manifest(&self) -> &BundleManifest {
        &self.manifest
    }

    /// Size of all package files.
    pub fn package_bytes(&self) -> u64 {
        self.manifest.packages.iter().map(|package| package.bytes).sum()
    }

    /// The packages of a role.
    pub fn with_role(&self, role: PackageRole) -> impl Iterator<Item = &BundlePackage> {
        self.manifest.packages.iter().filter(move |package| package.role == role)
    }

    pub fn package(&self, name: &str) -> Option<&BundlePackage> {
        self.manifest.packages.iter().find(|package| package.name == name)
    }
}

impl Deref for Bundle {
    type Target = BundleManifest;

    fn deref(&self) -> &BundleManifest {
        &self.manifest
    }
}

impl BundleManifest {
    /// Sorts all lists.
    pub fn sort(&mut self) {
        self.packages.sort_by(|left, right| left.key().cmp(&right.key()));
        for list in [&mut self.absent, &mut self.requires, &mut self.gpu_architectures] {
            list.sort();
        }
        self.module_options.sort();
        if let KernelSupport::Prebuilt(releases) = &mut self.kernels {
            releases.sort();
        }
        if let WayBack::Only(bundles) = &mut self.way_back {
            bundles.sort();
        }
    }
}

impl BundlePackage {
    /// dpkg and rpm identify a package by these.
    pub fn key(&self) -> (&str, &str) {
        (&self.name, &self.architecture)
    }
}

/// The version of a manifest whose other fields may be from another version.
fn version_of(bytes: &[u8]) -> Option<u32> {
    #[derive(Deserialize)]
    struct Head {
        v: u32,
    }
    serde_json::from_slice::<Head>(bytes).ok().map(|head| head.v)
}

#[cfg(test)]
mod tests;
