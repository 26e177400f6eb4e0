//! Are the GPUs present, reachable and known?

use crate::check::Verdict;
use crate::node::context::{NodeContext, counted, gpus};
use crate::node::item_code;
use crate::node::nvml::{NvmlDevice, NvmlReading};
use crate::node::nvml_status::NvmlStatus;
use crate::node::reading::Reading;
use crate::node::report::NodeFindings;

const PCI: &str = "/sys/bus/pci/devices";

pub(crate) fn evaluate(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    if node.has_gpu() == Some(false) {
        findings.item(
            Verdict::Blocked,
            item_code::NO_NVIDIA_GPU,
            "GPUs",
            "no NVIDIA GPU on this machine",
            PCI,
        );
        return;
    }
    answers(node, findings);
    count(node, findings);
    unreachable(node, findings);
    models(node, findings);
}

fn answers(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    let mut item = |verdict, code, text: String| {
        findings.item(verdict, code, "NVML", text, "NVML");
    };
    let failure = node.observation.nvml.failure_reason().unwrap_or_default();
    match &node.observation.nvml {
        NvmlReading::Answered(nvml) => {
            let version =
                nvml.library_version.value().map_or("an unknown version", |version| version);
            item(Verdict::Ok, item_code::NVML_ANSWERS, format!("NVML {version} answers"));
        }
        NvmlReading::Refused { error: NvmlStatus::LIB_RM_VERSION_MISMATCH } => {
            item(
                Verdict::Blocked,
                item_code::NVML_MISMATCH,
                format!(
                    "{failure}: the library and the loaded module have different versions, so no \
                     CUDA program starts"
                ),
            );
        }
        NvmlReading::Refused { error: NvmlStatus::NO_PERMISSION } => {
            item(Verdict::Unknown, item_code::NVML_REFUSED, format!("{failure}; run as root"));
        }
        NvmlReading::Refused { .. } => item(Verdict::Blocked, item_code::NVML_REFUSED, failure),
        NvmlReading::Hung { .. } => {
            item(
                Verdict::Unknown,
                item_code::NVML_HUNG,
                format!("{failure}: the driver probably hangs; see the kernel log"),
            );
            findings.remedy(
                "for a driver that does not answer",
                "read the kernel log for Xids, then drain and reboot the node",
                Some("dmesg | farrier decode -"),
            );
            unread(node, findings);
        }
        NvmlReading::NoLibrary { .. } | NvmlReading::Died { .. } | NvmlReading::NotAsked { .. } => {
            item(Verdict::Unknown, item_code::NVML_SILENT, failure);
        }
    }
}

/// Reports GPUs that were not queried because an earlier call hung.
fn unread(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    let count = node.observation.nvml.answered().and_then(|nvml| nvml.count.value().copied());
    let read = |index: &u32| node.devices().iter().any(|device| device.index == *index);
    let unread: Vec<u32> = (0..count.unwrap_or(0)).filter(|index| !read(index)).collect();
    if !node.devices().is_empty() && !unread.is_empty() {
        let which = gpus(&unread, 0);
        let were = if unread.len() == 1 { "was" } else { "were" };
        let text = format!("{which} {were} not read; the results cover only the other GPUs");
        findings.item(Verdict::Unknown, item_code::GPUS_UNREAD, which, text, "NVML");
    }
}

fn count(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    let source = "/sys/bus/pci/devices; NVML";
    let nvml = node.observation.nvml.answered().map(|nvml| &nvml.count);
    let bound_elsewhere = node.bound_elsewhere();
    if let Some((address, driver)) = bound_elsewhere.first() {
        findings.item(
            Verdict::Caveat,
            item_code::GPU_GIVEN_AWAY,
            "GPUs",
            format!(
                "{} not bound to the NVIDIA driver: {address} is bound to {driver}",
                if bound_elsewhere.len() == 1 {
                    "1 GPU is".to_owned()
                } else {
                    format!("{} GPUs are", bound_elsewhere.len())
                }
            ),
            "/sys/bus/pci/devices/*/driver",
        );
    }
    let on_pci = node.gpus_on_pci().map(|gpus| gpus.len() - bound_elsewhere.len());
    let (verdict, text) = match (on_pci, nvml) {
        (None, _) => {
            let why = node.observation.pci.why_unreadable();
            let why = why.map_or("there is no PCI bus to read".to_owned(), ToString::to_string);
            (Verdict::Unknown, format!("GPUs on PCI cannot be counted: {why}"))
        }
        (Some(pci), None) => (
            Verdict::Unknown,
            format!("{} on PCI; the number in NVML is unknown", counted(pci, "GPU")),
        ),
        (Some(pci), Some(Reading::Value(nvml))) => {
            let nvml = *nvml as usize;
            match pci.cmp(&nvml) {
                std::cmp::Ordering::Equal => {
                    (Verdict::Ok, format!("{} on PCI and in NVML", counted(pci, "GPU")))
                }
                std::cmp::Ordering::Greater => (
                    Verdict::Blocked,
                    format!(
                        "{} on PCI, but NVML lists {nvml}: the driver did not initialise the others",
                        counted(pci, "GPU")
                    ),
                ),
                std::cmp::Ordering::Less => (
                    Verdict::Caveat,
                    format!(
                        "NVML lists {nvml} GPUs, but PCI shows {pci}: not all PCI devices are visible here"
                    ),
                ),
            }
        }
        (Some(pci), Some(_)) => {
            (Verdict::Unknown, format!("{} on PCI; NVML returns no number", counted(pci, "GPU")))
        }
    };
    findings.item(verdict, item_code::GPU_COUNT, "GPUs", text, source);
}

fn unreachable(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    for device in node.devices() {
        let why = match &device.handle {
            Reading::Value(()) => continue,
            Reading::Absent => "not supported".to_owned(),
            Reading::Unreadable(why) => why.to_string(),
        };
        findings.item(
            Verdict::Blocked,
            item_code::GPU_UNREACHABLE,
            gpus(&[device.index], 0),
            format!("GPU {} cannot be opened: {why}", device.index),
            "NVML, nvmlDeviceGetHandleByIndex_v2",
        );
        findings.remedy(
            "for a GPU that cannot be opened",
            "read the kernel log, then drain and reboot the node",
            Some("dmesg | farrier decode -"),
        );
    }
}

fn models(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    let models = node.models();
    for model in &models {
        let count = model.count;
        match model.gpu {
            Some(gpu) => findings.item(
                Verdict::Ok,
                item_code::GPU_KNOWN,
                "GPUs",
                format!("{count} × {} ({})", model.name, gpu.id),
                gpu.origin.line(),
            ),
            None => findings.item(
                Verdict::Unknown,
                item_code::GPU_UNKNOWN,
                "GPUs",
                format!("{count} × {}: this GPU is not in the data", model.name),
                "NVML; /sys/bus/pci/devices",
            ),
        }
    }
    if models.len() > 1 {
        let names: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
        findings.item(
            Verdict::Caveat,
            item_code::GPU_MODELS_MIXED,
            "GPUs",
            format!("GPUs of different models in one node: {}", names.join(", ")),
            "NVML",
        );
        return;
    }
    let value = |device: &NvmlDevice| device.vbios.value().cloned();
    let mut versions: Vec<String> = node.devices().iter().filter_map(value).collect();
    versions.sort();
    versions.dedup();
    if versions.len() > 1 {
        findings.item(
            Verdict::Caveat,
            item_code::VBIOS_MIXED,
            "GPUs",
            format!("GPUs of one model with different VBIOS: {}", versions.join(", ")),
            "NVML, nvmlDeviceGetVbiosVersion",
        );
    }
}
