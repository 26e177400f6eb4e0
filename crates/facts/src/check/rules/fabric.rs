//! Fabric manager must match the driver version exactly.

use crate::check::findings::Findings;
use crate::check::query::{DriverPrecision, Query};
use crate::check::report::Verdict;
use crate::gpu::Fabric;
use crate::set::FactSet;

pub(crate) fn evaluate(set: &FactSet, query: &Query<'_>, findings: &mut Findings) {
    let Some(fabric) = &query.fabric_manager else { return };
    let origin = &set.drivers.fabric_manager.origin;
    let driver = &query.driver.version;
    let gpu = &query.gpu.id;
    if query.gpu.fabric == Fabric::None {
        findings.reason(
            Verdict::Caveat,
            "fabric-manager-unused",
            format!("{gpu} has no NVSwitch: fabric manager is not used here"),
            origin,
        );
    } else if query.gpu.fabric == Fabric::Rack {
        findings.reason(
            Verdict::Caveat,
            "fabric-manager-in-rack",
            format!("the NVSwitches of {gpu} are in the rack: fabric manager runs there, not here"),
            origin,
        );
    } else if query.driver.precision != DriverPrecision::Release
        && fabric.branch() == driver.branch()
    {
        findings.reason(
            Verdict::Caveat,
            "fabric-manager-driver-inexact",
            format!(
                "fabric manager {fabric} starts only with driver {fabric}; give the full release"
            ),
            origin,
        );
    } else if fabric == driver {
        findings.reason(
            Verdict::Ok,
            "fabric-manager-equal",
            format!("fabric manager {fabric} equals the driver"),
            origin,
        );
    } else {
        findings.reason(
            Verdict::Blocked,
            "fabric-manager-differs",
            format!(
                "fabric manager {fabric} does not start with driver {driver}: the versions must be \
                 equal, and without it CUDA does not start on NVSwitch systems"
            ),
            origin,
        );
        let branch = driver.branch().0;
        let unversioned = driver.branch() >= set.drivers.packages.unversioned_from_branch;
        let package = if unversioned {
            "nvidia-fabricmanager".to_owned()
        } else {
            format!("nvidia-fabricmanager-{branch}")
        };
        findings.remedy(
            "for NVSwitch",
            format!("install fabric manager {driver}"),
            Some(format!("apt-get install '{package}={driver}*'")),
        );
    }
}
