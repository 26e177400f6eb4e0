//! An in-memory node.

use std::collections::BTreeSet;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use farrier_fleet::fleet::event::Cordon;
use farrier_fleet::fleet::order::{Order, OrderKind, OrderStatus, VerificationLevel};
use farrier_fleet::health::GpuUuid;
use jiff::{SignedDuration, Timestamp};

use super::super::scheduler::whose;
use super::super::*;
use crate::failpoint::Failpoint;

/// State of the node, and counts of the changes made to it.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a way in which a node can be")]
pub(super) struct State {
    pub(super) boot: u32,
    pub(super) boot_unreadable: bool,
    /// Owner and reason of the cordon.
    pub(super) mark: Option<(String, String)>,
    pub(super) mark_unreadable: bool,
    pub(super) jobs: Vec<Job>,
    pub(super) cannot_move: BTreeSet<String>,
    pub(super) held: Vec<Held>,
    pub(super) gpu_wrong: Vec<String>,
    pub(super) finding_against: Option<String>,
    pub(super) reset_mends: bool,
    pub(super) reset_fails: Option<String>,
    pub(super) run: u32,
    pub(super) service_starts: bool,
    pub(super) proof: Proof,
    pub(super) resets: u32,
    pub(super) reboots: u32,
    pub(super) restarts: u32,
    pub(super) tunes: u32,
    pub(super) tune_fails: Option<String>,
    pub(super) cordons: u32,
    pub(super) uncordons: u32,
    pub(super) requeues: Vec<String>,
    /// An invariant that was violated. A panic would look like a simulated crash.
    pub(super) violated: Option<&'static str>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            boot: 1,
            finding_against: None,
            boot_unreadable: false,
            mark: None,
            mark_unreadable: false,
            jobs: Vec::new(),
            cannot_move: BTreeSet::new(),
            held: Vec::new(),
            gpu_wrong: vec!["the driver asks for a reset".to_owned()],
            reset_mends: true,
            reset_fails: None,
            run: 1,
            service_starts: true,
            proof: Proof { passed: vec!["all is well".to_owned()], ..Proof::default() },
            resets: 0,
            reboots: 0,
            restarts: 0,
            tunes: 0,
            tune_fails: None,
            cordons: 0,
            uncordons: 0,
            requeues: Vec::new(),
            violated: None,
        }
    }
}

impl State {
    fn needs_empty(&mut self) {
        if self.mark.is_none() || !self.jobs.is_empty() {
            self.violated = Some("a node in use was repaired");
        }
    }
}

pub(super) const UNIT: &str = "nvidia-fabricmanager.service";

pub(super) fn gpu() -> GpuUuid {
    GpuUuid("GPU-1".to_owned())
}

fn process_failed(stderr: &str) -> ProcessError {
    let (program, how) = ("program".to_owned(), "exit status: 1".to_owned());
    ProcessError::Failed { program, how, said: stderr.to_owned() }
}

pub(super) fn job(id: &str) -> Job {
    Job { id: id.to_owned(), text: format!("job {id}"), is_ending: false }
}

/// The node and its clock.
#[derive(Clone)]
pub(super) struct World {
    pub(super) folder: Arc<tempfile::TempDir>,
    state: Arc<Mutex<State>>,
    clock_s: Arc<AtomicI64>,
    /// Seconds that pass with each read of the clock.
    look_s: Arc<AtomicI64>,
    looks: Arc<AtomicU32>,
    pub(super) woken: Arc<AtomicU32>,
    pub(super) repairs: Arc<Mutex<Vec<RepairNote>>>,
}

/// The clock's first reading.
const BEGIN_S: i64 = 1_800_000_000;

impl World {
    pub(super) fn new() -> Self {
        Self {
            folder: Arc::new(tempfile::tempdir().unwrap()),
            state: Arc::default(),
            clock_s: Arc::new(AtomicI64::new(BEGIN_S)),
            look_s: Arc::new(AtomicI64::new(1)),
            looks: Arc::default(),
            woken: Arc::default(),
            repairs: Arc::default(),
        }
    }

