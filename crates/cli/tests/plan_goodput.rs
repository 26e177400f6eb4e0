//! `farrier plan goodput`: the share of a run's time that failures and checkpoints leave for
//! training.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use serde_json::Value;
use support::{CommandOutput, run};

/// An 8B model on 64 H100, with failures.
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

fn goodput(more: &[&str]) -> CommandOutput {
    run(&[&GOODPUT[..], more].concat())
}

fn goodput_json(more: &[&str]) -> Value {
    let output = goodput(&[more, &["--output", "json"]].concat());
    assert!(output.code < 2, "{}", output.stderr);
    serde_json::from_str(&output.stdout).unwrap()
}

#[test]
fn goodput_without_failures_needs_no_checkpoints() {
    for kind in ["synchronous", "asynchronous", "in-memory"] {
        let args = ["--search", "--hazard", "none", "--checkpoint", kind];
        let output = goodput(&args);
        assert_eq!(output.code, 0, "{kind}: {}{}", output.stdout, output.stderr);
        assert!(
            output.stdout.contains("no failures: checkpoints are not needed"),
            "{}",
            output.stdout
        );
        assert!(output.stdout.contains("with no failures"), "{}", output.stdout);
        for unexpected in ["- days", "NaN", "0.0000", "Young", "Lost to", "Cost-optimal spares"] {
            assert!(!output.stdout.contains(unexpected), "{unexpected}: {}", output.stdout);
        }
        assert_eq!(goodput_json(&args)["best"]["share"].as_f64(), Some(1.0), "{kind}");
        // The cost of a requested interval is shown.
        let requested = goodput(&[&args[..], &["--interval", "30"]].concat());
        assert!(requested.stdout.contains(" requested "), "{}", requested.stdout);
        assert!(!requested.stdout.contains(" best "), "{}", requested.stdout);
    }
}

#[test]
fn absurd_repair_times_are_refused() {
    let output = goodput(&["--search", "--repair", "1e15"]);
    assert_eq!(output.code, 2, "{}", output.stdout);
    assert!(output.stderr.contains("'--repair <HOURS>'"), "{}", output.stderr);
    assert!(output.stderr.contains("a number above 0, up to 87600"), "{}", output.stderr);
    let output = goodput(&["--search", "--spares", "4294967295"]);
    assert_eq!(output.code, 2, "{}", output.stdout);
    assert!(output.stderr.contains("1048576"), "{}", output.stderr);
}

#[test]
fn absurd_numbers_are_refused_with_their_bounds() {
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
            let output = goodput(&["--search", flag, value]);
            assert_eq!(output.code, 2, "{flag} {value}: {}", output.stdout);
            let text = format!("expected a number above 0, up to {most}\n");
            assert!(output.stderr.contains(&text), "{flag} {value}: {}", output.stderr);
        }
    }
    for value in ["1e18", "-1"] {
        let output = goodput(&["--search", "--spares", value]);
        assert!(output.stderr.contains("a whole number from 0 to 1048576"), "{}", output.stderr);
    }
    assert_eq!(goodput(&["--search", "--spares", "0"]).code, 0);
}

#[test]
fn one_spare_is_shown_as_1_node() {
    let output = goodput(&["--search", "--mtbf", "50"]);
    assert!(output.stdout.contains("Cost-optimal spares: 1 node ("), "{}", output.stdout);
}

#[test]
fn planned_stops_that_leave_no_time_are_named() {
    let output = goodput(&["--search", "--planned-stops", "1000"]);
    assert_eq!(output.code, 2, "{}", output.stdout);
    assert!(
        output.stderr.contains("1000 planned stops per day do not fit into a day"),
        "{}",
        output.stderr
    );
    let output = goodput(&["--search", "--recovery", "5", "--planned-stops", "260"]);
    assert_eq!(output.code, 1, "{}{}", output.stdout, output.stderr);
    let text = output.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("260 planned stops per day of 5."), "{text}");
    assert!(!text.contains("a failure occurs"), "{text}");
}

#[test]
fn goodput_shows_whether_the_run_fits_in_memory() {
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
    let output = run(&large);
    assert_eq!(output.code, 1, "{}", output.stdout);
    assert!(output.stdout.contains("memory      does not fit: "), "{}", output.stdout);
    let output = run(&[&large[..], &["--output", "json"]].concat());
    assert_eq!(output.code, 1, "{}", output.stdout);
    let report: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(report["fits"], false);
    assert!(report["memory"]["p50_gib"].as_f64() > report["memory"]["capacity_gib"].as_f64());
    // A run whose tokens/s were measured has fit in memory.
    let output = run(&[&large[..], &["--tokens-per-s", "5000"]].concat());
    assert_eq!(output.code, 0, "{}", output.stdout);
    assert!(!output.stdout.contains("memory "), "{}", output.stdout);
    let output = goodput(&["--search"]);
    assert_eq!(output.code, 0, "{}", output.stdout);
    assert!(output.stdout.contains("memory      fits: "), "{}", output.stdout);
    assert_eq!(goodput_json(&["--search"])["fits"], true);
}

#[test]
fn several_gpu_counts_need_a_search() {
    let several = [&GOODPUT[..13], &["16,32"]].concat();
    let output = run(&several);
    assert_eq!(output.code, 2, "{}", output.stdout);
    assert!(output.stderr.contains("several GPU counts need a search"), "{}", output.stderr);
    let output = run(&[&several[..], &["--search"]].concat());
    assert_eq!(output.code, 0, "{}", output.stderr);
    assert!(output.stdout.contains("assumed: 32 GPUs, the fastest of"), "{}", output.stdout);
}

