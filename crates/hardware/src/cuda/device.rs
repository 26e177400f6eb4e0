//! A real GPU, through CUDA's driver library.

mod context;
mod gemm;
mod kernels;
mod work;

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys::{
    self, CUdevice_attribute, CUdeviceptr, CUevent, CUevent_flags, CUgraphInstantiate_flags,
    CUstreamCaptureMode,
};
use cudarc::driver::{CudaContext, CudaFunction, CudaGraph, CudaStream, result};

pub(super) use self::context::open;
use self::context::peers;
use self::kernels::{KernelArg, Kernels};
use super::backend::{DeviceBuffer, Gemm, GpuInfo, HostBuffer, MemoryPattern, Work};
use super::blas::{self, Blas, BlasUnavailable, GemmPlan};
use super::error::{CudaError, DriverContext};
use super::library;

/// Threads per thread block. The kernels require this number.
const THREADS: u32 = 256;
/// Thread blocks per SM, as many as an SM runs at once.
const BLOCKS: u32 = 8;
/// Size of `Found` in memory.cu: four words with the counters, then eight entries of four words.
const MISMATCHES_WORDS: usize = 4 + 8 * 4;

/// One GPU. All work runs on one stream.
pub struct Device {
    info: GpuInfo,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    kernels: Kernels,
    blas: OnceCell<Result<Blas, BlasUnavailable>>,
    peers: Vec<Arc<CudaContext>>,
    buffers: BTreeMap<usize, CUdeviceptr>,
    host_buffers: BTreeMap<usize, *mut c_void>,
    gemms: BTreeMap<usize, PreparedGemm>,
    next: usize,
    /// Results of comparisons, digests and the counting kernel, then a constant 1.0 for cuBLASLt.
    scratch: CUdeviceptr,
    workspace: CUdeviceptr,
    events: [CUevent; 2],
    graph: Option<(u32, CudaGraph)>,
}

/// Byte offsets into `scratch`.
const MISMATCHES_AT: u64 = 0;
const DIGEST_AT: u64 = 256;
const LAUNCH_COUNT_AT: u64 = 264;
const ONE_AT: u64 = 272;
const SINK_AT: u64 = 276;
const SCRATCH_BYTES: usize = 512;

/// A prepared GEMM.
struct PreparedGemm {
    side: u64,
    matrices: [DeviceBuffer; 3],
    plan: Option<GemmPlan>,
}

impl Device {
    /// Opens a GPU by CUDA's index.
    pub fn open(index: usize) -> Result<Self, CudaError> {
        library::ensure_present()?;
        let context = open(index)?;
        // SAFETY: all work is on one stream, in order.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().context("create a stream")?;
        let attribute = |which| context.attribute(which).context("query the GPU");
        let processors = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let info = GpuInfo {
            name: context.name().context("query the GPU's name")?,
            compute_capability: context.compute_capability().context("query the GPU")?,
            sm_count: u32::try_from(processors).unwrap_or(0),
            memory_bytes: context.total_mem().context("query the GPU's memory")? as u64,
        };
        let kernels = Kernels::load(&context, info.compute_capability)?;
        let peers = peers(&context, index)?;
        context.bind_to_thread().context("create a CUDA context")?;
        let event =
            || result::event::create(CUevent_flags::CU_EVENT_DEFAULT).context("create an event");
        let events = [event()?, event()?];
        // SAFETY: freed when the device is dropped.
        let scratch =
            unsafe { result::malloc_sync(SCRATCH_BYTES) }.context("allocate GPU memory")?;
        // SAFETY: as above.
        let workspace =
            unsafe { result::malloc_sync(blas::WORKSPACE_BYTES) }.context("allocate GPU memory")?;
        let device = Self {
            info,
            context,
            stream,
            kernels,
            blas: OnceCell::new(),
            peers,
            buffers: BTreeMap::new(),
            host_buffers: BTreeMap::new(),
            gemms: BTreeMap::new(),
            next: 0,
            scratch,
            workspace,
            events,
            graph: None,
        };
        device.blank(0, SCRATCH_BYTES)?;
        let one = [1.0_f32];
        // SAFETY: four bytes within `scratch`. The copy is on the same stream as the memset before
        // it, which orders the two. `one` lives until the stream is synchronised.
        unsafe { result::memcpy_htod_async(scratch + ONE_AT, &one, device.stream.cu_stream()) }
            .context("copy to the GPU")?;
        device.stream.synchronize().context("wait for the GPU")?;
        Ok(device)
    }

