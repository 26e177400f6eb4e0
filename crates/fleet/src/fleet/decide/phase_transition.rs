//! The next phase of a node. Every return to service requires verification.

use super::DecisionContext;
use super::health_assessment::Impact;
use crate::fleet::budget::BudgetAccountant;
use crate::fleet::event::Event;
use crate::fleet::order::VerificationLevel;
use crate::fleet::policy::Autonomy;
use crate::fleet::reason::{Rationale, Reason, UnblockedBy, bounded};
use crate::fleet::state::{ExternalCordon, NodePhase, Scheduling, add_seconds};

/// Returns the next phase change, or the deferral of a phase change that is due.
pub(super) fn step(context: &DecisionContext<'_>, budget: &BudgetAccountant<'_>) -> Option<Event> {
    if let Some(step) = held(context) {
        return Some(step);
    }
    match context.node.phase() {
        NodePhase::Joining => joining(context, budget),
        NodePhase::InService => in_service(context, budget),
        NodePhase::Suspect => suspect(context, budget),
        NodePhase::Quarantined => quarantined(context),
        NodePhase::Repairing => in_repair(context),
        NodePhase::Verifying => verifying(context),
        NodePhase::Held => released(context),
    }
}

/// Returns the step to the phase held, or the steps of a held node, if an operator or another tool
/// keeps the node out of service.
fn held(context: &DecisionContext<'_>) -> Option<Event> {
    let phase = context.node.phase();
    if let Some(hold) = context.node.requests.hold.as_ref().filter(|_| phase != NodePhase::Held) {
        let rationale = Rationale::new(hold.as_reason(), UnblockedBy::Release);
        return Some(context.phase_changed(NodePhase::Held, rationale));
    }
    if let Some(rationale) = certificate_revoked(context).filter(|_| phase != NodePhase::Held) {
        return Some(context.phase_changed(NodePhase::Held, rationale));
    }
    let takes_work = phase.in_service() || phase == NodePhase::Joining;
    let external = context.node.scheduling.external_cordon().filter(|_| takes_work)?;
    Some(context.phase_changed(NodePhase::Held, cordoned(external, false)))
}

/// Returns a rationale if the certificates of the node were revoked. Such a node cannot connect, so
/// its state is unknown, and no order reaches it.
fn certificate_revoked(context: &DecisionContext<'_>) -> Option<Rationale> {
    let since = context.node.liveness.certificate_revoked_at()?;
    let (pool, node) = (context.node.location.pool.clone(), context.id.clone());
    let reason = Reason::CertificateRevoked { since };
    Some(Rationale::new(reason, UnblockedBy::Enrolment { pool, node }))
}

fn cordoned(external: &ExternalCordon, verified: bool) -> Rationale {
    let (owner, reason) = (bounded(&external.owner), bounded(&external.reason));
    let reason = Reason::ExternalCordon { owner, reason, verified };
    Rationale::new(reason, UnblockedBy::ExternalUncordon)
}

fn joining(context: &DecisionContext<'_>, budget: &BudgetAccountant<'_>) -> Option<Event> {
    if context.assessment.impact == Impact::Unfit {
        return Some(
            context
                .quarantine_blocker(budget)
                .map_or_else(|| context.quarantine(), |rationale| context.deferred(rationale)),
        );
    }
    // Farrier's own cordon is removed before the node enters service. In a pool that only observes,
    // the cordon stays, and the node enters service with it.
    let is_farriers = context.node.scheduling.is_cordoned_by_farrier();
    let cordoned = is_farriers && context.pool.autonomy != Autonomy::Observe;
    let is_ready = context.is_verified() && context.assessment.impact == Impact::None && !cordoned;
    is_ready.then(|| context.in_service(Reason::Verified { joining: true }))
}

fn in_service(context: &DecisionContext<'_>, budget: &BudgetAccountant<'_>) -> Option<Event> {
    match context.assessment.impact {
        Impact::None => None,
        Impact::Unfit if context.quarantine_blocker(budget).is_none() => Some(context.quarantine()),
        Impact::Unfit | Impact::Suspect => {
            Some(context.phase_changed(NodePhase::Suspect, context.suspicion()))
        }
    }
}

/// Whether the next step takes slots of disruption budgets, if they are free.
pub(super) fn needs_slot(context: &DecisionContext<'_>) -> bool {
    held(context).is_none()
        && context.is_quarantine_due()
        && context.blocker_besides_slots().is_none()
}

