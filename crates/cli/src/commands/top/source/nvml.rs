//! NVML, queried by a child process that can be abandoned when a call hangs.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use farrier_facts::node::{ReadError, Reading};
use farrier_fleet::health::{GpuIdentity, GpuUuid, Sample, Signal, Subject};
use farrier_hardware::Root;
use farrier_hardware::nvml::watch::{
    self, DetailedSample, NvmlProcess, Pace, ProbeEvent, ProbeReport, ProcessKind, Tier,
    WatchSettings, reading_interval,
};
use farrier_hardware::pci;
use jiff::Timestamp;

use super::host::HostReader;
use crate::commands::top::freshness::Freshness;
use crate::commands::top::sample::{
    DataSource, FindingSample, GpuSample, NodeSample, NvlinkStatus, PendingCall, ProcessSample,
    SourceOutage,
};
use crate::local_engine::LocalEngine;

/// Signals that the engine derives from the facts.
const RATED_CLOCKS: [Signal; 3] =
    [Signal::GpuClockSmBoost, Signal::GpuClockMemoryRated, Signal::GpuClockApplicationLow];

/// How to query NVML.
pub(in crate::commands::top) struct NvmlSettings {
    pub(in crate::commands::top) library: OsString,
    pub(in crate::commands::top) root: PathBuf,
    pub(in crate::commands::top) interval: Duration,
}

/// Polls NVML until `stop` is set; calls `send` with every new sample.
pub(in crate::commands::top) fn run(
    settings: &NvmlSettings,
    stop: &AtomicBool,
    send: &mut dyn FnMut(NodeSample, ReadProgress),
) {
    let library = settings.library.clone();
    let mut watch_settings = WatchSettings::new(move || {
        // The running executable itself, even if an upgrade has replaced the file.
        let mut command = Command::new("/proc/self/exe");
        command.args(["probe", "watch", "--library"]).arg(&library);
        command
    });
    let pace = Pace::Interactive(settings.interval);
    watch_settings.pace = pace;
    watch_settings.module = Some(settings.root.join("sys/module/nvidia/initstate"));
    let mut host = HostReader::new(Root::unrecorded(&settings.root));
    let mut state = NvmlNodeState::new(node_name(&settings.root), pace);
    // NVML may take long to start, or may hang on one GPU. Until NVML answers, the list of GPUs
    // comes from the kernel.
    state.wait_for_first_answer(&settings.root);
    send(state.node.clone().with_limits(), state.progress);
    let mut engine = LocalEngine::new();
    watch::run(watch_settings, stop, &mut |message| {
        let at = Timestamp::now();
        let is_fast = matches!(&message, ProbeEvent::Report(report) if report.tier == Tier::Fast);
        let is_new = is_fast || !matches!(message, ProbeEvent::Report(_));
        if is_fast {
            state.node.host = host.sample();
        }
        if let (Some(engine), ProbeEvent::Report(report)) = (&mut engine, &message) {
            engine.observe(at, report.inventory.as_ref(), &report.samples, &report.xids);
            state.node.findings = Some(findings(engine));
        }
        state.apply(message, at, &mut host);
        if let Some(engine) = &engine {
            state.set_rated_clocks(engine);
        }
        // During an outage no rule is evaluated, so old findings are not shown.
        if state.node.outage.is_some() {
            state.node.findings = None;
        }
        // Once every group of signals was read, values of slower groups wait for the next sample of
        // the fastest group.
        if is_new || !state.progress.was_complete {
            state.progress.was_complete = state.progress.is_complete();
            send(state.node.clone().with_limits(), state.progress);
        }
    });
}

/// Open faults, worst first.
fn findings(engine: &LocalEngine) -> Vec<FindingSample> {
    let index = |uuid: &GpuUuid| {
        let gpu = engine.inventory().iter().find(|gpu| gpu.uuid == *uuid);
        gpu.map_or_else(|| uuid.0.clone(), |gpu| format!("GPU {}", gpu.index))
    };
    let subject_name = |subject: &Subject| match subject {
        Subject::Gpu(uuid) => index(uuid),
        Subject::Link { gpu, link } => format!("{} link {link}", index(gpu)),
        other => other.to_string(),
    };
    let mut findings: Vec<FindingSample> = engine
        .faults()
        .map(|finding| FindingSample::new(finding, subject_name(&finding.subject)))
        .collect();
    findings.sort_by_key(|finding| std::cmp::Reverse((finding.severity, finding.action)));
    findings
}

