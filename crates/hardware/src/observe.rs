//! Builds the observation of a node from its files.

use farrier_facts::node::{NodeObservation, NvmlReading, OBSERVATION_VERSION, Reading};

use crate::python::PythonChoice;
use crate::root::Root;
use crate::{
    compliance, containers, current_faults, dkms, driver, host_state, installation, kernels,
    packages, pci, python, secure_boot, services,
};

/// Directory in which the driver lists the `NVSwitch` chips that it manages.
const NVSWITCHES: &str = "/proc/driver/nvidia-nvswitch/devices";

/// Reads the files and combines them with an NVML reading.
pub fn observe(root: &Root, nvml: NvmlReading, python: &PythonChoice) -> NodeObservation {
    let pci = pci::read(root);
    NodeObservation {
        version: OBSERVATION_VERSION,
        host: host_state::read(root, &pci),
        pci,
        nvml,
        driver: driver::read(root),
        installation: installation::read(root),
        kernels: kernels::read(root),
        packages: packages::read(root),
        dkms: dkms::read(root),
        secure_boot: secure_boot::read(root),
        compliance: compliance::read(root),
        services: services::read(root),
        nvswitches: nvswitches(root),
        containers: containers::read(root),
        python: python::read(root, python),
        now: None,
    }
}

/// Like [`observe`], plus the faults that are present now, for a single check without monitoring.
pub fn observe_now(root: &Root, nvml: NvmlReading, python: &PythonChoice) -> NodeObservation {
    NodeObservation { now: Some(current_faults::read(root)), ..observe(root, nvml, python) }
}

fn nvswitches(root: &Root) -> Reading<u32> {
    root.list(NVSWITCHES).map(|names| u32::try_from(names.len()).unwrap_or(u32::MAX))
}
