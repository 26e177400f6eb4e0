//! Is this node right? What was read on it, judged.
//!
//! ```text
//! NodeObservation (plain values, versioned) ─ judge ─> NodeReport
//!                                               │        verdict: the worst of the items
//!                                               └─ rules/*: each adds items and remedies; what is known of
//!                                                  GPU, driver and frameworks comes from check's own rules
//! ```

mod context;
mod now;
mod nvml;
mod nvml_status;
mod observation;
mod read_error;
mod reading;
mod report;
mod rules;

pub use now::{DeviceNow, HostNow, LinksNow, PcieLink, PortNow};
pub use nvml::{Fabric, Nvml, NvmlDevice, NvmlReading, PowerLimits, RemappedRows, Setting};
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
use context::Node;
use report::NodeFindings;

/// Judges a node. `on` is the day for which the answer shall hold; `strict` lets advisories and known
/// regressions decide too.
pub fn judge(set: &FactSet, seen: &NodeObservation, on: Date, strict: bool) -> NodeReport {
    let node = Node { set, seen, on, strict };
    let mut findings = NodeFindings::default();
    rules::gpus::judge(&node, &mut findings);
    // Without a GPU and without a driver there is nothing to say about either.
    if node.has_gpu() != Some(false) || node.loaded().is_some() {
        rules::driver::judge(&node, &mut findings);
        rules::platform::judge(&node, &mut findings);
        rules::kernels::judge(&node, &mut findings);
        rules::dkms::judge(&node, &mut findings);
        rules::secure_boot::judge(&node, &mut findings);
        rules::packages::judge(&node, &mut findings);
        rules::upgrades::judge(&node, &mut findings);
        rules::settings::judge(&node, &mut findings);
        rules::cdmm::judge(&node, &mut findings);
        rules::fabric::judge(&node, &mut findings);
        rules::containers::judge(&node, &mut findings);
        rules::now::judge(&node, &mut findings);
    }
    rules::frameworks::judge(&node, &mut findings);
    findings.into_report(&set.set)
}

#[cfg(test)]
mod tests;
