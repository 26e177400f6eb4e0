//! Agent startup, signal handling and shutdown.

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

use crate::artifact::{ArtifactUpload, Outbox};
use crate::collect::{self, CollectorContext, Stop};
use crate::config::{self, Config, ConfigError, Flags, Listen, ParsedFile};
use crate::failpoint::Failpoint;
use crate::hooks::{self, HookParts, Hooks};
use crate::http::{self, Pages};
use crate::jobs::{self, JobRegistry, SocketError};
use crate::journal::{Journal, JournalError};
use crate::monitor::{
    BootInventory, Chain, Clock, CollectorMessage, ConfigRejected, HealthMonitor, MonitorParts,
    NodeIdentity,
};
use crate::notify;
use crate::orders::cordon_watch::{self, RecheckReceiver, RecheckSender};
use crate::orders::{
    self, ActuatorFactory, ExecutorOptions, InspectorError, NodeActuator, NodeInspector,
    OrderExecutor, OrdersError, RepairWatch, Tuner,
};
use crate::state::Published;
use crate::status::Status;
use crate::status_cache::{StatusCache, StatusSources};
use crate::uplink::{self, IdentityStore, NoOrders, OrderHandler, Uplink};

/// Maximum number of messages in the inbox of the health monitor. A kernel log record has a few
/// hundred bytes, and at most 8 kB.
const INBOX: usize = 1024;

