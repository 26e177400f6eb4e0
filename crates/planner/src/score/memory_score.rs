//! Memory section of the scoreboard.

use std::collections::{BTreeMap, BTreeSet};

use super::scoreboard::{cell, describe_run, mean, signed};
use super::{Score, ScoredRow, quantile};
use crate::memory;
use crate::parallelism::Sharding;
use crate::published::PublishedRun;
use crate::run::Framework;

/// Estimated memory against published peaks.
pub(super) struct MemoryScore<'a> {
    /// Row, published peak and estimated peak in GiB, worst error first.
    pub(super) rows: Vec<(&'a PublishedRun, f64, f64)>,
    /// Number of complete rows.
    pub(super) complete: usize,
    /// Complete rows predicted not to fit, by description: count, and largest ratio of need to
    /// capacity.
    oversized: BTreeMap<String, (usize, f64)>,
    /// Whether one of the oversized rows is a Megatron Bridge recipe with sharded weights.
    has_sharded_bridge: bool,
}

impl<'a> MemoryScore<'a> {
    pub(super) fn new(score: &'a Score) -> Self {
        let peaks = |scored: &'a ScoredRow| {
            let memory = memory::estimate(&scored.row.run);
            // Published peaks are the memory that the allocator reserved, without the runtime.
            let estimated = memory.stages.get(memory.worst_stage)?.p50.allocator_gib();
            Some((&scored.row, scored.row.peak_gib?, estimated))
        };
        let mut rows: Vec<_> = score.rows.iter().filter_map(peaks).collect();
        rows.sort_by(|left, right| error(right).abs().total_cmp(&error(left).abs()));
        let complete = score.rows.iter().map(|scored| &scored.row);
        let complete: Vec<&PublishedRun> = complete.filter(|row| row.assumed.is_empty()).collect();
        let mut oversized: BTreeMap<String, (usize, f64)> = BTreeMap::new();
        let mut has_sharded_bridge = false;
        for row in &complete {
            let needs = memory::peak_gib(&row.run).0 / memory::usable_gib(&row.run.gpu);
            if needs > 1.0 {
                let run = &row.run;
                let is_sharded = run.parallelism.sharding == Sharding::Weights;
                has_sharded_bridge |= is_sharded && run.framework == Framework::Bridge;
                let shares = if is_sharded { ", weights sharded" } else { "" };
                let name = format!(
                    "{} on {} with {}{shares}",
                    run.model.name,
                    row.gpu,
                    run.framework.name()
                );
                let (rows, largest) = oversized.entry(name).or_default();
                (*rows, *largest) = (*rows + 1, largest.max(needs));
            }
        }
        Self { rows, complete: complete.len(), oversized, has_sharded_bridge }
    }

    /// Number of complete rows predicted not to fit.
    pub(super) fn oversized(&self) -> usize {
        self.oversized.values().map(|(rows, _)| rows).sum()
    }

    fn sizes(&self) -> Vec<f64> {
        let mut sizes: Vec<f64> = self.rows.iter().map(|row| error(row).abs()).collect();
        sizes.sort_by(f64::total_cmp);
        sizes
    }

    pub(super) fn mean(&self) -> Option<f64> {
        mean(&self.sizes())
    }

    pub(super) fn p90(&self) -> Option<f64> {
        (!self.rows.is_empty()).then(|| quantile(&self.sizes(), 0.9))
    }

    pub(super) fn section(&self) -> String {
        let mut text = String::from(
            "\n## Memory\n\nMedian of what the allocator reserves on the fullest GPU, against the published peak. \
             The estimate is computed, not fitted, but its constants were chosen with these rows in view: none of them is held out",
        );
        let names = |name: fn(&PublishedRun) -> String| {
            self.rows.iter().map(|row| name(row.0)).collect::<BTreeSet<_>>().len()
        };
        text.push_str(&format!(
            ", and they cover {} models and {} frameworks.\n\n",
            names(|row| row.run.model.name.clone()),
            names(|row| row.run.framework.name().to_owned())
        ));
        text.push_str(
            "| error | estimated, GiB | published, GiB | run | source |\n|---|---|---|---|---|\n",
        );
        for row in &self.rows {
            let (published, peak_gib, estimated_gib) = row;
            text.push_str(&format!(
                "| {} | {estimated_gib:.1} | {peak_gib:.1} | {} | {} |\n",
                signed(Some(error(row))),
                cell(&describe_run(published)),
                cell(&published.source)
            ));
        }
        text.push_str(&format!(
            "\n{} of {} complete rows ran, but their median estimate exceeds the GPU's memory",
            self.oversized(),
            self.complete
        ));
        text.push_str(if self.oversized.is_empty() { ".\n" } else { ":\n\n" });
        for (name, (rows, largest)) in &self.oversized {
            text.push_str(&format!("- {name}: {rows}, up to {largest:.2} times the capacity\n"));
        }
        if self.has_sharded_bridge {
            text.push_str(
                "\nMegatron Bridge's recipes with sharded weights offload activations to host memory, which is not modelled.\n",
            );
        }
        text
    }
}

fn error((_, peak_gib, estimated_gib): &(&PublishedRun, f64, f64)) -> f64 {
    estimated_gib / peak_gib - 1.0
}
