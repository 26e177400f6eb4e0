//! Past samples for the sparklines.

use std::collections::{BTreeMap, VecDeque};

use farrier_facts::node::Reading;
use farrier_fleet::health::{GpuUuid, Signal};
use jiff::Timestamp;

use super::freshness::Shown;
use super::limit;
use super::sample::{GpuSample, NodeSample};

/// Points stored per metric: five minutes at one per second, and more than the width of a terminal.
const CAPACITY: usize = 300;

/// A metric with a sparkline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Metric {
    Power,
    Busy,
    Memory,
    Nvlink,
    Pcie,
}

impl Metric {
    pub(super) const ALL: [Self; 5] =
        [Self::Power, Self::Busy, Self::Memory, Self::Nvlink, Self::Pcie];

    pub(super) fn reading(self, gpu: &GpuSample) -> Reading<f64> {
        match self {
            Self::Power => gpu.reading(Signal::GpuPower).clone(),
            Self::Busy => gpu.busy().clone(),
            Self::Memory => gpu.reading(Signal::GpuMemoryUsed).clone(),
            Self::Nvlink => gpu.nvlink(),
            Self::Pcie => gpu.pcie(),
        }
    }

    pub(super) fn shown(self, gpu: &GpuSample) -> Shown {
        Shown::Signals(match self {
            Self::Power => &[Signal::GpuPower],
            Self::Busy => return gpu.shown_as_busy(),
            Self::Memory => &[Signal::GpuMemoryUsed],
            Self::Nvlink => &[Signal::GpuNvlinkTransmit, Signal::GpuNvlinkReceive],
            Self::Pcie => &[Signal::GpuPcieTransmit, Signal::GpuPcieReceive],
        })
    }

    /// Full scale of the sparkline: the limit, the total, or the bandwidth of the links in both
    /// directions. `None` if unknown; the observed maximum is used then.
    pub(super) fn full_scale(self, gpu: &GpuSample) -> Option<f64> {
        match self {
            Self::Power => gpu.value(Signal::GpuPowerLimit),
            Self::Busy => Some(1.0),
            Self::Memory => gpu.value(Signal::GpuMemoryTotal),
            Self::Nvlink => gpu.links.bytes_per_s.filter(|rate| *rate > 0.0).map(|rate| rate * 2.0),
            Self::Pcie => limit::pcie_bytes_per_s(gpu).map(|rate| rate * 2.0),
        }
    }
}

/// History of a GPU, oldest first; `None` for an unknown or stale value.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct GpuHistory {
    points: BTreeMap<Metric, VecDeque<Option<f64>>>,
}

impl GpuHistory {
    fn push(&mut self, gpu: &GpuSample, at: Timestamp) {
        for metric in Metric::ALL {
            let points = self.points.entry(metric).or_default();
            if points.len() == CAPACITY {
                points.pop_front();
            }
            let is_stale = gpu.stale_age(metric.shown(gpu), at).is_some();
            points.push_back(metric.reading(gpu).value().copied().filter(|_| !is_stale));
        }
    }

    /// The newest `count` points, oldest first.
    pub(super) fn last(&self, metric: Metric, count: usize) -> Vec<Option<f64>> {
        let Some(points) = self.points.get(&metric) else { return Vec::new() };
        points.iter().skip(points.len().saturating_sub(count)).copied().collect()
    }

    /// The observed maximum.
    pub(super) fn max(&self, metric: Metric) -> Option<f64> {
        self.points.get(&metric)?.iter().flatten().copied().reduce(f64::max)
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct NodeHistory {
    /// Shares of the host's CPU time and memory in use.
    host: [VecDeque<Option<f64>>; 2],
    /// Time of each point.
    times: VecDeque<Timestamp>,
    gpus: BTreeMap<GpuUuid, GpuHistory>,
}

impl NodeHistory {
    /// Adds a point. GPUs that are no longer listed are dropped.
    pub(super) fn push(&mut self, node: &NodeSample) {
        if self.times.len() == CAPACITY {
            self.times.pop_front();
        }
        self.times.push_back(node.at);
        let host = &node.host;
        let used = host.memory_used_bytes.value().zip(host.memory_total_bytes.value());
        let shares =
            [host.cpu_ratio.value().copied(), used.map(|(used, total)| used / total.max(1.0))];
        for (points, share) in self.host.iter_mut().zip(shares) {
            if points.len() == CAPACITY {
                points.pop_front();
            }
            points.push_back(share);
        }
        self.gpus.retain(|uuid, _| node.gpus.iter().any(|gpu| gpu.identity.uuid == *uuid));
        for gpu in &node.gpus {
            self.gpus.entry(gpu.identity.uuid.clone()).or_default().push(gpu, node.at);
        }
    }

    /// Time of the oldest of the newest `count` points.
    pub(super) fn since(&self, count: usize) -> Option<Timestamp> {
        self.times.get(self.times.len().saturating_sub(count)).copied()
    }

    /// The newest `count` shares of CPU time and memory in use, oldest first.
    pub(super) fn host(&self, count: usize) -> [Vec<Option<f64>>; 2] {
        let last = |points: &VecDeque<Option<f64>>| {
            points.iter().skip(points.len().saturating_sub(count)).copied().collect()
        };
        [last(&self.host[0]), last(&self.host[1])]
    }

    pub(super) fn gpu(&self, gpu: &GpuUuid) -> Option<&GpuHistory> {
        self.gpus.get(gpu)
    }
}

#[cfg(test)]
mod tests {
    use farrier_fleet::health::GpuIdentity;
    use jiff::Timestamp;

    use super::super::sample::DataSource;
    use super::*;

    fn node(power_w: Option<f64>) -> NodeSample {
        let mut node = NodeSample::new(DataSource::Nvml, Timestamp::UNIX_EPOCH);
        let uuid = GpuUuid("GPU-1".to_owned());
        let mut gpu =
            GpuSample::new(GpuIdentity { uuid, index: 0, minor: None, pci: None, name: None });
        if let Some(power_w) = power_w {
            gpu.readings.insert(Signal::GpuPower, Reading::Value(power_w));
        }
        node.gpus.push(gpu);
        node
    }

    #[test]
    fn unknown_values_are_gaps_and_the_oldest_point_is_dropped() {
        let mut history = NodeHistory::default();
        for power_w in [Some(1.0), None, Some(3.0)] {
            history.push(&node(power_w));
        }
        let uuid = GpuUuid("GPU-1".to_owned());
        let past = history.gpu(&uuid).unwrap();
        assert_eq!(past.last(Metric::Power, 9), [Some(1.0), None, Some(3.0)]);
        assert_eq!(past.last(Metric::Power, 2), [None, Some(3.0)]);
        assert_eq!(past.max(Metric::Power), Some(3.0));
        for _ in 0..CAPACITY {
            history.push(&node(Some(2.0)));
        }
        let past = history.gpu(&uuid).unwrap();
        assert_eq!(
            (past.last(Metric::Power, 999).len(), past.max(Metric::Power)),
            (CAPACITY, Some(2.0))
        );
        history.push(&NodeSample::new(DataSource::Nvml, Timestamp::UNIX_EPOCH));
        assert!(history.gpu(&uuid).is_none());
    }
}
