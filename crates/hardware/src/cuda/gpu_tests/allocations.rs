//! Records the allocations of a test, and frees them even if the test fails.

use std::ops::{Deref, DerefMut};

use super::super::backend::{
    DeviceBuffer, Gemm, GemmPrecision, GpuBackend, HostBuffer, UnsupportedGemm,
};
use super::super::error::CudaError;

/// A backend, and everything that one test has allocated from it.
pub(super) struct Allocations<'b> {
    backend: &'b mut dyn GpuBackend,
    buffers: Vec<DeviceBuffer>,
    host_buffers: Vec<HostBuffer>,
    gemms: Vec<Gemm>,
}

impl<'b> Allocations<'b> {
    pub(super) fn new(backend: &'b mut dyn GpuBackend) -> Self {
        Self { backend, buffers: Vec::new(), host_buffers: Vec::new(), gemms: Vec::new() }
    }

    pub(super) fn buffer(&mut self, bytes: u64) -> Result<DeviceBuffer, CudaError> {
        let buffer = self.backend.allocate(bytes)?;
        self.buffers.push(buffer);
        Ok(buffer)
    }

    pub(super) fn peer_buffer(
        &mut self,
        peer: usize,
        bytes: u64,
    ) -> Result<DeviceBuffer, CudaError> {
        let buffer = self.backend.allocate_peer(peer, bytes)?;
        self.buffers.push(buffer);
        Ok(buffer)
    }

    pub(super) fn host_buffer(&mut self, bytes: u64) -> Result<HostBuffer, CudaError> {
        let buffer = self.backend.allocate_host(bytes)?;
        self.host_buffers.push(buffer);
        Ok(buffer)
    }

    pub(super) fn prepare_gemm(
        &mut self,
        precision: GemmPrecision,
        side: u64,
    ) -> Result<Result<Gemm, UnsupportedGemm>, CudaError> {
        let prepared = self.backend.prepare_gemm(precision, side)?;
        self.gemms.extend(prepared.as_ref().ok());
        Ok(prepared)
    }

    /// Returns the size of each of `parts` buffers, rounded down to whole MiB. A buffer has at most
    /// `bytes`, and all buffers together take at most half of the free memory. A buffer always has
    /// at least 1 MiB.
    pub(super) fn buffer_bytes(&mut self, bytes: u64, parts: u64) -> Result<u64, CudaError> {
        let free = self.backend.free_bytes()?;
        Ok(round_to_mib(bytes.min(free / 2 / parts)))
    }
}

/// Rounds down to whole MiB. Kernels access four words at a time, so the size of a buffer must be a
/// multiple of four words. Returns at least 1 MiB.
pub(super) fn round_to_mib(bytes: u64) -> u64 {
    (bytes >> 20 << 20).max(1 << 20)
}

impl<'b> Deref for Allocations<'b> {
    type Target = dyn GpuBackend + 'b;

    fn deref(&self) -> &Self::Target {
        self.backend
    }
}

impl DerefMut for Allocations<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.backend
    }
}

impl Drop for Allocations<'_> {
    fn drop(&mut self) {
        // An error here comes from a lost GPU, which the test itself reported.
        for gemm in self.gemms.drain(..) {
            let _ = self.backend.release_gemm(gemm);
        }
        for buffer in self.buffers.drain(..) {
            let _ = self.backend.free(buffer);
        }
        for buffer in self.host_buffers.drain(..) {
            let _ = self.backend.free_host(buffer);
        }
    }
}
