//! The columns of the GPUs: which have room, and how wide the sparklines are.

use farrier_facts::node::Reading;
use farrier_fleet::health::Signal;

use super::frame::{Frame, Style};
use super::{spark, words};
use crate::commands::top::history::{Metric, Past};
use crate::commands::top::now::{GpuNow, NodeNow};

/// A column.
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

/// As they stand, from the left.
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

/// What comes in as there is room: a column, or sparklines of so many letters.
enum Step {
    Take(Column),
    Sparks(usize),
}

const STEPS: [Step; 24] = [
    Step::Take(Number),
    Step::Take(Busy),
    Step::Take(Limit),
    Step::Take(Memory),
    Step::Take(Power),
    Step::Take(Temperature),
    Step::Take(Nvlink),
    Step::Take(Pcie),
    Step::Sparks(4),
    Step::Take(Name),
    Step::Sparks(8),
    Step::Take(ClockSm),
    Step::Take(Utilisation),
    Step::Take(Bandwidth),
    Step::Take(Tensor),
    Step::Take(MemoryTemperature),
    Step::Take(State),
    Step::Take(Link),
    Step::Take(Ecc),
    Step::Take(ClockMemory),
    Step::Sparks(12),
    Step::Take(Coders),
    Step::Take(Fan),
    Step::Take(Bus),
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

    fn text(self, gpu: &GpuNow) -> String {
        let reading = |signal| gpu.reading(signal);
        match self {
            Number => gpu.identity.index.to_string(),
            Name => short_name(gpu),
            Temperature => words::number(reading(Signal::GpuTemperature), 1.0, ""),
            MemoryTemperature => words::number(reading(Signal::GpuMemoryTemperature), 1.0, ""),
            Power => words::power(reading(Signal::GpuPower), reading(Signal::GpuPowerLimit)),
            Busy => words::percent(gpu.busy()),
            Utilisation => words::percent(reading(Signal::GpuUtilisation)),
            Tensor => words::percent(reading(Signal::GpuTensorActive)),
            Bandwidth => words::percent(reading(Signal::GpuDramActive)),
            Memory => {
                words::of_total(reading(Signal::GpuMemoryUsed), reading(Signal::GpuMemoryTotal))
            }
            Nvlink => words::rate(&gpu.nvlink()),
            Pcie => words::rate(&gpu.pcie()),
            ClockSm => words::number(reading(Signal::GpuClockSm), 1.0, ""),
            ClockMemory => words::number(reading(Signal::GpuClockMemory), 1.0, ""),
            State => words::shown(&gpu.performance_state, |state| format!("P{state}")),
            Fan => words::shown(&gpu.fan_percent, |fan| format!("{fan}%")),
            Coders => {
                let encoder = words::percent(reading(Signal::GpuEncoder));
                format!("{encoder}/{}", words::percent(reading(Signal::GpuDecoder)))
            }
            Ecc => words::number(reading(Signal::GpuEccUncorrected), 1.0, ""),
            Link => {
                let generation = words::number(reading(Signal::GpuPcieGeneration), 1.0, "");
                format!("{generation}x{}", words::number(reading(Signal::GpuPcieWidth), 1.0, ""))
            }
            Bus => gpu.identity.pci.clone().unwrap_or_else(|| "?".to_owned()),
            Limit => gpu.limit.kind.word().to_owned(),
        }
    }

    fn style(self, gpu: &GpuNow) -> Style {
        let is_unknown = |reading: &Reading<f64>| reading.why_unreadable().is_some();
        match self {
            Limit => gpu.limit.kind.tone().into(),
            Ecc if gpu.value(Signal::GpuEccUncorrected).is_some_and(|it| it > 0.0) => Style::Bad,
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

/// `H100 80GB HBM3` of what NVML calls it.
pub(super) fn short_name(gpu: &GpuNow) -> String {
    let name = gpu.identity.name.as_deref().unwrap_or("?");
    name.trim_start_matches("NVIDIA ").trim_start_matches("Tesla ").to_owned()
}

/// Columns with their widths, and the sparkline's in each that has one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Layout {
    columns: Vec<(Column, usize, usize)>,
}

impl Layout {
    pub(super) fn of(width: usize, node: &NodeNow) -> Self {
        let has_fan = node.gpus.iter().any(|gpu| gpu.fan_percent.value().is_some());
        let mut taken: Vec<Column> = Vec::new();
        let mut spark = 0;
        for step in STEPS {
            match step {
                Step::Take(Fan) if !has_fan => {}
                Step::Take(column) => {
                    taken.push(column);
                    if total(&taken, spark) > width {
                        taken.pop();
                    }
                }
                Step::Sparks(letters) if total(&taken, letters) <= width => spark = letters,
                Step::Sparks(_) => {}
            }
        }
        // What is left goes to the words, up to a sentence's length, and then to the lines.
        let mut left = width.saturating_sub(total(&taken, spark));
        let lines = taken.iter().filter(|column| column.metric().is_some()).count();
        if spark > 0 && lines > 0 && left / lines > 0 {
            let more = (left / lines).min(if taken.contains(&Fan) || width > 200 { 24 } else { 4 });
            spark += more;
            left -= more * lines;
        }
        let columns = ORDER.into_iter().filter(|column| taken.contains(column)).map(|column| {
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

    pub(super) fn gpu(&self, frame: &mut Frame, row: usize, gpu: &GpuNow, past: Option<&Past>) {
        let mut at = 0;
        for (column, width, spark) in &self.columns {
            if let (Some(metric), true) = (column.metric(), *spark > 0) {
                let points = past.map(|past| past.last(metric, *spark)).unwrap_or_default();
                let full = metric.full(gpu).or_else(|| past?.most(metric)).unwrap_or(0.0);
                let line = spark::line(&points, full, *spark);
                frame.text(row, at, *spark, Style::Good, &line);
                at += spark + 1;
            }
            let (style, text) = (column.style(gpu), column.text(gpu));
            if *column == Limit && *width > column.width() + 20 {
                // There is room for the sentence.
                let after = frame.text(row, at, *width, style, &text);
                let rest = (at + width).saturating_sub(after);
                frame.text(row, after, rest, Style::Dim, &format!(": {}", gpu.limit.text));
            } else if column.is_left() {
                frame.text(row, at, *width, style, &text);
            } else {
                frame.right(row, at, *width, style, &text);
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
