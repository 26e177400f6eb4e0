//! The supervisor with simulated children on a simulated clock.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use farrier_facts::node::{NvmlStatus, Reading};
use farrier_fleet::health::observation::{GpuUuid, Sample};
use farrier_fleet::health::signal::Signal;

use super::*;
use crate::nvml::watch::DriverCall;
use crate::nvml::watch::prober::StartError;
use crate::nvml::watch::wire::{GpuValues, Refusal, Values};

/// How a child reacts to a request.
#[derive(Debug, Clone, PartialEq)]
enum Does {
    Answers,
    Refuses(NvmlStatus),
    Hangs,
    Dies,
    Babbles,
    IsOfAnotherBuild,
}

/// All children of a test, and the requests they got.
#[derive(Default)]
struct World {
    /// Behaviour of the next children, one entry per request; the last entry repeats.
    plans: RefCell<VecDeque<Vec<Does>>>,
    asked: RefCell<Vec<String>>,
    /// GPUs that each child was told to skip.
    avoided: RefCell<Vec<Vec<u32>>>,
    started: Cell<u32>,
    alive: Cell<u32>,
    /// The GPU that calls hang on.
    hangs_about_gpu: Cell<Option<u32>>,
    /// Whether a killed child exits.
    kill_works: Cell<bool>,
}

struct Fake {
    world: Rc<World>,
    plan: VecDeque<Does>,
    is_hung: bool,
    is_gone: Cell<bool>,
    is_killed: bool,
}

impl Children for Rc<World> {
    type Child = Fake;

    fn start(&mut self) -> Result<Fake, StartError> {
        let plan = self.plans.borrow_mut().pop_front().ok_or(StartError::NoPipes)?;
        self.started.set(self.started.get() + 1);
        self.alive.set(self.alive.get() + 1);
        assert!(self.alive.get() <= 2, "at most two children");
        Ok(Fake {
            world: Rc::clone(self),
            plan: plan.into(),
            is_hung: false,
            is_gone: Cell::new(false),
            is_killed: false,
        })
    }
}

impl Fake {
    fn go(&self) {
        if !self.is_gone.replace(true) {
            self.world.alive.set(self.world.alive.get() - 1);
        }
    }
}

fn uuid() -> GpuUuid {
    GpuUuid("GPU-1".to_owned())
}

fn answer(line: &str) -> Answer {
    let mut own = Values::default();
    own.put(Signal::GpuTemperature, Reading::Value(40.0));
    let values = GpuValues { gpu: uuid(), own, links: Vec::new(), trouble: None };
    let mut answer = Answer { cpu_us: 7, ..Answer::empty() };
    if line.starts_with("inventory") {
        answer.count = Some(Reading::Value(1));
        answer.inventory = Some(vec![GpuIdentity {
            uuid: uuid(),
            index: 0,
            minor: None,
            pci: Some("0000:1b:00.0".to_owned()),
            name: Some("H100".to_owned()),
        }]);
    } else {
        answer.gpus.push(values);
    }
    answer
}

impl Prober for Fake {
    fn ask(&mut self, line: &str, _: Duration, _: &AtomicBool) -> Asked {
        self.world.asked.borrow_mut().push(line.split_whitespace().next().unwrap().to_owned());
        if let Some(Request::Inventory(inventory)) = Request::of(line) {
            self.world.avoided.borrow_mut().push(inventory.avoided);
        }
        let does = match self.plan.len() {
            1 => self.plan[0].clone(),
            _ => self.plan.pop_front().unwrap(),
        };
        let line_of = |answer: &Answer| Asked::Line(serde_json::to_vec(answer).unwrap());
        match does {
            Does::Answers => line_of(&answer(line)),
            Does::Refuses(why) => {
                self.go();
                let refusal = Some(Refusal::Refused(why));
                line_of(&Answer { refusal, ..Answer::empty() })
            }
            Does::Hangs => {
                self.is_hung = true;
                Asked::Late
            }
            Does::Dies => {
                self.go();
                Asked::Ended
            }
            Does::Babbles => Asked::Line(b"hello\n".to_vec()),
            Does::IsOfAnotherBuild => line_of(&Answer { form: 1, ..answer(line) }),
        }
    }

    fn idle(&mut self, _: Duration) -> bool {
        self.is_gone.get()
    }

    fn during(&self) -> DriverCall {
        let gpu = self.world.hangs_about_gpu.get();
        let name = if gpu.is_some() { "nvmlDeviceGetName" } else { "nvmlInit_v2" };
        DriverCall { name: name.into(), gpu }
    }

    fn complaint(&self) -> String {
        String::new()
    }

    fn dismiss(&mut self) {
        if !self.is_hung {
            self.go();
        }
    }

