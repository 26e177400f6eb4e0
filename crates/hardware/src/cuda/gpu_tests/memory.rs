//! Memory tests: bandwidth and bit errors.

use farrier_facts::diag::{TestOutcome, median};

use super::super::backend::{GpuBackend, MemoryMismatches, MemoryPattern, Work};
use super::super::error::CudaError;
use super::allocations::{Allocations, round_to_mib};
use super::{TestBudget, giga, measured, mib};

/// Passes per timed sample. A single pass takes less than a millisecond.
const PASSES: usize = 8;

pub(super) fn read(
    backend: &mut dyn GpuBackend,
    budget: &TestBudget,
) -> Result<TestOutcome, CudaError> {
    let mut gpu = Allocations::new(backend);
    let bytes = gpu.buffer_bytes(budget.transfer_bytes * 4, 1)?;
    let buffer = gpu.buffer(bytes)?;
    gpu.run_timed(&[Work::Fill(buffer, MemoryPattern::Random(1))])?;
    passes(&mut gpu, budget, Work::Read(buffer), bytes, format!("{} per pass", mib(bytes)))
}

pub(super) fn write(
    backend: &mut dyn GpuBackend,
    budget: &TestBudget,
) -> Result<TestOutcome, CudaError> {
    let mut gpu = Allocations::new(backend);
    let bytes = gpu.buffer_bytes(budget.transfer_bytes * 4, 1)?;
    let buffer = gpu.buffer(bytes)?;
    let work = Work::Fill(buffer, MemoryPattern::Constant(0x5555_aaaa));
    passes(&mut gpu, budget, work, bytes, format!("{} per pass", mib(bytes)))
}

/// Copies with a kernel and with the copy engine. The faster of the two shows what the memory can
/// do.
pub(super) fn copy(
    backend: &mut dyn GpuBackend,
    budget: &TestBudget,
) -> Result<TestOutcome, CudaError> {
    let mut gpu = Allocations::new(backend);
    let bytes = gpu.buffer_bytes(budget.transfer_bytes * 4, 2)?;
    let (from, to) = (gpu.buffer(bytes)?, gpu.buffer(bytes)?);
    let pattern = MemoryPattern::Random(3);
    gpu.run_timed(&[Work::Fill(from, pattern)])?;
    let mut best: Option<TestOutcome> = None;
    for (work, how) in
        [(Work::Copy(from, to), "a kernel"), (Work::CopyByEngine(from, to), "the copy engine")]
    {
        gpu.run_timed(&[Work::Fill(to, MemoryPattern::Constant(0))])?;
        let detail = format!("{} read and written by {how}", mib(bytes));
        let outcome = passes(&mut gpu, budget, work, 2 * bytes, detail)?;
        gpu.run_timed(&[Work::Check(to, pattern)])?;
        let mismatches = gpu.take_mismatches()?;
        if mismatches.count > 0 {
            return Ok(wrong(&mismatches, pattern));
        }
        let value = |outcome: &TestOutcome| match outcome {
            TestOutcome::Done { value, .. } => value.unwrap_or_default(),
            _ => 0.0,
        };
        if best.as_ref().is_none_or(|best| value(best) < value(&outcome)) {
            best = Some(outcome);
        }
    }
    best.map_or_else(|| Ok(super::passed(String::new())), Ok)
}

fn passes(
    gpu: &mut Allocations<'_>,
    budget: &TestBudget,
    work: Work,
    bytes: u64,
    detail: String,
) -> Result<TestOutcome, CudaError> {
    let mut samples = Vec::new();
    for repeat in 0..=budget.repeats {
        let seconds = gpu.run_timed(&[work; PASSES])?;
        if repeat > 0 {
            samples.push(giga(bytes * PASSES as u64, seconds));
        }
    }
    Ok(measured(samples, detail))
}

/// Memory is allocated in chunks, so that allocations of other processes do not prevent the test.
const CHUNK_BYTES: u64 = 1 << 30;

/// Minimum share of the GPU's memory that must be tested, because untested memory may be faulty.
/// The rest may be in use: a desktop takes a tenth of the memory of a small GPU.
const SHARE_MIN: f64 = 0.75;

