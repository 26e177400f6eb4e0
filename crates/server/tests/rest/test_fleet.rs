//! A server with nodes in two pools and of two tenants, users with tokens, and a raw HTTP client.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use farrier_fleet::fleet::event::{Event, GpuInventory, JournalPosition, NodeInventory};
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{Location, NodeId, Role};
use farrier_fleet::health::{Change, GpuUuid};
use farrier_server::access::NewUser;
use farrier_server::controller::Controller;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::test_server::{PATIENCE, TestServer, finding, node};

#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|err| panic!("{err}: {}", self.body))
    }

    /// Checks that the answer is a complete problem with this status.
    pub(crate) fn assert_problem(&self, status: u16) {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.headers["content-type"], "application/problem+json", "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], status);
        for field in ["type", "title", "detail", "hint"] {
            assert!(
                problem[field].as_str().is_some_and(|problem| !problem.is_empty()),
                "{field}: {problem}"
            );
        }
    }
}

pub(crate) fn request(method: &str, path: &str, token: Option<&str>, body: Option<&str>) -> String {
    let mut text = format!("{method} {path} HTTP/1.1\r\nHost: fleet\r\nConnection: close\r\n");
    if let Some(token) = token {
        text.push_str(&format!("Authorization: Bearer {token}\r\n"));
    }
    if let Some(body) = body {
        let length = body.len();
        text.push_str(&format!("Content-Type: application/json\r\nContent-Length: {length}\r\n"));
    }
    text.push_str("\r\n");
    text.push_str(body.unwrap_or_default());
    text
}

/// Sends a request, and reads until the server closes the connection.
pub(crate) fn exchange(address: SocketAddr, request: &[u8]) -> Answer {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    // The send may fail if the server refuses the request early.
    let _ = socket.write_all(request);
    let mut bytes = Vec::new();
    let _ = socket.read_to_end(&mut bytes);
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let mut lines = head.lines();
    let status = lines.next().unwrap_or_default().split(' ').nth(1).unwrap_or("0");
    let header = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_lowercase(), value.trim().to_owned()))
    };
    let status = status.parse().unwrap();
    let headers: BTreeMap<String, String> = lines.filter_map(header).collect();
    let is_chunked = headers.get("transfer-encoding").is_some_and(|header| header == "chunked");
    let body = if is_chunked { decode_chunked(body) } else { body.to_owned() };
    Answer { status, headers, body }
}

fn decode_chunked(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let (chunk, rest) = rest.split_at(usize::from_str_radix(length, 16).unwrap());
        whole.push_str(chunk);
        body = rest.strip_prefix("\r\n").unwrap_or_default();
    }
    whole
}

pub(crate) struct TestFleet {
    pub(crate) server: TestServer,
}

/// Two nodes in `train` for two tenants, and one in `serve`. Nodes `a` and `c` share a rack.
const NODES: [(&str, &str, &str, &str); 3] =
    [("a", "train", "lab", "r1"), ("b", "train", "shop", "r2"), ("c", "serve", "shop", "r1")];

impl TestFleet {
    pub(crate) async fn open() -> Self {
        Self::with(TestServer::plain().await).await
    }

    pub(crate) async fn with(server: TestServer) -> Self {
        let fleet = Self { server };
        for (name, pool, tenant, rack) in NODES {
            fleet.enrol(name, pool, Some(tenant), Some(rack)).await;
        }
        fleet
    }

    pub(crate) fn controller(&self) -> &Controller {
        self.server.running().controller()
    }

    pub(crate) async fn enrol(
        &self,
        name: &str,
        pool: &str,
        tenant: Option<&str>,
        rack: Option<&str>,
    ) {
        let mut location = Location::in_pool(pool.parse().unwrap());
        location.tenant = tenant.map(|tenant| tenant.parse().unwrap());
        location.rack = rack.map(|rack| rack.parse().unwrap());
        self.submit(Event::Enrolled { node: node(name), location }).await;
    }

    pub(crate) async fn submit(&self, event: Event) {
        let by = event.node().cloned().map_or(Actor::Server, Actor::Node);
        self.controller().submit(by, event).await.unwrap();
    }

    pub(crate) async fn report_finding(&self, name: &str, number: u64) {
        let record = JournalPosition { journal: "j".to_owned(), number };
        let changes = vec![Change::Opened(finding(number))];
        self.submit(Event::FindingsReported { node: node(name), record, changes }).await;
    }

    pub(crate) async fn report_inventory(
        &self,
        name: &str,
        gpu: Option<&str>,
        driver: Option<&str>,
    ) {
        let gpu = |index| GpuInventory {
            uuid: GpuUuid(format!("GPU-{name}-{index}")),
            name: gpu.map(str::to_owned),
            index: Some(index),
            pci: Some(format!("0000:{index:02x}:00.0")),
            serial: None,
        };
        let inventory = NodeInventory {
            boot: "b".to_owned(),
            driver: driver.map(str::to_owned),
            gpus: driver.map(|_| (0..8).map(gpu).collect()),
            ..NodeInventory::default()
        };
        self.submit(Event::InventoryReported { node: node(name), inventory }).await;
    }

    pub(crate) fn token(&self, name: &str, role: Role, scope: &str) -> String {
        self.token_for(name, role, scope, SignedDuration::from_hours(1))
    }

    pub(crate) fn token_for(
        &self,
        name: &str,
        role: Role,
        scope: &str,
        life: SignedDuration,
    ) -> String {
        let now = Timestamp::now();
        let user = NewUser::new(name, role, scope.parse().unwrap(), now + life).unwrap();
        let by = Actor::User("local:test".to_owned());
        let (_, secret) = self.server.store().add_user(&by, &user, now).unwrap();
        secret.reveal().to_owned()
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: Option<&str>,
    ) -> Answer {
        let (address, text) = (self.server.address, request(method, path, token, body));
        tokio::task::spawn_blocking(move || exchange(address, text.as_bytes())).await.unwrap()
    }

    pub(crate) async fn get(&self, path: &str, token: &str) -> Value {
        let answer = self.send("GET", path, Some(token), None).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        answer.json()
    }

    /// Polls until the answer matches. The predicate also gets the time before the request. Polls
    /// slowly enough for the rate limit.
    pub(crate) async fn wait_for(
        &self,
        path: &str,
        token: &str,
        is: impl Fn(&Value, Timestamp) -> bool,
    ) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            let sent_at = Timestamp::now();
            let answer = self.get(path, token).await;
            if is(&answer, sent_at) {
                return answer;
            }
            assert!(Instant::now() < end, "{path} did not match: {answer}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub(crate) async fn post(&self, path: &str, token: &str, body: &str) -> Answer {
        self.send("POST", path, Some(token), Some(body)).await
    }

    pub(crate) fn names(page: &Value) -> Vec<String> {
        let nodes = page["nodes"].as_array().unwrap();
        nodes.iter().map(|node| node["node"].as_str().unwrap().to_owned()).collect()
    }

    pub(crate) async fn read_node<T: Send + 'static>(
        &self,
        name: &str,
        read: impl FnOnce(&farrier_fleet::fleet::Node) -> T + Send + 'static,
    ) -> T {
        let id: NodeId = node(name);
        self.controller().read(move |state| read(&state.nodes[&id])).await.unwrap()
    }
}
