//! What was, for the sparklines.

use std::collections::{BTreeMap, VecDeque};

use farrier_facts::node::Reading;
use farrier_fleet::health::{GpuUuid, Signal};
use jiff::Timestamp;

use super::limit;
use super::now::{GpuNow, NodeNow};

/// Points that are kept: five minutes at one a second, and more than any terminal is wide.
const KEPT: usize = 300;

/// What is drawn as a line.
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

    pub(super) fn reading(self, gpu: &GpuNow) -> Reading<f64> {
        match self {
            Self::Power => gpu.reading(Signal::GpuPower).clone(),
            Self::Busy => gpu.busy().clone(),
            Self::Memory => gpu.reading(Signal::GpuMemoryUsed).clone(),
            Self::Nvlink => gpu.nvlink(),
            Self::Pcie => gpu.pcie(),
        }
    }

    /// What fills the line's height: what there is in all, or what the links carry both ways; none, where that is not
    /// known: the most that was seen.
    pub(super) fn full(self, gpu: &GpuNow) -> Option<f64> {
        match self {
            Self::Power => gpu.value(Signal::GpuPowerLimit),
            Self::Busy => Some(1.0),
            Self::Memory => gpu.value(Signal::GpuMemoryTotal),
            Self::Nvlink => gpu.links.bytes_per_s.filter(|it| *it > 0.0).map(|it| it * 2.0),
            Self::Pcie => limit::pcie_bytes_per_s(gpu).map(|it| it * 2.0),
        }
    }
}

/// A GPU's past, oldest first; none where a value was not known.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Past {
    points: BTreeMap<Metric, VecDeque<Option<f64>>>,
}

impl Past {
    fn take(&mut self, gpu: &GpuNow) {
        for metric in Metric::ALL {
            let points = self.points.entry(metric).or_default();
            if points.len() == KEPT {
                points.pop_front();
            }
            points.push_back(metric.reading(gpu).value().copied());
        }
    }

    /// The newest `count` points, oldest first.
    pub(super) fn last(&self, metric: Metric, count: usize) -> Vec<Option<f64>> {
        let Some(points) = self.points.get(&metric) else { return Vec::new() };
        points.iter().skip(points.len().saturating_sub(count)).copied().collect()
    }

    /// The most that was seen.
    pub(super) fn most(&self, metric: Metric) -> Option<f64> {
        self.points.get(&metric)?.iter().flatten().copied().reduce(f64::max)
    }
}

/// All GPUs' past.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct History {
    /// Shares of the host's processors and memory in use.
    host: [VecDeque<Option<f64>>; 2],
    /// When each point was.
    moments: VecDeque<Timestamp>,
    gpus: BTreeMap<GpuUuid, Past>,
}

impl History {
    /// A point more. GPUs that are gone are forgotten.
    pub(super) fn take(&mut self, now: &NodeNow) {
        if self.moments.len() == KEPT {
            self.moments.pop_front();
        }
        self.moments.push_back(now.at);
        let host = &now.host;
        let used = host.memory_used_bytes.value().zip(host.memory_total_bytes.value());
        let shares =
            [host.cpu_ratio.value().copied(), used.map(|(used, total)| used / total.max(1.0))];
        for (points, share) in self.host.iter_mut().zip(shares) {
            if points.len() == KEPT {
                points.pop_front();
            }
            points.push_back(share);
        }
        self.gpus.retain(|uuid, _| now.gpus.iter().any(|gpu| gpu.identity.uuid == *uuid));
        for gpu in &now.gpus {
            self.gpus.entry(gpu.identity.uuid.clone()).or_default().take(gpu);
        }
    }

    /// When the oldest of the newest `count` points was.
    pub(super) fn since(&self, count: usize) -> Option<Timestamp> {
        self.moments.get(self.moments.len().saturating_sub(count)).copied()
    }

    /// The newest `count` shares of the host's processors and memory in use, oldest first.
    pub(super) fn host(&self, count: usize) -> [Vec<Option<f64>>; 2] {
        let last = |points: &VecDeque<Option<f64>>| {
            points.iter().skip(points.len().saturating_sub(count)).copied().collect()
        };
        [last(&self.host[0]), last(&self.host[1])]
    }

    pub(super) fn of(&self, gpu: &GpuUuid) -> Option<&Past> {
        self.gpus.get(gpu)
    }
}

#[cfg(test)]
mod tests {
    use farrier_fleet::health::GpuIdentity;
    use jiff::Timestamp;

    use super::super::now::Teller;
    use super::*;

    fn node(power_w: Option<f64>) -> NodeNow {
        let mut node = NodeNow::new(Teller::Nvml, Timestamp::UNIX_EPOCH);
        let uuid = GpuUuid("GPU-1".to_owned());
        let mut gpu =
            GpuNow::new(GpuIdentity { uuid, index: 0, minor: None, pci: None, name: None });
        if let Some(power_w) = power_w {
            gpu.readings.insert(Signal::GpuPower, Reading::Value(power_w));
        }
        node.gpus.push(gpu);
        node
    }

    #[test]
    fn what_is_not_known_is_a_gap_and_the_oldest_goes() {
        let mut history = History::default();
        for power_w in [Some(1.0), None, Some(3.0)] {
            history.take(&node(power_w));
        }
        let uuid = GpuUuid("GPU-1".to_owned());
        let past = history.of(&uuid).unwrap();
        assert_eq!(past.last(Metric::Power, 9), [Some(1.0), None, Some(3.0)]);
        assert_eq!(past.last(Metric::Power, 2), [None, Some(3.0)]);
        assert_eq!(past.most(Metric::Power), Some(3.0));
        for _ in 0..KEPT {
            history.take(&node(Some(2.0)));
        }
        let past = history.of(&uuid).unwrap();
        assert_eq!(
            (past.last(Metric::Power, 999).len(), past.most(Metric::Power)),
            (KEPT, Some(2.0))
        );
        history.take(&NodeNow::new(Teller::Nvml, Timestamp::UNIX_EPOCH));
        assert!(history.of(&uuid).is_none());
    }
}
