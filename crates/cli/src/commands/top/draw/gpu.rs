//! One GPU: its lines, large; all that is read of it; what was found, who holds it.

use farrier_facts::node::Reading;
use farrier_fleet::health::{GpuUuid, Signal};
use jiff::Timestamp;

use super::frame::{Frame, Style};
use super::{node, processes, silence, spark, table, words};
use crate::commands::top::history::{History, Metric, Past};
use crate::commands::top::now::{FindingNow, GpuNow, NodeNow, ProcessNow};
use crate::commands::top::screen::Screen;

pub(super) fn draw(
    frame: &mut Frame,
    node: &NodeNow,
    history: &History,
    uuid: &GpuUuid,
    screen: &Screen,
    now: Timestamp,
) {
    let mut row = node::header(frame, node, now);
    row += silence(frame, row, node.silence.as_ref(), now);
    let below = frame.height().saturating_sub(1);
    let Some(gpu) = node.gpus.iter().find(|gpu| gpu.identity.uuid == *uuid) else {
        frame.text(row, 0, usize::MAX, Style::Bad, &format!("{uuid} is no longer listed"));
        return;
    };
    let identity = &gpu.identity;
    let pci = identity.pci.as_deref().unwrap_or("?");
    let title = format!("GPU {}  {}  {pci}  {uuid}", identity.index, table::short_name(gpu));
    frame.text(row, 0, usize::MAX, Style::Strong, &title);
    let at = frame.text(row + 1, 0, usize::MAX, Style::Plain, "limited by ");
    let at =
        frame.text(row + 1, at, usize::MAX, gpu.limit.kind.tone().into(), gpu.limit.kind.word());
    frame.text(row + 1, at, usize::MAX, Style::Plain, &format!(": {}", gpu.limit.text));
    row += 2;
    row = graphs(frame, row, below, gpu, history.of(uuid));
    row = axis(frame, row, below, history, now);
    row = readings(frame, row, below, gpu);
    let own: Vec<FindingNow> = node
        .findings
        .iter()
        .flatten()
        .filter(|finding| finding.gpu.as_ref() == Some(uuid))
        .cloned()
        .collect();
    let room = below.saturating_sub(row) / 2;
    if !own.is_empty() && room > 0 {
        row = node::list(frame, row, room, &own, now);
    }
    let holders: Vec<&ProcessNow> =
        screen.processes(node).into_iter().filter(|it| it.gpu == *uuid).collect();
    let is_held = node.processes.iter().flatten().any(|it| it.gpu == *uuid);
    let empty = if is_held { "no process is like that" } else { "no process holds it" };
    processes::draw(frame, (row, below.saturating_sub(row)), node, &holders, false, empty);
}

fn graphs(
    frame: &mut Frame,
    mut row: usize,
    below: usize,
    gpu: &GpuNow,
    past: Option<&Past>,
) -> usize {
    let room = below.saturating_sub(row);
    // Readings and processes want about eleven rows.
    let high = match room {
        0..=8 => return row,
        9..=22 => 1,
        23..=30 => 2,
        31..=40 => 3,
        _ => 4,
    };
    let lead = lead(frame.width());
    let width = frame.width().saturating_sub(lead + 1);
    for metric in Metric::ALL {
        let points = past.map(|past| past.last(metric, width)).unwrap_or_default();
        let full = metric.full(gpu).or_else(|| past?.most(metric)).unwrap_or(0.0);
        let (name, value) = named(metric, gpu);
        frame.text(row, 0, lead, Style::Plain, name);
        frame.right(row, 0, lead, Style::Strong, &value);
        for line in spark::graph(&points, full, width, high) {
            frame.text(row, lead + 1, width, Style::Good, &line);
            row += 1;
        }
    }
    row
}

/// How far back the lines go, where there is room to say so.
fn axis(frame: &mut Frame, row: usize, below: usize, history: &History, now: Timestamp) -> usize {
    let lead = lead(frame.width());
    let width = frame.width().saturating_sub(lead + 1);
    let Some(since) = history.since(width).filter(|_| below.saturating_sub(row) >= 12) else {
        return row;
    };
    frame.right(row, 0, lead, Style::Dim, &format!("{} ago", words::ago(since, now)));
    let line = format!("{:─>width$}", " now");
    frame.text(row, lead + 1, width, Style::Dim, &line);
    row + 1
}

