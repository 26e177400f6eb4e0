//! Hints for runs that are impossible or do not fit. Every alternative that a hint suggests was
//! evaluated before.

use farrier_facts::FactSet;
use farrier_planner::check;
use farrier_planner::gpu::{Accelerator, plannable};
use farrier_planner::run::{TrainingRun, TrainingTask};
use farrier_planner::search::{self, Constraints};

use super::request::PlanRequest;
use crate::fact_sets;
use crate::failure::Hinted;

/// Checks a run. If the check fails, the error suggests an alternative.
pub(super) fn check_run(
    run: &TrainingRun,
    constraints: &Constraints,
    gpus: u32,
) -> anyhow::Result<()> {
    check::check_on_gpus(run, gpus).map_err(|err| {
        let hint =
            if err.depends_on_parallelism() { search_hint(run, constraints, gpus) } else { None };
        hinted(format!("this run is not possible: {err}"), hint)
    })
}

/// An error with an optional hint.
pub(super) fn hinted(message: String, hint: Option<&str>) -> anyhow::Error {
    match hint {
        Some(hint) => Hinted::error(message, hint),
        None => anyhow::anyhow!(message),
    }
}

/// How many node counts above the requested count are tried one by one. Above these, only powers of
/// two are tried.
const NODES: u32 = 64;
/// Maximum number of GPUs to suggest. It is half of the largest cluster that can be planned.
const MAX_GPUS: u32 = 1 << 21;

/// Suggests alternatives that fit, if a request does not fit on `few` GPUs.
pub(super) fn alternatives(request: &PlanRequest, constraints: &Constraints, few: u32) -> String {
    let run = &request.run;
    let found: Vec<String> = [
        more_gpus(run, constraints, few).map(|gpus| format!("{gpus} GPUs fit")),
        larger_gpu(&fact_sets::active(), run, constraints, few)
            .map(|gpu| format!("{few} × `{gpu}` fit")),
        lora_fits(run, constraints, few).then(|| "LoRA fits (`--lora`)".to_owned()),
        relaxed_fits(run, constraints, few)
            .then(|| "a parallelism config without the given values fits".to_owned()),
    ]
    .into_iter()
    .flatten()
    .collect();
    if found.is_empty() {
        "tried more GPUs, GPUs with more memory and LoRA: none fits".to_owned()
    } else {
        found.join("; ")
    }
}

/// A hint to use `--search`. There is no hint if a search would find no config.
pub(super) fn search_hint(
    run: &TrainingRun,
    constraints: &Constraints,
    gpus: u32,
) -> Option<&'static str> {
    if search::fits(run, gpus, constraints) {
        Some("`--search` finds the best parallelism config, with the given values")
    } else if relaxed_fits(run, constraints, gpus) {
        Some("`--search` finds a parallelism config that works, without the given values")
    } else {
        None
    }
}

/// The smallest number of GPUs above `few` on which a config fits. Only whole nodes are tried.
fn more_gpus(run: &TrainingRun, constraints: &Constraints, few: u32) -> Option<u32> {
    let node = run.gpu.gpus_per_node;
    let begin = few / node + 1;
    let one_by_one = begin..begin.saturating_add(NODES);
    let doubled = (0..32).map(|power| 1_u32 << power).filter(|nodes| *nodes >= one_by_one.end);
    one_by_one
        .clone()
        .chain(doubled)
        .filter_map(|nodes| nodes.checked_mul(node))
        .take_while(|gpus| *gpus <= MAX_GPUS)
        .find(|gpus| search::fits(run, *gpus, constraints))
}

/// Of the GPUs on which a config fits, the one with the least additional memory.
fn larger_gpu(
    facts: &FactSet,
    run: &TrainingRun,
    constraints: &Constraints,
    gpus: u32,
) -> Option<String> {
    let candidates =
        plannable(facts).into_iter().filter_map(|id| Accelerator::by_name(facts, id).ok());
    let mut larger: Vec<Accelerator> =
        candidates.filter(|gpu| gpu.hbm_bytes > run.gpu.hbm_bytes).collect();
    larger.sort_by(|left, right| left.hbm_bytes.total_cmp(&right.hbm_bytes));
    larger
        .into_iter()
        .map(|gpu| TrainingRun { gpu, ..run.clone() })
        .find(|run| search::fits(run, gpus, constraints))
        .map(|run| run.gpu.id)
}

fn lora_fits(run: &TrainingRun, constraints: &Constraints, gpus: u32) -> bool {
    let lora = TrainingRun { task: TrainingTask::Lora, ..run.clone() };
    run.task != TrainingTask::Lora && search::fits(&lora, gpus, constraints)
}

fn relaxed_fits(run: &TrainingRun, constraints: &Constraints, gpus: u32) -> bool {
    constraints.relaxed().is_some_and(|constraints| search::fits(run, gpus, &constraints))
}
