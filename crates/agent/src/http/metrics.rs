//! `/metrics`: every signal under Farrier's own name, the findings, Xids and jobs, and the resource
//! usage of the agent.
//!
//! An unknown value is omitted, because a zero would be wrong. The number of label values is
//! limited: by the node's components, by the rules, and by the limits in `jobs` and `state`.

use std::collections::{BTreeMap, BTreeSet};

use farrier_facts::node::Reading;
use farrier_fleet::health::{Behaviour, Finding, FindingKind, GpuUuid, Signal, Subject};
use jiff::Timestamp;

use super::dcgm;
use super::text::{MetricFamily, MetricsWriter};
use crate::config::Metrics;
use crate::coverage;
use crate::hooks::HookStatus;
use crate::jobs::JobState;
use crate::state::{PublishedFinding, State};
use crate::status::{NodeVerdict, coverage_losses};
use crate::uplink::{ConnectionStatus, UplinkState};

/// Renders the page. `now_ms` is the current time on the clock of `state.at.steady_ms`.
pub fn render(
    state: &State,
    now_ms: i64,
    jobs: &[JobState],
    uplink: Option<&ConnectionStatus>,
    config: &Metrics,
) -> String {
    let mut text = MetricsWriter::default();
    if config.dcgm {
        let hostname = config.hostname.as_deref().unwrap_or(&state.hostname);
        dcgm::write(state, hostname, &mut text);
    }
    signals(state, &mut text);
    findings(state, &mut text);
    xids(state, &mut text);
    process_owners(state, &mut text);
    job_states(jobs, &mut text);
    verdict(state, now_ms, &mut text);
    age(state, now_ms, &mut text);
    agent(state, &mut text);
    if let Some(uplink) = uplink {
        server(uplink, &mut text);
    }
    text.finish()
}

/// Renders the metrics of the hooks, which follow those of [`render`].
pub(super) fn render_hooks(hooks: &[HookStatus]) -> String {
    let mut text = MetricsWriter::default();
    let help = "Notifications of a hook by result: delivered, failed (given up), or dropped (the finding cleared before its notification was queued).";
    let mut family = text.family("farrier_hook_notifications_total", "counter", help);
    for HookStatus { name, counts, .. } in hooks {
        let results = [
            ("delivered", counts.delivered),
            ("failed", counts.failed),
            ("dropped", counts.dropped),
        ];
        for (result, count) in results {
            family.value(&[("hook", name), ("result", result)], lossy(count));
        }
    }
    let help = "Notifications of a hook that wait for their delivery.";
    let mut family = text.family("farrier_hook_queued", "gauge", help);
    for HookStatus { name, queued, .. } in hooks {
        family.value(&[("hook", name)], lossy(*queued as u64));
    }
    let help = "Open findings that wait for room in the queue of a hook, or for its rate limit.";
    let mut family = text.family("farrier_hook_waiting", "gauge", help);
    for HookStatus { name, waiting, .. } in hooks {
        family.value(&[("hook", name)], lossy(*waiting as u64));
    }
    let help = "1 if the last delivery of a hook failed.";
    let mut family = text.family("farrier_hook_failing", "gauge", help);
    for HookStatus { name, last_error, .. } in hooks {
        family.value(&[("hook", name)], f64::from(u8::from(last_error.is_some())));
    }
    text.finish()
}

/// `farrier_gpu_temperature_c` for `gpu.temperature_c`.
fn metric_name(signal: Signal) -> String {
    let name = signal.name().replace('.', "_");
    let total = matches!(signal.behaviour(), Behaviour::Counter);
    format!("farrier_{name}{}", if total { "_total" } else { "" })
}

fn signals(state: &State, text: &mut MetricsWriter) {
    let mut by_signal: BTreeMap<Signal, Vec<(&Subject, f64)>> = BTreeMap::new();
    for (subject, values) in state.values.latest.iter() {
        for latest in values {
            if let Reading::Value(value) = latest.reading {
                by_signal.entry(latest.signal).or_default().push((subject, value));
            }
        }
    }
    let indices = indices(state);
    for (signal, values) in by_signal {
        let name = metric_name(signal);
        let kind = if signal.behaviour() == Behaviour::Counter { "counter" } else { "gauge" };
        let mut family = text.family(&name, kind, signal.meaning());
        for (subject, value) in values {
            write_value(&mut family, subject, &indices, value);
        }
    }
}

