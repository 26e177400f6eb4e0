//! Starts, polls, abandons and stops probe children. Time and the children are injected.

mod failures;
mod slow_calls;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use farrier_facts::node::ReadError;
use farrier_fleet::health::observation::{GpuIdentity, Subject};

use super::probe_child::{ProbeChild, ProbeReply, ProbeSpawner};
use super::wire::{InventoryRequest, ReportedSignals, SIGNALS_HASH, WatchRequest, WatchResponse};
use super::{Pace, ProbeEvent, ProbeReport, Tier};
use slow_calls::SlowCalls;

#[derive(Debug, Clone, Copy)]
pub(super) struct Deadlines {
    pub(super) answer: Duration,
    pub(super) start: Duration,
    /// How long to skip a GPU after a call about it hung.
    pub(super) avoid: Duration,
    pub(super) pace: Pace,
}

/// Maximum children alive at once. If the second child hangs too, the driver hangs, not only one
/// call.
const ALIVE_MAX: usize = 2;
const BACKOFF_MIN: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(60);
/// A child that has answered for this long counts as stable, and the back-off is reset.
const STABLE_AFTER: Duration = Duration::from_secs(60);
/// A child that is still alive this long after it was asked to exit counts as stuck.
const EXIT_GRACE: Duration = Duration::from_secs(2);
/// How often to check whether children that should exit have exited.
const EXIT_POLL: Duration = Duration::from_secs(1);

/// The result of a step.
#[derive(Debug)]
pub(super) struct SupervisorStep {
    pub(super) events: Vec<ProbeEvent>,
    /// When the next step is due.
    pub(super) next_at: Duration,
}

struct ActiveChild<C> {
    child: C,
    since: Duration,
    /// Whether the child has answered the first request.
    is_started: bool,
    due: [Duration; 4],
    /// The request that the child has not answered yet.
    unanswered: Option<UnansweredRequest>,
}

/// A request without a response so far. Its deadline has not passed.
struct UnansweredRequest {
    request: WatchRequest,
    tier: Tier,
    deadline: Duration,
    waited: Duration,
}

/// A child that was asked to exit or killed.
struct ExitingChild<C> {
    child: C,
    since: Duration,
    hung: bool,
}

pub(super) struct Supervisor<C: ProbeSpawner> {
    children: C,
    deadlines: Deadlines,
    current: Option<ActiveChild<C::Child>>,
    exiting: Vec<ExitingChild<C::Child>>,
    start_at: Duration,
    backoff: Duration,
    /// A failure was reported, and `Recovered` has not been sent since.
    is_degraded: bool,
    is_answering: bool,
    stuck_reported: Option<u32>,
    inventory: Vec<GpuIdentity>,
    /// Indices of GPUs to skip because a call about them hung, and until when. The next child still
    /// reads the other GPUs.
    avoided: BTreeMap<u32, Duration>,
    /// Descriptions of calls that have not returned, by GPU index, until the GPU answers again.
    stuck_calls: BTreeMap<Option<u32>, String>,
    /// Subjects last reported with a stuck call.
    calls_reported: BTreeSet<Subject>,
    /// Subjects whose stuck-call signal was reported at least once since the start.
    call_states_reported: BTreeSet<Subject>,
    reported_signals: ReportedSignals,
    slow_calls: SlowCalls,
}

impl<C: ProbeSpawner> Supervisor<C> {
    pub(super) fn new(children: C, deadlines: Deadlines, known: Vec<GpuIdentity>) -> Self {
        Self {
            children,
            deadlines,
            current: None,
            exiting: Vec::new(),
            start_at: Duration::ZERO,
            backoff: BACKOFF_MIN,
            is_degraded: false,
            is_answering: false,
            stuck_reported: None,
            inventory: known,
            avoided: BTreeMap::new(),
            stuck_calls: BTreeMap::new(),
            calls_reported: BTreeSet::new(),
            call_states_reported: BTreeSet::new(),
            reported_signals: ReportedSignals::default(),
            slow_calls: SlowCalls::default(),
        }
    }

    /// Takes all actions that are due, and sends at most one request.
    pub(super) fn step(&mut self, now: Duration, stop: &AtomicBool) -> SupervisorStep {
        let mut events = Vec::new();
        self.exiting.retain_mut(|exiting| exiting.child.exit_status().is_none());
        let stuck = self.stuck(now);
        if self.stuck_reported.is_some_and(|reported| reported != stuck) {
            self.report_node(None, stuck, &mut events);
        }
        self.try_avoided_again(now);
        if self.current.is_none() {
            self.start(now, &mut events);
        }
        if let Some(current) = self.current.take() {
            self.request(current, now, stop, &mut events);
        }
        let due = match &self.current {
            Some(current) if current.unanswered.is_some() => Some(now),
            Some(current) if current.is_started => current.due.iter().copied().min(),
            Some(_) => Some(now),
            None => Some(self.start_at.max(now + BACKOFF_MIN / 2)),
        };
        let look = (!self.exiting.is_empty()).then_some(now + EXIT_POLL);
        let next_at = [due, look].into_iter().flatten().min().unwrap_or(now + EXIT_POLL).max(now);
        SupervisorStep { events, next_at }
    }

