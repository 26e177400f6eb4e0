//! Compatibility verdicts for a GPU, a driver and a framework, cached for a day. The number of
//! combinations depends on the names that nodes report. The verdicts are therefore computed on a
//! blocking thread, and for one request at a time.

use std::collections::HashMap;
use std::sync::Arc;

use farrier_facts::FactSet;
use farrier_facts::check::{CheckReport, CheckRequest, NoticeCode, Query, Verdict, check};
use farrier_wire::rest::Exposure;
use jiff::civil::Date;
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::failure::Failure;
use super::nodes::count;

/// Limit on the number of cached verdicts. A verdict takes about a kilobyte. When the limit is
/// reached, the cache is cleared.
const CACHED_MAX: usize = 20_000;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Combination {
    gpu: String,
    driver: String,
    framework: Option<String>,
}

#[derive(Debug)]
pub(super) struct CombinationVerdict {
    pub(super) sku: String,
    pub(super) verdict: Verdict,
    /// Reasons that are worse than `ok`.
    pub(super) reasons: Vec<String>,
    pub(super) exposure: Exposure,
}

#[derive(Debug, Default)]
pub(super) struct VerdictCache {
    on: Option<Date>,
    /// The verdict is `None` if the facts lack the GPU, the driver or the framework.
    cached: HashMap<Combination, Option<Arc<CombinationVerdict>>>,
}

/// The cache. The request that holds the lock is the only one that computes verdicts.
pub(super) type SharedVerdictCache = Arc<Mutex<VerdictCache>>;

/// Runs CPU-bound work on a blocking thread for the request that holds the lock.
pub(super) async fn run_blocking<S: Send + 'static, T: Send + 'static>(
    mut turn: OwnedMutexGuard<S>,
    work: impl FnOnce(&mut S) -> T + Send + 'static,
) -> Result<(OwnedMutexGuard<S>, T), Failure> {
    // The thread keeps the lock. Even if the caller is cancelled, the next caller therefore waits
    // until the work is done.
    let done = tokio::task::spawn_blocking(move || {
        let done = work(&mut turn);
        (turn, done)
    });
    done.await.map_err(|_| Failure::internal_error())
}

impl VerdictCache {
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.cached.len()
    }

    /// Returns the verdict for a day. `None` if the facts lack one of the names.
    pub(super) fn get(
        &mut self,
        facts: &FactSet,
        on: Date,
        (gpu, driver): (&str, &str),
        framework: Option<&str>,
    ) -> Option<Arc<CombinationVerdict>> {
        if self.on != Some(on) || self.cached.len() >= CACHED_MAX {
            self.cached.clear();
            self.on = Some(on);
        }
        let combination = Combination {
            gpu: gpu.to_owned(),
            driver: driver.to_owned(),
            framework: framework.map(str::to_owned),
        };
        if let Some(cached) = self.cached.get(&combination) {
            return cached.clone();
        }
        let verdict = evaluate(facts, on, &combination).map(Arc::new);
        self.cached.insert(combination, verdict.clone());
        verdict
    }
}

fn evaluate(facts: &FactSet, on: Date, combination: &Combination) -> Option<CombinationVerdict> {
    let Combination { gpu, driver, framework } = combination.clone();
    let request = CheckRequest { gpu, driver, framework, ..CheckRequest::default() };
    let report = check(facts, &Query::parse(facts, &request, on).ok()?);
    let exposure = exposure(&report);
    let reasons = report.reasons.into_iter().filter(|reason| reason.verdict > Verdict::Ok);
    Some(CombinationVerdict {
        sku: report.subject.gpu,
        verdict: report.verdict,
        reasons: reasons.map(|reason| reason.text).collect(),
        exposure,
    })
}

fn exposure(report: &CheckReport) -> Exposure {
    let exposed = || report.notices.iter().filter(|notice| notice.code == NoticeCode::Exposed);
    let score = |score: Option<f64>| score.unwrap_or_default();
    let worst = exposed().max_by(|a, b| score(a.score).total_cmp(&score(b.score)));
    let unknown = report.notices.iter().find(|notice| notice.code == NoticeCode::ExposureUnknown);
    Exposure {
        advisories: count(exposed().count()),
        worst: worst.and_then(|notice| {
            let id = notice.id.as_deref()?;
            Some(format!("{id} ({} {})", score(notice.score), notice.level.unwrap_or_default()))
        }),
        fixed_in: exposed()
            .filter_map(|notice| notice.fixed.as_ref())
            .max()
            .map(ToString::to_string),
        unknown: unknown.map(|notice| notice.text.clone()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// Only ends a test that hangs.
    const PATIENCE: Duration = Duration::from_secs(300);

    #[test]
    fn a_combination_is_evaluated_once_a_day() {
        let (facts, mut verdicts) = (FactSet::embedded(), VerdictCache::default());
        let mut verdict_on = |on| {
            let names = ("NVIDIA H200", "580.95.05");
            verdicts.get(facts, on, names, None).expect("the facts include both")
        };
        let day = jiff::civil::date(2026, 11, 15);
        let first = verdict_on(day);
        assert!(Arc::ptr_eq(&first, &verdict_on(day)));
        assert!(!Arc::ptr_eq(&first, &verdict_on(day.tomorrow().unwrap())));
    }

    /// The runtime of this test has a single thread. The test can release the work only if the work
    /// does not block this thread.
    #[tokio::test]
    async fn blocking_work_leaves_the_runtime_free_and_runs_for_one_request_at_a_time() {
        let shared = Arc::new(Mutex::new(Vec::new()));
        let (release, released) = mpsc::channel::<()>();
        let (started, mut has_started) = tokio::sync::mpsc::unbounded_channel();
        let first = tokio::spawn({
            let shared = Arc::clone(&shared);
            async move {
                let work = move |order: &mut Vec<u32>| {
                    started.send(()).unwrap();
                    released.recv_timeout(PATIENCE).unwrap();
                    order.push(1);
                };
                run_blocking(shared.lock_owned().await, work).await.unwrap();
            }
        });
        has_started.recv().await.unwrap();
        let second = tokio::spawn({
            let shared = Arc::clone(&shared);
            async move {
                let turn = shared.lock_owned().await;
                run_blocking(turn, |order: &mut Vec<u32>| order.push(2)).await.unwrap();
            }
        });
        // If the first caller is cancelled, the second one still has to wait.
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        tokio::task::yield_now().await;
        assert!(shared.try_lock().is_err(), "the first still runs");
        release.send(()).unwrap();
        second.await.unwrap();
        assert_eq!(*shared.lock().await, [1, 2]);
    }
}
