//! One node's stream: what it says is bounded, compared with what it said last, and acknowledged when it is on disk.

mod end;
mod reports;
mod throttle;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farrier_fleet::fleet::event::{Cordon, Event, Makeup, Record};
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::reconnect::reconnect_spread_s;
use farrier_fleet::fleet::state::Liveness;
use farrier_fleet::fleet::{NodeId, Order};
use farrier_wire::form::{self, FormError};
use farrier_wire::identity::Identity;
use farrier_wire::limits::{ANSWERS_MAX, NAME_BYTES_MAX, ORDERS_AHEAD_MAX};
use farrier_wire::proto::{self, Down, Up, down, report, up};
use jiff::Timestamp;
use prost::Message;
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use self::end::{End, chain};
use self::throttle::THROTTLE_STEP;
use super::lanes::Lanes;
use super::quota::NodeQuota;
use super::roster::{Cut, Pulse, Roster, Seated};
use crate::access::Store;
use crate::brain::{Brain, Decided, TakeError, Taking};
use crate::counters::Counters;
use crate::serve::NodePeer;
use crate::space::Space;

/// How long a stream may take to say who it is.
const HELLO_WAIT: Duration = Duration::from_secs(10);
/// How long a node may take to read what it is told.
const SEND_WAIT: Duration = Duration::from_secs(10);
/// A stream that says nothing for so many intervals is dead.
const INTERVALS_MAX: u32 = 6;

/// How often it is looked at the clock for the end of a certificate that lasts longer.
const CLOCK_EVERY: Duration = Duration::from_secs(3600);

/// What every stream needs.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) brain: Brain,
    pub(crate) roster: Arc<Roster>,
    pub(crate) store: Arc<Store>,
    pub(crate) space: Arc<Space>,
    pub(crate) lanes: Lanes,
    pub(crate) counters: Arc<Counters>,
    pub(crate) report_interval_s: u32,
}

impl Desk {
    /// Whether a certificate counts no more. Where the list cannot be read nobody is refused: a disk that fails must not look like a
    /// fleet that was revoked.
    fn refuses(&self, identity: &Identity) -> bool {
        self.store.admits(identity).is_ok_and(|admits| !admits)
    }
}

/// Where what the node is told goes.
pub(crate) type Out = mpsc::Sender<Box<Told>>;

/// What the node is told. Boxed on its way: a channel has room for thirty-two before the first is sent.
pub(crate) type Told = Result<Down, Status>;

/// Serves a stream until it ends.
pub(crate) async fn serve(
    desk: Arc<Desk>,
    node: NodeId,
    certificate: Option<NodePeer>,
    mut inbound: Streaming<Up>,
    out: Out,
) {
    let end = match Box::pin(hello(&mut inbound)).await {
        Ok(hello) => {
            let generation = certificate.as_ref().map(|it| it.identity.generation);
            let Seated { number, pulse, quota, orders, mut cut } =
                desk.roster.sit(&node, generation);
            let mut session = Session {
                desk: &desk,
                node: node.clone(),
                pulse,
                quota,
                is_throttled: false,
                passes_over: 0,
                open_bytes: 0,
                logged: Logged::default(),
                is_refused: false,
                refused_makeup: None,
                out: &out,
                journal: String::new(),
                last: None,
                makeup: None,
                told: 0,
            };
            let talk = async {
                // Between the handshake and here it may have been revoked, and whoever cuts streams did not find this one.
                if certificate.as_ref().is_some_and(|it| desk.refuses(&it.identity)) {
                    return Err(End::Cut(Cut::Revoked));
                }
                session.talk(hello, &mut inbound, orders).await
            };
            let end = tokio::select! {
                // First of all: what a revoked node says last must not count.
                biased;
                Ok(cut) = &mut cut => Err(End::Cut(cut)),
                end = talk => end,
                () = end_of(certificate.as_ref().map(|it| it.until)) => Err(End::Cut(Cut::Expired)),
            };
            desk.roster.leave(&node, number);
            end.err()
        }
        Err(end) => Some(end),
    };
    let Some(end) = end else { return };
    match &end {
        End::OrdersAhead { .. } => desk.counters.order_number_refused(&node, &end),
        End::Left | End::Lost(_) => {}
        _ => desk.counters.session_ended(&node, chain(&end)),
    }
    tracing::debug!(%node, why = %chain(&end), "a stream has ended");
    if let Some(status) = end.status() {
        let _ = tokio::time::timeout(SEND_WAIT, out.send(Box::new(Err(status)))).await;
    }
}

