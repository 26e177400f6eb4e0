//! Settings and state of each GPU, as NVML reports them.

use crate::check::Verdict;
use crate::node::context::{NodeContext, gpus};
use crate::node::item_code::{self, ItemCode};
use crate::node::nvml::{NvmlDevice, PowerLimits, Setting};
use crate::node::nvml_status::NvmlStatus;
use crate::node::read_error::ReadError;
use crate::node::reading::Reading;
use crate::node::report::NodeFindings;

/// Verdict, code and text for one GPU.
pub(super) type DeviceFinding = (Verdict, ItemCode, String);

/// A rule that evaluates one GPU, and the NVML call that it reads.
pub(super) struct DeviceRule {
    pub(super) source: &'static str,
    pub(super) evaluate: fn(&NvmlDevice) -> Option<DeviceFinding>,
}

const RULES: [DeviceRule; 8] = [
    DeviceRule { source: "NVML, nvmlDeviceGetComputeMode", evaluate: compute_mode },
    DeviceRule {
        source: "NVML, nvmlDeviceGetPowerManagementLimit and its constraints",
        evaluate: power,
    },
    DeviceRule { source: "NVML, nvmlDeviceGetEccMode", evaluate: ecc },
    DeviceRule { source: "NVML, nvmlDeviceGetMigMode", evaluate: mig },
    DeviceRule { source: "NVML, nvmlDeviceGetRemappedRows", evaluate: rows },
    DeviceRule { source: "NVML, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", evaluate: recovery },
    DeviceRule {
        source: "NVML, nvmlDeviceValidateInforom; NVIDIA/DCGM FR_CORRUPT_INFOROM",
        evaluate: inforom,
    },
    DeviceRule {
        source: "NVML, nvmlDeviceGetApplicationsClock and its default",
        evaluate: application_clocks,
    },
];

pub(crate) fn evaluate(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    let devices = node.opened_devices();
    if devices.is_empty() && node.has_gpu() != Some(false) {
        let why =
            node.observation.nvml.failure_reason().unwrap_or_else(|| "no GPU answers".to_owned());
        let text = format!("compute mode, power limit, ECC, MIG and memory cannot be read: {why}");
        findings.item(Verdict::Unknown, item_code::SETTINGS_UNKNOWN, "GPUs", text, "NVML");
    }
    evaluate_devices(&RULES, &devices, findings);
    persistence(node, &devices, findings);
    nvlink(node, &devices, findings);
}

/// Evaluates each rule for each GPU. GPUs with the same finding share an item.
pub(super) fn evaluate_devices(
    rules: &[DeviceRule],
    devices: &[&NvmlDevice],
    findings: &mut NodeFindings,
) {
    for rule in rules {
        let mut groups: Vec<(DeviceFinding, Vec<u32>)> = Vec::new();
        for device in devices {
            let Some(finding) = (rule.evaluate)(device) else { continue };
            match groups.iter_mut().find(|(known, _)| *known == finding) {
                Some((_, indices)) => indices.push(device.index),
                None => groups.push((finding, vec![device.index])),
            }
        }
        for ((verdict, code, text), indices) in groups {
            let subject = gpus(&indices, devices.len());
            findings.item(
                verdict,
                code,
                subject.clone(),
                format!("{subject}: {text}"),
                rule.source,
            );
            if let Some((purpose, text, command)) = remedy_for(code, &indices) {
                findings.remedy(purpose, text, command.as_deref());
            }
        }
    }
}

