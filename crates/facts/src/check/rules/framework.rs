//! Does this driver carry the CUDA of a published build, and does the build carry code for the GPU?

use super::cuda::{Need, driver_carries};
use super::forward::UserSpace;
use crate::check::context::Findings;
use crate::check::query::{FrameworkNeed, Query, Wanted, tag_cuda};
use crate::check::report::Verdict;
use crate::framework::{Build, Coverage, Package};
use crate::set::FactSet;
use crate::version::{CudaVersion, PackageVersion};

/// The name of the build that the Python index gives.
const INDEX: &str = "index";

pub(crate) fn judge(
    set: &FactSet,
    query: &Query<'_>,
    user_space: UserSpace,
    findings: &mut Findings,
) {
    let Some(need) = &query.framework else { return };
    let subject = format!("{} {}", need.package.name, need.version);
    if let Wanted::WithoutCuda(tag) = &need.wanted {
        findings.reason(
            Verdict::Blocked,
            "framework-without-cuda",
            format!("{subject}+{tag} is built without CUDA and cannot use the GPU"),
            &need.package.origin,
        );
        findings.remedy("for the GPU", format!("install a CUDA build of {subject}"), None);
        return;
    }
    if need.wanted == Wanted::Plain
        && let Some(note) = &need.package.plain_install_note
    {
        findings.reason(Verdict::Ok, "framework-extra-assumed", note.clone(), &need.package.origin);
    }
    match built_on_torch(set, need) {
        Some(Ok(torch)) => {
            let origin = need.build.map_or(&need.package.origin, |build| &build.origin);
            findings.reason(
                Verdict::Ok,
                "framework-on-torch",
                format!("{subject} needs torch {} and is judged by it", torch.version),
                origin,
            );
            judge_build(set, query, user_space, &torch, findings);
        }
        Some(Err(version)) => findings.reason(
            Verdict::Unknown,
            "framework-torch-unknown",
            format!("{subject} needs torch {version}, which is not in the data"),
            &need.package.origin,
        ),
        None => judge_build(set, query, user_space, need, findings),
    }
}

/// The torch build under a framework that is built on torch.
fn built_on_torch<'a>(
    set: &'a FactSet,
    need: &FrameworkNeed<'a>,
) -> Option<Result<FrameworkNeed<'a>, &'a PackageVersion>> {
    let build = need.build?;
    let version = build.torch.as_ref()?;
    let package = set.frameworks.package("torch")?;
    let wanted = match build.cuda {
        Some(cuda) => Wanted::Named(format!("cu{}{}", cuda.major, cuda.minor)),
        None => Wanted::Plain,
    };
    let tag = match &wanted {
        Wanted::Named(tag) => tag.as_str(),
        _ => &package.default_build,
    };
    let found =
        set.frameworks.builds(&package.name).find(|it| it.version == *version && it.build == tag);
    Some(match found {
        Some(found) => {
            Ok(FrameworkNeed { package, version: version.clone(), wanted, build: Some(found) })
        }
        None => Err(version),
    })
}

fn judge_build(
    set: &FactSet,
    query: &Query<'_>,
    user_space: UserSpace,
    need: &FrameworkNeed<'_>,
    findings: &mut Findings,
) {
    let name = build_name(need);
    let origin = need.build.map_or(&need.package.origin, |build| &build.origin);
    let tagged = match &need.wanted {
        Wanted::Named(tag) => tag_cuda(tag),
        _ => None,
    };
    let Some(cuda) = need.build.and_then(|build| build.cuda).or(tagged) else {
        findings.reason(
            Verdict::Unknown,
            "framework-cuda-unknown",
            format!("no source says which CUDA {name} brings along"),
            origin,
        );
        return;
    };
    if need.build.is_none() {
        findings.reason(
            Verdict::Caveat,
            "framework-build-unlisted",
            format!("the data has no record of {name}; CUDA {cuda} is read from its tag"),
            origin,
        );
    }
    let later = match need.build.and_then(|build| build.cuda_below) {
        Some(below) => format!(" or a later one below {below}"),
        None => String::new(),
    };
    let subject = format!("{name} (CUDA {cuda}{later})");
    let Some(cuda_need) = Need::of_framework(set, subject, cuda, origin) else { return };
    if !driver_carries(set, query, user_space, &cuda_need, findings) {
        advise_other_build(set, query, need, findings);
    }
    covers_gpu(set, query, user_space, need, cuda, &name, findings);
}

