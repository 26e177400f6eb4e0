//! GPUs and their architectures.

mod device;
mod vendor;

pub use device::GpuDevice;
pub use vendor::OtherVendor;

use serde::{Deserialize, Serialize};

use crate::origin::Origin;
use crate::version::{Branch, ComputeCapability, CudaVersion, DriverVersion};

/// Contents of `data/gpus/`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuFacts {
    /// One record per SKU.
    pub gpu: Vec<Gpu>,
    pub alias: Vec<Alias>,
    pub architecture: Vec<Architecture>,
    /// What a GPU reports to NVML, by SKU.
    #[serde(default)]
    pub device: Vec<GpuDevice>,
    /// Vendors whose accelerators Farrier does not know.
    #[serde(default)]
    pub other_vendor: Vec<OtherVendor>,
    /// Clocks by SKU. Sets written before this field existed have none.
    #[serde(default)]
    pub clocks: Vec<GpuClocks>,
}

/// Clocks of a GPU under load.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuClocks {
    /// The [`Gpu::id`] that has these clocks.
    pub gpu: String,
    /// Highest SM clock. A busy GPU without a throttle reason runs at this clock.
    pub boost_mhz: u32,
    /// Memory clock of a busy GPU.
    pub memory_mhz: u32,
    pub origin: Origin,
}

impl GpuFacts {
    /// The clocks of the GPU with this NVML name. `None` if no source gives them, or if the name
    /// only denotes a family.
    pub fn clocks_by_name(&self, name: &str) -> Option<&GpuClocks> {
        let found = self.by_name(name).filter(|found| !found.assumed)?;
        self.clocks.iter().find(|clocks| clocks.gpu == found.gpu.id)
    }

    /// The highest graphics and memory clock of a GPU, from its clocks or its device record.
    pub fn highest_clocks_mhz(&self, id: &str, device: &GpuDevice) -> Option<(u32, u32)> {
        let clocks = self.clocks.iter().find(|clocks| clocks.gpu == id);
        let clocks = clocks.map(|clocks| (clocks.boost_mhz, clocks.memory_mhz));
        device.max_graphics_mhz.zip(device.max_memory_mhz).or(clocks)
    }

    /// The GPUs that `farrier plan compare` includes by default, oldest generation first.
    pub fn compared(&self) -> Vec<&Gpu> {
        let in_generation = |generation: &Architecture| {
            let name = generation.name.clone();
            self.gpu.iter().filter(move |gpu| gpu.compared && gpu.architecture == name)
        };
        self.architecture.iter().flat_map(in_generation).collect()
    }
}

/// A GPU SKU.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// Canonical name, such as `H100-SXM5-80GB`.
    pub id: String,
    /// The name of its [`Architecture`].
    pub architecture: String,
    /// The die, such as `GH100`.
    pub chip: String,
    pub compute_capability: ComputeCapability,
    pub form_factor: FormFactor,
    #[serde(default)]
    pub product_line: ProductLine,
    /// Whether `farrier plan compare` includes the GPU by default.
    #[serde(default)]
    pub compared: bool,
    /// Location of its NVSwitch, if any.
    pub fabric: Fabric,
    /// Whether CPU and GPU share one coherent address space (Grace platforms).
    pub coherent: bool,
    /// Product names reported by NVML.
    pub nvml_names: Vec<String>,
    /// PCI device ids below vendor `10de`, four lower-case hexadecimal digits.
    pub pci_device_ids: Vec<String>,
    pub origin: Origin,
    /// First drivers that list it as supported.
    pub listed: Option<DriverListing>,
    /// Memory capacity and bandwidth.
    pub memory: Option<GpuMemory>,
    pub compute: Option<GpuCompute>,
    /// `NVLink` and `PCIe`.
    pub links: Option<GpuLinks>,
    /// The usual system with this GPU.
    pub system: Option<GpuSystem>,
    pub power: Option<GpuPower>,
    /// `None` if the GPU does not support MIG.
    pub mig: Option<GpuMig>,
    pub price: Option<Price>,
    /// Fields (as `group.field`) that no source confirms.
    #[serde(default)]
    pub unverified: Vec<String>,
    /// Values of other sources, which Farrier does not use.
    #[serde(default)]
    pub disputed: Vec<Dispute>,
    pub note: Option<String>,
}

/// Form factor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FormFactor {
    /// A card in a slot.
    Pcie,
    /// A module on a baseboard, with `NVSwitch` on boards of eight.
    Sxm,
    /// Cards joined in pairs or fours by an `NVLink` bridge.
    Nvl,
    /// On one module with a Grace CPU.
    Superchip,
}

impl FormFactor {
    /// The name in lower case, as in the data.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pcie => "pcie",
            Self::Sxm => "sxm",
            Self::Nvl => "nvl",
            Self::Superchip => "superchip",
        }
    }
}

/// NVIDIA's line of products that a GPU belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProductLine {
    #[default]
    DataCenter,
    /// RTX and Quadro cards.
    Workstation,
    #[serde(rename = "geforce")]
    GeForce,
}

/// The first drivers that list a GPU as supported.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriverListing {
    /// For each branch that started without the GPU, the first release that lists it; oldest
    /// branch first. Later branches list the GPU from their first release on.
    pub drivers: Vec<DriverVersion>,
    pub origin: Origin,
}

