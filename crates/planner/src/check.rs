//! What cannot be run at all, and what could be instead.

mod impossible;

pub use impossible::ImpossibleRun;

use crate::gpu::Generation;
use crate::layout::{Layout, Recompute, Schedule};
use crate::model::{Attention, Model};
use crate::precision::Precision;
use crate::run::Run;

/// More GPUs than a run has had by two orders.
const MOST_GPUS: u64 = 1 << 22;
/// Longer sequences than any has been trained on.
const MOST_TOKENS: u32 = 1 << 27;

/// Whether a run can be run. What is merely slow can: TP beyond what `NVLink` joins, heads of keys
/// and values held more than once, fewer micro-batches than stages.
pub fn check(run: &Run) -> Result<(), ImpossibleRun> {
    scale(run)?;
    let layout = &run.layout;
    tensor_parallel(&run.model, layout)?;
    experts(&run.model, layout)?;
    sequence(run)?;
    copies(run)?;
    pipeline(run)?;
    precision(run)
}

/// Whether a run can be run on exactly so many GPUs.
pub fn check_on(run: &Run, gpus: u32) -> Result<(), ImpossibleRun> {
    scale(run)?;
    tensor_parallel(&run.model, &run.layout)?;
    let Layout { dp, tp, pp, cp, .. } = run.layout;
    let takes = product([dp, tp, pp, cp]);
    if takes != u64::from(gpus) {
        return Err(ImpossibleRun::Gpus { dp, tp, pp, cp, takes, gpus });
    }
    check(run)
}

fn product<const N: usize>(factors: [u32; N]) -> u64 {
    factors.iter().fold(1, |product: u64, factor| product.saturating_mul(u64::from(*factor)))
}

fn scale(run: &Run) -> Result<(), ImpossibleRun> {
    let layout = &run.layout;
    for (what, value) in [
        ("DP", layout.dp),
        ("TP", layout.tp),
        ("PP", layout.pp),
        ("VP", layout.vp),
        ("CP", layout.cp),
        ("EP", layout.ep),
        ("micro-batch", layout.micro_batch),
        ("rank of adapters", layout.adapter_rank),
        ("sequence length", run.seq_len),
        ("global batch", run.global_batch),
        ("number of blocks", run.model.layers),
        ("number of heads", run.model.attention.heads()),
        ("number of heads of keys and values", run.model.attention.kv_heads()),
    ] {
        if value == 0 {
            return Err(ImpossibleRun::Zero { what });
        }
    }
    let gpus = product([layout.dp, layout.tp, layout.pp, layout.cp]);
    if gpus > MOST_GPUS {
        return Err(ImpossibleRun::Absurd {
            what: "the number of GPUs",
            value: gpus,
            most: MOST_GPUS,
        });
    }
    if layout.adapter_rank > run.model.hidden {
        return Err(ImpossibleRun::Absurd {
            what: "the rank of adapters",
            value: u64::from(layout.adapter_rank),
            most: u64::from(run.model.hidden),
        });
    }
    if run.seq_len > MOST_TOKENS {
        return Err(ImpossibleRun::Absurd {
            what: "the sequence length",
            value: u64::from(run.seq_len),
            most: u64::from(MOST_TOKENS),
        });
    }
    Ok(())
}

/// What divides a number, up to another.
fn divisors(whole: u64, most: u64) -> impl Iterator<Item = u32> {
    (1..=whole.min(most))
        .filter(move |number| whole.is_multiple_of(*number))
        .filter_map(|number| u32::try_from(number).ok())
}

/// At most so many possible values are named.
const NAMED: usize = 12;

fn uneven(
    what: &'static str,
    value: u32,
    of: &'static str,
    whole: u64,
) -> Result<(), ImpossibleRun> {
    if whole.is_multiple_of(u64::from(value)) {
        return Ok(());
    }
    let mut possible: Vec<u32> = divisors(whole, MOST_GPUS).collect();
    // The nearest ones.
    possible.sort_by_key(|number| number.abs_diff(value));
    possible.truncate(NAMED);
    possible.sort_unstable();
    Err(ImpossibleRun::Uneven { what, value, of, whole, possible })
}