/// The remedy for a code: its purpose, its text, and a command for the first of the GPUs.
fn remedy_for(
    code: ItemCode,
    indices: &[u32],
) -> Option<(&'static str, &'static str, Option<String>)> {
    let first = indices.first().copied().unwrap_or_default();
    let reset = Some(format!("nvidia-smi --gpu-reset -i {first}"));
    let look = |what: &str| Some(format!("nvidia-smi -q -d {what} -i {first}"));
    Some(match code {
        item_code::ROW_REMAP_FAILED => (
            "for memory without spare rows",
            "drain the GPU and have it replaced",
            look("ROW_REMAPPER"),
        ),
        item_code::ROW_REMAP_PENDING => {
            ("for a memory row that waits to be remapped", "drain the GPU and reset it", reset)
        }
        item_code::RECOVERY_NEEDED => (
            "for the recovery that the driver requests",
            "drain the GPU, then reset it or reboot the node as the driver requests",
            None,
        ),
        item_code::INFOROM_INVALID => (
            "for an InfoROM that cannot be trusted",
            "drain the GPU and have it triaged for replacement",
            Some(format!("nvidia-smi -q -i {first}")),
        ),
        item_code::APPLICATION_CLOCKS_LOWERED => (
            "for full clocks",
            "reset the application clocks",
            Some("nvidia-smi --reset-applications-clocks".to_owned()),
        ),
        item_code::ECC_UNCORRECTED => (
            "for memory errors",
            "drain the GPU and reset it; if errors recur, have it replaced",
            reset,
        ),
        item_code::PCIE_NARROW | item_code::PCIE_SLOW => (
            "for the PCIe link",
            "drain the node and re-seat the GPU or its riser; if that does not help, have it replaced",
            look("PCIE"),
        ),
        item_code::HARDWARE_SLOWDOWN => (
            "for clocks that the hardware reduces",
            "check the cooling and the power supplies of the server",
            look("PERFORMANCE"),
        ),
        item_code::NVLINK_DOWN => (
            "for an NVLink that is down",
            "drain the GPU and reset it; if the link stays down, have the GPU or its board replaced",
            Some(format!("nvidia-smi nvlink -s -i {first}")),
        ),
        _ => return None,
    })
}

/// Reports the module option `NVreg_NvLinkDisable`, which is often left over from debugging.
fn nvlink(node: &NodeContext<'_>, devices: &[&NvmlDevice], findings: &mut NodeFindings) {
    let option =
        node.observation.driver.parameters.value().and_then(|all| all.get("NvLinkDisable"));
    if devices.len() > 1 && option.is_some_and(|value| value == "1") {
        findings.item(
            Verdict::Caveat,
            item_code::NVLINK_DISABLED,
            "GPUs",
            "the module option NVreg_NvLinkDisable turns NVLink off: GPUs communicate over PCIe",
            "/proc/driver/nvidia/params, NvLinkDisable",
        );
    }
}

fn unknown(what: &str, why: &ReadError, code: ItemCode) -> DeviceFinding {
    (Verdict::Unknown, code, format!("{what} cannot be read: {why}"))
}

fn compute_mode(device: &NvmlDevice) -> Option<DeviceFinding> {
    let text = |text: &str| text.to_owned();
    Some(match &device.compute_mode {
        Reading::Value(0) => {
            (Verdict::Ok, item_code::COMPUTE_MODE_DEFAULT, text("compute mode is default"))
        }
        Reading::Value(2) => (
            Verdict::Blocked,
            item_code::COMPUTE_MODE_PROHIBITED,
            text("compute mode is prohibited: no CUDA program can use the GPU"),
        ),
        Reading::Value(1 | 3) => (
            Verdict::Caveat,
            item_code::COMPUTE_MODE_EXCLUSIVE,
            text("compute mode is exclusive: only one process at a time can use the GPU"),
        ),
        Reading::Value(other) => (
            Verdict::Unknown,
            item_code::COMPUTE_MODE_UNKNOWN,
            format!("compute mode {other} is unknown"),
        ),
        Reading::Absent => return None,
        Reading::Unreadable(why) => unknown("compute mode", why, item_code::COMPUTE_MODE_UNKNOWN),
    })
}

