//! The hands of a simulated node: what an order changes there is a change of the node's JSON.

use std::fs::File;
use std::path::Path;

use farrier_agent::orders::{Hands, Service, Tuner};
use farrier_fleet::health::GpuUuid;
use farrier_sim::fault::{self, Fault, FaultError, HostFault, HostFaultError};
use farrier_sim::{NodeDir, State, StoreError};

use crate::commands::simulate::now_unix_ms;

/// The hands of a simulated node.
struct SimulatedHands {
    directory: NodeDir,
    tuner: Tuner,
}

/// The hands of the simulated node with this root; none: it is no simulated node's.
pub(crate) fn of_root(root: &Path, tuner: Tuner) -> Option<Box<dyn Hands>> {
    let directory = NodeDir::at(root.parent()?);
    directory.node().ok()?;
    Some(Box::new(SimulatedHands { directory, tuner }))
}

/// Why a simulated node is not changed.
#[derive(Debug, thiserror::Error)]
enum ChangeError {
    #[error("failed to use the simulated node")]
    Store(#[from] StoreError),
    #[error(transparent)]
    Gpu(#[from] FaultError),
    #[error(transparent)]
    Host(#[from] HostFaultError),
    #[error("there is no GPU `{0}` in the node")]
    NoGpu(GpuUuid),
}

impl SimulatedHands {
    fn change(
        &self,
        change: impl FnOnce(&mut State, u64) -> Result<(), ChangeError>,
    ) -> Result<(), String> {
        self.directory.edit(now_unix_ms(), change).map_err(|err| said(&err))
    }
}

fn said(err: &dyn std::error::Error) -> String {
    farrier_agent::brain::Chain(err).to_string()
}

impl Hands for SimulatedHands {
    fn boot(&self) -> Result<String, String> {
        self.directory.host().map(|host| host.boot_id).map_err(|err| said(&err))
    }

    fn reset_gpu(&self, gpu: &GpuUuid, _alive: File) -> Result<(), String> {
        self.change(|state, now| {
            let own = state.gpus.values_mut().find(|it| it.uuid == gpu.0);
            let own = own.ok_or_else(|| ChangeError::NoGpu(gpu.clone()))?;
            let records = fault::apply(own, &Fault::Reset, now)?;
            state.records.extend(records);
            Ok(())
        })
    }

    /// A reboot is the end of whoever runs on the node, and so of this process.
    fn reboot(&self, _alive: File) -> Result<(), String> {
        self.change(|state, now| Ok(fault::apply_to_host(state, &HostFault::Reboot, now)?))?;
        tracing::warn!(
            "the simulated node was rebooted: its agent ends, and is to be started anew"
        );
        std::process::exit(0);
    }

    fn service(&self, unit: &str) -> Result<Service, String> {
        let host = self.directory.host().map_err(|err| said(&err))?;
        let task = host.service(unit).ok_or_else(|| format!("no service `{unit}` runs"))?;
        let run = Some(format!("{}@{}", task.pid, task.started_unix_ms));
        Ok(Service { is_active: true, state: "active (running)".to_owned(), run })
    }

    fn restart_service(&self, unit: &str, _alive: File) -> Result<(), String> {
        let fault = HostFault::ServiceRestarted(unit.to_owned());
        self.change(|state, now| Ok(fault::apply_to_host(state, &fault, now)?))
    }

    fn tune(&self, profile: &str, alive: File) -> Result<String, String> {
        self.tuner.apply(profile, alive)
    }
}
