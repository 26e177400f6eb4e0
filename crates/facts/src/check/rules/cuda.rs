//! Does the driver support this CUDA, and does this CUDA support the GPU?

use super::forward::UserSpace;
use super::{advise_branch, architecture_of, at_least, drives, target_of};
use crate::check::findings::Findings;
use crate::check::query::{CudaRequest, Query, Usage};
use crate::check::report::Verdict;
use crate::cuda::{BaseSupport, CudaFamily};
use crate::gpu::CompilerTarget;
use crate::origin::Origin;
use crate::set::FactSet;
use crate::version::{ComputeCapability, CudaVersion, DriverVersion};

pub(crate) fn evaluate(
    set: &FactSet,
    query: &Query<'_>,
    user_space: UserSpace,
    findings: &mut Findings,
) {
    let Some(need) = &query.cuda else { return };
    let need = CudaRequirement::from_toolkit(set, query, need);
    // If nothing built with this CUDA runs on the GPU, do not report that the driver supports this
    // CUDA.
    if supports_gpu(set, query, &need, findings) {
        driver_supports(set, query, user_space, &need, findings);
    }
}

/// The CUDA that the request or a framework requires, with its name for messages.
pub(super) struct CudaRequirement<'a> {
    /// `CUDA 12.8`, or `torch 2.11.0 (CUDA 13.0)`.
    pub(super) subject: String,
    pub(super) family: &'a CudaFamily,
    /// `None` if only the major version was given.
    pub(super) cuda: Option<CudaVersion>,
    /// The driver that the toolkit of this CUDA version includes.
    pub(super) shipped: Option<&'a DriverVersion>,
    pub(super) origin: &'a Origin,
    /// Always `Usage::Run` for a framework.
    pub(super) usage: Usage,
    /// The program contains PTX but no machine code for the GPU.
    pub(super) ptx_only: bool,
}

impl<'a> CudaRequirement<'a> {
    fn from_toolkit(set: &'a FactSet, query: &Query<'a>, need: &CudaRequest<'a>) -> Self {
        let (name, major, toolkit) = match *need {
            CudaRequest::Major(major) => (major.to_string(), major, None),
            CudaRequest::Minor(toolkit) => {
                (toolkit.version.cuda.to_string(), toolkit.version.cuda.major, Some(toolkit))
            }
            CudaRequest::Exact(toolkit) => {
                (toolkit.version.to_string(), toolkit.version.cuda.major, Some(toolkit))
            }
        };
        let family = set.cuda.family(major).expect("a valid set has the family");
        Self {
            subject: format!("CUDA {name}"),
            family,
            cuda: toolkit.map(|toolkit| toolkit.version.cuda),
            shipped: toolkit.and_then(|toolkit| toolkit.driver.as_ref()),
            origin: toolkit.map_or(&family.origin, |toolkit| &toolkit.origin),
            usage: query.usage,
            ptx_only: query.ptx_only,
        }
    }

    /// Requirement of a framework that installs `cuda`.
    pub(super) fn from_framework(
        set: &'a FactSet,
        ptx_only: bool,
        subject: String,
        cuda: CudaVersion,
        origin: &'a Origin,
    ) -> Option<Self> {
        let family = set.cuda.family(cuda.major)?;
        let shipped = set.cuda.first_release(cuda).and_then(|toolkit| toolkit.driver.as_ref());
        Some(Self {
            subject,
            family,
            cuda: Some(cuda),
            shipped,
            origin,
            usage: Usage::Run,
            ptx_only,
        })
    }

    /// Verdict if the driver is too old: only a caveat for compilation, which needs no driver.
    fn blocked(&self) -> Verdict {
        match self.usage {
            Usage::Run => Verdict::Blocked,
            Usage::Compile => Verdict::Caveat,
        }
    }
}

/// Whether and how the user-space driver supports the required CUDA.
enum CudaSupport {
    /// The driver supports a newer major version.
    NewerFamily(CudaVersion),
    /// The driver is too old for the required major version, or outside the data.
    TooOld,
    /// The driver supports the major version, and no minor was requested.
    Family(CudaVersion),
    /// The driver supports the required minor. `update_is_newer` is true if the toolkit ships with
    /// a later release of the driver's branch.
    Native { max_cuda: CudaVersion, update_is_newer: bool },
    /// The driver supports the major version, but only older minors.
    OlderMinor(CudaVersion),
}

