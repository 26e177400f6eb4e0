use super::super::backend::MemoryPattern;
use super::super::simulated::{SimulatedFault, SimulatedGpu};
use super::*;

const BUDGET: TestBudget = TestBudget {
    repeats: 3,
    transfer_bytes: 1 << 20,
    side: 8192,
    memory_share: 0.9,
    memory_rounds: 2,
    soak_s: 90.0,
};

fn gpu() -> SimulatedGpu {
    SimulatedGpu::h200(24)
}

fn outcome(gpu: SimulatedGpu, test: Test) -> TestOutcome {
    run(&mut gpu.open().unwrap(), test, &BUDGET, &mut |_| ())
}

fn value(gpu: SimulatedGpu, test: Test) -> f64 {
    match outcome(gpu, test) {
        TestOutcome::Done { value: Some(value), .. } => value,
        other => panic!("{test}: {other:?}"),
    }
}

fn wrong(gpu: SimulatedGpu, test: Test) -> String {
    match outcome(gpu, test) {
        TestOutcome::Wrong { what } => what.join("; "),
        other => panic!("{test}: {other:?}"),
    }
}

#[test]
fn healthy_gpu_passes_every_test_and_frees_its_memory() {
    let gpu = SimulatedGpu { peers: 1, ..gpu() };
    let mut backend = gpu.open().unwrap();
    let before = backend.free_bytes().unwrap();
    for test in Test::ALL {
        let outcome = run(&mut backend, test, &BUDGET, &mut |_| ());
        assert!(matches!(outcome, TestOutcome::Done { .. }), "{test}: {outcome:?}");
        assert_eq!(backend.free_bytes().unwrap(), before, "{test}");
    }
}

#[test]
fn slow_hardware_measures_slow() {
    for (fault, test) in [
        (SimulatedFault::SlowMemory(0.5), Test::HbmRead),
        (SimulatedFault::SlowMemory(0.5), Test::HbmWrite),
        (SimulatedFault::SlowMemory(0.5), Test::HbmCopy),
        (SimulatedFault::SlowPcie(0.5), Test::PcieToGpu),
        (SimulatedFault::SlowPcie(0.5), Test::PcieToHost),
        (SimulatedFault::SlowGemm(0.5), Test::GemmBf16),
        (SimulatedFault::SlowGemm(0.5), Test::GemmFp64),
    ] {
        let ratio = value(gpu().with(fault.clone()), test) / value(gpu(), test);
        assert!((ratio - 0.5).abs() < 1e-9, "{test} {fault:?}: {ratio}");
    }
    assert!((value(gpu(), Test::LaunchGraph) - 0.6).abs() < 1e-9);
}

#[test]
fn stuck_bit_is_found_by_every_memory_test() {
    // Find a word in which no pattern sets bit 9, so that the stuck bit shows in every pattern.
    let is_unset = |word: &u64| {
        [0, 1, 3, 7].iter().all(|seed| MemoryPattern::Random(*seed).word_at(*word) & (1 << 9) == 0)
    };
    let word = (0..1000).find(is_unset).unwrap();
    let stuck = gpu().with(SimulatedFault::StuckBit { word, bit: 9 });
    for test in [Test::Allocate, Test::MemoryPatterns, Test::HbmCopy, Test::PcieToGpu] {
        let what = wrong(stuck.clone(), test);
        assert!(what.contains("always bit 9"), "{test}: {what}");
        assert!(what.contains(&format!("word {word:#x}")), "{test}: {what}");
    }
}

#[test]
fn one_wrong_word_is_reported_with_its_pattern() {
    let stuck = gpu().with(SimulatedFault::StuckBit { word: 5, bit: 3 });
    let what = wrong(stuck, Test::MemoryPatterns);
    assert!(what.starts_with("1 wrong word (0x55555555 in each"), "{what}");
}

