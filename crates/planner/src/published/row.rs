//! Conversion of a raw row to a training run.

use farrier_facts::FactSet;

use super::table::{RawRow, count, number, stated_count};
use super::{PublishedRun, RejectedRow, RowError, framework, gpu, shape};
use crate::check;
use crate::flops::FlopsPerToken;
use crate::model::{TransformerConfig, builtin};
use crate::parallelism::{ADAPTER_RANK, ParallelConfig, Recompute, Schedule};
use crate::precision::Precision;
use crate::run::{Framework, TrainingRun, TrainingTask};

pub(super) fn parse(facts: &FactSet, row: &RawRow) -> Result<PublishedRun, RejectedRow> {
    parse_run(facts, row).map_err(|err| RejectedRow {
        source: row.source.clone(),
        model: row.model.clone(),
        complete: check_complete(row).is_ok(),
        error: Box::new(err),
    })
}

fn parse_run(facts: &FactSet, row: &RawRow) -> Result<PublishedRun, RowError> {
    let mut assumed = Vec::new();
    let run = run(facts, row, &mut assumed)?;
    check::check(&run)?;
    let step_s = if let Some(step_s) = measured_step_s(row, &run)? {
        step_s
    } else {
        assumed.push("FLOPs convention");
        step_s_from_flops(row, &run).ok_or(RowError::NoSpeed)?
    };
    if !(step_s.is_finite() && step_s > 0.0) {
        return Err(RowError::SpeedOutOfRange);
    }
    Ok(PublishedRun {
        source: row.source.clone(),
        date: row.date.clone(),
        gpu: row.gpu.clone(),
        run,
        step_s,
        peak_gib: number(&row.peak_mem_gib),
        caution: Some(row.caution.clone()).filter(|caution| !caution.is_empty()),
        assumed,
    })
}

fn run(
    facts: &FactSet,
    row: &RawRow,
    assumed: &mut Vec<&'static str>,
) -> Result<TrainingRun, RowError> {
    for (cell, column) in [
        (&row.layers, "layers"),
        (&row.hidden, "hidden"),
        (&row.heads, "heads"),
        (&row.ffn, "ffn"),
        (&row.vocab, "vocab"),
    ] {
        stated_count(cell, column)?;
    }
    let model = shape::model(row, assumed)?;
    let gpu = gpu::accelerator(facts, &row.gpu)?;
    let required = |cell: &str, column: &str, what: &'static str| {
        stated_count(cell, column)?.ok_or(RowError::Missing(what))
    };
    let gpus = required(&row.n_gpus, "n_gpus", "number of GPUs")?;
    let seq_len = required(&row.seq_len, "seq_len", "sequence length")?;
    let global_batch = required(&row.global_batch_seqs, "global_batch_seqs", "global batch")?;
    let precision = Precision::parse(&row.precision)
        .ok_or_else(|| RowError::Precision(row.precision.clone()))?;
    let framework = framework::framework(row)?;
    let task = if row.task.contains("lora") { TrainingTask::Lora } else { TrainingTask::Full };
    let parallelism = parallelism(row, &model, framework, (gpus, global_batch), assumed)?;
    let fused_experts = false;
    let mut run = TrainingRun {
        model,
        gpu,
        seq_len,
        global_batch,
        precision,
        parallelism,
        task,
        framework,
        fused_experts,
    };
    run.fused_experts = framework::fused_experts(row, &run)?;
    Ok(run)
}

