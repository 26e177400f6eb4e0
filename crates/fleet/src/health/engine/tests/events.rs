//! Events from the kernel log and the driver.

use super::*;

#[test]
fn the_drivers_action_overrides_the_rule_until_it_is_withdrawn() {
    let mut engine = engine();
    engine.observe(at(0), &sample(gpu(0), Signal::GpuEccUncorrected, 1.0));
    engine.observe(at(1), &sample(gpu(1), Signal::GpuRowsPending, 1.0));
    let changes = engine.observe(at(2), &sample(gpu(0), Signal::GpuRecoveryAction, 2.0)).changes;
    let ecc = changes
        .iter()
        .map(Change::finding)
        .find(|finding| finding.code == "gpu.ecc-uncorrected")
        .unwrap();
    assert_eq!(ecc.action, Action::RebootNode);
    assert_eq!(ecc.action_by, crate::health::finding::ActionBy::Driver);
    assert_eq!(ecc.rule_action, Action::ResetGpu);
    let other = engine.findings().find(|finding| finding.code == "gpu.rows-pending").unwrap();
    assert_eq!(other.action, Action::ResetGpu, "another GPU's finding is not touched");
    let reading = Reading::Unreadable(ReadError::unavailable("it is being reset"));
    let unreadable =
        Sample { subject: gpu(0), signal: Signal::GpuRecoveryAction, reading, note: None };
    engine.observe(at(3), &Batch { samples: vec![unreadable], ..Batch::default() });
    let changes = engine.observe(at(4), &sample(gpu(0), Signal::GpuRecoveryAction, 0.0)).changes;
    let cleared: Vec<_> =
        codes(&changes).into_iter().filter(|(kind, _)| *kind == "cleared").collect();
    assert_eq!(cleared, [("cleared", "gpu.ecc-uncorrected".to_owned())]);
}

#[test]
fn an_xid_burst_updates_one_finding_and_is_not_a_repeat() {
    let mut engine = engine();
    let opened = engine.observe(at(0), &xid(31, "0000:1c:00", at(0), "a"));
    assert_eq!(codes(&opened.changes), [("opened", "gpu.xid".to_owned())]);
    assert_eq!(opened.changes[0].finding().subject, gpu(1));
    assert_eq!(opened.changes[0].finding().detail, "Xid 31");
    assert_eq!(opened.events_to_store.len(), 1);
    for second in 1..100 {
        let decision = engine.observe(at(second), &xid(31, "0000:1c:00", at(second), "a"));
        assert_eq!(codes(&decision.changes), [("updated", "gpu.xid".to_owned())]);
    }
    assert_eq!(engine.findings().next().unwrap().count, 100);
    let decision = engine.observe(at(900), &xid(31, "0000:1c:00", at(900), "a"));
    assert!(codes(&decision.changes).contains(&("opened", "gpu.xid-app-repeated".to_owned())));
    let quiet = engine.observe(at(900 + 3600), &Batch::default());
    assert!(codes(&quiet.changes).contains(&("cleared", "gpu.xid".to_owned())));
}

#[test]
fn the_drivers_action_applies_while_it_is_unreadable() {
    let mut engine = engine();
    engine.observe(at(0), &sample(gpu(0), Signal::GpuRowsPending, 1.0));
    engine.observe(at(1), &sample(gpu(0), Signal::GpuRecoveryAction, 2.0));
    let reading = Reading::Unreadable(ReadError::unavailable("GPU is lost"));
    let samples =
        vec![Sample { subject: gpu(0), signal: Signal::GpuRecoveryAction, reading, note: None }];
    engine.observe(at(2), &Batch { samples, ..Batch::default() });
    let pending = engine.findings().find(|finding| finding.code == "gpu.rows-pending").unwrap();
    assert_eq!(pending.action, Action::RebootNode);
}

