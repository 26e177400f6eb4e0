use farrier_facts::FactSet;

use super::*;
use crate::gpu::Accelerator;
use crate::model::builtin;
use crate::parallelism::{ParallelConfig, Recompute, Schedule, Sharding};
use crate::precision::Precision;
use crate::published;
use crate::run::{Framework, TrainingTask};

fn run(model: &str, framework: Framework, parallelism: ParallelConfig) -> TrainingRun {
    TrainingRun {
        model: builtin::by_name(model).unwrap().model(),
        gpu: Accelerator::by_name(FactSet::embedded(), "H100-SXM-80GB").unwrap(),
        seq_len: 2048,
        global_batch: parallelism.dp * parallelism.micro_batch,
        precision: Precision::Bf16,
        parallelism,
        task: TrainingTask::Full,
        framework,
        fused_experts: false,
    }
}

#[test]
fn published_peaks_are_met() {
    let rows = published::read(FactSet::embedded(), published::embedded()).unwrap();
    let mut errors = Vec::new();
    for row in rows.into_iter().flatten() {
        let Some(peak) = row.peak_gib else { continue };
        let memory = estimate(&row.run);
        let stage = &memory.stages[memory.worst_stage];
        // Published peaks are the memory that the allocator reserved.
        let estimated = stage.p50.allocator_gib();
        let error = estimated / peak - 1.0;
        println!("{:+.1} % {estimated:.1} {peak} {:.1?}", 100.0 * error, stage.p50);
        // The H200 run used a newer compiler, which fuses the loss. The run took 48 GiB on 32 GPUs.
        // In other runs, the same model took 77 GiB on 8 GPUs and 62 GiB on 128.
        let fused = row.run.gpu.id.starts_with("H200");
        assert!(error.abs() < 0.1 || fused, "{error:+.3} {}", row.run.model.name);
        assert!(stage.p95.allocator_gib() > peak * 0.93, "{}", row.run.model.name);
        errors.push(error.abs());
    }
    assert_eq!(errors.len(), 13);
    let mean = errors.iter().sum::<f64>() / 13.0;
    println!("mean {:.1} %", 100.0 * mean);
    assert!(mean < 0.08, "{mean}");
}

#[test]
fn model_states_match_the_formulas() {
    // 70 billion 16-bit weights are 140 GB; Megatron takes 18 bytes per weight to train them.
    let parallelism =
        ParallelConfig { sharding: Sharding::None, ..ParallelConfig::data_parallel(1, 1) };
    let memory = estimate(&run("llama3-70b", Framework::Megatron, parallelism));
    let breakdown = memory.stages[0].p50;
    assert!((breakdown.weights_gib * GIB / 141.1e9 - 1.0).abs() < 0.01, "{breakdown:?}");
    let states = breakdown.weights_gib + breakdown.gradients_gib + breakdown.optimizer_gib;
    assert!((states * GIB / 1.27e12 - 1.0).abs() < 0.01, "{states}");
    // Bytes per weight with D replicas: 6 + 12 / D with the distributed optimizer, (2 + 4 + 12) / D
    // with ZeRO-3, and 16 / D with FSDP.
    let per_weight = |framework, sharding, reduce_bytes| {
        let parallelism =
            ParallelConfig { sharding, reduce_bytes, ..ParallelConfig::data_parallel(64, 1) };
        let breakdown = estimate(&run("llama3-70b", framework, parallelism)).stages[0].p50;
        (breakdown.weights_gib + breakdown.gradients_gib + breakdown.optimizer_gib) * GIB / 70.554e9
    };
    for (framework, sharding, reduce_bytes, expected) in [
        (Framework::Megatron, Sharding::Optimizer, 4, 6.0 + 12.0 / 64.0),
        (Framework::Megatron, Sharding::Optimizer, 2, 4.0 + 12.0 / 64.0),
        (Framework::Megatron, Sharding::Gradients, 2, 2.0 + 14.0 / 64.0),
        (Framework::Megatron, Sharding::Weights, 2, 16.0 / 64.0),
        (Framework::FsdpCompiled, Sharding::Weights, 4, 16.0 / 64.0),
        (Framework::FsdpCompiled, Sharding::None, 4, 16.0),
    ] {
        let bytes = per_weight(framework, sharding, reduce_bytes);
        assert!(
            (bytes / expected - 1.0).abs() < 0.01,
            "{framework:?} {sharding:?} {bytes} {expected}"
        );
    }
}

