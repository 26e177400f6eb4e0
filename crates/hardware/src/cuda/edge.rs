//! What a test asks of a GPU: memory, work on one stream, and the time that the work took. The real edge is
//! [`Device`](super::device::Device); a simulated one does the same work on the host, with faults where they are wanted.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::error::CudaError;

/// A GPU under test.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// As CUDA calls it.
    pub name: String,
    /// Major and minor.
    pub compute_capability: (i32, i32),
    /// Streaming multiprocessors.
    pub processors: u32,
    /// All of its memory.
    pub memory_bytes: u64,
}

/// Memory of the GPU, by the number that the edge knows it by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Block {
    pub(super) id: usize,
    /// How much.
    pub bytes: u64,
}

/// Pinned memory of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HostBlock {
    pub(super) id: usize,
    /// How much.
    pub bytes: u64,
}

/// What belongs into memory, word by word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Every word is this one.
    Same(u32),
    /// Each word is its own number, inverted in turn, and moved by this much.
    Own(u32),
    /// Scattered bits, by this seed.
    Scattered(u32),
}

impl Pattern {
    /// As the kernels take it.
    pub(super) fn numbers(self) -> (u32, u32) {
        match self {
            Self::Same(word) => (0, word),
            Self::Own(seed) => (1, seed),
            Self::Scattered(seed) => (2, seed),
        }
    }

    /// The word at that place: what `word_of` in memory.cu says.
    pub fn word(self, at: u64) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "the two halves are taken apart")]
        let own = at as u32 ^ (at >> 32) as u32;
        match self {
            Self::Same(word) => word,
            Self::Own(seed) => (if at % 2 == 1 { !own } else { own }).wrapping_add(seed),
            Self::Scattered(seed) => mixed(own.wrapping_add(seed)),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same(word) => write!(formatter, "{word:#010x} in each word"),
            Self::Own(_) => formatter.write_str("the number of each word"),
            Self::Scattered(_) => formatter.write_str("scattered bits"),
        }
    }
}

/// A number in which every bit depends on every bit of the input: `mixed` in memory.cu.
pub(super) fn mixed(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(0x7feb_352d);
    x ^= x >> 15;
    x = x.wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

/// The end of the chain of whole numbers and fused multiply-adds that begins with `start`: `chain` in memory.cu.
pub(super) fn chain(start: u32, rounds: u32) -> u32 {
    let (mut whole, mut real) = (start, 1.0_f32);
    for round in 0..rounds {
        whole = mixed(whole.wrapping_add(round));
        // 24 bits are exact in a float, and so is their product with a power of two.
        #[expect(clippy::cast_precision_loss, reason = "24 bits are exact")]
        let small = (whole >> 8) as f32 * 5.960_464_5e-8;
        real = real.mul_add(0.75, small);
        whole ^= real.to_bits();
    }
    whole
}

/// In what a matrix product is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Precision {
    /// bfloat16, sums in float32.
    Bf16,
    /// float16, sums in float32.
    Fp16,
    /// E4M3, sums in float32.
    Fp8,
    /// float32 stored, TF32 computed.
    Tf32,
    /// float64.
    Fp64,
    /// bfloat16 by our own kernel.
    Own,
}

impl Precision {
    /// What a GPU of this compute capability lacks for it, whatever its software.
    pub(super) fn lacked(self, capability: (i32, i32)) -> Option<NoWay> {
        let (needed, why) = match self {
            Self::Fp8 => ((8, 9), "this GPU computes nothing in 8-bit floats"),
            Self::Bf16 => ((8, 0), "this GPU computes nothing in bfloat16"),
            Self::Tf32 => ((8, 0), "this GPU computes nothing in TF32"),
            Self::Own => ((8, 0), "our own kernel needs compute capability 8.0"),
            Self::Fp16 | Self::Fp64 => return None,
        };
        (capability < needed).then(|| NoWay { why: why.to_owned(), is_of_part: true })
    }
}

/// Why a product cannot be computed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoWay {
    /// In words.
    pub why: String,
    /// No card of the part can; else it is something of this machine that is missing.
    pub is_of_part: bool,
}

impl NoWay {
    /// Something of this machine is missing.
    pub(super) fn of_machine(why: String) -> Self {
        Self { why, is_of_part: false }
    }
}

