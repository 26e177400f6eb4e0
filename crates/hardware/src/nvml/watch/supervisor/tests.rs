//! The supervisor with simulated children on a simulated clock.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use farrier_facts::node::{NvmlStatus, Reading};
use farrier_fleet::health::observation::{GpuUuid, Sample};
use farrier_fleet::health::signal::Signal;

use super::*;
use crate::nvml::watch::DriverCall;
use crate::nvml::watch::probe_child::StartError;
use crate::nvml::watch::wire::{GpuValues, WireUnavailable, WireValues};

/// How a child reacts to a request.
#[derive(Debug, Clone, PartialEq)]
enum Behaviour {
    Answers,
    Refuses(NvmlStatus),
    Hangs,
    Dies,
    WritesGarbage,
    OtherBuild,
}

/// All children of a test, and the requests they got.
#[derive(Default)]
struct FakeSpawner {
    /// Behaviour of the next children, one entry per request. The last entry repeats.
    plans: RefCell<VecDeque<Vec<Behaviour>>>,
    requests: RefCell<Vec<String>>,
    /// GPUs that each child has to skip.
    avoided: RefCell<Vec<Vec<u32>>>,
    started: Cell<u32>,
    alive: Cell<u32>,
    /// The GPU whose calls hang.
    hangs_on_gpu: Cell<Option<u32>>,
    /// Whether a killed child exits.
    kill_works: Cell<bool>,
}

struct FakeChild {
    spawner: Rc<FakeSpawner>,
    plan: VecDeque<Behaviour>,
    is_hung: bool,
    is_gone: Cell<bool>,
    is_killed: bool,
}

impl ProbeSpawner for Rc<FakeSpawner> {
    type Child = FakeChild;

    fn start(&mut self) -> Result<FakeChild, StartError> {
        let plan = self.plans.borrow_mut().pop_front().ok_or(StartError::NoPipes)?;
        self.started.set(self.started.get() + 1);
        self.alive.set(self.alive.get() + 1);
        assert!(self.alive.get() <= 2, "at most two children");
        Ok(FakeChild {
            spawner: Rc::clone(self),
            plan: plan.into(),
            is_hung: false,
            is_gone: Cell::new(false),
            is_killed: false,
        })
    }
}

impl FakeChild {
    fn go(&self) {
        if !self.is_gone.replace(true) {
            self.spawner.alive.set(self.spawner.alive.get() - 1);
        }
    }
}

fn uuid() -> GpuUuid {
    GpuUuid("GPU-1".to_owned())
}

fn response(line: &str) -> WatchResponse {
    let mut own = WireValues::default();
    own.put(Signal::GpuTemperature, Reading::Value(40.0));
    let values = GpuValues { gpu: uuid(), own, links: Vec::new(), failure: None };
    let mut response = WatchResponse { cpu_us: 7, ..WatchResponse::empty() };
    if line.starts_with("inventory") {
        response.count = Some(Reading::Value(1));
        response.inventory = Some(vec![GpuIdentity {
            uuid: uuid(),
            index: 0,
            minor: None,
            pci: Some("0000:1b:00.0".to_owned()),
            name: Some("H100".to_owned()),
        }]);
    } else {
        response.gpus.push(values);
    }
    response
}

impl ProbeChild for FakeChild {
    fn request(&mut self, line: &str, _: Duration, _: &AtomicBool) -> ProbeReply {
        self.spawner.requests.borrow_mut().push(line.split_whitespace().next().unwrap().to_owned());
        if let Some(WatchRequest::Inventory(inventory)) = WatchRequest::parse(line) {
            self.spawner.avoided.borrow_mut().push(inventory.avoided);
        }
        let behaviour = match self.plan.len() {
            1 => self.plan[0].clone(),
            _ => self.plan.pop_front().unwrap(),
        };
        let response_line =
            |response: &WatchResponse| ProbeReply::Line(serde_json::to_vec(response).unwrap());
        match behaviour {
            Behaviour::Answers => response_line(&response(line)),
            Behaviour::Refuses(why) => {
                self.go();
                let unavailable = Some(WireUnavailable::Refused(why));
                response_line(&WatchResponse { unavailable, ..WatchResponse::empty() })
            }
            Behaviour::Hangs => {
                self.is_hung = true;
                ProbeReply::TimedOut
            }
            Behaviour::Dies => {
                self.go();
                ProbeReply::Exited
            }
            Behaviour::WritesGarbage => ProbeReply::Line(b"hello\n".to_vec()),
            Behaviour::OtherBuild => {
                response_line(&WatchResponse { signals_hash: 1, ..response(line) })
            }
        }
    }

