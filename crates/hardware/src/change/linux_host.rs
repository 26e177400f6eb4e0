//! The modules, services and kernel of this machine.

mod modules;
mod verify;

use std::path::Path;
use std::time::Duration;

use farrier_bundle::{Bundle, BundlePackage, KernelSupport, PackageFormat, PackageRole};
use farrier_facts::node::{BootChoice, InstalledKernel, KernelObservation, ReadError, Reading};
use farrier_fleet::change::{
    ActionEvidence, ActionFailure, BootKernel, ChangeAction, ChangeObservation, ChangeRecord,
    ControllerContact, LeaseStatus, PreflightFailure, SavedNode, UnitStatus,
};
use jiff::Timestamp;

use super::cordon_file::CordonFile;
use super::gpu_holders::{self, OwnedHolder};
use super::host_operations::HostOperations;
use super::local_repository::package_path;
use super::owner::driver_owner;
use super::programs::{ProgramError, Programs, io_failure};
use super::rpm;
use crate::root::Root;
use crate::{driver, kernels, packages, services};

/// Services that use the driver, in the order in which they are stopped.
const UNITS: [&str; 13] = [
    "farrier-agent",
    "dcgm-exporter",
    "nvidia-dcgm-exporter",
    "nvidia-dcgm",
    "nvsm",
    "nvidia-mig-manager",
    "nvidia-cdi-refresh",
    "nvidia-mps",
    "nvidia-persistenced",
    "nvidia-gridd",
    "nvidia-topologyd",
    "nvidia-imex",
    "nvidia-fabricmanager",
];
/// Units that start the package manager.
const UPGRADE_UNITS: [&str; 7] = [
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "unattended-upgrades.service",
    // The timers only: to stop a service of dnf would kill its transaction.
    "dnf-automatic.timer",
    "dnf-automatic-install.timer",
    "dnf5-automatic.timer",
    "packagekit.service",
];
/// Key of the units of [`UPGRADE_UNITS`] that were active, in [`SavedNode::settings`].
const ACTIVE_UPGRADES: &str = "upgrade-units";
const UNIT_LIMIT: Duration = Duration::from_secs(90);
const BUILD_LIMIT: Duration = Duration::from_secs(25 * 60);
/// Folder of a DKMS build that nothing loads.
const BUILD: &str = "/var/lib/farrier-change/build";

/// Operations on this machine.
#[derive(Debug)]
pub struct LinuxHost {
    root: Root,
    programs: Programs,
    cordon: CordonFile,
    format: PackageFormat,
}

impl LinuxHost {
    /// `cordon` is the cordon file of a node without a scheduler, `format` the one of the driver's
    /// packages.
    pub fn new(cordon: &Path, format: PackageFormat) -> Self {
        Self {
            root: Root::unrecorded("/"),
            programs: Programs::default(),
            cordon: CordonFile::new(cordon),
            format,
        }
    }

    fn units(&self) -> Reading<Vec<UnitStatus>> {
        let mut found = Vec::new();
        for unit in UNITS {
            let file = format!("{unit}.service");
            let exists = services::UNIT_DIRS
                .iter()
                .any(|dir| self.root.exists(&format!("{dir}/{file}")) == Reading::Value(true));
            if !exists {
                continue;
            }
            match self.programs.run("systemctl", &["is-active", "--quiet", &file], UNIT_LIMIT) {
                Ok(output) => {
                    let is_running = output.status.success();
                    found.push(UnitStatus { unit: unit.to_owned(), is_running });
                }
                Err(err) => {
                    return Reading::Unreadable(ReadError::unavailable(err.to_string()));
                }
            }
        }
        Reading::Value(found)
    }

    /// Services that have to run after a change, with those that run.
    fn start(&self, units: &[String]) -> Result<(), ActionFailure> {
        for unit in units.iter().rev() {
            self.systemctl("start", unit)?;
        }
        Ok(())
    }

    fn systemctl(&self, verb: &str, unit: &str) -> Result<(), ActionFailure> {
        let name = if unit.contains('.') { unit.to_owned() } else { format!("{unit}.service") };
        match self.programs.output("systemctl", &[verb, &name], UNIT_LIMIT) {
            Ok(_) => Ok(()),
            Err(ProgramError::Failed { message, .. }) => {
                Err(ActionFailure::Unit { unit: unit.to_owned(), detail: message })
            }
            Err(err) => Err(err.into_failure()),
        }
    }

