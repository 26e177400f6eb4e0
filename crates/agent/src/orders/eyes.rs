//! Looks at the node: NVML in a child, the node's files, and what the watching agent knows.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use farrier_facts::FactSet;
use farrier_facts::check::Verdict;
use farrier_facts::node::{self, Item, Nvml, NvmlReading, Reading};
use farrier_fleet::fleet::order::Rung;
use farrier_fleet::health::{Action, Finding, FindingKind, GpuUuid, Severity, Subject};
use farrier_hardware::python::PythonChoice;
use farrier_hardware::{Root, nvml, observe};
use jiff::{SignedDuration, Timestamp};

use super::hands::{Eyes, GpuSeen, Held, Proof};
use crate::brain::Collector;
use crate::collect::check::{COHERENCE, today};
use crate::config::Config;
use crate::status::Status;

/// How long NVML may take, as for `farrier check`.
const NVML_DEADLINE: Duration = Duration::from_secs(10);

/// What the watching agent knows, or why nobody can say.
pub type Known = Box<dyn Fn() -> Result<Status, String> + Send + Sync>;

/// The eyes of a node with an agent.
pub struct NodeEyes {
    root: PathBuf,
    nvml: Option<PathBuf>,
    gpus_expected: Option<u32>,
    is_live: bool,
    program: PathBuf,
    facts: &'static FactSet,
    known: Known,
}

impl NodeEyes {
    /// Looks where the agent of this configuration looks. `program` is the one whose `probe nvml` asks NVML.
    pub fn new(config: &Config, program: PathBuf, facts: &'static FactSet, known: Known) -> Self {
        Self {
            root: config.root.clone(),
            nvml: config.nvml.clone(),
            gpus_expected: config.expect.gpus,
            is_live: config.is_live(),
            program,
            facts,
            known,
        }
    }

    fn ask(&self) -> NvmlReading {
        let library = match &self.nvml {
            Some(path) => path.clone(),
            None if self.is_live => nvml::LIBRARY.into(),
            None => {
                let why = "another root is watched and no NVML library was named".to_owned();
                return NvmlReading::NotAsked { why };
            }
        };
        let mut command = Command::new(&self.program);
        command.args(["probe", "nvml", "--library"]).arg(library);
        nvml::ask(command, NVML_DEADLINE)
    }

    /// What the node's files and NVML come to, as in `farrier check`: coherence, or devices.
    fn checked(&self, reading: &NvmlReading, devices: bool, proof: &mut Proof) {
        let root = Root::unrecorded(&self.root);
        let seen = observe::observe(&root, reading.clone(), &PythonChoice::of_root(None));
        let report = node::judge(self.facts, &seen, today(), false);
        let mut right = 0;
        for item in report.items.into_iter().filter(|item| is_judged(item, devices)) {
            match item.verdict {
                Verdict::Unknown => proof.unknown.push(said(&item)),
                Verdict::Blocked => proof.failed.push(said(&item)),
                Verdict::Caveat if is_unfit(item.code) => proof.failed.push(said(&item)),
                Verdict::Ok | Verdict::Caveat => right += 1,
            }
        }
        if right > 0 {
            let what = if devices { "GPUs" } else { "driver, kernel and packages" };
            proof.passed.push(format!("{right} items of the node's check on {what} are right"));
        }
    }
}

impl Eyes for NodeEyes {
    fn gpu(&self, gpu: &GpuUuid) -> Result<GpuSeen, String> {
        let reading = self.ask();
        let silent = || reading.why_silent().unwrap_or_default();
        let nvml = reading.answered().ok_or_else(silent)?;
        gpu_seen(nvml, gpu)
    }

    fn processes(&self, since: Timestamp) -> Result<Vec<Held>, String> {
        processes(&(self.known)()?, since)
    }

