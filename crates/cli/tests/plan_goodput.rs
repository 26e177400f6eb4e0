//! `farrier plan goodput`: what faults and checkpoints leave of a run.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use serde_json::Value;
use support::{Ran, run};

/// An 8B model on 64 H100, with faults.
const GOODPUT: [&str; 14] = [
    "plan",
    "goodput",
    "--model",
    "llama3-8b",
    "--gpu",
    "H100",
    "--seq-len",
    "8192",
    "--global-batch",
    "64",
    "--tokens",
    "1T",
    "--gpus",
    "64",
];

fn goodput(more: &[&str]) -> Ran {
    run(&[&GOODPUT[..], more].concat())
}

fn goodput_json(more: &[&str]) -> Value {
    let ran = goodput(&[more, &["--output", "json"]].concat());
    assert!(ran.code < 2, "{}", ran.stderr);
    serde_json::from_str(&ran.stdout).unwrap()
}

#[test]
fn goodput_without_faults_is_said_plainly() {
    for kind in ["synchronous", "asynchronous", "in-memory"] {
        let none = ["--search", "--hazard", "none", "--checkpoint", kind];
        let ran = goodput(&none);
        assert_eq!(ran.code, 0, "{kind}: {}{}", ran.stdout, ran.stderr);
        assert!(ran.stdout.contains("no failures: checkpoints are not needed"), "{}", ran.stdout);
        assert!(ran.stdout.contains("with no failures"), "{}", ran.stdout);
        for unfit in ["- days", "NaN", "0.0000", "Young", "Lost to", "Cost-optimal spares"] {
            assert!(!ran.stdout.contains(unfit), "{unfit}: {}", ran.stdout);
        }
        assert_eq!(goodput_json(&none)["best"]["share"].as_f64(), Some(1.0), "{kind}");
        // Where an interval is asked for, what it costs is said.
        let given = goodput(&[&none[..], &["--interval", "30"]].concat());
        assert!(given.stdout.contains(" requested "), "{}", given.stdout);
        assert!(!given.stdout.contains(" best "), "{}", given.stdout);
    }
}

#[test]
fn goodput_of_absurd_repairs_is_refused() {
    let ran = goodput(&["--search", "--repair", "1e15"]);
    assert_eq!(ran.code, 2, "{}", ran.stdout);
    assert!(ran.stderr.contains("'--repair <HOURS>'"), "{}", ran.stderr);
    assert!(ran.stderr.contains("a number above 0, up to 87600"), "{}", ran.stderr);
    let ran = goodput(&["--search", "--spares", "4294967295"]);
    assert_eq!(ran.code, 2, "{}", ran.stdout);
    assert!(ran.stderr.contains("1048576"), "{}", ran.stderr);
}

#[test]
fn goodput_of_absurd_numbers_is_refused_with_the_bounds() {
    let flags = [
        ("--mtbf", "10000000"),
        ("--detection", "10000000"),
        ("--recovery", "10000000"),
        ("--interval", "10000000"),
        ("--storage-interval", "10000000"),
        ("--storage", "1000000"),
        ("--planned-stops", "1440"),
        ("--repair", "87600"),
        ("--tokens-per-s", "1000000000000"),
    ];
    for (flag, most) in flags {
        for value in ["1e18", "-1", "0"] {
            let ran = goodput(&["--search", flag, value]);
            assert_eq!(ran.code, 2, "{flag} {value}: {}", ran.stdout);
            let said = format!("expected a number above 0, up to {most}\n");
            assert!(ran.stderr.contains(&said), "{flag} {value}: {}", ran.stderr);
        }
    }
    for value in ["1e18", "-1"] {
        let ran = goodput(&["--search", "--spares", value]);
        assert!(ran.stderr.contains("a whole number from 0 to 1048576"), "{}", ran.stderr);
    }
    assert_eq!(goodput(&["--search", "--spares", "0"]).code, 0);
}

#[test]
fn one_spare_is_a_node() {
    let ran = goodput(&["--search", "--mtbf", "50"]);
    assert!(ran.stdout.contains("Cost-optimal spares: 1 node ("), "{}", ran.stdout);
}

