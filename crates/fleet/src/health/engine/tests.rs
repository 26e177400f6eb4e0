use farrier_facts::FactSet;
use farrier_facts::node::Reading;
use jiff::Timestamp;

use super::super::finding::{Action, Severity};
use super::super::observation::Sample;
use super::*;

fn engine() -> Engine {
    let rules = Rules::embedded().unwrap_or_else(|err| panic!("{err}"));
    Engine::new(rules, XidFacts::clone(&FactSet::embedded().xids))
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
            Change::Opened(it) => ("opened", it.code.clone()),
            Change::Updated(it) => ("updated", it.code.clone()),
            Change::Cleared(it) => ("cleared", it.code.clone()),
        })
        .collect()
}

#[test]
fn a_threshold_opens_once_and_clears_after_its_time() {
    let mut engine = engine();
    let pending = |value| sample(gpu(0), Signal::GpuRowsPending, value);
    assert!(engine.observe(at(0), &pending(0.0)).changes.is_empty());
    let opened = engine.observe(at(10), &pending(1.0)).changes;
    assert_eq!(codes(&opened), [("opened", "gpu.rows-pending".to_owned())]);
    let finding = opened[0].finding();
    assert_eq!((finding.severity, finding.action), (Severity::Critical, Action::ResetGpu));
    assert_eq!(finding.clears, "after 20 s in which no row waits to be remapped");
    assert!(engine.observe(at(20), &pending(1.0)).changes.is_empty(), "it does not happen again");
    assert!(engine.observe(at(30), &pending(0.0)).changes.is_empty(), "it waits");
    let cleared = engine.observe(at(50), &pending(0.0)).changes;
    assert_eq!(codes(&cleared), [("cleared", "gpu.rows-pending".to_owned())]);
    assert_eq!(engine.findings().count(), 0);
}

#[test]
fn blindness_neither_opens_nor_clears() {
    let mut engine = engine();
    engine.observe(at(0), &sample(gpu(0), Signal::GpuRowsFailed, 1.0));
    let reading = Reading::Unreadable("the driver hangs".to_owned());
    let samples =
        vec![Sample { subject: gpu(0), signal: Signal::GpuRowsFailed, reading, note: None }];
    let blind = Batch { samples, ..Batch::default() };
    for second in 1..600 {
        assert!(engine.observe(at(second), &blind).changes.is_empty());
    }
    assert_eq!(engine.findings().count(), 1);
    let coverage = engine.coverage();
    assert!(
        coverage
            .blind
            .iter()
            .any(|(code, _, why)| code == "gpu.rows-failed" && why.contains("hangs"))
    );
}

#[test]
fn the_drivers_action_outranks_the_rules_until_it_is_taken_back() {
    let mut engine = engine();
    engine.observe(at(0), &sample(gpu(0), Signal::GpuEccUncorrected, 1.0));
    engine.observe(at(1), &sample(gpu(1), Signal::GpuRowsPending, 1.0));
    let changes = engine.observe(at(2), &sample(gpu(0), Signal::GpuRecoveryAction, 2.0)).changes;
    let ecc =
        changes.iter().map(Change::finding).find(|it| it.code == "gpu.ecc-uncorrected").unwrap();
    assert_eq!(ecc.action, Action::RebootNode);
    assert_eq!(ecc.action_by, super::super::finding::ActionBy::Driver);
    assert_eq!(ecc.rule_action, Action::ResetGpu);
    let other = engine.findings().find(|it| it.code == "gpu.rows-pending").unwrap();
    assert_eq!(other.action, Action::ResetGpu, "another GPU's finding is not touched");
    let reading = Reading::Unreadable("it is being reset".to_owned());
    let silent = Sample { subject: gpu(0), signal: Signal::GpuRecoveryAction, reading, note: None };
    engine.observe(at(3), &Batch { samples: vec![silent], ..Batch::default() });
    let changes = engine.observe(at(4), &sample(gpu(0), Signal::GpuRecoveryAction, 0.0)).changes;
    let cleared: Vec<_> =
        codes(&changes).into_iter().filter(|(what, _)| *what == "cleared").collect();
    assert_eq!(cleared, [("cleared", "gpu.ecc-uncorrected".to_owned())]);
}

#[test]
fn a_signal_that_the_part_lacks_is_told_and_never_fires() {
    let mut engine = engine();
    let samples = vec![Sample {
        subject: gpu(0),
        signal: Signal::GpuRowsFailed,
        reading: Reading::Absent,
        note: None,
    }];
    let batch = Batch { inventory: Some(inventory()), samples, ..Batch::default() };
    assert!(engine.observe(at(0), &batch).changes.is_empty());
    let coverage = engine.coverage();
    assert!(coverage.unsupported.iter().any(|(code, ..)| code == "gpu.rows-failed"));
    assert!(!coverage.watched.contains_key("gpu.rows-failed"));
}

#[test]
fn a_limit_that_comes_later_is_taken_and_one_that_never_comes_is_told() {
    let (mut engine, mut other) = (engine(), engine());
    for engine in [&mut engine, &mut other] {
        engine.observe(at(0), &sample(gpu(0), Signal::GpuPcieWidth, 8.0));
        assert!(engine.coverage().early.contains_key("gpu.pcie-narrow"));
    }
    engine.observe(at(1), &sample(gpu(0), Signal::GpuPcieWidthMax, 16.0));
    assert!(engine.coverage().watched.contains_key("gpu.pcie-narrow"));
    other.observe(at(300), &sample(gpu(0), Signal::GpuPcieWidth, 8.0));
    let blind = other.coverage().blind;
    assert!(
        blind.iter().any(|(code, _, why)| code == "gpu.pcie-narrow" && why.contains("never read"))
    );
}

#[test]
fn the_slow_one_among_peers_is_found() {
    let mut engine = engine();
    let mut opened = Vec::new();
    for second in 0..200 {
        let mut samples = Vec::new();
        for index in 0..8 {
            let clock = if index == 5 { 1500.0 } else { 1980.0 };
            let reading = |value| Reading::Value(value);
            let reasons = Sample {
                subject: gpu(index),
                signal: Signal::GpuClockReasons,
                reading: reading(4.0),
                note: None,
            };
            samples.push(reasons);
            samples.push(Sample {
                subject: gpu(index),
                signal: Signal::GpuClockSm,
                reading: reading(clock),
                note: None,
            });
            samples.push(Sample {
                subject: gpu(index),
                signal: Signal::GpuSmActive,
                reading: reading(0.9),
                note: None,
            });
        }
        let batch = Batch { inventory: Some(inventory()), samples, ..Batch::default() };
        opened.extend(engine.observe(at(second), &batch).changes);
    }
    let opened: Vec<_> =
        opened.iter().map(Change::finding).map(|it| (&it.code, &it.subject)).collect();
    assert_eq!(opened, [(&"gpu.clock-below-peers".to_owned(), &gpu(5))]);
}

