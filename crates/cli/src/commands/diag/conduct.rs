//! All tests of all GPUs: side by side where they do not disturb each other.

use std::io;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use farrier_facts::FactSet;
use farrier_facts::diag::{Grade, History, Least, Level, Outcome, Test, Unit, judge};
use farrier_fleet::health::Signal;
use farrier_hardware::cuda::exam::Effort;
use jiff::Timestamp;

use super::card::Card;
use super::child::{Closed, Examiner};
use super::history::{Kept, Ledger};
use super::report::{GpuReport, Row, Series, worst};
use super::watch::{SERIES, Watch, Watched};
use crate::printer::Printer;

/// Which tests, and how much of each.
pub(super) struct Plan {
    tests: Vec<Test>,
    effort: Effort,
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
        let mut effort = Effort::whole(minutes * 60.0);
        if is_simulated {
            // The host does the work: in little memory.
            effort.transfer_bytes = 1 << 20;
        }
        Self { tests, effort }
    }

    fn effort(&self, test: Test) -> Effort {
        let share = if test == Test::Soak { SOAK_SHARE } else { 1.0 - SOAK_SHARE };
        Effort { soak_s: self.effort.soak_s * share, ..self.effort }
    }
}

/// What came of it.
pub(super) struct Conducted {
    pub(super) gpus: Vec<GpuReport>,
    pub(super) notes: Vec<String>,
}

/// What all GPUs have in common.
struct Scene<'a> {
    plan: &'a Plan,
    history: &'a Path,
    set: &'a FactSet,
    driver: Option<&'a str>,
    watch: Option<&'a Watch>,
    /// The host's memory is one: transfers of two GPUs at once measure neither.
    host: Mutex<()>,
}

