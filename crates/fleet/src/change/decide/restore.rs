//! Returns the node to service with its previous driver, or leaves it to a person.

use farrier_facts::node::Reading;

use super::super::action::{ActionCode, ChangeAction};
use super::super::observation::CordonMark;
use super::super::reason::{ChangeFact, ChangeReason};
use super::super::request::{ChangeClass, ReloadMethod};
use super::super::state::{ChangeDirection, ChangeState};
use super::{ChangeDecision, ChangeMove, Coherence, Step, coherence};

impl Step<'_> {
    pub(super) fn restoring(&self) -> ChangeDecision {
        if self.is_late() {
            return self.cannot_restore(ChangeReason::RestoreFailed);
        }
        if let Some(decision) = self.restore_driver() {
            return decision;
        }
        if self.record.upgrades_paused {
            return self
                .attempt(ChangeAction::ResumeUpgrades, 3)
                .unwrap_or_else(|| self.quarantine(self.failed(ActionCode::ResumeUpgrades)));
        }
        match &self.observation.cordon {
            Reading::Value(CordonMark::ThisChange) => {
                return self
                    .attempt(ChangeAction::Uncordon, 20)
                    .unwrap_or_else(|| self.quarantine(self.failed(ActionCode::Uncordon)));
            }
            // The cordon may be this change's: find out.
            Reading::Absent | Reading::Unreadable(_) if self.record.is_cordoned_by_us => {
                return self.wait(ChangeReason::FactUnknown { fact: ChangeFact::Cordon });
            }
            _ => {}
        }
        if !self.has_done(ActionCode::ReleaseLease)
            && let Some(decision) = self.attempt(ChangeAction::ReleaseLease, 3)
        {
            return decision;
        }
        let ending = self.record.ending.unwrap_or(ChangeState::Deferred);
        let reason = match ending {
            ChangeState::RolledBack => ChangeReason::RolledBack,
            _ => self.record.cause.clone().unwrap_or(ChangeReason::StepDone),
        };
        self.go_because(ending, reason)
    }

    /// Loads the modules and starts the units that the change stopped, and verifies the result.
    fn restore_driver(&self) -> Option<ChangeDecision> {
        let record = self.record;
        // Without saved units, nothing was stopped.
        let saved = record.saved.as_ref()?;
        let rollback = &record.request.rollback;
        if record.request.class == ChangeClass::Driver {
            match &self.observation.loaded {
                Reading::Value(loaded) if *loaded == rollback.driver => {}
                Reading::Value(_) | Reading::Absent => {
                    return Some(self.attempt(ChangeAction::LoadModules, 3).unwrap_or_else(|| {
                        self.cannot_restore(self.failed(ActionCode::LoadModules))
                    }));
                }
                Reading::Unreadable(_) => {
                    let fact = ChangeFact::LoadedVersion;
                    return Some(self.wait(ChangeReason::FactUnknown { fact }));
                }
            }
            match self.observation.stopped_units(&saved.units) {
                None => {
                    return Some(self.wait(ChangeReason::FactUnknown { fact: ChangeFact::Units }));
                }
                Some(stopped) if stopped.is_empty() => {}
                Some(units) => {
                    let action = ChangeAction::StartUnits { units };
                    return Some(self.attempt(action, 3).unwrap_or_else(|| {
                        self.cannot_restore(self.failed(ActionCode::StartUnits))
                    }));
                }
            }
        }
        if !self.has_done(ActionCode::RestoreSettings) {
            return Some(
                self.attempt(ChangeAction::RestoreSettings, 3).unwrap_or_else(|| {
                    self.cannot_restore(self.failed(ActionCode::RestoreSettings))
                }),
            );
        }
        match coherence(self.observation, rollback, record.request.class) {
            Coherence::Coherent => {}
            Coherence::Unknown { fact } => {
                return Some(self.wait(ChangeReason::FactUnknown { fact }));
            }
            Coherence::Differs { fact, found } => {
                let expected = rollback.driver.clone();
                let reason = ChangeReason::WrongVersion { fact, expected, found };
                return Some(self.cannot_restore(reason));
            }
        }
        // A rollback was verified before it came here.
        if record.ending != Some(ChangeState::RolledBack) && !self.has_done(ActionCode::Verify) {
            let bundle = rollback.id;
            return Some(
                self.attempt(ChangeAction::Verify { bundle }, 2)
                    .unwrap_or_else(|| self.cannot_restore(self.failed(ActionCode::Verify))),
            );
        }
        None
    }

    /// The node cannot be restored by starting what was stopped. A reboot does the same from the
    /// beginning.
    fn cannot_restore(&self, reason: ChangeReason) -> ChangeDecision {
        let record = self.record;
        let is_disturbed = record.saved.is_some();
        let may_reboot = is_disturbed
            && record.request.class == ChangeClass::Driver
            && record.request.policy.allow_reboot
            && !record.rebooted.contains(&ChangeDirection::Backward);
        if !may_reboot {
            return self.quarantine(reason);
        }
        ChangeDecision::Move(ChangeMove {
            to: ChangeState::RebootPending(ChangeDirection::Backward),
            reason,
            ending: Some(ChangeState::RolledBack),
            method: Some(ReloadMethod::Reboot),
        })
    }

    /// A quarantined node stays cordoned.
    pub(super) fn quarantined(&self) -> ChangeDecision {
        let finish = ChangeDecision::Finish(ChangeState::Quarantined);
        if self.record.released_by.is_some() {
            return finish;
        }
        match &self.observation.cordon {
            Reading::Value(CordonMark::ThisChange | CordonMark::External { .. }) => finish,
            // The action cordons only a node without a cordon, so it is safe if that is unknown.
            Reading::Unreadable(_) => self.attempt(ChangeAction::Cordon, 1).unwrap_or(finish),
            Reading::Value(CordonMark::None) | Reading::Absent => {
                self.attempt(ChangeAction::Cordon, 5).unwrap_or(finish)
            }
        }
    }
}
