//! Values that a simulated GPU reports and that no decision depends on: memory to the mebibyte,
//! clocks and part numbers, from `data/gpus/devices.toml`.

use farrier_facts::FactSet;
use farrier_facts::gpu::{FormFactor, Gpu, GpuDevice, GpuLinks};

/// The record of a GPU model. For a model without a record, memory, power and links come from its
/// facts, and everything else comes from the record for all other models.
pub(crate) fn device(facts: &FactSet, gpu: &Gpu) -> GpuDevice {
    let of_gpu = |device: &&GpuDevice| device.gpu.as_ref() == Some(&gpu.id);
    let device = match facts.gpus.device.iter().find(of_gpu) {
        Some(device) => device.clone(),
        None => from_facts(gpu, other_models(facts)),
    };
    let (graphics, memory) = facts.gpus.highest_clocks_mhz(&gpu.id, &device).unzip();
    GpuDevice { max_graphics_mhz: graphics, max_memory_mhz: memory, ..device }
}

/// The record for all models that have no record of their own. Older fact sets do not have this
/// record.
fn other_models(facts: &FactSet) -> GpuDevice {
    let mut devices = facts.gpus.device.iter().chain(&FactSet::embedded().gpus.device);
    let found = devices.find(|device| device.gpu.is_none());
    found.expect("the embedded set has a record for all others").clone()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "gigabytes, watts and link rates of the facts are small and positive"
)]
fn from_facts(gpu: &Gpu, other: GpuDevice) -> GpuDevice {
    // A vendor's gigabytes are nearly gibibytes. The difference is the memory reserved for ECC and
    // firmware.
    let memory_mib =
        gpu.memory.as_ref().map_or(16_384, |memory| (memory.capacity_gb * 1019.0) as u64);
    let rate = |links: &GpuLinks| links.nvlink_gb_per_s.zip(links.nvlink_generation);
    let (links, link_mb_per_s) = match gpu.links.as_ref().and_then(rate) {
        None => (0, 0),
        Some((all, generation)) => {
            // Bidirectional bandwidth of one link in GB/s, by NVLink generation.
            let one = match generation {
                1 => 40.0,
                2..=4 => 50.0,
                _ => 100.0,
            };
            ((all / one) as u32, (one * 1000.0 / 2.0) as u32)
        }
    };
    let switches = if gpu.form_factor == FormFactor::Sxm { 4 } else { 0 };
    let min_power_w =
        gpu.power.as_ref().map_or(100, |power| power.min_w.unwrap_or(power.default_w / 3.0) as u32);
    GpuDevice { memory_mib, min_power_w, links, link_mb_per_s, switches, ..other }
}
