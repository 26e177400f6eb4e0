use farrier_facts::FactSet;
use proptest::prelude::*;

use super::*;
use crate::gpu::Accelerator;
use crate::model::builtin;
use crate::parallelism::{Recompute, Sharding};
use crate::precision::Precision;
use crate::run::{Framework, TrainingTask};

fn run(model: &str, gpu: &str, global_batch: u32) -> TrainingRun {
    TrainingRun {
        model: builtin::by_name(model).unwrap().model(),
        gpu: Accelerator::by_name(FactSet::embedded(), gpu).unwrap(),
        seq_len: 8192,
        global_batch,
        precision: Precision::Bf16,
        parallelism: ParallelConfig::data_parallel(1, 1),
        task: TrainingTask::Full,
        framework: Framework::Bridge,
        fused_experts: false,
    }
}

fn found(
    run: &TrainingRun,
    gpus: u32,
    constraints: &Constraints,
) -> Result<SearchReport, SearchError> {
    search(Planner::shipped(), run, gpus, constraints)
}

#[test]
fn zero_counts_are_rejected() {
    let run = run("llama3-8b", "H100-SXM-80GB", 128);
    for (gpus, constraints, message) in [
        (0, Constraints::default(), "the number of GPUs is 0"),
        (0, Constraints { tp: Some(0), ..Constraints::default() }, "the number of GPUs is 0"),
        (8, Constraints { tp: Some(0), ..Constraints::default() }, "TP is 0"),
        (8, Constraints { vp: Some(0), ..Constraints::default() }, "VP is 0"),
        (8, Constraints { dp: Some(0), ..Constraints::default() }, "DP is 0"),
    ] {
        let err = found(&run, gpus, &constraints).unwrap_err().to_string();
        assert!(err.contains(message), "{err}");
        assert!(!fits(&run, gpus, &constraints));
    }
}

#[test]
fn alternatives_equal_a_search_with_that_value_fixed() {
    let mut run = run("llama3-70b", "H100-SXM-80GB", 256);
    run.precision = Precision::Fp8;
    let free = found(&run, 64, &Constraints::default()).unwrap();
    let slower = |constraints: &Constraints| {
        found(&run, 64, constraints).map(|with| with.best[0].step_s / free.best[0].step_s - 1.0)
    };
    assert!(
        free.alternatives.iter().any(|alternative| alternative.change == "CP 4"),
        "{:?}",
        free.alternatives
    );
    for alternative in &free.alternatives {
        let pinned = alternative.value.pin(&Constraints::default());
        match (alternative.slower, slower(&pinned)) {
            (Some(reported), Ok(with)) => {
                assert!((reported - with).abs() < 1e-9, "{alternative:?} {with}");
            }
            (None, Err(_)) => {}
            (reported, with) => panic!("{alternative:?}: {reported:?} and {with:?}"),
        }
    }
}

#[test]
fn pipeline_stages_need_not_be_powers_of_two() {
    let large = run("llama3.1-405b", "H200-SXM5-141GB", 64);
    let best = found(&large, 80, &Constraints::default()).unwrap().best[0].parallelism;
    assert!(best.pp.is_multiple_of(5), "{best:?}");
    let run = run("llama3-70b", "H200-SXM5-141GB", 256);
    let best = found(&run, 112, &Constraints::default()).unwrap().best[0].parallelism;
    assert!(best.pp.is_multiple_of(7), "{best:?}");
}

#[test]
fn errors_blame_the_fixed_values() {
    let run = run("llama3-8b", "H100-SXM-80GB", 64);
    let message =
        |gpus, constraints: &Constraints| found(&run, gpus, constraints).unwrap_err().to_string();
    let batch = message(67, &Constraints::default());
    assert!(batch.contains("the global batch does not divide by DP × micro-batch"), "{batch}");
    assert!(!batch.contains("DP 67"), "{batch}");
    let constraints = Constraints { tp: Some(3), ..Constraints::default() };
    assert!(
        message(64, &constraints).ends_with("not divisible by TP 3"),
        "{}",
        message(64, &constraints)
    );
    assert!(
        message(48, &constraints).contains("TP 3 does not divide heads: 32"),
        "{}",
        message(48, &constraints)
    );
    let constraints = Constraints { ep: Some(4), ..Constraints::default() };
    assert!(
        message(64, &constraints).contains("EP 4 needs experts"),
        "{}",
        message(64, &constraints)
    );
}

#[test]
fn uncommon_configs_are_found_if_requested() {
    // ZeRO-2 with a pipeline, as in the Llama 3 paper.
    let mut run = run("llama3.1-405b", "H100-SXM-80GB", 2048);
    let constraints = Constraints { sharding: Some(Sharding::Gradients), ..Constraints::default() };
    let best = found(&run, 16_384, &constraints).unwrap().best[0].parallelism;
    assert_eq!(best.sharding, Sharding::Gradients);
    assert!(best.pp > 1, "{best:?}");
    // A mode that the framework lacks is an error.
    run.model = builtin::by_name("llama3-8b").unwrap().model();
    let constraints = Constraints {
        framework: Some(Framework::FsdpCompiled),
        recompute: Some(Recompute::Modules),
        ..Constraints::default()
    };
    assert!(found(&run, 64, &constraints).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_search_terminates(
        gpus in 0_u32..70,
        numbers in prop::array::uniform7(prop::option::of(0_u32..40)),
        (seq_len, global_batch) in (0_u32..9000, 0_u32..70),
        model in prop::sample::select(vec!["llama3-8b", "qwen3-30b-a3b"]),
    ) {
        let mut run = run(model, "H100-SXM-80GB", global_batch);
        run.seq_len = seq_len;
        let [dp, tp, pp, vp, cp, ep, micro_batch] = numbers;
        let constraints = Constraints { tp, pp, vp, cp, ep, micro_batch, dp, ..Constraints::default() };
        match found(&run, gpus, &constraints) {
            Ok(found) => prop_assert!(found.best.iter().all(|best| best.step_s > 0.0)),
            Err(err) => prop_assert!(!err.to_string().is_empty()),
        }
    }
}
