use super::super::edge::Pattern;
use super::super::simulated::{Ailment, SimulatedGpu};
use super::*;

const EFFORT: Effort = Effort {
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

fn outcome(gpu: SimulatedGpu, test: Test) -> Outcome {
    run(&mut gpu.open().unwrap(), test, &EFFORT, &mut |_| ())
}

fn value(gpu: SimulatedGpu, test: Test) -> f64 {
    match outcome(gpu, test) {
        Outcome::Done { value: Some(value), .. } => value,
        other => panic!("{test}: {other:?}"),
    }
}

fn wrong(gpu: SimulatedGpu, test: Test) -> String {
    match outcome(gpu, test) {
        Outcome::Wrong { what } => what.join("; "),
        other => panic!("{test}: {other:?}"),
    }
}

#[test]
fn a_healthy_gpu_does_everything_and_gives_all_back() {
    let gpu = SimulatedGpu { peers: 1, ..gpu() };
    let mut edge = gpu.open().unwrap();
    let before = edge.free_bytes().unwrap();
    for test in Test::ALL {
        let outcome = run(&mut edge, test, &EFFORT, &mut |_| ());
        assert!(matches!(outcome, Outcome::Done { .. }), "{test}: {outcome:?}");
        assert_eq!(edge.free_bytes().unwrap(), before, "{test}");
    }
}

#[test]
fn what_is_slow_is_measured_as_slow() {
    for (ailment, test) in [
        (Ailment::SlowMemory(0.5), Test::HbmRead),
        (Ailment::SlowMemory(0.5), Test::HbmWrite),
        (Ailment::SlowMemory(0.5), Test::HbmCopy),
        (Ailment::SlowPcie(0.5), Test::PcieToGpu),
        (Ailment::SlowPcie(0.5), Test::PcieToHost),
        (Ailment::SlowProducts(0.5), Test::GemmBf16),
        (Ailment::SlowProducts(0.5), Test::GemmFp64),
    ] {
        let ratio = value(gpu().with(ailment.clone()), test) / value(gpu(), test);
        assert!((ratio - 0.5).abs() < 1e-9, "{test} {ailment:?}: {ratio}");
    }
    assert!((value(gpu(), Test::LaunchGraph) - 0.6).abs() < 1e-9);
}

#[test]
fn a_bit_that_sticks_is_found_wherever_memory_is_looked_at() {
    // A word of which what is written has that bit unset.
    let is_unset = |word: &u64| {
        [0, 1, 3, 7].iter().all(|seed| Pattern::Scattered(*seed).word(*word) & (1 << 9) == 0)
    };
    let word = (0..1000).find(is_unset).unwrap();
    let stuck = gpu().with(Ailment::StuckBit { word, bit: 9 });
    for test in [Test::Allocate, Test::MemoryPatterns, Test::HbmCopy, Test::PcieToGpu] {
        let what = wrong(stuck.clone(), test);
        assert!(what.contains("always bit 9"), "{test}: {what}");
        assert!(what.contains(&format!("word {word:#x}")), "{test}: {what}");
    }
}

#[test]
fn one_wrong_word_is_one_word_and_what_was_written_is_said_in_words() {
    let stuck = gpu().with(Ailment::StuckBit { word: 5, bit: 3 });
    let what = wrong(stuck, Test::MemoryPatterns);
    assert!(what.starts_with("1 word was not as it was written (0x55555555 in each"), "{what}");
}

#[test]
fn memory_that_others_hold_is_not_sound_for_that() {
    let full = gpu().with(Ailment::Full { left_mib: 4 });
    let Outcome::NotRun { why } = outcome(full, Test::MemoryPatterns) else { panic!("it ran") };
    assert!(why.starts_with("only 3 MiB of 24 MiB could be taken"), "{why}");
}

#[test]
fn a_gpu_that_cannot_be_is_told_by_its_field() {
    assert_eq!(gpu().nonsense(), None);
    for (gpu, said) in [
        (SimulatedGpu { processors: 0, ..gpu() }, "`processors` is 0"),
        (SimulatedGpu { tflops: f64::NAN, ..gpu() }, "`tflops` is NaN"),
        (SimulatedGpu { launch_us: (1.0, 0.0), ..gpu() }, "`launch_us` is 0"),
        (SimulatedGpu { memory_mib: u64::MAX, ..gpu() }, "`memory_mib` is "),
        (gpu().with(Ailment::SlowMemory(-3.0)), "`slow-memory` is -3"),
        (gpu().with(Ailment::Fading(1.5)), "`fading` is 1.5"),
        (gpu().with(Ailment::StuckBit { word: 0, bit: 32 }), "`stuck-bit` has bit 32"),
        (gpu().with(Ailment::FewProcessors(0)), "`few-processors` is 0"),
        (gpu().with(Ailment::WrongProcessor { processor: 132, after: 0 }), "`wrong-processor`"),
    ] {
        let nonsense = gpu.nonsense();
        assert!(nonsense.as_ref().is_some_and(|it| it.starts_with(said)), "{said}: {nonsense:?}");
    }
}

#[test]
fn a_multiprocessor_that_computes_wrongly_is_named() {
    let bad = gpu().with(Ailment::WrongProcessor { processor: 17, after: 0 });
    assert!(wrong(bad.clone(), Test::Compute).starts_with("2048 of 270336 threads"));
    let what = wrong(bad, Test::Corruption);
    assert!(what.contains("multiprocessor 17 computed wrongly"), "{what}");
    assert!(!what.contains("multiprocessor 18"), "{what}");
    // It begins late, and is found all the same.
    let late = gpu().with(Ailment::WrongProcessor { processor: 3, after: 500 });
    assert!(wrong(late, Test::Corruption).contains("multiprocessor 3 "));
}

#[test]
fn a_hunt_says_what_it_hunted_and_that_it_was_everywhere() {
    let mut beats = Vec::new();
    let mut edge = gpu().open().unwrap();
    let found = run(&mut edge, Test::Corruption, &EFFORT, &mut |beat| beats.push(beat.at_s));
    let Outcome::Done { detail, .. } = found else { panic!("{found:?}") };
    assert!(detail.contains("132 of 132 multiprocessors"), "{detail}");
    assert!(detail.ends_with("tensor cores, one large product by a simulated library"), "{detail}");
    assert!(beats.windows(2).all(|pair| pair[1] - pair[0] >= 1.0), "once a second is enough");
    let few = outcome(gpu().with(Ailment::FewProcessors(3)), Test::Corruption);
    assert!(matches!(&few, Outcome::NotRun { why } if why.starts_with("only 3 of 132")), "{few:?}");
}

#[test]
fn products_that_change_are_corrupt() {
    let bad = gpu().with(Ailment::WrongProduct { after: 1 });
    assert_eq!(wrong(bad.clone(), Test::GemmBf16), "the same product gave other bits than before");
    assert!(wrong(bad, Test::Corruption).contains("runs of one product gave other bits"));
}

#[test]
fn what_cannot_be_done_says_why() {
    let bare = SimulatedGpu { has_library: false, compute_capability: (8, 0), ..gpu() };
    let not_run = |test| match outcome(bare.clone(), test) {
        Outcome::NotRun { why } => (why, false),
        Outcome::Unsupported { why } => (why, true),
        other => panic!("{test}: {other:?}"),
    };
    assert_eq!(not_run(Test::GemmBf16), ("no libcublasLt was found".to_owned(), false));
    let (why, is_of_part) = not_run(Test::PeerCopy);
    assert_eq!(why, "there is no GPU that this one reaches directly");
    assert!(is_of_part && not_run(Test::GemmFp8).1, "no card of the part can");
    assert!(matches!(outcome(bare.clone(), Test::GemmOwn), Outcome::Done { .. }));
    let soaked = outcome(bare, Test::Soak);
    assert!(matches!(&soaked, Outcome::Done { detail, .. } if detail.contains("our own kernel")));
}

#[test]
fn a_gpu_that_is_lost_has_failed() {
    let lost = gpu().with(Ailment::Lost { after: 3 });
    for test in [Test::MemoryPatterns, Test::GemmBf16, Test::Soak, Test::LaunchStream] {
        let outcome = outcome(lost.clone(), test);
        assert!(
            matches!(&outcome, Outcome::Failed { why } if why.contains("ECC_UNCORRECTABLE")),
            "{test}: {outcome:?}"
        );
    }
}

#[test]
fn one_that_stays_lost_cannot_be_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let gone = gpu().with(Ailment::Gone { after: 3, mark: folder.path().join("lost") });
    let outcome = outcome(gone.clone(), Test::GemmBf16);
    assert!(matches!(outcome, Outcome::Failed { .. }), "{outcome:?}");
    let err = gone.open().unwrap_err();
    assert!(err.says_something_of_the_gpu(), "{err}");
}

