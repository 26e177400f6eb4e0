//! `farrier simulate show`.

use std::path::PathBuf;

use farrier_sim::fault::{CallFault, Effect};
use farrier_sim::gpu::Reason;
use farrier_sim::{Gpu, Host, Node};
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
    host: Host,
    gpus: Vec<Gpu>,
}

pub(crate) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<()> {
    let directory = super::existing(&args.dir)?;
    let (node, host) = (directory.node()?, directory.host()?);
    let gpus = directory
        .gpu_numbers()?
        .into_iter()
        .map(|number| directory.gpu(number))
        .collect::<Result<Vec<_>, _>>()?;
    if args.output == Output::Json {
        printer.json(&Shown { node, host, gpus })?;
        return Ok(());
    }
    let [major, minor] = node.cuda;
    printer.line(&format!(
        "{}: {}, driver {} (CUDA {major}.{minor}), kernel {}",
        node.hostname, node.sku, node.driver, node.kernel
    ))?;
    let nics: Vec<&str> = host.nics.iter().map(|nic| nic.name.as_str()).collect();
    if !nics.is_empty() {
        printer.line(&format!("adapters: {}", nics.join(", ")))?;
    }
    if let Some(now) = node.clock_unix_ms {
        printer.line(&format!("the clock stands at {now} ms"))?;
    }
    for words in wrong_with_node(&node).into_iter().chain(host.wrong()) {
        printer.line(&printer.toned(Tone::Bad, &words))?;
    }
    printer.line("")?;
    let rows: Vec<Vec<String>> =
        gpus.iter().enumerate().map(|(number, gpu)| row(number, gpu, printer)).collect();
    printer.table(&["gpu", "uuid", "pci", "temp", "power", "busy", "memory", "wrong"], &rows)?;
    Ok(())
}

fn wrong_with_node(node: &Node) -> Vec<String> {
    let mut wrong: Vec<String> = node.faults.iter().map(call_words).collect();
    if !node.driver_loaded {
        wrong.push("the driver is not loaded".to_owned());
    }
    if let Some(version) = &node.replaced_by {
        wrong.push(format!("the driver on disk is {version}"));
    }
    wrong
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
    for (holds, words) in [
        (gpu.lost && !gpu.gone, "lost"),
        (gpu.gone, "gone from the bus"),
        (!gpu.board.inforom_valid, "InfoROM is not valid"),
        (gpu.ecc.unrepairable_memory, "memory that cannot be repaired"),
        (gpu.ecc.sram_threshold_exceeded, "SRAM errors above the threshold"),
        (gpu.remap.pending, "remap pending"),
        (gpu.remap.failed, "remap failed"),
    ] {
        if holds {
            wrong.push(words.to_owned());
        }
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
        (u64::from(remap.banks.low), "banks with few spare rows"),
        (u64::from(remap.banks.none), "banks without spare rows"),
        (
            gpu.retired_pages
                .as_ref()
                .map_or(0, |pages| (pages.single_bit.len() + pages.double_bit.len()) as u64),
            "pages retired",
        ),
        (u64::from(gpu.pcie.replays), "PCIe replays"),
        (u64::from(gpu.pcie.errors.correctable), "correctable PCIe errors"),
        (u64::from(gpu.pcie.errors.non_fatal), "non-fatal PCIe errors"),
        (u64::from(gpu.pcie.errors.fatal), "fatal PCIe errors"),
    ] {
        if count > 0 {
            wrong.push(format!("{count} {words}"));
        }
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
