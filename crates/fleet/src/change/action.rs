//! What the executor does for a decision, and how it can fail.

use std::collections::BTreeMap;
use std::fmt;

use farrier_bundle::BundleId;
use serde::{Deserialize, Serialize};

/// One effect on the node. Each is idempotent: executed again after a crash, it completes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangeAction {
    /// Fetch both bundles, and verify the hash of each file.
    Stage {
        to: BundleId,
        rollback: BundleId,
    },
    /// Simulate the package transactions to `to` and back.
    Rehearse {
        to: BundleId,
        rollback: BundleId,
    },
    /// Build the modules for the running kernel and for the kernel of the next boot.
    BuildModules {
        bundle: BundleId,
    },
    RequestLease,
    ReleaseLease,
    Cordon,
    Uncordon,
    /// Ask the scheduler to end or move the running work.
    Drain,
    /// Read what is restored later: running units, settings, MIG layout, pins and holds.
    SaveNode,
    /// Keep the system's own updater from running.
    PauseUpgrades,
    ResumeUpgrades,
    StopUnits {
        units: Vec<String>,
    },
    StartUnits {
        units: Vec<String>,
    },
    /// Kill the processes that use a GPU. Only with the policy's permission.
    KillHolders {
        pids: Vec<u32>,
    },
    UnloadModules,
    LoadModules,
    /// One package transaction to exactly this bundle, with pins, holds and initramfs.
    Install {
        bundle: BundleId,
    },
    /// Complete an interrupted transaction (`dpkg --configure -a`), or repair the database of
    /// packages (`rpm --rebuilddb`).
    RecoverPackages,
    /// Prepare the reboot: the next boot's kernel, and what is expected after it.
    ArmReboot {
        bundle: BundleId,
    },
    Reboot,
    /// Restore settings and MIG layout, and refresh the CDI specification.
    RestoreSettings,
    Verify {
        bundle: BundleId,
    },
}

/// The kind of an action, without its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ActionCode {
    Stage,
    Rehearse,
    BuildModules,
    RequestLease,
    ReleaseLease,
    Cordon,
    Uncordon,
    Drain,
    SaveNode,
    PauseUpgrades,
    ResumeUpgrades,
    StopUnits,
    StartUnits,
    KillHolders,
    UnloadModules,
    LoadModules,
    Install,
    RecoverPackages,
    ArmReboot,
    Reboot,
    RestoreSettings,
    Verify,
}

impl ActionCode {
    pub fn code(self) -> &'static str {
        match self {
            Self::Stage => "stage",
            Self::Rehearse => "rehearse",
            Self::BuildModules => "build-modules",
            Self::RequestLease => "request-lease",
            Self::ReleaseLease => "release-lease",
            Self::Cordon => "cordon",
            Self::Uncordon => "uncordon",
            Self::Drain => "drain",
            Self::SaveNode => "save-node",
            Self::PauseUpgrades => "pause-upgrades",
            Self::ResumeUpgrades => "resume-upgrades",
            Self::StopUnits => "stop-units",
            Self::StartUnits => "start-units",
            Self::KillHolders => "kill-holders",
            Self::UnloadModules => "unload-modules",
            Self::LoadModules => "load-modules",
            Self::Install => "install",
            Self::RecoverPackages => "recover-packages",
            Self::ArmReboot => "arm-reboot",
            Self::Reboot => "reboot",
            Self::RestoreSettings => "restore-settings",
            Self::Verify => "verify",
        }
    }
}

impl fmt::Display for ActionCode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.code())
    }
}

impl ChangeAction {
    pub fn code(&self) -> ActionCode {
        match self {
            Self::Stage { .. } => ActionCode::Stage,
            Self::Rehearse { .. } => ActionCode::Rehearse,
            Self::BuildModules { .. } => ActionCode::BuildModules,
            Self::RequestLease => ActionCode::RequestLease,
            Self::ReleaseLease => ActionCode::ReleaseLease,
            Self::Cordon => ActionCode::Cordon,
            Self::Uncordon => ActionCode::Uncordon,
            Self::Drain => ActionCode::Drain,
            Self::SaveNode => ActionCode::SaveNode,
            Self::PauseUpgrades => ActionCode::PauseUpgrades,
            Self::ResumeUpgrades => ActionCode::ResumeUpgrades,
            Self::StopUnits { .. } => ActionCode::StopUnits,
            Self::StartUnits { .. } => ActionCode::StartUnits,
            Self::KillHolders { .. } => ActionCode::KillHolders,
            Self::UnloadModules => ActionCode::UnloadModules,
            Self::LoadModules => ActionCode::LoadModules,
            Self::Install { .. } => ActionCode::Install,
            Self::RecoverPackages => ActionCode::RecoverPackages,
            Self::ArmReboot { .. } => ActionCode::ArmReboot,
            Self::Reboot => ActionCode::Reboot,
            Self::RestoreSettings => ActionCode::RestoreSettings,
            Self::Verify { .. } => ActionCode::Verify,
        }
    }
}

/// What the node had before it was quiesced.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedNode {
    /// Units that ran and use the driver, in the order in which they are stopped.
    pub units: Vec<String>,
    /// Settings of the node that a change of the driver can lose.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
}

/// What a completed action found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ActionEvidence {
    Saved(SavedNode),
    /// The kernel that the reboot is expected to start.
    ArmedKernel(String),
    /// Checks that passed.
    Verified {
        checks: Vec<String>,
    },
    /// Anything else worth keeping, such as the plan of a transaction.
    Note(String),
}

/// Why the kernel did not load the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoadFailure {
    /// `ENODEV`
    NoDevice,
    /// `EKEYREJECTED`
    KeyRejected,
    /// `ENOEXEC`, or another version magic
    WrongKernel,
    /// The driver did not initialise a GPU: its GSP firmware, or `WPR2 already up`. A reboot may
    /// help.
    InitFailed,
    Other,
}

/// Why an action failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ActionFailure {
    Network {
        detail: String,
    },
    /// A file does not have the hash in the manifest, or a signature is invalid.
    Tampered {
        file: String,
    },
    /// The rollback bundle cannot be obtained.
    NoWayBack {
        detail: String,
    },
    /// The transaction touches packages outside the bundles.
    DirtyTransaction {
        packages: Vec<String>,
    },
    /// The packages of a bundle cannot be installed together.
    Unsatisfiable {
        detail: String,
    },
    ModuleBuild {
        kernel: String,
        detail: String,
    },
    Scheduler {
        detail: String,
    },
    /// `EBUSY`, and nothing was unloaded.
    ModuleInUse {
        module: String,
    },
    /// Some modules were unloaded, then one was in use.
    PartialUnload {
        module: String,
    },
    /// The program did not end in time. Its effect is unknown.
    Hung {
        program: String,
    },
    PackageLock {
        detail: String,
    },
    PackageManager {
        detail: String,
    },
    DiskFull {
        path: String,
    },
    Load {
        kind: LoadFailure,
        detail: String,
    },
    Unit {
        unit: String,
        detail: String,
    },
    NoModule {
        kernel: String,
    },
    CheckFailed {
        check: String,
        detail: String,
    },
    CheckNotRun {
        check: String,
        detail: String,
    },
    /// The actuator does not support the action on this node.
    Unsupported {
        detail: String,
    },
    Io {
        path: String,
        detail: String,
    },
}
