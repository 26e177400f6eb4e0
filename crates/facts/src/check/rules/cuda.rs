//! Does the driver carry this CUDA, and does this CUDA know the GPU?

use super::forward::UserSpace;
use super::{advise_branch, architecture_of, at_least};
use crate::check::context::Findings;
use crate::check::query::{CudaNeed, Query, Usage};
use crate::check::report::Verdict;
use crate::cuda::{Family, OnBase};
use crate::gpu::Target;
use crate::origin::Origin;
use crate::set::FactSet;
use crate::version::{ComputeCapability, CudaVersion, DriverVersion};

pub(crate) fn judge(
    set: &FactSet,
    query: &Query<'_>,
    user_space: UserSpace,
    findings: &mut Findings,
) {
    let Some(need) = &query.cuda else { return };
    let need = Need::of_toolkit(set, need);
    driver_carries(set, query, user_space, &need, findings);
    knows_gpu(set, query, &need, findings);
}

/// What must be carried, and by which name to speak of it.
pub(super) struct Need<'a> {
    /// `CUDA 12.8`, or `torch 2.11.0 (CUDA 13.0)`.
    pub(super) subject: String,
    /// The major version and what is known of it.
    pub(super) family: &'a Family,
    /// Absent where only the major version was given.
    pub(super) cuda: Option<CudaVersion>,
    /// The driver that ships with it.
    pub(super) shipped: Option<&'a DriverVersion>,
    /// Who says so.
    pub(super) origin: &'a Origin,
    /// Nothing but the GPU's own compiler output counts: the program carries PTX only.
    pub(super) ptx_only: bool,
}

impl<'a> Need<'a> {
    fn of_toolkit(set: &'a FactSet, need: &CudaNeed<'a>) -> Self {
        let family = |major| set.cuda.family(major).expect("a valid set has the family");
        match *need {
            CudaNeed::Major(major) => Self {
                subject: format!("CUDA {major}"),
                family: family(major),
                cuda: None,
                shipped: None,
                origin: &family(major).origin,
                ptx_only: false,
            },
            CudaNeed::Minor(toolkit) | CudaNeed::Exact(toolkit) => {
                let exact = matches!(need, CudaNeed::Exact(_));
                let cuda = toolkit.version.cuda;
                let name = if exact { toolkit.version.to_string() } else { cuda.to_string() };
                Self {
                    subject: format!("CUDA {name}"),
                    family: family(cuda.major),
                    cuda: Some(cuda),
                    shipped: toolkit.driver.as_ref(),
                    origin: &toolkit.origin,
                    ptx_only: false,
                }
            }
        }
    }

    /// The same for a framework that brings `cuda` along.
    pub(super) fn of_framework(
        set: &'a FactSet,
        subject: String,
        cuda: CudaVersion,
        origin: &'a Origin,
    ) -> Option<Self> {
        let family = set.cuda.family(cuda.major)?;
        let shipped = set.cuda.first_release(cuda).and_then(|toolkit| toolkit.driver.as_ref());
        Some(Self { subject, family, cuda: Some(cuda), shipped, origin, ptx_only: false })
    }
}

