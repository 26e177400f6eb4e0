//! A row made a run.

use farrier_facts::FactSet;

use super::cells::{Cells, count, number, stated_count};
use super::{Published, RowError, Uncovered, part, program, shape};
use crate::check;
use crate::flops::FlopsPerToken;
use crate::layout::{ADAPTER_RANK, Layout, Recompute, Schedule};
use crate::model::{Model, builtin};
use crate::precision::Precision;
use crate::run::{Run, Stack, Task};

/// The run of a row, or why there is none.
pub(super) fn published(facts: &FactSet, cells: &Cells) -> Result<Published, Uncovered> {
    covered(facts, cells).map_err(|why| Uncovered {
        source: cells.source.clone(),
        model: cells.model.clone(),
        complete: stated(cells).is_ok(),
        why: Box::new(why),
    })
}

fn covered(facts: &FactSet, cells: &Cells) -> Result<Published, RowError> {
    let mut assumed = Vec::new();
    let run = run(facts, cells, &mut assumed)?;
    check::check(&run)?;
    let step_s = if let Some(step_s) = measured(cells, &run)? {
        step_s
    } else {
        assumed.push("convention of FLOPs");
        by_flops(cells, &run).ok_or(RowError::NoSpeed)?
    };
    if !(step_s.is_finite() && step_s > 0.0) {
        return Err(RowError::Speed);
    }
    Ok(Published {
        source: cells.source.clone(),
        date: cells.date.clone(),
        gpu: cells.gpu.clone(),
        run,
        step_s,
        peak_gib: number(&cells.peak_mem_gib),
        caution: Some(cells.caution.clone()).filter(|caution| !caution.is_empty()),
        assumed,
    })
}

fn run(facts: &FactSet, cells: &Cells, assumed: &mut Vec<&'static str>) -> Result<Run, RowError> {
    for (cell, what) in [
        (&cells.layers, "layers"),
        (&cells.hidden, "hidden"),
        (&cells.heads, "heads"),
        (&cells.ffn, "ffn"),
        (&cells.vocab, "vocab"),
    ] {
        stated_count(cell, what)?;
    }
    let model = shape::model(cells, assumed)?;
    let gpu = part::accelerator(facts, &cells.gpu)?;
    let need = |cell: &str, column: &str, what: &'static str| {
        stated_count(cell, column)?.ok_or(RowError::Lacks(what))
    };
    let gpus = need(&cells.n_gpus, "n_gpus", "number of GPUs")?;
    let seq_len = need(&cells.seq_len, "seq_len", "sequence length")?;
    let global_batch = need(&cells.global_batch_seqs, "global_batch_seqs", "global batch")?;
    let precision = Precision::named(&cells.precision)
        .ok_or_else(|| RowError::Precision(cells.precision.clone()))?;
    let stack = program::stack(cells)?;
    let task = if cells.task.contains("lora") { Task::Lora } else { Task::Full };
    let layout = layout(cells, &model, stack, (gpus, global_batch), assumed)?;
    let fused_experts = false;
    let mut run =
        Run { model, gpu, seq_len, global_batch, precision, layout, task, stack, fused_experts };
    run.fused_experts = program::fused_experts(cells, &run)?;
    Ok(run)
}

/// How the row's GPUs share the work, of which there are so many for so large a batch.
fn layout(
    cells: &Cells,
    model: &Model,
    stack: Stack,
    (gpus, global_batch): (u32, u32),
    assumed: &mut Vec<&'static str>,
) -> Result<Layout, RowError> {
    let (tp, pp) = (stated_count(&cells.TP, "TP")?, stated_count(&cells.PP, "PP")?);
    if tp.is_none() || pp.is_none() {
        assumed.push("TP or PP");
    }
    let (tp, pp) = (tp.unwrap_or(1), pp.unwrap_or(1));
    let cp = stated_count(&cells.CP, "CP")?.unwrap_or(1);
    let dp = copies(gpus, [tp, pp, cp])?;
    let micro_batch = stated_count(&cells.micro_batch, "micro-batch")?.unwrap_or_else(|| {
        assumed.push("micro-batch");
        usual_micro_batch(global_batch / dp, pp)
    });
    let recompute = program::recompute(&cells.recompute)?.unwrap_or_else(|| {
        assumed.push("recomputation");
        Recompute::None
    });
    let two_ways = cells.notes.contains("DualPipe");
    // Large runs interleave their stages, and say so no more than that they have a pipeline.
    let interleaves = matches!(stack, Stack::Megatron | Stack::Tuned) && pp > 1;
    let pieces = if cells.VP.is_empty() && interleaves && !two_ways {
        assumed.push("pieces of each stage");
        model.layers.div_ceil(pp)
    } else {
        1
    };
    let ep = stated_count(&cells.EP, "EP")?;
    if ep.is_none() && model.experts.is_some() {
        assumed.push("EP");
    }
    let ep = ep.unwrap_or(1);
    let (sharding, shard_group) = program::sharding(cells, stack)?;
    let early = stack == Stack::MegatronEarly;
    let said_async = || cells.notes.to_ascii_lowercase().replace(' ', "").contains("asynctp");
    Ok(Layout {
        dp,
        tp,
        pp,
        vp: stated_count(&cells.VP, "VP")?.unwrap_or(pieces),
        cp,
        ep: if model.experts.is_some() { ep } else { 1 },
        sharding,
        shard_group,
        micro_batch,
        recompute,
        sequence_parallel: !early || cells.recompute.contains("SP"),
        tensor_overlap: stack.is_megatron() && !early || said_async(),
        schedule: if two_ways { Schedule::DualPipe } else { Schedule::OneForwardOneBackward },
        // llm-foundry says what it reduces in behind a stroke.
        reduce_bytes: match cells.sharding.rsplit_once('/') {
            Some((_, "PURE")) => 2,
            Some((_, "DEFAULT")) => 4,
            _ => stack.reduce_bytes(),
        },
        moment_bytes: 4,
        adapter_rank: ADAPTER_RANK,
    })
}

