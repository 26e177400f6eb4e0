use super::*;
use crate::FactSet;

fn done(value: f64) -> TestOutcome {
    TestOutcome::Done { value: Some(value), samples: vec![value], detail: String::new() }
}

fn least(value: f64) -> Baseline {
    Baseline { value, from: "a test".to_owned() }
}

fn grade(test: Test, outcome: &TestOutcome, least: Option<Baseline>, history: &[f64]) -> Grade {
    evaluate(test, outcome, least, History(history)).grade
}

#[test]
fn names_round_trip() {
    for test in Test::ALL {
        assert_eq!(test.name().parse::<Test>(), Ok(test));
        let json = serde_json::to_string(&test).unwrap();
        assert_eq!(json, format!("{:?}", test.name()));
    }
    assert!("gemm".parse::<Test>().unwrap_err().to_string().contains("gemm-bf16"));
}

#[test]
fn wrong_results_fail_and_missing_results_are_not_healthy() {
    let wrong = TestOutcome::Wrong { what: vec!["a bit".to_owned()] };
    let failed = TestOutcome::Failed { why: "lost".to_owned() };
    let not_run = TestOutcome::NotRun { why: "no library".to_owned() };
    assert_eq!(grade(Test::Compute, &wrong, None, &[]), Grade::Fail);
    assert_eq!(grade(Test::Compute, &failed, None, &[]), Grade::Fail);
    assert_eq!(grade(Test::GemmFp8, &not_run, None, &[]), Grade::NotRun);
    for impossible in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert_eq!(grade(Test::HbmRead, &done(impossible), None, &[]), Grade::Fail);
    }
}

#[test]
fn rates_are_compared_with_the_sku_and_the_gpus_history() {
    let rate = |value: f64, history: &[f64]| {
        evaluate(Test::HbmRead, &done(value), Some(least(3000.0)), History(history))
    };
    assert_eq!(rate(3100.0, &[]).grade, Grade::Pass);
    let low = rate(2700.0, &[]);
    assert_eq!(low.grade, Grade::Degraded);
    assert_eq!(low.why, "90.0 % of the minimum for this SKU, 3000 GB/s");
    // Above the minimum for the SKU, but below this GPU's typical value.
    let worse = rate(3100.0, &[4000.0, 4010.0, 3990.0]);
    assert_eq!(worse.grade, Grade::Degraded);
    assert!(worse.why.starts_with("77.5 % of the typical value of this GPU, 4000 GB/s"));
    assert!(worse.why.contains("--forget-history"));
    assert_eq!(rate(3100.0, &[4000.0, 4010.0]).grade, Grade::Pass, "two runs are too few");
    assert_eq!(rate(3900.0, &[4000.0, 4010.0, 3990.0, 4000.0]).usual, Some(4000.0));
    let unknown = evaluate(Test::HbmRead, &done(1.0), None, History(&[]));
    assert_eq!(unknown.grade, Grade::Pass);
    assert_eq!(unknown.why, "no baseline to compare with");
}

#[test]
fn shorter_times_are_better() {
    let time = |value: f64| grade(Test::LaunchStream, &done(value), None, &[4.0, 4.0, 4.0]);
    assert_eq!(time(3.0), Grade::Pass);
    assert_eq!(time(7.0), Grade::Pass, "hosts vary");
    assert_eq!(time(9.0), Grade::Degraded);
}

#[test]
fn decaying_soak_is_degraded() {
    let soak = |samples: &[f64]| {
        let outcome = TestOutcome::Done {
            value: Some(700.0),
            samples: samples.to_vec(),
            detail: String::new(),
        };
        evaluate(Test::Soak, &outcome, Some(least(600.0)), History(&[]))
    };
    // The first sample is faster: the GPU is cool and clocks are high.
    assert_eq!(soak(&[800.0, 700.0, 700.0, 700.0, 700.0, 700.0, 700.0, 698.0]).grade, Grade::Pass);
    let fading = soak(&[800.0, 700.0, 700.0, 690.0, 660.0, 640.0, 620.0, 610.0]);
    assert_eq!(fading.grade, Grade::Degraded);
    assert_eq!(fading.why, "throughput fell to 87.9 % of its initial value");
}

