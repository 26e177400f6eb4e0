//! Implements [`GpuBackend`] with CUDA calls.

use std::time::Instant;

use cudarc::driver::{DriverError, result};

use super::kernels::KernelArg;
use super::{
    DIGEST_AT, Device, LAUNCH_COUNT_AT, MISMATCHES_AT, MISMATCHES_WORDS, PreparedGemm, to_usize,
};
use crate::cuda::backend::{
    DeviceBuffer, Gemm, GemmPrecision, GpuBackend, GpuInfo, HostBuffer, MemoryMismatch,
    MemoryMismatches, UnsupportedGemm, Work,
};
use crate::cuda::error::{CudaError, DriverContext, error_text};
use crate::cuda::matrix_values;

impl GpuBackend for Device {
    fn info(&self) -> &GpuInfo {
        &self.info
    }

    fn free_bytes(&mut self) -> Result<u64, CudaError> {
        let (free, _) = self.context.mem_get_info().context("query free memory")?;
        Ok(free as u64)
    }

    fn allocate(&mut self, bytes: u64) -> Result<DeviceBuffer, CudaError> {
        self.context.bind_to_thread().context("create a CUDA context")?;
        // SAFETY: freed by `free`, or when the device is dropped.
        let address =
            unsafe { result::malloc_sync(to_usize(bytes)) }.context("allocate GPU memory")?;
        let id = self.next_id();
        self.buffers.insert(id, address);
        Ok(DeviceBuffer { id, bytes })
    }

    fn free(&mut self, buffer: DeviceBuffer) -> Result<(), CudaError> {
        let Some(address) = self.buffers.remove(&buffer.id) else { return Ok(()) };
        // SAFETY: it was allocated by `allocate` or `allocate_peer` and just removed from the map.
        unsafe { result::free_sync(address) }.context("free GPU memory")
    }

    fn allocate_host(&mut self, bytes: u64) -> Result<HostBuffer, CudaError> {
        // SAFETY: freed by `free_host`, or when the device is dropped. It is written before it is
        // read.
        let address =
            unsafe { result::malloc_host(to_usize(bytes), 0) }.map_err(from_pinned_allocation)?;
        let id = self.next_id();
        self.host_buffers.insert(id, address);
        Ok(HostBuffer { id, bytes })
    }

    fn free_host(&mut self, buffer: HostBuffer) -> Result<(), CudaError> {
        let Some(address) = self.host_buffers.remove(&buffer.id) else { return Ok(()) };
        // SAFETY: it was allocated by `allocate_host` and just removed from the map.
        unsafe { result::free_host(address) }.context("free pinned memory")
    }

    fn peers(&self) -> Vec<String> {
        self.peers.iter().map(|peer| peer.name().unwrap_or_else(error_text)).collect()
    }

    fn allocate_peer(&mut self, peer: usize, bytes: u64) -> Result<DeviceBuffer, CudaError> {
        let Some(context) = self.peers.get(peer) else {
            return Err(CudaError::NoSuchGpu { index: peer, count: self.peers.len() });
        };
        context.bind_to_thread().context("create a CUDA context on a peer GPU")?;
        // SAFETY: freed by `free`, or when the device is dropped. The address is enough to free the
        // memory, whichever context is current.
        let address =
            unsafe { result::malloc_sync(to_usize(bytes)) }.context("allocate GPU memory");
        self.context.bind_to_thread().context("create a CUDA context")?;
        let id = self.next_id();
        self.buffers.insert(id, address?);
        Ok(DeviceBuffer { id, bytes })
    }

    fn prepare_gemm(
        &mut self,
        precision: GemmPrecision,
        side: u64,
    ) -> Result<Result<Gemm, UnsupportedGemm>, CudaError> {
        let plan = match self.select_plan(precision, side)? {
            Ok(plan) => plan,
            Err(why) => return Ok(Err(why)),
        };
        let (factor, sum) = matrix_values::widths(precision);
        let mut matrices = Vec::new();
        for bytes in [factor, factor, sum].map(|width| side * side * width) {
            match self.allocate(bytes) {
                Ok(buffer) => matrices.push(buffer),
                Err(err) => {
                    for buffer in matrices {
                        self.free(buffer)?;
                    }
                    if let (Some(plan), Some(Ok(blas))) = (plan, self.blas.get()) {
                        blas.destroy_plan(&plan);
                    }
                    return Err(err);
                }
            }
        }
        let [a, b, c] = [matrices[0], matrices[1], matrices[2]];
        let bits = matrix_values::bits(precision);
        for (buffer, seed) in [(a, matrix_values::SEEDS.0), (b, matrix_values::SEEDS.1)] {
            let mut values = [
                KernelArg::U64(self.address(buffer)?),
                KernelArg::U64(buffer.bytes / 4),
                KernelArg::U32(seed),
                KernelArg::U32(bits.even.0),
                KernelArg::U32(bits.even.1),
                KernelArg::U32(bits.odd.0),
                KernelArg::U32(bits.odd.1),
            ];
            self.launch(&self.kernels.scatter, (self.grid(), 1), &mut values)?;
        }
        let id = self.next_id();
        self.gemms.insert(id, PreparedGemm { side, matrices: [a, b, c], plan });
        Ok(Ok(Gemm { id, side, result: c }))
    }

