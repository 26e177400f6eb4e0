//! Timers: when a heartbeat timeout, a lease or the timeout of a phase ends. They count time in which the controller ran, so a clock
//! that is stepped and a server that was paused end none of them.

use jiff::{SignedDuration, Timestamp};

use super::node::{Node, Standing, later};
use super::{FleetState, Freeze};
use crate::fleet::policy::{Policy, PoolPolicy};

impl Node {
    /// When a timeout of its present phase ends.
    pub(crate) fn phase_deadline(&self, seconds: u32) -> Timestamp {
        later(self.since, seconds.saturating_add(self.uncounted_s))
    }

    /// When its heartbeat timeout ends; none while its heartbeats come.
    pub(crate) fn heartbeat_deadline(&self, pool: &PoolPolicy) -> Option<Timestamp> {
        let since = self.silent_since?;
        Some(later(since, pool.silent_s.saturating_add(self.heartbeat_uncounted_s)))
    }

    fn has_timer(&self) -> bool {
        self.order.is_some()
            || self.silent_since.is_some()
            || matches!(self.standing, Standing::Suspect | Standing::Verifying)
    }

    /// Gives every timer so much more time.
    fn extend_timers(&mut self, by: SignedDuration) {
        self.uncounted_s = self.uncounted_s.saturating_add(whole_seconds(by));
        if self.silent_since.is_some() {
            let uncounted_s = self.heartbeat_uncounted_s.saturating_add(whole_seconds(by));
            self.heartbeat_uncounted_s = uncounted_s;
        }
        if let Some(pending) = &mut self.order {
            let until = &mut pending.order.lease_until;
            *until = until.checked_add(by).unwrap_or(Timestamp::MAX);
        }
    }

    /// After the clock was set back by `back`: nothing that has happened lies in the future, timers have as much left as before where that can
    /// be known, and none runs for longer than in full.
    fn step_back(&mut self, back: SignedDuration, now: Timestamp, policy: &Policy) {
        let clamp = |at: &mut Timestamp| *at = (*at).min(now);
        clamp(&mut self.since);
        self.silent_since.iter_mut().for_each(clamp);
        self.revoked.iter_mut().for_each(clamp);
        self.over_quota_since.iter_mut().for_each(clamp);
        self.unreadable_since.iter_mut().for_each(clamp);
        self.failed.iter_mut().for_each(|(at, _)| clamp(at));
        self.shows.values_mut().for_each(clamp);
        self.quarantines.iter_mut().for_each(clamp);
        self.proven.values_mut().for_each(|proof| clamp(&mut proof.at));
        self.errands_ended.iter_mut().for_each(|ended| clamp(&mut ended.at));
        let step_back = |uncounted_s: &mut u32, since: Timestamp| {
            let passed_s = whole_seconds(now.duration_since(since));
            *uncounted_s = uncounted_s.saturating_sub(whole_seconds(back)).min(passed_s);
        };
        step_back(&mut self.uncounted_s, self.since);
        step_back(&mut self.heartbeat_uncounted_s, self.silent_since.unwrap_or(now));
        if let Some(pending) = &mut self.order {
            let lease_s = policy.of(&self.place.pool).lease_of(&pending.order.what);
            let until = &mut pending.order.lease_until;
            *until = until.checked_sub(back).unwrap_or(*until).min(later(now, lease_s));
        }
    }

    /// After the controller did not run for `gap`: none of that counts. Where it was long enough for a connection to end, the agent has
    /// time to connect again. That is given only so often in one silence: a controller that stops again and again still finds a dead node.
    fn resume(&mut self, gap: SignedDuration, now: Timestamp, policy: &Policy) {
        let pool = policy.of(&self.place.pool);
        let reconnect_s = pool.silent_s / 3;
        let may_reconnect =
            whole_seconds(gap) >= reconnect_s && self.heartbeat_uncounted_s < pool.silent_s;
        self.extend_timers(gap);
        if let Some(deadline) = self.heartbeat_deadline(pool).filter(|_| may_reconnect) {
            let lacks = later(now, reconnect_s).duration_since(deadline);
            let uncounted_s = self.heartbeat_uncounted_s.saturating_add(whole_seconds(lacks));
            self.heartbeat_uncounted_s = uncounted_s;
        }
    }
}

/// Whole seconds, rounded up; none of a negative time.
fn whole_seconds(time: SignedDuration) -> u32 {
    if time.is_negative() {
        return 0;
    }
    let more = i64::from(time.subsec_nanos() > 0);
    u32::try_from(time.as_secs().saturating_add(more)).unwrap_or(u32::MAX)
}

impl Freeze {
    /// A freeze never gets shorter by a step: for as long as it was asked for, nothing is changed.
    fn step(&mut self, from: Timestamp, to: Timestamp) {
        let Some(since) = self.since else { return };
        let moved = if to > from { to.duration_since(from) } else { to.duration_since(since) };
        if to > from || since > to {
            self.until = self.until.checked_add(moved).unwrap_or(Timestamp::MAX);
            self.since = since.checked_add(moved).ok();
        }
    }
}

impl FleetState {
    /// Time in which the controller did not run counts towards nothing.
    pub(super) fn resume_timers(&mut self, last_ran: Timestamp) {
        let (now, gap) = (self.at, self.at.duration_since(last_ran));
        if gap > SignedDuration::ZERO {
            self.change_timers(Node::has_timer, |node, policy| node.resume(gap, now, policy));
        }
    }

    /// Has timers follow a clock that was stepped.
    pub(super) fn step_timers(&mut self, from: Timestamp, to: Timestamp) {
        for freeze in self.freezes.values_mut() {
            freeze.step(from, to);
        }
        if to > from {
            let by = to.duration_since(from);
            return self.change_timers(Node::has_timer, |node, _| node.extend_timers(by));
        }
        let back = from.duration_since(to);
        self.change_timers(|_| true, |node, policy| node.step_back(back, to, policy));
        for blame in self.blamed.values_mut() {
            blame.since = blame.since.min(to);
        }
    }

    fn change_timers(&mut self, which: fn(&Node) -> bool, change: impl Fn(&mut Node, &Policy)) {
        let nodes = self.nodes.iter().filter(|(_, node)| which(node));
        let ids: Vec<_> = nodes.map(|(id, _)| id.clone()).collect();
        let policy = self.policy.clone();
        for id in ids {
            self.change(&id, |node| change(node, &policy));
        }
    }
}
