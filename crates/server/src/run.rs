//! Starts, runs and stops the server.

use std::borrow::Cow;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use farrier_facts::FactSet;
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{Event, Pool};
use farrier_notify::{ReceiverFiles, ReceiverFolders};
use farrier_wire::file_mode::{self, FileKind, LooseModes};
use jiff::SignedDuration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::access::{AccessError, AccessStore, Authority, AuthorityError, LastStart, NODE_LIFE};
use crate::advertised_url;
use crate::agents::Service;
use crate::artifacts::ArtifactStore;
use crate::audit::Audit;
use crate::clock::ClockWatch;
pub use crate::clock::WallClock;
use crate::controller::{Controller, ControllerResult};
use crate::counters::Counters;
pub use crate::ingest::ReportQuota;
use crate::ingest::{DisconnectReason, ReportQueue, SessionContext, SessionRegistry};
use crate::last_ran::LastRan;
use crate::log::sqlite::SqliteLog;
use crate::log::{Damage, Head, LogError};
use crate::log_tail::LogTail;
use crate::notify::{self, Deliver, Notifier, NotifyFailpoint, NotifyHandle, SenderDelivery};
use crate::policy_key::PolicyKey;
use crate::rest::{AppState, Rate, Rest};
use crate::serve::{self, Tls, TlsError};
use crate::space::DiskSpace;
use crate::state_machine::{CheckedLog, StateMachine};

/// How often the server renews its own certificate.
const RENEW_INTERVAL: Duration = Duration::from_secs(7 * 24 * 3600);

