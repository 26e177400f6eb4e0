//! Sends journal records to the server, once and in order, and receives orders.
//!
//! ```text
//! Published ── durable record ──> Follower (reads journal files) ─ Changes ─> stream ─> server
//!                                 ^ resumes after the acknowledged record Order <─┘ └─> Ack
//! OrderHandler <─ offer ─ Session <─────────────────────────────────────────┘
//! ```
//!
//! It runs on its own thread and runtime, reads files and never calls the health monitor. An
//! unreachable server costs the agent only the connection attempts. Data in flight is bounded; the
//! backlog stays in the journal.

mod back_off;
mod connection_status;
mod enrol;
mod identity;
mod inventory;
mod journal_reader;
mod number;
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

use crate::artifact::Sending;
use crate::monitor::Chain;
use crate::orders::OrderExecutor;
use connection_status::StatusSender;
pub use connection_status::{ConnectionStatus, Link};
pub use enrol::{EnrolError, Enrolment, enrol};
pub use identity::{IdentityError, Keep};
pub use inventory::of_published;
use reconnect::Reconnect;
pub use reconnect::fixed_wait_from_environment;
use session::Session;
pub use urgent::Urgent;

/// Executes orders. Offered a known order again, it returns the current status.
pub trait OrderHandler: Send + Sync {
    /// Accepts or refuses an order. May block on the disk.
    fn offer(&self, order: Order) -> OrderStatus;
    /// The newest status of each order that the server has not acknowledged.
    fn outstanding(&self) -> Vec<(u64, OrderStatus)>;
    /// Generation of the last order accepted or refused; 0 if there was none. May block on the
    /// disk.
    fn last_order(&self) -> u64;
    /// The server has persisted the final status of an order.
    fn acknowledged(&self, generation: u64);
    /// The enrolment of this session. After a re-enrolment, generations start over. May block on
    /// the disk.
    fn enrolled(&self, _enrolment: &str) {}
}

impl OrderHandler for OrderExecutor {
    fn offer(&self, order: Order) -> OrderStatus {
        // The session has already converted the lease to this machine's clock.
        Self::offer(self, &order, Timestamp::now())
    }

    fn outstanding(&self) -> Vec<(u64, OrderStatus)> {
        Self::outstanding(self)
    }

    fn last_order(&self) -> u64 {
        Self::last_order(self)
    }

    fn acknowledged(&self, generation: u64) {
        Self::acknowledged(self, generation);
    }

    fn enrolled(&self, enrolment: &str) {
        Self::enrolled(self, enrolment);
    }
}

/// Order handler of an agent that executes no orders.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoOrders;

impl OrderHandler for NoOrders {
    fn offer(&self, _: Order) -> OrderStatus {
        OrderStatus::Refused { reason: "its agent carries out no orders; `enabled = true` under `[orders]` of its configuration lets it".to_owned() }
    }

    fn outstanding(&self) -> Vec<(u64, OrderStatus)> {
        Vec::new()
    }

    fn last_order(&self) -> u64 {
        0
    }

    fn acknowledged(&self, _: u64) {}
}

/// The node's inventory. `None` if not known yet.
pub type MadeOf = Box<dyn Fn() -> Option<NodeInventory> + Send>;

pub struct Parts {
    pub url: ServerUrl,
    pub keep: Keep,
    /// The node's name, for a server without TLS.
    pub node: Option<NodeId>,
    pub state_dir: PathBuf,
    /// Last durable record of the journal.
    pub durable: watch::Receiver<u64>,
    /// The newest finding that must reach the server at once.
    pub urgent: watch::Receiver<Urgent>,
    pub made_of: MadeOf,
    pub cordon: watch::Receiver<Cordon>,
    pub desk: Arc<dyn OrderHandler>,
    /// Artifacts to upload.
    pub artifacts: mpsc::Receiver<Sending>,
    /// Notified when an order status changes.
    pub bell: Arc<Notify>,
    /// For tests: the length of every back-off.
    pub fixed_wait: Option<Duration>,
}

