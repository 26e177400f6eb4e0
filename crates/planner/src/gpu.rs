//! The GPU: peak rates, memory and interconnect.

use farrier_facts::FactSet;
use farrier_facts::gpu::{Gpu, GpuSystem};
use farrier_facts::names;
use farrier_facts::version::ComputeCapability;

use crate::precision::Precision;

/// Compute capability of B300 and GB300.
const BLACKWELL_ULTRA: ComputeCapability = ComputeCapability { major: 10, minor: 3 };

/// Tensor-core generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Generation {
    /// A100 and similar.
    Ampere,
    /// L40S and similar.
    Ada,
    /// H100, H200 and similar.
    Hopper,
    /// B200, GB200 and similar.
    Blackwell,
}

impl Generation {
    /// Oldest first.
    pub const ALL: [Self; 4] = [Self::Ampere, Self::Ada, Self::Hopper, Self::Blackwell];

    pub fn name(self) -> &'static str {
        match self {
            Self::Ampere => "ampere",
            Self::Ada => "ada",
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
    /// Blackwell Ultra: B300 and GB300.
    pub is_ultra: bool,
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
    /// GPUs per node.
    pub gpus_per_node: u32,
    /// `PCIe` bandwidth to the host per direction, bytes/s.
    pub host_bytes_per_s: f64,
    /// Network bandwidth per GPU and direction, bytes/s.
    pub network_bytes_per_s: f64,
    /// Power limit as a share of the SKU's default. Some clouds run GPUs below the default.
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
    /// Not NVIDIA's.
    #[error("`{name}` is an accelerator of {vendor}; Farrier knows NVIDIA GPUs only")]
    OtherVendor { name: String, vendor: String },
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
            if let Some(vendor) = facts.gpus.other_vendor(name) {
                let (name, vendor) = (name.to_owned(), vendor.name.clone());
                return Err(GpuError::OtherVendor { name, vendor });
            }
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
            "Ada" => Generation::Ada,
            "Hopper" => Generation::Hopper,
            "Blackwell" => Generation::Blackwell,
            _ => return Err("training speed of the generation"),
        };
        let memory = gpu.memory.as_ref().ok_or("memory")?;
        let compute = gpu.compute.as_ref().ok_or("arithmetic rates")?;
        let half = compute.fp16_tflops.ok_or("16-bit rate")? * 1e12;
        let fp8 = compute.fp8_tflops.map_or(half, |tflops| tflops * 1e12);
        let links = gpu.links.as_ref().ok_or("links")?;
        let system = gpu.system.as_ref().ok_or("reference system")?;
        let GpuSystem { gpus: gpus_per_node, nvlink_domain, network_gbit_per_s, .. } = *system;
        let pcie = match links.pcie_generation {
            Some(generation) if generation >= 5 => 55e9,
            Some(4) => 26e9,
            _ => 13e9,
        };
        Ok(Self {
            id: gpu.id.clone(),
            generation,
            is_ultra: gpu.compute_capability == BLACKWELL_ULTRA,
            flops_16bit: half,
            fp8_flops: fp8,
            fp4_flops: compute.fp4_tflops.map_or(fp8, |tflops| tflops * 1e12),
            hbm_bytes: memory.capacity_gb * 1e9 * share_after_ecc(&memory.technology),
            hbm_bytes_per_s: memory.bandwidth_gb_per_s * 1e9,
            link_bytes_per_s: links.nvlink_gb_per_s.map_or(pcie, |both| both / 2.0 * 1e9),
            has_nvlink: links.nvlink_gb_per_s.is_some(),
            domain: nvlink_domain.unwrap_or(gpus_per_node),
            gpus_per_node,
            // If the facts do not state it: Ampere and Ada have PCIe 4, later generations PCIe 5 or
            // better.
            host_bytes_per_s: match (links.pcie_generation, generation) {
                (Some(_), _) => pcie,
                (None, Generation::Ampere | Generation::Ada) => 26e9,
                (None, _) => 55e9,
            },
            network_bytes_per_s: network_gbit_per_s * 1e9 / 8.0,
            power_share: 1.0,
            usd_per_hour: gpu.price.as_ref().map(|price| price.usd_per_gpu_hour),
        })
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

#[cfg(test)]
mod tests {
    use farrier_facts::gpu::ProductLine;

