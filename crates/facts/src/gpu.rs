//! GPUs and their architectures.

use serde::{Deserialize, Serialize};

use crate::origin::Origin;
use crate::version::{Branch, ComputeCapability, CudaVersion, DriverVersion};

/// What `data/gpus/` holds.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuFacts {
    /// The parts, one record a SKU.
    pub gpu: Vec<Gpu>,
    /// Other names of the parts.
    pub alias: Vec<Alias>,
    /// The generations.
    pub architecture: Vec<Architecture>,
}

/// A GPU model.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// The one canonical name, such as `H100-SXM5-80GB`.
    pub id: String,
    /// The name of its [`Architecture`].
    pub architecture: String,
    /// The die, such as `GH100`.
    pub chip: String,
    /// What machine code it runs.
    pub compute_capability: ComputeCapability,
    /// How it is mounted.
    pub form_factor: FormFactor,
    /// Where its NVSwitch is, if it has one.
    pub fabric: Fabric,
    /// Whether CPU and GPU memory are one coherent space (Grace platforms).
    pub coherent: bool,
    /// What NVML calls it.
    pub nvml_names: Vec<String>,
    /// PCI device ids below vendor `10de`, four lower-case hexadecimal digits.
    pub pci_device_ids: Vec<String>,
    /// Of the values above.
    pub origin: Origin,
    /// The first drivers that name it.
    pub listed: Option<DriverListing>,
    /// Memory size and speed.
    pub memory: Option<Memory>,
    /// Peak arithmetic rates.
    pub compute: Option<Compute>,
    /// `NVLink` and `PCIe`.
    pub links: Option<Links>,
    /// Board power.
    pub power: Option<Power>,
    /// Partitioning into instances; absent where the part has none.
    pub mig: Option<Mig>,
    /// A list price.
    pub price: Option<Price>,
    /// Fields (as `group.field`) that no source confirms.
    #[serde(default)]
    pub unverified: Vec<String>,
    /// Values on which sources disagree, beside the one that we follow.
    #[serde(default)]
    pub disputed: Vec<Dispute>,
    /// What a person should know besides.
    pub note: Option<String>,
}

/// How a GPU is mounted.
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

/// The first drivers that name a part among those they support.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriverListing {
    /// The first release of each branch that began with older releases; oldest branch first. Later
    /// branches list the part from their start.
    pub drivers: Vec<DriverVersion>,
    /// Of the values above.
    pub origin: Origin,
}

impl DriverListing {
    /// Whether `driver` names the part.
    pub fn includes(&self, driver: &DriverVersion) -> bool {
        let of_branch = self.drivers.iter().find(|first| first.branch() == driver.branch());
        let newest = self.drivers.iter().map(DriverVersion::branch).max();
        match of_branch {
            Some(first) => driver >= first,
            None => newest.is_some_and(|newest| driver.branch() > newest),
        }
    }
}

/// Where the NVSwitch of a GPU is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fabric {
    /// There is none.
    None,
    /// On the baseboard of eight: the node runs fabric manager.
    Board,
    /// In the switch trays of the rack: they run it.
    Rack,
}

/// Memory size and speed.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// Decimal gigabytes, as sold.
    pub capacity_gb: f64,
    /// `HBM3`, `GDDR6`, ...
    pub technology: String,
    /// Peak, decimal gigabytes a second.
    pub bandwidth_gb_per_s: f64,
    /// Of the values above.
    pub origin: Origin,
}

/// Peak arithmetic rates, dense (no sparsity).
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compute {
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
    /// Of the values above.
    pub origin: Origin,
}

/// `NVLink` and `PCIe`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Links {
    /// `NVLink` generation.
    pub nvlink_generation: Option<u32>,
    /// All links of one GPU, both directions together, decimal gigabytes a second.
    pub nvlink_gb_per_s: Option<f64>,
    /// `PCIe` generation.
    pub pcie_generation: Option<u32>,
    /// Of the values above.
    pub origin: Origin,
}

/// Board power.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Power {
    /// The limit that the card starts with.
    pub default_w: f64,
    /// The lowest limit that the card takes, where it is not `default_w`.
    pub min_w: Option<f64>,
    /// The highest limit that the card takes, where it is not `default_w`.
    pub max_w: Option<f64>,
    /// Of the values above.
    pub origin: Origin,
}

/// Multi-instance GPU.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mig {
    /// Most instances at once.
    pub instances_max: u32,
    /// The first driver with it, where a source says so.
    pub driver_min: Option<DriverVersion>,
    /// Profile name to the most instances of it.
    pub profiles: std::collections::BTreeMap<String, u32>,
    /// Of the values above.
    pub origin: Origin,
}

/// A list price.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// On demand, for one GPU.
    pub usd_per_gpu_hour: f64,
    /// Whose instance.
    pub instance: String,
    /// Of the values above.
    pub origin: Origin,
}

/// A value that another source gives differently.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dispute {
    /// The field, as `group.field`.
    pub field: String,
    /// What the other source says.
    pub other: String,
    /// The other source.
    pub source: String,
    /// Why we do not follow it.
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
    /// Names of a family that people also use for one part of it: the answer says what was taken.
    #[serde(default)]
    pub family: Vec<String>,
    /// Where the names were seen.
    pub origin: Origin,
}

/// A GPU generation.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Architecture {
    /// Such as `Hopper`.
    pub name: String,
    /// Which kernel modules drive it.
    pub modules: Modules,
    /// The branch after which the driver no longer knows it; absent while support goes on.
    pub last_branch: Option<Branch>,
    /// Its compute capabilities.
    pub targets: Vec<Target>,
    /// Of the values above, but for `first_branch` of the targets.
    pub origin: Origin,
    /// Of `first_branch` of the targets.
    pub first_branch_origin: Origin,
}

impl Architecture {
    /// Whether a branch drives some part of the generation.
    pub fn is_driven_by(&self, branch: Branch) -> bool {
        self.targets.iter().any(|target| self.drives_target(target, branch))
    }

    /// Whether a branch drives the parts of one target.
    pub fn drives_target(&self, target: &Target, branch: Branch) -> bool {
        target.first_branch.is_none_or(|first| branch >= first)
            && self.last_branch.is_none_or(|last| branch <= last)
    }
}

/// The kernel modules that an architecture can be driven by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Modules {
    /// Only the open ones.
    Open,
    /// Only the proprietary ones (no GSP on the die).
    Proprietary,
    /// Both.
    Either,
}

/// A compute capability as a target of the compiler.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// Such as `9.0`.
    pub compute_capability: ComputeCapability,
    /// The first CUDA whose compiler knows it.
    pub first_cuda: CudaVersion,
    /// The last CUDA whose compiler knows it; absent while support goes on.
    pub last_cuda: Option<CudaVersion>,
    /// The first driver branch that drives it; absent where that is older than the data.
    pub first_branch: Option<Branch>,
}