/// Whether the driver runs what was built with this CUDA. Returns false where it does not.
pub(super) fn driver_carries(
    set: &FactSet,
    query: &Query<'_>,
    user_space: UserSpace,
    need: &Need<'_>,
    findings: &mut Findings,
) -> bool {
    let driver = &query.driver.version;
    let subject = &need.subject;
    let ptx_only = query.ptx_only || need.ptx_only;
    let floor = &need.family.driver_min;
    let speaks = user_space.cuda;
    let same_family = speaks.filter(|speaks| speaks.major == need.family.major);
    let newer_family = speaks.filter(|speaks| speaks.major > need.family.major);
    let ships =
        need.shipped.map(|shipped| format!("; {shipped} ships with it")).unwrap_or_default();
    let via = if user_space.by_package { "the cuda-compat package" } else { "the driver" };
    // The driver that ships with a release runs it, also where the family's floor came later
    // (450.51.05 and CUDA 11.0).
    let shipped_here = need.shipped.is_some_and(|shipped| driver >= shipped);
    let too_old = !user_space.by_package && driver < floor && !shipped_here;

    if let Some(speaks) = newer_family {
        findings.reason(
            Verdict::Ok,
            "cuda-backward-compatible",
            format!("{subject} runs: {via} speaks CUDA {speaks} and runs what older ones built"),
            &need.family.origin,
        );
        return true;
    }
    if too_old || same_family.is_none() {
        return refuse(set, query, need, findings);
    }
    let Some((speaks, cuda)) = same_family.zip(need.cuda) else {
        // Only the major version is known.
        let speaks = same_family.map(|it| it.to_string()).unwrap_or_default();
        findings.reason(
            Verdict::Caveat,
            "cuda-minor-missing",
            format!(
                "{subject} was given without its minor: up to {speaks} {via} runs it as it is, later \
                 minors by minor-version compatibility (not PTX)"
            ),
            &need.family.origin,
        );
        return true;
    };
    if speaks >= cuda {
        let update_is_newer = !user_space.by_package
            && need.shipped.is_some_and(|it| it.branch() == driver.branch() && driver < it);
        if update_is_newer {
            findings.reason(
                Verdict::Caveat,
                "cuda-update-newer-than-driver",
                format!("{subject} runs on {driver}, of the same branch{ships}"),
                need.origin,
            );
        } else {
            findings.reason(
                Verdict::Ok,
                "cuda-native",
                format!("{subject} runs: {via} speaks CUDA {speaks}{ships}"),
                need.origin,
            );
        }
        return true;
    }
    if ptx_only {
        findings.reason(
            capped(query, Verdict::Blocked),
            "cuda-ptx-newer-than-driver",
            format!(
                "PTX of {subject} cannot be translated: {via} speaks CUDA {speaks}, and \
                 minor-version compatibility does not cover PTX{ships}"
            ),
            &need.family.origin,
        );
        advise_newer(set, query, need, findings);
        return false;
    }
    findings.reason(
        Verdict::Caveat,
        "cuda-minor-version",
        format!(
            "{subject} runs by minor-version compatibility ({} runs CUDA {}.x), except programs that \
             need PTX translated or newer driver features: {via} speaks CUDA {speaks}{ships}",
            at_least(floor),
            need.family.major
        ),
        &need.family.origin,
    );
    true
}

/// In a question of compiling, a driver that cannot run the result is a condition, not an end.
fn capped(query: &Query<'_>, verdict: Verdict) -> Verdict {
    match query.usage {
        Usage::Run => verdict,
        Usage::Compile => verdict.min(Verdict::Caveat),
    }
}

fn refuse(set: &FactSet, query: &Query<'_>, need: &Need<'_>, findings: &mut Findings) -> bool {
    let floor = &need.family.driver_min;
    let verb = match query.usage {
        Usage::Run => "needs",
        Usage::Compile => "builds, and what it builds needs",
    };
    findings.reason(
        capped(query, Verdict::Blocked),
        "cuda-driver-too-old",
        format!("{} {verb} {}; {} is older", need.subject, at_least(floor), query.driver.version),
        &need.family.origin,
    );
    advise_newer(set, query, need, findings);
    false
}

