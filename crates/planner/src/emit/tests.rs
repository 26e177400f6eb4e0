//! Tests of whole launch scripts.

use std::collections::{BTreeMap, BTreeSet};

use farrier_facts::FactSet;
use proptest::prelude::*;

use super::*;
use crate::check;
use crate::estimate::Planner;
use crate::gpu::Accelerator;
use crate::model::{Attention, builtin};
use crate::parallelism::{ParallelConfig, Recompute, Schedule, Sharding};
use crate::plan::plan;
use crate::precision::Precision;
use crate::run::Framework;

/// Sources of all flags and variables.
const FLAG_SOURCES: &str = include_str!("flags.csv");

/// Flags of a framework in the table.
fn known_flags(framework: &str) -> BTreeSet<String> {
    let mut reader = csv::Reader::from_reader(FLAG_SOURCES.as_bytes());
    reader
        .records()
        .map(Result::unwrap)
        .filter(|row| &row[0] == framework)
        .map(|row| row[1].to_owned())
        .collect()
}

fn run(model: &str, gpu: &str, framework: Framework, parallelism: ParallelConfig) -> TrainingRun {
    TrainingRun {
        model: builtin::by_name(model).unwrap().model(),
        gpu: Accelerator::by_name(FactSet::embedded(), gpu).unwrap(),
        seq_len: 8192,
        global_batch: parallelism.dp * parallelism.micro_batch * parallelism.pp * 4,
        precision: Precision::Bf16,
        parallelism,
        task: TrainingTask::Full,
        framework,
        fused_experts: false,
    }
}

fn text(run: &TrainingRun, launcher: Launcher) -> Result<String, EmitError> {
    check::check(run).unwrap();
    emit(&plan(Planner::shipped(), run, Some(15e12), None), run, launcher)
}

/// Flags of the framework, of `torchrun` and of `sbatch`, and exported variables.
#[derive(Debug, Default)]
struct ParsedScript {
    framework: BTreeMap<String, String>,
    torchrun: BTreeMap<String, String>,
    sbatch: BTreeMap<String, String>,
    exported: BTreeMap<String, String>,
}

impl ParsedScript {
    fn parse(text: &str) -> Self {
        let mut script = Self::default();
        let mut in_array = false;
        for line in text.lines() {
            let words = line.trim().trim_end_matches(" \\");
            if let Some(option) = line.strip_prefix("#SBATCH ") {
                let (name, value) = option.split_once('=').unwrap_or((option, ""));
                script.sbatch.insert(name.to_owned(), value.to_owned());
            } else if let Some(set) = line.strip_prefix("export ") {
                let (name, value) = set.split_once('=').unwrap();
                script.exported.insert(name.to_owned(), value.to_owned());
            } else if let Some(name) = line.strip_prefix("unset ") {
                script.exported.insert(name.to_owned(), String::new());
            } else if line.ends_with("=(") {
                in_array = true;
            } else if line == ")" {
                in_array = false;
            } else if words.starts_with("--") {
                let (name, value) = words.split_once(' ').unwrap_or((words, ""));
                let flags = if in_array { &mut script.framework } else { &mut script.torchrun };
                let before = flags.insert(name.to_owned(), value.to_owned());
                assert_eq!(before, None, "{name} is set twice:\n{text}");
            }
        }
        script
    }

    fn number(&self, flag: &str) -> u32 {
        self.framework.get(flag).and_then(|value| value.parse().ok()).unwrap_or(0)
    }

    /// Every flag must be in the table.
    fn assert_flags_exist(&self, framework: Framework) {
        let framework = if framework.is_megatron() { "megatron" } else { "torchtitan" };
        for (name, flags) in
            [(framework, &self.framework), ("torchrun", &self.torchrun), ("sbatch", &self.sbatch)]
        {
            let known_flags = known_flags(name);
            for flag in flags.keys() {
                assert!(known_flags.contains(flag), "{flag} is not a flag of {name} in flags.csv");
            }
        }
        let known_flags = known_flags("environment");
        for name in self.exported.keys() {
            assert!(known_flags.contains(name), "{name} is not in flags.csv");
        }
    }

