//! Runs a change on a test node, with faults, and checks the invariants after every effect.

use farrier_fleet::change::{
    ActionCode, ActionFailure, ChangeAction, ChangeDecision, ChangeDirection, ChangeEntry,
    ChangeRecord, ChangeState, ControllerContact, CordonMark, LoadFailure, next,
};
use jiff::Timestamp;

use crate::test_node::{Effect, TestNode};

/// More decisions than this, waits included, are a loop. A drain of four hours has 2,880 waits.
const DECISIONS_MAX: u32 = 20_000;
/// More actions and moves than this are a loop. Requests for a lease are not counted.
const STEPS_MAX: usize = 400;
/// Decisions within which a cordon that someone else removed has to be back.
const RECORDON_WITHIN: u32 = 12;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The action fails after so many of its effects.
    Error {
        failure: ActionFailure,
        effects: usize,
    },
    /// Like `Error`, and so does every later action of the kind.
    ErrorForever {
        failure: ActionFailure,
        effects: usize,
    },
    /// The process is killed after so many effects, before the result is in the journal.
    Kill {
        effects: usize,
    },
    /// The process is killed after the result or the move is in the journal.
    KillAfter,
    /// The power fails after so many effects.
    PowerCut {
        effects: usize,
    },
    /// The controller does not answer any more.
    ControllerLost,
    /// The controller does not answer for some days.
    ControllerAway,
    /// So many observations cannot be read.
    Blind(u32),
    /// Another program holds the package manager's lock in so many observations.
    PackageLock(u32),
    /// Someone else cordons the node.
    ExternalCordon,
    /// Someone else removes the cordon.
    CordonRemoved,
    Cancel,
    RollBack,
    /// The rollback bundle disappears from the disk.
    RollbackBundleLost,
}

impl Fault {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Error { .. } => "error",
            Self::ErrorForever { .. } => "error, repeated",
            Self::Kill { effects: 0 } => "killed before the effect",
            Self::Kill { .. } => "killed in or after the effect",
            Self::KillAfter => "killed after the journal entry",
            Self::PowerCut { .. } => "power cut",
            Self::ControllerLost => "controller lost",
            Self::ControllerAway => "controller away for days",
            Self::Blind(_) => "facts unreadable",
            Self::PackageLock(_) => "package lock held",
            Self::ExternalCordon => "external cordon",
            Self::CordonRemoved => "cordon removed",
            Self::Cancel => "cancelled",
            Self::RollBack => "rollback requested",
            Self::RollbackBundleLost => "rollback bundle lost",
        }
    }
}

/// A fault at the decision with this number. Waits are not counted.
#[derive(Debug, Clone)]
pub(crate) struct Injection {
    pub(crate) at: usize,
    pub(crate) fault: Fault,
}

/// One decision of a run.
#[derive(Debug, Clone)]
pub(crate) struct TraceStep {
    pub(crate) state: ChangeState,
    pub(crate) action: Option<ChangeAction>,
    pub(crate) effects: usize,
}

pub(crate) struct Run {
    pub(crate) node: TestNode,
    pub(crate) record: ChangeRecord,
    pub(crate) now: Timestamp,
    pub(crate) trace: Vec<TraceStep>,
    injections: Vec<Injection>,
    always_fails: Option<(ActionCode, ActionFailure, usize)>,
    /// Decisions left to restore a cordon that someone else removed.
    recordon_left: Option<u32>,
    away_until: Option<Timestamp>,
    generation: u64,
    initial_driver: String,
}

impl Run {
    pub(crate) fn new(node: TestNode, injections: Vec<Injection>) -> Self {
        let now: Timestamp = "2026-11-19T12:00:00Z".parse().unwrap();
        let record = ChangeRecord::new(node.request.clone(), now, Some(node.boot_id()));
        let generation = record.request.generation;
        let initial_driver = node.library.clone();
        let (trace, always_fails) = (Vec::new(), None);
        let (recordon_left, away_until) = (None, None);
        Self {
            node,
            record,
            now,
            trace,
            injections,
            always_fails,
            recordon_left,
            away_until,
            generation,
            initial_driver,
        }
    }

    fn write(&mut self, entry: &ChangeEntry) {
        // What is on disk is what a restart reads.
        let bytes = serde_json::to_vec(entry).unwrap();
        let entry: ChangeEntry = serde_json::from_slice(&bytes).unwrap();
        let was_quarantined = self.record.state == ChangeState::Quarantined;
        self.record.apply(self.now, &entry);
        assert!(self.record.request.generation >= self.generation);
        assert!(
            !was_quarantined || self.record.state == ChangeState::Quarantined,
            "a program ended a quarantine"
        );
    }