/// Indices of all GPUs that are or were listed.
fn indices(state: &State) -> BTreeMap<&GpuUuid, String> {
    let gpus = state.values.delisted.iter().chain(&state.values.gpus);
    gpus.map(|gpu| (&gpu.uuid, gpu.index.to_string())).collect()
}

fn write_value(
    family: &mut MetricFamily<'_>,
    subject: &Subject,
    indices: &BTreeMap<&GpuUuid, String>,
    value: f64,
) {
    let index = |gpu: &GpuUuid| indices.get(gpu).map_or("", String::as_str);
    match subject {
        Subject::Node | Subject::Agent => family.value(&[], value),
        Subject::Gpu(gpu) => family.value(&[("gpu", index(gpu)), ("UUID", &gpu.0)], value),
        Subject::Link { gpu, link } => {
            let link = link.to_string();
            family.value(&[("gpu", index(gpu)), ("UUID", &gpu.0), ("link", &link)], value);
        }
        Subject::Nic { device, port } => {
            family.value(&[("device", device), ("port", &port.to_string())], value);
        }
        Subject::Pci(address) => family.value(&[("pci", address)], value),
    }
}

fn findings(state: &State, text: &mut MetricsWriter) {
    let gpus = || state.values.gpus.iter().chain(&state.values.delisted);
    // A GPU that was never listed gets no label, because its name may come from a malformed log
    // line.
    let find_gpu = |subject: &Subject| match subject {
        Subject::Pci(address) => gpus().find(|gpu| gpu.has_pci_address(address)),
        subject => subject.gpu().and_then(|uuid| gpus().find(|gpu| gpu.uuid == *uuid)),
    };
    let mut open: BTreeMap<[String; 7], u32> = BTreeMap::new();
    for PublishedFinding { finding, .. } in &state.findings {
        let kind = match finding.kind {
            FindingKind::Fault => "fault",
            FindingKind::Advice => "advice",
        };
        let gpu = find_gpu(&finding.subject);
        let index = gpu.map(|gpu| gpu.index.to_string()).unwrap_or_default();
        let uuid = gpu.map(|gpu| gpu.uuid.0.clone()).unwrap_or_default();
        let severity = finding.severity.to_string();
        let (reason, action) = (reason(finding), finding.action.to_string());
        let labels = [finding.code.clone(), severity, kind.to_owned(), index, uuid, reason, action];
        *open.entry(labels).or_default() += 1;
    }
    let help = "Open findings. Findings about no GPU have empty GPU labels; `reason` is the Xid, the check or the kernel message.";
    let mut family = text.family("farrier_findings", "gauge", help);
    for (values, count) in open {
        let names = ["code", "severity", "kind", "gpu", "UUID", "reason", "action"];
        let labels: Vec<(&str, &str)> =
            names.into_iter().zip(values.iter().map(String::as_str)).collect();
        family.value(&labels, f64::from(count));
    }
    let help = "Findings opened since the journal began; survives restarts of the agent.";
    let mut family = text.family("farrier_findings_opened_total", "counter", help);
    for (code, count) in &state.opened {
        family.value(&[("code", code)], lossy(*count));
    }
}

/// A label that distinguishes findings of one rule. It is used if the detail has few possible
/// values: an Xid, a check or a kernel message. The GPU unit in a log line is free text, so it gets
/// no label.
fn reason(finding: &Finding) -> String {
    let detail = finding.detail.as_str();
    let number = |name: &str| {
        let number = detail.strip_prefix(name)?;
        number.parse::<u32>().ok()
    };
    let is_number = number("Xid ").or_else(|| number("SXid ")).is_some();
    let is_word = !detail.contains(char::is_whitespace);
    if is_number || is_word { detail.to_owned() } else { String::new() }
}

