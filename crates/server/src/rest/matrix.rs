//! The compatibility matrix: GPU × driver × CUDA × framework, with end of support and exposure.
//! Unknown combinations also have rows.
//!
//! ```text
//! nodes ─ tally_node: at most GPU_NAMES_MAX names ─> Tally ─ blocking thread ─> rows by GPUs
//!         and FRAMEWORKS_MAX frameworks              each combination once      at most ROWS_MAX
//! ```
//!
//! The size of the work depends on what nodes report. The server therefore does the work for one
//! request at a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farrier_facts::FactSet;
use farrier_facts::check::Verdict;
use farrier_facts::version::DriverVersion;
use farrier_fleet::fleet::Node;
use farrier_wire::rest::{Matrix, MatrixOmitted, MatrixRow, Support};
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use super::compatibility::{CombinationVerdict, VerdictCache, run_blocking};
use super::failure::Failure;
use super::reply::{Reply, json_bytes};
use super::{Call, pagination};

/// Maximum number of distinct GPU names that are counted per node. A real node has one or two.
const GPU_NAMES_MAX: usize = 16;
/// Maximum number of frameworks that are checked per row. The jobs of one node use a few
/// frameworks, and one or two versions of each.
const FRAMEWORKS_MAX: usize = 32;
/// Maximum number of rows per answer. Together with the other limits, a request checks at most
/// 16,500 combinations.
const ROWS_MAX: usize = 500;
const ROWS_BYTES_MAX: usize = 4 << 20;
/// Maximum time to check all rows. It is less than half of the answer timeout, so that a request
/// that has to wait for another request still completes.
const CHECK_TIMEOUT: Duration = Duration::from_secs(8);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    gpu: Option<String>,
    driver: Option<String>,
    cuda: Option<String>,
    frameworks: Arc<[String]>,
    /// Number of frameworks that are not listed because of [`FRAMEWORKS_MAX`].
    more_frameworks: usize,
}

#[derive(Debug)]
struct NodeTally {
    rows: Vec<(Key, u32)>,
    /// Number of GPUs whose names are not listed because of [`GPU_NAMES_MAX`].
    more_gpus: u32,
}

/// Counts the GPUs of a node by name. Returns `None` if its GPUs are unknown.
fn tally_node(node: &Node) -> Option<NodeTally> {
    let inventory = node.reported_inventory()?;
    let mut names: BTreeMap<Option<&str>, u32> = BTreeMap::new();
    for gpu in inventory.gpus.as_ref()? {
        *names.entry(gpu.name.as_deref()).or_default() += 1;
    }
    let mut names: Vec<_> = names.into_iter().collect();
    names.sort_by_key(|(_, gpus)| std::cmp::Reverse(*gpus));
    let more_gpus = names.iter().skip(GPU_NAMES_MAX).map(|(_, gpus)| gpus).sum();
    let listed = inventory.frameworks.iter().take(FRAMEWORKS_MAX);
    let frameworks: Arc<[String]> =
        listed.map(|(name, version)| format!("{name}=={version}")).collect();
    let more_frameworks = inventory.frameworks.len() - frameworks.len();
    let key = |gpu: Option<&str>| Key {
        gpu: gpu.map(str::to_owned),
        driver: inventory.driver.clone(),
        cuda: inventory.cuda.clone(),
        frameworks: Arc::clone(&frameworks),
        more_frameworks,
    };
    let rows = names.into_iter().take(GPU_NAMES_MAX).map(|(name, gpus)| (key(name), gpus));
    Some(NodeTally { rows: rows.collect(), more_gpus })
}

#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    nodes: u32,
    gpus: u32,
}

/// The sums over all nodes.
#[derive(Debug)]
struct Tally {
    rows: BTreeMap<Key, Counts>,
    unknown_nodes: u32,
    omitted: MatrixOmitted,
}

impl Tally {
    fn new() -> Self {
        let omitted = MatrixOmitted { rows: 0, gpus: 0, nodes: 0 };
        Self { rows: BTreeMap::new(), unknown_nodes: 0, omitted }
    }

