//! Selects the GPUs to test, and marks those that cannot be tested.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use farrier_facts::FactSet;
use farrier_facts::diag::{GpuPlacement, PcieCapability, PeerPath, Test};
use farrier_facts::node::{NvmlDevice, NvmlStatus, ReadError, Reading};
use farrier_hardware::cuda::SimulatedGpu;
use farrier_hardware::nvml;

use super::report::TestRow;
use crate::failure::Hinted;

/// A GPU to test.
#[derive(Debug, Clone)]
pub(super) struct DiagTarget {
    pub(super) index: u32,
    /// Empty if the GPU does not report a UUID; such a GPU is untestable.
    pub(super) uuid: String,
    pub(super) name: String,
    /// Id of the GPU's SKU in the fact set, if known.
    pub(super) part: Option<String>,
    /// Best PCIe link of card and slot, and the path to peer GPUs.
    pub(super) place: GpuPlacement,
    /// Set if the GPU cannot be tested.
    pub(super) untestable: Option<Untestable>,
    /// For a simulated GPU: the file and the index in it.
    pub(super) simulated: Option<(PathBuf, usize)>,
}

impl DiagTarget {
    /// Index and UUID, as accepted by `--gpu`.
    fn index_and_uuid(&self) -> String {
        if self.uuid.is_empty() {
            self.index.to_string()
        } else {
            format!("{} ({})", self.index, self.uuid)
        }
    }
}

/// Why a GPU cannot be tested.
#[derive(Debug, Clone)]
pub(super) struct Untestable {
    pub(super) why: String,
    /// What to do if the GPU is broken. `None` if the GPU is only unsuitable for tests.
    remedy: Option<&'static str>,
}

impl Untestable {
    /// The GPU is unsuitable for tests. This says nothing about its health.
    fn unfit(why: impl Into<String>) -> Self {
        Self { why: why.into(), remedy: None }
    }

    /// The rows of the result. On a broken GPU, the first test fails, and the others do not run.
    pub(super) fn rows(&self, tests: &[Test]) -> Vec<TestRow> {
        let row = |(index, test): (usize, &Test)| match self.remedy {
            Some(remedy) if index == 0 => TestRow::failed(*test, &self.why, remedy),
            _ => TestRow::not_run(*test, &self.why),
        };
        tests.iter().enumerate().map(row).collect()
    }
}

/// The GPUs to test, and their driver version.
pub(super) struct DiagTargets {
    pub(super) targets: Vec<DiagTarget>,
    pub(super) driver: Option<String>,
}

impl DiagTargets {
    /// Makes the CUDA tests run on the simulated GPUs in `file`.
    pub(super) fn simulated(mut self, file: &Path) -> anyhow::Result<Self> {
        let count = read(file)?.len().max(1);
        for (index, target) in self.targets.iter_mut().enumerate() {
            target.simulated = Some((file.to_owned(), index % count));
        }
        Ok(self)
    }
}

const NVML_DEADLINE: Duration = Duration::from_secs(20);

/// Detects GPUs through NVML.
pub(super) fn from_nvml(set: &FactSet, library: &Path) -> anyhow::Result<DiagTargets> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["probe", "nvml", "--library"]).arg(library);
    let reading = nvml::probe(command, NVML_DEADLINE);
    let Some(answers) = reading.answered() else {
        let why = reading.failure_reason().unwrap_or_default();
        return Err(Hinted::error(
            format!("no GPU can be tested: {why}"),
            "this needs a machine with the NVIDIA driver; `farrier check` diagnoses it",
        ));
    };
    let targets = answers.devices.iter().map(|device| from_device(set, device)).collect();
    Ok(DiagTargets { targets, driver: answers.driver_version.value().cloned() })
}

fn from_device(set: &FactSet, device: &NvmlDevice) -> DiagTarget {
    let id = device.pci_device_id.value().map(|id| format!("{id:#010x}"));
    let name = device.name.value().cloned();
    let model = |name: &str| set.gpus.by_name(name).map(|matched| matched.gpu.id.clone());
    let part = id.as_deref().and_then(model).or_else(|| name.as_deref().and_then(model));
    let pcie = device.now.as_ref().and_then(|now| now.pcie.value());
    DiagTarget {
        index: device.index,
        uuid: device.uuid.value().cloned().unwrap_or_default(),
        name: name.unwrap_or_else(|| "unnamed GPU".to_owned()),
        part,
        place: GpuPlacement {
            link: pcie.map(|link| PcieCapability {
                generation: link.generation_max,
                width: link.width_max,
            }),
            peers: peers(device),
        },
        untestable: untestable(device),
        simulated: None,
    }
}