/// Copies of the model on so many GPUs.
fn copies(gpus: u32, of_each: [u32; 3]) -> Result<u32, RowError> {
    let each = of_each.iter().try_fold(1_u32, |each, part| each.checked_mul(*part));
    let each = each.filter(|each| gpus.is_multiple_of(*each));
    each.map(|each| gpus / each).ok_or(RowError::Indivisible { gpus })
}

/// The micro-batch where a row has none, of a copy's share of the batch.
fn usual_micro_batch(of_copy: u32, pp: u32) -> u32 {
    let whole = |size: &u32| of_copy.is_multiple_of(*size) && of_copy > 0;
    // Where there is no pipeline to fill, larger ones are the rule.
    if pp > 1 { 1 } else { [4, 2].into_iter().find(whole).unwrap_or(1) }
}

/// A time and a rate of one step may differ by so much, as each is rounded.
const ROUNDING: f64 = 0.03;

/// What a step took, where the row says so.
fn measured(cells: &Cells, run: &Run) -> Result<Option<f64>, RowError> {
    for (cell, what) in [
        (&cells.step_time_s, "step_time_s"),
        (&cells.tokens_per_s_per_gpu, "tokens_per_s_per_gpu"),
        (&cells.tflops_per_gpu, "tflops_per_gpu"),
        (&cells.mfu_pct, "mfu_pct"),
        (&cells.peak_mem_gib, "peak_mem_gib"),
    ] {
        let is_stated = !cell.is_empty() && !cell.eq_ignore_ascii_case("n/a");
        if is_stated && number(cell).is_none() {
            return Err(RowError::NoNumber { column: what, cell: cell.clone() });
        }
    }
    let by_time_s = number(&cells.step_time_s);
    let by_rate_s = number(&cells.tokens_per_s_per_gpu)
        .map(|rate| run.tokens_per_step() / (rate * f64::from(run.layout.gpus())));
    if let (Some(time_s), Some(rate_s)) = (by_time_s, by_rate_s)
        && (rate_s / time_s - 1.0).abs() > ROUNDING
    {
        return Err(RowError::Contradiction { time_s, rate_s });
    }
    Ok(by_time_s.or(by_rate_s))
}

/// What a step took by the FLOP/s or the MFU that the row has in the place of a time. Megatron's own
/// table and that of Llama 3 count attention in full, as their long sequences show.
fn by_flops(cells: &Cells, run: &Run) -> Option<f64> {
    let flops = FlopsPerToken::of(run);
    let per_token = if cells.source.contains("MegaScale") { flops.causal } else { flops.full };
    let by_mfu = || Some(number(&cells.mfu_pct)? / 100.0 * run.gpu.half_flops);
    let reached = number(&cells.tflops_per_gpu).map(|tflops| tflops * 1e12).or_else(by_mfu)?;
    Some(run.tokens_per_step() * per_token / (reached * f64::from(run.layout.gpus())))
}

