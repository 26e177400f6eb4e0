use farrier_facts::FactSet;

use super::*;
use crate::gpu::Accelerator;
use crate::layout::{Layout, Recompute, Schedule, Sharding};
use crate::model::builtin;
use crate::precision::Precision;
use crate::published;
use crate::run::{Stack, Task};

fn run(model: &str, stack: Stack, layout: Layout) -> Run {
    Run {
        model: builtin::named(model).unwrap().model(),
        gpu: Accelerator::named(FactSet::embedded(), "H100-SXM-80GB").unwrap(),
        seq_len: 2048,
        global_batch: layout.dp * layout.micro_batch,
        precision: Precision::Bf16,
        layout,
        task: Task::Full,
        stack,
        fused_experts: false,
    }
}

#[test]
fn published_peaks_are_met() {
    let rows = published::read(FactSet::embedded(), published::embedded()).unwrap();
    let mut errors = Vec::new();
    for row in rows.into_iter().flatten() {
        let Some(peak) = row.peak_gib else { continue };
        let memory = of(&row.run);
        let stage = &memory.stages[memory.worst_stage];
        // What was published is what the allocator reserved.
        let estimate = stage.p50.allocator_gib();
        let off = estimate / peak - 1.0;
        println!("{:+.1} % {estimate:.1} {peak} {:.1?}", 100.0 * off, stage.p50);
        // One was run with a loss that a later compiler fuses: 48 GiB on 32 GPUs, where the same
        // on 8 and 128 took 77 and 62.
        let fused = row.run.gpu.id.starts_with("H200");
        assert!(off.abs() < 0.1 || fused, "{off:+.3} {}", row.run.model.name);
        assert!(stage.p95.allocator_gib() > peak * 0.93, "{}", row.run.model.name);
        errors.push(off.abs());
    }
    assert_eq!(errors.len(), 13);
    let mean = errors.iter().sum::<f64>() / 13.0;
    println!("mean {:.1} %", 100.0 * mean);
    assert!(mean < 0.08, "{mean}");
}

#[test]
fn known_sums_come_out() {
    // 70 billion weights of 16 bits are 140 GB; to train them Megatron takes 18 bytes each.
    let layout = Layout { sharding: Sharding::None, ..Layout::copies(1, 1) };
    let memory = of(&run("llama3-70b", Stack::Megatron, layout));
    let parts = memory.stages[0].p50;
    assert!((parts.weights_gib * GIB / 141.1e9 - 1.0).abs() < 0.01, "{parts:?}");
    let states = parts.weights_gib + parts.gradients_gib + parts.optimizer_gib;
    assert!((states * GIB / 1.27e12 - 1.0).abs() < 0.01, "{states}");
    // With a distributed optimizer 6 + 12 / D, with ZeRO 3 and FSDP (2 + 4 + 12) / D and 16 / D.
    let per_weight = |stack, sharding, reduce_bytes| {
        let layout = Layout { sharding, reduce_bytes, ..Layout::copies(64, 1) };
        let parts = of(&run("llama3-70b", stack, layout)).stages[0].p50;
        (parts.weights_gib + parts.gradients_gib + parts.optimizer_gib) * GIB / 70.554e9
    };
    for (stack, sharding, reduce_bytes, expected) in [
        (Stack::Megatron, Sharding::Optimizer, 4, 6.0 + 12.0 / 64.0),
        (Stack::Megatron, Sharding::Optimizer, 2, 4.0 + 12.0 / 64.0),
        (Stack::Megatron, Sharding::Gradients, 2, 2.0 + 14.0 / 64.0),
        (Stack::Megatron, Sharding::Weights, 2, 16.0 / 64.0),
        (Stack::FsdpCompiled, Sharding::Weights, 4, 16.0 / 64.0),
        (Stack::FsdpCompiled, Sharding::None, 4, 16.0),
    ] {
        let bytes = per_weight(stack, sharding, reduce_bytes);
        assert!((bytes / expected - 1.0).abs() < 0.01, "{stack:?} {sharding:?} {bytes} {expected}");
    }
}