#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("failed to use the data directory `{}`", dir.display())]
    DataDir {
        dir: PathBuf,
        #[source]
        err: io::Error,
    },
    /// Other users can read or change files in the data directory.
    #[error(transparent)]
    Modes(#[from] LooseModes),
    #[error("another server uses the data directory `{}`", .0.display())]
    InUse(PathBuf),
    /// The log failed. Entries that were acknowledged before the failure are durable.
    #[error("the log failed")]
    Log(#[from] LogError),
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("failed to listen on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        err: io::Error,
    },
    #[error("{0} is not a loopback address, which a server without TLS requires")]
    PlaintextAddress(SocketAddr),
    /// The system could not create a thread or a signal handler.
    #[error("failed to start")]
    Start(#[source] io::Error),
    #[error("the controller stopped unexpectedly")]
    ControllerStopped,
}

#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// The server's data directory.
    pub dir: PathBuf,
    pub listen: SocketAddr,
    /// Names and addresses for the server's certificate, in addition to `listen` and the local host
    /// name.
    pub names: Vec<String>,
    /// Serves plaintext on a loopback address. The server accepts any node name and enrols the node
    /// in this pool.
    pub plain_pool: Option<Pool>,
    pub heartbeat_interval_s: u32,
    /// Limits the reports that each node may send.
    pub report_quota: ReportQuota,
    /// If less disk space than this is free, only reports that affect service are logged. `None`
    /// means 5 % of the disk, but at most 2 GiB.
    pub disk_reserve_bytes: Option<u64>,
    /// Rate limit per user token.
    pub rate: Rate,
    /// Validity of node certificates.
    pub certificate_life: SignedDuration,
    /// Whether to create a new certificate authority if the old one is lost.
    pub new_authority: bool,
    /// Connections without an authenticated request are closed after this time.
    pub idle_timeout: Duration,
    pub facts: Cow<'static, FactSet>,
    /// Keys of which one has to have signed a new policy. Empty means that policies need no
    /// signature.
    pub policy_keys: Vec<PolicyKey>,
    /// Which programs and secrets the receivers of the policy may name.
    pub receiver_folders: ReceiverFolders,
    /// For tests: a wall clock with an offset.
    pub wall_clock: WallClock,
    /// For tests: stop after this many commits, before the inputs of the last commit get their
    /// replies.
    pub fail_after_commits: Option<u64>,
    /// For tests: stop notifying at a step, after passing it this many times.
    pub notify_failpoint: Option<(NotifyFailpoint, u32)>,
    /// For tests: deliver to something else than receivers.
    pub deliver: Option<Arc<dyn Deliver>>,
}

impl ServerOptions {
    pub fn new(dir: PathBuf, listen: SocketAddr) -> Self {
        Self {
            dir,
            listen,
            names: Vec::new(),
            plain_pool: None,
            heartbeat_interval_s: 10,
            report_quota: ReportQuota::default(),
            disk_reserve_bytes: None,
            rate: Rate::default(),
            certificate_life: NODE_LIFE,
            new_authority: false,
            idle_timeout: serve::IDLE_TIMEOUT,
            facts: Cow::Borrowed(FactSet::embedded()),
            policy_keys: Vec::new(),
            receiver_folders: ReceiverFolders::default(),
            wall_clock: WallClock::default(),
            fail_after_commits: None,
            notify_failpoint: None,
            deliver: None,
        }
    }
}

pub fn log_path(dir: &Path) -> PathBuf {
    dir.join("log")
}

/// Creates the data directory so that only the user who runs the server can access it. Checks the
/// modes of the files in the directory.
pub fn prepare_folder(dir: &Path) -> Result<(), ServerError> {
    let failed = |err| ServerError::DataDir { dir: dir.to_owned(), err };
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
    let stores = STORES.map(|name| dir.join(name));
    let stores = stores.iter().map(|path| (path.as_path(), FileKind::Store));
    let key = dir.join("ca.key");
    let known = [(dir, FileKind::Folder), (key.as_path(), FileKind::Secret)];
    Ok(file_mode::check(known.into_iter().chain(stores)).map_err(failed)??)
}

/// Files that other users may neither read nor change.
const STORES: [&str; 12] = [
    "access",
    "access-wal",
    "access-shm",
    "log",
    "log-wal",
    "log-shm",
    "log-head",
    "log.state",
    "log.state.before",
    "notify",
    "notify-wal",
    "notify-shm",
];

#[derive(Debug)]
pub struct Running {
    address: SocketAddr,
    fingerprint: String,
    controller: Controller,
    tail: LogTail,
    sessions: Arc<SessionRegistry>,
    space: Arc<DiskSpace>,
    ended: ControllerResult,
    damage: Damage,
    stop: watch::Sender<bool>,
    notify: Arc<NotifyHandle>,
    tasks: JoinSet<()>,
    _lock: FolderLock,
}

/// Starts the server on the current runtime.
pub async fn start(options: ServerOptions) -> Result<Running, ServerError> {
    check_address(&options)?;
    prepare_folder(&options.dir)?;
    let lock = lock_folder(&options.dir)?;
    let authority = Arc::new(open_authority(&options)?);
    let store = Arc::new(AccessStore::open(&options.dir)?);
    let artifacts = open_artifacts(&options.dir)?;
    let failed = |err| ServerError::Listen { address: options.listen, err };
    let listener = TcpListener::bind(options.listen).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    record_url(&options, address);
    let tls = configure_tls(&options, &authority)?;
    let path = log_path(&options.dir);
    let state_machine =
        open_state_machine(path.clone(), Arc::clone(&store), authority.fingerprint(), &options)
            .await?;
    let (audited, damage) = (state_machine.state().access, state_machine.damage());
    let notify = notify_handle(&options);
    let (log_end, end) = watch::channel(state_machine.state().seq);
    let tail = LogTail::new(path, end, damage.clone());
    let sessions = Arc::new(SessionRegistry::new(options.report_quota));
    let space = Arc::new(DiskSpace::new(options.disk_reserve_bytes));
    let clock_watch = watch_clock(&options, tls.clone());
    let (controller, ended) = Controller::spawn(
        state_machine,
        Arc::clone(&sessions),
        Arc::clone(&space),
        log_end,
        clock_watch,
        options.fail_after_commits,
    )
    .map_err(ServerError::Start)?;
    let (counters, fingerprint) = (Arc::new(Counters::default()), authority.fingerprint());
    let context = Arc::new(SessionContext {
        controller: controller.clone(),
        sessions: Arc::clone(&sessions),
        store: Arc::clone(&store),
        space: Arc::clone(&space),
        report_queue: ReportQueue::default(),
        counters: Arc::clone(&counters),
        heartbeat_interval_s: options.heartbeat_interval_s,
    });
    let audit = Audit::new(controller.clone(), Arc::clone(&store), Arc::clone(&sessions), audited);
    let audit = Arc::new(audit);
    let (stop, stopped) = watch::channel(false);
    let app = AppState {
        controller: controller.clone(),
        tail: tail.clone(),
        sessions: Arc::clone(&sessions),
        space: Arc::clone(&space),
        heartbeat_interval: Duration::from_secs(u64::from(options.heartbeat_interval_s)),
        store: Arc::clone(&store),
        artifacts: Arc::clone(&artifacts),
        fingerprint: fingerprint.clone(),
        counters: Arc::clone(&counters),
        facts: options.facts,
        policy_keys: options.policy_keys,
        changes: Arc::clone(&audit),
        notify: Arc::clone(&notify),
        receiver_files: ReceiverFiles::within(options.receiver_folders),
        stopped: stopped.clone(),
    };
    let rest = Rest::new(app, options.rate);
    let (life, changes) = (options.certificate_life, Arc::clone(&audit));
    let mut tasks = JoinSet::new();
    tasks.spawn(Arc::clone(&artifacts).prune_daily());
    let service = Service::new(context, changes, authority, options.plain_pool, artifacts, life);
    tasks.spawn(serve::run(
        listener,
        tls.clone(),
        service,
        rest,
        options.idle_timeout,
        stopped.clone(),
    ));
    tasks.spawn(controller.clone().tick());
    tasks.spawn(Arc::clone(&space).watch(log_path(&options.dir)));
    tasks.spawn(counters.log_summaries());
    tasks.spawn(audit.run());
    tasks.spawn(Notifier::new(&notify, &controller, &tail).run());
    if let Some(tls) = tls {
        tasks.spawn(renew(tls));
    }
    tracing::info!(%address, %fingerprint, "listening for agents");
    Ok(Running {
        address,
        fingerprint,
        controller,
        tail,
        sessions,
        space,
        ended,
        damage,
        stop,
        notify,
        tasks,
        _lock: lock,
    })
}

/// Without TLS, every user of the network could read and change what is sent.
fn check_address(options: &ServerOptions) -> Result<(), ServerError> {
    if options.plain_pool.is_some() && !options.listen.ip().is_loopback() {
        return Err(ServerError::PlaintextAddress(options.listen));
    }
    Ok(())
}

fn notify_handle(options: &ServerOptions) -> Arc<NotifyHandle> {
    let deliver = options.deliver.clone();
    let deliver =
        deliver.unwrap_or_else(|| Arc::new(SenderDelivery::new(options.receiver_folders.clone())));
    Arc::new(NotifyHandle::new(options.dir.clone(), Some(deliver), options.notify_failpoint))
}

/// Records the URL by which other commands on this machine find the server. If this fails, the
/// server runs anyway.
fn record_url(options: &ServerOptions, address: SocketAddr) {
    let is_plain = options.plain_pool.is_some();
    if let Err(err) = advertised_url::record(&options.dir, &options.names, address, is_plain) {
        tracing::warn!(%err, "failed to record the server's URL");
    }
}

/// Returns `None` if the server listens without TLS.
fn configure_tls(
    options: &ServerOptions,
    authority: &Arc<Authority>,
) -> Result<Option<Arc<Tls>>, TlsError> {
    if options.plain_pool.is_some() {
        return Ok(None);
    }
    Tls::new(Arc::clone(authority), names(options)).map(|tls| Some(Arc::new(tls)))
}

fn open_artifacts(dir: &Path) -> Result<Arc<ArtifactStore>, ServerError> {
    let opened = ArtifactStore::open(dir, jiff::Timestamp::now());
    opened.map(Arc::new).map_err(|err| ServerError::DataDir { dir: dir.to_owned(), err })
}

fn open_authority(options: &ServerOptions) -> Result<Authority, AuthorityError> {
    let now = options.wall_clock.now();
    let authority = if options.new_authority {
        Authority::open_or_replace(&options.dir, now)?
    } else {
        Authority::open(&options.dir, now)?
    };
    Ok(authority.with_clock(options.wall_clock.clone()))
}

/// Opens the log. The first entry of a new log sets the default policy. Decisions therefore stay
/// the same if a later version has other defaults.
async fn open_state_machine(
    path: PathBuf,
    store: Arc<AccessStore>,
    authority: String,
    options: &ServerOptions,
) -> Result<StateMachine, ServerError> {
    let (now, new_authority) = (options.wall_clock.now(), options.new_authority);
    let dir = options.dir.clone();
    let state_machine =
        tokio::task::spawn_blocking(move || -> Result<StateMachine, ServerError> {
            let checked = CheckedLog::new(Box::new(SqliteLog::open(&path)?))?;
            // This check has to run before anything is written.
            store.check_not_behind(checked.state().access)?;
            if let Some(last) = store.last_start()? {
                if last.authority != authority && !new_authority {
                    return Err(
                        AuthorityError::Replaced { had: last.authority, found: authority }.into()
                    );
                }
                // This check also applies to an empty log, because a server whose log was lost
                // finds an empty log.
                if let Some((seq, hash)) = last.log
                    && !checked.contains(seq, hash)?
                {
                    return Err(AccessError::OtherLog(seq).into());
                }
            }
            let mut state_machine = checked.take_over()?;
            if state_machine.state().seq == 0 {
                let policy = Event::PolicySet { policy: Box::default() };
                state_machine.commit(vec![(Actor::Server, policy)], now)?;
            }
            notify::prepare_store(&dir, state_machine.state());
            let Head { seq, hash, .. } = state_machine.head();
            store.free_names(|node| state_machine.state().nodes.contains_key(node))?;
            let nodes = state_machine.state().nodes.len();
            tracing::info!(entries = seq, nodes, "log opened");
            store.record_start(&LastStart { log: Some((seq, hash)), authority })?;
            Ok(state_machine)
        });
    state_machine.await.map_err(|_| ServerError::ControllerStopped)?
}

/// Renews the server's own certificate periodically.
async fn renew(tls: Arc<Tls>) {
    loop {
        tokio::time::sleep(RENEW_INTERVAL).await;
        renew_now(&tls);
    }
}

fn renew_now(tls: &Tls) {
    if let Err(err) = tls.renew() {
        tracing::error!(%err, "failed to renew the server's certificate");
    }
}

/// Creates the clock watch. A clock step can make the server's certificate expired or not yet
/// valid. The server then renews the certificate, because agents need a valid one to reconnect.
fn watch_clock(options: &ServerOptions, tls: Option<Arc<Tls>>) -> ClockWatch {
    let on_step = move || {
        if let Some(tls) = &tls {
            renew_now(tls);
        }
    };
    let last_ran = Some(LastRan::at(&options.dir));
    ClockWatch { wall: options.wall_clock.clone(), on_step: Box::new(on_step), last_ran }
}

impl Running {
    /// The address that the server listens on. If the requested port was 0, the system chose the
    /// port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Fingerprint of the certificate authority. Agents compare it at enrolment.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    /// Becomes true when the notifier stops at a failpoint.
    pub fn notifier_halted(&self) -> watch::Receiver<bool> {
        self.notify.halted()
    }

    pub fn is_disk_low(&self) -> bool {
        self.space.is_low()
    }

    pub fn tail(&self) -> LogTail {
        self.tail.clone()
    }

    /// Waits until the controller stops, or until a reader finds that the log is damaged.
    pub async fn failed(&mut self) -> ServerError {
        tokio::select! {
            ended = &mut self.ended => match ended {
                Ok(Err(err)) => ServerError::Log(err),
                Ok(Ok(())) | Err(_) => ServerError::ControllerStopped,
            },
            err = self.damage.found() => ServerError::Log(err),
        }
    }

    /// Disconnects all sessions, commits all queued inputs and writes a snapshot, in this order.
    pub async fn stop(mut self) -> Result<(), ServerError> {
        let _ = self.stop.send(true);
        self.sessions.disconnect(|_, _| Some(DisconnectReason::Stopping));
        let _ = self.tasks.join_next().await;
        self.tasks.shutdown().await;
        self.controller.stop().await;
        match self.ended.await {
            Ok(ended) => Ok(ended?),
            Err(_) => Err(ServerError::ControllerStopped),
        }
    }
}

pub fn run(options: ServerOptions) -> Result<(), ServerError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(ServerError::Start)?;
    runtime.block_on(async {
        let on = |kind| signal(kind).map_err(ServerError::Start);
        let mut terminate = on(SignalKind::terminate())?;
        let mut interrupt = on(SignalKind::interrupt())?;
        let mut running = start(options).await?;
        tokio::select! {
            _ = terminate.recv() => (),
            _ = interrupt.recv() => (),
            err = running.failed() => return Err(err),
        }
        running.stop().await?;
        tracing::info!("stopped");
        Ok(())
    })
}

