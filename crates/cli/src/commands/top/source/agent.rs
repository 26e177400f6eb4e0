//! The agent of this node, by its socket.

use std::path::PathBuf;

use farrier_agent::brain::Held;
use farrier_agent::status::{FindingStatus, GpuStatus, Status};
use farrier_facts::node::{ReadError, Reading};
use farrier_fleet::health::{FindingKind, GpuUuid, Signal, Subject};
use farrier_hardware::Root;
use jiff::Timestamp;

use super::host::Host;
use super::jobs;
use crate::commands::status::{self, QueryOutcome};
use crate::commands::top::now::{FindingNow, GpuNow, NodeNow, ProcessNow, Silence, Teller};

/// Asks the agent whenever it is told to.
pub(in crate::commands::top) struct Agent {
    socket: PathBuf,
    host: Host,
    last: NodeNow,
}

impl Agent {
    pub(in crate::commands::top) fn new(socket: PathBuf, root: PathBuf) -> Self {
        let last = NodeNow::new(Teller::Agent, Timestamp::now());
        Self { socket, host: Host::new(Root::unrecorded(root)), last }
    }

    /// What it says now; of one who does not answer, what it said last and since when it is silent.
    pub(in crate::commands::top) fn ask(&mut self) -> NodeNow {
        let asked = status::try_query(&self.socket);
        let now = Timestamp::now();
        let why = match asked {
            Ok(QueryOutcome::Answer(status)) => {
                self.last = of(&status, &mut self.host, now);
                return self.last.clone();
            }
            Ok(QueryOutcome::NotRunning) => format!("no agent is at `{}`", self.socket.display()),
            Ok(QueryOutcome::Unresponsive(how)) => {
                format!("the agent at `{}` {how}", self.socket.display())
            }
            Err(err) => format!("{err:#}"),
        };
        let last = if self.last.gpus.is_empty() { now } else { self.last.at };
        let since = self.last.silence.as_ref().map_or(last, |silence| silence.since);
        self.last.silence = Some(Silence {
            since,
            why,
            hint: Some("systemctl status farrier-agent; --nvml asks NVML itself".to_owned()),
        });
        self.last.verdict = None;
        self.last.findings = None;
        self.last.not_seen.clear();
        self.last.host = self.host.now();
        for gpu in &mut self.last.gpus {
            // What it said is not so any more.
            for reading in gpu.readings.values_mut() {
                *reading = Reading::Unreadable(ReadError::unavailable("the agent does not answer"));
            }
        }
        self.last.processes = None;
        self.last.jobs.clear();
        self.last = self.last.clone().judged();
        self.last.clone()
    }
}

fn of(status: &Status, host: &mut Host, now: Timestamp) -> NodeNow {
    let mut node = NodeNow::new(Teller::Agent, status.at.unwrap_or(now));
    node.node.clone_from(&status.node);
    node.verdict = Some(status.verdict);
    node.driver.clone_from(&status.driver);
    node.host = host.now();
    node.gpus = status.gpus.iter().map(gpu).collect();
    node.processes = processes(status, host);
    node.findings = Some(findings(status));
    node.jobs = jobs::of(&status.jobs, host);
    node.not_seen = status.not_seen.iter().map(|it| it.why.clone()).collect();
    node.judged()
}

fn gpu(told: &GpuStatus) -> GpuNow {
    let mut gpu = GpuNow::new(told.identity.clone());
    for (signal, reading) in [
        (Signal::GpuTemperature, &told.temperature_c),
        (Signal::GpuPower, &told.power_w),
        (Signal::GpuPowerLimit, &told.power_limit_w),
        (Signal::GpuUtilisation, &told.utilisation_ratio),
        (Signal::GpuMemoryUsed, &told.memory_used_bytes),
        (Signal::GpuMemoryTotal, &told.memory_total_bytes),
    ] {
        gpu.readings.insert(signal, reading.clone());
    }
    for (name, reading) in &told.readings {
        // A newer agent may know signals that we do not.
        if let Ok(signal) = name.parse() {
            gpu.readings.insert(signal, reading.clone());
        }
    }
    gpu.links.is_known = !told.readings.is_empty();
    gpu.links.up = told.links_up;
    gpu.links.down = told.links_down;
    gpu.links.bytes_per_s = told.links_bytes_per_s;
    gpu.worst = told.worst;
    // The agent has no use for these.
    let unasked = || Reading::Unreadable(ReadError::unavailable("the agent does not ask for it"));
    gpu.performance_state = unasked();
    gpu.fan_percent = unasked();
    gpu.compute_mode = unasked();
    gpu.display = unasked();
    gpu
}

/// All that hold a GPU; none where of one GPU it is not known.
fn processes(status: &Status, host: &mut Host) -> Option<Vec<ProcessNow>> {
    let mut processes = Vec::new();
    let mut is_known = status.gpus.is_empty();
    for gpu in &status.gpus {
        // Of a GPU that does not answer nobody lists them; those of the others are shown.
        if let Some(held) = &gpu.processes {
            is_known = true;
            processes.extend(held.iter().map(process));
        }
    }
    host.describe(&mut processes);
    jobs::name(&status.jobs, &mut processes);
    is_known.then_some(processes)
}

fn process(held: &Held) -> ProcessNow {
    ProcessNow {
        gpu: held.gpu.clone(),
        pid: held.pid,
        kind: None,
        instance: None,
        user: None,
        job: match (&held.kind, &held.name) {
            (Some(kind), Some(name)) => Some(match kind.as_str() {
                "slurm-job" => format!("Slurm job {name}"),
                "unit" => name.clone(),
                kind => format!("{kind} {name}"),
            }),
            _ => None,
        },
        command: held.command.clone(),
        memory_bytes: held.memory_bytes,
        sm_ratio: None,
        memory_ratio: None,
        cpu_ratio: None,
        host_memory_bytes: None,
        elapsed_s: None,
    }
}

/// Faults as the status has them, the worst first; advice is no news for one who looks on.
fn findings(status: &Status) -> Vec<FindingNow> {
    let faults = status.findings.iter().filter(|it| it.finding.kind == FindingKind::Fault);
    faults.map(|it| finding(it, status)).collect()
}

fn finding(it: &FindingStatus, status: &Status) -> FindingNow {
    FindingNow::of(&it.finding, on(&it.finding.subject, status))
}

fn on(subject: &Subject, status: &Status) -> String {
    let index = |uuid: &GpuUuid| {
        let found = status.gpus.iter().find(|gpu| gpu.identity.uuid == *uuid);
        found.map_or_else(|| uuid.0.clone(), |gpu| format!("GPU {}", gpu.identity.index))
    };
    match subject {
        Subject::Gpu(uuid) => index(uuid),
        Subject::Link { gpu, link } => format!("{} link {link}", index(gpu)),
        other => other.to_string(),
    }
}
