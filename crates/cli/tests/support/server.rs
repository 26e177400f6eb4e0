//! `farrier server run` as a process with TLS, and its nodes and users.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use farrier_fleet::fleet::{Entry, Event};
use farrier_server::log::Log;
use farrier_server::log::sqlite::SqliteLog;
use serde_json::Value;

use crate::kill::kill;
use crate::support::wait::{wait_for, wait_until};
use crate::support::{CommandOutput, farrier, run};

/// A running server, killed when the test ends.
pub(crate) struct TestServer {
    child: Child,
    folder: PathBuf,
    log: PathBuf,
}

/// Waits until the condition is true.
#[track_caller]
pub(crate) fn until(expected: &str, condition: impl FnMut() -> bool) {
    wait_until(|| expected.to_owned(), condition);
}

impl TestServer {
    /// Starts a server in `folder`; `log` is the file name of its log output.
    pub(crate) fn start(folder: &Path, listen: &str, log: &str) -> Self {
        Self::start_with(folder, listen, log, &[])
    }

    pub(crate) fn start_with(folder: &Path, listen: &str, log: &str, more: &[&str]) -> Self {
        let dir = folder.join("server").to_str().unwrap().to_owned();
        let args = ["server", "run", "--dir", &dir, "--listen", listen];
        Self::spawn(folder, log, &mut farrier(&[&args[..], more].concat()))
    }

    /// Starts a server with this command and waits until it accepts connections.
    pub(crate) fn spawn(folder: &Path, log: &str, command: &mut Command) -> Self {
        let log = folder.join(log);
        command.stdout(Stdio::null()).stderr(fs::File::create(&log).unwrap());
        let child = command.spawn().unwrap();
        let mut server = Self { child, folder: folder.to_owned(), log };
        until("the server accepts connections", || {
            // Another connection may briefly occupy the port when a server restarts at the same
            // address. Start the server again then.
            if server.exit_status().is_some() && server.log().contains("failed to listen") {
                server.child = command.spawn().unwrap();
            }
            server.log_field("fingerprint=").is_some()
        });
        server
    }

    /// A field in the server's log output.
    pub(crate) fn log_field(&self, field: &str) -> Option<String> {
        let text = self.log();
        let value = text.split(field).nth(1)?;
        value.split_whitespace().next().map(str::to_owned)
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(crate) fn url(&self) -> String {
        format!("https://{}", self.log_field("address=").unwrap())
    }

    pub(crate) fn fingerprint(&self) -> String {
        self.log_field("fingerprint=").unwrap()
    }

    /// Runs a `farrier server` command on this server's folder.
    pub(crate) fn command(&self, args: &[&str]) -> CommandOutput {
        let dir = self.dir();
        run(&[&["server"], args, &["--dir", &dir]].concat())
    }

    pub(crate) fn dir(&self) -> String {
        self.folder.join("server").to_str().unwrap().to_owned()
    }

    /// Creates a join token.
    pub(crate) fn token(&self, args: &[&str]) -> String {
        let output = self.command(&[&["token", "create", "--output", "json"], args].concat());
        assert_eq!(output.code, 0, "{}", output.stderr);
        let created: Value = serde_json::from_str(&output.stdout).unwrap();
        created["token"].as_str().unwrap().to_owned()
    }

    /// Enrols a node with `farrier agent enrol`.
    pub(crate) fn enrol(&self, node: &str, identity: &str, token: &str) -> CommandOutput {
        let (url, fingerprint) = (self.url(), self.fingerprint());
        let args = ["agent", "enrol", "--server", &url, "--node", node, "--token", token];
        run(&[&args[..], &["--ca-fingerprint", &fingerprint, "--identity", identity]].concat())
    }

    /// Adds a user with a role and logs in.
    pub(crate) fn log_in(&self, name: &str, role: &str) -> TestUser {
        let (url, fingerprint) = (self.url(), self.fingerprint());
        self.log_in_with(name, role, &["--server", &url, "--ca-fingerprint", &fingerprint])
    }

    /// Adds a user with a role and passes `args` to `farrier login`.
    pub(crate) fn log_in_with(&self, name: &str, role: &str, args: &[&str]) -> TestUser {
        let output = self.command(&["user", "add", name, "--role", role, "--output", "json"]);
        assert_eq!(output.code, 0, "{}", output.stderr);
        let created: Value = serde_json::from_str(&output.stdout).unwrap();
        let user = TestUser { config: self.folder.join(format!("config-{name}")) };
        let token = created["token"].as_str().unwrap();
        user.run_ok(&[&["login"], args, &["--token", token]].concat());
        user
    }

    /// All entries of the log on disk.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        let log = SqliteLog::open_to_read(&self.folder.join("server/log")).unwrap();
        log.read(0, usize::MAX).unwrap().iter().map(|row| row.entry().unwrap()).collect()
    }

    pub(crate) fn has(&self, matches: impl Fn(&Event) -> bool) -> bool {
        self.entries().iter().any(|entry| matches(&entry.event))
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Exit status, if the server has exited.
    pub(crate) fn exit_status(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().unwrap()
    }

    pub(crate) fn stop(mut self) {
        kill("-TERM", &self.child.id().to_string());
        let status = wait_for(|| "the server exits".to_owned(), || self.child.try_wait().unwrap());
        assert!(status.success(), "{}", self.log());
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A logged-in user.
pub(crate) struct TestUser {
    config: PathBuf,
}

impl TestUser {
    pub(crate) fn run(&self, args: &[&str]) -> CommandOutput {
        self.command(args).output().unwrap().into()
    }

    /// Starts a command and discards its output.
    pub(crate) fn spawn(&self, args: &[&str]) -> Child {
        self.command(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = farrier(args);
        command.env("XDG_CONFIG_HOME", &self.config).env("COLUMNS", "140");
        command
    }

    /// Runs a command that must succeed.
    pub(crate) fn run_ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!(output.code, 0, "{args:?}: {} {}", output.stdout, output.stderr);
        output.stdout
    }

    /// The server's view of a node, as JSON.
    pub(crate) fn node(&self, node: &str) -> Value {
        let output = self.run(&["fleet", "node", node, "--output", "json"]);
        serde_json::from_str(&output.stdout)
            .unwrap_or_else(|_| panic!("{}{}", output.stdout, output.stderr))
    }
}

/// Whether the event reports a finding with this detail.
pub(crate) fn reports_finding(event: &Event, detail: &str) -> bool {
    match event {
        Event::FindingsReported { changes, .. } => {
            changes.iter().any(|change| change.finding().detail.contains(detail))
        }
        _ => false,
    }
}