    /// A node that we cordoned, without jobs.
    pub(super) fn drained() -> Self {
        let world = Self::new();
        world.state().mark = Some(("farrier".to_owned(), "farrier: before".to_owned()));
        world
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(super) fn now(&self) -> Timestamp {
        Timestamp::from_second(self.clock_s.load(Ordering::Relaxed)).unwrap()
    }

    pub(super) fn pass(&self, seconds: i64) {
        self.clock_s.fetch_add(seconds, Ordering::Relaxed);
    }

    /// Stops the clock from advancing by itself.
    pub(super) fn stand_still(&self) {
        self.look_s.store(0, Ordering::Relaxed);
    }

    /// Waits for further reads of the clock.
    pub(super) fn wait_for_looks(&self) {
        let until = self.looks.load(Ordering::Relaxed) + 20;
        while self.looks.load(Ordering::Relaxed) < until {
            std::thread::yield_now();
        }
    }

    pub(super) fn open(&self, crash: &str) -> Result<OrderExecutor, OrdersError> {
        let (world, woken) = (self.clone(), Arc::clone(&self.woken));
        let repairs = Arc::clone(&self.repairs);
        OrderExecutor::open(Parts {
            state_dir: self.folder.path().to_owned(),
            limits: Limits {
                node: Some("node-1".parse().unwrap()),
                allow_reset: true,
                allow_reboot: true,
                allow_tune: true,
                services: vec![UNIT.to_owned()],
                settle_s: 60,
            },
            hands: Box::new(self.clone()),
            eyes: Arc::new(self.clone()),
            scheduler: Box::new(self.clone()),
            now: Box::new(move || {
                world.looks.fetch_add(1, Ordering::Relaxed);
                let now = world.now();
                world.pass(world.look_s.load(Ordering::Relaxed));
                now
            }),
            poll: Duration::ZERO,
            paths: NodePaths { root: self.folder.path().join("root"), nvml: None },
            outbox: None,
            crash: Failpoint::of(crash),
            wake: Box::new(move || {
                woken.fetch_add(1, Ordering::Relaxed);
            }),
            repaired: Box::new(move |note| repairs.lock().unwrap().push(note)),
        })
    }

    pub(super) fn desk(&self) -> OrderExecutor {
        self.open("").unwrap()
    }

    pub(super) fn order(&self, generation: u64, what: OrderKind) -> Order {
        let boot = what.is_repair().then(|| format!("boot-{}", self.state().boot));
        Order {
            node: "node-1".parse().unwrap(),
            generation,
            kind: what,
            boot,
            lease_until: self.now() + SignedDuration::from_secs(600),
            reason: farrier_fleet::fleet::Reason::Rendered {
                original_code: "test".to_owned(),
                text: "Xid 79 on GPU 3".to_owned(),
            },
        }
    }

    /// Submits an order and executes it. Returns its final status.
    pub(super) fn carry(&self, what: OrderKind) -> OrderStatus {
        let desk = self.desk();
        let generation = desk.ledger().generation + 1;
        let order = self.order(generation, what);
        match desk.offer(&order, self.now()) {
            OrderStatus::Accepted => {}
            answer => return answer,
        }
        desk.step();
        desk.ledger().last.unwrap().1
    }
}

/// Runs `what`. Returns `None` if it hit a failpoint.
pub(super) fn dies<T>(what: impl FnOnce() -> T) -> Option<T> {
    // Suppress the panic message.
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let ended = catch_unwind(AssertUnwindSafe(what));
    std::panic::set_hook(before);
    ended.ok()
}

impl Actuator for World {
    fn boot(&self) -> Result<String, ActuatorError> {
        let state = self.state();
        if state.boot_unreadable {
            return Err(ActuatorError::BootIdEmpty { path: "boot_id" });
        }
        Ok(format!("boot-{}", state.boot))
    }

