//! This node's agent, through its socket.

use std::path::PathBuf;
use std::time::Duration;

use farrier_agent::monitor::OwnedGpuProcess;
use farrier_agent::status::{FindingStatus, GpuStatus, Status};
use farrier_facts::node::{ReadError, Reading};
use farrier_fleet::health::{FindingKind, GpuUuid, Signal, Subject};
use farrier_hardware::Root;
use farrier_hardware::nvml::watch::{Pace, reading_interval};
use jiff::{SignedDuration, Timestamp};

use super::host::HostReader;
use super::jobs;
use crate::commands::status::{self, QueryOutcome};
use crate::commands::top::freshness::Freshness;
use crate::commands::top::sample::{
    DataSource, FindingSample, GpuSample, NodeSample, ProcessSample, SourceOutage,
};

/// Queries the agent on demand.
pub(in crate::commands::top) struct AgentSource {
    socket: PathBuf,
    /// How often the agent is queried.
    interval: Duration,
    host: HostReader,
    last: NodeSample,
}

impl AgentSource {
    pub(in crate::commands::top) fn new(
        socket: PathBuf,
        root: PathBuf,
        interval: Duration,
    ) -> Self {
        let last = NodeSample::new(DataSource::Agent, Timestamp::now());
        Self { socket, interval, host: HostReader::new(Root::unrecorded(root)), last }
    }

    /// The current sample. If the agent does not answer, the last sample with the outage and with
    /// unreadable values.
    pub(in crate::commands::top) fn sample(&mut self) -> NodeSample {
        let outcome = status::try_query(&self.socket);
        let now = Timestamp::now();
        let reason = match outcome {
            Ok(QueryOutcome::Answer(status)) => {
                self.last = node_sample(&status, &mut self.host, self.interval, now);
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

fn node_sample(
    status: &Status,
    host: &mut HostReader,
    interval: Duration,
    now: Timestamp,
) -> NodeSample {
    let at = status.at.unwrap_or(now);
    let answer = Freshness { read_at: at, interval };
    let mut node = NodeSample::new(DataSource::Agent, at);
    node.node.clone_from(&status.node);
    node.verdict = Some(status.verdict);
    node.driver.clone_from(&status.driver);
    node.host = host.sample();
    node.gpus = status.gpus.iter().map(|status| gpu(status, answer)).collect();
    node.processes = processes(status, host);
    node.processes_freshness = Some(answer);
    node.findings = Some(findings(status));
    node.jobs = jobs::connected(&status.jobs, host);
    node.coverage_gaps = status.coverage_gaps.iter().map(|gap| gap.reason.clone()).collect();
    node.with_limits()
}

/// The values of a GPU. Values that the agent does not report as stale are as recent as the agent's
/// answer.
fn gpu(status: &GpuStatus, answer: Freshness) -> GpuSample {
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
    for signal in gpu.readings.keys().copied() {
        let freshness = match status.stale.get(signal.name()) {
            Some(stale) => {
                let age = SignedDuration::from_secs(stale.age_s.try_into().unwrap_or(i64::MAX));
                let read_at = answer.read_at.saturating_sub(age);
                let interval = Duration::from_secs(stale.interval_s);
                read_at.map_or(answer, |read_at| Freshness { read_at, interval })
            }
            None if reading_interval(signal, Pace::Agent).is_some() => answer,
            None => continue,
        };
        gpu.freshness.insert(signal, freshness);
    }
    gpu.links_freshness = Some(answer);
    gpu.links.is_known = !status.readings.is_empty();
    gpu.links.up = status.links_up;
    gpu.links.down = status.links_down;
    gpu.links.bytes_per_s = status.links_bytes_per_s;
    gpu.worst = status.worst;
    // The agent does not collect these values.
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use farrier_agent::status::StaleValue;
    use farrier_fleet::health::GpuIdentity;

    use super::*;

    #[test]
    fn values_are_stale_if_the_agent_says_so_or_does_not_answer() {
        let value = || Reading::Value(0.0);
        let signals = [Signal::GpuPower, Signal::GpuSmActive, Signal::GpuEnergy];
        let stale = StaleValue { age_s: 45, interval_s: 30 };
        let status = GpuStatus {
            identity: GpuIdentity {
                uuid: GpuUuid("GPU-1".to_owned()),
                index: 0,
                minor: None,
                pci: None,
                name: None,
            },
            temperature_c: Reading::Absent,
            power_w: value(),
            power_limit_w: Reading::Absent,
            utilisation_ratio: Reading::Absent,
            memory_used_bytes: Reading::Absent,
            memory_total_bytes: Reading::Absent,
            processes: None,
            worst: None,
            readings: signals.map(|signal| (signal.to_string(), value())).into(),
            stale: BTreeMap::from([(Signal::GpuSmActive.to_string(), stale)]),
            links_up: 0,
            links_down: 0,
            links_bytes_per_s: None,
        };
        let at = |second| Timestamp::from_second(second).unwrap();
        let answer = Freshness { read_at: at(100), interval: Duration::from_secs(1) };
        let gpu = gpu(&status, answer);
        let stale_at = |second| gpu.stale_values(at(second));
        assert_eq!(stale_at(100), BTreeMap::from([("gpu.sm_active_ratio".to_owned(), stale)]));
        let names: Vec<String> = stale_at(104).into_keys().collect();
        assert_eq!(names, ["gpu.power_w", "gpu.sm_active_ratio", "links"], "no answer for 4 s");
    }
}