#[test]
fn too_little_testable_memory_is_not_run() {
    let full = gpu().with(SimulatedFault::Full { left_mib: 4 });
    let TestOutcome::NotRun { why } = outcome(full, Test::MemoryPatterns) else {
        panic!("the test ran")
    };
    assert!(why.starts_with("only 3 MiB of 24 MiB could be allocated"), "{why}");
}

#[test]
fn invalid_simulated_gpu_names_the_field() {
    assert_eq!(gpu().invalid_field(), None);
    for (gpu, detail) in [
        (SimulatedGpu { processors: 0, ..gpu() }, "`processors` is 0"),
        (SimulatedGpu { tflops: f64::NAN, ..gpu() }, "`tflops` is NaN"),
        (SimulatedGpu { launch_us: (1.0, 0.0), ..gpu() }, "`launch_us` is 0"),
        (SimulatedGpu { memory_mib: u64::MAX, ..gpu() }, "`memory_mib` is "),
        (gpu().with(SimulatedFault::SlowMemory(-3.0)), "`slow-memory` is -3"),
        (gpu().with(SimulatedFault::Fading(1.5)), "`fading` is 1.5"),
        (gpu().with(SimulatedFault::StuckBit { word: 0, bit: 32 }), "`stuck-bit` has bit 32"),
        (gpu().with(SimulatedFault::FewProcessors(0)), "`few-processors` is 0"),
        (
            gpu().with(SimulatedFault::WrongProcessor { processor: 132, after: 0 }),
            "`wrong-processor`",
        ),
    ] {
        let invalid_field = gpu.invalid_field();
        assert!(
            invalid_field.as_ref().is_some_and(|text| text.starts_with(detail)),
            "{detail}: {invalid_field:?}"
        );
    }
}

#[test]
fn faulty_sm_is_named() {
    let bad = gpu().with(SimulatedFault::WrongProcessor { processor: 17, after: 0 });
    assert!(wrong(bad.clone(), Test::Compute).starts_with("2048 of 270336 threads"));
    let what = wrong(bad, Test::Corruption);
    assert!(what.contains("SM 17 gave"), "{what}");
    assert!(!what.contains("SM 18"), "{what}");
    // A fault that starts late is found too.
    let late = gpu().with(SimulatedFault::WrongProcessor { processor: 3, after: 500 });
    assert!(wrong(late, Test::Corruption).contains("SM 3 "));
}

#[test]
fn corruption_test_covers_every_sm() {
    let mut reports = Vec::new();
    let mut backend = gpu().open().unwrap();
    let found =
        run(&mut backend, Test::Corruption, &BUDGET, &mut |progress| reports.push(progress.at_s));
    let TestOutcome::Done { detail, .. } = found else { panic!("{found:?}") };
    assert!(detail.contains("132 of 132 SMs"), "{detail}");
    assert!(detail.ends_with("tensor cores, one large GEMM by a simulated library"), "{detail}");
    assert!(
        reports.windows(2).all(|pair| pair[1] - pair[0] >= 1.0),
        "at most one report per second"
    );
    let few = outcome(gpu().with(SimulatedFault::FewProcessors(3)), Test::Corruption);
    assert!(
        matches!(&few, TestOutcome::NotRun { why } if why.starts_with("only 3 of 132")),
        "{few:?}"
    );
}

#[test]
fn changing_gemm_result_is_corruption() {
    let bad = gpu().with(SimulatedFault::WrongGemm { after: 1 });
    assert_eq!(wrong(bad.clone(), Test::GemmBf16), "the same GEMM gave different bits");
    assert!(wrong(bad, Test::Corruption).contains("runs of one GEMM gave different bits"));
}

