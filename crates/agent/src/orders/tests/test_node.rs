//! An in-memory node.

use std::collections::BTreeSet;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use farrier_fleet::fleet::event::Cordon;
use farrier_fleet::fleet::order::{Order, OrderKind, OrderStatus, VerificationLevel};
use farrier_fleet::health::GpuUuid;
use jiff::{SignedDuration, Timestamp};

use super::super::scheduler::classify_cordon;
use super::super::*;
use crate::failpoint::Failpoint;

/// State of the node, and counts of the changes made to it.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "independent test switches")]
pub(super) struct State {
    pub(super) boot: u32,
    pub(super) boot_unreadable: bool,
    /// Owner and reason of the cordon.
    pub(super) cordon: Option<(String, String)>,
    pub(super) cordon_unreadable: bool,
    pub(super) jobs: Vec<ScheduledJob>,
    pub(super) cannot_requeue: BTreeSet<String>,
    pub(super) processes: Vec<GpuProcess>,
    pub(super) reset_reasons: Vec<String>,
    pub(super) blocking_finding: Option<String>,
    pub(super) reset_succeeds: bool,
    pub(super) reset_fails: Option<String>,
    pub(super) run: u32,
    pub(super) service_starts: bool,
    pub(super) verification: VerificationReport,
    pub(super) resets: u32,
    pub(super) reboots: u32,
    pub(super) restarts: u32,
    pub(super) tunes: u32,
    pub(super) tune_fails: Option<String>,
    pub(super) cordons: u32,
    pub(super) uncordons: u32,
    pub(super) requeues: Vec<String>,
    /// An invariant that was violated. It is recorded, because a panic would look like a simulated
    /// crash.
    pub(super) violated: Option<&'static str>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            boot: 1,
            blocking_finding: None,
            boot_unreadable: false,
            cordon: None,
            cordon_unreadable: false,
            jobs: Vec::new(),
            cannot_requeue: BTreeSet::new(),
            processes: Vec::new(),
            reset_reasons: vec!["the driver requests a reset".to_owned()],
            reset_succeeds: true,
            reset_fails: None,
            run: 1,
            service_starts: true,
            verification: VerificationReport {
                passed: vec!["all is well".to_owned()],
                ..VerificationReport::default()
            },
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
    fn check_drained(&mut self) {
        if self.cordon.is_none() || !self.jobs.is_empty() {
            self.violated = Some("a node in use was repaired");
        }
    }
}

pub(super) const UNIT: &str = "nvidia-fabricmanager.service";

pub(super) fn gpu() -> GpuUuid {
    GpuUuid("GPU-1".to_owned())
}

fn process_failed(stderr: &str) -> ProcessError {
    let (program, status) = ("program".to_owned(), "exit status: 1".to_owned());
    ProcessError::Failed { program, status, output: stderr.to_owned() }
}

pub(super) fn job(id: &str) -> ScheduledJob {
    ScheduledJob { id: id.to_owned(), text: format!("job {id}"), is_ending: false }
}

/// The node and its clock.
#[derive(Clone)]
pub(super) struct TestNode {
    pub(super) folder: Arc<tempfile::TempDir>,
    state: Arc<Mutex<State>>,
    clock_s: Arc<AtomicI64>,
    /// Seconds that pass with each read of the clock.
    step_s: Arc<AtomicI64>,
    clock_reads: Arc<AtomicU32>,
    pub(super) wakes: Arc<AtomicU32>,
    pub(super) repairs: Arc<Mutex<Vec<RepairNote>>>,
}

/// The clock's first reading.
const START_S: i64 = 1_800_000_000;

impl TestNode {
    pub(super) fn new() -> Self {
        Self {
            folder: Arc::new(tempfile::tempdir().unwrap()),
            state: Arc::default(),
            clock_s: Arc::new(AtomicI64::new(START_S)),
            step_s: Arc::new(AtomicI64::new(1)),
            clock_reads: Arc::default(),
            wakes: Arc::default(),
            repairs: Arc::default(),
        }
    }

