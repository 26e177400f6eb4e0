//! The agent's collectors and rule engine on a simulated node, in simulated time.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use farrier_agent::collect::check::{self, NodeCheck};
use farrier_agent::monitor::SkippedCheck;
use farrier_facts::FactSet;
use farrier_facts::decode::Decoder;
use farrier_facts::node::Reading;
use farrier_fleet::health::{
    Batch, Change, Engine, EngineSnapshot, EventSource, Finding, KernelEvent, Moment, Rules,
    Sample, Scope, Signal, StoredEvent, Subject,
};
use farrier_hardware::host::{Expectations, HostCollector};
use farrier_hardware::kmsg::{self, KernelLog, KmsgSettings};
use farrier_hardware::nvml::watch::{ProbeEvent, WatchSettings, Watcher};
use farrier_hardware::{Root, Tier};
use farrier_sim::NodeDir;
use jiff::Timestamp;

use crate::support::run;
use crate::test_node::TestNode;

/// A simulated node with its collectors and rule engine.
pub(crate) struct RuleCase {
    test_node: TestNode,
    node: NodeDir,
    facts: &'static FactSet,
    engine: Engine,
    watcher: Watcher,
    host: HostCollector,
    decoder: Decoder<'static>,
    kernel_after: Option<u64>,
    kernel_bytes: u64,
    lost_lines: u64,
    reads_kernel_log: bool,
    start_unix_ms: u64,
    /// Seconds since the node was created; `boot_s` counts since the last boot.
    elapsed_s: u64,
    boot_s: u64,
    boots: u32,
    stored_events: Vec<StoredEvent>,
    changes: Vec<Change>,
    /// The last injection, and when it was made.
    injection: Option<(String, u64)>,
    detections: Vec<Detection>,
    node_check: NodeCheck,
    skipped_checks: Vec<SkippedCheck>,
    /// When the step `fault` ran.
    fault_at: Option<Timestamp>,
}

/// A finding that opened after an injection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Detection {
    pub(crate) code: String,
    pub(crate) severity: String,
    pub(crate) action: String,
    /// The arguments of the last injection before the finding. `None` if the case has none.
    pub(crate) injection: Option<String>,
    /// Simulated time from that injection to the finding.
    pub(crate) after_s: u64,
}

impl RuleCase {
    pub(crate) fn new(sku: &str, efa: bool) -> Self {
        let mut args = vec!["--sku", sku, "--gpus", "4"];
        if efa {
            args.extend(["--efa", "2"]);
        }
        let test_node = TestNode::with_args(&args);
        let node = NodeDir::new(test_node.path());
        let start_unix_ms = node.node().unwrap().booted_unix_ms + 86_400_000;
        node.set_clock(start_unix_ms, |_| Some(start_unix_ms)).unwrap();
        let facts = FactSet::embedded();
        let (watcher, host) = start_collectors(&node);
        let node_check = NodeCheck::new(&node.path().join("root"), facts);
        let mut case = Self {
            engine: engine(facts),
            watcher,
            host,
            decoder: Decoder::new(&facts.xids),
            test_node,
            node,
            facts,
            kernel_after: None,
            kernel_bytes: 0,
            lost_lines: 0,
            reads_kernel_log: true,
            start_unix_ms,
            elapsed_s: 0,
            boot_s: 0,
            boots: 1,
            stored_events: Vec::new(),
            changes: Vec::new(),
            injection: None,
            detections: Vec::new(),
            node_check,
            skipped_checks: Vec::new(),
            fault_at: None,
        };
        case.advance(1);
        case
    }

    /// Stops the probe and returns the findings that opened, in order.
    pub(crate) fn end(self) -> Vec<Detection> {
        self.watcher.shutdown();
        self.detections
    }