    fn kill(&mut self) {
        self.is_killed = true;
    }

    fn ended(&mut self) -> Option<String> {
        if self.is_killed && (!self.is_hung || self.world.kill_works.get()) {
            self.go();
        }
        self.is_gone.get().then(|| "signal: 9".to_owned())
    }
}

/// A supervisor with its children and its clock.
struct Test {
    world: Rc<World>,
    supervisor: Supervisor<Rc<World>>,
    now: Duration,
}

impl Test {
    fn of(plans: &[&[Does]]) -> Self {
        let world = Rc::new(World::default());
        world.plans.replace(plans.iter().map(|plan| plan.to_vec()).collect());
        let deadlines = Deadlines {
            pace: Pace::Agent,
            answer: Duration::from_secs(5),
            start: Duration::from_secs(30),
            avoid: Duration::from_secs(300),
        };
        let supervisor = Supervisor::new(Rc::clone(&world), deadlines, Vec::new());
        Self { world, supervisor, now: Duration::ZERO }
    }

    /// Steps until `seconds`. Returns all events in short form, prefixed with their time.
    fn until(&mut self, seconds: u64) -> Vec<String> {
        let (mut said, end) = (Vec::new(), Duration::from_secs(seconds));
        while self.now <= end {
            let turn = self.supervisor.turn(self.now, &AtomicBool::new(false));
            let at = self.now.as_secs_f64();
            said.extend(turn.said.iter().map(|it| format!("{at} {}", short(it))));
            assert!(turn.again_at >= self.now);
            self.now = turn.again_at;
        }
        said
    }
}

fn short(said: &ProbeSaid) -> String {
    match said {
        ProbeSaid::Report(report) => {
            let is_free = |sample: &&Sample| {
                (sample.signal, &sample.reading) == (Signal::NodeCallsStuck, &Reading::Value(0.0))
            };
            let samples = report.samples.iter().filter(|it| !is_free(it)).map(|sample| {
                if let (Signal::NodeCallsStuck, Some(note)) = (sample.signal, &sample.note) {
                    return format!("{}: {note};", sample.subject);
                }
                let value = match &sample.reading {
                    Reading::Value(value) => value.to_string(),
                    Reading::Absent => "absent".to_owned(),
                    Reading::Unreadable(_) => "?".to_owned(),
                };
                let name = sample.signal.name().split_once('.').unwrap().1;
                format!("{name}={value}")
            });
            format!("{:?} {}", report.tier, samples.collect::<Vec<_>>().join(" "))
        }
        ProbeSaid::Hung { during, after, stuck } => {
            format!("hung in {during} after {} s, stuck {stuck}", after.as_secs())
        }
        ProbeSaid::Died { why } => format!("died: {why}"),
        ProbeSaid::NoLibrary { why } => format!("no library: {why}"),
        ProbeSaid::Refused { error } => format!("refused: {error}"),
        ProbeSaid::Back => "back".to_owned(),
    }
}

#[test]
fn tiers_are_polled_when_due() {
    let mut test = Test::of(&[&[Does::Answers]]);
    let said = test.until(60);
    assert_eq!(
        said[..5],
        [
            "0 Slow gpus_nvml=1 nvml_answers=1 probes_stuck=0",
            "0 Fast temperature_c=40",
            "0 Medium temperature_c=40",
            "0 Slow temperature_c=40",
            "0 Rare temperature_c=40",
        ]
    );
    let count =
        |word: &str| test.world.asked.borrow().iter().filter(|asked| *asked == word).count();
    let counts = ["inventory", "fast", "medium", "slow", "rare"].map(count);
    assert_eq!(counts, [1, 61, 7, 2, 1]);
    assert_eq!(test.world.started.get(), 1);
}

#[test]
fn hung_child_is_abandoned_and_replaced() {
    let mut test = Test::of(&[&[Does::Answers, Does::Answers, Does::Hangs], &[Does::Answers]]);
    let said = test.until(0);
    assert_eq!(
        said[2..],
        [
            "0 Fast temperature_c=? node: nvmlInit_v2 has not returned for 5 s; gpus_nvml=? nvml_answers=0 probes_stuck=1",
            "0 hung in nvmlInit_v2 after 5 s, stuck 1",
        ]
    );
    // The first child is still stuck, so responses of the second do not mean recovery.
    let said = test.until(3);
    assert_eq!(
        said[0],
        "1 Slow node: nvmlInit_v2 has not returned for 5 s; gpus_nvml=1 nvml_answers=1 probes_stuck=1"
    );
    assert!(!said.iter().any(|said| said.ends_with("back")), "{said:?}");
    // The first child exits at last.
    test.world.kill_works.set(true);
    let said = test.until(6);
    let place = said.iter().position(|said| said.ends_with("back")).unwrap();
    let free = "Fast nvml_answers=1 probes_stuck=0";
    assert!(said[..place].iter().any(|said| said.ends_with(free)), "{said:?}");
    assert_eq!(test.world.alive.get(), 1);
}

