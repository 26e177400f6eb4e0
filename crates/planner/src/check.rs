//! Validation of a run: divisibility, limits and supported combinations.

mod impossible;

pub use impossible::ImpossibleRun;

use crate::gpu::Generation;
use crate::model::{Attention, TransformerConfig};
use crate::parallelism::{ParallelConfig, Recompute, Schedule};
use crate::precision::Precision;
use crate::run::TrainingRun;

/// Limit on the number of GPUs: two orders of magnitude more than any run has used.
const MAX_GPUS: u64 = 1 << 22;
/// Limit on the sequence length: longer than any sequence ever trained on.
const MAX_SEQ_LEN: u32 = 1 << 27;

/// Checks that a run is possible. Runs that are merely slow pass: TP beyond the `NVLink` domain,
/// replicated KV heads, fewer micro-batches than pipeline stages.
pub fn check(run: &TrainingRun) -> Result<(), ImpossibleRun> {
    scale(run)?;
    let parallelism = &run.parallelism;
    tensor_parallel(&run.model, parallelism)?;
    experts(&run.model, parallelism)?;
    sequence(run)?;
    data_parallel(run)?;
    pipeline(run)?;
    precision(run)
}

/// Checks that a run is possible on exactly this many GPUs.
pub fn check_on_gpus(run: &TrainingRun, gpus: u32) -> Result<(), ImpossibleRun> {
    scale(run)?;
    tensor_parallel(&run.model, &run.parallelism)?;
    let ParallelConfig { dp, tp, pp, cp, .. } = run.parallelism;
    let required = product([dp, tp, pp, cp]);
    if required != u64::from(gpus) {
        return Err(ImpossibleRun::Gpus { dp, tp, pp, cp, required, gpus });
    }
    check(run)
}

fn product<const N: usize>(factors: [u32; N]) -> u64 {
    factors.iter().fold(1, |product: u64, factor| product.saturating_mul(u64::from(*factor)))
}

fn scale(run: &TrainingRun) -> Result<(), ImpossibleRun> {
    let parallelism = &run.parallelism;
    for (what, value) in [
        ("DP", parallelism.dp),
        ("TP", parallelism.tp),
        ("PP", parallelism.pp),
        ("VP", parallelism.vp),
        ("CP", parallelism.cp),
        ("EP", parallelism.ep),
        ("micro-batch", parallelism.micro_batch),
        ("LoRA rank", parallelism.adapter_rank),
        ("sequence length", run.seq_len),
        ("global batch", run.global_batch),
        ("number of layers", run.model.layers),
        ("number of heads", run.model.attention.heads()),
        ("number of KV heads", run.model.attention.kv_heads()),
    ] {
        if value == 0 {
            return Err(ImpossibleRun::Zero { what });
        }
    }
    let gpus = product([parallelism.dp, parallelism.tp, parallelism.pp, parallelism.cp]);
    if gpus > MAX_GPUS {
        return Err(ImpossibleRun::TooLarge {
            what: "the number of GPUs",
            value: gpus,
            max: MAX_GPUS,
        });
    }
    if parallelism.adapter_rank > run.model.hidden {
        return Err(ImpossibleRun::TooLarge {
            what: "the LoRA rank",
            value: u64::from(parallelism.adapter_rank),
            max: u64::from(run.model.hidden),
        });
    }
    if run.seq_len > MAX_SEQ_LEN {
        return Err(ImpossibleRun::TooLarge {
            what: "the sequence length",
            value: u64::from(run.seq_len),
            max: u64::from(MAX_SEQ_LEN),
        });
    }
    Ok(())
}

/// Divisors of a number, up to `max`.
fn divisors(whole: u64, max: u64) -> impl Iterator<Item = u32> {
    (1..=whole.min(max))
        .filter(move |number| whole.is_multiple_of(*number))
        .filter_map(|number| u32::try_from(number).ok())
}

/// Longest list of possible values in an error message.
const MAX_LISTED: usize = 12;

fn check_divides(
    what: &'static str,
    value: u32,
    of: &'static str,
    whole: u64,
) -> Result<(), ImpossibleRun> {
    if whole.is_multiple_of(u64::from(value)) {
        return Ok(());
    }
    let mut possible: Vec<u32> = divisors(whole, MAX_GPUS).collect();
    // Keep the values nearest to the given one.
    possible.sort_by_key(|number| number.abs_diff(value));
    possible.truncate(MAX_LISTED);
    possible.sort_unstable();
    Err(ImpossibleRun::NotDivisible { what, value, of, whole, possible })
}