#[test]
fn the_search_optimises_the_requested_goal() {
    let several = [&GOODPUT[..13], &["8,64"], &["--search", "--output", "json"][..]].concat();
    let search = |more: &[&str]| {
        let output = run(&[&several[..], more].concat());
        serde_json::from_str::<Value>(&output.stdout)
            .unwrap_or_else(|_| panic!("{}", output.stderr))
    };
    assert_eq!(search(&[])["gpus"], 64);
    let cheap = search(&["--for", "goodput"]);
    assert_eq!(cheap["gpus"], 8);
    assert!(cheap["assumed"].to_string().contains("including failures"), "{cheap}");
}

#[test]
fn a_too_long_interval_is_named_as_the_cause() {
    let args = ["--search", "--mtbf", "3", "--interval", "1e7"];
    let output = goodput(&args);
    assert_eq!(output.code, 1, "{}", output.stdout);
    let text = output.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        text.contains("is too rare for a failure every 180.0 min; the best interval is "),
        "{text}"
    );
    assert!(!text.contains("GPUs or fewer"), "{text}");
}

#[test]
fn tokens_are_optional_and_add_an_uncertainty_range() {
    let bare = [&GOODPUT[..10], &["--gpus", "64", "--search"]].concat();
    let output = run(&bare);
    assert_eq!(output.code, 0, "{}", output.stderr);
    assert!(output.stdout.contains("Effective time (ETTR)"), "{}", output.stdout);
    assert!(output.stdout.contains("Set `--tokens` for days, dollars"), "{}", output.stdout);
    let run_summary = |more: &[&str]| goodput_json(&[&["--search"], more].concat())["run"].clone();
    let estimated = run_summary(&[]);
    for (low, middle, high) in [("days_p10", "days", "days_p90"), ("usd_p10", "usd", "usd_p90")] {
        let number = |key: &str| estimated[key].as_f64().unwrap_or_else(|| panic!("{key}"));
        assert!(number(low) < number(middle) && number(middle) < number(high), "{estimated}");
    }
    assert!(goodput(&["--search"]).stdout.contains("(P10-P90 "));
    assert!(run_summary(&["--tokens-per-s", "500000"])["days_p10"].is_null());
    // This run takes an hour on 64 GPUs, which fail about once per month.
    let short = [&bare[..], &["--tokens", "1.5B"]].concat();
    let output = run(&short);
    assert!(output.stdout.contains("The run ends before a checkpoint pays"), "{}", output.stdout);
}

#[test]
fn in_memory_checkpoints_use_the_network() {
    let rate = |gbit: &str| {
        let args = ["--search", "--checkpoint", "in-memory", "--network", gbit];
        let report = goodput_json(&args);
        report["conditions"]["checkpoint"]["network_bytes_per_s"].as_f64().unwrap()
    };
    assert!((rate("400") - 50e9).abs() < 1.0 && (rate("8") - 1e9).abs() < 1.0);
}

#[test]
fn gpus_per_node_and_checkpoint_size_are_known() {
    let nodes = |gpu: &str| {
        let mut args = GOODPUT;
        args[5] = gpu;
        let output = run(&[&args[..], &["--search", "--output", "json"]].concat());
        let report: Value = serde_json::from_str(&output.stdout).unwrap();
        report["conditions"]["gpus_per_node"].as_u64()
    };
    assert_eq!(nodes("H100"), Some(8));
    assert_eq!(nodes("GB200"), Some(4));
    let saved = |more: &[&str]| {
        goodput_json(more)["conditions"]["checkpoint"]["bytes"].as_f64().unwrap() / 1e9
    };
    // 14 bytes for each of 8.03 billion parameters. Adapters have about a hundredth as many.
    assert!((saved(&["--search"]) - 112.4).abs() < 0.5);
    let adapters = saved(&["--search", "--lora"]);
    assert!((0.3..2.5).contains(&adapters), "{adapters}");
}

#[test]
fn failures_that_allow_no_progress_are_a_finding() {
    let args = [
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
    let three_hours = run(&[&args[..], &["--mtbf", "3"]].concat());
    assert_eq!(three_hours.code, 0, "{}", three_hours.stderr);
    assert!(three_hours.stdout.contains("Effective time (ETTR)"), "{}", three_hours.stdout);
    // A run that makes little progress still has a duration and a price.
    let slow = run(&[&args[..], &["--mtbf", "0.1"]].concat());
    assert_eq!(slow.code, 0, "{}{}", slow.stdout, slow.stderr);
    assert!(slow.stdout.contains("The run takes") && slow.stdout.contains('$'), "{}", slow.stdout);
    let minutes = run(&[&args[..], &["--mtbf", "0.02"]].concat());
    assert_eq!(minutes.code, 1, "{}", minutes.stdout);
    let text = minutes.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("makes no progress") && text.contains("less than 10 %"), "{text}");
}

#[test]
fn storage_has_its_own_interval_with_in_memory_checkpoints() {
    let storage = goodput(&["--search", "--storage-interval", "60"]);
    assert_eq!(storage.code, 2, "{}", storage.stdout);
    assert!(storage.stderr.contains("`--checkpoint in-memory`"), "{}", storage.stderr);
    let rare = ["--search", "--checkpoint", "in-memory", "--storage-interval", "6000"];
    let often = goodput_json(&rare[..3]);
    let rare = goodput_json(&rare);
    assert!(rare["best"]["share"].as_f64() < often["best"]["share"].as_f64());
}
