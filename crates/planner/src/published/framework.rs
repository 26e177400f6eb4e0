//! The program that trained, and what it was told.

use super::RowError;
use super::cells::Cells;
use crate::layout::{Recompute, Sharding};
use crate::run::{Run, Stack};

/// The program that trained: what the column says, or what source, date and notes tell.
pub(super) fn stack(cells: &Cells) -> Result<Stack, RowError> {
    let said = cells.program.trim();
    if said.is_empty() {
        return Ok(told(cells));
    }
    Stack::ALL
        .into_iter()
        .find(|stack| stack.name() == said)
        .ok_or_else(|| RowError::Program(said.to_owned()))
}

/// The program, where no column says it.
fn told(cells: &Cells) -> Stack {
    let source = cells.source.as_str();
    let has = |part: &str| source.contains(part);
    if has("llm-foundry") {
        Stack::Foundry
    } else if has("torchtitan") {
        let early = cells.date.as_str() < "2024-09" && !cells.notes.contains("compile");
        if early || cells.notes.starts_with("eager") { Stack::Fsdp } else { Stack::FsdpCompiled }
    } else if has("SC21") || has("Korthikanti") || has("MT-NLG") {
        Stack::MegatronEarly
    } else if has("Llama 3 Herd")
        || has("DeepSeek-V3")
        || (has("MegaScale") && !cells.notes.contains("framework=Megatron-LM"))
    {
        Stack::Tuned
    } else if has("NVIDIA/NeMo") || has("Megatron-LM") || has("MegaScale") {
        Stack::Megatron
    } else if has("Megatron-Bridge") || !cells.sharding.contains("FSDP") {
        Stack::Bridge
    } else {
        Stack::FsdpCompiled
    }
}

/// Words of the column `sharding`; `FSDP` may have the number of GPUs that share behind it.
pub(super) const SHARDINGS: [&str; 12] = [
    "none",
    "DDP",
    "ZeRO-1",
    "ZeRO-2",
    "ZeRO-3",
    "distributed-optimizer",
    "SHARD_GRAD_OP",
    "FULL_SHARD",
    "FSDP",
    "Megatron-LM",
    "MegaScale",
    "PTD-P",
];

/// What is kept once, and among how many.
pub(super) fn sharding(cells: &Cells, stack: Stack) -> Result<(Sharding, u32), RowError> {
    let usual = match stack {
        Stack::MegatronEarly => Sharding::None,
        _ => Sharding::Optimizer,
    };
    let text = cells.sharding.to_ascii_uppercase();
    // What stands in brackets is for people, but for FSDP that shares no weights; what stands behind
    // a stroke is the precision of sums.
    let word = text.split(['(', '/']).next().unwrap_or_default();
    let (name, group) = match word.strip_prefix("FSDP") {
        Some(group) => ("FSDP", group),
        None => (word, ""),
    };
    let group = group.parse::<u32>().ok().or(group.is_empty().then_some(0));
    match (name, group) {
        ("FSDP", Some(_)) if text.contains("ZERO-2") => Ok((Sharding::Gradients, 0)),
        ("FSDP", Some(group)) if stack == Stack::Bridge => Ok((Sharding::Weights, group)),
        ("FSDP", Some(_)) | ("ZERO-3" | "FULL_SHARD", _) => Ok((Sharding::Weights, 0)),
        ("SHARD_GRAD_OP" | "ZERO-2", _) => Ok((Sharding::Gradients, 0)),
        ("ZERO-1" | "DISTRIBUTED-OPTIMIZER", _) => Ok((Sharding::Optimizer, 0)),
        ("NONE" | "DDP", _) => Ok((Sharding::None, 0)),
        ("MEGATRON-LM" | "MEGASCALE" | "PTD-P", _) => Ok((usual, 0)),
        _ if text.is_empty() => Ok((usual, 0)),
        _ => Err(RowError::Sharding(cells.sharding.clone())),
    }
}

/// Modules that Megatron computes again by name and that cost next to no products.
pub(super) const CHEAP: [&str; 4] = ["core_attn", "layernorm", "mla_up_proj", "moe_act"];

/// What a cell says of recomputation; nothing where it is empty.
pub(super) fn recompute(cell: &str) -> Result<Option<Recompute>, RowError> {
    let said = cell.trim().to_ascii_lowercase();
    // What stands in brackets is for people.
    let word = said.split('(').next().unwrap_or_default().trim_end();
    let known = match word {
        "" if said.is_empty() => return Ok(None),
        "none" => Some(Recompute::None),
        "full" => Some(Recompute::Full),
        "selective+sp" | "attention" => Some(Recompute::Attention),
        "selective-op" | "selective" | "operators" => Some(Recompute::Operators),
        "selective-layer" | "every-second" => Some(Recompute::EverySecond),
        "modules" => Some(Recompute::Modules),
        other => match other.split_once(':') {
            Some(("layers", count)) => count.parse().ok().map(Recompute::Layers),
            Some(("selective", modules)) => of_modules(modules),
            _ => None,
        },
    };
    known.map(Some).ok_or_else(|| RowError::Recompute(cell.to_owned()))
}

fn of_modules(modules: &str) -> Option<Recompute> {
    if modules == "core_attn" {
        return Some(Recompute::Attention);
    }
    modules.split('+').all(|module| CHEAP.contains(&module)).then_some(Recompute::Modules)
}