    fn keep_waiting(&mut self, _: Duration, _: &AtomicBool) -> ProbeReply {
        ProbeReply::TimedOut
    }

    fn wait_for_exit(&mut self, _: Duration) -> bool {
        self.is_gone.get()
    }

    fn current_call(&self) -> DriverCall {
        let gpu = self.spawner.hangs_on_gpu.get();
        let name = if gpu.is_some() { "nvmlDeviceGetName" } else { "nvmlInit_v2" };
        DriverCall { name: name.into(), gpu }
    }

    fn stderr(&self) -> String {
        String::new()
    }

    fn request_exit(&mut self) {
        if !self.is_hung {
            self.go();
        }
    }

    fn kill(&mut self) {
        self.is_killed = true;
    }

    fn exit_status(&mut self) -> Option<String> {
        if self.is_killed && (!self.is_hung || self.spawner.kill_works.get()) {
            self.go();
        }
        self.is_gone.get().then(|| "signal: 9".to_owned())
    }
}

/// A supervisor with its children and its clock.
struct Harness {
    spawner: Rc<FakeSpawner>,
    supervisor: Supervisor<Rc<FakeSpawner>>,
    now: Duration,
}

impl Harness {
    fn new(plans: &[&[Behaviour]]) -> Self {
        Self::with_pace(Pace::Agent, plans)
    }

    fn with_pace(pace: Pace, plans: &[&[Behaviour]]) -> Self {
        let spawner = Rc::new(FakeSpawner::default());
        spawner.plans.replace(plans.iter().map(|plan| plan.to_vec()).collect());
        let deadlines = Deadlines {
            pace,
            answer: Duration::from_secs(5),
            start: Duration::from_secs(30),
            avoid: Duration::from_secs(300),
        };
        let supervisor = Supervisor::new(Rc::clone(&spawner), deadlines, Vec::new());
        Self { spawner, supervisor, now: Duration::ZERO }
    }

    /// Steps until `seconds`. Returns all events in short form, prefixed with their time.
    fn run_until(&mut self, seconds: u64) -> Vec<String> {
        let (mut events, end) = (Vec::new(), Duration::from_secs(seconds));
        while self.now <= end {
            let step = self.supervisor.step(self.now, &AtomicBool::new(false));
            let at = self.now.as_secs_f64();
            events.extend(step.events.iter().map(|event| format!("{at} {}", short(event))));
            assert!(step.next_at >= self.now);
            self.now = step.next_at;
        }
        events
    }
}

