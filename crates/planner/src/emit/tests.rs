//! Launch files as a whole.

use std::collections::{BTreeMap, BTreeSet};

use farrier_facts::FactSet;
use proptest::prelude::*;

use super::*;
use crate::check;
use crate::estimate::Planner;
use crate::gpu::Accelerator;
use crate::layout::{Layout, Recompute, Schedule, Sharding};
use crate::model::{Attention, builtin};
use crate::plan::plan;
use crate::precision::Precision;
use crate::run::Stack;

/// Where each flag and variable was seen.
const SEEN: &str = include_str!("flags.csv");

/// Names of a program in the table.
fn seen(program: &str) -> BTreeSet<String> {
    let mut reader = csv::Reader::from_reader(SEEN.as_bytes());
    reader
        .records()
        .map(Result::unwrap)
        .filter(|row| &row[0] == program)
        .map(|row| row[1].to_owned())
        .collect()
}

fn run(model: &str, gpu: &str, stack: Stack, layout: Layout) -> Run {
    Run {
        model: builtin::named(model).unwrap().model(),
        gpu: Accelerator::named(FactSet::embedded(), gpu).unwrap(),
        seq_len: 8192,
        global_batch: layout.dp * layout.micro_batch * layout.pp * 4,
        precision: Precision::Bf16,
        layout,
        task: Task::Full,
        stack,
        fused_experts: false,
    }
}

fn text(run: &Run, launcher: Launcher) -> Result<String, EmitError> {
    check::check(run).unwrap();
    emit(&plan(Planner::shipped(), run, Some(15e12), None), run, launcher)
}

/// What a file says: flags of the program, of `torchrun`, of `sbatch`, and exported variables.
#[derive(Debug, Default)]
struct Said {
    program: BTreeMap<String, String>,
    torchrun: BTreeMap<String, String>,
    sbatch: BTreeMap<String, String>,
    exported: BTreeMap<String, String>,
}

impl Said {
    fn of(text: &str) -> Self {
        let mut said = Self::default();
        let mut in_array = false;
        for line in text.lines() {
            let words = line.trim().trim_end_matches(" \\");
            if let Some(option) = line.strip_prefix("#SBATCH ") {
                let (name, value) = option.split_once('=').unwrap_or((option, ""));
                said.sbatch.insert(name.to_owned(), value.to_owned());
            } else if let Some(set) = line.strip_prefix("export ") {
                let (name, value) = set.split_once('=').unwrap();
                said.exported.insert(name.to_owned(), value.to_owned());
            } else if let Some(name) = line.strip_prefix("unset ") {
                said.exported.insert(name.to_owned(), String::new());
            } else if line.ends_with("=(") {
                in_array = true;
            } else if line == ")" {
                in_array = false;
            } else if words.starts_with("--") {
                let (name, value) = words.split_once(' ').unwrap_or((words, ""));
                let flags = if in_array { &mut said.program } else { &mut said.torchrun };
                let before = flags.insert(name.to_owned(), value.to_owned());
                assert_eq!(before, None, "{name} is given twice:\n{text}");
            }
        }
        said
    }

    fn number(&self, flag: &str) -> u32 {
        self.program.get(flag).and_then(|value| value.parse().ok()).unwrap_or(0)
    }

    /// Nothing but what the table has.
    fn hold_to_table(&self, stack: Stack) {
        let program = if stack.is_megatron() { "megatron" } else { "torchtitan" };
        for (name, flags) in
            [(program, &self.program), ("torchrun", &self.torchrun), ("sbatch", &self.sbatch)]
        {
            let seen = seen(name);
            for flag in flags.keys() {
                assert!(seen.contains(flag), "{flag} is no flag of {name} in flags.csv");
            }
        }
        let seen = seen("environment");
        for name in self.exported.keys() {
            assert!(seen.contains(name), "{name} is not in flags.csv");
        }
    }

    /// The split of a Megatron file is that of the layout.
    fn hold_to_layout(&self, run: &Run) {
        let layout = &run.layout;
        for (flag, wanted) in [
            ("--tensor-model-parallel-size", layout.tp),
            ("--pipeline-model-parallel-size", layout.pp),
            ("--context-parallel-size", layout.cp),
            ("--micro-batch-size", layout.micro_batch),
            ("--global-batch-size", run.global_batch),
            ("--seq-length", run.seq_len),
            ("--num-layers", run.model.layers),
            ("--hidden-size", run.model.hidden),
        ] {
            assert_eq!(self.number(flag), wanted, "{flag}");
        }
        if let Some(experts) = run.model.experts {
            assert_eq!(self.number("--expert-model-parallel-size"), layout.ep);
            assert_eq!(self.number("--expert-tensor-parallel-size"), 1);
            assert_eq!(self.number("--num-experts"), experts.count);
        }
        let torchrun = |flag: &str| self.torchrun[flag].parse::<u32>().unwrap();
        assert_eq!(torchrun("--nnodes") * torchrun("--nproc-per-node"), layout.gpus());
        self.hold_to_pieces(run);
    }

