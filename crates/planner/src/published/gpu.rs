//! The GPU that a source names.

use farrier_facts::FactSet;

use super::RowError;
use super::table::number;
use crate::gpu::Accelerator;

/// Resolves a GPU name with annotations: `H100-SXM-96GB-HBM2e(2.4TB/s,500W)`.
pub(super) fn accelerator(facts: &FactSet, name: &str) -> Result<Accelerator, RowError> {
    let (plain, annotations) = name.split_once('(').unwrap_or((name, ""));
    // Some clouds sell an H100 with HBM2e and 500 W, which the facts do not list. Other SKUs with
    // HBM2e have their own names.
    let is_hbm2e_h100 = plain.starts_with("H100-SXM") && plain.contains("HBM2e");
    let is_h800 = plain.starts_with("H800");
    let sku = if is_hbm2e_h100 || is_h800 { "H100-SXM-80GB" } else { plain };
    let mut gpu = Accelerator::by_name(facts, sku)?;
    let default_w = || {
        let power = facts.gpus.by_name(sku).and_then(|found| found.gpu.power.as_ref());
        let power = power.ok_or_else(|| RowError::Power(sku.to_owned()));
        power.map(|power| power.default_w)
    };
    if is_h800 {
        gpu.link_bytes_per_s = 200e9;
    }
    if is_hbm2e_h100 {
        gpu.hbm_bytes = if plain.contains("94GB") { 94e9 } else { 96e9 };
        gpu.hbm_bytes_per_s = 2.4e12;
        gpu.power_share = 500.0 / default_w()?;
    }
    for annotation in annotations.trim_end_matches(')').split(',') {
        if let Some(watts) = annotation.trim().strip_suffix('W').and_then(number) {
            gpu.power_share = watts / default_w()?;
        }
    }
    Ok(gpu)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(name: &str) -> Result<Accelerator, RowError> {
        accelerator(FactSet::embedded(), name)
    }

    #[test]
    fn watts_become_a_share_of_the_default_power() {
        let share = |name: &str| gpu(name).unwrap().power_share;
        assert!((share("H100-SXM-80GB(700W)") - 1.0).abs() < 1e-9);
        assert!((share("H100-SXM-80GB(8x, 350W)") - 0.5).abs() < 1e-9);
        assert!((share("A100-SXM-80GB(400W)") - 1.0).abs() < 1e-9);
        assert!((share("H100-SXM-96GB-HBM2e(2.4TB/s,500W)") - 5.0 / 7.0).abs() < 1e-9);
        assert!((share("H100-SXM-94GB-HBM2e") - 5.0 / 7.0).abs() < 1e-9);
    }

    #[test]
    fn hbm2e_alone_does_not_make_an_h100() {
        for other in ["A100-SXM4-80GB-HBM2e", "A100-SXM-80GB-HBM2e", "H100-PCIE-80GB-HBM2e"] {
            match gpu(other) {
                Ok(gpu) => assert!(!gpu.id.starts_with("H100-SXM"), "{other} is {}", gpu.id),
                Err(err) => assert!(err.to_string().contains(other), "{err}"),
            }
        }
        let hbm2e = gpu("H100-SXM-94GB-HBM2e").unwrap();
        assert!((hbm2e.hbm_bytes - 94e9).abs() < 1.0);
        assert!(hbm2e.id.starts_with("H100"));
    }
}
