//! CUDA contexts of the GPU under test and of its peers.

use std::sync::Arc;

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{self, CUresult};

use crate::cuda::error::{CudaError, DriverContext, error_text};

/// Creates the context of a GPU by index.
pub(in crate::cuda) fn open(index: usize) -> Result<Arc<CudaContext>, CudaError> {
    let count = match CudaContext::device_count() {
        Ok(count) => usize::try_from(count).unwrap_or(0),
        // A driver without a GPU and the toolkit's stub library return different errors here. Both
        // mean that there is no GPU.
        Err(err) => return Err(CudaError::NoGpu { detail: error_text(err) }),
    };
    if count == 0 {
        return Err(CudaError::NoGpu { detail: "device count is 0".to_owned() });
    }
    if index >= count {
        return Err(CudaError::NoSuchGpu { index, count });
    }
    CudaContext::new(index).context("create a CUDA context")
}

/// Returns the contexts of the peers, which are the GPUs that this GPU can access directly. Peer
/// access is enabled in both directions.
pub(super) fn peers(
    own: &Arc<CudaContext>,
    index: usize,
) -> Result<Vec<Arc<CudaContext>>, CudaError> {
    let count = CudaContext::device_count().context("count the GPUs")?;
    let mut found = Vec::new();
    for other in (0..usize::try_from(count).unwrap_or(0)).filter(|other| *other != index) {
        let Ok(peer) = CudaContext::new(other) else { continue };
        let mut can = 0;
        // SAFETY: the call writes one integer.
        let queried =
            unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, own.cu_device(), peer.cu_device()) };
        if queried.result().is_err() || can == 0 {
            continue;
        }
        for (from, to) in [(own, &peer), (&peer, own)] {
            from.bind_to_thread().context("create a CUDA context")?;
            // SAFETY: both contexts live as long as the device.
            let enabled = unsafe { sys::cuCtxEnablePeerAccess(to.cu_ctx(), 0) };
            if enabled != CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED {
                enabled.result().context("enable peer access")?;
            }
        }
        found.push(peer);
    }
    Ok(found)
}