fn suspect(context: &DecisionContext<'_>, budget: &BudgetAccountant<'_>) -> Option<Event> {
    if context.assessment.impact == Impact::None {
        return Some(context.in_service(Reason::FindingsCleared { verifying: false }));
    }
    let is_due = context.is_quarantine_due();
    let blocker = is_due.then(|| context.quarantine_blocker(budget)).flatten();
    if is_due && blocker.is_none() {
        return Some(context.quarantine());
    }
    // The phase begins again, so that the time of a coverage gap does not count towards
    // `suspect_timeout_s` of a fault.
    if !context.is_same_suspicion() {
        return Some(context.phase_changed(NodePhase::Suspect, context.suspicion()));
    }
    blocker.map(|rationale| context.deferred(rationale))
}

fn quarantined(context: &DecisionContext<'_>) -> Option<Event> {
    if context.node.repairs.unverified().is_some() {
        return Some(context.verify(Reason::Repaired));
    }
    if context.assessment.impact == Impact::None {
        return Some(context.verify(Reason::FindingsCleared { verifying: true }));
    }
    let rationale = || context.assessed(UnblockedBy::Repair);
    context.is_drained().then(|| context.phase_changed(NodePhase::Repairing, rationale()))
}

fn in_repair(context: &DecisionContext<'_>) -> Option<Event> {
    match (context.node.repairs.unverified().is_some(), context.assessment.impact) {
        (true, _) => Some(context.verify(Reason::Repaired)),
        (false, Impact::None) => Some(context.verify(Reason::FindingsCleared { verifying: true })),
        (false, _) if context.is_drained() => None,
        (false, _) => Some(
            context.phase_changed(NodePhase::Quarantined, context.assessed(UnblockedBy::Drain)),
        ),
    }
}

fn verifying(context: &DecisionContext<'_>) -> Option<Event> {
    if let Some(failed) = context.node.verification.results().find(|result| !result.passed) {
        let (level, evidence) = (failed.level, bounded(failed.evidence));
        let reason = Reason::VerificationFailed { level, evidence, findings: Vec::new() };
        return Some(context.fail_verification(Rationale::new(reason, UnblockedBy::Repair)));
    }
    let settled = context.node.phase.deadline(context.pool.settle_s) <= context.now;
    if context.assessment.impact == Impact::Unfit && settled {
        return Some(context.fail_verification(context.assessed(UnblockedBy::Repair)));
    }
    // The verification passed, but something cannot be read now.
    if context.is_verified() && context.assessment.is_missing_coverage() {
        let rationale = context.assessed(UnblockedBy::Coverage { retry_at: None });
        return Some(context.deferred(rationale));
    }
    if context.assessment.impact != Impact::None || !context.is_verified() {
        return None;
    }
    if context.node.scheduling == Scheduling::Schedulable {
        return Some(context.in_service(Reason::Verified { joining: false }));
    }
    let external = context.node.scheduling.external_cordon()?;
    Some(context.phase_changed(NodePhase::Held, cordoned(external, true)))
}

fn released(context: &DecisionContext<'_>) -> Option<Event> {
    if context.node.requests.hold.is_some() {
        return None;
    }
    // The hold may have ended while the certificate was revoked. The node then stays held because
    // of the revocation.
    if let Some(rationale) = certificate_revoked(context) {
        return (*context.node.phase.rationale() != rationale)
            .then(|| context.phase_changed(NodePhase::Held, rationale));
    }
    if context.node.scheduling.external_cordon().is_some() {
        return None;
    }
    Some(context.verify(Reason::HoldEnded))
}