    /// A node that farrier cordoned, without jobs.
    pub(super) fn drained() -> Self {
        let node = Self::new();
        node.state().cordon = Some(("farrier".to_owned(), "farrier: before".to_owned()));
        node
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(super) fn now(&self) -> Timestamp {
        Timestamp::from_second(self.clock_s.load(Ordering::Relaxed)).unwrap()
    }

    pub(super) fn advance(&self, seconds: i64) {
        self.clock_s.fetch_add(seconds, Ordering::Relaxed);
    }

    /// Stops the clock from advancing with each read.
    pub(super) fn stop_clock(&self) {
        self.step_s.store(0, Ordering::Relaxed);
    }

    /// Waits until the executor has read the clock 20 more times, so that it has retried.
    pub(super) fn wait_for_clock_reads(&self) {
        let until = self.clock_reads.load(Ordering::Relaxed) + 20;
        while self.clock_reads.load(Ordering::Relaxed) < until {
            std::thread::yield_now();
        }
    }

    pub(super) fn open(&self, crash: &str) -> Result<OrderExecutor, OrdersError> {
        let (node, wakes) = (self.clone(), Arc::clone(&self.wakes));
        let repairs = Arc::clone(&self.repairs);
        OrderExecutor::open(ExecutorParts {
            state_dir: self.folder.path().to_owned(),
            limits: OrderLimits {
                node: Some("node-1".parse().unwrap()),
                allow_reset: true,
                allow_reboot: true,
                allow_tune: true,
                services: vec![UNIT.to_owned()],
                settle_s: 60,
            },
            actuator: Box::new(self.clone()),
            inspector: Arc::new(self.clone()),
            scheduler: Box::new(self.clone()),
            now: Box::new(move || {
                node.clock_reads.fetch_add(1, Ordering::Relaxed);
                let now = node.now();
                node.advance(node.step_s.load(Ordering::Relaxed));
                now
            }),
            poll: Duration::ZERO,
            paths: NodePaths { root: self.folder.path().join("root"), nvml: None },
            outbox: None,
            crash: Failpoint::parse(crash),
            wake: Box::new(move || {
                wakes.fetch_add(1, Ordering::Relaxed);
            }),
            repaired: Box::new(move |note| repairs.lock().unwrap().push(note)),
        })
    }

    /// Opens the executor. A program that another test is starting can still have the lock of the
    /// journal, between `fork` and `exec`.
    pub(super) fn executor(&self) -> OrderExecutor {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            match self.open("") {
                Err(OrdersError::InUse { .. }) if Instant::now() < until => {
                    std::thread::yield_now();
                }
                opened => return opened.unwrap(),
            }
        }
    }

    pub(super) fn order(&self, generation: u64, kind: OrderKind) -> Order {
        let boot = kind.is_repair().then(|| format!("boot-{}", self.state().boot));
        Order {
            node: "node-1".parse().unwrap(),
            generation,
            kind,
            boot,
            lease_until: self.now() + SignedDuration::from_secs(600),
            reason: farrier_fleet::fleet::Reason::Rendered {
                original_code: "test".to_owned(),
                text: "Xid 79 on GPU 3".to_owned(),
            },
        }
    }

    /// Submits an order and executes it. Returns its final status.
    pub(super) fn run_order(&self, kind: OrderKind) -> OrderStatus {
        let executor = self.executor();
        let generation = executor.ledger().generation + 1;
        let order = self.order(generation, kind);
        match executor.submit(&order, self.now()) {
            OrderStatus::Accepted => {}
            status => return status,
        }
        executor.step();
        executor.ledger().last.unwrap().1
    }
}

/// Runs `action`. Returns `None` if it hit a failpoint.
pub(super) fn catch_crash<T>(action: impl FnOnce() -> T) -> Option<T> {
    // Suppress the panic message.
    let previous = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let result = catch_unwind(AssertUnwindSafe(action));
    std::panic::set_hook(previous);
    result.ok()
}

impl Actuator for TestNode {
    fn boot(&self) -> Result<String, ActuatorError> {
        let state = self.state();
        if state.boot_unreadable {
            return Err(ActuatorError::BootIdEmpty { path: "boot_id" });
        }
        Ok(format!("boot-{}", state.boot))
    }