impl DriverListing {
    /// Whether `driver` lists the GPU.
    pub fn includes(&self, driver: &DriverVersion) -> bool {
        let first_in_branch = self.drivers.iter().find(|first| first.branch() == driver.branch());
        let newest = self.drivers.iter().map(DriverVersion::branch).max();
        match first_in_branch {
            Some(first) => driver >= first,
            None => newest.is_some_and(|newest| driver.branch() > newest),
        }
    }
}

/// Location of a GPU's NVSwitch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fabric {
    None,
    /// On the eight-GPU baseboard: the node runs fabric manager.
    Board,
    /// In the rack's switch trays, which run fabric manager.
    Rack,
}

/// Memory capacity and bandwidth.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuMemory {
    /// Decimal gigabytes, as sold.
    pub capacity_gb: f64,
    /// `HBM3`, `GDDR6`, ...
    pub technology: String,
    /// Peak bandwidth, in decimal gigabytes per second.
    pub bandwidth_gb_per_s: f64,
    pub origin: Origin,
}

/// Peak arithmetic rates, dense (no sparsity).
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuCompute {
    /// FP64 on the vector units.
    pub fp64_tflops: Option<f64>,
    /// FP64 on the tensor cores.
    pub fp64_tensor_tflops: Option<f64>,
    /// FP32 on the vector units.
    pub fp32_tflops: Option<f64>,
    /// TF32 on the tensor cores.
    pub tf32_tflops: Option<f64>,
    /// FP16 and BF16 on the tensor cores.
    pub fp16_tflops: Option<f64>,
    /// FP8 on the tensor cores.
    pub fp8_tflops: Option<f64>,
    /// INT8 on the tensor cores.
    pub int8_tops: Option<f64>,
    /// FP4 on the tensor cores.
    pub fp4_tflops: Option<f64>,
    pub origin: Origin,
}

/// `NVLink` and `PCIe`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuLinks {
    /// `NVLink` generation.
    pub nvlink_generation: Option<u32>,
    /// All links of one GPU, both directions together, in decimal gigabytes per second.
    pub nvlink_gb_per_s: Option<f64>,
    /// `PCIe` generation.
    pub pcie_generation: Option<u32>,
    pub origin: Origin,
}

/// The usual system with a GPU, such as NVIDIA's reference design.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuSystem {
    /// GPUs per node.
    pub gpus: u32,
    /// GPUs that `NVLink` joins; `None` without `NVLink`.
    pub nvlink_domain: Option<u32>,
    /// Network bandwidth per GPU and direction.
    pub network_gbit_per_s: f64,
    pub origin: Origin,
}

/// Board power limits.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuPower {
    /// Default power limit.
    pub default_w: f64,
    /// Minimum power limit, if different from `default_w`.
    pub min_w: Option<f64>,
    /// Maximum power limit, if different from `default_w`.
    pub max_w: Option<f64>,
    pub origin: Origin,
}

/// Multi-instance GPU.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuMig {
    /// Maximum number of instances.
    pub instances_max: u32,
    /// First driver with MIG support, if a source says so.
    pub driver_min: Option<DriverVersion>,
    /// Maximum number of instances by profile name.
    pub profiles: std::collections::BTreeMap<String, u32>,
    pub origin: Origin,
}

/// List price of a GPU.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// On-demand price of one GPU.
    pub usd_per_gpu_hour: f64,
    /// Cloud instance that the price was taken from.
    pub instance: String,
    pub origin: Origin,
}

/// A conflicting value from another source.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dispute {
    /// The field, as `group.field`.
    pub field: String,
    /// The other source's value.
    pub other: String,
    pub source: String,
    pub why_not: String,
}

/// Another name of a GPU.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alias {
    /// The [`Gpu::id`] that these names mean.
    pub gpu: String,
    /// Compared without case, spaces and punctuation.
    pub names: Vec<String>,
    /// Names of a family that people also use for this member. The answer says that this member
    /// was assumed.
    #[serde(default)]
    pub family: Vec<String>,
    pub origin: Origin,
}

/// A GPU generation.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Architecture {
    /// Such as `Hopper`.
    pub name: String,
    pub modules: Modules,
    /// Last driver branch that supports it; `None` while supported.
    pub last_branch: Option<Branch>,
    /// Its compute capabilities.
    pub targets: Vec<CompilerTarget>,
    /// Origin of the values above, except `first_branch` of the targets.
    pub origin: Origin,
    /// Origin of `first_branch` of the targets.
    pub first_branch_origin: Origin,
}

impl Architecture {
    /// Whether a branch supports any GPU of the generation.
    pub fn is_driven_by(&self, branch: Branch) -> bool {
        self.targets.iter().any(|target| self.drives_target(target, branch))
    }

    /// Whether a branch supports the GPUs of one target.
    pub fn drives_target(&self, target: &CompilerTarget, branch: Branch) -> bool {
        target.first_branch.is_none_or(|first| branch >= first)
            && self.last_branch.is_none_or(|last| branch <= last)
    }
}

/// Kernel modules that support an architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Modules {
    /// Only the open modules.
    Open,
    /// Only the proprietary modules (no GSP on the die).
    Proprietary,
    /// Both.
    Either,
}

/// A compute capability as a compiler target.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompilerTarget {
    /// Such as `9.0`.
    pub compute_capability: ComputeCapability,
    /// First CUDA whose compiler supports it.
    pub first_cuda: CudaVersion,
    /// Last CUDA whose compiler supports it; `None` while supported.
    pub last_cuda: Option<CudaVersion>,
    /// First driver branch that supports it; `None` if older than the data.
    pub first_branch: Option<Branch>,
}
