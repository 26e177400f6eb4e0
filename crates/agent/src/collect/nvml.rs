//! NVML, through the child that may hang in its stead.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use farrier_facts::node::Reading;
use farrier_fleet::health::Signal;
use farrier_hardware::Root;
use farrier_hardware::nvml::LIBRARY;
use farrier_hardware::nvml::watch::{
    self, NvmlProcess, ProbeEvent, ProbeReport, Tier, WatchSettings,
};
use farrier_hardware::process_owner::{self, OwnerKind};

use super::{Known, Surroundings, rss_bytes};
use crate::brain::{Collector, Held, NvmlBlindness, Report, Seen};
use crate::config::duration;

pub(super) fn run(surroundings: &Surroundings, known: &Known) {
    let config = &surroundings.config;
    let library = match &config.nvml {
        Some(path) => path.clone().into_os_string(),
        None if config.is_live() => LIBRARY.into(),
        None => {
            let why = NvmlBlindness::NoLibraryNamed;
            let _ = surroundings.inbox.send(Seen::NvmlBlind { why });
            known.change(|known| known.settled = true);
            return;
        }
    };
    let program = surroundings.program.clone();
    let mut settings = WatchSettings::new(move || {
        let mut command = Command::new(&program);
        command.args(["probe", "watch", "--library"]).arg(&library);
        command
    });
    settings.known.clone_from(&surroundings.gpus);
    settings.deadline = duration(config.probe.deadline_s);
    settings.avoid = duration(config.probe.avoid_s);
    settings.pause = Some(Arc::clone(&surroundings.hold));
    settings.module = Some(config.root.join("sys/module/nvidia/initstate"));
    let mut holders = Holders::new(Root::unrecorded(&config.root));
    watch::run(settings, &surroundings.stop.flag, &mut |said| {
        let settled = match &said {
            ProbeEvent::Report(report) => report.inventory.is_some(),
            _ => true,
        };
        if surroundings.inbox.send(translate(said, known, &mut holders)).is_err() {
            surroundings.stop.now();
        }
        // Only now: what is sent after this finds the GPUs known.
        if settled {
            known.change(|known| known.settled = true);
        }
    });
}

fn translate(said: ProbeEvent, known: &Known, holders: &mut Holders) -> Seen {
    let why = match said {
        ProbeEvent::Report(report) => return Seen::Report(take(report, known, holders)),
        ProbeEvent::Recovered => return Seen::NvmlBack,
        ProbeEvent::Hung { during, after, stuck } => {
            let after_s = (after + Duration::from_millis(500)).as_secs();
            NvmlBlindness::Hung { during, after_s, stuck }
        }
        ProbeEvent::Died { why } => NvmlBlindness::Died(why),
        ProbeEvent::NoLibrary { why } => NvmlBlindness::NoLibrary(why),
        ProbeEvent::Refused { error } => NvmlBlindness::Refused(error),
    };
    Seen::NvmlBlind { why }
}

fn take(report: ProbeReport, known: &Known, holders: &mut Holders) -> Report {
    if let Some(gpus) = &report.inventory {
        known.change(|known| known.gpus.clone_from(gpus));
    }
    if let Some(processes) = &report.processes {
        let pids = processes.iter().map(|process| process.pid).collect();
        known.change(|known| known.pids = pids);
    }
    // The parent speaks of a child that does not answer in the form of a report, too.
    let silent = |signal, reading: &Reading<f64>| {
        signal == Signal::NodeNvmlAnswers && *reading == Reading::Value(0.0)
    };
    let answered = !report.samples.iter().any(|sample| silent(sample.signal, &sample.reading));
    let collector = match report.tier {
        Tier::Fast => Collector::NvmlFast,
        Tier::Medium => Collector::NvmlMedium,
        Tier::Slow => Collector::NvmlSlow,
        Tier::Rare => Collector::NvmlRare,
    };
    Report {
        collector: answered.then_some(collector),
        inventory: report.inventory,
        samples: report.samples,
        processes: report.processes.map(|processes| holders.of(&processes)),
        xids: report.xids,
        driver: report.driver,
        child_cpu_us: report.cpu_us,
        child_rss_bytes: (report.tier == Tier::Medium).then(children_rss_bytes).flatten(),
    }
}