    fn reset_gpu(&self, _gpu: &GpuUuid, _alive: File) -> Result<(), ActuatorError> {
        let mut state = self.state();
        state.needs_empty();
        state.resets += 1;
        if let Some(stderr) = &state.reset_fails {
            return Err(process_failed(stderr).into());
        }
        if state.reset_mends {
            state.gpu_wrong.clear();
        }
        Ok(())
    }

    fn reboot(&self, _alive: File) -> Result<(), ActuatorError> {
        let mut state = self.state();
        state.needs_empty();
        state.reboots += 1;
        state.boot += 1;
        Ok(())
    }

    fn service(&self, _unit: &str) -> Result<Service, ActuatorError> {
        let state = self.state();
        let is_active = state.service_starts || state.restarts == 0;
        let word = if is_active { "active" } else { "failed" };
        Ok(Service { is_active, state: word.to_owned(), run: Some(format!("run-{}", state.run)) })
    }

    fn restart_service(&self, _unit: &str, _alive: File) -> Result<(), ActuatorError> {
        let mut state = self.state();
        state.needs_empty();
        state.restarts += 1;
        state.run += 1;
        Ok(())
    }

    fn tune(&self, profile: &str, _alive: File) -> Result<String, ActuatorError> {
        let mut state = self.state();
        state.needs_empty();
        state.tunes += 1;
        match state.tune_fails.clone() {
            None => Ok(format!("it is as {profile} wants it")),
            Some(stderr) => Err(TuneError::Failed { stderr }.into()),
        }
    }
}

impl Inspector for World {
    fn gpu(&self, _gpu: &GpuUuid) -> Result<GpuSeen, InspectorError> {
        Ok(GpuSeen { wrong: self.state().gpu_wrong.clone(), text: "it answers".to_owned() })
    }

    fn processes(&self, _since: Timestamp) -> Result<Vec<Held>, InspectorError> {
        Ok(self.state().held.clone())
    }

    fn finding_against(&self) -> Result<Option<String>, InspectorError> {
        Ok(self.state().finding_against.clone())
    }

    fn prove(&self, _rung: VerificationLevel, _wanted: &dyn Fn() -> bool) -> Proof {
        self.state().proof.clone()
    }

    fn examine(&self, _level: u8, _minutes: u32, _wanted: &dyn Fn() -> bool) -> Proof {
        self.state().proof.clone()
    }
}

impl Scheduler for World {
    fn name(&self) -> &'static str {
        "the test"
    }

    fn state(&self, ours: Option<&str>) -> Result<Cordon, SchedulerError> {
        let state = self.state();
        if state.mark_unreadable {
            return Err(process_failed("the controller does not answer").into());
        }
        Ok(match &state.mark {
            None => Cordon::None,
            Some((owner, reason)) => whose(owner == "farrier", owner, reason, ours),
        })
    }

    fn cordon(&self, reason: &str) -> Result<(), SchedulerError> {
        let mut state = self.state();
        state.cordons += 1;
        if state.mark.is_some() {
            state.violated = Some("a mark was written over");
        }
        state.mark = Some(("farrier".to_owned(), reason.to_owned()));
        Ok(())
    }

    fn uncordon(&self) -> Result<(), SchedulerError> {
        let mut state = self.state();
        state.uncordons += 1;
        let owner = state.mark.take().map(|(owner, _)| owner);
        if owner.is_some_and(|owner| owner != "farrier") {
            state.violated = Some("another's mark was taken away");
        }
        Ok(())
    }

    fn jobs(&self, _since: Timestamp) -> Result<Vec<Job>, SchedulerError> {
        Ok(self.state().jobs.clone())
    }

    fn requeue(&self, job: &Job) -> Result<(), SchedulerError> {
        let mut state = self.state();
        state.requeues.push(job.id.clone());
        if state.cannot_move.contains(&job.id) {
            return Err(process_failed("it cannot be requeued").into());
        }
        state.jobs.retain(|other| other.id != job.id);
        Ok(())
    }
}
