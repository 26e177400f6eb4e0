//! From what a person typed to what can be judged.

use jiff::civil::Date;
use serde::{Deserialize, Serialize};

use crate::check::input::{Field, InputError};
use crate::cuda::Toolkit;
use crate::driver::BranchFacts;
use crate::framework::{Build, Package};
use crate::gpu::Gpu;
use crate::names;
use crate::set::FactSet;
use crate::version::{Branch, CudaVersion, DriverVersion, PackageVersion, ToolkitVersion};

/// Which kernel modules are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Module {
    /// `nvidia-open`.
    Open,
    /// The proprietary ones.
    Proprietary,
}

/// What CUDA is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Usage {
    /// Running programs that were built with it.
    #[default]
    Run,
    /// Building programs for the GPU.
    Compile,
}

/// Something that a node may be wanted to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// Coherent driver-based memory management.
    Cdmm,
    /// Multi-instance GPU.
    Mig,
}

/// A combination as a person names it.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// Any name of the GPU.
    pub gpu: String,
    /// `550.54.15`, or a branch (`550`, `R550`).
    pub driver: String,
    /// `12`, `12.8` or `12.8.1`.
    pub cuda: Option<String>,
    /// `torch==2.11.0`, `torch==2.11.0+cu128`, `jax[cuda12]==0.8.0`.
    pub framework: Option<String>,
    /// Which kernel modules.
    pub module: Option<Module>,
    /// What CUDA is for.
    pub usage: Usage,
    /// The program carries PTX and no machine code for this GPU.
    pub ptx_only: bool,
    /// A `cuda-compat` package: `13.0`.
    pub forward_compat: Option<String>,
    /// The version of fabric manager.
    pub fabric_manager: Option<String>,
    /// A feature that must work.
    pub feature: Option<Feature>,
    /// Let advisories and regressions decide too.
    pub strict: bool,
}

/// A combination that can be judged.
#[derive(Debug, Clone)]
pub struct Query<'a> {
    /// The GPU.
    pub gpu: &'a Gpu,
    /// The family name that it was given by, where one part was taken for the family.
    pub gpu_assumed_from: Option<String>,
    /// The driver.
    pub driver: Driver<'a>,
    /// The CUDA to run or to compile with.
    pub cuda: Option<CudaNeed<'a>>,
    /// The framework.
    pub framework: Option<FrameworkNeed<'a>>,
    /// Which kernel modules.
    pub module: Option<Module>,
    /// What CUDA is for.
    pub usage: Usage,
    /// The program carries PTX and no machine code for this GPU.
    pub ptx_only: bool,
    /// A `cuda-compat` package.
    pub forward_compat: Option<CudaVersion>,
    /// The version of fabric manager.
    pub fabric_manager: Option<DriverVersion>,
    /// A feature that must work.
    pub feature: Option<Feature>,
    /// The day for which the answer holds.
    pub on: Date,
    /// Let advisories and regressions decide too.
    pub strict: bool,
}

/// The driver of a query.
#[derive(Debug, Clone)]
pub struct Driver<'a> {
    /// The release that is judged.
    pub version: DriverVersion,
    /// Its branch; absent where the data does not reach so far.
    pub branch: Option<&'a BranchFacts>,
    /// What the person said.
    pub given: DriverGiven,
}

/// How exactly a driver was named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DriverGiven {
    /// A full release.
    Release,
    /// A release with its last part missing.
    PartOfRelease,
    /// Only the branch; its newest release was taken.
    Branch,
}

/// The CUDA that something needs.
#[derive(Debug, Clone)]
pub enum CudaNeed<'a> {
    /// Only the major version: `12`.
    Major(u32),
    /// `12.8`: the first release of it stands for all.
    Minor(&'a Toolkit),
    /// `12.8.1`.
    Exact(&'a Toolkit),
}

/// The framework of a query.
#[derive(Debug, Clone)]
pub struct FrameworkNeed<'a> {
    /// The package.
    pub package: &'a Package,
    /// The version.
    pub version: PackageVersion,
    /// Which build.
    pub wanted: Wanted,
    /// Its record.
    pub build: Option<&'a Build>,
}