    fn restart(&mut self) {
        let boot = Some(self.node.boot_id());
        self.write(&ChangeEntry::Resumed { boot });
    }

    fn power_cut(&mut self) {
        self.node.reboot();
        self.restart();
    }

    /// Runs to the end. Returns the last state.
    pub(crate) fn run(&mut self) -> ChangeState {
        for _ in 0..DECISIONS_MAX {
            if self.away_until.is_some_and(|until| self.now >= until) {
                self.node.controller = ControllerContact::Present;
                self.away_until = None;
            }
            let observation = self.node.observe(self.now);
            self.check();
            match next(&self.record, &observation, self.now) {
                ChangeDecision::Finish(state) => {
                    if let (ChangeState::VerifiedHeld(_), Some(until)) = (state, self.away_until) {
                        self.now = until;
                        continue;
                    }
                    self.check_end(state);
                    return state;
                }
                ChangeDecision::Wait { until, .. } => {
                    assert!(until > self.now, "waits until the past in {}", self.record.state);
                    self.now = until;
                }
                ChangeDecision::Move(to) => {
                    if to.to == ChangeState::Installing(ChangeDirection::Forward) {
                        self.check_point_of_no_return();
                    }
                    let fault = self.take_fault(None, 0);
                    let boot = Some(self.node.boot_id());
                    self.write(&ChangeEntry::Moved { to, boot });
                    self.inject(fault.as_ref());
                }
                ChangeDecision::Act(action) => self.act(&action),
            }
            let is_request = |step: &&TraceStep| step.action == Some(ChangeAction::RequestLease);
            let requests = self.trace.iter().filter(is_request).count();
            assert!(self.trace.len() - requests <= STEPS_MAX, "a loop: {:#?}", self.record);
            if let Some(left) = &mut self.recordon_left {
                let is_fit = self.node.is_fit_for_work();
                assert!(*left > 0 || is_fit, "the cordon was not restored: {:?}", self.record);
                *left = left.saturating_sub(1);
            }
        }
        panic!("no end after {DECISIONS_MAX} decisions: {:#?}", self.record);
    }

    fn take_fault(&mut self, action: Option<&ChangeAction>, effects: usize) -> Option<Fault> {
        let at = self.trace.len();
        let state = self.record.state;
        self.trace.push(TraceStep { state, action: action.cloned(), effects });
        let position = self.injections.iter().position(|injection| injection.at == at)?;
        Some(self.injections.remove(position).fault)
    }

    /// Faults that do not depend on an action.
    fn inject(&mut self, fault: Option<&Fault>) {
        match fault {
            Some(Fault::KillAfter | Fault::Kill { .. }) => self.restart(),
            Some(Fault::PowerCut { .. }) => self.power_cut(),
            Some(Fault::ControllerLost) => self.node.controller = ControllerContact::Lost,
            Some(Fault::ControllerAway) => {
                self.node.controller = ControllerContact::Lost;
                self.away_until = Some(self.now + jiff::SignedDuration::from_hours(72));
            }
            Some(Fault::Blind(count)) => self.node.blind = *count,
            Some(Fault::PackageLock(count)) => self.node.lock_held = *count,
            Some(Fault::ExternalCordon) => {
                self.node.cordon =
                    CordonMark::External { owner: "alice".to_owned(), reason: String::new() };
            }
            Some(Fault::CordonRemoved) => {
                if self.node.cordon == CordonMark::ThisChange {
                    self.node.cordon = CordonMark::None;
                    self.recordon_left = Some(RECORDON_WITHIN);
                }
            }
            Some(Fault::Cancel) => {
                self.write(&ChangeEntry::CancelRequested { by: "ann".to_owned() });
            }
            Some(Fault::RollBack) => {
                self.write(&ChangeEntry::RollbackRequested { by: "ann".to_owned() });
            }
            Some(Fault::RollbackBundleLost) => self.node.rollback_staged = false,
            Some(Fault::Error { .. } | Fault::ErrorForever { .. }) | None => {}
        }
    }

