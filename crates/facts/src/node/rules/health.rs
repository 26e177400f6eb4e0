//! Current faults: memory errors, links and ports that are down, hardware throttling, and Xids of
//! this boot.
//!
//! Some checks are not possible everywhere, for example not in a container. They are listed in
//! `not_judged` and do not affect the verdict.

use std::collections::BTreeMap;

use super::settings::{DeviceFinding, DeviceRule, evaluate_devices};
use crate::check::Verdict;
use crate::decode::{self, DecodedEvent, Kind};
use crate::node::context::{NodeContext, counted, gpus};
use crate::node::health::{DeviceHealth, NvlinkHealth, PcieLink, PortHealth};
use crate::node::item_code::{self, ItemCode};
use crate::node::limits::NodeLimits;
use crate::node::nvml::NvmlDevice;
use crate::node::read_error::ReadError;
use crate::node::reading::Reading;
use crate::node::report::NodeFindings;
use crate::xid::{Action, Severity};

/// `nvmlClocksEventReasonHwSlowdown`, `HwThermalSlowdown`, `HwPowerBrakeSlowdown` (nvml.h).
const HARDWARE_REASONS: [(u64, &str); 3] =
    [(0x40, "heat"), (0x80, "the power brake of the server"), (0x8, "the hardware")];

/// The Xid with which the driver reports that its recovery action changed.
const RECOVERY_CHANGED: u32 = 154;

const RULES: [DeviceRule; 4] = [
    DeviceRule { source: "NVML, NVML_FI_DEV_ECC_DBE_VOL_TOTAL", evaluate: ecc_errors },
    DeviceRule { source: "NVML, nvmlDeviceGetCurrPcieLinkWidth and Generation", evaluate: pcie },
    DeviceRule { source: "NVML, nvmlDeviceGetCurrentClocksEventReasons", evaluate: clocks },
    DeviceRule { source: "NVML, NVML_FI_DEV_NVLINK_GET_STATE", evaluate: links },
];

pub(crate) fn evaluate(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    let devices = node.opened_devices();
    if !devices.is_empty() && devices.iter().all(|device| device.now.is_none()) {
        findings.not_judged("current faults in NVML (the saved readings do not include them)");
    }
    evaluate_devices(&RULES, &devices, findings);
    if let Some(now) = &node.observation.now {
        match &now.ports {
            Reading::Value(all) => ports(all, findings),
            Reading::Absent => {}
            Reading::Unreadable(why) => {
                findings.not_judged(&format!("network ports (they cannot be read: {why})"));
            }
        }
        match &now.xid_lines {
            Reading::Value(lines) => xids(node, lines, findings),
            Reading::Absent => findings.not_judged("Xids (there is no kernel log here)"),
            Reading::Unreadable(why) => {
                findings.not_judged(&format!("Xids (the kernel log cannot be read: {why})"));
            }
        }
    }
    if let Some(now) = &node.observation.now {
        acs(node, &now.acs_bridges, findings);
    }
    findings.not_judged("rates and trends (the agent evaluates them: `farrier status`)");
}

fn health_of(device: &NvmlDevice) -> Option<&DeviceHealth> {
    device.now.as_ref()
}

fn ecc_errors(device: &NvmlDevice) -> Option<DeviceFinding> {
    Some(match &health_of(device)?.ecc_uncorrected {
        Reading::Value(0) => {
            let text = "no uncorrectable memory error".to_owned();
            (Verdict::Ok, item_code::ECC_ERRORS_NONE, text)
        }
        Reading::Value(count) => {
            let count = usize::try_from(*count).unwrap_or(usize::MAX);
            let text = format!(
                "{} since the driver was loaded",
                counted(count, "uncorrectable memory error")
            );
            (Verdict::Blocked, item_code::ECC_UNCORRECTED, text)
        }
        Reading::Absent => return None,
        Reading::Unreadable(why) => unknown("memory errors", why, item_code::ECC_ERRORS_UNKNOWN),
    })
}

fn pcie(device: &NvmlDevice) -> Option<DeviceFinding> {
    let now = health_of(device)?;
    let link = match &now.pcie {
        Reading::Value(link) => link,
        Reading::Absent => return None,
        Reading::Unreadable(why) => {
            return Some(unknown("the PCIe link", why, item_code::PCIE_UNKNOWN));
        }
    };
    let PcieLink { generation, generation_max, width, width_max } = link;
    let busy = NodeLimits::embedded().pcie.busy_percent;
    let is_busy = now.utilisation_percent.value().is_some_and(|percent| *percent > busy);
    Some(if width < width_max {
        let text = format!("the PCIe link has {width} of {width_max} lanes");
        (Verdict::Blocked, item_code::PCIE_NARROW, text)
    } else if generation < generation_max && is_busy {
        let text = format!(
            "the PCIe link runs at generation {generation} of {generation_max} while the GPU is busy"
        );
        (Verdict::Blocked, item_code::PCIE_SLOW, text)
    } else {
        (Verdict::Ok, item_code::PCIE_WIDE, format!("the PCIe link has all its {width_max} lanes"))
    })
}