/// Who holds what, read once for each process: to whom it belongs does not change while it lives, and a look at a process
/// whose threads are stuck in the driver may hang. Numbers are given again; together with the start they are not.
struct Holders {
    root: Root,
    known: BTreeMap<u32, (Option<u64>, Owner)>,
}

#[derive(Clone, Default)]
struct Owner {
    command: Option<String>,
    kind: Option<String>,
    name: Option<String>,
}

impl Holders {
    fn new(root: Root) -> Self {
        Self { root, known: BTreeMap::new() }
    }

    fn of(&mut self, processes: &[NvmlProcess]) -> Vec<Held> {
        let pids: Vec<u32> = processes.iter().map(|process| process.pid).collect();
        self.known.retain(|pid, _| pids.contains(pid));
        processes.iter().map(|process| self.held(process)).collect()
    }

    fn held(&mut self, process: &NvmlProcess) -> Held {
        let started = process_owner::start_time(&self.root, process.pid);
        let known = self.known.get(&process.pid).filter(|(before, _)| *before == started);
        let known = known.map(|(_, owner)| owner.clone());
        let owner = known.unwrap_or_else(|| owner(&self.root, process.pid));
        self.known.insert(process.pid, (started, owner.clone()));
        Held {
            gpu: process.gpu.clone(),
            pid: process.pid,
            command: owner.command,
            memory_bytes: process.used_bytes.value().copied(),
            kind: owner.kind,
            name: owner.name,
        }
    }
}

fn owner(root: &Root, pid: u32) -> Owner {
    let holder = process_owner::process_owner(root, pid);
    let (kind, name) = match holder.kind {
        OwnerKind::SlurmJob { id, .. } => (Some("slurm-job"), Some(id.to_string())),
        OwnerKind::Pod { uid, .. } => (Some("pod"), Some(uid)),
        OwnerKind::Container { id } => (Some("container"), Some(id)),
        OwnerKind::Unit { name } => (Some("unit"), Some(name)),
        OwnerKind::Unknown { .. } => (None, None),
    };
    Owner { command: holder.command.or(holder.name), kind: kind.map(str::to_owned), name }
}

/// Memory of the children that this thread started; none where the kernel does not list them.
fn children_rss_bytes() -> Option<u64> {
    let pids = std::fs::read_to_string("/proc/thread-self/children").ok()?;
    let each = pids.split_whitespace().filter_map(|pid| rss_bytes(&format!("/proc/{pid}/status")));
    Some(each.sum())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use farrier_fleet::health::GpuUuid;
    use farrier_hardware::nvml::watch::ProcessKind;

    use super::*;

    #[test]
    fn a_process_is_looked_at_once_and_another_of_the_same_number_too() {
        let folder = tempfile::tempdir().unwrap();
        let proc = folder.path().join("proc/7");
        fs::create_dir_all(&proc).unwrap();
        let is = |command: &str, started: u64| {
            let stat = format!("7 (a) b) S 1 7 7 0 -1 0 0 0 0 0 12 8 0 0 20 0 1 0 {started} 0 0\n");
            fs::write(proc.join("stat"), stat).unwrap();
            fs::write(proc.join("cmdline"), command).unwrap();
        };
        let mut holders = Holders::new(Root::unrecorded(folder.path()));
        let process = NvmlProcess {
            gpu: GpuUuid("GPU-0".to_owned()),
            pid: 7,
            kind: ProcessKind::Compute,
            used_bytes: Reading::Absent,
            gpu_instance: None,
        };
        let mut command = || holders.of(std::slice::from_ref(&process)).remove(0).command;
        is("first", 100);
        assert_eq!(command().as_deref(), Some("first"));
        is("what a second look would show", 100);
        assert_eq!(command().as_deref(), Some("first"));
        is("second", 101);
        assert_eq!(command().as_deref(), Some("second"));
    }
}
