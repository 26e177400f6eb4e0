//! The sentences for reasons and failures. No other module writes them.

use std::fmt;

use super::action::{ActionFailure, ChangeAction, LoadFailure};
use super::observation::{GpuHolder, InstalledClosure, PreflightFailure};
use super::reason::{ChangeFact, ChangeReason};

/// Items of a list that a sentence names.
const NAMED_MAX: usize = 4;

fn list<T: fmt::Display>(items: &[T]) -> String {
    let named: Vec<String> = items.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    let more = items.len().saturating_sub(NAMED_MAX);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("{}{more}", named.join(", "))
}

impl fmt::Display for GpuHolder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "PID {} `{}` ({})", self.pid, self.command, self.owner)
    }
}

impl fmt::Display for InstalledClosure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Equals(id) => write!(formatter, "bundle {}", id.short()),
            Self::Unpinned(id) => {
                write!(formatter, "bundle {} without its pins", id.short())
            }
            Self::Mixed { packages } => {
                write!(formatter, "packages of no bundle: {}", list(packages))
            }
            Self::HalfConfigured { packages } => {
                write!(formatter, "packages that are not completely installed: {}", list(packages))
            }
        }
    }
}

impl fmt::Display for ChangeFact {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Boot => "boot id",
            Self::Closure => "installed packages",
            Self::LoadedVersion => "version of the loaded driver",
            Self::LoadedModules => "loaded modules",
            Self::ModuleOnDisk => "version of the module on disk",
            Self::RunningKernel => "running kernel",
            Self::BootKernel => "kernel of the next boot and its module",
            Self::Library => "version of the driver library",
            Self::FabricManager => "version of the fabric manager",
            Self::Cordon => "cordon state",
            Self::Workloads => "running work",
            Self::Holders => "processes that use a GPU",
            Self::Units => "state of the services",
            Self::TargetStaged => "files of the requested bundle",
            Self::RollbackStaged => "files of the rollback bundle",
            Self::PackageLock => "lock of the package manager",
            Self::Preflight => "preflight checks",
            Self::Regression => "health since the change",
        })
    }
}

impl fmt::Display for PreflightFailure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DriverContainer => formatter.write_str(
                "a driver container (NVIDIA GPU Operator) owns the driver; change its version in the ClusterPolicy or NVIDIADriver resource",
            ),
            Self::RunFile => formatter.write_str(
                "NVIDIA's .run installer owns the driver; remove it with `nvidia-uninstall` and install the driver from packages",
            ),
            Self::ImageBasedSystem { system } => write!(
                formatter,
                "{system} is an image-based system, which packages cannot change; change the image"
            ),
            Self::DirtyPackageDatabase { packages } => write!(
                formatter,
                "packages are not completely installed: {}; repair them with `dpkg` or `rpm` first",
                list(packages)
            ),
            Self::NoPackageManager => {
                formatter.write_str("the node has no package manager that the bundle supports")
            }
            Self::DiskSpace { path, need_bytes, free_bytes } => write!(
                formatter,
                "`{path}` has {} MiB free; the change needs {} MiB",
                free_bytes >> 20,
                need_bytes >> 20
            ),
            Self::UnsupportedKernel { kernel } => {
                write!(formatter, "the bundle does not support kernel {kernel}")
            }
            Self::UnsupportedGpu { device } => {
                write!(formatter, "the bundle does not support GPU {device}")
            }
            Self::SecureBootKey { signer } => write!(
                formatter,
                "Secure Boot is on, and the key of `{signer}` is not enrolled"
            ),
            Self::RebootNotAllowed => {
                formatter.write_str("the bundle needs a reboot, and the policy allows none")
            }
            Self::NoWayBack => formatter.write_str("there is no bundle to roll back to"),
            Self::PackageLock { holder } => {
                write!(formatter, "the package manager is in use: {holder}")
            }
            Self::Freeze { reason } => write!(formatter, "changes are frozen: {reason}"),
        }
    }
}

