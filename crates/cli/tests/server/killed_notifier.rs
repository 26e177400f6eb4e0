//! Kills the server again and again between the log and the receiver of a notification: after a
//! finding is acknowledged, while the receiver gets the notification, and just after its answer.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread;

use farrier_fleet::fleet::event::NodeInventory;
use farrier_fleet::health::{Change, Finding};
use farrier_wire::proto::{
    self, AgentMessage, ServerMessage, agent_message, report, server_message,
};
use farrier_wire::{client, convert};
use serde_json::{Value, json};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;

use crate::server::{TestServer, until};
use crate::support::wait::TEST_TIMEOUT;

/// Each point is reached four times.
const ROUNDS: u64 = 16;
/// Findings of a round, of which one is where the server is killed.
const FINDINGS_MAX: u64 = 3;

/// When the server is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Point {
    /// The finding is in the log, and the agent knows.
    Acknowledged,
    /// The receiver has accepted the connection and read nothing.
    Connected,
    /// The receiver has the whole notification and has not answered.
    Received,
    /// The receiver has answered.
    Answered,
}

const POINTS: [Point; 4] =
    [Point::Acknowledged, Point::Connected, Point::Received, Point::Answered];

/// A request that the receiver has read.
#[derive(Debug, Clone)]
struct Received {
    key: String,
    body: Value,
    is_answered: bool,
}

#[derive(Default)]
struct HookState {
    /// What to do with a request after this many others.
    armed: Option<(Point, u64, Sender<()>)>,
    /// Connections that get no answer.
    held: Vec<TcpStream>,
    received: Vec<Received>,
}

/// A webhook receiver that the test controls.
#[derive(Clone)]
struct Hook {
    url: String,
    state: Arc<Mutex<HookState>>,
}

impl Hook {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let hook = Self { url, state: Arc::default() };
        let served = hook.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let hook = served.clone();
                thread::spawn(move || hook.serve(stream.unwrap()));
            }
        });
        hook
    }

    fn arm(&self, point: Point, passes: u64, reached: Sender<()>) {
        self.state.lock().unwrap().armed = Some((point, passes, reached));
    }

    /// From now on, every request is answered.
    fn release(&self) {
        let mut state = self.state.lock().unwrap();
        state.armed = None;
        state.held.clear();
    }

    fn received(&self) -> Vec<Received> {
        self.state.lock().unwrap().received.clone()
    }

    /// The codes of the notifications that the receiver has accepted.
    fn answered(&self) -> BTreeSet<String> {
        let answered = self.received().into_iter().filter(|received| received.is_answered);
        answered.map(|received| received.body["code"].as_str().unwrap().to_owned()).collect()
    }

    /// The point at which this request ends, if it is the one.
    fn take_armed(&self) -> Option<(Point, Sender<()>)> {
        let mut state = self.state.lock().unwrap();
        match state.armed.take() {
            Some((point, 0, reached)) => Some((point, reached)),
            Some((point, passes, reached)) => {
                state.armed = Some((point, passes - 1, reached));
                None
            }
            None => None,
        }
    }

    fn hold(&self, stream: TcpStream, received: Option<Received>) {
        let mut state = self.state.lock().unwrap();
        state.held.push(stream);
        state.received.extend(received);
    }

    fn serve(self, mut stream: TcpStream) {
        let armed = self.take_armed();
        if let Some((Point::Connected, reached)) = &armed {
            self.hold(stream, None);
            return reached.send(()).unwrap();
        }
        // The server may be killed while it sends.
        let Some(mut received) = read_request(&stream) else { return };
        if let Some((Point::Received, reached)) = &armed {
            self.hold(stream, Some(received));
            return reached.send(()).unwrap();
        }
        received.is_answered = true;
        self.state.lock().unwrap().received.push(received);
        // The server may be dead by now.
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
        if let Some((_, reached)) = armed {
            reached.send(()).unwrap();
        }
    }
}

/// Reads a request with its body. `None` if the connection breaks.
fn read_request(stream: &TcpStream) -> Option<Received> {
    let mut reader = BufReader::new(stream);
    let (mut key, mut length) = (None, None);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        match line.trim_end().split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("idempotency-key") => {
                key = Some(value.to_owned());
            }
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.parse().ok();
            }
            None if line.trim_end().is_empty() => break,
            _ => {}
        }
    }
    let mut body = vec![0; length?];
    reader.read_exact(&mut body).ok()?;
    let body = serde_json::from_slice(&body).unwrap();
    Some(Received { key: key.unwrap(), body, is_answered: false })
}

fn code(round: u64, number: u64) -> String {
    format!("test.code-{round}-{number}")
}

fn finding(round: u64, number: u64) -> Finding {
    serde_json::from_value(json!({
        "id": number, "code": code(round, number), "subject": "node", "kind": "fault",
        "severity": "warning", "text": "it is wrong", "action": "ignore",
        "rule_action": "ignore", "action_by": "rule", "evidence": [],
        "first_seen": "2026-11-15T00:00:00Z", "last_seen": "2026-11-15T00:00:00Z", "count": 1,
        "clears": "never",
    }))
    .unwrap()
}