fn power(device: &NvmlDevice) -> Option<DeviceFinding> {
    let watts = |milliwatts: u32| format!("{} W", milliwatts / 1000);
    Some(match &device.power {
        Reading::Value(PowerLimits { limit_mw, default_mw, min_mw, max_mw }) => {
            let range = format!("{} to {}", watts(*min_mw), watts(*max_mw));
            let limit = watts(*limit_mw);
            if limit_mw < min_mw || limit_mw > max_mw {
                let text = format!("power limit {limit} is outside the card's range, {range}");
                (Verdict::Caveat, item_code::POWER_LIMIT_OUTSIDE, text)
            } else if limit_mw == default_mw {
                let text = format!("power limit {limit} is the card's default ({range})");
                (Verdict::Ok, item_code::POWER_LIMIT_DEFAULT, text)
            } else {
                let default = watts(*default_mw);
                let (code, how) = if limit_mw < default_mw {
                    (item_code::POWER_LIMIT_LOWERED, "below")
                } else {
                    (item_code::POWER_LIMIT_RAISED, "above")
                };
                (
                    Verdict::Caveat,
                    code,
                    format!("power limit {limit} is {how} the card's default, {default} ({range})"),
                )
            }
        }
        Reading::Absent => return None,
        Reading::Unreadable(why) => unknown("power limit", why, item_code::POWER_LIMIT_UNKNOWN),
    })
}

fn ecc(device: &NvmlDevice) -> Option<DeviceFinding> {
    Some(match &device.ecc {
        Reading::Value(Setting { current: true, pending: true }) => {
            (Verdict::Ok, item_code::ECC_ON, "ECC is on".to_owned())
        }
        Reading::Value(Setting { current: false, pending: false }) => (
            Verdict::Caveat,
            item_code::ECC_OFF,
            "ECC is off: memory errors can corrupt results unnoticed".to_owned(),
        ),
        Reading::Value(Setting { pending, .. }) => {
            let word = if *pending { "on" } else { "off" };
            (Verdict::Caveat, item_code::ECC_PENDING, format!("ECC turns {word} at the next reset"))
        }
        Reading::Absent => return None,
        Reading::Unreadable(why) => unknown("ECC", why, item_code::ECC_UNKNOWN),
    })
}

fn mig(device: &NvmlDevice) -> Option<DeviceFinding> {
    Some(match &device.mig {
        Reading::Value(Setting { current: false, pending: false }) => {
            (Verdict::Ok, item_code::MIG_OFF, "MIG is off".to_owned())
        }
        Reading::Value(Setting { current: true, pending: true }) => (
            Verdict::Caveat,
            item_code::MIG_ON,
            "MIG is on: programs see slices of a GPU, and NVLink cannot be used".to_owned(),
        ),
        Reading::Value(Setting { pending, .. }) => {
            let word = if *pending { "on" } else { "off" };
            (Verdict::Caveat, item_code::MIG_PENDING, format!("MIG turns {word} at the next reset"))
        }
        Reading::Absent => return None,
        Reading::Unreadable(why) => unknown("MIG", why, item_code::MIG_UNKNOWN),
    })
}

fn rows(device: &NvmlDevice) -> Option<DeviceFinding> {
    Some(match &device.remapped_rows {
        Reading::Value(rows) if rows.failed => (
            Verdict::Blocked,
            item_code::ROW_REMAP_FAILED,
            "a memory row failed and no spare row was left: replace the GPU".to_owned(),
        ),
        Reading::Value(rows) if rows.pending => (
            Verdict::Caveat,
            item_code::ROW_REMAP_PENDING,
            "a memory row failed; a spare row replaces it at the next GPU reset".to_owned(),
        ),
        Reading::Value(_) => (
            Verdict::Ok,
            item_code::ROW_REMAP_CLEAN,
            "no memory row waits to be remapped".to_owned(),
        ),
        Reading::Absent => return None,
        Reading::Unreadable(why) => {
            unknown("the state of memory rows", why, item_code::ROW_REMAP_UNKNOWN)
        }
    })
}

const INVALID_ARGUMENT: ReadError = ReadError::Nvml { status: NvmlStatus::INVALID_ARGUMENT };

