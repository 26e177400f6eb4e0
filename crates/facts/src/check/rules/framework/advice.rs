//! Suggests another build of a framework that works.

use std::cmp::Reverse;

use super::coverage::{GpuCoverage, gpu_coverage};
use super::newest_allowed;
use crate::check::findings::Findings;
use crate::check::query::{FrameworkRequest, Query, tag_cuda};
use crate::check::rules::forward::UserSpace;
use crate::check::rules::native_cuda;
use crate::framework::{Build, FrameworkPackage};
use crate::set::FactSet;
use crate::version::CudaVersion;

/// Name of the build on the Python index (PyPI).
const INDEX: &str = "index";

/// Suggests a working build: another build of this version, else the newest earlier version.
pub(super) fn suggest_other_build(
    set: &FactSet,
    query: &Query<'_>,
    need: &FrameworkRequest<'_>,
    findings: &mut Findings,
) {
    let package = need.package;
    let builds = || set.frameworks.builds(&package.name);
    // Newest first. The search stops at the first match, because testing a build is expensive.
    let mut same: Vec<&Build> = builds().filter(|build| build.version == need.version).collect();
    same.sort_by_key(|build| Reverse(build.cuda));
    if let Some(build) = same.into_iter().find(|build| works(set, query, build)) {
        advise(package, build, findings);
        // A build with a CUDA tag comes from another index, which not everyone can use. So also
        // suggest an earlier version.
        if tag_cuda(&build.build).is_none() {
            return;
        }
    }
    let plain = |build: &&Build| build.build == package.default_build;
    let mut earlier: Vec<&Build> =
        builds().filter(plain).filter(|build| build.version < need.version).collect();
    earlier.sort_by(|left, right| right.version.cmp(&left.version));
    if let Some(build) = earlier.into_iter().find(|build| works(set, query, build)) {
        advise(package, build, findings);
    }
}

fn advise(package: &FrameworkPackage, build: &Build, findings: &mut Findings) {
    let cuda = build.cuda.map(|cuda| format!(" (CUDA {cuda})")).unwrap_or_default();
    let name = &package.name;
    let version = &build.version;
    let tag = &build.build;
    let (text, command) = if tag == INDEX {
        (format!("install {name} {version}{cuda}"), format!("pip install {name}=={version}"))
    } else if tag_cuda(tag).is_some() {
        (
            format!("install the {tag} build of {name} {version}{cuda}"),
            format!(
                "pip install {name}=={version} --index-url https://download.pytorch.org/whl/{tag}"
            ),
        )
    } else {
        (
            format!("install {name}[{tag}] {version}{cuda}"),
            format!("pip install '{name}[{tag}]=={version}'"),
        )
    };
    findings.remedy("for this GPU and driver", text, Some(command));
}

/// Whether a build and its torch dependency work with this GPU and driver.
fn works(set: &FactSet, query: &Query<'_>, build: &Build) -> bool {
    let torch = match set.frameworks.torch_dependency(build) {
        Some(Ok(torch)) => Some(torch),
        Some(Err(_)) => return false,
        None => None,
    };
    let native = UserSpace { cuda: native_cuda(set, query), by_package: false };
    let Some(cuda) = torch.map_or(build.cuda, |torch| torch.cuda) else { return false };
    let newest = newest_allowed(set, Some(build), cuda);
    let Some(family) = set.cuda.family(newest.major) else { return false };
    let is_sufficient = |supported: CudaVersion| {
        if query.ptx_only { supported >= newest } else { supported.major >= newest.major }
    };
    let driver_ok =
        native.cuda.is_some_and(is_sufficient) && query.driver.version >= family.driver_min;
    let runs = |build: &Build| {
        let found = set.frameworks.coverage(&build.package, &build.version, cuda);
        found.is_some_and(|found| {
            let coverage_kind = gpu_coverage(set, query, native, found.coverage, cuda);
            matches!(
                coverage_kind,
                GpuCoverage::MachineCode | GpuCoverage::Support | GpuCoverage::Ptx
            )
        })
    };
    driver_ok && runs(build) && torch.is_none_or(runs)
}
