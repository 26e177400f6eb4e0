//! A simulated node, and an agent that is killed at the end of its test.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::support::wait::wait_for;
use crate::support::{CommandOutput, farrier, run};

/// A timestamp later than the uptime of any node. The agent replaces timestamps from the future
/// with the current time.
const LATE_US: u64 = 1_000_000_000_000_000;

pub(crate) struct AgentNode {
    folder: tempfile::TempDir,
}

impl AgentNode {
    /// A node with eight H100 GPUs.
    pub(crate) fn new() -> Self {
        Self::with_gpus(8)
    }

    pub(crate) fn with_gpus(gpus: u32) -> Self {
        Self::with(&["--gpus", &gpus.to_string()])
    }

    /// A node with H100 GPUs. `extra_args` are further arguments for `farrier simulate node`.
    pub(crate) fn with(extra_args: &[&str]) -> Self {
        let agent_node = Self { folder: tempfile::tempdir().unwrap() };
        let dir = agent_node.text("node");
        let ran =
            run(&[&["simulate", "node", &dir, "--sku", "H100-SXM5-80GB"], extra_args].concat());
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        agent_node
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn inject(&self, fault: &[&str]) {
        let dir = self.text("node");
        let mut args = vec!["simulate", "inject", &dir];
        args.extend(fault);
        let ran = run(&args);
        assert_eq!(ran.code, 0, "{fault:?}: {}", ran.stderr);
    }

    /// Appends lines to the kernel log.
    pub(crate) fn kernel_lines(&self, lines: impl Iterator<Item = String>) {
        let path = self.path("node/root/dev/kmsg");
        let text = fs::read_to_string(&path).unwrap();
        let last = text.lines().rev().find_map(|line| line.split(',').nth(1)?.parse::<u64>().ok());
        let first = last.map_or(0, |last| last + 1);
        let mut out = String::new();
        for (seq, line) in (first..).zip(lines) {
            out.push_str(&format!("3,{seq},{LATE_US},-;{line}\n"));
        }
        let mut file = fs::OpenOptions::new().append(true).open(path).unwrap();
        file.write_all(out.as_bytes()).unwrap();
    }

    /// Arguments that start an agent for this node. Writes the configuration file unless the test
    /// has written it.
    pub(crate) fn args(&self) -> Vec<String> {
        let config = self.path("agent.toml");
        if !config.exists() {
            fs::write(&config, self.config("")).unwrap();
        }
        vec!["agent".to_owned(), "--config".to_owned(), self.text("agent.toml")]
    }

    /// The configuration of this node, with `more` appended.
    pub(crate) fn config(&self, more: &str) -> String {
        let at = |name: &str| self.text(name);
        format!(
            "state_dir = {:?}\nlisten = \"127.0.0.1:0\"\nroot = {:?}\nnvml = {:?}\n[socket]\npath = {:?}\n[sink]\nfile = {:?}\n{more}",
            at("state"),
            at("node/root"),
            at("node/lib/libnvidia-ml.so.1"),
            at("agent.sock"),
            at("sink.jsonl"),
        )
    }

    pub(crate) fn agent(&self) -> Agent<'_> {
        self.agent_with(|_| ())
    }

    /// Starts an agent with a modified command.
    pub(crate) fn agent_with(&self, change: impl FnOnce(&mut Command)) -> Agent<'_> {
        let args = self.args();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut command = farrier(&args);
        self.spawn(command_for(&mut command, &self.path("log"), change))
    }

    pub(crate) fn spawn(&self, command: &mut Command) -> Agent<'_> {
        Agent { agent_node: self, child: command.spawn().unwrap() }
    }

    /// JSON output and exit code of `farrier status`.
    pub(crate) fn status(&self) -> (Value, i32) {
        let ran = self.status_ran(&["--output", "json"]);
        let value = serde_json::from_str(&ran.stdout);
        (value.unwrap_or_else(|_| panic!("{}{}", ran.stdout, ran.stderr)), ran.code)
    }

    pub(crate) fn status_ran(&self, more: &[&str]) -> CommandOutput {
        let (socket, state) = (self.text("agent.sock"), self.text("state"));
        let mut args = vec!["status", "--socket", &socket, "--state-dir", &state];
        args.extend(more);
        run(&args)
    }

    /// Changes that reached the sink, each as the kind of change and the finding.
    pub(crate) fn sink_changes(&self) -> Vec<(String, Value)> {
        let text = fs::read_to_string(self.path("sink.jsonl")).unwrap_or_default();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines
            .filter_map(|line| {
                let change = line.get("change")?.as_object()?;
                let (kind, finding) = change.iter().next()?;
                Some((kind.clone(), finding.clone()))
            })
            .collect()
    }
}

