//! The GPU table: which columns fit, and how wide the sparklines are.

use farrier_facts::node::Reading;
use farrier_fleet::health::Signal;
use jiff::Timestamp;

use super::frame::{Frame, Style};
use super::{format, sparkline};
use crate::commands::top::freshness::{STALE_MARK, Shown};
use crate::commands::top::history::{GpuHistory, Metric};
use crate::commands::top::sample::{GpuSample, NodeSample};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Column {
    Number,
    Name,
    Temperature,
    MemoryTemperature,
    Power,
    Busy,
    Utilisation,
    Tensor,
    Bandwidth,
    Memory,
    Nvlink,
    Pcie,
    ClockSm,
    ClockMemory,
    State,
    Fan,
    Coders,
    Ecc,
    Link,
    Bus,
    Limit,
}

use Column::{
    Bandwidth, Bus, Busy, ClockMemory, ClockSm, Coders, Ecc, Fan, Limit, Link, Memory,
    MemoryTemperature, Name, Number, Nvlink, Pcie, Power, State, Temperature, Tensor, Utilisation,
};

/// From left to right.
const ORDER: [Column; 21] = [
    Number,
    Name,
    Bus,
    State,
    Fan,
    Temperature,
    MemoryTemperature,
    Power,
    Busy,
    Utilisation,
    Tensor,
    Bandwidth,
    Memory,
    Nvlink,
    Pcie,
    Link,
    ClockSm,
    ClockMemory,
    Coders,
    Ecc,
    Limit,
];

/// Layout steps, most important first. A step adds a column, or widens the sparklines to this many
/// characters.
enum Step {
    Add(Column),
    Sparks(usize),
}

const STEPS: [Step; 24] = [
    Step::Add(Number),
    Step::Add(Busy),
    Step::Add(Limit),
    Step::Add(Memory),
    Step::Add(Power),
    Step::Add(Temperature),
    Step::Add(Nvlink),
    Step::Add(Pcie),
    Step::Sparks(4),
    Step::Add(Name),
    Step::Sparks(8),
    Step::Add(ClockSm),
    Step::Add(Utilisation),
    Step::Add(Bandwidth),
    Step::Add(Tensor),
    Step::Add(MemoryTemperature),
    Step::Add(State),
    Step::Add(Link),
    Step::Add(Ecc),
    Step::Add(ClockMemory),
    Step::Sparks(12),
    Step::Add(Coders),
    Step::Add(Fan),
    Step::Add(Bus),
];