fn clocks(device: &NvmlDevice) -> Option<DeviceFinding> {
    Some(match &health_of(device)?.clock_reasons {
        Reading::Value(reasons) => {
            let why: Vec<&str> = HARDWARE_REASONS
                .iter()
                .filter(|(bit, _)| reasons & bit != 0)
                .map(|(_, why)| *why)
                .collect();
            if why.is_empty() {
                (
                    Verdict::Ok,
                    item_code::CLOCKS_FREE,
                    "the hardware does not reduce the clocks".to_owned(),
                )
            } else {
                let text = format!("clocks are reduced now by {}", why.join(" and "));
                (Verdict::Blocked, item_code::HARDWARE_SLOWDOWN, text)
            }
        }
        Reading::Absent => return None,
        Reading::Unreadable(why) => {
            unknown("why clocks are reduced", why, item_code::CLOCKS_UNKNOWN)
        }
    })
}

fn links(device: &NvmlDevice) -> Option<DeviceFinding> {
    Some(match &health_of(device)?.links {
        Reading::Value(NvlinkHealth { up: 0, down }) if down.is_empty() => return None,
        Reading::Value(NvlinkHealth { up, down }) if down.is_empty() => {
            (Verdict::Ok, item_code::NVLINKS_UP, format!("all {up} NVLinks are up"))
        }
        Reading::Value(NvlinkHealth { down, .. }) => {
            let numbers: Vec<String> = down.iter().map(ToString::to_string).collect();
            let text = match down.as_slice() {
                [one] => format!("NVLink {one} is down"),
                _ => format!("NVLinks {} are down", numbers.join(", ")),
            };
            (Verdict::Blocked, item_code::NVLINK_DOWN, text)
        }
        Reading::Absent => return None,
        Reading::Unreadable(why) => {
            unknown("the state of NVLinks", why, item_code::NVLINKS_UNKNOWN)
        }
    })
}

fn unknown(what: &str, why: &ReadError, code: ItemCode) -> DeviceFinding {
    (Verdict::Unknown, code, format!("{what} cannot be read: {why}"))
}

fn ports(all: &[PortHealth], findings: &mut NodeFindings) {
    let source = "/sys/class/infiniband/*/ports/*/state and phys_state";
    let is_up = |port: &&PortHealth| port.up == Reading::Value(true);
    let mut empty = 0;
    for port in all.iter().filter(|port| !is_up(port)) {
        let name = format!("{} port {}", port.device, port.port);
        let mut item = |verdict, code, text: String| {
            findings.item(verdict, code, name.clone(), text, source);
        };
        let has_peers = all.iter().filter(is_up).any(|peer| peer.kind == port.kind);
        match &port.up {
            Reading::Unreadable(why) => {
                let text = format!("whether {name} is up cannot be read: {why}");
                item(Verdict::Unknown, item_code::PORT_UNKNOWN, text);
                continue;
            }
            _ if port.went_down == Reading::Value(true) => {
                item(Verdict::Blocked, item_code::PORT_DOWN, format!("{name} was up and is down"));
            }
            _ if has_peers => {
                let text = format!(
                    "{name} is down and others of its kind are up; that is normal without a cable"
                );
                item(Verdict::Caveat, item_code::PORT_NOT_UP, text);
            }
            _ => {
                empty += 1;
                continue;
            }
        }
        findings.remedy(
            "for a network port",
            "check cable, transceiver and switch port; list an unused adapter in the agent's \
             `expect.nics_ignored`",
            Some(&format!(
                "cat /sys/class/infiniband/{}/ports/{}/phys_state",
                port.device, port.port
            )),
        );
    }
    let up = all.iter().filter(is_up).count();
    if up > 0 && up + empty == all.len() {
        let text = format!("{} up", counted(up, "network port"));
        findings.item(Verdict::Ok, item_code::PORTS_UP, "network", text, source);
    }
}

