//! Verdicts on GPU × driver × framework. Each combination is judged once a day, off the runtime's threads and for one request
//! at a time: nodes choose the names, so the number of combinations is theirs to choose too.

use std::collections::HashMap;
use std::sync::Arc;

use farrier_facts::FactSet;
use farrier_facts::check::{CheckReport, NoticeCode, Query, Request, Verdict, check};
use farrier_wire::rest::Exposure;
use jiff::civil::Date;
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::failure::Failure;
use super::nodes::count;

/// Judgements that are remembered, about a kilobyte each. When there are more, all are forgotten.
const REMEMBERED_MAX: usize = 20_000;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Combination {
    gpu: String,
    driver: String,
    framework: Option<String>,
}

/// The verdict on one combination.
#[derive(Debug)]
pub(super) struct Judgement {
    pub(super) sku: String,
    pub(super) verdict: Verdict,
    /// Only what is worse than `ok`.
    pub(super) reasons: Vec<String>,
    pub(super) exposure: Exposure,
}

/// The judgements of one day.
#[derive(Debug, Default)]
pub(super) struct Judgements {
    on: Option<Date>,
    /// `None`: the facts do not know the GPU, the driver or the framework.
    known: HashMap<Combination, Option<Arc<Judgement>>>,
}

/// The judgements, for one request at a time.
pub(super) type SharedJudgements = Arc<Mutex<Judgements>>;

/// Runs work that takes the processor for long on a thread of its own, for the request whose turn it is.
pub(super) async fn off_runtime<S: Send + 'static, T: Send + 'static>(
    mut turn: OwnedMutexGuard<S>,
    work: impl FnOnce(&mut S) -> T + Send + 'static,
) -> Result<(OwnedMutexGuard<S>, T), Failure> {
    // The thread holds the lock: a caller that stops waiting does not let the next one in beside it.
    let done = tokio::task::spawn_blocking(move || {
        let done = work(&mut turn);
        (turn, done)
    });
    done.await.map_err(|_| Failure::unwell())
}

impl Judgements {
    /// Combinations that were judged.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.known.len()
    }

    /// The verdict for a day; `None` where the facts do not know the names.
    pub(super) fn judge(
        &mut self,
        facts: &FactSet,
        on: Date,
        (gpu, driver): (&str, &str),
        framework: Option<&str>,
    ) -> Option<Arc<Judgement>> {
        if self.on != Some(on) || self.known.len() >= REMEMBERED_MAX {
            self.known.clear();
            self.on = Some(on);
        }
        let combination = Combination {
            gpu: gpu.to_owned(),
            driver: driver.to_owned(),
            framework: framework.map(str::to_owned),
        };
        if let Some(known) = self.known.get(&combination) {
            return known.clone();
        }
        let judgement = judgement(facts, on, &combination).map(Arc::new);
        self.known.insert(combination, judgement.clone());
        judgement
    }
}

fn judgement(facts: &FactSet, on: Date, asked: &Combination) -> Option<Judgement> {
    let Combination { gpu, driver, framework } = asked.clone();
    let request = Request { gpu, driver, framework, ..Request::default() };
    let report = check(facts, &Query::parse(facts, &request, on).ok()?);
    let exposure = exposure(&report);
    let reasons = report.reasons.into_iter().filter(|it| it.verdict > Verdict::Ok);
    Some(Judgement {
        sku: report.subject.gpu,
        verdict: report.verdict,
        reasons: reasons.map(|it| it.text).collect(),
        exposure,
    })
}

fn exposure(report: &CheckReport) -> Exposure {
    let exposed = || report.notices.iter().filter(|it| it.code == NoticeCode::Exposed);
    let score = |score: Option<f64>| score.unwrap_or_default();
    let worst = exposed().max_by(|a, b| score(a.score).total_cmp(&score(b.score)));
    let unknown = report.notices.iter().find(|it| it.code == NoticeCode::ExposureUnknown);
    Exposure {
        advisories: count(exposed().count()),
        worst: worst.and_then(|it| {
            let id = it.id.as_deref()?;
            Some(format!("{id} ({} {})", score(it.score), it.level.unwrap_or_default()))
        }),
        fixed_in: exposed().filter_map(|it| it.fixed.as_ref()).max().map(ToString::to_string),
        unknown: unknown.map(|it| it.text.clone()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// A deadline ends a hang and says nothing about speed.
    const PATIENCE: Duration = Duration::from_secs(300);

    #[test]
    fn a_combination_is_judged_once_a_day() {
        let (facts, mut judgements) = (FactSet::embedded(), Judgements::default());
        let mut judge = |on| {
            let asked = ("NVIDIA H200", "580.95.05");
            judgements.judge(facts, on, asked, None).expect("the facts know both")
        };
        let day = jiff::civil::date(2026, 11, 15);
        let first = judge(day);
        assert!(Arc::ptr_eq(&first, &judge(day)));
        assert!(!Arc::ptr_eq(&first, &judge(day.tomorrow().unwrap())));
    }

    /// On a runtime of one thread, which is free while the work waits for what only it can do.
    #[tokio::test]
    async fn work_leaves_the_runtime_free_and_runs_for_one_request_at_a_time() {
        let shared = Arc::new(Mutex::new(Vec::new()));
        let (go_on, released) = mpsc::channel::<()>();
        let (begun, mut has_begun) = tokio::sync::mpsc::unbounded_channel();
        let first = tokio::spawn({
            let shared = Arc::clone(&shared);
            async move {
                let work = move |order: &mut Vec<u32>| {
                    begun.send(()).unwrap();
                    released.recv_timeout(PATIENCE).unwrap();
                    order.push(1);
                };
                off_runtime(shared.lock_owned().await, work).await.unwrap();
            }
        });
        has_begun.recv().await.unwrap();
        let second = tokio::spawn({
            let shared = Arc::clone(&shared);
            async move {
                let turn = shared.lock_owned().await;
                off_runtime(turn, |order: &mut Vec<u32>| order.push(2)).await.unwrap();
            }
        });
        // A caller that does not wait any longer does not let the second in.
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        tokio::task::yield_now().await;
        assert!(shared.try_lock().is_err(), "the first still runs");
        go_on.send(()).unwrap();
        second.await.unwrap();
        assert_eq!(*shared.lock().await, [1, 2]);
    }
}
