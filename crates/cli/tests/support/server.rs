//! `farrier server run` as a process, over TLS; nodes that join it, and people who ask it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use farrier_fleet::fleet::{Entry, Event};
use farrier_server::log::Log;
use farrier_server::log::sqlite::SqliteLog;
use serde_json::Value;

use crate::kill::kill;
use crate::support::wait::{wait_for, wait_until};
use crate::support::{Ran, farrier, run};

/// A server that does not outlive its test.
pub(crate) struct Server {
    child: Child,
    folder: PathBuf,
    log: PathBuf,
}

/// Waits until something is so.
#[track_caller]
pub(crate) fn until(what: &str, holds: impl FnMut() -> bool) {
    wait_until(|| what.to_owned(), holds);
}

impl Server {
    /// Starts one in `folder`, with the name of what it logs.
    pub(crate) fn start(folder: &Path, listen: &str, log: &str) -> Self {
        Self::start_with(folder, listen, log, &[])
    }

    pub(crate) fn start_with(folder: &Path, listen: &str, log: &str, more: &[&str]) -> Self {
        let dir = folder.join("server").to_str().unwrap().to_owned();
        let words = ["server", "run", "--dir", &dir, "--listen", listen];
        Self::spawn(folder, log, &mut farrier(&[&words[..], more].concat()))
    }

    /// Starts it by a command, and waits until it serves.
    pub(crate) fn spawn(folder: &Path, log: &str, command: &mut Command) -> Self {
        let log = folder.join(log);
        command.stdout(Stdio::null()).stderr(fs::File::create(&log).unwrap());
        let child = command.spawn().unwrap();
        let mut server = Self { child, folder: folder.to_owned(), log };
        until("the server serves", || {
            // One that is started at its old address may find that a connection of another process has
            // the port for a moment.
            if server.ended().is_some() && server.log().contains("failed to listen") {
                server.child = command.spawn().unwrap();
            }
            server.said("fingerprint=").is_some()
        });
        server
    }

    /// A field of what it logged.
    pub(crate) fn said(&self, field: &str) -> Option<String> {
        let text = self.log();
        let value = text.split(field).nth(1)?;
        value.split_whitespace().next().map(str::to_owned)
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(crate) fn url(&self) -> String {
        format!("https://{}", self.said("address=").unwrap())
    }

    pub(crate) fn fingerprint(&self) -> String {
        self.said("fingerprint=").unwrap()
    }

    /// A command of the server's own, with its folder.
    pub(crate) fn command(&self, words: &[&str]) -> Ran {
        let dir = self.dir();
        run(&[&["server"], words, &["--dir", &dir]].concat())
    }

    pub(crate) fn dir(&self) -> String {
        self.folder.join("server").to_str().unwrap().to_owned()
    }

    /// A token to join with.
    pub(crate) fn token(&self, words: &[&str]) -> String {
        let made = self.command(&[&["token", "create", "--output", "json"], words].concat());
        assert_eq!(made.code, 0, "{}", made.stderr);
        let made: Value = serde_json::from_str(&made.stdout).unwrap();
        made["token"].as_str().unwrap().to_owned()
    }

    /// Enrols a node, as a person does on it.
    pub(crate) fn enrol(&self, node: &str, identity: &str, token: &str) -> Ran {
        let (url, fingerprint) = (self.url(), self.fingerprint());
        let words = ["agent", "enrol", "--server", &url, "--node", node, "--token", token];
        run(&[&words[..], &["--ca-fingerprint", &fingerprint, "--identity", identity]].concat())
    }

    /// A person with a role logs in.
    pub(crate) fn log_in(&self, name: &str, role: &str) -> Person {
        let (url, fingerprint) = (self.url(), self.fingerprint());
        self.log_in_with(name, role, &["--server", &url, "--ca-fingerprint", &fingerprint])
    }

    /// Likewise, with these words of `farrier login`.
    pub(crate) fn log_in_with(&self, name: &str, role: &str, words: &[&str]) -> Person {
        let made = self.command(&["user", "add", name, "--role", role, "--output", "json"]);
        assert_eq!(made.code, 0, "{}", made.stderr);
        let made: Value = serde_json::from_str(&made.stdout).unwrap();
        let person = Person { config: self.folder.join(format!("config-{name}")) };
        let token = made["token"].as_str().unwrap();
        person.fine(&[&["login"], words, &["--token", token]].concat());
        person
    }

    /// The log on disk, as it is now.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        let log = SqliteLog::open_to_read(&self.folder.join("server/log")).unwrap();
        log.read(0, usize::MAX).unwrap().iter().map(|it| it.entry().unwrap()).collect()
    }

    pub(crate) fn has(&self, is: impl Fn(&Event) -> bool) -> bool {
        self.entries().iter().any(|entry| is(&entry.event))
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// How it ended, where it has.
    pub(crate) fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().unwrap()
    }

    pub(crate) fn stop(mut self) {
        kill("-TERM", &self.child.id().to_string());
        let status = wait_for(|| "the server's end".to_owned(), || self.child.try_wait().unwrap());
        assert!(status.success(), "{}", self.log());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Somebody with a token, who has logged in.
pub(crate) struct Person {
    config: PathBuf,
}

impl Person {
    pub(crate) fn run(&self, words: &[&str]) -> Ran {
        self.command(words).output().unwrap().into()
    }

    /// Starts it; its output goes nowhere.
    pub(crate) fn spawn(&self, words: &[&str]) -> Child {
        self.command(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = farrier(words);
        command.env("XDG_CONFIG_HOME", &self.config).env("COLUMNS", "140");
        command
    }

    /// Runs it, and it is fine.
    pub(crate) fn fine(&self, words: &[&str]) -> String {
        let ran = self.run(words);
        assert_eq!(ran.code, 0, "{words:?}: {} {}", ran.stdout, ran.stderr);
        ran.stdout
    }

    /// What the server knows of a node.
    pub(crate) fn node(&self, node: &str) -> Value {
        let ran = self.run(&["fleet", "node", node, "--output", "json"]);
        serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}{}", ran.stdout, ran.stderr))
    }
}

/// Whether something was found in which this stands.
pub(crate) fn found(event: &Event, detail: &str) -> bool {
    match event {
        Event::Found { changes, .. } => {
            changes.iter().any(|change| change.finding().detail.contains(detail))
        }
        _ => false,
    }
}
