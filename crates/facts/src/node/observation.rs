//! All readings of a node as plain values. The readings can be serialised, so that a capture from
//! one machine can be evaluated on another.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::compliance::ComplianceObservation;
use super::health::HostHealth;
use super::host::HostObservation;
use super::installation::InstallationObservation;
use super::nvml::NvmlReading;
use super::reading::Reading;

/// Schema version.
pub const OBSERVATION_VERSION: u32 = 1;

/// All readings of one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeObservation {
    /// Must be [`OBSERVATION_VERSION`].
    pub version: u32,
    /// NVIDIA devices on PCI.
    pub pci: Reading<Vec<PciDevice>>,
    pub nvml: NvmlReading,
    /// Loaded driver and its user-space libraries.
    pub driver: DriverObservation,
    /// Firmware, module options, device files, and the owner of the driver.
    pub installation: InstallationObservation,
    /// Kernels and modules on disk.
    pub kernels: KernelObservation,
    /// Installed packages and upgrade configuration.
    pub packages: PackageObservation,
    /// DKMS trees of the driver.
    pub dkms: Reading<Vec<DkmsTree>>,
    /// Module signature enforcement.
    pub secure_boot: SecureBootObservation,
    /// Services that the rules check, by unit name.
    pub services: BTreeMap<String, ServiceObservation>,
    /// Number of `NVSwitch` devices that the driver manages.
    pub nvswitches: Reading<u32>,
    /// Disks, clock, IOMMU, `GPUDirect` RDMA and IMEX.
    pub host: HostObservation,
    /// TPM, encrypted volumes and image policy.
    pub compliance: ComplianceObservation,
    /// Container runtimes and toolkit.
    pub containers: ContainerObservation,
    /// The Python environment that a job would use.
    pub python: PythonObservation,
    /// Current faults of the host. `None` if they were not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now: Option<HostHealth>,
}

/// A device of vendor `10de`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PciDevice {
    /// `0000:17:00.0`
    pub address: String,
    /// Four lower-case hexadecimal digits.
    pub device: String,
    /// The class, six hexadecimal digits: `030200`.
    pub class: String,
    /// The bound kernel driver.
    pub bound: Reading<String>,
}

impl PciDevice {
    /// Whether it is a GPU: a display controller (PCI class 03).
    pub fn is_gpu(&self) -> bool {
        self.class.starts_with("03")
    }

    /// Whether it is an `NVSwitch`: a bridge of class "other" (PCI class 0680).
    pub fn is_nvswitch(&self) -> bool {
        self.class.starts_with("0680")
    }
}

/// The loaded driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriverObservation {
    /// `/sys/module/nvidia/version`.
    pub loaded: Reading<String>,
    /// The first line of `/proc/driver/nvidia/version`.
    pub nvrm_line: Reading<String>,
    /// The links `libcuda.so.1` and `libnvidia-ml.so.1`, with the versions of their targets.
    pub libraries: Reading<Vec<Library>>,
    /// Contents of `/proc/driver/nvidia/params`.
    pub parameters: Reading<BTreeMap<String, String>>,
    /// GSP firmware versions on disk.
    pub firmware: Reading<Vec<String>>,
    /// Whether nouveau is loaded.
    pub nouveau_loaded: Reading<bool>,
    /// Whether the driver was installed from NVIDIA's `.run` file.
    pub run_file_install: Reading<bool>,
}

/// A user-space library of the driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Library {
    /// Path of the link.
    pub path: String,
    /// Version in the file name of the link's target.
    pub version: Reading<String>,
}

/// Kernels and the driver's modules on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelObservation {
    pub running: Reading<String>,
    /// Oldest first.
    pub installed: Reading<Vec<InstalledKernel>>,
    pub boot_choice: BootChoice,
    /// Packages that need a reboot (`/run/reboot-required.pkgs`). Absent if no reboot is required.
    pub reboot_required: Reading<Vec<String>>,
}

/// Which kernel the boot loader selects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BootChoice {
    /// The first entry, which is the newest kernel.
    Newest,
    /// A named kernel.
    Named(String),
    /// The boot configuration does not determine it, with the reason.
    Unknown(String),
}

/// An installed kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstalledKernel {
    /// `6.8.0-60-generic`
    pub release: String,
    /// Whether `/boot` has an image of this kernel.
    pub bootable: Reading<bool>,
    /// The driver's module for this kernel.
    pub module: Reading<ModuleOnDisk>,
    /// Whether the headers of this kernel are installed.
    pub headers: Reading<bool>,
}

