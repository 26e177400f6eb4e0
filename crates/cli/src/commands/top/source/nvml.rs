//! NVML, asked by a child that may hang in our stead.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use farrier_facts::node::Reading;
use farrier_fleet::health::{GpuIdentity, GpuUuid, Sample, Signal, Subject};
use farrier_hardware::Root;
use farrier_hardware::nvml::watch::{
    self, DetailedSample, NvmlProcess, Pace, ProbeEvent, ProbeReport, ProcessKind, Tier,
    WatchSettings,
};
use jiff::Timestamp;

use super::host::Host;
use crate::commands::top::now::{FindingNow, GpuNow, Links, NodeNow, ProcessNow, Silence, Teller};
use crate::finder::Finder;

/// How NVML is asked.
pub(in crate::commands::top) struct Settings {
    pub(in crate::commands::top) library: OsString,
    pub(in crate::commands::top) root: PathBuf,
    pub(in crate::commands::top) interval: Duration,
}

/// Watches until `stop`; tells whenever there is something new.
pub(in crate::commands::top) fn run(
    settings: &Settings,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(NodeNow, Progress),
) {
    let library = settings.library.clone();
    let mut watched = WatchSettings::new(move || {
        // The very file that runs, whatever an upgrade has put in its place since.
        let mut command = Command::new("/proc/self/exe");
        command.args(["probe", "watch", "--library"]).arg(&library);
        command
    });
    watched.pace = Pace::Interactive(settings.interval);
    watched.module = Some(settings.root.join("sys/module/nvidia/initstate"));
    let mut host = Host::new(Root::unrecorded(&settings.root));
    let mut fold = Fold::new(node_name(&settings.root));
    let mut finder = Finder::new();
    watch::run(watched, stop, &mut |said| {
        let at = Timestamp::now();
        let is_fast = matches!(&said, ProbeEvent::Report(report) if report.tier == Tier::Fast);
        let is_news = is_fast || !matches!(said, ProbeEvent::Report(_));
        if is_fast {
            fold.now.host = host.now();
        }
        if let (Some(finder), ProbeEvent::Report(report)) = (&mut finder, &said) {
            finder.take(at, report.inventory.as_ref(), &report.samples, &report.xids);
            fold.now.findings = Some(findings(finder));
        }
        fold.take(said, at, &mut host);
        // Nobody looks while nobody answers.
        if fold.now.silence.is_some() {
            fold.now.findings = None;
        }
        // What else is read comes with the next.
        if is_news || !fold.progress.is_whole_told {
            fold.progress.is_whole_told = fold.progress.is_whole();
            tell(fold.now.clone().judged(), fold.progress);
        }
    });
}

/// Faults that are open, the worst first.
fn findings(finder: &Finder) -> Vec<FindingNow> {
    let index = |uuid: &GpuUuid| {
        let found = finder.inventory().iter().find(|it| it.uuid == *uuid);
        found.map_or_else(|| uuid.0.clone(), |it| format!("GPU {}", it.index))
    };
    let on = |subject: &Subject| match subject {
        Subject::Gpu(uuid) => index(uuid),
        Subject::Link { gpu, link } => format!("{} link {link}", index(gpu)),
        other => other.to_string(),
    };
    let mut findings: Vec<FindingNow> =
        finder.faults().map(|finding| FindingNow::of(finding, on(&finding.subject))).collect();
    findings.sort_by_key(|it| std::cmp::Reverse((it.severity, it.action)));
    findings
}

/// The node's name as the kernel has it.
pub(super) fn node_name(root: &std::path::Path) -> Option<String> {
    let root = Root::unrecorded(root);
    root.trimmed("/proc/sys/kernel/hostname").value().cloned().filter(|name| !name.is_empty())
}

/// How far reading has come, for those who look once.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::commands::top) struct Progress {
    tiers: [u32; 4],
    is_whole_told: bool,
    is_silent: bool,
}

impl Progress {
    /// Whether every tier was read, and twice what is measured between two reads.
    pub(in crate::commands::top) fn is_whole(self) -> bool {
        self.tiers.iter().all(|count| *count > 0) && self.tiers[Tier::Medium as usize] > 1
    }

    /// Whether nobody answers.
    pub(in crate::commands::top) fn is_silent(self) -> bool {
        self.is_silent
    }
}

/// What was told so far.
struct Fold {
    now: NodeNow,
    progress: Progress,
    /// By GPU and link: whether it is up, and how fast.
    links: Vec<(Subject, Option<bool>, Option<f64>)>,
}

impl Fold {
    fn new(node: Option<String>) -> Self {
        let now = NodeNow { node, ..NodeNow::new(Teller::Nvml, Timestamp::now()) };
        Self { now, progress: Progress::default(), links: Vec::new() }
    }

