//! `/metrics`: every signal under farrier's own name, findings, Xids, jobs, and the agent's
//! resource usage.
//!
//! An unknown value is omitted, because a zero would be wrong. Labels are bounded by the node's
//! components, the rules, and the limits in `jobs` and `state`.

use std::collections::{BTreeMap, BTreeSet};

use farrier_facts::node::Reading;
use farrier_fleet::health::{Behaviour, Finding, FindingKind, GpuUuid, Signal, Subject};
use jiff::Timestamp;

use super::dcgm;
use super::text::{Family, Text};
use crate::config::Metrics;
use crate::jobs::JobState;
use crate::sight;
use crate::state::{Shown, State};
use crate::status::{Verdict, not_seen};
use crate::uplink::{ConnectionStatus, Link};

/// Renders the page at `now_ms`, on the clock of the snapshot.
pub fn render(
    state: &State,
    now_ms: i64,
    jobs: &[JobState],
    uplink: Option<&ConnectionStatus>,
    config: &Metrics,
) -> String {
    let mut text = Text::default();
    if config.dcgm {
        let hostname = config.hostname.as_deref().unwrap_or(&state.hostname);
        dcgm::write(state, hostname, &mut text);
    }
    signals(state, &mut text);
    findings(state, &mut text);
    xids(state, &mut text);
    holders(state, &mut text);
    job_states(jobs, &mut text);
    verdict(state, now_ms, &mut text);
    age(state, now_ms, &mut text);
    itself(state, &mut text);
    if let Some(uplink) = uplink {
        server(uplink, &mut text);
    }
    text.finish()
}

/// `farrier_gpu_temperature_c` for `gpu.temperature_c`.
fn metric_name(signal: Signal) -> String {
    let name = signal.name().replace('.', "_");
    let total = matches!(signal.behaviour(), Behaviour::Counter);
    format!("farrier_{name}{}", if total { "_total" } else { "" })
}

fn signals(state: &State, text: &mut Text) {
    let mut by_signal: BTreeMap<Signal, Vec<(&Subject, f64)>> = BTreeMap::new();
    for (subject, values) in state.values.latest.iter() {
        for (signal, reading) in values {
            if let Reading::Value(value) = reading {
                by_signal.entry(*signal).or_default().push((subject, *value));
            }
        }
    }
    let indices = indices(state);
    for (signal, values) in by_signal {
        let name = metric_name(signal);
        let kind = if signal.behaviour() == Behaviour::Counter { "counter" } else { "gauge" };
        let mut family = text.family(&name, kind, signal.meaning());
        for (subject, value) in values {
            one(&mut family, subject, &indices, value);
        }
    }
}

/// Indices of all GPUs that are or were listed.
fn indices(state: &State) -> BTreeMap<&GpuUuid, String> {
    let known = state.values.gone.iter().chain(&state.values.gpus);
    known.map(|gpu| (&gpu.uuid, gpu.index.to_string())).collect()
}