    fn reset_gpu(&self, _gpu: &GpuUuid, _lock: File) -> Result<(), ActuatorError> {
        let mut state = self.state();
        state.check_drained();
        state.resets += 1;
        if let Some(stderr) = &state.reset_fails {
            return Err(process_failed(stderr).into());
        }
        if state.reset_succeeds {
            state.reset_reasons.clear();
        }
        Ok(())
    }

    fn reboot(&self, _lock: File) -> Result<(), ActuatorError> {
        let mut state = self.state();
        state.check_drained();
        state.reboots += 1;
        state.boot += 1;
        Ok(())
    }

    fn service(&self, _unit: &str) -> Result<ServiceStatus, ActuatorError> {
        let state = self.state();
        let is_active = state.service_starts || state.restarts == 0;
        let word = if is_active { "active" } else { "failed" };
        Ok(ServiceStatus {
            is_active,
            state: word.to_owned(),
            run: Some(format!("run-{}", state.run)),
        })
    }

    fn restart_service(&self, _unit: &str, _lock: File) -> Result<(), ActuatorError> {
        let mut state = self.state();
        state.check_drained();
        state.restarts += 1;
        state.run += 1;
        Ok(())
    }

    fn tune(&self, profile: &str, _lock: File) -> Result<String, ActuatorError> {
        let mut state = self.state();
        state.check_drained();
        state.tunes += 1;
        match state.tune_fails.clone() {
            None => Ok(format!("profile {profile} is applied")),
            Some(stderr) => Err(TuneError::Failed { stderr }.into()),
        }
    }
}

impl Inspector for TestNode {
    fn gpu(&self, _gpu: &GpuUuid) -> Result<GpuHealth, InspectorError> {
        Ok(GpuHealth {
            reset_reasons: self.state().reset_reasons.clone(),
            summary: "the GPU responds".to_owned(),
        })
    }

    fn processes(&self, _since: Timestamp) -> Result<Vec<GpuProcess>, InspectorError> {
        Ok(self.state().processes.clone())
    }

    fn blocking_finding(&self) -> Result<Option<String>, InspectorError> {
        Ok(self.state().blocking_finding.clone())
    }

    fn verify(
        &self,
        _level: VerificationLevel,
        _is_active: &dyn Fn() -> bool,
    ) -> VerificationReport {
        self.state().verification.clone()
    }

    fn run_diag(
        &self,
        _level: u8,
        _minutes: u32,
        _is_active: &dyn Fn() -> bool,
    ) -> VerificationReport {
        self.state().verification.clone()
    }
}

impl Scheduler for TestNode {
    fn name(&self) -> &'static str {
        "test"
    }

    fn state(&self, ours: Option<&str>) -> Result<Cordon, SchedulerError> {
        let state = self.state();
        if state.cordon_unreadable {
            return Err(process_failed("the controller does not answer").into());
        }
        Ok(match &state.cordon {
            None => Cordon::None,
            Some((owner, reason)) => classify_cordon(owner == "farrier", owner, reason, ours),
        })
    }

    fn cordon(&self, reason: &str) -> Result<(), SchedulerError> {
        let mut state = self.state();
        state.cordons += 1;
        if state.cordon.is_some() {
            state.violated = Some("a cordon was overwritten");
        }
        state.cordon = Some(("farrier".to_owned(), reason.to_owned()));
        Ok(())
    }

    fn uncordon(&self) -> Result<(), SchedulerError> {
        let mut state = self.state();
        state.uncordons += 1;
        let owner = state.cordon.take().map(|(owner, _)| owner);
        if owner.is_some_and(|owner| owner != "farrier") {
            state.violated = Some("an external cordon was removed");
        }
        Ok(())
    }

    fn jobs(&self, _since: Timestamp) -> Result<Vec<ScheduledJob>, SchedulerError> {
        Ok(self.state().jobs.clone())
    }

    fn requeue(&self, job: &ScheduledJob) -> Result<(), SchedulerError> {
        let mut state = self.state();
        state.requeues.push(job.id.clone());
        if state.cannot_requeue.contains(&job.id) {
            return Err(process_failed("job cannot be requeued").into());
        }
        state.jobs.retain(|other| other.id != job.id);
        Ok(())
    }
}