#[test]
fn goodput_blames_planned_stops_that_take_the_time() {
    let ran = goodput(&["--search", "--planned-stops", "1000"]);
    assert_eq!(ran.code, 2, "{}", ran.stdout);
    assert!(
        ran.stderr.contains("1000 planned stops per day do not fit into a day"),
        "{}",
        ran.stderr
    );
    let ran = goodput(&["--search", "--recovery", "5", "--planned-stops", "260"]);
    assert_eq!(ran.code, 1, "{}{}", ran.stdout, ran.stderr);
    let said = ran.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("260 planned stops per day of 5."), "{said}");
    assert!(!said.contains("a failure occurs"), "{said}");
}

#[test]
fn goodput_says_whether_memory_suffices() {
    let large = [
        "plan",
        "goodput",
        "--model",
        "llama3-70b",
        "--gpu",
        "H100",
        "--gpus",
        "8",
        "--seq-len",
        "8192",
        "--global-batch",
        "256",
        "--tokens",
        "1T",
    ];
    let ran = run(&large);
    assert_eq!(ran.code, 1, "{}", ran.stdout);
    assert!(ran.stdout.contains("memory      does not fit: "), "{}", ran.stdout);
    let ran = run(&[&large[..], &["--output", "json"]].concat());
    assert_eq!(ran.code, 1, "{}", ran.stdout);
    let answer: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(answer["fits"], false);
    assert!(answer["memory"]["p50_gib"].as_f64() > answer["memory"]["capacity_gib"].as_f64());
    // A run that was measured had room.
    let ran = run(&[&large[..], &["--tokens-per-s", "5000"]].concat());
    assert_eq!(ran.code, 0, "{}", ran.stdout);
    assert!(!ran.stdout.contains("memory "), "{}", ran.stdout);
    let ran = goodput(&["--search"]);
    assert_eq!(ran.code, 0, "{}", ran.stdout);
    assert!(ran.stdout.contains("memory      fits: "), "{}", ran.stdout);
    assert_eq!(goodput_json(&["--search"])["fits"], true);
}

#[test]
fn goodput_takes_several_numbers_of_gpus_only_to_search() {
    let several = [&GOODPUT[..13], &["16,32"]].concat();
    let ran = run(&several);
    assert_eq!(ran.code, 2, "{}", ran.stdout);
    assert!(ran.stderr.contains("several GPU counts need a search"), "{}", ran.stderr);
    let ran = run(&[&several[..], &["--search"]].concat());
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.contains("assumed: 32 GPUs, the fastest of"), "{}", ran.stdout);
}

#[test]
fn goodput_searches_for_what_is_asked() {
    let several = [&GOODPUT[..13], &["8,64"], &["--search", "--output", "json"][..]].concat();
    let of = |more: &[&str]| {
        let ran = run(&[&several[..], more].concat());
        serde_json::from_str::<Value>(&ran.stdout).unwrap_or_else(|_| panic!("{}", ran.stderr))
    };
    assert_eq!(of(&[])["gpus"], 64);
    let cheap = of(&["--for", "goodput"]);
    assert_eq!(cheap["gpus"], 8);
    assert!(cheap["assumed"].to_string().contains("including failures"), "{cheap}");
}

#[test]
fn goodput_blames_the_interval_and_not_the_gpus() {
    let words = ["--search", "--mtbf", "3", "--interval", "1e7"];
    let ran = goodput(&words);
    assert_eq!(ran.code, 1, "{}", ran.stdout);
    let said = ran.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        said.contains("is too rare for a failure every 180.0 min; the best interval is "),
        "{said}"
    );
    assert!(!said.contains("GPUs or fewer"), "{said}");
}