    /// Megatron would cut the blocks into as many pieces as the layout has.
    fn hold_to_pieces(&self, run: &Run) {
        let Layout { pp, vp, .. } = run.layout;
        if let Some(layout) = self.program.get("--pipeline-model-parallel-layout") {
            let pieces = unrolled(layout.trim_matches('\''));
            assert_eq!(pieces.len(), (pp * vp) as usize, "{layout}");
            let blocks: usize = pieces.iter().map(|piece| piece.matches('t').count()).sum();
            assert_eq!(blocks, run.model.layers as usize, "{layout}");
            return;
        }
        let ends =
            u32::from(self.program.contains_key("--account-for-embedding-in-pipeline-split"))
                + u32::from(self.program.contains_key("--account-for-loss-in-pipeline-split"));
        assert_eq!((run.model.layers + ends) % (pp * vp), 0);
        assert_eq!(self.number("--num-virtual-stages-per-pipeline-rank").max(1), vp);
    }
}

/// As `PipelineParallelLayerLayout.parse_str_to_list` of Megatron reads it.
fn unrolled(layout: &str) -> Vec<String> {
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
fn a_dense_run_of_megatron() {
    let layout = Layout { tp: 8, pp: 16, vp: 8, cp: 2, ..Layout::copies(4, 1) };
    let mut run = run("llama3.1-405b", "H100-SXM5-80GB", Stack::Bridge, layout);
    run.global_batch = 512;
    let text = text(&run, Launcher::Slurm).unwrap();
    let said = Said::of(&text);
    said.hold_to_table(run.stack);
    said.hold_to_layout(&run);
    let program = |flag: &str| said.program.get(flag).map(String::as_str);
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
        assert_eq!(program(flag), Some(value), "{flag}\n{text}");
    }
    for flag in ["--num-experts", "--add-qkv-bias", "--fp8-format", "--recompute-granularity"] {
        assert_eq!(program(flag), None, "{flag}");
    }
    assert_eq!(said.sbatch["--nodes"], "128");
    assert_eq!(said.sbatch["--gpus-per-node"], "8");
    assert!(said.sbatch["--time"].ends_with(":00:00"), "{text}");
    assert_eq!(said.exported["CUDA_DEVICE_MAX_CONNECTIONS"], "1");
    for part in [
        "# llama3.1-405b on 1024 x H100-SXM5-80GB.\n",
        "DP 4 x TP 8 x PP 16 (VP 8) x CP 2",
        "tokens/s for each GPU (P10 ",
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
fn moments_of_fewer_bits_are_said() {
    let layout = Layout { moment_bytes: 1, ..Layout::copies(8, 1) };
    let run = run("llama3-8b", "H100-SXM5-80GB", Stack::Bridge, layout);
    let said = Said::of(&text(&run, Launcher::Torchrun).unwrap());
    said.hold_to_table(run.stack);
    assert!(said.program.contains_key("--use-precision-aware-optimizer"));
    assert_eq!(said.program["--exp-avg-dtype"], "fp8");
    assert_eq!(said.program["--exp-avg-sq-dtype"], "fp8");
}

#[test]
fn a_mixture_of_megatron() {
    let layout = Layout { pp: 8, ep: 32, recompute: Recompute::Modules, ..Layout::copies(32, 1) };
    let mut run = run("deepseek-v3", "GB200", Stack::Bridge, layout);
    run.seq_len = 4096;
    run.global_batch = 2048;
    run.precision = Precision::Mxfp8;
    let text = text(&run, Launcher::Torchrun).unwrap();
    let said = Said::of(&text);
    said.hold_to_table(run.stack);
    said.hold_to_layout(&run);
    let program = |flag: &str| said.program.get(flag).map(String::as_str);
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
        assert_eq!(program(flag), Some(value), "{flag}\n{text}");
    }
    assert_eq!(program("--group-query-attention"), None);
    assert_eq!(program("--sequence-parallel"), None);
    assert_eq!(said.torchrun["--nnodes"], "64");
    assert_eq!(said.torchrun["--nproc-per-node"], "4");
    assert!(!said.exported.contains_key("CUDA_DEVICE_MAX_CONNECTIONS"));
    assert!(text.contains(": \"${MASTER_ADDR:?"), "{text}");
    assert!(!text.contains("#SBATCH"));
}

#[test]
fn a_run_of_torchtitan() {
    let layout = Layout {
        sharding: Sharding::Weights,
        recompute: Recompute::Operators,
        ..Layout::copies(8, 2)
    };
    let mut run = run("llama3-8b", "H100-SXM5-80GB", Stack::FsdpCompiled, layout);
    run.precision = Precision::Fp8;
    let text = text(&run, Launcher::Torchrun).unwrap();
    let said = Said::of(&text);
    said.hold_to_table(run.stack);
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
        assert_eq!(said.program.get(flag).map(String::as_str), Some(value), "{flag}\n{text}");
    }
    assert!(text.contains("-m torchtitan.train \\\n"), "{text}");
    assert!(text.contains("MASTER_ADDR=\"${MASTER_ADDR:-localhost}\""), "{text}");
}

