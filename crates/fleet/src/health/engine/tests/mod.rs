//! Tests of the engine with hand-made batches.

mod boots;
mod events;
mod manual_repair;
mod values;

use farrier_facts::FactSet;
use farrier_facts::node::{ReadError, Reading};
use jiff::Timestamp;

use super::*;
use crate::health::finding::{Action, Severity};
use crate::health::observation::{EventSource, KernelEvent, Sample};

fn engine() -> Engine {
    let rules = Rules::embedded().unwrap_or_else(|err| panic!("{err}"));
    Engine::new(rules, FactSet::embedded())
}

fn at(seconds: i64) -> Moment {
    Moment {
        steady_ms: seconds * 1000,
        wall: Timestamp::from_second(1_790_000_000 + seconds).unwrap_or_default(),
    }
}

fn gpu(number: u32) -> Subject {
    Subject::Gpu(GpuUuid(format!("GPU-{number}")))
}

fn inventory() -> Vec<GpuIdentity> {
    (0..8)
        .map(|index| GpuIdentity {
            uuid: GpuUuid(format!("GPU-{index}")),
            index,
            minor: Some(index),
            pci: Some(format!("0000:{:02x}:00.0", 0x1b + index)),
            name: Some("NVIDIA H100 80GB HBM3".to_owned()),
        })
        .collect()
}

fn sample(subject: Subject, signal: Signal, value: f64) -> Batch {
    let samples = vec![Sample { subject, signal, reading: Reading::Value(value), note: None }];
    Batch { inventory: Some(inventory()), samples, ..Batch::default() }
}

fn codes(changes: &[Change]) -> Vec<(&'static str, String)> {
    changes
        .iter()
        .map(|change| match change {
            Change::Opened(finding) => ("opened", finding.code.clone()),
            Change::Updated(finding) => ("updated", finding.code.clone()),
            Change::Cleared(finding) => ("cleared", finding.code.clone()),
        })
        .collect()
}

fn xid(number: u32, address: &str, when: Moment, boot: &str) -> Batch {
    let line = format!("NVRM: Xid (PCI:{address}): {number}, pid=7, name=python, something\n");
    kernel_line(&line, when, boot)
}

fn kernel_line(line: &str, when: Moment, boot: &str) -> Batch {
    let facts = XidFacts::clone(&FactSet::embedded().xids);
    let kernel = farrier_facts::decode::decode(&facts, line.as_bytes())
        .into_iter()
        .map(|event| KernelEvent {
            event,
            source: EventSource::KernelLog { line: line.trim_end().to_owned() },
            boot: boot.to_owned(),
            at: when,
        })
        .collect();
    Batch { inventory: Some(inventory()), kernel, ..Batch::default() }
}

/// A fatal NVLink error whose register bits point to a hardware fault.
fn nvlink_fatal(when: Moment, boot: &str) -> Batch {
    let mut batch = xid(74, "0000:1c:00", when, boot);
    for kernel_event in &mut batch.kernel {
        (kernel_event.event.severity, kernel_event.event.action) =
            (Severity::Fatal, Action::DrainAndReplace);
    }
    batch
}

/// Saved state with these findings, from the given boot.
fn saved_in_boot(findings: Vec<Finding>, boot: &str) -> EngineSnapshot {
    EngineSnapshot { findings, boot: boot.to_owned(), ..EngineSnapshot::default() }
}

/// The state that the journal would store.
fn journalled(engine: &mut Engine) -> EngineSnapshot {
    EngineSnapshot {
        findings: engine.findings().cloned().collect(),
        recovery_signals: engine.take_recovery_signals(),
        boot: "a".to_owned(),
        ..EngineSnapshot::default()
    }
}

/// The saved state of a first boot: GPUs 0 and 1 have failed row remaps, and fell off the bus
/// twice.
fn saved_with_two_faulty_gpus() -> EngineSnapshot {
    let mut first = engine();
    let mut stored_events = Vec::new();
    for (index, address) in ["0000:1b:00", "0000:1c:00"].into_iter().enumerate() {
        let faulty = gpu(u32::try_from(index).unwrap());
        first.observe(at(0), &sample(faulty, Signal::GpuRowsFailed, 1.0));
        for second in [10, 900] {
            let decision = first.observe(at(second), &xid(79, address, at(second), "a"));
            stored_events.extend(decision.events_to_store);
        }
    }
    let findings: Vec<Finding> = first.findings().cloned().collect();
    let repeated =
        findings.iter().filter(|finding| finding.code == "gpu.bus-loss-repeated").count();
    assert_eq!(repeated, 2, "{findings:#?}");
    EngineSnapshot {
        findings,
        next_id: 9,
        stored_events,
        boot: "a".to_owned(),
        ..EngineSnapshot::default()
    }
}

/// A time in a second boot, which began some hours after the first.
fn second_boot(seconds: i64) -> Moment {
    Moment { steady_ms: seconds * 1000, wall: at(20_000 + seconds).wall }
}

fn gpu_counts(inventory: Vec<GpuIdentity>, on_bus: f64) -> Batch {
    let counts = [(Signal::NodeGpusPci, on_bus), (Signal::NodeGpusExpected, 8.0)];
    let samples = counts
        .map(|(signal, value)| Sample {
            subject: Subject::Node,
            signal,
            reading: Reading::Value(value),
            note: None,
        })
        .to_vec();
    Batch { inventory: Some(inventory), samples, ..Batch::default() }
}

/// An engine that continues in boot `a` after a restart of the agent.
fn restarted(saved: EngineSnapshot, now: Moment) -> Engine {
    let mut engine = engine();
    engine.restore(saved, "a", now);
    engine
}

fn configured(overrides: &[(&str, crate::health::rules::RuleOverride)]) -> Rules {
    let overrides =
        overrides.iter().map(|(code, rule_override)| ((*code).to_owned(), rule_override.clone()));
    Rules::configured(&overrides.collect()).unwrap_or_else(|errors| panic!("{errors:?}"))
}
