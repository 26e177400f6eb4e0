//! The phase of a node, with what only makes sense in it.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::timers::{add_seconds, whole_seconds};
use crate::fleet::order::VerificationLevel;
use crate::fleet::reason::Rationale;

/// Where a node stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodePhase {
    /// Enrolled, and not proven yet.
    Joining,
    /// It works.
    InService,
    /// There is a doubt. It works on.
    Suspect,
    /// It gets no new work, and what runs there is waited for.
    Quarantined,
    /// It is being mended, or waits for a person who does.
    #[serde(alias = "in-repair")]
    Repairing,
    /// It is being proven.
    Verifying,
    /// A person or another tool holds it out of service.
    Held,
}

impl NodePhase {
    /// Every one, as a node may go through them.
    pub const ALL: [Self; 7] = [
        Self::Joining,
        Self::InService,
        Self::Suspect,
        Self::Quarantined,
        Self::Repairing,
        Self::Verifying,
        Self::Held,
    ];

    /// Whether it may have work.
    pub fn in_service(self) -> bool {
        matches!(self, Self::InService | Self::Suspect)
    }

    /// The stable code, as in JSON and metrics.
    pub fn code(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::InService => "in-service",
            Self::Suspect => "suspect",
            Self::Quarantined => "quarantined",
            Self::Repairing => "repairing",
            Self::Verifying => "verifying",
            Self::Held => "held",
        }
    }
}

impl fmt::Display for NodePhase {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Self::InService => "in service",
            other => other.code(),
        })
    }
}

/// A phase, with what only makes sense in it.
///
/// Not expressible: a verification that is requested of a node in service while the node is out.
/// Out of service a node is verified anyway, and a request that outlived its phase would have a
/// node verified under work later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Phase {
    Joining,
    InService {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        requested_verification: Option<VerificationLevel>,
    },
    Suspect {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        requested_verification: Option<VerificationLevel>,
    },
    Quarantined,
    #[serde(alias = "in-repair")]
    Repairing,
    Verifying,
    Held,
}

/// A node's phase: since when, why, and what should happen and does not.
///
/// Not expressible: a reason, a deferral or uncounted seconds of a phase that is over. One change
/// of phase replaces them all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PhaseStatus {
    phase: Phase,
    since: Timestamp,
    #[serde(alias = "why")]
    rationale: Rationale,
    /// Seconds since then that count towards no timeout: the controller did not run, or the clock
    /// was stepped.
    #[serde(default, skip_serializing_if = "super::is_zero")]
    uncounted_s: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    deferred: Option<Box<Rationale>>,
}

impl PhaseStatus {
    pub(super) fn new(phase: NodePhase, why: Rationale, since: Timestamp) -> Self {
        let phase = Phase::new(phase, None);
        Self { phase, since, rationale: why, uncounted_s: 0, deferred: None }
    }

    /// The phase as a label.
    pub fn phase(&self) -> NodePhase {
        match self.phase {
            Phase::Joining => NodePhase::Joining,
            Phase::InService { .. } => NodePhase::InService,
            Phase::Suspect { .. } => NodePhase::Suspect,
            Phase::Quarantined => NodePhase::Quarantined,
            Phase::Repairing => NodePhase::Repairing,
            Phase::Verifying => NodePhase::Verifying,
            Phase::Held => NodePhase::Held,
        }
    }

    /// When it began.
    pub fn since(&self) -> Timestamp {
        self.since
    }

    /// Why the node is in it.
    pub fn rationale(&self) -> &Rationale {
        &self.rationale
    }

    /// Why something is not done that should be.
    pub fn deferred(&self) -> Option<&Rationale> {
        self.deferred.as_deref()
    }

    /// The verification that is requested though the node is in service.
    pub fn requested_verification(&self) -> Option<VerificationLevel> {
        match self.phase {
            Phase::InService { requested_verification }
            | Phase::Suspect { requested_verification } => requested_verification,
            _ => None,
        }
    }

    /// When a timeout of this phase ends.
    pub(crate) fn deadline(&self, timeout_s: u32) -> Timestamp {
        add_seconds(self.since, timeout_s.saturating_add(self.uncounted_s))
    }

