//! GEMMs through NVIDIA's cuBLASLt, found at run time in a CUDA toolkit or a Python package.
//!
//! Binds only the functions of the documented C API that a GEMM of square matrices needs (cuBLAS
//! documentation, "Using the cuBLASLt API").

use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr;

use libloading::Library;

use super::backend::GemmPrecision;
use super::error::CudaError;

/// `CUBLAS_STATUS_SUCCESS`
const SUCCESS: c_int = 0;
/// `CUBLAS_STATUS_NOT_SUPPORTED`: no algorithm for this GEMM on this GPU.
const NOT_SUPPORTED: c_int = 15;

/// `cublasOperation_t`.
const TRANSPOSED: i32 = 1;
/// `cublasLtMatmulDescAttributes_t`.
const DESC_TRANSA: c_int = 3;
const DESC_SCALE_A: c_int = 17;
const DESC_SCALE_B: c_int = 18;
/// `cublasLtMatmulPreferenceAttributes_t`.
const PREF_WORKSPACE: c_int = 1;

/// Workspace limit: NVIDIA's recommendation for Hopper.
pub(super) const WORKSPACE_BYTES: usize = 32 << 20;

/// `cublasLtMatmulHeuristicResult_t`: a selected algorithm.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Algorithm {
    algo: [u64; 8],
    workspace: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

type Handle = *mut c_void;

struct Functions {
    desc_create: unsafe extern "C" fn(*mut Handle, c_int, c_int) -> c_int,
    desc_set: unsafe extern "C" fn(Handle, c_int, *const c_void, usize) -> c_int,
    desc_destroy: unsafe extern "C" fn(Handle) -> c_int,
    layout_create: unsafe extern "C" fn(*mut Handle, c_int, u64, u64, i64) -> c_int,
    layout_destroy: unsafe extern "C" fn(Handle) -> c_int,
    pref_create: unsafe extern "C" fn(*mut Handle) -> c_int,
    pref_set: unsafe extern "C" fn(Handle, c_int, *const c_void, usize) -> c_int,
    pref_destroy: unsafe extern "C" fn(Handle) -> c_int,
    heuristic: unsafe extern "C" fn(
        Handle,
        Handle,
        Handle,
        Handle,
        Handle,
        Handle,
        Handle,
        c_int,
        *mut Algorithm,
        *mut c_int,
    ) -> c_int,
    matmul: unsafe extern "C" fn(
        Handle,
        Handle,
        *const c_void,
        u64,
        Handle,
        u64,
        Handle,
        *const c_void,
        u64,
        Handle,
        u64,
        Handle,
        *const Algorithm,
        u64,
        usize,
        *mut c_void,
    ) -> c_int,
    destroy: unsafe extern "C" fn(Handle) -> c_int,
}

/// The library with an open handle.
pub(super) struct Blas {
    functions: Functions,
    handle: Handle,
    /// Name and version, such as `cuBLASLt 13.1.0`.
    pub(super) name: String,
    // Dropped last: the function pointers refer to it.
    _library: Library,
}

