//! `farrier plan train`: refusals and suggestions, and that the suggestions work.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use serde_json::Value;
use support::{CommandOutput, run};

fn train(model: &str, gpu: &str, gpus: &str, batch: &str, more: &[&str]) -> CommandOutput {
    let args = [
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
    run(&[&args[..], more].concat())
}

/// An 8B model on eight H100.
fn small(more: &[&str]) -> CommandOutput {
    train("llama3-8b", "H100", "8", "64", more)
}

fn json(output: &CommandOutput) -> Value {
    assert!(output.code < 2, "{}", output.stderr);
    serde_json::from_str(&output.stdout).unwrap()
}

/// Removes line wrapping.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn counts_are_at_least_1() {
    let flags = ["--tp", "--pp", "--vp", "--cp", "--ep", "--dp", "--micro-batch"];
    for flag in flags {
        for value in ["0", "-1", "x"] {
            let output = small(&[flag, value, "--search"]);
            assert_eq!(output.code, 2, "{flag} {value}: {}", output.stdout);
            assert!(output.stderr.contains("expected a whole number from 1"), "{}", output.stderr);
        }
    }
    for (gpus, batch) in [("0", "64"), ("-8", "64"), ("8", "0"), ("8", "-64")] {
        let output = train("llama3-8b", "H100", gpus, batch, &["--tp", "1", "--search"]);
        assert_eq!(output.code, 2, "{}", output.stdout);
        assert!(output.stderr.contains("expected a whole number from 1"), "{}", output.stderr);
    }
    let output = small(&["--lora", "--lora-rank", "0"]);
    assert!(output.stderr.contains("expected a whole number from 1"), "{}", output.stderr);
    assert_eq!(json(&small(&["--output", "json"]))["seq_len"], 8192);
}

#[test]
fn every_search_result_can_be_launched() {
    for (model, gpus) in [("llama3-8b", "8"), ("llama3-70b", "64"), ("qwen3-30b-a3b", "64")] {
        for stack in ["megatron-bridge", "megatron", "fsdp", "fsdp-compiled"] {
            for launcher in ["torchrun", "slurm"] {
                let more = ["--search", "--stack", stack, "--emit", launcher];
                let output = train(model, "H100", gpus, "256", &more);
                assert_eq!(output.code, 0, "{model} {stack}: {}{}", output.stdout, output.stderr);
            }
        }
    }
}

#[test]
fn pipelines_need_not_be_powers_of_two() {
    for (model, gpus, batch) in [("llama3.1-405b", "80", "64"), ("llama3-70b", "112", "256")] {
        let output = train(model, "H200", gpus, batch, &["--search"]);
        assert_eq!(output.code, 0, "{}{}", output.stdout, output.stderr);
    }
    let output = train("llama3-8b", "H100", "67", "64", &["--search"]);
    assert_eq!(output.code, 2, "{}", output.stdout);
    assert!(!output.stderr.contains("DP 67"), "{}", output.stderr);
}

#[test]
fn the_suggested_gpu_count_is_the_smallest_that_fits() {
    let few = |gpus: &str| train("llama3.1-405b", "H100", gpus, "64", &["--search"]);
    for gpus in ["72", "80"] {
        let output = few(gpus);
        assert_eq!(output.code, 1, "{}", output.stderr);
        let text = flat(&output.stdout);
        let (_, after) = text.split_once("possible: ").unwrap();
        let enough: u32 = after.split(' ').next().unwrap().parse().unwrap();
        assert!(enough <= 112 && enough.is_multiple_of(8), "{text}");
        assert_eq!(few(&enough.to_string()).code, 0, "{text}");
        assert_eq!(few(&(enough - 8).to_string()).code, 1, "{text}");
        assert!(text.contains("assumed: `H100` is a family"), "{text}");
    }
}