/// Whether experts are computed by kernels that fuse a whole group: what the column says. In a table
/// that has no such column, the recipes of Megatron Bridge have them on Blackwell since June 2026.
pub(super) fn fused_experts(cells: &Cells, run: &Run) -> Result<bool, RowError> {
    match cells.fused_experts.as_deref() {
        Some("yes") => Ok(run.model.experts.is_some()),
        Some("" | "no") => Ok(false),
        Some(other) => Err(RowError::FusedExperts(other.to_owned())),
        None => Ok(cells.date.as_str() >= "2026-06" && run.fuses_experts()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{cells, read_one};
    use super::*;

    #[test]
    fn recomputation_is_known_or_refused() {
        for (cell, wanted) in [
            ("", None),
            ("none", Some(Recompute::None)),
            ("none (no act. ckpt at 8K per paper)", Some(Recompute::None)),
            ("selective+SP", Some(Recompute::Attention)),
            ("selective:core_attn", Some(Recompute::Attention)),
            ("selective:layernorm+moe_act", Some(Recompute::Modules)),
            ("selective", Some(Recompute::Operators)),
            ("layers:4", Some(Recompute::Layers(4))),
        ] {
            assert_eq!(recompute(cell).unwrap(), wanted, "{cell}");
        }
        for cell in ["block:4", "layers:", "selective:moe", "selective:", "(full)", "nonesuch"] {
            let said = recompute(cell).unwrap_err().to_string();
            assert!(said.contains(&format!("`{cell}` is not known; possible: `none`")), "{said}");
        }
    }

    #[test]
    fn sharding_is_known_or_refused() {
        let of = |cell: &str, stack| sharding(&cells(&[("sharding", cell)]), stack);
        for (cell, wanted) in [
            ("", (Sharding::Optimizer, 0)),
            ("none", (Sharding::None, 0)),
            ("distributed-optimizer(default recipe)", (Sharding::Optimizer, 0)),
            ("FSDP64", (Sharding::Weights, 64)),
            ("FSDP", (Sharding::Weights, 0)),
            ("FSDP(ZeRO-2-like)", (Sharding::Gradients, 0)),
            ("FULL_SHARD/DEFAULT", (Sharding::Weights, 0)),
            ("SHARD_GRAD_OP/DEFAULT", (Sharding::Gradients, 0)),
        ] {
            assert_eq!(of(cell, Stack::Bridge), Ok(wanted), "{cell}");
        }
        assert_eq!(of("FSDP2", Stack::FsdpCompiled), Ok((Sharding::Weights, 0)));
        assert_eq!(of("PTD-P", Stack::MegatronEarly), Ok((Sharding::None, 0)));
        for cell in ["zero-9", "FSDPx", "hybrid", "(ZeRO-3)x"] {
            let said = read_one(&cells(&[("sharding", cell)])).map_err(|row| row.why.to_string());
            let said = said.map(|row| row.run.layout.sharding).unwrap_err();
            assert!(said.contains("is not known; possible: `none`, `DDP`"), "{said}");
        }
    }

    #[test]
    fn the_names_of_the_command_line_are_known() {
        for recompute_ in [
            Recompute::None,
            Recompute::Attention,
            Recompute::Modules,
            Recompute::Operators,
            Recompute::EverySecond,
            Recompute::Layers(3),
            Recompute::Full,
        ] {
            assert_eq!(recompute(&recompute_.name()), Ok(Some(recompute_)));
        }
    }

    #[test]
    fn the_column_says_the_program() {
        let stack = |program: &'static str| {
            let row = read_one(&cells(&[("source", "my cluster"), ("program", program)]));
            row.map(|row| row.run.stack).map_err(|row| row.why.to_string())
        };
        assert_eq!(stack("megatron"), Ok(Stack::Megatron));
        assert_eq!(stack("llm-foundry"), Ok(Stack::Foundry));
        assert_eq!(stack(""), Ok(Stack::Bridge));
        let said = stack("nanotron").unwrap_err();
        assert!(said.contains("`nanotron` is not known; possible: `megatron-early`"), "{said}");
    }

    #[test]
    fn the_column_says_whether_experts_are_fused() {
        let base = [
            ("source", "Megatron-Bridge"),
            ("model", "qwen3-30b-a3b"),
            ("gpu", "GB200"),
            ("precision", "mxfp8"),
            ("EP", "8"),
        ];
        let fused = |date, cell: Option<&'static str>| {
            let mut given = base.to_vec();
            given.push(("date", date));
            given.extend(cell.map(|cell| ("fused_experts", cell)));
            read_one(&cells(&given))
                .map(|row| row.run.fused_experts)
                .map_err(|row| row.why.to_string())
        };
        assert_eq!(fused("2025-11", Some("yes")), Ok(true));
        assert_eq!(fused("2026-08", Some("no")), Ok(false));
        assert_eq!(fused("2026-08", Some("")), Ok(false));
        assert_eq!(fused("2026-08", None), Ok(true));
        assert_eq!(fused("2025-11", None), Ok(false));
        assert!(fused("2026-08", Some("perhaps")).unwrap_err().contains("possible: `yes`, `no`"));
    }
}