fn tensor_parallel(model: &Model, layout: &Layout) -> Result<(), ImpossibleRun> {
    let tp = layout.tp;
    let heads = model.attention.heads();
    uneven("TP", tp, "heads:", u64::from(heads))?;
    if let Attention::Grouped { kv_heads, .. } = model.attention {
        let fits = |tp: u32| kv_heads.is_multiple_of(tp) || tp.is_multiple_of(kv_heads);
        if !fits(tp) {
            let possible = divisors(u64::from(heads), u64::from(heads)).filter(|tp| fits(*tp));
            let possible = possible.collect();
            return Err(ImpossibleRun::KeyValueHeads { tp, kv_heads, possible });
        }
    }
    if model.dense_layers() > 0 {
        uneven("TP", tp, "the feed-forward width", u64::from(model.ffn))?;
    }
    Ok(())
}

fn experts(model: &Model, layout: &Layout) -> Result<(), ImpossibleRun> {
    let Some(experts) = model.experts else {
        if layout.ep > 1 {
            return Err(ImpossibleRun::NoExperts { ep: layout.ep, model: model.name.clone() });
        }
        return Ok(());
    };
    uneven("EP", layout.ep, "experts:", u64::from(experts.count))?;
    let ranks = product([layout.dp, layout.tp, layout.cp]);
    uneven("EP", layout.ep, "the DP × CP × TP ranks:", ranks)
}

fn sequence(run: &Run) -> Result<(), ImpossibleRun> {
    let layout = &run.layout;
    let seq_len = run.seq_len;
    let whole = |unit: u64| u64::from(seq_len).is_multiple_of(unit);
    if layout.cp > 1 {
        // A rank takes a piece of the beginning and one of the end, so that all have equal work.
        let unit = 2 * u64::from(layout.cp);
        if !whole(unit) {
            return Err(ImpossibleRun::Sequence { seq_len, unit, why: "2 × CP" });
        }
    }
    if layout.sequence_parallel && layout.tp > 1 {
        let unit = u64::from(layout.tp) * u64::from(layout.cp);
        if !whole(unit) {
            let why = "TP × CP, with sequence parallelism";
            return Err(ImpossibleRun::Sequence { seq_len, unit, why });
        }
    }
    Ok(())
}

fn copies(run: &Run) -> Result<(), ImpossibleRun> {
    let Layout { dp, cp, micro_batch, shard_group, reduce_bytes, moment_bytes, .. } = run.layout;
    if !u64::from(run.global_batch).is_multiple_of(product([dp, micro_batch])) {
        return Err(ImpossibleRun::Batch { batch: run.global_batch, dp, micro_batch });
    }
    if shard_group > 0 {
        uneven("a shard group of", shard_group, "the DP × CP ranks:", product([dp, cp]))?;
    }
    if !matches!(reduce_bytes, 2 | 4) {
        return Err(ImpossibleRun::ReduceBytes { bytes: reduce_bytes });
    }
    if !matches!(moment_bytes, 1 | 2 | 4) {
        return Err(ImpossibleRun::MomentBytes { bytes: moment_bytes });
    }
    Ok(())
}

fn pipeline(run: &Run) -> Result<(), ImpossibleRun> {
    let Layout { pp, vp, schedule, recompute, .. } = run.layout;
    let layers = run.model.layers;
    if let Recompute::Layers(again) = recompute
        && again > layers.div_ceil(pp)
    {
        return Err(ImpossibleRun::Again { again, held: layers.div_ceil(pp) });
    }
    if !run.stack.can_recompute(recompute) {
        let possible = run.stack.recomputes().iter().map(|mode| mode.name()).collect();
        let (program, mode) = (run.stack.name(), recompute.name());
        return Err(ImpossibleRun::Program { program, mode, possible });
    }
    if vp > 1 && pp == 1 {
        return Err(ImpossibleRun::PiecesWithoutStages { vp });
    }
    // Zero bubble (ZB-H1) and two streams are for one piece a stage, and do nothing without stages.
    if schedule != Schedule::OneForwardOneBackward && (pp == 1 || vp > 1) {
        return Err(ImpossibleRun::Schedule { schedule: schedule.name(), pp, vp });
    }
    // The two ends of the model may count as a block each, which leaves a piece without another
    // (as in the published runs of Llama 3.1 405B: 126 blocks in 16 × 8 pieces).
    if pp > layers || product([pp, vp]) > u64::from(layers) + if vp > 1 { 2 } else { 0 } {
        return Err(ImpossibleRun::Pieces { pp, vp, layers });
    }
    if layers.is_multiple_of(pp) {
        uneven("VP", vp, "the blocks of a stage:", u64::from(layers / pp))?;
    }
    let micro_batches = run.micro_batches();
    if vp > 1 && !micro_batches.is_multiple_of(pp) {
        return Err(ImpossibleRun::Interleaved { micro_batches, pp });
    }
    // As the authors' own scheduler asks for (`dualpipe.py`).
    let paired = pp.is_multiple_of(2)
        && micro_batches.is_multiple_of(2)
        && u64::from(micro_batches) >= product([2, pp]);
    if schedule == Schedule::DualPipe && !paired {
        return Err(ImpossibleRun::DualPipe { pp, micro_batches });
    }
    Ok(())
}