#[test]
fn only_tried_alternatives_are_suggested() {
    // LoRA is not suggested if it does not fit either, or if it was requested already.
    for more in [&["--search"][..], &["--search", "--lora"]] {
        let output = train("llama3.1-405b", "H100", "8", "64", more);
        assert_eq!(output.code, 1, "{}", output.stderr);
        assert!(!output.stdout.contains("--lora"), "{}", output.stdout);
        assert!(!output.stdout.contains("given values"), "{}", output.stdout);
    }
    let output = train("llama3-70b", "H100", "8", "64", &["--search"]);
    assert!(output.stdout.contains("LoRA fits (`--lora`)"), "{}", output.stdout);
    assert_eq!(train("llama3-70b", "H100", "8", "64", &["--search", "--lora"]).code, 0);
    let output = train(
        "llama3-70b",
        "H100",
        "64",
        "256",
        &["--search", "--tp", "1", "--pp", "1", "--zero", "1"],
    );
    assert!(
        flat(&output.stdout).contains("a parallelism config without the given values fits"),
        "{}",
        output.stdout
    );
    // `--search` is suggested only if it would find a config.
    let output = train("llama3-70b", "H100", "64", "256", &["--tp", "3"]);
    assert!(
        output.stderr.contains("`--search` finds a parallelism config that works, without"),
        "{}",
        output.stderr
    );
    let output = train("llama3.1-405b", "H100", "8", "64", &["--tp", "3"]);
    assert!(!output.stderr.contains("--search"), "{}", output.stderr);
}

#[test]
fn a_run_that_fits_nowhere_is_reported() {
    let more = ["--lora", "--tp", "1", "--pp", "1", "--zero", "1", "--search"];
    let output = train("llama3.1-405b", "H100", "8", "1", &more);
    assert_eq!(output.code, 1, "{}", output.stderr);
    assert!(
        flat(&output.stdout)
            .contains("possible: tried more GPUs, GPUs with more memory and LoRA: none fits"),
        "{}",
        output.stdout
    );
}

#[test]
fn a_run_that_does_not_fit_exits_with_1() {
    let output = train("llama3.1-405b", "H100", "8", "64", &["--emit", "slurm"]);
    assert_eq!(output.code, 1, "{}", output.stderr);
    assert!(output.stdout.is_empty() && !output.stderr.contains("--search"), "{}", output.stderr);
    let output = train("llama3-70b", "H100", "64", "256", &["--tp", "2", "--emit", "slurm"]);
    assert_eq!(output.code, 1, "{}", output.stderr);
    assert!(output.stderr.contains("hint: `--search` finds"), "{}", output.stderr);
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html").display().to_string();
    let output = train("llama3.1-405b", "H100", "8", "64", &["--search", "--report", &page]);
    assert_eq!(output.code, 1, "{}", output.stderr);
    assert!(output.stderr.contains("no report was written"), "{}", output.stderr);
    let output = train("llama3.1-405b", "H100", "8", "64", &["--search", "--emit", "slurm"]);
    assert_eq!((output.code, output.stdout.as_str()), (1, ""), "{}", output.stderr);
}

#[test]
fn emitting_a_tight_plan_has_the_exit_code_of_the_plan() {
    let recomputes: Vec<String> = (1..32).map(|blocks| format!("layers:{blocks}")).collect();
    let is_tight = |recompute: &&String| {
        let plan = json(&small(&["--zero", "1", "--recompute", recompute, "--output", "json"]));
        plan["tight"] == true && plan["fits"] == false
    };
    let recompute = recomputes.iter().find(is_tight).unwrap();
    let output = small(&["--zero", "1", "--recompute", recompute, "--emit", "torchrun"]);
    assert_eq!(output.code, 1, "{}", output.stderr);
    assert!(output.stdout.contains("torchrun"), "{}", output.stdout);
}

#[test]
fn the_order_of_gpu_counts_does_not_matter() {
    for gpus in ["8,67", "67,8"] {
        let output = train("llama3-70b", "H100", gpus, "64", &["--search"]);
        assert_eq!(output.code, 1, "{gpus}: {}", output.stderr);
        let text = flat(&output.stdout);
        assert!(text.contains("does not fit on 8 ×"), "{gpus}: {text}");
        assert!(text.contains("possible: 16 GPUs fit"), "{gpus}: {text}");
    }
}

#[test]
fn gpus_without_nvlink_are_bound_by_pcie() {
    let more = ["--zero", "3", "--micro-batch", "1"];
    let output = train("llama3.2-1b", "A10", "8", "64", &more);
    assert!(
        output.stdout.contains("pcie") && !output.stdout.contains("nvlink"),
        "{}",
        output.stdout
    );
    let output =
        train("llama3.2-1b", "A10", "8", "64", &[&more[..], &["--output", "json"]].concat());
    assert!(
        output.stdout.contains("\"nvlink\"") && !output.stdout.contains("pcie"),
        "{}",
        output.stdout
    );
    assert!(!small(&["--zero", "3"]).stdout.contains("pcie"));
}

