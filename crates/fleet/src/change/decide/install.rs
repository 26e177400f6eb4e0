//! States that install a bundle and load its driver.

use farrier_facts::node::Reading;

use super::super::action::{ActionCode, ActionFailure, ChangeAction, LoadFailure};
use super::super::observation::InstalledClosure;
use super::super::reason::{ChangeFact, ChangeReason};
use super::super::request::{ChangeClass, ReloadMethod};
use super::super::state::{ChangeDirection, ChangeState};
use super::{ChangeDecision, Coherence, Step, coherence};

/// Transactions in one state. The second follows the completion of an interrupted one.
const INSTALL_TRIES: u32 = 2;

impl Step<'_> {
    pub(super) fn installing(&self, direction: ChangeDirection) -> ChangeDecision {
        // The transaction of this change may still run, if only this program was killed.
        match &self.observation.package_lock_free {
            Reading::Value(false) if !self.is_late() => {
                return self.wait(ChangeReason::PackageLockHeld);
            }
            Reading::Unreadable(_) if !self.is_late() => {
                return self.unknown(ChangeFact::PackageLock);
            }
            _ => {}
        }
        let bundle = self.record.request.bundle(direction);
        let found = match &self.observation.closure {
            Reading::Value(found) => found,
            Reading::Absent | Reading::Unreadable(_) => return self.unknown(ChangeFact::Closure),
        };
        match found {
            InstalledClosure::Equals(id) if *id == bundle.id => return self.installed(direction),
            // Nothing can repair what is not on disk.
            _ if self.is_bundle_lost(direction) => {
                return self.fail(match direction {
                    ChangeDirection::Forward => ChangeReason::TargetBundleLost,
                    ChangeDirection::Backward => ChangeReason::RollbackBundleLost,
                });
            }
            _ if self.is_late() => return self.fail(self.failed(ActionCode::Install)),
            InstalledClosure::HalfConfigured { .. } => {
                if let Some(decision) = self.attempt(ChangeAction::RecoverPackages, INSTALL_TRIES) {
                    return decision;
                }
            }
            InstalledClosure::Equals(_)
            | InstalledClosure::Unpinned(_)
            | InstalledClosure::Mixed { .. } => {}
        }
        match self.failure(ActionCode::Install) {
            // Another program has the lock: try until the deadline.
            Some(ActionFailure::PackageLock { .. }) => {
                return self.attempt_or_fail(ChangeAction::Install { bundle: bundle.id }, u32::MAX);
            }
            Some(ActionFailure::DiskFull { .. }) => {
                return self.fail(self.failed(ActionCode::Install));
            }
            _ => {}
        }
        let is_forward = direction == ChangeDirection::Forward;
        let has_failed = self.failure(ActionCode::Install).is_some()
            || self.record.visit.interrupted == Some(ActionCode::Install)
            || self.attempts(ActionCode::RecoverPackages) > 0;
        // All packages are installed, and only pins and holds are missing.
        let lacks_pins = *found == InstalledClosure::Unpinned(bundle.id);
        // Forward, an incomplete transaction is not tried again: the way back is known to work.
        if is_forward && !lacks_pins && has_failed && self.attempts(ActionCode::Install) > 0 {
            let found = found.clone();
            let reason = match self.failure(ActionCode::Install) {
                Some(_) => self.failed(ActionCode::Install),
                None => ChangeReason::InstallIncomplete { found },
            };
            return self.fail(reason);
        }
        let tries = if is_forward && !lacks_pins { 1 } else { INSTALL_TRIES + 2 };
        self.attempt_or_fail(ChangeAction::Install { bundle: bundle.id }, tries)
    }

    fn is_bundle_lost(&self, direction: ChangeDirection) -> bool {
        let staged = match direction {
            ChangeDirection::Forward => &self.observation.target_staged,
            ChangeDirection::Backward => &self.observation.rollback_staged,
        };
        matches!(staged, Reading::Value(false) | Reading::Absent)
    }

    fn installed(&self, direction: ChangeDirection) -> ChangeDecision {
        if self.record.request.class == ChangeClass::Settings {
            return self.go(ChangeState::Verifying(direction));
        }
        match self.record.method {
            ReloadMethod::ReloadModules => self.go(ChangeState::Loading(direction)),
            ReloadMethod::Reboot => self.go(ChangeState::RebootPending(direction)),
        }
    }

    pub(super) fn loading(&self, direction: ChangeDirection) -> ChangeDecision {
        if direction == ChangeDirection::Forward && self.has_rebooted() == Some(true) {
            return self.fail(ChangeReason::UnexpectedReboot);
        }
        let bundle = self.record.request.bundle(direction);
        match &self.observation.loaded {
            Reading::Value(loaded) if *loaded == bundle.driver => self.start_units(direction),
            Reading::Value(loaded) => {
                let (expected, found) = (bundle.driver.clone(), loaded.clone());
                let fact = ChangeFact::LoadedVersion;
                let reason = ChangeReason::WrongVersion { fact, expected, found };
                // A boot in the middle of the transaction loaded the other module.
                if direction == ChangeDirection::Backward && self.record.quiesce_rounds == 0 {
                    return self.go_because(ChangeState::Quiescing(direction), reason);
                }
                self.load_by_reboot(direction, reason)
            }
            Reading::Absent => {
                if let Some(ActionFailure::Load { kind, .. }) =
                    self.failure(ActionCode::LoadModules)
                {
                    let reason = self.failed(ActionCode::LoadModules);
                    return match kind {
                        LoadFailure::InitFailed => self.load_by_reboot(direction, reason),
                        _ => self.fail(reason),
                    };
                }
                if self.is_late() {
                    return self.fail(self.failed(ActionCode::LoadModules));
                }
                self.attempt_or_fail(ChangeAction::LoadModules, 3)
            }
            Reading::Unreadable(_) => self.unknown(ChangeFact::LoadedVersion),
        }
    }

    /// One reboot, if the policy allows it and the node was not rebooted in this direction.
    fn load_by_reboot(&self, direction: ChangeDirection, reason: ChangeReason) -> ChangeDecision {
        let may_reboot =
            self.record.request.policy.allow_reboot && !self.record.rebooted.contains(&direction);
        if may_reboot {
            return self.go_because(ChangeState::RebootPending(direction), reason);
        }
        self.fail(reason)
    }

    fn start_units(&self, direction: ChangeDirection) -> ChangeDecision {
        let units = self.record.saved.as_ref().map(|saved| saved.units.clone()).unwrap_or_default();
        match self.observation.stopped_units(&units) {
            None => self.unknown(ChangeFact::Units),
            Some(stopped) if stopped.is_empty() => self.go(ChangeState::Verifying(direction)),
            Some(_) if self.is_late() => self.fail(self.failed(ActionCode::StartUnits)),
            Some(units) => self.attempt_or_fail(ChangeAction::StartUnits { units }, 3),
        }
    }

    pub(super) fn reboot_pending(&self, direction: ChangeDirection) -> ChangeDecision {
        let bundle = self.record.request.bundle(direction);
        if !self.record.request.policy.allow_reboot {
            return self.fail(ChangeReason::RebootNotAllowed);
        }
        if self.has_rebooted() == Some(true) {
            return self.go(ChangeState::PostBoot(direction));
        }
        let kernel = match &self.observation.boot_kernel {
            Reading::Value(kernel) => kernel,
            Reading::Absent | Reading::Unreadable(_) => {
                return self.unknown(ChangeFact::BootKernel);
            }
        };
        match &kernel.module {
            Reading::Value(version) if *version == bundle.driver => {}
            Reading::Value(_) | Reading::Absent => {
                let kernel = kernel.release.clone();
                return self.fail(ChangeReason::NoModuleForBootKernel { kernel });
            }
            Reading::Unreadable(_) => return self.unknown(ChangeFact::BootKernel),
        }
        if !self.has_done(ActionCode::ArmReboot) {
            let bundle = bundle.id;
            return self.attempt_or_fail(ChangeAction::ArmReboot { bundle }, 3);
        }
        self.go(ChangeState::Rebooting(direction))
    }

    pub(super) fn rebooting(&self, direction: ChangeDirection) -> ChangeDecision {
        match self.has_rebooted() {
            None => self.unknown(ChangeFact::Boot),
            Some(true) => self.go(ChangeState::PostBoot(direction)),
            Some(false) if self.is_late() => self.fail(ChangeReason::DeadlinePassed),
            Some(false) => {
                // Issued, and once again after a restart of this program.
                let tries =
                    1 + u32::from(self.record.visit.interrupted == Some(ActionCode::Reboot));
                match self.attempt(ChangeAction::Reboot, tries) {
                    Some(decision) => decision,
                    None if self.failure(ActionCode::Reboot).is_some() => {
                        self.fail(self.failed(ActionCode::Reboot))
                    }
                    None => self.wait(ChangeReason::RebootNeeded),
                }
            }
        }
    }

    pub(super) fn post_boot(&self, direction: ChangeDirection) -> ChangeDecision {
        let bundle = self.record.request.bundle(direction);
        match (&self.observation.running_kernel, &self.record.armed_kernel) {
            (Reading::Value(found), Some(expected)) if found != expected => {
                let (expected, found) = (expected.clone(), found.clone());
                return self.fail(ChangeReason::WrongKernel { expected, found });
            }
            (Reading::Value(_), _) => {}
            (Reading::Absent | Reading::Unreadable(_), _) => {
                return self.unknown(ChangeFact::RunningKernel);
            }
        }
        match self.closure_is(bundle) {
            None => return self.unknown(ChangeFact::Closure),
            Some(false) => {
                let found = self.observation.closure.value().cloned();
                let found = found.unwrap_or(InstalledClosure::Mixed { packages: Vec::new() });
                return self.fail(ChangeReason::InstallIncomplete { found });
            }
            Some(true) => {}
        }
        self.go(ChangeState::Loading(direction))
    }

    /// What keeps the node from being verified, or `None`.
    pub(super) fn incoherence(&self, direction: ChangeDirection) -> Option<ChangeDecision> {
        let request = &self.record.request;
        let bundle = request.bundle(direction);
        match coherence(self.observation, bundle, request.class) {
            Coherence::Coherent => None,
            Coherence::Unknown { fact } => Some(self.unknown(fact)),
            Coherence::Differs { fact, found } => {
                let expected = bundle.driver.clone();
                Some(self.fail(ChangeReason::WrongVersion { fact, expected, found }))
            }
        }
    }
}
