//! Does a build carry code for the GPU?

use super::Subject;
use crate::check::context::Findings;
use crate::check::query::Query;
use crate::check::report::Verdict;
use crate::check::rules::forward::UserSpace;
use crate::check::rules::target_of;
use crate::framework::{Carried, Coverage};
use crate::set::FactSet;
use crate::version::CudaVersion;

/// How the code in a build meets the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meets {
    /// Machine code that runs on it.
    MachineCode,
    /// The maker supports it, and the build's CUDA knows it.
    Support,
    /// The maker supports it, and the GPU is newer than the build's CUDA.
    SupportOfOlder,
    /// PTX that this driver can translate for it.
    Ptx,
    /// PTX that this driver cannot translate.
    PtxTooNew,
    /// The build's CUDA has dropped its generation.
    Dropped,
    /// Nothing.
    Nothing,
}

pub(super) fn meets(
    set: &FactSet,
    query: &Query<'_>,
    user_space: UserSpace,
    coverage: &Coverage,
    cuda: CudaVersion,
) -> Meets {
    let own = query.gpu.compute_capability;
    let target = target_of(set, query.gpu);
    if target.last_cuda.is_some_and(|last| cuda > last) {
        return Meets::Dropped;
    }
    if let Some(minimum) = coverage.minimum {
        return match own >= minimum {
            true if target.first_cuda > cuda => Meets::SupportOfOlder,
            true => Meets::Support,
            false => Meets::Nothing,
        };
    }
    if coverage.machine_code.iter().any(|target| own.runs_cubin_of(*target)) {
        return Meets::MachineCode;
    }
    if !coverage.ptx.iter().any(|target| *target <= own) {
        return Meets::Nothing;
    }
    match user_space.cuda {
        Some(speaks) if speaks >= coverage.cuda => Meets::Ptx,
        _ => Meets::PtxTooNew,
    }
}

/// Says how the code in a build meets the GPU; false where it does not.
pub(super) fn judge(
    set: &FactSet,
    query: &Query<'_>,
    user_space: UserSpace,
    subject: &Subject<'_>,
    findings: &mut Findings,
) -> bool {
    let name = &subject.name;
    let carried = subject.cuda.and_then(|cuda| {
        Some((cuda, set.frameworks.coverage(subject.package, subject.version, cuda)?))
    });
    let Some((cuda, Carried { coverage, assumed })) = carried else {
        let text = format!("which GPUs {name} carries code for is not in the data");
        findings.reason(Verdict::Unknown, "framework-architectures-unknown", text, subject.origin);
        return true;
    };
    let list = coverage.list();
    let sm = query.gpu.compute_capability.sm();
    let gpu = &query.gpu.id;
    let meets = meets(set, query, user_space, coverage, cuda);
    let (verdict, code, text) = match meets {
        Meets::MachineCode => (
            Verdict::Ok,
            "framework-covers-gpu",
            format!("{name} carries code for {list}, which runs on {sm} ({gpu})"),
        ),
        Meets::Support => (
            Verdict::Ok,
            "framework-covers-gpu",
            format!("{name} is made for {list}; {gpu} is {sm}"),
        ),
        Meets::SupportOfOlder => (
            Verdict::Caveat,
            "framework-older-than-gpu",
            format!(
                "{name} is made for {list}, but with CUDA {cuda}, which does not know {sm} ({gpu})"
            ),
        ),
        Meets::Ptx => (
            Verdict::Caveat,
            "framework-by-ptx",
            format!(
                "{name} carries code for {list}; on {sm} ({gpu}) its PTX is translated at the first start"
            ),
        ),
        Meets::PtxTooNew => (
            Verdict::Blocked,
            "framework-ptx-newer-than-driver",
            format!(
                "{name} has only PTX of CUDA {} for {sm} ({gpu}), which this driver cannot translate",
                coverage.cuda
            ),
        ),
        Meets::Dropped => (
            Verdict::Blocked,
            "framework-lacks-gpu",
            format!("{name} is built with CUDA {cuda}, which no longer compiles for {sm} ({gpu})"),
        ),
        Meets::Nothing => (
            Verdict::Blocked,
            "framework-lacks-gpu",
            format!("{name} is made for {list}; nothing of it runs on {sm} ({gpu})"),
        ),
    };
    // That a compiler has dropped the GPU is known for certain; a list of an earlier version is not.
    if assumed && meets != Meets::Dropped {
        let verdict = if verdict == Verdict::Blocked { Verdict::Unknown } else { Verdict::Caveat };
        let text = format!("no source lists the code of {name}; as of an earlier version: {text}");
        findings.reason(verdict, "framework-architectures-assumed", text, &coverage.origin);
    } else {
        findings.reason(verdict, code, text, &coverage.origin);
    }
    verdict != Verdict::Blocked
}