#[test]
fn baseline_is_measured_or_a_share_of_peak() {
    let set = FactSet::embedded();
    let gpu = |id: &str| set.gpus.gpu.iter().find(|gpu| gpu.id == id).unwrap();
    let placement = |generation| GpuPlacement {
        link: Some(PcieCapability { generation, width: 16 }),
        ..GpuPlacement::default()
    };
    let h200 = set.diag.least(gpu("H200-SXM5-141GB"), Test::GemmBf16, placement(5)).unwrap();
    assert!((500.0..989.0).contains(&h200.value), "{h200:?}");
    for gpu in &set.gpus.gpu {
        let found = set.diag.least(gpu, Test::PcieToGpu, placement(3));
        assert!(found.is_some_and(|least| least.value > 0.0), "{}", gpu.id);
        if gpu.memory.is_some() {
            let found = set.diag.least(gpu, Test::HbmRead, GpuPlacement::default());
            assert!(found.is_some(), "{}", gpu.id);
        }
    }
    assert!(set.diag.least(gpu("H200-SXM5-141GB"), Test::LaunchGraph, placement(5)).is_none());
    assert!(
        (PcieCapability { generation: 5, width: 16 }.gb_per_s().unwrap() - 63.015).abs() < 0.01
    );
    assert!(PcieCapability { generation: 9, width: 16 }.gb_per_s().is_none());
}

#[test]
fn own_gemm_has_a_baseline_without_a_library() {
    let set = FactSet::embedded();
    for gpu in &set.gpus.gpu {
        let own = set.diag.least(gpu, Test::GemmOwn, GpuPlacement::default());
        let has_peak = gpu.compute.as_ref().is_some_and(|compute| compute.fp16_tflops.is_some());
        assert_eq!(own.is_some(), has_peak, "{}", gpu.id);
    }
    let h200 = set.gpus.gpu.iter().find(|gpu| gpu.id == "H200-SXM5-141GB").unwrap();
    let own = set.diag.least(h200, Test::GemmOwn, GpuPlacement::default()).unwrap();
    assert!((own.value - 264.0).abs() < 1.0 && own.from.contains("bench/diag_h200.md"), "{own:?}");
}

#[test]
fn peer_copy_has_a_baseline_only_behind_nvswitch() {
    let set = FactSet::embedded();
    let h200 = set.gpus.gpu.iter().find(|gpu| gpu.id == "H200-SXM5-141GB").unwrap();
    let baseline = |peers| {
        set.diag.least(h200, Test::PeerCopy, GpuPlacement { peers, ..GpuPlacement::default() })
    };
    assert!(baseline(PeerPath::Switch).is_some());
    assert!(baseline(PeerPath::Other).is_none());
}

#[test]
fn slow_decay_is_detected() {
    let mut history: Vec<f64> = Vec::new();
    let mut value = 9000.0;
    while grade(Test::HbmRead, &done(value), None, &history) == Grade::Pass {
        history.push(value);
        value -= 25.0;
        assert!(value > 8000.0, "decay was never detected");
    }
    assert!(value < 8500.0, "{value}");
    // A GPU that got faster is compared with its new values.
    let faster: Vec<f64> = (0..40).map(|at| if at < 20 { 100.0 } else { 120.0 }).collect();
    assert_eq!(History(&faster).typical(Unit::GbPerS), Some(120.0));
    assert_eq!(History(&faster).typical(Unit::Us), Some(100.0));
}

#[test]
fn failures_have_a_remedy() {
    for test in Test::ALL {
        assert!(remedy(test, Grade::Degraded).is_some() && remedy(test, Grade::Fail).is_some());
        assert_eq!((remedy(test, Grade::Pass), remedy(test, Grade::NotRun)), (None, None));
    }
}
