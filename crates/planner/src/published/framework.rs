//! The training framework of a row, and its settings.

use super::RowError;
use super::table::RawRow;
use crate::parallelism::{Recompute, Sharding};
use crate::run::{Framework, TrainingRun};

/// The framework: from its column, or inferred from source, date and notes.
pub(super) fn framework(row: &RawRow) -> Result<Framework, RowError> {
    let name = row.program.trim();
    if name.is_empty() {
        return Ok(infer_framework(row));
    }
    Framework::ALL
        .into_iter()
        .find(|framework| framework.name() == name)
        .ok_or_else(|| RowError::Framework(name.to_owned()))
}

fn infer_framework(row: &RawRow) -> Framework {
    let source = row.source.as_str();
    let has = |part: &str| source.contains(part);
    if has("llm-foundry") {
        Framework::Foundry
    } else if has("torchtitan") {
        let early = row.date.as_str() < "2024-09" && !row.notes.contains("compile");
        if early || row.notes.starts_with("eager") {
            Framework::Fsdp
        } else {
            Framework::FsdpCompiled
        }
    } else if has("SC21") || has("Korthikanti") || has("MT-NLG") {
        Framework::MegatronEarly
    } else if has("Llama 3 Herd")
        || has("DeepSeek-V3")
        || (has("MegaScale") && !row.notes.contains("framework=Megatron-LM"))
    {
        Framework::Tuned
    } else if has("NVIDIA/NeMo") || has("Megatron-LM") || has("MegaScale") {
        Framework::Megatron
    } else if has("Megatron-Bridge") || !row.sharding.contains("FSDP") {
        Framework::Bridge
    } else {
        Framework::FsdpCompiled
    }
}

/// Accepted values of the column `sharding`. `FSDP` may be followed by the sharding group size.
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

/// Sharding, and the sharding group size (0: all replicas).
pub(super) fn sharding(row: &RawRow, framework: Framework) -> Result<(Sharding, u32), RowError> {
    let default = match framework {
        Framework::MegatronEarly => Sharding::None,
        _ => Sharding::Optimizer,
    };
    let text = row.sharding.to_ascii_uppercase();
    // Text in brackets is for human readers, except for FSDP with ZeRO-2. Text after a slash is the
    // reduction precision.
    let word = text.split(['(', '/']).next().unwrap_or_default();
    let (name, group) = match word.strip_prefix("FSDP") {
        Some(group) => ("FSDP", group),
        None => (word, ""),
    };
    let group = group.parse::<u32>().ok().or(group.is_empty().then_some(0));
    match (name, group) {
        ("FSDP", Some(_)) if text.contains("ZERO-2") => Ok((Sharding::Gradients, 0)),
        ("FSDP", Some(group)) if framework == Framework::Bridge => Ok((Sharding::Weights, group)),
        ("FSDP", Some(_)) | ("ZERO-3" | "FULL_SHARD", _) => Ok((Sharding::Weights, 0)),
        ("SHARD_GRAD_OP" | "ZERO-2", _) => Ok((Sharding::Gradients, 0)),
        ("ZERO-1" | "DISTRIBUTED-OPTIMIZER", _) => Ok((Sharding::Optimizer, 0)),
        ("NONE" | "DDP", _) => Ok((Sharding::None, 0)),
        ("MEGATRON-LM" | "MEGASCALE" | "PTD-P", _) => Ok((default, 0)),
        _ if text.is_empty() => Ok((default, 0)),
        _ => Err(RowError::Sharding(row.sharding.clone())),
    }
}

/// Modules that Megatron recomputes by name and that contain next to no GEMMs.
pub(super) const CHEAP_MODULES: [&str; 4] = ["core_attn", "layernorm", "mla_up_proj", "moe_act"];

/// Parses the column `recompute`; `None` if it is empty.
pub(super) fn recompute(cell: &str) -> Result<Option<Recompute>, RowError> {
    let text = cell.trim().to_ascii_lowercase();
    // Text in brackets is for human readers.
    let word = text.split('(').next().unwrap_or_default().trim_end();
    let mode = match word {
        "" if text.is_empty() => return Ok(None),
        "none" => Some(Recompute::None),
        "full" => Some(Recompute::Full),
        "selective+sp" | "attention" => Some(Recompute::Attention),
        "selective-op" | "selective" | "operators" => Some(Recompute::Operators),
        "selective-layer" | "every-second" => Some(Recompute::EverySecond),
        "modules" => Some(Recompute::Modules),
        other => match other.split_once(':') {
            Some(("layers", count)) => count.parse().ok().map(Recompute::Layers),
            Some(("selective", modules)) => from_modules(modules),
            _ => None,
        },
    };
    mode.map(Some).ok_or_else(|| RowError::Recompute(cell.to_owned()))
}

fn from_modules(modules: &str) -> Option<Recompute> {
    if modules == "core_attn" {
        return Some(Recompute::Attention);
    }
    modules.split('+').all(|module| CHEAP_MODULES.contains(&module)).then_some(Recompute::Modules)
}

