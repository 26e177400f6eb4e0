//! A node with packages, modules, services and a scheduler. It knows nothing of the state machine.

use farrier_bundle::BundleId;
use farrier_facts::node::Reading;
use farrier_fleet::change::{
    ActionEvidence, ActionFailure, BootKernel, BundleRef, ChangeAction, ChangeObservation,
    ChangeRequest, ControllerContact, CordonMark, GpuHolder, InstalledClosure, LeaseStatus,
    PreflightFailure, SavedNode, UnitStatus,
};
use jiff::{SignedDuration, Timestamp};

pub(crate) const UNITS: [&str; 2] = ["nvidia-persistenced", "nvidia-dcgm"];
const LEASE_S: i64 = 6 * 3600;

/// One indivisible effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    StageTo,
    StageRollback,
    GrantLease,
    DropLease,
    Cordon,
    Uncordon,
    EndWork,
    PauseUpgrades,
    ResumeUpgrades,
    StopUnit(String),
    StartUnit(String),
    KillHolders,
    UnloadUvm,
    UnloadDriver,
    LoadDriver,
    LoadUvm,
    Unpack(BundleId),
    ReplaceModule(BundleId),
    Configure(BundleId),
    Complete(BundleId),
    /// Pins and holds, after the transaction.
    Pin(BundleId),
    Arm,
    Reboot,
    Restore,
}

#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts of a node")]
pub(crate) struct TestNode {
    pub(crate) request: ChangeRequest,
    pub(crate) closure: InstalledClosure,
    /// The bundle of an interrupted transaction, and whether its last package is unpacked.
    unpacked: Option<(BundleId, bool)>,
    pub(crate) library: String,
    pub(crate) fabric_manager: String,
    pub(crate) on_disk: String,
    pub(crate) loaded: Option<String>,
    uvm_loaded: bool,
    running: Vec<String>,
    pub(crate) cordon: CordonMark,
    pub(crate) workloads: Vec<String>,
    /// Whether a drain ends the work.
    pub(crate) drains: bool,
    pub(crate) holders: Vec<GpuHolder>,
    /// Whether holders survive a kill.
    pub(crate) holders_stay: bool,
    pub(crate) boot: u32,
    pub(crate) target_staged: bool,
    pub(crate) rollback_staged: bool,
    pub(crate) lease: LeaseStatus,
    pub(crate) controller: ControllerContact,
    pub(crate) settings_restored: bool,
    pub(crate) upgrades_paused: bool,
    pub(crate) preflight: Vec<PreflightFailure>,
    pub(crate) regression: Option<String>,
    /// Verification of this driver version fails.
    pub(crate) broken: Option<String>,
    /// Loading the modules of this driver version fails until a reboot.
    pub(crate) fails_to_load: Option<String>,
    /// Observations in which another program holds the package manager's lock.
    pub(crate) lock_held: u32,
    /// Observations of which every read fails.
    pub(crate) blind: u32,
}

impl TestNode {
    pub(crate) fn new(request: ChangeRequest) -> Self {
        let driver = request.from.driver.clone();
        Self {
            closure: InstalledClosure::Equals(request.from.id),
            unpacked: None,
            library: driver.clone(),
            fabric_manager: driver.clone(),
            on_disk: driver.clone(),
            loaded: Some(driver),
            uvm_loaded: true,
            running: UNITS.map(str::to_owned).into(),
            cordon: CordonMark::None,
            workloads: vec!["job 17".to_owned()],
            drains: true,
            holders: Vec::new(),
            holders_stay: false,
            boot: 1,
            target_staged: false,
            rollback_staged: false,
            lease: LeaseStatus::None,
            controller: ControllerContact::Present,
            settings_restored: true,
            upgrades_paused: false,
            preflight: Vec::new(),
            regression: None,
            broken: None,
            fails_to_load: None,
            lock_held: 0,
            blind: 0,
            request,
        }
    }

    fn bundle(&self, id: &BundleId) -> &BundleRef {
        if *id == self.request.to.id { &self.request.to } else { &self.request.rollback }
    }

    pub(crate) fn boot_id(&self) -> String {
        format!("boot-{}", self.boot)
    }

    /// Whether packages, modules and libraries agree, and the services run.
    pub(crate) fn is_fit_for_work(&self) -> bool {
        let InstalledClosure::Equals(id) = &self.closure else { return false };
        let driver = &self.bundle(id).driver;
        let versions = [&self.library, &self.fabric_manager, &self.on_disk];
        versions.iter().all(|version| *version == driver)
            && self.loaded.as_ref() == Some(driver)
            && self.uvm_loaded
            && self.running.len() == UNITS.len()
    }