#[test]
fn goodput_needs_no_tokens_and_has_its_doubt_with_them() {
    let bare = [&GOODPUT[..10], &["--gpus", "64", "--search"]].concat();
    let ran = run(&bare);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.contains("Effective time (ETTR)"), "{}", ran.stdout);
    assert!(ran.stdout.contains("Set `--tokens` for days, dollars"), "{}", ran.stdout);
    let run_of = |more: &[&str]| goodput_json(&[&["--search"], more].concat())["run"].clone();
    let estimated = run_of(&[]);
    for (low, middle, high) in [("days_p10", "days", "days_p90"), ("usd_p10", "usd", "usd_p90")] {
        let of = |key: &str| estimated[key].as_f64().unwrap_or_else(|| panic!("{key}"));
        assert!(of(low) < of(middle) && of(middle) < of(high), "{estimated}");
    }
    assert!(goodput(&["--search"]).stdout.contains("(P10-P90 "));
    assert!(run_of(&["--tokens-per-s", "500000"])["days_p10"].is_null());
    // An hour on 64 GPUs, where a fault comes in a month.
    let short = [&bare[..], &["--tokens", "1.5B"]].concat();
    let ran = run(&short);
    assert!(ran.stdout.contains("The run ends before a checkpoint pays"), "{}", ran.stdout);
}

#[test]
fn the_network_carries_checkpoints_in_memory() {
    let rate = |gbit: &str| {
        let words = ["--search", "--checkpoint", "in-memory", "--network", gbit];
        let answer = goodput_json(&words);
        answer["conditions"]["checkpoint"]["network_bytes_per_s"].as_f64().unwrap()
    };
    assert!((rate("400") - 50e9).abs() < 1.0 && (rate("8") - 1e9).abs() < 1.0);
}

#[test]
fn goodput_knows_the_nodes_and_what_is_saved() {
    let nodes = |gpu: &str| {
        let mut words = GOODPUT;
        words[5] = gpu;
        let ran = run(&[&words[..], &["--search", "--output", "json"]].concat());
        let answer: Value = serde_json::from_str(&ran.stdout).unwrap();
        answer["conditions"]["gpus_per_node"].as_u64()
    };
    assert_eq!(nodes("H100"), Some(8));
    assert_eq!(nodes("GB200"), Some(4));
    let saved = |more: &[&str]| {
        goodput_json(more)["conditions"]["checkpoint"]["bytes"].as_f64().unwrap() / 1e9
    };
    // 14 bytes of 8.03 billion weights; adapters are about a hundredth of them.
    assert!((saved(&["--search"]) - 112.4).abs() < 0.5);
    let adapters = saved(&["--search", "--lora"]);
    assert!((0.3..2.5).contains(&adapters), "{adapters}");
}

#[test]
fn faults_that_leave_no_headway_are_a_finding() {
    let words = [
        "plan",
        "goodput",
        "--model",
        "llama3-8b",
        "--gpu",
        "H100",
        "--gpus",
        "64",
        "--seq-len",
        "8192",
        "--global-batch",
        "64",
        "--search",
        "--tokens",
        "1T",
    ];
    let three_hours = run(&[&words[..], &["--mtbf", "3"]].concat());
    assert_eq!(three_hours.code, 0, "{}", three_hours.stderr);
    assert!(three_hours.stdout.contains("Effective time (ETTR)"), "{}", three_hours.stdout);
    // A little is kept: slow, but it has days and a price.
    let slow = run(&[&words[..], &["--mtbf", "0.1"]].concat());
    assert_eq!(slow.code, 0, "{}{}", slow.stdout, slow.stderr);
    assert!(slow.stdout.contains("The run takes") && slow.stdout.contains('$'), "{}", slow.stdout);
    let minutes = run(&[&words[..], &["--mtbf", "0.02"]].concat());
    assert_eq!(minutes.code, 1, "{}", minutes.stdout);
    let said = minutes.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("makes no progress") && said.contains("less than 10 %"), "{said}");
}

#[test]
fn storage_has_an_interval_of_its_own_behind_memory() {
    let storage = goodput(&["--search", "--storage-interval", "60"]);
    assert_eq!(storage.code, 2, "{}", storage.stdout);
    assert!(storage.stderr.contains("`--checkpoint in-memory`"), "{}", storage.stderr);
    let rare = ["--search", "--checkpoint", "in-memory", "--storage-interval", "6000"];
    let often = goodput_json(&rare[..3]);
    let rare = goodput_json(&rare);
    assert!(rare["best"]["share"].as_f64() < often["best"]["share"].as_f64());
}