    pub(super) fn enter(&mut self, to: NodePhase, why: Rationale, at: Timestamp) {
        let phase = Phase::new(to, self.requested_verification());
        *self = Self { phase, since: at, rationale: why, uncounted_s: 0, deferred: None };
    }

    pub(super) fn defer(&mut self, why: Option<Rationale>) {
        self.deferred = why.map(Box::new);
    }

    /// Requests a verification in service; out of service there is nothing to request.
    pub(super) fn request_verification(&mut self, level: VerificationLevel) {
        self.phase = Phase::new(self.phase(), Some(level));
    }

    /// A level was verified: a request of it is done.
    pub(super) fn verified(&mut self, level: VerificationLevel) {
        let requested = self.requested_verification().filter(|it| *it != level);
        self.phase = Phase::new(self.phase(), requested);
    }

    pub(super) fn extend_timeouts(&mut self, by_s: u32) {
        self.uncounted_s = self.uncounted_s.saturating_add(by_s);
    }

    /// After the clock was set back by `back`.
    pub(super) fn step_back(&mut self, back: SignedDuration, now: Timestamp) {
        self.since = self.since.min(now);
        let passed_s = whole_seconds(now.duration_since(self.since));
        self.uncounted_s = self.uncounted_s.saturating_sub(whole_seconds(back)).min(passed_s);
    }
}

impl Phase {
    /// A request is kept where there can be one.
    fn new(phase: NodePhase, requested_verification: Option<VerificationLevel>) -> Self {
        match phase {
            NodePhase::Joining => Self::Joining,
            NodePhase::InService => Self::InService { requested_verification },
            NodePhase::Suspect => Self::Suspect { requested_verification },
            NodePhase::Quarantined => Self::Quarantined,
            NodePhase::Repairing => Self::Repairing,
            NodePhase::Verifying => Self::Verifying,
            NodePhase::Held => Self::Held,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::reason::{Reason, UnblockedBy};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn why() -> Rationale {
        Rationale::new(Reason::Repaired, UnblockedBy::Finding)
    }

    #[test]
    fn a_request_lasts_as_long_as_the_service() {
        let mut phase = PhaseStatus::new(NodePhase::InService, why(), at(0));
        phase.request_verification(VerificationLevel::V1);
        phase.enter(NodePhase::Suspect, why(), at(1));
        assert_eq!(phase.requested_verification(), Some(VerificationLevel::V1));
        phase.verified(VerificationLevel::V0);
        assert_eq!(phase.requested_verification(), Some(VerificationLevel::V1));
        phase.enter(NodePhase::Quarantined, why(), at(2));
        phase.enter(NodePhase::InService, why(), at(3));
        assert_eq!(phase.requested_verification(), None);
        phase.request_verification(VerificationLevel::V1);
        phase.verified(VerificationLevel::V1);
        assert_eq!(phase.requested_verification(), None);
    }

    #[test]
    fn nothing_is_requested_of_a_node_that_is_out() {
        for expected in NodePhase::ALL {
            let mut phase = PhaseStatus::new(expected, why(), at(0));
            phase.request_verification(VerificationLevel::V1);
            assert_eq!(phase.phase(), expected);
            assert_eq!(phase.requested_verification().is_some(), expected.in_service());
        }
    }

    #[test]
    fn another_phase_begins_without_what_the_last_one_waited_for() {
        let mut phase = PhaseStatus::new(NodePhase::Suspect, why(), at(0));
        phase.extend_timeouts(40);
        phase.defer(Some(why()));
        assert_eq!(phase.deadline(10), at(50));
        phase.enter(NodePhase::Quarantined, why(), at(5));
        assert_eq!((phase.deadline(10), phase.deferred()), (at(15), None));
    }

    #[test]
    fn a_clock_that_is_set_back_gives_no_more_time_than_passed() {
        let mut phase = PhaseStatus::new(NodePhase::Suspect, why(), at(100));
        phase.extend_timeouts(500);
        phase.step_back(SignedDuration::from_secs(10), at(120));
        assert_eq!(phase.deadline(0), at(120));
        phase.step_back(SignedDuration::from_secs(70), at(50));
        assert_eq!((phase.since(), phase.deadline(0)), (at(50), at(50)));
    }
}
