//! The text of a launch file.

use std::fmt::Write as _;

use super::flags::{Command, Group};
use super::nodes::Nodes;
use super::{Launcher, whole};
use crate::plan::Plan;
use crate::run::Run;

/// What all programs ask for.
const ASKS: [(&str, &str); 3] = [
    ("CHECKPOINT_DIR", "a folder that all nodes can write to"),
    ("TOKENIZER_MODEL", "the tokenizer, a folder with the files of Hugging Face"),
    ("LR", "the highest learning rate, which a plan of speed does not know"),
];

/// Columns that a comment takes.
const WIDTH: usize = 100;

/// The whole file.
pub(super) fn write(
    plan: &Plan,
    run: &Run,
    command: &Command,
    nodes: Nodes,
    launcher: Launcher,
) -> String {
    let mut text = String::from("#!/bin/bash\n");
    if launcher == Launcher::Slurm {
        batch(&mut text, plan, nodes);
    }
    header(&mut text, plan, run, command, nodes, launcher);
    line(&mut text, "\nset -euo pipefail\n");
    for (name, what) in command.asks.iter().chain(&ASKS) {
        line(&mut text, &format!(": \"${{{name}:?{what}}}\""));
    }
    meeting(&mut text, plan, nodes, launcher);
    line(&mut text, "");
    for (name, value, why) in &command.environment {
        line(&mut text, &format!("# {why}\nexport {name}={value}"));
    }
    for (name, why) in &command.unset {
        line(&mut text, &format!("# {why}\nunset {name}"));
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

/// Of a name only what is harmless in a comment, a job's name and the shell.
pub(super) fn plain(name: &str) -> String {
    let harmless = |letter: char| {
        if letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-') {
            letter
        } else {
            '-'
        }
    };
    let plain: String = name.chars().map(harmless).take(80).collect();
    if plain.is_empty() { "model".to_owned() } else { plain }
}

fn batch(text: &mut String, plan: &Plan, nodes: Nodes) {
    line(text, &format!("#SBATCH --job-name={}", plain(&plan.model.name)));
    line(text, &format!("#SBATCH --nodes={}", nodes.count));
    line(text, "#SBATCH --ntasks-per-node=1");
    line(text, &format!("#SBATCH --gpus-per-node={}", nodes.gpus_each));
    line(text, "#SBATCH --exclusive");
    if let Some(days) = plan.time_days {
        // Room for a slow run (P10) and for faults, which cost a tenth and more of large ones.
        let slow = plan.estimate.tokens_per_s_per_gpu / plan.estimate.tokens_per_s_per_gpu_p10;
        let hours = whole((days * 24.0 * slow / 0.85).ceil().max(1.0));
        line(text, &format!("#SBATCH --time={}-{:02}:00:00", hours / 24, hours % 24));
    }
}

fn header(
    text: &mut String,
    plan: &Plan,
    run: &Run,
    command: &Command,
    nodes: Nodes,
    launcher: Launcher,
) {
    let estimate = &plan.estimate;
    let mut lines = vec![
        format!("{} on {} x {}.", plain(&plan.model.name), plan.gpus, plain(&plan.gpu)),
        split(plan, run),
        format!(
            "Expected: {:.0} tokens/s for each GPU (P10 {:.0}, P90 {:.0}), {:.2} s a step.",
            estimate.tokens_per_s_per_gpu,
            estimate.tokens_per_s_per_gpu_p10,
            estimate.tokens_per_s_per_gpu_p90,
            estimate.step_time_s,
        ),
        format!(
            "Memory of the fullest GPU: P95 {:.1} GiB, median {:.1}, of {:.1} GiB.",
            plan.memory.p95_gib, plan.memory.p50_gib, plan.capacity_gib
        ),
    ];
    if let Some(days) = plan.time_days {
        lines.push(format!("Time for all tokens: {days:.2} days without faults."));
    }
    lines.push(String::new());
    lines.push(format!("Flags of {}.", command.program));
    lines.push(match (launcher, nodes.count) {
        (Launcher::Slurm, _) => "Start it once: sbatch THIS_FILE.".to_owned(),
        (Launcher::Torchrun, 1) => "Start it on one node.".to_owned(),
        (Launcher::Torchrun, count) => {
            format!("Start it on each of {count} nodes, with one MASTER_ADDR.")
        }
    });
    if !plan.fits {
        let sure = if plan.tight { "may run" } else { "runs" };
        lines.push(format!("Caution: it {sure} out of memory by this plan."));
    }
    if nodes.count > 1 && nodes.gpus_each < nodes.gpus_of_node {
        lines.push(format!(
            "{} GPUs of each node are used: {} do not divide into nodes of {}.",
            nodes.gpus_each, plan.gpus, nodes.gpus_of_node
        ));
    }
    lines.extend(command.notes.iter().map(|note| format!("Note: {note}")));
    line(text, "#");
    for said in lines {
        comment(text, &said);
    }
}

/// A comment, in lines that are not too long.
fn comment(text: &mut String, said: &str) {
    let mut row = String::from("#");
    for word in said.split_whitespace() {
        if row.len() + 1 + word.len() > WIDTH && row.len() > 2 {
            line(text, &row);
            row = String::from("#  ");
        }
        row.push(' ');
        row.push_str(word);
    }
    line(text, &row);
}

fn split(plan: &Plan, run: &Run) -> String {
    let layout = &plan.layout;
    let mut text = format!("DP {} x TP {} x PP {}", layout.dp, layout.tp, layout.pp);
    if layout.vp > 1 {
        // Writing to a string does not fail.
        let _ = write!(text, " (VP {})", layout.vp);
    }
    let _ = write!(text, " x CP {}", layout.cp);
    if run.model.experts.is_some() {
        let _ = write!(text, ", EP {}", layout.ep);
    }
    let _ = write!(
        text,
        "; {}; {} sequences of {} tokens a step, {} at once; recompute {}.",
        plan.precision,
        plan.global_batch,
        plan.seq_len,
        layout.micro_batch,
        layout.recompute.name()
    );
    text
}

/// Where the nodes find each other.
fn meeting(text: &mut String, plan: &Plan, nodes: Nodes, launcher: Launcher) {
    let name = plain(&plan.model.name);
    line(text, "");
    match launcher {
        Launcher::Slurm => {
            line(text, "mapfile -t hosts < <(scontrol show hostnames \"$SLURM_JOB_NODELIST\")");
            line(text, "MASTER_ADDR=\"${hosts[0]}\"");
            line(text, "RDZV_ID=\"$SLURM_JOB_ID\"");
        }
        Launcher::Torchrun if nodes.count > 1 => {
            line(text, ": \"${MASTER_ADDR:?the name of the first node, the same on all}\"");
            line(text, &format!("RDZV_ID=\"${{RDZV_ID:-{name}}}\""));
        }
        Launcher::Torchrun => {
            line(text, "MASTER_ADDR=\"${MASTER_ADDR:-localhost}\"");
            line(text, &format!("RDZV_ID=\"${{RDZV_ID:-{name}}}\""));
        }
    }
    line(text, "MASTER_PORT=\"${MASTER_PORT:-29500}\"");
}

fn array(text: &mut String, group: &Group) {
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

fn start(text: &mut String, command: &Command, nodes: Nodes, launcher: Launcher) {
    let run = match launcher {
        Launcher::Slurm => "srun torchrun",
        Launcher::Torchrun => "torchrun",
    };
    line(text, &format!("\n{run} \\"));
    line(text, &format!("    --nnodes {} \\", nodes.count));
    line(text, &format!("    --nproc-per-node {} \\", nodes.gpus_each));
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
