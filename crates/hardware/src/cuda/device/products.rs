//! Selects how a GEMM is computed.

use cudarc::driver::result;

use super::{Device, ONE_AT, wide};
use crate::cuda::blas::{Blas, NoBlas, Plan};
use crate::cuda::edge::{NoWay, Precision};
use crate::cuda::error::{CudaError, Purpose};

/// Rows and columns of the GEMM that a library is tried with.
const TRIAL_SIDE: u64 = 256;

impl Device {
    pub(super) fn library_of(&self) -> &Result<Blas, NoBlas> {
        self.blas.get_or_init(|| Blas::load(|blas| self.tried(blas)))
    }

    /// Whether a library works on this GPU with this driver. Errors that implicate the GPU are left
    /// to the tests.
    fn tried(&self, blas: &Blas) -> Result<(), CudaError> {
        let (precision, side) = (Precision::Fp16, TRIAL_SIDE);
        let bytes = wide(side * side * 2);
        let mut matrices = [0; 3];
        let multiplied = (|| {
            for matrix in &mut matrices {
                // SAFETY: freed below, whatever the outcome.
                *matrix = unsafe { result::malloc_sync(bytes) }.to("allocate GPU memory")?;
            }
            let plan = match blas.plan(precision, side, self.scratch + ONE_AT)? {
                Ok(plan) => plan,
                Err(err) => {
                    let said = err.to_string();
                    return Err(CudaError::Withheld { what: "plan a GEMM", said });
                }
            };
            let stream = self.stream.cu_stream().cast();
            // SAFETY: the matrices have the plan's size; they and the workspace live until the
            // stream is synchronised.
            let given = unsafe { blas.multiply(&plan, matrices, self.workspace, stream) };
            let waited = self.stream.synchronize().to("wait for the GPU");
            blas.forget(&plan);
            given.and(waited)
        })();
        for matrix in matrices.into_iter().filter(|matrix| *matrix != 0) {
            // SAFETY: allocated above and used nowhere else; the stream is done with it.
            let _ = unsafe { result::free_sync(matrix) };
        }
        match multiplied {
            Err(err @ CudaError::Withheld { .. }) => Err(err),
            _ => Ok(()),
        }
    }

    /// A cuBLASLt plan, or `None` for farrier's own kernel. The inner `Err` means that neither
    /// works.
    pub(super) fn way(
        &self,
        precision: Precision,
        side: u64,
    ) -> Result<Result<Option<Plan>, NoWay>, CudaError> {
        if let Some(lacked) = precision.lacked(self.about.compute_capability) {
            return Ok(Err(lacked));
        }
        if precision == Precision::Own {
            return Ok(Ok(None));
        }
        match self.library_of() {
            Err(err) => Ok(Err(NoWay::of_machine(err.to_string()))),
            Ok(blas) => {
                let plan = blas.plan(precision, side, self.scratch + ONE_AT)?;
                Ok(plan.map(Some).map_err(|err| NoWay::of_machine(err.to_string())))
            }
        }
    }
}
