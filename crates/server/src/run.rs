//! Starts the server, keeps it running, and ends it.

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
use farrier_wire::file_mode::{self, FileKind, LooseModes};
use jiff::SignedDuration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::access::{AccessError, Authority, AuthorityError, LastStart, NODE_LIFE, Store};
use crate::agents::Service;
use crate::artifacts::ArtifactStore;
use crate::audit::Audit;
use crate::clock::ClockWatch;
pub use crate::clock::WallClock;
use crate::controller::{Controller, Ended};
use crate::counters::Counters;
use crate::follow::Tail;
pub use crate::ingest::ReportQuota;
use crate::ingest::{DisconnectReason, NodeLanes, SessionContext, SessionRegistry};
use crate::last_ran::LastRan;
use crate::log::sqlite::SqliteLog;
use crate::log::{Damage, Head, LogError};
use crate::rest::{AppState, Rate, Rest};
use crate::serve::{self, Tls, TlsError};
use crate::served;
use crate::space::Space;
use crate::state_machine::{ReadLog, StateMachine};

/// The server's own certificate is made anew this often.
const RENEW_EVERY: Duration = Duration::from_secs(7 * 24 * 3600);

/// Why the server does not run.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The folder cannot be used.
    #[error("failed to use the folder `{}`", dir.display())]
    Folder {
        dir: PathBuf,
        #[source]
        err: io::Error,
    },
    /// Others may read or change what is there.
    #[error(transparent)]
    Modes(#[from] LooseModes),
    /// Somebody else has it.
    #[error("another server uses the folder `{}`", .0.display())]
    InUse(PathBuf),
    /// The log fails: nothing that was not acknowledged is claimed.
    #[error("the log failed")]
    Log(#[from] LogError),
    /// Who may speak cannot be looked up.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// There is no authority.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// There is no TLS.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The address is taken, or not ours.
    #[error("failed to listen on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        err: io::Error,
    },
    /// Without TLS only this machine is served.
    #[error("{0} is not an address of loopback: without TLS the server listens there only")]
    Plain(SocketAddr),
    /// The system gives no threads or signals.
    #[error("failed to start")]
    Start(#[source] io::Error),
    /// The brain has ended and nobody asked it to.
    #[error("the server's brain has ended")]
    Controller,
}

/// How the server is started.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where everything is kept.
    pub dir: PathBuf,
    /// Where agents find it.
    pub listen: SocketAddr,
    /// Names and addresses under which agents know it, beside that of `listen` and of this machine.
    pub names: Vec<String>,
    /// Without TLS, on loopback: whoever says a name is believed, and joins this pool.
    pub plain_pool: Option<Pool>,
    /// How often agents say that they live.
    pub heartbeat_interval_s: u32,
    /// How much one node may report.
    pub report_quota: ReportQuota,
    /// Free disk space below which only reports that matter are logged; none: a twentieth of the disk, 2 GiB at most.
    pub disk_reserve_bytes: Option<u64>,
    /// How often one token of a person may ask.
    pub rate: Rate,
    /// How long a certificate of a node counts.
    pub certificate_life: SignedDuration,
    /// Whether a fleet that has lost its authority gets another.
    pub new_authority: bool,
    /// How long a connection stays on which nobody known is answered.
    pub absent_wait: Duration,
    /// What is known of GPUs and drivers.
    pub facts: Cow<'static, FactSet>,
    /// For a test: a wall clock that may be wrong.
    pub wall_clock: WallClock,
    /// For a test: the server ends after so many commits, before anybody hears of the last.
    pub dies_after: Option<u64>,
}

impl Options {
    /// With what is usual.
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
            absent_wait: serve::ABSENT_WAIT,
            facts: Cow::Borrowed(FactSet::embedded()),
            wall_clock: WallClock::default(),
            dies_after: None,
        }
    }
}

/// The log's file in the server's folder.
pub fn log_path(dir: &Path) -> PathBuf {
    dir.join("log")
}

/// The server's folder, for this user only. What is there must be so, too.
pub fn folder(dir: &Path) -> Result<(), ServerError> {
    let failed = |err| ServerError::Folder { dir: dir.to_owned(), err };
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
    let stores = STORES.map(|name| dir.join(name));
    let stores = stores.iter().map(|path| (path.as_path(), FileKind::Store));
    let key = dir.join("ca.key");
    let known = [(dir, FileKind::Folder), (key.as_path(), FileKind::Secret)];
    Ok(file_mode::check(known.into_iter().chain(stores)).map_err(failed)??)
}

/// Files of the folder that others may neither read nor change.
const STORES: [&str; 9] = [
    "access",
    "access-wal",
    "access-shm",
    "log",
    "log-wal",
    "log-shm",
    "log-head",
    "log.state",
    "log.state.before",
];

/// A server that runs.
#[derive(Debug)]
pub struct Running {
    address: SocketAddr,
    fingerprint: String,
    brain: Controller,
    tail: Tail,
    roster: Arc<SessionRegistry>,
    space: Arc<Space>,
    ended: Ended,
    damage: Damage,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
    _lock: FolderLock,
}