#[test]
fn unsupported_tests_give_a_reason() {
    let bare = SimulatedGpu { has_library: false, compute_capability: (8, 0), ..gpu() };
    let not_run = |test| match outcome(bare.clone(), test) {
        TestOutcome::NotRun { why } => (why, false),
        TestOutcome::Unsupported { why } => (why, true),
        other => panic!("{test}: {other:?}"),
    };
    assert_eq!(not_run(Test::GemmBf16), ("no libcublasLt was found".to_owned(), false));
    let (why, is_hardware) = not_run(Test::PeerCopy);
    assert_eq!(why, "no peer GPU is directly accessible");
    assert!(is_hardware && not_run(Test::GemmFp8).1, "the GPU model lacks it");
    assert!(matches!(outcome(bare.clone(), Test::GemmOwn), TestOutcome::Done { .. }));
    let soaked = outcome(bare, Test::Soak);
    assert!(
        matches!(&soaked, TestOutcome::Done { detail, .. } if detail.contains("farrier's kernel"))
    );
}

#[test]
fn lost_gpu_fails() {
    let lost = gpu().with(SimulatedFault::Lost { after: 3 });
    for test in [Test::MemoryPatterns, Test::GemmBf16, Test::Soak, Test::LaunchStream] {
        let outcome = outcome(lost.clone(), test);
        assert!(
            matches!(&outcome, TestOutcome::Failed { why } if why.contains("ECC_UNCORRECTABLE")),
            "{test}: {outcome:?}"
        );
    }
}

#[test]
fn gpu_that_stays_lost_cannot_be_reopened() {
    let dir = tempfile::tempdir().unwrap();
    let gone = gpu().with(SimulatedFault::Gone { after: 3, mark: dir.path().join("lost") });
    let outcome = outcome(gone.clone(), Test::GemmBf16);
    assert!(matches!(outcome, TestOutcome::Failed { .. }), "{outcome:?}");
    let err = gone.open().unwrap_err();
    assert!(err.implicates_gpu(), "{err}");
}

#[test]
fn machine_shortages_do_not_implicate_the_gpu() {
    for (fault, test, detail) in [
        (SimulatedFault::Full { left_mib: 0 }, Test::Allocate, "not enough free GPU memory"),
        (SimulatedFault::Full { left_mib: 0 }, Test::HbmRead, "not enough free GPU memory"),
        (SimulatedFault::NoPinnedMemory, Test::PcieToGpu, "failed to allocate pinned memory"),
        (SimulatedFault::UnfitLibrary, Test::GemmBf16, "cuBLASLt returned 8, ARCH_MISMATCH"),
    ] {
        let outcome = outcome(gpu().with(fault), test);
        assert!(
            matches!(&outcome, TestOutcome::NotRun { why } if why.contains(detail)),
            "{test}: {outcome:?}"
        );
    }
    let old = SimulatedGpu { compute_capability: (6, 0), ..gpu() };
    let err = old.open().unwrap_err();
    assert!(!err.implicates_gpu(), "{err}");
    assert!(err.to_string().contains("this GPU has 6.0"), "{err}");
    let own = outcome(gpu().with(SimulatedFault::UnfitLibrary), Test::GemmOwn);
    assert!(matches!(own, TestOutcome::Done { .. }), "{own:?}");
}

#[test]
fn patterns_use_the_remaining_free_memory() {
    let full = gpu().with(SimulatedFault::Full { left_mib: 22 });
    let TestOutcome::Done { value: Some(gb), detail, .. } = outcome(full, Test::MemoryPatterns)
    else {
        panic!("patterns fit into what is left");
    };
    assert!(gb < 0.023 && detail.contains("of 22 MiB free"), "{detail}");
}

#[test]
fn long_test_reports_progress() {
    let mut reports = Vec::new();
    let fading = gpu().with(SimulatedFault::Fading(0.5));
    let outcome = run(&mut fading.open().unwrap(), Test::Soak, &BUDGET, &mut |progress| {
        reports.push(progress);
    });
    let TestOutcome::Done { samples, .. } = outcome else { panic!("slow but correct") };
    assert_eq!(samples.len(), reports.len());
    assert!(reports.last().unwrap().at_s >= 90.0);
    assert!(samples.last().unwrap() < &(0.6 * samples[0]));
}
