//! `farrier orders` as a process: the order executor of an agent without a server.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};

use serde_json::{Value, json};

use crate::support::farrier;
use crate::support::wait::TEST_TIMEOUT;

/// Longer than any test runs.
const LEASE_S: i64 = 900;
const HOPELESS_LEASE_S: i64 = 15;

/// An order as sent by the server.
pub(crate) fn order(generation: u64, kind: Value, boot: Option<&str>) -> Value {
    order_until(generation, kind, boot, LEASE_S)
}

/// An order that cannot succeed. The executor retries until the lease ends. The lease is short, but
/// long enough for a first attempt on a busy machine.
pub(crate) fn hopeless_order(generation: u64, kind: Value, boot: Option<&str>) -> Value {
    order_until(generation, kind, boot, HOPELESS_LEASE_S)
}

fn order_until(generation: u64, kind: Value, boot: Option<&str>, lease_s: i64) -> Value {
    let until = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(lease_s);
    let reason = "critical gpu.xid (Xid 79) on GPU 1";
    let mut order = json!({
        "node": "node-1", "generation": generation, "lease_until": until, "reason": reason
    });
    order["kind"] = kind;
    if let Some(boot) = boot {
        order["boot"] = boot.into();
    }
    order
}

/// A running order executor, killed when the test ends.
pub(crate) struct OrdersProcess {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<Value>,
}

impl OrdersProcess {
    pub(crate) fn start(config: &Path, log: &Path, crash: Option<&str>) -> Self {
        Self::start_with(config, log, crash, &[])
    }

    pub(crate) fn start_with(
        config: &Path,
        log: &Path,
        crash: Option<&str>,
        environment: &[(&str, &str)],
    ) -> Self {
        let mut command = farrier(&["orders", "--config", config.to_str().unwrap()]);
        let log = std::fs::OpenOptions::new().append(true).create(true).open(log).unwrap();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        command.envs(environment.iter().copied());
        if let Some(crash) = crash {
            command.env("FARRIER_CRASH_AT", crash);
        }
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let line = serde_json::from_str(&line).unwrap();
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, input, lines }
    }

    /// Sends a line. Ignores write errors, because an earlier line may have crashed the process.
    pub(crate) fn send(&mut self, line: &Value) {
        if let Some(input) = &mut self.input {
            let _ = input.write_all(format!("{line}\n").as_bytes());
        }
    }

    /// The next line that the process prints. `None` if the process has ended.
    pub(crate) fn next_line(&self) -> Option<Value> {
        match self.lines.recv_timeout(TEST_TIMEOUT) {
            Ok(line) => Some(line),
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => None,
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                panic!("no output before the timeout")
            }
        }
    }

    /// Sends an order and returns its final status.
    pub(crate) fn run_order(&mut self, order: &Value) -> Value {
        self.send(&json!({ "order": order }));
        loop {
            let line = self.next_line().expect("the process has ended");
            let update = &line["order-status"];
            if update["generation"] == order["generation"] && update["status"] != "accepted" {
                return update["status"].clone();
            }
        }
    }

    /// Sends an order that must succeed and returns the evidence.
    pub(crate) fn done(&mut self, order: &Value) -> String {
        let status = self.run_order(order);
        let evidence = status["done"]["evidence"].as_str();
        evidence.unwrap_or_else(|| panic!("{order:#}: {status}")).to_owned()
    }

    /// Sends an order that must fail or be refused and returns the reason.
    pub(crate) fn fails(&mut self, order: &Value) -> String {
        let status = self.run_order(order);
        let reason = status["failed"]["reason"].as_str().or(status["refused"]["reason"].as_str());
        reason.unwrap_or_else(|| panic!("{order:#}: {status}")).to_owned()
    }

    /// The node's cordon state.
    pub(crate) fn cordon(&mut self) -> Value {
        self.send(&json!({ "cordon": {} }));
        loop {
            let line = self.next_line().expect("the process has ended");
            if let Some(cordon) = line.get("cordon") {
                return cordon.clone();
            }
        }
    }

    /// Closes the input and waits for the process to exit.
    pub(crate) fn wait_for_exit(&mut self) -> ExitStatus {
        self.input = None;
        self.child.wait().unwrap()
    }
}

impl Drop for OrdersProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