    /// The open findings.
    pub(crate) fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.engine.findings()
    }

    /// Whether every rule and every check has the readings that it needs.
    pub(crate) fn has_full_coverage(&self) -> bool {
        self.skipped_checks.is_empty() && self.engine.coverage().gaps.is_empty()
    }

    /// The node's files and its NVML library.
    pub(crate) fn node_paths(&self) -> (PathBuf, PathBuf) {
        (self.node.path().join("root"), self.node.library_path())
    }

    /// When the step `fault` ran.
    pub(crate) fn fault_at(&self) -> Option<Timestamp> {
        self.fault_at
    }

    /// Runs the steps and returns the finding changes they caused.
    pub(crate) fn run_steps(&mut self, steps: &[String]) -> Result<Vec<Change>, String> {
        let mut at = 0;
        while at < steps.len() {
            let step = steps[at].as_str();
            if let Some(times) = step.strip_prefix("repeat ") {
                let times: u32 = number(times)?;
                let length = steps[at..]
                    .iter()
                    .position(|step| step == "end")
                    .ok_or("`repeat` without `end`")?;
                for _ in 0..times {
                    let changes = self.run_steps(&steps[at + 1..at + length])?;
                    self.changes.extend(changes);
                }
                at += length;
            } else {
                self.step(step)?;
            }
            at += 1;
        }
        Ok(std::mem::take(&mut self.changes))
    }

    fn step(&mut self, step: &str) -> Result<(), String> {
        let (verb, rest) = step.split_once(' ').unwrap_or((step, ""));
        match verb {
            "run" | "slow" => {
                let seconds: u64 = number(rest)?;
                // Long runs advance 10 s at a time, so only the fast tier is read less often.
                let stride = if verb == "slow" || seconds > 60 { 10 } else { 1 };
                for _ in 0..seconds.div_ceil(stride) {
                    self.advance(stride);
                }
            }
            "inject" => {
                self.injection = Some((rest.to_owned(), self.elapsed_s));
                let dir = self.test_node.dir();
                let arguments = split_words(rest);
                let mut args = vec!["simulate", "inject", &dir];
                args.extend(arguments.iter().map(String::as_str));
                let output = run(&args);
                if output.code != 0 {
                    return Err(format!("`{step}`: {}", output.stderr));
                }
            }
            "set" => {
                let (signal, value) = rest.split_once(' ').ok_or("`set SIGNAL VALUE`")?;
                let signal = Signal::from_str(signal).map_err(|err| err.to_string())?;
                let subject =
                    if signal.scope() == Scope::Agent { Subject::Agent } else { Subject::Node };
                // A counter needs a first sample of 0 to increase from.
                let before = Sample {
                    subject: subject.clone(),
                    signal,
                    reading: Reading::Value(0.0),
                    note: None,
                };
                if signal.behaviour() == farrier_fleet::health::Behaviour::Counter {
                    self.observe(&Batch { samples: vec![before], ..Batch::default() });
                }
                let reading = Reading::Value(number(value)?);
                self.observe(&Batch {
                    samples: vec![Sample { subject, signal, reading, note: None }],
                    ..Batch::default()
                });
                self.repeat_sample(signal, number(value)?);
            }
            "check" => {
                self.node_check.read_files();
                self.check();
            }
            "reboot" => self.reboot(),
            "fault" => self.fault_at = Some(self.now().wall),
            "deaf" => self.reads_kernel_log = false,
            "efa" => {}
            other => return Err(format!("unknown step `{other}`")),
        }
        Ok(())
    }

    /// Repeats an agent or node sample for two minutes, as if it were observed each second.
    fn repeat_sample(&mut self, signal: Signal, value: f64) {
        let subject = if signal.scope() == Scope::Agent { Subject::Agent } else { Subject::Node };
        for _ in 0..120 {
            self.elapsed_s += 1;
            self.boot_s += 1;
            let sample = Sample {
                subject: subject.clone(),
                signal,
                reading: Reading::Value(value),
                note: None,
            };
            self.observe(&Batch { samples: vec![sample], ..Batch::default() });
        }
    }

    fn now(&self) -> Moment {
        let wall_ms = self.start_unix_ms + self.elapsed_s * 1000;
        Moment {
            steady_ms: i64::try_from(self.boot_s).unwrap() * 1000,
            wall: Timestamp::from_millisecond(i64::try_from(wall_ms).unwrap()).unwrap(),
        }
    }

    /// Advances the clock and reads everything that is due.
    fn advance(&mut self, stride: u64) {
        let tiers = [(Tier::Fast, 1), (Tier::Medium, 10), (Tier::Slow, 60), (Tier::Rare, 3600)];
        let due: Vec<Tier> = tiers
            .into_iter()
            .filter(|(_, every)| {
                self.boot_s == 0 || (self.boot_s + stride) / every > self.boot_s / every
            })
            .map(|(tier, _)| tier)
            .collect();
        self.elapsed_s += stride;
        self.boot_s += stride;
        let now_unix_ms = self.start_unix_ms + self.elapsed_s * 1000;
        self.node.set_clock(now_unix_ms, |_| Some(now_unix_ms)).unwrap();
        let mut batch = Batch::default();
        let mut nvml = None;
        for message in self.watcher.run_until(Duration::from_secs(self.boot_s)) {
            match message {
                ProbeEvent::Report(report) => {
                    if let Some(inventory) = &report.inventory {
                        self.host.set_inventory(inventory);
                    }
                    nvml = report.node_check.or(nvml);
                    batch.inventory = report.inventory.or(batch.inventory);
                    batch.samples.extend(report.samples);
                }
                // The reports contain the same information.
                ProbeEvent::Refused { .. } | ProbeEvent::Hung { .. } | ProbeEvent::Recovered => {}
                other => panic!("{other:?}"),
            }
        }
        for tier in due {
            batch.samples.extend(self.host.read(tier));
        }
        self.read_kernel_log(&mut batch);
        self.observe(&batch);
        if let Some(nvml) = nvml {
            self.node_check.set_nvml(Some(Arc::from(nvml)));
            self.node_check.read_files();
            self.check();
        }
    }

    /// Evaluates the node check, like the agent after each slow reading of NVML.
    fn check(&mut self) {
        let (mut items, skipped) = self.node_check.evaluate();
        check::drop_reported(&mut items, self.engine.findings());
        self.skipped_checks = skipped;
        self.observe(&Batch { checks: Some(items), ..Batch::default() });
    }

    fn read_kernel_log(&mut self, batch: &mut Batch) {
        if !self.reads_kernel_log {
            return;
        }
        let bytes = std::fs::metadata(self.node.kernel_log_path()).unwrap().size();
        if std::mem::replace(&mut self.kernel_bytes, bytes) == bytes {
            return;
        }
        let settings = KmsgSettings::below(&self.node.path().join("root"), self.kernel_after);
        let stop = AtomicBool::new(false);
        let mut events = Vec::new();
        kmsg::run(&settings, &stop, &mut |event| {
            stop.store(event == KernelLog::CaughtUp, std::sync::atomic::Ordering::Relaxed);
            events.push(event);
        });
        let (now, boot) = (self.now(), self.boots.to_string());
        for event in events {
            match event {
                KernelLog::Record { seq, mut text, .. } => {
                    self.kernel_after = Some(seq);
                    text.push(b'\n');
                    let observed = |event| {
                        let line = String::from_utf8_lossy(&text).into_owned();
                        let source = EventSource::KernelLog { line };
                        KernelEvent { event, source, boot: boot.clone(), at: now }
                    };
                    self.decoder.feed(&text, |event| batch.kernel.push(observed(event)));
                    self.decoder.flush_pending(|event| batch.kernel.push(observed(event)));
                }
                KernelLog::Lost { lines } => self.lost_lines += lines,
                KernelLog::Unreadable { why } => panic!("{why}"),
                KernelLog::CaughtUp => {}
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "a few dozen lines")]
        let reading = Reading::Value(self.lost_lines as f64);
        let signal = Signal::AgentKernelLinesLost;
        batch.samples.push(Sample { subject: Subject::Agent, signal, reading, note: None });
    }

    fn observe(&mut self, batch: &Batch) {
        let decision = self.engine.observe(self.now(), batch);
        self.stored_events.extend(decision.events_to_store);
        self.note_detections(&decision.changes);
        self.changes.extend(decision.changes);
    }

    fn note_detections(&mut self, changes: &[Change]) {
        for change in changes {
            let Change::Opened(finding) = change else { continue };
            let injected_s = self.injection.as_ref().map_or(self.elapsed_s, |(_, at)| *at);
            self.detections.push(Detection {
                code: finding.code.clone(),
                severity: finding.severity.to_string(),
                action: finding.action.to_string(),
                injection: self.injection.as_ref().map(|(arguments, _)| arguments.clone()),
                after_s: self.elapsed_s - injected_s,
            });
        }
    }

    /// Reboots the node; the agent restores its saved state.
    fn reboot(&mut self) {
        let saved = EngineSnapshot {
            findings: self.engine.findings().cloned().collect(),
            stored_events: self.stored_events.clone(),
            boot: self.boots.to_string(),
            ..EngineSnapshot::default()
        };
        let (watcher, host) = start_collectors(&self.node);
        std::mem::replace(&mut self.watcher, watcher).shutdown();
        self.host = host;
        (self.boots, self.boot_s) = (self.boots + 1, 0);
        self.engine = engine(self.facts);
        let changes = self.engine.restore(saved, &self.boots.to_string(), self.now());
        self.changes.extend(changes);
        self.advance(1);
    }
}

fn engine(facts: &'static FactSet) -> Engine {
    Engine::new(Rules::embedded().unwrap(), facts)
}

fn start_collectors(node: &NodeDir) -> (Watcher, HostCollector) {
    let library: PathBuf = node.library_path();
    let watcher = Watcher::new(WatchSettings::new(move || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farrier"));
        command.args(["probe", "watch", "--library"]).arg(&library);
        command
    }));
    let root = Root::unrecorded(node.path().join("root"));
    (watcher, HostCollector::new(root, Expectations::default()))
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.trim().parse().map_err(|_| format!("`{text}` is not a number"))
}

/// Splits words like a shell, with quotes.
fn split_words(text: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for letter in text.chars() {
        match (quote, letter) {
            (None, '\'' | '"') => quote = Some(letter),
            (Some(open), _) if letter == open => quote = None,
            (None, ' ') => words.push(std::mem::take(&mut word)),
            _ => word.push(letter),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}
