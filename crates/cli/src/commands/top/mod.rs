//! `farrier top`: a live view of GPUs.
//!
//! Sources send samples. `model` stores the last sample and its history. `view_state` stores page,
//! sort order, filter and selection, and maps keys to commands. `draw` renders both into a frame,
//! and `event_loop` writes frames to the terminal. `once` prints one sample. Everything except the
//! sources, `terminal` and `event_loop` is pure.

mod draw;
mod event_loop;
mod freshness;
mod history;
mod keys;
mod limit;
mod model;
mod once;
mod sample;
mod source;
mod terminal;
mod view_state;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use anyhow::Context;
use farrier_agent::config;
use farrier_hardware::Root;
use farrier_hardware::nvml::LIBRARY;
use jiff::Timestamp;

use crate::cli::Output;
use crate::commands::Outcome;
use crate::commands::agent::absolute;
use crate::commands::status;
use crate::failure::{self, Hinted};
use crate::printer::Printer;
use event_loop::{RenderOptions, UiEvent};
use model::SourceUpdate;
use sample::NodeSample;
use source::nvml::ReadProgress;
use view_state::{Page, ServerQuery};

/// Default poll interval of a server. The state of a server changes rarely.
const SERVER_INTERVAL: Duration = Duration::from_secs(5);

/// Timeout of `--once`. When it is over, the incomplete sample is printed. Each missing value has
/// its reason.
const ONCE_TIMEOUT: Duration = Duration::from_secs(20);

/// Monitors GPUs live: utilisation, bottleneck, findings and processes.
///
/// Without flags it queries this node's agent or, if none answers, NVML. Exit code 0: no problem; 1
/// (only with --once): the source does not answer, or a node of the fleet is out of service; 2: an
/// error.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one sample and exit, for pipes
    #[arg(long)]
    once: bool,
    /// Output format of --once
    #[arg(long, value_name = "FORMAT", default_value = "table", requires = "once")]
    output: Output,
    /// Seconds between samples [default: 1, with --server 5]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    interval: Option<Duration>,
    /// Draw with ASCII only
    #[arg(long)]
    ascii: bool,
    /// Query NVML directly, through this library or the system's
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = LIBRARY, conflicts_with_all = ["socket", "server"])]
    nvml: Option<OsString>,
    /// Query the agent at this socket
    #[arg(long, value_name = "PATH", value_parser = absolute, conflicts_with = "server")]
    socket: Option<PathBuf>,
    /// Show the fleet of the server saved by `farrier login`
    #[arg(long)]
    server: bool,
    /// Monitor the node whose files are below this directory
    #[arg(long, value_name = "DIR", value_parser = absolute, conflicts_with = "server")]
    root: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.2..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "expected 0.2 to 3600 seconds".to_owned())
}

pub(crate) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let source = Source::from_args(args)?;
    if args.once {
        if args.ascii {
            printer.set_ascii_only();
        }
        return source.once(args.output, printer);
    }
    if !terminal::is_available() {
        return Err(Hinted::error("`farrier top` needs a terminal", "use --once in a pipe"));
    }
    let (events, received) = mpsc::channel();
    let (queries, pending_queries) = mpsc::channel();
    let mut host = source.host();
    let page = if matches!(source, Source::Server(..)) { Page::Fleet } else { Page::Node };
    let stop = Arc::new(AtomicBool::new(false));
    let source_events = events.clone();
    let stopped = Arc::clone(&stop);
    let source_thread =
        std::thread::spawn(move || source.run(&source_events, &pending_queries, &stopped));
    let options = RenderOptions { with_colour: printer.has_colour(), in_ascii: args.ascii };
    let mut read_host = move || host.as_mut().map(source::host::HostReader::sample);
    let shown = event_loop::run(page, options, (&events, &received), &queries, &mut read_host);
    stop.store(true, Ordering::Relaxed);
    // Give the source thread a second to stop its NVML child process. A thread that waits for a
    // server is abandoned after that.
    drop(queries);
    let started = Instant::now();
    while !source_thread.is_finished() && started.elapsed() < Duration::from_secs(1) {
        std::thread::sleep(Duration::from_millis(10));
    }
    shown?;
    Ok(Outcome::Fine)
}

/// The source of the samples.
enum Source {
    Nvml(source::nvml::NvmlSettings),
    Agent(Box<source::agent::AgentSource>, Duration),
    Server(Box<source::server::ServerSource>, Duration),
}

