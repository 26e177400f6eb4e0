//! Starts, polls, abandons and stops probe children. Time and the children are injected.

mod trouble;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use farrier_facts::node::ReadError;
use farrier_fleet::health::observation::{GpuIdentity, Subject};

use super::prober::{Asked, Children, Prober};
use super::wire::{Answer, FORM, Inventory, Request, Seen};
use super::{Pace, ProbeReport, ProbeSaid, Tier};

#[derive(Debug, Clone, Copy)]
pub(super) struct Deadlines {
    pub(super) answer: Duration,
    pub(super) start: Duration,
    /// How long to skip a GPU after a call about it hung.
    pub(super) avoid: Duration,
    pub(super) pace: Pace,
}

/// Limit of children alive at once. The second one shows whether only the first is stuck or the
/// driver hangs.
const ALIVE_MAX: usize = 2;
const BACKOFF_MIN: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(60);
/// After answering for this long a child counts as stable, and the back-off is reset.
const WELL: Duration = Duration::from_secs(60);
/// A child still alive this long after being asked to exit is stuck.
const GOING: Duration = Duration::from_secs(2);
/// How often exiting children are checked.
const LOOK: Duration = Duration::from_secs(1);

/// The result of a step.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) said: Vec<ProbeSaid>,
    /// When the next step is due.
    pub(super) again_at: Duration,
}

struct Current<C> {
    child: C,
    since: Duration,
    /// Whether it has answered the first request.
    is_started: bool,
    due: [Duration; 4],
}

/// A child that was asked to exit or killed.
struct Leaving<C> {
    child: C,
    since: Duration,
    hung: bool,
}

pub(super) struct Supervisor<C: Children> {
    children: C,
    deadlines: Deadlines,
    current: Option<Current<C::Child>>,
    leaving: Vec<Leaving<C::Child>>,
    start_at: Duration,
    backoff: Duration,
    /// A failure was reported and `Recovered` is still to come.
    is_ill: bool,
    answers: bool,
    stuck_said: Option<u32>,
    inventory: Vec<GpuIdentity>,
    /// Indices of GPUs to skip, and until when: a call about them hung, and the next child should
    /// still serve the others.
    avoided: BTreeMap<u32, Duration>,
    /// Descriptions of calls that have not returned, by GPU index, until the GPU answers again.
    calls: BTreeMap<Option<u32>, String>,
    /// Subjects whose last report said that a call is stuck.
    calls_said: BTreeSet<Subject>,
    /// Subjects for which either state was reported since the start.
    calls_known: BTreeSet<Subject>,
    seen: Seen,
}

impl<C: Children> Supervisor<C> {
    pub(super) fn new(children: C, deadlines: Deadlines, known: Vec<GpuIdentity>) -> Self {
        Self {
            children,
            deadlines,
            current: None,
            leaving: Vec::new(),
            start_at: Duration::ZERO,
            backoff: BACKOFF_MIN,
            is_ill: false,
            answers: false,
            stuck_said: None,
            inventory: known,
            avoided: BTreeMap::new(),
            calls: BTreeMap::new(),
            calls_said: BTreeSet::new(),
            calls_known: BTreeSet::new(),
            seen: Seen::default(),
        }
    }

    /// Performs what is due, sending at most one request.
    pub(super) fn turn(&mut self, now: Duration, stop: &AtomicBool) -> Turn {
        let mut said = Vec::new();
        self.leaving.retain_mut(|leaving| leaving.child.ended().is_none());
        let stuck = self.stuck(now);
        if self.stuck_said.is_some_and(|said| said != stuck) {
            self.say_node(None, stuck, &mut said);
        }
        self.try_avoided_again(now);
        if self.current.is_none() {
            self.start(now, &mut said);
        }
        if let Some(current) = self.current.take() {
            self.ask(current, now, stop, &mut said);
        }
        let due = match &self.current {
            Some(current) if current.is_started => current.due.iter().copied().min(),
            Some(_) => Some(now),
            None => Some(self.start_at.max(now + BACKOFF_MIN / 2)),
        };
        let look = (!self.leaving.is_empty()).then_some(now + LOOK);
        let again_at = [due, look].into_iter().flatten().min().unwrap_or(now + LOOK).max(now);
        Turn { said, again_at }
    }

