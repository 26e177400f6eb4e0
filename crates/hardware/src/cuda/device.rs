//! A real GPU, by CUDA's driver library.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::sys::{
    self, CUdevice_attribute, CUdeviceptr, CUevent, CUevent_flags, CUgraphInstantiate_flags,
    CUresult, CUstreamCaptureMode,
};
use cudarc::driver::{CudaContext, CudaFunction, CudaGraph, CudaStream, DriverError, result};
use cudarc::nvrtc::Ptx;

use super::blas::{self, Blas, Plan};
use super::edge::{
    About, Block, Edge, Found, HostBlock, NoWay, Pattern, Precision, Product, Work, WrongWord,
};
use super::error::{CudaError, Purpose, words};
use super::{library, numbers};

/// Threads of a block: what the kernels are written for.
const THREADS: u32 = 256;
/// Blocks for each multiprocessor: as many as it holds at once.
const BLOCKS: u32 = 8;
/// As in `Found` of memory.cu: two numbers, then eight words of sixteen bytes.
const FOUND_WORDS: usize = 4 + 8 * 4;

/// One GPU, all work on one stream.
pub struct Device {
    about: About,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    kernels: Kernels,
    blas: OnceCell<Result<Blas, String>>,
    peers: Vec<Arc<CudaContext>>,
    blocks: BTreeMap<usize, CUdeviceptr>,
    host: BTreeMap<usize, *mut c_void>,
    products: BTreeMap<usize, Made>,
    next: usize,
    /// Where comparisons, sums and the counting kernel write; one number 1.0 after them; and what a library may use.
    scratch: CUdeviceptr,
    workspace: CUdeviceptr,
    events: [CUevent; 2],
    graph: Option<(u32, CudaGraph)>,
}

/// Rows and columns of the product that a library is tried with.
const TRIAL_SIDE: u64 = 256;

/// Bytes into `scratch`.
const FOUND_AT: u64 = 0;
const DIGEST_AT: u64 = 256;
const TICKS_AT: u64 = 264;
const ONE_AT: u64 = 272;
const SINK_AT: u64 = 276;
const SCRATCH_BYTES: usize = 512;

struct Kernels {
    fill: CudaFunction,
    check: CudaFunction,
    read: CudaFunction,
    copy: CudaFunction,
    prove: CudaFunction,
    hunt: CudaFunction,
    scatter: CudaFunction,
    digest: CudaFunction,
    tick: CudaFunction,
    /// None on GPUs before compute capability 8.0.
    tensor: Option<(CudaFunction, CudaFunction)>,
}

/// A product that was made ready.
struct Made {
    side: u64,
    matrices: [Block; 3],
    plan: Option<Plan>,
}

impl Device {
    /// The GPU of that number, as CUDA counts those that it sees.
    pub fn open(index: usize) -> Result<Self, CudaError> {
        library::present()?;
        let context = open(index)?;
        // SAFETY: all work is on one stream, in order.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().to("make a stream")?;
        let attribute = |which| context.attribute(which).to("ask what the GPU is");
        let processors = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let about = About {
            name: context.name().to("ask the GPU's name")?,
            compute_capability: context.compute_capability().to("ask what the GPU is")?,
            processors: u32::try_from(processors).unwrap_or(0),
            memory_bytes: context.total_mem().to("ask for its memory")? as u64,
        };
        let kernels = Kernels::load(&context, about.compute_capability)?;
        let peers = peers(&context, index)?;
        context.bind_to_thread().to("start CUDA on the GPU")?;
        let event = || result::event::create(CUevent_flags::CU_EVENT_DEFAULT).to("make an event");
        let events = [event()?, event()?];
        // SAFETY: freed when the device is dropped.
        let scratch = unsafe { result::malloc_sync(SCRATCH_BYTES) }.to("take memory on the GPU")?;
        // SAFETY: as above.
        let workspace =
            unsafe { result::malloc_sync(blas::WORKSPACE_BYTES) }.to("take memory on the GPU")?;
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
        // SAFETY: four bytes within `scratch`. On the stream, after the bytes before were blanked: a copy on another
        // one is in no order with that. `one` lives until the stream was waited for.
        unsafe { result::memcpy_htod_async(scratch + ONE_AT, &one, device.stream.cu_stream()) }
            .to("copy to the GPU")?;
        device.stream.synchronize().to("wait for the GPU")?;
        Ok(device)
    }

    fn blank(&self, at: u64, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: within `scratch`, which lives as long as the device.
        unsafe { result::memset_d8_async(self.scratch + at, 0, bytes, self.stream.cu_stream()) }
            .to("write memory of the GPU")
    }