/// Writes the overall verdict. A node that nothing monitors also has no findings, so a page with
/// only findings would make such a node look healthy.
fn verdict(state: &State, now_ms: i64, text: &mut MetricsWriter) {
    let verdict = NodeVerdict::now(state, &coverage_losses(state, now_ms));
    let help = "1 for the node's current verdict; `unknown` if no fault is open but coverage is incomplete.";
    let mut family = text.family("farrier_node_verdict", "gauge", help);
    for candidate in NodeVerdict::ALL {
        let is_current = candidate == verdict;
        family.value(&[("verdict", candidate.name())], f64::from(u8::from(is_current)));
    }
    let rules: BTreeSet<&str> =
        state.coverage.gaps.iter().map(|(code, ..)| code.as_str()).collect();
    let help = "Rules that cannot run on some component because a signal is unreadable.";
    text.gauge("farrier_agent_rules_inactive", help, lossy(rules.len() as u64));
    let indices = indices(state);
    let help = "Unreadable signals of a GPU; a GPU that is lost or hangs has a finding instead.";
    let mut family = text.family("farrier_gpu_signals_unreadable", "gauge", help);
    let unreadable = coverage::unreadable_signals(&state.values);
    for gpu in &state.values.gpus {
        let count = unreadable.get(&gpu.uuid).map_or(0, BTreeMap::len);
        write_value(&mut family, &Subject::Gpu(gpu.uuid.clone()), &indices, lossy(count as u64));
    }
}

fn xids(state: &State, text: &mut MetricsWriter) {
    let indices = indices(state);
    let help = "Xids since the agent started; empty GPU labels if the GPU is unknown.";
    let mut family = text.family("farrier_xid_total", "counter", help);
    for ((gpu, xid), count) in &state.values.xids {
        let index = gpu.as_ref().and_then(|gpu| indices.get(gpu)).map_or("", String::as_str);
        let uuid = gpu.as_ref().map_or("", |gpu| gpu.0.as_str());
        family.value(&[("gpu", index), ("UUID", uuid), ("xid", &xid.to_string())], lossy(*count));
    }
}

/// Writes the state of the connection to the server. It is omitted if no server is configured.
fn server(uplink: &ConnectionStatus, text: &mut MetricsWriter) {
    let help =
        "1 if the agent is connected to the server; otherwise 0, and findings wait in the journal.";
    let is_connected = matches!(uplink.link, UplinkState::Connected { .. });
    text.gauge("farrier_agent_server_connected", help, f64::from(u8::from(is_connected)));
    if let Some(until) = uplink.certificate_expires {
        let help = "When the node's certificate expires, in seconds since 1970; it is renewed long before.";
        let seconds = until.duration_since(Timestamp::UNIX_EPOCH).as_secs_f64();
        text.gauge("farrier_agent_certificate_expiry_timestamp_seconds", help, seconds);
    }
}

/// Maximum number of pairs of GPU and process owner. It limits the number of label values. A GPU
/// normally has few owners.
const OWNERS_MAX: usize = 64;

fn process_owners(state: &State, text: &mut MetricsWriter) {
    let Some(processes) = &state.values.processes else { return };
    let mut counts: BTreeMap<(&GpuUuid, &str, &str), u32> = BTreeMap::new();
    for process in processes {
        let (Some(kind), Some(name)) = (&process.kind, &process.name) else { continue };
        if counts.len() < OWNERS_MAX {
            *counts.entry((&process.gpu, kind, name)).or_default() += 1;
        }
    }
    let help = "Processes on a GPU, by owner: pod, Slurm job or unit.";
    let mut family = text.family("farrier_gpu_owner_processes", "gauge", help);
    for ((gpu, kind, name), count) in counts {
        let labels = [("UUID", gpu.0.as_str()), ("kind", kind), ("name", name)];
        family.value(&labels, f64::from(count));
    }
}

