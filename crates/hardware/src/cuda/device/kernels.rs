//! The kernels and their arguments.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction};
use cudarc::nvrtc::Ptx;

use crate::cuda::error::{CudaError, DriverContext};
use crate::cuda::{MEMORY_PTX, TENSOR_PTX};

pub(super) struct Kernels {
    pub(super) fill: CudaFunction,
    pub(super) check: CudaFunction,
    pub(super) read: CudaFunction,
    pub(super) copy: CudaFunction,
    pub(super) prove: CudaFunction,
    pub(super) hunt: CudaFunction,
    pub(super) scatter: CudaFunction,
    pub(super) digest: CudaFunction,
    pub(super) tick: CudaFunction,
    /// Tensor core kernels. `None` on GPUs below compute capability 8.0.
    pub(super) tensor: Option<(CudaFunction, CudaFunction)>,
}

impl Kernels {
    pub(super) fn load(
        context: &Arc<CudaContext>,
        capability: (i32, i32),
    ) -> Result<Self, CudaError> {
        if capability < (7, 0) {
            let detail = format!(
                "compute capability 7.0 is required, this GPU has {}.{}",
                capability.0, capability.1
            );
            return Err(CudaError::Unavailable { what: "load the kernels", detail });
        }
        let memory = context.load_module(Ptx::from_src(MEMORY_PTX)).context("load the kernels")?;
        let tensor = if capability >= (8, 0) {
            let module =
                context.load_module(Ptx::from_src(TENSOR_PTX)).context("load the kernels")?;
            let function = |name| module.load_function(name).context("find a kernel");
            Some((function("hunt_tensor")?, function("product")?))
        } else {
            None
        };
        let function = |name| memory.load_function(name).context("find a kernel");
        Ok(Self {
            fill: function("fill")?,
            check: function("check")?,
            read: function("read")?,
            copy: function("copy")?,
            prove: function("prove")?,
            hunt: function("hunt")?,
            scatter: function("scatter")?,
            digest: function("digest")?,
            tick: function("tick")?,
            tensor,
        })
    }
}

/// A kernel argument.
#[derive(Debug, Clone, Copy)]
pub(super) enum KernelArg {
    U64(u64),
    U32(u32),
}

impl KernelArg {
    pub(super) fn pointer(&mut self) -> *mut c_void {
        match self {
            Self::U64(value) => (&raw mut *value).cast(),
            Self::U32(value) => (&raw mut *value).cast(),
        }
    }
}
