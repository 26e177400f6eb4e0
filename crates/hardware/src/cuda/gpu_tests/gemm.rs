//! Tests of the speed and correctness of large GEMMs.

use farrier_facts::diag::TestOutcome;

use super::super::backend::{Gemm, GemmPrecision, GpuBackend, UnsupportedGemm, Work};
use super::super::error::CudaError;
use super::super::matrix_values;
use super::allocations::Allocations;
use super::{TestBudget, giga, measured};

/// GEMMs per timed sample.
const RUNS: usize = 5;

pub(super) fn run(
    backend: &mut dyn GpuBackend,
    budget: &TestBudget,
    precision: GemmPrecision,
) -> Result<TestOutcome, CudaError> {
    let library = backend.gemm_library(precision);
    let mut gpu = Allocations::new(backend);
    let gemm = match largest_fitting(&mut gpu, precision, budget.side)? {
        Ok(gemm) => gemm,
        Err(unsupported) => return Ok(not_run(unsupported)),
    };
    gpu.run_timed(&[Work::Gemm(gemm)])?;
    if let Some(what) = first_wrong(&mut gpu, precision, gemm)? {
        return Ok(TestOutcome::Wrong { what: vec![what] });
    }
    let reference = digest(&mut gpu, gemm)?;
    let mut samples = Vec::new();
    for repeat in 0..=budget.repeats {
        let seconds = gpu.run_timed(&[Work::Gemm(gemm); RUNS])?;
        if repeat > 0 {
            samples.push(giga(gemm.operations() * RUNS as u64, seconds) / 1e3);
        }
    }
    if digest(&mut gpu, gemm)? != reference {
        let what = "the same GEMM gave different bits".to_owned();
        return Ok(TestOutcome::Wrong { what: vec![what] });
    }
    Ok(measured(samples, format!("{side} x {side} x {side} by {library}", side = gemm.side)))
}

fn not_run(UnsupportedGemm { why, is_hardware }: UnsupportedGemm) -> TestOutcome {
    if is_hardware { TestOutcome::Unsupported { why } } else { TestOutcome::NotRun { why } }
}

/// The largest GEMM up to `side` that fits into memory.
pub(super) fn largest_fitting(
    gpu: &mut Allocations<'_>,
    precision: GemmPrecision,
    side: u64,
) -> Result<Result<Gemm, UnsupportedGemm>, CudaError> {
    let mut side = side;
    loop {
        match gpu.prepare_gemm(precision, side) {
            Err(CudaError::OutOfMemory) if side > 1024 => side /= 2,
            made => return made,
        }
    }
}

pub(super) fn digest(gpu: &mut Allocations<'_>, gemm: Gemm) -> Result<u64, CudaError> {
    gpu.run_timed(&[Work::Digest(gemm.result)])?;
    gpu.digest()
}

/// Compares the first value of the result with the host's dot product.
fn first_wrong(
    gpu: &mut Allocations<'_>,
    precision: GemmPrecision,
    gemm: Gemm,
) -> Result<Option<String>, CudaError> {
    let words = gpu.read_words(gemm.result, 2)?;
    let found = matrix_values::decode_first(precision, &words);
    let (expected, size) = matrix_values::expected_first(precision, gemm.side);
    let tolerance = matrix_values::tolerance(precision, expected, size);
    let is_right = (found - expected).abs() <= tolerance;
    Ok((!is_right).then(|| {
        format!(
            "the first element of the GEMM is {found}, expected {expected} (tolerance {tolerance:.1e})"
        )
    }))
}
