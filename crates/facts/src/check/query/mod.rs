//! From what a person typed to what can be judged.

mod cuda;
mod driver;
mod framework;

pub(super) use framework::tag_cuda;

use jiff::civil::Date;
use serde::{Deserialize, Serialize};

use crate::check::input::{Field, InputError};
use crate::cuda::Toolkit;
use crate::driver::BranchFacts;
use crate::framework::{Build, FrameworkPackage};
use crate::gpu::Gpu;
use crate::names;
use crate::set::FactSet;
use crate::version::{CudaVersion, DriverVersion, PackageVersion};

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

/// Something that a node may be build_choice to do.
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
    pub cuda: Option<CudaRequest<'a>>,
    /// The framework.
    pub framework: Option<FrameworkRequest<'a>>,
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
    pub precision: DriverPrecision,
}

/// How exactly a driver was named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DriverPrecision {
    /// A full release.
    Release,
    /// A release with its last part missing.
    PartOfRelease,
    /// Only the branch; its newest release was taken.
    Branch,
}

/// The CUDA that something needs.
#[derive(Debug, Clone)]
pub enum CudaRequest<'a> {
    /// Only the major version: `12`.
    Major(u32),
    /// `12.8`: the first release of it stands for all.
    Minor(&'a Toolkit),
    /// `12.8.1`.
    Exact(&'a Toolkit),
}

/// The framework of a query.
#[derive(Debug, Clone)]
pub struct FrameworkRequest<'a> {
    /// The package.
    pub package: &'a FrameworkPackage,
    /// The version.
    pub version: PackageVersion,
    /// What the person wrote, where `version` is only one that fits it.
    pub version_assumed_from: Option<PackageVersion>,
    /// Which build.
    pub build_choice: BuildChoice,
    /// Its record.
    pub build: Option<&'a Build>,
}

/// Which build of a framework.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BuildChoice {
    /// What a plain install gives.
    Plain,
    /// A tag (`cu128`) or an extra (`cuda12`).
    Named(String),
    /// A build without CUDA.
    WithoutCuda(String),
}

impl<'a> Query<'a> {
    /// Reads a request against a set. `on` is the day for which the answer shall hold.
    pub fn parse(set: &'a FactSet, request: &Request, on: Date) -> Result<Self, InputError> {
        reject_unused_flags(request)?;
        let named = find_gpu(set, request.gpu.trim())?;
        let cuda = request.cuda.as_deref().map(|text| cuda::parse_cuda(set, text)).transpose()?;
        let framework = request
            .framework
            .as_deref()
            .map(|text| framework::parse_framework(set, text))
            .transpose()?;
        let forward_compat = request
            .forward_compat
            .as_deref()
            .map(|text| cuda::parse_forward_compat(set, text))
            .transpose()?;
        let fabric_manager =
            request.fabric_manager.as_deref().map(driver::parse_fabric_manager).transpose()?;
        Ok(Self {
            gpu: named.gpu,
            gpu_assumed_from: named.assumed.then(|| request.gpu.clone()),
            driver: driver::parse_driver(set, request.driver.trim())?,
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

/// A flag about CUDA says nothing without one.
fn reject_unused_flags(request: &Request) -> Result<(), InputError> {
    let without = request.cuda.is_none() && request.framework.is_none();
    let idle = if without && request.ptx_only {
        Some((Field::PtxOnly, "--cuda or --framework"))
    } else if request.cuda.is_none() && request.usage == Usage::Compile {
        Some((Field::Use, "--cuda"))
    } else {
        None
    };
    match idle {
        Some((field, needs)) => Err(InputError::new(
            field,
            format!("says nothing without {needs}"),
            format!("give {needs} as well, or leave it out"),
        )),
        None => Ok(()),
    }
}

fn find_gpu<'a>(set: &'a FactSet, text: &str) -> Result<names::GpuMatch<'a>, InputError> {
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

fn quoted<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
