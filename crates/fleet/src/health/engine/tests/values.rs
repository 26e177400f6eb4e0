//! Values of signals: thresholds, windows, peers, and unreadable signals.

use super::*;

#[test]
fn a_threshold_opens_once_and_clears_after_its_clear_time() {
    let mut engine = engine();
    let pending = |value| sample(gpu(0), Signal::GpuRowsPending, value);
    assert!(engine.observe(at(0), &pending(0.0)).changes.is_empty());
    let opened = engine.observe(at(10), &pending(1.0)).changes;
    assert_eq!(codes(&opened), [("opened", "gpu.rows-pending".to_owned())]);
    let finding = opened[0].finding();
    assert_eq!((finding.severity, finding.action), (Severity::Critical, Action::ResetGpu));
    assert_eq!(finding.clears_when, "after 20 s in which no row remapping is pending");
    assert!(engine.observe(at(20), &pending(1.0)).changes.is_empty(), "not a new occurrence");
    assert!(engine.observe(at(30), &pending(0.0)).changes.is_empty(), "the clear time is not over");
    let cleared = engine.observe(at(50), &pending(0.0)).changes;
    assert_eq!(codes(&cleared), [("cleared", "gpu.rows-pending".to_owned())]);
    assert_eq!(engine.findings().count(), 0);
}

#[test]
fn an_unreadable_signal_neither_opens_nor_clears() {
    let mut engine = engine();
    engine.observe(at(0), &sample(gpu(0), Signal::GpuRowsFailed, 1.0));
    let reading = Reading::Unreadable(ReadError::unavailable("the driver hangs"));
    let samples =
        vec![Sample { subject: gpu(0), signal: Signal::GpuRowsFailed, reading, note: None }];
    let unreadable = Batch { samples, ..Batch::default() };
    for second in 1..600 {
        assert!(engine.observe(at(second), &unreadable).changes.is_empty());
    }
    assert_eq!(engine.findings().count(), 1);
    let coverage = engine.coverage();
    assert!(coverage.gaps.iter().any(|(code, _, gap)| code == "gpu.rows-failed"
        && gap.to_string() == "gpu.rows_failed: the driver hangs"));
}

#[test]
fn an_absent_signal_is_listed_as_unsupported_and_never_fires() {
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
fn a_late_limit_is_used_and_a_missing_one_is_a_coverage_gap() {
    let (mut engine, mut other) = (engine(), engine());
    for engine in [&mut engine, &mut other] {
        engine.observe(at(0), &sample(gpu(0), Signal::GpuPcieWidth, 8.0));
        assert!(engine.coverage().warming_up.contains_key("gpu.pcie-narrow"));
    }
    engine.observe(at(1), &sample(gpu(0), Signal::GpuPcieWidthMax, 16.0));
    assert!(engine.coverage().watched.contains_key("gpu.pcie-narrow"));
    other.observe(at(300), &sample(gpu(0), Signal::GpuPcieWidth, 8.0));
    let gaps = other.coverage().gaps;
    assert!(gaps.iter().any(|(code, _, gap)| code == "gpu.pcie-narrow"
        && *gap == CoverageGap::NeverRead(Signal::GpuPcieWidthMax)));
}

#[test]
fn a_gpu_slower_than_its_peers_is_found() {
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
    let opened: Vec<_> = opened
        .iter()
        .map(Change::finding)
        .map(|finding| (&finding.code, &finding.subject))
        .collect();
    assert_eq!(opened, [(&"gpu.clock-below-peers".to_owned(), &gpu(5))]);
}

#[test]
fn changing_one_rule_keeps_the_counts_of_others() {
    let mut engine = engine();
    engine.observe(at(0), &xid(31, "0000:1c:00", at(0), "a"));
    let change = crate::health::rules::RuleOverride { limit: Some(9.0), ..Default::default() };
    let rules = Rules::configured(&BTreeMap::from([("gpu.temperature-margin".to_owned(), change)]))
        .unwrap();
    engine.reconfigure(rules, at(1));
    let again = engine.observe(at(900), &xid(31, "0000:1c:00", at(900), "a"));
    assert!(codes(&again.changes).contains(&("opened", "gpu.xid-app-repeated".to_owned())));
}

#[test]
fn a_down_link_is_not_slow_at_ten_second_intervals() {
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
    let open: Vec<_> = engine
        .findings()
        .map(|finding| (finding.code.as_str(), finding.subject.to_string()))
        .collect();
    assert_eq!(
        open,
        [("link.down", "GPU-0/link0".to_owned()), ("link.slow", "GPU-0/link1".to_owned())]
    );
}

#[test]
fn rules_can_be_changed_while_findings_are_open() {
    let mut engine = engine();
    engine.observe(at(0), &sample(gpu(0), Signal::GpuRowsFailed, 1.0));
    let off = BTreeMap::from([(
        "gpu.rows-failed".to_owned(),
        crate::health::rules::RuleOverride { enabled: Some(false), ..Default::default() },
    )]);
    let changes = engine.reconfigure(Rules::configured(&off).unwrap(), at(1));
    assert_eq!(codes(&changes), [("cleared", "gpu.rows-failed".to_owned())]);
    let wrong = BTreeMap::from([
        ("gpu.rows-faild".to_owned(), crate::health::rules::RuleOverride::default()),
        (
            "gpu.xid".to_owned(),
            crate::health::rules::RuleOverride { limit: Some(3.0), ..Default::default() },
        ),
    ]);
    let flag = crate::health::rules::RuleOverride { limit: Some(5.0), ..Default::default() };
    let wrong: BTreeMap<_, _> = wrong.into_iter().chain([("gpu.lost".to_owned(), flag)]).collect();
    let errors = Rules::configured(&wrong).unwrap_err();
    assert_eq!(errors.len(), 3, "all errors are returned");
    assert!(errors.iter().any(|err| err.to_string().contains("did you mean `gpu.rows-failed`?")));
}

#[test]
fn a_peer_comparison_needs_enough_peers() {
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
        assert_eq!(coverage.no_peers.contains_key("gpu.pcie-below-peers"), !is_watched);
    }
}