impl DecisionContext<'_> {
    fn phase_changed(&self, to: NodePhase, rationale: Rationale) -> Event {
        Event::PhaseChanged { node: self.id.clone(), to, rationale }
    }

    fn in_service(&self, reason: Reason) -> Event {
        self.phase_changed(NodePhase::InService, Rationale::new(reason, UnblockedBy::Finding))
    }

    fn verify(&self, reason: Reason) -> Event {
        self.phase_changed(
            NodePhase::Verifying,
            Rationale::new(reason, UnblockedBy::VerificationResult),
        )
    }

    fn assessed(&self, unblocked_by: UnblockedBy) -> Rationale {
        Rationale::new(self.assessment.reason(), unblocked_by)
    }

    /// Whether a suspect node is still suspect for the same kind of cause: a fault, or missing
    /// coverage.
    fn is_same_suspicion(&self) -> bool {
        let lacked_coverage = self.node.phase.rationale().reason.is_missing_coverage();
        lacked_coverage == self.assessment.is_missing_coverage()
    }

    /// Why the node is suspect.
    fn suspicion(&self) -> Rationale {
        let lasts = self.assessment.is_missing_coverage() && !self.pool.coverage_gap_quarantines;
        self.assessed(if lasts {
            UnblockedBy::Coverage { retry_at: None }
        } else {
            UnblockedBy::ConditionChange
        })
    }

    fn quarantine(&self) -> Event {
        self.phase_changed(
            NodePhase::Quarantined,
            self.assessed(UnblockedBy::RepairAndVerification),
        )
    }

    /// Returns the node to repairing, through quarantine if work may still run on it.
    fn fail_verification(&self, rationale: Rationale) -> Event {
        let to = if self.is_drained() { NodePhase::Repairing } else { NodePhase::Quarantined };
        self.phase_changed(to, rationale)
    }

    fn is_drained(&self) -> bool {
        self.node.scheduling.is_drained()
    }

    /// Whether the node should leave service now, if nothing prevents it.
    fn is_quarantine_due(&self) -> bool {
        let impact = self.assessment.impact;
        match self.node.phase() {
            NodePhase::Joining | NodePhase::InService => impact == Impact::Unfit,
            NodePhase::Suspect => {
                let timed_out =
                    self.node.heartbeat_deadline(self.pool).is_some_and(|at| at <= self.now);
                let persists = self.node.phase.deadline(self.pool.suspect_timeout_s) <= self.now;
                // Once a timer has ended, it does not start again when the controller was paused.
                let is_late = persists || self.node.waits_for_slot().is_some();
                let escalates =
                    self.pool.coverage_gap_quarantines || !self.assessment.is_missing_coverage();
                let is_late = timed_out || (is_late && escalates && self.is_same_suspicion());
                impact == Impact::Unfit || (impact != Impact::None && is_late)
            }
            _ => false,
        }
    }

    /// Returns why a quarantine that is due has to wait, or `None` if it may happen now.
    fn quarantine_blocker(&self, budget: &BudgetAccountant<'_>) -> Option<Rationale> {
        self.blocker_besides_slots().or_else(|| budget.quarantine_blocker(self.node))
    }

    /// Why a quarantine has to wait, whatever the budgets allow.
    fn blocker_besides_slots(&self) -> Option<Rationale> {
        if self.pool.autonomy == Autonomy::Observe {
            let cause = Box::new(self.assessment.reason());
            let reason = Reason::QuarantineNotAllowed { cause };
            return Some(Rationale::new(reason, UnblockedBy::PolicyOrHold));
        }
        let codes = &self.assessment.codes;
        if let Some((domain, symptom)) = self.active_faults.explanation(self.node, codes) {
            let domain = domain.clone();
            let unblocked_by = UnblockedBy::DomainRepair { domain: domain.clone() };
            let reason = Reason::FailureDomainFault { domain, symptom, cause: None };
            return Some(Rationale::new(reason, unblocked_by));
        }
        let (domain, recovery) = self.active_faults.recovery(self.node, codes)?;
        let at = add_seconds(recovery.at, self.pool.settle_s);
        let (domain, symptom) = (domain.clone(), recovery.symptom);
        (self.now < at).then(|| {
            let reason = Reason::DomainRecovering { domain, symptom };
            Rationale::new(reason, UnblockedBy::Settled { at })
        })
    }

    /// The levels that the pool requires, and the levels that the node failed earlier.
    pub(super) fn required_levels(&self) -> impl Iterator<Item = VerificationLevel> {
        let required = self
            .node
            .verification
            .required()
            .filter(|level| !self.pool.required_verifications.contains(level));
        self.pool.required_verifications.iter().copied().chain(required)
    }

    pub(super) fn has_passed(&self, level: VerificationLevel) -> bool {
        self.node.verification.has_passed(level)
    }

    /// Whether all required levels have passed.
    pub(super) fn is_verified(&self) -> bool {
        self.required_levels().all(|level| self.has_passed(level))
    }
}
