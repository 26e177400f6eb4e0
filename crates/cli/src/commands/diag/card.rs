//! Which GPUs are tested, and which must not be.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use farrier_facts::FactSet;
use farrier_facts::diag::{GpuPlacement, PcieCapability, PeerPath, Test};
use farrier_facts::node::{NvmlDevice, NvmlStatus, ReadError, Reading};
use farrier_hardware::cuda::SimulatedGpu;
use farrier_hardware::nvml;

use super::report::Row;
use crate::failure::Hinted;

/// A GPU that may be tested.
#[derive(Debug, Clone)]
pub(super) struct Card {
    pub(super) index: u32,
    /// Empty of one that does not say who it is; it is barred then.
    pub(super) uuid: String,
    pub(super) name: String,
    /// The part's id, where it is known.
    pub(super) part: Option<String>,
    /// Card and slot at their best, and the way to the others.
    pub(super) place: GpuPlacement,
    /// Why it cannot be tested.
    pub(super) barred: Option<Barred>,
    /// Where it is simulated: the file, and its number there.
    pub(super) simulated: Option<(PathBuf, usize)>,
}

impl Card {
    /// As somebody may ask for it.
    fn number_and_uuid(&self) -> String {
        if self.uuid.is_empty() {
            self.index.to_string()
        } else {
            format!("{} ({})", self.index, self.uuid)
        }
    }
}

/// Why a GPU cannot be tested.
#[derive(Debug, Clone)]
pub(super) struct Barred {
    pub(super) why: String,
    /// What to do about a GPU that is broken; none where it is only not for tests.
    remedy: Option<&'static str>,
}

impl Barred {
    /// Not for tests, which says nothing of the GPU.
    fn unfit(why: impl Into<String>) -> Self {
        Self { why: why.into(), remedy: None }
    }

    /// What becomes of the tests: one that is broken has failed, and no other is tried.
    pub(super) fn rows(&self, tests: &[Test]) -> Vec<Row> {
        let row = |(place, test): (usize, &Test)| match self.remedy {
            Some(remedy) if place == 0 => Row::failed(*test, &self.why, remedy),
            _ => Row::not_run(*test, &self.why),
        };
        tests.iter().enumerate().map(row).collect()
    }
}

/// The cards, and the driver that they run on.
pub(super) struct Cards {
    pub(super) cards: Vec<Card>,
    pub(super) driver: Option<String>,
}

impl Cards {
    /// The same cards, with CUDA's part played by those of a file.
    pub(super) fn simulated(mut self, file: &Path) -> anyhow::Result<Self> {
        let count = read(file)?.len().max(1);
        for (index, card) in self.cards.iter_mut().enumerate() {
            card.simulated = Some((file.to_owned(), index % count));
        }
        Ok(self)
    }
}

const NVML_DEADLINE: Duration = Duration::from_secs(20);

/// By NVML.
pub(super) fn by_nvml(set: &FactSet, library: &Path) -> anyhow::Result<Cards> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["probe", "nvml", "--library"]).arg(library);
    let reading = nvml::probe(command, NVML_DEADLINE);
    let Some(answers) = reading.answered() else {
        let why = reading.failure_reason().unwrap_or_default();
        return Err(Hinted::error(
            format!("no GPU can be tested: {why}"),
            "this needs a machine with NVIDIA's driver; `farrier check` says what is wrong with it",
        ));
    };
    let cards = answers.devices.iter().map(|device| of_device(set, device)).collect();
    Ok(Cards { cards, driver: answers.driver_version.value().cloned() })
}

fn of_device(set: &FactSet, device: &NvmlDevice) -> Card {
    let id = device.pci_device_id.value().map(|id| format!("{id:#010x}"));
    let name = device.name.value().cloned();
    let named = |name: &str| set.gpus.by_name(name).map(|named| named.gpu.id.clone());
    let part = id.as_deref().and_then(named).or_else(|| name.as_deref().and_then(named));
    let pcie = device.now.as_ref().and_then(|now| now.pcie.value());
    Card {
        index: device.index,
        uuid: device.uuid.value().cloned().unwrap_or_default(),
        name: name.unwrap_or_else(|| "a GPU without a name".to_owned()),
        part,
        place: GpuPlacement {
            link: pcie.map(|link| PcieCapability {
                generation: link.generation_max,
                width: link.width_max,
            }),
            peers: peers(device),
        },
        barred: barred(device),
        simulated: None,
    }
}

