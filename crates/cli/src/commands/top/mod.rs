//! `farrier top`: GPUs, live.
//!
//! Sources tell what is now; `board` keeps it with its past; `screen` is what somebody looks at and what keys do; `draw`
//! makes a frame of both; `live` puts it on the terminal, `once` prints it. All but sources, `terminal` and `live` is pure.

mod board;
mod draw;
mod history;
mod keys;
mod limit;
mod live;
mod now;
mod once;
mod screen;
mod source;
mod terminal;

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

use crate::cli::Output;
use crate::commands::Outcome;
use crate::commands::agent::absolute;
use crate::commands::status;
use crate::failure::{self, Hinted};
use crate::printer::Printer;
use board::Told;
use live::{Event, Look};
use now::NodeNow;
use screen::{Page, Question};
use source::nvml::Progress;

/// How often a server is asked where nobody says otherwise: what it tells changes seldom.
const SERVER_INTERVAL: Duration = Duration::from_secs(5);

/// A look that takes longer than this shows what there is: a driver that is slow says so in its values.
const ONCE_WAIT: Duration = Duration::from_secs(20);

/// GPUs, live: what each does, what limits it, what was found, who holds it.
///
/// Without flags the agent of this node is asked where it answers, and NVML itself otherwise. Exit code 0; with --once 1
/// where nobody answers, or a node of the fleet is not in service; 2: an error.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print it once, for pipes
    #[arg(long)]
    once: bool,
    /// How to print it; with --once
    #[arg(long, value_name = "FORMAT", default_value = "table", requires = "once")]
    output: Output,
    /// Seconds between two looks [default: 1; of a fleet 5]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    interval: Option<Duration>,
    /// Draw with ASCII alone, for a terminal that knows no more, or a log
    #[arg(long)]
    ascii: bool,
    /// Ask NVML itself, by this library or the usual one, and no agent
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = LIBRARY, conflicts_with_all = ["socket", "server"])]
    nvml: Option<OsString>,
    /// Ask the agent at this socket
    #[arg(long, value_name = "PATH", value_parser = absolute, conflicts_with = "server")]
    socket: Option<PathBuf>,
    /// The whole fleet, at the server of `farrier login`
    #[arg(long)]
    server: bool,
    /// The node whose files are below this folder
    #[arg(long, value_name = "DIR", value_parser = absolute, conflicts_with = "server")]
    root: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|it| (0.2..=3600.0).contains(it));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "from 0.2 to 3600 seconds".to_owned())
}

pub(crate) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let source = Source::of(args)?;
    if args.once {
        if args.ascii {
            printer.set_ascii_only();
        }
        return source.once(args.output, printer);
    }
    if !terminal::is_there() {
        return Err(Hinted::error("`farrier top` needs a terminal", "--once prints it for a pipe"));
    }
    let (events, received) = mpsc::channel();
    let (wishes, heard) = mpsc::channel();
    let mut host = source.host();
    let page = if matches!(source, Source::Server(..)) { Page::Fleet } else { Page::Node };
    let stop = Arc::new(AtomicBool::new(false));
    let told = events.clone();
    let stopped = Arc::clone(&stop);
    let teller = std::thread::spawn(move || source.run(&told, &heard, &stopped));
    let look = Look { with_colour: printer.has_colour(), in_ascii: args.ascii };
    let mut read_host = move || host.as_mut().map(source::host::Host::now);
    let shown = live::run(page, look, (&events, &received), &wishes, &mut read_host);
    stop.store(true, Ordering::Relaxed);
    // The child that asks NVML is ended by its thread; one that waits for a server is left.
    drop(wishes);
    let begun = Instant::now();
    while !teller.is_finished() && begun.elapsed() < Duration::from_secs(1) {
        std::thread::sleep(Duration::from_millis(10));
    }
    shown?;
    Ok(Outcome::Fine)
}

/// Who is asked.
enum Source {
    Nvml(source::nvml::Settings),
    Agent(Box<source::agent::Agent>, Duration),
    Server(Box<source::server::Server>, Duration),
}