fn one(
    family: &mut Family<'_>,
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

fn findings(state: &State, text: &mut Text) {
    let known = || state.values.gpus.iter().chain(&state.values.gone);
    // A GPU that was never listed gets no label: a log line may have invented it.
    let gpu_of = |subject: &Subject| match subject {
        Subject::Pci(address) => known().find(|gpu| gpu.stands_at(address)),
        subject => subject.gpu().and_then(|uuid| known().find(|gpu| gpu.uuid == *uuid)),
    };
    let mut open: BTreeMap<[String; 7], u32> = BTreeMap::new();
    for Shown { finding, .. } in &state.findings {
        let kind = match finding.kind {
            FindingKind::Fault => "fault",
            FindingKind::Advice => "advice",
        };
        let gpu = gpu_of(&finding.subject);
        let index = gpu.map(|gpu| gpu.index.to_string()).unwrap_or_default();
        let uuid = gpu.map(|gpu| gpu.uuid.0.clone()).unwrap_or_default();
        let severity = finding.severity.to_string();
        let (reason, action) = (reason(finding), finding.action.to_string());
        let labels = [finding.code.clone(), severity, kind.to_owned(), index, uuid, reason, action];
        *open.entry(labels).or_default() += 1;
    }
    let help = "Open findings; what is not about a GPU has empty labels for it, and `reason` is the Xid, the item of the node's check or the kernel's message.";
    let mut family = text.family("farrier_findings", "gauge", help);
    for (values, count) in open {
        let names = ["code", "severity", "kind", "gpu", "UUID", "reason", "action"];
        let labels: Vec<(&str, &str)> =
            names.into_iter().zip(values.iter().map(String::as_str)).collect();
        family.value(&labels, f64::from(count));
    }
    let help = "Findings opened since the journal began; goes on when the agent is started anew.";
    let mut family = text.family("farrier_findings_opened_total", "counter", help);
    for (code, count) in &state.opened {
        family.value(&[("code", code)], lossy(*count));
    }
}

/// Distinguishes findings of one rule where the values are few: an Xid, a check, a kernel message.
/// The GPU unit that a line names is free text and gets no label.
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

/// The overall verdict: with findings alone, an unmonitored node looks healthy.
fn verdict(state: &State, now_ms: i64, text: &mut Text) {
    let verdict = Verdict::now(state, &not_seen(state, now_ms));
    let help = "1 for what the node comes to now; `unknown`: no fault is known, and not everything is seen.";
    let mut family = text.family("farrier_node_verdict", "gauge", help);
    for each in Verdict::ALL {
        family.value(&[("verdict", each.name())], f64::from(u8::from(each == verdict)));
    }
    let rules: BTreeSet<&str> =
        state.coverage.blind.iter().map(|(code, ..)| code.as_str()).collect();
    let help = "Rules of which nothing is known on some part, because a signal cannot be read.";
    text.gauge("farrier_agent_rules_blind", help, lossy(rules.len() as u64));
    let indices = indices(state);
    let help = "Signals of a GPU that cannot be read now; one that is lost or hangs has a finding instead.";
    let mut family = text.family("farrier_gpu_signals_unreadable", "gauge", help);
    let unreadable = sight::unreadable_signals(&state.values);
    for gpu in &state.values.gpus {
        let count = unreadable.get(&gpu.uuid).map_or(0, BTreeMap::len);
        one(&mut family, &Subject::Gpu(gpu.uuid.clone()), &indices, lossy(count as u64));
    }
}

fn xids(state: &State, text: &mut Text) {
    let indices = indices(state);
    let help = "Xids that were read since the agent started, from 0; a GPU that is not known has empty labels.";
    let mut family = text.family("farrier_xid_total", "counter", help);
    for ((gpu, xid), count) in &state.values.xids {
        let index = gpu.as_ref().and_then(|gpu| indices.get(gpu)).map_or("", String::as_str);
        let uuid = gpu.as_ref().map_or("", |gpu| gpu.0.as_str());
        family.value(&[("gpu", index), ("UUID", uuid), ("xid", &xid.to_string())], lossy(*count));
    }
}

/// State of the connection to the server. Omitted if no server is configured.
fn server(uplink: &ConnectionStatus, text: &mut Text) {
    let help = "1 where the fleet's server is told what is found; 0: it is not, and what is found is kept for it.";
    let is_connected = matches!(uplink.link, Link::Connected { .. });
    text.gauge("farrier_agent_server_connected", help, f64::from(u8::from(is_connected)));
    if let Some(until) = uplink.certificate_until {
        let help =
            "When the node's certificate ends, in seconds since 1970; it is renewed long before.";
        let seconds = until.duration_since(Timestamp::UNIX_EPOCH).as_secs_f64();
        text.gauge("farrier_agent_certificate_expiry_timestamp_seconds", help, seconds);
    }
}

/// Maximum pairs of GPU and process owner: bounds the labels. A GPU has few owners.
const HOLDERS_MAX: usize = 64;

fn holders(state: &State, text: &mut Text) {
    let Some(processes) = &state.values.processes else { return };
    let mut counts: BTreeMap<(&GpuUuid, &str, &str), u32> = BTreeMap::new();
    for process in processes {
        let (Some(kind), Some(name)) = (&process.kind, &process.name) else { continue };
        if counts.len() < HOLDERS_MAX {
            *counts.entry((&process.gpu, kind, name)).or_default() += 1;
        }
    }
    let help = "Processes on a GPU, by the pod, Slurm job or unit that they belong to.";
    let mut family = text.family("farrier_gpu_holder_processes", "gauge", help);
    for ((gpu, kind, name), count) in counts {
        let labels = [("UUID", gpu.0.as_str()), ("kind", kind), ("name", name)];
        family.value(&labels, f64::from(count));
    }
}

fn job_states(jobs: &[JobState], text: &mut Text) {
    let mut each =
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
    each("farrier_job_ranks", "Ranks of a job that are connected here.", "gauge", &|job| {
        Some(f64::from(job.ranks))
    });
    each("farrier_job_step", "The last step that a job ended.", "gauge", &|job| {
        job.step.map(lossy)
    });
    each("farrier_job_step_seconds", "Time of that step.", "gauge", &|job| job.step_s);
    each("farrier_job_loss", "Loss of that step.", "gauge", &|job| job.loss);
    each("farrier_job_tokens_per_s", "Tokens a second of its ranks here.", "gauge", &|job| {
        job.tokens_per_s
    });
    each("farrier_job_ooms_total", "Times that a job ran out of GPU memory.", "counter", &|job| {
        Some(lossy(job.ooms))
    });
}

/// Computed at render time: with a stuck health monitor the snapshot's own age would never change.
#[expect(clippy::cast_precision_loss, reason = "milliseconds since a snapshot")]
fn age(state: &State, now_ms: i64, text: &mut Text) {
    let age_s = (now_ms - state.at.steady_ms).max(0) as f64 / 1000.0;
    let help = "Seconds since the agent last brought its state up to date; one a second is usual.";
    text.gauge("farrier_agent_snapshot_age_seconds", help, age_s);
}

fn itself(state: &State, text: &mut Text) {
    let cost = &state.cost;
    text.counter(
        "farrier_agent_cpu_seconds_total",
        "Processor time of the agent.",
        lossy(cost.cpu_us) / 1e6,
    );
    let help = "Processor time of the children that ask NVML.";
    text.counter("farrier_agent_probe_cpu_seconds_total", help, lossy(cost.child_cpu_us) / 1e6);
    if let Some(rss) = cost.rss_bytes {
        text.gauge("farrier_agent_rss_bytes", "Memory of the agent.", lossy(rss));
    }
    if let Some(rss) = cost.child_rss_bytes {
        text.gauge(
            "farrier_agent_probe_rss_bytes",
            "Memory of the child that asks NVML.",
            lossy(rss),
        );
    }
    text.gauge("farrier_agent_journal_bytes", "Bytes of the journal.", lossy(state.journal.bytes));
    let help = "Lines of the journal that were no records when the agent started.";
    text.gauge("farrier_agent_journal_damaged_lines", help, lossy(state.journal.damaged_lines));
    let help = "Records of the kernel log that were read.";
    text.counter("farrier_agent_kernel_records_total", help, lossy(state.kernel_records));
    let help = "1 while something is not seen, by what.";
    let mut family = text.family("farrier_agent_blind", "gauge", help);
    for what in ["nvml", "gpus", "kernel-log", "journal", "collectors"] {
        let blind = state.blind.iter().any(|it| it.what == what);
        family.value(&[("what", what)], f64::from(u8::from(blind)));
    }
    let help = "Seconds since a collector last said something.";
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
