//! A probe child driven by a test, and a running watch.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farrier_facts::node::ReadError;
use farrier_fleet::health::signal::Signal;
use farrier_hardware::nvml::watch::{ProbeEvent, ProbePause, ProbeReport, WatchSettings, run};
use serde_json::Value;

use crate::support::wait::TEST_TIMEOUT;
use crate::test_node::TestNode;

/// The command line of a probe child.
pub(crate) fn command(library: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farrier"));
    command.args(["probe", "watch", "--library"]).arg(library);
    command
}

pub(crate) fn library(node: &TestNode) -> PathBuf {
    node.path().join("lib/libnvidia-ml.so.1")
}

/// A probe child that is killed on drop.
pub(crate) struct ProbeChild {
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

/// Readings of one GPU by signal. A reading is a number, `absent`, or the error. Signals of links
/// have names such as `link3/link.active`.
pub(crate) type Readings = BTreeMap<String, String>;

/// An answer, with the readings by GPU.
pub(crate) struct ProbeAnswer {
    pub(crate) json: Value,
    pub(crate) gpus: Vec<Readings>,
}

impl ProbeChild {
    pub(crate) fn spawn(node: &TestNode) -> Self {
        let mut child = command(&library(node))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let requests = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, requests, answers }
    }

    pub(crate) fn ask(&mut self, request: &str) -> ProbeAnswer {
        writeln!(self.requests.as_mut().unwrap(), "{request}").unwrap();
        let mut line = String::new();
        assert!(self.answers.read_line(&mut line).unwrap() > 0, "no answer to `{request}`");
        let json: Value = serde_json::from_str(&line).unwrap();
        let gpus = json["gpus"].as_array().map(|gpus| gpus.iter().map(readings).collect());
        ProbeAnswer { gpus: gpus.unwrap_or_default(), json }
    }

    /// Resident memory of the child.
    pub(crate) fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// Closes the input of the child and waits for the child to exit.
    pub(crate) fn end(mut self) -> std::process::ExitStatus {
        self.requests = None;
        self.child.wait().unwrap()
    }
}

impl Drop for ProbeChild {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn readings(gpu: &Value) -> Readings {
    let mut readings = Readings::new();
    put(&gpu["own"], "", &mut readings);
    for link in gpu["links"].as_array().into_iter().flatten() {
        put(&link[1], &format!("link{}/", link[0]), &mut readings);
    }
    if let Some(why) = gpu.get("trouble") {
        readings.insert("trouble".to_owned(), describe_error(why));
    }
    readings
}

/// A read error as text.
fn describe_error(err: &Value) -> String {
    serde_json::from_value::<ReadError>(err.clone()).unwrap().to_string()
}

fn put(values: &Value, prefix: &str, readings: &mut Readings) {
    let name = |number: &Value| {
        let number = usize::try_from(number.as_u64().unwrap()).unwrap();
        format!("{prefix}{}", Signal::ALL[number])
    };
    for value in values["v"].as_array().into_iter().flatten() {
        let number = value[1].as_f64().unwrap().to_string();
        assert!(readings.insert(name(&value[0]), number).is_none());
    }
    for number in values["a"].as_array().into_iter().flatten() {
        assert!(readings.insert(name(number), "absent".to_owned()).is_none());
    }
    for value in values["u"].as_array().into_iter().flatten() {
        assert!(readings.insert(name(&value[0]), describe_error(&value[1])).is_none());
    }
}

/// A watch in a background thread.
pub(crate) struct TestWatch {
    /// Pauses the watch.
    pub(crate) hold: Arc<ProbePause>,
    stop: Arc<AtomicBool>,
    messages: Receiver<ProbeEvent>,
    thread: Option<JoinHandle<()>>,
}

impl TestWatch {
    /// Watches the node. After a hung call, its GPU is avoided for 15 s, so that the next child can
    /// start in this time even on a busy machine.
    pub(crate) fn spawn(node: &TestNode) -> Self {
        let library = library(node);
        let mut settings = WatchSettings::new(move || command(&library));
        settings.avoid = Duration::from_secs(15);
        settings.module = Some(node.path().join("root/sys/module/nvidia/initstate"));
        let hold = Arc::new(ProbePause::default());
        settings.pause = Some(Arc::clone(&hold));
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, messages) = channel();
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            run(settings, &stopped, &mut |message| {
                let _ = sender.send(message);
            });
        });
        Self { hold, stop, messages, thread: Some(thread) }
    }

    /// Waits for a message that `select` accepts. Returns the selected value and all messages
    /// before it.
    pub(crate) fn until<T>(
        &self,
        select: impl Fn(&ProbeEvent) -> Option<T>,
    ) -> (T, Vec<ProbeEvent>) {
        let end = Instant::now() + TEST_TIMEOUT;
        let mut before = Vec::new();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let message =
                self.messages.recv_timeout(left).unwrap_or_else(|_| panic!("only {before:#?}"));
            if let Some(selected) = select(&message) {
                return (selected, before);
            }
            before.push(message);
        }
    }

    /// Waits for a report that `accept` accepts.
    pub(crate) fn report(&self, accept: impl Fn(&ProbeReport) -> bool) -> ProbeReport {
        let selected = self.until(|message| match message {
            ProbeEvent::Report(report) if accept(report) => Some(report.clone()),
            _ => None,
        });
        selected.0
    }
}

impl Drop for TestWatch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
