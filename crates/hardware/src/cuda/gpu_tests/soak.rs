//! Tests under minutes of load: sustained speed and silent data corruption.

use std::collections::{BTreeMap, BTreeSet};

use farrier_facts::diag::TestOutcome;
use serde::{Deserialize, Serialize};

use super::super::backend::{DeviceBuffer, Gemm, GemmPrecision, GpuBackend, Work, chain, mix};
use super::super::error::CudaError;
use super::allocations::Allocations;
use super::{TestBudget, gemm, giga, measured};

/// Progress of a long test.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TestProgress {
    /// Seconds of work since the test began.
    pub at_s: f64,
    /// Current rate. `None` if the test measures none.
    pub tflops: Option<f64>,
}

/// Work per progress report, about one second.
const PROGRESS_S: f64 = 1.0;

/// Runs the fastest available GEMM in a loop.
pub(super) fn soak(
    backend: &mut dyn GpuBackend,
    budget: &TestBudget,
    report: &mut dyn FnMut(TestProgress),
) -> Result<TestOutcome, CudaError> {
    let mut gpu = Allocations::new(backend);
    let Some((gemm, how)) = any_gemm(&mut gpu, budget)? else {
        return Ok(TestOutcome::Unsupported {
            why: "this GPU has no supported tensor cores".to_owned(),
        });
    };
    let once_s = gpu.run_timed(&[Work::Gemm(gemm)])?;
    let runs = runs_in(PROGRESS_S, once_s);
    let work = vec![Work::Gemm(gemm); runs];
    let (mut spent_s, mut samples) = (0.0, Vec::new());
    while spent_s < budget.soak_s || samples.is_empty() {
        let seconds = gpu.run_timed(&work)?;
        spent_s += seconds;
        let tflops = giga(gemm.operations() * runs as u64, seconds) / 1e3;
        samples.push(tflops);
        report(TestProgress { at_s: spent_s, tflops: Some(tflops) });
    }
    let side = gemm.side;
    Ok(measured(samples, format!("{side} x {side} x {side} {how} for {spent_s:.0} s")))
}

fn any_gemm(
    gpu: &mut Allocations<'_>,
    budget: &TestBudget,
) -> Result<Option<(Gemm, String)>, CudaError> {
    for precision in [GemmPrecision::Bf16, GemmPrecision::OwnKernel] {
        if let Ok(gemm) = gemm::largest_fitting(gpu, precision, budget.side)? {
            return Ok(Some((gemm, format!("by {}", gpu.gemm_library(precision)))));
        }
    }
    Ok(None)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "between one and a few thousand"
)]
fn runs_in(seconds: f64, once_s: f64) -> usize {
    (seconds / once_s.max(1e-6)).clamp(1.0, 5000.0) as usize
}

/// Thread blocks per SM: enough of them that every SM gets work.
const BLOCKS: u32 = 8;
/// Threads per block in the `hunt` kernel.
const THREADS: u32 = 256;
const ROUNDS: u32 = 512;
const TENSOR_ROUNDS: u32 = 4096;

