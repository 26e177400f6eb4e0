//! Runs all tests on all GPUs. Tests that do not disturb each other run concurrently.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use farrier_facts::FactSet;
use farrier_facts::diag::{Baseline, Grade, History, Level, Test, TestOutcome, Unit, evaluate};
use farrier_hardware::cuda::GpuInfo;
use farrier_hardware::cuda::gpu_tests::TestBudget;
use jiff::Timestamp;

use super::child::{GpuOpenError, TestChild};
use super::history::{self, PastResult, ResultHistory};
use super::interference;
use super::interrupt::DiagProgress;
use super::monitor::NvmlMonitor;
use super::report::{GpuReport, RowKind, SignalSeries, TestRow};
use super::target::DiagTarget;
use crate::printer::Printer;

/// Which tests to run, and the budget of each.
pub(super) struct TestPlan {
    tests: Vec<Test>,
    budget: TestBudget,
}

/// Share of `--minutes` for steady load. The search for corruption uses the rest.
const SOAK_SHARE: f64 = 0.6;

impl TestPlan {
    pub(super) fn new(level: Level, only: &[Test], minutes: f64, is_simulated: bool) -> Self {
        let tests = Test::ALL.into_iter();
        let tests = if only.is_empty() {
            tests.filter(|test| test.level() <= level).collect()
        } else {
            tests.filter(|test| only.contains(test)).collect()
        };
        let mut budget = TestBudget::full(minutes * 60.0);
        if is_simulated {
            // The host simulates the GPU, so use little memory.
            budget.transfer_bytes = 1 << 20;
        }
        Self { tests, budget }
    }

    /// The highest level among the tests.
    pub(super) fn level(&self) -> Level {
        self.tests.iter().map(|test| test.level()).max().unwrap_or(Level::One)
    }

    fn budget(&self, test: Test) -> TestBudget {
        let share = if test == Test::Soak { SOAK_SHARE } else { 1.0 - SOAK_SHARE };
        TestBudget { soak_s: self.budget.soak_s * share, ..self.budget }
    }
}

/// Results of all GPUs.
pub(super) struct RunResult {
    pub(super) gpus: Vec<GpuReport>,
    pub(super) notes: Vec<String>,
}

/// Shared context of the tests of all GPUs.
pub(super) struct TestRunner<'a> {
    pub(super) plan: &'a TestPlan,
    pub(super) history: &'a Path,
    pub(super) set: &'a FactSet,
    pub(super) driver: Option<&'a str>,
    pub(super) monitor: Option<&'a NvmlMonitor>,
    /// Whether `--force` was given, so that other processes may be on the GPUs.
    pub(super) is_forced: bool,
    /// A lock for the tests of transfers and launches. Two GPUs at once would compete for the
    /// memory bandwidth and the processors of the host.
    pub(super) host: Mutex<()>,
    /// Printed if the run is interrupted.
    pub(super) progress: DiagProgress,
}

/// Result of one GPU, before peer copies.
struct GpuRun {
    gpu: GpuReport,
    history: Result<ResultHistory, String>,
    /// Why no further test was started.
    stopped: Option<String>,
    /// Other processes on the GPU, for messages.
    disturbers: Option<String>,
    notes: Vec<String>,
}

impl GpuRun {
    fn new(
        target: &DiagTarget,
        about: Option<GpuInfo>,
        rows: Vec<TestRow>,
        series: Vec<SignalSeries>,
    ) -> Self {
        Self {
            gpu: gpu_report(target, about, rows, series),
            history: Err("nothing was measured".to_owned()),
            stopped: None,
            disturbers: None,
            notes: Vec::new(),
        }
    }
}

