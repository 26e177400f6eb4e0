//! Rendering of a launch script.

use std::fmt::Write as _;

use super::flags::{FlagGroup, LaunchCommand};
use super::nodes::Nodes;
use super::{Launcher, to_u64};
use crate::plan::TrainingPlan;
use crate::run::TrainingRun;

/// Variables that every framework requires.
const REQUIRED_VARIABLES: [(&str, &str); 3] = [
    ("CHECKPOINT_DIR", "a folder that all nodes can write to"),
    ("TOKENIZER_MODEL", "a tokenizer folder in Hugging Face format"),
    ("LR", "the peak learning rate, which the plan does not determine"),
];

/// Maximum width of a comment line.
const WIDTH: usize = 100;

pub(super) fn write(
    plan: &TrainingPlan,
    run: &TrainingRun,
    command: &LaunchCommand,
    nodes: Nodes,
    launcher: Launcher,
) -> String {
    let mut text = String::from("#!/bin/bash\n");
    if launcher == Launcher::Slurm {
        sbatch_header(&mut text, plan, nodes);
    }
    header(&mut text, plan, run, command, nodes, launcher);
    line(&mut text, "\nset -euo pipefail\n");
    for (name, what) in command.required_variables.iter().chain(&REQUIRED_VARIABLES) {
        line(&mut text, &format!(": \"${{{name}:?{what}}}\""));
    }
    rendezvous(&mut text, plan, nodes, launcher);
    line(&mut text, "");
    for (name, value, reason) in &command.environment {
        line(&mut text, &format!("# {reason}\nexport {name}={value}"));
    }
    for (name, reason) in &command.unset {
        line(&mut text, &format!("# {reason}\nunset {name}"));
    }
    for group in &command.groups {
        array(&mut text, group);
    }
    start(&mut text, command, nodes, launcher);
    text
}

fn line(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

/// Replaces all characters that are unsafe in a comment, a job name or the shell.
pub(super) fn sanitized(name: &str) -> String {
    let safe = |letter: char| {
        if letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-') {
            letter
        } else {
            '-'
        }
    };
    let sanitized: String = name.chars().map(safe).take(80).collect();
    if sanitized.is_empty() { "model".to_owned() } else { sanitized }
}

fn sbatch_header(text: &mut String, plan: &TrainingPlan, nodes: Nodes) {
    line(text, &format!("#SBATCH --job-name={}", sanitized(&plan.model.name)));
    line(text, &format!("#SBATCH --nodes={}", nodes.count));
    line(text, "#SBATCH --ntasks-per-node=1");
    line(text, &format!("#SBATCH --gpus-per-node={}", nodes.gpus_used));
    line(text, "#SBATCH --exclusive");
    if let Some(days) = plan.time_days {
        // Headroom for a slow run (P10) and for failures, which cost large runs a tenth of their
        // time or more.
        let slow = plan.estimate.tokens_per_s_per_gpu / plan.estimate.tokens_per_s_per_gpu_p10;
        let hours = to_u64((days * 24.0 * slow / 0.85).ceil().max(1.0));
        line(text, &format!("#SBATCH --time={}-{:02}:00:00", hours / 24, hours % 24));
    }
}

fn header(
    text: &mut String,
    plan: &TrainingPlan,
    run: &TrainingRun,
    command: &LaunchCommand,
    nodes: Nodes,
    launcher: Launcher,
) {
    let estimate = &plan.estimate;
    let mut lines = vec![
        format!("{} on {} x {}.", sanitized(&plan.model.name), plan.gpus, sanitized(&plan.gpu)),
        describe_parallelism(plan, run),
        format!(
            "Expected: {:.0} tokens/s per GPU (P10 {:.0}, P90 {:.0}), {:.2} s per step.",
            estimate.tokens_per_s_per_gpu,
            estimate.tokens_per_s_per_gpu_p10,
            estimate.tokens_per_s_per_gpu_p90,
            estimate.step_time_s,
        ),
        format!(
            "Memory of the fullest GPU: P95 {:.1} GiB, median {:.1} GiB, of {:.1} GiB.",
            plan.memory.p95_gib, plan.memory.p50_gib, plan.capacity_gib
        ),
    ];
    if let Some(days) = plan.time_days {
        lines.push(format!("Time for all tokens: {days:.2} days without failures."));
    }
    lines.push(String::new());
    lines.push(format!("Flags of {}.", command.framework));
    lines.push(match (launcher, nodes.count) {
        (Launcher::Slurm, _) => "Start it once: sbatch THIS_FILE.".to_owned(),
        (Launcher::Torchrun, 1) => "Start it on one node.".to_owned(),
        (Launcher::Torchrun, count) => {
            format!("Start it on each of {count} nodes, with the same MASTER_ADDR.")
        }
    });
    if !plan.fits {
        let likelihood = if plan.tight { "may run" } else { "runs" };
        lines.push(format!("Caution: according to the plan it {likelihood} out of memory."));
    }
    if nodes.count > 1 && nodes.gpus_used < nodes.gpus_per_node {
        lines.push(format!(
            "Only {} GPUs of each node are used: {} GPUs do not divide into nodes of {}.",
            nodes.gpus_used, plan.gpus, nodes.gpus_per_node
        ));
    }
    lines.extend(command.notes.iter().map(|note| format!("Note: {note}")));
    line(text, "#");
    for paragraph in lines {
        comment(text, &paragraph);
    }
}

