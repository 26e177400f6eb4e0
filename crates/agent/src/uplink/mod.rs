//! Sends journal records to the server, once and in order, and receives orders.
//!
//! ```text
//! Published ── durable record ──> JournalReader (reads files) ──── Changes ─> stream ─> server
//!                                 ^ resumes after the acknowledged record Order <─┘ └─> Ack
//! OrderHandler <─ order ─ Session <─────────────────────────────────────────┘
//! ```
//!
//! The uplink has its own thread and runtime, reads files, and never calls the health monitor. If
//! the server is unreachable, the only cost for the agent are the connection attempts. The amount
//! of data in flight is limited, and the backlog stays in the journal.

mod back_off;
mod connection_status;
mod coverage;
mod enrol;
mod identity;
mod inventory;
mod journal_name;
mod journal_reader;
mod reconnect;
mod session;
mod upload;
mod urgent;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use farrier_fleet::fleet::event::{Cordon, NodeInventory};
use farrier_fleet::fleet::{NodeId, Order, OrderStatus};
use farrier_wire::client::{self, ConnectError, ServerUrl};
use farrier_wire::proof::KeyError;
use jiff::Timestamp;
use tokio::sync::{Notify, mpsc, watch};
use tonic::{Code, Status};

use crate::artifact::ArtifactUpload;
use crate::monitor::Chain;
use crate::orders::OrderExecutor;
use connection_status::StatusSender;
pub use connection_status::{ConnectionStatus, UplinkState};
pub use coverage::{CoverageSource, coverage_source};
pub use enrol::{EnrolError, Enrolment, enrol};
pub use identity::{IdentityStore, NodeIdentityError};
pub use inventory::inventory_source;
pub(crate) use journal_reader::{JournalRead, JournalReader};
use reconnect::Reconnect;
pub use reconnect::fixed_wait_from_environment;
use session::UplinkSession;
pub use urgent::Urgent;

/// Executes orders. If an order is submitted again, the result is the current status of that order.
pub trait OrderHandler: Send + Sync {
    /// Accepts or refuses an order. May block on the disk.
    fn submit(&self, order: Order) -> OrderStatus;
    /// The newest status of each order that the server has not acknowledged.
    fn outstanding(&self) -> Vec<(u64, OrderStatus)>;
    /// Generation of the last order that was accepted or refused. 0 if there was none. May block on
    /// the disk.
    fn last_order(&self) -> u64;
    /// Called when the server has persisted the final status of an order.
    fn acknowledge(&self, generation: u64);
    /// Called at the start of each session with the enrolment that the session belongs to. After a
    /// new enrolment, generations start again. May block on the disk.
    fn set_enrolment(&self, _enrolment: &str) {}
}

impl OrderHandler for OrderExecutor {
    fn submit(&self, order: Order) -> OrderStatus {
        // The session has already converted the lease to this machine's clock.
        Self::submit(self, &order, Timestamp::now())
    }

    fn outstanding(&self) -> Vec<(u64, OrderStatus)> {
        Self::outstanding(self)
    }

    fn last_order(&self) -> u64 {
        Self::last_order(self)
    }

    fn acknowledge(&self, generation: u64) {
        Self::acknowledge(self, generation);
    }

    fn set_enrolment(&self, enrolment: &str) {
        Self::set_enrolment(self, enrolment);
    }
}

/// Order handler of an agent that executes no orders.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoOrders;

impl OrderHandler for NoOrders {
    fn submit(&self, _: Order) -> OrderStatus {
        OrderStatus::Refused { reason: "this agent executes no orders; to allow them, set `enabled = true` under `[orders]` in its configuration".to_owned() }
    }

    fn outstanding(&self) -> Vec<(u64, OrderStatus)> {
        Vec::new()
    }

    fn last_order(&self) -> u64 {
        0
    }

    fn acknowledge(&self, _: u64) {}
}

/// Returns the node's inventory. `None` if the inventory is not known yet.
pub type InventorySource = Box<dyn Fn() -> Option<NodeInventory> + Send>;

pub struct Parts {
    pub url: ServerUrl,
    pub identity_store: IdentityStore,
    /// The node's name, for a server without TLS.
    pub node: Option<NodeId>,
    pub state_dir: PathBuf,
    /// Last durable record of the journal.
    pub durable: watch::Receiver<u64>,
    /// The newest finding that must reach the server without waiting for the back-off.
    pub urgent: watch::Receiver<Urgent>,
    pub inventory: InventorySource,
    pub coverage: CoverageSource,
    pub cordon: watch::Receiver<Cordon>,
    pub order_handler: Arc<dyn OrderHandler>,
    /// Artifacts to upload.
    pub artifacts: mpsc::Receiver<ArtifactUpload>,
    /// Notified when an order status changes.
    pub status_changed: Arc<Notify>,
    /// For tests: the length of every wait between two attempts.
    pub fixed_wait: Option<Duration>,
}

