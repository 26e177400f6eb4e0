//! A server in this process, with or without TLS, that has three nodes. The binary runs with a
//! login that is separate from the user's.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use farrier_fleet::fleet::event::{Event, GpuInventory, JournalPosition, NodeInventory};
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{Location, NodeId};
use farrier_fleet::health::{Change, Finding, GpuUuid};
use farrier_server::rest::Rate;
use farrier_server::run::{self, Running, ServerError, ServerOptions};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::support::wait::wait_for;
use crate::support::{CommandOutput, farrier, run};

pub(crate) struct TestFleet {
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
        "evidence": [{ "check": { "text": "observed", "at": "2026-11-15T00:00:00Z" } }],
        "first_seen": "2026-11-15T00:00:00Z", "last_seen": "2026-11-15T00:00:00Z", "count": 1,
        "clears": "a reboot",
    }))
    .unwrap()
}

impl TestFleet {
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
        let mut fleet = Self { folder, runtime, running: None, is_plain, address };
        fleet.start("server");
        for (name, pool, rack) in
            [("gpu-1", "train", "r1"), ("gpu-2", "train", "r2"), ("gpu-3", "serve", "r2")]
        {
            let mut location = Location::in_pool(pool.parse().unwrap());
            location.rack = Some(rack.parse().unwrap());
            fleet.submit(Event::Enrolled { node: node(name), location });
            let gpu = GpuInventory {
                uuid: GpuUuid(format!("GPU-{name}")),
                name: Some("NVIDIA H200".to_owned()),
                index: Some(3),
                pci: Some("0000:3b:00.0".to_owned()),
                serial: None,
            };
            let inventory = NodeInventory {
                boot: "b".to_owned(),
                driver: Some("580.95.05".to_owned()),
                cuda: Some("13.0".to_owned()),
                gpus: Some(vec![gpu; 8]),
                ..NodeInventory::default()
            };
            fleet.submit(Event::InventoryReported { node: node(name), inventory });
        }
        fleet
    }

    /// Stops the server and starts one on this data directory, at the same address as before.
    pub(crate) fn start(&mut self, dir: &str) {
        self.stop();
        let options = ServerOptions {
            plain_pool: self.is_plain.then(|| "train".parse().unwrap()),
            rate: Rate { per_s: 1e6, burst: 1e6 },
            ..ServerOptions::new(self.path(dir), self.address)
        };
        // A child process that another test forked may still hold the port of the previous server.
        let running = wait_for(
            || "the port is free".to_owned(),
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

    pub(crate) fn server(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    pub(crate) fn url(&self) -> String {
        let scheme = if self.is_plain { "http" } else { "https" };
        format!("{scheme}://{}", self.server().address())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn path_text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn submit(&self, event: Event) {
        let actor = event.node().cloned().map_or(Actor::Server, Actor::Node);
        self.runtime.block_on(self.server().controller().submit(actor, event)).unwrap();
    }

    /// Reports a fatal finding, as the journal record with this number.
    pub(crate) fn report_finding(&self, name: &str, number: u64) {
        let record = JournalPosition { journal: "j".to_owned(), number };
        let changes = vec![Change::Opened(finding(number))];
        self.submit(Event::FindingsReported { node: node(name), record, changes });
    }

    pub(crate) fn state(&self) -> Vec<u8> {
        let state = self.server().controller().read(|state| serde_json::to_vec(state).unwrap());
        self.runtime.block_on(state).unwrap()
    }

    /// Creates a user token with the command line of the server.
    pub(crate) fn add_user(&self, args: &[&str]) -> Value {
        let dir = self.path_text("server");
        let args =
            [&["server", "user", "add"], args, &["--dir", &dir, "--output", "json"]].concat();
        let created = run(&args);
        assert_eq!(created.code, 0, "{}", created.stderr);
        serde_json::from_str(&created.stdout).unwrap()
    }

    /// The binary, with the login of this server.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = farrier(args);
        command.env("XDG_CONFIG_HOME", self.path("config")).env("COLUMNS", "140");
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> CommandOutput {
        self.command(args).output().unwrap().into()
    }

    /// Runs the binary and asserts success.
    pub(crate) fn run_ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!(output.code, 0, "{args:?}: {} {}", output.stdout, output.stderr);
        output.stdout
    }

    pub(crate) fn log_in(&self, name: &str, role: &str) {
        let created = self.add_user(&[name, "--role", role]);
        let token = created["token"].as_str().unwrap();
        let fingerprint = created["ca_fingerprint"].as_str().unwrap();
        let url = self.url();
        self.run_ok(&[
            "login",
            "--server",
            &url,
            "--ca-fingerprint",
            fingerprint,
            "--token",
            token,
        ]);
    }
}

impl Drop for TestFleet {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            let _ = self.runtime.block_on(running.stop());
        }
    }
}
