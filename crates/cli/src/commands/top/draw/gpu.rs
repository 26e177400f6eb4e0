//! The page of one GPU: large graphs, all readings, its findings and processes.

use farrier_facts::node::Reading;
use farrier_fleet::health::{GpuUuid, Signal};
use jiff::Timestamp;

use super::frame::{Frame, Style};
use super::{format, gpu_table, node, outage, processes, sparkline};
use crate::commands::top::freshness::{STALE_MARK, Shown};
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
    row += node::waiting(frame, row, node, now);
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
    row = graphs(frame, row, below, gpu, history.gpu(uuid), now);
    row = axis(frame, row, below, history, now);
    row = readings(frame, row, below, gpu, now);
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
    let area = (row, below.saturating_sub(row));
    processes::draw(frame, area, node, &processes, (false, now), empty);
}

fn graphs(
    frame: &mut Frame,
    mut row: usize,
    below: usize,
    gpu: &GpuSample,
    past: Option<&GpuHistory>,
    now: Timestamp,
) -> usize {
    let room = below.saturating_sub(row);
    // Readings and processes need about eleven rows. The graphs get the remaining rows.
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
        let (style, value) = marked(gpu, metric.shown(gpu), (Style::Strong, value), now);
        frame.text(row, 0, label_width, Style::Plain, name);
        frame.right(row, 0, label_width, style, &value);
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

/// Dims and marks a stale value.
fn marked(
    gpu: &GpuSample,
    shown: Shown,
    (style, value): (Style, String),
    now: Timestamp,
) -> (Style, String) {
    match gpu.stale_age(shown, now) {
        Some(_) => (Style::Dim, format!("{STALE_MARK}{value}")),
        None => (style, value),
    }
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
fn readings(frame: &mut Frame, row: usize, below: usize, gpu: &GpuSample, now: Timestamp) -> usize {
    let cells = cells(gpu);
    let width = 26;
    let across = (frame.width() / width).max(1);
    let rows = cells.len().div_ceil(across).min(below.saturating_sub(row).saturating_sub(2));
    for (index, (name, shown, value)) in cells.into_iter().take(rows * across).enumerate() {
        let (line, column) = (row + index / across, index % across * width);
        frame.text(line, column, 14, Style::Dim, name);
        let (style, value) = marked(gpu, shown, (Style::Plain, value), now);
        frame.right(line, column + 13, 11, style, &value);
    }
    row + rows
}

/// Name, what is shown, and its text.
type ValueCell = (&'static str, Shown, String);

fn cells(gpu: &GpuSample) -> Vec<ValueCell> {
    [clocks_and_temperatures(gpu), activity(gpu), links(gpu), memory_and_fan(gpu), settings(gpu)]
        .concat()
}

/// A number of one signal.
fn plain(gpu: &GpuSample, name: &'static str, signal: &'static [Signal], unit: &str) -> ValueCell {
    (name, Shown::Signals(signal), format::number(gpu.reading(signal[0]), 1.0, unit))
}

/// A share of one signal.
fn percent(gpu: &GpuSample, name: &'static str, signal: &'static [Signal]) -> ValueCell {
    (name, Shown::Signals(signal), format::percent(gpu.reading(signal[0])))
}

/// A signal that is on or off.
fn flag(gpu: &GpuSample, name: &'static str, signal: &'static [Signal]) -> ValueCell {
    let text = format::shown(gpu.reading(signal[0]), |value| on_or_off(*value > 0.0));
    (name, Shown::Signals(signal), text)
}

/// A signal and its maximum.
fn of_max(gpu: &GpuSample, name: &'static str, signals: &'static [Signal]) -> ValueCell {
    let number = |signal: &Signal| format::number(gpu.reading(*signal), 1.0, "");
    let values: Vec<String> = signals.iter().map(number).collect();
    (name, Shown::Signals(signals), values.join("/"))
}

fn on_or_off(is_on: bool) -> String {
    (if is_on { "on" } else { "off" }).to_owned()
}

fn clocks_and_temperatures(gpu: &GpuSample) -> Vec<ValueCell> {
    vec![
        plain(gpu, "temperature", &[Signal::GpuTemperature], " °C"),
        plain(gpu, "memory °C", &[Signal::GpuMemoryTemperature], " °C"),
        plain(gpu, "margin", &[Signal::GpuTemperatureMargin], " °C"),
        of_max(gpu, "SM MHz", &[Signal::GpuClockSm, Signal::GpuClockSmMax]),
        of_max(gpu, "memory MHz", &[Signal::GpuClockMemory, Signal::GpuClockMemoryMax]),
        (
            "state",
            Shown::Details,
            format::shown(&gpu.performance_state, |state| format!("P{state}")),
        ),
    ]
}

fn activity(gpu: &GpuSample) -> Vec<ValueCell> {
    vec![
        percent(gpu, "utilisation", &[Signal::GpuUtilisation]),
        percent(gpu, "SM active", &[Signal::GpuSmActive]),
        percent(gpu, "occupancy", &[Signal::GpuSmOccupancy]),
        percent(gpu, "tensor", &[Signal::GpuTensorActive]),
        percent(gpu, "HBM in use", &[Signal::GpuDramActive]),
        percent(gpu, "memory copy", &[Signal::GpuMemoryCopy]),
        percent(gpu, "encoder", &[Signal::GpuEncoder]),
        percent(gpu, "decoder", &[Signal::GpuDecoder]),
    ]
}

fn links(gpu: &GpuSample) -> Vec<ValueCell> {
    let (generation, width) = (Signal::GpuPcieGeneration, Signal::GpuPcieWidth);
    let links = match (gpu.links.up, gpu.links.down) {
        (0, 0) if !gpu.links.is_known => "?".to_owned(),
        (0, 0) => "-".to_owned(),
        (up, 0) => format!("{up} up"),
        (up, down) => format!("{up} up {down} down"),
    };
    vec![
        (
            "PCIe",
            Shown::Signals(&[Signal::GpuPcieGeneration, Signal::GpuPcieWidth]),
            pcie(gpu.reading(generation), gpu.reading(width)),
        ),
        plain(gpu, "PCIe replays", &[Signal::GpuPcieReplays], ""),
        ("NVLinks", Shown::Links, links),
    ]
}

fn memory_and_fan(gpu: &GpuSample) -> Vec<ValueCell> {
    vec![
        ("fan", Shown::Details, format::shown(&gpu.fan_percent, |fan| format!("{fan}%"))),
        flag(gpu, "ECC", &[Signal::GpuEccEnabled]),
        plain(gpu, "ECC corrected", &[Signal::GpuEccCorrected], ""),
        plain(gpu, "uncorrected", &[Signal::GpuEccUncorrected], ""),
        plain(gpu, "rows remapped", &[Signal::GpuRowsUncorrected], ""),
    ]
}

fn settings(gpu: &GpuSample) -> Vec<ValueCell> {
    vec![
        flag(gpu, "persistence", &[Signal::GpuPersistence]),
        flag(gpu, "MIG", &[Signal::GpuMigEnabled]),
        (
            "compute mode",
            Shown::Details,
            format::shown(&gpu.compute_mode, |mode| compute_mode(*mode)),
        ),
        ("display", Shown::Details, format::shown(&gpu.display, |active| on_or_off(*active > 0))),
        plain(gpu, "default power", &[Signal::GpuPowerLimitDefault], " W"),
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