#[test]
fn what_the_machine_withholds_says_nothing_of_the_gpu() {
    for (ailment, test, said) in [
        (Ailment::Full { left_mib: 0 }, Test::Allocate, "not that much free memory"),
        (Ailment::Full { left_mib: 0 }, Test::HbmRead, "not that much free memory"),
        (Ailment::NoPinnedMemory, Test::PcieToGpu, "failed to take pinned memory"),
        (Ailment::UnfitLibrary, Test::GemmBf16, "cuBLASLt says 8, ARCH_MISMATCH"),
    ] {
        let outcome = outcome(gpu().with(ailment), test);
        assert!(
            matches!(&outcome, Outcome::NotRun { why } if why.contains(said)),
            "{test}: {outcome:?}"
        );
    }
    let old = SimulatedGpu { compute_capability: (6, 0), ..gpu() };
    let err = old.open().unwrap_err();
    assert!(!err.says_something_of_the_gpu(), "{err}");
    assert!(err.to_string().contains("this GPU has 6.0"), "{err}");
    let own = outcome(gpu().with(Ailment::UnfitLibrary), Test::GemmOwn);
    assert!(matches!(own, Outcome::Done { .. }), "{own:?}");
}

#[test]
fn memory_that_others_hold_is_left_to_them() {
    let full = gpu().with(Ailment::Full { left_mib: 22 });
    let Outcome::Done { value: Some(gb), detail, .. } = outcome(full, Test::MemoryPatterns) else {
        panic!("patterns fit into what is left");
    };
    assert!(gb < 0.023 && detail.contains("of 22 MiB free"), "{detail}");
}

#[test]
fn a_long_test_tells_how_it_goes() {
    let mut beats = Vec::new();
    let fading = gpu().with(Ailment::Fading(0.5));
    let outcome =
        run(&mut fading.open().unwrap(), Test::Soak, &EFFORT, &mut |beat| beats.push(beat));
    let Outcome::Done { samples, .. } = outcome else { panic!("it is slow, and right") };
    assert_eq!(samples.len(), beats.len());
    assert!(beats.last().unwrap().at_s >= 90.0);
    assert!(samples.last().unwrap() < &(0.6 * samples[0]));
}