fn short(event: &ProbeEvent) -> String {
    match event {
        ProbeEvent::Report(report) => {
            let is_free = |sample: &&Sample| {
                (sample.signal, &sample.reading) == (Signal::NodeCallsStuck, &Reading::Value(0.0))
            };
            let samples = report.samples.iter().filter(|sample| !is_free(sample)).map(|sample| {
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
        ProbeEvent::Waiting { during, gpu, after } => {
            format!("waiting for {during} ({gpu:?}) for {} s", after.as_secs())
        }
        ProbeEvent::Hung { during, after, stuck } => {
            format!("hung in {during} after {} s, stuck {stuck}", after.as_secs())
        }
        ProbeEvent::Died { why } => format!("died: {why}"),
        ProbeEvent::NoLibrary { why } => format!("no library: {why}"),
        ProbeEvent::Refused { error } => format!("refused: {error}"),
        ProbeEvent::Recovered => "back".to_owned(),
    }
}

#[test]
fn tiers_are_polled_when_due() {
    let mut test = Harness::new(&[&[Behaviour::Answers]]);
    let events = test.run_until(60);
    assert_eq!(
        events[..5],
        [
            "0 Slow gpus_nvml=1 nvml_answers=1 probes_stuck=0",
            "0 Fast temperature_c=40",
            "0 Medium temperature_c=40 slow_calls=0 slow_calls=0",
            "0 Slow temperature_c=40",
            "0 Rare temperature_c=40",
        ]
    );
    let count = |word: &str| {
        test.spawner.requests.borrow().iter().filter(|requests| *requests == word).count()
    };
    let counts = ["inventory", "fast", "medium", "slow", "rare"].map(count);
    assert_eq!(counts, [1, 61, 7, 2, 1]);
    assert_eq!(test.spawner.started.get(), 1);
}

#[test]
fn hung_child_is_abandoned_and_replaced() {
    let mut test = Harness::new(&[
        &[Behaviour::Answers, Behaviour::Answers, Behaviour::Hangs],
        &[Behaviour::Answers],
    ]);
    let events = test.run_until(0);
    assert_eq!(
        events[2..],
        [
            "0 Fast temperature_c=? node: nvmlInit_v2 has not returned for 5 s; gpus_nvml=? nvml_answers=0 probes_stuck=1",
            "0 hung in nvmlInit_v2 after 5 s, stuck 1",
        ]
    );
    // The first child is still stuck, so responses from the second do not mean recovery.
    let events = test.run_until(3);
    assert_eq!(
        events[0],
        "1 Slow node: nvmlInit_v2 has not returned for 5 s; gpus_nvml=1 nvml_answers=1 probes_stuck=1"
    );
    assert!(!events.iter().any(|event| event.ends_with("back")), "{events:?}");
    // The first child exits at last.
    test.spawner.kill_works.set(true);
    let events = test.run_until(6);
    let position = events.iter().position(|event| event.ends_with("back")).unwrap();
    let free = "Fast nvml_answers=1 probes_stuck=0";
    assert!(events[..position].iter().any(|event| event.ends_with(free)), "{events:?}");
    assert_eq!(test.spawner.alive.get(), 1);
}

#[test]
fn an_interactive_view_learns_of_an_overdue_call_before_its_deadline() {
    let interactive = Pace::Interactive(Duration::from_secs(1));
    let plans: &[&[Behaviour]] = &[&[Behaviour::Hangs], &[Behaviour::Answers]];
    let mut test = Harness::with_pace(interactive, plans);
    test.spawner.hangs_on_gpu.set(Some(1));
    let events = test.run_until(0);
    let waits = (1..10).map(|step| 3 * step);
    let mut expected: Vec<String> = waits
        .map(|after| format!("0 waiting for nvmlDeviceGetName of GPU 1 (Some(1)) for {after} s"))
        .collect();
    expected.push(
        "0 Fast node: nvmlDeviceGetName of GPU 1 has not returned for 30 s; gpus_nvml=? \
         nvml_answers=0 probes_stuck=1"
            .to_owned(),
    );
    expected.push("0 hung in nvmlDeviceGetName of GPU 1 after 30 s, stuck 1".to_owned());
    assert_eq!(events, expected);
    // Only one request was sent, although the supervisor looked ten times.
    assert_eq!(*test.spawner.requests.borrow(), ["inventory"]);
}

#[test]
fn at_most_two_children_may_be_stuck() {
    let plans: &[&[Behaviour]] = &[&[Behaviour::Hangs], &[Behaviour::Hangs], &[Behaviour::Answers]];
    let mut test = Harness::new(plans);
    let events = test.run_until(3600);
    assert_eq!(test.spawner.started.get(), 2, "{events:?}");
    assert_eq!(
        events,
        [
            "0 Fast node: nvmlInit_v2 has not returned for 30 s; gpus_nvml=? nvml_answers=0 probes_stuck=1",
            "0 hung in nvmlInit_v2 after 30 s, stuck 1",
            "1 Fast nvml_answers=0 probes_stuck=2",
            "1 hung in nvmlInit_v2 after 30 s, stuck 2",
        ]
    );
    test.spawner.kill_works.set(true);
    let events = test.run_until(3610);
    assert!(events[0].ends_with("nvml_answers=0 probes_stuck=0"), "{events:?}");
    assert!(events.iter().any(|event| event.ends_with("back")), "{events:?}");
    assert_eq!((test.spawner.started.get(), test.spawner.alive.get()), (3, 1));
}

#[test]
fn backoff_doubles_to_a_minute_and_resets_after_success() {
    let dying: &[Behaviour] = &[Behaviour::Dies];
    let mut plans = vec![dying; 9];
    plans.push(&[Behaviour::Answers]);
    let mut test = Harness::new(&plans);
    let events = test.run_until(1000);
    let at: Vec<&str> = events
        .iter()
        .filter(|event| event.contains("died"))
        .map(|event| event.split(' ').next().unwrap())
        .collect();
    assert_eq!(at, ["0", "1", "3", "7", "15", "31", "63", "123", "183"]);
    assert!(events.iter().any(|event| event == "243 back"), "{events:?}");
    assert_eq!(test.supervisor.backoff, BACKOFF_MIN);
}

#[test]
fn malformed_output_and_other_builds_are_rejected() {
    let mut test = Harness::new(&[
        &[Behaviour::WritesGarbage],
        &[Behaviour::OtherBuild],
        &[Behaviour::Answers],
    ]);
    let events = test.run_until(5);
    let died: Vec<&String> = events.iter().filter(|event| event.contains("died")).collect();
    assert_eq!(died.len(), 2, "{events:?}");
    assert!(died.iter().all(|event| event.contains("malformed output")), "{died:?}");
    assert!(events.iter().any(|event| event == "3 back"), "{events:?}");
    assert_eq!(test.spawner.alive.get(), 1, "no child is abandoned");
}

#[test]
fn driver_unload_and_reload() {
    let gone = Behaviour::Refuses(NvmlStatus::DRIVER_NOT_LOADED);
    let mut test = Harness::new(&[
        &[Behaviour::Answers, Behaviour::Answers, gone.clone()],
        std::slice::from_ref(&gone),
        std::slice::from_ref(&gone),
        &[Behaviour::Answers],
    ]);
    let events = test.run_until(8);
    let refused: Vec<&String> = events.iter().filter(|event| event.contains("refused")).collect();
    assert_eq!(refused.len(), 3, "{events:?}");
    assert!(
        events.contains(
            &"0 Fast temperature_c=? gpus_nvml=? nvml_answers=0 probes_stuck=0".to_owned()
        )
    );
    assert!(events.contains(&"7 back".to_owned()), "{events:?}");
    assert!(events.contains(&"7 Slow gpus_nvml=1 nvml_answers=1 probes_stuck=0".to_owned()));
}

#[test]
fn new_driver_module_skips_the_backoff() {
    let refuses: &[Behaviour] = &[Behaviour::Refuses(NvmlStatus::DRIVER_NOT_LOADED)];
    let mut test =
        Harness::new(&[refuses, refuses, refuses, refuses, refuses, &[Behaviour::Answers]]);
    let events = test.run_until(10);
    assert_eq!(test.spawner.started.get(), 4, "{events:?}");
    // The next starts would be at 15 s and 31 s. The module appears a moment before it is usable.
    assert!(test.supervisor.is_backing_off());
    test.now = Duration::from_secs(10);
    test.supervisor.retry_now(test.now);
    let events = test.run_until(12);
    assert_eq!(test.spawner.started.get(), 6, "{events:?}");
    assert!(!test.supervisor.is_backing_off());
    assert!(events.iter().any(|event| event.ends_with("back")), "{events:?}");
}

#[test]
fn failed_start_is_retried() {
    let mut test = Harness::new(&[]);
    let events = test.run_until(4);
    let died =
        events.iter().filter(|event| event.contains("died: no stdin or stdout pipe")).count();
    assert_eq!(died, 3, "{events:?}");
}

#[test]
fn missed_polls_are_not_made_up_for() {
    let mut test = Harness::new(&[&[Behaviour::Answers]]);
    test.run_until(2);
    // The machine was suspended.
    test.now = Duration::from_secs(500);
    test.spawner.requests.borrow_mut().clear();
    test.run_until(500);
    assert_eq!(*test.spawner.requests.borrow(), ["fast", "medium", "slow"]);
}

#[test]
fn gpu_with_hung_call_is_skipped_for_a_while() {
    let mut test = Harness::new(&[
        &[Behaviour::Answers, Behaviour::Hangs],
        &[Behaviour::Answers],
        &[Behaviour::Answers, Behaviour::Hangs],
        &[Behaviour::Answers],
        &[Behaviour::Answers],
    ]);
    test.spawner.hangs_on_gpu.set(Some(3));
    let events = test.run_until(400);
    assert!(events.contains(&"0 hung in nvmlDeviceGetName of GPU 3 after 5 s, stuck 1".to_owned()));
    assert!(
        events.contains(&"11 Medium temperature_c=40 slow_calls=0 slow_calls=0".to_owned()),
        "the other GPUs are still monitored"
    );
    let spawner = Rc::clone(&test.spawner);
    let avoided = || spawner.avoided.borrow().clone();
    assert_eq!(avoided(), [vec![], vec![3]], "skipped as long as the child is stuck");
    assert!(events.contains(&"1 back".to_owned()), "{events:?}");
    // The stuck child exits. The GPU is read again and hangs again.
    test.spawner.kill_works.set(true);
    let events = test.run_until(410);
    assert_eq!(avoided(), [vec![], vec![3], vec![], vec![3]]);
    let position = |what: &str| events.iter().position(|event| event.contains(what));
    assert!(position("hung in") < position("back"), "{events:?}");
    // Five minutes later the GPU answers.
    let events = test.run_until(720);
    assert_eq!(avoided().len(), 5);
    assert_eq!(avoided()[4], [0; 0]);
    // No failure has happened since, so the only news is that no call is stuck any more.
    assert!(events.contains(&"701 Fast nvml_answers=1 probes_stuck=0".to_owned()), "{events:?}");
    assert!(!events.iter().any(|event| event.ends_with("back")), "{events:?}");
    assert_eq!(test.spawner.alive.get(), 1);
}

#[test]
fn no_stuck_call_is_reported_once_per_gpu() {
    let mut test = Harness::new(&[&[Behaviour::Answers]]);
    let mut free = 0;
    while test.now <= Duration::from_secs(120) {
        let step = test.supervisor.step(test.now, &AtomicBool::new(false));
        for event in &step.events {
            let ProbeEvent::Report(report) = event else { continue };
            let is_free = |sample: &&Sample| {
                let no = (sample.signal, &sample.reading);
                sample.subject.gpu().is_some()
                    && no == (Signal::NodeCallsStuck, &Reading::Value(0.0))
            };
            free += report.samples.iter().filter(is_free).count();
        }
        test.now = step.next_at;
    }
    assert_eq!(free, 1, "a previous agent may have reported a stuck call");
}

#[test]
fn two_unkillable_children_mean_a_wedged_driver() {
    use farrier_facts::FactSet;
    use farrier_fleet::health::{Batch, Engine, Moment, Rules};
    let mut test = Harness::new(&[&[Behaviour::Hangs], &[Behaviour::Hangs], &[Behaviour::Answers]]);
    let mut engine = Engine::new(Rules::embedded().unwrap(), FactSet::embedded());
    let mut until = |test: &mut Harness, seconds: u64| {
        while test.now <= Duration::from_secs(seconds) {
            let step = test.supervisor.step(test.now, &AtomicBool::new(false));
            let samples = step.events.into_iter().filter_map(|event| match event {
                ProbeEvent::Report(report) => Some(report.samples),
                _ => None,
            });
            let batch = Batch { samples: samples.flatten().collect(), ..Batch::default() };
            let steady_ms = i64::try_from(test.now.as_millis()).unwrap();
            let wall = jiff::Timestamp::from_millisecond(steady_ms).unwrap();
            engine.observe(Moment { steady_ms, wall }, &batch);
            test.now = step.next_at;
        }
        let found = engine.findings().find(|finding| finding.code == "driver.wedged").cloned();
        found.map(|finding| (finding.action, serde_json::to_string(&finding.evidence).unwrap()))
    };
    let (action, evidence) = until(&mut test, 60).expect("two are stuck");
    assert_eq!(action.to_string(), "reboot-node");
    assert!(evidence.contains("nvmlInit_v2 has not returned for 30 s"), "{evidence}");
    test.spawner.kill_works.set(true);
    assert_eq!(until(&mut test, 120), None);
}