#[test]
fn a_down_link_is_not_slow_at_one_second_intervals() {
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
    let found: Vec<_> =
        engine.findings().map(|finding| (finding.code.as_str(), &finding.subject)).collect();
    let link_subject = |number| Subject::Link { gpu: GpuUuid("GPU-0".to_owned()), link: number };
    assert_eq!(found, [("link.down", &link_subject(0)), ("link.slow", &link_subject(1))]);
}

#[test]
fn every_counter_and_flag_has_a_rule_or_an_exemption() {
    // Counters and flags that no rule uses, with the reason.
    let exempt = [
        (Signal::GpuEnergy, "measures work, not faults"),
        (
            Signal::GpuThrottleSyncBoost,
            "caused by a slower GPU of the group, which has its own rules",
        ),
        (Signal::GpuEccUncorrectedLifetime, "covered by the count since the driver was loaded"),
        (Signal::GpuRowsCorrected, "corrected; only rows with uncorrectable errors need action"),
        (Signal::GpuPagesSingle, "covered by the sum with double-bit errors"),
        (Signal::GpuAerCorrectable, "corrected; the card's replay counter has a rule"),
        (Signal::GpuOnBus, "the number of GPUs on the bus has a rule"),
        (Signal::GpuMigEnabled, "a setting"),
        (Signal::NicReceiveErrors, "grows with every unplugged peer; only displayed"),
        (Signal::NicTransmitDiscards, "grows with congestion; only displayed"),
    ];
    let rules = Rules::embedded().unwrap_or_else(|err| panic!("{err}"));
    let watched: Vec<Signal> =
        rules.iter().flat_map(|rule| rule.when.iter().map(|clause| clause.signal)).collect();
    for signal in Signal::ALL {
        use crate::health::signal::Behaviour::{Counter, Flag};
        let needs_rule = matches!(signal.behaviour(), Counter | Flag);
        let is_exempt = exempt.iter().any(|(exempted, _)| exempted == signal);
        assert_eq!(needs_rule && !watched.contains(signal), is_exempt, "{signal}");
    }
}

#[test]
fn a_finding_clears_by_time_without_a_new_value() {
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
fn an_unreadable_gpu_is_found_unless_another_signal_explains_it() {
    let unreadable = |down: Option<(Signal, Reading<f64>)>| {
        let why = || Reading::Unreadable(ReadError::nvml(999));
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
            assert!(!engine.findings().any(|finding| finding.code == "gpu.unreadable"), "{second}");
        }
        engine.observe(at(31), &unreadable(down));
        engine.findings().any(|finding| finding.code == "gpu.unreadable")
    };
    assert!(found(None));
    assert!(!found(Some((Signal::GpuLost, Reading::Value(1.0)))));
    assert!(!found(Some((Signal::GpuResetRequired, Reading::Value(1.0)))));
    assert!(!found(Some((Signal::NodeCallsStuck, Reading::Value(1.0)))));
    let unanswered = Reading::Unreadable(ReadError::unavailable("NVML does not answer"));
    assert!(!found(Some((Signal::GpuLost, unanswered))));
    assert!(
        !found(Some((Signal::GpuTemperature, Reading::Value(41.0)))),
        "one successful call is enough"
    );
}