    /// Waits up to `limit`. Returns whether the child exited.
    pub(super) fn wait_for_exit(&mut self, limit: Duration) -> bool {
        if let Some(current) = &mut self.current {
            current.child.wait_for_exit(limit)
        } else {
            std::thread::sleep(limit);
            false
        }
    }

    /// Whether no child runs, and the next one starts after the back-off.
    pub(super) fn is_backing_off(&self) -> bool {
        self.current.is_none()
    }

    /// Starts the next child now and resets the back-off, because the obstacle may be gone.
    pub(super) fn retry_now(&mut self, now: Duration) {
        self.start_at = self.start_at.min(now);
        self.backoff = BACKOFF_MIN;
    }

    /// Stops the child. A stuck child is abandoned.
    pub(super) fn shutdown(mut self) {
        self.stop_child(Duration::ZERO);
    }

    /// Stops the child. Returns whether no child is left. A stuck child may still have the GPU
    /// open.
    pub(super) fn stop_child(&mut self, now: Duration) -> bool {
        if let Some(mut current) = self.current.take() {
            current.child.request_exit();
            if !current.child.wait_for_exit(Duration::from_millis(200)) {
                current.child.kill();
                current.child.wait_for_exit(Duration::from_millis(200));
            }
            self.abandon(current.child, false, now);
        }
        self.exiting.retain_mut(|exiting| exiting.child.exit_status().is_none());
        self.exiting.is_empty()
    }

    /// Number of abandoned children that do not exit.
    fn stuck(&self, now: Duration) -> u32 {
        let stuck = |exiting: &&ExitingChild<C::Child>| {
            exiting.hung || now.saturating_sub(exiting.since) >= EXIT_GRACE
        };
        count(self.exiting.iter().filter(stuck).count())
    }

    /// When a GPU's skip time is over, replaces the child by a child that reads the GPU again.
    fn try_avoided_again(&mut self, now: Duration) {
        // While the child that hung on the GPU is still stuck, another child would hang too.
        if self.avoided.is_empty() || !self.exiting.is_empty() {
            return;
        }
        let before = self.avoided.len();
        self.avoided.retain(|_, until| *until > now);
        if self.avoided.len() < before
            && let Some(mut current) = self.current.take()
        {
            current.child.request_exit();
            self.abandon(current.child, false, now);
            self.start_at = now;
        }
    }

    fn start(&mut self, now: Duration, events: &mut Vec<ProbeEvent>) {
        if now < self.start_at || self.exiting.len() >= ALIVE_MAX {
            return;
        }
        match self.children.start() {
            Ok(child) => {
                let due = [now; 4];
                self.current = Some(ActiveChild {
                    child,
                    since: now,
                    is_started: false,
                    due,
                    unanswered: None,
                });
            }
            Err(err) => {
                let why = err.to_string();
                self.enter_failure(now, &ReadError::ProbeEnded { detail: why.clone() }, events);
                events.push(ProbeEvent::Died { why });
            }
        }
    }

    /// Sends the next request, or continues to wait for the response to the last request.
    fn request(
        &mut self,
        mut current: ActiveChild<C::Child>,
        now: Duration,
        stop: &AtomicBool,
        events: &mut Vec<ProbeEvent>,
    ) {
        let unanswered = current.unanswered.take();
        let is_sent = unanswered.is_some();
        let Some(mut sent) = unanswered.or_else(|| self.next_request(&current, now)) else {
            if current.child.exit_status().is_some() {
                return self.died(current.child, now, events);
            }
            self.current = Some(current);
            return;
        };
        let left = sent.deadline.saturating_sub(sent.waited);
        let limit = self.deadlines.pace.patience().map_or(left, |patience| left.min(patience));
        let reply = if is_sent {
            current.child.keep_waiting(limit, stop)
        } else {
            current.child.request(&sent.request.line(), limit, stop)
        };
        match reply {
            ProbeReply::Line(line) => {
                self.answered(current, &sent.request, sent.tier, &line, now, events);
            }
            ProbeReply::TimedOut if limit < left => {
                let call = current.child.current_call();
                sent.waited += limit;
                let (during, gpu, after) = (call.to_string(), call.gpu, sent.waited);
                events.push(ProbeEvent::Waiting { during, gpu, after });
                current.unanswered = Some(sent);
                self.current = Some(current);
            }
            ProbeReply::TimedOut => self.hung(current.child, sent.deadline, now, events),
            ProbeReply::Exited => self.died(current.child, now, events),
            ProbeReply::Malformed => self.malformed(current.child, now, events),
            ProbeReply::Stopped => self.current = Some(current),
        }
    }