/// The kernel's host name.
pub(super) fn node_name(root: &std::path::Path) -> Option<String> {
    let root = Root::unrecorded(root);
    root.trimmed("/proc/sys/kernel/hostname").value().cloned().filter(|name| !name.is_empty())
}

/// How many reads completed, for `--once`.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::commands::top) struct ReadProgress {
    tiers: [u32; 4],
    was_complete: bool,
    is_unavailable: bool,
    hangs: u32,
}

impl ReadProgress {
    /// Whether every tier was read, and rates, which need two reads, were measured.
    pub(in crate::commands::top) fn is_complete(self) -> bool {
        self.tiers.iter().all(|count| *count > 0) && self.tiers[Tier::Medium as usize] > 1
    }

    /// Whether nothing can be read. After the first hang, another child reads the other GPUs.
    pub(in crate::commands::top) fn is_unavailable(self) -> bool {
        self.is_unavailable && self.hangs != 1
    }

    /// Whether an incomplete sample is due after `elapsed`. Each hang extends the timeout, because
    /// it delays the reads of the other GPUs. While NVML starts, no sample is due: the start has
    /// its own deadline, and ends with an answer or a hang.
    pub(in crate::commands::top) fn is_late(self, elapsed: Duration, timeout: Duration) -> bool {
        let has_started = self.hangs > 0 || self.tiers.iter().any(|count| *count > 0);
        has_started && elapsed > timeout * (1 + self.hangs)
    }
}

/// The node's state, accumulated over reports.
struct NvmlNodeState {
    node: NodeSample,
    pace: Pace,
    /// Whether NVML has listed its GPUs.
    has_inventory: bool,
    progress: ReadProgress,
    /// Per link: whether it is up, and its speed in MB/s.
    links: Vec<(Subject, Option<bool>, Option<f64>)>,
}

impl NvmlNodeState {
    fn new(name: Option<String>, pace: Pace) -> Self {
        let node = NodeSample { node: name, ..NodeSample::new(DataSource::Nvml, Timestamp::now()) };
        Self {
            node,
            pace,
            has_inventory: false,
            progress: ReadProgress::default(),
            links: Vec::new(),
        }
    }

    /// Lists the GPUs that the driver's kernel module serves, in the order of their addresses,
    /// which is NVML's order.
    fn wait_for_first_answer(&mut self, root: &std::path::Path) {
        self.node.pending_call = Some(PendingCall { since: self.node.at, call: None, gpu: None });
        let addresses = pci::gpus_of_driver(&Root::unrecorded(root));
        self.node.gpus = (0..).zip(addresses).map(|(index, pci)| unread_gpu(index, pci)).collect();
    }

    fn apply(&mut self, message: ProbeEvent, at: Timestamp, host: &mut HostReader) {
        let pending_gpu = self.node.pending_call.take().and_then(|pending| pending.gpu);
        let is_hang = matches!(message, ProbeEvent::Hung { .. });
        if is_hang {
            // The supervisor reports this only for GPUs that it has listed.
            let mut gpus = self.node.gpus.iter_mut();
            if let Some(gpu) = gpus.find(|gpu| Some(gpu.identity.index) == pending_gpu) {
                gpu.readings.insert(Signal::NodeCallsStuck, Reading::Value(1.0));
            }
        }
        let mut waited = Duration::ZERO;
        let (reason, hint) = match message {
            ProbeEvent::Report(report) => return self.apply_report(report, at, host),
            ProbeEvent::Waiting { during, gpu, after } => {
                let since = at - after;
                self.node.pending_call = Some(PendingCall { since, call: Some(during), gpu });
                self.node.host = host.sample();
                return;
            }
            ProbeEvent::Recovered => {
                self.node.outage = None;
                self.progress.is_unavailable = false;
                return;
            }
            ProbeEvent::Hung { during, after, .. } => {
                waited = after;
                self.progress.hangs += 1;
                let why =
                    format!("a call has not returned for {:.0} s: {during}", after.as_secs_f64());
                (why, Some("dmesg | farrier decode -: an Xid may explain it"))
            }
            ProbeEvent::Died { why } => (format!("the NVML child process died: {why}"), None),
            ProbeEvent::NoLibrary { why } => {
                let hint =
                    "farrier check: the driver may be missing; --nvml PATH names another library";
                (format!("no NVML library: {why}"), Some(hint))
            }
            ProbeEvent::Refused { error } => {
                (format!("NVML refused to start: {error}"), Some("farrier check"))
            }
        };
        self.progress.is_unavailable = true;
        if !is_hang && !self.has_inventory {
            // It is unknown which GPUs NVML would list.
            self.node.gpus.clear();
        }
        // The host answers even if the driver does not.
        self.node.host = host.sample();
        // The outage starts at the last answer. If there was no answer, the outage starts at the
        // time of the hung call.
        let is_first = self.progress.tiers[Tier::Fast as usize] == 0;
        let last = if is_first { at - waited } else { self.node.at };
        let since = self.node.outage.as_ref().map_or(last, |outage| outage.since);
        self.node.outage = Some(SourceOutage { since, reason, hint: hint.map(str::to_owned) });
    }