    fn blank(&self, at: u64, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: within `scratch`, which lives as long as the device.
        unsafe { result::memset_d8_async(self.scratch + at, 0, bytes, self.stream.cu_stream()) }
            .context("write GPU memory")
    }

    fn address(&self, buffer: DeviceBuffer) -> Result<CUdeviceptr, CudaError> {
        self.buffers.get(&buffer.id).copied().ok_or(CudaError::CallFailed {
            what: "use a GPU buffer",
            detail: "it was freed".to_owned(),
        })
    }

    fn host_address(&self, buffer: HostBuffer) -> Result<*mut c_void, CudaError> {
        self.host_buffers.get(&buffer.id).copied().ok_or(CudaError::CallFailed {
            what: "use a host buffer",
            detail: "it was freed".to_owned(),
        })
    }

    fn next_id(&mut self) -> usize {
        self.next += 1;
        self.next
    }

    /// A grid that fills the GPU.
    fn grid(&self) -> u32 {
        self.info.sm_count.max(1) * BLOCKS
    }

    /// Launches a kernel. Each argument must be as wide as its parameter.
    fn launch(
        &self,
        kernel: &CudaFunction,
        grid: (u32, u32),
        values: &mut [KernelArg],
    ) -> Result<(), CudaError> {
        let mut pointers: Vec<*mut c_void> = values.iter_mut().map(KernelArg::pointer).collect();
        // SAFETY: the callers pass arguments in the order and widths of the kernel's parameters;
        // addresses among them refer to memory that lives until the stream is synchronised.
        unsafe {
            result::launch_kernel(
                kernel.cu_function(),
                (grid.0, grid.1, 1),
                (THREADS, 1, 1),
                0,
                self.stream.cu_stream(),
                &mut pointers,
            )
        }
        .context("launch a kernel")
    }

    fn submit(&mut self, work: Work) -> Result<(), CudaError> {
        let all = (self.grid(), 1);
        match work {
            Work::Fill(buffer, pattern) => {
                self.run_pattern(&self.kernels.fill, buffer, pattern, None)
            }
            Work::Check(buffer, pattern) => {
                let found = KernelArg::U64(self.scratch + MISMATCHES_AT);
                self.run_pattern(&self.kernels.check, buffer, pattern, Some(found))
            }
            Work::Read(buffer) => {
                let sink = KernelArg::U64(self.scratch + SINK_AT);
                let mut values = [
                    KernelArg::U64(self.address(buffer)?),
                    KernelArg::U64(buffer.bytes / 16),
                    sink,
                ];
                self.launch(&self.kernels.read, all, &mut values)
            }
            Work::Copy(from, to) => {
                let quads = from.bytes.min(to.bytes) / 16;
                let (from, to) = (self.address(from)?, self.address(to)?);
                let mut values = [KernelArg::U64(from), KernelArg::U64(to), KernelArg::U64(quads)];
                self.launch(&self.kernels.copy, all, &mut values)
            }
            Work::CopyByEngine(from, to) => self.copy_device(from, to),
            Work::CopyToGpu(host, buffer) => self.copy_host(host, buffer, true),
            Work::CopyToHost(buffer, host) => self.copy_host(host, buffer, false),
            Work::ComputeChains(buffer, rounds) => {
                let count = to_u32(buffer.bytes / 4);
                let mut values = [
                    KernelArg::U64(self.address(buffer)?),
                    KernelArg::U32(count),
                    KernelArg::U32(rounds),
                ];
                self.launch(&self.kernels.prove, all, &mut values)
            }
            Work::CheckCompute(sums, sm_ids, rounds) => {
                self.run_check(&self.kernels.hunt, sums, sm_ids, rounds)
            }
            Work::CheckTensor(sums, sm_ids, rounds) => match &self.kernels.tensor {
                Some((hunt, _)) => self.run_check(hunt, sums, sm_ids, rounds),
                None => Err(no_tensor_cores()),
            },
            Work::Gemm(gemm) => self.run_gemm(gemm),
            Work::Digest(buffer) => {
                self.blank(DIGEST_AT, 8)?;
                let sum = KernelArg::U64(self.scratch + DIGEST_AT);
                let mut values =
                    [KernelArg::U64(self.address(buffer)?), KernelArg::U64(buffer.bytes / 4), sum];
                self.launch(&self.kernels.digest, all, &mut values)
            }
            Work::Launches(times) => self.launch_counter(times),
            Work::GraphLaunches(nodes) => self.launch_counter_graph(nodes),
        }
    }

