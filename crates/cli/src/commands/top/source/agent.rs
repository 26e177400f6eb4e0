//! This node's agent, through its socket.

use std::path::PathBuf;

use farrier_agent::monitor::OwnedGpuProcess;
use farrier_agent::status::{FindingStatus, GpuStatus, Status};
use farrier_facts::node::{ReadError, Reading};
use farrier_fleet::health::{FindingKind, GpuUuid, Signal, Subject};
use farrier_hardware::Root;
use jiff::Timestamp;

use super::host::HostReader;
use super::jobs;
use crate::commands::status::{self, QueryOutcome};
use crate::commands::top::sample::{
    DataSource, FindingSample, GpuSample, NodeSample, ProcessSample, SourceOutage,
};

/// Queries the agent on demand.
pub(in crate::commands::top) struct AgentSource {
    socket: PathBuf,
    host: HostReader,
    last: NodeSample,
}

impl AgentSource {
    pub(in crate::commands::top) fn new(socket: PathBuf, root: PathBuf) -> Self {
        let last = NodeSample::new(DataSource::Agent, Timestamp::now());
        Self { socket, host: HostReader::new(Root::unrecorded(root)), last }
    }

    /// The current sample. If the agent does not answer, the last sample with the outage and with
    /// unreadable values.
    pub(in crate::commands::top) fn sample(&mut self) -> NodeSample {
        let outcome = status::try_query(&self.socket);
        let now = Timestamp::now();
        let reason = match outcome {
            Ok(QueryOutcome::Answer(status)) => {
                self.last = node_sample(&status, &mut self.host, now);
                return self.last.clone();
            }
            Ok(QueryOutcome::NotRunning) => format!("no agent at `{}`", self.socket.display()),
            Ok(QueryOutcome::Unresponsive(symptom)) => {
                format!("the agent at `{}` {symptom}", self.socket.display())
            }
            Err(err) => format!("{err:#}"),
        };
        let last = if self.last.gpus.is_empty() { now } else { self.last.at };
        let since = self.last.outage.as_ref().map_or(last, |outage| outage.since);
        self.last.outage = Some(SourceOutage {
            since,
            reason,
            hint: Some("systemctl status farrier-agent; or query NVML with --nvml".to_owned()),
        });
        self.last.verdict = None;
        self.last.findings = None;
        self.last.coverage_gaps.clear();
        self.last.host = self.host.sample();
        for gpu in &mut self.last.gpus {
            // The last values are outdated.
            for reading in gpu.readings.values_mut() {
                *reading = Reading::Unreadable(ReadError::unavailable("the agent does not answer"));
            }
        }
        self.last.processes = None;
        self.last.jobs.clear();
        self.last = self.last.clone().with_limits();
        self.last.clone()
    }
}

fn node_sample(status: &Status, host: &mut HostReader, now: Timestamp) -> NodeSample {
    let mut node = NodeSample::new(DataSource::Agent, status.at.unwrap_or(now));
    node.node.clone_from(&status.node);
    node.verdict = Some(status.verdict);
    node.driver.clone_from(&status.driver);
    node.host = host.sample();
    node.gpus = status.gpus.iter().map(gpu).collect();
    node.processes = processes(status, host);
    node.findings = Some(findings(status));
    node.jobs = jobs::connected(&status.jobs, host);
    node.coverage_gaps = status.coverage_gaps.iter().map(|gap| gap.reason.clone()).collect();
    node.with_limits()
}

fn gpu(status: &GpuStatus) -> GpuSample {
    let mut gpu = GpuSample::new(status.identity.clone());
    for (signal, reading) in [
        (Signal::GpuTemperature, &status.temperature_c),
        (Signal::GpuPower, &status.power_w),
        (Signal::GpuPowerLimit, &status.power_limit_w),
        (Signal::GpuUtilisation, &status.utilisation_ratio),
        (Signal::GpuMemoryUsed, &status.memory_used_bytes),
        (Signal::GpuMemoryTotal, &status.memory_total_bytes),
    ] {
        gpu.readings.insert(signal, reading.clone());
    }
    for (name, reading) in &status.readings {
        // A newer agent may send unknown signals.
        if let Ok(signal) = name.parse() {
            gpu.readings.insert(signal, reading.clone());
        }
    }
    gpu.links.is_known = !status.readings.is_empty();
    gpu.links.up = status.links_up;
    gpu.links.down = status.links_down;
    gpu.links.bytes_per_s = status.links_bytes_per_s;
    gpu.worst = status.worst;
    // The agent does not collect these.
    let not_collected =
        || Reading::Unreadable(ReadError::unavailable("not collected by the agent"));
    gpu.performance_state = not_collected();
    gpu.fan_percent = not_collected();
    gpu.compute_mode = not_collected();
    gpu.display = not_collected();
    gpu
}

/// Processes on all GPUs; `None` if they are unknown for every GPU.
fn processes(status: &Status, host: &mut HostReader) -> Option<Vec<ProcessSample>> {
    let mut processes = Vec::new();
    let mut is_known = status.gpus.is_empty();
    for gpu in &status.gpus {
        // The processes of an unresponsive GPU are unknown; show those of the others.
        if let Some(gpu_processes) = &gpu.processes {
            is_known = true;
            processes.extend(gpu_processes.iter().map(process));
        }
    }
    host.describe(&mut processes);
    jobs::assign(&status.jobs, &mut processes);
    is_known.then_some(processes)
}

fn process(process: &OwnedGpuProcess) -> ProcessSample {
    ProcessSample {
        gpu: process.gpu.clone(),
        pid: process.pid,
        kind: None,
        instance: None,
        user: None,
        job: match (&process.kind, &process.name) {
            (Some(kind), Some(name)) => Some(match kind.as_str() {
                "slurm-job" => format!("Slurm job {name}"),
                "unit" => name.clone(),
                kind => format!("{kind} {name}"),
            }),
            _ => None,
        },
        command: process.command.clone(),
        memory_bytes: process.memory_bytes,
        sm_ratio: None,
        memory_ratio: None,
        cpu_ratio: None,
        host_memory_bytes: None,
        elapsed_s: None,
    }
}

/// Faults in the order of the status, worst first; advice is left out.
fn findings(status: &Status) -> Vec<FindingSample> {
    let faults = status.findings.iter().filter(|entry| entry.finding.kind == FindingKind::Fault);
    faults.map(|entry| finding(entry, status)).collect()
}

fn finding(entry: &FindingStatus, status: &Status) -> FindingSample {
    FindingSample::new(&entry.finding, subject_name(&entry.finding.subject, status))
}

fn subject_name(subject: &Subject, status: &Status) -> String {
    let index = |uuid: &GpuUuid| {
        let gpu = status.gpus.iter().find(|gpu| gpu.identity.uuid == *uuid);
        gpu.map_or_else(|| uuid.0.clone(), |gpu| format!("GPU {}", gpu.identity.index))
    };
    match subject {
        Subject::Gpu(uuid) => index(uuid),
        Subject::Link { gpu, link } => format!("{} link {link}", index(gpu)),
        other => other.to_string(),
    }
}