    fn apply_report(&mut self, report: ProbeReport, at: Timestamp, host: &mut HostReader) {
        if let Some(inventory) = report.inventory {
            self.set_inventory(inventory);
        }
        self.node.driver = report.driver.or_else(|| self.node.driver.take());
        let cuda = report.cuda.map(|cuda| format!("{}.{}", cuda / 1000, cuda % 1000 / 10));
        self.node.cuda = cuda.or_else(|| self.node.cuda.take());
        let answered = !report.samples.iter().any(is_unanswered);
        for sample in report.samples {
            self.apply_sample(sample, at);
        }
        for details in &report.detailed {
            self.apply_details(details, at);
        }
        if let Some(processes) = report.processes {
            let mut processes: Vec<ProcessSample> =
                processes.iter().map(|process| process_sample(process, &report.detailed)).collect();
            host.describe(&mut processes);
            self.node.processes = Some(processes);
            self.node.processes_freshness = Some(self.freshness(Tier::Medium, at));
        }
        if !answered {
            // The processes are unknown now.
            self.node.processes = None;
            return;
        }
        if report.tier == Tier::Fast {
            self.node.at = at;
        }
        self.progress.tiers[report.tier as usize] += 1;
        self.count_links();
        if report.tier == Tier::Medium {
            let freshness = self.freshness(Tier::Medium, at);
            for gpu in &mut self.node.gpus {
                gpu.links_freshness = Some(freshness);
            }
        }
    }

    /// Of a value that this tier has just read.
    fn freshness(&self, tier: Tier, at: Timestamp) -> Freshness {
        Freshness { read_at: at, interval: self.pace.period(tier) }
    }

    fn set_inventory(&mut self, inventory: Vec<GpuIdentity>) {
        self.has_inventory = true;
        let mut before = std::mem::take(&mut self.node.gpus);
        for identity in inventory {
            let known = before.iter().position(|gpu| gpu.identity.uuid == identity.uuid);
            let gpu = match known {
                Some(index) => GpuSample { identity, ..before.swap_remove(index) },
                None => GpuSample::new(identity),
            };
            self.node.gpus.push(gpu);
        }
        self.node.gpus.sort_by_key(|gpu| gpu.identity.index);
    }

    /// Adds what the facts say about the clocks of each GPU.
    fn set_rated_clocks(&mut self, engine: &LocalEngine) {
        for gpu in &mut self.node.gpus {
            for signal in RATED_CLOCKS {
                if let Some(reading) = engine.reading(&gpu.identity.uuid, signal) {
                    gpu.readings.insert(signal, reading.clone());
                }
            }
        }
    }