    fn run_pattern(
        &self,
        kernel: &CudaFunction,
        buffer: DeviceBuffer,
        pattern: MemoryPattern,
        more: Option<KernelArg>,
    ) -> Result<(), CudaError> {
        let (kind, seed) = pattern.kernel_args();
        let mut values = vec![
            KernelArg::U64(self.address(buffer)?),
            KernelArg::U64(buffer.bytes / 16),
            KernelArg::U32(kind),
            KernelArg::U32(seed),
        ];
        values.extend(more);
        self.launch(kernel, (self.grid(), 1), &mut values)
    }

    fn copy_device(&self, from: DeviceBuffer, to: DeviceBuffer) -> Result<(), CudaError> {
        let bytes = from.bytes.min(to.bytes);
        let (from, to) = (self.address(from)?, self.address(to)?);
        // SAFETY: both buffers have at least this many bytes and live until the stream is
        // synchronised; peers share one address space.
        unsafe { result::memcpy_dtod_async(to, from, to_usize(bytes), self.stream.cu_stream()) }
            .context("copy GPU memory")
    }

    fn copy_host(
        &self,
        host: HostBuffer,
        buffer: DeviceBuffer,
        is_to_gpu: bool,
    ) -> Result<(), CudaError> {
        let bytes = to_usize(host.bytes.min(buffer.bytes));
        let (host, gpu) = (self.host_address(host)?, self.address(buffer)?);
        let stream = self.stream.cu_stream();
        // SAFETY: both buffers have at least this many bytes and live until the stream is
        // synchronised; nothing else uses the host buffer.
        let copied = unsafe {
            if is_to_gpu {
                sys::cuMemcpyHtoDAsync_v2(gpu, host, bytes, stream)
            } else {
                sys::cuMemcpyDtoHAsync_v2(host, gpu, bytes, stream)
            }
        };
        copied.result().context("copy between host and GPU")
    }

    fn run_check(
        &self,
        kernel: &CudaFunction,
        sums: DeviceBuffer,
        sm_ids: DeviceBuffer,
        rounds: u32,
    ) -> Result<(), CudaError> {
        let blocks = to_u32(sums.bytes.min(sm_ids.bytes) / 4);
        let mut values = [
            KernelArg::U32(rounds),
            KernelArg::U64(self.address(sums)?),
            KernelArg::U64(self.address(sm_ids)?),
        ];
        self.launch(kernel, (blocks, 1), &mut values)
    }

