//! Inspects the node: NVML in a child process, the node's files, and the agent's status.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use farrier_facts::FactSet;
use farrier_facts::check::Verdict;
use farrier_facts::node::{self, Area, Item, Nvml, NvmlDevice, NvmlReading, Reading};
use farrier_facts::text::first_sentence;
use farrier_fleet::fleet::decide::affects_service;
use farrier_fleet::fleet::order::VerificationLevel;
use farrier_fleet::health::{Finding, GpuUuid, Subject};
use farrier_hardware::python::PythonChoice;
use farrier_hardware::{Root, nvml, observe};
use jiff::{SignedDuration, Timestamp};

use super::actuator::{GpuHealth, GpuProcess, Inspector, VerificationReport};
use super::node_error::InspectorError;
use super::run_diag;
use crate::collect::check::today;
use crate::config::Config;
use crate::monitor::Collector;
use crate::status::Status;

/// Deadline of the NVML child process, the same as for `farrier check`.
const NVML_DEADLINE: Duration = Duration::from_secs(10);

/// The agent's status, or why it is unavailable.
pub type StatusSource = Box<dyn Fn() -> Result<Status, InspectorError> + Send + Sync>;

/// Inspector of a node that an agent monitors.
pub struct NodeInspector {
    root: PathBuf,
    nvml: Option<PathBuf>,
    cuda: Option<PathBuf>,
    /// Directory in which `farrier diag` stores the results of each GPU.
    history: PathBuf,
    gpus_expected: Option<u32>,
    is_live: bool,
    program: PathBuf,
    facts: &'static FactSet,
    status: StatusSource,
}

impl NodeInspector {
    /// Uses the paths of this configuration. `program` is the binary whose `probe nvml` calls NVML.
    pub fn new(
        config: &Config,
        program: PathBuf,
        facts: &'static FactSet,
        status: StatusSource,
    ) -> Self {
        Self {
            root: config.root.clone(),
            nvml: config.nvml.clone(),
            cuda: config.cuda.clone(),
            history: config.state_dir.join("diag"),
            gpus_expected: config.expect.gpus,
            is_live: config.is_live(),
            program,
            facts,
            status,
        }
    }

    fn read_nvml(&self) -> NvmlReading {
        let library = match &self.nvml {
            Some(path) => path.clone(),
            None if self.is_live => nvml::LIBRARY.into(),
            None => {
                let why =
                    "the agent monitors another root, and no NVML library is configured".to_owned();
                return NvmlReading::NotAsked { why };
            }
        };
        let mut command = Command::new(&self.program);
        command.args(["probe", "nvml", "--library"]).arg(library);
        nvml::probe(command, NVML_DEADLINE)
    }

    /// Evaluates the node's files and NVML in the same way as `farrier check`. Adds the items of
    /// one area to the report.
    fn check_node(&self, reading: &NvmlReading, area: Area, report: &mut VerificationReport) {
        let root = Root::unrecorded(&self.root);
        let observed = observe::observe(&root, reading.clone(), &PythonChoice::for_root(None));
        let check = node::evaluate(self.facts, &observed, today(), false);
        let mut passed = 0;
        for item in check.items.into_iter().filter(|item| item.monitoring.area == area) {
            match item.verdict {
                Verdict::Unknown => report.unknown.push(describe(&item)),
                Verdict::Blocked => report.failed.push(describe(&item)),
                Verdict::Caveat if item.monitoring.is_unfit => report.failed.push(describe(&item)),
                Verdict::Ok | Verdict::Caveat => passed += 1,
            }
        }
        if passed > 0 {
            let what = if area == Area::Gpus { "GPUs" } else { "driver, kernel and packages" };
            report.passed.push(format!("{passed} checks of {what} passed"));
        }
    }
}