/// Which build of a framework.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// What a plain install gives.
    Plain,
    /// A tag (`cu128`) or an extra (`cuda12`).
    Named(String),
    /// A build without CUDA.
    WithoutCuda(String),
}

impl<'a> Query<'a> {
    /// Reads a request against a set. `on` is the day for which the answer shall hold.
    pub fn read(set: &'a FactSet, request: &Request, on: Date) -> Result<Self, InputError> {
        let named = gpu(set, &request.gpu)?;
        let cuda = request.cuda.as_deref().map(|text| cuda(set, text)).transpose()?;
        let framework =
            request.framework.as_deref().map(|text| framework(set, text)).transpose()?;
        let forward_compat =
            request.forward_compat.as_deref().map(|text| forward_compat(set, text)).transpose()?;
        let fabric_manager = request.fabric_manager.as_deref().map(fabric_manager).transpose()?;
        Ok(Self {
            gpu: named.gpu,
            gpu_assumed_from: named.assumed.then(|| request.gpu.clone()),
            driver: driver(set, &request.driver)?,
            cuda,
            framework,
            module: request.module,
            usage: request.usage,
            ptx_only: request.ptx_only,
            forward_compat,
            fabric_manager,
            feature: request.feature,
            on,
            strict: request.strict,
        })
    }
}

fn gpu<'a>(set: &'a FactSet, text: &str) -> Result<names::Named<'a>, InputError> {
    set.gpus.by_name(text).ok_or_else(|| {
        let problem = if text.trim().is_empty() {
            "no name given".to_owned()
        } else if text.parse::<DriverVersion>().is_ok() {
            format!("`{text}` is a version, not a GPU")
        } else {
            format!("`{text}` is not a GPU in the data")
        };
        let near = names::nearest(text, set.gpus.names());
        let expected = if near.is_empty() {
            "a data-centre GPU by SKU, NVML name or PCI id, such as `H100-SXM5-80GB`; \
             `farrier facts gpu` lists them"
                .to_owned()
        } else {
            format!("did you mean {}?", quoted(near))
        };
        InputError::new(Field::Gpu, problem, expected)
    })
}

fn driver<'a>(set: &'a FactSet, text: &str) -> Result<Driver<'a>, InputError> {
    const EXPECTED: &str = "a release such as `580.65.06`, or a branch such as `580`";
    let error = |problem: String| InputError::new(Field::Driver, problem, EXPECTED);
    if text.is_empty() {
        return Err(error("no version given".to_owned()));
    }
    let bare = text.strip_prefix(['R', 'r']).unwrap_or(text);
    let (version, given) = if let Ok(number) = bare.parse::<u32>() {
        let latest = set.drivers.branch(Branch(number)).map(|facts| facts.latest.clone());
        // Outside the data a branch is judged by its number alone.
        let version = latest.map_or_else(|| format!("{number}.0").parse(), Ok);
        (version.map_err(|err| error(err.to_string()))?, DriverGiven::Branch)
    } else {
        let version: DriverVersion =
            text.parse().map_err(|_| error(format!("`{text}` does not read as a version")))?;
        let partial = set.drivers.release.iter().any(|it| version.is_prefix_of(&it.version))
            && !set.drivers.release.iter().any(|it| it.version == version);
        (version, if partial { DriverGiven::PartOfRelease } else { DriverGiven::Release })
    };
    let number = version.branch();
    if set.cuda.family(number.0).is_some() {
        return Err(error(format!("`{text}` looks like a CUDA version; are the two swapped?")));
    }
    if number.0 < 100 {
        return Err(error(format!("`{text}` does not read as a driver version")));
    }
    let branch = set.drivers.branch(number);
    let reach = set.drivers.oldest().branch..=set.drivers.newest().branch;
    if branch.is_none() && reach.contains(&number) {
        let mut near: Vec<Branch> = set.drivers.branch.iter().map(|facts| facts.branch).collect();
        near.sort_by_key(|branch| branch.0.abs_diff(number.0));
        near.truncate(2);
        near.sort();
        return Err(InputError::new(
            Field::Driver,
            format!("there is no Linux data-centre driver branch {}", number.0),
            format!("the nearest branches are {} and {}", near[0].0, near[1].0),
        ));
    }
    Ok(Driver { version, branch, given })
}

