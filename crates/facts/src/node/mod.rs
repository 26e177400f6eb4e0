//! Evaluates the software, settings and health of a node.
//!
//! ```text
//! NodeObservation (plain values, versioned) ─ evaluate ─> NodeReport
//!                                               │           verdict: the worst of the items
//!                                               └─ rules/*: each adds items and remedies;
//!                                                  some call the rules of `check`
//! ```

mod compliance;
mod context;
mod health;
mod host;
mod installation;
mod item_code;
mod limits;
mod nvml;
mod nvml_status;
mod observation;
mod read_error;
mod reading;
mod report;
mod rules;

pub use compliance::{ComplianceObservation, DataVolume, ImagePolicy};
pub use health::{DeviceHealth, HostHealth, NvlinkHealth, PcieLink, PortHealth};
pub use host::{DiskUsage, HostObservation, IommuDomain};
pub use installation::{DeviceFile, InstallationObservation, LoadDisabled};
pub use item_code::{Area, CaveatSeverity, ITEMS, Monitoring};
pub use limits::{DiskLimits, NodeLimits, PcieLimits};
pub use nvml::{
    FabricState, GraphicsApplicationClock, Nvml, NvmlDevice, NvmlReading, PowerLimits,
    RemappedRows, Setting,
};
pub use nvml_status::NvmlStatus;
pub use observation::{
    BootChoice, CdiSpec, ContainerObservation, DkmsTree, DriverObservation, InstalledKernel,
    KernelObservation, Library, ModuleInfo, ModuleOnDisk, NodeObservation, OBSERVATION_VERSION,
    Package, PackageObservation, PciDevice, Pin, PythonObservation, PythonPackage,
    SecureBootObservation, ServiceObservation, Unattended,
};
pub use read_error::ReadError;
pub use reading::Reading;
pub use report::{Item, NodeReport};
pub(crate) use rules::packages::is_driver as is_driver_package;
pub(crate) use rules::upgrades::is_kernel_meta as is_kernel_package;

use jiff::civil::Date;

use crate::set::FactSet;
use context::NodeContext;
use report::NodeFindings;

/// Evaluates a node for the day `on`. With `strict`, advisories and known regressions of the driver
/// affect the verdict. A missing fix of the container toolkit always does: it gives a caveat, and
/// with `strict` it blocks.
pub fn evaluate(
    set: &FactSet,
    observation: &NodeObservation,
    on: Date,
    strict: bool,
) -> NodeReport {
    let node = NodeContext { set, observation, on, strict };
    let mut findings = NodeFindings::default();
    rules::gpus::evaluate(&node, &mut findings);
    // Skip these rules if the node has neither a GPU nor a loaded driver.
    if node.has_gpu() != Some(false) || node.loaded().is_some() {
        rules::driver::evaluate(&node, &mut findings);
        rules::installation::evaluate(&node, &mut findings);
        rules::platform::evaluate(&node, &mut findings);
        rules::kernels::evaluate(&node, &mut findings);
        rules::dkms::evaluate(&node, &mut findings);
        rules::secure_boot::evaluate(&node, &mut findings);
        rules::packages::evaluate(&node, &mut findings);
        rules::upgrades::evaluate(&node, &mut findings);
        rules::settings::evaluate(&node, &mut findings);
        rules::cdmm::evaluate(&node, &mut findings);
        rules::fabric::evaluate(&node, &mut findings);
        rules::containers::evaluate(&node, &mut findings);
        rules::host::evaluate(&node, &mut findings);
        rules::compliance::evaluate(&node, &mut findings);
        rules::health::evaluate(&node, &mut findings);
    }
    rules::frameworks::evaluate(&node, &mut findings);
    findings.into_report(&set.set)
}

#[cfg(test)]
mod tests;