impl Column {
    fn heading(self) -> &'static str {
        match self {
            Number => "GPU",
            Name => "name",
            Temperature => "°C",
            MemoryTemperature => "HBM°",
            Power => "power",
            Busy => "SM",
            Utilisation => "util",
            Tensor => "tensor",
            Bandwidth => "HBM%",
            Memory => "memory",
            Nvlink => "NVLink",
            Pcie => "PCIe",
            ClockSm => "SM MHz",
            ClockMemory => "mem MHz",
            State => "P",
            Fan => "fan",
            Coders => "enc/dec",
            Ecc => "ECC",
            Link => "bus",
            Bus => "address",
            Limit => "limited by",
        }
    }

    fn width(self) -> usize {
        match self {
            Number | Temperature | State => 3,
            Name => 14,
            Busy | Utilisation | Bandwidth | MemoryTemperature | Fan | Ecc => 4,
            Pcie => 5,
            Nvlink | Tensor | ClockSm | Link => 6,
            Memory | ClockMemory => 7,
            Coders | Power => 8,
            Limit => 10,
            Bus => 12,
        }
    }

    fn metric(self) -> Option<Metric> {
        Some(match self {
            Power => Metric::Power,
            Busy => Metric::Busy,
            Memory => Metric::Memory,
            Nvlink => Metric::Nvlink,
            Pcie => Metric::Pcie,
            _ => return None,
        })
    }

    fn is_left(self) -> bool {
        matches!(self, Name | Limit | Bus | State)
    }

    fn text(self, gpu: &GpuSample) -> String {
        let reading = |signal| gpu.reading(signal);
        match self {
            Number => gpu.identity.index.to_string(),
            Name => short_name(gpu),
            Temperature => format::number(reading(Signal::GpuTemperature), 1.0, ""),
            MemoryTemperature => format::number(reading(Signal::GpuMemoryTemperature), 1.0, ""),
            Power => format::power(reading(Signal::GpuPower), reading(Signal::GpuPowerLimit)),
            Busy => format::percent(gpu.busy()),
            Utilisation => format::percent(reading(Signal::GpuUtilisation)),
            Tensor => format::percent(reading(Signal::GpuTensorActive)),
            Bandwidth => format::percent(reading(Signal::GpuDramActive)),
            Memory => {
                format::of_total(reading(Signal::GpuMemoryUsed), reading(Signal::GpuMemoryTotal))
            }
            Nvlink => format::rate(&gpu.nvlink()),
            Pcie => format::rate(&gpu.pcie()),
            ClockSm => format::number(reading(Signal::GpuClockSm), 1.0, ""),
            ClockMemory => format::number(reading(Signal::GpuClockMemory), 1.0, ""),
            State => format::shown(&gpu.performance_state, |state| format!("P{state}")),
            Fan => format::shown(&gpu.fan_percent, |fan| format!("{fan}%")),
            Coders => {
                let encoder = format::percent(reading(Signal::GpuEncoder));
                format!("{encoder}/{}", format::percent(reading(Signal::GpuDecoder)))
            }
            Ecc => format::number(reading(Signal::GpuEccUncorrected), 1.0, ""),
            Link => {
                let generation = format::number(reading(Signal::GpuPcieGeneration), 1.0, "");
                format!("{generation}x{}", format::number(reading(Signal::GpuPcieWidth), 1.0, ""))
            }
            Bus => gpu.identity.pci.clone().unwrap_or_else(|| "?".to_owned()),
            Limit => gpu.limit.kind.label().to_owned(),
        }
    }

    /// The values that make the column stale.
    fn shown(self, gpu: &GpuSample) -> Shown {
        if let Some(metric) = self.metric() {
            return match self {
                Power => Shown::Signals(&[Signal::GpuPower, Signal::GpuPowerLimit]),
                Memory => Shown::Signals(&[Signal::GpuMemoryUsed, Signal::GpuMemoryTotal]),
                _ => metric.shown(gpu),
            };
        }
        Shown::Signals(match self {
            State | Fan => return Shown::Details,
            Limit => return gpu.shown_as_limit(),
            Temperature => &[Signal::GpuTemperature],
            MemoryTemperature => &[Signal::GpuMemoryTemperature],
            Utilisation => &[Signal::GpuUtilisation],
            Tensor => &[Signal::GpuTensorActive],
            Bandwidth => &[Signal::GpuDramActive],
            ClockSm => &[Signal::GpuClockSm],
            ClockMemory => &[Signal::GpuClockMemory],
            Coders => &[Signal::GpuEncoder, Signal::GpuDecoder],
            Ecc => &[Signal::GpuEccUncorrected],
            Link => &[Signal::GpuPcieGeneration, Signal::GpuPcieWidth],
            _ => &[],
        })
    }

    fn style(self, gpu: &GpuSample) -> Style {
        let is_unknown = |reading: &Reading<f64>| reading.why_unreadable().is_some();
        match self {
            Limit => gpu.limit.kind.tone().into(),
            Ecc if gpu.value(Signal::GpuEccUncorrected).is_some_and(|errors| errors > 0.0) => {
                Style::Bad
            }
            Busy if is_unknown(gpu.busy()) => Style::Caution,
            Power if is_unknown(gpu.reading(Signal::GpuPower)) => Style::Caution,
            Number => match gpu.worst {
                Some(worst) => super::severity(worst),
                None => Style::Strong,
            },
            _ => Style::Plain,
        }
    }
}