    fn prove(&self, rung: Rung) -> Proof {
        let mut proof = Proof::default();
        match rung {
            Rung::V0 => self.checked(&self.ask(), false, &mut proof),
            Rung::V1 => {
                let reading = self.ask();
                self.checked(&reading, true, &mut proof);
                match (self.known)() {
                    Ok(status) => watched(&status, &mut proof),
                    Err(why) => proof.unknown.push(why),
                }
                counted(&reading, (self.known)().ok().as_ref(), self.gpus_expected, &mut proof);
            }
            Rung::V2 | Rung::V3 => {
                proof.is_final = true;
                proof.unknown.push("this agent has no test for it".to_owned());
            }
        }
        proof
    }
}

/// Items of the node's check that are about GPUs.
const DEVICES: [&str; 12] = [
    "compute-mode-",
    "ecc-",
    "fabric-state",
    "gpu",
    "mig-",
    "nvlink-",
    "nvml-",
    "persistence",
    "power-limit-",
    "recovery-",
    "row-remap-",
    "settings-",
];

/// What works now, and is not as a node in service should be.
const UNFIT: [&str; 6] = [
    "ecc-pending",
    "gpu-count",
    "gpu-models-mixed",
    "mig-pending",
    "power-limit-outside",
    "row-remap-pending",
];

fn is_judged(item: &Item, devices: bool) -> bool {
    // Jobs bring their own Python.
    let of_jobs = ["framework-", "python-", "cuda-"];
    let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| item.code.starts_with(prefix));
    !begins(&of_jobs) && begins(&DEVICES) == devices
}

fn is_unfit(code: &str) -> bool {
    COHERENCE.contains(&code) || UNFIT.contains(&code)
}

fn said(item: &Item) -> String {
    format!("{} [{}]", item.text, item.code)
}

/// What speaks against a node in the server's eyes as well.
fn weighs(finding: &Finding) -> bool {
    let grave = finding.severity >= Severity::Critical;
    let asks = finding.severity == Severity::Warning && finding.action >= Action::ResetGpu;
    finding.kind == FindingKind::Fault && (grave || asks)
}

/// What the watching agent found, and whether it sees.
fn watched(status: &Status, proof: &mut Proof) {
    if status.agent.is_none() {
        proof.unknown.push("no agent watches the node".to_owned());
    }
    for found in status.findings.iter().map(|it| &it.finding).filter(|it| weighs(it)) {
        let detail =
            if found.detail.is_empty() { String::new() } else { format!(" ({})", found.detail) };
        proof
            .failed
            .push(format!("{} {}{detail} on {}", found.severity, found.code, found.subject));
    }
    proof.unknown.extend(status.not_seen.iter().map(|it| format!("{}: {}", it.what, it.why)));
    let early = status.collectors.iter().filter(|it| it.age_s.is_none());
    proof.unknown.extend(early.map(|it| format!("{} has not looked yet", it.name)));
    let blind = status.rules_blind.iter();
    proof.unknown.extend(blind.map(|(code, blind)| format!("{code} sees nothing: {}", blind.why)));
    if status.not_checked.is_none() {
        proof.unknown.push("the node was not checked yet".to_owned());
    }
    if proof.failed.is_empty() && proof.unknown.is_empty() {
        proof
            .passed
            .push("the agent sees everything and has no finding against the node".to_owned());
    }
}