#[test]
fn an_unreadable_driver_action_does_not_override_a_graver_later_fault() {
    use crate::health::finding::ActionBy::{Driver, Rule};
    let action = |engine: &Engine, code: &str| {
        let finding = engine.findings().find(|finding| finding.code == code).unwrap();
        (finding.action, finding.action_by)
    };
    let mut first = engine();
    first.observe(at(0), &sample(gpu(0), Signal::GpuRowsPending, 1.0));
    first.observe(at(1), &sample(gpu(0), Signal::GpuRecoveryAction, 1.0));
    let reading = Reading::Unreadable(ReadError::nvml(15));
    let unreadable =
        Sample { subject: gpu(0), signal: Signal::GpuRecoveryAction, reading, note: None };
    let mut lost = sample(gpu(0), Signal::GpuLost, 1.0);
    lost.samples.push(unreadable);
    first.observe(at(2), &lost);
    assert_eq!(action(&first, "gpu.lost"), (Action::RebootNode, Rule));
    assert_eq!(action(&first, "gpu.rows-pending"), (Action::ResetGpu, Driver));
    let mut second = engine();
    second.restore(journalled(&mut first), "a", at(5));
    second.observe(at(6), &lost);
    assert_eq!(action(&second, "gpu.lost"), (Action::RebootNode, Rule));
    // When the driver reports again, its action takes precedence.
    first.observe(at(3), &sample(gpu(0), Signal::GpuRecoveryAction, 4.0));
    assert_eq!(action(&first, "gpu.lost"), (Action::ResetGpu, Driver));
}

#[test]
fn a_short_port_outage_needs_no_replacement_and_a_long_one_is_graver() {
    let port = Subject::Nic { device: "mlx5_0".to_owned(), port: 1 };
    let active = |value| sample(port.clone(), Signal::NicActive, value);
    let mut engine = engine();
    engine.observe(at(0), &active(1.0));
    for second in 1..600 {
        engine.observe(at(second), &active(0.0));
        let open: Vec<_> =
            engine.findings().map(|finding| (finding.code.as_str(), finding.action)).collect();
        let expected = [("nic.down", Action::Investigate)];
        assert_eq!(open, &expected[..usize::from(second > 25)], "after {second} s");
    }
    for second in 600..=901 {
        engine.observe(at(second), &active(0.0));
    }
    let severity =
        |code: &str| engine.findings().find(|finding| finding.code == code).unwrap().severity;
    assert!(severity("nic.dropped") > severity("nic.down"));
}

#[test]
fn an_oom_kill_opens_one_finding_whichever_source_reports_first() {
    let kills = |value| sample(Subject::Node, Signal::NodeOomKills, value);
    let line = "Out of memory: Killed process 4242 (python) total-vm:9kB, anon-rss:9kB\n";
    let open = |engine: &Engine| -> Vec<String> {
        engine.findings().map(|finding| finding.code.clone()).collect()
    };
    let mut log_first = engine();
    log_first.observe(at(0), &kills(0.0));
    log_first.observe(at(5), &kernel_line(line, at(5), "a"));
    log_first.observe(at(10), &kills(1.0));
    assert_eq!(open(&log_first), ["host.kernel-error"]);
    let mut counter_first = engine();
    counter_first.observe(at(0), &kills(0.0));
    counter_first.observe(at(10), &kills(1.0));
    assert_eq!(open(&counter_first), ["host.out-of-memory"], "the log is not read");
    counter_first.observe(at(11), &kernel_line(line, at(11), "a"));
    counter_first.observe(at(20), &kills(1.0));
    assert_eq!(open(&counter_first), ["host.kernel-error"]);
}

#[test]
fn a_check_finding_stays_open_until_the_check_passes() {
    let mut engine = engine();
    let item = CheckItem {
        code: "module-differs-from-disk".to_owned(),
        severity: Severity::Critical,
        action: Action::RebootNode,
        text: "loaded 1, on disk 2".to_owned(),
        remedy: Some("load it: `modprobe nvidia`".to_owned()),
    };
    let other = CheckItem { text: "and on another disk 3".to_owned(), ..item.clone() };
    let failed = Batch { checks: Some(vec![item.clone()]), ..Batch::default() };
    let both = Batch { checks: Some(vec![item, other]), ..Batch::default() };
    let opened = engine.observe(at(0), &failed).changes;
    assert_eq!(codes(&opened), [("opened", "check".to_owned())]);
    assert_eq!(opened[0].finding().remedy.as_deref(), Some("load it: `modprobe nvidia`"));
    assert!(engine.observe(at(60), &failed).changes.is_empty());
    assert!(engine.observe(at(61), &Batch::default()).changes.is_empty(), "no check ran");
    assert_eq!(codes(&engine.observe(at(62), &both).changes), [("updated", "check".to_owned())]);
    assert!(engine.findings().next().unwrap().text.ends_with("on disk 2; and on another disk 3"));
    let passed = Batch { checks: Some(Vec::new()), ..Batch::default() };
    assert_eq!(codes(&engine.observe(at(120), &passed).changes), [("cleared", "check".to_owned())]);
}