impl Inspector for NodeInspector {
    fn gpu(&self, gpu: &GpuUuid) -> Result<GpuHealth, InspectorError> {
        let reading = self.read_nvml();
        let Some(nvml) = reading.answered() else {
            return Err(InspectorError::NvmlSilent(Box::new(reading)));
        };
        let status = (self.status)().ok();
        let mut gpus = status.iter().flat_map(|status| &status.gpus);
        let index = gpus.find(|listed| listed.identity.uuid == *gpu).map(|gpu| gpu.identity.index);
        gpu_health(nvml, gpu, index)
    }

    fn processes(&self, since: Timestamp) -> Result<Vec<GpuProcess>, InspectorError> {
        processes(&(self.status)()?, since)
    }

    fn blocking_finding(&self) -> Result<Option<String>, InspectorError> {
        let status = (self.status)()?;
        let mut findings = status.findings.iter().map(|open| &open.finding);
        let blocking = findings.find(|finding| affects_service(finding));
        Ok(blocking.map(|finding| format!("{} {}", finding.severity, finding.code)))
    }

    fn verify(&self, level: VerificationLevel, is_active: &dyn Fn() -> bool) -> VerificationReport {
        let mut report = VerificationReport::default();
        match level {
            VerificationLevel::V0 => self.check_node(&self.read_nvml(), Area::Node, &mut report),
            VerificationLevel::V1 => {
                let reading = self.read_nvml();
                // The agent's findings have the most information, so they come first.
                match (self.status)() {
                    Ok(status) => add_findings(&status, &mut report),
                    Err(err) => report.unknown.push(err.to_string()),
                }
                self.check_node(&reading, Area::Gpus, &mut report);
                check_gpu_count(
                    &reading,
                    (self.status)().ok().as_ref(),
                    self.gpus_expected,
                    &mut report,
                );
            }
            VerificationLevel::V2 => return self.run_diag(1, 0, is_active),
            VerificationLevel::V3 => return self.run_diag(2, 0, is_active),
        }
        report
    }

    fn run_diag(
        &self,
        level: u8,
        minutes: u32,
        is_active: &dyn Fn() -> bool,
    ) -> VerificationReport {
        let (nvml, cuda) = (self.nvml.as_deref(), self.cuda.as_deref());
        run_diag::run(&self.program, (level, minutes), &self.history, nvml, cuda, is_active)
    }
}

/// The first sentence of an item. `farrier check` on the node prints the remedy.
fn describe(item: &Item) -> String {
    format!("{} [{}]", first_sentence(&item.text), item.code)
}

/// The subject of a finding, by the name that operators use.
fn describe_subject(status: &Status, subject: &Subject) -> String {
    let known =
        subject.gpu().and_then(|uuid| status.gpus.iter().find(|gpu| gpu.identity.uuid == *uuid));
    let Some(gpu) = known.map(|gpu| &gpu.identity) else { return subject.to_string() };
    let at = gpu.pci.as_ref().map(|pci| format!(" at {pci}")).unwrap_or_default();
    match subject {
        Subject::Link { link, .. } => format!("link {link} of GPU {}{at}", gpu.index),
        _ => format!("GPU {}{at}", gpu.index),
    }
}

/// Adds the agent's open findings and coverage gaps.
fn add_findings(status: &Status, report: &mut VerificationReport) {
    if status.agent.is_none() {
        report.unknown.push("no agent monitors the node".to_owned());
    }
    let findings = status.findings.iter().map(|open| &open.finding);
    for finding in findings.filter(|finding| affects_service(finding)) {
        let detail = if finding.detail.is_empty() {
            String::new()
        } else {
            format!(" ({})", finding.detail)
        };
        let subject = describe_subject(status, &finding.subject);
        report.failed.push(format!("{} {}{detail} on {subject}", finding.severity, finding.code));
    }
    report
        .unknown
        .extend(status.coverage_gaps.iter().map(|gap| format!("{}: {}", gap.source, gap.reason)));
    let early = status.collectors.iter().filter(|collector| collector.age_s.is_none());
    report.unknown.extend(early.map(|collector| format!("no reading of {} yet", collector.name)));
    let gaps = status.rules_inactive.iter();
    report
        .unknown
        .extend(gaps.map(|(code, gap)| format!("rule {code} cannot run: {}", gap.reason)));
    if status.skipped_checks.is_none() {
        report.unknown.push("the node has not been checked yet".to_owned());
    }
    if report.failed.is_empty() && report.unknown.is_empty() {
        report.passed.push("no coverage gap and no finding that affects service".to_owned());
    }
}