/// Whether the GPUs are those that the agent knows, and as many as there ought to be.
fn counted(
    reading: &NvmlReading,
    status: Option<&Status>,
    expected: Option<u32>,
    proof: &mut Proof,
) {
    let Some(nvml) = reading.answered() else {
        // The check says so as well; but it must not pass where it does not.
        proof.unknown.extend(reading.why_silent());
        return;
    };
    let mut listed = Vec::new();
    for device in &nvml.devices {
        match &device.uuid {
            Reading::Value(uuid) => listed.push(uuid.as_str()),
            Reading::Absent => proof.failed.push(format!("GPU {} has no UUID", device.index)),
            Reading::Unreadable(why) => {
                proof.failed.push(format!("who GPU {} is cannot be read: {why}", device.index));
            }
        }
    }
    if let Some(expected) = expected.filter(|expected| *expected as usize != listed.len()) {
        proof.failed.push(format!("NVML lists {} GPUs, and {expected} are expected", listed.len()));
    }
    for gpu in status.iter().flat_map(|it| &it.gpus) {
        if !listed.contains(&gpu.identity.uuid.0.as_str()) {
            let text =
                format!("NVML does not list GPU {}, {}", gpu.identity.index, gpu.identity.uuid);
            proof.failed.push(text);
        }
    }
    if listed.is_empty() {
        proof.failed.push("NVML lists no GPU".to_owned());
    } else {
        proof.passed.push(format!("NVML lists {} GPUs", listed.len()));
    }
}

fn gpu_seen(nvml: &Nvml, gpu: &GpuUuid) -> Result<GpuSeen, String> {
    let own = |uuid: &Reading<String>| uuid.value().is_some_and(|uuid| *uuid == gpu.0);
    let device = nvml.devices.iter().find(|device| own(&device.uuid));
    let device = device.ok_or_else(|| format!("NVML does not list {gpu}"))?;
    let mut wrong = Vec::new();
    if let Reading::Unreadable(why) = &device.handle {
        wrong.push(format!("NVML cannot open it: {why}"));
    }
    match &device.recovery_action {
        Reading::Value(0) | Reading::Absent => {}
        Reading::Value(action) => {
            wrong.push(format!("the driver asks for recovery action {action}"));
        }
        Reading::Unreadable(why) => {
            wrong.push(format!("its recovery action cannot be read: {why}"));
        }
    }
    match &device.remapped_rows {
        Reading::Value(rows) if rows.pending => {
            wrong.push("a row of its memory waits to be remapped".to_owned());
        }
        Reading::Unreadable(why) => wrong.push(format!("its memory rows cannot be read: {why}")),
        Reading::Value(_) | Reading::Absent => {}
    }
    let text = "NVML opens it, and neither the driver nor its memory asks for a reset".to_owned();
    Ok(GpuSeen { wrong, text })
}

/// Who holds GPUs, by a look of the agent that is younger than `since`.
fn processes(status: &Status, since: Timestamp) -> Result<Vec<Held>, String> {
    if status.agent.is_none() {
        return Err("no agent watches who holds the GPUs".to_owned());
    }
    if status.driver_loaded == Some(false) {
        return Ok(Vec::new());
    }
    let name = Collector::NvmlMedium.to_string();
    let age_s = status.collectors.iter().find(|it| it.name == name).and_then(|it| it.age_s);
    let looked = status.at.zip(age_s).and_then(|(at, age_s)| {
        at.checked_sub(SignedDuration::try_from_secs_f64(age_s).ok()?).ok()
    });
    if looked.is_none_or(|looked| looked <= since) {
        return Err("who holds the GPUs has not been looked at since".to_owned());
    }
    let is_lost = |gpu: &GpuUuid| {
        let of = |finding: &Finding| matches!(&finding.subject, Subject::Gpu(uuid) if uuid == gpu);
        status.findings.iter().any(|it| it.finding.code == "gpu.lost" && of(&it.finding))
    };
    let mut held = Vec::new();
    for gpu in &status.gpus {
        let uuid = &gpu.identity.uuid;
        match &gpu.processes {
            Some(processes) => held.extend(processes.iter().map(|it| Held {
                gpu: uuid.clone(),
                pid: it.pid,
                command: it.command.clone().unwrap_or_else(|| "unknown".to_owned()),
            })),
            // What ran on a GPU that has fallen off the bus runs no more.
            None if is_lost(uuid) => {}
            None => return Err(format!("who holds GPU {} is not known", gpu.identity.index)),
        }
    }
    Ok(held)
}