    fn with(mut self, parts: Vec<Option<NodeTally>>) -> Self {
        for node in parts {
            let Some(node) = node else {
                self.unknown_nodes += 1;
                continue;
            };
            self.omitted.nodes += u32::from(node.more_gpus > 0);
            self.omitted.gpus = self.omitted.gpus.saturating_add(node.more_gpus);
            for (key, gpus) in node.rows {
                let counts = self.rows.entry(key).or_default();
                counts.nodes += 1;
                counts.gpus = counts.gpus.saturating_add(gpus);
            }
        }
        self
    }

    /// Evaluates rows until a limit on their number, their bytes or the time is reached. Counts the
    /// remaining rows.
    fn evaluate(
        self,
        facts: &FactSet,
        on: Date,
        verdicts: &mut VerdictCache,
        until: Instant,
    ) -> Matrix {
        let Self { rows: all, unknown_nodes, mut omitted } = self;
        let mut all: Vec<_> = all.into_iter().collect();
        all.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.gpus));
        let mut rows: Vec<MatrixRow> = Vec::new();
        let mut bytes = 0;
        for (key, counts) in all {
            let has_room = rows.len() < ROWS_MAX && bytes < ROWS_BYTES_MAX;
            if has_room && Instant::now() < until {
                let row = row(facts, on, key, counts, verdicts);
                bytes += json_bytes(&row);
                rows.push(row);
            } else {
                omitted.rows += 1;
                omitted.gpus = omitted.gpus.saturating_add(counts.gpus);
            }
        }
        let is_whole = omitted.rows == 0 && omitted.nodes == 0;
        Matrix {
            date: on.to_string(),
            rows,
            unknown_nodes,
            omitted: (!is_whole).then_some(omitted),
            facts: facts.set.name.clone(),
        }
    }
}

pub(super) async fn matrix(call: Call) -> Result<Reply, Failure> {
    let visit: pagination::Visit<Option<NodeTally>> =
        Arc::new(|_, _, node, found| found.push(tally_node(node)));
    let mut turn = Arc::clone(&call.rest.verdicts).lock_owned().await;
    let mut tally = Tally::new();
    let mut batches = pagination::Batches::new(&call.app.controller, call.caller()?, visit);
    while let Some(parts) = batches.next(usize::MAX).await? {
        (turn, tally) = run_blocking(turn, move |_| tally.with(parts)).await?;
    }
    let on = TimeZone::UTC.to_datetime(Timestamp::now()).date();
    let app = Arc::clone(&call.app);
    let answer = run_blocking(turn, move |verdicts| {
        let until = Instant::now() + CHECK_TIMEOUT;
        Reply::json(&tally.evaluate(&app.facts, on, verdicts, until))
    });
    answer.await?.1
}

/// Checks the GPU with the driver alone and with each framework.
fn row(
    facts: &FactSet,
    on: Date,
    key: Key,
    counts: Counts,
    verdicts: &mut VerdictCache,
) -> MatrixRow {
    let mut found: Vec<Arc<CombinationVerdict>> = Vec::new();
    if let (Some(gpu), Some(driver)) = (&key.gpu, &key.driver) {
        let alone = [None].into_iter();
        let frameworks =
            alone.chain(key.frameworks.iter().map(|framework| Some(framework.as_str())));
        found.extend(
            frameworks.filter_map(|framework| verdicts.get(facts, on, (gpu, driver), framework)),
        );
    }
    let mut verdict = found.iter().map(|verdict| verdict.verdict).max();
    let mut reasons: Vec<String> =
        found.iter().flat_map(|verdict| &verdict.reasons).cloned().collect();
    reasons.sort();
    reasons.dedup();
    if key.more_frameworks > 0 {
        // A framework that was not checked must not count as ok.
        verdict = verdict.max(Some(Verdict::Unknown));
        reasons.push(format!(
            "{} more frameworks are not checked: the limit is {FRAMEWORKS_MAX} per row",
            key.more_frameworks
        ));
    }
    let first = found.first();
    let driver: Option<DriverVersion> =
        key.driver.as_deref().and_then(|driver| driver.parse().ok());
    MatrixRow {
        sku: first.map(|verdict| verdict.sku.clone()),
        support: driver.as_ref().and_then(|driver| support(facts, driver, on)),
        exposure: first.map(|verdict| verdict.exposure.clone()),
        verdict: verdict.map_or("unknown", Verdict::name).to_owned(),
        reasons,
        gpu: key.gpu,
        driver: key.driver,
        cuda: key.cuda,
        frameworks: key.frameworks.to_vec(),
        nodes: counts.nodes,
        gpus: counts.gpus,
    }
}

