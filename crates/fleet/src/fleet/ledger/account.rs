//! Sums of GPU-time.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use super::classify::{GpuState, LossReason};
use super::report::{Cause, GpuTime, PoolDays};
use super::timeline::TimelineSegment;
use crate::fleet::identity::{NodeId, Pool};
use crate::health::GpuUuid;

pub(super) const DAY_MS: i64 = 86_400_000;

/// What distinguishes loss lines.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LossKey {
    pub(super) cause: Cause,
    pub(super) node: NodeId,
    pub(super) pool: Pool,
    pub(super) sku: Option<Arc<str>>,
    pub(super) driver: Option<String>,
    pub(super) fault: Arc<LossReason>,
}

#[derive(Debug, Default)]
pub(super) struct Exposure {
    pub(super) gpu_ms: u64,
    pub(super) nodes: BTreeSet<NodeId>,
}

/// Sums over all nodes.
#[derive(Debug)]
pub(super) struct Totals {
    /// The period, in milliseconds since the epoch.
    period: Range<i64>,
    pub(super) pool_days: PoolDays,
    pub(super) pool_skus: BTreeMap<(Pool, Option<Arc<str>>), GpuTime>,
    pub(super) losses: BTreeMap<LossKey, u64>,
    pub(super) exposure: BTreeMap<(Pool, String, String), Exposure>,
    /// Lost GPU-time by the GPU at fault.
    pub(super) lost_by_gpu: BTreeMap<GpuUuid, u64>,
    /// Findings that made a node unfit, by pool and SKU.
    pub(super) faults: BTreeMap<(Pool, Option<Arc<str>>), u64>,
    pub(super) uncounted_node_ms: u64,
    pub(super) observed_node_ms: u64,
}

impl Totals {
    pub(super) fn new(period: Range<i64>) -> Self {
        Self {
            period,
            pool_days: PoolDays::new(),
            pool_skus: BTreeMap::new(),
            losses: BTreeMap::new(),
            exposure: BTreeMap::new(),
            lost_by_gpu: BTreeMap::new(),
            faults: BTreeMap::new(),
            uncounted_node_ms: 0,
            observed_node_ms: 0,
        }
    }

    /// A component of a node in the pool became unfit.
    pub(super) fn note_fault(&mut self, pool: &Pool, sku: Option<&str>) {
        *self.faults.entry((pool.clone(), sku.map(Arc::from))).or_default() += 1;
    }

    pub(super) fn includes(&self, at_ms: i64) -> bool {
        self.period.contains(&at_ms)
    }

    /// Counts a segment of a node.
    pub(super) fn count(&mut self, node: &NodeId, segment: &TimelineSegment, time: Range<i64>) {
        let begin = time.start.max(self.period.start);
        let end = time.end.min(self.period.end);
        if begin >= end {
            return;
        }
        let length = milliseconds(begin..end);
        let Some(gpus) = segment.gpus else {
            self.uncounted_node_ms += length;
            return;
        };
        if segment.class.observed {
            self.observed_node_ms += length;
        }
        self.count_lines(node, segment, length);
        let mut day_begin = begin;
        while day_begin < end {
            let day = day_begin.div_euclid(DAY_MS);
            let day_end = ((day + 1) * DAY_MS).min(end);
            let length = milliseconds(day_begin..day_end);
            let mut time = gpu_time(segment, length);
            // Counted from the inventory, and not from the states of its GPUs.
            time.total_ms = gpus * length;
            let key = (segment.class.pool.clone(), day);
            self.pool_days.entry(key).or_default().add(&time);
            day_begin = day_end;
        }
    }

    fn count_lines(&mut self, node: &NodeId, segment: &TimelineSegment, length: u64) {
        let class = &segment.class;
        for group in &class.groups {
            let gpu_ms = group.gpus * length;
            let key = (class.pool.clone(), group.sku.clone());
            let sku = self.pool_skus.entry(key).or_default();
            sku.total_ms += gpu_ms;
            let (cause, fault) = match counted_state(&group.state, segment.unobserved.as_ref()) {
                Counted::Lost(cause, fault) => (cause, fault),
                Counted::Available(exposure) => {
                    sku.available_ms += gpu_ms;
                    if let Some(fault) = exposure {
                        let (code, detail) = (fault.code.clone(), fault.detail.clone());
                        let key = (class.pool.clone(), code, detail);
                        let exposure = self.exposure.entry(key).or_default();
                        exposure.gpu_ms += gpu_ms;
                        exposure.nodes.insert(node.clone());
                    }
                    continue;
                }
            };
            *sku.lost_ms.of_mut(cause) += gpu_ms;
            if let Some(gpu) = &fault.gpu {
                *self.lost_by_gpu.entry(gpu.clone()).or_default() += gpu_ms;
            }
            let key = LossKey {
                cause,
                node: node.clone(),
                pool: class.pool.clone(),
                sku: group.sku.clone(),
                driver: class.driver.clone(),
                fault: Arc::clone(fault),
            };
            *self.losses.entry(key).or_default() += gpu_ms;
        }
    }
}

enum Counted<'a> {
    Available(Option<&'a Arc<LossReason>>),
    Lost(Cause, &'a Arc<LossReason>),
}

fn counted_state<'a>(state: &'a GpuState, unobserved: Option<&'a Arc<LossReason>>) -> Counted<'a> {
    match (state, unobserved) {
        (GpuState::Available { .. }, Some(why)) => Counted::Lost(Cause::Unknown, why),
        (GpuState::Available { exposure }, None) => Counted::Available(exposure.as_ref()),
        (GpuState::Lost { cause, fault }, _) => Counted::Lost(*cause, fault),
    }
}

fn milliseconds(range: Range<i64>) -> u64 {
    u64::try_from(range.end - range.start).unwrap_or_default()
}

fn gpu_time(segment: &TimelineSegment, length: u64) -> GpuTime {
    let mut time = GpuTime::default();
    for group in &segment.class.groups {
        let gpu_ms = group.gpus * length;
        match counted_state(&group.state, segment.unobserved.as_ref()) {
            Counted::Available(_) => time.available_ms += gpu_ms,
            Counted::Lost(cause, _) => *time.lost_ms.of_mut(cause) += gpu_ms,
        }
    }
    time
}
