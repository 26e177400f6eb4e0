//! Quick tests of whether the GPU works at all. Together they take half a minute.

use farrier_facts::diag::TestOutcome;

use super::super::backend::{GpuBackend, MemoryPattern, Work, chain};
use super::super::error::CudaError;
use super::allocations::Allocations;
use super::{TestBudget, giga, measured, mib, passed};

/// Allocates memory twice, so that the first allocation must have been freed.
pub(super) fn allocate(backend: &mut dyn GpuBackend) -> Result<TestOutcome, CudaError> {
    let before = backend.free_bytes()?;
    let bytes = Allocations::new(backend).buffer_bytes(1 << 30, 1)?;
    for round in 0..2 {
        let mut gpu = Allocations::new(backend);
        let buffer = gpu.buffer(bytes)?;
        let pattern = MemoryPattern::Random(round);
        gpu.run_timed(&[Work::Fill(buffer, pattern), Work::Check(buffer, pattern)])?;
        let mismatches = gpu.take_mismatches()?;
        if mismatches.count > 0 {
            return Ok(super::memory::wrong(&mismatches, pattern));
        }
    }
    let after = backend.free_bytes()?;
    // Other processes may allocate memory at the same time. Missing memory therefore counts as a
    // leak only if it is more than half of the test's own allocation.
    if after + bytes / 2 < before {
        let what = format!("{} were allocated and not freed", mib(before - after));
        return Ok(TestOutcome::Wrong { what: vec![what] });
    }
    Ok(passed(format!("{} allocated, written, read and freed, twice", mib(bytes))))
}

/// Rounds per chain. This number of rounds keeps a thread busy for some microseconds.
const ROUNDS: u32 = 64;

/// Every thread of a grid that fills the GPU computes a chain that the host verifies.
pub(super) fn compute(backend: &mut dyn GpuBackend) -> Result<TestOutcome, CudaError> {
    let sm_count = backend.info().sm_count;
    let count = sm_count.max(1) * 2048;
    let mut gpu = Allocations::new(backend);
    let buffer = gpu.buffer(u64::from(count) * 4)?;
    gpu.run_timed(&[Work::ComputeChains(buffer, ROUNDS)])?;
    let words = gpu.read_words(buffer, count as usize)?;
    let wrong = (0..count).zip(&words).filter(|(at, word)| chain(*at, ROUNDS) != **word);
    let wrong: Vec<u32> = wrong.map(|(at, _)| at).collect();
    match wrong.first() {
        None => Ok(passed(format!("{count} threads on {sm_count} SMs gave correct results"))),
        Some(first) => {
            let expected = chain(*first, ROUNDS);
            let found = words.get(*first as usize).copied().unwrap_or_default();
            let what = format!(
                "{} of {count} threads gave wrong results; thread {first} {found:#010x}, expected {expected:#010x}",
                wrong.len()
            );
            Ok(TestOutcome::Wrong { what: vec![what] })
        }
    }
}

pub(super) fn to_gpu(
    backend: &mut dyn GpuBackend,
    budget: &TestBudget,
) -> Result<TestOutcome, CudaError> {
    transfer(backend, budget, true)
}

pub(super) fn to_host(
    backend: &mut dyn GpuBackend,
    budget: &TestBudget,
) -> Result<TestOutcome, CudaError> {
    transfer(backend, budget, false)
}

fn transfer(
    backend: &mut dyn GpuBackend,
    budget: &TestBudget,
    is_to_gpu: bool,
) -> Result<TestOutcome, CudaError> {
    let mut gpu = Allocations::new(backend);
    let bytes = gpu.buffer_bytes(budget.transfer_bytes, 1)?;
    let buffer = gpu.buffer(bytes)?;
    let host = gpu.host_buffer(bytes)?;
    // Copy known data both ways, and verify it afterwards.
    let pattern = MemoryPattern::Random(7);
    let blank = MemoryPattern::Constant(0);
    gpu.run_timed(&[Work::Fill(buffer, pattern), Work::CopyToHost(buffer, host)])?;
    let work =
        if is_to_gpu { Work::CopyToGpu(host, buffer) } else { Work::CopyToHost(buffer, host) };
    let mut samples = Vec::new();
    for repeat in 0..=budget.repeats {
        let seconds = gpu.run_timed(&[work])?;
        if repeat > 0 {
            samples.push(giga(bytes, seconds));
        }
    }
    let back =
        [Work::Fill(buffer, blank), Work::CopyToGpu(host, buffer), Work::Check(buffer, pattern)];
    gpu.run_timed(&back)?;
    let mismatches = gpu.take_mismatches()?;
    if mismatches.count > 0 {
        return Ok(super::memory::wrong(&mismatches, pattern));
    }
    Ok(measured(samples, format!("{} per copy, pinned", mib(bytes))))
}

/// Launches between two synchronisations.
const LAUNCHES: u32 = 1000;

pub(super) fn launch_stream(
    backend: &mut dyn GpuBackend,
    budget: &TestBudget,
) -> Result<TestOutcome, CudaError> {
    launches(backend, budget, Work::Launches(LAUNCHES), "launched on a stream")
}

pub(super) fn launch_graph(
    backend: &mut dyn GpuBackend,
    budget: &TestBudget,
) -> Result<TestOutcome, CudaError> {
    launches(backend, budget, Work::GraphLaunches(LAUNCHES), "as nodes of one graph")
}

fn launches(
    backend: &mut dyn GpuBackend,
    budget: &TestBudget,
    work: Work,
    how: &str,
) -> Result<TestOutcome, CudaError> {
    let before = backend.launch_count()?;
    let mut samples = Vec::new();
    for repeat in 0..=budget.repeats {
        let (_, all_s) = backend.submit_timed(work)?;
        if repeat > 0 {
            samples.push(all_s * 1e6 / f64::from(LAUNCHES));
        }
    }
    let ran = backend.launch_count()?.wrapping_sub(before);
    let launched = LAUNCHES * (budget.repeats + 1);
    if ran != launched {
        let what = format!("a kernel launched {launched} times ran {ran} times");
        return Ok(TestOutcome::Wrong { what: vec![what] });
    }
    Ok(measured(samples, format!("{LAUNCHES} kernels {how} between two synchronisations")))
}