fn tensor_parallel(
    model: &TransformerConfig,
    parallelism: &ParallelConfig,
) -> Result<(), ImpossibleRun> {
    let tp = parallelism.tp;
    let heads = model.attention.heads();
    check_divides("TP", tp, "heads:", u64::from(heads))?;
    if let Attention::Grouped { kv_heads, .. } = model.attention {
        let fits = |tp: u32| kv_heads.is_multiple_of(tp) || tp.is_multiple_of(kv_heads);
        if !fits(tp) {
            let possible = divisors(u64::from(heads), u64::from(heads)).filter(|tp| fits(*tp));
            let possible = possible.collect();
            return Err(ImpossibleRun::KeyValueHeads { tp, kv_heads, possible });
        }
    }
    if model.dense_layers() > 0 {
        check_divides("TP", tp, "the feed-forward width", u64::from(model.ffn))?;
    }
    Ok(())
}

fn experts(model: &TransformerConfig, parallelism: &ParallelConfig) -> Result<(), ImpossibleRun> {
    let Some(experts) = model.experts else {
        if parallelism.ep > 1 {
            return Err(ImpossibleRun::NoExperts { ep: parallelism.ep, model: model.name.clone() });
        }
        return Ok(());
    };
    check_divides("EP", parallelism.ep, "experts:", u64::from(experts.count))?;
    let ranks = product([parallelism.dp, parallelism.tp, parallelism.cp]);
    check_divides("EP", parallelism.ep, "the DP × CP × TP ranks:", ranks)
}

fn sequence(run: &TrainingRun) -> Result<(), ImpossibleRun> {
    let parallelism = &run.parallelism;
    let seq_len = run.seq_len;
    let whole = |unit: u64| u64::from(seq_len).is_multiple_of(unit);
    if parallelism.cp > 1 {
        // For load balance each rank gets one chunk from the start of the sequence and one from its
        // end.
        let unit = 2 * u64::from(parallelism.cp);
        if !whole(unit) {
            return Err(ImpossibleRun::Sequence { seq_len, unit, reason: "2 × CP" });
        }
    }
    if parallelism.sequence_parallel && parallelism.tp > 1 {
        let unit = u64::from(parallelism.tp) * u64::from(parallelism.cp);
        if !whole(unit) {
            let reason = "TP × CP, with sequence parallelism";
            return Err(ImpossibleRun::Sequence { seq_len, unit, reason });
        }
    }
    Ok(())
}

fn data_parallel(run: &TrainingRun) -> Result<(), ImpossibleRun> {
    let ParallelConfig { dp, cp, micro_batch, shard_group, reduce_bytes, moment_bytes, .. } =
        run.parallelism;
    if !u64::from(run.global_batch).is_multiple_of(product([dp, micro_batch])) {
        return Err(ImpossibleRun::Batch { batch: run.global_batch, dp, micro_batch });
    }
    if shard_group > 0 {
        check_divides("a sharding group of", shard_group, "the DP × CP ranks:", product([dp, cp]))?;
    }
    if !matches!(reduce_bytes, 2 | 4) {
        return Err(ImpossibleRun::ReduceBytes { bytes: reduce_bytes });
    }
    if !matches!(moment_bytes, 1 | 2 | 4) {
        return Err(ImpossibleRun::MomentBytes { bytes: moment_bytes });
    }
    Ok(())
}

