//! Agent restarts, resets and reboots: which findings and counts survive.

use super::*;

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
    let add_seconds = engine.observe(at(90_000), &sample(gpu(1), Signal::GpuEccCorrected, 12.0));
    assert!(add_seconds.changes.is_empty(), "{:?}", add_seconds.changes);
    let finding = engine.findings().next().unwrap();
    assert!(finding.clears.contains("counters start anew"), "{}", finding.clears);
    let reset = engine.observe(at(90_010), &sample(gpu(1), Signal::GpuEccCorrected, 0.0)).changes;
    assert_eq!(codes(&reset), [("cleared", "gpu.xid".to_owned())]);
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
        "when the GPU is replaced, a person has it repaired (`farrier fleet repaired`), or, once the node is rebooted, after 1 h without another"
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
        // Values from another boot say nothing about this one.
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
    assert_eq!(pending.action_by, crate::health::finding::ActionBy::Driver);
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
    // One GPU is on the bus but not opened; one has left the bus; the bus was not read.
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
fn a_clock_that_was_set_makes_nothing_a_matter_of_another_boot() {
    let lost = |value| sample(gpu(0), Signal::GpuLost, value);
    let mut first = started(of_boot(Vec::new(), "a"), at(0));
    first.observe(at(10), &nvlink_fatal(at(10), "a"));
    first.observe(at(11), &lost(1.0));
    first.observe(at(12), &xid(31, "0000:1d:00", at(12), "a"));
    let findings: Vec<Finding> = first.findings().cloned().collect();
    assert_eq!(findings.len(), 3);
    // The clock was ten hours behind and is set; then the agent restarts.
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
