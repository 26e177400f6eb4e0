//! Selects how a GEMM is computed.

use cudarc::driver::result;

use super::{Device, ONE_AT, to_usize};
use crate::cuda::backend::{GemmPrecision, UnsupportedGemm};
use crate::cuda::blas::{Blas, BlasUnavailable, GemmPlan};
use crate::cuda::error::{CudaError, DriverContext};

/// Rows and columns of the GEMM in the trial run of a library.
const TRIAL_SIDE: u64 = 256;

impl Device {
    pub(super) fn gemm_library_handle(&self) -> &Result<Blas, BlasUnavailable> {
        self.blas.get_or_init(|| Blas::load(|blas| self.trial_run(blas)))
    }

    /// Checks whether a library works on this GPU with this driver. Ignores errors that implicate
    /// the GPU, because the tests report them.
    fn trial_run(&self, blas: &Blas) -> Result<(), CudaError> {
        let (precision, side) = (GemmPrecision::Fp16, TRIAL_SIDE);
        let bytes = to_usize(side * side * 2);
        let mut matrices = [0; 3];
        let multiplied = (|| {
            for matrix in &mut matrices {
                // SAFETY: freed below, whatever the outcome.
                *matrix = unsafe { result::malloc_sync(bytes) }.context("allocate GPU memory")?;
            }
            let plan = match blas.plan(precision, side, self.scratch + ONE_AT)? {
                Ok(plan) => plan,
                Err(err) => {
                    let detail = err.to_string();
                    return Err(CudaError::Unavailable { what: "plan a GEMM", detail });
                }
            };
            let stream = self.stream.cu_stream().cast();
            // SAFETY: the matrices have the plan's size; they and the workspace live until the
            // stream is synchronised.
            let launched = unsafe { blas.multiply(&plan, matrices, self.workspace, stream) };
            let waited = self.stream.synchronize().context("wait for the GPU");
            blas.destroy_plan(&plan);
            launched.and(waited)
        })();
        for matrix in matrices.into_iter().filter(|matrix| *matrix != 0) {
            // SAFETY: allocated above and used nowhere else; the stream is done with it.
            let _ = unsafe { result::free_sync(matrix) };
        }
        match multiplied {
            Err(err @ CudaError::Unavailable { .. }) => Err(err),
            _ => Ok(()),
        }
    }

    /// A cuBLASLt plan, or `None` for farrier's own kernel. The inner `Err` means that neither
    /// works.
    pub(super) fn select_plan(
        &self,
        precision: GemmPrecision,
        side: u64,
    ) -> Result<Result<Option<GemmPlan>, UnsupportedGemm>, CudaError> {
        if let Some(unsupported) = precision.unsupported_on(self.info.compute_capability) {
            return Ok(Err(unsupported));
        }
        if precision == GemmPrecision::OwnKernel {
            return Ok(Ok(None));
        }
        match self.gemm_library_handle() {
            Err(err) => Ok(Err(UnsupportedGemm::on_this_machine(err.to_string()))),
            Ok(blas) => {
                let plan = blas.plan(precision, side, self.scratch + ONE_AT)?;
                Ok(plan.map(Some).map_err(|err| UnsupportedGemm::on_this_machine(err.to_string())))
            }
        }
    }
}
