//! The actuator of a simulated node: an order edits the node's JSON state.

use std::fs::File;
use std::path::Path;

use farrier_agent::orders::{Actuator, ActuatorError, ServiceStatus, Tuner};
use farrier_fleet::health::GpuUuid;
use farrier_sim::fault::{self, Fault, FaultError, HostFault, HostFaultError};
use farrier_sim::{Host, NodeDir, SimState, StoreError};

use crate::commands::simulate::now_unix_ms;

/// Executes orders on a simulated node.
struct SimulatedActuator {
    directory: NodeDir,
    tuner: Tuner,
}

/// The actuator for the simulated node with this root; `None` if no simulated node has this root.
pub(crate) fn from_root(root: &Path, tuner: Tuner) -> Option<Box<dyn Actuator>> {
    let directory = NodeDir::new(root.parent()?);
    directory.node().ok()?;
    Some(Box::new(SimulatedActuator { directory, tuner }))
}

/// Why a simulated node could not be read or changed.
#[derive(Debug, thiserror::Error)]
enum ChangeError {
    #[error("failed to use the simulated node")]
    Store(#[from] StoreError),
    #[error(transparent)]
    Gpu(#[from] FaultError),
    #[error(transparent)]
    Host(#[from] HostFaultError),
    #[error("no GPU `{0}` in the node")]
    NoGpu(GpuUuid),
    #[error("service `{0}` is not running")]
    NoService(String),
}

impl From<ChangeError> for ActuatorError {
    fn from(err: ChangeError) -> Self {
        Self::Simulated(Box::new(err))
    }
}

impl SimulatedActuator {
    fn host(&self) -> Result<Host, ActuatorError> {
        self.directory.host().map_err(|err| ActuatorError::Simulated(Box::new(err)))
    }

    fn change(
        &self,
        change: impl FnOnce(&mut SimState, u64) -> Result<(), ChangeError>,
    ) -> Result<(), ActuatorError> {
        Ok(self.directory.edit(now_unix_ms(), change)?)
    }
}

impl Actuator for SimulatedActuator {
    fn boot(&self) -> Result<String, ActuatorError> {
        Ok(self.host()?.boot_id)
    }

    fn reset_gpu(&self, gpu: &GpuUuid, _alive: File) -> Result<(), ActuatorError> {
        self.change(|state, now| {
            let target = state.gpus.values_mut().find(|candidate| candidate.uuid == gpu.0);
            let target = target.ok_or_else(|| ChangeError::NoGpu(gpu.clone()))?;
            let records = fault::apply(target, &Fault::Reset, now)?;
            state.records.extend(records);
            Ok(())
        })
    }

    /// A reboot ends every process on the node, so this process exits too.
    fn reboot(&self, _alive: File) -> Result<(), ActuatorError> {
        self.change(|state, now| Ok(fault::apply_to_host(state, &HostFault::Reboot, now)?))?;
        tracing::warn!("simulated node rebooted: its agent exits and must be restarted");
        std::process::exit(0);
    }

    fn service(&self, unit: &str) -> Result<ServiceStatus, ActuatorError> {
        let host = self.host()?;
        let task = host.service(unit).ok_or_else(|| ChangeError::NoService(unit.to_owned()))?;
        let run = Some(format!("{}@{}", task.pid, task.started_unix_ms));
        Ok(ServiceStatus { is_active: true, state: "active (running)".to_owned(), run })
    }

    fn restart_service(&self, unit: &str, _alive: File) -> Result<(), ActuatorError> {
        let fault = HostFault::ServiceRestarted(unit.to_owned());
        self.change(|state, now| Ok(fault::apply_to_host(state, &fault, now)?))
    }

    fn tune(&self, profile: &str, alive: File) -> Result<String, ActuatorError> {
        Ok(self.tuner.apply(profile, alive)?)
    }
}