#[test]
fn schedules_are_shown_and_need_stages() {
    let output = small(&["--pp", "4", "--schedule", "zero-bubble"]);
    assert!(output.stdout.contains("PP 4 · zero-bubble"), "{}", output.stdout);
    for more in
        [&["--schedule", "zero-bubble"][..], &["--schedule", "dual-pipe", "--pp", "4", "--vp", "2"]]
    {
        let output = small(more);
        assert_eq!(output.code, 2, "{}", output.stdout);
        assert!(
            output.stderr.contains("PP of at least 2 and VP 1, or `1f1b`"),
            "{}",
            output.stderr
        );
    }
}

#[test]
fn the_framework_determines_the_gradient_dtype() {
    let layout =
        |more: &[&str]| json(&small(&[more, &["--output", "json"]].concat()))["layout"].clone();
    let fsdp = layout(&["--stack", "fsdp-compiled"]);
    assert_eq!((&fsdp["sharding"], &fsdp["reduce_bytes"]), (&"weights".into(), &4.into()));
    let bridge = layout(&["--stack", "megatron-bridge", "--zero", "3"]);
    assert_eq!((&bridge["reduce_bytes"], &bridge["tensor_overlap"]), (&2.into(), &true.into()));
    let output = small(&[
        "--stack",
        "fsdp-compiled",
        "--zero",
        "2",
        "--recompute",
        "full",
        "--emit",
        "slurm",
    ]);
    assert_eq!(output.code, 0, "{}", output.stderr);
    let output = small(&["--stack", "fsdp-compiled", "--grad-dtype", "bf16", "--emit", "slurm"]);
    assert!(output.stderr.contains("possible: `--grad-dtype fp32`"), "{}", output.stderr);
    let output = small(&["--zero", "1", "--grad-dtype", "fp32", "--optimizer-dtype", "8bit"]);
    assert!(output.stdout.contains("32-bit gradients, 8-bit moments"), "{}", output.stdout);
}

#[test]
fn smaller_optimizer_dtypes_take_less_memory() {
    let gib = |more: &[&str]| {
        let output = small(&[more, &["--zero", "0", "--output", "json"]].concat());
        json(&output)["memory"]["stages"][0]["p50"]["optimizer_gib"].as_f64().unwrap()
    };
    let (fp32, bf16, int8) =
        (gib(&[]), gib(&["--optimizer-dtype", "bf16"]), gib(&["--optimizer-dtype", "8bit"]));
    assert!((bf16 / fp32 - 8.0 / 12.0).abs() < 1e-9, "{bf16} of {fp32}");
    assert!((int8 / fp32 - 6.0 / 12.0).abs() < 1e-9, "{int8} of {fp32}");
    let rank = |rank: &str| gib(&["--lora", "--lora-rank", rank]);
    assert!((rank("64") / rank("16") - 4.0).abs() < 1e-9);
}

#[test]
fn lora_is_shown() {
    let output = small(&["--lora", "--lora-rank", "16"]);
    assert!(output.stdout.lines().next().unwrap().contains("LoRA rank 16"), "{}", output.stdout);
    // The nearest published run may be of another task, because no LoRA run of this model is
    // published.
    let output = train("qwen3-0.6b", "H100", "8", "64", &["--lora", "--output", "json"]);
    let plan = json(&output);
    let text = flat(&train("qwen3-0.6b", "H100", "8", "64", &["--lora"]).stdout);
    let is_full = plan["nearest_measured"]["task"] == "full";
    assert_eq!(text.contains("but full training"), is_full, "{text}");
}

#[test]
fn ambiguous_values_are_refused_or_resolved() {
    let output = small(&["--recompute", "selective"]);
    assert_eq!(output.code, 2);
    assert!(
        output.stderr.contains("possible: none, attention, modules, operators"),
        "{}",
        output.stderr
    );
    let output = train("llama3-8b", "A100", "8", "64", &["--search"]);
    assert!(
        output.stdout.contains("`A100` is a family; using A100-SXM4-80GB"),
        "{}",
        output.stdout
    );
    let output = train("llama3-8b", "H100", "64", "64", &["--pp", "64"]);
    assert!(output.stderr.contains("PP 64 is more stages than the 32 layers"), "{}", output.stderr);
    assert!(!output.stderr.contains("VP up to"), "{}", output.stderr);
}

#[test]
fn help_lists_the_possible_values() {
    let help = flat(&small(&["--help"]).stdout);
    for flag in ["--stack", "--precision", "--schedule", "--grad-dtype", "--optimizer-dtype"] {
        let text = small(&[flag, "nothing"]).stderr;
        let (_, possible) = text.lines().next().unwrap().split_once("possible: ").unwrap();
        for name in possible.split(", ") {
            assert!(help.contains(name), "{flag} {name} is not in the help");
        }
    }
}
