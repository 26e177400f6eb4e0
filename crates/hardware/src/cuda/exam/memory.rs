//! Memory: how fast, and whether every bit of it holds.

use farrier_facts::diag::{Outcome, median};

use super::super::edge::{Edge, Found, Pattern, Work};
use super::super::error::CudaError;
use super::hold::{Hold, whole_quads};
use super::{Effort, giga, measured, mib};

/// Repeats of one timed piece: a single pass takes less than a millisecond.
const PASSES: usize = 8;

pub(super) fn read(edge: &mut dyn Edge, effort: &Effort) -> Result<Outcome, CudaError> {
    let mut hold = Hold::of(edge);
    let bytes = hold.room(effort.transfer_bytes * 4, 1)?;
    let block = hold.block(bytes)?;
    hold.timed(&[Work::Fill(block, Pattern::Scattered(1))])?;
    passes(&mut hold, effort, Work::Read(block), bytes, format!("{} a pass", mib(bytes)))
}

pub(super) fn write(edge: &mut dyn Edge, effort: &Effort) -> Result<Outcome, CudaError> {
    let mut hold = Hold::of(edge);
    let bytes = hold.room(effort.transfer_bytes * 4, 1)?;
    let block = hold.block(bytes)?;
    let work = Work::Fill(block, Pattern::Same(0x5555_aaaa));
    passes(&mut hold, effort, work, bytes, format!("{} a pass", mib(bytes)))
}

/// By a kernel and by the copy engine; the faster one is what the memory can do.
pub(super) fn copy(edge: &mut dyn Edge, effort: &Effort) -> Result<Outcome, CudaError> {
    let mut hold = Hold::of(edge);
    let bytes = hold.room(effort.transfer_bytes * 4, 2)?;
    let (from, to) = (hold.block(bytes)?, hold.block(bytes)?);
    let pattern = Pattern::Scattered(3);
    hold.timed(&[Work::Fill(from, pattern)])?;
    let mut best: Option<Outcome> = None;
    for (work, how) in
        [(Work::Copy(from, to), "a kernel"), (Work::CopyByEngine(from, to), "a copy")]
    {
        hold.timed(&[Work::Fill(to, Pattern::Same(0))])?;
        let detail = format!("{} read and written by {how}", mib(bytes));
        let found = passes(&mut hold, effort, work, 2 * bytes, detail)?;
        hold.timed(&[Work::Check(to, pattern)])?;
        let compared = hold.found()?;
        if compared.wrong > 0 {
            return Ok(wrong(&compared, pattern));
        }
        let value = |outcome: &Outcome| match outcome {
            Outcome::Done { value, .. } => value.unwrap_or_default(),
            _ => 0.0,
        };
        if best.as_ref().is_none_or(|best| value(best) < value(&found)) {
            best = Some(found);
        }
    }
    best.map_or_else(|| Ok(super::right(String::new())), Ok)
}

fn passes(
    hold: &mut Hold<'_>,
    effort: &Effort,
    work: Work,
    bytes: u64,
    detail: String,
) -> Result<Outcome, CudaError> {
    let mut samples = Vec::new();
    for repeat in 0..=effort.repeats {
        let seconds = hold.timed(&[work; PASSES])?;
        if repeat > 0 {
            samples.push(giga(bytes * PASSES as u64, seconds));
        }
    }
    Ok(measured(samples, detail))
}

/// Memory is taken in pieces, so that what others hold does not keep all of it from being tested.
const PIECE_BYTES: u64 = 1 << 30;

/// Less of the card's memory than this is not all of it, whoever holds the rest: a desktop on a small card takes a tenth,
/// and nobody can say of memory that was not tested that it is sound.
const LEAST_SHARE: f64 = 0.75;

