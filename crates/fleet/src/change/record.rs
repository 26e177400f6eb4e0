//! The journal's entries, and the record of a change that follows from them.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::action::{ActionCode, ActionEvidence, ActionFailure, ChangeAction, SavedNode};
use super::decide::ChangeMove;
use super::reason::ChangeReason;
use super::request::{ChangeRequest, ReloadMethod};
use super::state::{ChangeDirection, ChangeState};

/// Version of the journal format.
pub const CHANGE_JOURNAL_VERSION: u32 = 1;

/// One entry of the journal. It is on disk before its effect happens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangeEntry {
    /// A change begins.
    Accepted {
        request: Box<ChangeRequest>,
        boot: Option<String>,
    },
    /// An action is about to be executed.
    Begun(ChangeAction),
    Done {
        action: ActionCode,
        evidence: Option<ActionEvidence>,
    },
    Failed {
        action: ActionCode,
        failure: ActionFailure,
    },
    Moved {
        to: ChangeMove,
        boot: Option<String>,
    },
    /// The process that executes the change started again.
    Resumed {
        boot: Option<String>,
    },
    CancelRequested {
        by: String,
    },
    RollbackRequested {
        by: String,
    },
    /// A person ends a quarantine.
    Released {
        by: String,
        reason: String,
    },
}

/// What happened since the change entered its state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateVisit {
    /// The action that was begun and has no result.
    pub begun: Option<ChangeAction>,
    /// The action that a crash interrupted.
    pub interrupted: Option<ActionCode>,
    pub attempts: BTreeMap<ActionCode, u32>,
    pub done: BTreeSet<ActionCode>,
    pub failure: Option<(ActionCode, ActionFailure)>,
    pub last_result: Option<Timestamp>,
    /// Verifications that passed in succession.
    pub passes: u32,
}

/// The state of one change.
#[expect(clippy::struct_excessive_bools, reason = "facts that are independent of each other")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeRecord {
    pub request: ChangeRequest,
    pub accepted_at: Timestamp,
    pub state: ChangeState,
    pub entered_at: Timestamp,
    /// Boot id when the state was entered.
    pub entered_boot: Option<String>,
    /// Boot id that was observed last.
    pub last_boot: Option<String>,
    /// Why the state was entered.
    pub reason: ChangeReason,
    /// Why the change does not end as committed.
    pub cause: Option<ChangeReason>,
    /// The end that follows `Restoring`.
    pub ending: Option<ChangeState>,
    /// State changes so far.
    pub state_writes: u32,
    /// Boots since the point of no return.
    pub boots: u32,
    pub passed_point_of_no_return: bool,
    pub method: ReloadMethod,
    /// How often unloading or loading went back to quiescing.
    pub quiesce_rounds: u32,
    /// Directions in which the node was rebooted.
    pub rebooted: BTreeSet<ChangeDirection>,
    pub saved: Option<SavedNode>,
    pub armed_kernel: Option<String>,
    pub is_cordoned_by_us: bool,
    /// The node was returned to service after the point of no return.
    pub is_released: bool,
    /// The node took work at some time after the point of no return.
    pub has_served: bool,
    pub upgrades_paused: bool,
    pub cancel_requested: bool,
    pub rollback_requested: bool,
    /// A person ended the quarantine.
    pub released_by: Option<(String, String)>,
    pub visit: StateVisit,
}

impl ChangeRecord {
    pub fn new(request: ChangeRequest, at: Timestamp, boot: Option<String>) -> Self {
        Self {
            method: request.to.reload,
            request,
            accepted_at: at,
            state: ChangeState::Accepted,
            entered_at: at,
            entered_boot: boot.clone(),
            last_boot: boot,
            reason: ChangeReason::Begin,
            cause: None,
            ending: None,
            state_writes: 1,
            boots: 0,
            passed_point_of_no_return: false,
            quiesce_rounds: 0,
            rebooted: BTreeSet::new(),
            saved: None,
            armed_kernel: None,
            is_cordoned_by_us: false,
            is_released: false,
            has_served: false,
            upgrades_paused: false,
            cancel_requested: false,
            rollback_requested: false,
            released_by: None,
            visit: StateVisit::default(),
        }
    }

    /// Whether another change may begin.
    pub fn is_closed(&self) -> bool {
        match self.state {
            ChangeState::Quarantined => self.released_by.is_some(),
            state => state.is_end(),
        }
    }

    /// Applies one entry. `Accepted` begins another record, so it is not applied here.
    pub fn apply(&mut self, at: Timestamp, entry: &ChangeEntry) {
        match entry {
            ChangeEntry::Accepted { .. } => {}
            ChangeEntry::Begun(action) => self.begin(action),
            ChangeEntry::Done { action, evidence } => self.finish(at, *action, evidence.as_ref()),
            ChangeEntry::Failed { action, failure } => {
                self.visit.begun = None;
                self.visit.interrupted = None;
                self.visit.last_result = Some(at);
                if *action == ActionCode::Verify {
                    self.visit.passes = 0;
                }
                self.visit.failure = Some((*action, failure.clone()));
            }
            ChangeEntry::Moved { to, boot } => self.enter(at, to, boot.as_ref()),
            ChangeEntry::Resumed { boot } => self.resume(boot.as_ref()),
            ChangeEntry::CancelRequested { .. } => self.cancel_requested = true,
            ChangeEntry::RollbackRequested { .. } => self.rollback_requested = true,
            ChangeEntry::Released { by, reason } => {
                self.released_by = Some((by.clone(), reason.clone()));
            }
        }
    }

