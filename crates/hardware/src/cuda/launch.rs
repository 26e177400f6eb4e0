//! Cost of launches, synchronisations and small copies.

use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode};
use cudarc::driver::{
    CudaContext, CudaFunction, CudaGraph, CudaSlice, CudaStream, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::Ptx;

use super::error::{CudaError, DriverContext, error_text};
use super::{device, library};

const ONE_THREAD: LaunchConfig =
    LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchPlan {
    /// CUDA's index.
    pub gpu: usize,
    /// Launches in one measurement on a stream, and nodes of the graph.
    pub launches: u32,
    /// Measurements of each kind of work. The kinds alternate.
    pub repeats: u32,
}

/// The measurements of one GPU.
#[derive(Debug, Clone, PartialEq)]
pub struct LaunchTimes {
    /// As reported by CUDA.
    pub gpu: String,
    pub compute_capability: (i32, i32),
    pub timed: Vec<LaunchTiming>,
}

/// One kind of work: seconds per item, one value per repeat.
#[derive(Debug, Clone, PartialEq)]
pub struct LaunchTiming {
    /// A short, stable name.
    pub name: &'static str,
    /// Description of one item.
    pub what: &'static str,
    /// Items in one measurement.
    pub pieces: u32,
    /// Seconds until the calls returned. `None` if the call itself waits for the GPU.
    pub submit_s: Option<Vec<f64>>,
    /// Seconds until the GPU had finished.
    pub total_s: Vec<f64>,
}

/// The kinds of work, in the order in which they alternate.
const WORK: [LaunchWork; 6] = [
    LaunchWork::Stream,
    LaunchWork::Graph,
    LaunchWork::LaunchAndWait,
    LaunchWork::Synchronise,
    LaunchWork::CopyToGpu,
    LaunchWork::CopyToHost,
];

#[derive(Debug, Clone, Copy)]
enum LaunchWork {
    Stream,
    Graph,
    LaunchAndWait,
    Synchronise,
    CopyToGpu,
    CopyToHost,
}

impl LaunchWork {
    fn empty_timing(self, launches: u32) -> LaunchTiming {
        // Kinds of work that synchronise after each item use 100 items. That is long enough for the
        // resolution of the clock and still short.
        let (name, what, pieces, waits) = match self {
            Self::Stream => ("stream", "a kernel launched on a stream", launches, false),
            Self::Graph => ("graph", "a kernel as a node of one graph", launches, false),
            Self::LaunchAndWait => {
                ("launch-and-wait", "a kernel launched and synchronised", 100, true)
            }
            Self::Synchronise => ("synchronise", "a synchronisation of an idle stream", 100, true),
            Self::CopyToGpu => ("copy-to-gpu", "4 bytes copied to the GPU", 100, false),
            Self::CopyToHost => {
                ("copy-to-host", "4 bytes copied from the GPU and synchronised", 100, true)
            }
        };
        let submit_s = (!waits).then(Vec::new);
        LaunchTiming { name, what, pieces, submit_s, total_s: Vec::new() }
    }
}

/// Runs the measurement. Blocking.
pub fn measure(plan: LaunchPlan) -> Result<LaunchTimes, CudaError> {
    library::ensure_present()?;
    let context = device::open(plan.gpu)?;
    let mut bench = Bench::new(&context, plan)?;
    let mut kinds = WORK.map(|work| work.empty_timing(plan.launches));
    // The first round is a warm-up and is not timed, because the module and the graph are loaded
    // lazily.
    for round in 0..=plan.repeats {
        for (work, timed) in WORK.into_iter().zip(&mut kinds) {
            let (submit_s, total_s) = bench.once(work, timed.pieces)?;
            if round > 0 {
                if let Some(all) = &mut timed.submit_s {
                    all.push(submit_s);
                }
                timed.total_s.push(total_s);
            }
        }
    }
    bench.check()?;
    Ok(LaunchTimes {
        gpu: context.name().context("query the GPU's name")?,
        compute_capability: context
            .compute_capability()
            .context("query the GPU's compute capability")?,
        timed: kinds.into(),
    })
}

/// One stream with its kernel, its graph and the kernel's counter.
struct Bench {
    stream: Arc<CudaStream>,
    tick: CudaFunction,
    counter: CudaSlice<u32>,
    copied: CudaSlice<u32>,
    graph: CudaGraph,
    launches: u32,
    /// Expected number of kernel runs. It wraps around like the counter.
    launched: u32,
}

impl Bench {
    fn new(context: &Arc<CudaContext>, plan: LaunchPlan) -> Result<Self, CudaError> {
        // SAFETY: all work is on one stream, in order, so no memory is used on two streams. Event
        // tracking would add events to every launch and distort the measurement.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().context("create a stream")?;
        let module = match context.load_module(Ptx::from_src(super::MEMORY_PTX)) {
            Err(err) if err.0 == CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU => {
                return Err(CudaError::CallFailed {
                    what: "load the kernel, which needs compute capability 7.0 or higher",
                    detail: error_text(err),
                });
            }
            loaded => loaded.context("load the kernel")?,
        };
        let tick = module.load_function("tick").context("find the kernel")?;
        let counter = stream.alloc_zeros::<u32>(1).context("allocate GPU memory")?;
        let copied = stream.alloc_zeros::<u32>(1).context("allocate GPU memory")?;
        let graph = capture_graph(&stream, &tick, &counter, plan.launches)?;
        graph.upload().context("upload the graph")?;
        stream.synchronize().context("wait for the GPU")?;
        Ok(Self { stream, tick, counter, copied, graph, launches: plan.launches, launched: 0 })
    }

    /// Runs the work once. Returns the seconds per item until the work was submitted and until it
    /// was done.
    fn once(&mut self, work: LaunchWork, pieces: u32) -> Result<(f64, f64), CudaError> {
        self.stream.synchronize().context("wait for the GPU")?;
        let began = Instant::now();
        match work {
            LaunchWork::Stream => self.launch(pieces)?,
            LaunchWork::Graph => {
                self.graph.launch().context("launch the graph")?;
                self.launched = self.launched.wrapping_add(self.launches);
            }
            LaunchWork::LaunchAndWait => {
                for _ in 0..pieces {
                    self.launch(1)?;
                    self.stream.synchronize().context("wait for the GPU")?;
                }
            }
            LaunchWork::Synchronise => {
                for _ in 0..pieces {
                    self.stream.synchronize().context("wait for the GPU")?;
                }
            }
            LaunchWork::CopyToGpu => {
                for _ in 0..pieces {
                    self.stream.memcpy_htod(&[7], &mut self.copied).context("copy to the GPU")?;
                }
            }
            LaunchWork::CopyToHost => {
                for _ in 0..pieces {
                    let mut number = [0];
                    self.stream
                        .memcpy_dtoh(&self.copied, &mut number)
                        .context("copy from the GPU")?;
                    self.stream.synchronize().context("wait for the GPU")?;
                }
            }
        }
        let submitted = began.elapsed();
        self.stream.synchronize().context("wait for the GPU")?;
        let done = began.elapsed();
        Ok((submitted.as_secs_f64() / f64::from(pieces), done.as_secs_f64() / f64::from(pieces)))
    }

    fn launch(&mut self, times: u32) -> Result<(), CudaError> {
        submit(&self.stream, &self.tick, &self.counter, times)?;
        self.launched = self.launched.wrapping_add(times);
        Ok(())
    }

    /// Verifies that the kernel counted every launch, so that only work that happened was timed.
    fn check(&self) -> Result<(), CudaError> {
        let mut ran = [0];
        self.stream.memcpy_dtoh(&self.counter, &mut ran).context("read the kernel's count")?;
        self.stream.synchronize().context("wait for the GPU")?;
        let [ran] = ran;
        if ran == self.launched {
            Ok(())
        } else {
            Err(CudaError::LaunchCountMismatch { ran, launched: self.launched })
        }
    }
}

fn submit(
    stream: &Arc<CudaStream>,
    tick: &CudaFunction,
    counter: &CudaSlice<u32>,
    times: u32,
) -> Result<(), CudaError> {
    let mut launch = stream.launch_builder(tick);
    launch.arg(counter);
    for _ in 0..times {
        // SAFETY: the kernel takes one pointer to a 32-bit counter and increments it atomically;
        // `counter` holds one and outlives the work, because every caller synchronises.
        unsafe { launch.launch(ONE_THREAD) }.context("launch the kernel")?;
    }
    Ok(())
}

/// A graph of `nodes` sequential launches.
fn capture_graph(
    stream: &Arc<CudaStream>,
    tick: &CudaFunction,
    counter: &CudaSlice<u32>,
    nodes: u32,
) -> Result<CudaGraph, CudaError> {
    stream
        .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        .context("begin graph capture")?;
    let submitted = submit(stream, tick, counter, nodes);
    // End the capture even if a launch failed, because the stream is unusable until then.
    let graph = stream.end_capture(CUgraphInstantiate_flags(0)).context("capture a graph");
    submitted?;
    graph?.ok_or(CudaError::CallFailed {
        what: "capture a graph",
        detail: "CUDA returned an empty graph".to_owned(),
    })
}