    fn address(&self, block: Block) -> Result<CUdeviceptr, CudaError> {
        self.blocks.get(&block.id).copied().ok_or(CudaError::Refused {
            what: "use memory of the GPU",
            said: "it was given back".to_owned(),
        })
    }

    fn host_address(&self, block: HostBlock) -> Result<*mut c_void, CudaError> {
        self.host.get(&block.id).copied().ok_or(CudaError::Refused {
            what: "use memory of the host",
            said: "it was given back".to_owned(),
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

    /// Launches a kernel with these values; each is as wide as its parameter.
    fn launch(
        &self,
        kernel: &CudaFunction,
        grid: (u32, u32),
        values: &mut [Value],
    ) -> Result<(), CudaError> {
        let mut pointers: Vec<*mut c_void> = values.iter_mut().map(Value::pointer).collect();
        // SAFETY: values are in the order and of the widths of the kernel's parameters, as each caller sees to; the
        // addresses among them are of memory that lives until the stream was waited for.
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
        // SAFETY: both blocks have so many bytes and live until the stream was waited for; addresses of GPUs that see
        // each other are of one space.
        unsafe { result::memcpy_dtod_async(to, from, wide(bytes), self.stream.cu_stream()) }
            .to("copy memory of the GPU")
    }

    fn moved(&self, host: HostBlock, block: Block, is_to_gpu: bool) -> Result<(), CudaError> {
        let bytes = wide(host.bytes.min(block.bytes));
        let (host, gpu) = (self.host_address(host)?, self.address(block)?);
        let stream = self.stream.cu_stream();
        // SAFETY: both have so many bytes and live until the stream was waited for; nobody else uses the host's.
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
            said: "they were given back".to_owned(),
        })?;
        let mut addresses = [0; 3];
        for (address, block) in addresses.iter_mut().zip(made.matrices) {
            *address = self.address(block)?;
        }
        match (&made.plan, self.blas.get(), &self.kernels.tensor) {
            (Some(plan), Some(Ok(blas)), _) => {
                let stream = self.stream.cu_stream().cast();
                // SAFETY: the matrices were taken for this plan; they and the workspace live until the stream was
                // waited for.
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
            // SAFETY: the kernel adds to a number within `scratch`.
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
                .to("begin the capture of a graph")?;
            let submitted = self.tick(nodes);
            // The capture is ended also where a launch failed: the stream is of no use before.
            let graph = self.stream.end_capture(CUgraphInstantiate_flags(0)).to("capture a graph");
            submitted?;
            let empty = || CudaError::Refused {
                what: "capture a graph",
                said: "CUDA gave an empty one".to_owned(),
            };
            let graph = graph?.ok_or_else(empty)?;
            graph.upload().to("bring the graph to the GPU")?;
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
        // SAFETY: the caller names memory that has so many words.
        unsafe { result::memcpy_dtoh_sync(&mut words, address) }.to("copy from the GPU")?;
        Ok(words)
    }

    fn library_of(&self) -> &Result<Blas, String> {
        self.blas.get_or_init(|| Blas::load(|blas| self.tried(blas)))
    }

    /// Whether a library computes anything on this GPU with this driver. What is the GPU's own fault is for the tests.
    fn tried(&self, blas: &Blas) -> Result<(), String> {
        let (precision, side) = (Precision::Fp16, TRIAL_SIDE);
        let bytes = wide(side * side * 2);
        let mut matrices = [0; 3];
        let multiplied = (|| {
            for matrix in &mut matrices {
                // SAFETY: freed below, whatever comes of it.
                *matrix = unsafe { result::malloc_sync(bytes) }.to("take memory on the GPU")?;
            }
            let plan = match blas.plan(precision, side, self.scratch + ONE_AT)? {
                Ok(plan) => plan,
                Err(said) => return Err(CudaError::Withheld { what: "plan a product", said }),
            };
            let stream = self.stream.cu_stream().cast();
            // SAFETY: the matrices are of the plan's size; they and the workspace live until the stream was waited for.
            let given = unsafe { blas.multiply(&plan, matrices, self.workspace, stream) };
            let waited = self.stream.synchronize().to("wait for the GPU");
            blas.forget(&plan);
            given.and(waited)
        })();
        for matrix in matrices.into_iter().filter(|matrix| *matrix != 0) {
            // SAFETY: it was taken above and is known no more; the stream is done with it.
            let _ = unsafe { result::free_sync(matrix) };
        }
        match multiplied {
            Err(err @ CudaError::Withheld { .. }) => Err(err.to_string()),
            _ => Ok(()),
        }
    }

    /// Which way a product is computed; `Err`: there is none.
    fn way(
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
            Err(why) => Ok(Err(NoWay::of_machine(why.clone()))),
            Ok(blas) => {
                let plan = blas.plan(precision, side, self.scratch + ONE_AT)?;
                Ok(plan.map(Some).map_err(NoWay::of_machine))
            }
        }
    }
}

impl Edge for Device {
    fn about(&self) -> &About {
        &self.about
    }

    fn free_bytes(&mut self) -> Result<u64, CudaError> {
        let (free, _) = self.context.mem_get_info().to("ask for free memory")?;
        Ok(free as u64)
    }

    fn take(&mut self, bytes: u64) -> Result<Block, CudaError> {
        self.context.bind_to_thread().to("start CUDA on the GPU")?;
        // SAFETY: freed by `give`, or when the device is dropped.
        let address = unsafe { result::malloc_sync(wide(bytes)) }.to("take memory on the GPU")?;
        let id = self.number();
        self.blocks.insert(id, address);
        Ok(Block { id, bytes })
    }

    fn give(&mut self, block: Block) -> Result<(), CudaError> {
        let Some(address) = self.blocks.remove(&block.id) else { return Ok(()) };
        // SAFETY: it was taken by `take` or `take_peer` and is known no more.
        unsafe { result::free_sync(address) }.to("give memory back")
    }

    fn take_host(&mut self, bytes: u64) -> Result<HostBlock, CudaError> {
        // SAFETY: freed by `give_host`, or when the device is dropped. Nothing reads it before it was written.
        let address = unsafe { result::malloc_host(wide(bytes), 0) }.map_err(of_host)?;
        let id = self.number();
        self.host.insert(id, address);
        Ok(HostBlock { id, bytes })
    }

    fn give_host(&mut self, block: HostBlock) -> Result<(), CudaError> {
        let Some(address) = self.host.remove(&block.id) else { return Ok(()) };
        // SAFETY: it was taken by `take_host` and is known no more.
        unsafe { result::free_host(address) }.to("give pinned memory back")
    }

    fn peers(&self) -> Vec<String> {
        self.peers.iter().map(|peer| peer.name().unwrap_or_else(words)).collect()
    }

    fn take_peer(&mut self, peer: usize, bytes: u64) -> Result<Block, CudaError> {
        let Some(context) = self.peers.get(peer) else {
            return Err(CudaError::NoSuchGpu { index: peer, count: self.peers.len() });
        };
        context.bind_to_thread().to("start CUDA on another GPU")?;
        // SAFETY: as in `take`; memory is freed by its address whichever GPU is current.
        let address = unsafe { result::malloc_sync(wide(bytes)) }.to("take memory on the GPU");
        self.context.bind_to_thread().to("start CUDA on the GPU")?;
        let id = self.number();
        self.blocks.insert(id, address?);
        Ok(Block { id, bytes })
    }

    fn product(
        &mut self,
        precision: Precision,
        side: u64,
    ) -> Result<Result<Product, NoWay>, CudaError> {
        let plan = match self.way(precision, side)? {
            Ok(plan) => plan,
            Err(why) => return Ok(Err(why)),
        };
        let (factor, sum) = numbers::widths(precision);
        let mut matrices = Vec::new();
        for bytes in [factor, factor, sum].map(|width| side * side * width) {
            match self.take(bytes) {
                Ok(block) => matrices.push(block),
                Err(err) => {
                    for block in matrices {
                        self.give(block)?;
                    }
                    if let (Some(plan), Some(Ok(blas))) = (plan, self.blas.get()) {
                        blas.forget(&plan);
                    }
                    return Err(err);
                }
            }
        }
        let [a, b, c] = [matrices[0], matrices[1], matrices[2]];
        let bits = numbers::bits(precision);
        for (block, seed) in [(a, numbers::SEEDS.0), (b, numbers::SEEDS.1)] {
            let mut values = [
                Value::Wide(self.address(block)?),
                Value::Wide(block.bytes / 4),
                Value::Narrow(seed),
                Value::Narrow(bits.even.0),
                Value::Narrow(bits.even.1),
                Value::Narrow(bits.odd.0),
                Value::Narrow(bits.odd.1),
            ];
            self.launch(&self.kernels.scatter, (self.grid(), 1), &mut values)?;
        }
        let id = self.number();
        self.products.insert(id, Made { side, matrices: [a, b, c], plan });
        Ok(Ok(Product { id, side, result: c }))
    }

    fn forget(&mut self, product: Product) -> Result<(), CudaError> {
        let Some(made) = self.products.remove(&product.id) else { return Ok(()) };
        self.stream.synchronize().to("wait for the GPU")?;
        if let (Some(plan), Some(Ok(blas))) = (made.plan, self.blas.get()) {
            blas.forget(&plan);
        }
        for block in made.matrices {
            self.give(block)?;
        }
        Ok(())
    }

    fn timed(&mut self, work: &[Work]) -> Result<f64, CudaError> {
        let (stream, [start, end]) = (self.stream.cu_stream(), self.events);
        // SAFETY: events and stream are of this context and live as long as the device.
        unsafe { result::event::record(start, stream) }.to("note the time")?;
        for each in work {
            self.submit(*each)?;
        }
        // SAFETY: as above.
        unsafe { result::event::record(end, stream) }.to("note the time")?;
        self.stream.synchronize().to("wait for the GPU")?;
        // SAFETY: both were recorded on one stream, which is done.
        let ms = unsafe { result::event::elapsed(start, end) }.to("ask for the time")?;
        Ok(f64::from(ms) / 1e3)
    }

    fn submitted(&mut self, work: Work) -> Result<(f64, f64), CudaError> {
        self.stream.synchronize().to("wait for the GPU")?;
        let began = Instant::now();
        self.submit(work)?;
        let submitted = began.elapsed();
        self.stream.synchronize().to("wait for the GPU")?;
        Ok((submitted.as_secs_f64(), began.elapsed().as_secs_f64()))
    }

    fn words(&mut self, block: Block, count: usize) -> Result<Vec<u32>, CudaError> {
        let most = wide(block.bytes / 4);
        self.read_words(self.address(block)?, count.min(most))
    }

    fn found(&mut self) -> Result<Found, CudaError> {
        let words = self.read_words(self.scratch + FOUND_AT, FOUND_WORDS)?;
        self.blank(FOUND_AT, FOUND_WORDS * 4)?;
        Ok(found_of(&words))
    }

    fn digest(&mut self) -> Result<u64, CudaError> {
        let words = self.read_words(self.scratch + DIGEST_AT, 2)?;
        Ok(u64::from(words[1]) << 32 | u64::from(words[0]))
    }

    fn ticks(&mut self) -> Result<u32, CudaError> {
        Ok(self.read_words(self.scratch + TICKS_AT, 1)?[0])
    }

    fn library(&self, precision: Precision) -> String {
        match (precision, self.library_of()) {
            (Precision::Own, _) => "our own kernel".to_owned(),
            (_, Ok(blas)) => blas.name.clone(),
            (_, Err(_)) => "no library".to_owned(),
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // A GPU that was lost gives nothing back; the process's end does.
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
            // SAFETY: each was taken by this device and is known no more; the stream is done.
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

/// A parameter of a kernel.
#[derive(Debug, Clone, Copy)]
enum Value {
    Wide(u64),
    Narrow(u32),
}

impl Value {
    fn pointer(&mut self) -> *mut c_void {
        match self {
            Self::Wide(value) => (&raw mut *value).cast(),
            Self::Narrow(value) => (&raw mut *value).cast(),
        }
    }
}

impl Kernels {
    fn load(context: &Arc<CudaContext>, capability: (i32, i32)) -> Result<Self, CudaError> {
        if capability < (7, 0) {
            let said = format!(
                "they need compute capability 7.0, and this GPU has {}.{}",
                capability.0, capability.1
            );
            return Err(CudaError::Withheld { what: "load the kernels", said });
        }
        let memory =
            context.load_module(Ptx::from_src(super::MEMORY_PTX)).to("load the kernels")?;
        let tensor = if capability >= (8, 0) {
            let module =
                context.load_module(Ptx::from_src(super::TENSOR_PTX)).to("load the kernels")?;
            let function = |name| module.load_function(name).to("find a kernel");
            Some((function("hunt_tensor")?, function("product")?))
        } else {
            None
        };
        let function = |name| memory.load_function(name).to("find a kernel");
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

/// The GPU of that number.
pub(super) fn open(index: usize) -> Result<Arc<CudaContext>, CudaError> {
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
fn peers(own: &Arc<CudaContext>, index: usize) -> Result<Vec<Arc<CudaContext>>, CudaError> {
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

/// Pinned memory is the host's: that there is none says nothing of the GPU.
fn of_host(err: DriverError) -> CudaError {
    let what = "take pinned memory";
    match CudaError::of_driver(what, err) {
        CudaError::OutOfMemory => CudaError::Withheld { what, said: words(err) },
        other => other,
    }
}

fn without_tensor() -> CudaError {
    CudaError::Refused {
        what: "use tensor cores",
        said: "the GPU is before compute capability 8.0".to_owned(),
    }
}

/// What a comparison wrote.
fn found_of(words: &[u32]) -> Found {
    let pair = |at: usize| u64::from(words[at + 1]) << 32 | u64::from(words[at]);
    let kept = (words[2] as usize).min(8);
    let some = (0..kept).map(|index| {
        let at = 4 + index * 4;
        WrongWord { word: pair(at), expected: words[at + 2], found: words[at + 3] }
    });
    Found { wrong: pair(0), some: some.collect() }
}

fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn wide(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
