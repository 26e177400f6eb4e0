//! Events of the kernel log and the driver.

use super::*;

#[test]
fn the_drivers_action_outranks_the_rules_until_it_is_taken_back() {
    let mut engine = engine();
    engine.observe(at(0), &sample(gpu(0), Signal::GpuEccUncorrected, 1.0));
    engine.observe(at(1), &sample(gpu(1), Signal::GpuRowsPending, 1.0));
    let changes = engine.observe(at(2), &sample(gpu(0), Signal::GpuRecoveryAction, 2.0)).changes;
    let ecc =
        changes.iter().map(Change::finding).find(|it| it.code == "gpu.ecc-uncorrected").unwrap();
    assert_eq!(ecc.action, Action::RebootNode);
    assert_eq!(ecc.action_by, crate::health::finding::ActionBy::Driver);
    assert_eq!(ecc.rule_action, Action::ResetGpu);
    let other = engine.findings().find(|it| it.code == "gpu.rows-pending").unwrap();
    assert_eq!(other.action, Action::ResetGpu, "another GPU's finding is not touched");
    let reading = Reading::Unreadable(ReadError::unavailable("it is being reset"));
    let silent = Sample { subject: gpu(0), signal: Signal::GpuRecoveryAction, reading, note: None };
    engine.observe(at(3), &Batch { samples: vec![silent], ..Batch::default() });
    let changes = engine.observe(at(4), &sample(gpu(0), Signal::GpuRecoveryAction, 0.0)).changes;
    let cleared: Vec<_> =
        codes(&changes).into_iter().filter(|(what, _)| *what == "cleared").collect();
    assert_eq!(cleared, [("cleared", "gpu.ecc-uncorrected".to_owned())]);
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
fn the_drivers_word_holds_while_it_is_silent() {
    let mut engine = engine();
    engine.observe(at(0), &sample(gpu(0), Signal::GpuRowsPending, 1.0));
    engine.observe(at(1), &sample(gpu(0), Signal::GpuRecoveryAction, 2.0));
    let reading = Reading::Unreadable(ReadError::unavailable("GPU is lost"));
    let samples =
        vec![Sample { subject: gpu(0), signal: Signal::GpuRecoveryAction, reading, note: None }];
    engine.observe(at(2), &Batch { samples, ..Batch::default() });
    let pending = engine.findings().find(|it| it.code == "gpu.rows-pending").unwrap();
    assert_eq!(pending.action, Action::RebootNode);
}

#[test]
fn what_is_graver_than_the_drivers_last_word_and_came_after_it_is_not_outranked() {
    use crate::health::finding::ActionBy::{Driver, Rule};
    let action = |engine: &Engine, code: &str| {
        let finding = engine.findings().find(|it| it.code == code).unwrap();
        (finding.action, finding.action_by)
    };
    let mut first = engine();
    first.observe(at(0), &sample(gpu(0), Signal::GpuRowsPending, 1.0));
    first.observe(at(1), &sample(gpu(0), Signal::GpuRecoveryAction, 1.0));
    let reading = Reading::Unreadable(ReadError::nvml(15));
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
    // The driver reports again, and takes precedence.
    first.observe(at(3), &sample(gpu(0), Signal::GpuRecoveryAction, 4.0));
    assert_eq!(action(&first, "gpu.lost"), (Action::ResetGpu, Driver));
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
    // If another GPU is there now, the event belongs to that one.
    let mut other = inventory();
    other[1].uuid = GpuUuid("GPU-new".to_owned());
    engine.observe(at(5), &counted(&other));
    assert_eq!(engine.gpu_at("0000:1c:00.0"), Some(GpuUuid("GPU-new".to_owned())));
    // A restarted agent is given the GPUs that left.
    let mut second = super::tests::engine();
    second.know(&without, &[left]);
    second.observe(at(6), &line(at(6)));
    assert_eq!(second.findings().next().unwrap().subject, gpu(1));
}

#[test]
fn a_configuration_may_speak_of_one_xid_and_not_of_the_others() {
    use crate::health::rules::RuleOverride;
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
    // Disabling an event clears its finding; the rule itself may be disabled as well.
    let changes = engine.reconfigure(configured(&[("gpu.xid.95", off.clone())]), at(4));
    assert_eq!(codes(&changes), [("cleared", "gpu.xid".to_owned())]);
    configured(&[("gpu.xid", off), ("gpu.xid.95", less)]);
    let limit = RuleOverride { limit: Some(3.0), ..RuleOverride::default() };
    for wrong in ["gpu.xid.95", "gpu.lost.95", "gpu.xid.x", "gpu.xid-app-repeated.31"] {
        assert!(Rules::configured(&[(wrong.to_owned(), limit.clone())].into()).is_err(), "{wrong}");
    }
}
