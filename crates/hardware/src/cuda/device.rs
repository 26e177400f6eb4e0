//! A real GPU, through CUDA's driver library.

mod context;
mod kernels;
mod products;
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
use self::kernels::{Kernels, Value};
use super::blas::{self, Blas, NoBlas, Plan};
use super::edge::{About, Block, HostBlock, Pattern, Product, Work};
use super::error::{CudaError, Purpose};
use super::library;

/// Threads per block; the kernels require this size.
const THREADS: u32 = 256;
/// Thread blocks per SM: as many as it runs at once.
const BLOCKS: u32 = 8;
/// Layout of `Found` in memory.cu: two counters, then eight entries of sixteen bytes.
const FOUND_WORDS: usize = 4 + 8 * 4;

/// One GPU; all work runs on one stream.
pub struct Device {
    about: About,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    kernels: Kernels,
    blas: OnceCell<Result<Blas, NoBlas>>,
    peers: Vec<Arc<CudaContext>>,
    blocks: BTreeMap<usize, CUdeviceptr>,
    host: BTreeMap<usize, *mut c_void>,
    products: BTreeMap<usize, Made>,
    next: usize,
    /// Results of comparisons, digests and the counting kernel, then a constant 1.0 for cuBLASLt.
    scratch: CUdeviceptr,
    workspace: CUdeviceptr,
    events: [CUevent; 2],
    graph: Option<(u32, CudaGraph)>,
}

/// Byte offsets into `scratch`.
const FOUND_AT: u64 = 0;
const DIGEST_AT: u64 = 256;
const TICKS_AT: u64 = 264;
const ONE_AT: u64 = 272;
const SINK_AT: u64 = 276;
const SCRATCH_BYTES: usize = 512;

/// A prepared GEMM.
struct Made {
    side: u64,
    matrices: [Block; 3],
    plan: Option<Plan>,
}

