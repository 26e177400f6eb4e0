//! The GPU tests, written against [`GpuBackend`] and free of CUDA.

mod allocations;
mod gemm;
mod memory;
mod quick;
mod soak;

use farrier_facts::diag::{Test, TestOutcome, median};
use serde::{Deserialize, Serialize};

use super::backend::{GemmPrecision, GpuBackend};

pub use soak::TestProgress;

/// How much work the tests do.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TestBudget {
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

impl TestBudget {
    /// The work for a real GPU.
    pub fn full(soak_s: f64) -> Self {
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

/// Runs one test. A CUDA error is a result too: if it implicates the GPU, the test failed.
/// Otherwise the test did not run.
pub fn run(
    backend: &mut dyn GpuBackend,
    test: Test,
    budget: &TestBudget,
    report: &mut dyn FnMut(TestProgress),
) -> TestOutcome {
    let done = match test {
        Test::Allocate => quick::allocate(backend),
        Test::Compute => quick::compute(backend),
        Test::PcieToGpu => quick::to_gpu(backend, budget),
        Test::PcieToHost => quick::to_host(backend, budget),
        Test::LaunchStream => quick::launch_stream(backend, budget),
        Test::LaunchGraph => quick::launch_graph(backend, budget),
        Test::HbmRead => memory::read(backend, budget),
        Test::HbmWrite => memory::write(backend, budget),
        Test::HbmCopy => memory::copy(backend, budget),
        Test::MemoryPatterns => memory::patterns(backend, budget),
        Test::PeerCopy => memory::peers(backend, budget),
        Test::GemmBf16 => gemm::run(backend, budget, GemmPrecision::Bf16),
        Test::GemmFp16 => gemm::run(backend, budget, GemmPrecision::Fp16),
        Test::GemmFp8 => gemm::run(backend, budget, GemmPrecision::Fp8),
        Test::GemmTf32 => gemm::run(backend, budget, GemmPrecision::Tf32),
        Test::GemmFp64 => gemm::run(backend, budget, GemmPrecision::Fp64),
        Test::GemmOwn => gemm::run(backend, budget, GemmPrecision::OwnKernel),
        Test::Soak => soak::soak(backend, budget, report),
        Test::Corruption => soak::corruption(backend, budget, report),
    };
    done.unwrap_or_else(|err| {
        let why = err.to_string();
        if err.implicates_gpu() { TestOutcome::Failed { why } } else { TestOutcome::NotRun { why } }
    })
}

/// The outcome of a test that passed and measured nothing.
fn passed(detail: String) -> TestOutcome {
    TestOutcome::Done { value: None, samples: Vec::new(), detail }
}

/// The median of the samples.
fn measured(samples: Vec<f64>, detail: String) -> TestOutcome {
    let value = median(&samples);
    TestOutcome::Done { value, samples, detail }
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