/// Checks that NVML lists the GPUs that the agent knows, and as many as expected.
fn check_gpu_count(
    reading: &NvmlReading,
    status: Option<&Status>,
    expected: Option<u32>,
    report: &mut VerificationReport,
) {
    let Some(nvml) = reading.answered() else {
        // `check_node` also reports this. Reporting it here too ensures that the verification
        // cannot pass if `check_node` misses it.
        report.unknown.extend(reading.failure_reason());
        return;
    };
    let mut listed = Vec::new();
    for device in &nvml.devices {
        match &device.uuid {
            Reading::Value(uuid) => listed.push(uuid.as_str()),
            Reading::Absent => report.failed.push(format!("GPU {} has no UUID", device.index)),
            Reading::Unreadable(why) => {
                report
                    .failed
                    .push(format!("failed to read the UUID of GPU {}: {why}", device.index));
            }
        }
    }
    if let Some(expected) = expected.filter(|expected| *expected as usize != listed.len()) {
        report.failed.push(format!("NVML lists {} GPUs, expected {expected}", listed.len()));
    }
    for gpu in status.iter().flat_map(|status| &status.gpus) {
        if !listed.contains(&gpu.identity.uuid.0.as_str()) {
            let text =
                format!("NVML does not list GPU {}, {}", gpu.identity.index, gpu.identity.uuid);
            report.failed.push(text);
        }
    }
    if listed.is_empty() {
        report.failed.push("NVML lists no GPU".to_owned());
    } else {
        report.passed.push(format!("NVML lists {} GPUs", listed.len()));
    }
}

/// State of a GPU. A GPU that waits for a reset may not return its UUID. It is then found by the
/// index under which the agent knows it.
fn gpu_health(nvml: &Nvml, gpu: &GpuUuid, index: Option<u32>) -> Result<GpuHealth, InspectorError> {
    let is_same = |device: &&NvmlDevice| match &device.uuid {
        Reading::Value(uuid) => *uuid == gpu.0,
        Reading::Absent | Reading::Unreadable(_) => index == Some(device.index),
    };
    let device = nvml.devices.iter().find(is_same);
    let device = device.ok_or_else(|| InspectorError::GpuNotListed { gpu: gpu.clone() })?;
    let mut reset_reasons = Vec::new();
    if let Reading::Unreadable(why) = &device.handle {
        reset_reasons.push(format!("NVML failed to open the GPU: {why}"));
    }
    match &device.recovery_action {
        Reading::Value(0) | Reading::Absent => {}
        Reading::Value(action) => {
            reset_reasons.push(format!("the driver requests recovery action {action}"));
        }
        Reading::Unreadable(why) => {
            reset_reasons.push(format!("failed to read the recovery action: {why}"));
        }
    }
    match &device.remapped_rows {
        Reading::Value(rows) if rows.pending => {
            reset_reasons.push("a row remapping is pending".to_owned());
        }
        Reading::Unreadable(why) => {
            reset_reasons.push(format!("failed to read the remapped rows: {why}"));
        }
        Reading::Value(_) | Reading::Absent => {}
    }
    let summary = "no recovery action and no row remapping is pending".to_owned();
    Ok(GpuHealth { reset_reasons, summary })
}

/// Findings on GPUs that cannot run work, even if a process still has the GPU open.
const DEAD: [&str; 2] = ["gpu.lost", "gpu.reset-required"];