#[test]
fn activations_match_korthikanti_et_al() {
    // Models, TP and PP are from Table 3 of arXiv:2205.05198, and bytes per layer from its Table 2.
    for (model, pp) in [("megatron-22b", 1), ("gpt3-175b", 8), ("gpt-530b", 35), ("gpt-1008b", 64)]
    {
        let parallelism = ParallelConfig {
            tp: 8,
            pp,
            sharding: Sharding::None,
            ..ParallelConfig::data_parallel(1, 4)
        };
        let mut run = run(model, Framework::MegatronEarly, parallelism);
        run.global_batch = 4 * pp;
        let (hidden, heads) = (f64::from(run.model.hidden), f64::from(run.model.attention.heads()));
        let (seq, tp) = (2048.0, 8.0);
        let one = 4.0 * seq * hidden;
        let scores = 5.0 * heads * seq / hidden;
        // The first stage stores as many micro-batches as there are stages, which takes as much
        // memory as one micro-batch in all layers.
        for (recompute, sequence_parallel, expected) in [
            (Recompute::None, true, (34.0 + scores) / tp),
            (Recompute::None, false, 10.0 + (24.0 + scores) / tp),
            (Recompute::Attention, true, 34.0 / tp),
            (Recompute::Attention, false, 10.0 + 24.0 / tp),
            (Recompute::Full, true, 2.0 / tp),
            (Recompute::Full, false, 2.0),
        ] {
            run.parallelism.recompute = recompute;
            run.parallelism.sequence_parallel = sequence_parallel;
            let stored = estimate(&run).stages[0].p50.activations_gib * GIB;
            let expected = one * expected * f64::from(run.model.layers);
            assert!(
                (stored / expected - 1.0).abs() < 1e-3,
                "{model} {recompute:?} {stored} {expected}"
            );
        }
    }
}

#[test]
fn interleaving_stores_more_micro_batches() {
    let parallelism = ParallelConfig { tp: 8, pp: 8, ..ParallelConfig::data_parallel(1, 1) };
    let mut run = run("gpt3-175b", Framework::Megatron, parallelism);
    run.global_batch = 64;
    let plain = estimate(&run);
    let in_flight = |memory: &MemoryEstimate| {
        memory.stages.iter().map(|stage| stage.micro_batches_in_flight).collect::<Vec<_>>()
    };
    assert_eq!(in_flight(&plain), [8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]);
    run.parallelism.vp = 3;
    let interleaved = in_flight(&estimate(&run))[0];
    // Micro-batches in flight on the first stage: p (1 + (p - 1) / (p v)), arXiv:2205.05198.
    assert!((interleaved - 8.0 * (1.0 + 7.0 / 24.0)).abs() < 1e-9, "{interleaved}");
    assert!(plain.stages[7].p50.logits_gib > 0.0 && plain.stages[0].p50.logits_gib == 0.0);
}

#[test]
fn llama_3_405b_fits_as_trained() {
    // arXiv:2407.21783, 3.3.2: 16,384 H100 80 GB, TP 8, PP 16, DP 128, sequences of 8,192 without
    // recompute; optimizer and gradients sharded, weights not gathered again.
    let parallelism = ParallelConfig {
        tp: 8,
        pp: 16,
        sharding: Sharding::Gradients,
        ..ParallelConfig::data_parallel(128, 1)
    };
    let mut run = run("llama3.1-405b", Framework::Tuned, parallelism);
    run.seq_len = 8192;
    run.global_batch = 2048;
    let memory = estimate(&run);
    assert!(memory.p50_gib < usable_gib(&run.gpu), "{}", memory.p50_gib);
    // The estimate is not small either: with more micro-batches in flight, the run would not fit.
    assert!(memory.p50_gib > 55.0, "{}", memory.p50_gib);
    // With half the tensor parallelism, the run does not fit.
    run.parallelism.tp = 4;
    run.parallelism.dp = 256;
    assert!(peak_gib(&run).0 * GIB > run.gpu.hbm_bytes);
}