/// What a node hears that is not of the fleet.
pub(crate) fn stranger() -> Status {
    Status::failed_precondition("the node is not of the fleet: it was retired, or never enrolled")
}

/// What a node hears whose certificate has come to its end.
pub(crate) fn expired() -> Status {
    Status::unauthenticated("the certificate has expired")
}

/// Returns when a certificate has come to its end; never, where there is none.
async fn end_of(until: Option<Timestamp>) {
    let Some(until) = until else { return std::future::pending().await };
    loop {
        let Ok(left) = Duration::try_from(until.duration_since(Timestamp::now())) else { return };
        if left.is_zero() {
            return;
        }
        // A clock may be put right meanwhile.
        tokio::time::sleep(left.min(CLOCK_EVERY)).await;
    }
}

async fn hello(inbound: &mut Streaming<Up>) -> Result<Box<proto::Hello>, End> {
    let first = tokio::time::timeout(HELLO_WAIT, inbound.message()).await.map_err(|_| End::Idle)?;
    match first.map_err(End::Lost)?.ok_or(End::Left)?.what {
        Some(up::What::Hello(hello)) => Ok(Box::new(hello)),
        _ => Err(End::Hello),
    }
}

/// The next message of the node. Boxed, because the future that waits for it has room for it.
async fn next_message(inbound: &mut Streaming<Up>, idle: Duration) -> Result<Box<Up>, End> {
    let message = tokio::time::timeout(idle, inbound.message()).await.map_err(|_| End::Idle)?;
    message.map_err(End::Lost)?.map(Box::new).ok_or(End::Left)
}

struct Session<'d> {
    desk: &'d Desk,
    node: NodeId,
    pulse: Arc<Pulse>,
    quota: Arc<Mutex<NodeQuota>>,
    /// Whether its reports wait for its quota.
    is_throttled: bool,
    /// Everything that is open was asked for after that, and so many changes that are on their way are passed over: it includes them.
    passes_over: usize,
    /// The size of its last report of everything that is open.
    open_bytes: usize,
    logged: Logged,
    /// Whether a report was not logged because disk space is low: the node is asked for everything when there is some again.
    is_refused: bool,
    /// An inventory that was not logged for that reason.
    refused_makeup: Option<Box<Makeup>>,
    out: &'d Out,
    /// The node's journal, and the last record of it that is on disk here.
    journal: String,
    last: Option<u64>,
    /// What the node is made of: the state's own, and not kept twice.
    makeup: Option<Arc<Makeup>>,
    /// The last order that was told on this stream.
    told: u64,
}

/// What the log says of a node's reports.
#[derive(Debug, Clone, Copy, Default)]
struct Logged {
    /// That they are more than its quota.
    is_over_quota: bool,
    /// That its findings cannot be read.
    is_unreadable: bool,
}

/// What is known of a node that opens a stream.
struct Known {
    record: Option<Record>,
    makeup: Option<Arc<Makeup>>,
    /// Whether the log says that it is silent, or that its certificates were revoked.
    is_out_of_touch: bool,
    logged: Logged,
    /// Of the last order.
    generation: u64,
    /// By the size of the fleet.
    reconnect_spread_s: u32,
}

