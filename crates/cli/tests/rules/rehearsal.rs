//! The agent's collectors and engine on a simulated node, in a time that the test makes.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::str::FromStr;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use farrier_agent::collect::check;
use farrier_facts::FactSet;
use farrier_facts::decode::Decoder;
use farrier_facts::node::Reading;
use farrier_fleet::health::{
    Batch, Change, Engine, EventSource, KernelEvent, Moment, Remembered, Rules, Sample, Saved,
    Scope, Signal, Subject,
};
use farrier_hardware::host::{Expectations, HostCollector};
use farrier_hardware::kmsg::{self, KernelLog, KmsgSettings};
use farrier_hardware::nvml::watch::{ProbeEvent, WatchSettings, Watcher};
use farrier_hardware::{Root, Tier};
use farrier_sim::NodeDir;
use jiff::Timestamp;

use crate::support::run;
use crate::world::World;

/// A node and those who look at it.
pub(crate) struct Rehearsal {
    world: World,
    node: NodeDir,
    facts: &'static FactSet,
    engine: Engine,
    watcher: Watcher,
    host: HostCollector,
    decoder: Decoder<'static>,
    kernel_after: Option<u64>,
    kernel_bytes: u64,
    lost: u64,
    /// Whether the kernel log is read.
    hears: bool,
    begun_unix_ms: u64,
    /// Since the node was made, and since the last boot.
    elapsed_s: u64,
    boot_s: u64,
    boots: u32,
    remembered: Vec<Remembered>,
    changes: Vec<Change>,
}

impl Rehearsal {
    pub(crate) fn on(sku: &str, efa: bool) -> Self {
        let mut words = vec!["--sku", sku, "--gpus", "4"];
        if efa {
            words.extend(["--efa", "2"]);
        }
        let world = World::with(&words);
        let node = NodeDir::at(world.path());
        let begun_unix_ms = node.node().unwrap().booted_unix_ms + 86_400_000;
        node.set_clock(begun_unix_ms, |_| Some(begun_unix_ms)).unwrap();
        let facts = FactSet::embedded();
        let (watcher, host) = lookers(&node);
        let mut rehearsal = Self {
            engine: engine(facts),
            watcher,
            host,
            decoder: Decoder::new(&facts.xids),
            world,
            node,
            facts,
            kernel_after: None,
            kernel_bytes: 0,
            lost: 0,
            hears: true,
            begun_unix_ms,
            elapsed_s: 0,
            boot_s: 0,
            boots: 1,
            remembered: Vec::new(),
            changes: Vec::new(),
        };
        rehearsal.second(1);
        rehearsal
    }

    pub(crate) fn end(self) {
        self.watcher.shutdown();
    }