    fn begin(&mut self, action: &ChangeAction) {
        *self.visit.attempts.entry(action.code()).or_default() += 1;
        match action {
            ChangeAction::Cordon => self.is_cordoned_by_us = true,
            ChangeAction::Uncordon => {
                self.is_released = self.passed_point_of_no_return;
                self.has_served |= self.is_released;
            }
            ChangeAction::PauseUpgrades => self.upgrades_paused = true,
            _ => {}
        }
        self.visit.begun = Some(action.clone());
    }

    fn finish(&mut self, at: Timestamp, action: ActionCode, evidence: Option<&ActionEvidence>) {
        self.visit.begun = None;
        self.visit.interrupted = None;
        self.visit.last_result = Some(at);
        self.visit.done.insert(action);
        if self.visit.failure.as_ref().is_some_and(|(failed, _)| *failed == action) {
            self.visit.failure = None;
        }
        match action {
            ActionCode::Verify => self.visit.passes += 1,
            ActionCode::ResumeUpgrades => self.upgrades_paused = false,
            ActionCode::Uncordon => self.is_cordoned_by_us = false,
            _ => {}
        }
        match evidence {
            Some(ActionEvidence::Saved(saved)) => self.saved = Some(saved.clone()),
            Some(ActionEvidence::ArmedKernel(kernel)) => self.armed_kernel = Some(kernel.clone()),
            Some(ActionEvidence::Verified { .. } | ActionEvidence::Note(_)) | None => {}
        }
    }

    fn enter(&mut self, at: Timestamp, to: &ChangeMove, boot: Option<&String>) {
        let previous = self.state;
        self.state = to.to;
        self.entered_at = at;
        if let Some(boot) = boot {
            self.entered_boot = Some(boot.clone());
            self.last_boot = Some(boot.clone());
        }
        self.state_writes += 1;
        self.visit = StateVisit::default();
        if let Some(ending) = to.ending {
            self.ending = Some(ending);
        }
        if let Some(method) = to.method {
            self.method = method;
        }
        match to.to {
            ChangeState::Installing(ChangeDirection::Forward) => {
                self.passed_point_of_no_return = true;
            }
            ChangeState::Quiescing(_)
                if matches!(previous, ChangeState::Unloading(_) | ChangeState::Loading(_)) =>
            {
                self.quiesce_rounds += 1;
            }
            ChangeState::Cordoning(ChangeDirection::Backward) => {
                self.quiesce_rounds = 0;
                self.is_released = false;
                self.method = self.request.rollback.reload;
            }
            ChangeState::Rebooting(direction) => {
                self.rebooted.insert(direction);
            }
            _ => {}
        }
        let keeps_cause = matches!(to.to, ChangeState::Committed | ChangeState::RolledBack);
        let is_failure = matches!(
            to.to,
            ChangeState::Cordoning(ChangeDirection::Backward)
                | ChangeState::Restoring
                | ChangeState::Rejected
                | ChangeState::Deferred
                | ChangeState::Cancelled
        );
        if to.to == ChangeState::Quarantined || is_failure && !keeps_cause && self.cause.is_none() {
            self.cause = Some(to.reason.clone());
        }
        self.reason = to.reason.clone();
    }

    fn resume(&mut self, boot: Option<&String>) {
        if self.state == ChangeState::Quarantined {
            self.visit = StateVisit::default();
        }
        if let Some(action) = self.visit.begun.take() {
            self.visit.interrupted = Some(action.code());
        }
        // A result from before the restart says nothing about the node now.
        self.visit.passes = 0;
        self.visit.done.remove(&ActionCode::Verify);
        let Some(boot) = boot else { return };
        if self.last_boot.as_ref().is_some_and(|last| last != boot) {
            if self.passed_point_of_no_return {
                self.boots += 1;
            }
            // What was started or stopped before the boot has to be done again.
            self.visit.done.clear();
        }
        self.last_boot = Some(boot.clone());
    }
}

/// All changes of a node, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeHistory {
    pub records: Vec<ChangeRecord>,
}

impl ChangeHistory {
    /// Applies one entry. An entry without a change before it is ignored.
    pub fn apply(&mut self, at: Timestamp, entry: &ChangeEntry) {
        if let ChangeEntry::Accepted { request, boot } = entry {
            self.records.push(ChangeRecord::new((**request).clone(), at, boot.clone()));
        } else if let Some(record) = self.records.last_mut() {
            record.apply(at, entry);
        }
    }

    /// The change that has not ended.
    pub fn current(&self) -> Option<&ChangeRecord> {
        self.records.last().filter(|record| !record.is_closed())
    }

    pub fn last(&self) -> Option<&ChangeRecord> {
        self.records.last()
    }
}