impl Device {
    /// Opens a GPU by CUDA's index.
    pub fn open(index: usize) -> Result<Self, CudaError> {
        library::present()?;
        let context = open(index)?;
        // SAFETY: all work is on one stream, in order.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().to("create a stream")?;
        let attribute = |which| context.attribute(which).to("query the GPU");
        let processors = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let about = About {
            name: context.name().to("query the GPU's name")?,
            compute_capability: context.compute_capability().to("query the GPU")?,
            processors: u32::try_from(processors).unwrap_or(0),
            memory_bytes: context.total_mem().to("query the GPU's memory")? as u64,
        };
        let kernels = Kernels::load(&context, about.compute_capability)?;
        let peers = peers(&context, index)?;
        context.bind_to_thread().to("create a CUDA context")?;
        let event = || result::event::create(CUevent_flags::CU_EVENT_DEFAULT).to("create an event");
        let events = [event()?, event()?];
        // SAFETY: freed when the device is dropped.
        let scratch = unsafe { result::malloc_sync(SCRATCH_BYTES) }.to("allocate GPU memory")?;
        // SAFETY: as above.
        let workspace =
            unsafe { result::malloc_sync(blas::WORKSPACE_BYTES) }.to("allocate GPU memory")?;
        let device = Self {
            about,
            context,
            stream,
            kernels,
            blas: OnceCell::new(),
            peers,
            blocks: BTreeMap::new(),
            host: BTreeMap::new(),
            products: BTreeMap::new(),
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
            .to("copy to the GPU")?;
        device.stream.synchronize().to("wait for the GPU")?;
        Ok(device)
    }

    fn blank(&self, at: u64, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: within `scratch`, which lives as long as the device.
        unsafe { result::memset_d8_async(self.scratch + at, 0, bytes, self.stream.cu_stream()) }
            .to("write GPU memory")
    }

    fn address(&self, block: Block) -> Result<CUdeviceptr, CudaError> {
        self.blocks
            .get(&block.id)
            .copied()
            .ok_or(CudaError::Refused { what: "use a GPU buffer", said: "it was freed".to_owned() })
    }

    fn host_address(&self, block: HostBlock) -> Result<*mut c_void, CudaError> {
        self.host.get(&block.id).copied().ok_or(CudaError::Refused {
            what: "use a host buffer",
            said: "it was freed".to_owned(),
        })
    }

    fn number(&mut self) -> usize {
        self.next += 1;
        self.next
    }

    /// A grid that fills the GPU.
    fn grid(&self) -> u32 {
        self.about.processors.max(1) * BLOCKS
    }

    /// Launches a kernel; each argument is as wide as its parameter.
    fn launch(
        &self,
        kernel: &CudaFunction,
        grid: (u32, u32),
        values: &mut [Value],
    ) -> Result<(), CudaError> {
        let mut pointers: Vec<*mut c_void> = values.iter_mut().map(Value::pointer).collect();
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
        .to("launch a kernel")
    }

    fn submit(&mut self, work: Work) -> Result<(), CudaError> {
        let all = (self.grid(), 1);
        match work {
            Work::Fill(block, pattern) => self.patterned(&self.kernels.fill, block, pattern, None),
            Work::Check(block, pattern) => {
                let found = Value::Wide(self.scratch + FOUND_AT);
                self.patterned(&self.kernels.check, block, pattern, Some(found))
            }
            Work::Read(block) => {
                let sink = Value::Wide(self.scratch + SINK_AT);
                let mut values =
                    [Value::Wide(self.address(block)?), Value::Wide(block.bytes / 16), sink];
                self.launch(&self.kernels.read, all, &mut values)
            }
            Work::Copy(from, to) => {
                let quads = from.bytes.min(to.bytes) / 16;
                let (from, to) = (self.address(from)?, self.address(to)?);
                let mut values = [Value::Wide(from), Value::Wide(to), Value::Wide(quads)];
                self.launch(&self.kernels.copy, all, &mut values)
            }
            Work::CopyByEngine(from, to) => self.copied(from, to),
            Work::ToGpu(host, block) => self.moved(host, block, true),
            Work::ToHost(block, host) => self.moved(host, block, false),
            Work::Prove(block, rounds) => {
                let count = narrow(block.bytes / 4);
                let mut values = [
                    Value::Wide(self.address(block)?),
                    Value::Narrow(count),
                    Value::Narrow(rounds),
                ];
                self.launch(&self.kernels.prove, all, &mut values)
            }
            Work::Hunt(sums, places, rounds) => {
                self.hunted(&self.kernels.hunt, sums, places, rounds)
            }
            Work::HuntTensor(sums, places, rounds) => match &self.kernels.tensor {
                Some((hunt, _)) => self.hunted(hunt, sums, places, rounds),
                None => Err(without_tensor()),
            },
            Work::Multiply(product) => self.multiply(product),
            Work::Digest(block) => {
                self.blank(DIGEST_AT, 8)?;
                let sum = Value::Wide(self.scratch + DIGEST_AT);
                let mut values =
                    [Value::Wide(self.address(block)?), Value::Wide(block.bytes / 4), sum];
                self.launch(&self.kernels.digest, all, &mut values)
            }
            Work::Ticks(times) => self.tick(times),
            Work::TickGraph(nodes) => self.tick_graph(nodes),
        }
    }

    fn patterned(
        &self,
        kernel: &CudaFunction,
        block: Block,
        pattern: Pattern,
        more: Option<Value>,
    ) -> Result<(), CudaError> {
        let (kind, seed) = pattern.numbers();
        let mut values = vec![
            Value::Wide(self.address(block)?),
            Value::Wide(block.bytes / 16),
            Value::Narrow(kind),
            Value::Narrow(seed),
        ];
        values.extend(more);
        self.launch(kernel, (self.grid(), 1), &mut values)
    }

    fn copied(&self, from: Block, to: Block) -> Result<(), CudaError> {
        let bytes = from.bytes.min(to.bytes);
        let (from, to) = (self.address(from)?, self.address(to)?);
        // SAFETY: both buffers have at least this many bytes and live until the stream is
        // synchronised; peers share one address space.
        unsafe { result::memcpy_dtod_async(to, from, wide(bytes), self.stream.cu_stream()) }
            .to("copy GPU memory")
    }

    fn moved(&self, host: HostBlock, block: Block, is_to_gpu: bool) -> Result<(), CudaError> {
        let bytes = wide(host.bytes.min(block.bytes));
        let (host, gpu) = (self.host_address(host)?, self.address(block)?);
        let stream = self.stream.cu_stream();
        // SAFETY: both buffers have at least this many bytes and live until the stream is
        // synchronised; nothing else uses the host buffer.
        let moved = unsafe {
            if is_to_gpu {
                sys::cuMemcpyHtoDAsync_v2(gpu, host, bytes, stream)
            } else {
                sys::cuMemcpyDtoHAsync_v2(host, gpu, bytes, stream)
            }
        };
        moved.result().to("copy between host and GPU")
    }

    fn hunted(
        &self,
        kernel: &CudaFunction,
        sums: Block,
        places: Block,
        rounds: u32,
    ) -> Result<(), CudaError> {
        let blocks = narrow(sums.bytes.min(places.bytes) / 4);
        let mut values = [
            Value::Narrow(rounds),
            Value::Wide(self.address(sums)?),
            Value::Wide(self.address(places)?),
        ];
        self.launch(kernel, (blocks, 1), &mut values)
    }

    fn multiply(&self, product: Product) -> Result<(), CudaError> {
        let made = self.products.get(&product.id).ok_or(CudaError::Refused {
            what: "multiply matrices",
            said: "they were freed".to_owned(),
        })?;
        let mut addresses = [0; 3];
        for (address, block) in addresses.iter_mut().zip(made.matrices) {
            *address = self.address(block)?;
        }
        match (&made.plan, self.blas.get(), &self.kernels.tensor) {
            (Some(plan), Some(Ok(blas)), _) => {
                let stream = self.stream.cu_stream().cast();
                // SAFETY: the matrices were allocated for this plan; they and the workspace live
                // until the stream is synchronised.
                unsafe { blas.multiply(plan, addresses, self.workspace, stream) }
            }
            (None, _, Some((_, own))) => {
                let tiles = narrow(made.side / 128);
                let [a, b, c] = addresses;
                let mut values = [
                    Value::Wide(a),
                    Value::Wide(b),
                    Value::Wide(c),
                    Value::Narrow(narrow(made.side)),
                    Value::Narrow(narrow(made.side)),
                ];
                self.launch(own, (tiles, tiles), &mut values)
            }
            _ => Err(without_tensor()),
        }
    }

    fn tick(&self, times: u32) -> Result<(), CudaError> {
        let mut value = Value::Wide(self.scratch + TICKS_AT);
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
            .to("launch a kernel")?;
        }
        Ok(())
    }

