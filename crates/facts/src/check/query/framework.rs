//! `--framework`.

use super::cuda::NEWER;
use super::{BuildChoice, FrameworkRequest, quoted};
use crate::check::input::{Field, InputError};
use crate::framework::{Build, FrameworkPackage};
use crate::names;
use crate::set::FactSet;
use crate::version::{CudaVersion, PackageVersion};

pub(super) fn parse_framework<'a>(
    set: &'a FactSet,
    text: &str,
) -> Result<FrameworkRequest<'a>, InputError> {
    const EXPECTED: &str = "`name==version`, such as `torch==2.11.0` or `torch==2.11.0+cu128`";
    let error =
        |problem: String, expected: String| InputError::new(Field::Framework, problem, expected);
    let (name, version) = text
        .split_once("==")
        .ok_or_else(|| error(format!("`{text}` has no `==version`"), EXPECTED.to_owned()))?;
    let (name, extra) = match name.trim().split_once('[') {
        Some((name, extra)) => (name, Some(extra.trim_end_matches(']'))),
        None => (name.trim(), None),
    };
    let package = set.frameworks.package(name).ok_or_else(|| {
        let names: Vec<&str> =
            set.frameworks.package.iter().map(|package| package.name.as_str()).collect();
        let near = names::nearest(name, names.iter().copied());
        let expected = if near.is_empty() {
            format!("one of {}", names.join(", "))
        } else {
            format!("did you mean {}?", quoted(near))
        };
        error(format!("`{name}` is not a framework in the data"), expected)
    })?;
    let (version, tag) = match version.trim().split_once('+') {
        Some((version, tag)) => (version, Some(tag)),
        None => (version.trim(), None),
    };
    let requested: PackageVersion = version.parse().map_err(|_| {
        let problem = if version.is_empty() {
            format!("`{text}` has no version after `==`")
        } else {
            format!("`{version}` is not a published version")
        };
        error(problem, EXPECTED.to_owned())
    })?;
    let version = resolve_version(set, package, &requested)?;
    let version_assumed_from = (version != requested).then_some(requested);
    let build_choice = match tag.or(extra) {
        None | Some("and-cuda" | "cuda") => BuildChoice::Plain,
        Some(tag) if tag == "cpu" || tag.starts_with("rocm") || tag == "xpu" => {
            BuildChoice::WithoutCuda(tag.to_owned())
        }
        Some(tag) => BuildChoice::Named(tag.to_owned()),
    };
    let build = find_build(set, package, &version, &build_choice)?;
    Ok(FrameworkRequest { package, version, version_assumed_from, build_choice, build })
}

/// Resolves a version against the data: the equal version (`2.11` is `2.11.0`), or else the newest
/// version with this prefix (`0.8` gives `0.8.5`).
fn resolve_version(
    set: &FactSet,
    package: &FrameworkPackage,
    requested: &PackageVersion,
) -> Result<PackageVersion, InputError> {
    let mut versions: Vec<&PackageVersion> =
        set.frameworks.builds(&package.name).map(|build| &build.version).collect();
    if let Some(equal) = versions.iter().find(|version| **version == requested) {
        return Ok((*equal).clone());
    }
    versions.sort();
    let covered =
        versions.iter().rev().find(|version| requested.parts() < 3 && requested.covers(version));
    covered.map(|version| (*version).clone()).ok_or_else(|| {
        let same_minor = versions.iter().filter(|version| version.minor() == requested.minor());
        let mut near: Vec<String> = same_minor.map(ToString::to_string).collect();
        near.dedup();
        let range = match (versions.first(), versions.last()) {
            (Some(first), Some(last)) if first == last => format!("the data holds {first}"),
            (Some(first), Some(last)) => format!("the data holds {first} to {last}"),
            _ => "the data holds no version of it".to_owned(),
        };
        let near = match near.as_slice() {
            [] => String::new(),
            near => format!(", of {}: {}", minor(requested), near.join(", ")),
        };
        InputError::new(
            Field::Framework,
            format!("there is no {} {requested} in the data", package.name),
            format!("{range}{near}{NEWER}"),
        )
    })
}

fn minor(version: &PackageVersion) -> String {
    let (major, minor) = version.minor();
    format!("{major}.{minor}")
}

/// Finds a build. A tag that names a nonexistent CUDA version is an error. `None` if the CUDA
/// version exists but the data has no such build.
fn find_build<'a>(
    set: &'a FactSet,
    package: &FrameworkPackage,
    version: &PackageVersion,
    build_choice: &BuildChoice,
) -> Result<Option<&'a Build>, InputError> {
    let tag = match build_choice {
        BuildChoice::Plain => package.default_build.as_str(),
        BuildChoice::Named(tag) => tag,
        BuildChoice::WithoutCuda(_) => return Ok(None),
    };
    let is_this_version =
        |build: &&Build| build.package == package.name && build.version == *version;
    let builds = || set.frameworks.build.iter().filter(is_this_version);
    if let Some(build) = builds().find(|build| build.build == tag) {
        return Ok(Some(build));
    }
    if tag_cuda(tag).is_some_and(|cuda| set.cuda.first_release(cuda).is_some()) {
        return Ok(None);
    }
    let names: Vec<&str> = builds().map(|build| build.build.as_str()).collect();
    Err(InputError::new(
        Field::Framework,
        format!("there is no build `{tag}` of {} {version}", package.name),
        format!("the data holds {}", quoted(names)),
    ))
}

/// The CUDA version in a wheel tag: `cu128` is 12.8.
pub(in crate::check) fn tag_cuda(tag: &str) -> Option<CudaVersion> {
    let digits = tag.strip_prefix("cu")?;
    if digits.len() != 3 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (major, minor) = digits.split_at(2);
    Some(CudaVersion { major: major.parse().ok()?, minor: minor.parse().ok()? })
}
