//! `NVSwitch`: does fabric manager match the driver and run, and has every GPU joined the fabric?

use crate::check::{self, Verdict};
use crate::gpu::FormFactor;
use crate::node::context::{NodeContext, gpus};
use crate::node::item_code;
use crate::node::observation::PciDevice;
use crate::node::read_error::ReadError;
use crate::node::reading::Reading;
use crate::node::report::NodeFindings;

const SERVICE: &str = "nvidia-fabricmanager";
const SUBJECT: &str = "fabric manager";

/// `NVML_GPU_FABRIC_STATE_COMPLETED` (nvml.h).
const COMPLETED: u8 = 3;

pub(crate) fn evaluate(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    evaluate_membership(node, findings);
    if !has_switches(node) {
        return;
    }
    version(node, findings);
    running(node, findings);
}

/// Whether the node has `NVSwitch` devices that fabric manager must program.
fn has_switches(node: &NodeContext<'_>) -> bool {
    let by_driver = node.observation.nvswitches.value().is_some_and(|count| *count > 0);
    let on_pci = node
        .observation
        .pci
        .value()
        .is_some_and(|devices| devices.iter().any(PciDevice::is_nvswitch));
    by_driver || on_pci
}

fn version(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    let Some(packages) =
        node.observation.packages.dpkg.value().filter(|_| !node.inside_container())
    else {
        findings.item(
            Verdict::Unknown,
            item_code::FABRIC_MANAGER_VERSION_UNKNOWN,
            SUBJECT,
            "the node has NVSwitches, but the version of fabric manager cannot be read from the packages",
            "/var/lib/dpkg/status",
        );
        return;
    };
    // Before R580, the package name ends in the driver branch. The development package does not
    // count.
    let package = packages.iter().find(|package| {
        let rest = package.name.strip_prefix(SERVICE);
        rest.is_some_and(|rest| {
            rest.is_empty() || rest[1..].bytes().all(|byte| byte.is_ascii_digit())
        })
    });
    let Some(package) = package else {
        findings.item(
            Verdict::Blocked,
            item_code::FABRIC_MANAGER_MISSING,
            SUBJECT,
            "the node has NVSwitches, but fabric manager is not installed: CUDA does not start",
            "/var/lib/dpkg/status",
        );
        return;
    };
    let model = node
        .models()
        .into_iter()
        .find(|model| model.gpu.is_some_and(|gpu| gpu.form_factor == FormFactor::Sxm));
    let query = model.and_then(|model| node.query(&model, None)?.ok());
    let (Some(mut query), Ok(version)) = (query, package.upstream().parse()) else {
        findings.item(
            Verdict::Unknown,
            item_code::FABRIC_MANAGER_VERSION_UNKNOWN,
            SUBJECT,
            format!("{} {} cannot be compared with the driver", package.name, package.version),
            "/var/lib/dpkg/status",
        );
        return;
    };
    if node.user_space() == Some(package.upstream()) && node.loaded() != node.user_space() {
        // An upgrade replaced everything except the loaded module. So a reboot helps, and another
        // package does not.
        findings.item(
            Verdict::Blocked,
            item_code::FABRIC_MANAGER_AHEAD,
            SUBJECT,
            format!(
                "fabric manager {} matches the driver on disk, but not the loaded driver: the \
                 service cannot start or restart before the node reboots",
                package.upstream()
            ),
            node.set.drivers.fabric_manager.origin.line(),
        );
        super::driver::remedy_one_driver_version(findings);
        return;
    }
    query.fabric_manager = Some(version);
    findings.merge_check(SUBJECT, |findings| {
        check::evaluate_fabric_manager(node.set, &query, findings);
    });
}

fn running(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    let source = "systemd's unit files and cgroups";
    let Some(service) = node.observation.services.get(SERVICE) else { return };
    let mut item = |verdict, code, text: String| {
        findings.item(verdict, code, SUBJECT, text, source);
    };
    match &service.running {
        Reading::Value(true) if service.enabled == Reading::Value(false) => {
            item(
                Verdict::Caveat,
                item_code::FABRIC_MANAGER_NOT_ENABLED,
                "fabric manager runs, but does not start at boot".to_owned(),
            );
            findings.remedy(
                "for NVSwitch after the next boot",
                "start fabric manager at every boot",
                Some("systemctl enable nvidia-fabricmanager"),
            );
        }
        Reading::Value(true) => {
            item(
                Verdict::Ok,
                item_code::FABRIC_MANAGER_RUNNING,
                "the fabric manager service is running".to_owned(),
            );
        }
        Reading::Value(false) | Reading::Absent => {
            item(
                Verdict::Blocked,
                item_code::FABRIC_MANAGER_NOT_RUNNING,
                "the node has NVSwitches, but fabric manager does not run: CUDA does not start"
                    .to_owned(),
            );
            findings.remedy(
                "for NVSwitch",
                "start fabric manager now and at every boot",
                Some("systemctl enable --now nvidia-fabricmanager"),
            );
        }
        Reading::Unreadable(why) => item(
            Verdict::Unknown,
            item_code::FABRIC_MANAGER_RUNNING_UNKNOWN,
            format!("cannot read whether fabric manager runs: {why}"),
        ),
    }
}

fn evaluate_membership(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    let source = "NVML, nvmlDeviceGetGpuFabricInfoV";
    let mut not_joined = Vec::new();
    let mut joined = Vec::new();
    let mut unread: Option<(u32, &ReadError)> = None;
    for device in node.devices() {
        match &device.fabric {
            Reading::Value(fabric) if fabric.state == COMPLETED && fabric.status == 0 => {
                joined.push(device.index);
            }
            // State 0: the GPU is not part of a fabric.
            Reading::Value(fabric) if fabric.state != 0 => not_joined.push(device.index),
            Reading::Unreadable(why @ ReadError::Nvml { .. }) => {
                unread.get_or_insert((device.index, why));
            }
            // A library without the call is older than the GPUs that have to join a fabric.
            Reading::Value(_) | Reading::Absent | Reading::Unreadable(_) => {}
        }
    }
    let all = node.devices().len();
    if !not_joined.is_empty() {
        findings.item(
            Verdict::Blocked,
            item_code::FABRIC_NOT_JOINED,
            gpus(&not_joined, all),
            format!(
                "{} did not join the NVLink fabric: CUDA does not start there",
                gpus(&not_joined, all)
            ),
            source,
        );
        findings.remedy(
            "for the NVLink fabric",
            "read the log of fabric manager, on the machine where it runs",
            Some("journalctl -u nvidia-fabricmanager -b"),
        );
    } else if let Some((index, why)) = unread {
        let text = format!("cannot read whether GPU {index} joined the NVLink fabric: {why}");
        findings.item(Verdict::Unknown, item_code::FABRIC_UNKNOWN, gpus(&[index], 0), text, source);
    } else if !joined.is_empty() {
        let text = format!("{} joined the NVLink fabric", gpus(&joined, all));
        findings.item(Verdict::Ok, item_code::FABRIC_JOINED, gpus(&joined, all), text, source);
    }
}
