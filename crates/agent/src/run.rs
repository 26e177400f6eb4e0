//! Starts the agent, keeps it running, and ends it.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use farrier_facts::FactSet;
use farrier_facts::node::Reading;
use farrier_fleet::fleet::NodeId;
use farrier_fleet::fleet::event::Cordon;
use farrier_fleet::health::{Moment, Rules};
use farrier_hardware::{Root, clock};
use jiff::Timestamp;
use tokio::signal::unix::{SignalKind, signal};

use tokio::sync::mpsc;

use crate::answers::{Neighbours, StatusLine};
use crate::artifact::{Outbox, Sending};
use crate::brain::{Brain, Chain, Clock, ConfigRejected, Inventory, Parts, Place, Seen};
use crate::collect::{self, Stop, Surroundings};
use crate::config::{self, Config, ConfigError, Flags, Judgement, Listen};
use crate::crash::Crash;
use crate::http::{self, Pages};
use crate::jobs::{self, Board, SocketError};
use crate::journal::{Journal, JournalError};
use crate::notify;
use crate::orders::mark::{self, Wake, Woken};
use crate::orders::{
    self, Desk, HandsElsewhere, InspectorError, NodeEyes, NodeHands, OrdersError, RepairWatch,
    Start, Tuner,
};
use crate::state::Published;
use crate::status::Status;
use crate::uplink::{self, Keep, NoOrders, OrderDesk, Uplink};

/// Messages that may wait for the brain. A record of the kernel log has some hundred bytes, at most eight thousand.
const INBOX: usize = 1024;

/// How long the brain is given to write what it has when the agent ends.
const END_WAIT: Duration = Duration::from_secs(5);