#[test]
fn expert_memory_follows_expert_parallelism() {
    // DeepSeek-V3: PP 16, EP 64, ZeRO-1, DualPipe, no TP, on H800 80 GB (arXiv:2412.19437).
    let parallelism = ParallelConfig {
        pp: 16,
        ep: 64,
        schedule: Schedule::DualPipe,
        recompute: Recompute::Modules,
        reduce_bytes: 4,
        ..ParallelConfig::data_parallel(128, 1)
    };
    let mut run = run("deepseek-v3", Framework::Tuned, parallelism);
    run.seq_len = 4096;
    run.global_batch = 15_360;
    run.precision = Precision::Fp8Block;
    let memory = estimate(&run);
    // The authors store moments in 16 bits and SwiGLU inputs in 8. The estimate does not model
    // that, so two of the stages come out slightly above capacity.
    assert!((60.0..95.0).contains(&memory.p50_gib), "{}", memory.p50_gib);
    let middle = &memory.stages[8];
    assert!(middle.p95.activations_gib > middle.p50.activations_gib * 1.05);
    // A smaller EP puts more experts on each GPU.
    run.parallelism.ep = 8;
    let fewer = estimate(&run);
    assert!(fewer.stages[8].p50.weights_gib > 3.0 * middle.p50.weights_gib);
}

#[test]
fn lora_keeps_little_besides_the_frozen_weights() {
    let parallelism = ParallelConfig { tp: 8, ..ParallelConfig::data_parallel(1, 1) };
    let mut run = run("llama3-70b", Framework::Bridge, parallelism);
    let full = estimate(&run).stages[0].p50;
    run.task = TrainingTask::Lora;
    let adapters = estimate(&run).stages[0].p50;
    assert!((adapters.weights_gib / full.weights_gib - 1.0).abs() < 0.02);
    assert!(adapters.gradients_gib + adapters.optimizer_gib < 0.02 * full.optimizer_gib);
}

#[test]
fn peak_gib_equals_the_estimate_and_recompute_saves_memory() {
    let rows = published::read(FactSet::embedded(), published::embedded()).unwrap();
    for row in rows.into_iter().flatten() {
        let memory = estimate(&row.run);
        assert_eq!(peak_gib(&row.run), (memory.p50_gib, memory.p95_gib));
        assert!(memory.p50_gib < memory.p95_gib && memory.p50_gib > 0.5);
        let mut run = row.run;
        let mut with = |recompute| {
            run.parallelism.recompute = recompute;
            estimate(&run).stages[0].p50.activations_gib
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
            let stored = with(recompute);
            assert!(stored <= none && stored >= full, "{} {recompute:?}", run.model.name);
        }
    }
}

#[test]
fn published_runs_fit_their_gpus() {
    let rows = published::read(FactSet::embedded(), published::embedded()).unwrap();
    let mut row_count = 0;
    for row in rows.into_iter().flatten().filter(|row| row.assumed.is_empty()) {
        // Megatron Bridge's FSDP recipes offload most activations to host memory.
        if row.run.framework == Framework::Bridge
            && row.run.parallelism.sharding == Sharding::Weights
        {
            continue;
        }
        row_count += 1;
        let (p50, _) = peak_gib(&row.run);
        // Many of these runs used the largest micro-batch that fits.
        let capacity = usable_gib(&row.run.gpu);
        // The estimates of two runs exceed the capacity: Nemotron 4 340B, which NeMo trained with
        // two replicas, and the ZeRO-3 run of 2021.
        let tolerance = if ["Nemotron-340B", "GPT-529.6B"].contains(&row.run.model.name.as_str()) {
            1.13
        } else {
            1.0
        };
        assert!(
            p50 < tolerance * capacity,
            "{p50:.0} of {capacity:.0} {} {:?}",
            row.run.model.name,
            row.run.parallelism
        );
    }
    assert!(row_count > 100, "{row_count}");
}

#[test]
fn low_precision_moments_and_adapters_are_sharded() {
    let parallelism =
        ParallelConfig { sharding: Sharding::Weights, ..ParallelConfig::data_parallel(8, 1) };
    for framework in Framework::ALL {
        let mut run = run("llama3-8b", framework, parallelism);
        let optimizer = |run: &TrainingRun| estimate(run).stages[0].p50.optimizer_gib;
        let default = optimizer(&run);
        run.parallelism.moment_bytes = 1;
        // Both moments of a weight take 8 bytes in 32 bits and 2 bytes in 8 bits.
        let saved = (default - optimizer(&run)) * GIB;
        assert!((saved / (6.0 * 8.03e9 / 8.0) - 1.0).abs() < 0.01, "{framework:?} {saved}");
        run.task = TrainingTask::Lora;
        let eight = optimizer(&run);
        run.parallelism.dp = 64;
        assert!((eight / optimizer(&run) - 8.0).abs() < 1e-6, "{framework:?}");
    }
}
