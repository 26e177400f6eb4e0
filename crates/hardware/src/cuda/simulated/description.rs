//! What a simulated GPU is like, what can be wrong with it, and what cannot be.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What a simulated GPU is and can do. Rates are those of a healthy one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimulatedGpu {
    /// As CUDA calls it.
    pub name: String,
    /// Major and minor.
    pub compute_capability: (i32, i32),
    /// Streaming multiprocessors.
    pub processors: u32,
    /// Memory that is free, in MiB; the host has to have it too.
    pub memory_mib: u64,
    /// One way, decimal gigabytes a second.
    pub memory_gb_per_s: f64,
    /// One way.
    pub pcie_gb_per_s: f64,
    /// One way, to each of the peers.
    pub peer_gb_per_s: f64,
    /// How many GPUs it reaches directly.
    pub peers: usize,
    /// Dense, in bfloat16; the others are half or double.
    pub tflops: f64,
    /// A launch on a stream, and a node of a graph.
    pub launch_us: (f64, f64),
    /// Whether there is a library for matrix products.
    pub has_library: bool,
    /// What is wrong with it.
    #[serde(default)]
    pub ailments: Vec<Ailment>,
}

/// What can be wrong with a simulated GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ailment {
    /// Its memory runs at this share of its rate.
    SlowMemory(f64),
    /// Its link runs at this share.
    SlowPcie(f64),
    /// Matrix products run at this share.
    SlowProducts(f64),
    /// Products grow slower with time: this share is left after a minute of work.
    Fading(f64),
    /// A bit of this word of every block reads as 1.
    StuckBit {
        /// The word.
        word: u64,
        /// The bit.
        bit: u32,
    },
    /// A multiprocessor that computes wrongly, from this piece of work on.
    WrongProcessor {
        /// Its number.
        processor: u32,
        /// After so many pieces of work.
        after: u32,
    },
    /// Matrix products differ by a bit, from this one on.
    WrongProduct {
        /// After so many products.
        after: u32,
    },
    /// All calls fail after so many pieces of work.
    Lost {
        /// After so many.
        after: u32,
    },
    /// The same, and it cannot be opened again: by this file later processes know of it.
    Gone {
        /// After so many.
        after: u32,
        /// Made when it is lost.
        mark: PathBuf,
    },
    /// The host gives no pinned memory.
    NoPinnedMemory,
    /// Only so many of its multiprocessors are given work.
    FewProcessors(u32),
    /// The library for matrix products loads, and has nothing for this GPU or driver.
    UnfitLibrary,
    /// A piece of work never ends, from this one on.
    Hung {
        /// After so many.
        after: u32,
    },
    /// Somebody else holds all memory but this much.
    Full {
        /// In MiB.
        left_mib: u64,
    },
}

/// More than any GPU has.
const PROCESSORS_MAX: u32 = 1024;

/// A tebibyte: the host has to have it too.
const MEMORY_MIB_MAX: u64 = 1 << 20;

/// More than any GPU reaches.
const PEERS_MAX: usize = 576;

impl Ailment {
    /// What of it cannot be, on a GPU of so many multiprocessors; none: it can.
    fn nonsense(&self, processors: u32) -> Option<String> {
        match self {
            Self::SlowMemory(share) => no_share("slow-memory", *share),
            Self::SlowPcie(share) => no_share("slow-pcie", *share),
            Self::SlowProducts(share) => no_share("slow-products", *share),
            Self::Fading(share) => no_share("fading", *share),
            Self::StuckBit { bit, .. } if *bit > 31 => {
                Some(format!("`stuck-bit` has bit {bit}, and a word has bits 0 to 31"))
            }
            Self::WrongProcessor { processor, .. } if *processor >= processors => Some(format!(
                "`wrong-processor` is {processor}, and they are 0 to {}",
                processors - 1
            )),
            Self::FewProcessors(few) if !(1..=processors).contains(few) => {
                Some(format!("`few-processors` is {few}, and is 1 to {processors}"))
            }
            Self::Full { left_mib } if *left_mib > MEMORY_MIB_MAX => {
                Some(format!("`full` leaves {left_mib} MiB, and at most {MEMORY_MIB_MAX}"))
            }
            Self::StuckBit { .. }
            | Self::WrongProcessor { .. }
            | Self::WrongProduct { .. }
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

/// Why a number is no share of what a healthy GPU reaches.
fn no_share(name: &str, share: f64) -> Option<String> {
    let is_share = share > 0.0 && share <= 1.0;
    (!is_share)
        .then(|| format!("`{name}` is {share}, and is a share: more than nothing, at most 1"))
}

impl SimulatedGpu {
    /// An H200 as it was measured, with this much memory to test.
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
            ailments: Vec::new(),
        }
    }

    /// The same with an ailment.
    #[must_use]
    pub fn with(mut self, ailment: Ailment) -> Self {
        self.ailments.push(ailment);
        self
    }

    /// What of it cannot be, by the name of the field; none: it can.
    pub fn nonsense(&self) -> Option<String> {
        let rates = [
            ("memory_gb_per_s", self.memory_gb_per_s),
            ("pcie_gb_per_s", self.pcie_gb_per_s),
            // What nobody is sent takes no time.
            ("peer_gb_per_s", if self.peers > 0 { self.peer_gb_per_s } else { 1.0 }),
            ("tflops", self.tflops),
            ("launch_us", self.launch_us.0),
            ("launch_us", self.launch_us.1),
        ];
        let is_rate = |rate: f64| rate.is_finite() && rate > 0.0;
        if let Some((field, rate)) = rates.into_iter().find(|(_, rate)| !is_rate(*rate)) {
            return Some(format!("`{field}` is {rate}, and has to be more than nothing"));
        }
        if !(1..=PROCESSORS_MAX).contains(&self.processors) {
            let processors = self.processors;
            return Some(format!("`processors` is {processors}, and is 1 to {PROCESSORS_MAX}"));
        }
        if self.memory_mib > MEMORY_MIB_MAX {
            let mib = self.memory_mib;
            return Some(format!("`memory_mib` is {mib}, and is at most {MEMORY_MIB_MAX}"));
        }
        if self.peers > PEERS_MAX {
            return Some(format!("`peers` is {}, and is at most {PEERS_MAX}", self.peers));
        }
        self.ailments.iter().find_map(|ailment| ailment.nonsense(self.processors))
    }
}
