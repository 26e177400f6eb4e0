//! Values that several rules derive from a node's observation.

use jiff::civil::Date;

use super::nvml::NvmlDevice;
use super::observation::{InstalledKernel, NodeObservation, PciDevice};
use super::reading::Reading;
use crate::check::{CheckRequest, Module, Query};
use crate::gpu::Gpu;
use crate::set::FactSet;

/// The inputs of the rules.
pub(super) struct NodeContext<'a> {
    pub(super) set: &'a FactSet,
    pub(super) observation: &'a NodeObservation,
    /// The day for which the node is evaluated.
    pub(super) on: Date,
    pub(super) strict: bool,
}

/// GPUs of one model.
pub(super) struct GpuModel<'a> {
    /// The name under which the facts are looked up: NVML's name, or a PCI id such as `10de:2330`.
    pub(super) name: String,
    pub(super) count: usize,
    /// `None` if the facts do not have this model.
    pub(super) gpu: Option<&'a Gpu>,
}

impl<'a> NodeContext<'a> {
    /// GPUs on the PCI bus. `None` if the bus is unreadable.
    pub(super) fn gpus_on_pci(&self) -> Option<Vec<&'a PciDevice>> {
        Some(self.observation.pci.value()?.iter().filter(|device| device.is_gpu()).collect())
    }

    /// Address and driver of the GPUs that neither the NVIDIA driver nor nouveau has bound.
    /// `vfio-pci`, for example, passes a GPU to a virtual machine.
    pub(super) fn bound_elsewhere(&self) -> Vec<(&'a str, &'a str)> {
        let gpus = self.gpus_on_pci().unwrap_or_default();
        gpus.into_iter()
            .filter_map(|gpu| Some((gpu.address.as_str(), gpu.bound.value()?.as_str())))
            .filter(|(_, driver)| !matches!(*driver, "nvidia" | "nouveau"))
            .collect()
    }

    /// The devices that NVML lists. Empty if NVML did not answer.
    pub(super) fn devices(&self) -> &'a [NvmlDevice] {
        self.observation.nvml.answered().map_or(&[], |nvml| &nvml.devices)
    }

    /// The devices that NVML could open. A separate rule reports the devices that NVML could not
    /// open.
    pub(super) fn opened_devices(&self) -> Vec<&'a NvmlDevice> {
        self.devices().iter().filter(|device| device.handle.value().is_some()).collect()
    }

    /// Whether the node has a GPU. `None` if unknown.
    pub(super) fn has_gpu(&self) -> Option<bool> {
        if !self.devices().is_empty() {
            return Some(true);
        }
        self.gpus_on_pci().map(|gpus| !gpus.is_empty())
    }

    /// Version of the loaded driver, from the first source that has it.
    pub(super) fn loaded(&self) -> Option<&'a str> {
        let driver = &self.observation.driver;
        let nvml = self.observation.nvml.answered().and_then(|nvml| nvml.driver_version.value());
        let nvrm = || driver.nvrm_line.value().and_then(|line| version_in(line));
        driver.loaded.value().or(nvml).map(String::as_str).or_else(nvrm)
    }

    /// Version of the driver libraries on disk. Programs that start now load these libraries.
    pub(super) fn user_space(&self) -> Option<&'a str> {
        let libraries = self.observation.driver.libraries.value()?;
        libraries.iter().find_map(|library| library.version.value()).map(String::as_str)
    }

    /// Whether the loaded modules are the open or the proprietary modules.
    /// `/proc/driver/nvidia/version` names the open modules.
    pub(super) fn flavour(&self) -> Option<Module> {
        let line = self.observation.driver.nvrm_line.value()?;
        Some(if line.contains("Open Kernel Module") { Module::Open } else { Module::Proprietary })
    }

    /// GPU models, most frequent first.
    pub(super) fn models(&self) -> Vec<GpuModel<'a>> {
        let mut names: Vec<String> = Vec::new();
        for device in self.devices() {
            match (device.name.value(), device.pci_device_id.value()) {
                (Some(name), _) if self.set.gpus.by_name(name).is_some() => {
                    names.push(name.clone());
                }
                (name, Some(id)) => {
                    let by_id = format!("10de:{:04x}", id >> 16);
                    let is_known = self.set.gpus.by_name(&by_id).is_some();
                    names.push(name.filter(|_| !is_known).cloned().unwrap_or(by_id));
                }
                (Some(name), None) => names.push(name.clone()),
                (None, None) => {}
            }
        }
        if names.is_empty() {
            let gpus = self.gpus_on_pci().unwrap_or_default();
            names = gpus.iter().map(|gpu| format!("10de:{}", gpu.device)).collect();
        }
        let mut models: Vec<GpuModel<'a>> = Vec::new();
        for name in names {
            if let Some(model) = models.iter_mut().find(|model| model.name == name) {
                model.count += 1;
            } else {
                let gpu = self.set.gpus.by_name(&name).map(|named| named.gpu);
                models.push(GpuModel { name, count: 1, gpu });
            }
        }
        models.sort_by_key(|model| std::cmp::Reverse(model.count));
        models
    }

    /// The compatibility query for a GPU model with the loaded driver. `None` if no driver is
    /// loaded.
    pub(super) fn query(
        &self,
        model: &GpuModel<'_>,
        framework: Option<String>,
    ) -> Option<Result<Query<'a>, crate::check::InputError>> {
        let request = CheckRequest {
            gpu: model.name.clone(),
            driver: self.loaded()?.to_owned(),
            framework,
            module: self.flavour(),
            strict: self.strict,
            ..CheckRequest::default()
        };
        Some(Query::parse(self.set, &request, self.on))
    }

    /// The running kernel in the list of installed kernels.
    pub(super) fn running_kernel(&self) -> Option<&'a InstalledKernel> {
        let running = self.observation.kernels.running.value()?;
        self.observation.kernels.installed.value()?.iter().find(|kernel| kernel.release == *running)
    }

    /// Whether the observed file system is that of a container. Such a file system says nothing
    /// about the host.
    pub(super) fn inside_container(&self) -> bool {
        self.observation.containers.inside == Reading::Value(true)
    }
}

/// The first word that parses as a driver version.
fn version_in(line: &str) -> Option<&str> {
    line.split_whitespace().find(|word| word.parse::<crate::version::DriverVersion>().is_ok())
}

/// `GPU 0`, `GPUs 0, 3` or `all 8 GPUs`.
pub(super) fn gpus(indices: &[u32], all: usize) -> String {
    match indices {
        [one] => format!("GPU {one}"),
        several if several.len() == all => format!("all {all} GPUs"),
        several => {
            let list: Vec<String> = several.iter().map(ToString::to_string).collect();
            format!("GPUs {}", list.join(", "))
        }
    }
}

/// A count with its noun: `1 package`, `2 packages`.
pub(super) fn counted(count: usize, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}