/// The parallelism config of the row on `gpus` GPUs with the given global batch.
fn parallelism(
    row: &RawRow,
    model: &TransformerConfig,
    framework: Framework,
    (gpus, global_batch): (u32, u32),
    assumed: &mut Vec<&'static str>,
) -> Result<ParallelConfig, RowError> {
    let (tp, pp) = (stated_count(&row.TP, "TP")?, stated_count(&row.PP, "PP")?);
    if tp.is_none() || pp.is_none() {
        assumed.push("TP or PP");
    }
    let (tp, pp) = (tp.unwrap_or(1), pp.unwrap_or(1));
    let cp = stated_count(&row.CP, "CP")?.unwrap_or(1);
    let dp = replicas(gpus, [tp, pp, cp])?;
    let micro_batch = stated_count(&row.micro_batch, "micro-batch")?.unwrap_or_else(|| {
        assumed.push("micro-batch");
        default_micro_batch(global_batch / dp, pp)
    });
    let recompute = framework::recompute(&row.recompute)?.unwrap_or_else(|| {
        assumed.push("recompute");
        Recompute::None
    });
    let is_dual_pipe = row.notes.contains("DualPipe");
    // Large runs interleave their stages without stating it.
    let interleaves = matches!(framework, Framework::Megatron | Framework::Tuned) && pp > 1;
    let virtual_stages = if row.VP.is_empty() && interleaves && !is_dual_pipe {
        assumed.push("virtual stages");
        model.layers.div_ceil(pp)
    } else {
        1
    };
    let ep = stated_count(&row.EP, "EP")?;
    if ep.is_none() && model.experts.is_some() {
        assumed.push("EP");
    }
    let ep = ep.unwrap_or(1);
    let (sharding, shard_group) = framework::sharding(row, framework)?;
    let early = framework == Framework::MegatronEarly;
    let has_async_tp = || row.notes.to_ascii_lowercase().replace(' ', "").contains("asynctp");
    Ok(ParallelConfig {
        dp,
        tp,
        pp,
        vp: stated_count(&row.VP, "VP")?.unwrap_or(virtual_stages),
        cp,
        ep: if model.experts.is_some() { ep } else { 1 },
        sharding,
        shard_group,
        micro_batch,
        recompute,
        sequence_parallel: !early || row.recompute.contains("SP"),
        tensor_overlap: framework.is_megatron() && !early || has_async_tp(),
        schedule: if is_dual_pipe { Schedule::DualPipe } else { Schedule::OneForwardOneBackward },
        // llm-foundry states the reduction precision after a slash.
        reduce_bytes: match row.sharding.rsplit_once('/') {
            Some((_, "PURE")) => 2,
            Some((_, "DEFAULT")) => 4,
            _ => framework.reduce_bytes(),
        },
        moment_bytes: 4,
        adapter_rank: ADAPTER_RANK,
    })
}

/// Data-parallel replicas on `gpus` GPUs, with the given degrees of the other axes.
fn replicas(gpus: u32, degrees: [u32; 3]) -> Result<u32, RowError> {
    let ranks = degrees.iter().try_fold(1_u32, |ranks, degree| ranks.checked_mul(*degree));
    let ranks = ranks.filter(|ranks| gpus.is_multiple_of(*ranks));
    ranks.map(|ranks| gpus / ranks).ok_or(RowError::Indivisible { gpus })
}

/// Default micro-batch, given a replica's share of the batch.
fn default_micro_batch(per_replica: u32, pp: u32) -> u32 {
    let divides = |size: &u32| per_replica.is_multiple_of(*size) && per_replica > 0;
    // Without a pipeline to fill, larger micro-batches are common.
    if pp > 1 { 1 } else { [4, 2].into_iter().find(divides).unwrap_or(1) }
}

/// Relative difference between step time and throughput that rounding explains.
const ROUNDING: f64 = 0.03;

/// Measured step time, if the row states it.
fn measured_step_s(row: &RawRow, run: &TrainingRun) -> Result<Option<f64>, RowError> {
    for (cell, column) in [
        (&row.step_time_s, "step_time_s"),
        (&row.tokens_per_s_per_gpu, "tokens_per_s_per_gpu"),
        (&row.tflops_per_gpu, "tflops_per_gpu"),
        (&row.mfu_pct, "mfu_pct"),
        (&row.peak_mem_gib, "peak_mem_gib"),
    ] {
        let is_stated = !cell.is_empty() && !cell.eq_ignore_ascii_case("n/a");
        if is_stated && number(cell).is_none() {
            return Err(RowError::NotANumber { column, cell: cell.clone() });
        }
    }
    let by_time_s = number(&row.step_time_s);
    let by_rate_s = number(&row.tokens_per_s_per_gpu)
        .map(|rate| run.tokens_per_step() / (rate * f64::from(run.parallelism.gpus())));
    if let (Some(time_s), Some(rate_s)) = (by_time_s, by_rate_s)
        && (rate_s / time_s - 1.0).abs() > ROUNDING
    {
        return Err(RowError::Contradiction { time_s, rate_s });
    }
    Ok(by_time_s.or(by_rate_s))
}

/// Step time from the stated TFLOP/s or MFU. The tables of Megatron and Llama 3 count full
/// attention, as their long sequences show.
fn step_s_from_flops(row: &RawRow, run: &TrainingRun) -> Option<f64> {
    let flops = FlopsPerToken::new(run);
    let per_token = if row.source.contains("MegaScale") { flops.causal } else { flops.full };
    let by_mfu = || Some(number(&row.mfu_pct)? / 100.0 * run.gpu.flops_16bit);
    let reached = number(&row.tflops_per_gpu).map(|tflops| tflops * 1e12).or_else(by_mfu)?;
    Some(run.tokens_per_step() * per_token / (reached * f64::from(run.parallelism.gpus())))
}

