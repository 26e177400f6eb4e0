//! The next step of a change.

mod clear_node;
mod coherence;
mod install;
mod prepare;
mod restore;
mod verify;

use farrier_facts::node::Reading;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

pub use coherence::{Coherence, coherence};

use super::action::{ActionCode, ActionFailure, ChangeAction};
use super::observation::{
    ChangeObservation, ControllerContact, CordonMark, InstalledClosure, LeaseStatus,
};
use super::reason::{ChangeFact, ChangeReason};
use super::record::ChangeRecord;
use super::request::{BundleRef, ChangeClass, ReloadMethod};
use super::state::{ChangeDirection, ChangeState};

/// A change with more state changes than this is in a loop. The longest path through the table
/// without a loop, forward and back with one reboot each, has 31.
const STATE_WRITES_MAX: u32 = 64;
/// More boots since the point of no return than this are a boot loop. A change and its rollback
/// need one each, and each may need one more if the driver does not initialise.
const BOOTS_MAX: u32 = 4;
/// How often a fact that has to change is read again.
const POLL_S: i64 = 5;
/// Time before the second try of an action. It doubles up to the maximum.
const BACK_OFF_S: i64 = 2;
const BACK_OFF_MAX_S: i64 = 300;

/// A transition to another state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeMove {
    pub to: ChangeState,
    pub reason: ChangeReason,
    /// For `Restoring`: the end that follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<ChangeState>,
    /// The way in which the driver gets into the kernel, if it is decided here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<ReloadMethod>,
}

/// What the executor does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeDecision {
    Act(ChangeAction),
    Move(ChangeMove),
    /// Observe again at `until`, or earlier if something changes.
    Wait {
        until: Timestamp,
        reason: ChangeReason,
    },
    /// Nothing is left to do.
    Finish(ChangeState),
}

/// Decides the next step from the record, the facts and the time.
pub fn next(
    record: &ChangeRecord,
    observation: &ChangeObservation,
    now: Timestamp,
) -> ChangeDecision {
    let step = Step { record, observation, now };
    if !record.state.is_end()
        && let Some(decision) = step.guard()
    {
        return decision;
    }
    match record.state {
        ChangeState::Accepted => step.accepted(),
        ChangeState::Preflight => step.preflight(),
        ChangeState::Staging => step.staging(),
        ChangeState::AwaitingLease => step.awaiting_lease(),
        ChangeState::Cordoning(direction) => step.cordoning(direction),
        ChangeState::Draining(direction) => step.draining(direction),
        ChangeState::Quiescing(direction) => step.quiescing(direction),
        ChangeState::Unloading(direction) => step.unloading(direction),
        ChangeState::Installing(direction) => step.installing(direction),
        ChangeState::Loading(direction) => step.loading(direction),
        ChangeState::RebootPending(direction) => step.reboot_pending(direction),
        ChangeState::Rebooting(direction) => step.rebooting(direction),
        ChangeState::PostBoot(direction) => step.post_boot(direction),
        ChangeState::Verifying(direction) => step.verifying(direction),
        ChangeState::Probation => step.probation(),
        ChangeState::VerifiedHeld(direction) => step.verified_held(direction),
        ChangeState::Restoring => step.restoring(),
        ChangeState::Quarantined => step.quarantined(),
        ChangeState::Committed
        | ChangeState::RolledBack
        | ChangeState::Rejected
        | ChangeState::Deferred
        | ChangeState::Cancelled => ChangeDecision::Finish(record.state),
    }
}

/// The arguments of one decision.
struct Step<'a> {
    record: &'a ChangeRecord,
    observation: &'a ChangeObservation,
    now: Timestamp,
}