/// Whether experts run in fused kernels, according to the column. If the table has no such column,
/// rows since June 2026 are assumed to use them where [`TrainingRun::fuses_experts`] says so.
pub(super) fn fused_experts(row: &RawRow, run: &TrainingRun) -> Result<bool, RowError> {
    match row.fused_experts.as_deref() {
        Some("yes") => Ok(run.model.experts.is_some()),
        Some("" | "no") => Ok(false),
        Some(other) => Err(RowError::FusedExperts(other.to_owned())),
        None => Ok(row.date.as_str() >= "2026-06" && run.fuses_experts()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{parse, raw_row};
    use super::*;

    #[test]
    fn unknown_recompute_modes_are_rejected() {
        for (cell, expected) in [
            ("", None),
            ("none", Some(Recompute::None)),
            ("none (no act. ckpt at 8K per paper)", Some(Recompute::None)),
            ("selective+SP", Some(Recompute::Attention)),
            ("selective:core_attn", Some(Recompute::Attention)),
            ("selective:layernorm+moe_act", Some(Recompute::Modules)),
            ("selective", Some(Recompute::Operators)),
            ("layers:4", Some(Recompute::Layers(4))),
        ] {
            assert_eq!(recompute(cell).unwrap(), expected, "{cell}");
        }
        for cell in ["block:4", "layers:", "selective:moe", "selective:", "(full)", "nonesuch"] {
            let message = recompute(cell).unwrap_err().to_string();
            assert!(message.contains(&format!("`{cell}`; possible: `none`")), "{message}");
        }
    }

    #[test]
    fn unknown_shardings_are_rejected() {
        let parse_sharding =
            |cell: &str, framework| sharding(&raw_row(&[("sharding", cell)]), framework);
        for (cell, expected) in [
            ("", (Sharding::Optimizer, 0)),
            ("none", (Sharding::None, 0)),
            ("distributed-optimizer(default recipe)", (Sharding::Optimizer, 0)),
            ("FSDP64", (Sharding::Weights, 64)),
            ("FSDP", (Sharding::Weights, 0)),
            ("FSDP(ZeRO-2-like)", (Sharding::Gradients, 0)),
            ("FULL_SHARD/DEFAULT", (Sharding::Weights, 0)),
            ("SHARD_GRAD_OP/DEFAULT", (Sharding::Gradients, 0)),
        ] {
            assert_eq!(parse_sharding(cell, Framework::Bridge), Ok(expected), "{cell}");
        }
        assert_eq!(parse_sharding("FSDP2", Framework::FsdpCompiled), Ok((Sharding::Weights, 0)));
        assert_eq!(parse_sharding("PTD-P", Framework::MegatronEarly), Ok((Sharding::None, 0)));
        for cell in ["zero-9", "FSDPx", "hybrid", "(ZeRO-3)x"] {
            let result =
                parse(&raw_row(&[("sharding", cell)])).map_err(|row| row.error.to_string());
            let message = result.map(|row| row.run.parallelism.sharding).unwrap_err();
            assert!(message.contains("; possible: `none`, `DDP`"), "{message}");
        }
    }

    #[test]
    fn command_line_names_are_accepted() {
        for mode in [
            Recompute::None,
            Recompute::Attention,
            Recompute::Modules,
            Recompute::Operators,
            Recompute::EverySecond,
            Recompute::Layers(3),
            Recompute::Full,
        ] {
            assert_eq!(recompute(&mode.name()), Ok(Some(mode)));
        }
    }

    #[test]
    fn framework_column_takes_precedence() {
        let framework = |program: &'static str| {
            let row = parse(&raw_row(&[("source", "my cluster"), ("program", program)]));
            row.map(|row| row.run.framework).map_err(|row| row.error.to_string())
        };
        assert_eq!(framework("megatron"), Ok(Framework::Megatron));
        assert_eq!(framework("llm-foundry"), Ok(Framework::Foundry));
        assert_eq!(framework(""), Ok(Framework::Bridge));
        let message = framework("nanotron").unwrap_err();
        assert!(message.contains("`nanotron`; possible: `megatron-early`"), "{message}");
    }

    #[test]
    fn fused_experts_column_takes_precedence() {
        let base = [
            ("source", "Megatron-Bridge"),
            ("model", "qwen3-30b-a3b"),
            ("gpu", "GB200"),
            ("precision", "mxfp8"),
            ("EP", "8"),
        ];
        let fused = |date, cell: Option<&'static str>| {
            let mut overrides = base.to_vec();
            overrides.push(("date", date));
            overrides.extend(cell.map(|cell| ("fused_experts", cell)));
            parse(&raw_row(&overrides))
                .map(|row| row.run.fused_experts)
                .map_err(|row| row.error.to_string())
        };
        assert_eq!(fused("2025-11", Some("yes")), Ok(true));
        assert_eq!(fused("2026-08", Some("no")), Ok(false));
        assert_eq!(fused("2026-08", Some("")), Ok(false));
        assert_eq!(fused("2026-08", None), Ok(true));
        assert_eq!(fused("2025-11", None), Ok(false));
        assert!(fused("2026-08", Some("perhaps")).unwrap_err().contains("possible: `yes`, `no`"));
    }
}