    pub(crate) fn observe(&mut self, now: Timestamp) -> ChangeObservation {
        if let LeaseStatus::Valid { until } = self.lease
            && until <= now
        {
            self.lease = LeaseStatus::Expired;
        }
        if self.blind > 0 {
            self.blind -= 1;
            let controller = self.controller;
            let lease = self.lease.clone();
            return ChangeObservation { controller, lease, ..ChangeObservation::unknown() };
        }
        let is_lock_free = self.lock_held == 0;
        self.lock_held = self.lock_held.saturating_sub(1);
        let optional =
            |value: &Option<String>| value.clone().map_or(Reading::Absent, Reading::Value);
        let mut modules = Vec::new();
        modules.extend(self.uvm_loaded.then(|| "nvidia_uvm".to_owned()));
        modules.extend(self.loaded.is_some().then(|| "nvidia".to_owned()));
        ChangeObservation {
            boot: Reading::Value(self.boot_id()),
            closure: Reading::Value(self.closure.clone()),
            loaded: optional(&self.loaded),
            modules: Reading::Value(modules),
            on_disk: Reading::Value(self.on_disk.clone()),
            running_kernel: Reading::Value("6.8.0-60".to_owned()),
            boot_kernel: Reading::Value(BootKernel {
                release: "6.8.0-60".to_owned(),
                module: Reading::Value(self.on_disk.clone()),
            }),
            library: Reading::Value(self.library.clone()),
            fabric_manager: Reading::Value(self.fabric_manager.clone()),
            cordon: Reading::Value(self.cordon.clone()),
            workloads: Reading::Value(self.workloads.clone()),
            holders: Reading::Value(self.holders.clone()),
            units: Reading::Value(
                UNITS
                    .iter()
                    .map(|unit| UnitStatus {
                        unit: (*unit).to_owned(),
                        is_running: self.running.contains(&(*unit).to_owned()),
                    })
                    .collect(),
            ),
            target_staged: Reading::Value(self.target_staged),
            rollback_staged: Reading::Value(self.rollback_staged),
            package_lock_free: Reading::Value(is_lock_free),
            preflight: Reading::Value(self.preflight.clone()),
            lease: self.lease.clone(),
            controller: self.controller,
            regression: optional(&self.regression),
        }
    }

    /// The effects of an action, in order.
    pub(crate) fn effects(&self, action: &ChangeAction) -> Vec<Effect> {
        match action {
            ChangeAction::Stage { .. } => vec![Effect::StageTo, Effect::StageRollback],
            ChangeAction::RequestLease => vec![Effect::GrantLease],
            ChangeAction::ReleaseLease => vec![Effect::DropLease],
            ChangeAction::Cordon => vec![Effect::Cordon],
            ChangeAction::Uncordon => vec![Effect::Uncordon],
            ChangeAction::Drain => vec![Effect::EndWork],
            ChangeAction::PauseUpgrades => vec![Effect::PauseUpgrades],
            ChangeAction::ResumeUpgrades => vec![Effect::ResumeUpgrades],
            ChangeAction::StopUnits { units } => {
                units.iter().cloned().map(Effect::StopUnit).collect()
            }
            ChangeAction::StartUnits { units } => {
                units.iter().cloned().map(Effect::StartUnit).collect()
            }
            ChangeAction::KillHolders { .. } => vec![Effect::KillHolders],
            ChangeAction::UnloadModules => vec![Effect::UnloadUvm, Effect::UnloadDriver],
            ChangeAction::LoadModules => vec![Effect::LoadDriver, Effect::LoadUvm],
            ChangeAction::Install { bundle }
                if self.closure == InstalledClosure::Unpinned(*bundle) =>
            {
                vec![Effect::Pin(*bundle)]
            }
            ChangeAction::Install { bundle } => vec![
                Effect::Unpack(*bundle),
                Effect::ReplaceModule(*bundle),
                Effect::Configure(*bundle),
                Effect::Complete(*bundle),
                Effect::Pin(*bundle),
            ],
            ChangeAction::RecoverPackages => match &self.unpacked {
                Some((bundle, true)) => vec![Effect::Complete(*bundle)],
                _ => vec![],
            },
            ChangeAction::ArmReboot { .. } => vec![Effect::Arm],
            ChangeAction::Reboot => vec![Effect::Reboot],
            ChangeAction::RestoreSettings => vec![Effect::Restore],
            ChangeAction::Rehearse { .. }
            | ChangeAction::BuildModules { .. }
            | ChangeAction::SaveNode
            | ChangeAction::Verify { .. } => vec![],
        }
    }

