//! A server with TLS and agents on simulated nodes.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::agent_node::{Agent, AgentNode};
use crate::server::{TestServer, TestUser, until};

/// Two nodes may show a domain fault, reboots need an approval, and a heartbeat is lost after 30 s,
/// which is the minimum.
///
/// Fatal alerts go to a receiver that is down, and to one that refuses them.
fn policy(refusing: SocketAddr) -> Value {
    json!({
        "notifications": {
            "receivers": {
                "down": { "webhook": { "url": "http://127.0.0.1:9/" } },
                "refusing": { "webhook": { "url": format!("http://{refusing}/") } },
            },
            "routes": [{
                "name": "fatal", "receivers": ["down", "refusing"], "group_wait_s": 0,
                "match": { "min_severity": "fatal" },
            }],
        },
        "pools_default": { "reboot_needs_approval": true, "heartbeat_timeout_s": 90 },
        "common_cause": { "nodes": 2, "share": 0.5 },
    })
}

/// Answers every request with 400, until the test ends.
fn refusing_receiver() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = [0; 16 << 10];
            let _ = stream.read(&mut request);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n");
        }
    });
    address
}

pub(crate) struct Fleet {
    folder: tempfile::TempDir,
    address: String,
    server: Option<TestServer>,
    starts: u32,
}

impl Fleet {
    /// Starts a server whose node certificates last only an hour, so that they expire soon.
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // The server restarts at the same address.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = format!("127.0.0.1:{port}");
        let mut fleet = Self { folder, address, server: None, starts: 0 };
        fleet.start_server(&[]);
        let user = fleet.server().log_in("ann", "admin");
        let file = fleet.path("policy.json");
        fs::write(&file, policy(refusing_receiver()).to_string()).unwrap();
        user.run_ok(&["policy", "set", "--yes", file.to_str().unwrap()]);
        fleet
    }

    pub(crate) fn start_server(&mut self, more: &[&str]) {
        self.starts += 1;
        let args = ["--certificate-life", "1h", "--heartbeat-interval", "1"];
        let log = format!("server-{}.log", self.starts);
        let args = [&args[..], more].concat();
        let server = TestServer::start_with(self.folder.path(), &self.address, &log, &args);
        self.server = Some(server);
    }

    pub(crate) fn stop_server(&mut self) {
        self.server.take().unwrap().stop();
    }

    pub(crate) fn server(&self) -> &TestServer {
        self.server.as_ref().unwrap()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The token of a viewer, for Prometheus.
    pub(crate) fn token(&self) -> String {
        let args = ["user", "add", "prometheus", "--role", "viewer", "--output", "json"];
        let created: Value = serde_json::from_str(&self.server().command(&args).stdout).unwrap();
        created["token"].as_str().unwrap().to_owned()
    }

    pub(crate) fn operator(&self) -> TestUser {
        self.server().log_in("bob", "operator")
    }

    /// Enrols a node in rack `r1` and writes its configuration.
    pub(crate) fn enrol(&self, name: &str, pool: &str, node: &AgentNode, orders: &str) {
        let secret = self.server().token(&["--pool", pool, "--rack", "r1"]);
        let enrolled = self.server().enrol(name, &node.text("identity"), &secret);
        assert_eq!(enrolled.code, 0, "{}", enrolled.stderr);
        let (address, identity) = (&self.address, node.text("identity"));
        let more = format!(
            "[server]\nurl = \"https://{address}\"\nidentity = {identity:?}\n[orders]\n{orders}\n"
        );
        fs::write(node.path("agent.toml"), node.config(&more)).unwrap();
    }
}

/// A node with two GPUs.
pub(crate) fn node(seed: &str) -> AgentNode {
    AgentNode::with(&["--gpus", "2", "--seed", seed])
}

/// The address of an agent's metrics.
pub(crate) fn metrics_address(agent: &Agent<'_>) -> String {
    let address = |log: String| {
        let line =
            log.lines().rev().find_map(|line| line.split("address=").nth(1).map(str::to_owned));
        line.map(|address| address.trim().to_owned())
    };
    until("the agent serves metrics", || address(agent.log()).is_some());
    address(agent.log()).unwrap()
}
