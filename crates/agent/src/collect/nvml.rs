//! Collector for NVML. Calls run in a child process, so that a hang does not block the agent.

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

use super::{CollectorContext, SharedInventory, rss_bytes};
use crate::config::duration;
use crate::monitor::{
    Collector, CollectorMessage, CollectorReport, NvmlUnavailable, OwnedGpuProcess,
};

pub(super) fn run(context: &CollectorContext, inventory: &SharedInventory) {
    let config = &context.config;
    let library = match &config.nvml {
        Some(path) => path.clone().into_os_string(),
        None if config.is_live() => LIBRARY.into(),
        None => {
            let why = NvmlUnavailable::NoLibraryNamed;
            let _ = context.inbox.send(CollectorMessage::NvmlUnavailable { why });
            inventory.update(|state| state.settled = true);
            return;
        }
    };
    let program = context.program.clone();
    let mut settings = WatchSettings::new(move || {
        let mut command = Command::new(&program);
        command.args(["probe", "watch", "--library"]).arg(&library);
        command
    });
    settings.known.clone_from(&context.gpus);
    settings.deadline = duration(config.probe.deadline_s);
    settings.avoid = duration(config.probe.avoid_s);
    settings.pause = Some(Arc::clone(&context.probe_pause));
    settings.module = Some(config.root.join("sys/module/nvidia/initstate"));
    let mut owners = OwnerCache::new(Root::unrecorded(&config.root));
    watch::run(settings, &context.stop.flag, &mut |event| {
        let settled = match &event {
            ProbeEvent::Report(report) => report.inventory.is_some(),
            _ => true,
        };
        let Some(message) = message(event, inventory, &mut owners) else { return };
        if context.inbox.send(message).is_err() {
            context.stop.now();
        }
        // The flag is set only after the inventory is stored, so that the other collectors find the
        // GPUs.
        if settled {
            inventory.update(|state| state.settled = true);
        }
    });
}

fn message(
    event: ProbeEvent,
    inventory: &SharedInventory,
    owners: &mut OwnerCache,
) -> Option<CollectorMessage> {
    let why = match event {
        ProbeEvent::Report(report) => {
            return Some(CollectorMessage::Report(convert(report, inventory, owners)));
        }
        ProbeEvent::Recovered => return Some(CollectorMessage::NvmlRecovered),
        // This event is only for interactive displays.
        ProbeEvent::Waiting { .. } => return None,
        ProbeEvent::Hung { during, after, stuck } => {
            let after_s = (after + Duration::from_millis(500)).as_secs();
            NvmlUnavailable::Hung { during, after_s, stuck }
        }
        ProbeEvent::Died { why } => NvmlUnavailable::Died(why),
        ProbeEvent::NoLibrary { why } => NvmlUnavailable::NoLibrary(why),
        ProbeEvent::Refused { error } => NvmlUnavailable::Refused(error),
    };
    Some(CollectorMessage::NvmlUnavailable { why })
}

fn convert(
    report: ProbeReport,
    inventory: &SharedInventory,
    owners: &mut OwnerCache,
) -> CollectorReport {
    if let Some(gpus) = &report.inventory {
        inventory.update(|state| state.gpus.clone_from(gpus));
    }
    if let Some(processes) = &report.processes {
        let pids = processes.iter().map(|process| process.pid).collect();
        inventory.update(|state| state.pids = pids);
    }
    if let Some(nvml) = report.node_check {
        inventory.update(|state| state.node_check = Some(Arc::from(nvml)));
    }
    // `watch::run` also sends a report when its child process does not answer.
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
    CollectorReport {
        collector: answered.then_some(collector),
        inventory: report.inventory,
        samples: report.samples,
        processes: report.processes.map(|processes| owners.with_owners(&processes)),
        xids: report.xids,
        driver: report.driver,
        child_cpu_us: report.cpu_us,
        child_rss_bytes: (report.tier == Tier::Medium).then(children_rss_bytes).flatten(),
    }
}