fn pipeline(run: &TrainingRun) -> Result<(), ImpossibleRun> {
    let ParallelConfig { pp, vp, schedule, recompute, .. } = run.parallelism;
    let layers = run.model.layers;
    if let Recompute::Layers(recomputed) = recompute
        && recomputed > layers.div_ceil(pp)
    {
        return Err(ImpossibleRun::RecomputeLayers { recomputed, layers: layers.div_ceil(pp) });
    }
    if !run.framework.supports_recompute(recompute) {
        let possible = run.framework.recompute_modes().iter().map(|mode| mode.name()).collect();
        let (framework, mode) = (run.framework.name(), recompute.name());
        return Err(ImpossibleRun::UnsupportedRecompute { framework, mode, possible });
    }
    if vp > 1 && pp == 1 {
        return Err(ImpossibleRun::VirtualStagesWithoutPipeline { vp });
    }
    // ZB-H1 and DualPipe need a pipeline with one virtual stage per stage.
    if schedule != Schedule::OneForwardOneBackward && (pp == 1 || vp > 1) {
        return Err(ImpossibleRun::Schedule { schedule: schedule.name(), pp, vp });
    }
    // Embedding and loss may count as one layer each, which leaves a virtual stage without layers
    // (as in the published runs of Llama 3.1 405B: 126 layers in 16 × 8 virtual stages).
    if pp > layers || product([pp, vp]) > u64::from(layers) + if vp > 1 { 2 } else { 0 } {
        return Err(ImpossibleRun::TooManyVirtualStages { pp, vp, layers });
    }
    if layers.is_multiple_of(pp) {
        check_divides("VP", vp, "the layers of a stage:", u64::from(layers / pp))?;
    }
    let micro_batches = run.micro_batches();
    if vp > 1 && !micro_batches.is_multiple_of(pp) {
        return Err(ImpossibleRun::Interleaved { micro_batches, pp });
    }
    // The reference implementation of DualPipe (`dualpipe.py`) requires this.
    let paired = pp.is_multiple_of(2)
        && micro_batches.is_multiple_of(2)
        && u64::from(micro_batches) >= product([2, pp]);
    if schedule == Schedule::DualPipe && !paired {
        return Err(ImpossibleRun::DualPipe { pp, micro_batches });
    }
    Ok(())
}

fn min_generation(precision: Precision) -> Generation {
    match precision {
        Precision::Fp16 | Precision::Bf16 => Generation::Ampere,
        Precision::Fp8 => Generation::Ada,
        Precision::Fp8Row | Precision::Fp8Block => Generation::Hopper,
        Precision::Mxfp8 | Precision::Nvfp4 => Generation::Blackwell,
    }
}