fn xid(number: u32, address: &str, when: Moment, boot: &str) -> Batch {
    let line = format!("NVRM: Xid (PCI:{address}): {number}, pid=7, name=python, something\n");
    logged(&line, when, boot)
}

fn logged(line: &str, when: Moment, boot: &str) -> Batch {
    let facts = XidFacts::clone(&FactSet::embedded().xids);
    let kernel = farrier_facts::decode::decode(&facts, line.as_bytes())
        .into_iter()
        .map(|event| super::super::observation::KernelEvent {
            event,
            line: line.trim_end().to_owned(),
            gpu: None,
            boot: boot.to_owned(),
            at: when,
        })
        .collect();
    Batch { inventory: Some(inventory()), kernel, ..Batch::default() }
}

#[test]
fn an_xid_is_counted_and_a_burst_is_no_repeat() {
    let mut engine = engine();
    let opened = engine.observe(at(0), &xid(31, "0000:1c:00", at(0), "a"));
    assert_eq!(codes(&opened.changes), [("opened", "gpu.xid".to_owned())]);
    assert_eq!(opened.changes[0].finding().subject, gpu(1));
    assert_eq!(opened.changes[0].finding().detail, "Xid 31");
    assert_eq!(opened.remembered.len(), 1);
    for second in 1..100 {
        let decision = engine.observe(at(second), &xid(31, "0000:1c:00", at(second), "a"));
        assert_eq!(codes(&decision.changes), [("updated", "gpu.xid".to_owned())]);
    }
    assert_eq!(engine.findings().next().unwrap().count, 100);
    let decision = engine.observe(at(900), &xid(31, "0000:1c:00", at(900), "a"));
    assert!(codes(&decision.changes).contains(&("opened", "gpu.xid-app-repeated".to_owned())));
    let over = engine.observe(at(900 + 3600), &Batch::default());
    assert!(codes(&over.changes).contains(&("cleared", "gpu.xid".to_owned())));
}

#[test]
fn repeats_are_known_after_a_restart_and_a_reboot() {
    let mut remembered = Vec::new();
    let mut saved = Saved::default();
    for (turn, boot) in ["a", "b", "c"].into_iter().enumerate() {
        let mut engine = engine();
        let now = at(i64::try_from(turn).unwrap() * 4000);
        let restored = engine.restore(saved.clone(), boot, now);
        let cleared = usize::from(turn > 0);
        assert_eq!(restored.len(), cleared, "the reboot that it asked for mends it");
        let decision = engine.observe(now, &xid(95, "0000:1c:00", now, boot));
        remembered.extend(decision.remembered);
        let open: Vec<Finding> = engine.findings().cloned().collect();
        let after = open.iter().any(|it| it.code == "gpu.xid-after-reboots");
        assert_eq!(after, turn == 2, "{boot}");
        assert!(open.iter().filter(|it| it.code == "gpu.xid").count() == 1);
        saved = Saved {
            findings: open,
            remembered: remembered.clone(),
            boot: boot.to_owned(),
            ..Saved::default()
        };
    }
}

#[test]
fn what_asks_for_a_reset_waits_for_one_and_not_for_quiet() {
    let mut engine = engine();
    engine.observe(at(0), &sample(gpu(1), Signal::GpuEccCorrected, 12.0));
    engine.observe(at(1), &xid(119, "0000:1c:00", at(1), "a"));
    let later = engine.observe(at(90_000), &sample(gpu(1), Signal::GpuEccCorrected, 12.0));
    assert!(later.changes.is_empty(), "{:?}", later.changes);
    let finding = engine.findings().next().unwrap();
    assert!(finding.clears.contains("counters start anew"), "{}", finding.clears);
    let reset = engine.observe(at(90_010), &sample(gpu(1), Signal::GpuEccCorrected, 0.0)).changes;
    assert_eq!(codes(&reset), [("cleared", "gpu.xid".to_owned())]);
}

/// NVLink's fatal error that the bits of its registers make a matter of hardware.
fn nvlink_fatal(when: Moment, boot: &str) -> Batch {
    let mut batch = xid(74, "0000:1c:00", when, boot);
    for seen in &mut batch.kernel {
        (seen.event.severity, seen.event.action) = (Severity::Fatal, Action::DrainAndReplace);
    }
    batch
}

/// What a journal has of findings, from that boot.
fn of_boot(findings: Vec<Finding>, boot: &str) -> Saved {
    Saved { findings, boot: boot.to_owned(), ..Saved::default() }
}

#[test]
fn what_asks_for_a_replacement_waits_for_a_reboot_and_then_for_quiet() {
    let mut first = engine();
    first.observe(at(0), &nvlink_fatal(at(0), "a"));
    first.observe(at(1), &sample(gpu(1), Signal::GpuEccCorrected, 12.0));
    first.observe(at(2), &sample(gpu(1), Signal::GpuEccCorrected, 0.0));
    assert!(first.observe(at(18_000), &Batch::default()).changes.is_empty(), "nor is it reset");
    let findings: Vec<Finding> = first.findings().cloned().collect();
    assert_eq!(
        findings[0].clears,
        "when the GPU is replaced, or, once the node is rebooted, after 1 h without another"
    );
    let saved = of_boot(findings, "a");
    let mut second = engine();
    assert!(second.restore(saved, "b", of_second_boot(20)).is_empty());
    assert!(second.observe(of_second_boot(3599), &Batch::default()).changes.is_empty());
    let over = second.observe(of_second_boot(3600), &Batch::default()).changes;
    assert_eq!(codes(&over), [("cleared", "gpu.xid".to_owned())]);
}