fn support(facts: &FactSet, driver: &DriverVersion, on: Date) -> Option<Support> {
    let branch = facts.drivers.branch(driver.branch())?;
    let status = serde_json::to_value(branch.support(on)).ok()?;
    Some(Support {
        branch: branch.branch.to_string(),
        status: status.as_str()?.to_owned(),
        end: branch.end_of_support.map(|date| date.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ON: Date = jiff::civil::date(2026, 11, 15);

    fn key(gpu: &str, frameworks: usize) -> Key {
        Key {
            gpu: Some(gpu.to_owned()),
            driver: Some("580.95.05".to_owned()),
            cuda: Some("13.0".to_owned()),
            frameworks: (0..frameworks).map(|at| format!("f{at}==1")).collect(),
            more_frameworks: 0,
        }
    }

    fn tally(rows: impl IntoIterator<Item = (Key, u32)>) -> Tally {
        Tally::new().with(vec![Some(NodeTally { rows: rows.into_iter().collect(), more_gpus: 0 })])
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(3600)
    }

    #[test]
    fn combinations_are_evaluated_once_and_rows_with_most_gpus_come_first() {
        let facts = FactSet::embedded();
        let mut verdicts = VerdictCache::default();
        let variants = || {
            (0..1000).map(|at| {
                let cuda = Some(format!("13.{at}"));
                (Key { cuda, ..key("NVIDIA H200", 3) }, at + 1)
            })
        };
        let matrix = tally(variants()).evaluate(facts, ON, &mut verdicts, later());
        assert_eq!(verdicts.count(), 4, "the GPU with its driver, and with each framework");
        assert_eq!(matrix.rows.len(), ROWS_MAX);
        assert_eq!((matrix.rows[0].gpus, matrix.rows[ROWS_MAX - 1].gpus), (1000, 501));
        let omitted = MatrixOmitted { rows: 500, gpus: (1..=500).sum(), nodes: 0 };
        assert_eq!(matrix.omitted, Some(omitted));
        let whole = tally([(key("NVIDIA H200", 3), 8)]);
        assert_eq!(whole.evaluate(facts, ON, &mut verdicts, later()).omitted, None);
    }

    #[test]
    fn equal_nodes_share_a_row_across_batches() {
        let part =
            |gpus| Some(NodeTally { rows: vec![(key("NVIDIA H200", 3), gpus)], more_gpus: 1 });
        let tally = Tally::new().with(vec![part(8), None]).with(vec![part(4)]);
        let counts = tally.rows.values().map(|row| (row.nodes, row.gpus)).collect::<Vec<_>>();
        assert_eq!((counts, tally.unknown_nodes), (vec![(2, 12)], 1));
        assert_eq!(tally.omitted, MatrixOmitted { rows: 0, gpus: 2, nodes: 2 });
    }

    #[test]
    fn rows_not_evaluated_in_time_are_counted() {
        let (facts, mut verdicts) = (FactSet::embedded(), VerdictCache::default());
        let rows = || [(key("NVIDIA H200", 0), 8), (key("NVIDIA L4", 0), 2)];
        let late = tally(rows()).evaluate(facts, ON, &mut verdicts, Instant::now());
        assert_eq!(late.omitted, Some(MatrixOmitted { rows: 2, gpus: 10, nodes: 0 }));
        assert_eq!((late.rows.len(), verdicts.count()), (0, 0));
    }

    #[test]
    fn rows_are_limited_in_bytes() {
        let (facts, mut verdicts) = (FactSet::embedded(), VerdictCache::default());
        let long = "x".repeat(256 << 10);
        // The rows have no driver, so there is nothing to check.
        let wide = |at: u32| Key { driver: None, ..key(&format!("{at}{long}"), 0) };
        let rows = (0..40).map(|at| (wide(at), 1));
        let matrix = tally(rows).evaluate(facts, ON, &mut verdicts, later());
        assert_eq!((matrix.rows.len(), matrix.omitted.unwrap().rows), (16, 24));
    }
}