    /// Units of the package manager that are installed.
    fn upgrade_units(&self) -> Vec<&'static str> {
        let is_installed = |unit: &str| {
            services::UNIT_DIRS
                .iter()
                .any(|dir| self.root.exists(&format!("{dir}/{unit}")) == Reading::Value(true))
        };
        UPGRADE_UNITS.into_iter().filter(|unit| is_installed(unit)).collect()
    }

    /// Stops the units, and keeps them from being started until the next boot.
    fn pause_upgrades(&self) -> Result<(), ActionFailure> {
        for unit in self.upgrade_units() {
            self.programs
                .output("systemctl", &["mask", "--runtime", "--now", unit], UNIT_LIMIT)
                .map_err(ProgramError::into_failure)?;
        }
        Ok(())
    }

    /// Allows the units again, and starts those that were active before.
    fn resume_upgrades(&self, saved: Option<&SavedNode>) -> Result<(), ActionFailure> {
        for unit in self.upgrade_units() {
            self.programs
                .output("systemctl", &["unmask", "--runtime", unit], UNIT_LIMIT)
                .map_err(ProgramError::into_failure)?;
        }
        let active = saved.and_then(|saved| saved.settings.get(ACTIVE_UPGRADES));
        for unit in active.into_iter().flat_map(|units| units.split_whitespace()) {
            self.systemctl("start", unit)?;
        }
        Ok(())
    }

    fn fabric_manager(&self) -> Reading<String> {
        match self.format {
            PackageFormat::Rpm => rpm::fabric_manager(&self.programs),
            PackageFormat::Deb => packages::read(&self.root).dpkg.and_then(|packages| {
                packages
                    .iter()
                    .find(|package| package.name.starts_with("nvidia-fabricmanager"))
                    .map_or(Reading::Absent, |package| {
                        Reading::Value(package.upstream().to_owned())
                    })
            }),
        }
    }

    fn kill(&self, pids: &[u32]) -> Result<(), ActionFailure> {
        for pid in pids {
            let pid = pid.to_string();
            self.programs
                .run("kill", &["-KILL", &pid], UNIT_LIMIT)
                .map_err(ProgramError::into_failure)?;
        }
        Ok(())
    }

    /// The kernels that must have a module: the running one and that of the next boot.
    fn kernels(&self) -> Result<Vec<String>, ActionFailure> {
        let kernels = kernels::read(&self.root);
        let unknown = |kernel: &str| ActionFailure::NoModule { kernel: kernel.to_owned() };
        let running = kernels.running.value().cloned().ok_or_else(|| unknown("unknown"))?;
        let next = next_boot(&kernels);
        let next = next.value().map(|kernel| kernel.release.clone());
        let mut releases = vec![running];
        releases.extend(next.filter(|next| *next != releases[0]));
        Ok(releases)
    }

    /// Builds the modules where nothing loads them, so that a failure shows before the drain.
    fn build_modules(&self, bundle: &Bundle) -> Result<(), ActionFailure> {
        let releases = self.kernels()?;
        if let KernelSupport::Prebuilt(supported) = &bundle.kernels {
            return match releases.into_iter().find(|release| !supported.contains(release)) {
                Some(kernel) => Err(ActionFailure::NoModule { kernel }),
                None => Ok(()),
            };
        }
        let failed = |err: std::io::Error| io_failure(BUILD, &err);
        match std::fs::remove_dir_all(BUILD) {
            Err(err) if err.kind() != std::io::ErrorKind::NotFound => return Err(failed(err)),
            _ => {}
        }
        std::fs::create_dir_all(format!("{BUILD}/tree")).map_err(failed)?;
        for package in bundle.with_role(PackageRole::KernelModuleSource) {
            self.unpack(package)?;
        }
        let sources = format!("{BUILD}/root/usr/src");
        for entry in std::fs::read_dir(&sources).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
            let Some((module, version)) = name.rsplit_once('-') else { continue };
            for release in &releases {
                self.build(&sources, module, version, release)?;
            }
        }
        std::fs::remove_dir_all(BUILD).map_err(failed)
    }

    fn unpack(&self, package: &BundlePackage) -> Result<(), ActionFailure> {
        let folder = format!("{BUILD}/root");
        let unpacked = match self.format {
            PackageFormat::Deb => {
                let path = package_path(PackageFormat::Deb, package);
                let args = ["--extract", &path, &folder];
                self.programs.output("dpkg-deb", &args, BUILD_LIMIT).map(drop)
            }
            PackageFormat::Rpm => rpm::extract(&self.programs, package, &folder, BUILD_LIMIT),
        };
        unpacked.map_err(ProgramError::into_failure)
    }

    fn build(
        &self,
        sources: &str,
        module: &str,
        version: &str,
        kernel: &str,
    ) -> Result<(), ActionFailure> {
        let tree = format!("{BUILD}/tree");
        let args = [
            "build",
            "-m",
            module,
            "-v",
            version,
            "-k",
            kernel,
            "--sourcetree",
            sources,
            "--dkmstree",
            &tree,
        ];
        match self.programs.output("dkms", &args, BUILD_LIMIT) {
            Ok(_) => Ok(()),
            Err(ProgramError::Failed { message, .. }) => {
                Err(ActionFailure::ModuleBuild { kernel: kernel.to_owned(), detail: message })
            }
            Err(err) => Err(err.into_failure()),
        }
    }

    fn save(&self) -> Result<SavedNode, ActionFailure> {
        let Reading::Value(units) = self.units() else {
            let detail = "the state of the services cannot be read".to_owned();
            return Err(ActionFailure::Io { path: "systemctl".to_owned(), detail });
        };
        let running = units.into_iter().filter(|unit| unit.is_running);
        let mut settings = verify::fingerprint(&self.root);
        if let Reading::Value(modules) = modules::loaded(&self.root) {
            settings.insert(modules::KEY.to_owned(), modules.join(" "));
        }
        let is_active = |unit: &&str| {
            let asked = self.programs.run("systemctl", &["is-active", "--quiet", unit], UNIT_LIMIT);
            asked.is_ok_and(|output| output.status.success())
        };
        let active: Vec<&str> = self.upgrade_units().into_iter().filter(is_active).collect();
        settings.insert(ACTIVE_UPGRADES.to_owned(), active.join(" "));
        Ok(SavedNode { units: running.map(|unit| unit.unit).collect(), settings })
    }
}

