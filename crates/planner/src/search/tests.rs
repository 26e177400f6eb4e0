use farrier_facts::FactSet;
use proptest::prelude::*;

use super::*;
use crate::gpu::Accelerator;
use crate::layout::{Recompute, Sharding};
use crate::model::builtin;
use crate::precision::Precision;
use crate::run::{Stack, Task};

fn run(model: &str, gpu: &str, global_batch: u32) -> Run {
    Run {
        model: builtin::named(model).unwrap().model(),
        gpu: Accelerator::named(FactSet::embedded(), gpu).unwrap(),
        seq_len: 8192,
        global_batch,
        precision: Precision::Bf16,
        layout: Layout::copies(1, 1),
        task: Task::Full,
        stack: Stack::Bridge,
        fused_experts: false,
    }
}

fn found(run: &Run, gpus: u32, axes: &Axes) -> Result<Report, SearchError> {
    search(Planner::shipped(), run, gpus, axes)
}

#[test]
fn nothing_of_something_is_refused() {
    let run = run("llama3-8b", "H100-SXM-80GB", 128);
    for (gpus, axes, said) in [
        (0, Axes::default(), "the number of GPUs is 0"),
        (0, Axes { tp: Some(0), ..Axes::default() }, "the number of GPUs is 0"),
        (8, Axes { tp: Some(0), ..Axes::default() }, "TP is 0"),
        (8, Axes { vp: Some(0), ..Axes::default() }, "VP is 0"),
        (8, Axes { dp: Some(0), ..Axes::default() }, "DP is 0"),
    ] {
        let err = found(&run, gpus, &axes).unwrap_err().to_string();
        assert!(err.contains(said), "{err}");
        assert!(!fits(&run, gpus, &axes));
    }
}

#[test]
fn another_number_is_what_a_search_with_it_finds() {
    let mut run = run("llama3-70b", "H100-SXM-80GB", 256);
    run.precision = Precision::Fp8;
    let free = found(&run, 64, &Axes::default()).unwrap();
    let slower = |axes: &Axes| {
        found(&run, 64, axes).map(|with| with.best[0].step_s / free.best[0].step_s - 1.0)
    };
    assert!(free.others.iter().any(|other| other.change == "CP 4"), "{:?}", free.others);
    for other in &free.others {
        let asked = other.value.fixed(&Axes::default());
        match (other.slower, slower(&asked)) {
            (Some(said), Ok(with)) => assert!((said - with).abs() < 1e-9, "{other:?} {with}"),
            (None, Err(_)) => {}
            (said, with) => panic!("{other:?}: {said:?} and {with:?}"),
        }
    }
}

#[test]
fn pipelines_are_as_long_as_the_gpus_allow() {
    let large = run("llama3.1-405b", "H200-SXM5-141GB", 64);
    let best = found(&large, 80, &Axes::default()).unwrap().best[0].layout;
    assert!(best.pp.is_multiple_of(5), "{best:?}");
    let run = run("llama3-70b", "H200-SXM5-141GB", 256);
    let best = found(&run, 112, &Axes::default()).unwrap().best[0].layout;
    assert!(best.pp.is_multiple_of(7), "{best:?}");
}

#[test]
fn what_is_impossible_blames_what_was_asked_for() {
    let run = run("llama3-8b", "H100-SXM-80GB", 64);
    let said = |gpus, axes: &Axes| found(&run, gpus, axes).unwrap_err().to_string();
    let batch = said(67, &Axes::default());
    assert!(batch.contains("the global batch does not divide by DP × micro-batch"), "{batch}");
    assert!(!batch.contains("DP 67"), "{batch}");
    let axes = Axes { tp: Some(3), ..Axes::default() };
    assert!(said(64, &axes).ends_with("they do not divide by TP 3"), "{}", said(64, &axes));
    assert!(said(48, &axes).contains("TP 3 does not divide heads: 32"), "{}", said(48, &axes));
    let axes = Axes { ep: Some(4), ..Axes::default() };
    assert!(said(64, &axes).contains("EP 4 needs experts"), "{}", said(64, &axes));
}

#[test]
fn what_nobody_does_is_found_where_it_is_asked_for() {
    // Gradients shared beside a pipeline, as in the Llama 3 paper.
    let mut run = run("llama3.1-405b", "H100-SXM-80GB", 2048);
    let axes = Axes { sharding: Some(Sharding::Gradients), ..Axes::default() };
    let best = found(&run, 16_384, &axes).unwrap().best[0].layout;
    assert_eq!(best.sharding, Sharding::Gradients);
    assert!(best.pp > 1, "{best:?}");
    // What the program does not have is not planned.
    run.model = builtin::named("llama3-8b").unwrap().model();
    let axes = Axes {
        stack: Some(Stack::FsdpCompiled),
        recompute: Some(Recompute::Modules),
        ..Axes::default()
    };
    assert!(found(&run, 64, &axes).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_search_ends(
        gpus in 0_u32..70,
        numbers in prop::array::uniform7(prop::option::of(0_u32..40)),
        (seq_len, global_batch) in (0_u32..9000, 0_u32..70),
        model in prop::sample::select(vec!["llama3-8b", "qwen3-30b-a3b"]),
    ) {
        let mut run = run(model, "H100-SXM-80GB", global_batch);
        run.seq_len = seq_len;
        let [dp, tp, pp, vp, cp, ep, micro_batch] = numbers;
        let axes = Axes { tp, pp, vp, cp, ep, micro_batch, dp, ..Axes::default() };
        match found(&run, gpus, &axes) {
            Ok(found) => prop_assert!(found.best.iter().all(|best| best.step_s > 0.0)),
            Err(err) => prop_assert!(!err.to_string().is_empty()),
        }
    }
}
