//! A child that a test asks itself, and a watch that runs.

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

/// The command of a child.
pub(crate) fn command(library: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farrier"));
    command.args(["probe", "watch", "--library"]).arg(library);
    command
}

pub(crate) fn library(world: &TestNode) -> PathBuf {
    world.path().join("lib/libnvidia-ml.so.1")
}

/// A child that does not outlive its test.
pub(crate) struct Asked {
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

/// What one GPU said: a number, `absent`, or why not, by the name of the signal. Links as `link3/link.active`.
pub(crate) type Said = BTreeMap<String, String>;

/// An answer by GPU.
pub(crate) struct Answer {
    pub(crate) json: Value,
    pub(crate) gpus: Vec<Said>,
}

impl Asked {
    pub(crate) fn of(world: &TestNode) -> Self {
        let mut child = command(&library(world))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let requests = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, requests, answers }
    }

    pub(crate) fn ask(&mut self, request: &str) -> Answer {
        writeln!(self.requests.as_mut().unwrap(), "{request}").unwrap();
        let mut line = String::new();
        assert!(self.answers.read_line(&mut line).unwrap() > 0, "no answer to `{request}`");
        let json: Value = serde_json::from_str(&line).unwrap();
        let gpus = json["gpus"].as_array().map(|gpus| gpus.iter().map(said).collect());
        Answer { gpus: gpus.unwrap_or_default(), json }
    }

    /// Memory that it holds.
    pub(crate) fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// Closes its input; it should end by itself.
    pub(crate) fn end(mut self) -> std::process::ExitStatus {
        self.requests = None;
        self.child.wait().unwrap()
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn said(gpu: &Value) -> Said {
    let mut said = Said::new();
    put(&gpu["own"], "", &mut said);
    for link in gpu["links"].as_array().into_iter().flatten() {
        put(&link[1], &format!("link{}/", link[0]), &mut said);
    }
    if let Some(why) = gpu.get("trouble") {
        said.insert("trouble".to_owned(), words(why));
    }
    said
}

/// Why something could not be read, in words.
fn words(err: &Value) -> String {
    serde_json::from_value::<ReadError>(err.clone()).unwrap().to_string()
}

fn put(values: &Value, prefix: &str, said: &mut Said) {
    let name = |number: &Value| {
        let number = usize::try_from(number.as_u64().unwrap()).unwrap();
        format!("{prefix}{}", Signal::ALL[number])
    };
    for value in values["v"].as_array().into_iter().flatten() {
        assert!(said.insert(name(&value[0]), value[1].as_f64().unwrap().to_string()).is_none());
    }
    for number in values["a"].as_array().into_iter().flatten() {
        assert!(said.insert(name(number), "absent".to_owned()).is_none());
    }
    for value in values["u"].as_array().into_iter().flatten() {
        assert!(said.insert(name(&value[0]), words(&value[1])).is_none());
    }
}

/// A watch in a thread of its own.
pub(crate) struct Watch {
    /// To have NVML left alone.
    pub(crate) hold: Arc<ProbePause>,
    stop: Arc<AtomicBool>,
    said: Receiver<ProbeEvent>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Watches the node. A GPU about which a call hung is left alone for a quarter of a minute: long
    /// enough for the next child to start on a busy machine.
    pub(crate) fn of(world: &TestNode) -> Self {
        let library = library(world);
        let mut settings = WatchSettings::new(move || command(&library));
        settings.avoid = Duration::from_secs(15);
        settings.module = Some(world.path().join("root/sys/module/nvidia/initstate"));
        let hold = Arc::new(ProbePause::default());
        settings.pause = Some(Arc::clone(&hold));
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, said) = channel();
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            run(settings, &stopped, &mut |said| {
                let _ = sender.send(said);
            });
        });
        Self { hold, stop, said, thread: Some(thread) }
    }

    /// Waits until something is said that is wanted; gives it and all that was said before.
    pub(crate) fn until<T>(&self, wanted: impl Fn(&ProbeSaid) -> Option<T>) -> (T, Vec<ProbeSaid>) {
        let end = Instant::now() + TEST_TIMEOUT;
        let mut before = Vec::new();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let said = self.said.recv_timeout(left).unwrap_or_else(|_| panic!("only {before:#?}"));
            if let Some(found) = wanted(&said) {
                return (found, before);
            }
            before.push(said);
        }
    }

    /// Waits for a report that is wanted.
    pub(crate) fn report(&self, wanted: impl Fn(&ProbeReport) -> bool) -> ProbeReport {
        let found = self.until(|said| match said {
            ProbeEvent::Report(report) if wanted(report) => Some(report.clone()),
            _ => None,
        });
        found.0
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