    /// Waits up to `limit`. Returns whether the child exited.
    pub(super) fn idle(&mut self, limit: Duration) -> bool {
        if let Some(current) = &mut self.current {
            current.child.idle(limit)
        } else {
            std::thread::sleep(limit);
            false
        }
    }

    /// Whether no child runs and the next start is pending.
    pub(super) fn waits(&self) -> bool {
        self.current.is_none()
    }

    /// The obstacle may be gone: start the next child now and reset the back-off.
    pub(super) fn hurry(&mut self, now: Duration) {
        self.start_at = self.start_at.min(now);
        self.backoff = BACKOFF_MIN;
    }

    /// Stops the child. A stuck one is abandoned.
    pub(super) fn end(mut self) {
        self.rest(Duration::ZERO);
    }

    /// Stops the child. Returns whether no child is left; a stuck one may still hold the GPU open.
    pub(super) fn rest(&mut self, now: Duration) -> bool {
        if let Some(mut current) = self.current.take() {
            current.child.dismiss();
            if !current.child.idle(Duration::from_millis(200)) {
                current.child.kill();
                current.child.idle(Duration::from_millis(200));
            }
            self.leave(current.child, false, now);
        }
        self.leaving.retain_mut(|leaving| leaving.child.ended().is_none());
        self.leaving.is_empty()
    }

    /// Abandoned children that do not exit.
    fn stuck(&self, now: Duration) -> u32 {
        let stuck = |leaving: &&Leaving<C::Child>| {
            leaving.hung || now.saturating_sub(leaving.since) >= GOING
        };
        count(self.leaving.iter().filter(stuck).count())
    }

    /// Once a GPU's skip time is over, replaces the child by one that reads it again.
    fn try_avoided_again(&mut self, now: Duration) {
        // While the child that hung on it is still stuck, another one would hang too.
        if self.avoided.is_empty() || !self.leaving.is_empty() {
            return;
        }
        let before = self.avoided.len();
        self.avoided.retain(|_, until| *until > now);
        if self.avoided.len() < before
            && let Some(mut current) = self.current.take()
        {
            current.child.dismiss();
            self.leave(current.child, false, now);
            self.start_at = now;
        }
    }

    fn start(&mut self, now: Duration, said: &mut Vec<ProbeSaid>) {
        if now < self.start_at || self.leaving.len() >= ALIVE_MAX {
            return;
        }
        match self.children.start() {
            Ok(child) => {
                let due = [now; 4];
                self.current = Some(Current { child, since: now, is_started: false, due });
            }
            Err(err) => {
                let why = err.to_string();
                self.fall_ill(now, &ReadError::ProbeEnded { detail: why.clone() }, said);
                said.push(ProbeSaid::Died { why });
            }
        }
    }

    fn ask(
        &mut self,
        mut current: Current<C::Child>,
        now: Duration,
        stop: &AtomicBool,
        said: &mut Vec<ProbeSaid>,
    ) {
        let (request, tier, deadline) = if !current.is_started {
            let known = self.inventory.clone();
            let avoided = self.avoided.keys().copied().collect();
            let closely = self.deadlines.pace.is_close();
            let request = Request::Inventory(Inventory { known, avoided, closely });
            (request, Tier::Slow, self.deadlines.start)
        } else if let Some(tier) = next_due(&current.due, now) {
            (Request::Values(tier), tier, self.deadlines.answer)
        } else if current.child.ended().is_some() {
            return self.died(current.child, now, said);
        } else {
            self.current = Some(current);
            return;
        };
        match current.child.ask(&request.line(), deadline, stop) {
            Asked::Line(line) => self.answered(current, &request, tier, &line, now, said),
            Asked::Late => self.hung(current.child, deadline, now, said),
            Asked::Ended => self.died(current.child, now, said),
            Asked::Babble => self.babbled(current.child, now, said),
            Asked::Stopped => self.current = Some(current),
        }
    }

