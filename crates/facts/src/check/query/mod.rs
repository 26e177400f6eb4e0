//! Parses a request into a query that refers to the facts.

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

/// Kernel module flavour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Module {
    /// `nvidia-open`.
    Open,
    /// The proprietary kernel modules.
    Proprietary,
}

/// Use of CUDA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Usage {
    /// Run programs that were built with CUDA.
    #[default]
    Run,
    /// Compile programs for the GPU.
    Compile,
}

/// A feature that can be required.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// Coherent driver-based memory management.
    Cdmm,
    /// Multi-instance GPU.
    Mig,
}

/// A combination as typed by the user.
#[derive(Debug, Clone, Default)]
pub struct CheckRequest {
    /// Any name or PCI id of the GPU.
    pub gpu: String,
    /// `550.54.15`, or a branch (`550`, `R550`).
    pub driver: String,
    /// `12`, `12.8` or `12.8.1`.
    pub cuda: Option<String>,
    /// `torch==2.11.0`, `torch==2.11.0+cu128`, `jax[cuda12]==0.8.0`.
    pub framework: Option<String>,
    pub module: Option<Module>,
    /// Use of CUDA.
    pub usage: Usage,
    /// The program contains PTX but no machine code for this GPU.
    pub ptx_only: bool,
    /// A `cuda-compat` package: `13.0`.
    pub forward_compat: Option<String>,
    pub fabric_manager: Option<String>,
    /// A required feature.
    pub feature: Option<Feature>,
    /// Whether advisories and regressions affect the verdict.
    pub strict: bool,
}

/// A parsed and resolved combination.
#[derive(Debug, Clone)]
pub struct Query<'a> {
    pub gpu: &'a Gpu,
    /// The GPU family in the request, if `gpu` is the member that was assumed for it.
    pub gpu_assumed_from: Option<String>,
    pub driver: Driver<'a>,
    pub cuda: Option<CudaRequest<'a>>,
    pub framework: Option<FrameworkRequest<'a>>,
    pub module: Option<Module>,
    /// Use of CUDA.
    pub usage: Usage,
    /// The program contains PTX but no machine code for this GPU.
    pub ptx_only: bool,
    /// CUDA version of a `cuda-compat` package.
    pub forward_compat: Option<CudaVersion>,
    pub fabric_manager: Option<DriverVersion>,
    /// A required feature.
    pub feature: Option<Feature>,
    /// Day for which the result is valid.
    pub on: Date,
    /// Whether advisories and regressions affect the verdict.
    pub strict: bool,
}

/// The driver of a query.
#[derive(Debug, Clone)]
pub struct Driver<'a> {
    pub version: DriverVersion,
    /// `None` if the branch is outside the data.
    pub branch: Option<&'a BranchFacts>,
    pub precision: DriverPrecision,
}

/// How precisely the request names the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DriverPrecision {
    /// A full release.
    Release,
    /// A release without its last number, such as `580.65` for `580.65.06`.
    PartOfRelease,
    /// Only the branch; its newest release is assumed.
    Branch,
}

/// The requested CUDA.
#[derive(Debug, Clone)]
pub enum CudaRequest<'a> {
    /// Only the major version: `12`.
    Major(u32),
    /// `12.8`, represented by its first release.
    Minor(&'a Toolkit),
    /// `12.8.1`.
    Exact(&'a Toolkit),
}

/// The framework of a query.
#[derive(Debug, Clone)]
pub struct FrameworkRequest<'a> {
    pub package: &'a FrameworkPackage,
    pub version: PackageVersion,
    /// The version in the request, if `version` was chosen to match it.
    pub version_assumed_from: Option<PackageVersion>,
    pub build_choice: BuildChoice,
    /// `None` if the data has no record of the build.
    pub build: Option<&'a Build>,
}

/// Choice of a framework build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BuildChoice {
    /// The default of a plain install.
    Plain,
    /// A tag (`cu128`) or an extra (`cuda12`).
    Named(String),
    /// A build without CUDA.
    WithoutCuda(String),
}

impl<'a> Query<'a> {
    /// Parses a request against a set. `on` is the day for which the result is valid.
    pub fn parse(set: &'a FactSet, request: &CheckRequest, on: Date) -> Result<Self, InputError> {
        reject_unused_flags(request)?;
        let found = find_gpu(set, request.gpu.trim())?;
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
            gpu: found.gpu,
            gpu_assumed_from: found.assumed.then(|| request.gpu.clone()),
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

/// Rejects CUDA flags that have no effect without `--cuda` or `--framework`.
fn reject_unused_flags(request: &CheckRequest) -> Result<(), InputError> {
    let without = request.cuda.is_none() && request.framework.is_none();
    let unused = if without && request.ptx_only {
        Some((Field::PtxOnly, "--cuda or --framework"))
    } else if request.cuda.is_none() && request.usage == Usage::Compile {
        Some((Field::Use, "--cuda"))
    } else {
        None
    };
    match unused {
        Some((field, needs)) => Err(InputError::new(
            field,
            format!("has no effect without {needs}"),
            format!("give {needs} as well, or leave out {field}"),
        )),
        None => Ok(()),
    }
}

fn find_gpu<'a>(set: &'a FactSet, text: &str) -> Result<names::GpuMatch<'a>, InputError> {
    set.gpus.by_name(text).ok_or_else(|| {
        if let Some(vendor) = set.gpus.other_vendor(text) {
            return InputError::new(
                Field::Gpu,
                format!("`{text}` is an accelerator of {}", vendor.name),
                "Farrier knows NVIDIA GPUs only; `farrier facts gpu` lists them".to_owned(),
            );
        }
        let problem = if text.trim().is_empty() {
            "no name given".to_owned()
        } else if text.parse::<DriverVersion>().is_ok() {
            format!("`{text}` is a version, not a GPU")
        } else {
            format!("`{text}` is not a GPU in the data")
        };
        let near = names::nearest(text, set.gpus.names());
        let expected = if near.is_empty() {
            "an NVIDIA GPU by SKU, NVML name or PCI id, such as `H100-SXM5-80GB`; \
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
