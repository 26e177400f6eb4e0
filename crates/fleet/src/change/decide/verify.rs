//! Verification, probation, and the wait for the controller.

use farrier_facts::node::Reading;

use super::super::action::{ActionCode, ChangeAction};
use super::super::observation::{ControllerContact, CordonMark};
use super::super::reason::{ChangeFact, ChangeReason};
use super::super::state::{ChangeDirection, ChangeState};
use super::{ChangeDecision, ChangeMove, Coherence, Step, coherence, later};

impl Step<'_> {
    pub(super) fn verifying(&self, direction: ChangeDirection) -> ChangeDecision {
        if direction == ChangeDirection::Forward && self.has_rebooted() == Some(true) {
            return self.fail(ChangeReason::UnexpectedReboot);
        }
        if let Some(decision) = self.incoherence(direction) {
            return decision;
        }
        if !self.has_done(ActionCode::RestoreSettings) {
            return self.attempt_or_fail(ChangeAction::RestoreSettings, 3);
        }
        // A check that fails or does not run ends the verification.
        if self.failure(ActionCode::Verify).is_some() {
            return self.fail(self.failed(ActionCode::Verify));
        }
        let policy = &self.record.request.policy;
        let passed = self.record.visit.passes;
        if passed < policy.verify_passes.max(1) {
            if self.is_late() {
                return self.fail(ChangeReason::DeadlinePassed);
            }
            let interval_s = i64::try_from(policy.verify_interval_s).unwrap_or(i64::MAX);
            if passed > 0
                && let Some(last) = self.record.visit.last_result
                && later(last, interval_s) > self.now
            {
                let until = later(last, interval_s);
                return self.wait_until(until, ChangeReason::VerifyAgain { passed });
            }
            let bundle = self.record.request.bundle(direction).id;
            return ChangeDecision::Act(ChangeAction::Verify { bundle });
        }
        if self.may_return() {
            return self.return_to_service(direction, ChangeReason::StepDone);
        }
        self.go_because(ChangeState::VerifiedHeld(direction), ChangeReason::ControllerLost)
    }

    /// Whether the node may take work again.
    fn may_return(&self) -> bool {
        self.observation.controller == ControllerContact::Present
            || self.record.request.policy.edge_autonomy
    }

    fn return_to_service(
        &self,
        direction: ChangeDirection,
        reason: ChangeReason,
    ) -> ChangeDecision {
        match direction {
            ChangeDirection::Forward if self.record.rollback_requested => {
                self.roll_back(ChangeReason::RollbackRequested)
            }
            ChangeDirection::Forward => self.go_because(ChangeState::Probation, reason),
            ChangeDirection::Backward => ChangeDecision::Move(ChangeMove {
                to: ChangeState::Restoring,
                reason,
                ending: Some(ChangeState::RolledBack),
                method: None,
            }),
        }
    }

    pub(super) fn verified_held(&self, direction: ChangeDirection) -> ChangeDecision {
        if !self.may_return() {
            return ChangeDecision::Finish(self.record.state);
        }
        // Time has passed since the verification.
        self.go_because(ChangeState::Verifying(direction), ChangeReason::Acknowledged)
    }

    pub(super) fn probation(&self) -> ChangeDecision {
        let request = &self.record.request;
        if self.record.rollback_requested {
            return self.roll_back(ChangeReason::RollbackRequested);
        }
        let coherent = match coherence(self.observation, &request.to, request.class) {
            Coherence::Coherent => None,
            Coherence::Unknown { fact } => Some(fact),
            Coherence::Differs { fact, found } => {
                let expected = request.to.driver.clone();
                return self.regress(ChangeReason::WrongVersion { fact, expected, found });
            }
        };
        let watched = match &self.observation.regression {
            Reading::Value(what) => {
                return self.regress(ChangeReason::Regression { what: what.clone() });
            }
            Reading::Absent => None,
            Reading::Unreadable(_) => Some(ChangeFact::Regression),
        };
        let unknown = coherent.or(watched);
        if let Some(fact) = unknown {
            let reason = ChangeReason::FactUnknown { fact };
            return if self.is_late() { self.regress(reason) } else { self.wait(reason) };
        }
        if self.record.upgrades_paused {
            return self
                .attempt(ChangeAction::ResumeUpgrades, 3)
                .unwrap_or_else(|| self.regress(self.failed(ActionCode::ResumeUpgrades)));
        }
        match &self.observation.cordon {
            Reading::Value(CordonMark::ThisChange) => {
                if self.is_late() {
                    return self.regress(self.failed(ActionCode::Uncordon));
                }
                return self
                    .attempt(ChangeAction::Uncordon, 20)
                    .unwrap_or_else(|| self.wait(self.failed(ActionCode::Uncordon)));
            }
            // A cordon of someone else stays.
            Reading::Value(CordonMark::None | CordonMark::External { .. }) => {}
            Reading::Absent | Reading::Unreadable(_) if self.is_late() => {
                return self.regress(ChangeReason::FactUnknown { fact: ChangeFact::Cordon });
            }
            Reading::Absent | Reading::Unreadable(_) => {
                return self.wait(ChangeReason::FactUnknown { fact: ChangeFact::Cordon });
            }
        }
        let soak_s = i64::try_from(request.policy.probation_s).unwrap_or(i64::MAX);
        let end = later(self.record.entered_at, soak_s);
        if self.now < end {
            return self.wait_until(end.min(later(self.now, 60)), ChangeReason::Watching);
        }
        if !self.has_done(ActionCode::ReleaseLease)
            && let Some(decision) = self.attempt(ChangeAction::ReleaseLease, 3)
        {
            return decision;
        }
        self.go(ChangeState::Committed)
    }

    fn regress(&self, reason: ChangeReason) -> ChangeDecision {
        if self.record.request.policy.auto_rollback_in_probation {
            return self.roll_back(reason);
        }
        self.quarantine(reason)
    }
}
