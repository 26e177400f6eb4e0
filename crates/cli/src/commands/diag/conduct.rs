//! All tests of all GPUs: side by side where they do not disturb each other.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use farrier_facts::FactSet;
use farrier_facts::diag::{Grade, History, Least, Level, Outcome, Test, Unit, judge};
use farrier_hardware::cuda::GpuInfo;
use farrier_hardware::cuda::gpu_tests::TestBudget;
use jiff::Timestamp;

use super::card::Card;
use super::child::{Closed, Examiner};
use super::history::{self, Kept, Ledger};
use super::interrupt::Progress;
use super::meanwhile;
use super::report::{GpuReport, Row, Series, What};
use super::watch::Watch;
use crate::printer::Printer;

/// Which tests, and how much of each.
pub(super) struct Plan {
    tests: Vec<Test>,
    effort: TestBudget,
}

/// The share of `--minutes` that is steady load; the rest hunts corruption.
const SOAK_SHARE: f64 = 0.6;

impl Plan {
    pub(super) fn new(level: Level, only: &[Test], minutes: f64, is_simulated: bool) -> Self {
        let tests = Test::ALL.into_iter();
        let tests = if only.is_empty() {
            tests.filter(|test| test.level() <= level).collect()
        } else {
            tests.filter(|test| only.contains(test)).collect()
        };
        let mut effort = TestBudget::full(minutes * 60.0);
        if is_simulated {
            // The host does the work: in little memory.
            effort.transfer_bytes = 1 << 20;
        }
        Self { tests, effort }
    }

    /// The highest level of what is run.
    pub(super) fn level(&self) -> Level {
        self.tests.iter().map(|test| test.level()).max().unwrap_or(Level::One)
    }

    fn effort(&self, test: Test) -> TestBudget {
        let share = if test == Test::Soak { SOAK_SHARE } else { 1.0 - SOAK_SHARE };
        TestBudget { soak_s: self.effort.soak_s * share, ..self.effort }
    }
}

/// What came of it.
pub(super) struct Conducted {
    pub(super) gpus: Vec<GpuReport>,
    pub(super) notes: Vec<String>,
}

/// What all GPUs have in common.
pub(super) struct Scene<'a> {
    pub(super) plan: &'a Plan,
    pub(super) history: &'a Path,
    pub(super) set: &'a FactSet,
    pub(super) driver: Option<&'a str>,
    pub(super) watch: Option<&'a Watch>,
    /// Others may be on the GPUs, and somebody wants it so.
    pub(super) is_forced: bool,
    /// The host's memory is one: transfers of two GPUs at once measure neither.
    pub(super) host: Mutex<()>,
    /// For whoever ends it early.
    pub(super) progress: Progress,
}

/// What came of one GPU, before copies to others.
struct Tested {
    gpu: GpuReport,
    ledger: Result<Ledger, String>,
    /// Why it was given no more work.
    stopped: Option<String>,
    /// Who else was on it, in words.
    disturbers: Option<String>,
    notes: Vec<String>,
}

impl Tested {
    fn new(card: &Card, about: Option<GpuInfo>, rows: Vec<Row>, series: Vec<Series>) -> Self {
        Self {
            gpu: gpu_report(card, about, rows, series),
            ledger: Err("nothing was measured, and nothing is kept".to_owned()),
            stopped: None,
            disturbers: None,
            notes: Vec::new(),
        }
    }
}

/// Runs everything. A line tells on a terminal how far it is.
pub(super) fn all(
    scene: &Scene<'_>,
    cards: &[Card],
    printer: &mut Printer,
) -> io::Result<Conducted> {
    let (tell, told) = channel::<String>();
    let results: Vec<Tested> = std::thread::scope(|scope| {
        let workers: Vec<_> = cards
            .iter()
            .map(|card| {
                let tell = tell.clone();
                scope.spawn(move || scene.one(card, &tell))
            })
            .collect();
        drop(tell);
        for text in told {
            // Who watches sees how it goes; what cannot be written now cannot be written later either.
            if printer.is_terminal() {
                let _ = printer.take_back().and_then(|()| printer.transient(&text));
            }
        }
        let ended = workers.into_iter().zip(cards);
        ended.map(|(worker, card)| worker.join().unwrap_or_else(|_| lost(card))).collect()
    });
    if printer.is_terminal() {
        printer.take_back()?;
    }
    let mut conducted = Conducted { gpus: Vec::new(), notes: Vec::new() };
    for (mut tested, card) in results.into_iter().zip(cards) {
        scene.peers(card, cards, &mut tested);
        if let Some(by) = &tested.disturbers {
            tested.gpu.disturbed(by);
        }
        conducted.notes.append(&mut tested.notes);
        conducted.notes.extend(scene.keep(card, &tested).err());
        conducted.gpus.push(tested.gpu);
    }
    Ok(conducted)
}