#[test]
fn a_model_without_flavor_says_what_to_fill_in() {
    let layout = Layout { sharding: Sharding::Weights, ..Layout::copies(8, 1) };
    let run = run("mistral-7b", "H100-SXM5-80GB", Stack::Fsdp, layout);
    let text = text(&run, Launcher::Torchrun).unwrap();
    for part in [
        "torchtitan has no flavor of this model",
        "32 blocks, width 4096",
        ": \"${MODEL_FLAVOR:?",
        "--model.flavor \"$MODEL_FLAVOR\"",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(!text.contains("--compile.enable"));
}

#[test]
fn a_model_of_another_shape_is_not_taken_for_its_name() {
    let mut run = run("llama3-8b", "H100-SXM5-80GB", Stack::Megatron, Layout::copies(8, 1));
    let known = text(&run, Launcher::Torchrun).unwrap();
    assert!(known.contains("--rotary-base 500000"));
    run.model.layers = 40;
    let unknown = text(&run, Launcher::Torchrun).unwrap();
    assert!(unknown.contains("--rotary-base \"$ROTARY_BASE\""), "{unknown}");
    assert!(unknown.contains(": \"${ROTARY_BASE:?"), "{unknown}");
    assert!(unknown.contains("knows the shape of the model only"), "{unknown}");
}

#[test]
fn a_name_cannot_leave_its_comment() {
    let mut run = run("llama3-8b", "H100-SXM5-80GB", Stack::Megatron, Layout::copies(8, 1));
    run.model.name = "x\nrm -rf \"$HOME\" `id` $(id)".to_owned();
    for launcher in Launcher::ALL {
        let text = text(&run, launcher).unwrap();
        assert!(!text.contains("rm -rf") && !text.contains("`id`") && !text.contains("$(id)"));
        assert!(text.contains("x-rm--rf--"), "{text}");
    }
}

#[test]
fn what_cannot_be_written_says_what_could() {
    let refused = |change: &dyn Fn(&mut Run)| {
        let mut run = run("llama3-70b", "H100-SXM5-80GB", Stack::Bridge, Layout::copies(8, 1));
        change(&mut run);
        text(&run, Launcher::Slurm).unwrap_err().to_string()
    };
    let sharded = |run: &mut Run| {
        run.stack = Stack::FsdpCompiled;
        run.layout.sharding = Sharding::Weights;
    };
    for (said, part) in [
        (refused(&|run| run.task = Task::Lora), "trains all weights"),
        (
            refused(&|run| {
                (run.layout.pp, run.layout.schedule) = (4, Schedule::ZeroBubble);
            }),
            "zero-bubble schedule; possible: one forward",
        ),
        (
            refused(&|run| run.model = builtin::named("gemma2-9b").unwrap().model()),
            "the scaled embedding of `gemma2-9b`",
        ),
        (
            refused(&|run| {
                run.model = builtin::named("qwen3-30b-a3b").unwrap().model();
                (run.layout.tp, run.layout.sequence_parallel) = (2, false);
            }),
            "sequence parallelism, or TP 1",
        ),
        (refused(&|run| run.stack = Stack::Fsdp), "ZeRO 1"),
        (
            refused(&|run| {
                sharded(run);
                run.precision = Precision::Fp16;
            }),
            "`bf16`, `fp8`",
        ),
        (
            refused(&|run| {
                sharded(run);
                run.model = builtin::named("qwen3-8b").unwrap().model();
                run.layout.pp = 2;
                run.global_batch = 64;
            }),
            "no pipeline for `qwen3-8b`; possible: PP 1",
        ),
        (
            refused(&|run| {
                sharded(run);
                run.gpu = Accelerator::named(FactSet::embedded(), "B200").unwrap();
                (run.layout.tp, run.precision) = (2, Precision::Mxfp8);
            }),
            "no `mxfp8` with TP when compiled; possible: TP 1",
        ),
        (
            refused(&|run| {
                sharded(run);
                run.layout.reduce_bytes = 2;
            }),
            "`--grad-dtype fp32`",
        ),
        (
            refused(&|run| {
                sharded(run);
                run.layout.moment_bytes = 1;
            }),
            "no moments of fewer than 32 bits; possible: `--optimizer-dtype fp32`",
        ),
        (
            refused(&|run| {
                (run.layout.sharding, run.layout.moment_bytes) = (Sharding::None, 2);
            }),
            "ZeRO 1 or more",
        ),
    ] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn the_table_says_where_each_name_was_seen() {
    let mut reader = csv::Reader::from_reader(SEEN.as_bytes());
    let mut names = BTreeSet::new();
    for row in reader.records().map(Result::unwrap) {
        assert!(names.insert((row[0].to_owned(), row[1].to_owned())), "{row:?} is twice there");
        assert!(!row[3].is_empty(), "{row:?}");
        let hash = row[4].len() == 40 && row[4].bytes().all(|byte| byte.is_ascii_hexdigit());
        assert!(hash || &row[2] == "CUDA Programming Guide", "{row:?}");
    }
    for program in ["megatron", "torchtitan"] {
        let version = if program == "megatron" { "d98e8a64" } else { "73a0e697" };
        let mut reader = csv::Reader::from_reader(SEEN.as_bytes());
        let of_program = reader.records().map(Result::unwrap).filter(|row| &row[0] == program);
        assert!(of_program.into_iter().all(|row| row[4].starts_with(version)));
    }
}

/// Splits that most models can have.
fn layouts() -> Vec<Layout> {
    let base = Layout::copies(8, 1);
    vec![
        base,
        Layout { tp: 2, recompute: Recompute::Full, ..base },
        Layout { tp: 4, pp: 4, cp: 2, recompute: Recompute::Modules, ..base },
        Layout { tp: 2, pp: 3, vp: 2, recompute: Recompute::EverySecond, ..base },
        Layout { pp: 4, vp: 3, reduce_bytes: 2, recompute: Recompute::Layers(3), ..base },
        Layout { sharding: Sharding::Weights, moment_bytes: 2, ..base },
        Layout { sharding: Sharding::Gradients, shard_group: 4, cp: 2, ..base },
        Layout { sharding: Sharding::Weights, tp: 2, pp: 2, vp: 2, ..base },
    ]
}

#[test]
fn every_model_and_split_keeps_to_the_table() {
    let (mut written, mut refused) = (0, 0);
    for record in builtin::records() {
        for layout in layouts() {
            for stack in [Stack::Bridge, Stack::MegatronEarly, Stack::FsdpCompiled] {
                let mut run = run(&record.name, "B200", stack, layout);
                if run.model.experts.is_some() {
                    run.layout.ep = 4;
                }
                if check::check(&run).is_err() {
                    continue;
                }
                for launcher in Launcher::ALL {
                    let Ok(text) = text(&run, launcher) else {
                        refused += 1;
                        continue;
                    };
                    let said = Said::of(&text);
                    said.hold_to_table(stack);
                    if stack.is_megatron() {
                        said.hold_to_layout(&run);
                        let latent = matches!(run.model.attention, Attention::Latent { .. });
                        assert_eq!(said.program.contains_key("--multi-latent-attention"), latent);
                    }
                    written += 1;
                }
            }
        }
    }
    assert!(written > 1500 && refused > 0, "{written} written, {refused} refused");
}

proptest! {
    #[test]
    fn any_split_that_can_be_run_keeps_to_its_numbers(
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
        // Megatron has no scale for each row.
        precision in prop::sample::select(Precision::ALL.to_vec())
            .prop_filter("a recipe of Megatron", |precision| *precision != Precision::Fp8Row),
    ) {
        let layout = Layout {
            tp: 1 << tp, pp, vp, cp: 1 << cp, recompute, ..Layout::copies(dp, micro_batch)
        };
        let mut run = run(model, "GB300", Stack::Bridge, layout);
        run.precision = precision;
        if run.model.experts.is_some() {
            run.layout.ep = 1 << ep;
        }
        prop_assume!(check::check(&run).is_ok());
        let said = Said::of(&text(&run, Launcher::Torchrun).unwrap());
        said.hold_to_table(run.stack);
        said.hold_to_layout(&run);
    }
}
