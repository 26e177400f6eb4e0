//! Does a build contain code for the GPU?

use super::CheckedBuild;
use crate::check::findings::Findings;
use crate::check::query::Query;
use crate::check::report::Verdict;
use crate::check::rules::forward::UserSpace;
use crate::check::rules::target_of;
use crate::framework::{CoverageMatch, TargetCoverage};
use crate::set::FactSet;
use crate::version::CudaVersion;

/// How a build supports the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GpuCoverage {
    /// Contains machine code that runs on the GPU.
    MachineCode,
    /// Supported by the vendor and by the build's CUDA.
    Support,
    /// Supported by the vendor, but the GPU is newer than the build's CUDA.
    SupportOfOlder,
    /// PTX that this driver can JIT-compile.
    Ptx,
    /// PTX that this driver cannot JIT-compile.
    PtxTooNew,
    /// The build's CUDA dropped the GPU's generation.
    Dropped,
    Nothing,
}

pub(super) fn gpu_coverage(
    set: &FactSet,
    query: &Query<'_>,
    user_space: UserSpace,
    coverage: &TargetCoverage,
    cuda: CudaVersion,
) -> GpuCoverage {
    let own = query.gpu.compute_capability;
    let target = target_of(set, query.gpu);
    if target.last_cuda.is_some_and(|last| cuda > last) {
        return GpuCoverage::Dropped;
    }
    if let Some(minimum) = coverage.minimum {
        return match own >= minimum {
            true if target.first_cuda > cuda => GpuCoverage::SupportOfOlder,
            true => GpuCoverage::Support,
            false => GpuCoverage::Nothing,
        };
    }
    if coverage.machine_code.iter().any(|target| own.runs_cubin_of(*target)) {
        return GpuCoverage::MachineCode;
    }
    if !coverage.ptx.iter().any(|target| *target <= own) {
        return GpuCoverage::Nothing;
    }
    match user_space.cuda {
        Some(supported) if supported >= coverage.cuda => GpuCoverage::Ptx,
        _ => GpuCoverage::PtxTooNew,
    }
}

/// Reports how a build supports the GPU. Returns false if the build does not support the GPU.
pub(super) fn evaluate(
    set: &FactSet,
    query: &Query<'_>,
    user_space: UserSpace,
    subject: &CheckedBuild<'_>,
    findings: &mut Findings,
) -> bool {
    let name = &subject.name;
    let found = subject.cuda.and_then(|cuda| {
        Some((cuda, set.frameworks.coverage(subject.package, subject.version, cuda)?))
    });
    let Some((cuda, CoverageMatch { coverage, assumed })) = found else {
        let text = format!("the data does not say for which GPUs {name} contains code");
        findings.reason(Verdict::Unknown, "framework-architectures-unknown", text, subject.origin);
        return true;
    };
    let list = coverage.list();
    let sm = query.gpu.compute_capability.sm();
    let gpu = &query.gpu.id;
    let coverage_kind = gpu_coverage(set, query, user_space, coverage, cuda);
    let (verdict, code, text) = match coverage_kind {
        GpuCoverage::MachineCode => (
            Verdict::Ok,
            "framework-covers-gpu",
            format!("{name} contains code for {list}, which runs on {sm} ({gpu})"),
        ),
        GpuCoverage::Support => {
            (Verdict::Ok, "framework-covers-gpu", format!("{name} supports {list}; {gpu} is {sm}"))
        }
        GpuCoverage::SupportOfOlder => (
            Verdict::Caveat,
            "framework-older-than-gpu",
            format!(
                "{name} supports {list}, but with CUDA {cuda}, which does not support {sm} ({gpu})"
            ),
        ),
        GpuCoverage::Ptx => (
            Verdict::Caveat,
            "framework-by-ptx",
            format!(
                "{name} contains code for {list}; on {sm} ({gpu}) its PTX is translated at the \
                 first start"
            ),
        ),
        GpuCoverage::PtxTooNew => (
            Verdict::Blocked,
            "framework-ptx-newer-than-driver",
            format!(
                "{name} has only PTX of CUDA {} for {sm} ({gpu}), which this driver cannot translate",
                coverage.cuda
            ),
        ),
        GpuCoverage::Dropped => (
            Verdict::Blocked,
            "framework-lacks-gpu",
            format!("{name} is built with CUDA {cuda}, which no longer compiles for {sm} ({gpu})"),
        ),
        GpuCoverage::Nothing => (
            Verdict::Blocked,
            "framework-lacks-gpu",
            format!("{name} supports {list}; none of its code runs on {sm} ({gpu})"),
        ),
    };
    // A dropped generation is certain; coverage assumed from an earlier version is not.
    if assumed && coverage_kind != GpuCoverage::Dropped {
        let verdict = if verdict == Verdict::Blocked { Verdict::Unknown } else { Verdict::Caveat };
        let text = format!(
            "no source lists the GPU code of {name}; assumed from an earlier version: {text}"
        );
        findings.reason(verdict, "framework-architectures-assumed", text, &coverage.origin);
    } else {
        findings.reason(verdict, code, text, &coverage.origin);
    }
    verdict != Verdict::Blocked
}