/// Checks that the GPU supports the precision.
pub fn precision(run: &TrainingRun) -> Result<(), ImpossibleRun> {
    let has = |precision: Precision| run.gpu.generation >= min_generation(precision);
    if has(run.precision) {
        return Ok(());
    }
    Err(ImpossibleRun::Precision {
        precision: run.precision.name(),
        min_generation: min_generation(run.precision).name(),
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
    use crate::model::builtin;
    use crate::parallelism::ParallelConfig;
    use crate::published;
    use crate::run::{Framework, TrainingTask};

    fn run(model: &str, gpu: &str, parallelism: ParallelConfig) -> TrainingRun {
        TrainingRun {
            model: builtin::by_name(model).unwrap().model(),
            gpu: Accelerator::by_name(FactSet::embedded(), gpu).unwrap(),
            seq_len: 8192,
            global_batch: 512,
            precision: Precision::Bf16,
            parallelism,
            task: TrainingTask::Full,
            framework: Framework::Bridge,
            fused_experts: false,
        }
    }

    fn error(change: impl FnOnce(&mut TrainingRun)) -> String {
        let mut run = run("llama3-70b", "H100-SXM-80GB", ParallelConfig::data_parallel(8, 1));
        change(&mut run);
        check(&run).unwrap_err().to_string()
    }

    fn moe_error(change: impl FnOnce(&mut TrainingRun)) -> String {
        error(|run| {
            run.model = builtin::by_name("qwen3-235b-a22b").unwrap().model();
            change(run);
        })
    }

    #[test]
    fn errors_name_possible_values() {
        for (message, part) in [
            (
                error(|run| run.parallelism.tp = 48),
                "TP 48 does not divide heads: 64; possible: 1, 2, 4, 8, 16, 32, 64",
            ),
            (error(|run| run.parallelism.tp = 128), "possible: 1, 2, 4, 8, 16, 32, 64"),
            (
                error(|run| (run.parallelism.pp, run.parallelism.vp) = (16, 6)),
                "VP up to 5 with PP 16",
            ),
            (error(|run| run.parallelism.vp = 2), "VP 1, or PP of at least 2"),
            (error(|run| run.parallelism.ep = 2), "EP 2 needs experts and `llama3-70b` has none"),
            (error(|run| run.global_batch = 500), "possible: 496 or 504"),
            (error(|run| run.global_batch = 5), "possible: 8"),
            (error(|run| run.parallelism.cp = 3), "possible: 8190 or 8196"),
            (
                error(|run| (run.parallelism.pp, run.parallelism.vp) = (10, 2)),
                "possible: 60 or 70 micro-batches, or VP 1",
            ),
            (error(|run| run.parallelism.tp = 0), "TP is 0"),
            (error(|run| run.seq_len = 0), "sequence length is 0"),
            (error(|run| run.global_batch = 0), "global batch is 0"),
            (error(|run| run.parallelism.dp = u32::MAX), "possible: up to 4194304"),
            (error(|run| run.seq_len = 1 << 28), "possible: up to 134217728"),
            (error(|run| run.parallelism.shard_group = 3), "possible: 1, 2, 4, 8"),
            (error(|run| run.parallelism.reduce_bytes = 3), "possible: 2, 4"),
            (error(|run| run.precision = Precision::Nvfp4), "`nvfp4` needs blackwell or newer"),
            (
                error(|run| {
                    (run.parallelism.schedule, run.parallelism.pp) = (Schedule::DualPipe, 5);
                }),
                "an even PP",
            ),
            (
                error(|run| run.parallelism.schedule = Schedule::ZeroBubble),
                "`zero-bubble` with PP 1 and VP 1; possible: PP of at least 2 and VP 1, or `1f1b`",
            ),
            (
                error(|run| {
                    (run.parallelism.pp, run.parallelism.vp) = (8, 2);
                    run.parallelism.schedule = Schedule::ZeroBubble;
                }),
                "`zero-bubble` with PP 8 and VP 2",
            ),
            (
                error(|run| run.parallelism.moment_bytes = 3),
                "moments of 3 bytes; possible: 1, 2, 4",
            ),
            (error(|run| run.parallelism.adapter_rank = 0), "LoRA rank is 0"),
            (
                error(|run| (run.parallelism.pp, run.parallelism.vp) = (81, 1)),
                "PP 81 is more stages than the 80 layers; possible: PP up to 80",
            ),
            (moe_error(|run| run.parallelism.ep = 3), "EP 3 does not divide experts: 128"),
            (
                moe_error(|run| run.parallelism.ep = 16),
                "EP 16 does not divide the DP × CP × TP ranks: 8; possible: 1, 2, 4, 8",
            ),
        ] {
            assert!(message.contains(part), "{message}\nlacks {part}");
        }
    }

    #[test]
    fn unsupported_precision_is_rejected() {
        let mut run = run("llama3-8b", "A100-SXM-80GB", ParallelConfig::data_parallel(8, 1));
        assert_eq!(check(&run), Ok(()));
        run.precision = Precision::Fp8;
        let message = check(&run).unwrap_err().to_string();
        assert!(message.ends_with("is ampere; possible: `fp16`, `bf16`"), "{message}");
    }

    #[test]
    fn slow_runs_are_possible() {
        let mut run = run("llama3-70b", "H100-SXM-80GB", ParallelConfig::data_parallel(1, 1));
        run.parallelism.tp = 16;
        assert_eq!(
            check(&run),
            Ok(()),
            "TP beyond the domain and replicated KV heads are possible"
        );
        run.parallelism = ParallelConfig { pp: 16, dp: 512, ..ParallelConfig::data_parallel(1, 1) };
        assert_eq!(check(&run), Ok(()), "one micro-batch for 16 stages is possible");
    }

    #[test]
    fn tp_must_fit_the_kv_heads() {
        // The model has 40 heads and 8 KV heads.
        let mut run = run("qwen2.5-32b", "H100-SXM-80GB", ParallelConfig::data_parallel(1, 1));
        run.parallelism.tp = 20;
        let message = check(&run).unwrap_err().to_string();
        assert!(message.ends_with("possible: 1, 2, 4, 8, 40"), "{message}");
    }

    #[test]
    fn parallelism_must_match_the_number_of_gpus() {
        let run = run(
            "llama3-70b",
            "H100-SXM-80GB",
            ParallelConfig { tp: 8, ..ParallelConfig::data_parallel(4, 1) },
        );
        assert_eq!(check_on_gpus(&run, 32), Ok(()));
        let message = check_on_gpus(&run, 64).unwrap_err().to_string();
        assert!(message.ends_with("needs 32 GPUs, but there are 64; possible: DP 8"), "{message}");
        let message = check_on_gpus(&run, 60).unwrap_err().to_string();
        assert!(message.ends_with("a multiple of 8 GPUs, such as 56 or 64"), "{message}");
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