fn oldest(precision: Precision) -> Generation {
    match precision {
        Precision::Fp16 | Precision::Bf16 => Generation::Ampere,
        Precision::Fp8 | Precision::Fp8Row | Precision::Fp8Block => Generation::Hopper,
        Precision::Mxfp8 | Precision::Nvfp4 => Generation::Blackwell,
    }
}

/// Whether the GPU has the precision.
pub fn precision(run: &Run) -> Result<(), ImpossibleRun> {
    let has = |precision: Precision| run.gpu.generation >= oldest(precision);
    if has(run.precision) {
        return Ok(());
    }
    Err(ImpossibleRun::Precision {
        precision: run.precision.name(),
        needs: oldest(run.precision).name(),
        gpu: run.gpu.id.clone(),
        generation: run.gpu.generation.name(),
        possible: Precision::ALL.into_iter().filter(|p| has(*p)).map(Precision::name).collect(),
    })
}

#[cfg(test)]
mod tests {
    use farrier_facts::FactSet;

    use super::*;
    use crate::gpu::Accelerator;
    use crate::layout::Layout;
    use crate::model::builtin;
    use crate::published;
    use crate::run::{Stack, Task};

    fn run(model: &str, gpu: &str, layout: Layout) -> Run {
        Run {
            model: builtin::named(model).unwrap().model(),
            gpu: Accelerator::named(FactSet::embedded(), gpu).unwrap(),
            seq_len: 8192,
            global_batch: 512,
            precision: Precision::Bf16,
            layout,
            task: Task::Full,
            stack: Stack::Bridge,
            fused_experts: false,
        }
    }

    fn refused(change: impl FnOnce(&mut Run)) -> String {
        let mut run = run("llama3-70b", "H100-SXM-80GB", Layout::copies(8, 1));
        change(&mut run);
        check(&run).unwrap_err().to_string()
    }

    fn refused_of_experts(change: impl FnOnce(&mut Run)) -> String {
        refused(|run| {
            run.model = builtin::named("qwen3-235b-a22b").unwrap().model();
            change(run);
        })
    }