    fn tick_graph(&mut self, nodes: u32) -> Result<(), CudaError> {
        if self.graph.as_ref().is_none_or(|(known, _)| *known != nodes) {
            self.stream
                .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
                .to("begin graph capture")?;
            let submitted = self.tick(nodes);
            // End the capture even if a launch failed; until then the stream is unusable.
            let graph = self.stream.end_capture(CUgraphInstantiate_flags(0)).to("capture a graph");
            submitted?;
            let empty = || CudaError::Refused {
                what: "capture a graph",
                said: "CUDA returned an empty graph".to_owned(),
            };
            let graph = graph?.ok_or_else(empty)?;
            graph.upload().to("upload the graph")?;
            self.stream.synchronize().to("wait for the GPU")?;
            self.graph = Some((nodes, graph));
        }
        match &self.graph {
            Some((_, graph)) => graph.launch().to("launch the graph"),
            None => Ok(()),
        }
    }

    fn read_words(&self, address: CUdeviceptr, count: usize) -> Result<Vec<u32>, CudaError> {
        self.stream.synchronize().to("wait for the GPU")?;
        let mut words = vec![0_u32; count];
        // SAFETY: callers pass an address with at least this many words.
        unsafe { result::memcpy_dtoh_sync(&mut words, address) }.to("copy from the GPU")?;
        Ok(words)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Freeing fails on a lost GPU; the process exit frees the memory.
        let _ = self.context.bind_to_thread();
        let _ = self.stream.synchronize();
        let products: Vec<usize> = self.products.keys().copied().collect();
        for id in products {
            if let (Some(Made { plan: Some(plan), .. }), Some(Ok(blas))) =
                (self.products.remove(&id), self.blas.get())
            {
                blas.forget(&plan);
            }
        }
        let blocks = std::mem::take(&mut self.blocks).into_values();
        for address in blocks.chain([self.scratch, self.workspace]) {
            // SAFETY: each was allocated by this device and removed from its maps; the stream is
            // idle.
            let _ = unsafe { result::free_sync(address) };
        }
        for address in std::mem::take(&mut self.host).into_values() {
            // SAFETY: as above.
            let _ = unsafe { result::free_host(address) };
        }
        for event in self.events {
            // SAFETY: as above.
            let _ = unsafe { result::event::destroy(event) };
        }
    }
}

fn without_tensor() -> CudaError {
    CudaError::Refused {
        what: "use tensor cores",
        said: "the GPU's compute capability is below 8.0".to_owned(),
    }
}

fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn wide(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
