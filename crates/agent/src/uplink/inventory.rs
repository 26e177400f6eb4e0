//! Builds the node's inventory from the state that the health monitor published last.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use farrier_facts::FactSet;
use farrier_facts::node::{ComplianceObservation, ImagePolicy, Reading};
use farrier_facts::version::DriverVersion;
use farrier_fleet::fleet::event::{GpuInventory, NodeCompliance, NodeInventory};
use farrier_hardware::{Root, compliance};

use super::InventorySource;
use crate::jobs::JobRegistry;
use crate::state::{Published, State};

/// How long to wait for NVML's first answer. After that, the server gets an inventory without GPUs.
const NVML_WAIT_MS: i64 = 30_000;

/// Builds the inventory from the last published state.
pub fn inventory_source(
    published: Published,
    board: Arc<JobRegistry>,
    root: &Path,
) -> InventorySource {
    let root = Root::unrecorded(root);
    let release = root.trimmed("/proc/sys/kernel/osrelease");
    let kernel = match release {
        Reading::Value(release) if !release.is_empty() => Some(release),
        _ => None,
    };
    // These values change only with a reboot, or with a new disk.
    let compliance = compliance(&compliance::read(&root), &compliance::secure_boot(&root));
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
            compliance: Some(compliance.clone()),
        })
    })
}

/// The security features in the form that the fleet uses. A feature that cannot be read is unknown.
fn compliance(read: &ComplianceObservation, secure_boot: &Reading<bool>) -> NodeCompliance {
    let volumes = read.volumes.value().map_or(&[][..], Vec::as_slice);
    let encrypted: Option<Vec<bool>> =
        volumes.iter().map(|volume| volume.encrypted.value().copied()).collect();
    let image_policy = match &read.image_policy {
        Reading::Value(ImagePolicy::AcceptAnything) => Some("accept-anything"),
        Reading::Value(ImagePolicy::Reject) => Some("reject"),
        Reading::Value(ImagePolicy::Signed) => Some("signed"),
        Reading::Value(ImagePolicy::Other) => Some("other"),
        Reading::Absent => Some("none"),
        Reading::Unreadable(_) => None,
    };
    NodeCompliance {
        tpm: match &read.tpm_version {
            Reading::Value(_) => Some(true),
            Reading::Absent => Some(false),
            Reading::Unreadable(_) => None,
        },
        secure_boot: match secure_boot {
            Reading::Value(is_on) => Some(*is_on),
            // A machine that did not boot with EFI has no Secure Boot.
            Reading::Absent => Some(false),
            Reading::Unreadable(_) => None,
        },
        volumes_encrypted: encrypted
            .filter(|encrypted| !encrypted.is_empty())
            .map(|encrypted| encrypted.iter().all(|encrypted| *encrypted)),
        image_policy: image_policy.map(str::to_owned),
    }
}

/// Maximum frameworks in the inventory.
const FRAMEWORKS_MAX: usize = 16;

/// Frameworks that jobs reported within the last day. Empty if no job reported any.
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

/// The GPUs. `Some(None)` means that they cannot be read. `None` means that they are not known yet.
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
            serial: None,
        });
        return Some(Some(inventory.collect()));
    }
    let is_uncovered = state.coverage_gaps.iter().any(|gap| gap.source.contains("nvml"));
    (is_uncovered || state.up_ms > NVML_WAIT_MS).then_some(None)
}

#[cfg(test)]
mod tests {
    use farrier_facts::node::{DataVolume, ReadError};

    use super::*;

    #[test]
    fn compliance_that_cannot_be_read_is_unknown() {
        let why = || ReadError::Os { errno: 13 };
        let unread = ComplianceObservation {
            tpm_version: Reading::Unreadable(why()),
            volumes: Reading::Unreadable(why()),
            image_policy: Reading::Unreadable(why()),
        };
        let unknown = compliance(&unread, &Reading::Unreadable(why()));
        assert_eq!(unknown, NodeCompliance::default());
        let volume = |encrypted: bool| DataVolume {
            path: "/data".to_owned(),
            encrypted: Reading::Value(encrypted),
        };
        let read = ComplianceObservation {
            tpm_version: Reading::Value(2),
            volumes: Reading::Value(vec![volume(true), volume(false)]),
            image_policy: Reading::Absent,
        };
        let known = compliance(&read, &Reading::Absent);
        assert_eq!((known.tpm, known.secure_boot), (Some(true), Some(false)));
        assert_eq!(known.volumes_encrypted, Some(false), "one volume is in the clear");
        assert_eq!(known.image_policy.as_deref(), Some("none"));
    }

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