impl Source {
    fn from_args(args: &Args) -> anyhow::Result<Self> {
        if args.server {
            let interval = args.interval.unwrap_or(SERVER_INTERVAL);
            let server = source::server::ServerSource::from_login()?;
            return Ok(Self::Server(Box::new(server), interval));
        }
        let interval = args.interval.unwrap_or(Duration::from_secs(1));
        let root = args.root.clone().unwrap_or_else(|| "/".into());
        let from_agent = |socket| {
            let agent = source::agent::AgentSource::new(socket, root.clone(), interval);
            Self::Agent(Box::new(agent), interval)
        };
        if let Some(socket) = &args.socket {
            return Ok(from_agent(socket.clone()));
        }
        if args.nvml.is_none() && args.root.is_none() {
            let socket = default_socket();
            if matches!(status::try_query(&socket), Ok(status::QueryOutcome::Answer(_))) {
                return Ok(from_agent(socket));
            }
        }
        let library = match &args.nvml {
            Some(library) => library.clone(),
            None if args.root.is_none() => OsString::from(LIBRARY),
            None => {
                // The NVML library of this machine would report this machine's GPUs.
                return Err(Hinted::error("--root needs an NVML library", "add --nvml PATH"));
            }
        };
        Ok(Self::Nvml(source::nvml::NvmlSettings { library, root, interval }))
    }

    /// Reads the host's files while NVML does not answer. `None` for the other sources.
    fn host(&self) -> Option<source::host::HostReader> {
        match self {
            Self::Nvml(settings) => {
                Some(source::host::HostReader::new(Root::unrecorded(&settings.root)))
            }
            Self::Agent(..) | Self::Server(..) => None,
        }
    }

    /// Sends updates until the receiver is gone, or `stop` is set.
    fn run(self, events: &Sender<UiEvent>, queries: &Receiver<ServerQuery>, stop: &AtomicBool) {
        let send = |update| {
            if events.send(UiEvent::Update(update)).is_err() {
                stop.store(true, Ordering::Relaxed);
            }
        };
        match self {
            Self::Nvml(settings) => source::nvml::run(&settings, stop, &mut |node, _| {
                send(SourceUpdate::Node(Box::new(node)));
            }),
            Self::Agent(mut agent, interval) => loop {
                send(SourceUpdate::Node(Box::new(agent.sample())));
                if !matches!(queries.recv_timeout(interval), Err(RecvTimeoutError::Timeout)) {
                    return;
                }
            },
            Self::Server(server, interval) => {
                server.run(interval, queries, &mut |update| send(update));
            }
        }
    }

    fn once(self, output: Output, printer: &mut Printer) -> anyhow::Result<Outcome> {
        match self {
            Self::Nvml(settings) => {
                let node = sample_once(&settings).context("NVML reported nothing")?;
                once::node(node, output, Timestamp::now(), printer)
            }
            Self::Agent(mut agent, _) => {
                once::node(agent.sample(), output, Timestamp::now(), printer)
            }
            Self::Server(mut server, _) => match server.sample() {
                Ok(fleet) => once::fleet(&fleet, output, printer),
                Err(err) if failure::is_unavailable(&err) => {
                    let outage = source::server::outage(&err);
                    once::unavailable_fleet(server.url(), &outage, output, printer)
                }
                Err(err) => Err(err),
            },
        }
    }
}

/// The agent's socket, found as `farrier status` does.
fn default_socket() -> PathBuf {
    let from_environment =
        std::env::var_os("FARRIER_SOCKET").filter(|path| !path.is_empty()).map(PathBuf::from);
    from_environment.unwrap_or_else(|| {
        config::read_lenient(Path::new(config::DEFAULT_PATH), false).0.socket.path
    })
}

/// Samples NVML until everything was read, NVML does not answer, or the timeout expires.
fn sample_once(settings: &source::nvml::NvmlSettings) -> Option<NodeSample> {
    let stop = AtomicBool::new(false);
    let started = Instant::now();
    let mut last = None;
    source::nvml::run(settings, &stop, &mut |node, progress: ReadProgress| {
        let is_complete = progress.is_complete() && node.outage.is_none();
        let is_late = progress.is_late(started.elapsed(), ONCE_TIMEOUT);
        let is_done = is_complete || progress.is_unavailable() || is_late;
        last = Some(node);
        if is_done {
            stop.store(true, Ordering::Relaxed);
        }
    });
    last
}