    fn take(&mut self, said: ProbeEvent, at: Timestamp, host: &mut Host) {
        let mut waited = Duration::ZERO;
        let (why, hint) = match said {
            ProbeEvent::Report(report) => return self.report(report, at, host),
            ProbeEvent::Recovered => {
                self.now.silence = None;
                self.progress.is_silent = false;
                return;
            }
            ProbeEvent::Hung { during, after, .. } => {
                waited = after;
                let why =
                    format!("a call has not returned for {:.0} s: {during}", after.as_secs_f64());
                (why, Some("farrier decode /dev/kmsg: an Xid says what to do"))
            }
            ProbeEvent::Died { why } => (format!("the child that asks NVML died: {why}"), None),
            ProbeEvent::NoLibrary { why } => {
                let hint =
                    "farrier check: no driver is installed, or --nvml PATH names its library";
                (format!("there is no NVML: {why}"), Some(hint))
            }
            ProbeEvent::Refused { error } => {
                (format!("NVML refused to start: {error}"), Some("farrier check"))
            }
        };
        self.progress.is_silent = true;
        // The host answers whatever the driver does.
        self.now.host = host.now();
        // From the last answer on; where there was none, from when the call was made that has not returned.
        let is_first = self.progress.tiers[Tier::Fast as usize] == 0;
        let last = if is_first { at - waited } else { self.now.at };
        let since = self.now.silence.as_ref().map_or(last, |silence| silence.since);
        self.now.silence = Some(Silence { since, why, hint: hint.map(str::to_owned) });
    }

    fn report(&mut self, report: ProbeReport, at: Timestamp, host: &mut Host) {
        if let Some(inventory) = report.inventory {
            self.list(inventory);
        }
        self.now.driver = report.driver.or_else(|| self.now.driver.take());
        let cuda = report.cuda.map(|it| format!("{}.{}", it / 1000, it % 1000 / 10));
        self.now.cuda = cuda.or_else(|| self.now.cuda.take());
        let answered = !report.samples.iter().any(is_silent);
        for sample in report.samples {
            self.sample(sample);
        }
        for look in &report.detailed {
            self.look(look);
        }
        if let Some(processes) = report.processes {
            let mut processes: Vec<ProcessNow> =
                processes.iter().map(|process| of(process, &report.detailed)).collect();
            host.describe(&mut processes);
            self.now.processes = Some(processes);
        }
        if !answered {
            // Who held the GPUs is no longer known.
            self.now.processes = None;
            return;
        }
        if report.tier == Tier::Fast {
            self.now.at = at;
        }
        self.progress.tiers[report.tier as usize] += 1;
        self.count_links();
    }

    fn list(&mut self, inventory: Vec<GpuIdentity>) {
        let mut before = std::mem::take(&mut self.now.gpus);
        for identity in inventory {
            let known = before.iter().position(|gpu| gpu.identity.uuid == identity.uuid);
            let gpu = match known {
                Some(place) => GpuNow { identity, ..before.swap_remove(place) },
                None => GpuNow::new(identity),
            };
            self.now.gpus.push(gpu);
        }
        self.now.gpus.sort_by_key(|gpu| gpu.identity.index);
    }

    fn sample(&mut self, sample: Sample) {
        match &sample.subject {
            Subject::Gpu(uuid) => {
                let found = self.now.gpus.iter_mut().find(|gpu| gpu.identity.uuid == *uuid);
                if let Some(gpu) = found {
                    gpu.readings.insert(sample.signal, sample.reading);
                }
            }
            Subject::Link { .. } => {
                let value = sample.reading.value().copied();
                let place = self.links.iter().position(|(link, ..)| *link == sample.subject);
                let place = place.unwrap_or_else(|| {
                    self.links.push((sample.subject.clone(), None, None));
                    self.links.len() - 1
                });
                match sample.signal {
                    Signal::LinkActive => self.links[place].1 = value.map(|it| it > 0.0),
                    Signal::LinkSpeed => self.links[place].2 = value,
                    _ => {}
                }
            }
            Subject::Node if sample.signal == Signal::NodeGpusNvml => {
                // GPUs that it lists and does not open have no name and stand in no row.
                let why = sample.reading.why_unreadable().map(ToString::to_string).or(sample.note);
                self.now.not_seen = why.into_iter().collect();
            }
            _ => {}
        }
    }

    fn count_links(&mut self) {
        let is_known = self.progress.tiers[Tier::Medium as usize] > 0;
        for gpu in &mut self.now.gpus {
            gpu.links = Links { is_known, bytes_per_s: Some(0.0), ..Links::default() };
            let own = self.links.iter().filter(|(link, ..)| link.gpu() == Some(&gpu.identity.uuid));
            for (_, is_up, mb_per_s) in own {
                match is_up {
                    Some(true) => {
                        gpu.links.up += 1;
                        let own = mb_per_s.map(|it| it * 1e6);
                        gpu.links.bytes_per_s =
                            gpu.links.bytes_per_s.zip(own).map(|(sum, own)| sum + own);
                    }
                    Some(false) => gpu.links.down += 1,
                    None => {}
                }
            }
        }
    }