/// All free memory is written before any of it is read: a bit that one address shares with another, or that another
/// write turns, is seen.
pub(super) fn patterns(edge: &mut dyn Edge, effort: &Effort) -> Result<Outcome, CudaError> {
    let mut hold = Hold::of(edge);
    let free = hold.free_bytes()?;
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of some gigabytes"
    )]
    let mut wanted = (free as f64 * effort.memory_share) as u64;
    let mut blocks = Vec::new();
    while wanted >= 1 << 20 {
        let bytes = whole_quads(wanted.min(PIECE_BYTES));
        match hold.block(bytes) {
            Ok(block) => blocks.push(block),
            // Somebody else was faster.
            Err(CudaError::OutOfMemory) if !blocks.is_empty() => break,
            Err(err) => return Err(err),
        }
        wanted -= bytes.min(wanted);
    }
    let bytes: u64 = blocks.iter().map(|block| block.bytes).sum();
    let all = hold.about().memory_bytes;
    if giga(bytes, 1.0) < giga(all, 1.0) * LEAST_SHARE {
        return Ok(Outcome::NotRun {
            why: format!(
                "only {} of {} could be taken, others hold the rest: less than {:.0} % says too little",
                mib(bytes),
                mib(all),
                LEAST_SHARE * 100.0
            ),
        });
    }
    for round in 0..effort.memory_rounds {
        for pattern in patterns_of(round) {
            // Blocks differ, so that one that is an alias of another is seen.
            let own = |index: usize| match pattern {
                Pattern::Scattered(seed) => {
                    Pattern::Scattered(seed ^ u32::try_from(index).unwrap_or(0) << 20)
                }
                other => other,
            };
            for (index, block) in blocks.iter().enumerate() {
                hold.timed(&[Work::Fill(*block, own(index))])?;
            }
            for (index, block) in blocks.iter().enumerate() {
                hold.timed(&[Work::Check(*block, own(index))])?;
                let found = hold.found()?;
                if found.wrong > 0 {
                    return Ok(wrong(&found, own(index)));
                }
            }
        }
    }
    let patterns = effort.memory_rounds as usize * patterns_of(0).len();
    let detail = format!("{} of {} free, {patterns} patterns", mib(bytes), mib(free));
    let gb = giga(bytes, 1.0);
    Ok(Outcome::Done { value: Some(gb), samples: vec![gb], detail })
}

/// Alternating bits both ways, addresses, and scattered bits that differ each round.
fn patterns_of(round: u32) -> [Pattern; 4] {
    [
        Pattern::Same(0x5555_5555_u32.rotate_left(round)),
        Pattern::Same(0xaaaa_aaaa_u32.rotate_left(round)),
        Pattern::Own(round),
        Pattern::Scattered(0x0001_0000 + round),
    ]
}

/// What wrong words have in common says most: one bit, one place, or everything.
pub(super) fn wrong(found: &Found, pattern: Pattern) -> Outcome {
    let words = match found.wrong {
        1 => "1 word was not as it was written".to_owned(),
        count => format!("{count} words were not as they were written"),
    };
    let mut what = vec![format!("{words} ({pattern})")];
    let differ = found.some.iter().fold(0, |bits, it| bits | (it.expected ^ it.found));
    if differ.is_power_of_two() {
        what.push(format!("always bit {}", differ.trailing_zeros()));
    }
    what.extend(found.some.iter().take(3).map(|it| {
        format!("word {:#x} is {:#010x} in place of {:#010x}", it.word, it.found, it.expected)
    }));
    Outcome::Wrong { what }
}

/// Memory to each of the other GPUs; the slowest is what counts.
pub(super) fn peers(edge: &mut dyn Edge, effort: &Effort) -> Result<Outcome, CudaError> {
    let peers = edge.peers();
    if peers.is_empty() {
        return Ok(Outcome::Unsupported {
            why: "there is no GPU that this one reaches directly".to_owned(),
        });
    }
    let mut slowest: Option<(f64, Vec<f64>, String)> = None;
    for (index, name) in peers.iter().enumerate() {
        let mut hold = Hold::of(edge);
        let bytes = hold.room(effort.transfer_bytes, 1)?;
        let from = hold.block(bytes)?;
        let there = hold.peer_block(index, bytes)?;
        let pattern = Pattern::Scattered(11);
        hold.timed(&[Work::Fill(from, pattern)])?;
        let mut samples = Vec::new();
        for repeat in 0..=effort.repeats {
            let seconds = hold.timed(&[Work::CopyByEngine(from, there)])?;
            if repeat > 0 {
                samples.push(giga(bytes, seconds));
            }
        }
        let back = [
            Work::Fill(from, Pattern::Same(0)),
            Work::CopyByEngine(there, from),
            Work::Check(from, pattern),
        ];
        hold.timed(&back)?;
        let found = hold.found()?;
        if found.wrong > 0 {
            return Ok(wrong(&found, pattern));
        }
        let median = median(&samples).unwrap_or_default();
        if slowest.as_ref().is_none_or(|(least, ..)| median < *least) {
            slowest = Some((median, samples, name.clone()));
        }
    }
    let (_, samples, name) = slowest.unwrap_or_default();
    Ok(measured(samples, format!("the slowest of {} peers, {name}", peers.len())))
}