/// A thread of ours that panicked has tested nothing.
fn lost(card: &Card) -> Tested {
    let rows =
        vec![Row::not_run(Test::Allocate, "the test itself broke: this is a fault of Farrier")];
    Tested::new(card, None, rows, Vec::new())
}

impl Scene<'_> {
    /// All of one GPU but what needs the others.
    fn one(&self, card: &Card, tell: &Sender<String>) -> Tested {
        let tests: Vec<Test> =
            self.plan.tests.iter().copied().filter(|test| *test != Test::PeerCopy).collect();
        if let Some(barred) = &card.barred {
            return Tested::new(card, None, barred.rows(&tests), Vec::new());
        }
        let ledger = Ledger::open(self.history, &card.uuid);
        let mut rows: Vec<Row> = Vec::new();
        let mut examiner: Option<Examiner> = None;
        let mut about = None;
        let mut stopped: Option<String> = None;
        let mut ours: BTreeSet<u32> = BTreeSet::new();
        for test in tests {
            if let Some(why) = &stopped {
                rows.push(Row::not_run(test, why));
                continue;
            }
            let _ = tell.send(format!("GPU {}: {test}, {}", card.index, test.meaning()));
            let (outcome, took_s) = match ready(card, &mut examiner) {
                Ok(ready) => {
                    about = Some(ready.about.clone());
                    ours.insert(ready.pid());
                    self.tested(card, ready, test, tell)
                }
                Err(closed) => {
                    // It may take minutes to say so, and would say the same before each of the tests that are left.
                    let again = if about.is_some() { " again" } else { "" };
                    stopped = Some(format!("the GPU could not be opened{again}: {}", closed.why));
                    (Err(closed.outcome()), 0.0)
                }
            };
            let hung = examiner.as_ref().is_some_and(|examiner| examiner.hung);
            if outcome.is_err() {
                examiner = None;
            }
            let outcome = outcome.unwrap_or_else(|outcome| outcome);
            let row = self.judged(card, test, &outcome, ledger.as_ref().ok(), took_s);
            self.progress.ended(card.index, test, row.grade);
            rows.push(row);
            stopped = stopped.or_else(|| why_stop(test, &outcome, hung));
        }
        drop(examiner);
        let tested = Tested { ledger, stopped, ..Tested::new(card, about, rows, Vec::new()) };
        self.looked_back(card, tested, &ours)
    }

    /// What NVML saw meanwhile, and who else was there.
    fn looked_back(&self, card: &Card, mut tested: Tested, ours: &BTreeSet<u32>) -> Tested {
        let Some(watch) = self.watch.filter(|_| tested.gpu.about.is_some()) else { return tested };
        let watched = watch.whole(&card.uuid);
        tested.gpu.tests.push(meanwhile::row(&watched, &watch.before(&card.uuid)));
        tested.gpu.series = meanwhile::series(&watched);
        match watched.disturbers(ours) {
            Ok(pids) if pids.is_empty() => {}
            Ok(pids) => {
                let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
                let by = format!("process {}", pids.join(", "));
                tested.notes.push(format!("GPU {}: it was disturbed by {by}", card.index));
                tested.disturbers = Some(by);
            }
            Err(why) => {
                let note =
                    format!("GPU {}: whether it was disturbed is not known: {why}", card.index);
                tested.notes.push(note);
            }
        }
        tested.gpu.sum_up();
        tested
    }

    fn tested(
        &self,
        card: &Card,
        examiner: &mut Examiner,
        test: Test,
        tell: &Sender<String>,
    ) -> (Result<Outcome, Outcome>, f64) {
        let is_alone = matches!(
            test,
            Test::PcieToGpu | Test::PcieToHost | Test::LaunchStream | Test::LaunchGraph
        );
        let _alone = is_alone.then(|| self.host.lock().unwrap_or_else(PoisonError::into_inner));
        let began = Instant::now();
        let outcome = examiner.run(test, self.plan.effort(test), &mut |beat| {
            let rate =
                beat.tflops.map(|tflops| format!(", {tflops:.0} TFLOP/s")).unwrap_or_default();
            let _ = tell.send(format!("GPU {}: {test}, {:.0} s{rate}", card.index, beat.at_s));
        });
        (outcome, began.elapsed().as_secs_f64())
    }

    fn judged(
        &self,
        card: &Card,
        test: Test,
        outcome: &Outcome,
        ledger: Option<&Ledger>,
        took_s: f64,
    ) -> Row {
        let values = ledger.map(|ledger| ledger.values(test, self.driver)).unwrap_or_default();
        let verdict = evaluate(test, outcome, self.least(card, test), History(&values));
        let (value, samples, detail) = match outcome {
            Outcome::Done { value, samples, detail } => (*value, samples.clone(), detail.clone()),
            _ => (None, Vec::new(), String::new()),
        };
        Row {
            test: What::Test(test),
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
            applies: !matches!(outcome, Outcome::Unsupported { .. }),
            remedy: None,
        }
    }

    fn least(&self, card: &Card, test: Test) -> Option<Baseline> {
        let part = card.part.as_ref()?;
        let gpu = self.set.gpus.gpu.iter().find(|gpu| gpu.id == *part)?;
        self.set.diag.least(gpu, test, card.place)
    }

    /// Keeps what passed, for the next time: what was measured beside others is not what the card reaches. `Err`: it could not
    /// be kept, and why.
    fn keep(&self, card: &Card, tested: &Tested) -> Result<(), String> {
        // Simulated results are kept only where somebody has named a folder that is not the machine's own.
        let is_foreign = card.simulated.is_some() && self.history == Path::new(history::FOLDER);
        if is_foreign || self.is_forced || tested.disturbers.is_some() || card.barred.is_some() {
            return Ok(());
        }
        let ledger = tested.ledger.as_ref().map_err(Clone::clone)?;
        ledger.keep(&self.kept(&tested.gpu.tests))
    }

    fn kept(&self, rows: &[Row]) -> Vec<Kept> {
        let at = Timestamp::now();
        let kept = rows.iter().filter(|row| row.grade == Grade::Pass && row.unit != Unit::Gb);
        kept.filter_map(|row| match (row.test, row.value) {
            (What::Test(test), Some(value)) => {
                Some(Kept { at, driver: self.driver.map(str::to_owned), test, value })
            }
            _ => None,
        })
        .collect()
    }

    /// Copies to the others, when they have nothing else to do.
    fn peers(&self, card: &Card, cards: &[Card], tested: &mut Tested) {
        if !self.plan.tests.contains(&Test::PeerCopy) {
            return;
        }
        let others: Vec<&Card> = cards
            .iter()
            .filter(|other| other.uuid != card.uuid && other.barred.is_none())
            .collect();
        let is_alone = others.is_empty() && card.simulated.is_none();
        let is_asked_alone = self.plan.tests == [Test::PeerCopy];
        let row =
            if let Some(why) = card.barred.as_ref().map(|it| &it.why).or(tested.stopped.as_ref()) {
                Row::not_run(Test::PeerCopy, why)
            } else if tested.gpu.about.is_none() && !is_asked_alone {
                Row::not_run(Test::PeerCopy, "the GPU was not opened")
            } else if is_alone {
                Row::has_not(Test::PeerCopy, "there is no other GPU to copy to")
            } else {
                let began = Instant::now();
                let outcome = match Examiner::open(card, &others) {
                    Ok(mut examiner) => {
                        tested.gpu.about.get_or_insert_with(|| examiner.about.clone());
                        examiner
                            .run(Test::PeerCopy, self.plan.effort(Test::PeerCopy), &mut |_| ())
                            .unwrap_or_else(|outcome| outcome)
                    }
                    Err(closed) => closed.outcome(),
                };
                let ledger = tested.ledger.as_ref().ok();
                self.judged(card, Test::PeerCopy, &outcome, ledger, began.elapsed().as_secs_f64())
            };
        tested.gpu.tests.push(row);
        tested.gpu.sum_up();
    }
}