pub(crate) fn command_for<'c>(
    command: &'c mut Command,
    log: &Path,
    change: impl FnOnce(&mut Command),
) -> &'c mut Command {
    let log = fs::OpenOptions::new().append(true).create(true).open(log).unwrap();
    command.stdout(Stdio::null()).stderr(log);
    change(command);
    command
}

pub(crate) struct Agent<'w> {
    agent_node: &'w AgentNode,
    child: Child,
}

impl Agent<'_> {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until there are no coverage gaps.
    pub(crate) fn ready(self) -> Self {
        self.until(|status| {
            status["coverage_gaps"].as_array().is_some_and(Vec::is_empty)
                && !status["skipped_checks"].is_null()
        });
        self
    }

    /// Waits for a status that satisfies the predicate, and returns it.
    pub(crate) fn until(&self, predicate: impl Fn(&Value) -> bool) -> Value {
        let explain = || {
            let status = self.agent_node.status_ran(&["--output", "json"]).stdout;
            format!("the log:\n{}\nthe status:\n{status}", self.log())
        };
        wait_for(explain, || {
            let ran = self.agent_node.status_ran(&["--output", "json"]);
            let status = serde_json::from_str::<Value>(&ran.stdout).ok()?;
            (!status["agent"].is_null() && predicate(&status)).then_some(status)
        })
    }

    /// Waits for an open finding with this code.
    pub(crate) fn until_found(&self, code: &str) -> Value {
        let status = self.until(|status| find(status, code).is_some());
        find(&status, code).unwrap()
    }

    pub(crate) fn signal(&self, name: &str) {
        crate::kill::kill(name, &self.pid().to_string());
    }

    /// Waits until the agent exits on its own.
    pub(crate) fn wait_for_exit(&mut self) -> std::process::ExitStatus {
        let log = self.agent_node.path("log");
        let explain =
            || format!("still running; the log:\n{}", fs::read_to_string(log).unwrap_or_default());
        wait_for(explain, || self.child.try_wait().unwrap())
    }

    /// Stops the agent with SIGTERM, as systemd does.
    pub(crate) fn stop(mut self) {
        self.signal("-TERM");
        let status = self.wait_for_exit();
        assert!(status.success(), "{status}: {}", self.log());
    }

    /// Kills the agent with SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.agent_node.path("log")).unwrap_or_default()
    }

    /// Requests an HTTP path. Returns the status code and the body.
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        let log = self.log();
        let address = log.lines().rev().find_map(|line| line.split("address=").nth(1)).unwrap();
        let mut stream = TcpStream::connect(address.trim()).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// Resident set size of the agent process.
    pub(crate) fn rss_bytes(&self) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() << 10
    }
}

impl Drop for Agent<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The open finding with this code.
pub(crate) fn find(status: &Value, code: &str) -> Option<Value> {
    let findings = status["findings"].as_array()?;
    findings.iter().map(|entry| &entry["finding"]).find(|finding| finding["code"] == code).cloned()
}

/// Reports that a test cannot run here. With `CI=true`, the test fails.
pub(crate) fn skipped(why: &str) {
    let on_ci = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(!on_ci, "{why}");
    eprintln!("SKIPPED: {why}");
}

/// Whether this process runs as root. File permissions do not apply to root.
pub(crate) fn is_root() -> bool {
    File::open("/proc/self/status").is_ok_and(|mut file| {
        let mut text = String::new();
        file.read_to_string(&mut text).is_ok() && text.contains("\nUid:\t0\t")
    })
}
