//! What would do where a run does not: nothing is advised that was not tried.

use farrier_facts::FactSet;
use farrier_planner::check;
use farrier_planner::gpu::{Accelerator, plannable};
use farrier_planner::run::{Run, Task};
use farrier_planner::search::{self, Axes};

use super::request::Asked;
use crate::fact_sets;
use crate::failure::Hinted;

/// Whether a run can be run; else what could be.
pub(super) fn check_run(run: &Run, axes: &Axes, gpus: u32) -> anyhow::Result<()> {
    check::check_on(run, gpus).map_err(|err| {
        let hint = if err.is_of_split() { of_search(run, axes, gpus) } else { None };
        hinted(format!("this run is not possible: {err}"), hint)
    })
}

/// An error, with advice where there is some.
pub(super) fn hinted(message: String, hint: Option<&str>) -> anyhow::Error {
    match hint {
        Some(hint) => Hinted::error(message, hint),
        None => anyhow::anyhow!(message),
    }
}

/// So many further nodes are tried one by one, and then twice as many each time.
const NODES: u32 = 64;
/// Half as many GPUs as the largest cluster that a plan is made for.
const MOST_GPUS: u32 = 1 << 21;

/// What would do where no split over so many GPUs does.
pub(super) fn instead(asked: &Asked, axes: &Axes, few: u32) -> String {
    let run = &asked.run;
    let found: Vec<String> = [
        more(run, axes, few).map(|gpus| format!("{gpus} of them do")),
        larger(&fact_sets::active(), run, axes, few).map(|gpu| format!("{few} of `{gpu}` do")),
        adapters(run, axes, few).then(|| "adapters do (`--lora`)".to_owned()),
        free(run, axes, few).then(|| "a split without the numbers given does".to_owned()),
    ]
    .into_iter()
    .flatten()
    .collect();
    if found.is_empty() {
        "more of them, GPUs with more memory and adapters were tried, and none does".to_owned()
    } else {
        found.join("; ")
    }
}

/// What a search would find where a split does not do.
pub(super) fn of_search(run: &Run, axes: &Axes, gpus: u32) -> Option<&'static str> {
    if search::fits(run, gpus, axes) {
        Some("`--search` finds the best split that does, with the numbers given")
    } else if free(run, axes, gpus) {
        Some("`--search` finds a split that does, without the numbers given")
    } else {
        None
    }
}

/// The fewest GPUs beyond `few`, in whole nodes, over which a split fits.
fn more(run: &Run, axes: &Axes, few: u32) -> Option<u32> {
    let node = run.gpu.gpus_of_node();
    let begin = few / node + 1;
    let one_by_one = begin..begin.saturating_add(NODES);
    let doubled = (0..32).map(|power| 1_u32 << power).filter(|nodes| *nodes >= one_by_one.end);
    one_by_one
        .clone()
        .chain(doubled)
        .filter_map(|nodes| nodes.checked_mul(node))
        .take_while(|gpus| *gpus <= MOST_GPUS)
        .find(|gpus| search::fits(run, *gpus, axes))
}

/// The part with the least more memory with which a split fits.
fn larger(facts: &FactSet, run: &Run, axes: &Axes, gpus: u32) -> Option<String> {
    let known = plannable(facts).into_iter().filter_map(|id| Accelerator::named(facts, id).ok());
    let mut parts: Vec<Accelerator> =
        known.filter(|part| part.hbm_bytes > run.gpu.hbm_bytes).collect();
    parts.sort_by(|left, right| left.hbm_bytes.total_cmp(&right.hbm_bytes));
    parts
        .into_iter()
        .map(|gpu| Run { gpu, ..run.clone() })
        .find(|run| search::fits(run, gpus, axes))
        .map(|run| run.gpu.id)
}

fn adapters(run: &Run, axes: &Axes, gpus: u32) -> bool {
    let lora = Run { task: Task::Lora, ..run.clone() };
    run.task != Task::Lora && search::fits(&lora, gpus, axes)
}

fn free(run: &Run, axes: &Axes, gpus: u32) -> bool {
    axes.loosened().is_some_and(|axes| search::fits(run, gpus, &axes))
}
