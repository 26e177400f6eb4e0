//! The phase of a node, and the data that exists only in some phases.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::timers::{add_seconds, whole_seconds};
use crate::fleet::order::VerificationLevel;
use crate::fleet::reason::Rationale;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodePhase {
    /// The node is enrolled, but not verified yet.
    Joining,
    InService,
    /// The node takes work, but something may be wrong.
    Suspect,
    /// The node gets no new work, and running work drains.
    Quarantined,
    /// The node is repaired by orders, or waits for an operator to repair it.
    #[serde(alias = "in-repair")]
    Repairing,
    /// The node is verified before it returns to service.
    Verifying,
    /// An operator or another tool keeps the node out of service.
    Held,
}

impl NodePhase {
    /// Every phase, in lifecycle order.
    pub const ALL: [Self; 7] = [
        Self::Joining,
        Self::InService,
        Self::Suspect,
        Self::Quarantined,
        Self::Repairing,
        Self::Verifying,
        Self::Held,
    ];

    /// Whether the node may run work.
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

/// A phase, and the data that exists only in it.
///
/// A node that is out of service cannot have a requested verification, because it is verified
/// before it returns to service anyway. If the request were kept beyond its phase, it would later
/// run a verification under load.
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

/// The phase of a node: since when, why, and what is deferred.
///
/// The rationale, the deferral and the uncounted seconds always belong to the current phase,
/// because a phase change replaces all of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PhaseStatus {
    phase: Phase,
    since: Timestamp,
    #[serde(alias = "why")]
    rationale: Rationale,
    /// Seconds in this phase that do not count towards timeouts, because the controller did not run
    /// or the clock was stepped.
    #[serde(default, skip_serializing_if = "super::is_zero")]
    uncounted_s: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    deferred: Option<Box<Rationale>>,
}

impl PhaseStatus {
    pub(super) fn new(phase: NodePhase, rationale: Rationale, since: Timestamp) -> Self {
        let phase = Phase::new(phase, None);
        Self { phase, since, rationale, uncounted_s: 0, deferred: None }
    }

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

    /// When the phase began.
    pub fn since(&self) -> Timestamp {
        self.since
    }

    pub fn rationale(&self) -> &Rationale {
        &self.rationale
    }

    /// Why an action that is due has to wait.
    pub fn deferred(&self) -> Option<&Rationale> {
        self.deferred.as_deref()
    }

    /// The verification that an operator requested while the node is in service.
    pub fn requested_verification(&self) -> Option<VerificationLevel> {
        match self.phase {
            Phase::InService { requested_verification }
            | Phase::Suspect { requested_verification } => requested_verification,
            _ => None,
        }
    }

    /// When a timeout of this phase expires.
    pub(crate) fn deadline(&self, timeout_s: u32) -> Timestamp {
        add_seconds(self.since, timeout_s.saturating_add(self.uncounted_s))
    }

    pub(super) fn enter(&mut self, to: NodePhase, rationale: Rationale, at: Timestamp) {
        let phase = Phase::new(to, self.requested_verification());
        *self = Self { phase, since: at, rationale, uncounted_s: 0, deferred: None };
    }

    pub(super) fn defer(&mut self, rationale: Option<Rationale>) {
        self.deferred = rationale.map(Box::new);
    }

    /// Requests a verification of a node in service. Has no effect if the node is out of service.
    pub(super) fn request_verification(&mut self, level: VerificationLevel) {
        self.phase = Phase::new(self.phase(), Some(level));
    }

    /// Ends the request for a verification of this level.
    pub(super) fn verified(&mut self, level: VerificationLevel) {
        let requested = self.requested_verification().filter(|requested| *requested != level);
        self.phase = Phase::new(self.phase(), requested);
    }

    pub(super) fn extend_timeouts(&mut self, by_s: u32) {
        self.uncounted_s = self.uncounted_s.saturating_add(by_s);
    }

    /// Adjusts to a clock that was set back by `back`.
    pub(super) fn step_back(&mut self, back: SignedDuration, now: Timestamp) {
        self.since = self.since.min(now);
        let passed_s = whole_seconds(now.duration_since(self.since));
        self.uncounted_s = self.uncounted_s.saturating_sub(whole_seconds(back)).min(passed_s);
    }
}

impl Phase {
    /// Keeps a requested verification only in phases that allow one.
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
    fn a_verification_request_lasts_while_the_node_is_in_service() {
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
    fn a_node_out_of_service_takes_no_verification_request() {
        for expected in NodePhase::ALL {
            let mut phase = PhaseStatus::new(expected, why(), at(0));
            phase.request_verification(VerificationLevel::V1);
            assert_eq!(phase.phase(), expected);
            assert_eq!(phase.requested_verification().is_some(), expected.in_service());
        }
    }

    #[test]
    fn a_phase_change_drops_the_deferral() {
        let mut phase = PhaseStatus::new(NodePhase::Suspect, why(), at(0));
        phase.extend_timeouts(40);
        phase.defer(Some(why()));
        assert_eq!(phase.deadline(10), at(50));
        phase.enter(NodePhase::Quarantined, why(), at(5));
        assert_eq!((phase.deadline(10), phase.deferred()), (at(15), None));
    }

    #[test]
    fn a_clock_step_back_does_not_extend_the_phase_deadline() {
        let mut phase = PhaseStatus::new(NodePhase::Suspect, why(), at(100));
        phase.extend_timeouts(500);
        phase.step_back(SignedDuration::from_secs(10), at(120));
        assert_eq!(phase.deadline(0), at(120));
        phase.step_back(SignedDuration::from_secs(70), at(50));
        assert_eq!((phase.since(), phase.deadline(0)), (at(50), at(50)));
    }
}
