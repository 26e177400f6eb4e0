//! The tests and what comes of one.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A test of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// Memory is taken, written, read and given back.
    Allocate,
    /// A kernel on every multiprocessor whose result the host computes too.
    Compute,
    /// Pinned host memory to the GPU.
    PcieToGpu,
    /// The GPU to pinned host memory.
    PcieToHost,
    /// A kernel launched on a stream.
    LaunchStream,
    /// A kernel as a node of a graph.
    LaunchGraph,
    /// Memory read by a kernel.
    HbmRead,
    /// Memory written by a kernel.
    HbmWrite,
    /// Memory copied within the GPU: bytes read plus bytes written.
    HbmCopy,
    /// A large matrix product in bfloat16.
    GemmBf16,
    /// The same in float16.
    GemmFp16,
    /// The same in 8-bit floats.
    GemmFp8,
    /// The same in TF32.
    GemmTf32,
    /// The same in float64.
    GemmFp64,
    /// The same in bfloat16 by our own kernel: it asks no library.
    GemmOwn,
    /// Patterns written over all free memory and read back.
    MemoryPatterns,
    /// Memory copied to another GPU.
    PeerCopy,
    /// A matrix product over minutes: whether it stays as fast as it began.
    Soak,
    /// One product over and over, compared bit by bit across time and multiprocessors.
    Corruption,
}

/// How thorough.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Level {
    /// Half a minute: does it work.
    One,
    /// Three minutes: is it as fast as it ought to be, and is its memory sound.
    Two,
    /// As long as is asked for: does it stay so under load.
    Three,
}

impl Level {
    /// As people write it.
    pub fn number(self) -> u32 {
        match self {
            Self::One => 1,
            Self::Two => 2,
            Self::Three => 3,
        }
    }

    /// From what people write.
    pub fn from_number(number: u32) -> Option<Self> {
        [Self::One, Self::Two, Self::Three].into_iter().find(|level| level.number() == number)
    }
}

/// What a test measures in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// Decimal gigabytes a second.
    #[serde(rename = "GB/s")]
    GbPerS,
    /// 10^12 operations a second.
    #[serde(rename = "TFLOP/s")]
    Tflops,
    /// Microseconds: less is better.
    #[serde(rename = "us")]
    Us,
    /// Decimal gigabytes that were tested.
    #[serde(rename = "GB")]
    Gb,
    /// Nothing is measured: right or wrong.
    #[serde(rename = "none")]
    None,
}

impl fmt::Display for Unit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::GbPerS => "GB/s",
            Self::Tflops => "TFLOP/s",
            Self::Us => "µs",
            Self::Gb => "GB",
            Self::None => "",
        })
    }
}

impl Test {
    /// All, in the order in which they run: a GPU that fails an early one is given no long one.
    pub const ALL: [Self; 19] = [
        Self::Allocate,
        Self::Compute,
        Self::PcieToGpu,
        Self::PcieToHost,
        Self::LaunchStream,
        Self::LaunchGraph,
        Self::HbmRead,
        Self::HbmWrite,
        Self::HbmCopy,
        Self::GemmBf16,
        Self::GemmFp16,
        Self::GemmFp8,
        Self::GemmTf32,
        Self::GemmFp64,
        Self::GemmOwn,
        Self::MemoryPatterns,
        Self::PeerCopy,
        Self::Soak,
        Self::Corruption,
    ];