/// Process owners. Each is read once per process, because an owner does not change while the
/// process lives, and because reading a process may hang if its threads are stuck in the driver.
/// The kernel reuses PIDs, so an entry is used only if the start time of the process is the same.
struct OwnerCache {
    root: Root,
    owners: BTreeMap<u32, (Option<u64>, Owner)>,
}

#[derive(Clone, Default)]
struct Owner {
    command: Option<String>,
    kind: Option<String>,
    name: Option<String>,
}

impl OwnerCache {
    fn new(root: Root) -> Self {
        Self { root, owners: BTreeMap::new() }
    }

    fn with_owners(&mut self, processes: &[NvmlProcess]) -> Vec<OwnedGpuProcess> {
        let pids: Vec<u32> = processes.iter().map(|process| process.pid).collect();
        self.owners.retain(|pid, _| pids.contains(pid));
        processes.iter().map(|process| self.with_owner(process)).collect()
    }

    fn with_owner(&mut self, process: &NvmlProcess) -> OwnedGpuProcess {
        let started = process_owner::start_time(&self.root, process.pid);
        let cached = self.owners.get(&process.pid).filter(|(before, _)| *before == started);
        let cached = cached.map(|(_, owner)| owner.clone());
        let owner = cached.unwrap_or_else(|| owner(&self.root, process.pid));
        self.owners.insert(process.pid, (started, owner.clone()));
        OwnedGpuProcess {
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
    let owner = process_owner::process_owner(root, pid);
    let (kind, name) = match owner.kind {
        OwnerKind::SlurmJob { id, .. } => (Some("slurm-job"), Some(id.to_string())),
        OwnerKind::Pod { uid, .. } => (Some("pod"), Some(uid)),
        OwnerKind::Container { id } => (Some("container"), Some(id)),
        OwnerKind::Unit { name } => (Some("unit"), Some(name)),
        OwnerKind::Unknown { .. } => (None, None),
    };
    Owner { command: owner.command.or(owner.name), kind: kind.map(str::to_owned), name }
}

/// Resident memory of the children of this thread. `None` if the kernel does not list them.
fn children_rss_bytes() -> Option<u64> {
    let pids = std::fs::read_to_string("/proc/thread-self/children").ok()?;
    let sizes = pids.split_whitespace().filter_map(|pid| rss_bytes(&format!("/proc/{pid}/status")));
    Some(sizes.sum())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use farrier_fleet::health::GpuUuid;
    use farrier_hardware::nvml::watch::ProcessKind;

    use super::*;

    #[test]
    fn the_owner_is_read_once_per_process_even_if_a_pid_is_reused() {
        let folder = tempfile::tempdir().unwrap();
        let proc = folder.path().join("proc/7");
        fs::create_dir_all(&proc).unwrap();
        let set_process = |command: &str, started: u64| {
            let stat = format!("7 (a) b) S 1 7 7 0 -1 0 0 0 0 0 12 8 0 0 20 0 1 0 {started} 0 0\n");
            fs::write(proc.join("stat"), stat).unwrap();
            fs::write(proc.join("cmdline"), command).unwrap();
        };
        let mut owners = OwnerCache::new(Root::unrecorded(folder.path()));
        let process = NvmlProcess {
            gpu: GpuUuid("GPU-0".to_owned()),
            pid: 7,
            kind: ProcessKind::Compute,
            used_bytes: Reading::Absent,
            gpu_instance: None,
        };
        let mut command = || owners.with_owners(std::slice::from_ref(&process)).remove(0).command;
        set_process("first", 100);
        assert_eq!(command().as_deref(), Some("first"));
        set_process("not read again", 100);
        assert_eq!(command().as_deref(), Some("first"));
        set_process("second", 101);
        assert_eq!(command().as_deref(), Some("second"));
    }
}
