//! The times of launches, waits and small copies.

use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode};
use cudarc::driver::{
    CudaContext, CudaFunction, CudaGraph, CudaSlice, CudaStream, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::Ptx;

use super::error::{CudaError, Purpose, words};
use super::{device, library};

const ONE_THREAD: LaunchConfig =
    LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchPlan {
    /// The GPU, as CUDA counts them.
    pub gpu: usize,
    /// Launches between two waits, and kernels in the graph.
    pub launches: u32,
    /// How often each is measured; the kinds take turns.
    pub repeats: u32,
}

/// What was measured on one GPU.
#[derive(Debug, Clone, PartialEq)]
pub struct LaunchTimes {
    /// As CUDA calls it.
    pub gpu: String,
    /// Its compute capability.
    pub compute_capability: (i32, i32),
    /// Each kind of work.
    pub timed: Vec<Timed>,
}

/// One kind of work: seconds for one piece of it, one number a repeat.
#[derive(Debug, Clone, PartialEq)]
pub struct Timed {
    /// A short name that stays.
    pub name: &'static str,
    /// What one piece is.
    pub what: &'static str,
    /// Pieces between two waits.
    pub pieces: u32,
    /// Until the calls had returned; absent where the call itself waits.
    pub submit_s: Option<Vec<f64>>,
    /// Until the GPU had done it.
    pub total_s: Vec<f64>,
}

/// The kinds of work, in the order in which they take turns.
const WORK: [Work; 6] = [
    Work::Stream,
    Work::Graph,
    Work::LaunchAndWait,
    Work::Synchronise,
    Work::CopyToGpu,
    Work::CopyToHost,
];

#[derive(Debug, Clone, Copy)]
enum Work {
    Stream,
    Graph,
    LaunchAndWait,
    Synchronise,
    CopyToGpu,
    CopyToHost,
}

impl Work {
    fn untimed(self, launches: u32) -> Timed {
        // A hundred of what waits each time: enough for the clock, short enough for a round.
        let (name, what, pieces, waits) = match self {
            Self::Stream => ("stream", "a kernel launched on a stream", launches, false),
            Self::Graph => ("graph", "a kernel as a node of one graph", launches, false),
            Self::LaunchAndWait => {
                ("launch-and-wait", "a kernel launched and waited for", 100, true)
            }
            Self::Synchronise => {
                ("synchronise", "a wait for a stream with nothing to do", 100, true)
            }
            Self::CopyToGpu => ("copy-to-gpu", "4 bytes copied to the GPU", 100, false),
            Self::CopyToHost => {
                ("copy-to-host", "4 bytes copied from the GPU and waited for", 100, true)
            }
        };
        let submit_s = (!waits).then(Vec::new);
        Timed { name, what, pieces, submit_s, total_s: Vec::new() }
    }
}

/// Measures. Blocks until it is done.
pub fn measure(plan: LaunchPlan) -> Result<LaunchTimes, CudaError> {
    library::present()?;
    let context = device::open(plan.gpu)?;
    let mut bench = Bench::new(&context, plan)?;
    let mut kinds = WORK.map(|work| work.untimed(plan.launches));
    // The first round starts what is started late (the module, the graph's memory on the GPU) and does not count.
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
        gpu: context.name().to("ask the GPU's name")?,
        compute_capability: context.compute_capability().to("ask what the GPU is capable of")?,
        timed: kinds.into(),
    })
}

/// One stream with its kernel, its graph, and the number that the kernel counts in.
struct Bench {
    stream: Arc<CudaStream>,
    tick: CudaFunction,
    counter: CudaSlice<u32>,
    copied: CudaSlice<u32>,
    graph: CudaGraph,
    launches: u32,
    /// How often the kernel ought to have run; it wraps, as its own count does.
    launched: u32,
}

