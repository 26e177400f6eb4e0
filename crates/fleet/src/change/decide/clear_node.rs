//! States that take the node out of service and unload the driver.

use farrier_facts::node::Reading;

use super::super::action::{ActionCode, ActionFailure, ChangeAction};
use super::super::observation::CordonMark;
use super::super::reason::{ChangeFact, ChangeReason};
use super::super::request::{ChangeClass, ReloadMethod};
use super::super::state::{ChangeDirection, ChangeState};
use super::{ChangeDecision, ChangeMove, Step};

/// How often unloading may go back to quiescing.
const QUIESCE_ROUNDS_MAX: u32 = 2;

impl Step<'_> {
    pub(super) fn cordoning(&self, direction: ChangeDirection) -> ChangeDecision {
        let is_forward = direction == ChangeDirection::Forward;
        match &self.observation.cordon {
            Reading::Value(CordonMark::ThisChange) => self.go(ChangeState::Draining(direction)),
            Reading::Value(CordonMark::External { owner, .. }) if is_forward => {
                let reason = ChangeReason::ExternalCordon { owner: owner.clone() };
                self.give_up(ChangeState::Deferred, reason)
            }
            // The node takes no work, and the cordon stays where it is.
            Reading::Value(CordonMark::External { .. }) => {
                self.go(ChangeState::Draining(direction))
            }
            Reading::Value(CordonMark::None) | Reading::Absent => {
                if self.is_late() {
                    return self.scheduler_is_lost(direction, ChangeFact::Cordon);
                }
                self.attempt(ChangeAction::Cordon, 8)
                    .unwrap_or_else(|| self.scheduler_is_lost(direction, ChangeFact::Cordon))
            }
            Reading::Unreadable(_) if self.is_late() => {
                self.scheduler_is_lost(direction, ChangeFact::Cordon)
            }
            Reading::Unreadable(_) => self.unknown(ChangeFact::Cordon),
        }
    }

    /// The scheduler does not answer. Back from the point of no return, the node was cordoned and
    /// drained before and has not returned to service, so the rollback goes on.
    fn scheduler_is_lost(&self, direction: ChangeDirection, fact: ChangeFact) -> ChangeDecision {
        let reason = match self.failure(ActionCode::Cordon) {
            Some(_) => self.failed(ActionCode::Cordon),
            None => ChangeReason::FactUnknown { fact },
        };
        match (direction, self.record.state) {
            (ChangeDirection::Forward, _) => self.give_up(ChangeState::Deferred, reason),
            // Unknown work may run on the node.
            (ChangeDirection::Backward, _) if self.record.has_served => self.quarantine(reason),
            (ChangeDirection::Backward, ChangeState::Cordoning(_)) => {
                self.go_because(ChangeState::Draining(direction), reason)
            }
            (ChangeDirection::Backward, _) => {
                self.go_because(ChangeState::Quiescing(direction), reason)
            }
        }
    }

    pub(super) fn draining(&self, direction: ChangeDirection) -> ChangeDecision {
        if let Some(decision) = self.lost_cordon(direction) {
            return decision;
        }
        match &self.observation.workloads {
            Reading::Value(workloads) if workloads.is_empty() => {
                self.go(self.after_drain(direction))
            }
            Reading::Value(workloads) => {
                let workloads = workloads.clone();
                if self.is_late() {
                    let reason = ChangeReason::DrainTimeout { workloads };
                    return match direction {
                        ChangeDirection::Forward => self.give_up(ChangeState::Deferred, reason),
                        // Work that runs is never killed for a rollback.
                        ChangeDirection::Backward => self.quarantine(reason),
                    };
                }
                if !self.has_done(ActionCode::Drain)
                    && let Some(decision) = self.attempt(ChangeAction::Drain, 6)
                {
                    return decision;
                }
                self.wait(ChangeReason::AwaitingDrain { workloads })
            }
            Reading::Absent | Reading::Unreadable(_) if self.is_late() => {
                self.scheduler_is_lost(direction, ChangeFact::Workloads)
            }
            Reading::Absent | Reading::Unreadable(_) => self.unknown(ChangeFact::Workloads),
        }
    }

    fn after_drain(&self, direction: ChangeDirection) -> ChangeState {
        match (self.record.request.class, direction) {
            (ChangeClass::Settings, ChangeDirection::Backward) => {
                ChangeState::Installing(direction)
            }
            _ => ChangeState::Quiescing(direction),
        }
    }

    /// Before the point of no return, the change ends if its cordon is gone.
    fn lost_cordon(&self, direction: ChangeDirection) -> Option<ChangeDecision> {
        if direction == ChangeDirection::Backward {
            return None;
        }
        match &self.observation.cordon {
            Reading::Value(CordonMark::ThisChange) => None,
            Reading::Value(CordonMark::None) | Reading::Absent => {
                Some(self.give_up(ChangeState::Deferred, ChangeReason::CordonRemoved))
            }
            Reading::Value(CordonMark::External { owner, .. }) => {
                let reason = ChangeReason::ExternalCordon { owner: owner.clone() };
                Some(self.give_up(ChangeState::Deferred, reason))
            }
            Reading::Unreadable(_) => Some(self.unknown(ChangeFact::Cordon)),
        }
    }

    pub(super) fn quiescing(&self, direction: ChangeDirection) -> ChangeDecision {
        if let Some(decision) = self.before_unload(direction) {
            return decision;
        }
        if self.record.request.class == ChangeClass::Settings {
            if self.record.saved.is_none() {
                return self.attempt_or_fail(ChangeAction::SaveNode, 3);
            }
            return self.begin_install(direction);
        }
        if self.record.saved.is_none() {
            return self.attempt_or_fail(ChangeAction::SaveNode, 3);
        }
        if !self.record.upgrades_paused {
            return self.attempt_or_fail(ChangeAction::PauseUpgrades, 3);
        }
        let Some(units) = self.observation.running_units() else {
            return self.unknown(ChangeFact::Units);
        };
        if !units.is_empty() {
            if self.is_late() {
                return self.fail(self.failed(ActionCode::StopUnits));
            }
            return self.attempt_or_fail(ChangeAction::StopUnits { units }, 4);
        }
        match &self.observation.holders {
            Reading::Value(holders) if holders.is_empty() => {
                self.go(ChangeState::Unloading(direction))
            }
            Reading::Value(holders) => {
                let pids: Vec<u32> = holders.iter().map(|holder| holder.pid).collect();
                if self.record.request.policy.kill_holders
                    && let Some(decision) = self.attempt(ChangeAction::KillHolders { pids }, 3)
                {
                    return decision;
                }
                if !self.is_late() {
                    return self.wait(ChangeReason::AwaitingHolders { holders: holders.clone() });
                }
                let reason = ChangeReason::HoldersRemain { holders: holders.clone() };
                self.cannot_unload(direction, reason)
            }
            Reading::Absent | Reading::Unreadable(_) => self.unknown(ChangeFact::Holders),
        }
    }

    fn before_unload(&self, direction: ChangeDirection) -> Option<ChangeDecision> {
        if direction == ChangeDirection::Backward {
            return None;
        }
        if let Some(decision) = self.lost_cordon(direction) {
            return Some(decision);
        }
        // A boot starts the units and loads the modules again, so the steps so far are void.
        if self.has_rebooted() == Some(true) {
            return Some(self.give_up(ChangeState::Deferred, ChangeReason::UnexpectedReboot));
        }
        None
    }

    /// The modules stay loaded: install and reboot if the policy allows it.
    fn cannot_unload(&self, direction: ChangeDirection, reason: ChangeReason) -> ChangeDecision {
        let policy = &self.record.request.policy;
        let is_holder = matches!(reason, ChangeReason::HoldersRemain { .. });
        // Before the node served again, no work could start on it.
        let is_idle = direction == ChangeDirection::Backward && !self.record.has_served;
        if policy.allow_reboot && (!is_holder || policy.reboot_on_holders || is_idle) {
            return self.begin_install_by(direction, reason, ReloadMethod::Reboot);
        }
        match direction {
            ChangeDirection::Forward => self.give_up(ChangeState::Deferred, reason),
            ChangeDirection::Backward => self.quarantine(reason),
        }
    }

    pub(super) fn unloading(&self, direction: ChangeDirection) -> ChangeDecision {
        if let Some(decision) = self.before_unload(direction) {
            return decision;
        }
        if self.record.method == ReloadMethod::Reboot {
            return self.begin_install(direction);
        }
        // The boot started the services again.
        if self.has_rebooted() == Some(true) {
            let reason = ChangeReason::UnexpectedReboot;
            return self.go_because(ChangeState::Quiescing(direction), reason);
        }
        let Reading::Value(modules) = &self.observation.modules else {
            return match &self.observation.modules {
                Reading::Absent => self.begin_install(direction),
                _ => self.unknown(ChangeFact::LoadedModules),
            };
        };
        if modules.is_empty() {
            return self.begin_install(direction);
        }
        match self.failure(ActionCode::UnloadModules) {
            Some(ActionFailure::ModuleInUse { .. })
                if self.record.quiesce_rounds < QUIESCE_ROUNDS_MAX =>
            {
                let reason = self.failed(ActionCode::UnloadModules);
                return self.go_because(ChangeState::Quiescing(direction), reason);
            }
            Some(ActionFailure::PartialUnload { .. }) if direction == ChangeDirection::Forward => {
                return self.fail(self.failed(ActionCode::UnloadModules));
            }
            Some(_) => {
                return self.cannot_unload(direction, self.failed(ActionCode::UnloadModules));
            }
            None => {}
        }
        if self.is_late() {
            return self.cannot_unload(direction, ChangeReason::DeadlinePassed);
        }
        self.attempt(ChangeAction::UnloadModules, 3).unwrap_or_else(|| {
            self.cannot_unload(direction, self.failed(ActionCode::UnloadModules))
        })
    }

    fn begin_install(&self, direction: ChangeDirection) -> ChangeDecision {
        self.begin_install_by(direction, ChangeReason::StepDone, self.record.method)
    }

    /// The gate of the point of no return.
    fn begin_install_by(
        &self,
        direction: ChangeDirection,
        reason: ChangeReason,
        method: ReloadMethod,
    ) -> ChangeDecision {
        if direction == ChangeDirection::Forward {
            let facts = self.observation;
            for (fact, ready, lost) in [
                (
                    ChangeFact::RollbackStaged,
                    &facts.rollback_staged,
                    ChangeReason::RollbackBundleLost,
                ),
                (ChangeFact::TargetStaged, &facts.target_staged, ChangeReason::TargetBundleLost),
                (ChangeFact::PackageLock, &facts.package_lock_free, ChangeReason::PackageLockHeld),
            ] {
                match ready {
                    Reading::Value(true) => {}
                    Reading::Value(false) if fact == ChangeFact::PackageLock && !self.is_late() => {
                        return self.wait(lost);
                    }
                    Reading::Value(false) | Reading::Absent => return self.fail(lost),
                    Reading::Unreadable(_) => return self.unknown(fact),
                }
            }
            match &facts.workloads {
                Reading::Value(workloads) if workloads.is_empty() => {}
                Reading::Value(workloads) => {
                    let workloads = workloads.clone();
                    return self.fail(ChangeReason::DrainTimeout { workloads });
                }
                Reading::Absent | Reading::Unreadable(_) => {
                    return self.unknown(ChangeFact::Workloads);
                }
            }
        }
        ChangeDecision::Move(ChangeMove {
            to: ChangeState::Installing(direction),
            reason,
            ending: None,
            method: Some(method),
        })
    }
}
