//! The tests and their outcomes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A test of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// Allocate, write, read and free memory.
    Allocate,
    /// Run a kernel on every SM, and compare its results with the host's.
    Compute,
    /// Copy from pinned host memory to the GPU.
    PcieToGpu,
    /// Copy from the GPU to pinned host memory.
    PcieToHost,
    /// Kernel launch latency on a stream.
    LaunchStream,
    /// Kernel launch latency inside a CUDA graph.
    LaunchGraph,
    /// GPU memory bandwidth of a kernel that reads.
    HbmRead,
    /// GPU memory bandwidth of a kernel that writes.
    HbmWrite,
    /// Copy within GPU memory. Counts both the bytes read and the bytes written.
    HbmCopy,
    /// A large GEMM in bfloat16.
    GemmBf16,
    /// A large GEMM in float16.
    GemmFp16,
    /// A large GEMM in FP8.
    GemmFp8,
    /// A large GEMM in TF32.
    GemmTf32,
    /// A large GEMM in float64.
    GemmFp64,
    /// A large GEMM in bfloat16 with Farrier's own kernel, which needs no library.
    GemmOwn,
    /// Write patterns to all free memory and read them back.
    MemoryPatterns,
    /// Copy to another GPU.
    PeerCopy,
    /// Run GEMMs for minutes, to detect throughput that falls.
    Soak,
    /// Repeat one GEMM on all SMs, and compare all results bit by bit.
    Corruption,
}

/// Test level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Level {
    /// 30 seconds: functional tests.
    One,
    /// Three minutes: performance and memory.
    Two,
    /// Configurable duration: behaviour under sustained load.
    Three,
}

impl Level {
    /// The number of the level, from 1.
    pub fn number(self) -> u32 {
        match self {
            Self::One => 1,
            Self::Two => 2,
            Self::Three => 3,
        }
    }

    /// The level of a number; `None` if out of range.
    pub fn from_number(number: u32) -> Option<Self> {
        [Self::One, Self::Two, Self::Three].into_iter().find(|level| level.number() == number)
    }
}

/// Unit of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// Decimal gigabytes per second.
    #[serde(rename = "GB/s")]
    GbPerS,
    /// 10^12 operations per second.
    #[serde(rename = "TFLOP/s")]
    Tflops,
    /// Microseconds; lower is better.
    #[serde(rename = "us")]
    Us,
    /// Decimal gigabytes tested.
    #[serde(rename = "GB")]
    Gb,
    /// Nothing is measured: the result is right or wrong.
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
    /// All tests in execution order. Basic tests come first: a GPU that fails one gets no further
    /// test.
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

    /// Stable name, for JSON and the command line.
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

    /// Short description for reports.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Allocate => "allocate, write, read and free memory",
            Self::Compute => "a kernel on every SM, verified by the host",
            Self::PcieToGpu => "copy from pinned host memory to the GPU",
            Self::PcieToHost => "copy from the GPU to pinned host memory",
            Self::LaunchStream => "kernel launch latency on a stream",
            Self::LaunchGraph => "kernel launch latency as a CUDA graph node",
            Self::HbmRead => "read bandwidth of a kernel",
            Self::HbmWrite => "write bandwidth of a kernel",
            Self::HbmCopy => "copy bandwidth, bytes read plus written",
            Self::GemmBf16 => "large GEMM, bfloat16",
            Self::GemmFp16 => "large GEMM, float16",
            Self::GemmFp8 => "large GEMM, FP8 (E4M3)",
            Self::GemmTf32 => "large GEMM, TF32",
            Self::GemmFp64 => "large GEMM, float64",
            Self::GemmOwn => "large GEMM, bfloat16, without a library",
            Self::MemoryPatterns => "patterns written to all free memory and read back",
            Self::PeerCopy => "copy to another GPU",
            Self::Soak => "GEMM for minutes",
            Self::Corruption => "one GEMM repeated and compared bit by bit",
        }
    }

    /// Whether the test needs a vendor library; without the library, a GEMM with Farrier's own
    /// kernel replaces the test.
    pub fn uses_library(self) -> bool {
        matches!(
            self,
            Self::GemmBf16 | Self::GemmFp16 | Self::GemmFp8 | Self::GemmTf32 | Self::GemmFp64
        )
    }

    /// The lowest level that includes the test.
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

    /// Unit of the test's result.
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
        let test = Self::ALL.into_iter().find(|test| test.name() == text);
        test.ok_or_else(|| UnknownTest { name: text.to_owned() })
    }
}

/// Unknown test name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown test `{name}`; tests are {}", Test::ALL.map(Test::name).join(", "))]
pub struct UnknownTest {
    pub name: String,
}

/// Outcome of a test.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum TestOutcome {
    /// Completed. All results that were verified are correct.
    Done {
        /// Median of the samples, in the test's unit. `None` if the test measures nothing.
        value: Option<f64>,
        /// The result of each repetition, in order.
        samples: Vec<f64>,
        /// Details such as sizes and the library used.
        detail: String,
    },
    /// Completed with a wrong result.
    Wrong {
        /// What was wrong, most significant first.
        what: Vec<String>,
    },
    /// CUDA reported an error.
    Failed {
        /// CUDA's error text.
        why: String,
    },
    /// The GPU cannot run the test: it has no FP8, for example, or no peer GPU.
    #[serde(rename = "has-not")]
    Unsupported { why: String },
    /// Not run, although the GPU could run it.
    NotRun { why: String },
}