fn cuda_support(
    query: &Query<'_>,
    user_space: UserSpace,
    need: &CudaRequirement<'_>,
) -> CudaSupport {
    let driver = &query.driver.version;
    // The driver that ships with a CUDA release runs that release. That driver may be older than
    // the minimum of the major version, because NVIDIA raised the minimum later (450.51.05 ships
    // with CUDA 11.0).
    let shipped_here = need.shipped.is_some_and(|shipped| driver >= shipped);
    let above_floor = user_space.by_package || *driver >= need.family.driver_min || shipped_here;
    let Some(max_cuda) = user_space.cuda else { return CudaSupport::TooOld };
    if max_cuda.major > need.family.major {
        return CudaSupport::NewerFamily(max_cuda);
    }
    if max_cuda.major < need.family.major || !above_floor {
        return CudaSupport::TooOld;
    }
    match need.cuda {
        None => CudaSupport::Family(max_cuda),
        Some(cuda) if max_cuda >= cuda => {
            let same_branch = |shipped: &&DriverVersion| shipped.branch() == driver.branch();
            let update = need.shipped.filter(same_branch).is_some_and(|shipped| driver < shipped);
            CudaSupport::Native { max_cuda, update_is_newer: update && !user_space.by_package }
        }
        Some(_) => CudaSupport::OlderMinor(max_cuda),
    }
}

/// Reports whether the driver runs programs that were built with this CUDA. Returns false if the
/// driver does not run them.
pub(super) fn driver_supports(
    set: &FactSet,
    query: &Query<'_>,
    user_space: UserSpace,
    need: &CudaRequirement<'_>,
    findings: &mut Findings,
) -> bool {
    let subject = &need.subject;
    let family = &need.family.origin;
    let ships = need
        .shipped
        .map(|shipped| format!("; the toolkit of this CUDA version includes driver {shipped}"))
        .unwrap_or_default();
    let via = if user_space.by_package { "the cuda-compat package" } else { "the driver" };
    let (verdict, code, text, origin) = match cuda_support(query, user_space, need) {
        CudaSupport::TooOld => return report_driver_too_old(set, query, need, findings),
        CudaSupport::NewerFamily(max_cuda) => (
            Verdict::Ok,
            "cuda-backward-compatible",
            format!("{via} supports CUDA {max_cuda} and runs programs built with {subject}"),
            family,
        ),
        CudaSupport::Family(max_cuda) => (
            Verdict::Caveat,
            "cuda-minor-missing",
            format!(
                "{subject} was given without its minor: {via} supports up to {max_cuda} natively; later \
                 minors run by minor-version compatibility (not PTX)"
            ),
            family,
        ),
        CudaSupport::Native { update_is_newer: true, .. } => (
            Verdict::Caveat,
            "cuda-update-newer-than-driver",
            format!("{subject} runs on {}, of the same branch{ships}", query.driver.version),
            need.origin,
        ),
        CudaSupport::Native { max_cuda, .. } => (
            Verdict::Ok,
            "cuda-native",
            format!("{via} supports CUDA {max_cuda} and runs {subject}{ships}"),
            need.origin,
        ),
        CudaSupport::OlderMinor(max_cuda) if need.ptx_only => {
            let text = format!(
                "PTX of {subject} cannot be translated: {via} supports CUDA {max_cuda}, and \
                 minor-version compatibility does not cover PTX{ships}"
            );
            findings.reason(need.blocked(), "cuda-ptx-newer-than-driver", text, family);
            advise_newer(set, query, need, findings);
            return false;
        }
        CudaSupport::OlderMinor(max_cuda) => (
            Verdict::Caveat,
            "cuda-minor-version",
            format!(
                "{subject} runs by minor-version compatibility ({} runs CUDA {}.x), except programs \
                 that need PTX translated or newer driver features: {via} supports CUDA \
                 {max_cuda}{ships}",
                at_least(&need.family.driver_min),
                need.family.major
            ),
            family,
        ),
    };
    findings.reason(verdict, code, text, origin);
    true
}

fn report_driver_too_old(
    set: &FactSet,
    query: &Query<'_>,
    need: &CudaRequirement<'_>,
    findings: &mut Findings,
) -> bool {
    let floor = &need.family.driver_min;
    let verb = match need.usage {
        Usage::Run => "needs",
        Usage::Compile => "compiles, but its programs need",
    };
    findings.reason(
        need.blocked(),
        "cuda-driver-too-old",
        format!("{} {verb} {}; {} is older", need.subject, at_least(floor), query.driver.version),
        &need.family.origin,
    );
    advise_newer(set, query, need, findings);
    false
}

fn advise_newer(
    set: &FactSet,
    query: &Query<'_>,
    need: &CudaRequirement<'_>,
    findings: &mut Findings,
) {
    let major = need.family.major;
    let required = need.cuda.unwrap_or(CudaVersion { major, minor: 0 });
    let qualifies = |cuda: CudaVersion| {
        if need.ptx_only { cuda >= required } else { cuda.major >= major }
    };
    advise_branch(set, query, findings, &format!("for {}", need.subject), |branch| {
        qualifies(branch.native_cuda)
    });
    // A cuda-compat package helps if it supports the current branch as its base, and if the branch
    // of the package still supports the GPU.
    let Some(cuda) = need.cuda else { return };
    let facts = &set.cuda.forward_compatibility;
    let branch = query.driver.version.branch();
    let architecture = architecture_of(set, query.gpu);
    let package = facts.package.iter().rev().find(|package| {
        package.cuda >= cuda
            && package.cuda.major == major
            && package.on(branch) == Some(BaseSupport::Works)
    });
    let Some(package) = package else { return };
    let bundled = set.drivers.branch.iter().find(|branch| branch.native_cuda == package.cuda);
    let supports_gpu = architecture
        .last_branch
        .is_none_or(|last| bundled.is_some_and(|branch| branch.branch <= last));
    if query.forward_compat.is_none() && supports_gpu && drives(set, query.gpu, branch) {
        findings.remedy(
            &format!("for {}", need.subject),
            format!("or keep {branch} and add {}, a newer user-space driver", package.name()),
            Some(format!("apt-get install {}", package.name())),
        );
    }
}

