//! What was read on a node. Plain values: they travel, are kept, and are judged anywhere.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::health::HostHealth;
use super::nvml::NvmlReading;
use super::reading::Reading;

/// The version of the form.
pub const OBSERVATION_VERSION: u32 = 1;

/// Everything that was read on one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeObservation {
    /// Must be [`OBSERVATION_VERSION`].
    pub version: u32,
    /// NVIDIA devices on PCI.
    pub pci: Reading<Vec<PciDevice>>,
    /// What NVML says.
    pub nvml: NvmlReading,
    /// The driver that is loaded, and its user space.
    pub driver: DriverObservation,
    /// Kernels and the modules on disk.
    pub kernels: KernelObservation,
    /// Installed packages and what may replace them.
    pub packages: PackageObservation,
    /// DKMS trees of the driver.
    pub dkms: Reading<Vec<DkmsTree>>,
    /// Whether unsigned modules are refused.
    pub secure_boot: SecureBootObservation,
    /// The services that matter here, by unit name.
    pub services: BTreeMap<String, ServiceObservation>,
    /// `NVSwitch` devices that the driver manages.
    pub nvswitches: Reading<u32>,
    /// Containers.
    pub containers: ContainerObservation,
    /// The Python that a job would use.
    pub python: PythonObservation,
    /// What is wrong around the GPUs now; none where nobody looked.
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
    /// The kernel driver that is bound to it.
    pub bound: Reading<String>,
}

impl PciDevice {
    /// Whether it is a GPU: a display controller (class 03).
    pub fn is_gpu(&self) -> bool {
        self.class.starts_with("03")
    }

    /// Whether it is an `NVSwitch`: a bridge of the class "other" (0680).
    pub fn is_nvswitch(&self) -> bool {
        self.class.starts_with("0680")
    }
}

/// The driver that is loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriverObservation {
    /// `/sys/module/nvidia/version`.
    pub loaded: Reading<String>,
    /// The first line of `/proc/driver/nvidia/version`.
    pub nvrm_line: Reading<String>,
    /// The libraries, by folder: the version that `libcuda.so.1` or `libnvidia-ml.so.1` leads to.
    pub libraries: Reading<Vec<Library>>,
    /// `/proc/driver/nvidia/params`, name to value.
    pub parameters: Reading<BTreeMap<String, String>>,
    /// The versions of GSP firmware on disk.
    pub firmware: Reading<Vec<String>>,
    /// Whether nouveau is loaded.
    pub nouveau_loaded: Reading<bool>,
    /// An installation by NVIDIA's `.run` file is present.
    pub run_file_install: Reading<bool>,
}

/// A library of the driver's user space.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Library {
    /// Where its link is.
    pub path: String,
    /// The version at the end of the file's name.
    pub version: Reading<String>,
}

/// Kernels and the driver's modules on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelObservation {
    /// The running kernel's release.
    pub running: Reading<String>,
    /// The installed kernels, oldest first.
    pub installed: Reading<Vec<InstalledKernel>>,
    /// How the boot loader chooses.
    pub boot_choice: BootChoice,
    /// `/run/reboot-required` is there, with the packages that ask for it.
    pub reboot_required: Reading<Vec<String>>,
}

/// How the boot loader chooses the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BootChoice {
    /// The first entry, which is the newest kernel.
    Newest,
    /// A named kernel.
    Named(String),
    /// What it will be cannot be read from files, and why.
    Unknown(String),
}

/// A kernel that can be booted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstalledKernel {
    /// Its release: `6.8.0-60-generic`.
    pub release: String,
    /// Whether `/boot` has its image.
    pub bootable: Reading<bool>,
    /// The driver's module for it.
    pub module: Reading<ModuleOnDisk>,
    /// Whether what is needed to build modules for it is installed.
    pub headers: Reading<bool>,
}

/// A kernel module file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModuleOnDisk {
    /// Where it is.
    pub path: String,
    /// What the file says of itself.
    pub info: Reading<ModuleInfo>,
}

/// What a module file says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModuleInfo {
    /// Its version.
    pub version: Option<String>,
    /// Its licence: `NVIDIA` for the proprietary one, `Dual MIT/GPL` for the open one.
    pub license: Option<String>,
    /// The kernel that it was built for.
    pub vermagic: Option<String>,
    /// Whether a signature is appended.
    pub signed: bool,
}

/// Installed packages and what may replace them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackageObservation {
    /// Of dpkg: the packages of driver, kernel and container toolkit.
    pub dpkg: Reading<Vec<Package>>,
    /// Whether there is an RPM database.
    pub rpm: Reading<bool>,
    /// Unattended upgrades as configured.
    pub unattended: Reading<Unattended>,
    /// Packages that apt's preferences pin to a version.
    pub pins: Reading<Vec<Pin>>,
}

/// A package of dpkg's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its version, as dpkg has it.
    pub version: String,
    /// `installed`, `half-configured`, ...
    pub status: String,
    /// Whether it is held.
    pub held: bool,
}

impl Package {
    /// The upstream version: without epoch and revision.
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
    /// The package, with `*` for any letters.
    pub package: String,
    /// What it is pinned to: `version 580.95.05*`.
    pub pin: String,
    /// How strongly.
    pub priority: i32,
}

/// Unattended upgrades.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unattended {
    /// `APT::Periodic::Unattended-Upgrade` is on.
    pub enabled: bool,
    /// `Unattended-Upgrade::Package-Blacklist`, regular expressions on the beginning of a name.
    pub blacklist: Vec<String>,
}

/// A DKMS tree of the driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DkmsTree {
    /// The version.
    pub version: String,
    /// The kernels that it is built for.
    pub built_for: Vec<String>,
}

/// Whether unsigned modules are refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecureBootObservation {
    /// The firmware's variable; absent on a machine that did not boot by EFI.
    pub enabled: Reading<bool>,
    /// `module.sig_enforce` of the running kernel.
    pub signatures_enforced: Reading<bool>,
}

/// A service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceObservation {
    /// Whether its unit file is there.
    pub unit: Reading<bool>,
    /// Whether it starts at boot.
    pub enabled: Reading<bool>,
    /// Whether it is masked.
    pub masked: Reading<bool>,
    /// Whether it has a process.
    pub running: Reading<bool>,
}

/// Containers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContainerObservation {
    /// Whether a container runtime is on the node.
    pub runtimes: Reading<Vec<String>>,
    /// Whether the toolkit's command is there.
    pub toolkit: Reading<bool>,
    /// CDI specifications, with the driver version that they name.
    pub cdi: Reading<Vec<CdiSpec>>,
    /// Whether this file system is that of a container.
    pub inside: Reading<bool>,
}

/// A CDI specification.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CdiSpec {
    /// Where it is.
    pub path: String,
    /// The version of the libraries that it mounts.
    pub driver: Reading<String>,
}

/// The Python that a job would use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PythonObservation {
    /// Its interpreter.
    pub interpreter: Reading<String>,
    /// The packages of frameworks and of NVIDIA in it.
    pub packages: Reading<Vec<PythonPackage>>,
}

/// A package of Python's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PythonPackage {
    /// Its name, lower case, with dashes.
    pub name: String,
    /// Its version as METADATA has it. Wheels of the Python index have no local part there.
    pub version: String,
    /// The CUDA that torch's own file says it was built with; absent where it says none.
    pub cuda: Reading<String>,
    /// What it requires exactly of NVIDIA's packages: name to version.
    pub pinned: BTreeMap<String, String>,
}