impl Source {
    fn of(args: &Args) -> anyhow::Result<Self> {
        if args.server {
            let interval = args.interval.unwrap_or(SERVER_INTERVAL);
            let server = source::server::Server::kept()?;
            return Ok(Self::Server(Box::new(server), interval));
        }
        let interval = args.interval.unwrap_or(Duration::from_secs(1));
        let root = args.root.clone().unwrap_or_else(|| "/".into());
        let agent = |socket| {
            Self::Agent(Box::new(source::agent::Agent::new(socket, root.clone())), interval)
        };
        if let Some(socket) = &args.socket {
            return Ok(agent(socket.clone()));
        }
        if args.nvml.is_none() && args.root.is_none() {
            let socket = usual_socket();
            if matches!(status::try_query(&socket), Ok(status::QueryOutcome::Answer(_))) {
                return Ok(agent(socket));
            }
        }
        let library = match &args.nvml {
            Some(library) => library.clone(),
            None if args.root.is_none() => OsString::from(LIBRARY),
            None => {
                // This machine's own library would speak of other GPUs.
                return Err(Hinted::error(
                    "another root is named and no NVML library",
                    "name it as well: --nvml PATH",
                ));
            }
        };
        Ok(Self::Nvml(source::nvml::Settings { library, root, interval }))
    }

    /// The host, where whoever is asked may fail to read it for us.
    fn host(&self) -> Option<source::host::Host> {
        match self {
            Self::Nvml(settings) => Some(source::host::Host::new(Root::unrecorded(&settings.root))),
            Self::Agent(..) | Self::Server(..) => None,
        }
    }

    /// Tells until nobody listens, or `stop`.
    fn run(self, events: &Sender<Event>, wished: &Receiver<Question>, stop: &AtomicBool) {
        let tell = |told| {
            if events.send(Event::Told(told)).is_err() {
                stop.store(true, Ordering::Relaxed);
            }
        };
        match self {
            Self::Nvml(settings) => source::nvml::run(&settings, stop, &mut |node, _| {
                tell(Told::Node(Box::new(node)));
            }),
            Self::Agent(mut agent, interval) => loop {
                tell(Told::Node(Box::new(agent.ask())));
                if !matches!(wished.recv_timeout(interval), Err(RecvTimeoutError::Timeout)) {
                    return;
                }
            },
            Self::Server(server, interval) => {
                server.run(interval, wished, &mut |told| tell(told));
            }
        }
    }

    fn once(self, output: Output, printer: &mut Printer) -> anyhow::Result<Outcome> {
        match self {
            Self::Nvml(settings) => {
                let node = look_once(&settings).context("NVML told nothing")?;
                once::node(&node, output, printer)
            }
            Self::Agent(mut agent, _) => once::node(&agent.ask(), output, printer),
            Self::Server(mut server, _) => match server.ask() {
                Ok(fleet) => once::fleet(&fleet, output, printer),
                Err(err) if failure::is_unavailable(&err) => {
                    let silence = source::server::silence(&err);
                    once::silent_fleet(server.url(), &silence, output, printer)
                }
                Err(err) => Err(err),
            },
        }
    }
}

/// Where the agent is, as `farrier status` looks for it.
fn usual_socket() -> PathBuf {
    let named =
        std::env::var_os("FARRIER_SOCKET").filter(|path| !path.is_empty()).map(PathBuf::from);
    named.unwrap_or_else(|| {
        config::read_as_far_as_it_goes(Path::new(config::DEFAULT_PATH), false).0.socket.path
    })
}

/// One look at NVML: until all was read, nobody answers, or it takes too long.
fn look_once(settings: &source::nvml::Settings) -> Option<NodeNow> {
    let stop = AtomicBool::new(false);
    let begun = Instant::now();
    let mut last = None;
    source::nvml::run(settings, &stop, &mut |node, progress: Progress| {
        let is_done = progress.is_whole() || progress.is_silent() || begun.elapsed() > ONCE_WAIT;
        last = Some(node);
        if is_done {
            stop.store(true, Ordering::Relaxed);
        }
    });
    last
}