/// How long shutdown waits for the health monitor to flush its pending changes.
const STOP_WAIT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("the configuration is invalid")]
    Config(#[from] ConfigError),
    /// The configured root is not a directory.
    #[error("`{}` is not the root of a node's files", .0.display())]
    Root(PathBuf),
    #[error("failed to open the journal")]
    Journal(#[from] JournalError),
    #[error("the job socket is unavailable")]
    Socket(#[from] SocketError),
    /// The address is in use, or does not belong to this host.
    #[error("failed to listen on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        err: io::Error,
    },
    /// The system could not create a thread, signal handler or timer.
    #[error("failed to start")]
    Start(#[source] io::Error),
    /// The health monitor's thread ended without a stop request.
    #[error("the health monitor's thread has ended: nothing is monitored any more")]
    HealthMonitor,
}

/// Command-line flags that override the configuration file.
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

#[derive(Debug, Clone)]
pub struct AgentOptions {
    pub config: PathBuf,
    /// `true` if the user gave the path explicitly. The file must then exist.
    pub config_named: bool,
    pub overrides: Overrides,
    /// The binary whose `probe watch` subcommand calls NVML.
    pub program: PathBuf,
    pub facts: &'static FactSet,
    /// Creates the actuator for a root that is not this machine's own.
    pub simulated_actuator: ActuatorFactory,
}

impl AgentOptions {
    /// Reads the configuration file and applies the overrides.
    pub fn load(&self) -> Result<Config, ConfigError> {
        config::read(&self.config, self.config_named).map(|config| self.with_overrides(config))
    }

    /// Like `load`, but also checks the configuration against this node.
    pub fn check(&self) -> Result<Config, ConfigError> {
        let ParsedFile { config, lines, mut problems } =
            config::parse_file(&self.config, self.config_named)?;
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
        let config = self.with_overrides(config);
        let mut preflight = config::preflight(&config, &lines, &flags);
        // An invalid key has its default value here. A problem with the default value would only
        // confuse the user.
        preflight.retain(|found| !problems.iter().any(|problem| problem.key == found.key));
        problems.extend(preflight);
        ParsedFile { config, lines, problems }.into_config(&self.config)
    }

    /// Applies the command-line overrides.
    fn with_overrides(&self, mut config: Config) -> Config {
        let Overrides { root, nvml, state_dir, listen, socket } = self.overrides.clone();
        config.root = root.unwrap_or(config.root);
        config.nvml = nvml.or(config.nvml);
        config.state_dir = state_dir.unwrap_or(config.state_dir);
        config.listen = listen.unwrap_or(config.listen);
        config.socket.path = socket.unwrap_or(config.socket.path);
        config
    }
}

/// Runs the agent until SIGTERM or SIGINT.
pub fn run(options: &AgentOptions) -> Result<(), AgentError> {
    let config = options.load()?;
    if !config.root.is_dir() {
        return Err(AgentError::Root(config.root));
    }
    let node = node_identity(&config);
    tracing::info!(node = %node.hostname, boot = %node.boot, root = %config.root.display(), "starting the agent");
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
    let registry = Arc::new(JobRegistry::default());
    let metrics = Arc::new(RwLock::new(config.metrics.clone()));
    let (inbox, messages) = sync_channel(INBOX);
    let inventory = BootInventory::open(&config.state_dir, &node.boot);
    let context = CollectorContext {
        inbox,
        stop: Arc::new(Stop::default()),
        config: config.clone(),
        program: options.program.clone(),
        facts: options.facts,
        gpus: inventory.gpus().to_vec(),
        kernel_after: journal.durable().kernel_cursor(&node.boot),
        probe_pause: Arc::default(),
    };
    let hostname = node.hostname.clone();
    let node_id = enrolled_name(&config, &hostname);
    let (recheck_sender, recheck_receiver) = cordon_watch::recheck_channel();
    let (outbox, artifacts) = Outbox::new();
    let outbox = config.server.parsed_url().map(|_| outbox);
    let names = (hostname.clone(), node_id.clone());
    let opened =
        open_executor(options, &context, names, outbox, recheck_sender, &published, &registry);
    let executor = opened.as_ref().ok().cloned().flatten();
    let rules = Rules::configured(&config.rules).map_err(invalid_rules)?;
    let parts = MonitorParts {
        clock: Box::new(SystemClock),
        rules,
        journal,
        published: published.clone(),
        registry: Arc::clone(&registry),
        failpoint: Failpoint::from_environment(),
        inventory,
        node,
        // If this process executes no orders, another process may execute them and write repair
        // notes to disk.
        repair_watch: executor.is_none().then(|| RepairWatch::new(&config.state_dir)),
        config: config.clone(),
        facts: options.facts,
    };
    let (alive, monitor_ended) = tokio::sync::oneshot::channel::<()>();
    let monitor = std::thread::Builder::new()
        .name("monitor".to_owned())
        .spawn(move || {
            // The value is dropped when the thread ends, no matter whether it returns or panics.
            let _alive = alive;
            HealthMonitor::new(parts).run(&messages);
        })
        .map_err(AgentError::Start)?;
    collect::spawn(&context).map_err(AgentError::Start)?;
    let uplink = uplink(
        &config,
        node_id,
        executor.clone(),
        artifacts,
        recheck_receiver,
        (&published, &registry),
    )?;
    let hooks = Hooks::spawn(hook_parts(&config, &context, &hostname, &published));
    let hooks = hooks.map_err(AgentError::Start)?;
    let sources = StatusSources::new(&config, uplink.as_ref(), &opened, hooks.as_ref());
    let result = runtime.block_on(async {
        let pages = Pages {
            published: published.clone(),
            registry: Arc::clone(&registry),
            metrics,
            uplink: uplink.as_ref().map(Uplink::connection_status),
            hooks: hooks.as_ref().map(Hooks::status),
        };
        let status = StatusCache::new(published.clone(), Arc::clone(&registry), sources);
        tokio::spawn(jobs::run(socket, registry, Arc::new(status)));
        if let Some(listener) = http {
            tokio::spawn(http::run(listener, pages.clone()));
        }
        tokio::spawn(notify::run(published));
        tokio::select! {
            stopped = signals(options, config.clone(), &context, &pages) => stopped,
            _ = monitor_ended => Err(AgentError::HealthMonitor),
        }
    });
    stop(&context, executor, &monitor, uplink, hooks);
    jobs::remove(&config.socket.path);
    result
}

/// Stops all threads.
fn stop(
    context: &CollectorContext,
    executor: Option<OrderExecutor>,
    monitor: &std::thread::JoinHandle<()>,
    uplink: Option<Uplink>,
    hooks: Option<Hooks>,
) {
    notify::send("STOPPING=1");
    context.stop.now();
    if let Some(executor) = executor {
        executor.stop();
    }
    stop_monitor(&context.inbox, monitor);
    if let Some(uplink) = uplink {
        uplink.stop();
    }
    if let Some(hooks) = hooks {
        hooks.stop();
    }
}

fn hook_parts(
    config: &Config,
    context: &CollectorContext,
    hostname: &str,
    published: &Published,
) -> HookParts {
    HookParts {
        hooks: config.hooks.clone(),
        state_dir: config.state_dir.clone(),
        node: hooks::node_name(hostname),
        published: published.clone(),
        gpus: context.gpus.clone(),
        facts: context.facts,
    }
}

/// The node's name on the server. This is the name in the certificate, or the host name if the
/// server has no TLS. `None` if the node has not enrolled.
fn enrolled_name(config: &Config, hostname: &str) -> Option<NodeId> {
    if config.server.parsed_url()?.is_plain() {
        return hostname.parse().ok();
    }
    let identity_store = IdentityStore::new(&config.server.identity, config.server.ca.as_deref());
    identity_store.check().ok().map(|identity| identity.node)
}

/// Starts the uplink if a server is configured.
fn uplink(
    config: &Config,
    node: Option<NodeId>,
    executor: Option<OrderExecutor>,
    artifacts: mpsc::Receiver<ArtifactUpload>,
    recheck_receiver: RecheckReceiver,
    (published, registry): (&Published, &Arc<JobRegistry>),
) -> Result<Option<Uplink>, AgentError> {
    let Some(url) = config.server.parsed_url() else { return Ok(None) };
    let status_changed = Arc::default();
    let cordon = match &executor {
        Some(executor) => {
            cordon_watch::spawn(executor.clone(), recheck_receiver, Arc::clone(&status_changed))
        }
        // Without an order executor, nothing reads the cordon, so the cordon is unknown.
        None => Ok(tokio::sync::watch::channel(Cordon::Unknown).1),
    };
    let parts = uplink::Parts {
        url,
        identity_store: IdentityStore::new(&config.server.identity, config.server.ca.as_deref()),
        node,
        state_dir: config.state_dir.clone(),
        durable: published.durable(),
        urgent: published.urgent(),
        inventory: uplink::inventory_source(published.clone(), Arc::clone(registry), &config.root),
        coverage: uplink::coverage_source(published.clone()),
        cordon: cordon.map_err(AgentError::Start)?,
        order_handler: executor.map_or_else(
            || Arc::new(NoOrders) as Arc<dyn OrderHandler>,
            |executor| Arc::new(executor),
        ),
        artifacts,
        status_changed,
        fixed_wait: uplink::fixed_wait_from_environment(),
    };
    Uplink::spawn(parts).map(Some).map_err(AgentError::Start)
}

/// Opens the order executor if orders are enabled. A failure does not stop monitoring.
fn open_executor(
    options: &AgentOptions,
    context: &CollectorContext,
    (hostname, node): (String, Option<NodeId>),
    outbox: Option<Outbox>,
    recheck_sender: RecheckSender,
    published: &Published,
    registry: &Arc<JobRegistry>,
) -> Result<Option<OrderExecutor>, OrdersError> {
    let config = &context.config;
    if !config.orders.enabled {
        return Ok(None);
    }
    let tuner = Tuner::new(config, &options.program);
    let simulated = || (options.simulated_actuator)(&config.root, tuner.clone());
    let actuator = Some(config.is_live()).filter(|live| !live).and_then(|_| simulated());
    let pause = Arc::clone(&context.probe_pause);
    let actuator = actuator
        .unwrap_or_else(|| Box::new(NodeActuator::new(&config.root, Some(pause), tuner.clone())));
    let (published, registry) = (published.clone(), Arc::clone(registry));
    let status = move || {
        let state = published.get().ok_or(InspectorError::AgentStarting)?;
        Ok(Status::from_state(&state, registry.jobs(), clock::since_boot_ms()))
    };
    let inspector =
        NodeInspector::new(config, options.program.clone(), options.facts, Box::new(status));
    let wake = Box::new(move || recheck_sender.notify());
    let inbox = context.inbox.clone();
    // If the health monitor has ended, it reads the note from disk at its next start.
    let repaired = Box::new(move |note| drop(inbox.send(CollectorMessage::Repaired(note))));
    let inspector = Arc::new(inspector);
    let executor_options =
        ExecutorOptions { actuator, inspector, hostname, node, outbox, wake, repaired };
    let opened = orders::open(config, executor_options).and_then(|executor| {
        executor.spawn().map_err(OrdersError::Thread)?;
        Ok(Some(executor))
    });
    opened
        .inspect_err(|err| tracing::error!(err = %Chain(err), "failed to start the order executor"))
}

/// Asks the health monitor to stop, and waits for at most `STOP_WAIT`. The health monitor stops at
/// once unless the disk hangs. In that case, the inbox may also be full, so neither the send nor
/// the wait may block.
fn stop_monitor(inbox: &SyncSender<CollectorMessage>, monitor: &std::thread::JoinHandle<()>) {
    let start = std::time::Instant::now();
    let mut requested = false;
    while !monitor.is_finished() && start.elapsed() < STOP_WAIT {
        requested = requested || inbox.try_send(CollectorMessage::Stop).is_ok();
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends a message to the health monitor. If the inbox is full, waits until it has room.
async fn send(inbox: &SyncSender<CollectorMessage>, mut message: CollectorMessage) {
    while let Err(TrySendError::Full(rejected)) = inbox.try_send(message) {
        message = rejected;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Opens the journal and logs the damage found in it.
fn open_journal(config: &Config) -> Result<Journal, AgentError> {
    let journal = Journal::open(&config.state_dir, config.retention)?;
    let recovery = journal.recovery();
    if recovery.torn_bytes > 0 {
        let torn_bytes = recovery.torn_bytes;
        tracing::warn!(torn_bytes, "truncated a torn record at the end of the journal");
    }
    if recovery.damaged_lines > 0 {
        let damaged_lines = recovery.damaged_lines;
        tracing::error!(damaged_lines, "skipped damaged lines in the journal");
    }
    let state = journal.durable();
    tracing::info!(seq = state.seq, open = state.open.len(), "opened the journal");
    Ok(journal)
}

fn listen(
    runtime: &tokio::runtime::Runtime,
    listen: Listen,
) -> Result<Option<tokio::net::TcpListener>, AgentError> {
    let Listen::At(address) = listen else { return Ok(None) };
    let listener = runtime.block_on(tokio::net::TcpListener::bind(address));
    let listener = listener.map_err(|err| AgentError::Listen { address, err })?;
    // If the configured port is 0, the kernel chooses one. Log the port in use.
    if let Ok(address) = listener.local_addr() {
        tracing::info!(%address, "serving metrics");
    }
    Ok(Some(listener))
}

/// Turns errors in rules into a configuration error. `config::read` has already validated each
/// rule.
fn invalid_rules(errors: Vec<farrier_fleet::health::RulesError>) -> AgentError {
    let problems = errors.into_iter().map(|err| config::ConfigProblem {
        line: 0,
        key: "rules".to_owned(),
        value: String::new(),
        expected: err.to_string(),
    });
    AgentError::Config(ConfigError::Content { path: PathBuf::new(), problems: problems.collect() })
}

/// Waits for signals. SIGTERM and SIGINT stop the agent; SIGHUP reloads the configuration.
async fn signals(
    options: &AgentOptions,
    mut config: Config,
    context: &CollectorContext,
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
        let message = match options.load() {
            Ok(new) => {
                let later = config.needs_restart(&new);
                if later.is_empty() {
                    tracing::info!("reloaded the configuration");
                } else {
                    let keys = later.join(", ");
                    tracing::warn!(%keys, "reloaded the configuration; these keys take effect after a restart");
                }
                config = config.reloaded(&new);
                pages
                    .metrics
                    .write()
                    .unwrap_or_else(PoisonError::into_inner)
                    .clone_from(&config.metrics);
                CollectorMessage::Reloaded(Box::new(config.clone()))
            }
            Err(err) => {
                tracing::error!(err = %Chain(&err), "rejected the new configuration; the old one stays in force");
                for problem in err.lines() {
                    tracing::error!(%problem, "configuration problem");
                }
                CollectorMessage::ConfigRejected(ConfigRejected {
                    path: options.config.clone(),
                    err,
                })
            }
        };
        // The inbox may be full for a moment, or permanently if the disk hangs. A signal must still
        // be able to stop the agent.
        tokio::select! {
            () = send(&context.inbox, message) => (),
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
        }
    }
}

/// Host name, boot id and boot time of the monitored node.
fn node_identity(config: &Config) -> NodeIdentity {
    let root = Root::unrecorded(&config.root);
    let read = |path: &str| match root.trimmed(path) {
        Reading::Value(text) if !text.is_empty() => Some(text),
        _ => None,
    };
    let boot_time = boot_time(&root);
    let boot = read("/proc/sys/kernel/random/boot_id")
        .or_else(|| boot_time.map(|boot_time| boot_time.to_string()))
        .unwrap_or_else(|| "unknown".to_owned());
    let hostname = read("/proc/sys/kernel/hostname")
        .or_else(|| read("/etc/hostname"))
        .unwrap_or_else(|| "unknown".to_owned());
    // Timestamps in the kernel log are relative to the boot of the node. If the root belongs to
    // another node, this is not the boot of this machine.
    let node_boot_time = boot_time.filter(|_| !config.is_live());
    NodeIdentity { hostname, boot, node_boot_time }
}

/// The host name of the monitored node.
pub fn hostname(config: &Config) -> String {
    node_identity(config).hostname
}

/// The node's boot time, from `btime` in `/proc/stat`.
pub(crate) fn boot_time(root: &Root) -> Option<Timestamp> {
    let text = root.text("/proc/stat");
    let line = text.value()?.lines().find_map(|line| line.strip_prefix("btime "))?;
    Timestamp::from_second(line.trim().parse().ok()?).ok()
}

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