/// Reports the findings of a round one after the other, and continues where the server stopped.
/// `None` if the server stops.
async fn report(url: String, round: u64, count: u64, acknowledged: impl Fn(u64)) -> Option<()> {
    let mut agents = client::connect(&url.parse().unwrap(), client::no_tls()).await.ok()?;
    let (out, outbound) = tokio::sync::mpsc::channel(16);
    let mut request = Request::new(ReceiverStream::new(outbound));
    request.metadata_mut().insert("farrier-node", format!("n{round}").parse().unwrap());
    let inventory =
        NodeInventory { boot: "b".to_owned(), gpus: Some(Vec::new()), ..NodeInventory::default() };
    let hello = proto::Hello {
        inventory: Some(convert::inventory_message(&inventory)),
        journal: "j".to_owned(),
        ..proto::Hello::default()
    };
    let send = |what| out.send(AgentMessage { what: Some(what) });
    send(agent_message::What::Hello(hello)).await.ok()?;
    let mut inbound = agents.session(request).await.ok()?.into_inner();
    loop {
        let ServerMessage { what } = inbound.message().await.ok()??;
        let stored = match what? {
            server_message::What::Welcome(welcome) => welcome.acked_record.unwrap_or_default(),
            server_message::What::Ack(ack) => {
                acknowledged(ack.record);
                ack.record
            }
            _ => continue,
        };
        if stored >= count {
            return Some(());
        }
        let (record, next) = (stored + 1, finding(round, stored + 1));
        let next = if stored == 0 {
            report::What::Open(convert::findings_message(record, [next]))
        } else {
            let opened = vec![Change::Opened(next)];
            report::What::Changes(convert::changes_message(record, stored, opened).unwrap())
        };
        send(agent_message::What::Report(proto::Report { what: Some(next) })).await.ok()?;
    }
}

/// Numbers that look random, from a fixed seed (Knuth's MMIX generator).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

fn set_policy(server: &TestServer, folder: &Path, url: &str, hook: &Hook) {
    let policy = json!({ "notifications": {
        "receivers": { "hook": { "webhook": { "url": hook.url } } },
        "routes": [{
            "name": "all", "receivers": ["hook"], "match": { "codes": ["test.*"] },
            "group_by": ["node", "code"], "group_wait_s": 0,
        }],
    } });
    let file = folder.join("policy.json");
    std::fs::write(&file, policy.to_string()).unwrap();
    let ann = server.log_in_with("ann", "admin", &["--server", url]);
    ann.run_ok(&["policy", "set", file.to_str().unwrap(), "--yes"]);
}

#[test]
fn a_killed_server_delivers_every_notification_and_duplicates_have_the_same_key() {
    let folder = tempfile::tempdir().unwrap();
    let start = |listen: &str, turn: u64| {
        let plain = ["--plain", "train"];
        TestServer::start_with(folder.path(), listen, &format!("server-{turn}.log"), &plain)
    };
    let mut server = start("127.0.0.1:0", 0);
    let address = server.log_field("address=").unwrap();
    let url = format!("http://{address}");
    let hook = Hook::start();
    set_policy(&server, folder.path(), &url, &hook);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut numbers = Numbers(7);
    let mut expected = BTreeSet::new();
    for round in 1..=ROUNDS {
        let point = POINTS[usize::try_from(round).unwrap() % POINTS.len()];
        let count = 1 + numbers.below(FINDINGS_MAX);
        let passes = numbers.below(count);
        let (sender, reached) = mpsc::channel();
        let is_acknowledged = point == Point::Acknowledged;
        if !is_acknowledged {
            hook.arm(point, passes, sender.clone());
        }
        let reports = runtime.spawn(report(url.clone(), round, count, move |record| {
            if is_acknowledged && record == passes + 1 {
                sender.send(()).unwrap();
            }
        }));
        let reached = reached.recv_timeout(TEST_TIMEOUT);
        reached.unwrap_or_else(|err| panic!("{point:?} of round {round}: {err}\n{}", server.log()));
        server.kill();
        // The reports break with the server.
        let _ = runtime.block_on(reports).unwrap();
        hook.release();
        server = start(&address, round);
        runtime.block_on(report(url.clone(), round, count, |_| ())).unwrap();
        expected.extend((1..=count).map(|number| code(round, number)));
    }
    until("everything is delivered", || hook.answered() == expected);
    server.stop();
    let received = hook.received();
    let mut keys: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut bodies: BTreeMap<&str, &Value> = BTreeMap::new();
    for Received { key, body, .. } in &received {
        keys.entry(body["code"].as_str().unwrap()).or_default().insert(key);
        assert_eq!(body["key"], **key, "the header and the body have the same key");
        let first = bodies.entry(key).or_insert(body);
        assert_eq!(*first, body, "a duplicate has the same content");
    }
    assert!(keys.values().all(|keys| keys.len() == 1), "a duplicate has another key: {keys:#?}");
    assert_eq!(bodies.len(), expected.len(), "each notification has a key of its own");
    let duplicates = received.len() - expected.len();
    let killed_unanswered = usize::try_from(ROUNDS).unwrap() / POINTS.len();
    assert!(duplicates >= killed_unanswered, "only {duplicates} notifications came twice");
}