/// GPU processes, from an agent reading newer than `since`.
fn processes(status: &Status, since: Timestamp) -> Result<Vec<GpuProcess>, InspectorError> {
    if status.agent.is_none() {
        return Err(InspectorError::GpusNotWatched);
    }
    if status.driver_loaded == Some(false) {
        return Ok(Vec::new());
    }
    let name = Collector::NvmlMedium.to_string();
    let age_s = status
        .collectors
        .iter()
        .find(|collector| collector.name == name)
        .and_then(|collector| collector.age_s);
    let read_at = status.at.zip(age_s).and_then(|(at, age_s)| {
        at.checked_sub(SignedDuration::try_from_secs_f64(age_s).ok()?).ok()
    });
    if read_at.is_none_or(|read_at| read_at <= since) {
        return Err(InspectorError::ProcessesOutdated);
    }
    let is_dead = |gpu: &GpuUuid| {
        let is_on_gpu =
            |finding: &Finding| matches!(&finding.subject, Subject::Gpu(uuid) if uuid == gpu);
        let dead = |finding: &Finding| DEAD.contains(&finding.code.as_str()) && is_on_gpu(finding);
        status.findings.iter().any(|open| dead(&open.finding))
    };
    let mut gpu_processes = Vec::new();
    for gpu in &status.gpus {
        let uuid = &gpu.identity.uuid;
        match &gpu.processes {
            Some(processes) => gpu_processes.extend(processes.iter().map(|process| GpuProcess {
                gpu: uuid.clone(),
                pid: process.pid,
                command: process.command.clone().unwrap_or_else(|| "unknown".to_owned()),
            })),
            None if is_dead(uuid) => {}
            None => {
                return Err(InspectorError::ProcessesUnknown { index: gpu.identity.index });
            }
        }
    }
    Ok(gpu_processes)
}

#[cfg(test)]
mod tests {
    use farrier_facts::node::ReadError;
    use farrier_fleet::health::GpuIdentity;