    /// A Megatron script must match the parallelism config.
    fn assert_matches_config(&self, run: &TrainingRun) {
        let parallelism = &run.parallelism;
        for (flag, expected) in [
            ("--tensor-model-parallel-size", parallelism.tp),
            ("--pipeline-model-parallel-size", parallelism.pp),
            ("--context-parallel-size", parallelism.cp),
            ("--micro-batch-size", parallelism.micro_batch),
            ("--global-batch-size", run.global_batch),
            ("--seq-length", run.seq_len),
            ("--num-layers", run.model.layers),
            ("--hidden-size", run.model.hidden),
        ] {
            assert_eq!(self.number(flag), expected, "{flag}");
        }
        if let Some(experts) = run.model.experts {
            assert_eq!(self.number("--expert-model-parallel-size"), parallelism.ep);
            assert_eq!(self.number("--expert-tensor-parallel-size"), 1);
            assert_eq!(self.number("--num-experts"), experts.count);
        }
        let torchrun = |flag: &str| self.torchrun[flag].parse::<u32>().unwrap();
        assert_eq!(torchrun("--nnodes") * torchrun("--nproc-per-node"), parallelism.gpus());
        self.assert_matches_layer_assignment(run);
    }

    /// Megatron must derive the same number of virtual stages.
    fn assert_matches_layer_assignment(&self, run: &TrainingRun) {
        let ParallelConfig { pp, vp, .. } = run.parallelism;
        if let Some(layout) = self.framework.get("--pipeline-model-parallel-layout") {
            let stages = expand_layout(layout.trim_matches('\''));
            assert_eq!(stages.len(), (pp * vp) as usize, "{layout}");
            let blocks: usize = stages.iter().map(|stage| stage.matches('t').count()).sum();
            assert_eq!(blocks, run.model.layers as usize, "{layout}");
            return;
        }
        let ends =
            u32::from(self.framework.contains_key("--account-for-embedding-in-pipeline-split"))
                + u32::from(self.framework.contains_key("--account-for-loss-in-pipeline-split"));
        assert_eq!((run.model.layers + ends) % (pp * vp), 0);
        assert_eq!(self.number("--num-virtual-stages-per-pipeline-rank").max(1), vp);
    }
}

/// Expands a layout like Megatron's `PipelineParallelLayerLayout.parse_str_to_list`.
fn expand_layout(layout: &str) -> Vec<String> {
    let mut text = layout.replace(',', "");
    while let Some(begin) = text.find('(') {
        let end = begin + text[begin..].find(')').unwrap();
        let digits = text[end + 2..].chars().take_while(char::is_ascii_digit).count();
        let times: usize = text[end + 2..end + 2 + digits].parse().unwrap();
        let inside = text[begin + 1..end].repeat(times);
        text.replace_range(begin..end + 2 + digits, &inside);
    }
    while let Some(star) = text.find('*') {
        let digits = text[star + 1..].chars().take_while(char::is_ascii_digit).count();
        let times: usize = text[star + 1..star + 1 + digits].parse().unwrap();
        let inside = text[star - 1..star].repeat(times);
        text.replace_range(star - 1..star + 1 + digits, &inside);
    }
    text.split('|').map(str::to_owned).collect()
}

