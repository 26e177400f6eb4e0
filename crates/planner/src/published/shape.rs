//! Shape of a row's model, by name or from the row's own columns.

use super::table::{RawRow, count, number};
use super::{RowError, ShapeError};
use crate::model::{
    Attention, AttentionWindow, Bias, Experts, Norm, ParameterCounts, TransformerConfig, builtin,
};

/// Upper limit of a count. The limit is far above the counts of any model, so a larger number is a
/// typo.
const MAX: u32 = 1 << 24;

/// The built-in model if it matches the row's columns, else a model from the columns.
pub(super) fn model(
    row: &RawRow,
    assumed: &mut Vec<&'static str>,
) -> Result<TransformerConfig, RowError> {
    let by_name = named(row);
    if let Some(mut model) = by_name.clone().filter(|model| fits(model, row)) {
        model.name.clone_from(&row.model);
        if model.learned_positions > 0 {
            model.learned_positions = count(&row.seq_len).unwrap_or(model.learned_positions);
        }
        return Ok(model);
    }
    let model = from_columns(row).map_err(|missing| match by_name {
        Some(known) => RowError::ShapeMismatch {
            model: row.model.clone(),
            layers: known.layers,
            hidden: known.hidden,
            vocab: known.vocab,
            missing,
        },
        None => RowError::UnknownModel { model: row.model.clone(), missing },
    })?;
    if row.ffn.trim().is_empty() {
        assumed.push("feed-forward width");
    }
    if model.experts.is_some() && row.topk.trim().is_empty() {
        assumed.push("experts per token");
    }
    Ok(with_layers_from_parameters(model, row))
}

fn named(row: &RawRow) -> Option<TransformerConfig> {
    // Two papers use well-known names for models of their own.
    let own = match () {
        () if row.source.contains("MegaScale") => " (MegaScale)",
        () if row.source.contains("Megatron-LM images") => " (Megatron-LM 2024)",
        () => "",
    };
    builtin::by_name(&format!("{}{own}", row.model)).map(builtin::BuiltinModel::model)
}

/// Whether no column contradicts the model.
fn fits(model: &TransformerConfig, row: &RawRow) -> bool {
    let is = |cell: &str, expected: u32| count(cell).is_none_or(|stated| stated == expected);
    is(&row.layers, model.layers)
        && is(&row.hidden, model.hidden)
        // Some sources state the padded vocabulary.
        && count(&row.vocab).is_none_or(|vocab| vocab.abs_diff(model.vocab) < 2048)
}

/// A model from the row's columns, or what they lack.
fn from_columns(row: &RawRow) -> Result<TransformerConfig, ShapeError> {
    let within = |cell: &str| count(cell).filter(|count| *count <= MAX);
    let shape = (within(&row.layers), within(&row.hidden), within(&row.heads));
    let (Some(layers), Some(hidden), Some(heads)) = shape else {
        return Err(ShapeError::Shape);
    };
    if heads > hidden {
        return Err(ShapeError::Heads { heads, hidden });
    }
    let kv_heads = within(&row.kv_heads).ok_or(ShapeError::KvHeads)?;
    let ffn = within(&row.ffn).unwrap_or(4 * hidden);
    let vocab = within(&row.vocab).ok_or(ShapeError::Vocabulary)?;
    let experts = within(&row.experts);
    let gated = ffn != 4 * hidden || experts.is_some();
    Ok(TransformerConfig {
        name: row.model.clone(),
        layers,
        hidden,
        attention: Attention::Grouped { heads, kv_heads, head_dim: hidden / heads },
        window: AttentionWindow::NONE,
        ffn,
        gated,
        vocab,
        tied: !gated,
        bias: if gated { Bias::None } else { Bias::All },
        norm: if gated { Norm::Rms } else { Norm::Layer },
        learned_positions: 0,
        experts: experts.map(|experts| Experts {
            count: experts,
            per_token: within(&row.topk).unwrap_or(1),
            ffn,
            shared_ffn: 0,
            dense_layers: 0,
            every: 1,
        }),
        mtp_layers: 0,
    })
}

/// If layers and parameter count contradict each other, trusts the parameter count.
fn with_layers_from_parameters(mut model: TransformerConfig, row: &RawRow) -> TransformerConfig {
    let Some(billions) = number(&row.params_b).filter(|_| model.experts.is_none()) else {
        return model;
    };
    let parameters = ParameterCounts::new(&model);
    let ends = parameters.embedding + parameters.output;
    let layers = f64::from(model.layers);
    let implied = ((billions * 1e9 - ends) / ((parameters.total - ends) / layers)).round();
    let plausible = (1.0..=f64::from(MAX)).contains(&implied);
    if plausible && (implied / layers - 1.0).abs() > 0.1 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded")]
        {
            model.layers = implied as u32;
        }
    }
    model
}

#[cfg(test)]
mod tests {
    use super::super::tests::raw_row;
    use super::*;

    fn shape(row: &RawRow) -> Result<TransformerConfig, String> {
        model(row, &mut Vec::new()).map_err(|err| err.to_string())
    }

    #[test]
    fn name_applies_only_to_its_own_shape() {
        assert_eq!(shape(&raw_row(&[])).unwrap().layers, 32);
        let message = shape(&raw_row(&[("layers", "16")])).unwrap_err();
        assert!(message.contains("not that of `llama3-8b` (32 layers, width 4096"), "{message}");
        let shallow = [
            ("layers", "16"),
            ("hidden", "4096"),
            ("heads", "32"),
            ("kv_heads", "8"),
            ("ffn", "14336"),
            ("vocab", "128256"),
        ];
        assert_eq!(shape(&raw_row(&shallow)).unwrap().layers, 16);
    }

    #[test]
    fn invalid_shapes_are_rejected() {
        let shape = |hidden, heads| {
            shape(&raw_row(&[
                ("model", "mine"),
                ("layers", "4"),
                ("hidden", hidden),
                ("heads", heads),
                ("kv_heads", "8"),
                ("vocab", "1000"),
            ]))
        };
        assert_eq!(shape("1024", "16").unwrap().ffn, 4096);
        assert!(shape("16", "32").unwrap_err().contains("more heads (32) than"));
        assert!(shape("3999999999", "32").unwrap_err().contains("lacks its shape"));
    }

    #[test]
    fn parameter_count_is_trusted_over_layers() {
        let layers = |params_b| {
            shape(&raw_row(&[
                ("model", "mine"),
                ("params_b", params_b),
                ("layers", "40"),
                ("hidden", "8192"),
                ("heads", "64"),
                ("kv_heads", "64"),
                ("vocab", "50368"),
            ]))
            .unwrap()
            .layers
        };
        assert_eq!(layers("64.8"), 80);
        assert_eq!(layers("32.6"), 40);
        assert_eq!(layers("1e30"), 40);
    }
}