/// Checks that a row states its whole configuration and speed. The error names the first missing
/// value.
fn check_complete(row: &RawRow) -> Result<(), &'static str> {
    let text = |cell: &str, what| if cell.trim().is_empty() { Err(what) } else { Ok(()) };
    let integer = |cell: &str, what| count(cell).map(|_| ()).ok_or(what);
    if row.layers.trim().is_empty() && builtin::by_name(&row.model).is_none() {
        return Err("model shape");
    }
    integer(&row.n_gpus, "number of GPUs")?;
    text(&row.precision, "precision")?;
    integer(&row.seq_len, "sequence length")?;
    integer(&row.global_batch_seqs, "global batch")?;
    integer(&row.micro_batch, "micro-batch")?;
    text(&row.recompute, "recompute")?;
    integer(&row.TP, "TP")?;
    integer(&row.PP, "PP")?;
    let speed = number(&row.tokens_per_s_per_gpu).or(number(&row.step_time_s));
    speed.map(|_| ()).ok_or("speed")
}

#[cfg(test)]
mod tests {
    use super::super::tests::{parse, raw_row};

    fn error(overrides: &[(&str, &str)]) -> String {
        let row = parse(&raw_row(overrides)).unwrap_err();
        assert!(row.complete, "{row:?}");
        row.error.to_string()
    }

    #[test]
    fn impossible_runs_are_rejected() {
        assert!(parse(&raw_row(&[])).is_ok());
        for (overrides, part) in [
            ([("gpu", "A100-SXM-80GB"), ("precision", "nvfp4")], "`nvfp4` needs blackwell"),
            ([("TP", "65536"), ("PP", "65536")], "not divisible by TP × PP × CP"),
            ([("n_gpus", "12"), ("TP", "3")], "TP 3 does not divide heads: 32"),
            ([("micro_batch", "3999999999"), ("n_gpus", "8")], "micro-batch"),
            ([("layers", "0"), ("TP", "1")], "layers `0` is not a positive integer"),
            ([("recompute", "block:4"), ("TP", "1")], "unknown recompute mode `block:4`"),
            ([("step_time_s", ""), ("tokens_per_s_per_gpu", "1e-310")], "out of range"),
        ] {
            let message = error(&overrides);
            assert!(message.contains(part), "{message}\nlacks {part}");
        }
    }

    #[test]
    fn contradictory_measurements_are_rejected() {
        let parse = |overrides: &[(&str, &str)]| {
            parse(&raw_row(overrides)).map_err(|row| row.error.to_string())
        };
        // 128 × 8,192 tokens in 14 s on 8 GPUs are 9,362 tokens per second and GPU.
        assert!(parse(&[("tokens_per_s_per_gpu", "9362")]).is_ok());
        assert!(parse(&[("tokens_per_s_per_gpu", "9600")]).is_ok(), "within rounding");
        let message = parse(&[("tokens_per_s_per_gpu", "9000")]).unwrap_err();
        assert!(
            message.contains("is 14 s, but `tokens_per_s_per_gpu` means 14.564 s per step"),
            "{message}"
        );
        for (column, cell) in [
            ("step_time_s", "-14"),
            ("tokens_per_s_per_gpu", "NaN"),
            ("tflops_per_gpu", "inf"),
            ("mfu_pct", "0"),
            ("peak_mem_gib", "lots"),
        ] {
            let message = parse(&[(column, cell)]).unwrap_err();
            assert_eq!(message, format!("`{column}` is `{cell}`, not a positive number"));
        }
        assert!(parse(&[("mfu_pct", "n/a")]).is_ok());
    }

    #[test]
    fn invalid_numbers_make_a_row_incomplete() {
        for (column, cell, message) in [
            ("n_gpus", "", "missing number of GPUs"),
            ("n_gpus", "-5", "n_gpus `-5` is not a positive integer"),
            ("n_gpus", "1e18", "n_gpus `1e18` is not a positive integer"),
            ("seq_len", "8k", "seq_len `8k` is not a positive integer"),
            ("TP", "8x", "TP `8x` is not a positive integer"),
            ("step_time_s", "-1", "not a positive number"),
        ] {
            let row = parse(&raw_row(&[(column, cell)])).unwrap_err();
            assert!(!row.complete && row.error.to_string().contains(message), "{row:?}");
        }
    }

    #[test]
    fn assumptions_make_a_row_incomplete() {
        let assumed = |overrides: &[(&str, &str)]| parse(&raw_row(overrides)).unwrap().assumed;
        assert!(assumed(&[]).is_empty());
        assert_eq!(assumed(&[("TP", "")]), ["TP or PP"]);
        assert_eq!(assumed(&[("micro_batch", "")]), ["micro-batch"]);
        assert_eq!(assumed(&[("recompute", "")]), ["recompute"]);
        assert_eq!(assumed(&[("step_time_s", ""), ("mfu_pct", "40")]), ["FLOPs convention"]);
    }

    #[test]
    fn source_is_optional() {
        let row = parse(&raw_row(&[("source", "")])).unwrap();
        assert_eq!(row.source, "");
        assert!((row.step_s - 14.0).abs() < 1e-9);
    }
}
