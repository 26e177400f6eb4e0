//! States without effect on the node's work: from accepted to the lease.

use farrier_facts::node::Reading;

use super::super::action::{ActionCode, ActionFailure, ChangeAction};
use super::super::observation::{
    ControllerContact, CordonMark, InstalledClosure, LeaseStatus, PreflightFailure,
};
use super::super::reason::{ChangeFact, ChangeReason};
use super::super::request::{ChangeClass, ReloadMethod};
use super::super::state::{ChangeDirection, ChangeState};
use super::{ChangeDecision, Coherence, Step, coherence, later};

/// Tries to fetch the bundles.
const STAGE_TRIES: u32 = 12;
/// How often a lease is requested again.
const LEASE_POLL_S: i64 = 60;

impl Step<'_> {
    pub(super) fn accepted(&self) -> ChangeDecision {
        let request = &self.record.request;
        let reject = |reason| self.go_because(ChangeState::Rejected, reason);
        match &self.observation.closure {
            Reading::Value(InstalledClosure::Equals(id)) if *id == request.from.id => {
                self.go(ChangeState::Preflight)
            }
            Reading::Value(InstalledClosure::Equals(id)) if *id == request.to.id => {
                self.already_installed()
            }
            Reading::Value(found) => reject(ChangeReason::Drift { found: found.clone() }),
            Reading::Absent | Reading::Unreadable(_) if self.is_late() => {
                reject(ChangeReason::FactUnknown { fact: ChangeFact::Closure })
            }
            Reading::Absent | Reading::Unreadable(_) => self.unknown(ChangeFact::Closure),
        }
    }

    /// The node has the requested bundle. The change is committed if the verification passes.
    fn already_installed(&self) -> ChangeDecision {
        let request = &self.record.request;
        let reject = |reason| self.go_because(ChangeState::Rejected, reason);
        match coherence(self.observation, &request.to, request.class) {
            Coherence::Coherent if self.has_done(ActionCode::Verify) => {
                self.go_because(ChangeState::Committed, ChangeReason::AlreadyInstalled)
            }
            Coherence::Coherent if self.failure(ActionCode::Verify).is_some() => {
                reject(self.failed(ActionCode::Verify))
            }
            Coherence::Coherent => {
                let bundle = request.to.id;
                self.attempt(ChangeAction::Verify { bundle }, 3)
                    .unwrap_or_else(|| reject(self.failed(ActionCode::Verify)))
            }
            Coherence::Unknown { fact } if self.is_late() => {
                reject(ChangeReason::FactUnknown { fact })
            }
            Coherence::Unknown { fact } => self.unknown(fact),
            Coherence::Differs { fact, found } => {
                let expected = request.to.driver.clone();
                reject(ChangeReason::WrongVersion { fact, expected, found })
            }
        }
    }

    pub(super) fn preflight(&self) -> ChangeDecision {
        let request = &self.record.request;
        let defer = |reason| self.go_because(ChangeState::Deferred, reason);
        let reject = |reason| self.go_because(ChangeState::Rejected, reason);
        let needs_reboot = request.class == ChangeClass::Driver
            && (request.to.reload == ReloadMethod::Reboot
                || request.rollback.reload == ReloadMethod::Reboot);
        if needs_reboot && !request.policy.allow_reboot {
            let failures = vec![PreflightFailure::RebootNotAllowed];
            return reject(ChangeReason::PreflightFailed { failures });
        }
        match &self.observation.cordon {
            Reading::Value(CordonMark::External { owner, .. }) => {
                return defer(ChangeReason::ExternalCordon { owner: owner.clone() });
            }
            Reading::Value(_) => {}
            Reading::Absent | Reading::Unreadable(_) => return self.unknown(ChangeFact::Cordon),
        }
        match &self.observation.preflight {
            Reading::Value(failures) if failures.is_empty() => self.go(ChangeState::Staging),
            Reading::Value(failures) => {
                let reason = ChangeReason::PreflightFailed { failures: failures.clone() };
                if !failures.iter().all(PreflightFailure::is_temporary) {
                    return reject(reason);
                }
                if self.is_late() { defer(reason) } else { self.wait(reason) }
            }
            Reading::Absent | Reading::Unreadable(_) if self.is_late() => {
                reject(ChangeReason::FactUnknown { fact: ChangeFact::Preflight })
            }
            Reading::Absent | Reading::Unreadable(_) => self.unknown(ChangeFact::Preflight),
        }
    }

    pub(super) fn staging(&self) -> ChangeDecision {
        let request = &self.record.request;
        let (to, rollback) = (request.to.id, request.rollback.id);
        if let Some((action, failure)) = &self.record.visit.failure
            && is_final(failure)
        {
            let reason = ChangeReason::ActionFailed { action: *action, failure: failure.clone() };
            return self.go_because(ChangeState::Rejected, reason);
        }
        if self.is_late() {
            return self.go_because(ChangeState::Deferred, ChangeReason::DeadlinePassed);
        }
        for (fact, staged) in [
            (ChangeFact::TargetStaged, &self.observation.target_staged),
            (ChangeFact::RollbackStaged, &self.observation.rollback_staged),
        ] {
            match staged {
                Reading::Value(true) => {}
                Reading::Value(false) | Reading::Absent => {
                    return self.attempt_or_fail(ChangeAction::Stage { to, rollback }, STAGE_TRIES);
                }
                Reading::Unreadable(_) => return self.unknown(fact),
            }
        }
        if !self.has_done(ActionCode::Rehearse) {
            return self.attempt_or_fail(ChangeAction::Rehearse { to, rollback }, 3);
        }
        if request.class == ChangeClass::Driver && !self.has_done(ActionCode::BuildModules) {
            return self.attempt_or_fail(ChangeAction::BuildModules { bundle: to }, 2);
        }
        self.go(ChangeState::AwaitingLease)
    }

    pub(super) fn awaiting_lease(&self) -> ChangeDecision {
        match self.observation.lease {
            LeaseStatus::Valid { until }
                if until > self.now
                    && self.observation.controller == ControllerContact::Present =>
            {
                self.go(ChangeState::Cordoning(ChangeDirection::Forward))
            }
            LeaseStatus::Superseded => {
                self.give_up(ChangeState::Cancelled, ChangeReason::Superseded)
            }
            _ if self.is_late() => {
                let is_lost = self.observation.controller == ControllerContact::Lost;
                let reason =
                    if is_lost { ChangeReason::ControllerLost } else { ChangeReason::LeaseLost };
                self.give_up(ChangeState::Deferred, reason)
            }
            LeaseStatus::Valid { until } if until > self.now => {
                self.wait_until(until, ChangeReason::ControllerLost)
            }
            LeaseStatus::None | LeaseStatus::Expired | LeaseStatus::Valid { .. } => {
                let last = self.record.visit.last_result.map(|at| later(at, LEASE_POLL_S));
                match last.filter(|until| *until > self.now) {
                    Some(until) => self.wait_until(until, ChangeReason::AwaitingLease),
                    None => ChangeDecision::Act(ChangeAction::RequestLease),
                }
            }
        }
    }
}

/// Whether another try cannot help, or must not be made.
fn is_final(failure: &ActionFailure) -> bool {
    matches!(
        failure,
        ActionFailure::Tampered { .. }
            | ActionFailure::NoWayBack { .. }
            | ActionFailure::DirtyTransaction { .. }
            | ActionFailure::Unsatisfiable { .. }
            | ActionFailure::ModuleBuild { .. }
            | ActionFailure::Unsupported { .. }
    )
}