#[test]
fn a_counter_that_rests_replaces_no_card() {
    let mut engine = engine();
    let replays = |value| {
        let mut batch = sample(gpu(0), Signal::GpuPcieReplays, value);
        batch.samples.extend(sample(gpu(0), Signal::GpuPcieReplayLimit, 8.0).samples);
        batch
    };
    engine.observe(at(0), &replays(0.0));
    engine.observe(at(60), &replays(100.0));
    for turn in 7..360 {
        engine.observe(at(turn * 10), &replays(100.0));
    }
    let finding = engine.findings().next().unwrap();
    assert_eq!(
        (finding.code.as_str(), finding.action),
        ("gpu.pcie-replays", Action::DrainAndReplace)
    );
    let saved = of_boot(vec![finding.clone()], "a");
    let mut second = super::tests::engine();
    second.restore(saved, "b", of_second_boot(20));
    let over: Vec<Change> = (2..30)
        .flat_map(|turn| second.observe(of_second_boot(turn * 10), &replays(0.0)).changes)
        .collect();
    assert_eq!(codes(&over), [("cleared", "gpu.pcie-replays".to_owned())]);
}

#[test]
fn a_reset_makes_windows_begin_anew() {
    let mut engine = engine();
    let fatal = |value| sample(gpu(0), Signal::GpuAerFatal, value);
    engine.observe(at(0), &fatal(0.0));
    assert_eq!(
        codes(&engine.observe(at(10), &fatal(1.0)).changes),
        [("opened", "gpu.pcie-fatal".to_owned())]
    );
    engine.observe(at(20), &sample(gpu(0), Signal::GpuRecoveryAction, 1.0));
    engine.observe(at(30), &sample(gpu(0), Signal::GpuRecoveryAction, 0.0));
    assert!(!engine.findings().any(|it| it.code == "gpu.pcie-fatal"));
    engine.observe(at(40), &fatal(1.0));
    assert!(!engine.findings().any(|it| it.code == "gpu.pcie-fatal"), "it is counted once");
}

#[test]
fn a_restart_does_not_end_what_its_window_still_holds() {
    let flaps = |value| {
        let subject = Subject::Nic { device: "mlx5_0".to_owned(), port: 1 };
        sample(subject, Signal::NicSymbolError, value)
    };
    let mut first = engine();
    first.observe(at(0), &flaps(0.0));
    assert_eq!(
        codes(&first.observe(at(10), &flaps(200.0)).changes),
        [("opened", "nic.symbol-errors".to_owned())]
    );
    let findings: Vec<Finding> = first.findings().cloned().collect();
    let mut second = engine();
    second.restore(
        Saved {
            findings,
            next_id: 1,
            remembered: Vec::new(),
            boot: "a".to_owned(),
            ..Saved::default()
        },
        "a",
        at(20),
    );
    for turn in 2..359 {
        assert!(second.observe(at(turn * 10), &flaps(200.0)).changes.is_empty(), "{turn}");
    }
    let over: Vec<Change> =
        (359..380).flat_map(|turn| second.observe(at(turn * 10), &flaps(200.0)).changes).collect();
    assert_eq!(codes(&over), [("cleared", "nic.symbol-errors".to_owned())]);
}

#[test]
fn other_rules_keep_what_they_counted_when_one_changes() {
    let mut engine = engine();
    engine.observe(at(0), &xid(31, "0000:1c:00", at(0), "a"));
    let change = super::super::rules::RuleOverride { limit: Some(9.0), ..Default::default() };
    let rules = Rules::configured(&BTreeMap::from([("gpu.temperature-margin".to_owned(), change)]))
        .unwrap();
    engine.reconfigure(rules, at(1));
    let again = engine.observe(at(900), &xid(31, "0000:1c:00", at(900), "a"));
    assert!(codes(&again.changes).contains(&("opened", "gpu.xid-app-repeated".to_owned())));
}

#[test]
fn the_drivers_word_holds_while_it_is_silent() {
    let mut engine = engine();
    engine.observe(at(0), &sample(gpu(0), Signal::GpuRowsPending, 1.0));
    engine.observe(at(1), &sample(gpu(0), Signal::GpuRecoveryAction, 2.0));
    let reading = Reading::Unreadable("GPU is lost".to_owned());
    let samples =
        vec![Sample { subject: gpu(0), signal: Signal::GpuRecoveryAction, reading, note: None }];
    engine.observe(at(2), &Batch { samples, ..Batch::default() });
    let pending = engine.findings().find(|it| it.code == "gpu.rows-pending").unwrap();
    assert_eq!(pending.action, Action::RebootNode);
}

/// What a journal would keep of it.
fn kept(engine: &mut Engine) -> Saved {
    Saved {
        findings: engine.findings().cloned().collect(),
        told: engine.take_told(),
        boot: "a".to_owned(),
        ..Saved::default()
    }
}

#[test]
fn a_reset_while_no_agent_runs_is_noticed_by_the_next() {
    let told = [
        (Signal::GpuRecoveryAction, 1.0, 0.0),
        (Signal::GpuEccCorrected, 12.0, 0.0),
        (Signal::GpuEnergy, 5_000.75, 17.5),
    ];
    for (signal, before, after) in told {
        let mut first = engine();
        first.observe(at(0), &sample(gpu(1), signal, before));
        first.observe(at(1), &xid(95, "0000:1c:00", at(1), "a"));
        let saved = kept(&mut first);
        assert!(!first.has_told());
        let mut same = engine();
        same.restore(saved.clone(), "a", at(5));
        let changes = same.observe(at(6), &sample(gpu(1), signal, before)).changes;
        assert!(!codes(&changes).iter().any(|(what, _)| *what == "cleared"), "{changes:?}");
        assert!(!same.has_told(), "{signal} is what it was");
        let mut reset = engine();
        reset.restore(saved.clone(), "a", at(5));
        let changes = reset.observe(at(6), &sample(gpu(1), signal, after)).changes;
        assert!(codes(&changes).contains(&("cleared", "gpu.xid".to_owned())), "{signal}");
        // What was told in another boot tells nothing of this one.
        let mut rebooted = engine();
        rebooted.restore(saved, "b", at(5));
        rebooted.observe(at(6), &xid(95, "0000:1c:00", at(6), "b"));
        let changes = rebooted.observe(at(7), &sample(gpu(1), signal, after)).changes;
        assert!(!codes(&changes).contains(&("cleared", "gpu.xid".to_owned())), "{signal}");
    }
}