/// Columns of the name and the value before a line.
fn lead(width: usize) -> usize {
    22.min(width / 2)
}

fn named(metric: Metric, gpu: &GpuNow) -> (&'static str, String) {
    let reading = |signal| gpu.reading(signal);
    match metric {
        Metric::Power => {
            ("power", words::power(reading(Signal::GpuPower), reading(Signal::GpuPowerLimit)))
        }
        Metric::Busy => ("SM", words::percent(gpu.busy())),
        Metric::Memory => {
            let (used, total) = (Signal::GpuMemoryUsed, Signal::GpuMemoryTotal);
            ("memory", words::of_total(reading(used), reading(total)))
        }
        Metric::Nvlink => {
            ("NVLink", both(gpu, Signal::GpuNvlinkTransmit, Signal::GpuNvlinkReceive))
        }
        Metric::Pcie => ("PCIe", both(gpu, Signal::GpuPcieTransmit, Signal::GpuPcieReceive)),
    }
}

fn both(gpu: &GpuNow, transmit: Signal, receive: Signal) -> String {
    let (transmit, receive) = (gpu.reading(transmit), gpu.reading(receive));
    format!("↑{} ↓{}", words::rate(transmit), words::rate(receive))
}

/// A name and a value in columns, as many as there is room for.
fn readings(frame: &mut Frame, row: usize, below: usize, gpu: &GpuNow) -> usize {
    let pairs = pairs(gpu);
    let cell = 26;
    let across = (frame.width() / cell).max(1);
    let rows = pairs.len().div_ceil(across).min(below.saturating_sub(row).saturating_sub(2));
    for (place, (name, value)) in pairs.iter().take(rows * across).enumerate() {
        let (line, column) = (row + place / across, place % across * cell);
        frame.text(line, column, 14, Style::Dim, name);
        frame.right(line, column + 13, 11, Style::Plain, value);
    }
    row + rows
}

fn pairs(gpu: &GpuNow) -> Vec<(&'static str, String)> {
    let plain = |signal, unit: &str| words::number(gpu.reading(signal), 1.0, unit);
    let percent = |signal| words::percent(gpu.reading(signal));
    let flag = |signal| {
        words::shown(gpu.reading(signal), |value| {
            (if *value > 0.0 { "on" } else { "off" }).to_owned()
        })
    };
    let of = |now, most, unit: &str| {
        let most = words::number(gpu.reading(most), 1.0, unit);
        format!("{}/{most}", words::number(gpu.reading(now), 1.0, ""))
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
        ("to the limit", margin),
        ("SM MHz", of(Signal::GpuClockSm, Signal::GpuClockSmMax, "")),
        ("memory MHz", of(Signal::GpuClockMemory, Signal::GpuClockMemoryMax, "")),
        ("state", words::shown(&gpu.performance_state, |state| format!("P{state}"))),
        ("kernel ran", percent(Signal::GpuUtilisation)),
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
        ("fan", words::shown(&gpu.fan_percent, |fan| format!("{fan}%"))),
        ("ECC", flag(Signal::GpuEccEnabled)),
        ("ECC corrected", plain(Signal::GpuEccCorrected, "")),
        ("uncorrected", plain(Signal::GpuEccUncorrected, "")),
        ("rows remapped", plain(Signal::GpuRowsUncorrected, "")),
        ("persistence", flag(Signal::GpuPersistence)),
        ("MIG", flag(Signal::GpuMigEnabled)),
        ("compute mode", words::shown(&gpu.compute_mode, |mode| compute_mode(*mode))),
        (
            "display",
            words::shown(&gpu.display, |it| (if *it > 0 { "on" } else { "off" }).to_owned()),
        ),
        ("default power", plain(Signal::GpuPowerLimitDefault, " W")),
    ]
}

fn pcie(generation: &Reading<f64>, width: &Reading<f64>) -> String {
    let generation = words::number(generation, 1.0, "");
    format!("gen {generation} x{}", words::number(width, 1.0, ""))
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