impl HostOperations for LinuxHost {
    fn observe(&mut self, record: &ChangeRecord, observation: &mut ChangeObservation) {
        let root = &self.root;
        let driver = driver::read(root);
        let kernels = kernels::read(root);
        observation.boot = root.trimmed("/proc/sys/kernel/random/boot_id");
        observation.loaded = driver.loaded;
        observation.modules = modules::loaded(root);
        observation.on_disk = running_module(&kernels);
        observation.running_kernel = kernels.running.clone();
        observation.boot_kernel = next_boot(&kernels);
        observation.library = driver.libraries.and_then(|libraries| {
            // The first that differs from the others shows that they are mixed.
            let mut versions = libraries.into_iter().map(|library| library.version);
            let Some(first) = versions.next() else { return Reading::Absent };
            versions.find(|version| *version != first).unwrap_or(first)
        });
        observation.fabric_manager = self.fabric_manager();
        observation.cordon = self.cordon.mark(record);
        let holders = gpu_holders::holders(root);
        let is_work = |owned: &OwnedHolder| {
            !owned.unit.as_ref().is_some_and(|unit| UNITS.contains(&unit.as_str()))
        };
        observation.workloads = holders.as_ref().map(|holders| {
            let work = holders.iter().filter(|owned| is_work(owned));
            work.map(|owned| owned.holder.to_string()).collect()
        });
        observation.holders =
            holders.map(|holders| holders.into_iter().map(|owned| owned.holder).collect());
        observation.units = self.units();
        // A person on the node needs no lease.
        observation.lease = LeaseStatus::Valid { until: Timestamp::MAX };
        observation.controller = ControllerContact::Present;
        observation.regression = verify::regression(root, record.saved.as_ref());
    }

    fn preflight(&mut self, to: &Bundle) -> Reading<Vec<PreflightFailure>> {
        let mut failures = Vec::new();
        match driver_owner(&self.root) {
            Reading::Value(owner) => failures.push(owner),
            Reading::Absent => {}
            Reading::Unreadable(why) => return Reading::Unreadable(why),
        }
        if let KernelSupport::Prebuilt(supported) = &to.kernels {
            match self.kernels() {
                Ok(releases) => failures.extend(
                    releases
                        .into_iter()
                        .filter(|release| !supported.contains(release))
                        .map(|kernel| PreflightFailure::UnsupportedKernel { kernel }),
                ),
                Err(err) => {
                    return Reading::Unreadable(ReadError::unavailable(err.to_string()));
                }
            }
        }
        Reading::Value(failures)
    }

