//! What errors are made of, as far as the rows themselves say.

use std::collections::BTreeMap;

use super::{Scored, Tally};
use crate::published::Published;
use crate::run::Run;

/// Rows that have something in common, and what they are off by together.
#[derive(Debug)]
pub(super) struct Cluster {
    /// What they have in common.
    pub(super) name: String,
    /// Their errors.
    pub(super) tally: Tally,
    /// Sum of their errors' sizes beyond what the goal allows them.
    pub(super) excess: f64,
}

/// What is published twice: how far rows are apart that differ in nothing that is stated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Twins {
    /// Rows that have at least one twin.
    pub(super) rows: usize,
    /// Kinds of run that they are of.
    pub(super) runs: usize,
    /// What their step times are off from the middle of their kind, mean of sizes.
    pub(super) mean_abs_error: f64,
    /// The most that two of a kind differ by.
    pub(super) most: f64,
}

/// Clusters of fewer rows say more about a row than about a kind.
const LEAST_ROWS: usize = 2;
/// So many are named.
const NAMED: usize = 4;

/// How a row is called by what it may share with others.
type Key = fn(&Published) -> String;

const KEYS: [Key; 4] = [
    |row| format!("model {}", row.run.model.name),
    |row| format!("GPU {}", row.gpu),
    |row| format!("program {}, {}", row.run.stack.name(), row.date),
    |row| format!("precision {}", row.run.precision.name()),
];

/// Where the errors of rows gather: clusters that are further off than `allowed`, the heaviest first.
pub(super) fn clusters(rows: &[&Scored], allowed: f64) -> Vec<Cluster> {
    let mut found = Vec::new();
    for key in KEYS {
        let mut named: BTreeMap<String, Vec<&Scored>> = BTreeMap::new();
        for scored in rows {
            named.entry(key(&scored.row)).or_default().push(scored);
        }
        // One that holds all says nothing.
        let tells =
            |members: &Vec<&Scored>| members.len() >= LEAST_ROWS && members.len() < rows.len();
        for (name, members) in named.into_iter().filter(|(_, members)| tells(members)) {
            let excess = members.iter().map(|scored| scored.error.abs() - allowed).sum();
            found.push(Cluster { name, tally: Tally::of(&members), excess });
        }
    }
    found.retain(|cluster| cluster.excess > 0.0);
    found.sort_by(|left, right| {
        right.excess.total_cmp(&left.excess).then_with(|| left.name.cmp(&right.name))
    });
    found.truncate(NAMED);
    found
}

/// Rows of the same run, as far as is stated.
pub(super) fn twins(rows: &[&Scored]) -> Option<Twins> {
    let mut kinds: Vec<(&Run, Vec<f64>)> = Vec::new();
    for scored in rows {
        let run = &scored.row.run;
        match kinds.iter_mut().find(|(of, _)| *of == run) {
            Some((_, steps)) => steps.push(scored.row.step_s),
            None => kinds.push((run, vec![scored.row.step_s])),
        }
    }
    kinds.retain(|(_, steps)| steps.len() > 1);
    let (mut sizes, mut most) = (Vec::new(), 0.0_f64);
    for (_, steps) in &mut kinds {
        steps.sort_by(f64::total_cmp);
        let middle = super::quantile(steps, 0.5);
        sizes.extend(steps.iter().map(|step_s| (step_s / middle - 1.0).abs()));
        most = most.max(steps[steps.len() - 1] / steps[0] - 1.0);
    }
    #[expect(clippy::cast_precision_loss, reason = "tables have fewer rows than 2^52")]
    let mean_abs_error = sizes.iter().sum::<f64>() / sizes.len() as f64;
    (!sizes.is_empty()).then_some(Twins {
        rows: sizes.len(),
        runs: kinds.len(),
        mean_abs_error,
        most,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::published;
    use farrier_facts::FactSet;

    fn rows() -> Vec<Scored> {
        let table = published::read(FactSet::embedded(), published::embedded()).unwrap();
        let scored = |row| Scored { row, error: 0.01, inside: true };
        table.into_iter().flatten().take(40).map(scored).collect()
    }

    #[test]
    fn the_cluster_that_is_off_is_found() {
        let mut rows = rows();
        for scored in &mut rows[3..6] {
            "odd".clone_into(&mut scored.row.run.model.name);
            scored.error = -0.3;
        }
        let found = clusters(&rows.iter().collect::<Vec<_>>(), 0.05);
        assert_eq!(found[0].name, "model odd");
        assert_eq!(found[0].tally.rows, 3);
        assert!((found[0].excess - 0.75).abs() < 1e-9);
    }

    #[test]
    fn twins_are_as_far_apart_as_their_times() {
        let mut row = rows().swap_remove(0);
        row.row.step_s = 1.0;
        assert_eq!(twins(&[&row]), None);
        let mut slower = row.clone();
        slower.row.step_s = 1.1;
        let mut other = row.clone();
        other.row.run.seq_len *= 2;
        let found = twins(&[&row, &slower, &other]).unwrap();
        assert_eq!((found.rows, found.runs), (2, 1));
        assert!((found.most - 0.1).abs() < 1e-9);
        assert!((found.mean_abs_error - 0.05 / 1.05).abs() < 1e-9);
    }
}