    fn answered(
        &mut self,
        mut current: Current<C::Child>,
        request: &Request,
        tier: Tier,
        line: &[u8],
        now: Duration,
        said: &mut Vec<ProbeSaid>,
    ) {
        let answer = serde_json::from_slice::<Answer>(line).ok().filter(|it| it.form == FORM);
        let Some(mut answer) = answer else { return self.babbled(current.child, now, said) };
        if let Some(refusal) = answer.refusal.take() {
            return self.refused(current.child, refusal, now, said);
        }
        let mut samples = Vec::new();
        if let Some(inventory) = &answer.inventory {
            samples = self.seen.keep(inventory);
            self.inventory.clone_from(inventory);
            self.forget_calls(&mut samples);
        }
        for gpu in &mut answer.gpus {
            if let Some(ReadError::CallStuck { avoid_s }) = &mut gpu.trouble {
                *avoid_s = Some(self.deadlines.avoid.as_secs());
            }
        }
        let Some(values) = self.seen.samples(tier, std::mem::take(&mut answer.gpus)) else {
            return self.babbled(current.child, now, said);
        };
        samples.extend(values);
        if now.saturating_sub(current.since) >= WELL {
            self.backoff = BACKOFF_MIN;
        }
        let stuck = self.stuck(now);
        let news = !self.answers;
        self.answers = true;
        let mut report = ProbeReport {
            tier,
            inventory: answer.inventory,
            samples,
            processes: answer.processes,
            xids: answer.xids,
            cpu_us: answer.cpu_us,
            driver: answer.driver,
            cuda: answer.cuda,
            close: answer.close,
        };
        if let Some(count) = answer.count {
            let count = count.map(f64::from);
            self.node_samples(Some((count, answer.shut)), stuck, &mut report.samples);
        } else if news {
            self.node_samples(None, stuck, &mut report.samples);
        }
        said.push(ProbeSaid::Report(report));
        match request {
            Request::Inventory(_) => current.is_started = true,
            Request::Values(tier) => {
                let due = &mut current.due[*tier as usize];
                *due += self.deadlines.pace.period(*tier);
                // Missed polls are not made up for.
                if *due <= now {
                    *due = now + self.deadlines.pace.period(*tier);
                }
            }
        }
        if std::mem::take(&mut self.seen.has_returned) {
            current.due = [now; 4];
        }
        // A stuck call could be in any tier, so wait until every tier has answered.
        let is_well = current.is_started && current.due.iter().all(|due| *due > now);
        if is_well {
            self.say_free(said);
        }
        if is_well && self.leaving.is_empty() {
            let before = self.calls.len();
            self.calls.retain(|gpu, _| gpu.is_some_and(|gpu| self.avoided.contains_key(&gpu)));
            if self.calls.len() < before {
                self.say_node(None, stuck, said);
            }
        }
        if self.is_ill && is_well && self.hears_the_others() {
            self.is_ill = false;
            said.push(ProbeSaid::Back);
        }
        self.current = Some(current);
    }

    /// Whether only skipped GPUs are missing; those have a finding and unreadable signals.
    fn hears_the_others(&self) -> bool {
        let is_avoided = |gpu: &Option<u32>| gpu.is_some_and(|gpu| self.avoided.contains_key(&gpu));
        let only_avoided = !self.calls.is_empty() && self.calls.keys().all(is_avoided);
        self.leaving.is_empty() || only_avoided
    }
}

/// The tier overdue for longest. With a slow driver, the fast tier must not starve the others.
fn next_due(due: &[Duration; 4], now: Duration) -> Option<Tier> {
    let tier = Tier::ALL.into_iter().min_by_key(|tier| due[*tier as usize])?;
    (due[tier as usize] <= now).then_some(tier)
}

fn count(children: usize) -> u32 {
    u32::try_from(children).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