/// `torch 2.11.0`, `torch 2.11.0+cu128`, `jax[cuda12] 0.8.0`.
fn build_name(need: &FrameworkNeed<'_>) -> String {
    let (package, version) = (&need.package.name, &need.version);
    match &need.wanted {
        Wanted::Named(tag) if tag.starts_with("cuda") => format!("{package}[{tag}] {version}"),
        Wanted::Named(tag) => format!("{package} {version}+{tag}"),
        _ => format!("{package} {version} from the Python index"),
    }
}

fn covers_gpu(
    set: &FactSet,
    query: &Query<'_>,
    user_space: UserSpace,
    need: &FrameworkNeed<'_>,
    cuda: CudaVersion,
    name: &str,
    findings: &mut Findings,
) {
    let gpu = query.gpu;
    let Some((coverage, assumed)) = coverage_of(set, need.package, &need.version, cuda) else {
        findings.reason(
            Verdict::Caveat,
            "framework-architectures-unknown",
            format!("which GPUs {name} carries code for is not in the data"),
            &need.package.origin,
        );
        return;
    };
    let covered = covered(coverage, query, user_space);
    let list = listed(coverage);
    let origin = &coverage.origin;
    let sm = gpu.compute_capability.sm();
    match covered {
        Covered::No => {
            let text =
                format!("{name} carries code for {list}; none of it runs on {sm} ({})", gpu.id);
            findings.reason(Verdict::Blocked, "framework-architecture", text, origin);
            advise_other_build(set, query, need, findings);
        }
        Covered::PtxTooNew => {
            let text = format!(
                "{name} has only PTX of CUDA {cuda} for {sm} ({}), which this driver cannot translate",
                gpu.id
            );
            findings.reason(Verdict::Blocked, "framework-ptx-newer-than-driver", text, origin);
            advise_other_build(set, query, need, findings);
        }
        Covered::ByPtx => {
            let text = format!(
                "{name} carries code for {list}; on {sm} ({}) its PTX is translated at the first start",
                gpu.id
            );
            findings.reason(Verdict::Caveat, "framework-by-ptx", text, origin);
        }
        Covered::Yes if assumed => {
            let text = format!(
                "the list of {name} was not found; of an earlier version it is {list}, which runs on \
                 {sm} ({})",
                gpu.id
            );
            findings.reason(Verdict::Caveat, "framework-architectures-assumed", text, origin);
        }
        Covered::Yes => {
            let text = format!("{name} carries code for {list}, which runs on {sm} ({})", gpu.id);
            findings.reason(Verdict::Ok, "framework-architecture", text, origin);
        }
    }
}