#[derive(Debug)]
pub struct Uplink {
    stop: Arc<Notify>,
    acked: watch::Receiver<Option<u64>>,
    connection_status: watch::Receiver<ConnectionStatus>,
    thread: std::thread::JoinHandle<()>,
}

impl Uplink {
    /// Starts the uplink on its own thread.
    pub fn spawn(parts: Parts) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(4)
            .thread_keep_alive(Duration::from_secs(1))
            .build()?;
        let stop = Arc::new(Notify::new());
        let (acked_sender, acked) = watch::channel(None);
        let (status_sender, connection_status) = StatusSender::new();
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("uplink".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = run(parts, acked_sender, status_sender) => (),
                    () = stopped.notified() => (),
                }
            });
            // Do not wait for a pending DNS lookup, or for an order handler that is blocked on the
            // disk.
            runtime.shutdown_background();
        })?;
        Ok(Self { stop, acked, connection_status, thread })
    }

    /// The last record that the server acknowledged. `None` if it is not known yet.
    pub fn acked(&self) -> watch::Receiver<Option<u64>> {
        self.acked.clone()
    }

    pub fn connection_status(&self) -> watch::Receiver<ConnectionStatus> {
        self.connection_status.clone()
    }

    /// Stops the uplink. Records that the server has not acknowledged are sent after the next
    /// start.
    pub fn stop(self) {
        self.stop.notify_one();
        let _ = self.thread.join();
    }
}

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    #[error(transparent)]
    Identity(#[from] NodeIdentityError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("server error: {}", .0.message())]
    Status(Box<Status>),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("the server closed the stream")]
    Ended,
    #[error("the node has no valid name")]
    NoNodeName,
    #[error("the server does not respond")]
    TimedOut,
    #[error("protocol error: unexpected message from the server")]
    Protocol,
    #[error("failed to read the journal")]
    Journal(#[source] io::Error),
    #[error("the server has records that this journal lacks: reconnecting with a new journal name")]
    NewJournal,
    #[error("the certificate was renewed: reconnecting with the new one")]
    Renewed,
}

impl From<Status> for SessionError {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(status))
    }
}

async fn run(parts: Parts, acked: watch::Sender<Option<u64>>, status: StatusSender) {
    let mut reconnect = Reconnect::new(parts.urgent.clone(), parts.fixed_wait);
    let mut session = UplinkSession::new(parts, acked, status);
    let mut last_error = String::new();
    loop {
        reconnect.begin();
        let err = attempt(&mut session).await;
        session.close();
        if let Some(spread) = session.accepted {
            reconnect.accepted(spread);
        }
        if matches!(err, SessionError::Renewed | SessionError::NewJournal) {
            reconnect.reset();
        }
        let text = Chain(&err).to_string();
        session.status.lost(&text, must_enrol(&err), Timestamp::now());
        if text != last_error {
            tracing::warn!(err = %text, "not connected to the server");
            last_error = text;
        }
        if session.accepted.is_some() {
            last_error.clear();
        }
        if is_message_rejected(&err) {
            session.require_resync();
        }
        reconnect.wait(session.reported).await;
    }
}

/// `true` if the server would reject the message again.
fn is_message_rejected(err: &SessionError) -> bool {
    matches!(err, SessionError::Status(status) if matches!(status.code(), Code::InvalidArgument | Code::OutOfRange | Code::ResourceExhausted))
}

/// `true` if only a new enrolment helps, because there is no certificate, the certificate was
/// revoked, or the node was retired.
fn must_enrol(err: &SessionError) -> bool {
    match err {
        SessionError::Identity(NodeIdentityError::NotEnrolled(_)) => true,
        SessionError::Status(status) => matches!(
            status.code(),
            Code::PermissionDenied | Code::Unauthenticated | Code::FailedPrecondition
        ),
        _ => false,
    }
}

/// Connects and runs one session. Returns why it ended.
async fn attempt(session: &mut UplinkSession) -> SessionError {
    session.accepted = None;
    // The certificate may have been replaced since the last session, so read it again.
    let (name, tls) = match (&session.parts.node, session.parts.url.is_plain()) {
        (Some(name), true) => {
            session.status.set_name(name);
            (name.clone(), farrier_wire::client::no_tls())
        }
        (None, true) => return SessionError::NoNodeName,
        (_, false) => match session.parts.identity_store.open() {
            Ok(opened) => {
                session.status.set_identity(&opened);
                session.validity = opened.validity;
                session.parts.order_handler.set_enrolment(&opened.enrolment);
                (opened.identity.node, opened.tls)
            }
            Err(err) => {
                session.status.clear_identity();
                return err.into();
            }
        },
    };
    let agents = match client::connect(&session.parts.url, tls).await {
        Ok(agents) => agents,
        Err(err) => return err.into(),
    };
    match session.run(agents, name).await {
        Ok(never) => match never {},
        Err(err) => err,
    }
}