impl fmt::Display for ActionFailure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network { detail } => {
                write!(formatter, "the bundle could not be fetched: {detail}")
            }
            Self::Tampered { file } => {
                write!(formatter, "`{file}` is not the file that the bundle names")
            }
            Self::NoWayBack { detail } => {
                write!(formatter, "the rollback bundle is not available: {detail}")
            }
            Self::DirtyTransaction { packages } => write!(
                formatter,
                "the transaction would change packages outside the bundles: {}",
                list(packages)
            ),
            Self::Unsatisfiable { detail } => {
                write!(formatter, "the packages cannot be installed together: {detail}")
            }
            Self::ModuleBuild { kernel, detail } => {
                write!(formatter, "the modules could not be built for {kernel}: {detail}")
            }
            Self::Scheduler { detail } => write!(formatter, "the scheduler refused: {detail}"),
            Self::ModuleInUse { module } => write!(formatter, "module `{module}` is in use"),
            Self::PartialUnload { module } => {
                write!(formatter, "some modules were unloaded, then module `{module}` was in use")
            }
            Self::Hung { program } => write!(formatter, "`{program}` did not end in time"),
            Self::PackageLock { detail } => {
                write!(formatter, "the package manager is in use: {detail}")
            }
            Self::PackageManager { detail } => {
                write!(formatter, "the package manager failed: {detail}")
            }
            Self::DiskFull { path } => write!(formatter, "`{path}` is full"),
            Self::Load { kind, detail } => {
                let kind = match kind {
                    LoadFailure::NoDevice => "no GPU that it supports",
                    LoadFailure::KeyRejected => "the kernel rejects the module's key",
                    LoadFailure::WrongKernel => "the module is for another kernel",
                    LoadFailure::InitFailed => "the driver could not initialise a GPU",
                    LoadFailure::Other => "the kernel did not load the module",
                };
                write!(formatter, "{kind}: {detail}")
            }
            Self::Unit { unit, detail } => write!(formatter, "service `{unit}` failed: {detail}"),
            Self::NoModule { kernel } => write!(formatter, "no module for kernel {kernel}"),
            Self::CheckFailed { check, detail } => {
                write!(formatter, "check `{check}` failed: {detail}")
            }
            Self::CheckNotRun { check, detail } => {
                write!(formatter, "check `{check}` could not run: {detail}")
            }
            Self::Unsupported { detail } => write!(formatter, "not supported here: {detail}"),
            Self::Io { path, detail } => write!(formatter, "`{path}`: {detail}"),
        }
    }
}

impl fmt::Display for ChangeAction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stage { .. } => formatter.write_str("fetch and verify both bundles"),
            Self::Rehearse { .. } => {
                formatter.write_str("simulate the package transactions forward and back")
            }
            Self::BuildModules { .. } => formatter.write_str("build the modules"),
            Self::RequestLease => formatter.write_str("ask for a lease"),
            Self::ReleaseLease => formatter.write_str("return the lease"),
            Self::Cordon => formatter.write_str("cordon the node"),
            Self::Uncordon => formatter.write_str("remove the cordon"),
            Self::Drain => formatter.write_str("drain the node"),
            Self::SaveNode => formatter.write_str("save services and settings"),
            Self::PauseUpgrades => formatter.write_str("pause automatic upgrades"),
            Self::ResumeUpgrades => formatter.write_str("resume automatic upgrades"),
            Self::StopUnits { units } => write!(formatter, "stop {}", list(units)),
            Self::StartUnits { units } => write!(formatter, "start {}", list(units)),
            Self::KillHolders { pids } => write!(formatter, "kill PID {}", list(pids)),
            Self::UnloadModules => formatter.write_str("unload the modules"),
            Self::LoadModules => formatter.write_str("load the modules"),
            Self::Install { bundle } => write!(formatter, "install bundle {}", bundle.short()),
            Self::RecoverPackages => formatter.write_str("complete the interrupted transaction"),
            Self::ArmReboot { .. } => formatter.write_str("prepare the reboot"),
            Self::Reboot => formatter.write_str("reboot"),
            Self::RestoreSettings => formatter.write_str("restore settings"),
            Self::Verify { bundle } => write!(formatter, "verify bundle {}", bundle.short()),
        }
    }
}