/// Writes all free memory before reading any of it, which reveals aliased addresses and bits that
/// other writes flip.
pub(super) fn patterns(
    backend: &mut dyn GpuBackend,
    budget: &TestBudget,
) -> Result<TestOutcome, CudaError> {
    let mut gpu = Allocations::new(backend);
    let free = gpu.free_bytes()?;
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of some gigabytes"
    )]
    let mut target_bytes = (free as f64 * budget.memory_share) as u64;
    let mut buffers = Vec::new();
    while target_bytes >= 1 << 20 {
        let bytes = round_to_mib(target_bytes.min(CHUNK_BYTES));
        match gpu.buffer(bytes) {
            Ok(buffer) => buffers.push(buffer),
            // Another process took the memory first.
            Err(CudaError::OutOfMemory) if !buffers.is_empty() => break,
            Err(err) => return Err(err),
        }
        target_bytes -= bytes.min(target_bytes);
    }
    let bytes: u64 = buffers.iter().map(|buffer| buffer.bytes).sum();
    let all = gpu.info().memory_bytes;
    if giga(bytes, 1.0) < giga(all, 1.0) * SHARE_MIN {
        return Ok(TestOutcome::NotRun {
            why: format!(
                "only {} of {} could be allocated, other processes hold the rest: at least {:.0} % must be tested",
                mib(bytes),
                mib(all),
                SHARE_MIN * 100.0
            ),
        });
    }
    for round in 0..budget.memory_rounds {
        for pattern in round_patterns(round) {
            // Chunks differ, so that aliasing between them is detected.
            let chunk_pattern = |index: usize| match pattern {
                MemoryPattern::Random(seed) => {
                    MemoryPattern::Random(seed ^ u32::try_from(index).unwrap_or(0) << 20)
                }
                other => other,
            };
            for (index, buffer) in buffers.iter().enumerate() {
                gpu.run_timed(&[Work::Fill(*buffer, chunk_pattern(index))])?;
            }
            for (index, buffer) in buffers.iter().enumerate() {
                gpu.run_timed(&[Work::Check(*buffer, chunk_pattern(index))])?;
                let mismatches = gpu.take_mismatches()?;
                if mismatches.count > 0 {
                    return Ok(wrong(&mismatches, chunk_pattern(index)));
                }
            }
        }
    }
    let patterns = budget.memory_rounds as usize * round_patterns(0).len();
    let detail = format!("{} of {} free, {patterns} patterns", mib(bytes), mib(free));
    let gb = giga(bytes, 1.0);
    Ok(TestOutcome::Done { value: Some(gb), samples: vec![gb], detail })
}

/// Alternating bits in both phases, addresses, and random bits that differ in each round.
fn round_patterns(round: u32) -> [MemoryPattern; 4] {
    [
        MemoryPattern::Constant(0x5555_5555_u32.rotate_left(round)),
        MemoryPattern::Constant(0xaaaa_aaaa_u32.rotate_left(round)),
        MemoryPattern::Address(round),
        MemoryPattern::Random(0x0001_0000 + round),
    ]
}

/// Describes the wrong words: their number, the pattern, the bit if it is always the same, and
/// examples.
pub(super) fn wrong(mismatches: &MemoryMismatches, pattern: MemoryPattern) -> TestOutcome {
    let words = match mismatches.count {
        1 => "1 wrong word".to_owned(),
        count => format!("{count} wrong words"),
    };
    let mut what = vec![format!("{words} ({pattern})")];
    let differ =
        mismatches.examples.iter().fold(0, |bits, word| bits | (word.expected ^ word.found));
    if differ.is_power_of_two() {
        what.push(format!("always bit {}", differ.trailing_zeros()));
    }
    what.extend(mismatches.examples.iter().take(3).map(|word| {
        format!("word {:#x} is {:#010x}, expected {:#010x}", word.word, word.found, word.expected)
    }));
    TestOutcome::Wrong { what }
}

/// Copies to each peer GPU and reports the slowest.
pub(super) fn peers(
    backend: &mut dyn GpuBackend,
    budget: &TestBudget,
) -> Result<TestOutcome, CudaError> {
    let peers = backend.peers();
    if peers.is_empty() {
        return Ok(TestOutcome::Unsupported {
            why: "no peer GPU is directly accessible".to_owned(),
        });
    }
    let mut slowest: Option<(f64, Vec<f64>, String)> = None;
    for (index, name) in peers.iter().enumerate() {
        let mut gpu = Allocations::new(backend);
        let bytes = gpu.buffer_bytes(budget.transfer_bytes, 1)?;
        let from = gpu.buffer(bytes)?;
        let there = gpu.peer_buffer(index, bytes)?;
        let pattern = MemoryPattern::Random(11);
        gpu.run_timed(&[Work::Fill(from, pattern)])?;
        let mut samples = Vec::new();
        for repeat in 0..=budget.repeats {
            let seconds = gpu.run_timed(&[Work::CopyByEngine(from, there)])?;
            if repeat > 0 {
                samples.push(giga(bytes, seconds));
            }
        }
        let back = [
            Work::Fill(from, MemoryPattern::Constant(0)),
            Work::CopyByEngine(there, from),
            Work::Check(from, pattern),
        ];
        gpu.run_timed(&back)?;
        let mismatches = gpu.take_mismatches()?;
        if mismatches.count > 0 {
            return Ok(wrong(&mismatches, pattern));
        }
        let median = median(&samples).unwrap_or_default();
        if slowest.as_ref().is_none_or(|(least, ..)| median < *least) {
            slowest = Some((median, samples, name.clone()));
        }
    }
    let (_, samples, name) = slowest.unwrap_or_default();
    Ok(measured(samples, format!("the slowest of {} peers, {name}", peers.len())))
}