    fn apply_sample(&mut self, sample: Sample, at: Timestamp) {
        match &sample.subject {
            Subject::Gpu(uuid) => {
                let gpu = self.node.gpus.iter_mut().find(|gpu| gpu.identity.uuid == *uuid);
                if let Some(gpu) = gpu {
                    if let Some(interval) = reading_interval(sample.signal, self.pace) {
                        gpu.freshness.insert(sample.signal, Freshness { read_at: at, interval });
                    }
                    gpu.readings.insert(sample.signal, sample.reading);
                }
            }
            Subject::Link { .. } => {
                let value = sample.reading.value().copied();
                let index = self.links.iter().position(|(link, ..)| *link == sample.subject);
                let index = index.unwrap_or_else(|| {
                    self.links.push((sample.subject.clone(), None, None));
                    self.links.len() - 1
                });
                match sample.signal {
                    Signal::LinkActive => self.links[index].1 = value.map(|active| active > 0.0),
                    Signal::LinkSpeed => self.links[index].2 = value,
                    _ => {}
                }
            }
            Subject::Node if sample.signal == Signal::NodeGpusNvml => {
                // GPUs that NVML lists but cannot open have no row, so show them as a coverage gap.
                let why = sample.reading.why_unreadable().map(ToString::to_string).or(sample.note);
                self.node.coverage_gaps = why.into_iter().collect();
            }
            _ => {}
        }
    }

    fn count_links(&mut self) {
        let is_known = self.progress.tiers[Tier::Medium as usize] > 0;
        for gpu in &mut self.node.gpus {
            gpu.links =
                NvlinkStatus { is_known, bytes_per_s: Some(0.0), ..NvlinkStatus::default() };
            let own = self.links.iter().filter(|(link, ..)| link.gpu() == Some(&gpu.identity.uuid));
            for (_, is_up, mb_per_s) in own {
                match is_up {
                    Some(true) => {
                        gpu.links.up += 1;
                        let own = mb_per_s.map(|speed| speed * 1e6);
                        gpu.links.bytes_per_s =
                            gpu.links.bytes_per_s.zip(own).map(|(sum, own)| sum + own);
                    }
                    Some(false) => gpu.links.down += 1,
                    None => {}
                }
            }
        }
    }

    fn apply_details(&mut self, details: &DetailedSample, at: Timestamp) {
        let freshness = self.freshness(Tier::Medium, at);
        let gpu = self.node.gpus.iter_mut().find(|gpu| gpu.identity.uuid == details.gpu);
        if let Some(gpu) = gpu {
            gpu.performance_state = details.performance_state.clone();
            gpu.fan_percent = details.fan_percent.clone();
            gpu.compute_mode = details.compute_mode.clone();
            gpu.display = details.display_active.clone();
            gpu.details_freshness = Some(freshness);
        }
    }
}

/// A GPU of which only the PCI address is known.
fn unread_gpu(index: u32, pci: String) -> GpuSample {
    let uuid = GpuUuid(format!("unknown, at {pci}"));
    let mut gpu =
        GpuSample::new(GpuIdentity { uuid, index, minor: None, pci: Some(pci), name: None });
    for signal in [Signal::GpuClockReasons, Signal::GpuUtilisation] {
        gpu.readings.insert(signal, Reading::Unreadable(ReadError::NotReadYet));
    }
    gpu
}

/// Whether the sample is the report of the parent process that its child process does not answer.
fn is_unanswered(sample: &Sample) -> bool {
    sample.signal == Signal::NodeNvmlAnswers && sample.reading == Reading::Value(0.0)
}

fn process_sample(process: &NvmlProcess, all_details: &[DetailedSample]) -> ProcessSample {
    let details = all_details.iter().find(|details| details.gpu == process.gpu);
    let share = details.and_then(|details| details.shares.value()).map(|shares| {
        let share = shares.iter().find(|share| share.pid == process.pid);
        // NVML omits processes with a share of zero.
        share.map_or((0.0, 0.0), |share| {
            (f64::from(share.sm_percent) * 0.01, f64::from(share.memory_percent) * 0.01)
        })
    });
    ProcessSample {
        gpu: process.gpu.clone(),
        pid: process.pid,
        kind: Some(match process.kind {
            ProcessKind::Compute => 'C',
            ProcessKind::Graphics => 'G',
            ProcessKind::Mps => 'M',
        }),
        instance: process.gpu_instance,
        user: None,
        job: None,
        command: None,
        memory_bytes: process.used_bytes.value().copied(),
        sm_ratio: share.map(|(sm, _)| sm),
        memory_ratio: share.map(|(_, memory)| memory),
        cpu_ratio: None,
        host_memory_bytes: None,
        elapsed_s: None,
    }
}

