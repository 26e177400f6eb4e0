//! SettingsChange that somebody changed.

use crate::gpu::Gpu;

use super::FaultError;

/// SettingsChange, as if an administrator had changed them and reset the GPU. What is not given stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SettingsChange {
    /// The driver stays loaded without clients.
    pub persistence: Option<bool>,
    /// NVML's number: 0 default, 2 prohibited, 3 exclusive process.
    pub compute: Option<u32>,
    /// Memory errors are put right.
    pub ecc: Option<bool>,
    /// The GPU is partitioned.
    pub mig: Option<bool>,
    /// Graphics clock that applications asked for.
    pub application_graphics_mhz: Option<u32>,
}

pub(super) fn change(gpu: &mut Gpu, change: &SettingsChange) -> Result<(), FaultError> {
    if let Some(on) = change.mig {
        let name = gpu.name.clone();
        let mig = gpu.mig.as_mut().ok_or(FaultError::NoMig { name })?;
        (mig.enabled, mig.pending) = (on, on);
    }
    gpu.modes.persistence = change.persistence.unwrap_or(gpu.modes.persistence);
    gpu.modes.compute = change.compute.unwrap_or(gpu.modes.compute);
    if let Some(on) = change.ecc {
        (gpu.ecc.enabled, gpu.ecc.pending) = (on, on);
    }
    let clocks = &mut gpu.clocks;
    clocks.application_graphics_mhz =
        change.application_graphics_mhz.unwrap_or(clocks.application_graphics_mhz);
    Ok(())
}

/// All settings as a new card has them.
pub(super) fn restore_defaults(gpu: &mut Gpu) {
    gpu.modes = crate::builder::MODES;
    (gpu.ecc.enabled, gpu.ecc.pending) = (true, true);
    if let Some(mig) = gpu.mig.as_mut() {
        (mig.enabled, mig.pending) = (false, false);
    }
    let clocks = &mut gpu.clocks;
    clocks.application_graphics_mhz = clocks.default_graphics_mhz;
    clocks.application_memory_mhz = clocks.default_memory_mhz;
    (clocks.locked_graphics_mhz, clocks.locked_memory_mhz) = (None, None);
}
