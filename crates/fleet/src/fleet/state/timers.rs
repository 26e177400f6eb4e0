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
        Some(later(since, pool.silent_s.saturating_add(self.uncounted_s)))
    }

    fn has_timer(&self) -> bool {
        self.order.is_some() || matches!(self.standing, Standing::Suspect | Standing::Verifying)
    }

    /// Gives every timer so much more time.
    fn extend_timers(&mut self, by: SignedDuration) {
        let seconds =
            u32::try_from(by.as_secs()).unwrap_or(if by.is_negative() { 0 } else { u32::MAX });
        self.uncounted_s = self.uncounted_s.saturating_add(seconds);
        if let Some(pending) = &mut self.order {
            let until = &mut pending.order.lease_until;
            *until = until.checked_add(by).unwrap_or(Timestamp::MAX);
        }
    }

    /// After the clock was set back: nothing that has happened lies in the future, and no timer runs for longer than in full.
    fn clamp_times(&mut self, now: Timestamp, policy: &Policy) {
        let clamp = |at: &mut Timestamp| *at = (*at).min(now);
        clamp(&mut self.since);
        self.silent_since.iter_mut().for_each(clamp);
        self.revoked.iter_mut().for_each(clamp);
        self.over_quota_since.iter_mut().for_each(clamp);
        self.failed.iter_mut().for_each(|(at, _)| clamp(at));
        self.shows.values_mut().for_each(clamp);
        self.quarantines.iter_mut().for_each(clamp);
        self.proven.values_mut().for_each(|proof| clamp(&mut proof.at));
        self.errands_ended.iter_mut().for_each(|ended| clamp(&mut ended.at));
        if let Some(pending) = &mut self.order {
            let lease_s = policy.of(&self.place.pool).lease_of(&pending.order.what);
            let until = &mut pending.order.lease_until;
            *until = (*until).min(later(now, lease_s));
        }
    }
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
    pub(super) fn extend_timers(&mut self, by: SignedDuration) {
        if by > SignedDuration::ZERO {
            self.change_timers(Node::has_timer, |node, _| node.extend_timers(by));
        }
    }

    /// Has timers follow a clock that was stepped.
    pub(super) fn step_timers(&mut self, from: Timestamp, to: Timestamp) {
        for freeze in self.freezes.values_mut() {
            freeze.step(from, to);
        }
        if to > from {
            return self.extend_timers(to.duration_since(from));
        }
        self.change_timers(|_| true, |node, policy| node.clamp_times(to, policy));
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