#[test]
fn the_drivers_word_holds_after_a_restart_while_it_is_silent() {
    let mut first = engine();
    first.observe(at(0), &sample(gpu(0), Signal::GpuRowsPending, 1.0));
    first.observe(at(1), &sample(gpu(0), Signal::GpuRecoveryAction, 2.0));
    let mut second = engine();
    second.restore(kept(&mut first), "a", at(5));
    let changes = second.observe(at(6), &sample(gpu(1), Signal::GpuRowsPending, 0.0)).changes;
    assert_eq!(changes, []);
    let pending = second.findings().find(|it| it.code == "gpu.rows-pending").unwrap();
    assert_eq!(pending.action, Action::RebootNode);
    assert_eq!(pending.action_by, super::super::finding::ActionBy::Driver);
}

#[test]
fn what_is_graver_than_the_drivers_last_word_and_came_after_it_is_not_outranked() {
    use super::super::finding::ActionBy::{Driver, Rule};
    let action = |engine: &Engine, code: &str| {
        let finding = engine.findings().find(|it| it.code == code).unwrap();
        (finding.action, finding.action_by)
    };
    let mut first = engine();
    first.observe(at(0), &sample(gpu(0), Signal::GpuRowsPending, 1.0));
    first.observe(at(1), &sample(gpu(0), Signal::GpuRecoveryAction, 1.0));
    let reading = Reading::Unreadable("NVML_ERROR_GPU_IS_LOST".to_owned());
    let silent = Sample { subject: gpu(0), signal: Signal::GpuRecoveryAction, reading, note: None };
    let mut lost = sample(gpu(0), Signal::GpuLost, 1.0);
    lost.samples.push(silent);
    first.observe(at(2), &lost);
    assert_eq!(action(&first, "gpu.lost"), (Action::RebootNode, Rule));
    assert_eq!(action(&first, "gpu.rows-pending"), (Action::ResetGpu, Driver));
    let mut second = engine();
    second.restore(kept(&mut first), "a", at(5));
    second.observe(at(6), &lost);
    assert_eq!(action(&second, "gpu.lost"), (Action::RebootNode, Rule));
    // It speaks again, and knows best.
    first.observe(at(3), &sample(gpu(0), Signal::GpuRecoveryAction, 4.0));
    assert_eq!(action(&first, "gpu.lost"), (Action::ResetGpu, Driver));
}

#[test]
fn a_reboot_clears_what_it_mends() {
    let mut engine = engine();
    engine.observe(at(0), &sample(gpu(0), Signal::GpuEccUncorrected, 1.0));
    let findings: Vec<Finding> = engine.findings().cloned().collect();
    let saved = of_boot(findings, "a");
    let mut same = super::tests::engine();
    assert!(same.restore(saved.clone(), "a", at(5)).is_empty());
    assert_eq!(same.findings().count(), 1);
    let mut other = super::tests::engine();
    let changes = other.restore(saved, "b", at(5));
    assert_eq!(codes(&changes), [("cleared", "gpu.ecc-uncorrected".to_owned())]);
    assert_eq!(changes[0].finding().cleared.as_ref().unwrap().why, "the node was rebooted");
}

/// What a second boot begins with: GPUs 0 and 1 have rows that failed and fell off the bus twice.
fn saved_with_two_ill() -> Saved {
    let mut first = engine();
    let mut remembered = Vec::new();
    for (index, address) in ["0000:1b:00", "0000:1c:00"].into_iter().enumerate() {
        let ill = gpu(u32::try_from(index).unwrap());
        first.observe(at(0), &sample(ill, Signal::GpuRowsFailed, 1.0));
        for second in [10, 900] {
            let decision = first.observe(at(second), &xid(79, address, at(second), "a"));
            remembered.extend(decision.remembered);
        }
    }
    let findings: Vec<Finding> = first.findings().cloned().collect();
    let repeated = findings.iter().filter(|it| it.code == "gpu.bus-loss-repeated").count();
    assert_eq!(repeated, 2, "{findings:#?}");
    Saved { findings, next_id: 9, remembered, boot: "a".to_owned(), ..Saved::default() }
}

/// A moment of a boot that began some hours after the first.
fn of_second_boot(seconds: i64) -> Moment {
    Moment { steady_ms: seconds * 1000, wall: at(20_000 + seconds).wall }
}