/// Reports whether this CUDA supports the GPU. Returns false if no program that was built with this
/// CUDA can run on the GPU.
fn supports_gpu(
    set: &FactSet,
    query: &Query<'_>,
    need: &CudaRequirement<'_>,
    findings: &mut Findings,
) -> bool {
    let origin = &architecture_of(set, query.gpu).origin;
    let target = target_of(set, query.gpu);
    let own = query.gpu.compute_capability;
    let Some(cuda) = need.cuda else {
        return major_supports_gpu(query, need, target, origin, findings);
    };
    let subject = &need.subject;
    let sm = own.sm();
    let gpu = &query.gpu.id;

    if target.last_cuda.is_some_and(|last| cuda > last) {
        report_dropped_target(query, need, target, origin, findings);
        return false;
    }
    if cuda >= target.first_cuda {
        if need.usage == Usage::Compile {
            let text = format!("{subject} compiles for {sm} ({gpu})");
            findings.reason(Verdict::Ok, "compile-target", text, origin);
        }
    } else if let Some(older) = older_target(set, own, cuda) {
        let text = format!(
            "{subject} does not support {sm} (supported since CUDA {}); code for {} runs on {gpu}, \
             without the new features of {sm}",
            target.first_cuda,
            older.sm()
        );
        findings.reason(Verdict::Caveat, "compile-older-target", text, origin);
    } else {
        report_unknown_target(query, need, target, origin, findings);
    }
    true
}

fn report_unknown_target(
    query: &Query<'_>,
    need: &CudaRequirement<'_>,
    target: &CompilerTarget,
    origin: &Origin,
    findings: &mut Findings,
) {
    let (verdict, code, consequence) = match need.usage {
        Usage::Run => (
            Verdict::Caveat,
            "runs-by-ptx-only",
            "only programs that carry PTX run, translated by the driver",
        ),
        Usage::Compile => (Verdict::Blocked, "compile-target-unknown", "it cannot compile for it"),
    };
    let gpu = &query.gpu.id;
    findings.reason(
        verdict,
        code,
        format!(
            "{} does not support {} ({gpu}; supported since CUDA {}): {consequence}",
            need.subject,
            query.gpu.compute_capability.sm(),
            target.first_cuda
        ),
        origin,
    );
    let newer = format!("use CUDA {} or newer", target.first_cuda);
    findings.remedy(&format!("for {gpu}"), newer, None);
}

fn report_dropped_target(
    query: &Query<'_>,
    need: &CudaRequirement<'_>,
    target: &CompilerTarget,
    origin: &Origin,
    findings: &mut Findings,
) {
    let last = target.last_cuda.map(|last| last.to_string()).unwrap_or_default();
    findings.reason(
        Verdict::Blocked,
        "cuda-dropped-architecture",
        format!(
            "{} no longer compiles for {} ({}; last: CUDA {last}), so nothing built with it runs there",
            need.subject,
            query.gpu.compute_capability.sm(),
            query.gpu.id
        ),
        origin,
    );
    findings.remedy(&format!("for {}", query.gpu.id), format!("use CUDA {last} or older"), None);
}

/// Same as [`supports_gpu`] if only the major version is known.
fn major_supports_gpu(
    query: &Query<'_>,
    need: &CudaRequirement<'_>,
    target: &CompilerTarget,
    origin: &Origin,
    findings: &mut Findings,
) -> bool {
    let major = need.family.major;
    if target.last_cuda.is_some_and(|last| major > last.major) {
        report_dropped_target(query, need, target, origin, findings);
        return false;
    }
    if target.first_cuda.major > major {
        report_unknown_target(query, need, target, origin, findings);
    } else if target.first_cuda.major == major && target.first_cuda.minor > 0 {
        findings.reason(
            Verdict::Caveat,
            "cuda-minor-decides-target",
            format!(
                "{} supports {} ({}) only from CUDA {} on",
                need.subject,
                query.gpu.compute_capability.sm(),
                query.gpu.id,
                target.first_cuda
            ),
            origin,
        );
    }
    true
}

/// The newest target of the same generation that this CUDA supports.
fn older_target(
    set: &FactSet,
    own: ComputeCapability,
    cuda: CudaVersion,
) -> Option<ComputeCapability> {
    let targets = set.gpus.architecture.iter().flat_map(|architecture| &architecture.targets);
    targets
        .filter(|target| own.runs_cubin_of(target.compute_capability))
        .filter(|target| cuda >= target.first_cuda)
        .map(|target| target.compute_capability)
        .max()
}
