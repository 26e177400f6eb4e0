//! `cuda-compat`: the user-space driver of a newer branch on an older kernel driver.

use super::{architecture_of, native_cuda};
use crate::check::findings::Findings;
use crate::check::query::Query;
use crate::check::report::Verdict;
use crate::cuda::{BaseSupport, CompatPackage, ForwardCompatibility};
use crate::driver::Lifecycle;
use crate::gpu::ProductLine;
use crate::origin::Origin;
use crate::set::FactSet;
use crate::version::CudaVersion;

/// The user-space driver that CUDA programs load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UserSpace {
    /// The newest supported CUDA; `None` if the driver is outside the data.
    pub(crate) cuda: Option<CudaVersion>,
    /// Provided by a working `cuda-compat` package.
    pub(crate) by_package: bool,
}

pub(crate) fn evaluate(set: &FactSet, query: &Query<'_>, findings: &mut Findings) -> UserSpace {
    let native = UserSpace { cuda: native_cuda(set, query), by_package: false };
    let Some(cuda) = query.forward_compat else { return native };
    let facts = &set.cuda.forward_compatibility;
    let origin = &facts.origin;
    let branch = query.driver.version.branch();
    let Some(package) = facts.package(cuda) else {
        report_unlisted(query, native, cuda, origin, findings);
        return native;
    };
    let name = package.name();

    // The package bundles the user-space driver of the first branch that supports its CUDA
    // natively. That branch must still support the GPU.
    let bundled = set.drivers.branch.iter().find(|branch| branch.native_cuda == cuda);
    let architecture = architecture_of(set, query.gpu);
    if let (Some(bundled), Some(last)) = (bundled, architecture.last_branch)
        && bundled.branch > last
    {
        findings.reason(
            Verdict::Blocked,
            "forward-compat-architecture",
            format!(
                "{name} bundles the user-space driver of {}, which no longer supports {} (last: \
                 {last})",
                bundled.branch, architecture.name
            ),
            &architecture.origin,
        );
        return native;
    }

    match package.on(branch) {
        Some(BaseSupport::Works) if query.gpu.product_line == ProductLine::GeForce => {
            report_refused_gpu(query, package, origin, findings);
            native
        }
        Some(BaseSupport::Works) => {
            report_works(query, facts, package, findings);
            UserSpace { cuda: Some(cuda), by_package: true }
        }
        Some(BaseSupport::NotNeeded) => {
            findings.reason(
                Verdict::Caveat,
                "forward-compat-not-needed",
                format!(
                    "{name} belongs to the same branch as the driver ({branch}) and adds nothing"
                ),
                origin,
            );
            native
        }
        Some(BaseSupport::Refused) => {
            findings.reason(
                Verdict::Blocked,
                "forward-compat-older",
                format!(
                    "{name} is older than {branch}: loading it fails with \
                     CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)"
                ),
                origin,
            );
            findings.remedy(
                "for CUDA to load",
                format!("remove {name} from the library path; {branch} is newer"),
                Some(format!("apt-get remove {name}")),
            );
            native
        }
        None => {
            let works = package.base.iter().filter(|(_, on)| **on == BaseSupport::Works);
            let bases: Vec<String> = works.map(|(base, _)| base.to_uppercase()).collect();
            findings.reason(
                Verdict::Blocked,
                "forward-compat-base",
                format!(
                    "{branch} is not a supported base of {name}; supported: {}",
                    bases.join(", ")
                ),
                origin,
            );
            native
        }
    }
}

/// Reports that the package refuses a GPU of this product line.
fn report_refused_gpu(
    query: &Query<'_>,
    package: &CompatPackage,
    origin: &Origin,
    findings: &mut Findings,
) {
    let name = package.name();
    findings.reason(
        Verdict::Blocked,
        "forward-compat-gpu",
        format!(
            "{name} supports data-center GPUs and selected RTX cards, not {}: loading it fails \
             with CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE (804)",
            query.gpu.id
        ),
        origin,
    );
    findings.remedy(
        "for CUDA to load",
        format!(
            "remove {name} from the library path, and install a driver with CUDA {}",
            package.cuda
        ),
        Some(format!("apt-get remove {name}")),
    );
}

/// Reports a package that NVIDIA's table does not list: the current table omits old packages.
fn report_unlisted(
    query: &Query<'_>,
    native: UserSpace,
    cuda: CudaVersion,
    origin: &Origin,
    findings: &mut Findings,
) {
    let (verdict, text) = if native.cuda.is_some_and(|supported| supported >= cuda) {
        let branch = query.driver.version.branch();
        (Verdict::Blocked, format!("a cuda-compat package of CUDA {cuda} is older than {branch}"))
    } else {
        (Verdict::Unknown, format!("NVIDIA's table has no cuda-compat package of CUDA {cuda}"))
    };
    findings.reason(verdict, "forward-compat-unlisted", text, origin);
}

/// Reports that the package works. Some base branches and SKUs come with a condition.
fn report_works(
    query: &Query<'_>,
    facts: &ForwardCompatibility,
    package: &CompatPackage,
    findings: &mut Findings,
) {
    let new_feature =
        query.driver.branch.map(|branch| branch.lifecycle) == Some(Lifecycle::NewFeature);
    let conditional = query.gpu.product_line == ProductLine::Workstation
        || facts.conditional_gpus.contains(&query.gpu.id);
    let (verdict, condition) = if new_feature {
        (Verdict::Caveat, "; a new feature branch is not a recommended base")
    } else if conditional {
        (Verdict::Caveat, "; only selected RTX SKUs are supported")
    } else {
        (Verdict::Ok, "")
    };
    let CudaVersion { major, minor } = package.cuda;
    let folder = facts
        .library_dir
        .replace("<major>", &major.to_string())
        .replace("<minor>", &minor.to_string());
    let text = format!(
        "{} works on {}: put {folder} first on the library path{condition}",
        package.name(),
        query.driver.version.branch()
    );
    findings.reason(verdict, "forward-compat-works", text, &facts.origin);
}
