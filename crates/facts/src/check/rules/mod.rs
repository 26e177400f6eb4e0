//! One file per rule. A rule reads the set and the query and adds its findings; rules are
//! independent.

pub(super) mod architecture;
pub(super) mod cuda;
pub(super) mod driver;
pub(super) mod exposure;
pub(super) mod fabric;
pub(super) mod feature;
pub(super) mod forward;
pub(super) mod framework;
pub(super) mod lifecycle;
pub(super) mod module;

use crate::check::findings::Findings;
use crate::check::query::{Module, Query};
use crate::driver::{BranchFacts, Lifecycle, SupportStatus};
use crate::gpu::{Architecture, CompilerTarget, Gpu, Modules};
use crate::origin::PartialDate;
use crate::set::FactSet;
use crate::version::{Branch, CudaVersion, DriverVersion};

/// The generation of a GPU.
fn architecture_of<'a>(set: &'a FactSet, gpu: &Gpu) -> &'a Architecture {
    let architecture =
        set.gpus.architecture.iter().find(|architecture| architecture.name == gpu.architecture);
    architecture.expect("a valid set has the architecture of every GPU")
}

/// Kernel modules that support a GPU. Only the open modules support a GPU next to a Grace CPU.
pub(crate) fn modules_of(set: &FactSet, gpu: &Gpu) -> Modules {
    if gpu.coherent { Modules::Open } else { architecture_of(set, gpu).modules }
}

/// The newest CUDA that the driver's own user space supports. A driver newer than the data is
/// assumed to support what the newest known branch supports.
fn native_cuda(set: &FactSet, query: &Query<'_>) -> Option<CudaVersion> {
    match query.driver.branch {
        Some(branch) => Some(branch.native_cuda),
        None if query.driver.version.branch() > set.drivers.newest().branch => {
            Some(set.drivers.newest().native_cuda)
        }
        None => None,
    }
}

/// The compiler target of a GPU.
fn target_of<'a>(set: &'a FactSet, gpu: &Gpu) -> &'a CompilerTarget {
    let targets = &architecture_of(set, gpu).targets;
    let target = targets.iter().find(|target| target.compute_capability == gpu.compute_capability);
    target.expect("a valid set has the target of every GPU")
}

/// Whether a branch supports a GPU.
fn drives(set: &FactSet, gpu: &Gpu, branch: Branch) -> bool {
    architecture_of(set, gpu).drives_target(target_of(set, gpu), branch)
}

/// The long-term or production branch to move to. It supports the GPU, is released and supported on
/// `query.on`, and satisfies `qualifies`. Prefers long-term over production branches, then the
/// latest end of support.
fn recommended_branch<'a>(
    set: &'a FactSet,
    query: &Query<'_>,
    qualifies: impl Fn(&BranchFacts) -> bool,
) -> Option<&'a BranchFacts> {
    set.drivers
        .branch
        .iter()
        .filter(|branch| drives(set, query.gpu, branch.branch) && qualifies(branch))
        .filter(|branch| branch.support(query.on) == SupportStatus::Supported)
        .filter(|branch| branch.first_release.last_day() <= query.on)
        .filter(|branch| matches!(branch.lifecycle, Lifecycle::LongTerm | Lifecycle::Production))
        .max_by_key(|branch| {
            (
                branch.lifecycle == Lifecycle::LongTerm,
                branch.end_of_support.map(PartialDate::last_day),
            )
        })
}

/// Adds a remedy to move to another branch, with the command for NVIDIA's Debian and Ubuntu
/// repository.
fn advise_branch(
    set: &FactSet,
    query: &Query<'_>,
    findings: &mut Findings,
    why: &str,
    qualifies: impl Fn(&BranchFacts) -> bool,
) {
    let Some(branch) = recommended_branch(set, query, qualifies) else { return };
    let until = branch.end_of_support.map(|end| format!(", supported until {end}"));
    findings.remedy(
        why,
        format!(
            "move to {} ({}{}), ideally {}",
            branch.branch,
            branch.lifecycle.name(),
            until.unwrap_or_default(),
            branch.latest
        ),
        Some(install_command(set, query, branch.branch)),
    );
}

/// Command that installs a branch from NVIDIA's Debian and Ubuntu repository, with the modules that
/// the GPU supports.
fn install_command(set: &FactSet, query: &Query<'_>, branch: Branch) -> String {
    let proprietary = match modules_of(set, query.gpu) {
        Modules::Open => false,
        Modules::Proprietary => true,
        Modules::Either => query.module == Some(Module::Proprietary),
    };
    let no_open = branch < set.drivers.open_modules.first_branch;
    let package = if proprietary || no_open { "cuda-drivers" } else { "nvidia-open" };
    let number = branch.0;
    if branch >= set.drivers.packages.unversioned_from_branch {
        format!("apt-get install nvidia-driver-pinning-{number} {package}")
    } else {
        format!("apt-get install {package}-{number}")
    }
}

/// Text of a lower bound.
fn at_least(floor: &DriverVersion) -> String {
    format!("driver {floor} or newer")
}
