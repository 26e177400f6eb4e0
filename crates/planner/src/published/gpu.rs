//! The GPU that a source names.

use std::sync::LazyLock;

use farrier_facts::FactSet;
use farrier_facts::origin::Origin;
use serde::Deserialize;

use super::RowError;
use super::table::number;
use crate::gpu::Accelerator;

/// A GPU that counts as a variant of another SKU, from `data/planner/gpu_variants.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GpuVariant {
    names: Vec<String>,
    /// The SKU that it is a variant of.
    gpu: String,
    capacity_gb: Option<f64>,
    bandwidth_gb_per_s: Option<f64>,
    power_w: Option<f64>,
    /// All links, both directions together.
    nvlink_gb_per_s: Option<f64>,
    #[expect(dead_code, reason = "for people who read the file")]
    origin: Origin,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GpuVariants {
    variant: Vec<GpuVariant>,
}

static VARIANTS: LazyLock<GpuVariants> = LazyLock::new(|| {
    let json = include_str!(concat!(env!("OUT_DIR"), "/gpu_variants.json"));
    serde_json::from_str(json).expect("a test parses the embedded variants")
});

/// Resolves a GPU name with annotations: `H100-SXM-96GB-HBM2e(2.4TB/s,500W)`.
pub(super) fn accelerator(facts: &FactSet, name: &str) -> Result<Accelerator, RowError> {
    let (plain, annotations) = name.split_once('(').unwrap_or((name, ""));
    let is_named = |variant: &&GpuVariant| variant.names.iter().any(|name| name == plain);
    let variant = VARIANTS.variant.iter().find(is_named);
    let sku = variant.map_or(plain, |variant| variant.gpu.as_str());
    let mut gpu = Accelerator::by_name(facts, sku)?;
    let default_w = || {
        let power = facts.gpus.by_name(sku).and_then(|found| found.gpu.power.as_ref());
        let power = power.ok_or_else(|| RowError::Power(sku.to_owned()));
        power.map(|power| power.default_w)
    };
    if let Some(variant) = variant {
        let or = |own: Option<f64>, factor, sku| own.map_or(sku, |own| own * factor);
        gpu.hbm_bytes = or(variant.capacity_gb, 1e9, gpu.hbm_bytes);
        gpu.hbm_bytes_per_s = or(variant.bandwidth_gb_per_s, 1e9, gpu.hbm_bytes_per_s);
        gpu.link_bytes_per_s = or(variant.nvlink_gb_per_s, 0.5e9, gpu.link_bytes_per_s);
        if let Some(power_w) = variant.power_w {
            gpu.power_share = power_w / default_w()?;
        }
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
    fn an_export_variant_differs_only_in_its_links() {
        let (h800, h100) = (gpu("H800-SXM-80GB").unwrap(), gpu("H100-SXM-80GB").unwrap());
        assert_eq!(h800, Accelerator { link_bytes_per_s: 200e9, ..h100 });
    }

    #[test]
    fn every_variant_is_of_a_sku_that_can_be_planned_with() {
        for variant in &VARIANTS.variant {
            let sku = Accelerator::by_name(FactSet::embedded(), &variant.gpu).unwrap();
            assert!(variant.names.iter().all(|name| gpu(name).unwrap() != sku), "{variant:?}");
        }
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