/// Why the agent does not run.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// Its configuration is wrong.
    #[error("the configuration is wrong")]
    Config(#[from] ConfigError),
    /// There is nothing to watch.
    #[error("`{}` is not the root of a node's files", .0.display())]
    Root(PathBuf),
    /// It has no journal.
    #[error("failed to open the journal")]
    Journal(#[from] JournalError),
    /// It has no socket.
    #[error("there is no socket for jobs")]
    Socket(#[from] SocketError),
    /// The address is taken, or not ours.
    #[error("failed to listen on {address}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        #[source]
        err: io::Error,
    },
    /// The system gives no threads, signals or timers.
    #[error("failed to start")]
    Start(#[source] io::Error),
    /// Its brain has ended and nobody asked it to.
    #[error("the agent's brain has ended: nothing is watched any more")]
    Brain,
}

/// What the command line says beside the file; it outranks the file.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// `--root`
    pub root: Option<PathBuf>,
    /// `--nvml`
    pub nvml: Option<PathBuf>,
    /// `--state-dir`
    pub state_dir: Option<PathBuf>,
    /// `--listen`
    pub listen: Option<Listen>,
    /// `--socket`
    pub socket: Option<PathBuf>,
}

/// How the agent is started.
#[derive(Debug, Clone)]
pub struct Options {
    /// The file.
    pub config: PathBuf,
    /// Whether somebody named it, so that it has to be there.
    pub config_named: bool,
    /// What outranks it.
    pub overrides: Overrides,
    /// The program whose `probe watch` asks NVML.
    pub program: PathBuf,
    /// The facts.
    pub facts: &'static FactSet,
    /// What changes a node whose root is not this machine's.
    pub hands_elsewhere: HandsElsewhere,
}

impl Options {
    /// The configuration in force.
    pub fn load(&self) -> Result<Config, ConfigError> {
        config::read(&self.config, self.config_named).map(|config| self.outranked(config))
    }

    /// The configuration that would be in force, if the node also has what it names.
    pub fn check(&self) -> Result<Config, ConfigError> {
        let Judgement { config, lines, mut problems } =
            config::judge(&self.config, self.config_named)?;
        let Overrides { root, nvml, state_dir, listen, socket } = &self.overrides;
        let flags = [
            ("root", "--root", root.is_some()),
            ("nvml", "--nvml", nvml.is_some()),
            ("state_dir", "--state-dir", state_dir.is_some()),
            ("listen", "--listen", listen.is_some()),
            ("socket.path", "--socket", socket.is_some()),
        ];
        let flags = flags.into_iter().filter(|(.., is_set)| *is_set);
        let flags: Flags = flags.map(|(key, flag, _)| (key, flag)).collect();
        let config = self.outranked(config);
        let mut around = config::look_around(&config, &lines, &flags);
        // A key that is wrong in the file stands at its default only until it is mended.
        around.retain(|found| !problems.iter().any(|wrong| wrong.key == found.key));
        problems.extend(around);
        Judgement { config, lines, problems }.into_config(&self.config)
    }

    /// With what the command line says.
    fn outranked(&self, mut config: Config) -> Config {
        let Overrides { root, nvml, state_dir, listen, socket } = self.overrides.clone();
        config.root = root.unwrap_or(config.root);
        config.nvml = nvml.or(config.nvml);
        config.state_dir = state_dir.unwrap_or(config.state_dir);
        config.listen = listen.unwrap_or(config.listen);
        config.socket.path = socket.unwrap_or(config.socket.path);
        config
    }
}

/// Runs until it is told to stop.
pub fn run(options: &Options) -> Result<(), AgentError> {
    let config = options.load()?;
    if !config.root.is_dir() {
        return Err(AgentError::Root(config.root));
    }
    let place = place(&config);
    tracing::info!(node = %place.hostname, boot = %place.boot, root = %config.root.display(), "the agent starts");
    let journal = open_journal(&config)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(AgentError::Start)?;
    let guard = runtime.enter();
    let socket = jobs::bind(&config.socket)?;
    let http = listen(&runtime, config.listen)?;
    drop(guard);
    let published = Published::default();
    let board = Arc::new(Board::default());
    let metrics = Arc::new(RwLock::new(config.metrics.clone()));
    let (inbox, messages) = sync_channel(INBOX);
    let inventory = Inventory::open(&config.state_dir, &place.boot);
    let surroundings = Surroundings {
        inbox,
        stop: Arc::new(Stop::default()),
        config: config.clone(),
        program: options.program.clone(),
        facts: options.facts,
        gpus: inventory.gpus().to_vec(),
        kernel_after: journal.durable().kernel_cursor(&place.boot),
        hold: Arc::default(),
    };
    let hostname = place.hostname.clone();
    let name = name(&config, &hostname);
    let (wake, woken) = mark::wake();
    let (outbox, artifacts) = Outbox::new();
    let outbox = config.server.parsed_url().map(|_| outbox);
    let known = (hostname, name.clone());
    let desk = desk(options, &surroundings, known, outbox, wake, &published, &board);
    let hands = desk.as_ref().ok().cloned().flatten();
    let rules = Rules::configured(&config.rules).map_err(rules_changed)?;
    let parts = Parts {
        clock: Box::new(SystemClock),
        rules,
        journal,
        published: published.clone(),
        board: Arc::clone(&board),
        crash: Crash::from_environment(),
        inventory,
        place,
        // Where no orders are carried out here another process may carry them out.
        repair_watch: hands.is_none().then(|| RepairWatch::new(&config.state_dir)),
        config: config.clone(),
        facts: options.facts,
    };
    let (alive, brain_ended) = tokio::sync::oneshot::channel::<()>();
    let brain = std::thread::Builder::new()
        .name("brain".to_owned())
        .spawn(move || {
            // Goes with the thread, however that ends.
            let _alive = alive;
            Brain::new(parts).run(&messages);
        })
        .map_err(AgentError::Start)?;
    collect::spawn(&surroundings).map_err(AgentError::Start)?;
    let uplink = uplink(&config, name, hands.clone(), artifacts, woken, (&published, &board))?;
    let neighbours = Neighbours::new(&config, uplink.as_ref(), &desk);
    let ended = runtime.block_on(async {
        let sight = uplink.as_ref().map(Uplink::sight);
        let pages = Pages {
            published: published.clone(),
            board: Arc::clone(&board),
            metrics,
            uplink: sight,
        };
        let answers = StatusLine::new(published.clone(), Arc::clone(&board), neighbours);
        tokio::spawn(jobs::run(socket, board, Arc::new(answers)));
        if let Some(listener) = http {
            tokio::spawn(http::run(listener, pages.clone()));
        }
        tokio::spawn(notify::run(published));
        tokio::select! {
            asked = signals(options, config.clone(), &surroundings, &pages) => asked,
            _ = brain_ended => Err(AgentError::Brain),
        }
    });
    notify::say("STOPPING=1");
    surroundings.stop.now();
    if let Some(desk) = hands {
        desk.stop();
    }
    end(&surroundings.inbox, &brain);
    if let Some(uplink) = uplink {
        uplink.stop();
    }
    jobs::remove(&config.socket.path);
    ended
}

/// The name that the server knows the node by: its certificate's; without TLS the host's. None: it has not enrolled.
fn name(config: &Config, hostname: &str) -> Option<NodeId> {
    if config.server.parsed_url()?.is_plain() {
        return hostname.parse().ok();
    }
    let keep = Keep::new(&config.server.identity, config.server.ca.as_deref());
    keep.check().ok().map(|identity| identity.node)
}

/// Tells the server, where there is one.
fn uplink(
    config: &Config,
    node: Option<NodeId>,
    desk: Option<Desk>,
    artifacts: mpsc::Receiver<Sending>,
    woken: Woken,
    (published, board): (&Published, &Arc<Board>),
) -> Result<Option<Uplink>, AgentError> {
    let Some(url) = config.server.parsed_url() else { return Ok(None) };
    let bell = Arc::default();
    let cordon = match &desk {
        Some(desk) => mark::spawn(desk.clone(), woken, Arc::clone(&bell)),
        // Nobody looks.
        None => Ok(tokio::sync::watch::channel(Cordon::Unknown).1),
    };
    let parts = uplink::Parts {
        url,
        keep: Keep::new(&config.server.identity, config.server.ca.as_deref()),
        node,
        state_dir: config.state_dir.clone(),
        durable: published.durable(),
        urgent: published.urgent(),
        made_of: uplink::of_published(published.clone(), Arc::clone(board), &config.root),
        cordon: cordon.map_err(AgentError::Start)?,
        desk: desk.map_or_else(|| Arc::new(NoOrders) as Arc<dyn OrderDesk>, |it| Arc::new(it)),
        artifacts,
        bell,
        fixed_wait: uplink::fixed_wait_from_environment(),
    };
    Uplink::spawn(parts).map(Some).map_err(AgentError::Start)
}

/// The desk for orders, where they are to be carried out. One that cannot be opened does not keep the node from being watched.
fn desk(
    options: &Options,
    surroundings: &Surroundings,
    (hostname, node): (String, Option<NodeId>),
    outbox: Option<Outbox>,
    wake: Wake,
    published: &Published,
    board: &Arc<Board>,
) -> Result<Option<Desk>, OrdersError> {
    let config = &surroundings.config;
    if !config.orders.enabled {
        return Ok(None);
    }
    let tuner = Tuner::new(config, &options.program);
    let elsewhere = || (options.hands_elsewhere)(&config.root, tuner.clone());
    let hands = Some(config.is_live()).filter(|live| !live).and_then(|_| elsewhere());
    let hold = Arc::clone(&surroundings.hold);
    let hands =
        hands.unwrap_or_else(|| Box::new(NodeHands::new(&config.root, Some(hold), tuner.clone())));
    let (published, board) = (published.clone(), Arc::clone(board));
    let known = move || {
        let state = published.get().ok_or(InspectorError::AgentStarting)?;
        Ok(Status::of(&state, board.jobs(), clock::since_boot_ms()))
    };
    let eyes = NodeEyes::new(config, options.program.clone(), options.facts, Box::new(known));
    let wake = Box::new(move || wake.ring());
    let inbox = surroundings.inbox.clone();
    // A brain that has ended reads the note when it starts again.
    let repaired = Box::new(move |note| drop(inbox.send(Seen::Repaired(note))));
    let start = Start { hands, eyes: Arc::new(eyes), hostname, node, outbox, wake, repaired };
    let opened = orders::open(config, start).and_then(|desk| {
        desk.spawn().map_err(OrdersError::Thread)?;
        Ok(Some(desk))
    });
    opened.inspect_err(|err| tracing::error!(err = %Chain(err), "orders are not carried out"))
}

/// Asks the brain to end. It does so at once unless the disk hangs; then its channel is full sooner or later, and nothing
/// is gained by waiting for either.
fn end(inbox: &SyncSender<Seen>, brain: &std::thread::JoinHandle<()>) {
    let start = std::time::Instant::now();
    let mut asked = false;
    while !brain.is_finished() && start.elapsed() < END_WAIT {
        asked = asked || inbox.try_send(Seen::Stop).is_ok();
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Gives the brain a message when its channel has room.
async fn give(inbox: &SyncSender<Seen>, mut seen: Seen) {
    while let Err(TrySendError::Full(back)) = inbox.try_send(seen) {
        seen = back;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The journal, and word of what was wrong with it.
fn open_journal(config: &Config) -> Result<Journal, AgentError> {
    let journal = Journal::open(&config.state_dir, config.retention)?;
    let recovery = journal.recovery();
    if recovery.torn_bytes > 0 {
        let torn_bytes = recovery.torn_bytes;
        tracing::warn!(torn_bytes, "the journal ended in the middle of a record, which was cut");
    }
    if recovery.damaged_lines > 0 {
        let damaged_lines = recovery.damaged_lines;
        tracing::error!(damaged_lines, "the journal has damaged lines, which were skipped");
    }
    let fold = journal.durable();
    tracing::info!(seq = fold.seq, open = fold.open.len(), "the journal was read");
    Ok(journal)
}

fn listen(
    runtime: &tokio::runtime::Runtime,
    listen: Listen,
) -> Result<Option<tokio::net::TcpListener>, AgentError> {
    let Listen::At(address) = listen else { return Ok(None) };
    let listener = runtime.block_on(tokio::net::TcpListener::bind(address));
    let listener = listener.map_err(|err| AgentError::Listen { address, err })?;
    // With port 0 the system chooses; whoever asked for it wants to know.
    if let Ok(address) = listener.local_addr() {
        tracing::info!(%address, "metrics are served");
    }
    Ok(Some(listener))
}

/// The file was checked rule by rule when it was read.
fn rules_changed(errors: Vec<farrier_fleet::health::RulesError>) -> AgentError {
    let problems = errors.into_iter().map(|err| config::Problem {
        line: 0,
        key: "rules".to_owned(),
        value: String::new(),
        expected: err.to_string(),
    });
    AgentError::Config(ConfigError::Content { path: PathBuf::new(), problems: problems.collect() })
}

/// Waits for signals: ends by SIGTERM and SIGINT, reads the configuration again by SIGHUP.
async fn signals(
    options: &Options,
    mut config: Config,
    surroundings: &Surroundings,
    pages: &Pages,
) -> Result<(), AgentError> {
    let on = |kind| signal(kind).map_err(AgentError::Start);
    let mut terminate = on(SignalKind::terminate())?;
    let mut interrupt = on(SignalKind::interrupt())?;
    let mut reload = on(SignalKind::hangup())?;
    loop {
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            _ = reload.recv() => {}
        }
        let seen = match options.load() {
            Ok(new) => {
                let later = config.needs_restart(&new);
                if later.is_empty() {
                    tracing::info!("the configuration was read again and is in force");
                } else {
                    let keys = later.join(", ");
                    tracing::warn!(%keys, "the configuration was read again; these keys wait for a restart");
                }
                config = config.reloaded(&new);
                pages
                    .metrics
                    .write()
                    .unwrap_or_else(PoisonError::into_inner)
                    .clone_from(&config.metrics);
                Seen::Reloaded(Box::new(config.clone()))
            }
            Err(err) => {
                tracing::error!(err = %Chain(&err), "the new configuration is wrong; the old one stays in force");
                for problem in err.lines() {
                    tracing::error!(%problem, "the configuration");
                }
                Seen::ConfigBad(ConfigRejected { path: options.config.clone(), err })
            }
        };
        // The channel may be full for a moment, and for good where the disk hangs.
        tokio::select! {
            () = give(&surroundings.inbox, seen) => (),
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
        }
    }
}

/// The node that is watched.
fn place(config: &Config) -> Place {
    let root = Root::unrecorded(&config.root);
    let word = |path: &str| match root.trimmed(path) {
        Reading::Value(word) if !word.is_empty() => Some(word),
        _ => None,
    };
    let started = boot_time(&root);
    let boot = word("/proc/sys/kernel/random/boot_id")
        .or_else(|| started.map(|started| started.to_string()))
        .unwrap_or_else(|| "unknown".to_owned());
    let hostname = word("/proc/sys/kernel/hostname")
        .or_else(|| word("/etc/hostname"))
        .unwrap_or_else(|| "unknown".to_owned());
    // The kernel's log goes by its own clock, which on another root is not this machine's.
    let node_started = started.filter(|_| !config.is_live());
    Place { hostname, boot, node_started }
}

/// The name of the node that is watched.
pub fn hostname(config: &Config) -> String {
    place(config).hostname
}

/// When the node started, as `/proc/stat` says.
pub(crate) fn boot_time(root: &Root) -> Option<Timestamp> {
    let text = root.text("/proc/stat");
    let line = text.value()?.lines().find_map(|line| line.strip_prefix("btime "))?;
    Timestamp::from_second(line.trim().parse().ok()?).ok()
}

/// This machine's clocks.
#[derive(Debug)]
struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        Moment { steady_ms: clock::since_boot_ms(), wall: Timestamp::now() }
    }

    fn cost(&self) -> (u64, Option<u64>) {
        (clock::process_cpu_us(), collect::rss_bytes("/proc/self/status"))
    }
}
