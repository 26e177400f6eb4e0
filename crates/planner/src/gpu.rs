//! The GPU: peak rates, memory and interconnect.

use farrier_facts::FactSet;
use farrier_facts::gpu::{Fabric, FormFactor, Gpu};
use farrier_facts::names;

use crate::precision::Precision;

/// Tensor-core generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Generation {
    /// A100 and similar.
    Ampere,
    /// H100, H200 and similar.
    Hopper,
    /// B200, GB200 and similar.
    Blackwell,
}

impl Generation {
    /// Oldest first.
    pub const ALL: [Self; 3] = [Self::Ampere, Self::Hopper, Self::Blackwell];

    pub fn name(self) -> &'static str {
        match self {
            Self::Ampere => "ampere",
            Self::Hopper => "hopper",
            Self::Blackwell => "blackwell",
        }
    }
}

/// Peak rates of a GPU and its interconnect.
#[derive(Debug, Clone, PartialEq)]
pub struct Accelerator {
    /// SKU id in the facts.
    pub id: String,
    pub generation: Generation,
    /// Dense 16-bit peak, FLOP/s.
    pub flops_16bit: f64,
    /// Dense FP8 peak, FLOP/s; the 16-bit peak if the GPU has no FP8.
    pub fp8_flops: f64,
    /// Dense FP4 peak, FLOP/s; the FP8 peak if the GPU has no FP4.
    pub fp4_flops: f64,
    /// Nominal memory less inline ECC, bytes.
    pub hbm_bytes: f64,
    /// Peak memory bandwidth, bytes/s.
    pub hbm_bytes_per_s: f64,
    /// `NVLink` bandwidth per direction, bytes/s; `PCIe` if there is no `NVLink`.
    pub link_bytes_per_s: f64,
    /// Whether `link_bytes_per_s` is `NVLink`.
    pub has_nvlink: bool,
    /// GPUs per `NVLink` domain; GPUs per node if there is no `NVLink`.
    pub domain: u32,
    /// `PCIe` bandwidth to the host per direction, bytes/s.
    pub host_bytes_per_s: f64,
    /// Network bandwidth per GPU and direction, bytes/s.
    pub network_bytes_per_s: f64,
    /// Power limit as a share of the SKU's default. Some clouds run GPUs below it.
    pub power_share: f64,
    /// List price, if known.
    pub usd_per_hour: Option<f64>,
}

/// Why a GPU cannot be used in a plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// The GPU is not in the facts.
    #[error("unknown GPU `{name}`{}", suggestions(.nearest))]
    Unknown { name: String, nearest: Vec<String> },
    /// The facts lack a value that a plan needs.
    #[error("the facts have no {what} for `{id}`; GPUs that can be planned with: {known}")]
    Incomplete {
        id: String,
        what: &'static str,
        /// GPUs with complete facts.
        known: String,
    },
}

fn suggestions(nearest: &[String]) -> String {
    if nearest.is_empty() {
        String::new()
    } else {
        format!("; did you mean `{}`?", nearest.join("` or `"))
    }
}

impl Accelerator {
    /// Looks up a GPU by id or alias.
    pub fn by_name(facts: &FactSet, name: &str) -> Result<Self, GpuError> {
        let Some(found) = facts.gpus.by_name(name) else {
            let ids = facts.gpus.gpu.iter().map(|gpu| gpu.id.as_str());
            let nearest = names::nearest(name, ids).into_iter().map(str::to_owned).collect();
            return Err(GpuError::Unknown { name: name.to_owned(), nearest });
        };
        Self::from_facts(found.gpu).map_err(|what| GpuError::Incomplete {
            id: found.gpu.id.clone(),
            what,
            known: plannable(facts).join(", "),
        })
    }

