//! Does the driver support the CUDA of a published build, and does the build contain code for the
//! GPU?

mod advice;
mod coverage;

use super::cuda::{CudaRequirement, driver_supports};
use super::forward::UserSpace;
use crate::check::findings::Findings;
use crate::check::query::{BuildChoice, FrameworkRequest, Query, tag_cuda};
use crate::check::report::Verdict;
use crate::framework::Build;
use crate::origin::Origin;
use crate::set::FactSet;
use crate::version::CudaVersion;

pub(crate) fn evaluate(
    set: &FactSet,
    query: &Query<'_>,
    user_space: UserSpace,
    findings: &mut Findings,
) {
    let Some(need) = &query.framework else { return };
    if let BuildChoice::WithoutCuda(tag) = &need.build_choice {
        let subject = format!("{} {}", need.package.name, need.version);
        findings.reason(
            Verdict::Blocked,
            "framework-without-cuda",
            format!("{subject}+{tag} is built without CUDA and cannot use the GPU"),
            &need.package.origin,
        );
        findings.remedy("for the GPU", format!("install a CUDA build of {subject}"), None);
        return;
    }
    assumptions(need, findings);
    let name = display_name(need);
    let works = match need.build.and_then(|build| set.frameworks.torch_dependency(build)) {
        Some(Ok(torch)) => on_torch(set, query, user_space, need, torch, findings),
        Some(Err(version)) => {
            findings.reason(
                Verdict::Unknown,
                "framework-torch-unknown",
                format!("{name} needs torch {version}, which is not in the data"),
                &need.package.origin,
            );
            true
        }
        None => evaluate_build(set, query, user_space, &CheckedBuild::from_request(need), findings),
    };
    if !works {
        advice::suggest_other_build(set, query, need, findings);
    }
}

/// Reports assumptions about unspecified parts of the request.
fn assumptions(need: &FrameworkRequest<'_>, findings: &mut Findings) {
    let origin = &need.package.origin;
    if need.build_choice == BuildChoice::Plain
        && let Some(note) = &need.package.plain_install_note
    {
        findings.reason(Verdict::Ok, "framework-extra-assumed", note.clone(), origin);
    }
    if let Some(requested) = &need.version_assumed_from {
        let text = format!("{} {requested} is assumed to be {}", need.package.name, need.version);
        findings.reason(Verdict::Caveat, "framework-version-assumed", text, origin);
    }
    if need.build.is_none() {
        let text = format!(
            "the data has no record of {}; its CUDA is read from its tag",
            display_name(need)
        );
        findings.reason(Verdict::Caveat, "framework-build-unlisted", text, origin);
    }
}

/// A framework that is built on torch has GPU code of its own, so both that code and torch must
/// work.
fn on_torch(
    set: &FactSet,
    query: &Query<'_>,
    user_space: UserSpace,
    need: &FrameworkRequest<'_>,
    torch: &Build,
    findings: &mut Findings,
) -> bool {
    let name = display_name(need);
    let origin = need.build.map_or(&need.package.origin, |build| &build.origin);
    let text = format!("{name} needs torch {} and is judged by it", torch.version);
    findings.reason(Verdict::Ok, "framework-on-torch", text, origin);
    let own = coverage::evaluate(
        set,
        query,
        user_space,
        &CheckedBuild {
            name,
            package: &need.package.name,
            version: &need.version,
            cuda: torch.cuda,
            build: None,
            origin,
        },
        findings,
    );
    let subject = CheckedBuild {
        name: format!("torch {}", torch.version),
        package: "torch",
        version: &torch.version,
        cuda: torch.cuda,
        build: Some(torch),
        origin: &torch.origin,
    };
    evaluate_build(set, query, user_space, &subject, findings) && own
}

/// A build under evaluation.
pub(super) struct CheckedBuild<'a> {
    name: String,
    package: &'a str,
    version: &'a crate::version::PackageVersion,
    /// The lowest CUDA that the build installs.
    cuda: Option<CudaVersion>,
    build: Option<&'a Build>,
    /// Origin of the build, or of its package if the data has no record of the build.
    origin: &'a Origin,
}

impl<'a> CheckedBuild<'a> {
    fn from_request(need: &'a FrameworkRequest<'a>) -> Self {
        let tagged = match &need.build_choice {
            BuildChoice::Named(tag) => tag_cuda(tag),
            _ => None,
        };
        Self {
            name: display_name(need),
            package: &need.package.name,
            version: &need.version,
            cuda: need.build.and_then(|build| build.cuda).or(tagged),
            build: need.build,
            origin: need.build.map_or(&need.package.origin, |build| &build.origin),
        }
    }
}

/// Reports whether the build works.
fn evaluate_build(
    set: &FactSet,
    query: &Query<'_>,
    user_space: UserSpace,
    subject: &CheckedBuild<'_>,
    findings: &mut Findings,
) -> bool {
    let name = &subject.name;
    let origin = subject.origin;
    let need = subject.cuda.and_then(|cuda| {
        // The installer picks the newest CUDA that the package allows.
        let newest = newest_allowed(set, subject.build, cuda);
        let range = if newest > cuda { format!("{cuda} to {newest}") } else { cuda.to_string() };
        CudaRequirement::from_framework(
            set,
            query.ptx_only,
            format!("{name} (CUDA {range})"),
            newest,
            origin,
        )
    });
    let Some(need) = need else {
        let text = format!("no source states which CUDA {name} installs");
        findings.reason(Verdict::Unknown, "framework-cuda-unknown", text, origin);
        return true;
    };
    let driver_ok = driver_supports(set, query, user_space, &need, findings);
    coverage::evaluate(set, query, user_space, subject, findings) && driver_ok
}

/// The newest CUDA that a build accepts.
fn newest_allowed(set: &FactSet, build: Option<&Build>, cuda: CudaVersion) -> CudaVersion {
    let Some(below) = build.and_then(|build| build.cuda_below) else { return cuda };
    set.cuda.minors().into_iter().filter(|minor| *minor < below).max().unwrap_or(cuda).max(cuda)
}

/// `torch 2.11.0 from the Python index`, `torch 2.11.0+cu128`, `jax[cuda12] 0.8.0`.
fn display_name(need: &FrameworkRequest<'_>) -> String {
    let (package, version) = (&need.package.name, &need.version);
    match &need.build_choice {
        BuildChoice::Named(tag) if tag_cuda(tag).is_none() => format!("{package}[{tag}] {version}"),
        BuildChoice::Named(tag) => format!("{package} {version}+{tag}"),
        _ => format!("{package} {version} from the Python index"),
    }
}