/// Runs everything. A line tells on a terminal how far it is.
pub(super) fn all(
    plan: &Plan,
    cards: &[Card],
    history: &Path,
    set: &FactSet,
    driver: Option<&str>,
    watch: Option<&Watch>,
    printer: &mut Printer,
) -> io::Result<Conducted> {
    let scene = Scene { plan, history, set, driver, watch, host: Mutex::new(()) };
    let (tell, told) = channel::<String>();
    let results: Vec<(GpuReport, Option<String>)> = std::thread::scope(|scope| {
        let workers: Vec<_> = cards
            .iter()
            .map(|card| {
                let (tell, scene) = (tell.clone(), &scene);
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
    for ((mut gpu, note), card) in results.into_iter().zip(cards) {
        scene.peers(card, cards, &mut gpu);
        conducted.notes.extend(note.or(scene.keep(card, &gpu.tests).err()));
        conducted.gpus.push(gpu);
    }
    Ok(conducted)
}

/// A thread of ours that panicked has tested nothing.
fn lost(card: &Card) -> (GpuReport, Option<String>) {
    let rows =
        vec![Row::not_run(Test::Allocate, "the test itself broke: this is a fault of Farrier")];
    (gpu_report(card, None, rows, Vec::new()), None)
}

impl Scene<'_> {
    /// All of one GPU but what needs the others.
    fn one(&self, card: &Card, tell: &Sender<String>) -> (GpuReport, Option<String>) {
        let tests: Vec<Test> =
            self.plan.tests.iter().copied().filter(|test| *test != Test::PeerCopy).collect();
        if let Some(why) = &card.barred {
            let rows = tests.iter().map(|test| Row::not_run(*test, why)).collect();
            return (gpu_report(card, None, rows, Vec::new()), None);
        }
        let (ledger, note) = match Ledger::open(self.history, &card.uuid) {
            Ok(ledger) => (Some(ledger), None),
            Err(why) => (None, Some(why)),
        };
        let mut rows: Vec<Row> = Vec::new();
        let mut examiner: Option<Examiner> = None;
        let mut about = None;
        let mut stopped: Option<String> = None;
        for test in tests {
            if let Some(why) = &stopped {
                rows.push(Row::not_run(test, why));
                continue;
            }
            let _ = tell.send(format!("GPU {}: {test}, {}", card.index, test.meaning()));
            let (outcome, took_s) = match ready(card, &mut examiner) {
                Ok(ready) => {
                    about = Some(ready.about.clone());
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
            rows.push(self.judged(card, test, &outcome, ledger.as_ref(), took_s));
            stopped = stopped.or_else(|| why_stop(test, &outcome, hung));
        }
        drop(examiner);
        let watched = self.watch.map(|watch| watch.whole(&card.uuid)).unwrap_or_default();
        if self.watch.is_some() && about.is_some() {
            rows.push(seen_meanwhile(&watched));
        }
        (gpu_report(card, about, rows, series(&watched)), note)
    }

    /// Simulated results are kept only where somebody has named a folder that is not the machine's own.
    fn is_kept(&self) -> bool {
        self.history != Path::new("/var/lib/farrier/diag")
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
        let values = ledger.map(|ledger| ledger.values(test)).unwrap_or_default();
        let verdict = judge(test, outcome, self.least(card, test), History(&values));
        let (value, samples, detail) = match outcome {
            Outcome::Done { value, samples, detail } => (*value, samples.clone(), detail.clone()),
            _ => (None, Vec::new(), String::new()),
        };
        Row {
            test: test.name(),
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
        }
    }

    fn least(&self, card: &Card, test: Test) -> Option<Least> {
        let part = card.part.as_ref()?;
        let gpu = self.set.gpus.gpu.iter().find(|gpu| gpu.id == *part)?;
        self.set.diag.least(gpu, test, card.link)
    }

    /// Keeps what passed, for the next time. `Err`: it could not be kept, and why.
    fn keep(&self, card: &Card, rows: &[Row]) -> Result<(), String> {
        if card.simulated.is_some() && !self.is_kept() {
            return Ok(());
        }
        Ledger::open(self.history, &card.uuid)?.keep(&self.kept(rows))
    }

    fn kept(&self, rows: &[Row]) -> Vec<Kept> {
        let at = Timestamp::now();
        let kept = rows.iter().filter(|row| row.grade == Grade::Pass && row.unit != Unit::Gb);
        kept.filter_map(|row| {
            let (test, value) = (row.test.parse().ok()?, row.value?);
            Some(Kept { at, driver: self.driver.map(str::to_owned), test, value })
        })
        .collect()
    }

    /// Copies to the others, when they have nothing else to do.
    fn peers(&self, card: &Card, cards: &[Card], gpu: &mut GpuReport) {
        if !self.plan.tests.contains(&Test::PeerCopy) {
            return;
        }
        let others: Vec<&Card> = cards
            .iter()
            .filter(|other| other.uuid != card.uuid && other.barred.is_none())
            .collect();
        let is_alone = others.is_empty() && card.simulated.is_none();
        let row = if gpu.about.is_none() {
            Row::not_run(Test::PeerCopy, "the GPU was not opened")
        } else if is_alone {
            Row::not_run(Test::PeerCopy, "there is no other GPU to copy to")
        } else {
            let began = Instant::now();
            let outcome = match Examiner::open(card, &others) {
                Ok(mut examiner) => examiner
                    .run(Test::PeerCopy, self.plan.effort(Test::PeerCopy), &mut |_| ())
                    .unwrap_or_else(|outcome| outcome),
                Err(closed) => closed.outcome(),
            };
            let ledger = Ledger::open(self.history, &card.uuid).ok();
            self.judged(
                card,
                Test::PeerCopy,
                &outcome,
                ledger.as_ref(),
                began.elapsed().as_secs_f64(),
            )
        };
        gpu.tests.push(row);
        gpu.grade = worst(gpu.tests.iter().map(|row| row.grade));
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

/// NVML's bits for clocks that are held down by what a healthy card in a healthy server does not meet: its hardware,
/// heat, and the server's power brake. That the power limit holds them is how cards work under load.
const HELD: [(u64, &str); 4] = [
    (0x8, "the hardware"),
    (0x20, "the driver, for heat"),
    (0x40, "heat"),
    (0x80, "the power brake of the server"),
];

/// What NVML saw while the tests ran.
fn seen_meanwhile(watched: &Watched) -> Row {
    let mut wrong: Vec<String> = watched.xids.iter().map(|xid| format!("Xid {xid}")).collect();
    if let Some((first, last)) = watched.uncorrected.filter(|(first, last)| last > first) {
        wrong.push(format!("{} memory errors that could not be corrected", last - first));
    }
    let reasons =
        watched.series.get(&Signal::GpuClockReasons).map(Vec::as_slice).unwrap_or_default();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bits of NVML")]
    let bits = reasons.iter().fold(0, |bits, (_, value)| bits | *value as u64);
    let held: Vec<&str> =
        HELD.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, by)| *by).collect();
    let most = |signal| {
        let values = watched.series.get(&signal)?;
        values.iter().map(|(_, value)| *value).reduce(f64::max)
    };
    let mut told = Vec::new();
    told.extend(most(Signal::GpuTemperature).map(|c| format!("at most {c:.0} °C")));
    told.extend(most(Signal::GpuPower).map(|w| format!("{w:.0} W")));
    let (grade, why) = if !wrong.is_empty() {
        (Grade::Fail, wrong.join("; "))
    } else if !held.is_empty() {
        (Grade::Degraded, format!("clocks were held down by {}", held.join(", ")))
    } else if reasons.is_empty() {
        (Grade::NotRun, "NVML told nothing meanwhile".to_owned())
    } else {
        let errors = if watched.uncorrected.is_some() {
            "no memory error"
        } else {
            "memory errors were not counted a second time"
        };
        (Grade::Pass, format!("no Xid, clocks as they ought to be, {errors}"))
    };
    Row {
        test: "watched",
        meaning: "what NVML saw meanwhile",
        grade,
        why,
        unit: Unit::None,
        value: None,
        samples: Vec::new(),
        detail: told.join(", "),
        least: None,
        usual: None,
        took_s: 0.0,
    }
}

fn series(watched: &Watched) -> Vec<Series> {
    let of = |signal: &Signal| {
        let points = watched.series.get(signal)?.clone();
        Some(Series { signal: signal.name(), points })
    };
    SERIES.iter().filter_map(of).collect()
}

fn gpu_report(
    card: &Card,
    about: Option<farrier_hardware::cuda::About>,
    tests: Vec<Row>,
    series: Vec<Series>,
) -> GpuReport {
    GpuReport {
        index: card.index,
        uuid: card.uuid.clone(),
        name: card.name.clone(),
        part: card.part.clone(),
        grade: worst(tests.iter().map(|row| row.grade)),
        about,
        tests,
        series,
    }
}