    /// The name that stays.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allocate => "allocate",
            Self::Compute => "compute",
            Self::PcieToGpu => "pcie-to-gpu",
            Self::PcieToHost => "pcie-to-host",
            Self::LaunchStream => "launch-stream",
            Self::LaunchGraph => "launch-graph",
            Self::HbmRead => "hbm-read",
            Self::HbmWrite => "hbm-write",
            Self::HbmCopy => "hbm-copy",
            Self::GemmBf16 => "gemm-bf16",
            Self::GemmFp16 => "gemm-fp16",
            Self::GemmFp8 => "gemm-fp8",
            Self::GemmTf32 => "gemm-tf32",
            Self::GemmFp64 => "gemm-fp64",
            Self::GemmOwn => "gemm-own",
            Self::MemoryPatterns => "memory-patterns",
            Self::PeerCopy => "peer-copy",
            Self::Soak => "soak",
            Self::Corruption => "corruption",
        }
    }

    /// What it does, in words for a report.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Allocate => "memory is taken, written, read and given back",
            Self::Compute => "a kernel on every multiprocessor, checked by the host",
            Self::PcieToGpu => "pinned host memory to the GPU",
            Self::PcieToHost => "the GPU to pinned host memory",
            Self::LaunchStream => "a kernel launched on a stream",
            Self::LaunchGraph => "a kernel as a node of a graph",
            Self::HbmRead => "memory read by a kernel",
            Self::HbmWrite => "memory written by a kernel",
            Self::HbmCopy => "memory copied, bytes read and written",
            Self::GemmBf16 => "a large matrix product, bfloat16",
            Self::GemmFp16 => "a large matrix product, float16",
            Self::GemmFp8 => "a large matrix product, 8-bit floats (E4M3)",
            Self::GemmTf32 => "a large matrix product, TF32",
            Self::GemmFp64 => "a large matrix product, float64",
            Self::GemmOwn => "a large matrix product, bfloat16, without a library",
            Self::MemoryPatterns => "patterns over all free memory, read back",
            Self::PeerCopy => "memory copied to another GPU",
            Self::Soak => "matrix products over minutes",
            Self::Corruption => "one product over and over, compared bit by bit",
        }
    }

    /// Whether a library computes it, for which our own product can stand where there is none.
    pub fn uses_library(self) -> bool {
        matches!(
            self,
            Self::GemmBf16 | Self::GemmFp16 | Self::GemmFp8 | Self::GemmTf32 | Self::GemmFp64
        )
    }

    /// The lowest level that has it.
    pub fn level(self) -> Level {
        match self {
            Self::Allocate
            | Self::Compute
            | Self::PcieToGpu
            | Self::PcieToHost
            | Self::LaunchStream
            | Self::LaunchGraph => Level::One,
            Self::Soak | Self::Corruption => Level::Three,
            _ => Level::Two,
        }
    }

    /// What it measures in.
    pub fn unit(self) -> Unit {
        match self {
            Self::Allocate | Self::Compute | Self::Corruption => Unit::None,
            Self::LaunchStream | Self::LaunchGraph => Unit::Us,
            Self::PcieToGpu
            | Self::PcieToHost
            | Self::HbmRead
            | Self::HbmWrite
            | Self::HbmCopy
            | Self::PeerCopy => Unit::GbPerS,
            Self::GemmBf16
            | Self::GemmFp16
            | Self::GemmFp8
            | Self::GemmTf32
            | Self::GemmFp64
            | Self::GemmOwn
            | Self::Soak => Unit::Tflops,
            Self::MemoryPatterns => Unit::Gb,
        }
    }
}

impl fmt::Display for Test {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for Test {
    type Err = UnknownTest;

    fn from_str(text: &str) -> Result<Self, UnknownTest> {
        let found = Self::ALL.into_iter().find(|test| test.name() == text);
        found.ok_or_else(|| UnknownTest { name: text.to_owned() })
    }
}

/// A name that no test has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no test `{name}`; there are {}", Test::ALL.map(Test::name).join(", "))]
pub struct UnknownTest {
    /// As it was asked for.
    pub name: String,
}

/// What a GPU did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Outcome {
    /// It did the work, and was right wherever that was looked at.
    Done {
        /// The median, in the test's unit; none where nothing is measured.
        value: Option<f64>,
        /// Each of the repeats, in the order in which they ran.
        samples: Vec<f64>,
        /// What should be known besides: sizes, the library that was used.
        detail: String,
    },
    /// It said that it was done, and the result is wrong.
    Wrong {
        /// What was wrong, most telling first.
        what: Vec<String>,
    },
    /// CUDA refused the work or lost it.
    Failed {
        /// In its words.
        why: String,
    },
    /// The GPU has nothing to test here: no 8-bit floats, no other GPU beside it.
    #[serde(rename = "has-not")]
    Unsupported {
        /// What it has not.
        why: String,
    },
    /// The work was not given, and could have been.
    NotRun {
        /// Why not.
        why: String,
    },
}
