use farrier_facts::FactSet;

use super::*;
use crate::layout::Layout;
use crate::model::builtin;
use crate::run::Task;

fn run(model: &str, gpu: &str, global_batch: u32) -> Run {
    Run {
        model: builtin::named(model).unwrap().model(),
        gpu: Accelerator::named(FactSet::embedded(), gpu).unwrap(),
        seq_len: 8192,
        global_batch,
        precision: Precision::Bf16,
        layout: Layout { reduce_bytes: 2, ..Layout::copies(1, 1) },
        task: Task::Full,
        stack: Stack::Bridge,
        fused_experts: false,
    }
}

fn terms(equal: Equal) -> Terms {
    Terms { precision: None, stack: None, tokens: Some(1e12), equal }
}

fn one(model: &str, gpu: &str, global_batch: u32, usd: Option<f64>, equal: Equal) -> Comparison {
    let mut run = run(model, gpu, global_batch);
    run.gpu.usd_per_hour = usd;
    compare(Planner::shipped(), &run, std::slice::from_ref(&run.gpu), &terms(equal))
}

#[test]
fn money_is_spent_where_it_brings_more() {
    let of = |equal| one("llama3-70b", "H200", 240, Some(7.91), equal).offers.swap_remove(0);
    let offer = of(Equal::UsdPerHour(1000.0));
    assert_eq!(offer.gpus, 120, "126 could be paid, and 15 nodes divide the batch");
    for gpus in (8..=120).step_by(8) {
        let other = one("llama3-70b", "H200", 240, Some(7.91), Equal::Gpus(gpus)).offers;
        let other = other.first().map_or(0.0, |other| other.tokens_per_s);
        assert!(other <= offer.tokens_per_s * 1.03, "{gpus}: {other} {offer:?}");
    }
    // 376 have a split, and 320 a far better one.
    let of = |equal| one("qwen3-235b-a22b", "GB200", 1024, Some(1.0), equal).offers.swap_remove(0);
    let best = of(Equal::Gpus(320)).tokens_per_s;
    assert!(of(Equal::Gpus(376)).tokens_per_s < 0.9 * best);
    assert!(of(Equal::UsdPerHour(377.0)).tokens_per_s >= best);
    assert!((offer.days.unwrap() * 86_400.0 * offer.tokens_per_s / 1e12 - 1.0).abs() < 1e-9);
}

#[test]
fn time_is_kept_with_the_fewest_nodes() {
    let days = Equal::Days { days: 30.0, tokens: 1e12 };
    let wanted = 1e12 / (30.0 * DAY_S);
    for (gpu, batch) in [("B200", 240), ("B200", 256), ("GB200", 256)] {
        let offer = one("llama3-70b", gpu, batch, None, days).offers.swap_remove(0);
        assert!(offer.tokens_per_s >= wanted && offer.days.unwrap() <= 30.0, "{offer:?}");
        let node = if gpu == "GB200" { 4 } else { 8 };
        assert!(offer.gpus.is_multiple_of(node));
        for gpus in (node..offer.gpus).step_by(usize::try_from(node).unwrap()) {
            let fewer = one("llama3-70b", gpu, batch, None, Equal::Gpus(gpus)).offers;
            let fewer = fewer.first().map_or(0.0, |fewer| fewer.tokens_per_s);
            assert!(fewer < wanted, "{gpu}: {gpus} do {fewer}, {} were taken", offer.gpus);
        }
    }
    // Where memory is short, a few GPUs more do many times as much.
    let some = one("deepseek-v3", "GB200", 4096, None, Equal::Gpus(128)).offers.swap_remove(0);
    assert!(some.tokens_per_s > wanted, "{some:?}");
    assert!(one("deepseek-v3", "GB200", 4096, None, days).offers[0].gpus <= 128);
    let never = one("llama3-8b", "H100", 8, None, Equal::Days { days: 0.1, tokens: 1e15 });
    let why = &never.not_offered[0].why;
    assert!(why.contains("tokens/s with a batch of 8 sequences"), "{why}");
    let slow = one("llama3-8b", "H100", 8, None, Equal::Days { days: 30.0, tokens: 4e12 });
    let why = &slow.not_offered[0].why;
    assert!(why.contains("no number of them does") && why.contains("the most is"), "{why}");
}

#[test]
fn a_node_is_what_the_part_has() {
    let refused = |gpu: &str, usd: f64| {
        let found = one("llama3-8b", gpu, 256, Some(10.0), Equal::UsdPerHour(usd));
        found.not_offered.first().map(|not| not.why.clone())
    };
    let why = refused("GB200", 39.0).unwrap();
    assert_eq!(why, "39 dollars an hour do not pay for a node of 4 at 10 each");
    assert_eq!(refused("GB200", 41.0), None);
    assert!(refused("H100", 41.0).unwrap().contains("a node of 8"));
}

#[test]
fn published_runs_have_the_name_of_their_own_gpu() {
    let seen = |model: &str| {
        let found = one(model, "H100", 4096, None, Equal::Gpus(2048));
        found.offers[0].published.clone()
    };
    let kin = seen("deepseek-v3");
    let paper = kin.iter().find(|seen| seen.source.contains("DeepSeek-V3")).unwrap();
    assert_eq!((paper.gpu.as_str(), paper.is_same_part), ("H800-SXM-80GB", false));
    // The part itself comes first.
    for model in ["deepseek-v3", "llama3-70b", "llama3-8b"] {
        let seen = seen(model);
        assert!(seen.is_sorted_by_key(|seen| !seen.is_same_part), "{seen:?}");
        let named = |seen: &Sighting| seen.gpu.contains("H800") || seen.gpu.contains("HBM2e");
        assert!(seen.iter().all(|seen| seen.is_same_part != named(seen)), "{seen:?}");
    }
}

#[test]
fn numbers_are_whole_nodes_that_the_batch_divides_over() {
    let numbers = numbers(&run("llama3-70b", "H100", 240), 8, 128);
    assert!(numbers.contains(&120) && numbers.contains(&96) && numbers.contains(&128));
    assert!(numbers.iter().all(|gpus| gpus.is_multiple_of(8) && *gpus <= 128), "{numbers:?}");
    assert_eq!(
        (whole_nodes(126.4, 8), whole_nodes(7.9, 8), whole_nodes(1e30, 8)),
        (120, 0, MOST_GPUS)
    );
}