fn cuda<'a>(set: &'a FactSet, text: &str) -> Result<CudaNeed<'a>, InputError> {
    const EXPECTED: &str = "a release such as `12.8`, `12.8.1` or `12`";
    let error = |problem: String| InputError::new(Field::Cuda, problem, EXPECTED);
    if text.is_empty() {
        return Err(error("no version given".to_owned()));
    }
    let parts: Vec<&str> = text.split('.').collect();
    let major: u32 = match parts[0].parse() {
        Ok(major) if parts.len() <= 3 && parts[0].bytes().all(|b| b.is_ascii_digit()) => major,
        _ => return Err(error(format!("`{text}` does not read as a CUDA version"))),
    };
    if set.drivers.branch(Branch(major)).is_some() || major >= 100 {
        return Err(error(format!("`{text}` looks like a driver version; are the two swapped?")));
    }
    let absent = || absent_cuda(set, Field::Cuda, text);
    match parts.len() {
        1 => set.cuda.family(major).map(|_| CudaNeed::Major(major)).ok_or_else(absent),
        2 => {
            let cuda: CudaVersion = text
                .parse()
                .map_err(|_| error(format!("`{text}` does not read as a CUDA version")))?;
            set.cuda.first_release(cuda).map(CudaNeed::Minor).ok_or_else(absent)
        }
        _ => {
            let version: ToolkitVersion = text
                .parse()
                .map_err(|_| error(format!("`{text}` does not read as a CUDA version")))?;
            let toolkit = set.cuda.toolkit.iter().find(|toolkit| toolkit.version == version);
            toolkit.map(CudaNeed::Exact).ok_or_else(absent)
        }
    }
}

/// The error for a CUDA that was never published, with what was.
pub(super) fn absent_cuda(set: &FactSet, field: Field, text: &str) -> InputError {
    let minors = set.cuda.minors();
    let major = text.split('.').next().and_then(|major| major.parse::<u32>().ok());
    let of_major: Vec<String> = minors
        .iter()
        .rev()
        .filter(|minor| Some(minor.major) == major)
        .map(ToString::to_string)
        .collect();
    let known = if of_major.is_empty() {
        let (first, last) = (minors.last(), minors.first());
        format!(
            "the data holds {} to {}",
            first.map(ToString::to_string).unwrap_or_default(),
            last.map(ToString::to_string).unwrap_or_default()
        )
    } else if text.matches('.').count() == 2 {
        let releases: Vec<String> = set
            .cuda
            .toolkit
            .iter()
            .rev()
            .map(|toolkit| toolkit.version.to_string())
            .filter(|version| {
                text.rsplit_once('.').is_some_and(|(cuda, _)| {
                    version.rsplit_once('.').is_some_and(|(known, _)| known == cuda)
                })
            })
            .collect();
        if releases.is_empty() { of_major.join(", ") } else { releases.join(", ") }
    } else {
        of_major.join(", ")
    };
    InputError::new(
        field,
        format!("there is no CUDA {text}"),
        format!("{known}; for a release newer than the data, `farrier facts update`"),
    )
}

fn framework<'a>(set: &'a FactSet, text: &str) -> Result<FrameworkNeed<'a>, InputError> {
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
        let known: Vec<&str> =
            set.frameworks.package.iter().map(|package| package.name.as_str()).collect();
        let near = names::nearest(name, known.iter().copied());
        let expected = if near.is_empty() {
            format!("one of {}", known.join(", "))
        } else {
            format!("did you mean {}?", quoted(near))
        };
        error(format!("`{name}` is not a framework in the data"), expected)
    })?;
    let (version, tag) = match version.trim().split_once('+') {
        Some((version, tag)) => (version, Some(tag)),
        None => (version.trim(), None),
    };
    let asked: PackageVersion = version.parse().map_err(|_| {
        error(format!("`{version}` does not read as a version"), EXPECTED.to_owned())
    })?;
    let version = known_version(set, package, &asked)?;
    let wanted = match tag.or(extra) {
        None | Some("and-cuda" | "cuda") => Wanted::Plain,
        Some(tag) if tag == "cpu" || tag.starts_with("rocm") || tag == "xpu" => {
            Wanted::WithoutCuda(tag.to_owned())
        }
        Some(tag) => Wanted::Named(tag.to_owned()),
    };
    let build = find_build(set, package, &version, &wanted)?;
    Ok(FrameworkNeed { package, version, wanted, build })
}