/// A kernel module file on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModuleOnDisk {
    pub path: String,
    pub info: Reading<ModuleInfo>,
}

/// The `.modinfo` section of a module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModuleInfo {
    pub version: Option<String>,
    /// `NVIDIA` for the proprietary module, `Dual MIT/GPL` for the open one.
    pub license: Option<String>,
    /// Release and options of the kernel that the module was built for.
    pub vermagic: Option<String>,
    /// Whether a signature is appended.
    pub signed: bool,
}

/// Installed packages and upgrade configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackageObservation {
    /// dpkg packages of driver, kernel and container toolkit.
    pub dpkg: Reading<Vec<Package>>,
    /// Whether there is an RPM database.
    pub rpm: Reading<bool>,
    pub unattended: Reading<Unattended>,
    /// Pins in apt preferences.
    pub pins: Reading<Vec<Pin>>,
}

/// A dpkg package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Package {
    pub name: String,
    /// Full dpkg version.
    pub version: String,
    /// `installed`, `half-configured`, ...
    pub status: String,
    /// Whether `apt-mark hold` applies.
    pub held: bool,
}

impl Package {
    /// The upstream version, without epoch and revision.
    pub fn upstream(&self) -> &str {
        let version = self.version.split_once(':').map_or(self.version.as_str(), |(_, rest)| rest);
        let version = version.split_once('-').map_or(version, |(upstream, _)| upstream);
        version.split_once('+').map_or(version, |(upstream, _)| upstream)
    }
}

/// An entry of apt's preferences.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pin {
    /// Package name with `*` wildcards.
    pub package: String,
    /// Such as `version 580.95.05*`.
    pub pin: String,
    pub priority: i32,
}

/// Configuration of unattended-upgrades.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unattended {
    /// `APT::Periodic::Unattended-Upgrade` is on.
    pub enabled: bool,
    /// `Unattended-Upgrade::Package-Blacklist`: regular expressions anchored at the start of a
    /// name.
    pub blacklist: Vec<String>,
}

/// A DKMS tree of the driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DkmsTree {
    pub version: String,
    /// Kernels for which DKMS has built the module.
    pub built_for: Vec<String>,
}

/// Module signature enforcement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecureBootObservation {
    /// From the EFI variable `SecureBoot`. Absent if the machine did not boot with EFI.
    pub enabled: Reading<bool>,
    /// `module.sig_enforce` of the running kernel.
    pub signatures_enforced: Reading<bool>,
}

/// State of a systemd service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceObservation {
    /// Whether its unit file exists.
    pub unit: Reading<bool>,
    /// Whether it is enabled at boot.
    pub enabled: Reading<bool>,
    pub masked: Reading<bool>,
    /// Whether it has a running process.
    pub running: Reading<bool>,
}

/// Container runtimes and toolkit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContainerObservation {
    /// Installed container runtimes.
    pub runtimes: Reading<Vec<String>>,
    /// Whether the container toolkit is installed.
    pub toolkit: Reading<bool>,
    /// Whether the configuration of a runtime names NVIDIA's runtime or hook.
    pub configured: Reading<bool>,
    /// CDI specifications with their driver versions.
    pub cdi: Reading<Vec<CdiSpec>>,
    /// Whether the observed file system is that of a container.
    pub inside: Reading<bool>,
}

/// A CDI specification.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CdiSpec {
    pub path: String,
    /// Version of the driver libraries that the specification mounts into containers.
    pub driver: Reading<String>,
}

/// The Python environment that a job would use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PythonObservation {
    /// Path of the interpreter.
    pub interpreter: Reading<String>,
    /// Installed framework and NVIDIA packages.
    pub packages: Reading<Vec<PythonPackage>>,
}

/// An installed Python package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PythonPackage {
    /// Normalised name: lower case with dashes.
    pub name: String,
    /// Version from METADATA. For wheels from PyPI it has no local part, such as `+cu130`.
    pub version: String,
    /// CUDA version that torch itself records. Absent for a build without CUDA.
    pub cuda: Reading<String>,
    /// Exact requirements (`==`) on NVIDIA packages, by name.
    pub pinned: BTreeMap<String, String>,
}