/// Whether a row states its whole configuration and what it took; else what it lacks.
fn stated(cells: &Cells) -> Result<(), &'static str> {
    let given = |cell: &str, what| if cell.trim().is_empty() { Err(what) } else { Ok(()) };
    let counted = |cell: &str, what| count(cell).map(|_| ()).ok_or(what);
    if cells.layers.trim().is_empty() && builtin::named(&cells.model).is_none() {
        return Err("shape of the model");
    }
    counted(&cells.n_gpus, "number of GPUs")?;
    given(&cells.precision, "precision")?;
    counted(&cells.seq_len, "sequence length")?;
    counted(&cells.global_batch_seqs, "global batch")?;
    counted(&cells.micro_batch, "micro-batch")?;
    given(&cells.recompute, "recomputation")?;
    counted(&cells.TP, "TP")?;
    counted(&cells.PP, "PP")?;
    let speed = number(&cells.tokens_per_s_per_gpu).or(number(&cells.step_time_s));
    speed.map(|_| ()).ok_or("speed")
}

#[cfg(test)]
mod tests {
    use super::super::tests::{cells, read_one};

    fn refused(given: &[(&str, &str)]) -> String {
        let row = read_one(&cells(given)).unwrap_err();
        assert!(row.complete, "{row:?}");
        row.why.to_string()
    }

    #[test]
    fn what_cannot_run_is_not_estimated() {
        assert!(read_one(&cells(&[])).is_ok());
        for (given, part) in [
            ([("gpu", "A100-SXM-80GB"), ("precision", "nvfp4")], "`nvfp4` needs blackwell"),
            ([("TP", "65536"), ("PP", "65536")], "do not divide by TP × PP × CP"),
            ([("n_gpus", "12"), ("TP", "3")], "TP 3 does not divide heads: 32"),
            ([("micro_batch", "3999999999"), ("n_gpus", "8")], "micro-batch"),
            ([("layers", "0"), ("TP", "1")], "layers `0` is no whole number above zero"),
            ([("recompute", "block:4"), ("TP", "1")], "recomputation `block:4` is not known"),
            ([("step_time_s", ""), ("tokens_per_s_per_gpu", "1e-310")], "beyond all numbers"),
        ] {
            let said = refused(&given);
            assert!(said.contains(part), "{said}\nlacks {part}");
        }
    }

    #[test]
    fn measurements_that_cannot_be_are_refused() {
        let of =
            |given: &[(&str, &str)]| read_one(&cells(given)).map_err(|row| row.why.to_string());
        // 8 × 14 s for 128 × 8,192 tokens are 9,362 a second.
        assert!(of(&[("tokens_per_s_per_gpu", "9362")]).is_ok());
        assert!(of(&[("tokens_per_s_per_gpu", "9600")]).is_ok(), "rounded");
        let said = of(&[("tokens_per_s_per_gpu", "9000")]).unwrap_err();
        assert!(said.contains("says 14 s and `tokens_per_s_per_gpu` 14.564 s a step"), "{said}");
        for (column, cell) in [
            ("step_time_s", "-14"),
            ("tokens_per_s_per_gpu", "NaN"),
            ("tflops_per_gpu", "inf"),
            ("mfu_pct", "0"),
            ("peak_mem_gib", "lots"),
        ] {
            let said = of(&[(column, cell)]).unwrap_err();
            assert_eq!(said, format!("`{column}` is `{cell}`, no number above zero"));
        }
        assert!(of(&[("mfu_pct", "n/a")]).is_ok());
    }

    #[test]
    fn what_is_no_number_is_not_stated() {
        for (column, cell, why) in [
            ("n_gpus", "", "no number of GPUs"),
            ("n_gpus", "-5", "n_gpus `-5` is no whole number above zero"),
            ("n_gpus", "1e18", "n_gpus `1e18` is no whole number"),
            ("seq_len", "8k", "seq_len `8k` is no whole number"),
            ("TP", "8x", "TP `8x` is no whole number"),
            ("step_time_s", "-1", "no number above zero"),
        ] {
            let row = read_one(&cells(&[(column, cell)])).unwrap_err();
            assert!(!row.complete && row.why.to_string().contains(why), "{row:?}");
        }
    }

    #[test]
    fn what_is_assumed_makes_a_row_incomplete() {
        let assumed = |given: &[(&str, &str)]| read_one(&cells(given)).unwrap().assumed;
        assert!(assumed(&[]).is_empty());
        assert_eq!(assumed(&[("TP", "")]), ["TP or PP"]);
        assert_eq!(assumed(&[("micro_batch", "")]), ["micro-batch"]);
        assert_eq!(assumed(&[("recompute", "")]), ["recomputation"]);
        assert_eq!(assumed(&[("step_time_s", ""), ("mfu_pct", "40")]), ["convention of FLOPs"]);
    }

    #[test]
    fn what_is_unknown_needs_no_source() {
        let row = read_one(&cells(&[("source", "")])).unwrap();
        assert_eq!(row.source, "");
        assert!((row.step_s - 14.0).abs() < 1e-9);
    }
}