/// Repeats the same work on every SM, and one large GEMM. Any difference between results is
/// corruption.
pub(super) fn corruption(
    backend: &mut dyn GpuBackend,
    budget: &TestBudget,
    report: &mut dyn FnMut(TestProgress),
) -> Result<TestOutcome, CudaError> {
    let sm_count = backend.info().sm_count.max(1);
    let count = sm_count * BLOCKS;
    let has_tensor_cores = backend.info().compute_capability >= (8, 0);
    let mut gpu = Allocations::new(backend);
    let bytes = u64::from(count) * 4;
    let (sums, sm_ids) = (gpu.buffer(bytes)?, gpu.buffer(bytes)?);
    let gemm = any_gemm(&mut gpu, budget)?;
    let whole = (0..THREADS).map(|thread| mix(chain(thread, ROUNDS) ^ thread));
    let expected = whole.fold(0_u32, u32::wrapping_add);
    let mut tally = Tally::default();
    let (mut spent_s, mut reference, mut tensor_reference) = (0.0, None, None);
    let mut reported_s = 0.0;
    let mut checked = vec!["integers and floats".to_owned()];
    checked.extend(has_tensor_cores.then(|| "tensor cores".to_owned()));
    checked.extend(gemm.as_ref().map(|(_, how)| format!("one large GEMM {how}")));
    while spent_s < budget.soak_s || tally.rounds == 0 {
        spent_s += gpu.run_timed(&[Work::CheckCompute(sums, sm_ids, ROUNDS)])?;
        tally.compare(&mut gpu, (sums, sm_ids), count, Some(expected), "integers and floats")?;
        if has_tensor_cores {
            spent_s += gpu.run_timed(&[Work::CheckTensor(sums, sm_ids, TENSOR_ROUNDS)])?;
            let most =
                tally.compare(&mut gpu, (sums, sm_ids), count, tensor_reference, "tensor cores")?;
            tensor_reference = tensor_reference.or(Some(most));
        }
        if let Some((gemm, _)) = &gemm {
            spent_s += gpu.run_timed(&[Work::Gemm(*gemm)])?;
            let digest = gemm::digest(&mut gpu, *gemm)?;
            if *reference.get_or_insert(digest) != digest {
                tally.gemm_mismatches += 1;
            }
        }
        tally.rounds += 1;
        if spent_s >= reported_s + PROGRESS_S {
            reported_s = spent_s;
            report(TestProgress { at_s: spent_s, tflops: None });
        }
        if tally.is_enough() {
            break;
        }
    }
    Ok(tally.outcome(sm_count, spent_s, &checked.join(", ")))
}

/// Mismatches so far.
#[derive(Default)]
struct Tally {
    rounds: u32,
    gemm_mismatches: u32,
    /// Number of mismatches by kind of work and SM.
    wrong_results: BTreeMap<(&'static str, u32), u32>,
    seen_sms: BTreeSet<u32>,
}

impl Tally {
    /// Compares the checksum of each thread block with `expected`. If `expected` is `None`,
    /// compares with the most frequent checksum. Returns the checksum used for the comparison.
    fn compare(
        &mut self,
        gpu: &mut Allocations<'_>,
        (sums, sm_ids): (DeviceBuffer, DeviceBuffer),
        count: u32,
        expected: Option<u32>,
        kind: &'static str,
    ) -> Result<u32, CudaError> {
        let sums = gpu.read_words(sums, count as usize)?;
        let sm_ids = gpu.read_words(sm_ids, count as usize)?;
        let expected = expected.unwrap_or_else(|| most_frequent(&sums));
        for (sum, sm) in sums.iter().zip(sm_ids) {
            self.seen_sms.insert(sm);
            if *sum != expected {
                *self.wrong_results.entry((kind, sm)).or_default() += 1;
            }
        }
        Ok(expected)
    }

    /// Whether to stop early, because ten wrong results say as much as a thousand.
    fn is_enough(&self) -> bool {
        self.gemm_mismatches >= 10 || self.wrong_results.values().sum::<u32>() >= 10
    }

    /// The outcome. `checked` names the kinds of work that were compared.
    fn outcome(&self, sm_count: u32, spent_s: f64, checked: &str) -> TestOutcome {
        let mut what: Vec<String> = self
            .wrong_results
            .iter()
            .map(|((kind, sm), times)| format!("SM {sm} gave {times} wrong results ({kind})"))
            .collect();
        if self.gemm_mismatches > 0 {
            what.push(format!(
                "{} of {} runs of one GEMM gave different bits",
                self.gemm_mismatches, self.rounds
            ));
        }
        if !what.is_empty() {
            return TestOutcome::Wrong { what };
        }
        let seen = self.seen_sms.len();
        if seen < sm_count as usize {
            let why = format!("only {seen} of {sm_count} SMs ran any of the work");
            return TestOutcome::NotRun { why };
        }
        super::passed(format!(
            "{} rounds in {spent_s:.0} s on {seen} of {sm_count} SMs, bit-identical: {checked}",
            self.rounds
        ))
    }
}

fn most_frequent(sums: &[u32]) -> u32 {
    let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
    for sum in sums {
        *counts.entry(*sum).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map_or(0, |(sum, _)| sum)
}