    use super::*;

    fn gpu(name: &str) -> Accelerator {
        Accelerator::by_name(FactSet::embedded(), name).unwrap()
    }

    #[test]
    fn systems_come_from_the_facts() {
        let system = |name| {
            let gpu = gpu(name);
            (gpu.gpus_per_node, gpu.domain, gpu.network_bytes_per_s)
        };
        assert_eq!(system("A100"), (8, 8, 25e9));
        assert_eq!(system("H100-PCIe"), (8, 2, 50e9));
        assert_eq!(system("GH200"), (1, 1, 50e9));
        assert_eq!(system("GB200"), (4, 72, 50e9));
        assert_eq!(system("B300"), (8, 8, 100e9));
        assert_eq!(system("GB300"), (4, 72, 100e9));
        assert_eq!(system("L40S"), (8, 8, 50e9));
        let ultra: Vec<_> =
            ["B200", "GB200", "B300", "GB300"].map(|name| gpu(name).is_ultra).into();
        assert_eq!(ultra, [false, false, true, true]);
    }

    #[test]
    fn export_variants_and_cards_can_be_planned_with() {
        for name in ["H800", "H800-PCIe-80GB", "H20", "H20-3e", "A800", "A800-PCIE-80GB", "L4"] {
            assert!(gpu(name).flops_16bit > 1e14, "{name}");
        }
        for name in ["L40S", "RTX PRO 6000", "H100-NVL", "B300", "GB300"] {
            assert!(gpu(name).fp8_flops > gpu(name).flops_16bit, "{name}");
        }
        // The export variants have the compute of the original and less NVLink.
        assert!((gpu("H800").flops_16bit / gpu("H100").flops_16bit - 1.0).abs() < 1e-12);
        assert!(gpu("H800").link_bytes_per_s < gpu("H100").link_bytes_per_s);
        assert!(gpu("A800").link_bytes_per_s < gpu("A100").link_bytes_per_s);
    }

    #[test]
    fn bridged_cards_and_announced_parts_can_be_planned_with() {
        for (name, bytes, system) in [
            ("H200 NVL", 141e9, (8, 4)),
            ("H800 NVL", 94e9, (8, 2)),
            ("L40", 45e9, (8, 8)),
            ("B100", 192e9, (8, 8)),
        ] {
            let gpu = gpu(name);
            assert!((gpu.hbm_bytes - bytes).abs() < 1.0, "{name}: {} bytes", gpu.hbm_bytes);
            assert_eq!((gpu.gpus_per_node, gpu.domain), system, "{name}");
            assert!((gpu.fp8_flops / gpu.flops_16bit - 2.0).abs() < 0.01, "{name}");
        }
        assert!(gpu("H800 NVL").link_bytes_per_s < gpu("H100-NVL").link_bytes_per_s);
        assert!(gpu("B100").flops_16bit < gpu("B200").flops_16bit);
    }

    #[test]
    fn every_data_center_gpu_of_these_generations_can_be_planned_with() {
        let facts = FactSet::embedded();
        let known = plannable(facts);
        for gpu in &facts.gpus.gpu {
            let generations = ["Ampere", "Ada", "Hopper", "Blackwell"];
            let is_trained_on = gpu.product_line == ProductLine::DataCenter
                && generations.contains(&gpu.architecture.as_str());
            if is_trained_on && !known.contains(&gpu.id.as_str()) {
                assert!(NOT_PLANNED.contains(&gpu.id.as_str()), "{}", gpu.id);
            }
        }
    }

    /// Data-center GPUs that no published source describes completely.
    const NOT_PLANNED: [&str; 4] = ["A10G", "A16", "A2", "GB10"];

    #[test]
    fn other_vendors_are_named() {
        let error = Accelerator::by_name(FactSet::embedded(), "MI300X").unwrap_err();
        assert_eq!(
            error.to_string(),
            "`MI300X` is an accelerator of AMD; Farrier knows NVIDIA GPUs only"
        );
    }
}