    fn look(&mut self, look: &DetailedSample) {
        let found = self.now.gpus.iter_mut().find(|gpu| gpu.identity.uuid == look.gpu);
        if let Some(gpu) = found {
            gpu.performance_state = look.performance_state.clone();
            gpu.fan_percent = look.fan_percent.clone();
            gpu.compute_mode = look.compute_mode.clone();
            gpu.display = look.display_active.clone();
        }
    }
}

/// The parent speaks of a child that does not answer in the form of a report, too.
fn is_silent(sample: &Sample) -> bool {
    sample.signal == Signal::NodeNvmlAnswers && sample.reading == Reading::Value(0.0)
}

fn of(process: &NvmlProcess, looks: &[DetailedSample]) -> ProcessNow {
    let look = looks.iter().find(|look| look.gpu == process.gpu);
    let share = look.and_then(|look| look.shares.value()).map(|shares| {
        let share = shares.iter().find(|share| share.pid == process.pid);
        // Who had nothing is not listed.
        share.map_or((0.0, 0.0), |it| {
            (f64::from(it.sm_percent) * 0.01, f64::from(it.memory_percent) * 0.01)
        })
    });
    ProcessNow {
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
        }
    }

    fn sample(subject: Subject, signal: Signal, value: f64) -> Sample {
        Sample { subject, signal, reading: Reading::Value(value), note: None }
    }

    fn fold() -> (Fold, Host) {
        (Fold::new(None), Host::new(Root::unrecorded("/nonexistent")))
    }

    #[test]
    fn what_is_read_is_kept_until_it_is_read_anew() {
        let (mut fold, mut host) = fold();
        let gpu = || Subject::Gpu(GpuUuid("GPU-1".to_owned()));
        let at = Timestamp::UNIX_EPOCH;
        let power = vec![sample(gpu(), Signal::GpuPower, 300.0)];
        fold.take(ProbeEvent::Report(report(Tier::Fast, power)), at, &mut host);
        let limit = vec![sample(gpu(), Signal::GpuPowerLimit, 700.0)];
        fold.take(ProbeEvent::Report(report(Tier::Medium, limit)), at, &mut host);
        let now = &fold.now.gpus[0];
        assert_eq!(now.value(Signal::GpuPower), Some(300.0));
        assert_eq!(now.value(Signal::GpuPowerLimit), Some(700.0));
        assert_eq!(fold.now.cuda.as_deref(), Some("13.1"));
        assert!(!fold.progress.is_whole());
    }

    #[test]
    fn silence_is_told_from_when_it_began_until_it_is_over() {
        let (mut fold, mut host) = fold();
        let at = |second| Timestamp::from_second(second).unwrap();
        let refused = || ProbeEvent::Refused { error: NvmlStatus::DRIVER_NOT_LOADED };
        fold.take(refused(), at(10), &mut host);
        fold.take(refused(), at(20), &mut host);
        let silence = fold.now.silence.clone().unwrap();
        assert_eq!((silence.since, silence.hint.as_deref()), (at(10), Some("farrier check")));
        let answers = sample(Subject::Node, Signal::NodeNvmlAnswers, 0.0);
        fold.take(ProbeEvent::Report(report(Tier::Fast, vec![answers])), at(21), &mut host);
        assert_eq!(fold.now.processes, None, "who holds a GPU is not known any more");
        fold.take(ProbeEvent::Recovered, at(30), &mut host);
        assert_eq!(fold.now.silence, None);
    }

    #[test]
    fn a_call_that_never_returned_hangs_since_it_was_made() {
        let (mut fold, mut host) = fold();
        let at = |second| Timestamp::from_second(second).unwrap();
        let after = Duration::from_secs(30);
        let hung = || ProbeEvent::Hung { during: "nvmlInit_v2".to_owned(), after, stuck: 1 };
        fold.take(hung(), at(37), &mut host);
        assert_eq!(fold.now.silence.as_ref().unwrap().since, at(7));
        fold.take(hung(), at(70), &mut host);
        assert_eq!(fold.now.silence.as_ref().unwrap().since, at(7));
    }

    #[test]
    fn links_are_counted() {
        let (mut fold, mut host) = fold();
        let link = |link| Subject::Link { gpu: GpuUuid("GPU-1".to_owned()), link };
        let samples = vec![
            sample(link(0), Signal::LinkActive, 1.0),
            sample(link(0), Signal::LinkSpeed, 26_562.0),
            sample(link(1), Signal::LinkActive, 0.0),
        ];
        fold.take(
            ProbeEvent::Report(report(Tier::Medium, samples)),
            Timestamp::UNIX_EPOCH,
            &mut host,
        );
        let links = fold.now.gpus[0].links;
        assert_eq!((links.up, links.down), (1, 1));
        assert!((links.bytes_per_s.unwrap() - 26.562e9).abs() < 1.0);
        // One that does not tell what it carries: nobody knows what all of them do.
        let samples = vec![sample(link(1), Signal::LinkActive, 1.0)];
        let said = ProbeEvent::Report(report(Tier::Medium, samples));
        fold.take(said, Timestamp::UNIX_EPOCH, &mut host);
        let links = fold.now.gpus[0].links;
        assert_eq!((links.up, links.bytes_per_s), (2, None));
    }
}