    fn act(&mut self, action: &ChangeAction) {
        self.check_action(action);
        let effects = self.node.effects(action);
        let fault = self.take_fault(Some(action), effects.len());
        self.write(&ChangeEntry::Begun(action.clone()));
        if let Some(Fault::ErrorForever { failure, effects }) = &fault {
            self.always_fails = Some((action.code(), failure.clone(), *effects));
        }
        let mut failure = match &self.always_fails {
            Some((code, failure, effects)) if *code == action.code() => {
                Some((failure.clone(), *effects))
            }
            _ => None,
        };
        if let Some(Fault::Error { failure: once, effects }) = &fault {
            failure = Some((once.clone(), *effects));
        }
        if *action == ChangeAction::LoadModules && self.node.refuses_to_load() {
            let kind = LoadFailure::InitFailed;
            failure = Some((ActionFailure::Load { kind, detail: String::new() }, 0));
        }
        let count = match (&fault, &failure) {
            (Some(Fault::Kill { effects } | Fault::PowerCut { effects }), _)
            | (_, Some((_, effects))) => *effects,
            _ => effects.len(),
        };
        let mut has_rebooted = false;
        for effect in effects.iter().take(count) {
            self.node.apply(effect, self.now);
            has_rebooted |= *effect == Effect::Reboot;
            self.check();
        }
        if *action == ChangeAction::RecoverPackages && failure.is_none() {
            self.node.recover();
        }
        match &fault {
            Some(Fault::Kill { .. }) => return self.restart(),
            Some(Fault::PowerCut { .. }) => return self.power_cut(),
            _ if has_rebooted => return self.restart(),
            _ => {}
        }
        let result = match failure {
            Some((failure, _)) => Err(failure),
            None => self.node.result(action),
        };
        let code = action.code();
        let entry = match result {
            Ok(evidence) => ChangeEntry::Done { action: code, evidence },
            Err(failure) => ChangeEntry::Failed { action: code, failure },
        };
        self.write(&entry);
        self.inject(fault.as_ref());
    }

    /// What no action may do.
    fn check_action(&self, action: &ChangeAction) {
        if *action == ChangeAction::Uncordon {
            assert_eq!(
                self.node.cordon,
                CordonMark::ThisChange,
                "removes a cordon of someone else"
            );
            assert!(self.node.is_fit_for_work(), "returns to service: {:#?}", self.record);
            let may_return = self.node.controller == ControllerContact::Present
                || self.record.request.policy.edge_autonomy
                || !self.record.passed_point_of_no_return
                || self.record.state == ChangeState::Probation
                || self.record.state == ChangeState::Restoring;
            assert!(may_return, "returns to service without the controller");
        }
        if matches!(action, ChangeAction::KillHolders { .. }) {
            assert!(self.record.request.policy.kill_holders, "kills without permission");
        }
        if *action == ChangeAction::Reboot {
            assert!(self.record.request.policy.allow_reboot, "reboots without permission");
        }
        if let ChangeAction::Install { .. } = action {
            assert!(self.record.passed_point_of_no_return);
        }
    }

    fn check_point_of_no_return(&self) {
        assert!(self.node.rollback_staged, "no way back");
        assert!(self.node.target_staged);
        assert!(self.node.workloads.is_empty(), "work runs");
        assert_ne!(self.node.cordon, CordonMark::None, "not cordoned");
    }

    /// Never schedulable while packages, modules and libraries disagree.
    fn check(&mut self) {
        if self.node.cordon != CordonMark::None {
            self.recordon_left = None;
            return;
        }
        if self.node.is_fit_for_work() || self.recordon_left.is_some() {
            return;
        }
        panic!("schedulable while incoherent: {:#?}\n{:#?}", self.node, self.record);
    }

    fn check_end(&self, state: ChangeState) {
        let is_known = state.is_end() || matches!(state, ChangeState::VerifiedHeld(_));
        assert!(is_known, "ended in {state}");
        if matches!(state, ChangeState::Quarantined | ChangeState::VerifiedHeld(_)) {
            assert!(
                self.node.cordon != CordonMark::None || self.record.visit.failure.is_some(),
                "schedulable in {state}"
            );
            return;
        }
        assert!(self.node.is_fit_for_work(), "{state}: {:#?}\n{:#?}", self.node, self.record);
        assert_ne!(self.node.cordon, CordonMark::ThisChange, "cordoned after {state}");
        assert!(!self.node.upgrades_paused, "upgrades are paused after {state}");
        let expected = if state == ChangeState::Committed {
            &self.node.request.to.driver
        } else {
            &self.initial_driver
        };
        assert_eq!(self.node.library, *expected, "{state}");
    }
}