impl Bench {
    fn new(context: &Arc<CudaContext>, plan: LaunchPlan) -> Result<Self, CudaError> {
        // SAFETY: all work is on one stream, in order, so no memory is used on two of them. Tracking would add
        // events to every launch, and they are not what is measured.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().to("make a stream")?;
        let module = match context.load_module(Ptx::from_src(super::MEMORY_PTX)) {
            Err(err) if err.0 == CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU => {
                return Err(CudaError::Refused {
                    what: "load the kernel, which needs compute capability 7.0 or higher",
                    said: words(err),
                });
            }
            loaded => loaded.to("load the kernel")?,
        };
        let tick = module.load_function("tick").to("find the kernel")?;
        let counter = stream.alloc_zeros::<u32>(1).to("take memory on the GPU")?;
        let copied = stream.alloc_zeros::<u32>(1).to("take memory on the GPU")?;
        let graph = captured(&stream, &tick, &counter, plan.launches)?;
        graph.upload().to("bring the graph to the GPU")?;
        stream.synchronize().to("wait for the GPU")?;
        Ok(Self { stream, tick, counter, copied, graph, launches: plan.launches, launched: 0 })
    }

    /// Seconds for one of `pieces`, until submitted and until done.
    fn once(&mut self, work: Work, pieces: u32) -> Result<(f64, f64), CudaError> {
        self.stream.synchronize().to("wait for the GPU")?;
        let began = Instant::now();
        match work {
            Work::Stream => self.launch(pieces)?,
            Work::Graph => {
                self.graph.launch().to("launch the graph")?;
                self.launched = self.launched.wrapping_add(self.launches);
            }
            Work::LaunchAndWait => {
                for _ in 0..pieces {
                    self.launch(1)?;
                    self.stream.synchronize().to("wait for the GPU")?;
                }
            }
            Work::Synchronise => {
                for _ in 0..pieces {
                    self.stream.synchronize().to("wait for the GPU")?;
                }
            }
            Work::CopyToGpu => {
                for _ in 0..pieces {
                    self.stream.memcpy_htod(&[7], &mut self.copied).to("copy to the GPU")?;
                }
            }
            Work::CopyToHost => {
                for _ in 0..pieces {
                    let mut number = [0];
                    self.stream.memcpy_dtoh(&self.copied, &mut number).to("copy from the GPU")?;
                    self.stream.synchronize().to("wait for the GPU")?;
                }
            }
        }
        let submitted = began.elapsed();
        self.stream.synchronize().to("wait for the GPU")?;
        let done = began.elapsed();
        Ok((submitted.as_secs_f64() / f64::from(pieces), done.as_secs_f64() / f64::from(pieces)))
    }

    fn launch(&mut self, times: u32) -> Result<(), CudaError> {
        submit(&self.stream, &self.tick, &self.counter, times)?;
        self.launched = self.launched.wrapping_add(times);
        Ok(())
    }

    /// The kernel counted every launch: nothing was timed that did not happen.
    fn check(&self) -> Result<(), CudaError> {
        let mut ran = [0];
        self.stream.memcpy_dtoh(&self.counter, &mut ran).to("read the kernel's count")?;
        self.stream.synchronize().to("wait for the GPU")?;
        let [ran] = ran;
        if ran == self.launched {
            Ok(())
        } else {
            Err(CudaError::Lost { ran, launched: self.launched })
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
        // SAFETY: the kernel takes one pointer to a 32-bit number and adds to it atomically; `counter` has one and
        // outlives the stream's work, for which every caller waits.
        unsafe { launch.launch(ONE_THREAD) }.to("launch the kernel")?;
    }
    Ok(())
}

/// A graph of `nodes` launches, one after the other.
fn captured(
    stream: &Arc<CudaStream>,
    tick: &CudaFunction,
    counter: &CudaSlice<u32>,
    nodes: u32,
) -> Result<CudaGraph, CudaError> {
    stream
        .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        .to("begin the capture of a graph")?;
    let submitted = submit(stream, tick, counter, nodes);
    // The capture is ended also where a launch failed: the stream is of no use before.
    let graph = stream.end_capture(CUgraphInstantiate_flags(0)).to("capture a graph");
    submitted?;
    graph?.ok_or(CudaError::Refused {
        what: "capture a graph",
        said: "CUDA gave an empty one".to_owned(),
    })
}