#[test]
fn a_pci_address_resolves_to_a_gpu_that_left_the_inventory() {
    let mut engine = engine();
    let enumerated =
        |listed: &[GpuIdentity]| Batch { inventory: Some(listed.to_vec()), ..Batch::default() };
    let line = |when| Batch { inventory: None, ..xid(79, "0000:1c:00", when, "a") };
    engine.observe(at(0), &enumerated(&inventory()));
    engine.observe(at(1), &line(at(1)));
    let mut without = inventory();
    let departed = without.remove(1);
    engine.observe(at(2), &enumerated(&without));
    engine.observe(at(3), &enumerated(&without));
    engine.observe(at(4), &line(at(4)));
    let found: Vec<_> =
        engine.findings().map(|finding| (finding.subject.clone(), finding.count)).collect();
    assert_eq!(found, [(gpu(1), 2)]);
    assert_eq!(engine.gpu_at("0000:1c:00"), Some(departed.uuid.clone()));
    // If another GPU is at the address now, the event belongs to that GPU.
    let mut other = inventory();
    other[1].uuid = GpuUuid("GPU-new".to_owned());
    engine.observe(at(5), &enumerated(&other));
    assert_eq!(engine.gpu_at("0000:1c:00.0"), Some(GpuUuid("GPU-new".to_owned())));
    // An agent that restarts restores the GPUs that have left the inventory.
    let mut second = super::tests::engine();
    second.restore_inventory(&without, &[departed]);
    second.observe(at(6), &line(at(6)));
    assert_eq!(second.findings().next().unwrap().subject, gpu(1));
}

#[test]
fn a_configuration_can_override_a_single_xid() {
    use crate::health::rules::RuleOverride;
    let lowered = RuleOverride { severity: Some(Severity::Warning), ..RuleOverride::default() };
    let off = RuleOverride { enabled: Some(false), ..RuleOverride::default() };
    let rules = configured(&[("gpu.xid.95", lowered.clone()), ("gpu.xid.31", off.clone())]);
    let mut engine = Engine::new(rules, FactSet::embedded());
    for (second, number) in [(1, 95), (2, 48), (3, 31)] {
        engine.observe(at(second), &xid(number, "0000:1c:00", at(second), "a"));
    }
    let found: Vec<_> = engine
        .findings()
        .filter(|finding| finding.code == "gpu.xid")
        .map(|finding| (finding.detail.as_str(), finding.severity, finding.default_severity))
        .collect();
    let expected = [
        ("Xid 48", Severity::Critical, None),
        ("Xid 95", Severity::Warning, Some(Severity::Fatal)),
    ];
    assert_eq!(found[1], expected[1]);
    assert_eq!((found.len(), found[0].0, found[0].2), (2, expected[0].0, None));
    // Disabling an event clears its finding. The rule itself may also be disabled.
    let changes = engine.reconfigure(configured(&[("gpu.xid.95", off.clone())]), at(4));
    assert_eq!(codes(&changes), [("cleared", "gpu.xid".to_owned())]);
    configured(&[("gpu.xid", off), ("gpu.xid.95", lowered)]);
    let limit = RuleOverride { limit: Some(3.0), ..RuleOverride::default() };
    for wrong in ["gpu.xid.95", "gpu.lost.95", "gpu.xid.x", "gpu.xid-app-repeated.31"] {
        assert!(Rules::configured(&[(wrong.to_owned(), limit.clone())].into()).is_err(), "{wrong}");
    }
}