#[derive(Debug)]
pub struct Uplink {
    stop: Arc<Notify>,
    acked: watch::Receiver<Option<u64>>,
    sight: watch::Receiver<ConnectionStatus>,
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
        let (tell, acked) = watch::channel(None);
        let (teller, sight) = StatusSender::new();
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("uplink".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = run(parts, tell, teller) => (),
                    () = stopped.notified() => (),
                }
            });
            // Do not wait for a pending DNS lookup, or for an order handler blocked on the disk.
            runtime.shutdown_background();
        })?;
        Ok(Self { stop, acked, sight, thread })
    }

    /// The last record acknowledged by the server. `None` if not known yet.
    pub fn acked(&self) -> watch::Receiver<Option<u64>> {
        self.acked.clone()
    }

    pub fn sight(&self) -> watch::Receiver<ConnectionStatus> {
        self.sight.clone()
    }

    /// Stops the uplink. The next one sends whatever was not acknowledged.
    pub fn stop(self) {
        self.stop.notify_one();
        let _ = self.thread.join();
    }
}

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TalkError {
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the server says: {}", .0.message())]
    Status(Box<Status>),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("the server has ended the stream")]
    Ended,
    #[error("the node has no name that a fleet could know it by")]
    Nameless,
    #[error("the server does not answer")]
    Slow,
    #[error("the server speaks another language")]
    Language,
    #[error("failed to read the journal")]
    Journal(#[source] io::Error),
    #[error("the journal is another one than the server knows: it has a new name")]
    NewJournal,
    #[error("the certificate was renewed: the next stream has it")]
    Renewed,
}

impl From<Status> for TalkError {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(status))
    }
}

async fn run(parts: Parts, acked: watch::Sender<Option<u64>>, teller: StatusSender) {
    let mut reconnect = Reconnect::new(parts.urgent.clone(), parts.fixed_wait);
    let mut talk = Session::new(parts, acked, teller);
    let mut said = String::new();
    loop {
        reconnect.begin();
        let err = once(&mut talk).await;
        talk.ended();
        if let Some(spread) = talk.accepted {
            reconnect.accepted(spread);
        }
        if matches!(err, TalkError::Renewed | TalkError::NewJournal) {
            reconnect.reset();
        }
        let text = Chain(&err).to_string();
        talk.teller.lost(&text, must_enrol(&err), Timestamp::now());
        if text != said {
            tracing::warn!(why = %text, "the server is not told");
            said = text;
        }
        if talk.accepted.is_some() {
            said.clear();
        }
        if refuses_what_is_said(&err) {
            talk.refused();
        }
        reconnect.wait(talk.reported).await;
    }
}

/// Whether the server would refuse the same message again.
fn refuses_what_is_said(err: &TalkError) -> bool {
    matches!(err, TalkError::Status(status) if matches!(status.code(), Code::InvalidArgument | Code::OutOfRange | Code::ResourceExhausted))
}

/// Whether only a new enrolment helps: there is no certificate, it was revoked, or the node was
/// retired.
fn must_enrol(err: &TalkError) -> bool {
    match err {
        TalkError::Identity(IdentityError::NotEnrolled(_)) => true,
        TalkError::Status(status) => matches!(
            status.code(),
            Code::PermissionDenied | Code::Unauthenticated | Code::FailedPrecondition
        ),
        _ => false,
    }
}

async fn once(talk: &mut Session) -> TalkError {
    talk.accepted = None;
    // The certificate may have been replaced since the last session.
    let (name, tls) = match (&talk.parts.node, talk.parts.url.is_plain()) {
        (Some(name), true) => {
            talk.teller.named(name);
            (name.clone(), farrier_wire::client::no_tls())
        }
        (None, true) => return TalkError::Nameless,
        (_, false) => match talk.parts.keep.open() {
            Ok(opened) => {
                talk.teller.opened(&opened);
                talk.term = opened.term;
                talk.parts.desk.enrolled(&opened.enrolment);
                (opened.identity.node, opened.tls)
            }
            Err(err) => {
                talk.teller.has_nothing();
                return err.into();
            }
        },
    };
    let agents = match client::connect(&talk.parts.url, tls).await {
        Ok(agents) => agents,
        Err(err) => return err.into(),
    };
    match talk.run(agents, name).await {
        Ok(never) => match never {},
        Err(err) => err,
    }
}
