//! Restarts of the agent, resets and reboots: which findings and counts survive them.

use super::*;

#[test]
fn repeats_are_counted_across_restarts_and_reboots() {
    let mut stored_events = Vec::new();
    let mut saved = EngineSnapshot::default();
    for (turn, boot) in ["a", "b", "c"].into_iter().enumerate() {
        let mut engine = engine();
        let now = at(i64::try_from(turn).unwrap() * 4000);
        let restored = engine.restore(saved.clone(), boot, now);
        let cleared = usize::from(turn > 0);
        assert_eq!(restored.len(), cleared, "the requested reboot clears it");
        let decision = engine.observe(now, &xid(95, "0000:1c:00", now, boot));
        stored_events.extend(decision.events_to_store);
        let open: Vec<Finding> = engine.findings().cloned().collect();
        let after = open.iter().any(|finding| finding.code == "gpu.xid-after-reboots");
        assert_eq!(after, turn == 2, "{boot}");
        assert!(open.iter().filter(|finding| finding.code == "gpu.xid").count() == 1);
        saved = EngineSnapshot {
            findings: open,
            stored_events: stored_events.clone(),
            boot: boot.to_owned(),
            ..EngineSnapshot::default()
        };
    }
}

#[test]
fn a_finding_that_needs_a_reset_does_not_clear_by_time() {
    let mut engine = engine();
    engine.observe(at(0), &sample(gpu(1), Signal::GpuEccCorrected, 12.0));
    engine.observe(at(1), &xid(119, "0000:1c:00", at(1), "a"));
    let later = engine.observe(at(90_000), &sample(gpu(1), Signal::GpuEccCorrected, 12.0));
    assert!(later.changes.is_empty(), "{:?}", later.changes);
    let finding = engine.findings().next().unwrap();
    assert!(finding.clears_when.contains("counters are reset"), "{}", finding.clears_when);
    let reset = engine.observe(at(90_010), &sample(gpu(1), Signal::GpuEccCorrected, 0.0)).changes;
    assert_eq!(codes(&reset), [("cleared", "gpu.xid".to_owned())]);
}

#[test]
fn a_finding_that_needs_a_replacement_clears_only_after_a_quiet_reboot() {
    let mut first = engine();
    first.observe(at(0), &nvlink_fatal(at(0), "a"));
    first.observe(at(1), &sample(gpu(1), Signal::GpuEccCorrected, 12.0));
    first.observe(at(2), &sample(gpu(1), Signal::GpuEccCorrected, 0.0));
    assert!(
        first.observe(at(18_000), &Batch::default()).changes.is_empty(),
        "a reset does not clear it"
    );
    let findings: Vec<Finding> = first.findings().cloned().collect();
    assert_eq!(
        findings[0].clears_when,
        "when the GPU is replaced, a manual repair is reported (`farrier fleet repaired`), or, once the node is rebooted, after 1 h without another event"
    );
    let saved = saved_in_boot(findings, "a");
    let mut second = engine();
    assert!(second.restore(saved, "b", second_boot(20)).is_empty());
    assert!(second.observe(second_boot(3599), &Batch::default()).changes.is_empty());
    let over = second.observe(second_boot(3600), &Batch::default()).changes;
    assert_eq!(codes(&over), [("cleared", "gpu.xid".to_owned())]);
}

#[test]
fn a_counter_that_stops_growing_does_not_replace_a_card() {
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
    let saved = saved_in_boot(vec![finding.clone()], "a");
    let mut second = super::tests::engine();
    second.restore(saved, "b", second_boot(20));
    let over: Vec<Change> = (2..30)
        .flat_map(|turn| second.observe(second_boot(turn * 10), &replays(0.0)).changes)
        .collect();
    assert_eq!(codes(&over), [("cleared", "gpu.pcie-replays".to_owned())]);
}

#[test]
fn a_reset_restarts_windows() {
    let mut engine = engine();
    let fatal = |value| sample(gpu(0), Signal::GpuAerFatal, value);
    engine.observe(at(0), &fatal(0.0));
    assert_eq!(
        codes(&engine.observe(at(10), &fatal(1.0)).changes),
        [("opened", "gpu.pcie-fatal".to_owned())]
    );
    engine.observe(at(20), &sample(gpu(0), Signal::GpuRecoveryAction, 1.0));
    engine.observe(at(30), &sample(gpu(0), Signal::GpuRecoveryAction, 0.0));
    assert!(!engine.findings().any(|finding| finding.code == "gpu.pcie-fatal"));
    engine.observe(at(40), &fatal(1.0));
    assert!(
        !engine.findings().any(|finding| finding.code == "gpu.pcie-fatal"),
        "the error counts once"
    );
}