/// Runs all tests. On a terminal a transient line shows progress.
pub(super) fn run_all(
    runner: &TestRunner<'_>,
    targets: &[DiagTarget],
    printer: &mut Printer,
) -> io::Result<RunResult> {
    let (progress, messages) = channel::<String>();
    let results: Vec<GpuRun> = std::thread::scope(|scope| {
        let workers: Vec<_> = targets
            .iter()
            .map(|target| {
                let progress = progress.clone();
                scope.spawn(move || runner.test_gpu(target, &progress))
            })
            .collect();
        drop(progress);
        for text in messages {
            // Ignore a failed write. Printing the report will fail too, and that error is reported.
            if printer.is_terminal() {
                let _ = printer.clear_transient().and_then(|()| printer.transient(&text));
            }
        }
        let joined = workers.into_iter().zip(targets);
        joined.map(|(worker, target)| worker.join().unwrap_or_else(|_| panicked(target))).collect()
    });
    if printer.is_terminal() {
        printer.clear_transient()?;
    }
    let mut run = RunResult { gpus: Vec::new(), notes: Vec::new() };
    for (mut gpu_run, target) in results.into_iter().zip(targets) {
        runner.test_peers(target, targets, &mut gpu_run);
        if let Some(by) = &gpu_run.disturbers {
            gpu_run.gpu.mark_disturbed(by);
        }
        run.notes.append(&mut gpu_run.notes);
        run.notes.extend(runner.record_history(target, &gpu_run).err());
        run.gpus.push(gpu_run.gpu);
    }
    Ok(run)
}

/// The result of a worker thread that panicked.
fn panicked(target: &DiagTarget) -> GpuRun {
    let rows = vec![TestRow::not_run(
        Test::Allocate,
        "the test program panicked: this is a bug in Farrier",
    )];
    GpuRun::new(target, None, rows, Vec::new())
}