#[test]
fn megatron_dense_model() {
    let parallelism =
        ParallelConfig { tp: 8, pp: 16, vp: 8, cp: 2, ..ParallelConfig::data_parallel(4, 1) };
    let mut run = run("llama3.1-405b", "H100-SXM5-80GB", Framework::Bridge, parallelism);
    run.global_batch = 512;
    let text = text(&run, Launcher::Slurm).unwrap();
    let script = ParsedScript::parse(&text);
    script.assert_flags_exist(run.framework);
    script.assert_matches_config(&run);
    let framework = |flag: &str| script.framework.get(flag).map(String::as_str);
    for (flag, value) in [
        ("--num-layers", "126"),
        ("--hidden-size", "16384"),
        ("--ffn-hidden-size", "53248"),
        ("--num-attention-heads", "128"),
        ("--num-query-groups", "8"),
        ("--rotary-base", "500000"),
        ("--rope-scaling-factor", "8.0"),
        ("--padded-vocab-size", "129024"),
        ("--num-virtual-stages-per-pipeline-rank", "8"),
        ("--account-for-embedding-in-pipeline-split", ""),
        ("--account-for-loss-in-pipeline-split", ""),
        ("--sequence-parallel", ""),
        ("--tp-comm-overlap", ""),
        ("--use-distributed-optimizer", ""),
        ("--overlap-param-gather", ""),
        ("--train-samples", "1831054688"),
        ("--swiglu", ""),
        ("--disable-bias-linear", ""),
        ("--untie-embeddings-and-output-weights", ""),
    ] {
        assert_eq!(framework(flag), Some(value), "{flag}\n{text}");
    }
    for flag in ["--num-experts", "--add-qkv-bias", "--fp8-format", "--recompute-granularity"] {
        assert_eq!(framework(flag), None, "{flag}");
    }
    assert_eq!(script.sbatch["--nodes"], "128");
    assert_eq!(script.sbatch["--gpus-per-node"], "8");
    assert!(script.sbatch["--time"].ends_with(":00:00"), "{text}");
    assert_eq!(script.exported["CUDA_DEVICE_MAX_CONNECTIONS"], "1");
    for part in [
        "# llama3.1-405b on 1024 x H100-SXM5-80GB.\n",
        "DP 4 x TP 8 x PP 16 (VP 8) x CP 2",
        "tokens/s per GPU (P10 ",
        "Memory of the fullest GPU: P95 ",
        "set -euo pipefail\n",
        ": \"${DATA_PATH:?",
        ": \"${CHECKPOINT_DIR:?",
        ": \"${TOKENIZER_MODEL:?",
        "srun torchrun \\\n",
        "--rdzv-endpoint \"$MASTER_ADDR:$MASTER_PORT\"",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn megatron_low_precision_moments() {
    let parallelism = ParallelConfig { moment_bytes: 1, ..ParallelConfig::data_parallel(8, 1) };
    let run = run("llama3-8b", "H100-SXM5-80GB", Framework::Bridge, parallelism);
    let script = ParsedScript::parse(&text(&run, Launcher::Torchrun).unwrap());
    script.assert_flags_exist(run.framework);
    assert!(script.framework.contains_key("--use-precision-aware-optimizer"));
    assert_eq!(script.framework["--exp-avg-dtype"], "fp8");
    assert_eq!(script.framework["--exp-avg-sq-dtype"], "fp8");
}

#[test]
fn megatron_moe_model() {
    let parallelism = ParallelConfig {
        pp: 8,
        ep: 32,
        recompute: Recompute::Modules,
        ..ParallelConfig::data_parallel(32, 1)
    };
    let mut run = run("deepseek-v3", "GB200", Framework::Bridge, parallelism);
    run.seq_len = 4096;
    run.global_batch = 2048;
    run.precision = Precision::Mxfp8;
    let text = text(&run, Launcher::Torchrun).unwrap();
    let script = ParsedScript::parse(&text);
    script.assert_flags_exist(run.framework);
    script.assert_matches_config(&run);
    let framework = |flag: &str| script.framework.get(flag).map(String::as_str);
    for (flag, value) in [
        ("--pipeline-model-parallel-layout", "'Et*8|(t*8|)*6,t*5mL'"),
        ("--moe-layer-freq", "'([0]*3+[1]*58)'"),
        ("--num-experts", "256"),
        ("--moe-router-topk", "8"),
        ("--moe-ffn-hidden-size", "2048"),
        ("--moe-shared-expert-intermediate-size", "2048"),
        ("--moe-router-score-function", "sigmoid"),
        ("--expert-model-parallel-size", "32"),
        ("--multi-latent-attention", ""),
        ("--q-lora-rank", "1536"),
        ("--kv-lora-rank", "512"),
        ("--mtp-num-layers", "1"),
        ("--fp8-recipe", "mxfp8"),
        ("--fp8-param-gather", ""),
        ("--recompute-modules", "layernorm moe_act mla_up_proj"),
    ] {
        assert_eq!(framework(flag), Some(value), "{flag}\n{text}");
    }
    assert_eq!(framework("--group-query-attention"), None);
    assert_eq!(framework("--sequence-parallel"), None);
    assert_eq!(script.torchrun["--nnodes"], "64");
    assert_eq!(script.torchrun["--nproc-per-node"], "4");
    assert!(!script.exported.contains_key("CUDA_DEVICE_MAX_CONNECTIONS"));
    assert!(text.contains(": \"${MASTER_ADDR:?"), "{text}");
    assert!(!text.contains("#SBATCH"));
}

#[test]
fn torchtitan_model() {
    let parallelism = ParallelConfig {
        sharding: Sharding::Weights,
        recompute: Recompute::Operators,
        ..ParallelConfig::data_parallel(8, 2)
    };
    let mut run = run("llama3-8b", "H100-SXM5-80GB", Framework::FsdpCompiled, parallelism);
    run.precision = Precision::Fp8;
    let text = text(&run, Launcher::Torchrun).unwrap();
    let script = ParsedScript::parse(&text);
    script.assert_flags_exist(run.framework);
    for (flag, value) in [
        ("--model.name", "llama3"),
        ("--model.flavor", "8B"),
        ("--model.converters", "'quantize.linear.float8'"),
        ("--parallelism.data_parallel_shard_degree", "8"),
        ("--parallelism.data_parallel_replicate_degree", "1"),
        ("--parallelism.tensor_parallel_degree", "1"),
        ("--training.local_batch_size", "2"),
        ("--training.global_batch_size", "64"),
        ("--training.seq_len", "8192"),
        ("--activation_checkpoint.mode", "selective"),
        ("--activation_checkpoint.selective_ac_option", "op"),
        ("--compile.enable", ""),
    ] {
        assert_eq!(script.framework.get(flag).map(String::as_str), Some(value), "{flag}\n{text}");
    }
    assert!(text.contains("-m torchtitan.train \\\n"), "{text}");
    assert!(text.contains("MASTER_ADDR=\"${MASTER_ADDR:-localhost}\""), "{text}");
}

#[test]
fn torchtitan_model_without_flavor_requires_variables() {
    let parallelism =
        ParallelConfig { sharding: Sharding::Weights, ..ParallelConfig::data_parallel(8, 1) };
    let run = run("mistral-7b", "H100-SXM5-80GB", Framework::Fsdp, parallelism);
    let text = text(&run, Launcher::Torchrun).unwrap();
    for part in [
        "torchtitan has no flavor of this model",
        "32 layers, width 4096",
        ": \"${MODEL_FLAVOR:?",
        "--model.flavor \"$MODEL_FLAVOR\"",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(!text.contains("--compile.enable"));
}

#[test]
fn model_with_another_shape_does_not_match_by_name() {
    let mut run = run(
        "llama3-8b",
        "H100-SXM5-80GB",
        Framework::Megatron,
        ParallelConfig::data_parallel(8, 1),
    );
    let known = text(&run, Launcher::Torchrun).unwrap();
    assert!(known.contains("--rotary-base 500000"));
    run.model.layers = 40;
    let unknown = text(&run, Launcher::Torchrun).unwrap();
    assert!(unknown.contains("--rotary-base \"$ROTARY_BASE\""), "{unknown}");
    assert!(unknown.contains(": \"${ROTARY_BASE:?"), "{unknown}");
    assert!(unknown.contains("knows only the shape of the model"), "{unknown}");
}

#[test]
fn model_name_cannot_escape_its_comment() {
    let mut run = run(
        "llama3-8b",
        "H100-SXM5-80GB",
        Framework::Megatron,
        ParallelConfig::data_parallel(8, 1),
    );
    run.model.name = "x\nrm -rf \"$HOME\" `id` $(id)".to_owned();
    for launcher in Launcher::ALL {
        let text = text(&run, launcher).unwrap();
        assert!(!text.contains("rm -rf") && !text.contains("`id`") && !text.contains("$(id)"));
        assert!(text.contains("x-rm--rf--"), "{text}");
    }
}

#[test]
fn errors_name_possible_settings() {
    let error = |change: &dyn Fn(&mut TrainingRun)| {
        let mut run = run(
            "llama3-70b",
            "H100-SXM5-80GB",
            Framework::Bridge,
            ParallelConfig::data_parallel(8, 1),
        );
        change(&mut run);
        text(&run, Launcher::Slurm).unwrap_err().to_string()
    };
    let sharded = |run: &mut TrainingRun| {
        run.framework = Framework::FsdpCompiled;
        run.parallelism.sharding = Sharding::Weights;
    };
    for (message, part) in [
        (error(&|run| run.task = TrainingTask::Lora), "trains all weights"),
        (
            error(&|run| {
                (run.parallelism.pp, run.parallelism.schedule) = (4, Schedule::ZeroBubble);
            }),
            "zero-bubble schedule; possible: 1F1B",
        ),
        (
            error(&|run| run.model = builtin::by_name("gemma2-9b").unwrap().model()),
            "the scaled embedding of `gemma2-9b`",
        ),
        (
            error(&|run| {
                run.model = builtin::by_name("qwen3-30b-a3b").unwrap().model();
                (run.parallelism.tp, run.parallelism.sequence_parallel) = (2, false);
            }),
            "sequence parallelism, or TP 1",
        ),
        (error(&|run| run.framework = Framework::Fsdp), "ZeRO-1"),
        (
            error(&|run| {
                sharded(run);
                run.precision = Precision::Fp16;
            }),
            "`bf16`, `fp8`",
        ),
        (
            error(&|run| {
                sharded(run);
                run.model = builtin::by_name("qwen3-8b").unwrap().model();
                run.parallelism.pp = 2;
                run.global_batch = 64;
            }),
            "pipeline parallelism for `qwen3-8b`; possible: PP 1",
        ),
        (
            error(&|run| {
                sharded(run);
                run.gpu = Accelerator::by_name(FactSet::embedded(), "B200").unwrap();
                (run.parallelism.tp, run.precision) = (2, Precision::Mxfp8);
            }),
            "`mxfp8` with TP when compiled; possible: TP 1",
        ),
        (
            error(&|run| {
                sharded(run);
                run.parallelism.reduce_bytes = 2;
            }),
            "`--grad-dtype fp32`",
        ),
        (
            error(&|run| {
                sharded(run);
                run.parallelism.moment_bytes = 1;
            }),
            "optimizer moments below 32 bits; possible: `--optimizer-dtype fp32`",
        ),
        (
            error(&|run| {
                (run.parallelism.sharding, run.parallelism.moment_bytes) = (Sharding::None, 2);
            }),
            "ZeRO-1 or above",
        ),
    ] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn flag_table_has_a_source_for_every_flag() {
    let mut reader = csv::Reader::from_reader(FLAG_SOURCES.as_bytes());
    let mut names = BTreeSet::new();
    for row in reader.records().map(Result::unwrap) {
        assert!(names.insert((row[0].to_owned(), row[1].to_owned())), "{row:?} is duplicated");
        assert!(!row[3].is_empty(), "{row:?}");
        let hash = row[4].len() == 40 && row[4].bytes().all(|byte| byte.is_ascii_hexdigit());
        assert!(hash || &row[2] == "CUDA Programming Guide", "{row:?}");
    }
    for framework in ["megatron", "torchtitan"] {
        let version = if framework == "megatron" { "d98e8a64" } else { "73a0e697" };
        let mut reader = csv::Reader::from_reader(FLAG_SOURCES.as_bytes());
        let flags = reader.records().map(Result::unwrap).filter(|row| &row[0] == framework);
        assert!(flags.into_iter().all(|row| row[4].starts_with(version)));
    }
}

/// Configs that most models support.
fn configs() -> Vec<ParallelConfig> {
    let base = ParallelConfig::data_parallel(8, 1);
    vec![
        base,
        ParallelConfig { tp: 2, recompute: Recompute::Full, ..base },
        ParallelConfig { tp: 4, pp: 4, cp: 2, recompute: Recompute::Modules, ..base },
        ParallelConfig { tp: 2, pp: 3, vp: 2, recompute: Recompute::EverySecond, ..base },
        ParallelConfig { pp: 4, vp: 3, reduce_bytes: 2, recompute: Recompute::Layers(3), ..base },
        ParallelConfig { sharding: Sharding::Weights, moment_bytes: 2, ..base },
        ParallelConfig { sharding: Sharding::Gradients, shard_group: 4, cp: 2, ..base },
        ParallelConfig { sharding: Sharding::Weights, tp: 2, pp: 2, vp: 2, ..base },
    ]
}

#[test]
fn every_model_and_config_uses_known_flags() {
    let (mut written, mut rejected) = (0, 0);
    for record in builtin::all() {
        for parallelism in configs() {
            for framework in [Framework::Bridge, Framework::MegatronEarly, Framework::FsdpCompiled]
            {
                let mut run = run(&record.name, "B200", framework, parallelism);
                if run.model.experts.is_some() {
                    run.parallelism.ep = 4;
                }
                if check::check(&run).is_err() {
                    continue;
                }
                for launcher in Launcher::ALL {
                    let Ok(text) = text(&run, launcher) else {
                        rejected += 1;
                        continue;
                    };
                    let script = ParsedScript::parse(&text);
                    script.assert_flags_exist(framework);
                    if framework.is_megatron() {
                        script.assert_matches_config(&run);
                        let latent = matches!(run.model.attention, Attention::Latent { .. });
                        assert_eq!(
                            script.framework.contains_key("--multi-latent-attention"),
                            latent
                        );
                    }
                    written += 1;
                }
            }
        }
    }
    assert!(written > 1500 && rejected > 0, "{written} written, {rejected} rejected");
}

proptest! {
    #[test]
    fn any_possible_config_is_emitted_faithfully(
        model in prop::sample::select(vec![
            "llama3.1-405b", "deepseek-v3", "qwen3-235b-a22b", "gpt3-175b", "nemotron4-340b",
            "gpt-oss-120b",
        ]),
        (dp, tp, pp, vp, cp) in (1_u32..9, 0_u32..4, 1_u32..20, 1_u32..9, 0_u32..3),
        (ep, micro_batch) in (0_u32..4, 1_u32..4),
        recompute in prop::sample::select(vec![
            Recompute::None, Recompute::Attention, Recompute::Modules, Recompute::EverySecond,
            Recompute::Layers(5), Recompute::Full,
        ]),
        // Megatron has no FP8 recipe with one scale per row.
        precision in prop::sample::select(Precision::ALL.to_vec())
            .prop_filter("a recipe of Megatron", |precision| *precision != Precision::Fp8Row),
    ) {
        let parallelism = ParallelConfig {
            tp: 1 << tp, pp, vp, cp: 1 << cp, recompute, ..ParallelConfig::data_parallel(dp, micro_batch)
        };
        let mut run = run(model, "GB300", Framework::Bridge, parallelism);
        run.precision = precision;
        if run.model.experts.is_some() {
            run.parallelism.ep = 1 << ep;
        }
        prop_assume!(check::check(&run).is_ok());
        let script = ParsedScript::parse(&text(&run, Launcher::Torchrun).unwrap());
        script.assert_flags_exist(run.framework);
        script.assert_matches_config(&run);
    }
}
