//! Modules, services and boots of a chroot. The versions on disk are those that packages installed.

use std::cell::RefCell;
use std::fs;
use std::path::PathBuf;
use std::rc::Rc;

use farrier_bundle::Bundle;
use farrier_facts::node::{ReadError, Reading};
use farrier_fleet::change::{
    ActionEvidence, ActionFailure, BootKernel, ChangeAction, ChangeObservation, ChangeRecord,
    ControllerContact, CordonMark, LeaseStatus, PreflightFailure, SavedNode, UnitStatus,
};
use farrier_hardware::change::HostOperations;
use jiff::Timestamp;

const UNIT: &str = "nvidia-persistenced";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1";

/// What survives a kill of the process.
#[derive(Debug)]
pub(crate) struct HostState {
    pub(crate) root: PathBuf,
    pub(crate) loaded: Option<String>,
    pub(crate) is_running: bool,
    pub(crate) cordon: CordonMark,
    pub(crate) boot: u32,
    /// Verification of this version fails.
    pub(crate) broken: Option<String>,
    /// The node was schedulable while its parts disagreed.
    pub(crate) was_exposed: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct SimulatedHost(pub(crate) Rc<RefCell<HostState>>);

impl HostState {
    pub(crate) fn new(root: PathBuf) -> Self {
        let mut state = Self {
            root,
            loaded: None,
            is_running: true,
            cordon: CordonMark::None,
            boot: 1,
            broken: None,
            was_exposed: false,
        };
        state.loaded = state.file("module").value().cloned();
        state
    }

    fn file(&self, name: &str) -> Reading<String> {
        match fs::read_to_string(self.root.join("usr/lib/nvidia-test").join(name)) {
            Ok(text) => Reading::Value(text),
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => Reading::Absent,
            Err(err) => Reading::Unreadable(ReadError::from(&err)),
        }
    }

    fn library(&self) -> Reading<String> {
        let Ok(target) = fs::read_link(self.root.join(LIBRARIES)) else { return Reading::Absent };
        let name = target.to_string_lossy().into_owned();
        name.strip_prefix("libnvidia-ml.so.")
            .map_or(Reading::Absent, |version| Reading::Value(version.to_owned()))
    }

    pub(crate) fn is_coherent(&self) -> bool {
        let loaded = self.loaded.clone().map_or(Reading::Absent, Reading::Value);
        let parts =
            [self.library(), self.file("module"), self.file("fabric"), self.file("persistenced")];
        self.loaded.is_some() && parts.iter().all(|part| *part == loaded)
    }

    fn check(&mut self) {
        self.was_exposed |= self.cordon == CordonMark::None && !self.is_coherent();
    }
}

impl HostOperations for SimulatedHost {
    fn observe(&mut self, _record: &ChangeRecord, observation: &mut ChangeObservation) {
        let mut state = self.0.borrow_mut();
        state.check();
        let modules = state.loaded.iter().map(|_| "nvidia".to_owned()).collect();
        observation.boot = Reading::Value(format!("boot-{}", state.boot));
        observation.loaded = state.loaded.clone().map_or(Reading::Absent, Reading::Value);
        observation.modules = Reading::Value(modules);
        observation.on_disk = state.file("module");
        observation.running_kernel = Reading::Value("6.1.0".to_owned());
        observation.boot_kernel = Reading::Value(BootKernel {
            release: "6.1.0".to_owned(),
            module: state.file("module"),
        });
        observation.library = state.library();
        observation.fabric_manager = state.file("fabric");
        observation.cordon = Reading::Value(state.cordon.clone());
        observation.workloads = Reading::Value(Vec::new());
        observation.holders = Reading::Value(Vec::new());
        let (unit, is_running) = (UNIT.to_owned(), state.is_running);
        observation.units = Reading::Value(vec![UnitStatus { unit, is_running }]);
        observation.lease = LeaseStatus::Valid { until: Timestamp::MAX };
        observation.controller = ControllerContact::Present;
        observation.regression = Reading::Absent;
    }

    fn preflight(&mut self, _to: &Bundle) -> Reading<Vec<PreflightFailure>> {
        Reading::Value(Vec::new())
    }

    fn act(
        &mut self,
        _record: &ChangeRecord,
        action: &ChangeAction,
        bundle: Option<&Bundle>,
    ) -> Result<Option<ActionEvidence>, ActionFailure> {
        let mut state = self.0.borrow_mut();
        match action {
            ChangeAction::Cordon => state.cordon = CordonMark::ThisChange,
            ChangeAction::Uncordon => state.cordon = CordonMark::None,
            ChangeAction::StopUnits { .. } => state.is_running = false,
            ChangeAction::StartUnits { .. } => state.is_running = true,
            ChangeAction::UnloadModules => {
                assert!(!state.is_running);
                state.loaded = None;
            }
            ChangeAction::LoadModules => state.loaded = state.file("module").value().cloned(),
            ChangeAction::SaveNode => {
                let saved = SavedNode { units: vec![UNIT.to_owned()], ..SavedNode::default() };
                return Ok(Some(ActionEvidence::Saved(saved)));
            }
            ChangeAction::ArmReboot { .. } => {
                return Ok(Some(ActionEvidence::ArmedKernel("6.1.0".to_owned())));
            }
            ChangeAction::Verify { .. } => {
                let driver = bundle.unwrap().driver.to_string();
                let check = "gemm".to_owned();
                if state.broken.as_ref() == Some(&driver) {
                    return Err(ActionFailure::CheckFailed { check, detail: "slow".to_owned() });
                }
                assert!(state.is_coherent());
            }
            _ => {}
        }
        state.check();
        Ok(None)
    }
}