#[test]
fn at_most_two_children_may_be_stuck() {
    let plans: &[&[Does]] = &[&[Does::Hangs], &[Does::Hangs], &[Does::Answers]];
    let mut test = Test::of(plans);
    let said = test.until(3600);
    assert_eq!(test.world.started.get(), 2, "{said:?}");
    assert_eq!(
        said,
        [
            "0 Fast node: nvmlInit_v2 has not returned for 30 s; gpus_nvml=? nvml_answers=0 probes_stuck=1",
            "0 hung in nvmlInit_v2 after 30 s, stuck 1",
            "1 Fast nvml_answers=0 probes_stuck=2",
            "1 hung in nvmlInit_v2 after 30 s, stuck 2",
        ]
    );
    test.world.kill_works.set(true);
    let said = test.until(3610);
    assert!(said[0].ends_with("nvml_answers=0 probes_stuck=0"), "{said:?}");
    assert!(said.iter().any(|said| said.ends_with("back")), "{said:?}");
    assert_eq!((test.world.started.get(), test.world.alive.get()), (3, 1));
}

#[test]
fn backoff_doubles_to_a_minute_and_resets_after_success() {
    let dying: &[Does] = &[Does::Dies];
    let mut plans = vec![dying; 9];
    plans.push(&[Does::Answers]);
    let mut test = Test::of(&plans);
    let said = test.until(1000);
    let at: Vec<&str> = said
        .iter()
        .filter(|said| said.contains("died"))
        .map(|said| said.split(' ').next().unwrap())
        .collect();
    assert_eq!(at, ["0", "1", "3", "7", "15", "31", "63", "123", "183"]);
    assert!(said.iter().any(|said| said == "243 back"), "{said:?}");
    assert_eq!(test.supervisor.backoff, BACKOFF_MIN);
}

#[test]
fn malformed_output_and_other_builds_are_rejected() {
    let mut test = Test::of(&[&[Does::Babbles], &[Does::IsOfAnotherBuild], &[Does::Answers]]);
    let said = test.until(5);
    let died: Vec<&String> = said.iter().filter(|said| said.contains("died")).collect();
    assert_eq!(died.len(), 2, "{said:?}");
    assert!(died.iter().all(|said| said.contains("malformed output")), "{died:?}");
    assert!(said.iter().any(|said| said == "3 back"), "{said:?}");
    assert_eq!(test.world.alive.get(), 1, "no child is abandoned");
}

#[test]
fn driver_unload_and_reload() {
    let gone = Does::Refuses(NvmlStatus::DRIVER_NOT_LOADED);
    let mut test = Test::of(&[
        &[Does::Answers, Does::Answers, gone.clone()],
        std::slice::from_ref(&gone),
        std::slice::from_ref(&gone),
        &[Does::Answers],
    ]);
    let said = test.until(8);
    let refused: Vec<&String> = said.iter().filter(|said| said.contains("refused")).collect();
    assert_eq!(refused.len(), 3, "{said:?}");
    assert!(
        said.contains(
            &"0 Fast temperature_c=? gpus_nvml=? nvml_answers=0 probes_stuck=0".to_owned()
        )
    );
    assert!(said.contains(&"7 back".to_owned()), "{said:?}");
    assert!(said.contains(&"7 Slow gpus_nvml=1 nvml_answers=1 probes_stuck=0".to_owned()));
}

#[test]
fn new_driver_module_skips_the_backoff() {
    let refuses: &[Does] = &[Does::Refuses(NvmlStatus::DRIVER_NOT_LOADED)];
    let mut test = Test::of(&[refuses, refuses, refuses, refuses, refuses, &[Does::Answers]]);
    let said = test.until(10);
    assert_eq!(test.world.started.get(), 4, "{said:?}");
    // The next starts would be at 15 s and 31 s. The module appears a moment before it is usable.
    assert!(test.supervisor.waits());
    test.now = Duration::from_secs(10);
    test.supervisor.hurry(test.now);
    let said = test.until(12);
    assert_eq!(test.world.started.get(), 6, "{said:?}");
    assert!(!test.supervisor.waits());
    assert!(said.iter().any(|said| said.ends_with("back")), "{said:?}");
}

#[test]
fn failed_start_is_retried() {
    let mut test = Test::of(&[]);
    let said = test.until(4);
    let died = said.iter().filter(|said| said.contains("died: no stdin or stdout pipe")).count();
    assert_eq!(died, 3, "{said:?}");
}