    fn run_gemm(&self, gemm: Gemm) -> Result<(), CudaError> {
        let prepared = self.gemms.get(&gemm.id).ok_or(CudaError::CallFailed {
            what: "multiply matrices",
            detail: "they were freed".to_owned(),
        })?;
        let mut addresses = [0; 3];
        for (address, buffer) in addresses.iter_mut().zip(prepared.matrices) {
            *address = self.address(buffer)?;
        }
        match (&prepared.plan, self.blas.get(), &self.kernels.tensor) {
            (Some(plan), Some(Ok(blas)), _) => {
                let stream = self.stream.cu_stream().cast();
                // SAFETY: the matrices were allocated for this plan; they and the workspace live
                // until the stream is synchronised.
                unsafe { blas.multiply(plan, addresses, self.workspace, stream) }
            }
            (None, _, Some((_, own))) => {
                let tiles = to_u32(prepared.side / 128);
                let [a, b, c] = addresses;
                let mut values = [
                    KernelArg::U64(a),
                    KernelArg::U64(b),
                    KernelArg::U64(c),
                    KernelArg::U32(to_u32(prepared.side)),
                    KernelArg::U32(to_u32(prepared.side)),
                ];
                self.launch(own, (tiles, tiles), &mut values)
            }
            _ => Err(no_tensor_cores()),
        }
    }

    fn launch_counter(&self, times: u32) -> Result<(), CudaError> {
        let mut value = KernelArg::U64(self.scratch + LAUNCH_COUNT_AT);
        let mut pointers = [value.pointer()];
        for _ in 0..times {
            // SAFETY: the kernel increments a counter within `scratch`.
            unsafe {
                result::launch_kernel(
                    self.kernels.tick.cu_function(),
                    (1, 1, 1),
                    (1, 1, 1),
                    0,
                    self.stream.cu_stream(),
                    &mut pointers,
                )
            }
            .context("launch a kernel")?;
        }
        Ok(())
    }

    fn launch_counter_graph(&mut self, nodes: u32) -> Result<(), CudaError> {
        if self.graph.as_ref().is_none_or(|(known, _)| *known != nodes) {
            self.stream
                .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
                .context("begin graph capture")?;
            let submitted = self.launch_counter(nodes);
            // End the capture even if a launch failed, because the stream is unusable until then.
            let graph =
                self.stream.end_capture(CUgraphInstantiate_flags(0)).context("capture a graph");
            submitted?;
            let empty = || CudaError::CallFailed {
                what: "capture a graph",
                detail: "CUDA returned an empty graph".to_owned(),
            };
            let graph = graph?.ok_or_else(empty)?;
            graph.upload().context("upload the graph")?;
            self.stream.synchronize().context("wait for the GPU")?;
            self.graph = Some((nodes, graph));
        }
        match &self.graph {
            Some((_, graph)) => graph.launch().context("launch the graph"),
            None => Ok(()),
        }
    }

    fn read_u32s(&self, address: CUdeviceptr, count: usize) -> Result<Vec<u32>, CudaError> {
        self.stream.synchronize().context("wait for the GPU")?;
        let mut words = vec![0_u32; count];
        // SAFETY: callers pass an address with at least this many words.
        unsafe { result::memcpy_dtoh_sync(&mut words, address) }.context("copy from the GPU")?;
        Ok(words)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Ignore errors. Freeing fails on a lost GPU, but the process exit frees the memory.
        let _ = self.context.bind_to_thread();
        let _ = self.stream.synchronize();
        let gemms: Vec<usize> = self.gemms.keys().copied().collect();
        for id in gemms {
            if let (Some(PreparedGemm { plan: Some(plan), .. }), Some(Ok(blas))) =
                (self.gemms.remove(&id), self.blas.get())
            {
                blas.destroy_plan(&plan);
            }
        }
        let buffers = std::mem::take(&mut self.buffers).into_values();
        for address in buffers.chain([self.scratch, self.workspace]) {
            // SAFETY: each was allocated by this device and removed from its maps; the stream is
            // idle.
            let _ = unsafe { result::free_sync(address) };
        }
        for address in std::mem::take(&mut self.host_buffers).into_values() {
            // SAFETY: as above.
            let _ = unsafe { result::free_host(address) };
        }
        for event in self.events {
            // SAFETY: as above.
            let _ = unsafe { result::event::destroy(event) };
        }
    }
}

fn no_tensor_cores() -> CudaError {
    CudaError::CallFailed {
        what: "use tensor cores",
        detail: "the GPU's compute capability is below 8.0".to_owned(),
    }
}

fn to_u32(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn to_usize(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
