//! The page of one GPU: large graphs, all readings, its findings and processes.

use farrier_facts::node::Reading;
use farrier_fleet::health::{GpuUuid, Signal};
use jiff::Timestamp;

use super::frame::{Frame, Style};
use super::{format, gpu_table, node, outage, processes, sparkline};
use crate::commands::top::history::{GpuHistory, Metric, NodeHistory};
use crate::commands::top::sample::{FindingSample, GpuSample, NodeSample, ProcessSample};
use crate::commands::top::view_state::ViewState;

pub(super) fn draw(
    frame: &mut Frame,
    node: &NodeSample,
    history: &NodeHistory,
    uuid: &GpuUuid,
    state: &ViewState,
    now: Timestamp,
) {
    let mut row = node::header(frame, node, now);
    row += outage(frame, row, node.outage.as_ref(), now);
    let below = frame.height().saturating_sub(1);
    let Some(gpu) = node.gpus.iter().find(|gpu| gpu.identity.uuid == *uuid) else {
        frame.text(row, 0, usize::MAX, Style::Bad, &format!("{uuid} is no longer listed"));
        return;
    };
    let identity = &gpu.identity;
    let pci = identity.pci.as_deref().unwrap_or("?");
    let title = format!("GPU {}  {}  {pci}  {uuid}", identity.index, gpu_table::short_name(gpu));
    frame.text(row, 0, usize::MAX, Style::Strong, &title);
    let at = frame.text(row + 1, 0, usize::MAX, Style::Plain, "limited by ");
    let at =
        frame.text(row + 1, at, usize::MAX, gpu.limit.kind.tone().into(), gpu.limit.kind.label());
    frame.text(row + 1, at, usize::MAX, Style::Plain, &format!(": {}", gpu.limit.text));
    row += 2;
    row = graphs(frame, row, below, gpu, history.gpu(uuid));
    row = axis(frame, row, below, history, now);
    row = readings(frame, row, below, gpu);
    let own: Vec<FindingSample> = node
        .findings
        .iter()
        .flatten()
        .filter(|finding| finding.gpu.as_ref() == Some(uuid))
        .cloned()
        .collect();
    let room = below.saturating_sub(row) / 2;
    if !own.is_empty() && room > 0 {
        row = node::draw_findings(frame, row, room, &own, now);
    }
    let processes: Vec<&ProcessSample> =
        state.processes(node).into_iter().filter(|process| process.gpu == *uuid).collect();
    let is_in_use = node.processes.iter().flatten().any(|process| process.gpu == *uuid);
    let empty = if is_in_use { "no process matches the filter" } else { "no process uses it" };
    processes::draw(frame, (row, below.saturating_sub(row)), node, &processes, false, empty);
}

fn graphs(
    frame: &mut Frame,
    mut row: usize,
    below: usize,
    gpu: &GpuSample,
    past: Option<&GpuHistory>,
) -> usize {
    let room = below.saturating_sub(row);
    // Readings and processes need about eleven rows. The graphs get the rest.
    let graph_rows = match room {
        0..=8 => return row,
        9..=22 => 1,
        23..=30 => 2,
        31..=40 => 3,
        _ => 4,
    };
    let label_width = label_width(frame.width());
    let width = frame.width().saturating_sub(label_width + 1);
    for metric in Metric::ALL {
        let points = past.map(|past| past.last(metric, width)).unwrap_or_default();
        let full = metric.full_scale(gpu).or_else(|| past?.max(metric)).unwrap_or(0.0);
        let (name, value) = labelled(metric, gpu);
        frame.text(row, 0, label_width, Style::Plain, name);
        frame.right(row, 0, label_width, Style::Strong, &value);
        for line in sparkline::graph(&points, full, width, graph_rows) {
            frame.text(row, label_width + 1, width, Style::Good, &line);
            row += 1;
        }
    }
    row
}

/// Draws the time axis of the graphs, if there is space.
fn axis(
    frame: &mut Frame,
    row: usize,
    below: usize,
    history: &NodeHistory,
    now: Timestamp,
) -> usize {
    let label_width = label_width(frame.width());
    let width = frame.width().saturating_sub(label_width + 1);
    let Some(since) = history.since(width).filter(|_| below.saturating_sub(row) >= 12) else {
        return row;
    };
    frame.right(row, 0, label_width, Style::Dim, &format!("{} ago", format::ago(since, now)));
    let line = format!("{:─>width$}", " now");
    frame.text(row, label_width + 1, width, Style::Dim, &line);
    row + 1
}

/// Width of the name and value before a graph.
fn label_width(width: usize) -> usize {
    22.min(width / 2)
}

