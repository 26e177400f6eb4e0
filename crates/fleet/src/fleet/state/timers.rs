//! Timers: heartbeat timeouts, leases and phase timeouts. They count only time in which the
//! controller ran, so no timer expires because of a clock step or a paused server.

use jiff::{SignedDuration, Timestamp};

use super::node::Node;
use super::phase::NodePhase;
use super::{FleetState, Freeze};
use crate::fleet::policy::{Policy, PoolPolicy};

impl Node {
    /// When the heartbeat timeout of the node expires. `None` while heartbeats arrive.
    pub(crate) fn heartbeat_deadline(&self, pool: &PoolPolicy) -> Option<Timestamp> {
        self.liveness.deadline(pool.heartbeat_timeout_s)
    }

    fn has_timer(&self) -> bool {
        self.orders.pending().is_some()
            || self.liveness.heartbeat_loss().is_some()
            || !self.coverage().gaps().is_empty()
            || matches!(self.phase(), NodePhase::Suspect | NodePhase::Verifying)
    }

    /// Extends every timer.
    fn extend_timers(&mut self, by: SignedDuration) {
        self.phase.extend_timeouts(whole_seconds(by));
        self.liveness.extend_timeout(whole_seconds(by));
        self.reports.extend_timeouts(whole_seconds(by));
        self.orders.extend_lease(by);
    }

    /// Adjusts to a clock that was set back by `back`. Afterwards, no past event has a time in the
    /// future. A timer keeps its remaining time if that is known, and never gets longer than its
    /// full length.
    fn step_back(&mut self, back: SignedDuration, now: Timestamp, policy: &Policy) {
        let clamp = |at: &mut Timestamp| *at = (*at).min(now);
        self.phase.step_back(back, now);
        self.liveness.step_back(back, now);
        self.reports.step_back(back, now);
        self.symptoms.values_mut().for_each(clamp);
        self.quarantines.iter_mut().for_each(clamp);
        self.urgency.iter_mut().for_each(|urgency| clamp(&mut urgency.since));
        self.verification.step_back(now);
        self.requests.change_present(|requests| requests.step_back(now));
        let pool = policy.for_pool(&self.location.pool);
        self.orders.step_back(back, now, |what| pool.lease_for(what));
    }

    /// The controller did not run for `gap`, so this time does not count. If the gap was long
    /// enough to end connections, the agent also gets time to reconnect. The extension of each
    /// heartbeat loss is limited. A controller that restarts again and again therefore still
    /// detects a dead node.
    fn resume(&mut self, gap: SignedDuration, now: Timestamp, policy: &Policy) {
        let pool = policy.for_pool(&self.location.pool);
        let reconnect_s = pool.heartbeat_timeout_s / 3;
        let uncounted_s = self.liveness.heartbeat_loss().map_or(0, |loss| loss.uncounted_s);
        let may_reconnect =
            whole_seconds(gap) >= reconnect_s && uncounted_s < pool.heartbeat_timeout_s;
        self.extend_timers(gap);
        if let Some(deadline) = self.heartbeat_deadline(pool).filter(|_| may_reconnect) {
            let missing = add_seconds(now, reconnect_s).duration_since(deadline);
            self.liveness.extend_timeout(whole_seconds(missing));
        }
    }
}

pub(crate) fn add_seconds(at: Timestamp, seconds: u32) -> Timestamp {
    at.checked_add(SignedDuration::from_secs(i64::from(seconds))).unwrap_or(Timestamp::MAX)
}

/// Whole seconds, rounded up. 0 if the duration is negative.
pub(super) fn whole_seconds(time: SignedDuration) -> u32 {
    if time.is_negative() {
        return 0;
    }
    let rounded_up = i64::from(time.subsec_nanos() > 0);
    u32::try_from(time.as_secs().saturating_add(rounded_up)).unwrap_or(u32::MAX)
}

impl Freeze {
    /// Adjusts to a clock step. A step never shortens a freeze: the full time that was requested
    /// applies.
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
    /// Extends all timers by the time in which the controller did not run.
    pub(super) fn resume_timers(&mut self, last_ran: Timestamp) {
        let (now, gap) = (self.at, self.at.duration_since(last_ran));
        if gap > SignedDuration::ZERO {
            self.extend_recoveries(gap);
            self.change_timers(Node::has_timer, |node, policy| node.resume(gap, now, policy));
        }
    }

    /// Adjusts all timers to a clock step.
    pub(super) fn step_timers(&mut self, from: Timestamp, to: Timestamp) {
        for freeze in self.freezes.values_mut() {
            freeze.step(from, to);
        }
        for mute in self.mutes.values_mut() {
            mute.step(from, to);
        }
        if to > from {
            let by = to.duration_since(from);
            self.extend_recoveries(by);
            return self.change_timers(Node::has_timer, |node, _| node.extend_timers(by));
        }
        let back = from.duration_since(to);
        self.change_timers(|_| true, |node, policy| node.step_back(back, to, policy));
        for fault in self.domain_faults.values_mut() {
            fault.since = fault.since.min(to);
        }
        for recovery in self.domain_recoveries.values_mut() {
            recovery.at = recovery.at.min(to);
        }
    }

    fn extend_recoveries(&mut self, by: SignedDuration) {
        for recovery in self.domain_recoveries.values_mut() {
            recovery.at = recovery.at.checked_add(by).unwrap_or(Timestamp::MAX);
        }
    }

    fn change_timers(&mut self, which: fn(&Node) -> bool, change: impl Fn(&mut Node, &Policy)) {
        let policy = self.policy.clone();
        self.change_all(which, |node| change(node, &policy));
    }
}
