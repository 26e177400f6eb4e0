//! The GPU tests, written against [`GpuBackend`] and free of CUDA.

mod hold;
mod memory;
mod products;
mod quick;
mod soak;

use farrier_facts::diag::{Outcome, Test, median};
use serde::{Deserialize, Serialize};

use super::edge::{Edge, Precision};

pub use soak::Beat;

/// How much work the tests do.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Effort {
    /// Timed repeats, after one untimed warm-up.
    pub repeats: u32,
    /// Bytes per transfer, unless less memory is free.
    pub transfer_bytes: u64,
    /// Rows and columns of a GEMM.
    pub side: u64,
    /// Share of free memory that patterns are written to.
    pub memory_share: f64,
    /// Rounds of patterns.
    pub memory_rounds: u32,
    /// Duration of each long test, in seconds.
    pub soak_s: f64,
}

impl Effort {
    /// For a real GPU.
    pub fn whole(soak_s: f64) -> Self {
        Self {
            repeats: 9,
            transfer_bytes: 1 << 30,
            side: 8192,
            memory_share: 0.95,
            memory_rounds: 3,
            soak_s,
        }
    }
}

/// Runs one test. A CUDA error is a result too: the test failed if the error implicates the GPU,
/// and otherwise did not run.
pub fn run(
    edge: &mut dyn Edge,
    test: Test,
    effort: &Effort,
    tell: &mut dyn FnMut(Beat),
) -> Outcome {
    let done = match test {
        Test::Allocate => quick::allocate(edge),
        Test::Compute => quick::compute(edge),
        Test::PcieToGpu => quick::to_gpu(edge, effort),
        Test::PcieToHost => quick::to_host(edge, effort),
        Test::LaunchStream => quick::launch_stream(edge, effort),
        Test::LaunchGraph => quick::launch_graph(edge, effort),
        Test::HbmRead => memory::read(edge, effort),
        Test::HbmWrite => memory::write(edge, effort),
        Test::HbmCopy => memory::copy(edge, effort),
        Test::MemoryPatterns => memory::patterns(edge, effort),
        Test::PeerCopy => memory::peers(edge, effort),
        Test::GemmBf16 => products::product(edge, effort, Precision::Bf16),
        Test::GemmFp16 => products::product(edge, effort, Precision::Fp16),
        Test::GemmFp8 => products::product(edge, effort, Precision::Fp8),
        Test::GemmTf32 => products::product(edge, effort, Precision::Tf32),
        Test::GemmFp64 => products::product(edge, effort, Precision::Fp64),
        Test::GemmOwn => products::product(edge, effort, Precision::Own),
        Test::Soak => soak::soak(edge, effort, tell),
        Test::Corruption => soak::corruption(edge, effort, tell),
    };
    done.unwrap_or_else(|err| {
        let why = err.to_string();
        if err.says_something_of_the_gpu() {
            Outcome::Failed { why }
        } else {
            Outcome::NotRun { why }
        }
    })
}

/// Passed, with nothing measured.
fn right(detail: String) -> Outcome {
    Outcome::Done { value: None, samples: Vec::new(), detail }
}

/// The median of the samples.
fn measured(samples: Vec<f64>, detail: String) -> Outcome {
    let value = median(&samples);
    Outcome::Done { value, samples, detail }
}

#[expect(clippy::cast_precision_loss, reason = "bytes and operations of a test fit 52 bits")]
fn giga(amount: u64, seconds: f64) -> f64 {
    amount as f64 / seconds / 1e9
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

#[cfg(test)]
mod tests;
