//! What was trained, by name or by the row's own numbers.

use super::cells::{Cells, count, number};
use super::{RowError, ShapeError};
use crate::model::{Attention, Bias, Experts, Model, Norm, Parameters, Window, builtin};

/// Wider and deeper than any model by orders: a slip of the pen.
const MOST: u32 = 1 << 24;

/// A model by name where that fits the row's own numbers, else from those.
pub(super) fn model(cells: &Cells, assumed: &mut Vec<&'static str>) -> Result<Model, RowError> {
    let by_name = named(cells);
    if let Some(mut model) = by_name.clone().filter(|model| fits(model, cells)) {
        model.name.clone_from(&cells.model);
        if model.learned_positions > 0 {
            model.learned_positions = count(&cells.seq_len).unwrap_or(model.learned_positions);
        }
        return Ok(model);
    }
    let model = by_numbers(cells).map_err(|lacks| match by_name {
        Some(known) => RowError::OtherShape {
            model: cells.model.clone(),
            layers: known.layers,
            hidden: known.hidden,
            vocab: known.vocab,
            lacks,
        },
        None => RowError::UnknownModel { model: cells.model.clone(), lacks },
    })?;
    if cells.ffn.trim().is_empty() {
        assumed.push("width of feed-forward");
    }
    if model.experts.is_some() && cells.topk.trim().is_empty() {
        assumed.push("experts of a token");
    }
    Ok(by_weights(model, cells))
}

fn named(cells: &Cells) -> Option<Model> {
    // Two papers have models of their own by names that others use too.
    let own = match () {
        () if cells.source.contains("MegaScale") => " (MegaScale)",
        () if cells.source.contains("Megatron-LM images") => " (Megatron-LM 2024)",
        () => "",
    };
    builtin::named(&format!("{}{own}", cells.model)).map(builtin::Record::model)
}

/// Whether nothing that the row says is against a known shape.
fn fits(model: &Model, cells: &Cells) -> bool {
    let is = |cell: &str, known: u32| count(cell).is_none_or(|said| said == known);
    is(&cells.layers, model.layers)
        && is(&cells.hidden, model.hidden)
        // Vocabularies are rounded up.
        && count(&cells.vocab).is_none_or(|vocab| vocab.abs_diff(model.vocab) < 2048)
}

/// A shape as the row says it, or what it lacks.
fn by_numbers(cells: &Cells) -> Result<Model, ShapeError> {
    let within = |cell: &str| count(cell).filter(|count| *count <= MOST);
    let shape = (within(&cells.layers), within(&cells.hidden), within(&cells.heads));
    let (Some(layers), Some(hidden), Some(heads)) = shape else {
        return Err(ShapeError::Shape);
    };
    if heads > hidden {
        return Err(ShapeError::Heads { heads, hidden });
    }
    let kv_heads = within(&cells.kv_heads).ok_or(ShapeError::KvHeads)?;
    let ffn = within(&cells.ffn).unwrap_or(4 * hidden);
    let vocab = within(&cells.vocab).ok_or(ShapeError::Vocabulary)?;
    let experts = within(&cells.experts);
    let gated = ffn != 4 * hidden || experts.is_some();
    Ok(Model {
        name: cells.model.clone(),
        layers,
        hidden,
        attention: Attention::Grouped { heads, kv_heads, head_dim: hidden / heads },
        window: Window::NONE,
        ffn,
        gated,
        vocab,
        tied: !gated,
        bias: if gated { Bias::None } else { Bias::All },
        norm: if gated { Norm::Rms } else { Norm::Layer },
        learned_positions: 0,
        experts: experts.map(|experts| Experts {
            count: experts,
            per_token: within(&cells.topk).unwrap_or(1),
            ffn,
            shared_ffn: 0,
            dense_layers: 0,
            every: 1,
        }),
        mtp_layers: 0,
    })
}

/// A row whose layers contradict its weights is believed in its weights.
fn by_weights(mut model: Model, cells: &Cells) -> Model {
    let Some(billions) = number(&cells.params_b).filter(|_| model.experts.is_none()) else {
        return model;
    };
    let parameters = Parameters::of(&model);
    let ends = parameters.embedding + parameters.output;
    let layers = f64::from(model.layers);
    let by_weights = ((billions * 1e9 - ends) / ((parameters.total - ends) / layers)).round();
    let plausible = (1.0..=f64::from(MOST)).contains(&by_weights);
    if plausible && (by_weights / layers - 1.0).abs() > 0.1 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded")]
        {
            model.layers = by_weights as u32;
        }
    }
    model
}

#[cfg(test)]
mod tests {
    use super::super::tests::cells;
    use super::*;

    fn shape(cells: &Cells) -> Result<Model, String> {
        model(cells, &mut Vec::new()).map_err(|err| err.to_string())
    }

    #[test]
    fn a_name_holds_only_for_its_own_shape() {
        assert_eq!(shape(&cells(&[])).unwrap().layers, 32);
        let said = shape(&cells(&[("layers", "16")])).unwrap_err();
        assert!(said.contains("not that of `llama3-8b` (32 blocks, 4096 wide"), "{said}");
        let shallow = [
            ("layers", "16"),
            ("hidden", "4096"),
            ("heads", "32"),
            ("kv_heads", "8"),
            ("ffn", "14336"),
            ("vocab", "128256"),
        ];
        assert_eq!(shape(&cells(&shallow)).unwrap().layers, 16);
    }

    #[test]
    fn shapes_that_are_none_are_refused() {
        let shape = |hidden, heads| {
            shape(&cells(&[
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
    fn weights_are_believed_over_layers() {
        let of = |params_b| {
            shape(&cells(&[
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
        assert_eq!(of("64.8"), 80);
        assert_eq!(of("32.6"), 40);
        assert_eq!(of("1e30"), 40);
    }
}