/// A product of square matrices that is ready to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Product {
    pub(super) id: usize,
    /// Rows and columns.
    pub side: u64,
    /// Where the result lies.
    pub result: Block,
}

impl Product {
    /// Multiplications and additions of one run.
    pub fn operations(&self) -> u64 {
        2 * self.side * self.side * self.side
    }
}

/// Work for the stream.
#[derive(Debug, Clone, Copy)]
pub enum Work {
    /// Writes a pattern.
    Fill(Block, Pattern),
    /// Compares with a pattern; what is found is asked for by [`Edge::found`].
    Check(Block, Pattern),
    /// Reads everything.
    Read(Block),
    /// Copies the smaller of the two, by a kernel.
    Copy(Block, Block),
    /// Copies the smaller of the two, by the copy engine; one may be a peer's.
    CopyByEngine(Block, Block),
    /// From the host.
    ToGpu(HostBlock, Block),
    /// To the host.
    ToHost(Block, HostBlock),
    /// The chains of so many starts, each of so many rounds, one word each.
    Prove(Block, u32),
    /// Every block of the grid does the same, and writes what came of it and where it ran; sums, then processors.
    Hunt(Block, Block, u32),
    /// The same on tensor cores.
    HuntTensor(Block, Block, u32),
    /// A matrix product.
    Multiply(Product),
    /// Adds up all bytes of a block; the sum is asked for by [`Edge::digest`].
    Digest(Block),
    /// A kernel that counts itself, so many times on the stream.
    Ticks(u32),
    /// The same as the nodes of one graph.
    TickGraph(u32),
}

/// A word that is not as it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrongWord {
    /// Its number in the block.
    pub word: u64,
    /// What was written.
    pub expected: u32,
    /// What was read.
    pub found: u32,
}

/// What comparisons found since they were last asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// Words that were wrong.
    pub wrong: u64,
    /// Some of them.
    pub some: Vec<WrongWord>,
}

/// One GPU. Blocks that were taken are given back at the latest when the edge is dropped.
pub trait Edge {
    /// Which GPU it is.
    fn about(&self) -> &About;
    /// Free memory now.
    fn free_bytes(&mut self) -> Result<u64, CudaError>;
    /// Takes memory of the GPU.
    fn take(&mut self, bytes: u64) -> Result<Block, CudaError>;
    /// Gives it back.
    fn give(&mut self, block: Block) -> Result<(), CudaError>;
    /// Takes pinned memory of the host.
    fn take_host(&mut self, bytes: u64) -> Result<HostBlock, CudaError>;
    /// Gives it back.
    fn give_host(&mut self, block: HostBlock) -> Result<(), CudaError>;
    /// Other GPUs that this one can reach directly, as CUDA calls them.
    fn peers(&self) -> Vec<String>;
    /// Takes memory of one of them.
    fn take_peer(&mut self, peer: usize, bytes: u64) -> Result<Block, CudaError>;
    /// Makes a product of square matrices ready, with numbers that stay finite.
    fn product(
        &mut self,
        precision: Precision,
        side: u64,
    ) -> Result<Result<Product, NoWay>, CudaError>;
    /// Gives its memory back.
    fn forget(&mut self, product: Product) -> Result<(), CudaError>;
    /// Gives work to the stream, waits for it, and says for how long the GPU worked, in seconds.
    fn timed(&mut self, work: &[Work]) -> Result<f64, CudaError>;
    /// As [`Edge::timed`], on the host's clock, and apart for the calls and for all of it.
    fn submitted(&mut self, work: Work) -> Result<(f64, f64), CudaError>;
    /// The first words of a block.
    fn words(&mut self, block: Block, count: usize) -> Result<Vec<u32>, CudaError>;
    /// What comparisons have found.
    fn found(&mut self) -> Result<Found, CudaError>;
    /// The sum of the last digest.
    fn digest(&mut self) -> Result<u64, CudaError>;
    /// How often the counting kernel ran since the edge was opened.
    fn ticks(&mut self) -> Result<u32, CudaError>;
    /// What computes products, such as `cuBLASLt 13.1`.
    fn library(&self, precision: Precision) -> String;
}
