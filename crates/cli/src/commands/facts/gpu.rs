//! `farrier facts gpu`

use farrier_facts::FactSet;
use farrier_facts::gpu::Gpu;

use super::{Lookup, print_json, record, unknown};
use crate::cli::Output;
use crate::fact_sets;
use crate::failure::Hinted;
use crate::printer::Printer;

pub(super) fn run(set: &FactSet, lookup: &Lookup, printer: &mut Printer) -> anyhow::Result<()> {
    let gpus: Vec<&Gpu> = match &lookup.name {
        Some(name) => {
            let matched = set.gpus.by_name(name);
            let matched = matched.ok_or_else(|| match set.gpus.other_vendor(name) {
                Some(vendor) => Hinted::error(
                    format!("`{name}` is an accelerator of {}", vendor.name),
                    "Farrier knows NVIDIA GPUs only; `farrier facts gpu` lists them",
                ),
                None => unknown("gpu", name, set.gpus.names()),
            })?;
            if matched.assumed && lookup.output == Output::Table {
                printer.line(&format!("`{name}` is a family; using {}", matched.gpu.id))?;
            }
            vec![matched.gpu]
        }
        None => oldest_first(set),
    };
    if lookup.output == Output::Json {
        return print_json(set, "gpu", &gpus, printer);
    }
    if lookup.name.is_some() {
        for gpu in gpus {
            record::print(&gpu.id, gpu, printer)?;
            let aliases: Vec<&str> = set
                .gpus
                .alias
                .iter()
                .filter(|alias| alias.gpu == gpu.id)
                .flat_map(|alias| alias.names.iter().chain(&alias.family))
                .map(String::as_str)
                .collect();
            if !aliases.is_empty() {
                printer.paragraph("  aliases", record::VALUES_AT, &aliases.join(", "))?;
            }
        }
    } else {
        let headings =
            ["GPU", "Generation", "CC", "Memory", "GB/s", "FP16 TFLOPS", "NVLink GB/s", "W", "MIG"];
        let rows: Vec<Vec<String>> = gpus.iter().map(|gpu| row(gpu)).collect();
        printer.table(&headings, &rows)?;
        printer.line("")?;
        printer.line(
            "* unverified: not confirmed by a source; `farrier facts gpu NAME` shows all sources",
        )?;
    }
    fact_sets::print(&set.set, printer)?;
    Ok(())
}

/// Sorted by generation, in the order of the architecture table.
fn oldest_first(set: &FactSet) -> Vec<&Gpu> {
    let generation =
        |gpu: &&Gpu| set.gpus.architecture.iter().position(|entry| entry.name == gpu.architecture);
    let mut gpus: Vec<&Gpu> = set.gpus.gpu.iter().collect();
    gpus.sort_by_key(generation);
    gpus
}

fn row(gpu: &Gpu) -> Vec<String> {
    let cell = |value: Option<f64>, field: &str| match value {
        Some(value) if gpu.unverified.iter().any(|name| name == field) => format!("{value} *"),
        Some(value) => value.to_string(),
        None => "-".to_owned(),
    };
    let memory = gpu.memory.as_ref();
    vec![
        gpu.id.clone(),
        gpu.architecture.clone(),
        gpu.compute_capability.to_string(),
        memory.map_or_else(
            || "-".to_owned(),
            |memory| format!("{} GB {}", memory.capacity_gb, memory.technology),
        ),
        cell(memory.map(|memory| memory.bandwidth_gb_per_s), "memory.bandwidth_gb_per_s"),
        cell(gpu.compute.as_ref().and_then(|compute| compute.fp16_tflops), "compute.fp16_tflops"),
        cell(gpu.links.as_ref().and_then(|links| links.nvlink_gb_per_s), "links.nvlink_gb_per_s"),
        cell(gpu.power.as_ref().map(|power| power.default_w), "power.default_w"),
        gpu.mig.as_ref().map_or_else(|| "-".to_owned(), |mig| mig.instances_max.to_string()),
    ]
}