fn labelled(metric: Metric, gpu: &GpuSample) -> (&'static str, String) {
    let reading = |signal| gpu.reading(signal);
    match metric {
        Metric::Power => {
            ("power", format::power(reading(Signal::GpuPower), reading(Signal::GpuPowerLimit)))
        }
        Metric::Busy => ("SM", format::percent(gpu.busy())),
        Metric::Memory => {
            let (used, total) = (Signal::GpuMemoryUsed, Signal::GpuMemoryTotal);
            ("memory", format::of_total(reading(used), reading(total)))
        }
        Metric::Nvlink => {
            ("NVLink", both_directions(gpu, Signal::GpuNvlinkTransmit, Signal::GpuNvlinkReceive))
        }
        Metric::Pcie => {
            ("PCIe", both_directions(gpu, Signal::GpuPcieTransmit, Signal::GpuPcieReceive))
        }
    }
}

fn both_directions(gpu: &GpuSample, transmit: Signal, receive: Signal) -> String {
    let (transmit, receive) = (gpu.reading(transmit), gpu.reading(receive));
    format!("↑{} ↓{}", format::rate(transmit), format::rate(receive))
}

/// Draws names and values in as many columns as fit.
fn readings(frame: &mut Frame, row: usize, below: usize, gpu: &GpuSample) -> usize {
    let pairs = pairs(gpu);
    let cell = 26;
    let across = (frame.width() / cell).max(1);
    let rows = pairs.len().div_ceil(across).min(below.saturating_sub(row).saturating_sub(2));
    for (index, (name, value)) in pairs.iter().take(rows * across).enumerate() {
        let (line, column) = (row + index / across, index % across * cell);
        frame.text(line, column, 14, Style::Dim, name);
        frame.right(line, column + 13, 11, Style::Plain, value);
    }
    row + rows
}

fn pairs(gpu: &GpuSample) -> Vec<(&'static str, String)> {
    let plain = |signal, unit: &str| format::number(gpu.reading(signal), 1.0, unit);
    let percent = |signal| format::percent(gpu.reading(signal));
    let flag = |signal| {
        format::shown(gpu.reading(signal), |value| {
            (if *value > 0.0 { "on" } else { "off" }).to_owned()
        })
    };
    let of_max = |now, max, unit: &str| {
        let max = format::number(gpu.reading(max), 1.0, unit);
        format!("{}/{max}", format::number(gpu.reading(now), 1.0, ""))
    };
    let margin = plain(Signal::GpuTemperatureMargin, " °C");
    let (generation, width) = (Signal::GpuPcieGeneration, Signal::GpuPcieWidth);
    let links = match (gpu.links.up, gpu.links.down) {
        (0, 0) if !gpu.links.is_known => "?".to_owned(),
        (0, 0) => "-".to_owned(),
        (up, 0) => format!("{up} up"),
        (up, down) => format!("{up} up {down} down"),
    };
    vec![
        ("temperature", plain(Signal::GpuTemperature, " °C")),
        ("memory °C", plain(Signal::GpuMemoryTemperature, " °C")),
        ("margin", margin),
        ("SM MHz", of_max(Signal::GpuClockSm, Signal::GpuClockSmMax, "")),
        ("memory MHz", of_max(Signal::GpuClockMemory, Signal::GpuClockMemoryMax, "")),
        ("state", format::shown(&gpu.performance_state, |state| format!("P{state}"))),
        ("utilisation", percent(Signal::GpuUtilisation)),
        ("SM active", percent(Signal::GpuSmActive)),
        ("occupancy", percent(Signal::GpuSmOccupancy)),
        ("tensor", percent(Signal::GpuTensorActive)),
        ("HBM in use", percent(Signal::GpuDramActive)),
        ("memory copy", percent(Signal::GpuMemoryCopy)),
        ("encoder", percent(Signal::GpuEncoder)),
        ("decoder", percent(Signal::GpuDecoder)),
        ("PCIe", pcie(gpu.reading(generation), gpu.reading(width))),
        ("PCIe replays", plain(Signal::GpuPcieReplays, "")),
        ("NVLinks", links),
        ("fan", format::shown(&gpu.fan_percent, |fan| format!("{fan}%"))),
        ("ECC", flag(Signal::GpuEccEnabled)),
        ("ECC corrected", plain(Signal::GpuEccCorrected, "")),
        ("uncorrected", plain(Signal::GpuEccUncorrected, "")),
        ("rows remapped", plain(Signal::GpuRowsUncorrected, "")),
        ("persistence", flag(Signal::GpuPersistence)),
        ("MIG", flag(Signal::GpuMigEnabled)),
        ("compute mode", format::shown(&gpu.compute_mode, |mode| compute_mode(*mode))),
        (
            "display",
            format::shown(&gpu.display, |active| {
                (if *active > 0 { "on" } else { "off" }).to_owned()
            }),
        ),
        ("default power", plain(Signal::GpuPowerLimitDefault, " W")),
    ]
}

fn pcie(generation: &Reading<f64>, width: &Reading<f64>) -> String {
    let generation = format::number(generation, 1.0, "");
    format!("gen {generation} x{}", format::number(width, 1.0, ""))
}

/// `nvmlComputeMode_t`.
fn compute_mode(mode: u32) -> String {
    match mode {
        0 => "default".to_owned(),
        2 => "prohibited".to_owned(),
        3 => "exclusive".to_owned(),
        other => other.to_string(),
    }
}