#[test]
fn activations_are_those_of_korthikanti_and_others() {
    // arXiv:2205.05198, Table 3: model, TP, PP; bytes of a block of Table 2.
    for (model, pp) in [("megatron-22b", 1), ("gpt3-175b", 8), ("gpt-530b", 35), ("gpt-1008b", 64)]
    {
        let layout = Layout { tp: 8, pp, sharding: Sharding::None, ..Layout::copies(1, 4) };
        let mut run = run(model, Stack::MegatronEarly, layout);
        run.global_batch = 4 * pp;
        let (hidden, heads) = (f64::from(run.model.hidden), f64::from(run.model.attention.heads()));
        let (seq, tp) = (2048.0, 8.0);
        let one = 4.0 * seq * hidden;
        let scores = 5.0 * heads * seq / hidden;
        // The first stage keeps as many micro-batches as there are stages: all blocks' worth.
        for (recompute, sequence_parallel, expected) in [
            (Recompute::None, true, (34.0 + scores) / tp),
            (Recompute::None, false, 10.0 + (24.0 + scores) / tp),
            (Recompute::Attention, true, 34.0 / tp),
            (Recompute::Attention, false, 10.0 + 24.0 / tp),
            (Recompute::Full, true, 2.0 / tp),
            (Recompute::Full, false, 2.0),
        ] {
            run.layout.recompute = recompute;
            run.layout.sequence_parallel = sequence_parallel;
            let kept = of(&run).stages[0].p50.activations_gib * GIB;
            let expected = one * expected * f64::from(run.model.layers);
            assert!(
                (kept / expected - 1.0).abs() < 1e-3,
                "{model} {recompute:?} {kept} {expected}"
            );
        }
    }
}

#[test]
fn interleaving_keeps_more_and_the_last_stage_less() {
    let layout = Layout { tp: 8, pp: 8, ..Layout::copies(1, 1) };
    let mut run = run("gpt3-175b", Stack::Megatron, layout);
    run.global_batch = 64;
    let plain = of(&run);
    let kept = |memory: &Memory| {
        memory.stages.iter().map(|stage| stage.micro_batches_kept).collect::<Vec<_>>()
    };
    assert_eq!(kept(&plain), [8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]);
    run.layout.vp = 3;
    let interleaved = kept(&of(&run))[0];
    // p (1 + (p - 1) / (p v)), arXiv:2205.05198.
    assert!((interleaved - 8.0 * (1.0 + 7.0 / 24.0)).abs() < 1e-9, "{interleaved}");
    assert!(plain.stages[7].p50.logits_gib > 0.0 && plain.stages[0].p50.logits_gib == 0.0);
}

#[test]
fn llama_3_405b_fits_as_it_was_trained() {
    // arXiv:2407.21783, 3.3.2: 16,384 H100 of 80 GB, TP 8, PP 16, DP 128, sequences of 8,192
    // without recomputation; optimizer and gradients shared, weights not gathered again.
    let layout = Layout { tp: 8, pp: 16, sharding: Sharding::Gradients, ..Layout::copies(128, 1) };
    let mut run = run("llama3.1-405b", Stack::Tuned, layout);
    run.seq_len = 8192;
    run.global_batch = 2048;
    let memory = of(&run);
    assert!(memory.p50_gib < usable_gib(&run.gpu), "{}", memory.p50_gib);
    // Nor is it small: without the pipeline's limit it would not.
    assert!(memory.p50_gib > 55.0, "{}", memory.p50_gib);
    // On half of the tensor parallelism it does not fit.
    run.layout.tp = 4;
    run.layout.dp = 256;
    assert!(worst(&run).0 * GIB > run.gpu.hbm_bytes);
}

#[test]
fn experts_take_what_they_hold_and_what_reaches_them() {
    // DeepSeek-V3: PP 16, EP 64, ZeRO 1, DualPipe, no TP, on H800 of 80 GB (arXiv:2412.19437).
    let layout = Layout {
        pp: 16,
        ep: 64,
        schedule: Schedule::DualPipe,
        recompute: Recompute::Modules,
        reduce_bytes: 4,
        ..Layout::copies(128, 1)
    };
    let mut run = run("deepseek-v3", Stack::Tuned, layout);
    run.seq_len = 4096;
    run.global_batch = 15_360;
    run.precision = Precision::Fp8Block;
    let memory = of(&run);
    // They keep moments in 16 bits and what SwiGLU reads in 8, which is not modelled: on two of the
    // stages it is a little more than there is.
    assert!((60.0..95.0).contains(&memory.p50_gib), "{}", memory.p50_gib);
    let middle = &memory.stages[8];
    assert!(middle.p95.activations_gib > middle.p50.activations_gib * 1.05);
    // Fewer GPUs for the experts, more of them on each.
    run.layout.ep = 8;
    let fewer = of(&run);
    assert!(fewer.stages[8].p50.weights_gib > 3.0 * middle.p50.weights_gib);
}