impl fmt::Display for ChangeReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begin => formatter.write_str("the change was accepted"),
            Self::StepDone => formatter.write_str("the step is done"),
            Self::AlreadyInstalled => {
                formatter.write_str("the requested bundle was already installed, and verified")
            }
            Self::Drift { found } => {
                write!(
                    formatter,
                    "the node does not have the bundle of the request: it has {found}"
                )
            }
            Self::FactUnknown { fact } => write!(formatter, "the {fact} cannot be read"),
            Self::PreflightFailed { failures } => formatter.write_str(&list(failures)),
            Self::ExternalCordon { owner } => {
                write!(formatter, "`{owner}` has cordoned the node")
            }
            Self::CordonRemoved => {
                formatter.write_str("another program removed the cordon of this change")
            }
            Self::PackageLockHeld => formatter.write_str("the package manager is in use"),
            Self::ActionFailed { action, failure } => write!(formatter, "{action}: {failure}"),
            Self::LeaseLost => formatter.write_str("the lease ended"),
            Self::Superseded => formatter.write_str("a newer request took its place"),
            Self::Cancelled => formatter.write_str("it was cancelled"),
            Self::ControllerLost => formatter.write_str("the controller does not answer"),
            Self::AwaitingLease => formatter.write_str("waiting for a lease"),
            Self::AwaitingDrain { workloads } => {
                write!(formatter, "waiting for running work: {}", list(workloads))
            }
            Self::DrainTimeout { workloads } => {
                write!(formatter, "work still runs: {}", list(workloads))
            }
            Self::AwaitingHolders { holders } => {
                write!(formatter, "waiting for processes that use a GPU: {}", list(holders))
            }
            Self::HoldersRemain { holders } => {
                write!(formatter, "processes still use a GPU: {}", list(holders))
            }
            Self::DeadlinePassed => formatter.write_str("the step took too long"),
            Self::BackOff { action } => write!(formatter, "{action} is tried again"),
            Self::RebootNeeded => formatter.write_str("waiting for the reboot"),
            Self::RollbackBundleLost => {
                formatter.write_str("the rollback bundle is not complete on disk")
            }
            Self::TargetBundleLost => {
                formatter.write_str("the requested bundle is not complete on disk")
            }
            Self::InstallIncomplete { found } => {
                write!(formatter, "the transaction is not complete: the node has {found}")
            }
            Self::WrongVersion { fact, expected, found } if found.is_empty() => {
                write!(formatter, "the {fact} is missing; expected {expected}")
            }
            Self::WrongVersion { fact, expected, found } => {
                write!(formatter, "the {fact} is {found}; expected {expected}")
            }
            Self::RebootNotAllowed => formatter.write_str("the policy allows no reboot"),
            Self::NoModuleForBootKernel { kernel } => write!(
                formatter,
                "kernel {kernel}, which the next boot starts, has no module of the bundle"
            ),
            Self::WrongKernel { expected, found } => {
                write!(formatter, "kernel {found} is running; expected {expected}")
            }
            Self::UnexpectedReboot => formatter.write_str("the node rebooted unexpectedly"),
            Self::BootLoop { boots } => write!(formatter, "the node booted {boots} times"),
            Self::LoopDetected { state_writes } => {
                write!(formatter, "the change is in a loop: {state_writes} state changes")
            }
            Self::VerifyAgain { passed } => {
                write!(formatter, "{passed} verifications passed, waiting for the next")
            }
            Self::Watching => formatter.write_str("watching the node"),
            Self::Regression { what } => write!(formatter, "it got worse: {what}"),
            Self::RollbackRequested => formatter.write_str("a rollback was requested"),
            Self::Acknowledged => formatter.write_str("the controller answered"),
            Self::RolledBack => formatter.write_str("the previous driver is back and verified"),
            Self::RestoreFailed => {
                formatter.write_str("the node could not be returned to its previous state")
            }
            Self::ReleasedByPerson { by, reason } => {
                write!(formatter, "{by} released it: {reason}")
            }
        }
    }
}