/// Starts the server on the runtime that this is called on.
pub async fn start(options: Options) -> Result<Running, ServerError> {
    if options.plain_pool.is_some() && !options.listen.ip().is_loopback() {
        return Err(ServerError::Plain(options.listen));
    }
    folder(&options.dir)?;
    let lock = take(&options.dir)?;
    let authority = Arc::new(authority_of(&options)?);
    let store = Arc::new(Store::open(&options.dir)?);
    let artifacts = artifacts_of(&options.dir)?;
    let failed = |err| ServerError::Listen { address: options.listen, err };
    let listener = TcpListener::bind(options.listen).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let is_plain = options.plain_pool.is_some();
    let noted = served::note(&options.dir, &options.names, address, is_plain);
    let tls = tls_of(&options, &authority)?;
    let path = log_path(&options.dir);
    let core = opened(path.clone(), Arc::clone(&store), authority.fingerprint(), &options).await?;
    let audited = core.state().access;
    let (log_end, end) = watch::channel(core.state().seq);
    let damage = core.damage();
    let tail = Tail::new(path, end, damage.clone());
    let roster = Arc::new(SessionRegistry::new(options.report_quota));
    let space = Arc::new(Space::new(options.disk_reserve_bytes));
    let watching = watch_clock(&options, tls.clone());
    let (brain, ended) = Controller::spawn(
        core,
        Arc::clone(&roster),
        Arc::clone(&space),
        log_end,
        watching,
        options.dies_after,
    )
    .map_err(ServerError::Start)?;
    let counters = Arc::new(Counters::default());
    let desk = Arc::new(SessionContext {
        brain: brain.clone(),
        roster: Arc::clone(&roster),
        store: Arc::clone(&store),
        space: Arc::clone(&space),
        lanes: NodeLanes::default(),
        counters: Arc::clone(&counters),
        heartbeat_interval_s: options.heartbeat_interval_s,
    });
    let fingerprint = authority.fingerprint();
    let audit =
        Arc::new(Audit::new(brain.clone(), Arc::clone(&store), Arc::clone(&roster), audited));
    let (stop, stopped) = watch::channel(false);
    let site = AppState {
        brain: brain.clone(),
        tail: tail.clone(),
        roster: Arc::clone(&roster),
        space: Arc::clone(&space),
        heartbeat_interval: Duration::from_secs(u64::from(options.heartbeat_interval_s)),
        store: Arc::clone(&store),
        artifacts: Arc::clone(&artifacts),
        fingerprint: fingerprint.clone(),
        counters: Arc::clone(&counters),
        facts: options.facts,
        changes: Arc::clone(&audit),
        stopped: stopped.clone(),
    };
    let rest = Rest::new(site, options.rate);
    let life = options.certificate_life;
    let audited_by = Arc::clone(&audit);
    let mut tasks = JoinSet::new();
    tasks.spawn(Arc::clone(&artifacts).prune_daily());
    let service = Service::new(desk, audited_by, authority, options.plain_pool, artifacts, life);
    tasks.spawn(serve::run(
        listener,
        tls.clone(),
        service,
        rest,
        options.absent_wait,
        stopped.clone(),
    ));
    tasks.spawn(brain.clone().tick());
    tasks.spawn(Arc::clone(&space).watch(log_path(&options.dir)));
    tasks.spawn(counters.tell());
    tasks.spawn(audit.run());
    if let Some(tls) = tls {
        tasks.spawn(renew(tls));
    }
    if let Err(err) = noted {
        tracing::warn!(%err, "where the server is found is not noted");
    }
    tracing::info!(%address, %fingerprint, "agents are served");
    Ok(Running {
        address,
        fingerprint,
        brain,
        tail,
        roster,
        space,
        ended,
        damage,
        stop,
        tasks,
        _lock: lock,
    })
}

/// `None` where the server listens without TLS.
fn tls_of(options: &Options, authority: &Arc<Authority>) -> Result<Option<Arc<Tls>>, TlsError> {
    if options.plain_pool.is_some() {
        return Ok(None);
    }
    Tls::new(Arc::clone(authority), names(options)).map(|tls| Some(Arc::new(tls)))
}

fn artifacts_of(dir: &Path) -> Result<Arc<ArtifactStore>, ServerError> {
    let opened = ArtifactStore::open(dir, jiff::Timestamp::now());
    opened.map(Arc::new).map_err(|err| ServerError::Folder { dir: dir.to_owned(), err })
}

fn authority_of(options: &Options) -> Result<Authority, AuthorityError> {
    let now = options.wall_clock.now();
    let authority = if options.new_authority {
        Authority::open_or_replace(&options.dir, now)?
    } else {
        Authority::open(&options.dir, now)?
    };
    Ok(authority.with_clock(options.wall_clock.clone()))
}

