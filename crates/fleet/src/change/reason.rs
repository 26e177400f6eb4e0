//! Why a change moved to another state, or waits.

use serde::{Deserialize, Serialize};

use super::action::{ActionCode, ActionFailure};
use super::observation::{GpuHolder, InstalledClosure, PreflightFailure};

/// A fact that a decision needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangeFact {
    Boot,
    Closure,
    LoadedVersion,
    LoadedModules,
    ModuleOnDisk,
    RunningKernel,
    BootKernel,
    Library,
    FabricManager,
    Cordon,
    Workloads,
    Holders,
    Units,
    TargetStaged,
    RollbackStaged,
    PackageLock,
    Preflight,
    Regression,
}

/// A reason as a value. `Display` makes the sentence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangeReason {
    /// The change was accepted.
    Begin,
    /// Facts on the node show that the step is done.
    StepDone,
    /// The requested bundle was installed and verified before the change began.
    AlreadyInstalled,
    /// The node does not have the bundle that the request names.
    Drift {
        found: InstalledClosure,
    },
    /// A fact stayed unknown.
    FactUnknown {
        fact: ChangeFact,
    },
    PreflightFailed {
        failures: Vec<PreflightFailure>,
    },
    ExternalCordon {
        owner: String,
    },
    /// Another program removed the cordon of this change.
    CordonRemoved,
    PackageLockHeld,
    ActionFailed {
        action: ActionCode,
        failure: ActionFailure,
    },
    LeaseLost,
    Superseded,
    Cancelled,
    ControllerLost,
    AwaitingLease,
    AwaitingDrain {
        workloads: Vec<String>,
    },
    DrainTimeout {
        workloads: Vec<String>,
    },
    AwaitingHolders {
        holders: Vec<GpuHolder>,
    },
    HoldersRemain {
        holders: Vec<GpuHolder>,
    },
    /// The step reached its deadline.
    DeadlinePassed,
    /// The next try of a failed action.
    BackOff {
        action: ActionCode,
    },
    /// The bundle or the policy asks for a reboot.
    RebootNeeded,
    /// The rollback bundle is no longer complete on disk.
    RollbackBundleLost,
    TargetBundleLost,
    InstallIncomplete {
        found: InstalledClosure,
    },
    WrongVersion {
        fact: ChangeFact,
        expected: String,
        found: String,
    },
    RebootNotAllowed,
    NoModuleForBootKernel {
        kernel: String,
    },
    WrongKernel {
        expected: String,
        found: String,
    },
    UnexpectedReboot,
    BootLoop {
        boots: u32,
    },
    LoopDetected {
        state_writes: u32,
    },
    /// The verification is repeated, because some faults appear late.
    VerifyAgain {
        passed: u32,
    },
    Watching,
    Regression {
        what: String,
    },
    RollbackRequested,
    Acknowledged,
    /// The previous driver is back.
    RolledBack,
    /// The node could not be returned to the state before the change.
    RestoreFailed,
    ReleasedByPerson {
        by: String,
        reason: String,
    },
}
