//! `farrier simulate show`.

use std::path::PathBuf;

use farrier_sim::{Host, SharedNodeState, SimGpu};
use serde::Serialize;

use crate::cli::Output;
use crate::printer::{Printer, Tone};

/// The node to show.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The simulated node
    dir: PathBuf,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

#[derive(Serialize)]
struct SimulatedNodeJson {
    node: SharedNodeState,
    host: Host,
    gpus: Vec<SimGpu>,
}

pub(crate) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<()> {
    let directory = super::open_node(&args.dir)?;
    let (node, host) = (directory.node()?, directory.host()?);
    let gpus = directory
        .gpu_numbers()?
        .into_iter()
        .map(|number| directory.gpu(number))
        .collect::<Result<Vec<_>, _>>()?;
    if args.output == Output::Json {
        printer.json(&SimulatedNodeJson { node, host, gpus })?;
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
        printer.line(&format!("clock frozen at {now} (Unix milliseconds)"))?;
    }
    for fault in describe_node_faults(&node).into_iter().chain(host.describe_faults()) {
        printer.line(&printer.toned(Tone::Bad, &fault))?;
    }
    printer.line("")?;
    let rows: Vec<Vec<String>> =
        gpus.iter().enumerate().map(|(number, gpu)| row(number, gpu)).collect();
    printer.table(&["gpu", "uuid", "pci", "temp", "power", "busy", "memory"], &rows)?;
    printer.line("")?;
    // These lines are below the table, so that long descriptions are not wrapped in a cell.
    if gpus.iter().all(|gpu| gpu.describe_faults().is_empty()) {
        printer.line(&printer.toned(Tone::Good, "no GPU faults"))?;
    }
    for (number, gpu) in gpus.iter().enumerate() {
        for fault in gpu.describe_faults() {
            printer.line(&printer.toned(Tone::Bad, &format!("GPU {number}: {fault}")))?;
        }
    }
    Ok(())
}

fn describe_node_faults(node: &SharedNodeState) -> Vec<String> {
    let mut faults: Vec<String> = node.faults.iter().map(ToString::to_string).collect();
    if !node.driver_loaded {
        faults.push("the driver is not loaded".to_owned());
    }
    if let Some(version) = &node.replaced_by {
        faults.push(format!("the driver on disk is {version}"));
    }
    faults
}

fn row(number: usize, gpu: &SimGpu) -> Vec<String> {
    vec![
        number.to_string(),
        gpu.uuid.clone(),
        gpu.pci.address(),
        format!("{} C", gpu.temperature.gpu_c),
        format!("{} / {} W", gpu.power.average_mw / 1000, gpu.power.limit_mw / 1000),
        format!("{} %", gpu.utilisation.gpu_percent),
        format!("{} / {} MiB", gpu.used_bytes() >> 20, gpu.memory.total_bytes >> 20),
    ]
}
