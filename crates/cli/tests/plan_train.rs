//! `farrier plan train`: what it refuses, what it advises, and that both hold.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use serde_json::Value;
use support::{Ran, run};

fn train(model: &str, gpu: &str, gpus: &str, batch: &str, more: &[&str]) -> Ran {
    let words = [
        "plan",
        "train",
        "--model",
        model,
        "--gpu",
        gpu,
        "--gpus",
        gpus,
        "--seq-len",
        "8k",
        "--global-batch",
        batch,
    ];
    run(&[&words[..], more].concat())
}

/// An 8B model on eight H100.
fn small(more: &[&str]) -> Ran {
    train("llama3-8b", "H100", "8", "64", more)
}

fn json(ran: &Ran) -> Value {
    assert!(ran.code < 2, "{}", ran.stderr);
    serde_json::from_str(&ran.stdout).unwrap()
}

/// On one line, however it was folded.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn counts_are_at_least_1() {
    let flags = ["--tp", "--pp", "--vp", "--cp", "--ep", "--dp", "--micro-batch"];
    for flag in flags {
        for value in ["0", "-1", "x"] {
            let ran = small(&[flag, value, "--search"]);
            assert_eq!(ran.code, 2, "{flag} {value}: {}", ran.stdout);
            assert!(ran.stderr.contains("expected a whole number from 1"), "{}", ran.stderr);
        }
    }
    for (gpus, batch) in [("0", "64"), ("-8", "64"), ("8", "0"), ("8", "-64")] {
        let ran = train("llama3-8b", "H100", gpus, batch, &["--tp", "1", "--search"]);
        assert_eq!(ran.code, 2, "{}", ran.stdout);
        assert!(ran.stderr.contains("expected a whole number from 1"), "{}", ran.stderr);
    }
    let ran = small(&["--lora", "--lora-rank", "0"]);
    assert!(ran.stderr.contains("expected a whole number from 1"), "{}", ran.stderr);
    assert_eq!(json(&small(&["--output", "json"]))["seq_len"], 8192);
}

#[test]
fn what_a_search_finds_can_be_started() {
    for (model, gpus) in [("llama3-8b", "8"), ("llama3-70b", "64"), ("qwen3-30b-a3b", "64")] {
        for stack in ["megatron-bridge", "megatron", "fsdp", "fsdp-compiled"] {
            for launcher in ["torchrun", "slurm"] {
                let more = ["--search", "--stack", stack, "--emit", launcher];
                let ran = train(model, "H100", gpus, "256", &more);
                assert_eq!(ran.code, 0, "{model} {stack}: {}{}", ran.stdout, ran.stderr);
            }
        }
    }
}

#[test]
fn pipelines_need_not_be_powers_of_two() {
    for (model, gpus, batch) in [("llama3.1-405b", "80", "64"), ("llama3-70b", "112", "256")] {
        let ran = train(model, "H200", gpus, batch, &["--search"]);
        assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    }
    let ran = train("llama3-8b", "H100", "67", "64", &["--search"]);
    assert_eq!(ran.code, 2, "{}", ran.stdout);
    assert!(!ran.stderr.contains("DP 67"), "{}", ran.stderr);
}

#[test]
fn the_fewest_gpus_that_do_are_named_and_do() {
    let few = |gpus: &str| train("llama3.1-405b", "H100", gpus, "64", &["--search"]);
    for gpus in ["72", "80"] {
        let ran = few(gpus);
        assert_eq!(ran.code, 1, "{}", ran.stderr);
        let text = flat(&ran.stdout);
        let (_, after) = text.split_once("possible: ").unwrap();
        let enough: u32 = after.split(' ').next().unwrap().parse().unwrap();
        assert!(enough <= 112 && enough.is_multiple_of(8), "{text}");
        assert_eq!(few(&enough.to_string()).code, 0, "{text}");
        assert_eq!(few(&(enough - 8).to_string()).code, 1, "{text}");
        assert!(text.contains("assumed: `H100` is a family"), "{text}");
    }
}

