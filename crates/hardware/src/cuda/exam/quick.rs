//! Quick tests: does the GPU work at all (half a minute).

use farrier_facts::diag::Outcome;

use super::super::edge::{Edge, Pattern, Work, chain};
use super::super::error::CudaError;
use super::hold::Hold;
use super::{Effort, giga, measured, mib, right};

/// Allocates twice, so the memory must be freed in between.
pub(super) fn allocate(edge: &mut dyn Edge) -> Result<Outcome, CudaError> {
    let before = edge.free_bytes()?;
    let bytes = Hold::of(edge).room(1 << 30, 1)?;
    for round in 0..2 {
        let mut hold = Hold::of(edge);
        let block = hold.block(bytes)?;
        let pattern = Pattern::Scattered(round);
        hold.timed(&[Work::Fill(block, pattern), Work::Check(block, pattern)])?;
        let found = hold.found()?;
        if found.wrong > 0 {
            return Ok(super::memory::wrong(&found, pattern));
        }
    }
    let after = edge.free_bytes()?;
    // Other processes may allocate meanwhile; only a missing share of our own memory counts.
    if after + bytes / 2 < before {
        let what = format!("{} were allocated and not freed", mib(before - after));
        return Ok(Outcome::Wrong { what: vec![what] });
    }
    Ok(right(format!("{} allocated, written, read and freed, twice", mib(bytes))))
}

/// Rounds per chain: keeps a thread busy for some microseconds.
const ROUNDS: u32 = 64;

/// Every thread of a grid that fills the GPU computes a chain that the host verifies.
pub(super) fn compute(edge: &mut dyn Edge) -> Result<Outcome, CudaError> {
    let processors = edge.about().processors;
    let count = processors.max(1) * 2048;
    let mut hold = Hold::of(edge);
    let block = hold.block(u64::from(count) * 4)?;
    hold.timed(&[Work::Prove(block, ROUNDS)])?;
    let words = hold.words(block, count as usize)?;
    let wrong = (0..count).zip(&words).filter(|(at, word)| chain(*at, ROUNDS) != **word);
    let wrong: Vec<u32> = wrong.map(|(at, _)| at).collect();
    match wrong.first() {
        None => Ok(right(format!("{count} threads on {processors} SMs gave correct results"))),
        Some(first) => {
            let expected = chain(*first, ROUNDS);
            let found = words.get(*first as usize).copied().unwrap_or_default();
            let what = format!(
                "{} of {count} threads gave wrong results; thread {first} {found:#010x}, expected {expected:#010x}",
                wrong.len()
            );
            Ok(Outcome::Wrong { what: vec![what] })
        }
    }
}

pub(super) fn to_gpu(edge: &mut dyn Edge, effort: &Effort) -> Result<Outcome, CudaError> {
    transfer(edge, effort, true)
}

pub(super) fn to_host(edge: &mut dyn Edge, effort: &Effort) -> Result<Outcome, CudaError> {
    transfer(edge, effort, false)
}

fn transfer(edge: &mut dyn Edge, effort: &Effort, is_to_gpu: bool) -> Result<Outcome, CudaError> {
    let mut hold = Hold::of(edge);
    let bytes = hold.room(effort.transfer_bytes, 1)?;
    let block = hold.block(bytes)?;
    let host = hold.host_block(bytes)?;
    // Known data travels both ways and is verified afterwards.
    let pattern = Pattern::Scattered(7);
    let blank = Pattern::Same(0);
    hold.timed(&[Work::Fill(block, pattern), Work::ToHost(block, host)])?;
    let work = if is_to_gpu { Work::ToGpu(host, block) } else { Work::ToHost(block, host) };
    let mut samples = Vec::new();
    for repeat in 0..=effort.repeats {
        let seconds = hold.timed(&[work])?;
        if repeat > 0 {
            samples.push(giga(bytes, seconds));
        }
    }
    let back = [Work::Fill(block, blank), Work::ToGpu(host, block), Work::Check(block, pattern)];
    hold.timed(&back)?;
    let found = hold.found()?;
    if found.wrong > 0 {
        return Ok(super::memory::wrong(&found, pattern));
    }
    Ok(measured(samples, format!("{} per copy, pinned", mib(bytes))))
}

/// Launches between two synchronisations.
const LAUNCHES: u32 = 1000;

pub(super) fn launch_stream(edge: &mut dyn Edge, effort: &Effort) -> Result<Outcome, CudaError> {
    launches(edge, effort, Work::Ticks(LAUNCHES), "launched on a stream")
}

pub(super) fn launch_graph(edge: &mut dyn Edge, effort: &Effort) -> Result<Outcome, CudaError> {
    launches(edge, effort, Work::TickGraph(LAUNCHES), "as nodes of one graph")
}

fn launches(
    edge: &mut dyn Edge,
    effort: &Effort,
    work: Work,
    how: &str,
) -> Result<Outcome, CudaError> {
    let before = edge.ticks()?;
    let mut samples = Vec::new();
    for repeat in 0..=effort.repeats {
        let (_, all_s) = edge.submitted(work)?;
        if repeat > 0 {
            samples.push(all_s * 1e6 / f64::from(LAUNCHES));
        }
    }
    let ran = edge.ticks()?.wrapping_sub(before);
    let launched = LAUNCHES * (effort.repeats + 1);
    if ran != launched {
        let what = format!("a kernel launched {launched} times ran {ran} times");
        return Ok(Outcome::Wrong { what: vec![what] });
    }
    Ok(measured(samples, format!("{LAUNCHES} kernels {how} between two synchronisations")))
}