/// What a build is known to carry, and whether that is assumed from an earlier version with the same
/// major version of CUDA.
fn coverage_of<'a>(
    set: &'a FactSet,
    package: &Package,
    version: &PackageVersion,
    cuda: CudaVersion,
) -> Option<(&'a Coverage, bool)> {
    let of_package = || set.frameworks.coverage.iter().filter(|it| it.package == package.name);
    let has = |it: &&Coverage| it.versions.iter().any(|covered| covered.covers(version));
    let exact = of_package().find(|it| has(it) && it.cuda == cuda);
    let by_minimum =
        || of_package().find(|it| has(it) && it.minimum.is_some() && it.cuda.major == cuda.major);
    if let Some(found) = exact.or_else(by_minimum) {
        return Some((found, false));
    }
    of_package()
        .filter(|it| it.cuda.major == cuda.major && it.cuda <= cuda)
        .filter_map(|it| {
            let newest = it.versions.iter().filter(|covered| *covered < version).max()?;
            Some(((newest, it.cuda), it))
        })
        .max_by(|(left, _), (right, _)| left.cmp(right))
        .map(|(_, coverage)| (coverage, true))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Covered {
    Yes,
    ByPtx,
    PtxTooNew,
    No,
}

fn covered(coverage: &Coverage, query: &Query<'_>, user_space: UserSpace) -> Covered {
    let own = query.gpu.compute_capability;
    let by_minimum = coverage.minimum.is_some_and(|minimum| own >= minimum);
    if by_minimum || coverage.machine_code.iter().any(|target| own.runs_cubin_of(*target)) {
        return Covered::Yes;
    }
    if !coverage.ptx.iter().any(|target| *target <= own) {
        return Covered::No;
    }
    match user_space.cuda {
        Some(speaks) if speaks >= coverage.cuda => Covered::ByPtx,
        _ => Covered::PtxTooNew,
    }
}

fn listed(coverage: &Coverage) -> String {
    if let Some(minimum) = coverage.minimum {
        return format!("compute capability {minimum} and later");
    }
    let mut list: Vec<String> = coverage.machine_code.iter().map(|target| target.sm()).collect();
    list.extend(coverage.ptx.iter().map(|it| format!("PTX {it}")));
    list.join(", ")
}

/// Names a build that would work here: another build of this version, else the newest earlier version.
fn advise_other_build(
    set: &FactSet,
    query: &Query<'_>,
    need: &FrameworkNeed<'_>,
    findings: &mut Findings,
) {
    let own = UserSpace { cuda: super::native_cuda(set, query), by_package: false };
    let works = |build: &&Build| works_here(set, query, need.package, own, build);
    let of_version = |build: &&Build| build.version == need.version;
    let builds = || set.frameworks.builds(&need.package.name);
    let same = builds().filter(of_version).filter(works).max_by_key(|build| build.cuda);
    if let Some(build) = same {
        advise(need.package, build, findings);
        if tag_cuda(&build.build).is_none() {
            return;
        }
    }
    let earlier = builds()
        .filter(|build| build.version < need.version && build.build == need.package.default_build)
        .filter(works)
        .max_by(|left, right| left.version.cmp(&right.version));
    if let Some(build) = earlier {
        advise(need.package, build, findings);
    }
}

fn advise(package: &Package, build: &Build, findings: &mut Findings) {
    let cuda = build.cuda.map(|cuda| format!(" (CUDA {cuda})")).unwrap_or_default();
    let name = &package.name;
    let version = &build.version;
    let tag = &build.build;
    let (text, command) = if tag == INDEX {
        (format!("take {name} {version}{cuda}"), format!("pip install {name}=={version}"))
    } else if tag_cuda(tag).is_some() {
        (
            format!("take the {tag} build of {name} {version}{cuda}"),
            format!(
                "pip install {name}=={version} --index-url https://download.pytorch.org/whl/{tag}"
            ),
        )
    } else {
        (
            format!("take {name}[{tag}] {version}{cuda}"),
            format!("pip install '{name}[{tag}]=={version}'"),
        )
    };
    findings.remedy("for this GPU and driver", text, Some(command));
}

fn works_here(
    set: &FactSet,
    query: &Query<'_>,
    package: &Package,
    own: UserSpace,
    build: &Build,
) -> bool {
    let Some(cuda) = build.cuda else { return false };
    let Some(family) = set.cuda.family(cuda.major) else { return false };
    let carried = own.cuda.is_some_and(|speaks| speaks.major >= cuda.major)
        && query.driver.version >= family.driver_min;
    let coverage = coverage_of(set, package, &build.version, cuda);
    carried
        && coverage.is_some_and(|(coverage, _)| {
            matches!(covered(coverage, query, own), Covered::Yes | Covered::ByPtx)
        })
}