#[test]
fn only_what_was_tried_is_advised() {
    // Adapters do not fit either, or are asked for.
    for more in [&["--search"][..], &["--search", "--lora"]] {
        let ran = train("llama3.1-405b", "H100", "8", "64", more);
        assert_eq!(ran.code, 1, "{}", ran.stderr);
        assert!(!ran.stdout.contains("--lora"), "{}", ran.stdout);
        assert!(!ran.stdout.contains("fixed values"), "{}", ran.stdout);
    }
    let ran = train("llama3-70b", "H100", "8", "64", &["--search"]);
    assert!(ran.stdout.contains("LoRA fits (`--lora`)"), "{}", ran.stdout);
    assert_eq!(train("llama3-70b", "H100", "8", "64", &["--search", "--lora"]).code, 0);
    let ran = train(
        "llama3-70b",
        "H100",
        "64",
        "256",
        &["--search", "--tp", "1", "--pp", "1", "--zero", "1"],
    );
    assert!(
        flat(&ran.stdout).contains("a parallelism config without the fixed values fits"),
        "{}",
        ran.stdout
    );
    // What `--search` would not find is not said to be found.
    let ran = train("llama3-70b", "H100", "64", "256", &["--tp", "3"]);
    assert!(
        ran.stderr.contains("`--search` finds a parallelism config that works, without"),
        "{}",
        ran.stderr
    );
    let ran = train("llama3.1-405b", "H100", "8", "64", &["--tp", "3"]);
    assert!(!ran.stderr.contains("--search"), "{}", ran.stderr);
}

#[test]
fn where_nothing_helps_that_is_said() {
    let more = ["--lora", "--tp", "1", "--pp", "1", "--zero", "1", "--search"];
    let ran = train("llama3.1-405b", "H100", "8", "1", &more);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(
        flat(&ran.stdout)
            .contains("possible: tried more GPUs, GPUs with more memory and LoRA: none fits"),
        "{}",
        ran.stdout
    );
}

