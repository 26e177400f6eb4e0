//! No model config, parallelism config or table of runs makes the planner panic. All estimates are
//! finite.
#![no_main]

use farrier_facts::FactSet;
use farrier_planner::emit::{Launcher, emit};
use farrier_planner::gpu::{Accelerator, plannable};
use farrier_planner::model::{builtin, config};
use farrier_planner::parallelism::{ParallelConfig, Recompute, Schedule, Sharding};
use farrier_planner::precision::Precision;
use farrier_planner::run::{Framework, TrainingRun, TrainingTask};
use farrier_planner::search::{self, Constraints};
use farrier_planner::{Planner, check, plan, published};
use libfuzzer_sys::fuzz_target;

/// Maps any number to an element.
fn pick<T: Copy>(values: &[T], number: u8) -> T {
    values[usize::from(number) % values.len()]
}

/// A fixed value for an axis of the search. If the highest bit is set, returns `None`, which leaves
/// the axis free.
fn fixed(number: u16) -> Option<u32> {
    (number < 1 << 15).then(|| u32::from(number))
}

fuzz_target!(|input: (&str, &[u8], [u8; 10], [u16; 8], u32, u32)| {
    let (text, table, kinds, numbers, seq_len, global_batch) = input;
    let facts = FactSet::embedded();
    let planner = Planner::shipped();
    if let Ok(rows) = published::read(facts, table) {
        for row in rows.into_iter().flatten() {
            assert!(planner.step_s(&row.run).is_finite());
        }
    }
    let model = match config::parse(text) {
        Ok(parsed) => parsed.model,
        Err(_) => pick(&builtin::all().iter().collect::<Vec<_>>(), kinds[0]).model(),
    };
    let [dp, tp, pp, vp, cp, ep, micro_batch, gpus] = numbers;
    let recompute_modes = [
        Recompute::None,
        Recompute::Attention,
        Recompute::Modules,
        Recompute::Operators,
        Recompute::EverySecond,
        Recompute::Layers(u32::from(kinds[1])),
        Recompute::Full,
    ];
    let parallelism = ParallelConfig {
        tp: u32::from(tp),
        pp: u32::from(pp),
        vp: u32::from(vp),
        cp: u32::from(cp),
        ep: u32::from(ep),
        sharding: pick(&Sharding::ALL, kinds[2]),
        recompute: pick(&recompute_modes, kinds[3]),
        schedule: pick(&Schedule::ALL, kinds[4]),
        reduce_bytes: kinds[5],
        moment_bytes: kinds[6],
        ..ParallelConfig::data_parallel(u32::from(dp), u32::from(micro_batch))
    };
    let gpu_id = pick(&plannable(facts), kinds[7]);
    let run = TrainingRun {
        model,
        gpu: Accelerator::by_name(facts, gpu_id).expect("the GPU is in the facts"),
        seq_len,
        global_batch,
        precision: pick(&Precision::ALL, kinds[8]),
        parallelism,
        task: pick(&[TrainingTask::Full, TrainingTask::Lora], kinds[9]),
        framework: pick(&Framework::ALL, kinds[9] / 2),
        fused_experts: false,
    };
    if check::check(&run).is_ok() {
        let plan = plan::plan(planner, &run, None, None);
        assert!(plan.estimate.step_time_s.is_finite() && plan.memory.p95_gib.is_finite());
    }
    let is_free = |kind: u8| kind >= 1 << 7;
    let constraints = Constraints {
        tp: fixed(tp),
        pp: fixed(pp),
        vp: fixed(vp),
        cp: fixed(cp),
        ep: fixed(ep),
        dp: fixed(dp),
        micro_batch: fixed(micro_batch),
        sharding: (!is_free(kinds[2])).then_some(run.parallelism.sharding),
        recompute: (!is_free(kinds[3])).then_some(run.parallelism.recompute),
        schedule: (!is_free(kinds[4])).then_some(run.parallelism.schedule),
        reduce_bytes: (!is_free(kinds[5])).then_some(run.parallelism.reduce_bytes),
        framework: (!is_free(kinds[9])).then_some(run.framework),
    };
    let gpus = u32::from(gpus);
    let quick = search::quick(planner, &run, gpus, &constraints);
    let Ok(report) = search::search(planner, &run, gpus, &constraints) else {
        assert!(quick.is_none(), "a quick result implies a full search result");
        return;
    };
    assert!(report.best.iter().all(|best| best.step_s.is_finite() && best.step_s > 0.0));
    let mut best = run;
    constraints.apply(&mut best, report.best[0].parallelism);
    let plan = plan::plan(planner, &best, None, None);
    for launcher in [Launcher::Torchrun, Launcher::Slurm] {
        // Not every config has a launch command.
        let _ = emit(&plan, &best, launcher);
    }
});