/// The path to the peers of a GPU. If the GPU has active links and has joined a fabric, it reaches
/// all other GPUs through NVSwitch. NVLink bridges connect only some pairs of GPUs, and NVML is not
/// queried for these pairs.
fn peers(device: &NvmlDevice) -> PeerPath {
    let links = device.now.as_ref().and_then(|now| now.links.value());
    let has_links = links.is_some_and(|links| links.up > 0);
    let has_joined =
        device.fabric.value().is_some_and(|fabric| fabric.state == 3 && fabric.status == 0);
    if has_links && has_joined { PeerPath::Switch } else { PeerPath::Other }
}

fn untestable(device: &NvmlDevice) -> Option<Untestable> {
    if let Reading::Unreadable(why) = &device.handle {
        return Some(unopened(why));
    }
    if let Reading::Unreadable(why) = &device.uuid {
        return Some(unopened(why));
    }
    if device.uuid.value().is_none() {
        return Some(Untestable::unfit("it reports no UUID"));
    }
    if device.mig.value().is_some_and(|mig| mig.current) {
        return Some(Untestable::unfit("MIG is enabled: MIG instances are not tested"));
    }
    if device.compute_mode.value() == Some(&2) {
        return Some(Untestable::unfit("its compute mode is `prohibited`: CUDA may not use it"));
    }
    None
}

/// Interprets NVML's error for a GPU that it cannot open.
fn unopened(error: &ReadError) -> Untestable {
    let status = match error {
        ReadError::Nvml { status } => Some(*status),
        _ => None,
    };
    let (symptom, remedy) = match status {
        Some(NvmlStatus::GPU_IS_LOST | NvmlStatus::GPU_NOT_FOUND) => (
            "it fell off the bus",
            "take the node out of service and reboot it; if the GPU is lost again, replace it, or check its slot and power",
        ),
        Some(NvmlStatus::RESET_REQUIRED) => {
            ("it needs a reset", "reset it (`nvidia-smi --gpu-reset`) and test it again")
        }
        _ => return Untestable::unfit(format!("NVML cannot open it: {error}")),
    };
    Untestable { why: format!("{symptom}: {error}"), remedy: Some(remedy) }
}

/// Simulated GPUs described by a file.
pub(super) fn simulated(set: &FactSet, file: &Path) -> anyhow::Result<DiagTargets> {
    let gpus = read(file)?;
    let target = |(index, gpu): (usize, SimulatedGpu)| DiagTarget {
        index: u32::try_from(index).unwrap_or(u32::MAX),
        uuid: format!("GPU-simulated-{index}"),
        part: set.gpus.by_name(&gpu.name).map(|matched| matched.gpu.id.clone()),
        name: gpu.name,
        place: GpuPlacement {
            link: Some(PcieCapability { generation: 5, width: 16 }),
            peers: PeerPath::Switch,
        },
        untestable: None,
        simulated: Some((file.to_owned(), index)),
    };
    Ok(DiagTargets { targets: gpus.into_iter().enumerate().map(target).collect(), driver: None })
}

/// Reads a file of simulated GPUs: a JSON list.
pub(crate) fn read(file: &Path) -> anyhow::Result<Vec<SimulatedGpu>> {
    let text =
        std::fs::read(file).with_context(|| format!("failed to read `{}`", file.display()))?;
    let gpus: Vec<SimulatedGpu> = serde_json::from_slice(&text)
        .with_context(|| format!("`{}` is not a list of simulated GPUs", file.display()))?;
    let hint = "docs/diag.md describes the format, docs/tour/gpus.json is an example";
    if gpus.is_empty() {
        return Err(Hinted::error(format!("`{}` lists no GPU", file.display()), hint));
    }
    for (index, gpu) in gpus.iter().enumerate() {
        if let Some(invalid) = gpu.invalid_field() {
            let what = format!("`{}`, GPU {index}: {invalid}", file.display());
            return Err(Hinted::error(what, hint));
        }
    }
    Ok(gpus)
}

/// Selects GPUs by index or UUID. Without names, selects all GPUs.
pub(super) fn select(
    targets: Vec<DiagTarget>,
    names: &[String],
) -> anyhow::Result<Vec<DiagTarget>> {
    if targets.is_empty() {
        return Err(Hinted::error(
            "no GPU to test",
            "`farrier check` shows which GPUs NVML and the PCI bus see",
        ));
    }
    if names.is_empty() {
        return Ok(targets);
    }
    let mut selected: Vec<DiagTarget> = Vec::new();
    for name in names {
        let matches =
            |target: &&DiagTarget| target.index.to_string() == *name || target.uuid == *name;
        let Some(target) = targets.iter().find(matches) else {
            let known: Vec<String> = targets.iter().map(DiagTarget::index_and_uuid).collect();
            return Err(Hinted::error(
                format!("no GPU `{name}`"),
                format!("available: {}", known.join(", ")),
            ));
        };
        // Compare the index, which NVML always reports. A lost GPU has no UUID.
        if !selected.iter().any(|other| other.index == target.index) {
            selected.push(target.clone());
        }
    }
    Ok(selected)
}
