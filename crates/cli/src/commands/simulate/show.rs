//! `farrier simulate show`.

use std::path::PathBuf;

use farrier_sim::fault::{CallFault, Effect};
use farrier_sim::gpu::Reason;
use farrier_sim::{Gpu, Node};
use serde::Serialize;

use crate::cli::Output;
use crate::printer::{Printer, Tone};

/// The node to show.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The simulated node
    dir: PathBuf,
    /// How to print the answer
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

#[derive(Serialize)]
struct Shown {
    node: Node,
    gpus: Vec<Gpu>,
}

pub(crate) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<()> {
    let directory = super::existing(&args.dir)?;
    let node = directory.node()?;
    let gpus = directory
        .gpu_numbers()?
        .into_iter()
        .map(|number| directory.gpu(number))
        .collect::<Result<Vec<_>, _>>()?;
    if args.output == Output::Json {
        printer.json(&Shown { node, gpus })?;
        return Ok(());
    }
    let [major, minor] = node.cuda;
    printer.line(&format!(
        "{}: {}, driver {} (CUDA {major}.{minor}), kernel {}",
        node.hostname, node.sku, node.driver, node.kernel
    ))?;
    for fault in &node.faults {
        printer.line(&printer.toned(Tone::Bad, &call_words(fault)))?;
    }
    printer.line("")?;
    let rows: Vec<Vec<String>> =
        gpus.iter().enumerate().map(|(number, gpu)| row(number, gpu, printer)).collect();
    printer.table(&["gpu", "uuid", "pci", "temp", "power", "busy", "memory", "wrong"], &rows)?;
    Ok(())
}

fn row(number: usize, gpu: &Gpu, printer: &Printer) -> Vec<String> {
    let wrong = wrong(gpu);
    let tone = if wrong.is_empty() { Tone::Good } else { Tone::Bad };
    let wrong = if wrong.is_empty() { "nothing".to_owned() } else { wrong.join("; ") };
    vec![
        number.to_string(),
        gpu.uuid.clone(),
        gpu.pci.address(),
        format!("{} C", gpu.temperature.gpu_c),
        format!("{} / {} W", gpu.power.average_mw / 1000, gpu.power.limit_mw / 1000),
        format!("{} %", gpu.utilisation.gpu_percent),
        format!("{} / {} MiB", gpu.used_bytes() >> 20, gpu.memory.total_bytes >> 20),
        printer.toned(tone, &wrong),
    ]
}

/// What is wrong with a GPU, in words.
fn wrong(gpu: &Gpu) -> Vec<String> {
    let mut wrong = Vec::new();
    if gpu.lost {
        wrong.push("lost".to_owned());
    }
    if gpu.recovery_action != 0 {
        wrong.push(format!("recovery action {}", gpu.recovery_action));
    }
    if let Some(event) = gpu.events.last() {
        wrong.push(format!("{} events, the last {}", gpu.events.len(), event.data));
    }
    let (volatile, remap) = (&gpu.ecc.volatile, &gpu.remap);
    for (count, words) in [
        (volatile.corrected(), "corrected memory errors"),
        (volatile.uncorrected(), "uncorrected memory errors"),
        (u64::from(remap.corrected_rows) + u64::from(remap.uncorrected_rows), "rows remapped"),
    ] {
        if count > 0 {
            wrong.push(format!("{count} {words}"));
        }
    }
    if remap.pending {
        wrong.push("remap pending".to_owned());
    }
    if remap.failed {
        wrong.push("remap failed".to_owned());
    }
    let held = gpu.clock_events.reasons.iter().filter(|reason| **reason != Reason::GpuIdle);
    wrong.extend(held.map(|reason| format!("clocks held: {reason:?}")));
    let down: Vec<String> = (0_usize..)
        .zip(&gpu.nvlink.links)
        .filter(|(_, link)| !link.active && link.remote != farrier_sim::gpu::Remote::Unknown)
        .map(|(number, _)| number.to_string())
        .collect();
    if !down.is_empty() {
        wrong.push(format!("NVLink down: {}", down.join(", ")));
    }
    if (gpu.pcie.generation, gpu.pcie.width) != (gpu.pcie.max_generation, gpu.pcie.max_width) {
        wrong.push(format!("PCIe {} x{}", gpu.pcie.generation, gpu.pcie.width));
    }
    wrong.extend(gpu.faults.iter().map(call_words));
    wrong
}

fn call_words(fault: &CallFault) -> String {
    match fault.effect {
        Effect::Error(code) => format!("{} returns {code}", fault.call),
        Effect::HangMs(milliseconds) => format!("{} hangs for {milliseconds} ms", fault.call),
        Effect::HangForever => format!("{} hangs for ever", fault.call),
    }
}