    fn act(
        &mut self,
        record: &ChangeRecord,
        action: &ChangeAction,
        bundle: Option<&Bundle>,
    ) -> Result<Option<ActionEvidence>, ActionFailure> {
        let scheduler = |err: std::io::Error| ActionFailure::Scheduler { detail: err.to_string() };
        match action {
            ChangeAction::Cordon => self.cordon.cordon(record).map_err(scheduler)?,
            ChangeAction::Uncordon => self.cordon.uncordon(record).map_err(scheduler)?,
            ChangeAction::SaveNode => return Ok(Some(ActionEvidence::Saved(self.save()?))),
            ChangeAction::PauseUpgrades => self.pause_upgrades()?,
            ChangeAction::ResumeUpgrades => self.resume_upgrades(record.saved.as_ref())?,
            ChangeAction::StopUnits { units } => {
                for unit in units {
                    self.systemctl("stop", unit)?;
                }
            }
            ChangeAction::StartUnits { units } => self.start(units)?,
            ChangeAction::KillHolders { pids } => self.kill(pids)?,
            ChangeAction::UnloadModules => modules::unload(&self.root, &self.programs)?,
            ChangeAction::LoadModules => {
                modules::load(&self.programs, record.saved.as_ref())?;
            }
            ChangeAction::BuildModules { .. } => {
                let bundle = bundle.ok_or_else(missing_bundle)?;
                self.build_modules(bundle)?;
            }
            ChangeAction::ArmReboot { .. } => {
                let kernels = kernels::read(&self.root);
                let next = next_boot(&kernels);
                let kernel = next.value().map(|kernel| kernel.release.clone());
                let unknown = || ActionFailure::NoModule { kernel: "unknown".to_owned() };
                return Ok(Some(ActionEvidence::ArmedKernel(kernel.ok_or_else(unknown)?)));
            }
            ChangeAction::Reboot => {
                self.programs
                    .output("systemctl", &["reboot"], UNIT_LIMIT)
                    .map_err(ProgramError::into_failure)?;
            }
            ChangeAction::RestoreSettings => {
                verify::restore(&self.root, &self.programs)?;
            }
            ChangeAction::Verify { .. } => {
                let checks = verify::verify(&self.root, record.saved.as_ref())?;
                return Ok(Some(ActionEvidence::Verified { checks }));
            }
            // Without a scheduler, work is not moved: it ends on its own. There is no lease
            // without a server.
            ChangeAction::Drain | ChangeAction::RequestLease | ChangeAction::ReleaseLease => {}
            ChangeAction::Stage { .. }
            | ChangeAction::Rehearse { .. }
            | ChangeAction::Install { .. }
            | ChangeAction::RecoverPackages => {
                let detail = "not an operation of the host".to_owned();
                return Err(ActionFailure::Unsupported { detail });
            }
        }
        Ok(None)
    }
}

fn missing_bundle() -> ActionFailure {
    ActionFailure::Unsupported { detail: "the action needs a bundle".to_owned() }
}

/// The version of a kernel's module.
fn module_version(kernel: &InstalledKernel) -> Reading<String> {
    kernel.module.clone().and_then(|module| {
        module.info.and_then(|info| info.version.map_or(Reading::Absent, Reading::Value))
    })
}

fn running_module(kernels: &KernelObservation) -> Reading<String> {
    kernels.running.clone().and_then(|running| {
        kernels.installed.clone().and_then(|installed| {
            installed
                .iter()
                .find(|kernel| kernel.release == running)
                .map_or(Reading::Absent, module_version)
        })
    })
}

/// The kernel that the next boot starts.
fn next_boot(kernels: &KernelObservation) -> Reading<BootKernel> {
    let unknown = |why: &str| Reading::Unreadable(ReadError::unavailable(why.to_owned()));
    kernels.installed.clone().and_then(|installed| {
        let chosen = match &kernels.boot_choice {
            BootChoice::Newest => {
                installed.iter().rev().find(|kernel| kernel.bootable == Reading::Value(true))
            }
            BootChoice::Named(release) => {
                installed.iter().find(|kernel| kernel.release == *release)
            }
            BootChoice::Unknown(why) => return unknown(why),
        };
        match chosen {
            Some(kernel) => Reading::Value(BootKernel {
                release: kernel.release.clone(),
                module: module_version(kernel),
            }),
            None => unknown("no installed kernel is the one that the boot loader starts"),
        }
    })
}