#[cfg(test)]
mod tests {
    use farrier_facts::node::NvmlStatus;

    use super::*;
    use crate::commands::top::limit::LimitKind;

    const PACE: Pace = Pace::Interactive(Duration::from_secs(1));

    fn report(tier: Tier, samples: Vec<Sample>) -> ProbeReport {
        let identity = GpuIdentity {
            uuid: GpuUuid("GPU-1".to_owned()),
            index: 0,
            minor: None,
            pci: None,
            name: None,
        };
        ProbeReport {
            tier,
            inventory: Some(vec![identity]),
            samples,
            processes: Some(Vec::new()),
            xids: Vec::new(),
            cpu_us: 0,
            driver: Some("580.95.05".to_owned()),
            cuda: Some(13_010),
            detailed: Vec::new(),
            node_check: None,
        }
    }

    fn sample(subject: Subject, signal: Signal, value: f64) -> Sample {
        Sample { subject, signal, reading: Reading::Value(value), note: None }
    }

    fn state() -> (NvmlNodeState, HostReader) {
        (NvmlNodeState::new(None, PACE), HostReader::new(Root::unrecorded("/nonexistent")))
    }

    #[test]
    fn readings_persist_until_the_next_read() {
        let (mut state, mut host) = state();
        let gpu = || Subject::Gpu(GpuUuid("GPU-1".to_owned()));
        let at = Timestamp::UNIX_EPOCH;
        let power = vec![sample(gpu(), Signal::GpuPower, 300.0)];
        state.apply(ProbeEvent::Report(report(Tier::Fast, power)), at, &mut host);
        let limit = vec![sample(gpu(), Signal::GpuPowerLimit, 700.0)];
        state.apply(ProbeEvent::Report(report(Tier::Medium, limit)), at, &mut host);
        let gpu = &state.node.gpus[0];
        assert_eq!(gpu.value(Signal::GpuPower), Some(300.0));
        assert_eq!(gpu.value(Signal::GpuPowerLimit), Some(700.0));
        assert_eq!(state.node.cuda.as_deref(), Some("13.1"));
        assert!(!state.progress.is_complete());
    }

    #[test]
    fn a_reading_is_stale_when_its_next_read_is_overdue() {
        let (mut state, mut host) = state();
        let at = |second| Timestamp::from_second(second).unwrap();
        let gpu = || Subject::Gpu(GpuUuid("GPU-1".to_owned()));
        let fast = |value| vec![sample(gpu(), Signal::GpuPower, value)];
        let activity = vec![sample(gpu(), Signal::GpuSmActive, 0.0)];
        state.apply(ProbeEvent::Report(report(Tier::Medium, activity)), at(0), &mut host);
        state.apply(ProbeEvent::Report(report(Tier::Fast, fast(640.0))), at(6), &mut host);
        let stale = |now| state.node.gpus[0].stale_values(at(now)).into_keys().collect::<Vec<_>>();
        assert_eq!(stale(6), ["links"], "activity is read every four seconds");
        assert_eq!(stale(8), ["gpu.sm_active_ratio", "links"]);
        assert_eq!(stale(20), ["gpu.power_w", "gpu.sm_active_ratio", "links"]);
        let document = state.node.clone().with_stale_values(at(20));
        let json = serde_json::to_value(&document.gpus[0]).unwrap();
        assert_eq!(json["stale"]["gpu.sm_active_ratio"]["age_s"], 20);
        assert_eq!(json["stale"]["gpu.sm_active_ratio"]["interval_s"], 4);
    }

