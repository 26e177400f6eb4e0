//! What trains: a GPU's rates, and how GPUs are joined.

use farrier_facts::FactSet;
use farrier_facts::gpu::{Fabric, FormFactor, Gpu};
use farrier_facts::names;

use crate::precision::Precision;

/// A generation of tensor cores, as far as efficiency differs by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Generation {
    /// A100 and its kin.
    Ampere,
    /// H100, H200 and their kin.
    Hopper,
    /// B200, GB200 and their kin.
    Blackwell,
}

impl Generation {
    /// All of them, oldest first.
    pub const ALL: [Self; 3] = [Self::Ampere, Self::Hopper, Self::Blackwell];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ampere => "ampere",
            Self::Hopper => "hopper",
            Self::Blackwell => "blackwell",
        }
    }
}

/// A GPU's peaks and how it is joined to others.
#[derive(Debug, Clone, PartialEq)]
pub struct Accelerator {
    /// The name of the part in the facts.
    pub id: String,
    /// Its generation.
    pub generation: Generation,
    /// Dense 16-bit peak, FLOP/s.
    pub half_flops: f64,
    /// Dense 8-bit peak; that of 16 bits where there is none.
    pub fp8_flops: f64,
    /// Dense 4-bit peak; that of 8 bits where there is none.
    pub fp4_flops: f64,
    /// Memory as sold, less what error correction takes of it, bytes.
    pub hbm_bytes: f64,
    /// Peak of memory, bytes/s.
    pub hbm_bytes_per_s: f64,
    /// `NVLink` in one direction, bytes/s; `PCIe` where there is none.
    pub link_bytes_per_s: f64,
    /// Whether that is `NVLink`.
    pub has_nvlink: bool,
    /// GPUs that `NVLink` joins; those of a node where there is none.
    pub domain: u32,
    /// `PCIe` to the host in one direction, bytes/s.
    pub host_bytes_per_s: f64,
    /// Network in one direction for each GPU, bytes/s.
    pub network_bytes_per_s: f64,
    /// Power limit as a share of what the part is made for: sold parts exist with less.
    pub power_share: f64,
    /// List price for an hour, if there is one.
    pub usd_per_hour: Option<f64>,
}

/// Why a GPU cannot be planned with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// No such part.
    #[error("no GPU is called `{name}`{}", near(.nearest))]
    Unknown {
        /// As asked for.
        name: String,
        /// What may have been meant.
        nearest: Vec<String>,
    },
    /// The facts lack what a plan needs.
    #[error("nothing is known about the {what} of `{id}`; GPUs that can be planned with: {known}")]
    Lacks {
        /// The part.
        id: String,
        /// What is missing.
        what: &'static str,
        /// Parts that have all.
        known: String,
    },
}

fn near(nearest: &[String]) -> String {
    if nearest.is_empty() {
        String::new()
    } else {
        format!("; is `{}` meant?", nearest.join("` or `"))
    }
}

impl Accelerator {
    /// A part by any of its names.
    pub fn named(facts: &FactSet, name: &str) -> Result<Self, GpuError> {
        let Some(found) = facts.gpus.by_name(name) else {
            let known = facts.gpus.gpu.iter().map(|gpu| gpu.id.as_str());
            let nearest = names::nearest(name, known).into_iter().map(str::to_owned).collect();
            return Err(GpuError::Unknown { name: name.to_owned(), nearest });
        };
        Self::of(found.gpu).map_err(|what| GpuError::Lacks {
            id: found.gpu.id.clone(),
            what,
            known: plannable(facts).join(", "),
        })
    }

    /// A part of the facts, or what they lack of it.
    pub fn of(gpu: &Gpu) -> Result<Self, &'static str> {
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
            Fabric::None => gpus_of_node(&gpu.id),
        };
        let pcie = match links.pcie_generation {
            Some(generation) if generation >= 5 => 55e9,
            Some(4) => 26e9,
            _ => 13e9,
        };
        // The usual network of the generation's reference systems: one port a GPU of 200, 400 and
        // (with the 800 of the newest) 400 Gbit/s. `--network` says another.
        let network_bytes_per_s = match generation {
            Generation::Ampere => 25e9,
            Generation::Blackwell if gpu.id.contains("B300") => 100e9,
            Generation::Hopper | Generation::Blackwell => 50e9,
        };
        Ok(Self {
            id: gpu.id.clone(),
            generation,
            half_flops: half,
            fp8_flops: fp8,
            fp4_flops: compute.fp4_tflops.map_or(fp8, |tflops| tflops * 1e12),
            hbm_bytes: memory.capacity_gb * 1e9 * left_by_error_correction(&memory.technology),
            hbm_bytes_per_s: memory.bandwidth_gb_per_s * 1e9,
            link_bytes_per_s: links.nvlink_gb_per_s.map_or(pcie, |both| both / 2.0 * 1e9),
            has_nvlink: links.nvlink_gb_per_s.is_some(),
            domain,
            // Where the facts do not say: Ampere has PCIe 4, what came after it 5 or better.
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

    /// GPUs of a node.
    pub fn gpus_of_node(&self) -> u32 {
        gpus_of_node(&self.id)
    }

    /// The peak that a product in a precision is held to.
    pub fn peak_flops(&self, precision: Precision) -> f64 {
        match precision {
            Precision::Fp16 | Precision::Bf16 => self.half_flops,
            Precision::Fp8 | Precision::Fp8Row | Precision::Fp8Block | Precision::Mxfp8 => {
                self.fp8_flops
            }
            Precision::Nvfp4 => self.fp4_flops,
        }
    }
}

/// 4 on a compute tray of NVL72, 1 beside a Grace of its own, 8 on a baseboard or in a server.
fn gpus_of_node(id: &str) -> u32 {
    if id.starts_with("GB200") || id.starts_with("GB300") {
        4
    } else if id.starts_with("GH200") || id.starts_with("GB10") {
        1
    } else {
        8
    }
}

/// Memory of HBM and GDDR7 has room of its own for error correction; in GDDR6 it takes a sixteenth
/// (an A10 of 24 GB has 23,028 MiB, an A40 of 48 GB 46,068 MiB, by NVML).
fn left_by_error_correction(technology: &str) -> f64 {
    if technology.starts_with("GDDR6") { 15.0 / 16.0 } else { 1.0 }
}

/// The parts that can be planned with.
pub fn plannable(facts: &FactSet) -> Vec<&str> {
    let whole = |gpu: &&Gpu| Accelerator::of(gpu).is_ok();
    facts.gpus.gpu.iter().filter(whole).map(|gpu| gpu.id.as_str()).collect()
}