/// `H100 80GB HBM3`, shortened from NVML's name.
pub(super) fn short_name(gpu: &GpuSample) -> String {
    let name = gpu.identity.name.as_deref().unwrap_or("?");
    name.trim_start_matches("NVIDIA ").trim_start_matches("Tesla ").to_owned()
}

/// Columns with their widths, and the width of their sparkline.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Layout {
    columns: Vec<(Column, usize, usize)>,
}

impl Layout {
    pub(super) fn new(width: usize, node: &NodeSample) -> Self {
        let has_fan = node.gpus.iter().any(|gpu| gpu.fan_percent.value().is_some());
        let mut fitting: Vec<Column> = Vec::new();
        let mut spark = 0;
        for step in STEPS {
            match step {
                Step::Add(Fan) if !has_fan => {}
                Step::Add(column) => {
                    fitting.push(column);
                    if total(&fitting, spark) > width {
                        fitting.pop();
                    }
                }
                Step::Sparks(points) if total(&fitting, points) <= width => spark = points,
                Step::Sparks(_) => {}
            }
        }
        // Spare width goes to the sparklines first, up to a maximum. The text of the limit gets the
        // remaining width.
        let mut left = width.saturating_sub(total(&fitting, spark));
        let lines = fitting.iter().filter(|column| column.metric().is_some()).count();
        if spark > 0 && lines > 0 && left / lines > 0 {
            let more =
                (left / lines).min(if fitting.contains(&Fan) || width > 200 { 24 } else { 4 });
            spark += more;
            left -= more * lines;
        }
        let columns = ORDER.into_iter().filter(|column| fitting.contains(column)).map(|column| {
            let wide = if column == Limit { column.width() + left } else { column.width() };
            (column, wide, if column.metric().is_some() { spark } else { 0 })
        });
        Self { columns: columns.collect() }
    }

    pub(super) fn headings(&self, frame: &mut Frame, row: usize) {
        let mut at = 0;
        for (column, width, spark) in &self.columns {
            let room = room(*width, *spark);
            if column.is_left() {
                frame.text(row, at, room, Style::Dim, column.heading());
            } else {
                frame.right(row, at, room, Style::Dim, column.heading());
            }
            at += room + 1;
        }
    }

    pub(super) fn draw_gpu(
        &self,
        frame: &mut Frame,
        row: usize,
        gpu: &GpuSample,
        past: Option<&GpuHistory>,
        now: Timestamp,
    ) {
        let mut at = 0;
        for (column, width, spark) in &self.columns {
            if let (Some(metric), true) = (column.metric(), *spark > 0) {
                let points = past.map(|past| past.last(metric, *spark)).unwrap_or_default();
                let full = metric.full_scale(gpu).or_else(|| past?.max(metric)).unwrap_or(0.0);
                let line = sparkline::line(&points, full, *spark);
                frame.text(row, at, *spark, Style::Good, &line);
                at += spark + 1;
            }
            let (mut style, mut text) = (column.style(gpu), column.text(gpu));
            let (mut from, mut room) = (at, *width);
            if gpu.stale_age(column.shown(gpu), now).is_some() {
                style = Style::Dim;
                text.insert(0, STALE_MARK);
                // The mark may use the gap before the column.
                (from, room) = (at.saturating_sub(1), room + at.min(1));
            }
            if *column == Limit && *width > column.width() + 20 {
                // There is room for the sentence about the limit.
                let after = frame.text(row, from, room, style, &text);
                let rest = (at + width).saturating_sub(after);
                frame.text(row, after, rest, Style::Dim, &format!(": {}", gpu.limit.text));
            } else if column.is_left() {
                frame.text(row, from, room, style, &text);
            } else {
                frame.right(row, from, room, style, &text);
            }
            at += width + 1;
        }
    }
}

fn room(width: usize, spark: usize) -> usize {
    width + if spark > 0 { spark + 1 } else { 0 }
}

fn total(columns: &[Column], spark: usize) -> usize {
    let each = columns.iter().map(|column| {
        let spark = if column.metric().is_some() { spark } else { 0 };
        room(column.width(), spark)
    });
    each.sum::<usize>() + columns.len().saturating_sub(1)
}
