//! Half a minute: does it work.

use farrier_facts::diag::Outcome;

use super::super::edge::{Edge, Pattern, Work, chain};
use super::super::error::CudaError;
use super::hold::Hold;
use super::{Effort, giga, measured, mib, right};

/// Memory is taken twice over, so that it must be given back in between.
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
    // Others may take memory meanwhile: what counts is whether ours came back.
    if after + bytes / 2 < before {
        let what = format!("{} were taken and did not come back", mib(before - after));
        return Ok(Outcome::Wrong { what: vec![what] });
    }
    Ok(right(format!("{} written, read and given back, twice", mib(bytes))))
}

/// Rounds of a chain: a thread is busy for some microseconds.
const ROUNDS: u32 = 64;

/// Every thread of a grid that fills the GPU computes what the host computes too.
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
        None => Ok(right(format!("{count} threads on {processors} multiprocessors were right"))),
        Some(first) => {
            let expected = chain(*first, ROUNDS);
            let found = words.get(*first as usize).copied().unwrap_or_default();
            let what = format!(
                "{} of {count} threads computed wrongly; thread {first} {found:#010x} in place of {expected:#010x}",
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
    // What travels is known, and is looked at after it has been there and back.
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
    Ok(measured(samples, format!("{} a copy, pinned", mib(bytes))))
}

/// Launches between two waits.
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
        let what = format!("a kernel that was launched {launched} times ran {ran} times");
        return Ok(Outcome::Wrong { what: vec![what] });
    }
    Ok(measured(samples, format!("{LAUNCHES} kernels {how} between two waits")))
}
