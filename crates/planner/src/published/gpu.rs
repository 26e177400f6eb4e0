//! The part that a source means.

use farrier_facts::FactSet;

use super::RowError;
use super::cells::number;
use crate::gpu::Accelerator;

/// The part that a source means, with what it says of it: `H100-SXM-96GB-HBM2e(2.4TB/s,500W)`.
pub(super) fn accelerator(facts: &FactSet, name: &str) -> Result<Accelerator, RowError> {
    let (plain, said) = name.split_once('(').unwrap_or((name, ""));
    // Sold to some clouds with the memory of the generation before, and 500 W; the facts have no
    // such part. Parts of other kinds have that memory by their own names.
    let lesser = plain.starts_with("H100-SXM") && plain.contains("HBM2e");
    let cut = plain.starts_with("H800");
    let known = if lesser || cut { "H100-SXM-80GB" } else { plain };
    let mut gpu = Accelerator::named(facts, known)?;
    let default_w = || {
        let power = facts.gpus.by_name(known).and_then(|found| found.gpu.power.as_ref());
        let power = power.ok_or_else(|| RowError::Power(known.to_owned()));
        power.map(|power| power.default_w)
    };
    if cut {
        gpu.link_bytes_per_s = 200e9;
    }
    if lesser {
        gpu.hbm_bytes = if plain.contains("94GB") { 94e9 } else { 96e9 };
        gpu.hbm_bytes_per_s = 2.4e12;
        gpu.power_share = 500.0 / default_w()?;
    }
    for said in said.trim_end_matches(')').split(',') {
        if let Some(watts) = said.trim().strip_suffix('W').and_then(number) {
            gpu.power_share = watts / default_w()?;
        }
    }
    Ok(gpu)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(name: &str) -> Result<Accelerator, RowError> {
        accelerator(FactSet::embedded(), name)
    }

    #[test]
    fn watts_are_a_share_of_the_part_s_own() {
        let share = |name: &str| part(name).unwrap().power_share;
        assert!((share("H100-SXM-80GB(700W)") - 1.0).abs() < 1e-9);
        assert!((share("H100-SXM-80GB(8x, 350W)") - 0.5).abs() < 1e-9);
        assert!((share("A100-SXM-80GB(400W)") - 1.0).abs() < 1e-9);
        assert!((share("H100-SXM-96GB-HBM2e(2.4TB/s,500W)") - 5.0 / 7.0).abs() < 1e-9);
        assert!((share("H100-SXM-94GB-HBM2e") - 5.0 / 7.0).abs() < 1e-9);
    }

    #[test]
    fn older_memory_alone_does_not_make_an_h100() {
        for other in ["A100-SXM4-80GB-HBM2e", "A100-SXM-80GB-HBM2e", "H100-PCIE-80GB-HBM2e"] {
            match part(other) {
                Ok(gpu) => assert!(!gpu.id.starts_with("H100-SXM"), "{other} is {}", gpu.id),
                Err(said) => assert!(said.to_string().contains(other), "{said}"),
            }
        }
        let lesser = part("H100-SXM-94GB-HBM2e").unwrap();
        assert!((lesser.hbm_bytes - 94e9).abs() < 1.0);
        assert!(lesser.id.starts_with("H100"));
    }
}