    fn release_gemm(&mut self, gemm: Gemm) -> Result<(), CudaError> {
        let Some(prepared) = self.gemms.remove(&gemm.id) else { return Ok(()) };
        self.stream.synchronize().context("wait for the GPU")?;
        if let (Some(plan), Some(Ok(blas))) = (prepared.plan, self.blas.get()) {
            blas.destroy_plan(&plan);
        }
        for buffer in prepared.matrices {
            self.free(buffer)?;
        }
        Ok(())
    }

    fn run_timed(&mut self, work: &[Work]) -> Result<f64, CudaError> {
        let (stream, [start, end]) = (self.stream.cu_stream(), self.events);
        // SAFETY: events and stream belong to this context and live as long as the device.
        unsafe { result::event::record(start, stream) }.context("record an event")?;
        for each in work {
            self.submit(*each)?;
        }
        // SAFETY: as above.
        unsafe { result::event::record(end, stream) }.context("record an event")?;
        self.stream.synchronize().context("wait for the GPU")?;
        // SAFETY: both were recorded on one stream, which is idle.
        let ms = unsafe { result::event::elapsed(start, end) }.context("read the elapsed time")?;
        Ok(f64::from(ms) / 1e3)
    }

    fn submit_timed(&mut self, work: Work) -> Result<(f64, f64), CudaError> {
        self.stream.synchronize().context("wait for the GPU")?;
        let began = Instant::now();
        self.submit(work)?;
        let submitted = began.elapsed();
        self.stream.synchronize().context("wait for the GPU")?;
        Ok((submitted.as_secs_f64(), began.elapsed().as_secs_f64()))
    }

    fn read_words(&mut self, buffer: DeviceBuffer, count: usize) -> Result<Vec<u32>, CudaError> {
        let most = to_usize(buffer.bytes / 4);
        self.read_u32s(self.address(buffer)?, count.min(most))
    }

    fn take_mismatches(&mut self) -> Result<MemoryMismatches, CudaError> {
        let words = self.read_u32s(self.scratch + MISMATCHES_AT, MISMATCHES_WORDS)?;
        self.blank(MISMATCHES_AT, MISMATCHES_WORDS * 4)?;
        Ok(decode_mismatches(&words))
    }

    fn digest(&mut self) -> Result<u64, CudaError> {
        let words = self.read_u32s(self.scratch + DIGEST_AT, 2)?;
        Ok(u64::from(words[1]) << 32 | u64::from(words[0]))
    }

    fn launch_count(&mut self) -> Result<u32, CudaError> {
        Ok(self.read_u32s(self.scratch + LAUNCH_COUNT_AT, 1)?[0])
    }

    fn gemm_library(&self, precision: GemmPrecision) -> String {
        match (precision, self.gemm_library_handle()) {
            (GemmPrecision::OwnKernel, _) => "farrier's kernel".to_owned(),
            (_, Ok(blas)) => blas.name.clone(),
            (_, Err(_)) => "no library".to_owned(),
        }
    }
}

/// Converts an error of a pinned allocation. Pinned memory belongs to the host, so running out of
/// it does not implicate the GPU.
fn from_pinned_allocation(err: DriverError) -> CudaError {
    let what = "allocate pinned memory";
    match CudaError::from_driver(what, err) {
        CudaError::OutOfMemory => CudaError::Unavailable { what, detail: error_text(err) },
        other => other,
    }
}

/// Decodes the `Found` structure of memory.cu.
fn decode_mismatches(words: &[u32]) -> MemoryMismatches {
    let pair = |at: usize| u64::from(words[at + 1]) << 32 | u64::from(words[at]);
    let count = (words[2] as usize).min(8);
    let examples = (0..count).map(|index| {
        let at = 4 + index * 4;
        MemoryMismatch { word: pair(at), expected: words[at + 2], found: words[at + 3] }
    });
    MemoryMismatches { count: pair(0), examples: examples.collect() }
}