/// The child of a GPU, started anew where there is none.
fn ready<'e>(card: &Card, examiner: &'e mut Option<Examiner>) -> Result<&'e mut Examiner, Closed> {
    if examiner.is_none() {
        *examiner = Some(Examiner::open(card, &[])?);
    }
    let gone = || Closed { why: "the child is gone".to_owned(), is_of_gpu: false };
    examiner.as_mut().ok_or_else(gone)
}

/// A GPU that hangs, or that gets the simplest things wrong, is given no more work.
fn why_stop(test: Test, outcome: &Outcome, hung: bool) -> Option<String> {
    if hung {
        return Some(format!("it hung in `{test}`"));
    }
    let is_basic = matches!(test, Test::Allocate | Test::Compute);
    match outcome {
        Outcome::Failed { .. } | Outcome::Wrong { .. } if is_basic => {
            Some(format!("`{test}` failed before"))
        }
        _ => None,
    }
}

fn gpu_report(
    card: &Card,
    about: Option<GpuInfo>,
    tests: Vec<Row>,
    series: Vec<Series>,
) -> GpuReport {
    let mut report = GpuReport {
        index: card.index,
        uuid: Some(card.uuid.clone()).filter(|uuid| !uuid.is_empty()),
        name: card.name.clone(),
        part: card.part.clone(),
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