#[test]
fn adapters_leave_little_but_the_frozen_weights() {
    let layout = Layout { tp: 8, ..Layout::copies(1, 1) };
    let mut run = run("llama3-70b", Stack::Bridge, layout);
    let full = of(&run).stages[0].p50;
    run.task = Task::Lora;
    let adapters = of(&run).stages[0].p50;
    assert!((adapters.weights_gib / full.weights_gib - 1.0).abs() < 0.02);
    assert!(adapters.gradients_gib + adapters.optimizer_gib < 0.02 * full.optimizer_gib);
}

#[test]
fn the_fast_path_says_the_same_and_recomputation_saves() {
    let rows = published::read(FactSet::embedded(), published::embedded()).unwrap();
    for row in rows.into_iter().flatten() {
        let memory = of(&row.run);
        assert_eq!(worst(&row.run), (memory.p50_gib, memory.p95_gib));
        assert!(memory.p50_gib < memory.p95_gib && memory.p50_gib > 0.5);
        let mut run = row.run;
        let mut with = |recompute| {
            run.layout.recompute = recompute;
            of(&run).stages[0].p50.activations_gib
        };
        let none = with(Recompute::None);
        let full = with(Recompute::Full);
        for recompute in [
            Recompute::Attention,
            Recompute::Modules,
            Recompute::Operators,
            Recompute::EverySecond,
            Recompute::Layers(1),
        ] {
            let kept = with(recompute);
            assert!(kept <= none && kept >= full, "{} {recompute:?}", run.model.name);
        }
    }
}

#[test]
fn published_runs_fit_their_gpus() {
    let rows = published::read(FactSet::embedded(), published::embedded()).unwrap();
    let mut rows_seen = 0;
    for row in rows.into_iter().flatten().filter(|row| row.assumed.is_empty()) {
        // The recipes of Megatron Bridge with FSDP keep most activations in the host's memory.
        if row.run.stack == Stack::Bridge && row.run.layout.sharding == Sharding::Weights {
            continue;
        }
        rows_seen += 1;
        let (p50, _) = worst(&row.run);
        // Many of these runs took the largest micro-batch that fits.
        let has = usable_gib(&row.run.gpu);
        // Nemotron 4 340B, which NeMo trained with two copies, and the ZeRO 3 of 2021.
        let most = if ["Nemotron-340B", "GPT-529.6B"].contains(&row.run.model.name.as_str()) {
            1.13
        } else {
            1.0
        };
        assert!(
            p50 < most * has,
            "{p50:.0} of {has:.0} {} {:?}",
            row.run.model.name,
            row.run.layout
        );
    }
    assert!(rows_seen > 100, "{rows_seen}");
}

#[test]
fn moments_of_fewer_bits_and_adapters_are_shared() {
    let layout = Layout { sharding: Sharding::Weights, ..Layout::copies(8, 1) };
    for stack in Stack::ALL {
        let mut run = run("llama3-8b", stack, layout);
        let optimizer = |run: &Run| of(run).stages[0].p50.optimizer_gib;
        let usual = optimizer(&run);
        run.layout.moment_bytes = 1;
        // The moments of a weight are 8 bytes of 32 bits and 2 of 8.
        let less = (usual - optimizer(&run)) * GIB;
        assert!((less / (6.0 * 8.03e9 / 8.0) - 1.0).abs() < 0.01, "{stack:?} {less}");
        run.task = Task::Lora;
        let eight = optimizer(&run);
        run.layout.dp = 64;
        assert!((eight / optimizer(&run) - 8.0).abs() < 1e-6, "{stack:?}");
    }
}