impl TestRunner<'_> {
    /// Runs all tests of one GPU except peer copies.
    fn test_gpu(&self, target: &DiagTarget, progress: &Sender<String>) -> GpuRun {
        let tests: Vec<Test> =
            self.plan.tests.iter().copied().filter(|test| *test != Test::PeerCopy).collect();
        if let Some(untestable) = &target.untestable {
            return GpuRun::new(target, None, untestable.rows(&tests), Vec::new());
        }
        let history = ResultHistory::open(self.history, &target.uuid);
        let mut rows: Vec<TestRow> = Vec::new();
        let mut child: Option<TestChild> = None;
        let mut about = None;
        let mut stopped: Option<String> = None;
        let mut ours: BTreeSet<u32> = BTreeSet::new();
        for test in tests {
            if let Some(why) = &stopped {
                rows.push(TestRow::not_run(test, why));
                continue;
            }
            let _ = progress.send(format!("GPU {}: {test}, {}", target.index, test.meaning()));
            let (outcome, took_s) = match child_for(target, &mut child) {
                Ok(ready) => {
                    about = Some(ready.about.clone());
                    ours.insert(ready.pid());
                    self.run_test(target, ready, test, progress)
                }
                Err(error) => {
                    // Opening the GPU may take minutes, and would fail in the same way for each
                    // remaining test.
                    let again = if about.is_some() { " again" } else { "" };
                    stopped = Some(format!("the GPU could not be opened{again}: {}", error.why));
                    (Err(error.outcome()), 0.0)
                }
            };
            let hung = child.as_ref().is_some_and(|child| child.hung);
            if outcome.is_err() {
                child = None;
            }
            let outcome = outcome.unwrap_or_else(|outcome| outcome);
            let row = self.judge_row(target, test, &outcome, history.as_ref().ok(), took_s);
            self.progress.record(target.index, test, row.grade);
            rows.push(row);
            stopped = stopped.or_else(|| stop_reason(test, &outcome, hung));
        }
        drop(child);
        let gpu_run = GpuRun { history, stopped, ..GpuRun::new(target, about, rows, Vec::new()) };
        self.add_telemetry(target, gpu_run, &ours)
    }

    /// Adds what NVML reported during the tests, and which other processes were on the GPU.
    fn add_telemetry(
        &self,
        target: &DiagTarget,
        mut gpu_run: GpuRun,
        ours: &BTreeSet<u32>,
    ) -> GpuRun {
        let Some(monitor) = self.monitor.filter(|_| gpu_run.gpu.about.is_some()) else {
            return gpu_run;
        };
        let telemetry = monitor.finish(&target.uuid);
        gpu_run
            .gpu
            .tests
            .push(interference::row(&telemetry, &monitor.prior_findings(&target.uuid)));
        gpu_run.gpu.series = interference::series(&telemetry);
        match telemetry.disturbers(ours) {
            Ok(pids) if pids.is_empty() => {}
            Ok(pids) => {
                let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
                let by = format!("process {}", pids.join(", "));
                gpu_run.notes.push(format!("GPU {}: disturbed by {by}", target.index));
                gpu_run.disturbers = Some(by);
            }
            Err(why) => {
                let note = format!("GPU {}: unknown whether it was disturbed: {why}", target.index);
                gpu_run.notes.push(note);
            }
        }
        gpu_run.gpu.sum_up();
        gpu_run
    }

    fn run_test(
        &self,
        target: &DiagTarget,
        child: &mut TestChild,
        test: Test,
        progress: &Sender<String>,
    ) -> (Result<TestOutcome, TestOutcome>, f64) {
        let is_exclusive = matches!(
            test,
            Test::PcieToGpu | Test::PcieToHost | Test::LaunchStream | Test::LaunchGraph
        );
        let _exclusive =
            is_exclusive.then(|| self.host.lock().unwrap_or_else(PoisonError::into_inner));
        let started = Instant::now();
        let outcome = child.run(test, self.plan.budget(test), &mut |status| {
            let rate =
                status.tflops.map(|tflops| format!(", {tflops:.0} TFLOP/s")).unwrap_or_default();
            let _ =
                progress.send(format!("GPU {}: {test}, {:.0} s{rate}", target.index, status.at_s));
        });
        (outcome, started.elapsed().as_secs_f64())
    }

    fn judge_row(
        &self,
        target: &DiagTarget,
        test: Test,
        outcome: &TestOutcome,
        history: Option<&ResultHistory>,
        took_s: f64,
    ) -> TestRow {
        let values = history.map(|history| history.values(test, self.driver)).unwrap_or_default();
        let verdict = evaluate(test, outcome, self.baseline(target, test), History(&values));
        let (value, samples, detail) = match outcome {
            TestOutcome::Done { value, samples, detail } => {
                (*value, samples.clone(), detail.clone())
            }
            _ => (None, Vec::new(), String::new()),
        };
        TestRow {
            test: RowKind::Test(test),
            meaning: test.meaning(),
            grade: verdict.grade,
            why: verdict.why,
            unit: test.unit(),
            value,
            samples,
            detail,
            least: verdict.least,
            usual: verdict.usual,
            took_s,
            applies: !matches!(outcome, TestOutcome::Unsupported { .. }),
            remedy: None,
        }
    }

    fn baseline(&self, target: &DiagTarget, test: Test) -> Option<Baseline> {
        let part = target.part.as_ref()?;
        let gpu = self.set.gpus.gpu.iter().find(|gpu| gpu.id == *part)?;
        self.set.diag.least(gpu, test, target.place)
    }

    /// Appends passed results to the GPU's history. Results that other processes may have disturbed
    /// are left out.
    fn record_history(&self, target: &DiagTarget, gpu_run: &GpuRun) -> Result<(), String> {
        // Simulated results must not mix with real ones in the default directory.
        let is_simulated_in_default =
            target.simulated.is_some() && self.history == Path::new(history::DEFAULT_DIRECTORY);
        if is_simulated_in_default
            || self.is_forced
            || gpu_run.disturbers.is_some()
            || target.untestable.is_some()
        {
            return Ok(());
        }
        let history = gpu_run.history.as_ref().map_err(Clone::clone)?;
        history.append(&self.passed(&gpu_run.gpu.tests))
    }

    fn passed(&self, rows: &[TestRow]) -> Vec<PastResult> {
        let at = Timestamp::now();
        let passed = rows.iter().filter(|row| row.grade == Grade::Pass && row.unit != Unit::Gb);
        passed
            .filter_map(|row| match (row.test, row.value) {
                (RowKind::Test(test), Some(value)) => {
                    Some(PastResult { at, driver: self.driver.map(str::to_owned), test, value })
                }
                _ => None,
            })
            .collect()
    }

    /// Tests copies to the other GPUs, after the other tests of all GPUs.
    fn test_peers(&self, target: &DiagTarget, targets: &[DiagTarget], gpu_run: &mut GpuRun) {
        if !self.plan.tests.contains(&Test::PeerCopy) {
            return;
        }
        let others: Vec<&DiagTarget> = targets
            .iter()
            .filter(|other| other.uuid != target.uuid && other.untestable.is_none())
            .collect();
        let has_no_peer = others.is_empty() && target.simulated.is_none();
        let is_only_test = self.plan.tests == [Test::PeerCopy];
        let row = if let Some(why) = target
            .untestable
            .as_ref()
            .map(|untestable| &untestable.why)
            .or(gpu_run.stopped.as_ref())
        {
            TestRow::not_run(Test::PeerCopy, why)
        } else if gpu_run.gpu.about.is_none() && !is_only_test {
            TestRow::not_run(Test::PeerCopy, "the GPU was not opened")
        } else if has_no_peer {
            TestRow::not_applicable(Test::PeerCopy, "no other GPU to copy to")
        } else {
            let started = Instant::now();
            let outcome = match TestChild::open(target, &others) {
                Ok(mut child) => {
                    gpu_run.gpu.about.get_or_insert_with(|| child.about.clone());
                    child
                        .run(Test::PeerCopy, self.plan.budget(Test::PeerCopy), &mut |_| ())
                        .unwrap_or_else(|outcome| outcome)
                }
                Err(error) => error.outcome(),
            };
            let history = gpu_run.history.as_ref().ok();
            let took_s = started.elapsed().as_secs_f64();
            self.judge_row(target, Test::PeerCopy, &outcome, history, took_s)
        };
        gpu_run.gpu.tests.push(row);
        gpu_run.gpu.sum_up();
    }
}

