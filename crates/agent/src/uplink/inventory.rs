//! Builds the node's inventory from the state that the health monitor published last.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use farrier_facts::FactSet;
use farrier_facts::node::Reading;
use farrier_facts::version::DriverVersion;
use farrier_fleet::fleet::event::{GpuInventory, NodeInventory};
use farrier_hardware::Root;

use super::InventorySource;
use crate::jobs::JobRegistry;
use crate::state::{Published, State};

/// How long to wait for NVML's first answer before the server gets an inventory without GPUs.
const NVML_WAIT_MS: i64 = 30_000;

/// Builds the inventory from the last published state.
pub fn inventory_source(
    published: Published,
    board: Arc<JobRegistry>,
    root: &Path,
) -> InventorySource {
    let release = Root::unrecorded(root).trimmed("/proc/sys/kernel/osrelease");
    let kernel = match release {
        Reading::Value(release) if !release.is_empty() => Some(release),
        _ => None,
    };
    Box::new(move || {
        let state = published.get()?;
        let gpus = gpus(&state)?;
        Some(NodeInventory {
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

/// Maximum frameworks in the inventory.
const FRAMEWORKS_MAX: usize = 16;

/// Frameworks that jobs of the last day reported. Empty if no job reported any.
fn distinct<'j>(
    jobs: impl IntoIterator<Item = &'j BTreeMap<String, String>>,
) -> Vec<(String, String)> {
    let frameworks = jobs.into_iter().flatten();
    let distinct: BTreeSet<(String, String)> =
        frameworks.map(|(name, version)| (name.clone(), version.clone())).collect();
    distinct.into_iter().take(FRAMEWORKS_MAX).collect()
}

/// The newest CUDA version that a driver supports, if a source confirms it. All releases of a
/// driver branch support the same version.
fn cuda(driver: &str) -> Option<String> {
    let driver: DriverVersion = driver.parse().ok()?;
    let branch = FactSet::embedded().drivers.branch(driver.branch())?;
    (!branch.is_unverified("native_cuda")).then(|| branch.native_cuda.to_string())
}

/// The GPUs. `Some(None)` if they cannot be read. `None` if they are not known yet.
#[expect(clippy::option_option, reason = "not known yet and not readable are different results")]
fn gpus(state: &State) -> Option<Option<Vec<GpuInventory>>> {
    let listed = &state.values.gpus;
    let has_answered = state
        .collectors
        .iter()
        .any(|collector| collector.name.starts_with("nvml") && collector.age_s.is_some());
    if !listed.is_empty() || has_answered {
        let inventory = listed.iter().map(|gpu| GpuInventory {
            uuid: gpu.uuid.clone(),
            name: gpu.name.clone(),
            index: Some(gpu.index),
            pci: gpu.pci.clone(),
        });
        return Some(Some(inventory.collect()));
    }
    let is_uncovered = state.coverage_gaps.iter().any(|gap| gap.source.contains("nvml"));
    (is_uncovered || state.up_ms > NVML_WAIT_MS).then_some(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_framework_of_the_jobs_is_listed_once() {
        let torch = |version: &str| ("torch".to_owned(), version.to_owned());
        let jobs = ["2.11.0", "2.11.0", "2.9.1"].map(|version| BTreeMap::from([torch(version)]));
        assert_eq!(distinct(&jobs), [torch("2.11.0"), torch("2.9.1")]);
        assert_eq!(distinct(&[]), []);
    }

    #[test]
    fn the_cuda_version_follows_the_driver_branch_if_a_source_confirms_it() {
        assert_eq!(cuda("580.95.05").as_deref(), Some("13.0"));
        assert_eq!(cuda("550.54.15").as_deref(), Some("12.4"));
        for unknown in ["565.57.01", "999.1", "", "none"] {
            assert_eq!(cuda(unknown), None, "{unknown}");
        }
    }
}