/// Why a library is unusable.
#[derive(Debug, thiserror::Error)]
pub(super) enum BlasOpenError {
    #[error(transparent)]
    Load(#[from] libloading::Error),
    #[error("cublasLtCreate returned {0}")]
    Create(c_int),
    /// The library loads but does not work on this GPU.
    #[error("{name}: {err}")]
    TrialFailed { name: String, err: CudaError },
}

/// No usable library.
#[derive(Debug, thiserror::Error)]
#[error("{}", self.describe())]
pub(super) struct BlasUnavailable {
    /// The libraries that exist, and why each of them failed.
    tried: Vec<(PathBuf, BlasOpenError)>,
}

impl BlasUnavailable {
    fn describe(&self) -> String {
        if self.tried.is_empty() {
            return "no libcublasLt was found by the loader, in /usr/local/cuda or in a Python package; \
                    set FARRIER_CUBLASLT to its path"
                .to_owned();
        }
        let each = self.tried.iter().map(|(path, err)| format!("{}: {err}", path.display()));
        each.collect::<Vec<_>>().join("; ")
    }
}

/// The library has no algorithm for this GEMM on this GPU.
#[derive(Debug, thiserror::Error)]
#[error("{library} has no algorithm for this GEMM on this GPU")]
pub(super) struct NoAlgorithm {
    library: String,
}

/// A prepared GEMM: descriptors and the selected algorithm.
pub(super) struct GemmPlan {
    desc: Handle,
    layouts: [Handle; 3],
    algorithm: Algorithm,
    precision: GemmPrecision,
}

/// cuBLASLt types of a precision: inputs, result, accumulation and scale factors.
fn types(precision: GemmPrecision) -> (c_int, c_int, c_int, c_int) {
    // `cudaDataType_t` and `cublasComputeType_t`.
    let (f32, f64, f16, bf16, e4m3) = (0, 1, 2, 14, 28);
    let (sums, sums_tf32, sums_f64) = (68, 77, 70);
    match precision {
        GemmPrecision::Bf16 | GemmPrecision::OwnKernel => (bf16, bf16, sums, f32),
        GemmPrecision::Fp16 => (f16, f16, sums, f32),
        GemmPrecision::Fp8 => (e4m3, bf16, sums, f32),
        GemmPrecision::Tf32 => (f32, f32, sums_tf32, f32),
        GemmPrecision::Fp64 => (f64, f64, sums_f64, f64),
    }
}

impl Blas {
    /// Returns the first library that loads and passes `trial`. The trial is needed because a
    /// library that is newer than the driver loads but does not work.
    pub(super) fn load(
        trial: impl Fn(&Self) -> Result<(), CudaError>,
    ) -> Result<Self, BlasUnavailable> {
        let mut tried = Vec::new();
        for path in candidates() {
            let opened = Self::open(&path).and_then(|blas| match trial(&blas) {
                Ok(()) => Ok(blas),
                Err(err) => Err(BlasOpenError::TrialFailed { name: blas.name.clone(), err }),
            });
            match opened {
                Ok(blas) => return Ok(blas),
                Err(err) if path.is_absolute() => tried.push((path, err)),
                Err(_) => {}
            }
        }
        Err(BlasUnavailable { tried })
    }

    fn open(path: &Path) -> Result<Self, BlasOpenError> {
        // SAFETY: loading runs the initialisers of NVIDIA's library, as in every program that uses
        // it.
        let library = unsafe { Library::new(path) }?;
        let create: unsafe extern "C" fn(*mut Handle) -> c_int =
            symbol(&library, "cublasLtCreate")?;
        let version: unsafe extern "C" fn() -> usize = symbol(&library, "cublasLtGetVersion")?;
        let functions = Functions {
            desc_create: symbol(&library, "cublasLtMatmulDescCreate")?,
            desc_set: symbol(&library, "cublasLtMatmulDescSetAttribute")?,
            desc_destroy: symbol(&library, "cublasLtMatmulDescDestroy")?,
            layout_create: symbol(&library, "cublasLtMatrixLayoutCreate")?,
            layout_destroy: symbol(&library, "cublasLtMatrixLayoutDestroy")?,
            pref_create: symbol(&library, "cublasLtMatmulPreferenceCreate")?,
            pref_set: symbol(&library, "cublasLtMatmulPreferenceSetAttribute")?,
            pref_destroy: symbol(&library, "cublasLtMatmulPreferenceDestroy")?,
            heuristic: symbol(&library, "cublasLtMatmulAlgoGetHeuristic")?,
            matmul: symbol(&library, "cublasLtMatmul")?,
            destroy: symbol(&library, "cublasLtDestroy")?,
        };
        let mut handle = ptr::null_mut();
        // SAFETY: the call writes one pointer. It requires a current context, which exists.
        let status = unsafe { create(&raw mut handle) };
        if status != SUCCESS {
            return Err(BlasOpenError::Create(status));
        }
        // SAFETY: the call only returns an integer.
        let number = unsafe { version() };
        let name = format!("cuBLASLt {}", version_text(number));
        Ok(Self { functions, handle, name, _library: library })
    }