/// A comment, wrapped at [`WIDTH`].
fn comment(text: &mut String, paragraph: &str) {
    let mut row = String::from("#");
    for word in paragraph.split_whitespace() {
        if row.len() + 1 + word.len() > WIDTH && row.len() > 2 {
            line(text, &row);
            row = String::from("#  ");
        }
        row.push(' ');
        row.push_str(word);
    }
    line(text, &row);
}

fn describe_parallelism(plan: &TrainingPlan, run: &TrainingRun) -> String {
    let parallelism = &plan.parallelism;
    let mut text = format!("DP {} x TP {} x PP {}", parallelism.dp, parallelism.tp, parallelism.pp);
    if parallelism.vp > 1 {
        // Writing to a string cannot fail.
        let _ = write!(text, " (VP {})", parallelism.vp);
    }
    let _ = write!(text, " x CP {}", parallelism.cp);
    if run.model.experts.is_some() {
        let _ = write!(text, ", EP {}", parallelism.ep);
    }
    let _ = write!(
        text,
        "; {}; {} sequences of {} tokens per step, micro-batch {}; recompute {}.",
        plan.precision,
        plan.global_batch,
        plan.seq_len,
        parallelism.micro_batch,
        parallelism.recompute.name()
    );
    text
}

/// Rendezvous address of the nodes.
fn rendezvous(text: &mut String, plan: &TrainingPlan, nodes: Nodes, launcher: Launcher) {
    let name = sanitized(&plan.model.name);
    line(text, "");
    match launcher {
        Launcher::Slurm => {
            line(text, "mapfile -t hosts < <(scontrol show hostnames \"$SLURM_JOB_NODELIST\")");
            line(text, "MASTER_ADDR=\"${hosts[0]}\"");
            line(text, "RDZV_ID=\"$SLURM_JOB_ID\"");
        }
        Launcher::Torchrun if nodes.count > 1 => {
            line(
                text,
                ": \"${MASTER_ADDR:?the host name of the first node, the same on all nodes}\"",
            );
            line(text, &format!("RDZV_ID=\"${{RDZV_ID:-{name}}}\""));
        }
        Launcher::Torchrun => {
            line(text, "MASTER_ADDR=\"${MASTER_ADDR:-localhost}\"");
            line(text, &format!("RDZV_ID=\"${{RDZV_ID:-{name}}}\""));
        }
    }
    line(text, "MASTER_PORT=\"${MASTER_PORT:-29500}\"");
}

fn array(text: &mut String, group: &FlagGroup) {
    if group.flags.is_empty() {
        return;
    }
    line(text, &format!("\n{}=(", group.name));
    for flag in &group.flags {
        match &flag.value {
            Some(value) => line(text, &format!("    {} {value}", flag.name)),
            None => line(text, &format!("    {}", flag.name)),
        }
    }
    line(text, ")");
}

fn start(text: &mut String, command: &LaunchCommand, nodes: Nodes, launcher: Launcher) {
    let run = match launcher {
        Launcher::Slurm => "srun torchrun",
        Launcher::Torchrun => "torchrun",
    };
    line(text, &format!("\n{run} \\"));
    line(text, &format!("    --nnodes {} \\", nodes.count));
    line(text, &format!("    --nproc-per-node {} \\", nodes.gpus_used));
    line(text, "    --rdzv-backend c10d \\");
    line(text, "    --rdzv-endpoint \"$MASTER_ADDR:$MASTER_PORT\" \\");
    line(text, "    --rdzv-id \"$RDZV_ID\" \\");
    line(text, &format!("    {} \\", command.entry));
    let arrays: Vec<String> = command
        .groups
        .iter()
        .filter(|group| !group.flags.is_empty())
        .map(|group| format!("    \"${{{}[@]}}\"", group.name))
        .collect();
    line(text, &arrays.join(" \\\n"));
}
