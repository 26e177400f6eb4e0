//! Looks at the node: NVML in a child, the node's files, and what the watching agent knows.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use farrier_facts::FactSet;
use farrier_facts::check::Verdict;
use farrier_facts::node::{self, Item, Nvml, NvmlDevice, NvmlReading, Reading};
use farrier_facts::text::first_sentence;
use farrier_fleet::fleet::decide::speaks_against;
use farrier_fleet::fleet::order::Rung;
use farrier_fleet::health::{Finding, GpuUuid, Subject};
use farrier_hardware::python::PythonChoice;
use farrier_hardware::{Root, nvml, observe};
use jiff::{SignedDuration, Timestamp};

use super::examine;
use super::hands::{Eyes, GpuSeen, Held, Proof};
use super::node_error::InspectorError;
use crate::brain::Collector;
use crate::collect::check::{COHERENCE, today};
use crate::config::Config;
use crate::status::Status;

/// How long NVML may take, as for `farrier check`.
const NVML_DEADLINE: Duration = Duration::from_secs(10);

/// What the watching agent knows, or why nobody can say.
pub type Known = Box<dyn Fn() -> Result<Status, InspectorError> + Send + Sync>;

/// The eyes of a node with an agent.
pub struct NodeEyes {
    root: PathBuf,
    nvml: Option<PathBuf>,
    cuda: Option<PathBuf>,
    /// Where what GPUs reached is kept.
    history: PathBuf,
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
            cuda: config.cuda.clone(),
            history: config.state_dir.join("diag"),
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
        nvml::probe(command, NVML_DEADLINE)
    }

    /// What the node's files and NVML come to, as in `farrier check`: coherence, or devices.
    fn checked(&self, reading: &NvmlReading, devices: bool, proof: &mut Proof) {
        let root = Root::unrecorded(&self.root);
        let seen = observe::observe(&root, reading.clone(), &PythonChoice::for_root(None));
        let report = node::evaluate(self.facts, &seen, today(), false);
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
    fn gpu(&self, gpu: &GpuUuid) -> Result<GpuSeen, InspectorError> {
        let reading = self.ask();
        let Some(nvml) = reading.answered() else {
            return Err(InspectorError::NvmlSilent(Box::new(reading)));
        };
        let status = (self.known)().ok();
        let known = status.iter().flat_map(|it| &it.gpus).find(|it| it.identity.uuid == *gpu);
        gpu_seen(nvml, gpu, known.map(|it| it.identity.index))
    }

    fn processes(&self, since: Timestamp) -> Result<Vec<Held>, InspectorError> {
        processes(&(self.known)()?, since)
    }

    fn finding_against(&self) -> Result<Option<String>, InspectorError> {
        let status = (self.known)()?;
        let mut found = status.findings.iter().map(|it| &it.finding);
        Ok(found.find(|it| speaks_against(it)).map(|it| format!("{} {}", it.severity, it.code)))
    }

    fn prove(&self, rung: Rung, wanted: &dyn Fn() -> bool) -> Proof {
        let mut proof = Proof::default();
        match rung {
            Rung::V0 => self.checked(&self.ask(), false, &mut proof),
            Rung::V1 => {
                let reading = self.ask();
                // What the agent found says most, and stands first.
                match (self.known)() {
                    Ok(status) => watched(&status, &mut proof),
                    Err(err) => proof.unknown.push(err.to_string()),
                }
                self.checked(&reading, true, &mut proof);
                counted(&reading, (self.known)().ok().as_ref(), self.gpus_expected, &mut proof);
            }
            Rung::V2 => return self.examine(1, 0, wanted),
            Rung::V3 => return self.examine(2, 0, wanted),
        }
        proof
    }

    fn examine(&self, level: u8, minutes: u32, wanted: &dyn Fn() -> bool) -> Proof {
        let (nvml, cuda) = (self.nvml.as_deref(), self.cuda.as_deref());
        examine::examined(&self.program, (level, minutes), &self.history, nvml, cuda, wanted)
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

/// The first sentence of an item: what is to be done about it the node's own check says.
fn said(item: &Item) -> String {
    format!("{} [{}]", first_sentence(&item.text), item.code)
}

/// What a finding is about, as people find it.
fn named(status: &Status, subject: &Subject) -> String {
    let known =
        subject.gpu().and_then(|gpu| status.gpus.iter().find(|it| it.identity.uuid == *gpu));
    let Some(gpu) = known.map(|it| &it.identity) else { return subject.to_string() };
    let at = gpu.pci.as_ref().map(|pci| format!(" at {pci}")).unwrap_or_default();
    match subject {
        Subject::Link { link, .. } => format!("link {link} of GPU {}{at}", gpu.index),
        _ => format!("GPU {}{at}", gpu.index),
    }
}

/// What the watching agent found, and whether it sees.
fn watched(status: &Status, proof: &mut Proof) {
    if status.agent.is_none() {
        proof.unknown.push("no agent watches the node".to_owned());
    }
    for found in status.findings.iter().map(|it| &it.finding).filter(|it| speaks_against(it)) {
        let detail =
            if found.detail.is_empty() { String::new() } else { format!(" ({})", found.detail) };
        let on = named(status, &found.subject);
        proof.failed.push(format!("{} {}{detail} on {on}", found.severity, found.code));
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
        proof.unknown.extend(reading.failure_reason());
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

/// How a GPU is. One that waits for a reset may not say who it is; the agent knows by which number it was.
fn gpu_seen(nvml: &Nvml, gpu: &GpuUuid, index: Option<u32>) -> Result<GpuSeen, InspectorError> {
    let is_it = |device: &&NvmlDevice| match &device.uuid {
        Reading::Value(uuid) => *uuid == gpu.0,
        Reading::Absent | Reading::Unreadable(_) => index == Some(device.index),
    };
    let device = nvml.devices.iter().find(is_it);
    let device = device.ok_or_else(|| InspectorError::GpuNotListed { gpu: gpu.clone() })?;
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

/// Findings of GPUs on which nothing runs any more, whoever still has them open.
const DEAD: [&str; 2] = ["gpu.lost", "gpu.reset-required"];

/// Who holds GPUs, by a look of the agent that is younger than `since`.
fn processes(status: &Status, since: Timestamp) -> Result<Vec<Held>, InspectorError> {
    if status.agent.is_none() {
        return Err(InspectorError::GpusNotWatched);
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
        return Err(InspectorError::ProcessesOutdated);
    }
    let is_dead = |gpu: &GpuUuid| {
        let of = |finding: &Finding| matches!(&finding.subject, Subject::Gpu(uuid) if uuid == gpu);
        let dead = |finding: &Finding| DEAD.contains(&finding.code.as_str()) && of(finding);
        status.findings.iter().any(|it| dead(&it.finding))
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
            None if is_dead(uuid) => {}
            None => {
                return Err(InspectorError::ProcessesUnknown { index: gpu.identity.index });
            }
        }
    }
    Ok(held)
}

#[cfg(test)]
mod tests {
    use farrier_facts::node::ReadError;
    use farrier_fleet::health::GpuIdentity;

    use super::*;
    use crate::brain::{Blindness, CollectorState, Inventory};
    use crate::journal::{Fold, Recovery};
    use crate::status::{AgentStatus, FindingStatus, GpuStatus};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// A node with one GPU that an agent looked at five seconds before 1000.
    fn status() -> Status {
        let folder = tempfile::tempdir().unwrap();
        let inventory = Inventory::last(folder.path());
        let mut status = Status::of_journal(&Fold::default(), &Recovery::default(), &inventory);
        let unread = || Reading::Unreadable(ReadError::NotReadSince);
        status.at = Some(at(1000));
        status.not_seen.clear();
        status.not_checked = Some(Vec::new());
        status.agent = Some(AgentStatus {
            version: String::new(),
            pid: 1,
            started: at(0),
            cpu_s: 0.0,
            cpu_ratio: 0.0,
            rss_bytes: None,
        });
        status.collectors = vec![CollectorState {
            name: Collector::NvmlMedium.to_string(),
            period_s: 10.0,
            age_s: Some(5.0),
            stalled: false,
        }];
        status.gpus = vec![GpuStatus {
            identity: GpuIdentity {
                uuid: GpuUuid("GPU-1".to_owned()),
                index: 0,
                minor: None,
                pci: None,
                name: None,
            },
            temperature_c: unread(),
            power_w: unread(),
            power_limit_w: unread(),
            utilisation_ratio: unread(),
            memory_used_bytes: unread(),
            memory_total_bytes: unread(),
            processes: Some(Vec::new()),
            worst: None,
            readings: std::collections::BTreeMap::new(),
            links_up: 0,
            links_down: 0,
            links_bytes_per_s: None,
        }];
        status
    }

    fn finding(code: &str, severity: &str, action: &str) -> FindingStatus {
        let text = format!(
            r#"{{"id":1,"code":"{code}","subject":{{"gpu":"GPU-1"}},"kind":"fault","severity":"{severity}","text":"","action":"{action}",
            "rule_action":"{action}","action_by":"rule","evidence":[],"first_seen":"2026-11-15T12:00:00Z","last_seen":"2026-11-15T12:00:00Z",
            "count":1,"clears":""}}"#
        );
        FindingStatus { durable: true, finding: serde_json::from_str(&text).unwrap() }
    }

    #[test]
    fn who_holds_a_gpu_is_known_only_from_a_look_that_is_young_enough() {
        let mut status = status();
        assert_eq!(processes(&status, at(994)).unwrap(), []);
        let err = processes(&status, at(995)).unwrap_err();
        assert!(matches!(err, InspectorError::ProcessesOutdated), "before the order: {err:?}");
        status.gpus[0].processes = None;
        let err = processes(&status, at(900)).unwrap_err();
        assert!(matches!(err, InspectorError::ProcessesUnknown { index: 0 }), "{err:?}");
        assert_eq!(err.to_string(), "who holds GPU 0 is not known");
        for code in DEAD {
            status.findings = vec![finding(code, "fatal", "reboot-node")];
            assert_eq!(processes(&status, at(900)).unwrap(), [], "{code}");
        }
        status.collectors[0].age_s = None;
        assert!(processes(&status, at(0)).is_err());
        status.driver_loaded = Some(false);
        assert_eq!(processes(&status, at(0)).unwrap(), [], "without a driver nothing holds a GPU");
        status.agent = None;
        let err = processes(&status, at(0)).unwrap_err();
        assert!(matches!(err, InspectorError::GpusNotWatched), "{err:?}");
    }

    #[test]
    fn a_node_passes_only_where_all_is_seen_and_nothing_speaks_against_it() {
        let judged = |change: &dyn Fn(&mut Status)| {
            let (mut status, mut proof) = (status(), Proof::default());
            change(&mut status);
            watched(&status, &mut proof);
            proof
        };
        assert!(judged(&|_| ()).has_passed());
        let with = |severity: &'static str, action: &'static str| {
            judged(&|status| status.findings = vec![finding("gpu.xid", severity, action)])
        };
        assert!(with("warning", "investigate").has_passed());
        assert_eq!(with("critical", "investigate").failed, ["critical gpu.xid on GPU 0"]);
        assert!(!with("warning", "reset-gpu").has_passed());
        let blind = Blindness { what: "kernel-log".to_owned(), why: "no".to_owned() };
        assert_eq!(
            judged(&|status| status.not_seen = vec![blind.clone()]).unknown,
            ["kernel-log: no"]
        );
        assert!(!judged(&|status| status.not_checked = None).has_passed());
        assert!(!judged(&|status| status.collectors[0].age_s = None).has_passed());
        assert!(!judged(&|status| status.agent = None).has_passed());
        assert!(!Proof::default().has_passed(), "nothing was seen");
    }

    #[test]
    fn gpus_that_are_missing_strange_or_too_few_do_not_pass() {
        let counted = |reading: &NvmlReading, expected| {
            let mut proof = Proof::default();
            super::counted(reading, Some(&status()), expected, &mut proof);
            proof
        };
        let nvml = |devices: &[NvmlDevice]| {
            NvmlReading::Answered(Nvml {
                driver_version: Reading::Absent,
                library_version: Reading::Absent,
                cuda_version: Reading::Absent,
                count: Reading::Absent,
                devices: devices.to_vec(),
            })
        };
        assert!(
            counted(&nvml(&[device(Reading::Value("GPU-1".to_owned()))]), Some(1)).has_passed()
        );
        let too_few = counted(&nvml(&[device(Reading::Value("GPU-1".to_owned()))]), Some(2));
        assert_eq!(too_few.failed, ["NVML lists 1 GPUs, and 2 are expected"]);
        let other = counted(&nvml(&[device(Reading::Value("GPU-2".to_owned()))]), None);
        assert_eq!(other.failed, ["NVML does not list GPU 0, GPU-1"]);
        assert_eq!(
            counted(&nvml(&[device(Reading::Unreadable(ReadError::unavailable("lost")))]), None)
                .failed
                .len(),
            3
        );
        let silent = NvmlReading::Died { why: "of old age".to_owned() };
        assert!(!counted(&silent, None).unknown.is_empty());
    }

    #[test]
    fn what_calls_for_a_reset_is_seen() {
        let gpu = GpuUuid("GPU-1".to_owned());
        let seen = |device: NvmlDevice, index| {
            let nvml = Nvml {
                driver_version: Reading::Absent,
                library_version: Reading::Absent,
                cuda_version: Reading::Absent,
                count: Reading::Absent,
                devices: vec![device],
            };
            gpu_seen(&nvml, &gpu, index)
        };
        let own = device(Reading::Value("GPU-1".to_owned()));
        assert_eq!(seen(own.clone(), None).unwrap().wrong, [""; 0]);
        let asks = NvmlDevice { recovery_action: Reading::Value(1), ..own.clone() };
        assert_eq!(seen(asks, None).unwrap().wrong, ["the driver asks for recovery action 1"]);
        let blind = NvmlDevice {
            recovery_action: Reading::Unreadable(ReadError::unavailable("no")),
            ..own
        };
        assert_eq!(seen(blind, None).unwrap().wrong.len(), 1);
        // It does not say who it is, and the agent knows its number.
        let mute = NvmlDevice {
            handle: Reading::Unreadable(ReadError::unavailable("ERROR_RESET_REQUIRED")),
            ..device(Reading::Unreadable(ReadError::unavailable("ERROR_RESET_REQUIRED")))
        };
        assert_eq!(seen(mute.clone(), Some(0)).unwrap().wrong.len(), 1);
        assert!(seen(mute.clone(), Some(1)).is_err());
        assert!(seen(mute, None).is_err());
    }

    fn device(uuid: Reading<String>) -> NvmlDevice {
        NvmlDevice {
            index: 0,
            handle: Reading::Value(()),
            name: Reading::Absent,
            uuid,
            pci_address: Reading::Absent,
            pci_device_id: Reading::Absent,
            vbios: Reading::Absent,
            gsp_firmware: Reading::Absent,
            compute_mode: Reading::Absent,
            persistence: Reading::Absent,
            ecc: Reading::Absent,
            mig: Reading::Absent,
            power: Reading::Absent,
            addressing_mode: Reading::Absent,
            fabric: Reading::Absent,
            remapped_rows: Reading::Absent,
            recovery_action: Reading::Absent,
            now: None,
        }
    }
}