#[test]
fn findings_over_the_limit_are_dropped_and_counted() {
    let mut first = engine();
    first.observe(at(0), &xid(79, "0000:1c:00", at(0), "a"));
    let one = first.findings().next().unwrap().clone();
    let findings = (0..4096).map(|id| Finding { id, detail: format!("Xid {id}"), ..one.clone() });
    let mut engine = restarted(saved_in_boot(findings.collect(), "a"), at(1));
    engine.observe(at(2), &xid(79, "0000:1c:00", at(2), "a"));
    assert_eq!(engine.dropped(), 0, "an open finding is updated");
    engine.observe(at(2), &xid(79, "0000:1d:00", at(2), "a"));
    assert_eq!((engine.findings().count(), engine.dropped()), (4096, 1));
    let dropped = |value| sample(Subject::Agent, Signal::AgentFindingsDropped, value);
    engine.observe(at(2), &dropped(0.0));
    engine.observe(at(3), &dropped(900.0));
    assert!(engine.findings().any(|finding| finding.code == "agent.findings-dropped"));
}

#[test]
fn a_clone_of_the_latest_values_does_not_change() {
    let mut engine = engine();
    let hot = |number, value| sample(gpu(number), Signal::GpuTemperature, value);
    let read = |latest: &Latest| -> Vec<(Subject, f64)> {
        let temperature = |(subject, values): (&Subject, &SignalValues)| {
            let found = values.iter().find(|value| value.signal == Signal::GpuTemperature);
            Some((subject.clone(), *found?.reading.value()?))
        };
        latest.iter().filter_map(temperature).collect()
    };
    engine.observe(at(0), &hot(1, 40.0));
    let copied = engine.latest().clone();
    engine.observe(at(1), &hot(1, 50.0));
    engine.observe(at(2), &hot(0, 60.0));
    assert_eq!(read(&copied), [(gpu(1), 40.0)]);
    assert_eq!(copied.get(&gpu(0)).map(Vec::len), Some(2), "the clocks of its model");
    assert_eq!(read(engine.latest()), [(gpu(0), 60.0), (gpu(1), 50.0)]);
    assert_eq!(engine.latest().get(&gpu(0)).map(Vec::len), Some(4), "with gpu.unreadable");
}

/// A busy GPU at 345 MHz, for 40 s.
fn slow_gpu(name: &str, reasons: f64, application_mhz: f64) -> Vec<String> {
    let mut engine = engine();
    let mut inventory = inventory();
    for gpu in &mut inventory {
        gpu.name = Some(name.to_owned());
    }
    let mut opened = Vec::new();
    for second in 0..40 {
        let values = [
            (Signal::GpuClockSm, 345.0),
            (Signal::GpuUtilisation, 0.98),
            (Signal::GpuClockReasons, reasons),
            (Signal::GpuClockSmApplication, application_mhz),
        ];
        let samples = values.map(|(signal, value)| Sample {
            subject: gpu(0),
            signal,
            reading: Reading::Value(value),
            note: None,
        });
        let batch = Batch {
            inventory: Some(inventory.clone()),
            samples: samples.to_vec(),
            ..Batch::default()
        };
        opened.extend(codes(&engine.observe(at(second), &batch).changes));
    }
    opened.into_iter().map(|(_, code)| code).collect()
}

#[test]
fn a_low_clock_is_found_without_peers_unless_a_reason_explains_it() {
    let h100 = "NVIDIA H100 80GB HBM3";
    assert_eq!(slow_gpu(h100, 0.0, 1980.0), ["gpu.clock-low"]);
    assert_eq!(slow_gpu(h100, 0.0, 345.0), ["gpu.clock-application-low"]);
    let power_cap = 4.0;
    assert_eq!(slow_gpu(h100, power_cap, 1980.0), Vec::<String>::new());
    let thermal = 32.0;
    assert_eq!(slow_gpu(h100, thermal, 1980.0), Vec::<String>::new());
    assert_eq!(slow_gpu("NVIDIA GB10", 0.0, 1980.0), Vec::<String>::new(), "unknown clocks");
}

#[test]
fn a_model_without_clocks_is_listed_as_uncovered() {
    let mut engine = engine();
    let mut inventory = inventory();
    inventory[0].name = Some("NVIDIA GB10".to_owned());
    let clock = sample(gpu(0), Signal::GpuClockSm, 345.0);
    engine.observe(at(0), &Batch { inventory: Some(inventory), ..clock });
    let coverage = engine.coverage();
    let uncovered = |(code, subject, signal): &(String, Subject, Signal)| {
        (code.as_str(), subject, *signal) == ("gpu.clock-low", &gpu(0), Signal::GpuClockSmBoost)
    };
    assert!(coverage.unsupported.iter().any(uncovered), "{:?}", coverage.unsupported);
}