    /// Prepares a GEMM whose result is `a` transposed times `b`. All matrices are `side` by `side`.
    /// The inner `Err` means that no algorithm exists. `ones` is a GPU address of the value 1.0,
    /// which is the scale of FP8 inputs.
    pub(super) fn plan(
        &self,
        precision: GemmPrecision,
        side: u64,
        ones: u64,
    ) -> Result<Result<GemmPlan, NoAlgorithm>, CudaError> {
        let (factors, result, sums, scale) = types(precision);
        let leading = i64::try_from(side).unwrap_or(i64::MAX);
        let mut plan = GemmPlan {
            desc: ptr::null_mut(),
            layouts: [ptr::null_mut(); 3],
            algorithm: Algorithm {
                algo: [0; 8],
                workspace: 0,
                state: 0,
                waves: 0.0,
                reserved: [0; 4],
            },
            precision,
        };
        let created =
            self.describe(&mut plan, (factors, result, sums, scale), (side, leading), ones);
        let chosen = created.and_then(|()| self.choose(&mut plan));
        match chosen {
            Ok(Ok(())) => Ok(Ok(plan)),
            Ok(Err(why)) => {
                self.destroy_plan(&plan);
                Ok(Err(why))
            }
            Err(err) => {
                self.destroy_plan(&plan);
                Err(err)
            }
        }
    }

    fn describe(
        &self,
        plan: &mut GemmPlan,
        (factors, result, sums, scale): (c_int, c_int, c_int, c_int),
        (side, leading): (u64, i64),
        ones: u64,
    ) -> Result<(), CudaError> {
        // SAFETY: each call writes one pointer or reads a value of the size passed with it;
        // `destroy_plan` destroys what was created, even if a later call fails.
        unsafe {
            check_status(
                "describe a GEMM",
                (self.functions.desc_create)(&raw mut plan.desc, sums, scale),
            )?;
            let transposed = TRANSPOSED;
            let set = |attribute, value: *const c_void, bytes| {
                check_status(
                    "describe a GEMM",
                    (self.functions.desc_set)(plan.desc, attribute, value, bytes),
                )
            };
            set(DESC_TRANSA, (&raw const transposed).cast(), size_of::<i32>())?;
            if plan.precision == GemmPrecision::Fp8 {
                set(DESC_SCALE_A, (&raw const ones).cast(), size_of::<u64>())?;
                set(DESC_SCALE_B, (&raw const ones).cast(), size_of::<u64>())?;
            }
            for (layout, kind) in plan.layouts.iter_mut().zip([factors, factors, result]) {
                let created = (self.functions.layout_create)(layout, kind, side, side, leading);
                check_status("describe a matrix", created)?;
            }
        }
        Ok(())
    }

    /// Selects the algorithm that the library ranks first.
    fn choose(&self, plan: &mut GemmPlan) -> Result<Result<(), NoAlgorithm>, CudaError> {
        let mut preference = ptr::null_mut();
        let mut count = 0;
        // SAFETY: as in `describe`; the algorithm is fully written if the count is 1.
        let status = unsafe {
            check_status(
                "select a GEMM algorithm",
                (self.functions.pref_create)(&raw mut preference),
            )?;
            let most = WORKSPACE_BYTES;
            let bytes = (&raw const most).cast();
            let set =
                (self.functions.pref_set)(preference, PREF_WORKSPACE, bytes, size_of::<usize>());
            let [a, b, c] = plan.layouts;
            let status = if set == SUCCESS {
                (self.functions.heuristic)(
                    self.handle,
                    plan.desc,
                    a,
                    b,
                    c,
                    c,
                    preference,
                    1,
                    &raw mut plan.algorithm,
                    &raw mut count,
                )
            } else {
                set
            };
            (self.functions.pref_destroy)(preference);
            status
        };
        if status == NOT_SUPPORTED || (status == SUCCESS && count == 0) {
            return Ok(Err(NoAlgorithm { library: self.name.clone() }));
        }
        check_status("select a GEMM algorithm", status)?;
        Ok(Ok(()))
    }

