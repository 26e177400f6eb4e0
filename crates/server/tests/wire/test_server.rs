//! A real server in a temporary directory, and nodes with real journals and uplinks.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farrier_agent::config::Retention;
use farrier_agent::failpoint::Failpoint;
use farrier_agent::journal::Journal;
use farrier_agent::uplink::{
    self, EnrolError, Enrolment, IdentityStore, OrderHandler, Uplink, UplinkState,
};
use farrier_fleet::fleet::event::{Cordon, NodeInventory};
use farrier_fleet::fleet::{Entry, Event, NodeId, Order, OrderStatus};
use farrier_fleet::health::{Change, Finding};
use farrier_notify::ReceiverFolders;
use farrier_server::access::{AccessStore, NewJoinToken};
use farrier_server::log::sqlite::SqliteLog;
use farrier_server::log::{Log, verify};
use farrier_server::policy_key::PolicyKey;
use farrier_server::run::{self, ReportQuota, Running, ServerOptions, WallClock, log_path};
use jiff::{SignedDuration, Timestamp};
use tempfile::TempDir;
use tokio::sync::{Notify, watch};

pub(crate) fn node(name: &str) -> NodeId {
    name.parse().unwrap()
}

pub(crate) fn finding(id: u64) -> Finding {
    serde_json::from_value(serde_json::json!({
        "id": id, "code": "gpu.lost", "subject": { "gpu": "GPU-1" }, "kind": "fault", "severity": "warning",
        "text": "gone", "action": "ignore", "rule_action": "ignore", "action_by": "rule",
        "evidence": [{ "check": { "text": "seen", "at": "2026-11-15T00:00:00Z" } }],
        "first_seen": "2026-11-15T00:00:00Z", "last_seen": "2026-11-15T00:00:00Z", "count": 1,
        "clears": "it is back",
    }))
    .unwrap()
}

pub(crate) struct TestServer {
    pub(crate) folder: TempDir,
    pub(crate) running: Option<Running>,
    pub(crate) address: SocketAddr,
    pub(crate) is_plain: bool,
    pub(crate) certificate_life: SignedDuration,
    pub(crate) idle_timeout: Duration,
    pub(crate) heartbeat_interval_s: u32,
    pub(crate) report_quota: ReportQuota,
    pub(crate) disk_reserve_bytes: Option<u64>,
    /// One of these has to have signed a new policy, if there are any.
    pub(crate) policy_keys: Vec<PolicyKey>,
    pub(crate) wall_clock: WallClock,
}

impl TestServer {
    pub(crate) async fn plain() -> Self {
        Self::new(true).started().await
    }

    pub(crate) async fn with_tls() -> Self {
        Self::new(false).started().await
    }

    /// Creates a server without starting it.
    pub(crate) fn new(is_plain: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let certificate_life = farrier_server::access::NODE_LIFE;
        let idle_timeout = Duration::from_secs(30);
        Self {
            folder,
            running: None,
            address,
            is_plain,
            certificate_life,
            idle_timeout,
            heartbeat_interval_s: 1,
            report_quota: ReportQuota::default(),
            disk_reserve_bytes: None,
            policy_keys: Vec::new(),
            wall_clock: WallClock::default(),
        }
    }

    pub(crate) async fn started(mut self) -> Self {
        self.start(None).await;
        self
    }

    pub(crate) fn options(&self) -> ServerOptions {
        ServerOptions {
            plain_pool: self.is_plain.then(|| "train".parse().unwrap()),
            heartbeat_interval_s: self.heartbeat_interval_s,
            certificate_life: self.certificate_life,
            idle_timeout: self.idle_timeout,
            report_quota: self.report_quota,
            disk_reserve_bytes: self.disk_reserve_bytes,
            policy_keys: self.policy_keys.clone(),
            wall_clock: self.wall_clock.clone(),
            receiver_folders: ReceiverFolders {
                commands: vec!["/usr/bin".into()],
                ..ReceiverFolders::default()
            },
            ..ServerOptions::new(self.folder.path().join("server"), self.address)
        }
    }

