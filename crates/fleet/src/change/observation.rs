//! Facts read from the node before each decision.

use farrier_bundle::BundleId;
use farrier_facts::node::{ReadError, Reading};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// What the package database has, compared with the bundles of the change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InstalledClosure {
    /// Exactly the packages of a bundle, with the pins and holds that belong to it.
    Equals(BundleId),
    /// The packages of a bundle without its pins or holds.
    Unpinned(BundleId),
    /// Another set of packages.
    Mixed { packages: Vec<String> },
    /// A transaction was interrupted.
    HalfConfigured { packages: Vec<String> },
}

/// Who cordoned the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CordonMark {
    None,
    /// This change, by its owner mark.
    ThisChange,
    /// Another tool, a person, or another part of Farrier. It is never removed.
    External {
        owner: String,
        reason: String,
    },
}

/// A process that has a file of `/dev/nvidia*` open.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuHolder {
    pub pid: u32,
    pub command: String,
    /// Job, pod, unit or user.
    pub owner: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnitStatus {
    pub unit: String,
    pub is_running: bool,
}

/// A kernel, and the driver module that is installed for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BootKernel {
    pub release: String,
    /// Version of the module for this kernel. Absent if there is none.
    pub module: Reading<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeaseStatus {
    None,
    Valid {
        until: Timestamp,
    },
    Expired,
    /// A request with a higher generation took its place.
    Superseded,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ControllerContact {
    /// A person runs the change on the node, or the controller answers.
    Present,
    Lost,
}

/// Why preflight fails.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PreflightFailure {
    /// The GPU Operator's container, or a similar container, owns the driver.
    DriverContainer,
    /// NVIDIA's `.run` installer owns the driver.
    RunFile,
    /// The operating system is an image that packages cannot change.
    ImageBasedSystem {
        system: String,
    },
    /// Packages are not completely installed (dpkg), or have two versions (rpm).
    DirtyPackageDatabase {
        packages: Vec<String>,
    },
    /// No package manager that the bundle can use.
    NoPackageManager,
    DiskSpace {
        path: String,
        need_bytes: u64,
        free_bytes: u64,
    },
    /// The bundle does not support this kernel.
    UnsupportedKernel {
        kernel: String,
    },
    /// The bundle does not support this GPU.
    UnsupportedGpu {
        device: String,
    },
    /// Signatures are enforced, and the key of the bundle's modules is not enrolled.
    SecureBootKey {
        signer: String,
    },
    /// The bundle needs a reboot, and the policy allows none.
    RebootNotAllowed,
    /// No rollback bundle is available.
    NoWayBack,
    /// The package manager is in use.
    PackageLock {
        holder: String,
    },
    Freeze {
        reason: String,
    },
}

impl PreflightFailure {
    /// Whether the failure passes on its own, so that the change can be tried again later.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::PackageLock { .. } | Self::Freeze { .. })
    }
}

/// Everything that the state machine reads from a node. Unknown never counts as done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeObservation {
    pub boot: Reading<String>,
    pub closure: Reading<InstalledClosure>,
    /// `/sys/module/nvidia/version`. Absent if the driver is not loaded.
    pub loaded: Reading<String>,
    /// Loaded modules of the driver.
    pub modules: Reading<Vec<String>>,
    /// Module on disk for the running kernel.
    pub on_disk: Reading<String>,
    pub running_kernel: Reading<String>,
    /// The kernel of the next boot.
    pub boot_kernel: Reading<BootKernel>,
    /// Version of the user-space library that programs load.
    pub library: Reading<String>,
    /// Absent if there is no fabric manager.
    pub fabric_manager: Reading<String>,
    pub cordon: Reading<CordonMark>,
    /// Jobs or pods that use the node.
    pub workloads: Reading<Vec<String>>,
    pub holders: Reading<Vec<GpuHolder>>,
    /// Installed units that use the driver.
    pub units: Reading<Vec<UnitStatus>>,
    /// Whether the files of the requested bundle are on disk with their hashes.
    pub target_staged: Reading<bool>,
    /// Whether the files of the rollback bundle are on disk with their hashes.
    pub rollback_staged: Reading<bool>,
    pub package_lock_free: Reading<bool>,
    pub preflight: Reading<Vec<PreflightFailure>>,
    pub lease: LeaseStatus,
    pub controller: ControllerContact,
    /// Something got worse since the change, such as an Xid. Absent if nothing did.
    pub regression: Reading<String>,
}

impl ChangeObservation {
    /// An observation in which every read failed.
    pub fn unknown() -> Self {
        fn unread<T>() -> Reading<T> {
            Reading::Unreadable(ReadError::unavailable("not read"))
        }
        Self {
            boot: unread(),
            closure: unread(),
            loaded: unread(),
            modules: unread(),
            on_disk: unread(),
            running_kernel: unread(),
            boot_kernel: unread(),
            library: unread(),
            fabric_manager: unread(),
            cordon: unread(),
            workloads: unread(),
            holders: unread(),
            units: unread(),
            target_staged: unread(),
            rollback_staged: unread(),
            package_lock_free: unread(),
            preflight: unread(),
            lease: LeaseStatus::None,
            controller: ControllerContact::Lost,
            regression: unread(),
        }
    }

    /// Units of `units` that are installed and do not run. `None` if unknown. Another bundle may
    /// have other units.
    pub fn stopped_units(&self, units: &[String]) -> Option<Vec<String>> {
        let seen = self.units.value()?;
        let stopped = seen.iter().filter(|unit| !unit.is_running && units.contains(&unit.unit));
        Some(stopped.map(|unit| unit.unit.clone()).collect())
    }

    /// Names of the running units. `None` if unknown.
    pub fn running_units(&self) -> Option<Vec<String>> {
        let seen = self.units.value()?;
        Some(seen.iter().filter(|unit| unit.is_running).map(|unit| unit.unit.clone()).collect())
    }
}