impl Session<'_> {
    async fn talk(
        &mut self,
        hello: Box<proto::Hello>,
        inbound: &mut Streaming<Up>,
        mut orders: mpsc::Receiver<Box<Order>>,
    ) -> Result<(), End> {
        // Boxed, as what follows is: between two messages a session holds no more than it needs to wait, for each of 100,000 nodes.
        Box::pin(self.welcome(*hello)).await?;
        let end = self.read(inbound, &mut orders).await;
        if end.as_ref().is_err_and(End::is_unreadable_report) {
            Box::pin(self.note_unreadable()).await;
        }
        end
    }

    /// Takes in what the node reports, until the stream ends.
    async fn read(
        &mut self,
        inbound: &mut Streaming<Up>,
        orders: &mut mpsc::Receiver<Box<Order>>,
    ) -> Result<(), End> {
        let idle =
            Duration::from_secs(u64::from(self.desk.report_interval_s * INTERVALS_MAX).max(5));
        loop {
            let wait = self.quota().wait(Instant::now());
            Box::pin(self.throttle(wait.is_some())).await?;
            tokio::select! {
                message = next_message(inbound, idle), if wait.is_none() => {
                    Box::pin(self.handle(message?)).await?;
                }
                () = tokio::time::sleep(wait.unwrap_or_default().min(THROTTLE_STEP)), if wait.is_some() => {}
                // Nothing is read meanwhile: this tells that the connection is gone.
                () = self.out.closed(), if wait.is_some() => return Err(End::Left),
                Some(order) = orders.recv() => Box::pin(self.order(&order)).await?,
            }
        }
    }

    /// Takes in what the node says of itself, and tells it where to go on.
    async fn welcome(&mut self, hello: proto::Hello) -> Result<(), End> {
        self.quota().charge(hello.encoded_len(), Instant::now());
        let proto::Hello { makeup, journal, last_record: _, outstanding, cordon, last_order } =
            hello;
        bounded("journal", journal.len(), NAME_BYTES_MAX)?;
        bounded("outstanding", outstanding.len(), ANSWERS_MAX)?;
        let makeup = form::makeup(makeup.ok_or(FormError::Missing("makeup"))?)?;
        let cordon = form::cordon(cordon.unwrap_or_default())?;
        let known = self.known().await?;
        if last_order > known.generation.saturating_add(ORDERS_AHEAD_MAX) {
            return Err(End::OrdersAhead { said: last_order, given: known.generation });
        }
        self.last = known.record.filter(|it| it.journal == journal).map(|it| it.number);
        self.journal = journal;
        self.makeup = known.makeup;
        self.logged = known.logged;
        self.say(down::What::Welcome(proto::Welcome {
            acked_record: self.last,
            server_time_ms: self.desk.brain.now().as_millisecond(),
            report_interval_s: self.desk.report_interval_s,
            reconnect_spread_s: known.reconnect_spread_s,
        }))
        .await?;
        let is_back = self.desk.roster.accepted(&self.node, &self.pulse) || known.is_out_of_touch;
        // What a hello has to log waits for the quota, as every report does; but a node is not taken for silent meanwhile.
        if !is_back {
            self.wait_for_quota().await?;
        }
        // First of all: what follows may lead to an order.
        if last_order > known.generation {
            tracing::warn!(node = %self.node, last_order, known = known.generation, "the node had orders that are not in the log: the log is from an older backup, and what was decided, revoked and allowed since is lost");
            let node = self.node.clone();
            self.give(Event::OrdersSeen { node, generation: last_order }).await?;
        }
        if is_back {
            self.give(Event::Heard { node: self.node.clone() }).await?;
            self.wait_for_quota().await?;
        }
        self.made_of(makeup).await?;
        // What nobody said is no news of a cordon that was seen.
        if cordon != Cordon::Unknown {
            self.cordoned(cordon).await?;
        }
        for answer in outstanding {
            self.answered(answer).await?;
        }
        let node = self.node.clone();
        let pending = move |state: &farrier_fleet::fleet::FleetState| {
            state.nodes.get(&node).and_then(|it| it.orders.pending()).map(|it| it.order.clone())
        };
        if let Some(order) = self.desk.brain.look(pending).await? {
            self.order(&order).await?;
        }
        // It may have nothing new to report, and what it has may be readable now.
        if self.logged.is_unreadable {
            self.say(down::What::Resync(proto::Resync {})).await?;
        }
        Ok(())
    }

    async fn known(&self) -> Result<Known, End> {
        let node = self.node.clone();
        let known = self.desk.brain.look(move |state| {
            state.nodes.get(&node).map(|it| Known {
                record: it.reports.record().cloned(),
                makeup: it.makeup().cloned(),
                is_out_of_touch: it.liveness != Liveness::Connected,
                logged: Logged {
                    is_over_quota: it.reports.over_quota_since().is_some(),
                    is_unreadable: it.reports.unreadable_since().is_some(),
                },
                generation: it.orders.generation(),
                reconnect_spread_s: reconnect_spread_s(state.nodes.len()),
            })
        });
        Ok(known.await?.ok_or_else(|| TakeError::Stranger(self.node.clone()))?)
    }

    /// Processes a message, and what the quota and the disk allow after it.
    async fn handle(&mut self, message: Box<Up>) -> Result<(), End> {
        self.charge(&message);
        self.take(*message).await?;
        self.keep_up().await
    }

    async fn take(&mut self, said: Up) -> Result<(), End> {
        if self.desk.roster.heard(&self.pulse) {
            self.give(Event::Heard { node: self.node.clone() }).await?;
        }
        match said.what {
            Some(up::What::Report(proto::Report { what })) => match what {
                Some(report::What::Changes(changes)) => self.changes(changes).await,
                Some(report::What::Open(open)) => self.resynced(open).await,
                Some(report::What::Makeup(makeup)) => self.made_of(form::makeup(makeup)?).await,
                Some(report::What::Cordon(cordon)) => self.cordoned(form::cordon(cordon)?).await,
                // What an agent says that is newer than this server is passed over; it was heard.
                Some(report::What::Heartbeat(_)) | None => Ok(()),
            },
            Some(up::What::Answer(answer)) => self.answered(answer).await,
            Some(up::What::Hello(_)) => Err(End::Hello),
            None => Ok(()),
        }
    }

    async fn order(&mut self, order: &Order) -> Result<(), End> {
        if order.generation <= self.told {
            return Ok(());
        }
        self.told = order.generation;
        self.say(down::What::Order(form::order_message(order))).await
    }

    async fn acknowledge(&self) -> Result<(), End> {
        let record = self.last.unwrap_or_default();
        self.say(down::What::Ack(proto::Ack { record })).await
    }

    async fn give(&self, event: Event) -> Result<(), End> {
        let taken = self.desk.brain.take(Actor::Node(self.node.clone()), event).await?;
        // What is decided because of what a node says fills the log as well.
        if let Taking::Logged(Decided { entries, bytes }) = taken {
            self.quota().charge_entries(entries, bytes, Instant::now());
        }
        Ok(())
    }

    async fn say(&self, what: down::What) -> Result<(), End> {
        let said = self.out.send(Box::new(Ok(Down { what: Some(what) })));
        match tokio::time::timeout(SEND_WAIT, said).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(End::Left),
            Err(_) => Err(End::Unread),
        }
    }
}

fn bounded(what: &'static str, found: usize, most: usize) -> Result<(), FormError> {
    if found <= most { Ok(()) } else { Err(FormError::TooMuch { what, found, most }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of a future, which is not made.
    fn size_of_future<A, F: Future>(_: impl Fn(A) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_session_that_waits_is_small() {
        type Parts = (Arc<Desk>, NodeId, Option<NodePeer>, Streaming<Up>, Out);
        let served =
            |(desk, node, peer, inbound, out): Parts| serve(desk, node, peer, inbound, out);
        let bytes = size_of_future(served);
        assert!(bytes < 1792, "{bytes} bytes for each connected node");
    }
}
