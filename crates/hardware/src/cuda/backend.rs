//! What a test needs from a GPU: memory, work on one stream, and the duration of that work. The
//! real backend is [`Device`](super::device::Device). The simulated backend does the same work on
//! the host and can inject faults.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::error::CudaError;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuInfo {
    /// As reported by CUDA.
    pub name: String,
    /// Major and minor.
    pub compute_capability: (i32, i32),
    /// Streaming multiprocessors.
    #[serde(rename = "processors")]
    pub sm_count: u32,
    /// Total memory.
    pub memory_bytes: u64,
}

/// A GPU buffer, identified by an id of the backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceBuffer {
    pub(super) id: usize,
    pub bytes: u64,
}

/// A pinned host buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HostBuffer {
    pub(super) id: usize,
    pub bytes: u64,
}

/// Expected memory contents, word by word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryPattern {
    /// The same word everywhere.
    Constant(u32),
    /// Each word is its own index plus this offset. Odd indices are inverted.
    Address(u32),
    /// Pseudo-random bits from this seed.
    Random(u32),
}

impl MemoryPattern {
    /// Kind and seed in the form that the kernels expect.
    pub(super) fn kernel_args(self) -> (u32, u32) {
        match self {
            Self::Constant(word) => (0, word),
            Self::Address(seed) => (1, seed),
            Self::Random(seed) => (2, seed),
        }
    }

    /// The word at an index. Must match `word_of` in memory.cu.
    pub fn word_at(self, at: u64) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "each cast keeps one half of the bits")]
        let own = at as u32 ^ (at >> 32) as u32;
        match self {
            Self::Constant(word) => word,
            Self::Address(seed) => (if at % 2 == 1 { !own } else { own }).wrapping_add(seed),
            Self::Random(seed) => mix(own.wrapping_add(seed)),
        }
    }
}

impl fmt::Display for MemoryPattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Constant(word) => write!(formatter, "{word:#010x} in each word"),
            Self::Address(_) => formatter.write_str("word index"),
            Self::Random(_) => formatter.write_str("random bits"),
        }
    }
}

/// Hash in which every output bit depends on every input bit. Must match `mixed` in common.h.
pub(super) fn mix(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(0x7feb_352d);
    x ^= x >> 15;
    x = x.wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

/// Result of a chain of integer operations and fused multiply-adds that starts with `start`. Must
/// match `chain` in memory.cu.
pub(super) fn chain(start: u32, rounds: u32) -> u32 {
    let (mut whole, mut real) = (start, 1.0_f32);
    for round in 0..rounds {
        whole = mix(whole.wrapping_add(round));
        // 24 bits are exact in a float, and so is their product with a power of two.
        #[expect(clippy::cast_precision_loss, reason = "24 bits are exact")]
        let small = (whole >> 8) as f32 * 5.960_464_5e-8;
        real = real.mul_add(0.75, small);
        whole ^= real.to_bits();
    }
    whole
}

/// Data type of a GEMM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GemmPrecision {
    /// bfloat16 with float32 accumulation.
    Bf16,
    /// float16 with float32 accumulation.
    Fp16,
    /// FP8 E4M3 with float32 accumulation.
    Fp8,
    /// float32 inputs computed in TF32.
    Tf32,
    Fp64,
    /// bfloat16 in farrier's own kernel.
    OwnKernel,
}

impl GemmPrecision {
    /// Returns why GPUs of this compute capability cannot use this precision, whatever software is
    /// installed. `None` if they can use it.
    pub(super) fn unsupported_on(self, capability: (i32, i32)) -> Option<UnsupportedGemm> {
        let (needed, why) = match self {
            Self::Fp8 => ((8, 9), "this GPU does not support FP8"),
            Self::Bf16 => ((8, 0), "this GPU does not support bfloat16"),
            Self::Tf32 => ((8, 0), "this GPU does not support TF32"),
            Self::OwnKernel => ((8, 0), "farrier's kernel needs compute capability 8.0"),
            Self::Fp16 | Self::Fp64 => return None,
        };
        (capability < needed).then(|| UnsupportedGemm { why: why.to_owned(), is_hardware: true })
    }
}

/// Why a GEMM cannot run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsupportedGemm {
    pub why: String,
    /// True if the GPU model does not support the GEMM. False if something on this machine is
    /// missing.
    pub is_hardware: bool,
}

impl UnsupportedGemm {
    /// The GPU model supports the GEMM, but something on this machine is missing.
    pub(super) fn on_this_machine(why: String) -> Self {
        Self { why, is_hardware: false }
    }
}