    /// The request that is due.
    fn next_request(
        &self,
        current: &ActiveChild<C::Child>,
        now: Duration,
    ) -> Option<UnansweredRequest> {
        let (request, tier, deadline) = if current.is_started {
            let tier = next_due(&current.due, now)?;
            (WatchRequest::Values(tier), tier, self.deadlines.answer)
        } else {
            let known = self.inventory.clone();
            let avoided = self.avoided.keys().copied().collect();
            let interactive = self.deadlines.pace.is_interactive();
            let request = WatchRequest::Inventory(InventoryRequest { known, avoided, interactive });
            (request, Tier::Slow, self.deadlines.start)
        };
        Some(UnansweredRequest { request, tier, deadline, waited: Duration::ZERO })
    }

    fn answered(
        &mut self,
        mut current: ActiveChild<C::Child>,
        request: &WatchRequest,
        tier: Tier,
        line: &[u8],
        now: Duration,
        events: &mut Vec<ProbeEvent>,
    ) {
        let response = serde_json::from_slice::<WatchResponse>(line)
            .ok()
            .filter(|response| response.signals_hash == SIGNALS_HASH);
        let Some(mut response) = response else {
            return self.malformed(current.child, now, events);
        };
        if let Some(unavailable) = response.unavailable.take() {
            return self.refused(current.child, unavailable, now, events);
        }
        let mut samples = Vec::new();
        if let Some(inventory) = &response.inventory {
            samples = self.reported_signals.retain_listed(inventory);
            self.inventory.clone_from(inventory);
            self.drop_unlisted_calls(&mut samples);
        }
        for gpu in &mut response.gpus {
            if let Some(ReadError::CallStuck { avoid_s }) = &mut gpu.failure {
                *avoid_s = Some(self.deadlines.avoid.as_secs());
            }
        }
        let Some(values) = self.reported_signals.samples(tier, std::mem::take(&mut response.gpus))
        else {
            return self.malformed(current.child, now, events);
        };
        samples.extend(values);
        self.slow_calls.add(&response.slow_calls);
        self.slow_calls.push_samples(tier, &self.inventory, &mut samples);
        if now.saturating_sub(current.since) >= STABLE_AFTER {
            self.backoff = BACKOFF_MIN;
        }
        let stuck = self.stuck(now);
        let is_first = !self.is_answering;
        self.is_answering = true;
        let mut report = ProbeReport {
            tier,
            inventory: response.inventory,
            samples,
            processes: response.processes,
            xids: response.xids,
            cpu_us: response.cpu_us,
            driver: response.driver,
            cuda: response.cuda,
            detailed: response.detailed,
            node_check: response.node_check,
        };
        if let Some(count) = response.count {
            let count = count.map(f64::from);
            self.node_samples(Some((count, response.unopened)), stuck, &mut report.samples);
        } else if is_first {
            self.node_samples(None, stuck, &mut report.samples);
        }
        events.push(ProbeEvent::Report(report));
        match request {
            WatchRequest::Inventory(_) => current.is_started = true,
            WatchRequest::Values(tier) => {
                let due = &mut current.due[*tier as usize];
                *due += self.deadlines.pace.period(*tier);
                // Do not make up for missed polls.
                if *due <= now {
                    *due = now + self.deadlines.pace.period(*tier);
                }
            }
        }
        if std::mem::take(&mut self.reported_signals.has_returned) {
            current.due = [now; 4];
        }
        // A stuck call could be in any tier, so wait until every tier has answered.
        let is_healthy = current.is_started && current.due.iter().all(|due| *due > now);
        if is_healthy {
            self.report_no_stuck_calls(events);
        }
        if is_healthy && self.exiting.is_empty() {
            let before = self.stuck_calls.len();
            self.stuck_calls
                .retain(|gpu, _| gpu.is_some_and(|gpu| self.avoided.contains_key(&gpu)));
            if self.stuck_calls.len() < before {
                self.report_node(None, stuck, events);
            }
        }
        if self.is_degraded && is_healthy && self.only_avoided_are_missing() {
            self.is_degraded = false;
            events.push(ProbeEvent::Recovered);
        }
        self.current = Some(current);
    }

    /// Whether no child is exiting, or all stuck calls are about skipped GPUs. Skipped GPUs already
    /// have a finding and unreadable signals.
    fn only_avoided_are_missing(&self) -> bool {
        let is_avoided = |gpu: &Option<u32>| gpu.is_some_and(|gpu| self.avoided.contains_key(&gpu));
        let only_avoided = !self.stuck_calls.is_empty() && self.stuck_calls.keys().all(is_avoided);
        self.exiting.is_empty() || only_avoided
    }
}

/// The tier that has been due for longest, so that the fast tier does not starve the others if the
/// driver is slow.
fn next_due(due: &[Duration; 4], now: Duration) -> Option<Tier> {
    let tier = Tier::ALL.into_iter().min_by_key(|tier| due[*tier as usize])?;
    (due[tier as usize] <= now).then_some(tier)
}

fn count(children: usize) -> u32 {
    u32::try_from(children).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