    /// Does the steps. What opened, changed and cleared meanwhile.
    pub(crate) fn perform(&mut self, steps: &[String]) -> Result<Vec<Change>, String> {
        let mut at = 0;
        while at < steps.len() {
            let step = steps[at].as_str();
            if let Some(times) = step.strip_prefix("repeat ") {
                let times: u32 = number(times)?;
                let length = steps[at..].iter().position(|step| step == "end").ok_or("no `end`")?;
                for _ in 0..times {
                    let changes = self.perform(&steps[at + 1..at + length])?;
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
                // Long times need not be lived second by second: every reading is there, only fewer of the fast ones.
                let stride = if verb == "slow" || seconds > 60 { 10 } else { 1 };
                for _ in 0..seconds.div_ceil(stride) {
                    self.second(stride);
                }
            }
            "inject" => {
                let dir = self.world.dir();
                let words = words(rest);
                let mut all = vec!["simulate", "inject", &dir];
                all.extend(words.iter().map(String::as_str));
                let ran = run(&all);
                if ran.code != 0 {
                    return Err(format!("`{step}`: {}", ran.stderr));
                }
            }
            "set" => {
                let (signal, value) = rest.split_once(' ').ok_or("`set SIGNAL VALUE`")?;
                let signal = Signal::from_str(signal).map_err(|err| err.to_string())?;
                let subject =
                    if signal.scope() == Scope::Agent { Subject::Agent } else { Subject::Node };
                // A counter stands at nought before it grows.
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
                self.hold(signal, number(value)?);
            }
            "check" => {
                let (items, _) = check::look(&self.node.path().join("root"), self.facts);
                self.observe(&Batch { checks: Some(items), ..Batch::default() });
            }
            "reboot" => self.reboot(),
            "deaf" => self.hears = false,
            "efa" => {}
            other => return Err(format!("there is no step `{other}`")),
        }
        Ok(())
    }

    /// A value of the agent's own holds for some minutes, as it would be observed again and again.
    fn hold(&mut self, signal: Signal, value: f64) {
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
        let wall_ms = self.begun_unix_ms + self.elapsed_s * 1000;
        Moment {
            steady_ms: i64::try_from(self.boot_s).unwrap() * 1000,
            wall: Timestamp::from_millisecond(i64::try_from(wall_ms).unwrap()).unwrap(),
        }
    }

    /// So many seconds later, everything that is due is read.
    fn second(&mut self, stride: u64) {
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
        let now_unix_ms = self.begun_unix_ms + self.elapsed_s * 1000;
        self.node.set_clock(now_unix_ms, |_| Some(now_unix_ms)).unwrap();
        let mut batch = Batch::default();
        for said in self.watcher.run_until(Duration::from_secs(self.boot_s)) {
            match said {
                ProbeEvent::Report(report) => {
                    if let Some(inventory) = &report.inventory {
                        self.host.set_inventory(inventory);
                    }
                    batch.inventory = report.inventory.or(batch.inventory);
                    batch.samples.extend(report.samples);
                }
                // What it says of the node it says in reports as well.
                ProbeEvent::Refused { .. } | ProbeEvent::Hung { .. } | ProbeEvent::Recovered => {}
                other => panic!("{other:?}"),
            }
        }
        for tier in due {
            batch.samples.extend(self.host.read(tier));
        }
        self.kernel(&mut batch);
        self.observe(&batch);
    }

    fn kernel(&mut self, batch: &mut Batch) {
        if !self.hears {
            return;
        }
        let bytes = std::fs::metadata(self.node.kernel_log_path()).unwrap().size();
        if std::mem::replace(&mut self.kernel_bytes, bytes) == bytes {
            return;
        }
        let settings = KmsgSettings::below(&self.node.path().join("root"), self.kernel_after);
        let stop = AtomicBool::new(false);
        let mut said = Vec::new();
        kmsg::run(&settings, &stop, &mut |it| {
            stop.store(it == KernelLog::CaughtUp, std::sync::atomic::Ordering::Relaxed);
            said.push(it);
        });
        let (now, boot) = (self.now(), self.boots.to_string());
        for it in said {
            match it {
                KernelLog::Record { seq, mut text, .. } => {
                    self.kernel_after = Some(seq);
                    text.push(b'\n');
                    let seen = |event| {
                        let line = String::from_utf8_lossy(&text).into_owned();
                        let source = EventSource::KernelLog { line };
                        KernelEvent { event, source, boot: boot.clone(), at: now }
                    };
                    self.decoder.feed(&text, |event| batch.kernel.push(seen(event)));
                    self.decoder.flush_pending(|event| batch.kernel.push(seen(event)));
                }
                KernelLog::Lost { lines } => self.lost += lines,
                KernelLog::Unreadable { why } => panic!("{why}"),
                KernelLog::CaughtUp => {}
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "some dozen lines")]
        let lost = Reading::Value(self.lost as f64);
        let signal = Signal::AgentKernelLinesLost;
        batch.samples.push(Sample { subject: Subject::Agent, signal, reading: lost, note: None });
    }

    fn observe(&mut self, batch: &Batch) {
        let decision = self.engine.observe(self.now(), batch);
        self.remembered.extend(decision.remembered);
        self.changes.extend(decision.changes);
    }

    /// The node starts anew, and the agent goes on from what it kept.
    fn reboot(&mut self) {
        let saved = Saved {
            findings: self.engine.findings().cloned().collect(),
            remembered: self.remembered.clone(),
            boot: self.boots.to_string(),
            ..Saved::default()
        };
        let (watcher, host) = lookers(&self.node);
        std::mem::replace(&mut self.watcher, watcher).shutdown();
        self.host = host;
        (self.boots, self.boot_s) = (self.boots + 1, 0);
        self.engine = engine(self.facts);
        let changes = self.engine.restore(saved, &self.boots.to_string(), self.now());
        self.changes.extend(changes);
        self.second(1);
    }
}

fn engine(facts: &'static FactSet) -> Engine {
    Engine::new(Rules::embedded().unwrap(), farrier_facts::xid::XidFacts::clone(&facts.xids))
}

fn lookers(node: &NodeDir) -> (Watcher, HostCollector) {
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
    text.trim().parse().map_err(|_| format!("`{text}` is no number"))
}

/// Words as a shell has them: quotes keep spaces.
fn words(text: &str) -> Vec<String> {
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
