//! What the node is made of, as the brain last showed it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use farrier_facts::FactSet;
use farrier_facts::node::Reading;
use farrier_facts::version::DriverVersion;
use farrier_fleet::fleet::event::{GpuMakeup, Makeup};
use farrier_hardware::Root;

use super::MadeOf;
use crate::jobs::Board;
use crate::state::{Published, State};

/// So long NVML is given to answer for the first time before the server is told that nobody knows the GPUs.
const PATIENCE_MS: i64 = 30_000;

/// What the brain last showed.
pub fn of_published(published: Published, board: Arc<Board>, root: &Path) -> MadeOf {
    let release = Root::unrecorded(root).trimmed("/proc/sys/kernel/osrelease");
    let kernel = match release {
        Reading::Value(release) if !release.is_empty() => Some(release),
        _ => None,
    };
    Box::new(move || {
        let state = published.get()?;
        let gpus = gpus(&state)?;
        Some(Makeup {
            boot: state.boot.clone(),
            agent: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: kernel.clone(),
            cuda: state.values.driver.as_deref().and_then(cuda),
            driver: state.values.driver.clone(),
            gpus,
            frameworks: distinct(board.jobs().iter().map(|job| &job.frameworks)),
        })
    })
}

/// Frameworks of which the server is told.
const FRAMEWORKS_MAX: usize = 16;

/// What the jobs of the last day computed with, as they said it. A node without such a job has none that anybody knows.
fn distinct<'j>(
    jobs: impl IntoIterator<Item = &'j BTreeMap<String, String>>,
) -> Vec<(String, String)> {
    let named = jobs.into_iter().flatten();
    let distinct: BTreeSet<(String, String)> =
        named.map(|(name, version)| (name.clone(), version.clone())).collect();
    distinct.into_iter().take(FRAMEWORKS_MAX).collect()
}

/// The newest CUDA that a driver speaks, where a source confirms it: a branch has one from its first release to its last.
fn cuda(driver: &str) -> Option<String> {
    let driver: DriverVersion = driver.parse().ok()?;
    let branch = FactSet::embedded().drivers.branch(driver.branch())?;
    (!branch.is_unverified("native_cuda")).then(|| branch.native_cuda.to_string())
}

/// The GPUs; inside none: they could not be read; outside none: that is not known yet.
#[expect(clippy::option_option, reason = "not yet known and not readable are different answers")]
fn gpus(state: &State) -> Option<Option<Vec<GpuMakeup>>> {
    let listed = &state.values.gpus;
    let has_answered =
        state.collectors.iter().any(|it| it.name.starts_with("nvml") && it.age_s.is_some());
    if !listed.is_empty() || has_answered {
        let each = listed.iter().map(|it| GpuMakeup {
            uuid: it.uuid.clone(),
            name: it.name.clone(),
            index: Some(it.index),
            pci: it.pci.clone(),
        });
        return Some(Some(each.collect()));
    }
    let is_blind = state.blind.iter().any(|it| it.what.contains("nvml"));
    (is_blind || state.up_ms > PATIENCE_MS).then_some(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frameworks_are_those_of_the_jobs_each_once() {
        let torch = |version: &str| ("torch".to_owned(), version.to_owned());
        let jobs = ["2.11.0", "2.11.0", "2.9.1"].map(|version| BTreeMap::from([torch(version)]));
        assert_eq!(distinct(&jobs), [torch("2.11.0"), torch("2.9.1")]);
        assert_eq!(distinct(&[]), []);
    }

    #[test]
    fn cuda_is_that_of_the_branch_and_what_no_source_confirms_is_not_known() {
        assert_eq!(cuda("580.95.05").as_deref(), Some("13.0"));
        assert_eq!(cuda("550.54.15").as_deref(), Some("12.4"));
        for unknown in ["565.57.01", "999.1", "", "none"] {
            assert_eq!(cuda(unknown), None, "{unknown}");
        }
    }
}
