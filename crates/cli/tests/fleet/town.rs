//! A server in this process, with TLS or plain, with a few nodes; and the binary with a login of
//! its own.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use farrier_fleet::fleet::event::{Event, GpuInventory, NodeInventory, Record};
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{Location, NodeId};
use farrier_fleet::health::{Change, Finding, GpuUuid};
use farrier_server::rest::Rate;
use farrier_server::run::{self, Options, Running, ServerError};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::support::wait::wait_for;
use crate::support::{Ran, farrier, run};

pub(crate) struct Town {
    folder: TempDir,
    runtime: Runtime,
    running: Option<Running>,
    is_plain: bool,
    address: SocketAddr,
}

fn node(name: &str) -> NodeId {
    name.parse().unwrap()
}

fn finding(id: u64) -> Finding {
    serde_json::from_value(json!({
        "id": id, "code": "gpu.xid", "detail": "Xid 79", "subject": { "gpu": "GPU-1" }, "kind": "fault",
        "severity": "fatal", "text": "the GPU has fallen off the bus", "action": "reboot-node",
        "rule_action": "reboot-node", "action_by": "rule",
        "evidence": [{ "check": { "text": "seen", "at": "2026-11-15T00:00:00Z" } }],
        "first_seen": "2026-11-15T00:00:00Z", "last_seen": "2026-11-15T00:00:00Z", "count": 1,
        "clears": "a reboot",
    }))
    .unwrap()
}

impl Town {
    pub(crate) fn with_tls() -> Self {
        Self::open(false)
    }

    pub(crate) fn plain() -> Self {
        Self::open(true)
    }

    fn open(is_plain: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let runtime = Runtime::new().unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut town = Self { folder, runtime, running: None, is_plain, address };
        town.start("server");
        for (name, pool, rack) in
            [("gpu-1", "train", "r1"), ("gpu-2", "train", "r2"), ("gpu-3", "serve", "r2")]
        {
            let mut place = Location::in_pool(pool.parse().unwrap());
            place.rack = Some(rack.parse().unwrap());
            town.take(Event::Enrolled { node: node(name), location: place });
            let gpu = GpuInventory {
                uuid: GpuUuid(format!("GPU-{name}")),
                name: Some("NVIDIA H200".to_owned()),
                index: Some(3),
                pci: Some("0000:3b:00.0".to_owned()),
            };
            let inventory = NodeInventory {
                boot: "b".to_owned(),
                driver: Some("580.95.05".to_owned()),
                cuda: Some("13.0".to_owned()),
                gpus: Some(vec![gpu; 8]),
                ..NodeInventory::default()
            };
            town.take(Event::InventoryReported { node: node(name), inventory });
        }
        town
    }

    /// Starts a server on a data directory, at the same address as before.
    pub(crate) fn start(&mut self, dir: &str) {
        self.stop();
        let options = Options {
            plain_pool: self.is_plain.then(|| "train".parse().unwrap()),
            rate: Rate { per_s: 1e6, burst: 1e6 },
            ..Options::new(self.path(dir), self.address)
        };
        // A child process that another test forked may still hold the port of the previous server.
        let running = wait_for(
            || "the server starts".to_owned(),
            || match self.runtime.block_on(run::start(options.clone())) {
                Ok(running) => Some(running),
                Err(ServerError::Listen { .. }) => None,
                Err(err) => panic!("{err:?}"),
            },
        );
        self.address = running.address();
        self.running = Some(running);
    }

    pub(crate) fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            self.runtime.block_on(running.stop()).unwrap();
        }
    }

    /// Runs a task on the server's runtime.
    pub(crate) fn spawn(
        &self,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> tokio::task::JoinHandle<()> {
        self.runtime.spawn(task)
    }

    pub(crate) fn running(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    pub(crate) fn url(&self) -> String {
        let scheme = if self.is_plain { "http" } else { "https" };
        format!("{scheme}://{}", self.running().address())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn take(&self, event: Event) {
        let by = event.node().cloned().map_or(Actor::Server, Actor::Node);
        self.runtime.block_on(self.running().controller().submit(by, event)).unwrap();
    }

    pub(crate) fn find(&self, name: &str, number: u64) {
        let record = Record { journal: "j".to_owned(), number };
        let changes = vec![Change::Opened(finding(number))];
        self.take(Event::FindingsReported { node: node(name), record, changes });
    }

    pub(crate) fn state(&self) -> Vec<u8> {
        let look = self.running().controller().read(|state| serde_json::to_vec(state).unwrap());
        self.runtime.block_on(look).unwrap()
    }

    /// Creates a user token with the command line of the server.
    pub(crate) fn person(&self, words: &[&str]) -> Value {
        let dir = self.text("server");
        let all =
            [&["server", "user", "add"], words, &["--dir", &dir, "--output", "json"]].concat();
        let made = run(&all);
        assert_eq!(made.code, 0, "{}", made.stderr);
        serde_json::from_str(&made.stdout).unwrap()
    }

    /// The binary, with the login of this server.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = farrier(words);
        command.env("XDG_CONFIG_HOME", self.path("config")).env("COLUMNS", "140");
        command
    }

    pub(crate) fn run(&self, words: &[&str]) -> Ran {
        self.command(words).output().unwrap().into()
    }

    /// Runs the binary and asserts success.
    pub(crate) fn fine(&self, words: &[&str]) -> String {
        let ran = self.run(words);
        assert_eq!(ran.code, 0, "{words:?}: {} {}", ran.stdout, ran.stderr);
        ran.stdout
    }

    pub(crate) fn log_in(&self, name: &str, role: &str) {
        let made = self.person(&[name, "--role", role]);
        let token = made["token"].as_str().unwrap();
        let fingerprint = made["ca_fingerprint"].as_str().unwrap();
        let url = self.url();
        self.fine(&["login", "--server", &url, "--ca-fingerprint", fingerprint, "--token", token]);
    }
}

impl Drop for Town {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            let _ = self.runtime.block_on(running.stop());
        }
    }
}