#[test]
fn a_restart_does_not_clear_findings_within_their_window() {
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
        EngineSnapshot {
            findings,
            next_id: 1,
            stored_events: Vec::new(),
            boot: "a".to_owned(),
            ..EngineSnapshot::default()
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
fn a_reset_while_the_agent_is_stopped_is_detected() {
    let signals = [
        (Signal::GpuRecoveryAction, 1.0, 0.0),
        (Signal::GpuEccCorrected, 12.0, 0.0),
        (Signal::GpuEnergy, 5_000.75, 17.5),
    ];
    for (signal, before, after) in signals {
        let mut first = engine();
        first.observe(at(0), &sample(gpu(1), signal, before));
        first.observe(at(1), &xid(95, "0000:1c:00", at(1), "a"));
        let saved = journalled(&mut first);
        assert!(!first.has_recovery_signals());
        let mut same = engine();
        same.restore(saved.clone(), "a", at(5));
        let changes = same.observe(at(6), &sample(gpu(1), signal, before)).changes;
        assert!(!codes(&changes).iter().any(|(what, _)| *what == "cleared"), "{changes:?}");
        assert!(!same.has_recovery_signals(), "{signal} did not change");
        let mut reset = engine();
        reset.restore(saved.clone(), "a", at(5));
        let changes = reset.observe(at(6), &sample(gpu(1), signal, after)).changes;
        assert!(codes(&changes).contains(&("cleared", "gpu.xid".to_owned())), "{signal}");
        // Values from another boot say nothing about this boot.
        let mut rebooted = engine();
        rebooted.restore(saved, "b", at(5));
        rebooted.observe(at(6), &xid(95, "0000:1c:00", at(6), "b"));
        let changes = rebooted.observe(at(7), &sample(gpu(1), signal, after)).changes;
        assert!(!codes(&changes).contains(&("cleared", "gpu.xid".to_owned())), "{signal}");
    }
}

#[test]
fn the_drivers_action_applies_after_a_restart_while_it_is_unreadable() {
    let mut first = engine();
    first.observe(at(0), &sample(gpu(0), Signal::GpuRowsPending, 1.0));
    first.observe(at(1), &sample(gpu(0), Signal::GpuRecoveryAction, 2.0));
    let mut second = engine();
    second.restore(journalled(&mut first), "a", at(5));
    let changes = second.observe(at(6), &sample(gpu(1), Signal::GpuRowsPending, 0.0)).changes;
    assert_eq!(changes, []);
    let pending = second.findings().find(|finding| finding.code == "gpu.rows-pending").unwrap();
    assert_eq!(pending.action, Action::RebootNode);
    assert_eq!(pending.action_by, crate::health::finding::ActionBy::Driver);
}

#[test]
fn a_reboot_clears_findings_that_wait_for_one() {
    let mut engine = engine();
    engine.observe(at(0), &sample(gpu(0), Signal::GpuEccUncorrected, 1.0));
    let findings: Vec<Finding> = engine.findings().cloned().collect();
    let saved = saved_in_boot(findings, "a");
    let mut same = super::tests::engine();
    assert!(same.restore(saved.clone(), "a", at(5)).is_empty());
    assert_eq!(same.findings().count(), 1);
    let mut other = super::tests::engine();
    let changes = other.restore(saved, "b", at(5));
    assert_eq!(codes(&changes), [("cleared", "gpu.ecc-uncorrected".to_owned())]);
    assert_eq!(changes[0].finding().cleared.as_ref().unwrap().reason, "the node was rebooted");
}

#[test]
fn findings_of_a_replaced_gpu_clear() {
    let mut engine = engine();
    engine.restore(saved_with_two_faulty_gpus(), "b", second_boot(20));
    let mut replaced = inventory();
    replaced[0].uuid = GpuUuid("GPU-new".to_owned());
    let changes = engine.observe(second_boot(21), &gpu_counts(replaced, 8.0)).changes;
    let cleared: Vec<_> = changes.iter().map(Change::finding).collect();
    let codes: Vec<&str> = cleared.iter().map(|finding| finding.code.as_str()).collect();
    assert_eq!(codes, ["gpu.bus-loss-repeated", "gpu.rows-failed"]);
    for finding in cleared {
        assert_eq!(finding.subject, gpu(0));
        let why = &finding.cleared.as_ref().unwrap().reason;
        assert_eq!(why, "the GPU was replaced, or is no longer in the node");
    }
    let remaining: Vec<_> = engine.findings().map(|finding| finding.subject.clone()).collect();
    assert_eq!(remaining, [gpu(1), gpu(1)], "another GPU's findings stay");
}

#[test]
fn findings_of_an_unlisted_gpu_stay_open() {
    // First a GPU is on the bus but not opened by NVML, then a GPU has left the bus, then the bus
    // was not read.
    let mut without = inventory();
    without.remove(0);
    let mut replaced = inventory();
    replaced[0].uuid = GpuUuid("GPU-new".to_owned());
    let unread = Batch { samples: Vec::new(), ..gpu_counts(replaced.clone(), 8.0) };
    let partial = [gpu_counts(without.clone(), 8.0), gpu_counts(without, 7.0), unread];
    for batch in partial {
        let mut engine = engine();
        engine.restore(saved_with_two_faulty_gpus(), "b", second_boot(20));
        for second in 21..700 {
            engine.observe(second_boot(second), &batch);
        }
        let open = engine.findings().filter(|finding| finding.subject == gpu(0)).count();
        assert_eq!(open, 2, "{batch:?}");
    }
    let mut engine = engine();
    engine.observe(at(0), &sample(gpu(0), Signal::GpuRowsFailed, 1.0));
    engine.observe(at(1), &gpu_counts(replaced, 8.0));
    assert!(
        engine.findings().any(|finding| finding.code == "gpu.rows-failed"),
        "the node has not been off"
    );
}

#[test]
fn findings_of_a_component_missing_after_a_reboot_clear() {
    let port = Subject::Nic { device: "mlx5_0".to_owned(), port: 1 };
    let mut first = engine();
    first.observe(at(0), &sample(port.clone(), Signal::NicSymbolError, 0.0));
    first.observe(at(1), &sample(port, Signal::NicSymbolError, 200.0));
    let findings: Vec<Finding> = first.findings().cloned().collect();
    let saved = saved_in_boot(findings, "a");
    let mut second = engine();
    assert!(second.restore(saved, "b", second_boot(20)).is_empty());
    assert!(second.observe(second_boot(619), &Batch::default()).changes.is_empty());
    let changes = second.observe(second_boot(620), &Batch::default()).changes;
    assert_eq!(codes(&changes), [("cleared", "nic.symbol-errors".to_owned())]);
}

#[test]
fn a_reboot_that_did_not_help_is_not_requested_again() {
    let mut first = engine();
    first.observe(at(0), &sample(gpu(0), Signal::GpuLost, 1.0));
    let action = |engine: &Engine| engine.findings().next().map(|finding| finding.action);
    assert_eq!(action(&first), Some(Action::RebootNode));
    let findings: Vec<Finding> = first.findings().cloned().collect();
    let mut second = engine();
    let changes = second.restore(saved_in_boot(findings, "a"), "b", second_boot(20));
    assert_eq!(codes(&changes), [("updated", "gpu.lost".to_owned())]);
    assert_eq!(action(&second), Some(Action::Investigate), "it is not known yet whether it helped");
    second.observe(second_boot(30), &sample(gpu(0), Signal::GpuLost, 1.0));
    let findings: Vec<Finding> = second.findings().cloned().collect();
    assert_eq!((findings[0].action, findings[0].severity), (Action::Investigate, Severity::Fatal));
    assert!(findings[0].text.ends_with("another reboot does not help."), "{}", findings[0].text);
    let mut third = engine();
    third.restore(saved_in_boot(findings, "b"), "b", second_boot(40));
    let lost = |value| sample(gpu(0), Signal::GpuLost, value);
    assert!(third.observe(second_boot(41), &lost(1.0)).changes.is_empty());
    third.observe(second_boot(42), &lost(0.0));
    third.observe(second_boot(99), &lost(0.0));
    assert_eq!(action(&third), None);
    third.observe(second_boot(100), &lost(1.0));
    assert_eq!(action(&third), Some(Action::RebootNode), "a new fault");
}

#[test]
fn a_host_memory_error_clears_after_the_reboot_for_a_replacement() {
    let errors = |value| sample(Subject::Node, Signal::NodeEdacUncorrected, value);
    let mut first = engine();
    first.observe(at(0), &errors(1.0));
    let findings: Vec<Finding> = first.findings().cloned().collect();
    assert_eq!(findings[0].action, Action::DrainAndReplace);
    let saved = saved_in_boot(findings, "a");
    let mut second = engine();
    second.restore(saved, "b", second_boot(20));
    second.observe(second_boot(30), &errors(0.0));
    assert_eq!(second.findings().count(), 1);
    second.observe(second_boot(630), &errors(0.0));
    assert_eq!(second.findings().count(), 0);
}

#[test]
fn a_wall_clock_step_does_not_look_like_a_reboot() {
    let lost = |value| sample(gpu(0), Signal::GpuLost, value);
    let mut first = restarted(saved_in_boot(Vec::new(), "a"), at(0));
    first.observe(at(10), &nvlink_fatal(at(10), "a"));
    first.observe(at(11), &lost(1.0));
    first.observe(at(12), &xid(31, "0000:1d:00", at(12), "a"));
    let findings: Vec<Finding> = first.findings().cloned().collect();
    assert_eq!(findings.len(), 3);
    // The clock was ten hours behind and is corrected. Then the agent restarts.
    let set = |seconds: i64| Moment { wall: at(seconds + 36_000).wall, ..at(seconds) };
    let mut second = restarted(saved_in_boot(findings, "a"), set(20));
    let changes = second.observe(set(21), &lost(1.0)).changes;
    assert!(changes.is_empty(), "the node was not rebooted: {changes:?}");
    let action = |engine: &Engine| {
        engine.findings().find(|finding| finding.code == "gpu.lost").unwrap().action
    };
    assert_eq!(action(&second), Action::RebootNode);
    assert!(
        second.observe(set(3611), &Batch::default()).changes.is_empty(),
        "the quiet period is not over"
    );
    let over = second.observe(set(3612), &Batch::default()).changes;
    let over: Vec<&str> = over.iter().map(|change| change.finding().detail.as_str()).collect();
    assert_eq!(over, ["Xid 31"]);
    assert!(second.observe(set(90_000), &Batch::default()).changes.is_empty());
}

#[test]
fn findings_of_older_agents_use_the_wall_clock() {
    let mut first = restarted(saved_in_boot(Vec::new(), "a"), at(0));
    first.observe(at(12), &xid(31, "0000:1d:00", at(12), "a"));
    let strip = |finding: &Finding| Finding { opened_in: None, last_in: None, ..finding.clone() };
    let findings: Vec<Finding> = first.findings().map(strip).collect();
    let text = serde_json::to_string(&findings).unwrap();
    assert!(!text.contains("_in\""), "{text}");
    let mut second = restarted(saved_in_boot(findings, "a"), at(20));
    assert!(second.observe(at(3611), &Batch::default()).changes.is_empty());
    assert_eq!(second.observe(at(3612), &Batch::default()).changes.len(), 1);
}

#[test]
fn a_condition_that_persists_after_a_reboot_is_recorded_in_that_boot() {
    let replays = |value| {
        let mut batch = sample(gpu(0), Signal::GpuPcieReplays, value);
        batch.samples.extend(sample(gpu(0), Signal::GpuPcieReplayLimit, 8.0).samples);
        batch
    };
    let mut first = restarted(saved_in_boot(Vec::new(), "a"), at(0));
    first.observe(at(0), &replays(0.0));
    first.observe(at(60), &replays(100.0));
    let findings: Vec<Finding> = first.findings().cloned().collect();
    let mut second = engine();
    second.restore(saved_in_boot(findings, "a"), "b", second_boot(20));
    let mut changes = Vec::new();
    for turn in 2..20_i32 {
        let when = second_boot(i64::from(turn) * 10);
        changes.extend(second.observe(when, &replays(100.0 * f64::from(turn))).changes);
    }
    assert_eq!(codes(&changes), [("updated", "gpu.pcie-replays".to_owned())], "once a boot");
    let recorded = changes[0].finding().clone();
    let mut third = engine();
    third.restore(saved_in_boot(vec![recorded], "b"), "b", second_boot(200));
    for turn in 21..300 {
        third.observe(second_boot(turn * 10), &replays(2000.0));
    }
    assert_eq!(third.findings().count(), 1, "it occurred in this boot and waits for the next");
}