    use super::*;
    use crate::journal::{DurableState, Recovery};
    use crate::monitor::{BootInventory, CollectorState, CoverageLoss};
    use crate::status::{AgentStatus, FindingStatus, GpuStatus};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// Status at second 1000 of a node with one GPU, which the agent read five seconds earlier.
    fn status() -> Status {
        let folder = tempfile::tempdir().unwrap();
        let inventory = BootInventory::last(folder.path());
        let mut status =
            Status::from_journal(&DurableState::default(), &Recovery::default(), &inventory);
        let unreadable = || Reading::Unreadable(ReadError::NotReadSince);
        status.at = Some(at(1000));
        status.coverage_gaps.clear();
        status.skipped_checks = Some(Vec::new());
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
            temperature_c: unreadable(),
            power_w: unreadable(),
            power_limit_w: unreadable(),
            utilisation_ratio: unreadable(),
            memory_used_bytes: unreadable(),
            memory_total_bytes: unreadable(),
            processes: Some(Vec::new()),
            worst: None,
            readings: std::collections::BTreeMap::new(),
            stale: std::collections::BTreeMap::new(),
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
    fn gpu_processes_need_a_reading_newer_than_the_order() {
        let mut status = status();
        assert_eq!(processes(&status, at(994)).unwrap(), []);
        let err = processes(&status, at(995)).unwrap_err();
        assert!(matches!(err, InspectorError::ProcessesOutdated), "before the order: {err:?}");
        status.gpus[0].processes = None;
        let err = processes(&status, at(900)).unwrap_err();
        assert!(matches!(err, InspectorError::ProcessesUnknown { index: 0 }), "{err:?}");
        assert_eq!(err.to_string(), "the processes on GPU 0 are unknown");
        for code in DEAD {
            status.findings = vec![finding(code, "fatal", "reboot-node")];
            assert_eq!(processes(&status, at(900)).unwrap(), [], "{code}");
        }
        status.collectors[0].age_s = None;
        assert!(processes(&status, at(0)).is_err());
        status.driver_loaded = Some(false);
        assert_eq!(
            processes(&status, at(0)).unwrap(),
            [],
            "without a driver there is no GPU process"
        );
        status.agent = None;
        let err = processes(&status, at(0)).unwrap_err();
        assert!(matches!(err, InspectorError::GpusNotWatched), "{err:?}");
    }

    #[test]
    fn a_node_passes_only_without_coverage_gaps_and_blocking_findings() {
        let evaluate = |change: &dyn Fn(&mut Status)| {
            let (mut status, mut report) = (status(), VerificationReport::default());
            change(&mut status);
            add_findings(&status, &mut report);
            report
        };
        assert!(evaluate(&|_| ()).has_passed());
        let with = |severity: &'static str, action: &'static str| {
            evaluate(&|status| status.findings = vec![finding("gpu.xid", severity, action)])
        };
        assert!(with("warning", "investigate").has_passed());
        assert_eq!(with("critical", "investigate").failed, ["critical gpu.xid on GPU 0"]);
        assert!(!with("warning", "reset-gpu").has_passed());
        let gap = CoverageLoss { source: "kernel-log".to_owned(), reason: "no".to_owned() };
        assert_eq!(
            evaluate(&|status| status.coverage_gaps = vec![gap.clone()]).unknown,
            ["kernel-log: no"]
        );
        assert!(!evaluate(&|status| status.skipped_checks = None).has_passed());
        assert!(!evaluate(&|status| status.collectors[0].age_s = None).has_passed());
        assert!(!evaluate(&|status| status.agent = None).has_passed());
        assert!(!VerificationReport::default().has_passed(), "no check ran");
    }

    #[test]
    fn missing_unexpected_or_too_few_gpus_do_not_pass() {
        let check = |reading: &NvmlReading, expected| {
            let mut report = VerificationReport::default();
            super::check_gpu_count(reading, Some(&status()), expected, &mut report);
            report
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
        assert!(check(&nvml(&[device(Reading::Value("GPU-1".to_owned()))]), Some(1)).has_passed());
        let too_few = check(&nvml(&[device(Reading::Value("GPU-1".to_owned()))]), Some(2));
        assert_eq!(too_few.failed, ["NVML lists 1 GPUs, expected 2"]);
        let other = check(&nvml(&[device(Reading::Value("GPU-2".to_owned()))]), None);
        assert_eq!(other.failed, ["NVML does not list GPU 0, GPU-1"]);
        assert_eq!(
            check(&nvml(&[device(Reading::Unreadable(ReadError::unavailable("lost")))]), None)
                .failed
                .len(),
            3
        );
        let failed = NvmlReading::Died { why: "of old age".to_owned() };
        assert!(!check(&failed, None).unknown.is_empty());
    }

    #[test]
    fn reset_reasons_are_read_from_nvml() {
        let gpu = GpuUuid("GPU-1".to_owned());
        let health = |device: NvmlDevice, index| {
            let nvml = Nvml {
                driver_version: Reading::Absent,
                library_version: Reading::Absent,
                cuda_version: Reading::Absent,
                count: Reading::Absent,
                devices: vec![device],
            };
            gpu_health(&nvml, &gpu, index)
        };
        let healthy = device(Reading::Value("GPU-1".to_owned()));
        assert_eq!(health(healthy.clone(), None).unwrap().reset_reasons, [""; 0]);
        let needs_reset = NvmlDevice { recovery_action: Reading::Value(1), ..healthy.clone() };
        assert_eq!(
            health(needs_reset, None).unwrap().reset_reasons,
            ["the driver requests recovery action 1"]
        );
        let unreadable = NvmlDevice {
            recovery_action: Reading::Unreadable(ReadError::unavailable("no")),
            ..healthy
        };
        assert_eq!(health(unreadable, None).unwrap().reset_reasons.len(), 1);
        // The GPU does not return its UUID, but the agent knows its index.
        let without_uuid = NvmlDevice {
            handle: Reading::Unreadable(ReadError::unavailable("ERROR_RESET_REQUIRED")),
            ..device(Reading::Unreadable(ReadError::unavailable("ERROR_RESET_REQUIRED")))
        };
        assert_eq!(health(without_uuid.clone(), Some(0)).unwrap().reset_reasons.len(), 1);
        assert!(health(without_uuid.clone(), Some(1)).is_err());
        assert!(health(without_uuid, None).is_err());
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
            inforom_valid: None,
            application_clocks: None,
            now: None,
        }
    }
}