fn advise_newer(set: &FactSet, query: &Query<'_>, need: &Need<'_>, findings: &mut Findings) {
    let major = need.family.major;
    let wanted = need.cuda.unwrap_or(CudaVersion { major, minor: 0 });
    let enough = |cuda: CudaVersion| {
        if query.ptx_only || need.ptx_only { cuda >= wanted } else { cuda.major >= major }
    };
    advise_branch(set, query, findings, &format!("for {}", need.subject), |branch| {
        enough(branch.native_cuda)
    });
    // A package can help where its base is supported and the GPU stays known.
    let Some(cuda) = need.cuda else { return };
    let facts = &set.cuda.forward_compatibility;
    let branch = query.driver.version.branch();
    let architecture = architecture_of(set, query.gpu);
    let package = facts.package.iter().rev().find(|package| {
        package.cuda >= cuda
            && package.cuda.major == major
            && package.on(branch) == Some(OnBase::Works)
    });
    let Some(package) = package else { return };
    let carried = set.drivers.branch.iter().find(|it| it.native_cuda == package.cuda);
    let known =
        architecture.last_branch.is_none_or(|last| carried.is_some_and(|it| it.branch <= last));
    if query.forward_compat.is_none() && known {
        findings.remedy(
            &format!("for {}", need.subject),
            format!("or keep {branch} and add {}, a newer user-space driver", package.name()),
            Some(format!("apt-get install {}", package.name())),
        );
    }
}

/// Whether this CUDA has machine code for the GPU, or can make it.
fn knows_gpu(set: &FactSet, query: &Query<'_>, need: &Need<'_>, findings: &mut Findings) {
    let architecture = architecture_of(set, query.gpu);
    let own = query.gpu.compute_capability;
    let target = architecture
        .targets
        .iter()
        .find(|target| target.compute_capability == own)
        .expect("a valid set has the target of every GPU");
    let Some(cuda) = need.cuda else {
        major_knows_gpu(query, need, target, &architecture.origin, findings);
        return;
    };
    let subject = &need.subject;
    let origin = &architecture.origin;
    let sm = own.sm();
    let gpu = &query.gpu.id;

    if target.last_cuda.is_some_and(|last| cuda > last) {
        dropped(query, need, target, origin, findings);
    } else if cuda >= target.first_cuda {
        if query.usage == Usage::Compile {
            let text = format!("{subject} compiles for {sm} ({gpu})");
            findings.reason(Verdict::Ok, "compile-target", text, origin);
        }
    } else if let Some(older) = older_target(set, own, cuda) {
        let older = older.sm();
        findings.reason(
            Verdict::Caveat,
            "compile-older-target",
            format!(
                "{subject} does not know {sm} (since CUDA {}); code for {older} runs on {gpu}, without \
                 what is new in {sm}",
                target.first_cuda
            ),
            origin,
        );
    } else {
        too_new(query, need, target, origin, findings);
    }
}

fn too_new(
    query: &Query<'_>,
    need: &Need<'_>,
    target: &Target,
    origin: &Origin,
    findings: &mut Findings,
) {
    let (verdict, code, consequence) = match query.usage {
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
            "{} does not know {} ({gpu}; since CUDA {}): {consequence}",
            need.subject,
            query.gpu.compute_capability.sm(),
            target.first_cuda
        ),
        origin,
    );
    let newer = format!("use CUDA {} or newer", target.first_cuda);
    findings.remedy(&format!("for {gpu}"), newer, None);
}

fn dropped(
    query: &Query<'_>,
    need: &Need<'_>,
    target: &Target,
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

/// What can be said of a major version as a whole.
fn major_knows_gpu(
    query: &Query<'_>,
    need: &Need<'_>,
    target: &Target,
    origin: &Origin,
    findings: &mut Findings,
) {
    let major = need.family.major;
    if target.last_cuda.is_some_and(|last| major > last.major) {
        dropped(query, need, target, origin, findings);
    } else if target.first_cuda.major > major {
        too_new(query, need, target, origin, findings);
    } else if target.first_cuda.major == major && target.first_cuda.minor > 0 {
        findings.reason(
            Verdict::Caveat,
            "cuda-minor-missing",
            format!(
                "{} knows {} ({}) only from CUDA {} on",
                need.subject,
                query.gpu.compute_capability.sm(),
                query.gpu.id,
                target.first_cuda
            ),
            origin,
        );
    }
}

/// The best target of the same generation that this CUDA does know.
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
