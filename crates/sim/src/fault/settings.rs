//! Changed driver settings.

use crate::gpu::SimGpu;

use super::FaultError;

/// Changes of settings as an administrator would make them. They take effect at once. `None` leaves
/// a value unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SettingsChange {
    /// Persistence mode.
    pub persistence: Option<bool>,
    /// NVML compute mode: 0 default, 2 prohibited, 3 exclusive process.
    pub compute: Option<u32>,
    pub ecc: Option<bool>,
    pub mig: Option<bool>,
    /// Application clock.
    pub application_graphics_mhz: Option<u32>,
}

pub(super) fn change(gpu: &mut SimGpu, change: &SettingsChange) -> Result<(), FaultError> {
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
    if let Some(mhz) = change.application_graphics_mhz {
        gpu.clocks.application_graphics_mhz = mhz;
        super::activity::set_clocks(gpu);
    }
    Ok(())
}

/// Restores the default settings of a new GPU.
pub(super) fn restore_defaults(gpu: &mut SimGpu) {
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