fn job_states(jobs: &[JobState], text: &mut MetricsWriter) {
    let mut write =
        |name: &str, help: &str, kind: &'static str, value: &dyn Fn(&JobState) -> Option<f64>| {
            let mut family = text.family(name, kind, help);
            for job in jobs {
                // Jobs of two users may share a name.
                let uid = job.uid.map(|uid| uid.to_string()).unwrap_or_default();
                if let Some(value) = value(job) {
                    family.value(&[("job", &job.job), ("uid", &uid)], value);
                }
            }
        };
    write("farrier_job_ranks", "Connected ranks of a job on this node.", "gauge", &|job| {
        Some(f64::from(job.ranks))
    });
    write("farrier_job_step", "The last step that a job completed.", "gauge", &|job| {
        job.step.map(lossy)
    });
    write("farrier_job_step_seconds", "Duration of a job's last step.", "gauge", &|job| job.step_s);
    write("farrier_job_loss", "Loss of a job's last step.", "gauge", &|job| job.loss);
    write(
        "farrier_job_tokens_per_s",
        "Tokens per second of a job's ranks on this node.",
        "gauge",
        &|job| job.tokens_per_s,
    );
    write("farrier_job_ooms_total", "Out-of-memory errors of a job.", "counter", &|job| {
        Some(lossy(job.ooms))
    });
}

/// Writes the age of the published state. The age is computed here. If the state contained it, the
/// age would not grow while the health monitor is stuck.
#[expect(clippy::cast_precision_loss, reason = "milliseconds since the state was published")]
fn age(state: &State, now_ms: i64, text: &mut MetricsWriter) {
    let age_s = (now_ms - state.at.steady_ms).max(0) as f64 / 1000.0;
    let help = "Seconds since the agent last published its state; normally at most one.";
    text.gauge("farrier_agent_snapshot_age_seconds", help, age_s);
}

fn agent(state: &State, text: &mut MetricsWriter) {
    let cost = &state.cost;
    text.counter(
        "farrier_agent_cpu_seconds_total",
        "CPU time of the agent.",
        lossy(cost.cpu_us) / 1e6,
    );
    let help = "CPU time of the child processes that call NVML.";
    text.counter("farrier_agent_probe_cpu_seconds_total", help, lossy(cost.child_cpu_us) / 1e6);
    if let Some(rss) = cost.rss_bytes {
        text.gauge("farrier_agent_rss_bytes", "Resident memory of the agent.", lossy(rss));
    }
    if let Some(rss) = cost.child_rss_bytes {
        text.gauge(
            "farrier_agent_probe_rss_bytes",
            "Resident memory of the child process that calls NVML.",
            lossy(rss),
        );
    }
    text.gauge("farrier_agent_journal_bytes", "Size of the journal.", lossy(state.journal.bytes));
    let help = "Journal lines that did not parse at startup.";
    text.gauge("farrier_agent_journal_damaged_lines", help, lossy(state.journal.damaged_lines));
    let help = "Kernel log records read.";
    text.counter("farrier_agent_kernel_records_total", help, lossy(state.kernel_records));
    let help = "1 while a source is unreadable, by source.";
    let mut family = text.family("farrier_agent_coverage_gap", "gauge", help);
    for source in ["nvml", "gpus", "kernel-log", "journal", "collectors"] {
        let has_gap = state.coverage_gaps.iter().any(|gap| gap.source == source);
        family.value(&[("source", source)], f64::from(u8::from(has_gap)));
    }
    let help = "Seconds since a collector's last message.";
    let mut family = text.family("farrier_agent_collector_age_seconds", "gauge", help);
    for collector in &state.collectors {
        if let Some(age_s) = collector.age_s {
            family.value(&[("collector", &collector.name)], age_s);
        }
    }
    let mut family = text.family("farrier_build_info", "gauge", "The agent's version.");
    family.value(&[("version", env!("CARGO_PKG_VERSION"))], 1.0);
}

/// Prometheus values are 64-bit floats.
#[expect(clippy::cast_precision_loss, reason = "Prometheus' numbers are 64-bit floats")]
fn lossy(count: u64) -> f64 {
    count as f64
}