    /// Enqueues the GEMM on a stream. All addresses are GPU addresses.
    ///
    /// # Safety
    ///
    /// The matrices have the plan's size, the workspace has [`WORKSPACE_BYTES`], and all live until
    /// the stream is idle.
    pub(super) unsafe fn multiply(
        &self,
        plan: &GemmPlan,
        [a, b, c]: [u64; 3],
        workspace: u64,
        stream: *mut c_void,
    ) -> Result<(), CudaError> {
        let (one, zero) = (1.0_f32, 0.0_f32);
        let (one_wide, zero_wide) = (1.0_f64, 0.0_f64);
        let (alpha, beta): (*const c_void, *const c_void) = if plan.precision == GemmPrecision::Fp64
        {
            ((&raw const one_wide).cast(), (&raw const zero_wide).cast())
        } else {
            ((&raw const one).cast(), (&raw const zero).cast())
        };
        let [layout_a, layout_b, layout_c] = plan.layouts;
        // SAFETY: the caller guarantees the memory; alpha and beta are read before the call
        // returns.
        let status = unsafe {
            (self.functions.matmul)(
                self.handle,
                plan.desc,
                alpha,
                a,
                layout_a,
                b,
                layout_b,
                beta,
                c,
                layout_c,
                c,
                layout_c,
                &raw const plan.algorithm,
                workspace,
                WORKSPACE_BYTES,
                stream,
            )
        };
        check_status("multiply matrices", status)
    }

    /// Destroys the plan's descriptors.
    pub(super) fn destroy_plan(&self, plan: &GemmPlan) {
        for layout in plan.layouts.into_iter().filter(|layout| !layout.is_null()) {
            // SAFETY: created by `layout_create` and destroyed once.
            unsafe { (self.functions.layout_destroy)(layout) };
        }
        if !plan.desc.is_null() {
            // SAFETY: as above.
            unsafe { (self.functions.desc_destroy)(plan.desc) };
        }
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: the handle came from `cublasLtCreate` and is not used afterwards.
        unsafe { (self.functions.destroy)(self.handle) };
    }
}

fn symbol<T: Copy>(library: &Library, name: &'static str) -> Result<T, libloading::Error> {
    // SAFETY: the types match the header, which has not changed since CUDA 10.1.
    let found = unsafe { library.get::<T>(name) };
    found.map(|symbol| *symbol)
}

fn check_status(what: &'static str, status: c_int) -> Result<(), CudaError> {
    if status == SUCCESS { Ok(()) } else { Err(CudaError::from_blas(what, status)) }
}

/// `130100` is 13.1.0. Since CUDA 11, minor and patch have two digits each.
fn version_text(number: usize) -> String {
    format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100)
}

/// Candidate paths, likeliest first. Newer versions come first, because they support more GPUs.
fn candidates() -> Vec<PathBuf> {
    const NAMES: [&str; 4] =
        ["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11", "libcublasLt.so"];
    if let Some(named) = std::env::var_os("FARRIER_CUBLASLT") {
        return vec![named.into()];
    }
    let mut found: Vec<PathBuf> = NAMES.map(PathBuf::from).to_vec();
    let mut dirs: Vec<PathBuf> =
        ["/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib"]
            .map(PathBuf::from)
            .to_vec();
    for packages in python_packages() {
        for below in ["nvidia/cu13/lib", "nvidia/cublas/lib"] {
            dirs.push(packages.join(below));
        }
    }
    for dir in dirs {
        found.extend(NAMES.map(|name| dir.join(name)).into_iter().filter(|path| path.exists()));
    }
    found
}

/// Directories with Python packages, first those of the active environment, then the system's.
fn python_packages() -> Vec<PathBuf> {
    let mut prefixes: Vec<PathBuf> = vec!["/usr/local".into(), "/usr".into()];
    prefixes.extend(
        ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(std::env::var_os).map(Into::into),
    );
    let mut found = Vec::new();
    for prefix in prefixes.into_iter().rev() {
        let Ok(entries) = std::fs::read_dir(prefix.join("lib")) else { continue };
        let mut pythons: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        pythons.sort();
        for python in pythons.iter().rev() {
            for packages in ["site-packages", "dist-packages"] {
                let dir = python.join(packages);
                if dir.join("nvidia").is_dir() {
                    found.push(dir);
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_decoded() {
        assert_eq!(version_text(130_100), "13.1.0");
        assert_eq!(version_text(120_803), "12.8.3");
    }

    #[test]
    fn file_that_is_not_a_library_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("libcublasLt.so.13");
        std::fs::write(&path, "not a library").unwrap();
        assert!(Blas::open(&path).is_err());
    }
}