    /// Starts the server at its previous address.
    pub(crate) async fn start(&mut self, fail_after_commits: Option<u64>) {
        let until = Instant::now() + PATIENCE;
        let running = loop {
            match run::start(ServerOptions { fail_after_commits, ..self.options() }).await {
                Ok(running) => break running,
                // Retry: a server that was just killed still holds its port and lock for a moment.
                Err(err) => assert!(Instant::now() < until, "{err:?}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        self.address = running.address();
        self.running = Some(running);
    }

    pub(crate) fn running(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    pub(crate) fn url(&self) -> String {
        let scheme = if self.is_plain { "http" } else { "https" };
        format!("{scheme}://{}", self.address)
    }

    pub(crate) fn dir(&self) -> std::path::PathBuf {
        self.folder.path().join("server")
    }

    /// Opens the access store a second time, as another process would.
    pub(crate) fn store(&self) -> AccessStore {
        AccessStore::open(&self.dir()).unwrap()
    }

    pub(crate) fn token(&self, of_node: Option<&str>, uses: u32) -> String {
        let expires = Timestamp::now() + SignedDuration::from_hours(1);
        let of_node = of_node.map(node);
        let of_pool = NewJoinToken::new("train".parse().unwrap(), expires);
        let request = NewJoinToken { node: of_node, uses, ..of_pool };
        self.store().create(&request, Timestamp::now()).unwrap().reveal().to_owned()
    }

    pub(crate) fn enrolment(&self, name: &str, dir: &Path) -> Enrolment {
        Enrolment {
            url: self.url().parse().unwrap(),
            node: node(name),
            fingerprint: self.running().fingerprint().to_owned(),
            identity_store: IdentityStore::new(dir, None),
        }
    }

    /// Enrols a node on a blocking thread, because enrolment has its own runtime.
    pub(crate) async fn enrol(
        &self,
        name: &str,
        dir: &Path,
        token: &str,
    ) -> Result<u64, EnrolError> {
        enrol(self.enrolment(name, dir), token).await
    }

    pub(crate) fn entries(&self) -> Vec<Entry> {
        let log = SqliteLog::open_to_read(&log_path(&self.dir())).unwrap();
        log.read(0, usize::MAX).unwrap().iter().map(|stored| stored.entry().unwrap()).collect()
    }

    /// Record numbers of the node's finding changes in the log, in order.
    pub(crate) fn logged_findings(&self, name: &str) -> Vec<u64> {
        let wanted = node(name);
        let number = |entry: &Entry| match &entry.event {
            Event::FindingsReported { node, record, .. } if *node == wanted => Some(record.number),
            _ => None,
        };
        self.entries().iter().filter_map(number).collect()
    }

    pub(crate) fn count(&self, is: impl Fn(&Event) -> bool) -> usize {
        self.entries().iter().filter(|entry| is(&entry.event)).count()
    }

    pub(crate) async fn wait_for(&self, what: &str, is: impl Fn(&[Entry]) -> bool) {
        until(what, || is(&self.entries())).await;
    }

    pub(crate) fn assert_whole(&self) {
        let log = SqliteLog::open_to_read(&log_path(&self.dir())).unwrap();
        assert!(verify(&log).unwrap().is_ok());
    }
}

pub(crate) async fn enrol(enrolment: Enrolment, token: &str) -> Result<u64, EnrolError> {
    let token = token.to_owned();
    let enrolled = tokio::task::spawn_blocking(move || uplink::enrol(&enrolment, &token));
    enrolled.await.unwrap().map(|identity| identity.generation)
}

/// Ends a test that hangs with a message. nextest would kill it some minutes later.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// Longer than any test. With this reconnect delay, only an urgent finding makes the uplink
/// connect.
pub(crate) const LONG: Duration = Duration::from_secs(3600);

pub(crate) async fn until(what: &str, is: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < end, "timed out: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// An order handler that records its orders.
#[derive(Debug, Default)]
pub(crate) struct FakeOrderHandler {
    pub(crate) offered: Mutex<Vec<Order>>,
    pub(crate) answers: Mutex<Vec<(u64, OrderStatus)>>,
    pub(crate) acknowledged: Mutex<Vec<u64>>,
    /// Generation of the last order.
    pub(crate) last: Mutex<u64>,
    /// If set, the cordon changes to this while the agent builds its hello: between reading the
    /// cordon and reading the last order.
    pub(crate) cordoned_at_hello: Mutex<Option<(watch::Sender<Cordon>, Cordon)>>,
    /// The enrolment in which the order `last` was issued.
    pub(crate) enrolment: Mutex<Option<String>>,
}

impl OrderHandler for FakeOrderHandler {
    fn submit(&self, order: Order) -> OrderStatus {
        let mut answers = self.answers.lock().unwrap();
        if let Some((_, answer)) =
            answers.iter().find(|(generation, _)| *generation == order.generation)
        {
            return answer.clone();
        }
        let mut last = self.last.lock().unwrap();
        // The server may have resent an order before it received the status.
        if order.generation <= *last {
            return OrderStatus::Refused {
                reason: format!("the order is not newer than order {last}"),
            };
        }
        *last = order.generation;
        answers.push((order.generation, OrderStatus::Accepted));
        self.offered.lock().unwrap().push(order);
        OrderStatus::Accepted
    }

    fn outstanding(&self) -> Vec<(u64, OrderStatus)> {
        self.answers.lock().unwrap().clone()
    }

    fn last_order(&self) -> u64 {
        if let Some((sender, cordon)) = self.cordoned_at_hello.lock().unwrap().take() {
            sender.send_replace(cordon);
        }
        *self.last.lock().unwrap()
    }

    fn set_enrolment(&self, enrolment: &str) {
        let before = self.enrolment.lock().unwrap().replace(enrolment.to_owned());
        if before.is_some_and(|before| before != enrolment) {
            *self.last.lock().unwrap() = 0;
        }
    }

    fn acknowledge(&self, generation: u64) {
        self.acknowledged.lock().unwrap().push(generation);
        self.answers.lock().unwrap().retain(|(other, _)| *other != generation);
    }
}

pub(crate) struct TestNode {
    pub(crate) name: String,
    pub(crate) folder: TempDir,
    journal: Option<Journal>,
    durable: watch::Sender<u64>,
    urgent: watch::Sender<uplink::Urgent>,
    /// A fixed reconnect delay, instead of the uplink's back-off.
    pub(crate) fixed_wait: Option<Duration>,
    pub(crate) order_handler: Arc<FakeOrderHandler>,
    pub(crate) cordon_notify: Arc<Notify>,
    pub(crate) cordon: watch::Sender<Cordon>,
    pub(crate) uplink: Option<Uplink>,
    pub(crate) boot: String,
}

impl TestNode {
    pub(crate) fn new(name: &str) -> Self {
        let mut agent = Self {
            name: name.to_owned(),
            folder: tempfile::tempdir().unwrap(),
            journal: None,
            durable: watch::channel(0).0,
            urgent: watch::channel(uplink::Urgent::default()).0,
            fixed_wait: None,
            order_handler: Arc::default(),
            cordon_notify: Arc::default(),
            cordon: watch::channel(Cordon::Unknown).0,
            uplink: None,
            boot: "boot-1".to_owned(),
        };
        agent.open_journal();
        agent
    }

    pub(crate) fn identity(&self) -> std::path::PathBuf {
        self.folder.path().join("identity")
    }

    pub(crate) fn state(&self) -> std::path::PathBuf {
        self.folder.path().join("state")
    }

    pub(crate) fn open_journal(&mut self) {
        self.journal = None;
        let retention = Retention { days: 90, bytes: 1 << 20 };
        let journal = Journal::open(&self.state(), retention).unwrap();
        self.durable.send_replace(journal.durable().seq);
        self.journal = Some(journal);
    }

    pub(crate) fn lose_journal(&mut self) {
        self.journal = None;
        for entry in std::fs::read_dir(self.state()).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "jsonl") {
                std::fs::remove_file(path).unwrap();
            }
        }
        self.open_journal();
    }

    /// Opens a finding, and writes it to the journal on disk.
    pub(crate) fn find(&mut self, id: u64) {
        self.open_finding(finding(id));
    }

    pub(crate) fn open_finding(&mut self, finding: Finding) {
        let journal = self.journal.as_mut().unwrap();
        let changes = vec![Change::Opened(finding)];
        journal.append(Timestamp::now(), &self.boot, None, changes, Vec::new(), Vec::new());
        journal.flush(Timestamp::now(), &Failpoint::default()).unwrap();
        self.durable.send_replace(journal.durable().seq);
    }

    /// Like [`Self::find`], but marks the record as urgent.
    pub(crate) fn find_urgent(&mut self, id: u64) {
        self.find(id);
        let record = *self.durable.borrow();
        self.urgent.send_modify(|urgent| urgent.record = record);
    }

    /// Opens an urgent finding, which makes the uplink connect, and waits for the outcome. Needs a
    /// long [`Self::fixed_wait`], so that there is no other attempt.
    pub(crate) async fn attempt_for(&mut self, id: u64) -> UplinkState {
        assert!(self.fixed_wait.is_some(), "another attempt may be under way");
        let mut connection_status = self.uplink.as_ref().unwrap().connection_status();
        connection_status.mark_unchanged();
        self.find_urgent(id);
        // The connection status changes twice: the uplink presents its certificate, and then the
        // server responds.
        for _ in 0..2 {
            let change = tokio::time::timeout(PATIENCE, connection_status.changed()).await;
            change.expect("an attempt to connect").unwrap();
        }
        connection_status.borrow().link.clone()
    }

    pub(crate) fn connect(&mut self, server: &TestServer) {
        let boot = self.boot.clone();
        let parts = uplink::Parts {
            url: server.url().parse().unwrap(),
            identity_store: IdentityStore::new(&self.identity(), None),
            node: Some(node(&self.name)),
            state_dir: self.state(),
            durable: self.durable.subscribe(),
            urgent: self.urgent.subscribe(),
            inventory: Box::new(move || {
                Some(NodeInventory {
                    boot: boot.clone(),
                    gpus: Some(Vec::new()),
                    ..NodeInventory::default()
                })
            }),
            coverage: Box::new(|| None),
            cordon: self.cordon.subscribe(),
            order_handler: Arc::clone(&self.order_handler) as Arc<dyn OrderHandler>,
            artifacts: tokio::sync::mpsc::channel(1).1,
            status_changed: Arc::clone(&self.cordon_notify),
            fixed_wait: self.fixed_wait,
        };
        self.uplink = Some(Uplink::spawn(parts).unwrap());
    }

    pub(crate) fn disconnect(&mut self) {
        if let Some(uplink) = self.uplink.take() {
            uplink.stop();
        }
    }

    pub(crate) async fn acked(&self, record: u64) {
        let acked = self.uplink.as_ref().unwrap().acked();
        until("the record is acknowledged", || acked.borrow().is_some_and(|acked| acked >= record))
            .await;
    }

    /// Whether the server refuses the node until it enrols again.
    pub(crate) fn must_enrol(&self) -> bool {
        let status = self.uplink.as_ref().unwrap().connection_status();
        matches!(status.borrow().link, UplinkState::Disconnected { must_enrol: true, .. })
    }

    pub(crate) fn acked_now(&self) -> Option<u64> {
        *self.uplink.as_ref().unwrap().acked().borrow()
    }
}

/// A TLS configuration that trusts the server and has no client certificate.
pub(crate) fn trusting(agent: &TestNode) -> Arc<rustls::ClientConfig> {
    let text = std::fs::read_to_string(agent.identity().join("ca.pem")).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    for der in farrier_wire::pem::read(farrier_wire::pem::CERTIFICATE, &text) {
        roots.add(der.into()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(tls)
}