    pub(crate) fn apply(&mut self, effect: &Effect, now: Timestamp) {
        match effect {
            Effect::StageTo => self.target_staged = true,
            Effect::StageRollback => self.rollback_staged = true,
            Effect::GrantLease => {
                if self.controller == ControllerContact::Present {
                    let until = now + SignedDuration::from_secs(LEASE_S);
                    self.lease = LeaseStatus::Valid { until };
                }
            }
            Effect::DropLease => self.lease = LeaseStatus::None,
            Effect::Cordon => {
                if self.cordon == CordonMark::None {
                    self.cordon = CordonMark::ThisChange;
                }
            }
            Effect::Uncordon => self.cordon = CordonMark::None,
            Effect::EndWork if self.drains => self.workloads.clear(),
            Effect::PauseUpgrades => self.upgrades_paused = true,
            Effect::ResumeUpgrades => self.upgrades_paused = false,
            Effect::StopUnit(unit) => self.running.retain(|running| running != unit),
            Effect::StartUnit(unit) => {
                if self.loaded.is_some() && !self.running.contains(unit) {
                    self.running.push(unit.clone());
                }
            }
            Effect::KillHolders if !self.holders_stay => self.holders.clear(),
            Effect::EndWork | Effect::KillHolders | Effect::Arm => {}
            Effect::UnloadUvm => self.uvm_loaded = false,
            Effect::UnloadDriver => {
                assert!(self.running.is_empty(), "the driver is unloaded under a service");
                self.loaded = None;
            }
            Effect::LoadDriver => {
                self.loaded.get_or_insert(self.on_disk.clone());
            }
            Effect::LoadUvm => self.uvm_loaded = true,
            Effect::Unpack(id) => {
                self.library = self.bundle(id).driver.clone();
                self.unpacked = Some((*id, false));
                self.closure = InstalledClosure::HalfConfigured { packages: vec!["x".to_owned()] };
            }
            Effect::ReplaceModule(id) => {
                self.on_disk = self.bundle(id).driver.clone();
            }
            Effect::Configure(id) => {
                self.fabric_manager = self.bundle(id).driver.clone();
                self.unpacked = Some((*id, true));
            }
            Effect::Complete(id) => {
                self.closure = InstalledClosure::Unpinned(*id);
                self.unpacked = None;
            }
            Effect::Pin(id) => self.closure = InstalledClosure::Equals(*id),
            Effect::Reboot => self.reboot(),
            Effect::Restore => self.settings_restored = true,
        }
    }

    /// What `dpkg --configure -a` leaves if packages of the transaction were not unpacked.
    pub(crate) fn recover(&mut self) {
        if let Some((_, false)) = self.unpacked.take() {
            self.closure = InstalledClosure::Mixed { packages: vec!["x".to_owned()] };
        }
    }

    pub(crate) fn reboot(&mut self) {
        self.boot += 1;
        self.loaded = Some(self.on_disk.clone());
        self.uvm_loaded = true;
        self.running = UNITS.map(str::to_owned).into();
        self.holders.clear();
        self.workloads.clear();
        self.fails_to_load = None;
        self.settings_restored = false;
    }

    /// The result that follows from the node's own condition.
    pub(crate) fn result(
        &self,
        action: &ChangeAction,
    ) -> Result<Option<ActionEvidence>, ActionFailure> {
        match action {
            ChangeAction::SaveNode => Ok(Some(ActionEvidence::Saved(SavedNode {
                units: UNITS.map(str::to_owned).into(),
                ..SavedNode::default()
            }))),
            ChangeAction::ArmReboot { .. } => {
                Ok(Some(ActionEvidence::ArmedKernel("6.8.0-60".to_owned())))
            }
            ChangeAction::Verify { bundle } => {
                let driver = &self.bundle(bundle).driver;
                let check = "gemm".to_owned();
                if self.broken.as_ref() == Some(driver) {
                    return Err(ActionFailure::CheckFailed { check, detail: "slow".to_owned() });
                }
                if !self.is_fit_for_work() {
                    return Err(ActionFailure::CheckFailed { check, detail: "skew".to_owned() });
                }
                Ok(Some(ActionEvidence::Verified { checks: vec![check] }))
            }
            _ => Ok(None),
        }
    }

    /// Whether the node refuses to load its driver.
    pub(crate) fn refuses_to_load(&self) -> bool {
        self.fails_to_load.as_ref() == Some(&self.on_disk)
    }
}