#[test]
fn missed_polls_are_not_made_up_for() {
    let mut test = Test::of(&[&[Does::Answers]]);
    test.until(2);
    // The machine was suspended.
    test.now = Duration::from_secs(500);
    test.world.asked.borrow_mut().clear();
    test.until(500);
    assert_eq!(*test.world.asked.borrow(), ["fast", "medium", "slow"]);
}

#[test]
fn gpu_with_hung_call_is_skipped_for_a_while() {
    let mut test = Test::of(&[
        &[Does::Answers, Does::Hangs],
        &[Does::Answers],
        &[Does::Answers, Does::Hangs],
        &[Does::Answers],
        &[Does::Answers],
    ]);
    test.world.hangs_about_gpu.set(Some(3));
    let said = test.until(400);
    assert!(said.contains(&"0 hung in nvmlDeviceGetName of GPU 3 after 5 s, stuck 1".to_owned()));
    assert!(
        said.contains(&"11 Medium temperature_c=40".to_owned()),
        "the other GPUs are still monitored"
    );
    let world = Rc::clone(&test.world);
    let avoided = || world.avoided.borrow().clone();
    assert_eq!(avoided(), [vec![], vec![3]], "skipped as long as the child is stuck");
    assert!(said.contains(&"1 back".to_owned()), "{said:?}");
    // The stuck child exits and the GPU is read again; it hangs again.
    test.world.kill_works.set(true);
    let said = test.until(410);
    assert_eq!(avoided(), [vec![], vec![3], vec![], vec![3]]);
    let place = |what: &str| said.iter().position(|said| said.contains(what));
    assert!(place("hung in") < place("back"), "{said:?}");
    // Five minutes later it answers.
    let said = test.until(720);
    assert_eq!(avoided().len(), 5);
    assert_eq!(avoided()[4], [0; 0]);
    // There was no failure since, so the only news is that no call is stuck any more.
    assert!(said.contains(&"701 Fast nvml_answers=1 probes_stuck=0".to_owned()), "{said:?}");
    assert!(!said.iter().any(|said| said.ends_with("back")), "{said:?}");
    assert_eq!(test.world.alive.get(), 1);
}

#[test]
fn no_stuck_call_is_reported_once_per_gpu() {
    let mut test = Test::of(&[&[Does::Answers]]);
    let mut free = 0;
    while test.now <= Duration::from_secs(120) {
        let turn = test.supervisor.turn(test.now, &AtomicBool::new(false));
        for said in &turn.said {
            let ProbeSaid::Report(report) = said else { continue };
            let is_free = |sample: &&Sample| {
                let no = (sample.signal, &sample.reading);
                sample.subject.gpu().is_some()
                    && no == (Signal::NodeCallsStuck, &Reading::Value(0.0))
            };
            free += report.samples.iter().filter(is_free).count();
        }
        test.now = turn.again_at;
    }
    assert_eq!(free, 1, "a previous agent may have reported a stuck call");
}

#[test]
fn two_unkillable_children_mean_a_wedged_driver() {
    use farrier_facts::FactSet;
    use farrier_facts::xid::XidFacts;
    use farrier_fleet::health::{Batch, Engine, Moment, Rules};
    let mut test = Test::of(&[&[Does::Hangs], &[Does::Hangs], &[Does::Answers]]);
    let facts = XidFacts::clone(&FactSet::embedded().xids);
    let mut engine = Engine::new(Rules::embedded().unwrap(), facts);
    let mut until = |test: &mut Test, seconds: u64| {
        while test.now <= Duration::from_secs(seconds) {
            let turn = test.supervisor.turn(test.now, &AtomicBool::new(false));
            let samples = turn.said.into_iter().filter_map(|said| match said {
                ProbeSaid::Report(report) => Some(report.samples),
                _ => None,
            });
            let batch = Batch { samples: samples.flatten().collect(), ..Batch::default() };
            let steady_ms = i64::try_from(test.now.as_millis()).unwrap();
            let wall = jiff::Timestamp::from_millisecond(steady_ms).unwrap();
            engine.observe(Moment { steady_ms, wall }, &batch);
            test.now = turn.again_at;
        }
        let found = engine.findings().find(|it| it.code == "driver.wedged").cloned();
        found.map(|it| (it.action, serde_json::to_string(&it.evidence).unwrap()))
    };
    let (action, evidence) = until(&mut test, 60).expect("two are stuck");
    assert_eq!(action.to_string(), "reboot-node");
    assert!(evidence.contains("nvmlInit_v2 has not returned for 30 s"), "{evidence}");
    test.world.kill_works.set(true);
    assert_eq!(until(&mut test, 120), None);
}