#[test]
fn what_does_not_fit_ends_with_1() {
    let ran = train("llama3.1-405b", "H100", "8", "64", &["--emit", "slurm"]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stdout.is_empty() && !ran.stderr.contains("--search"), "{}", ran.stderr);
    let ran = train("llama3-70b", "H100", "64", "256", &["--tp", "2", "--emit", "slurm"]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("hint: `--search` finds"), "{}", ran.stderr);
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html").display().to_string();
    let ran = train("llama3.1-405b", "H100", "8", "64", &["--search", "--report", &page]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("no report was written"), "{}", ran.stderr);
    let ran = train("llama3.1-405b", "H100", "8", "64", &["--search", "--emit", "slurm"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{}", ran.stderr);
}

#[test]
fn a_file_of_what_may_not_fit_ends_as_the_plan_does() {
    let again: Vec<String> = (1..32).map(|blocks| format!("layers:{blocks}")).collect();
    let is_tight = |again: &&String| {
        let plan = json(&small(&["--zero", "1", "--recompute", again, "--output", "json"]));
        plan["tight"] == true && plan["fits"] == false
    };
    let again = again.iter().find(is_tight).unwrap();
    let ran = small(&["--zero", "1", "--recompute", again, "--emit", "torchrun"]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stdout.contains("torchrun"), "{}", ran.stdout);
}

#[test]
fn what_does_not_fit_is_found_in_any_order_of_numbers() {
    for gpus in ["8,67", "67,8"] {
        let ran = train("llama3-70b", "H100", gpus, "64", &["--search"]);
        assert_eq!(ran.code, 1, "{gpus}: {}", ran.stderr);
        let said = flat(&ran.stdout);
        assert!(said.contains("does not fit on 8 ×"), "{gpus}: {said}");
        assert!(said.contains("possible: 16 GPUs fit"), "{gpus}: {said}");
    }
}

#[test]
fn gpus_without_nvlink_are_bound_by_pcie() {
    let more = ["--zero", "3", "--micro-batch", "1"];
    let ran = train("llama3.2-1b", "A10", "8", "64", &more);
    assert!(ran.stdout.contains("pcie") && !ran.stdout.contains("nvlink"), "{}", ran.stdout);
    let ran = train("llama3.2-1b", "A10", "8", "64", &[&more[..], &["--output", "json"]].concat());
    assert!(ran.stdout.contains("\"nvlink\"") && !ran.stdout.contains("pcie"), "{}", ran.stdout);
    assert!(!small(&["--zero", "3"]).stdout.contains("pcie"));
}

#[test]
fn schedules_are_shown_and_need_stages() {
    let ran = small(&["--pp", "4", "--schedule", "zero-bubble"]);
    assert!(ran.stdout.contains("PP 4 · zero-bubble"), "{}", ran.stdout);
    for more in
        [&["--schedule", "zero-bubble"][..], &["--schedule", "dual-pipe", "--pp", "4", "--vp", "2"]]
    {
        let ran = small(more);
        assert_eq!(ran.code, 2, "{}", ran.stdout);
        assert!(ran.stderr.contains("PP of at least 2 and VP 1, or `1f1b`"), "{}", ran.stderr);
    }
}

#[test]
fn the_program_says_what_bits_gradients_have() {
    let layout =
        |more: &[&str]| json(&small(&[more, &["--output", "json"]].concat()))["layout"].clone();
    let fsdp = layout(&["--stack", "fsdp-compiled"]);
    assert_eq!((&fsdp["sharding"], &fsdp["reduce_bytes"]), (&"weights".into(), &4.into()));
    let bridge = layout(&["--stack", "megatron-bridge", "--zero", "3"]);
    assert_eq!((&bridge["reduce_bytes"], &bridge["tensor_overlap"]), (&2.into(), &true.into()));
    let ran = small(&[
        "--stack",
        "fsdp-compiled",
        "--zero",
        "2",
        "--recompute",
        "full",
        "--emit",
        "slurm",
    ]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let ran = small(&["--stack", "fsdp-compiled", "--grad-dtype", "bf16", "--emit", "slurm"]);
    assert!(ran.stderr.contains("possible: `--grad-dtype fp32`"), "{}", ran.stderr);
    let ran = small(&["--zero", "1", "--grad-dtype", "fp32", "--optimizer-dtype", "8bit"]);
    assert!(ran.stdout.contains("32-bit gradients, 8-bit moments"), "{}", ran.stdout);
}

#[test]
fn fewer_bits_of_moments_take_less_memory() {
    let gib = |more: &[&str]| {
        let ran = small(&[more, &["--zero", "0", "--output", "json"]].concat());
        json(&ran)["memory"]["stages"][0]["p50"]["optimizer_gib"].as_f64().unwrap()
    };
    let (whole, half, eighth) =
        (gib(&[]), gib(&["--optimizer-dtype", "bf16"]), gib(&["--optimizer-dtype", "8bit"]));
    assert!((half / whole - 8.0 / 12.0).abs() < 1e-9, "{half} of {whole}");
    assert!((eighth / whole - 6.0 / 12.0).abs() < 1e-9, "{eighth} of {whole}");
    let rank = |rank: &str| gib(&["--lora", "--lora-rank", rank]);
    assert!((rank("64") / rank("16") - 4.0).abs() < 1e-9);
}

#[test]
fn adapters_are_said() {
    let ran = small(&["--lora", "--lora-rank", "16"]);
    assert!(ran.stdout.lines().next().unwrap().contains("LoRA rank 16"), "{}", ran.stdout);
    // Nobody has published adapters of such a model; what is nearest is of another task.
    let ran = train("qwen3-0.6b", "H100", "8", "64", &["--lora", "--output", "json"]);
    let plan = json(&ran);
    let text = flat(&train("qwen3-0.6b", "H100", "8", "64", &["--lora"]).stdout);
    let is_full = plan["nearest_measured"]["task"] == "full";
    assert_eq!(text.contains("but full training"), is_full, "{text}");
}

#[test]
fn words_that_mean_two_things_are_refused() {
    let ran = small(&["--recompute", "selective"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("possible: none, attention, modules, operators"), "{}", ran.stderr);
    let ran = train("llama3-8b", "A100", "8", "64", &["--search"]);
    assert!(ran.stdout.contains("`A100` is a family; using A100-SXM4-80GB"), "{}", ran.stdout);
    let ran = train("llama3-8b", "H100", "64", "64", &["--pp", "64"]);
    assert!(ran.stderr.contains("PP 64 is more stages than the 32 layers"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("VP up to"), "{}", ran.stderr);
}

#[test]
fn help_names_what_is_possible() {
    let help = flat(&small(&["--help"]).stdout);
    for flag in ["--stack", "--precision", "--schedule", "--grad-dtype", "--optimizer-dtype"] {
        let said = small(&[flag, "nothing"]).stderr;
        let (_, possible) = said.lines().next().unwrap().split_once("possible: ").unwrap();
        for name in possible.split(", ") {
            assert!(help.contains(name), "{flag} {name} is not in the help");
        }
    }
}
