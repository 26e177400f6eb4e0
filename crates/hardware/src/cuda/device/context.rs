//! Contexts: of the GPU under test, and of the others that it reaches.

use std::sync::Arc;

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{self, CUresult};

use crate::cuda::error::{CudaError, Purpose, words};

/// The GPU of that number.
pub(in crate::cuda) fn open(index: usize) -> Result<Arc<CudaContext>, CudaError> {
    let count = match CudaContext::device_count() {
        Ok(count) => usize::try_from(count).unwrap_or(0),
        // A driver without a GPU, and the toolkit's stand-in for the library, say so in different ways.
        Err(err) => return Err(CudaError::NoGpu { said: words(err) }),
    };
    if count == 0 {
        return Err(CudaError::NoGpu { said: "it counts none".to_owned() });
    }
    if index >= count {
        return Err(CudaError::NoSuchGpu { index, count });
    }
    CudaContext::new(index).to("start CUDA on the GPU")
}

/// The others that CUDA sees and that this one reaches without the host, opened both ways.
pub(super) fn peers(
    own: &Arc<CudaContext>,
    index: usize,
) -> Result<Vec<Arc<CudaContext>>, CudaError> {
    let count = CudaContext::device_count().to("count the GPUs")?;
    let mut found = Vec::new();
    for other in (0..usize::try_from(count).unwrap_or(0)).filter(|other| *other != index) {
        let Ok(peer) = CudaContext::new(other) else { continue };
        let mut can = 0;
        // SAFETY: it writes one number.
        let asked =
            unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, own.cu_device(), peer.cu_device()) };
        if asked.result().is_err() || can == 0 {
            continue;
        }
        for (from, to) in [(own, &peer), (&peer, own)] {
            from.bind_to_thread().to("start CUDA on the GPU")?;
            // SAFETY: both contexts live as long as the device.
            let enabled = unsafe { sys::cuCtxEnablePeerAccess(to.cu_ctx(), 0) };
            if enabled != CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED {
                enabled.result().to("open the way to another GPU")?;
            }
        }
        found.push(peer);
    }
    Ok(found)
}