    /// Converts a GPU of the facts, or names the missing fact.
    pub fn from_facts(gpu: &Gpu) -> Result<Self, &'static str> {
        let generation = match gpu.architecture.as_str() {
            "Ampere" => Generation::Ampere,
            "Hopper" => Generation::Hopper,
            "Blackwell" => Generation::Blackwell,
            _ => return Err("training speed of the generation"),
        };
        let memory = gpu.memory.as_ref().ok_or("memory")?;
        let compute = gpu.compute.as_ref().ok_or("arithmetic rates")?;
        let half = compute.fp16_tflops.ok_or("16-bit rate")? * 1e12;
        let fp8 = compute.fp8_tflops.map_or(half, |tflops| tflops * 1e12);
        let links = gpu.links.as_ref().ok_or("links")?;
        let bridged = matches!(gpu.form_factor, FormFactor::Pcie | FormFactor::Nvl);
        let domain = match gpu.fabric {
            Fabric::Rack => 72,
            Fabric::Board => 8,
            Fabric::None if bridged && links.nvlink_gb_per_s.is_some() => 2,
            Fabric::None => gpus_per_node(&gpu.id),
        };
        let pcie = match links.pcie_generation {
            Some(generation) if generation >= 5 => 55e9,
            Some(4) => 26e9,
            _ => 13e9,
        };
        // Default network of the generation's reference systems: one port per GPU of 200, 400 and,
        // for the newest, 800 Gbit/s. `--network` overrides it.
        let network_bytes_per_s = match generation {
            Generation::Ampere => 25e9,
            Generation::Blackwell if gpu.id.contains("B300") => 100e9,
            Generation::Hopper | Generation::Blackwell => 50e9,
        };
        Ok(Self {
            id: gpu.id.clone(),
            generation,
            flops_16bit: half,
            fp8_flops: fp8,
            fp4_flops: compute.fp4_tflops.map_or(fp8, |tflops| tflops * 1e12),
            hbm_bytes: memory.capacity_gb * 1e9 * share_after_ecc(&memory.technology),
            hbm_bytes_per_s: memory.bandwidth_gb_per_s * 1e9,
            link_bytes_per_s: links.nvlink_gb_per_s.map_or(pcie, |both| both / 2.0 * 1e9),
            has_nvlink: links.nvlink_gb_per_s.is_some(),
            domain,
            // If the facts do not state it: Ampere has PCIe 4, later generations PCIe 5 or better.
            host_bytes_per_s: match (links.pcie_generation, generation) {
                (Some(_), _) => pcie,
                (None, Generation::Ampere) => 26e9,
                (None, _) => 55e9,
            },
            network_bytes_per_s,
            power_share: 1.0,
            usd_per_hour: gpu.price.as_ref().map(|price| price.usd_per_gpu_hour),
        })
    }

    pub fn gpus_per_node(&self) -> u32 {
        gpus_per_node(&self.id)
    }

    /// Peak FLOP/s of a GEMM in a precision.
    pub fn peak_flops(&self, precision: Precision) -> f64 {
        match precision {
            Precision::Fp16 | Precision::Bf16 => self.flops_16bit,
            Precision::Fp8 | Precision::Fp8Row | Precision::Fp8Block | Precision::Mxfp8 => {
                self.fp8_flops
            }
            Precision::Nvfp4 => self.fp4_flops,
        }
    }
}

/// A compute tray of NVL72 has 4 GPUs, a Grace superchip with one GPU is a node by itself, and
/// other servers have 8.
fn gpus_per_node(id: &str) -> u32 {
    if id.starts_with("GB200") || id.starts_with("GB300") {
        4
    } else if id.starts_with("GH200") || id.starts_with("GB10") {
        1
    } else {
        8
    }
}

/// HBM and GDDR7 store ECC bits outside the nominal capacity; GDDR6 uses a sixteenth of it (NVML
/// reports 23,028 MiB for a 24 GB A10 and 46,068 MiB for a 48 GB A40).
fn share_after_ecc(technology: &str) -> f64 {
    if technology.starts_with("GDDR6") { 15.0 / 16.0 } else { 1.0 }
}

/// Ids of all GPUs that can be used in a plan.
pub fn plannable(facts: &FactSet) -> Vec<&str> {
    let is_complete = |gpu: &&Gpu| Accelerator::from_facts(gpu).is_ok();
    facts.gpus.gpu.iter().filter(is_complete).map(|gpu| gpu.id.as_str()).collect()
}