impl Step<'_> {
    /// What holds in every state that works.
    fn guard(&self) -> Option<ChangeDecision> {
        let record = self.record;
        if record.state_writes > STATE_WRITES_MAX {
            let reason = ChangeReason::LoopDetected { state_writes: record.state_writes };
            return Some(self.quarantine(reason));
        }
        if record.boots > BOOTS_MAX {
            return Some(self.quarantine(ChangeReason::BootLoop { boots: record.boots }));
        }
        let is_backward = record.state.direction() == Some(ChangeDirection::Backward);
        if record.passed_point_of_no_return || is_backward {
            return self.keep_cordon();
        }
        if record.state == ChangeState::Restoring {
            return None;
        }
        if record.cancel_requested {
            return Some(self.give_up(ChangeState::Cancelled, ChangeReason::Cancelled));
        }
        if matches!(
            record.state,
            ChangeState::Cordoning(_)
                | ChangeState::Draining(_)
                | ChangeState::Quiescing(_)
                | ChangeState::Unloading(_)
        ) {
            return self.keep_lease();
        }
        None
    }

    /// Between the point of no return and the return to service, the node stays cordoned, even if
    /// someone removes the cordon.
    fn keep_cordon(&self) -> Option<ChangeDecision> {
        if self.record.is_released || self.record.state == ChangeState::Probation {
            return None;
        }
        match &self.observation.cordon {
            Reading::Value(CordonMark::None) | Reading::Absent => {
                self.attempt(ChangeAction::Cordon, 5)
            }
            Reading::Value(_) | Reading::Unreadable(_) => None,
        }
    }

    fn keep_lease(&self) -> Option<ChangeDecision> {
        let is_lost = self.observation.controller == ControllerContact::Lost;
        let deferred = |reason| Some(self.give_up(ChangeState::Deferred, reason));
        match self.observation.lease {
            LeaseStatus::Superseded => {
                Some(self.give_up(ChangeState::Cancelled, ChangeReason::Superseded))
            }
            LeaseStatus::None | LeaseStatus::Expired if is_lost => {
                deferred(ChangeReason::ControllerLost)
            }
            LeaseStatus::None | LeaseStatus::Expired => deferred(ChangeReason::LeaseLost),
            LeaseStatus::Valid { until } if until <= self.now => deferred(if is_lost {
                ChangeReason::ControllerLost
            } else {
                ChangeReason::LeaseLost
            }),
            LeaseStatus::Valid { until } if is_lost => {
                Some(ChangeDecision::Wait { until, reason: ChangeReason::ControllerLost })
            }
            LeaseStatus::Valid { .. } => None,
        }
    }

    fn go(&self, to: ChangeState) -> ChangeDecision {
        self.go_because(to, ChangeReason::StepDone)
    }

    #[expect(clippy::unused_self, reason = "reads like the other decisions of a step")]
    fn go_because(&self, to: ChangeState, reason: ChangeReason) -> ChangeDecision {
        ChangeDecision::Move(ChangeMove { to, reason, ending: None, method: None })
    }

    fn quarantine(&self, reason: ChangeReason) -> ChangeDecision {
        self.go_because(ChangeState::Quarantined, reason)
    }

    /// Ends the change before the point of no return. What was done to the node is undone first.
    fn give_up(&self, ending: ChangeState, reason: ChangeReason) -> ChangeDecision {
        let touched = !matches!(
            self.record.state,
            ChangeState::Accepted | ChangeState::Preflight | ChangeState::Staging
        );
        if touched {
            let ending = Some(ending);
            let to = ChangeState::Restoring;
            return ChangeDecision::Move(ChangeMove { to, reason, ending, method: None });
        }
        self.go_because(ending, reason)
    }

    /// A step failed.
    fn fail(&self, reason: ChangeReason) -> ChangeDecision {
        match self.record.state.direction() {
            Some(ChangeDirection::Backward) => self.last_resort(reason),
            _ if self.record.passed_point_of_no_return => self.roll_back(reason),
            _ => self.give_up(ChangeState::Deferred, reason),
        }
    }

    fn roll_back(&self, reason: ChangeReason) -> ChangeDecision {
        self.go_because(ChangeState::Cordoning(ChangeDirection::Backward), reason)
    }

    /// The rollback failed: one reboot if its packages are complete, otherwise a person.
    fn last_resort(&self, reason: ChangeReason) -> ChangeDecision {
        let record = self.record;
        let is_rebooting = matches!(
            record.state,
            ChangeState::RebootPending(_) | ChangeState::Rebooting(_) | ChangeState::PostBoot(_)
        );
        let can_reboot = !is_rebooting
            && record.request.class == ChangeClass::Driver
            && record.request.policy.allow_reboot
            && !record.rebooted.contains(&ChangeDirection::Backward)
            && self.closure_is(&record.request.rollback) == Some(true);
        if !can_reboot {
            return self.quarantine(reason);
        }
        ChangeDecision::Move(ChangeMove {
            to: ChangeState::RebootPending(ChangeDirection::Backward),
            reason,
            ending: None,
            method: Some(ReloadMethod::Reboot),
        })
    }

    fn deadline(&self) -> Option<Timestamp> {
        let limit_s = self.record.request.deadline_s(self.record.state)?;
        Some(later(self.record.entered_at, i64::try_from(limit_s).unwrap_or(i64::MAX)))
    }

    fn is_late(&self) -> bool {
        self.deadline().is_some_and(|deadline| self.now >= deadline)
    }

    /// Reads the facts again after some seconds, or at the deadline.
    fn wait(&self, reason: ChangeReason) -> ChangeDecision {
        self.wait_until(later(self.now, POLL_S), reason)
    }

    fn wait_until(&self, until: Timestamp, reason: ChangeReason) -> ChangeDecision {
        let deadline = self.deadline().filter(|deadline| *deadline > self.now);
        let until = deadline.map_or(until, |deadline| until.min(deadline));
        ChangeDecision::Wait { until, reason }
    }

    /// Waits for a fact that is unknown, until the deadline.
    fn unknown(&self, fact: ChangeFact) -> ChangeDecision {
        let reason = ChangeReason::FactUnknown { fact };
        if self.is_late() { self.fail(reason) } else { self.wait(reason) }
    }

    fn has_done(&self, action: ActionCode) -> bool {
        self.record.visit.done.contains(&action)
    }

    fn attempts(&self, action: ActionCode) -> u32 {
        self.record.visit.attempts.get(&action).copied().unwrap_or_default()
    }

    /// The failure of an action in this state.
    fn failure(&self, action: ActionCode) -> Option<&ActionFailure> {
        let (failed, failure) = self.record.visit.failure.as_ref()?;
        (*failed == action).then_some(failure)
    }

    fn failed(&self, action: ActionCode) -> ChangeReason {
        match self.failure(action) {
            Some(failure) => ChangeReason::ActionFailed { action, failure: failure.clone() },
            None => ChangeReason::DeadlinePassed,
        }
    }

    /// Executes an action, at most `limit` times in this state and with growing pauses. `None` if
    /// the tries are used up.
    fn attempt(&self, action: ChangeAction, limit: u32) -> Option<ChangeDecision> {
        let code = action.code();
        let attempts = self.attempts(code);
        if attempts >= limit {
            return None;
        }
        if attempts > 0
            && let Some(last) = self.record.visit.last_result
        {
            let doubled = BACK_OFF_S << attempts.min(10);
            let until = later(last, doubled.min(BACK_OFF_MAX_S));
            if until > self.now {
                return Some(self.wait_until(until, ChangeReason::BackOff { action: code }));
            }
        }
        Some(ChangeDecision::Act(action))
    }

    /// Executes an action, or fails the step if the tries are used up.
    fn attempt_or_fail(&self, action: ChangeAction, limit: u32) -> ChangeDecision {
        let code = action.code();
        self.attempt(action, limit).unwrap_or_else(|| self.fail(self.failed(code)))
    }

    /// Whether the packages, pins and holds are exactly those of a bundle.
    fn closure_is(&self, bundle: &BundleRef) -> Option<bool> {
        match &self.observation.closure {
            Reading::Value(InstalledClosure::Equals(id)) => Some(*id == bundle.id),
            Reading::Value(_) | Reading::Absent => Some(false),
            Reading::Unreadable(_) => None,
        }
    }

    /// Whether the node rebooted since it entered this state.
    fn has_rebooted(&self) -> Option<bool> {
        let boot = self.observation.boot.value()?;
        Some(self.record.entered_boot.as_ref().is_some_and(|entered| entered != boot))
    }
}

/// `at` plus seconds. The end of time if that is out of range.
fn later(at: Timestamp, seconds: i64) -> Timestamp {
    at.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX)
}