/// A GPU that has joined a fabric reaches all others by its switches, if links are up. Bridges join some pairs, with some of
/// the links, and NVML is not asked which.
fn peers(device: &NvmlDevice) -> PeerPath {
    let links = device.now.as_ref().and_then(|now| now.links.value());
    let has_links = links.is_some_and(|links| links.up > 0);
    let has_joined =
        device.fabric.value().is_some_and(|fabric| fabric.state == 3 && fabric.status == 0);
    if has_links && has_joined { PeerPath::Switch } else { PeerPath::Other }
}

fn barred(device: &NvmlDevice) -> Option<Barred> {
    if let Reading::Unreadable(why) = &device.handle {
        return Some(unopened(why));
    }
    if let Reading::Unreadable(why) = &device.uuid {
        return Some(unopened(why));
    }
    if device.uuid.value().is_none() {
        return Some(Barred::unfit("it does not say who it is"));
    }
    if device.mig.value().is_some_and(|mig| mig.current) {
        return Some(Barred::unfit("it is divided into instances (MIG): they are not tested"));
    }
    if device.compute_mode.value() == Some(&2) {
        return Some(Barred::unfit("its compute mode is `prohibited`: CUDA may not use it"));
    }
    None
}

/// What it means that NVML does not open a GPU.
fn unopened(error: &ReadError) -> Barred {
    let status = match error {
        ReadError::Nvml { status } => Some(*status),
        _ => None,
    };
    let (how, remedy) = match status {
        Some(NvmlStatus::GPU_IS_LOST | NvmlStatus::GPU_NOT_FOUND) => (
            "it fell off the bus",
            "take the node out of service and reboot it; a GPU that is lost again is to be replaced, or its slot and power looked at",
        ),
        Some(NvmlStatus::RESET_REQUIRED) => (
            "it does not work before a reset",
            "reset it (`nvidia-smi --gpu-reset`), and test it again",
        ),
        _ => return Barred::unfit(format!("NVML cannot open it: {error}")),
    };
    Barred { why: format!("{how}: {error}"), remedy: Some(remedy) }
}

/// By a file that describes GPUs which are not there.
pub(super) fn simulated(set: &FactSet, file: &Path) -> anyhow::Result<Cards> {
    let gpus = read(file)?;
    let card = |(index, gpu): (usize, SimulatedGpu)| Card {
        index: u32::try_from(index).unwrap_or(u32::MAX),
        uuid: format!("GPU-simulated-{index}"),
        part: set.gpus.by_name(&gpu.name).map(|named| named.gpu.id.clone()),
        name: gpu.name,
        place: GpuPlacement {
            link: Some(PcieCapability { generation: 5, width: 16 }),
            peers: PeerPath::Switch,
        },
        barred: None,
        simulated: Some((file.to_owned(), index)),
    };
    Ok(Cards { cards: gpus.into_iter().enumerate().map(card).collect(), driver: None })
}

/// What such a file holds: a list.
pub(crate) fn read(file: &Path) -> anyhow::Result<Vec<SimulatedGpu>> {
    let text =
        std::fs::read(file).with_context(|| format!("failed to read `{}`", file.display()))?;
    let gpus: Vec<SimulatedGpu> = serde_json::from_slice(&text)
        .with_context(|| format!("`{}` is no list of simulated GPUs", file.display()))?;
    let hint = "docs/diag.md says what such a file holds, and docs/tour/gpus.json is one";
    if gpus.is_empty() {
        return Err(Hinted::error(format!("`{}` lists no GPU", file.display()), hint));
    }
    for (index, gpu) in gpus.iter().enumerate() {
        if let Some(nonsense) = gpu.invalid_field() {
            let what = format!("`{}`, GPU {index}: {nonsense}", file.display());
            return Err(Hinted::error(what, hint));
        }
    }
    Ok(gpus)
}

/// Those that were asked for, by number or UUID; all where none was.
pub(super) fn chosen(cards: Vec<Card>, asked: &[String]) -> anyhow::Result<Vec<Card>> {
    if cards.is_empty() {
        return Err(Hinted::error(
            "there is no GPU to test",
            "`farrier check` says what NVML and the bus see",
        ));
    }
    if asked.is_empty() {
        return Ok(cards);
    }
    let mut found: Vec<Card> = Vec::new();
    for name in asked {
        let is_it = |card: &&Card| card.index.to_string() == *name || card.uuid == *name;
        let Some(card) = cards.iter().find(is_it) else {
            let known: Vec<String> = cards.iter().map(Card::number_and_uuid).collect();
            return Err(Hinted::error(
                format!("there is no GPU `{name}`"),
                format!("there are {}", known.join(", ")),
            ));
        };
        // One that is lost has no UUID; the number is NVML's own.
        if !found.iter().any(|known| known.index == card.index) {
            found.push(card.clone());
        }
    }
    Ok(found)
}