/// An exclusive lock on the server's folder.
#[derive(Debug)]
pub struct FolderLock(File);

impl Drop for FolderLock {
    fn drop(&mut self) {
        // Closing the file does not always release the lock: a child process that another thread
        // forked keeps the file open until it calls exec.
        let _ = self.0.unlock();
    }
}

/// Locks the data directory, because a second server that uses it would fence the first one.
pub fn lock_folder(dir: &Path) -> Result<FolderLock, ServerError> {
    let failed = |err| ServerError::DataDir { dir: dir.to_owned(), err };
    let mut open = OpenOptions::new();
    let lock = open.write(true).create(true).truncate(false).mode(0o600).open(dir.join("lock"));
    let lock = lock.map_err(failed)?;
    match lock.try_lock() {
        Ok(()) => Ok(FolderLock(lock)),
        Err(TryLockError::WouldBlock) => Err(ServerError::InUse(dir.to_owned())),
        Err(TryLockError::Error(err)) => Err(failed(err)),
    }
}

/// Names for the server's certificate.
fn names(options: &ServerOptions) -> Vec<String> {
    let mut names = options.names.clone();
    names.extend(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
    if !options.listen.ip().is_unspecified() {
        names.push(options.listen.ip().to_string());
    }
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    names.extend(Some(host.trim().to_owned()).filter(|host| !host.is_empty()));
    names.sort();
    names.dedup();
    names
}