fn counted(inventory: Vec<GpuIdentity>, on_bus: f64) -> Batch {
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

#[test]
fn a_gpu_that_was_replaced_takes_its_findings_along() {
    let mut engine = engine();
    engine.restore(saved_with_two_ill(), "b", of_second_boot(20));
    let mut replaced = inventory();
    replaced[0].uuid = GpuUuid("GPU-new".to_owned());
    let changes = engine.observe(of_second_boot(21), &counted(replaced, 8.0)).changes;
    let cleared: Vec<_> = changes.iter().map(Change::finding).collect();
    let codes: Vec<&str> = cleared.iter().map(|it| it.code.as_str()).collect();
    assert_eq!(codes, ["gpu.bus-loss-repeated", "gpu.rows-failed"]);
    for finding in cleared {
        assert_eq!(finding.subject, gpu(0));
        let why = &finding.cleared.as_ref().unwrap().why;
        assert_eq!(why, "the GPU was replaced, or is no longer in the node");
    }
    let left: Vec<_> = engine.findings().map(|it| it.subject.clone()).collect();
    assert_eq!(left, [gpu(1), gpu(1)], "another GPU's findings stay");
}

#[test]
fn a_gpu_that_is_only_not_listed_keeps_its_findings() {
    // One stands on the bus and is not opened; one stands there no more;
    // the bus was not read.
    let mut without = inventory();
    without.remove(0);
    let mut replaced = inventory();
    replaced[0].uuid = GpuUuid("GPU-new".to_owned());
    let unread = Batch { samples: Vec::new(), ..counted(replaced.clone(), 8.0) };
    let partial = [counted(without.clone(), 8.0), counted(without, 7.0), unread];
    for batch in partial {
        let mut engine = engine();
        engine.restore(saved_with_two_ill(), "b", of_second_boot(20));
        for second in 21..700 {
            engine.observe(of_second_boot(second), &batch);
        }
        let kept = engine.findings().filter(|it| it.subject == gpu(0)).count();
        assert_eq!(kept, 2, "{batch:?}");
    }
    let mut engine = engine();
    engine.observe(at(0), &sample(gpu(0), Signal::GpuRowsFailed, 1.0));
    engine.observe(at(1), &counted(replaced, 8.0));
    assert!(engine.findings().any(|it| it.code == "gpu.rows-failed"), "the node has not been off");
}

#[test]
fn another_part_that_is_not_seen_after_a_reboot_is_gone() {
    let port = Subject::Nic { device: "mlx5_0".to_owned(), port: 1 };
    let mut first = engine();
    first.observe(at(0), &sample(port.clone(), Signal::NicSymbolError, 0.0));
    first.observe(at(1), &sample(port, Signal::NicSymbolError, 200.0));
    let findings: Vec<Finding> = first.findings().cloned().collect();
    let saved = of_boot(findings, "a");
    let mut second = engine();
    assert!(second.restore(saved, "b", of_second_boot(20)).is_empty());
    assert!(second.observe(of_second_boot(619), &Batch::default()).changes.is_empty());
    let changes = second.observe(of_second_boot(620), &Batch::default()).changes;
    assert_eq!(codes(&changes), [("cleared", "nic.symbol-errors".to_owned())]);
}

#[test]
fn a_reboot_that_did_not_help_is_not_asked_for_again() {
    let mut first = engine();
    first.observe(at(0), &sample(gpu(0), Signal::GpuLost, 1.0));
    let action = |engine: &Engine| engine.findings().next().map(|it| it.action);
    assert_eq!(action(&first), Some(Action::RebootNode));
    let findings: Vec<Finding> = first.findings().cloned().collect();
    let mut second = engine();
    let changes = second.restore(of_boot(findings, "a"), "b", of_second_boot(20));
    assert_eq!(codes(&changes), [("updated", "gpu.lost".to_owned())]);
    assert_eq!(action(&second), Some(Action::Investigate), "whether it helped is not known yet");
    second.observe(of_second_boot(30), &sample(gpu(0), Signal::GpuLost, 1.0));
    let findings: Vec<Finding> = second.findings().cloned().collect();
    assert_eq!((findings[0].action, findings[0].severity), (Action::Investigate, Severity::Fatal));
    assert!(findings[0].text.ends_with("another reboot does not mend it."), "{}", findings[0].text);
    let mut restarted = engine();
    restarted.restore(of_boot(findings, "b"), "b", of_second_boot(40));
    let lost = |value| sample(gpu(0), Signal::GpuLost, value);
    assert!(restarted.observe(of_second_boot(41), &lost(1.0)).changes.is_empty());
    restarted.observe(of_second_boot(42), &lost(0.0));
    restarted.observe(of_second_boot(99), &lost(0.0));
    assert_eq!(action(&restarted), None);
    restarted.observe(of_second_boot(100), &lost(1.0));
    assert_eq!(action(&restarted), Some(Action::RebootNode), "it is another matter");
}

#[test]
fn a_memory_error_of_the_host_asks_for_a_module_and_ends_after_the_reboot_that_takes() {
    let errors = |value| sample(Subject::Node, Signal::NodeEdacUncorrected, value);
    let mut first = engine();
    first.observe(at(0), &errors(1.0));
    let findings: Vec<Finding> = first.findings().cloned().collect();
    assert_eq!(findings[0].action, Action::DrainAndReplace);
    let saved = of_boot(findings, "a");
    let mut second = engine();
    second.restore(saved, "b", of_second_boot(20));
    second.observe(of_second_boot(30), &errors(0.0));
    assert_eq!(second.findings().count(), 1);
    second.observe(of_second_boot(630), &errors(0.0));
    assert_eq!(second.findings().count(), 0);
}

#[test]
fn a_switch_that_restarts_asks_for_no_replacement_and_what_lasts_is_worse() {
    let port = Subject::Nic { device: "mlx5_0".to_owned(), port: 1 };
    let active = |value| sample(port.clone(), Signal::NicActive, value);
    let mut engine = engine();
    engine.observe(at(0), &active(1.0));
    for second in 1..600 {
        engine.observe(at(second), &active(0.0));
        let open: Vec<_> = engine.findings().map(|it| (it.code.as_str(), it.action)).collect();
        let expected = [("nic.down", Action::Investigate)];
        assert_eq!(open, &expected[..usize::from(second > 25)], "after {second} s");
    }
    for second in 600..=901 {
        engine.observe(at(second), &active(0.0));
    }
    let severity = |code: &str| engine.findings().find(|it| it.code == code).unwrap().severity;
    assert!(severity("nic.dropped") > severity("nic.down"));
}

#[test]
fn one_kill_for_want_of_memory_is_one_finding_whoever_tells_first() {
    let kills = |value| sample(Subject::Node, Signal::NodeOomKills, value);
    let line = "Out of memory: Killed process 4242 (python) total-vm:9kB, anon-rss:9kB\n";
    let open =
        |engine: &Engine| -> Vec<String> { engine.findings().map(|it| it.code.clone()).collect() };
    let mut by_log = engine();
    by_log.observe(at(0), &kills(0.0));
    by_log.observe(at(5), &logged(line, at(5), "a"));
    by_log.observe(at(10), &kills(1.0));
    assert_eq!(open(&by_log), ["host.kernel-error"]);
    let mut by_count = engine();
    by_count.observe(at(0), &kills(0.0));
    by_count.observe(at(10), &kills(1.0));
    assert_eq!(open(&by_count), ["host.out-of-memory"], "the log is not read");
    by_count.observe(at(11), &logged(line, at(11), "a"));
    by_count.observe(at(20), &kills(1.0));
    assert_eq!(open(&by_count), ["host.kernel-error"]);
}

#[test]
fn a_link_that_is_down_is_not_slow_as_well() {
    let mut engine = engine();
    let link = |number, signal, value| {
        let subject = Subject::Link { gpu: GpuUuid("GPU-0".to_owned()), link: number };
        sample(subject, signal, value).samples
    };
    for turn in 0..30 {
        let mut batch = Batch { inventory: Some(inventory()), ..Batch::default() };
        for number in 0..6 {
            let (is_up, speed) = [(0.0, 0.0), (1.0, 13_000.0), (1.0, 26_562.0)]
                [usize::try_from(number).unwrap().min(2)];
            batch.samples.extend(link(number, Signal::LinkActive, is_up));
            batch.samples.extend(link(number, Signal::LinkSpeed, speed));
        }
        engine.observe(at(turn * 10), &batch);
    }
    let open: Vec<_> =
        engine.findings().map(|it| (it.code.as_str(), it.subject.to_string())).collect();
    assert_eq!(
        open,
        [("link.down", "GPU-0/link0".to_owned()), ("link.slow", "GPU-0/link1".to_owned())]
    );
}

#[test]
fn a_check_is_open_until_it_finds_nothing() {
    let mut engine = engine();
    let item = CheckItem {
        code: "module-differs-from-disk".to_owned(),
        severity: Severity::Critical,
        action: Action::RebootNode,
        text: "loaded 1, on disk 2".to_owned(),
        remedy: Some("load it: `modprobe nvidia`".to_owned()),
    };
    let other = CheckItem { text: "and on another disk 3".to_owned(), ..item.clone() };
    let wrong = Batch { checks: Some(vec![item.clone()]), ..Batch::default() };
    let both = Batch { checks: Some(vec![item, other]), ..Batch::default() };
    let opened = engine.observe(at(0), &wrong).changes;
    assert_eq!(codes(&opened), [("opened", "check".to_owned())]);
    assert_eq!(opened[0].finding().remedy.as_deref(), Some("load it: `modprobe nvidia`"));
    assert!(engine.observe(at(60), &wrong).changes.is_empty());
    assert!(engine.observe(at(61), &Batch::default()).changes.is_empty(), "no check was made");
    assert_eq!(codes(&engine.observe(at(62), &both).changes), [("updated", "check".to_owned())]);
    assert!(engine.findings().next().unwrap().text.ends_with("on disk 2; and on another disk 3"));
    let right = Batch { checks: Some(Vec::new()), ..Batch::default() };
    assert_eq!(codes(&engine.observe(at(120), &right).changes), [("cleared", "check".to_owned())]);
}

#[test]
fn rules_can_be_changed_while_findings_are_open() {
    let mut engine = engine();
    engine.observe(at(0), &sample(gpu(0), Signal::GpuRowsFailed, 1.0));
    let off = BTreeMap::from([(
        "gpu.rows-failed".to_owned(),
        super::super::rules::RuleOverride { enabled: Some(false), ..Default::default() },
    )]);
    let changes = engine.reconfigure(Rules::configured(&off).unwrap(), at(1));
    assert_eq!(codes(&changes), [("cleared", "gpu.rows-failed".to_owned())]);
    let wrong = BTreeMap::from([
        ("gpu.rows-faild".to_owned(), super::super::rules::RuleOverride::default()),
        (
            "gpu.xid".to_owned(),
            super::super::rules::RuleOverride { limit: Some(3.0), ..Default::default() },
        ),
    ]);
    let flag = super::super::rules::RuleOverride { limit: Some(5.0), ..Default::default() };
    let wrong: BTreeMap<_, _> = wrong.into_iter().chain([("gpu.lost".to_owned(), flag)]).collect();
    let errors = Rules::configured(&wrong).unwrap_err();
    assert_eq!(errors.len(), 3, "all are said");
    assert!(errors.iter().any(|err| err.to_string().contains("did you mean `gpu.rows-failed`?")));
}

#[test]
fn with_too_few_peers_a_comparison_is_not_watched() {
    for (gpus, is_watched) in [(3, false), (4, true)] {
        let mut engine = engine();
        let width = |index| Sample {
            subject: gpu(index),
            signal: Signal::GpuPcieWidth,
            reading: Reading::Value(if index == 0 { 8.0 } else { 16.0 }),
            note: None,
        };
        let samples: Vec<Sample> = (0..gpus).map(width).collect();
        let batch = Batch { inventory: Some(inventory()), samples, ..Batch::default() };
        let opened = (0..200).any(|second| !engine.observe(at(second), &batch).changes.is_empty());
        assert_eq!(opened, is_watched, "{gpus}");
        let coverage = engine.coverage();
        assert_eq!(coverage.watched.contains_key("gpu.pcie-below-peers"), is_watched);
        assert_eq!(coverage.alone.contains_key("gpu.pcie-below-peers"), !is_watched);
    }
}

#[test]
fn a_link_that_is_down_is_not_also_slow() {
    let mut engine = engine();
    let link = |link, signal, value| Sample {
        subject: Subject::Link { gpu: GpuUuid("GPU-0".to_owned()), link },
        signal,
        reading: Reading::Value(value),
        note: None,
    };
    let speeds = [0.0, 13_000.0, 26_562.0, 26_562.0, 26_562.0, 26_562.0];
    let samples: Vec<Sample> = (0..)
        .zip(speeds)
        .flat_map(|(number, speed)| {
            let active = f64::from(u8::from(speed > 0.0));
            let speed = link(number, Signal::LinkSpeed, speed);
            [link(number, Signal::LinkActive, active), speed]
        })
        .collect();
    let batch = Batch { inventory: Some(inventory()), samples, ..Batch::default() };
    for second in 0..120 {
        engine.observe(at(second), &batch);
    }
    let found: Vec<_> = engine.findings().map(|it| (it.code.as_str(), &it.subject)).collect();
    let of = |number| Subject::Link { gpu: GpuUuid("GPU-0".to_owned()), link: number };
    assert_eq!(found, [("link.down", &of(0)), ("link.slow", &of(1))]);
}

#[test]
fn every_signal_that_tells_of_trouble_is_watched() {
    // Counters and flags that no rule looks at, and why.
    let excused = [
        (Signal::GpuEnergy, "work, not trouble"),
        (
            Signal::GpuHeldSyncBoost,
            "a slower GPU of the group holds this one; that one is looked at",
        ),
        (Signal::GpuEccUncorrectedLifetime, "what is past; since the last load it is judged"),
        (Signal::GpuRowsCorrected, "put right; only uncorrectable rows call for somebody"),
        (Signal::GpuPagesSingle, "judged as a sum with the double ones"),
        (Signal::GpuAerCorrectable, "put right; the card's own replay counter is judged"),
        (Signal::GpuOnBus, "the count of GPUs on the bus is judged"),
        (Signal::GpuMigEnabled, "a setting"),
        (Signal::NicReceiveErrors, "grows with every unplugged peer; shown"),
        (Signal::NicTransmitDiscards, "grows with congestion; shown"),
    ];
    let rules = Rules::embedded().unwrap_or_else(|err| panic!("{err}"));
    let watched: Vec<Signal> =
        rules.iter().flat_map(|rule| rule.when.iter().map(|it| it.signal)).collect();
    for signal in Signal::ALL {
        use super::super::signal::Behaviour::{Counter, Flag};
        let tells = matches!(signal.behaviour(), Counter | Flag);
        let is_excused = excused.iter().any(|(it, _)| it == signal);
        assert_eq!(tells && !watched.contains(signal), is_excused, "{signal}");
    }
}

/// An engine that goes on in boot `a`.
fn started(saved: Saved, now: Moment) -> Engine {
    let mut engine = engine();
    engine.restore(saved, "a", now);
    engine
}

#[test]
fn a_clock_that_was_set_makes_nothing_a_matter_of_another_boot() {
    let lost = |value| sample(gpu(0), Signal::GpuLost, value);
    let mut first = started(of_boot(Vec::new(), "a"), at(0));
    first.observe(at(10), &nvlink_fatal(at(10), "a"));
    first.observe(at(11), &lost(1.0));
    first.observe(at(12), &xid(31, "0000:1d:00", at(12), "a"));
    let findings: Vec<Finding> = first.findings().cloned().collect();
    assert_eq!(findings.len(), 3);
    // It was ten hours behind, and is set; then the agent is started anew.
    let set = |seconds: i64| Moment { wall: at(seconds + 36_000).wall, ..at(seconds) };
    let mut second = started(of_boot(findings, "a"), set(20));
    let changes = second.observe(set(21), &lost(1.0)).changes;
    assert!(changes.is_empty(), "nobody rebooted the node: {changes:?}");
    let action =
        |engine: &Engine| engine.findings().find(|it| it.code == "gpu.lost").unwrap().action;
    assert_eq!(action(&second), Action::RebootNode);
    assert!(second.observe(set(3611), &Batch::default()).changes.is_empty(), "nor was it quiet");
    let over = second.observe(set(3612), &Batch::default()).changes;
    let over: Vec<&str> = over.iter().map(|it| it.finding().detail.as_str()).collect();
    assert_eq!(over, ["Xid 31"]);
    assert!(second.observe(set(90_000), &Batch::default()).changes.is_empty());
}

#[test]
fn what_an_older_agent_kept_goes_by_the_wall_clock() {
    let mut first = started(of_boot(Vec::new(), "a"), at(0));
    first.observe(at(12), &xid(31, "0000:1d:00", at(12), "a"));
    let strip = |finding: &Finding| Finding { opened_in: None, last_in: None, ..finding.clone() };
    let findings: Vec<Finding> = first.findings().map(strip).collect();
    let text = serde_json::to_string(&findings).unwrap();
    assert!(!text.contains("_in\""), "{text}");
    let mut second = started(of_boot(findings, "a"), at(20));
    assert!(second.observe(at(3611), &Batch::default()).changes.is_empty());
    assert_eq!(second.observe(at(3612), &Batch::default()).changes.len(), 1);
}

#[test]
fn what_still_holds_after_a_reboot_is_kept_as_seen_in_that_boot() {
    let replays = |value| {
        let mut batch = sample(gpu(0), Signal::GpuPcieReplays, value);
        batch.samples.extend(sample(gpu(0), Signal::GpuPcieReplayLimit, 8.0).samples);
        batch
    };
    let mut first = started(of_boot(Vec::new(), "a"), at(0));
    first.observe(at(0), &replays(0.0));
    first.observe(at(60), &replays(100.0));
    let findings: Vec<Finding> = first.findings().cloned().collect();
    let mut second = engine();
    second.restore(of_boot(findings, "a"), "b", of_second_boot(20));
    let mut changes = Vec::new();
    for turn in 2..20_i32 {
        let when = of_second_boot(i64::from(turn) * 10);
        changes.extend(second.observe(when, &replays(100.0 * f64::from(turn))).changes);
    }
    assert_eq!(codes(&changes), [("updated", "gpu.pcie-replays".to_owned())], "once a boot");
    let kept = changes[0].finding().clone();
    let mut third = engine();
    third.restore(of_boot(vec![kept], "b"), "b", of_second_boot(200));
    for turn in 21..300 {
        third.observe(of_second_boot(turn * 10), &replays(2000.0));
    }
    assert_eq!(third.findings().count(), 1, "it was seen in this boot and waits for the next");
}

#[test]
fn a_finding_is_over_when_its_time_is_and_not_with_the_next_value() {
    let mut engine = engine();
    let stuck = |value| sample(gpu(0), Signal::NodeCallsStuck, value);
    engine.observe(at(0), &stuck(1.0));
    engine.observe(at(5), &stuck(0.0));
    assert!(engine.observe(at(14), &Batch::default()).changes.is_empty());
    let over = engine.observe(at(15), &Batch::default()).changes;
    assert_eq!(codes(&over), [("cleared", "driver.unresponsive".to_owned())]);
    assert!(engine.findings().next().is_none());
}

#[test]
fn a_gpu_that_left_the_list_is_still_the_one_at_its_address() {
    let mut engine = engine();
    let counted =
        |listed: &[GpuIdentity]| Batch { inventory: Some(listed.to_vec()), ..Batch::default() };
    let line = |when| Batch { inventory: None, ..xid(79, "0000:1c:00", when, "a") };
    engine.observe(at(0), &counted(&inventory()));
    engine.observe(at(1), &line(at(1)));
    let mut without = inventory();
    let left = without.remove(1);
    engine.observe(at(2), &counted(&without));
    engine.observe(at(3), &counted(&without));
    engine.observe(at(4), &line(at(4)));
    let found: Vec<_> = engine.findings().map(|it| (it.subject.clone(), it.count)).collect();
    assert_eq!(found, [(gpu(1), 2)]);
    assert_eq!(engine.gpu_at("0000:1c:00"), Some(left.uuid.clone()));
    // Where another stands there now it is that one's.
    let mut other = inventory();
    other[1].uuid = GpuUuid("GPU-new".to_owned());
    engine.observe(at(5), &counted(&other));
    assert_eq!(engine.gpu_at("0000:1c:00.0"), Some(GpuUuid("GPU-new".to_owned())));
    // An agent that starts anew is told.
    let mut second = super::tests::engine();
    second.know(&without, &[left]);
    second.observe(at(6), &line(at(6)));
    assert_eq!(second.findings().next().unwrap().subject, gpu(1));
}

#[test]
fn a_gpu_of_which_no_call_reads_anything_is_found_unless_it_is_told_of_otherwise() {
    let unreadable = |down: Option<(Signal, Reading<f64>)>| {
        let why = || Reading::Unreadable("NVML_ERROR_UNKNOWN".to_owned());
        let mut readings = vec![
            (Signal::GpuLost, Reading::Value(0.0)),
            (Signal::GpuTemperature, why()),
            (Signal::GpuPower, why()),
        ];
        readings.extend(down);
        let sample = |(signal, reading)| Sample { subject: gpu(1), signal, reading, note: None };
        let samples = readings.into_iter().map(sample).collect();
        Batch { inventory: Some(inventory()), samples, ..Batch::default() }
    };
    let found = |down: Option<(Signal, Reading<f64>)>| {
        let mut engine = engine();
        engine.observe(at(0), &sample(gpu(1), Signal::GpuTemperature, 40.0));
        for second in 1..31 {
            engine.observe(at(second), &unreadable(down.clone()));
            assert!(!engine.findings().any(|it| it.code == "gpu.unreadable"), "{second}");
        }
        engine.observe(at(31), &unreadable(down));
        engine.findings().any(|it| it.code == "gpu.unreadable")
    };
    assert!(found(None));
    assert!(!found(Some((Signal::GpuLost, Reading::Value(1.0)))));
    assert!(!found(Some((Signal::GpuResetRequired, Reading::Value(1.0)))));
    assert!(!found(Some((Signal::NodeCallsStuck, Reading::Value(1.0)))));
    let silent = Reading::Unreadable("NVML does not answer".to_owned());
    assert!(!found(Some((Signal::GpuLost, silent))));
    assert!(!found(Some((Signal::GpuTemperature, Reading::Value(41.0)))), "one call is enough");
}

fn configured(changes: &[(&str, super::super::rules::RuleOverride)]) -> Rules {
    let changes = changes.iter().map(|(code, change)| ((*code).to_owned(), change.clone()));
    Rules::configured(&changes.collect()).unwrap_or_else(|errors| panic!("{errors:?}"))
}

#[test]
fn a_configuration_may_speak_of_one_xid_and_not_of_the_others() {
    use super::super::rules::RuleOverride;
    let less = RuleOverride { severity: Some(Severity::Warning), ..RuleOverride::default() };
    let off = RuleOverride { enabled: Some(false), ..RuleOverride::default() };
    let rules = configured(&[("gpu.xid.95", less.clone()), ("gpu.xid.31", off.clone())]);
    let facts = XidFacts::clone(&FactSet::embedded().xids);
    let mut engine = Engine::new(rules, facts);
    for (second, number) in [(1, 95), (2, 48), (3, 31)] {
        engine.observe(at(second), &xid(number, "0000:1c:00", at(second), "a"));
    }
    let found: Vec<_> = engine
        .findings()
        .filter(|it| it.code == "gpu.xid")
        .map(|it| (it.detail.as_str(), it.severity, it.own_severity))
        .collect();
    let expected = [
        ("Xid 48", Severity::Critical, None),
        ("Xid 95", Severity::Warning, Some(Severity::Fatal)),
    ];
    assert_eq!(found[1], expected[1]);
    assert_eq!((found.len(), found[0].0, found[0].2), (2, expected[0].0, None));
    // One that is passed over from now on takes its finding along; the rule itself may be off as well.
    let changes = engine.reconfigure(configured(&[("gpu.xid.95", off.clone())]), at(4));
    assert_eq!(codes(&changes), [("cleared", "gpu.xid".to_owned())]);
    configured(&[("gpu.xid", off), ("gpu.xid.95", less)]);
    let limit = RuleOverride { limit: Some(3.0), ..RuleOverride::default() };
    for wrong in ["gpu.xid.95", "gpu.lost.95", "gpu.xid.x", "gpu.xid-app-repeated.31"] {
        assert!(Rules::configured(&[(wrong.to_owned(), limit.clone())].into()).is_err(), "{wrong}");
    }
}

#[test]
fn what_there_is_no_room_for_is_counted() {
    let mut first = engine();
    first.observe(at(0), &xid(79, "0000:1c:00", at(0), "a"));
    let one = first.findings().next().unwrap().clone();
    let findings = (0..4096).map(|id| Finding { id, detail: format!("Xid {id}"), ..one.clone() });
    let mut engine = started(of_boot(findings.collect(), "a"), at(1));
    engine.observe(at(2), &xid(79, "0000:1c:00", at(2), "a"));
    assert_eq!(engine.dropped(), 0, "that one is open");
    engine.observe(at(2), &xid(79, "0000:1d:00", at(2), "a"));
    assert_eq!((engine.findings().count(), engine.dropped()), (4096, 1));
    let dropped = |value| sample(Subject::Agent, Signal::AgentFindingsDropped, value);
    engine.observe(at(2), &dropped(0.0));
    engine.observe(at(3), &dropped(900.0));
    assert!(engine.findings().any(|it| it.code == "agent.findings-dropped"));
}

#[test]
fn values_that_were_copied_stay_as_they_were() {
    let mut engine = engine();
    let hot = |number, value| sample(gpu(number), Signal::GpuTemperature, value);
    let read = |latest: &Latest| -> Vec<(Subject, f64)> {
        let of = |(subject, values): (&Subject, &SignalValues)| {
            let found = values.iter().find(|(signal, _)| *signal == Signal::GpuTemperature);
            Some((subject.clone(), *found?.1.value()?))
        };
        latest.iter().filter_map(of).collect()
    };
    engine.observe(at(0), &hot(1, 40.0));
    let copied = engine.latest().clone();
    engine.observe(at(1), &hot(1, 50.0));
    engine.observe(at(2), &hot(0, 60.0));
    assert_eq!(read(&copied), [(gpu(1), 40.0)]);
    assert!(copied.get(&gpu(0)).is_none());
    assert_eq!(read(engine.latest()), [(gpu(0), 60.0), (gpu(1), 50.0)]);
    assert_eq!(engine.latest().get(&gpu(0)).map(Vec::len), Some(2), "with gpu.unreadable");
}