    #[test]
    fn what_is_impossible_says_what_is_possible() {
        for (said, part) in [
            (
                refused(|run| run.layout.tp = 48),
                "TP 48 does not divide heads: 64; possible: 1, 2, 4, 8, 16, 32, 64",
            ),
            (refused(|run| run.layout.tp = 128), "possible: 1, 2, 4, 8, 16, 32, 64"),
            (refused(|run| (run.layout.pp, run.layout.vp) = (16, 6)), "VP up to 5 at PP 16"),
            (refused(|run| run.layout.vp = 2), "VP 1, or PP of at least 2"),
            (refused(|run| run.layout.ep = 2), "EP 2 needs experts and `llama3-70b` has none"),
            (refused(|run| run.global_batch = 500), "possible: 496 or 504"),
            (refused(|run| run.global_batch = 5), "possible: 8"),
            (refused(|run| run.layout.cp = 3), "possible: 8190 or 8196"),
            (
                refused(|run| (run.layout.pp, run.layout.vp) = (10, 2)),
                "possible: 60 or 70 micro-batches, or VP 1",
            ),
            (refused(|run| run.layout.tp = 0), "TP is 0"),
            (refused(|run| run.seq_len = 0), "sequence length is 0"),
            (refused(|run| run.global_batch = 0), "global batch is 0"),
            (refused(|run| run.layout.dp = u32::MAX), "possible: up to 4194304"),
            (refused(|run| run.seq_len = 1 << 28), "possible: up to 134217728"),
            (refused(|run| run.layout.shard_group = 3), "possible: 1, 2, 4, 8"),
            (refused(|run| run.layout.reduce_bytes = 3), "possible: 2, 4"),
            (refused(|run| run.precision = Precision::Nvfp4), "`nvfp4` needs blackwell or newer"),
            (
                refused(|run| (run.layout.schedule, run.layout.pp) = (Schedule::DualPipe, 5)),
                "an even PP",
            ),
            (
                refused(|run| run.layout.schedule = Schedule::ZeroBubble),
                "`zero-bubble` with PP 1 and VP 1; possible: PP of at least 2 and VP 1, or `1f1b`",
            ),
            (
                refused(|run| {
                    (run.layout.pp, run.layout.vp) = (8, 2);
                    run.layout.schedule = Schedule::ZeroBubble;
                }),
                "`zero-bubble` with PP 8 and VP 2",
            ),
            (refused(|run| run.layout.moment_bytes = 3), "moments of 3 bytes; possible: 1, 2, 4"),
            (refused(|run| run.layout.adapter_rank = 0), "rank of adapters is 0"),
            (
                refused(|run| (run.layout.pp, run.layout.vp) = (81, 1)),
                "PP 81 makes more stages than the 80 blocks; possible: PP up to 80",
            ),
            (refused_of_experts(|run| run.layout.ep = 3), "EP 3 does not divide experts: 128"),
            (
                refused_of_experts(|run| run.layout.ep = 16),
                "EP 16 does not divide the DP × CP × TP ranks: 8; possible: 1, 2, 4, 8",
            ),
        ] {
            assert!(said.contains(part), "{said}\nlacks {part}");
        }
    }

    #[test]
    fn formats_that_a_generation_lacks_are_refused() {
        let mut run = run("llama3-8b", "A100-SXM-80GB", Layout::copies(8, 1));
        assert_eq!(check(&run), Ok(()));
        run.precision = Precision::Fp8;
        let said = check(&run).unwrap_err().to_string();
        assert!(said.ends_with("is ampere; possible: `fp16`, `bf16`"), "{said}");
    }

    #[test]
    fn what_is_merely_slow_is_possible() {
        let mut run = run("llama3-70b", "H100-SXM-80GB", Layout::copies(1, 1));
        run.layout.tp = 16;
        assert_eq!(check(&run), Ok(()), "TP beyond the domain, heads of keys and values twice");
        run.layout = Layout { pp: 16, dp: 512, ..Layout::copies(1, 1) };
        assert_eq!(check(&run), Ok(()), "one micro-batch for 16 stages");
    }

    #[test]
    fn heads_of_keys_and_values_must_fit() {
        // 40 heads, 8 of keys and values.
        let mut run = run("qwen2.5-32b", "H100-SXM-80GB", Layout::copies(1, 1));
        run.layout.tp = 20;
        let said = check(&run).unwrap_err().to_string();
        assert!(said.ends_with("possible: 1, 2, 4, 8, 40"), "{said}");
    }

    #[test]
    fn the_split_takes_as_many_gpus_as_there_are() {
        let run = run("llama3-70b", "H100-SXM-80GB", Layout { tp: 8, ..Layout::copies(4, 1) });
        assert_eq!(check_on(&run, 32), Ok(()));
        let said = check_on(&run, 64).unwrap_err().to_string();
        assert!(said.ends_with("takes 32 GPUs, there are 64; possible: DP 8"), "{said}");
        let said = check_on(&run, 60).unwrap_err().to_string();
        assert!(said.ends_with("a multiple of 8 GPUs, such as 56 or 64"), "{said}");
    }

    #[test]
    fn published_runs_are_possible() {
        let rows = published::read(FactSet::embedded(), published::embedded()).unwrap();
        let mut wrong = Vec::new();
        for row in rows.into_iter().flatten() {
            if let Err(err) = check(&row.run) {
                wrong.push(format!("{} {} {err}", row.source, row.run.model.name));
            }
        }
        wrong.sort();
        wrong.dedup();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}
