//! Description of a simulated GPU, its possible faults, and validation.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A simulated GPU. The rates are those without faults.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimulatedGpu {
    /// As reported by CUDA.
    pub name: String,
    /// Major and minor.
    pub compute_capability: (i32, i32),
    /// Streaming multiprocessors.
    pub processors: u32,
    /// Memory, in MiB. The host must have as much.
    pub memory_mib: u64,
    /// Memory bandwidth in one direction, in decimal GB/s.
    pub memory_gb_per_s: f64,
    /// PCIe bandwidth in one direction.
    pub pcie_gb_per_s: f64,
    /// Bandwidth to each peer in one direction.
    pub peer_gb_per_s: f64,
    /// Number of directly accessible GPUs.
    pub peers: usize,
    /// Rate of dense bfloat16 GEMMs. The rates of other types are derived from it.
    pub tflops: f64,
    /// Time of a launch on a stream, and of a node of a graph.
    pub launch_us: (f64, f64),
    /// Whether a GEMM library is installed.
    pub has_library: bool,
    #[serde(rename = "ailments", default)]
    pub faults: Vec<SimulatedFault>,
}

/// A fault of a simulated GPU. An operation is one `Work`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SimulatedFault {
    /// Memory runs at this share of its rate.
    SlowMemory(f64),
    /// PCIe runs at this share of its rate.
    SlowPcie(f64),
    /// GEMMs run at this share of their rate.
    #[serde(rename = "slow-products")]
    SlowGemm(f64),
    /// GEMMs slow down over time, to this share after a minute of work.
    Fading(f64),
    /// A bit of this word reads as 1 in every buffer.
    StuckBit { word: u64, bit: u32 },
    /// An SM gives wrong results after this many operations.
    WrongProcessor { processor: u32, after: u32 },
    /// GEMM results differ by a bit after this many GEMMs.
    #[serde(rename = "wrong-product")]
    WrongGemm { after: u32 },
    /// All calls fail after this many operations.
    Lost { after: u32 },
    /// Like `Lost`, but later processes cannot open the GPU either. A file marks the GPU as lost.
    Gone {
        after: u32,
        /// Created when the GPU is lost.
        mark: PathBuf,
    },
    /// Pinned host memory cannot be allocated.
    NoPinnedMemory,
    /// Only this many SMs get work.
    FewProcessors(u32),
    /// The GEMM library loads but does not support this GPU or driver.
    UnfitLibrary,
    /// After this many operations, the next one never ends.
    Hung { after: u32 },
    /// Another process holds all memory but this much.
    Full { left_mib: u64 },
}

/// Maximum SMs, more than any GPU has.
const PROCESSORS_MAX: u32 = 1024;

/// Maximum memory: 1 TiB. The host must have as much.
const MEMORY_MIB_MAX: u64 = 1 << 20;

/// Maximum peers, more than any GPU can access.
const PEERS_MAX: usize = 576;

impl SimulatedFault {
    /// Describes which value of the fault is invalid on a GPU with this many SMs. `None` if the
    /// fault is valid.
    fn invalid_field(&self, processors: u32) -> Option<String> {
        match self {
            Self::SlowMemory(share) => invalid_share("slow-memory", *share),
            Self::SlowPcie(share) => invalid_share("slow-pcie", *share),
            Self::SlowGemm(share) => invalid_share("slow-products", *share),
            Self::Fading(share) => invalid_share("fading", *share),
            Self::StuckBit { bit, .. } if *bit > 31 => {
                Some(format!("`stuck-bit` has bit {bit}, expected 0 to 31"))
            }
            Self::WrongProcessor { processor, .. } if *processor >= processors => {
                Some(format!("`wrong-processor` is {processor}, expected 0 to {}", processors - 1))
            }
            Self::FewProcessors(few) if !(1..=processors).contains(few) => {
                Some(format!("`few-processors` is {few}, expected 1 to {processors}"))
            }
            Self::Full { left_mib } if *left_mib > MEMORY_MIB_MAX => {
                Some(format!("`full` leaves {left_mib} MiB, expected at most {MEMORY_MIB_MAX}"))
            }
            Self::StuckBit { .. }
            | Self::WrongProcessor { .. }
            | Self::WrongGemm { .. }
            | Self::Lost { .. }
            | Self::Gone { .. }
            | Self::NoPinnedMemory
            | Self::FewProcessors(_)
            | Self::UnfitLibrary
            | Self::Hung { .. }
            | Self::Full { .. } => None,
        }
    }
}

/// Why a number is not a valid share. `None` if it is valid.
fn invalid_share(name: &str, share: f64) -> Option<String> {
    let is_share = share > 0.0 && share <= 1.0;
    (!is_share).then(|| format!("`{name}` is {share}, expected more than 0 and at most 1"))
}

impl SimulatedGpu {
    /// An H200 as measured, with this much memory to test.
    pub fn h200(memory_mib: u64) -> Self {
        Self {
            name: "NVIDIA H200".to_owned(),
            compute_capability: (9, 0),
            processors: 132,
            memory_mib,
            memory_gb_per_s: 4400.0,
            pcie_gb_per_s: 55.0,
            peer_gb_per_s: 390.0,
            peers: 0,
            tflops: 760.0,
            launch_us: (3.6, 0.6),
            has_library: true,
            faults: Vec::new(),
        }
    }

    /// Adds a fault.
    #[must_use]
    pub fn with(mut self, fault: SimulatedFault) -> Self {
        self.faults.push(fault);
        self
    }

    /// Describes the first invalid field. `None` if all are valid.
    pub fn invalid_field(&self) -> Option<String> {
        let rates = [
            ("memory_gb_per_s", self.memory_gb_per_s),
            ("pcie_gb_per_s", self.pcie_gb_per_s),
            // Unused without peers.
            ("peer_gb_per_s", if self.peers > 0 { self.peer_gb_per_s } else { 1.0 }),
            ("tflops", self.tflops),
            ("launch_us", self.launch_us.0),
            ("launch_us", self.launch_us.1),
        ];
        let is_rate = |rate: f64| rate.is_finite() && rate > 0.0;
        if let Some((field, rate)) = rates.into_iter().find(|(_, rate)| !is_rate(*rate)) {
            return Some(format!("`{field}` is {rate}, expected more than 0"));
        }
        if !(1..=PROCESSORS_MAX).contains(&self.processors) {
            let processors = self.processors;
            return Some(format!("`processors` is {processors}, expected 1 to {PROCESSORS_MAX}"));
        }
        if self.memory_mib > MEMORY_MIB_MAX {
            let mib = self.memory_mib;
            return Some(format!("`memory_mib` is {mib}, expected at most {MEMORY_MIB_MAX}"));
        }
        if self.peers > PEERS_MAX {
            return Some(format!("`peers` is {}, expected at most {PEERS_MAX}", self.peers));
        }
        self.faults.iter().find_map(|fault| fault.invalid_field(self.processors))
    }
}