/// The GPU's child process, started if there is none.
fn child_for<'c>(
    target: &DiagTarget,
    child: &'c mut Option<TestChild>,
) -> Result<&'c mut TestChild, GpuOpenError> {
    if child.is_none() {
        *child = Some(TestChild::open(target, &[])?);
    }
    let gone = || GpuOpenError { why: "the child process is gone".to_owned(), is_gpu_fault: false };
    child.as_mut().ok_or_else(gone)
}

/// Why no further test is started: the GPU hung, or failed a basic test.
fn stop_reason(test: Test, outcome: &TestOutcome, hung: bool) -> Option<String> {
    if hung {
        return Some(format!("it hung in `{test}`"));
    }
    let is_basic = matches!(test, Test::Allocate | Test::Compute);
    match outcome {
        TestOutcome::Failed { .. } | TestOutcome::Wrong { .. } if is_basic => {
            Some(format!("`{test}` failed"))
        }
        _ => None,
    }
}

fn gpu_report(
    target: &DiagTarget,
    about: Option<GpuInfo>,
    tests: Vec<TestRow>,
    series: Vec<SignalSeries>,
) -> GpuReport {
    let mut report = GpuReport {
        index: target.index,
        uuid: Some(target.uuid.clone()).filter(|uuid| !uuid.is_empty()),
        name: target.name.clone(),
        part: target.part.clone(),
        grade: Grade::NotRun,
        complete: false,
        missing: Vec::new(),
        remedy: None,
        about,
        tests,
        series,
    };
    report.sum_up();
    report
}