/// The log's state. What a new fleet is decided by is in its log from the first entry on, whatever a later version has as its default.
async fn opened(
    path: PathBuf,
    store: Arc<Store>,
    authority: String,
    options: &Options,
) -> Result<StateMachine, ServerError> {
    let (now, new_authority) = (options.wall_clock.now(), options.new_authority);
    let core = tokio::task::spawn_blocking(move || -> Result<StateMachine, ServerError> {
        let read = ReadLog::new(Box::new(SqliteLog::open(&path)?))?;
        // Before anything is written to the log or beside it.
        store.check_has(read.state().access)?;
        if let Some(last) = store.last_start()? {
            if last.authority != authority && !new_authority {
                return Err(
                    AuthorityError::Replaced { had: last.authority, found: authority }.into()
                );
            }
            // Also where the log is empty, which is how a lost one looks.
            if let Some((seq, hash)) = last.log
                && !read.has(seq, hash)?
            {
                return Err(AccessError::OtherLog(seq).into());
            }
        }
        let mut core = read.take_over()?;
        if core.state().seq == 0 {
            let policy = Event::PolicySet { policy: Box::default() };
            core.commit(vec![(Actor::Server, policy)], now)?;
        }
        let Head { seq, hash, .. } = core.head();
        store.free_names(|node| core.state().nodes.contains_key(node))?;
        let nodes = core.state().nodes.len();
        tracing::info!(entries = seq, nodes, "the log was read");
        store.note_start(&LastStart { log: Some((seq, hash)), authority })?;
        Ok(core)
    });
    core.await.map_err(|_| ServerError::Controller)?
}

/// Makes the server's own certificate anew from time to time.
async fn renew(tls: Arc<Tls>) {
    loop {
        tokio::time::sleep(RENEW_EVERY).await;
        renew_now(&tls);
    }
}

fn renew_now(tls: &Tls) {
    if let Err(err) = tls.renew() {
        tracing::error!(%err, "the server's certificate is not renewed");
    }
}

/// After a step the server's certificate may not have begun yet, or be over: agents that connect again need another.
fn watch_clock(options: &Options, tls: Option<Arc<Tls>>) -> ClockWatch {
    let on_step = move || {
        if let Some(tls) = &tls {
            renew_now(tls);
        }
    };
    let last_ran = Some(LastRan::at(&options.dir));
    ClockWatch { wall: options.wall_clock.clone(), on_step: Box::new(on_step), last_ran }
}

impl Running {
    /// Where it listens: with port 0 the system chose one.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What agents compare when they enrol.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The way to the brain.
    pub fn brain(&self) -> &Controller {
        &self.brain
    }

    /// Whether disk space is low.
    pub fn is_disk_low(&self) -> bool {
        self.space.is_low()
    }

    /// The log as it grows.
    pub fn tail(&self) -> Tail {
        self.tail.clone()
    }

    /// Waits until the brain ends by itself, or somebody who reads finds the log damaged, which is an error.
    pub async fn failed(&mut self) -> ServerError {
        tokio::select! {
            ended = &mut self.ended => match ended {
                Ok(Err(err)) => ServerError::Log(err),
                Ok(Ok(())) | Err(_) => ServerError::Controller,
            },
            err = self.damage.found() => ServerError::Log(err),
        }
    }

    /// Ends it in order: streams are told, what waits is written, the state is kept.
    pub async fn stop(mut self) -> Result<(), ServerError> {
        let _ = self.stop.send(true);
        self.roster.cut(|_, _| Some(DisconnectReason::Stopping));
        let _ = self.tasks.join_next().await;
        self.tasks.shutdown().await;
        self.brain.stop().await;
        match self.ended.await {
            Ok(ended) => Ok(ended?),
            Err(_) => Err(ServerError::Controller),
        }
    }
}

/// Runs until SIGTERM or SIGINT, or until the log fails.
pub fn run(options: Options) -> Result<(), ServerError> {
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

/// A folder that is ours.
#[derive(Debug)]
pub struct FolderLock(File);

impl Drop for FolderLock {
    fn drop(&mut self) {
        // Closing the file is not enough: a child that another thread has forked and that has not called exec yet has it open, too.
        let _ = self.0.unlock();
    }
}

/// Takes a folder for oneself. One server a folder: a second one would fence the first.
pub fn take(dir: &Path) -> Result<FolderLock, ServerError> {
    let failed = |err| ServerError::Folder { dir: dir.to_owned(), err };
    let mut open = OpenOptions::new();
    let lock = open.write(true).create(true).truncate(false).mode(0o600).open(dir.join("lock"));
    let lock = lock.map_err(failed)?;
    match lock.try_lock() {
        Ok(()) => Ok(FolderLock(lock)),
        Err(TryLockError::WouldBlock) => Err(ServerError::InUse(dir.to_owned())),
        Err(TryLockError::Error(err)) => Err(failed(err)),
    }
}

/// Under what names agents may know this server.
fn names(options: &Options) -> Vec<String> {
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