/// The version in the data that was meant: itself, or the newest that `2.11` covers.
fn known_version(
    set: &FactSet,
    package: &Package,
    asked: &PackageVersion,
) -> Result<PackageVersion, InputError> {
    let mut versions: Vec<&PackageVersion> =
        set.frameworks.builds(&package.name).map(|build| &build.version).collect();
    versions.sort();
    let equal = versions.iter().find(|version| version.cmp(&&asked).is_eq());
    let covered = versions.iter().rev().find(|version| asked.parts() < 3 && asked.covers(version));
    equal.or(covered).map(|version| (*version).clone()).ok_or_else(|| {
        let near: Vec<String> = versions
            .iter()
            .filter(|version| version.minor() == asked.minor())
            .map(ToString::to_string)
            .collect();
        let range = match (versions.first(), versions.last()) {
            (Some(first), Some(last)) => format!("the data holds {first} to {last}"),
            _ => "the data holds no version of it".to_owned(),
        };
        let expected = if near.is_empty() {
            range
        } else {
            format!("{range}, of {}: {}", minor(asked), near.join(", "))
        };
        InputError::new(
            Field::Framework,
            format!("there is no {} {asked} in the data", package.name),
            format!("{expected}; for a release newer than the data, `farrier facts update`"),
        )
    })
}

fn minor(version: &PackageVersion) -> String {
    let (major, minor) = version.minor();
    format!("{major}.{minor}")
}

/// The record of a build. A tag that names a CUDA which never was is an error; a real CUDA for which
/// the data has no build of this version is left open.
fn find_build<'a>(
    set: &'a FactSet,
    package: &Package,
    version: &PackageVersion,
    wanted: &Wanted,
) -> Result<Option<&'a Build>, InputError> {
    let tag = match wanted {
        Wanted::Plain => package.default_build.as_str(),
        Wanted::Named(tag) => tag,
        Wanted::WithoutCuda(_) => return Ok(None),
    };
    let of_version = |build: &&Build| build.package == package.name && build.version == *version;
    let builds = || set.frameworks.build.iter().filter(of_version);
    if let Some(build) = builds().find(|build| build.build == tag) {
        return Ok(Some(build));
    }
    if tag_cuda(tag).is_some_and(|cuda| set.cuda.first_release(cuda).is_some()) {
        return Ok(None);
    }
    let known: Vec<&str> = builds().map(|build| build.build.as_str()).collect();
    Err(InputError::new(
        Field::Framework,
        format!("there is no build `{tag}` of {} {version}", package.name),
        format!("the data holds {}", quoted(known)),
    ))
}

/// The CUDA that a wheel's tag names: `cu128` is 12.8.
pub(super) fn tag_cuda(tag: &str) -> Option<CudaVersion> {
    let digits = tag.strip_prefix("cu")?;
    if digits.len() != 3 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (major, minor) = digits.split_at(2);
    Some(CudaVersion { major: major.parse().ok()?, minor: minor.parse().ok()? })
}

fn forward_compat(set: &FactSet, text: &str) -> Result<CudaVersion, InputError> {
    const EXPECTED: &str = "the CUDA of the package, such as `13.0` for cuda-compat-13-0";
    let cuda: CudaVersion = text.parse().map_err(|_| {
        let problem = format!("`{text}` does not read as a CUDA version");
        InputError::new(Field::ForwardCompat, problem, EXPECTED)
    })?;
    if set.cuda.first_release(cuda).is_none() {
        return Err(absent_cuda(set, Field::ForwardCompat, text));
    }
    Ok(cuda)
}

fn fabric_manager(text: &str) -> Result<DriverVersion, InputError> {
    text.parse().map_err(|_| {
        InputError::new(
            Field::FabricManager,
            format!("`{text}` does not read as a version"),
            "a full version such as `580.65.06` (`nv-fabricmanager --version`)",
        )
    })
}

fn quoted<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