/// ACS on bare metal. In a virtual machine, the hypervisor's host decides.
fn acs(node: &NodeContext<'_>, bridges: &Reading<Vec<String>>, findings: &mut NodeFindings) {
    let source = "/sys/bus/pci/devices/*/config; NCCL user guide, PCI Access Control Services";
    if node.observation.host.virtual_machine == Reading::Value(true) {
        return;
    }
    match bridges {
        Reading::Value(bridges) if bridges.is_empty() => {
            let text = "no PCI bridge redirects peer-to-peer traffic (ACS)";
            findings.item(Verdict::Ok, item_code::ACS_OFF, "PCI", text, source);
        }
        Reading::Value(bridges) => {
            let are = if bridges.len() == 1 { "redirects" } else { "redirect" };
            let text = format!(
                "{} {are} peer-to-peer traffic through the root complex (ACS): GPUs and network \
                 adapters reach each other slowly, or not at all",
                counted(bridges.len(), "PCI bridge")
            );
            findings.item(Verdict::Caveat, item_code::ACS_ON, "PCI", text, source);
            findings.remedy(
                "for peer-to-peer traffic",
                "disable ACS in the firmware settings, or on each bridge at boot",
                Some("setpci -s BRIDGE ECAP_ACS+0x6.w=0000"),
            );
        }
        Reading::Absent => {}
        Reading::Unreadable(why) => {
            findings.unreadable(
                item_code::ACS_UNKNOWN,
                "PCI",
                "ACS of the PCI bridges",
                why,
                source,
            );
        }
    }
}

/// Xids with the same code on the same device.
struct XidGroup {
    worst: DecodedEvent,
    times: usize,
}

fn xids(node: &NodeContext<'_>, lines: &[String], findings: &mut NodeFindings) {
    let source = "/dev/kmsg";
    let mut log = Vec::new();
    for line in lines {
        log.extend_from_slice(line.as_bytes());
        log.push(b'\n');
    }
    let events = decode::decode(&node.set.xids, &log);
    let is_xid = |event: &&DecodedEvent| matches!(event.kind, Kind::Xid | Kind::Sxid);
    let mut groups: BTreeMap<(Option<&str>, Option<u32>), XidGroup> = BTreeMap::new();
    for event in events.iter().filter(is_xid) {
        let key = (event.pci.as_deref(), event.xid);
        let group =
            groups.entry(key).or_insert_with(|| XidGroup { worst: event.clone(), times: 0 });
        group.times += 1;
        if event.severity >= group.worst.severity {
            group.worst = event.clone();
        }
    }
    let recovery_reported = |pci: Option<&str>| groups.contains_key(&(pci, Some(RECOVERY_CHANGED)));
    let mut are_quiet = true;
    for ((pci, _), XidGroup { worst, times }) in &groups {
        if worst.severity < Severity::Warning {
            continue;
        }
        are_quiet = false;
        let device = pci.and_then(|pci| device_at(node, pci));
        // The driver reported a recovery action and has since cleared it.
        let is_over = recovery_reported(*pci)
            && device.is_some_and(|gpu| gpu.recovery_action == Reading::Value(0));
        let is_critical =
            worst.severity >= Severity::Critical && worst.action > Action::Investigate;
        let (verdict, code) = match (is_critical, is_over) {
            (true, false) => (Verdict::Blocked, item_code::XID_CRITICAL),
            (true, true) => (Verdict::Caveat, item_code::XID_RECOVERED),
            (false, _) => (Verdict::Caveat, item_code::XID_SEEN),
        };
        let subject = match (device, worst.kind, pci) {
            (Some(device), ..) => gpus(&[device.index], 0),
            (None, Kind::Sxid, Some(pci)) => format!("NVSwitch {pci}"),
            (None, _, Some(pci)) => format!("GPU {pci}"),
            (None, _, None) => "GPUs".to_owned(),
        };
        let name = if worst.kind == Kind::Sxid { "SXid" } else { "Xid" };
        let number = worst.xid.map(|number| format!(" {number}")).unwrap_or_default();
        let times = if *times == 1 { String::new() } else { format!(", {times} times") };
        let over = if is_over { " The driver no longer requests a recovery." } else { "" };
        let text = format!(
            "{subject}: {name}{number} in the kernel log of this boot{times}: {}{over}",
            worst.text
        );
        findings.item(verdict, code, subject, text, format!("{source}; {}", worst.source));
        if worst.action > Action::RestartApp && !is_over {
            let purpose = format!("for {name}{number}");
            findings.remedy(&purpose, worst.action.instruction(), Some("dmesg | farrier decode -"));
        }
    }
    if are_quiet {
        let text = "no Xid of importance in the kernel log of this boot";
        findings.item(Verdict::Ok, item_code::XIDS_NONE, "GPUs", text, source);
    }
}

/// The GPU at a kernel-log address such as `0000:17:00`, which NVML writes as `00000000:17:00.0`.
fn device_at<'a>(node: &NodeContext<'a>, pci: &str) -> Option<&'a NvmlDevice> {
    node.devices().iter().find(|device| {
        let address = device.pci_address.value().map(|address| address.to_ascii_lowercase());
        address.is_some_and(|full| full.get(4..).is_some_and(|rest| rest.starts_with(pci)))
    })
}