/// A GEMM of square matrices, ready to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gemm {
    pub(super) id: usize,
    /// Rows and columns.
    pub side: u64,
    pub result: DeviceBuffer,
}

impl Gemm {
    /// Floating-point operations per run.
    pub fn operations(&self) -> u64 {
        2 * self.side * self.side * self.side
    }
}

/// Work for the stream.
#[derive(Debug, Clone, Copy)]
pub enum Work {
    /// Writes a pattern.
    Fill(DeviceBuffer, MemoryPattern),
    /// Compares a buffer with a pattern. [`GpuBackend::take_mismatches`] returns the result.
    Check(DeviceBuffer, MemoryPattern),
    /// Reads the whole buffer.
    Read(DeviceBuffer),
    /// Copies from the first buffer to the second with a kernel. The size of the smaller buffer
    /// sets the number of bytes.
    Copy(DeviceBuffer, DeviceBuffer),
    /// Like `Copy`, but with the copy engine. One buffer may be on a peer, which is another GPU
    /// that this GPU can access directly.
    CopyByEngine(DeviceBuffer, DeviceBuffer),
    CopyToGpu(HostBuffer, DeviceBuffer),
    CopyToHost(DeviceBuffer, HostBuffer),
    /// Computes one chain per word of the buffer, each with this many rounds.
    ComputeChains(DeviceBuffer, u32),
    /// Every thread block does the same work. It stores its checksum in the first buffer and the id
    /// of its SM in the second.
    CheckCompute(DeviceBuffer, DeviceBuffer, u32),
    /// Like `CheckCompute`, on tensor cores.
    CheckTensor(DeviceBuffer, DeviceBuffer, u32),
    Gemm(Gemm),
    /// Computes the checksum of a buffer, which [`GpuBackend::digest`] returns.
    Digest(DeviceBuffer),
    /// Launches a counting kernel this many times on the stream.
    Launches(u32),
    /// Launches the counting kernel as this many nodes of one graph.
    GraphLaunches(u32),
}

/// A word that differs from the expected pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryMismatch {
    /// Index in the buffer.
    pub word: u64,
    pub expected: u32,
    pub found: u32,
}

/// Mismatches since the last query.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryMismatches {
    pub count: u64,
    /// The first few mismatches.
    pub examples: Vec<MemoryMismatch>,
}

/// One GPU. Buffers are freed at the latest when the backend is dropped.
pub trait GpuBackend {
    fn info(&self) -> &GpuInfo;
    fn free_bytes(&mut self) -> Result<u64, CudaError>;
    fn allocate(&mut self, bytes: u64) -> Result<DeviceBuffer, CudaError>;
    fn free(&mut self, buffer: DeviceBuffer) -> Result<(), CudaError>;
    fn allocate_host(&mut self, bytes: u64) -> Result<HostBuffer, CudaError>;
    fn free_host(&mut self, buffer: HostBuffer) -> Result<(), CudaError>;
    /// Names of the peers, which are the GPUs that this GPU can access directly.
    fn peers(&self) -> Vec<String>;
    /// Allocates memory on a peer.
    fn allocate_peer(&mut self, peer: usize, bytes: u64) -> Result<DeviceBuffer, CudaError>;
    /// Prepares a GEMM of square matrices whose values stay finite.
    fn prepare_gemm(
        &mut self,
        precision: GemmPrecision,
        side: u64,
    ) -> Result<Result<Gemm, UnsupportedGemm>, CudaError>;
    /// Frees the memory of a GEMM.
    fn release_gemm(&mut self, gemm: Gemm) -> Result<(), CudaError>;
    /// Runs the work on the stream, waits for it, and returns the GPU time in seconds.
    fn run_timed(&mut self, work: &[Work]) -> Result<f64, CudaError>;
    /// Like [`GpuBackend::run_timed`], but measured with the host's clock: seconds until the work
    /// was submitted, and until it was done.
    fn submit_timed(&mut self, work: Work) -> Result<(f64, f64), CudaError>;
    /// Reads the first words of a buffer.
    fn read_words(&mut self, buffer: DeviceBuffer, count: usize) -> Result<Vec<u32>, CudaError>;
    /// Returns and clears the mismatches found by `Check`.
    fn take_mismatches(&mut self) -> Result<MemoryMismatches, CudaError>;
    /// The checksum of the last `Digest`.
    fn digest(&mut self) -> Result<u64, CudaError>;
    /// How many times the counting kernel ran since the backend was opened.
    fn launch_count(&mut self) -> Result<u32, CudaError>;
    /// The library or kernel that runs GEMMs, such as `cuBLASLt 13.1`.
    fn gemm_library(&self, precision: GemmPrecision) -> String;
}
