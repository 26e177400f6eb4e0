//! Analysis of errors: clusters of rows, and repeated publications of the same run.

use std::collections::BTreeMap;

use super::{ErrorStats, ScoredRow};
use crate::published::PublishedRun;
use crate::run::TrainingRun;

/// Rows with a common property, and their errors.
#[derive(Debug)]
pub(super) struct ErrorCluster {
    pub(super) name: String,
    pub(super) stats: ErrorStats,
    /// Sum of absolute errors beyond the goal's mean limit.
    pub(super) excess: f64,
}

/// Spread between rows that report the same run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RepeatedRuns {
    /// Rows that share their run with at least one other row.
    pub(super) rows: usize,
    /// Distinct runs.
    pub(super) runs: usize,
    /// Mean absolute deviation from the median of the run's rows, relative.
    pub(super) mean_abs_error: f64,
    /// Largest relative difference between two rows of a run.
    pub(super) max_difference: f64,
}

/// A single row says nothing about its kind of run.
const MIN_ROWS: usize = 2;
/// Number of clusters to report.
const MAX_CLUSTERS: usize = 4;

/// Property of a row by which it may be clustered.
type RowKey = fn(&PublishedRun) -> String;

const KEYS: [RowKey; 4] = [
    |row| format!("model {}", row.run.model.name),
    |row| format!("GPU {}", row.gpu),
    |row| format!("framework {}, {}", row.run.framework.name(), row.date),
    |row| format!("precision {}", row.run.precision.name()),
];

/// Clusters whose mean error exceeds `allowed`, by decreasing excess.
pub(super) fn clusters(rows: &[&ScoredRow], allowed: f64) -> Vec<ErrorCluster> {
    let mut found = Vec::new();
    for key in KEYS {
        let mut named: BTreeMap<String, Vec<&ScoredRow>> = BTreeMap::new();
        for scored in rows {
            named.entry(key(&scored.row)).or_default().push(scored);
        }
        // A cluster of all rows says nothing.
        let is_informative =
            |members: &Vec<&ScoredRow>| members.len() >= MIN_ROWS && members.len() < rows.len();
        for (name, members) in named.into_iter().filter(|(_, members)| is_informative(members)) {
            let excess = members.iter().map(|scored| scored.error.abs() - allowed).sum();
            found.push(ErrorCluster { name, stats: ErrorStats::new(&members), excess });
        }
    }
    found.retain(|cluster| cluster.excess > 0.0);
    found.sort_by(|left, right| {
        right.excess.total_cmp(&left.excess).then_with(|| left.name.cmp(&right.name))
    });
    found.truncate(MAX_CLUSTERS);
    found
}

/// Spread between rows that report the same run; `None` if there are none.
pub(super) fn repeated_runs(rows: &[&ScoredRow]) -> Option<RepeatedRuns> {
    let mut runs: Vec<(&TrainingRun, Vec<f64>)> = Vec::new();
    for scored in rows {
        let run = &scored.row.run;
        match runs.iter_mut().find(|(other, _)| *other == run) {
            Some((_, steps)) => steps.push(scored.row.step_s),
            None => runs.push((run, vec![scored.row.step_s])),
        }
    }
    runs.retain(|(_, steps)| steps.len() > 1);
    let (mut deviations, mut max_difference) = (Vec::new(), 0.0_f64);
    for (_, steps) in &mut runs {
        steps.sort_by(f64::total_cmp);
        let median = super::quantile(steps, 0.5);
        deviations.extend(steps.iter().map(|step_s| (step_s / median - 1.0).abs()));
        max_difference = max_difference.max(steps[steps.len() - 1] / steps[0] - 1.0);
    }
    #[expect(clippy::cast_precision_loss, reason = "tables have fewer rows than 2^52")]
    let mean_abs_error = deviations.iter().sum::<f64>() / deviations.len() as f64;
    (!deviations.is_empty()).then_some(RepeatedRuns {
        rows: deviations.len(),
        runs: runs.len(),
        mean_abs_error,
        max_difference,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::published;
    use farrier_facts::FactSet;

    fn rows() -> Vec<ScoredRow> {
        let table = published::read(FactSet::embedded(), published::embedded()).unwrap();
        let scored = |row| ScoredRow { row, error: 0.01, inside: true };
        table.into_iter().flatten().take(40).map(scored).collect()
    }

    #[test]
    fn outlying_cluster_is_found() {
        let mut rows = rows();
        for scored in &mut rows[3..6] {
            "odd".clone_into(&mut scored.row.run.model.name);
            scored.error = -0.3;
        }
        let found = clusters(&rows.iter().collect::<Vec<_>>(), 0.05);
        assert_eq!(found[0].name, "model odd");
        assert_eq!(found[0].stats.rows, 3);
        assert!((found[0].excess - 0.75).abs() < 1e-9);
    }

    #[test]
    fn repeated_runs_differ_as_much_as_their_step_times() {
        let mut row = rows().swap_remove(0);
        row.row.step_s = 1.0;
        assert_eq!(repeated_runs(&[&row]), None);
        let mut slower = row.clone();
        slower.row.step_s = 1.1;
        let mut other = row.clone();
        other.row.run.seq_len *= 2;
        let found = repeated_runs(&[&row, &slower, &other]).unwrap();
        assert_eq!((found.rows, found.runs), (2, 1));
        assert!((found.max_difference - 0.1).abs() < 1e-9);
        assert!((found.mean_abs_error - 0.05 / 1.05).abs() < 1e-9);
    }
}