    #[test]
    fn gpus_have_rows_before_nvml_answers_and_a_hung_one_says_so() {
        let root = tempfile::tempdir().unwrap();
        for (device, class, driver) in [
            ("0000:1b:00.0", "0x030200", "nvidia"),
            ("0000:2b:00.0", "0x030200", "nvidia"),
            ("0000:3b:00.0", "0x068000", "nvidia"),
            ("0000:4b:00.0", "0x030200", "vfio-pci"),
        ] {
            let folder = root.path().join("sys/bus/pci/devices").join(device);
            std::fs::create_dir_all(&folder).unwrap();
            for (name, value) in [("vendor", "0x10de"), ("device", "0x2330"), ("class", class)] {
                std::fs::write(folder.join(name), value).unwrap();
            }
            let driver = format!("../../../../bus/pci/drivers/{driver}");
            std::os::unix::fs::symlink(driver, folder.join("driver")).unwrap();
        }
        let (mut state, mut host) = state();
        state.wait_for_first_answer(root.path());
        let at = |second| Timestamp::from_second(second).unwrap();
        let kinds = |state: &NvmlNodeState| -> Vec<LimitKind> {
            state.node.clone().with_limits().gpus.iter().map(|gpu| gpu.limit.kind).collect()
        };
        assert_eq!(kinds(&state), [LimitKind::Unknown, LimitKind::Unknown]);
        let (during, after) = ("nvmlDeviceGetName of GPU 1".to_owned(), Duration::from_secs(3));
        let waiting = ProbeEvent::Waiting { during: during.clone(), gpu: Some(1), after };
        state.apply(waiting, at(3), &mut host);
        assert_eq!(kinds(&state), [LimitKind::Unknown, LimitKind::Hung]);
        let after = Duration::from_secs(30);
        state.apply(ProbeEvent::Hung { during, after, stuck: 1 }, at(30), &mut host);
        assert_eq!(kinds(&state), [LimitKind::Unknown, LimitKind::Hung]);
        state.apply(ProbeEvent::Report(report(Tier::Fast, Vec::new())), at(31), &mut host);
        assert_eq!(state.node.gpus.len(), 1, "NVML's own list replaces that of the kernel");
    }

    #[test]
    fn an_outage_lasts_from_the_first_failure_to_the_next_answer() {
        let (mut state, mut host) = state();
        let at = |second| Timestamp::from_second(second).unwrap();
        let refused = || ProbeEvent::Refused { error: NvmlStatus::DRIVER_NOT_LOADED };
        state.apply(refused(), at(10), &mut host);
        state.apply(refused(), at(20), &mut host);
        let outage = state.node.outage.clone().unwrap();
        assert_eq!((outage.since, outage.hint.as_deref()), (at(10), Some("farrier check")));
        let answers = sample(Subject::Node, Signal::NodeNvmlAnswers, 0.0);
        state.apply(ProbeEvent::Report(report(Tier::Fast, vec![answers])), at(21), &mut host);
        assert_eq!(state.node.processes, None, "the processes are unknown");
        state.apply(ProbeEvent::Recovered, at(30), &mut host);
        assert_eq!(state.node.outage, None);
    }

    #[test]
    fn a_hung_call_counts_from_when_it_was_made() {
        let (mut state, mut host) = state();
        let at = |second| Timestamp::from_second(second).unwrap();
        let after = Duration::from_secs(30);
        let hung = || ProbeEvent::Hung { during: "nvmlInit_v2".to_owned(), after, stuck: 1 };
        state.apply(hung(), at(37), &mut host);
        assert_eq!(state.node.outage.as_ref().unwrap().since, at(7));
        state.apply(hung(), at(70), &mut host);
        assert_eq!(state.node.outage.as_ref().unwrap().since, at(7));
    }

    #[test]
    fn links_are_counted() {
        let (mut state, mut host) = state();
        let link = |link| Subject::Link { gpu: GpuUuid("GPU-1".to_owned()), link };
        let samples = vec![
            sample(link(0), Signal::LinkActive, 1.0),
            sample(link(0), Signal::LinkSpeed, 26_562.0),
            sample(link(1), Signal::LinkActive, 0.0),
        ];
        state.apply(
            ProbeEvent::Report(report(Tier::Medium, samples)),
            Timestamp::UNIX_EPOCH,
            &mut host,
        );
        let links = state.node.gpus[0].links;
        assert_eq!((links.up, links.down), (1, 1));
        assert!((links.bytes_per_s.unwrap() - 26.562e9).abs() < 1.0);
        // The total is unknown if a link does not report its speed.
        let samples = vec![sample(link(1), Signal::LinkActive, 1.0)];
        let message = ProbeEvent::Report(report(Tier::Medium, samples));
        state.apply(message, Timestamp::UNIX_EPOCH, &mut host);
        let links = state.node.gpus[0].links;
        assert_eq!((links.up, links.bytes_per_s), (2, None));
    }
}