fn recovery(device: &NvmlDevice) -> Option<DeviceFinding> {
    let action = match &device.recovery_action {
        Reading::Value(0) => {
            let text = "the driver requests no recovery".to_owned();
            return Some((Verdict::Ok, item_code::RECOVERY_NONE, text));
        }
        Reading::Value(1) => "a GPU reset",
        Reading::Value(2) => "a reboot of the node",
        Reading::Value(3) => "a drain of peer-to-peer work",
        Reading::Value(4) => "a drain, then a GPU reset",
        Reading::Value(_) => "a recovery action that Farrier does not know",
        // Older libraries do not know the field.
        Reading::Absent => return None,
        Reading::Unreadable(why) if *why == INVALID_ARGUMENT => return None,
        Reading::Unreadable(why) => {
            return Some(unknown("the driver's recovery action", why, item_code::RECOVERY_UNKNOWN));
        }
    };
    Some((Verdict::Blocked, item_code::RECOVERY_NEEDED, format!("the driver requests {action}")))
}

fn inforom(device: &NvmlDevice) -> Option<DeviceFinding> {
    Some(match device.inforom_valid.as_ref()? {
        Reading::Value(true) => {
            (Verdict::Ok, item_code::INFOROM_VALID, "the InfoROM checksum is valid".to_owned())
        }
        Reading::Value(false) => (
            Verdict::Caveat,
            item_code::INFOROM_INVALID,
            "the InfoROM checksum is invalid: the counters stored there (ECC, remapped rows) may be \
             wrong"
                .to_owned(),
        ),
        Reading::Absent | Reading::Unreadable(ReadError::MissingCall { .. }) => return None,
        Reading::Unreadable(why) => unknown("the InfoROM", why, item_code::INFOROM_UNKNOWN),
    })
}

fn application_clocks(device: &NvmlDevice) -> Option<DeviceFinding> {
    Some(match device.application_clocks.as_ref()? {
        Reading::Value(clock) if clock.current_mhz < clock.default_mhz => (
            Verdict::Caveat,
            item_code::APPLICATION_CLOCKS_LOWERED,
            format!(
                "application clocks limit the GPU to {} MHz, its default is {} MHz",
                clock.current_mhz, clock.default_mhz
            ),
        ),
        Reading::Value(_) => {
            let text = "application clocks are not below the default".to_owned();
            (Verdict::Ok, item_code::APPLICATION_CLOCKS_DEFAULT, text)
        }
        Reading::Absent | Reading::Unreadable(ReadError::MissingCall { .. }) => return None,
        Reading::Unreadable(why) => {
            unknown("application clocks", why, item_code::APPLICATION_CLOCKS_UNKNOWN)
        }
    })
}

fn persistence(node: &NodeContext<'_>, devices: &[&NvmlDevice], findings: &mut NodeFindings) {
    let source = "NVML, nvmlDeviceGetPersistenceMode; nvidia-persistenced.service";
    let off: Vec<u32> = devices
        .iter()
        .filter(|device| device.persistence == Reading::Value(false))
        .map(|device| device.index)
        .collect();
    let on = devices.iter().filter(|device| device.persistence == Reading::Value(true)).count();
    let service = node.observation.services.get("nvidia-persistenced");
    let at_boot = service.is_none_or(|service| service.enabled != Reading::Value(false));
    let mut item = |verdict, code, text: String| {
        findings.item(verdict, code, "persistence", text, source);
    };
    if !off.is_empty() {
        let which = gpus(&off, devices.len());
        item(
            Verdict::Caveat,
            item_code::PERSISTENCE_OFF,
            format!(
                "{which}: persistence is off, so settings are lost whenever no program uses the GPU"
            ),
        );
        findings.remedy(
            "for settings that are kept",
            "run nvidia-persistenced",
            Some("systemctl enable --now nvidia-persistenced"),
        );
    } else if on > 0 && !at_boot && !node.inside_container() {
        item(
            Verdict::Caveat,
            item_code::PERSISTENCED_NOT_ENABLED,
            "persistence is on, but nvidia-persistenced does not start at boot".to_owned(),
        );
    } else if let Some(why) = devices.iter().find_map(|device| device.persistence.why_unreadable())
    {
        item(
            Verdict::Unknown,
            item_code::PERSISTENCE_UNKNOWN,
            format!("persistence cannot be read: {why}"),
        );
    } else if on > 0 {
        item(Verdict::Ok, item_code::PERSISTENCE_ON, "persistence is on".to_owned());
    }
}
