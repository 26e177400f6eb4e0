//! Memory on the scoreboard.

use std::collections::{BTreeMap, BTreeSet};

use super::page::{called, cell, mean, signed};
use super::{Score, Scored, quantile};
use crate::layout::Sharding;
use crate::memory;
use crate::published::Published;
use crate::run::Stack;

/// Memory beside the peaks that are published.
pub(super) struct MemoryScore<'a> {
    /// A row, its published and its estimated peak in GiB, in the order of the errors.
    pub(super) rows: Vec<(&'a Published, f64, f64)>,
    /// Complete rows.
    pub(super) ran: usize,
    /// Those of them that are said not to fit, by what they are called: how many, and how many times
    /// what there is they are said to need.
    beyond: BTreeMap<String, (usize, f64)>,
    /// Whether one of them is a recipe of Megatron Bridge that shards weights.
    has_sharded_bridge: bool,
}

impl<'a> MemoryScore<'a> {
    pub(super) fn of(score: &'a Score) -> Self {
        let of = |scored: &'a Scored| {
            let memory = memory::of(&scored.row.run);
            // What is published is what the allocator reserved, without the runtime beside it.
            let estimated = memory.stages.get(memory.worst_stage)?.p50.allocator_gib();
            Some((&scored.row, scored.row.peak_gib?, estimated))
        };
        let mut rows: Vec<_> = score.rows.iter().filter_map(of).collect();
        rows.sort_by(|left, right| error(right).abs().total_cmp(&error(left).abs()));
        let complete = score.rows.iter().map(|scored| &scored.row);
        let complete: Vec<&Published> = complete.filter(|row| row.assumed.is_empty()).collect();
        let mut beyond: BTreeMap<String, (usize, f64)> = BTreeMap::new();
        let mut has_sharded_bridge = false;
        for row in &complete {
            let needs = memory::worst(&row.run).0 / memory::usable_gib(&row.run.gpu);
            if needs > 1.0 {
                let run = &row.run;
                let is_sharded = run.layout.sharding == Sharding::Weights;
                has_sharded_bridge |= is_sharded && run.stack == Stack::Bridge;
                let shares = if is_sharded { ", weights shared" } else { "" };
                let name =
                    format!("{} on {} by {}{shares}", run.model.name, row.gpu, run.stack.name());
                let (rows, most) = beyond.entry(name).or_default();
                (*rows, *most) = (*rows + 1, most.max(needs));
            }
        }
        Self { rows, ran: complete.len(), beyond, has_sharded_bridge }
    }

    /// Runs that were made and are said not to fit.
    pub(super) fn beyond(&self) -> usize {
        self.beyond.values().map(|(rows, _)| rows).sum()
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
            "\n## Memory\n\nWhat the allocator reserves on the fullest GPU in half of such runs, beside the peak that is published. \
             It is computed and not fitted, but its constants were chosen with these rows in view: none of them is held out",
        );
        let names = |name: fn(&Published) -> String| {
            self.rows.iter().map(|row| name(row.0)).collect::<BTreeSet<_>>().len()
        };
        text.push_str(&format!(
            ", and they are of {} models by {} programs.\n\n",
            names(|row| row.run.model.name.clone()),
            names(|row| row.run.stack.name().to_owned())
        ));
        text.push_str(
            "| error | estimated, GiB | published, GiB | run | source |\n|---|---|---|---|---|\n",
        );
        for row in &self.rows {
            let (published, peak_gib, estimated_gib) = row;
            text.push_str(&format!(
                "| {} | {estimated_gib:.1} | {peak_gib:.1} | {} | {} |\n",
                signed(Some(error(row))),
                cell(&called(published)),
                cell(&published.source)
            ));
        }
        text.push_str(&format!(
            "\n{} of {} complete rows were run and are said to need more than there is in half of such runs",
            self.beyond(),
            self.ran
        ));
        text.push_str(if self.beyond.is_empty() { ".\n" } else { ":\n\n" });
        for (name, (rows, most)) in &self.beyond {
            text.push_str(&format!("- {name}: {rows}, up to {most:.2} times what there is\n"));
        }
        if self.has_sharded_bridge {
            text.push_str(
                "\nMegatron Bridge's recipes with shared weights keep activations in the host's memory, which is not modelled.\n",
            );
        }
        text
    }
}

fn error((_, peak_gib, estimated_gib): &(&Published, f64, f64)) -> f64 {
    estimated_gib / peak_gib - 1.0
}
