//! Shadow mode compares what Farrier would have done in pools that only observe with what operators
//! did.
//!
//! A would-be quarantine is a quarantine that was due and that only the policy deferred. The
//! would-be quarantine ends when its cause clears or an operator acts. Disruption budgets do not
//! apply to it, because a node that stays in service uses no budget.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use jiff::{SignedDuration, Timestamp};

use super::poisson::{as_f64, interval};
use super::report::{OperatorAction, ShadowCase, ShadowCounts, ShadowOutcome, ShadowReport, ratio};
use crate::fleet::decide::is_explained_by_domain;
use crate::fleet::identity::{NodeId, Pool};
use crate::fleet::reason::Reason;
use crate::fleet::state::{FleetState, Node, NodePhase};

/// Cases that a report lists.
const CASES_MAX: usize = 500;
const NODE_DAY_MS: u64 = 86_400_000;

#[derive(Debug)]
pub(super) struct Shadow {
    window: SignedDuration,
    window_h: u32,
    cases: Vec<Case>,
    /// The open would-be quarantine of each node.
    open: BTreeMap<NodeId, usize>,
    /// The last case of each node.
    last: BTreeMap<NodeId, usize>,
    /// Nodes that the policy keeps in service, but whose failure domain is at fault.
    explained: BTreeSet<NodeId>,
    /// When a failure domain was found to explain a node.
    domain_faults: Vec<Timestamp>,
}

#[derive(Debug)]
struct Case {
    node: NodeId,
    pool: Pool,
    decision: Option<WouldBe>,
    acted: Option<OperatorAction>,
    /// If the operator acted first: whether Farrier had a finding about the problem.
    has_finding: bool,
}

/// A would-be quarantine.
#[derive(Debug)]
struct WouldBe {
    at: Timestamp,
    reason: &'static str,
    finding: Option<String>,
    gpus: u64,
    gpus_at_fault: u64,
    boot: Option<String>,
    ended: Option<Ended>,
}

#[derive(Debug, Clone, Copy)]
enum Ended {
    Cleared {
        at: Timestamp,
        rebooted: bool,
    },
    /// The policy changed, and Farrier quarantined the node.
    Quarantined,
}

/// The number of GPUs of a node, and the number of GPUs at fault.
#[derive(Debug, Clone, Copy)]
pub(super) struct GpusAtFault {
    pub(super) all: u64,
    pub(super) at_fault: u64,
}

fn is_fault_known(node: &Node) -> bool {
    !node.faults().is_empty()
}

/// Whether nothing is wrong with the node any more.
fn is_clear(node: &Node) -> bool {
    let is_known = node.liveness.heartbeat_loss().is_none()
        && node.reports.unreadable_since().is_none()
        && node.reported_inventory().is_some_and(|inventory| inventory.gpus.is_some());
    node.phase() == NodePhase::InService || (is_known && !is_fault_known(node))
}

fn boot(node: &Node) -> Option<String> {
    node.reported_inventory().map(|inventory| inventory.boot.clone())
}

impl Shadow {
    pub(super) fn new(window_h: u32) -> Self {
        Self {
            window: SignedDuration::from_hours(i64::from(window_h)),
            window_h,
            cases: Vec::new(),
            open: BTreeMap::new(),
            last: BTreeMap::new(),
            explained: BTreeSet::new(),
            domain_faults: Vec::new(),
        }
    }

    /// Records that the policy deferred a quarantine that is due.
    pub(super) fn note_deferred(
        &mut self,
        state: &FleetState,
        id: &NodeId,
        at: Timestamp,
        gpus: GpusAtFault,
    ) {
        let Some(node) = state.nodes.get(id) else { return };
        let Some(Reason::QuarantineNotAllowed { cause }) =
            node.phase.deferred().map(|rationale| &rationale.reason)
        else {
            return;
        };
        let is_acted_on =
            node.requests.hold.is_some() || node.scheduling.external_cordon().is_some();
        if is_acted_on || self.open.contains_key(id) {
            return;
        }
        if is_explained_by_domain(state, node, at) {
            if self.explained.insert(id.clone()) {
                self.domain_faults.push(at);
            }
            return;
        }
        self.explained.remove(id);
        let finding = match &**cause {
            Reason::OpenFindings { worst, .. } if worst.detail.is_empty() => {
                Some(worst.code.clone())
            }
            Reason::OpenFindings { worst, .. } => Some(format!("{} {}", worst.code, worst.detail)),
            _ => None,
        };
        let decision = WouldBe {
            at,
            reason: known_code(cause.code()),
            finding,
            gpus: gpus.all,
            gpus_at_fault: gpus.at_fault,
            boot: boot(node),
            ended: None,
        };
        let index = self.push(id, node, Some(decision), None, true);
        self.open.insert(id.clone(), index);
    }

    fn push(
        &mut self,
        id: &NodeId,
        node: &Node,
        decision: Option<WouldBe>,
        acted: Option<OperatorAction>,
        has_finding: bool,
    ) -> usize {
        let (index, pool) = (self.cases.len(), node.location.pool.clone());
        self.cases.push(Case { node: id.clone(), pool, decision, acted, has_finding });
        self.last.insert(id.clone(), index);
        index
    }

    /// Nodes that have to be checked again after every entry, because the fault of their failure
    /// domain may have ended.
    pub(super) fn explained(&self) -> Vec<NodeId> {
        self.explained.iter().cloned().collect()
    }

    /// Records that an operator acted on a node that took work.
    pub(super) fn note_action(&mut self, id: &NodeId, node: &Node, action: OperatorAction) {
        if let Some(case) = self.open.remove(id).and_then(|index| self.cases.get_mut(index)) {
            case.acted = Some(action);
            return;
        }
        let earlier = self.last.get(id).and_then(|index| self.cases.get_mut(*index));
        let is_recent = |case: &Case| {
            let decided = case.decision.as_ref().map(|decision| decision.at);
            case.acted.is_none() && decided.is_some_and(|at| action.at <= at + self.window)
        };
        if let Some(case) = earlier.filter(|case| is_recent(case)) {
            case.acted = Some(action);
            return;
        }
        self.push(id, node, None, Some(action), is_fault_known(node));
    }

    /// Records that the node changed.
    pub(super) fn note_change(&mut self, id: &NodeId, node: &Node, at: Timestamp) {
        if node.phase.deferred().is_none() || is_clear(node) {
            self.explained.remove(id);
        }
        if let Some(case) = self.last.get(id).and_then(|index| self.cases.get_mut(*index)) {
            let acted = case.acted.as_ref().map(|action| action.at);
            if case.decision.is_none()
                && acted.is_some_and(|acted| at <= acted + self.window)
                && is_fault_known(node)
            {
                case.has_finding = true;
            }
        }
        let Some(index) = self.open.get(id) else { return };
        let Some(decision) = self.cases.get_mut(*index).and_then(|case| case.decision.as_mut())
        else {
            return;
        };
        if is_clear(node) {
            decision.ended = Some(Ended::Cleared { at, rebooted: boot(node) != decision.boot });
        } else if matches!(node.phase(), NodePhase::Quarantined | NodePhase::Repairing) {
            decision.ended = Some(Ended::Quarantined);
        } else {
            return;
        }
        self.open.remove(id);
    }

    /// Returns the report on the cases that began in this period. It includes what happened to
    /// these cases later, up to `now`. `None` if no pool was in observe mode.
    pub(super) fn finish(
        self,
        node_ms: u64,
        period: Range<Timestamp>,
        now: Timestamp,
    ) -> Option<ShadowReport> {
        // What happened exactly at the end of the log is in the period.
        let is_in_period = |at: &Timestamp| *at >= period.start && (*at < period.end || *at == now);
        let began = |case: &Case| case.began().as_ref().is_some_and(is_in_period);
        let cases: Vec<Case> = self.cases.into_iter().filter(began).collect();
        let domain_faults = self.domain_faults.iter().filter(|at| is_in_period(at)).count() as u64;
        if node_ms == 0 && cases.is_empty() {
            return None;
        }
        let mut report = ShadowReport {
            window_h: self.window_h,
            node_ms,
            counts: ShadowCounts { domain_faults, ..ShadowCounts::default() },
            false_per_1000_node_days: None,
            false_per_1000_node_days_high: None,
            saved_low_ms: 0,
            saved_high_ms: 0,
            false_cost_ms: 0,
            cases: Vec::new(),
            cases_omitted: cases.len().saturating_sub(CASES_MAX) as u64,
        };
        for case in cases {
            case.count(&mut report, self.window, now);
        }
        if node_ms > 0 {
            let per_1000_node_days = 1000.0 / ratio(node_ms, NODE_DAY_MS);
            let count = report.counts.false_quarantines;
            report.false_per_1000_node_days = Some(as_f64(count) * per_1000_node_days);
            report.false_per_1000_node_days_high = Some(interval(count).1 * per_1000_node_days);
        }
        Some(report)
    }
}

impl Case {
    /// When Farrier decided, or else when the operator acted.
    fn began(&self) -> Option<Timestamp> {
        let decided = self.decision.as_ref().map(|decision| decision.at);
        decided.or_else(|| self.acted.as_ref().map(|action| action.at))
    }

    fn outcome(&self, window: SignedDuration, now: Timestamp) -> ShadowOutcome {
        let Some(decision) = &self.decision else {
            return if self.has_finding {
                ShadowOutcome::BothOperatorFirst
            } else {
                ShadowOutcome::OperatorOnly
            };
        };
        if self.acted.is_some() {
            return ShadowOutcome::BothFarrierFirst;
        }
        let deadline = decision.at + window;
        match decision.ended {
            Some(Ended::Cleared { rebooted: true, .. } | Ended::Quarantined) => {
                ShadowOutcome::Unconfirmed
            }
            Some(Ended::Cleared { at, .. }) if at > deadline => ShadowOutcome::Unconfirmed,
            _ if now < deadline => ShadowOutcome::Pending,
            Some(Ended::Cleared { .. }) => ShadowOutcome::FalseQuarantine,
            None => ShadowOutcome::Unconfirmed,
        }
    }

    fn cleared(&self) -> Option<Timestamp> {
        match self.decision.as_ref()?.ended? {
            Ended::Cleared { at, .. } => Some(at),
            Ended::Quarantined => None,
        }
    }

    fn count(self, report: &mut ShadowReport, window: SignedDuration, now: Timestamp) {
        let outcome = self.outcome(window, now);
        let counts = &mut report.counts;
        *match outcome {
            ShadowOutcome::BothFarrierFirst => &mut counts.both_farrier_first,
            ShadowOutcome::BothOperatorFirst => &mut counts.both_operator_first,
            ShadowOutcome::FalseQuarantine => &mut counts.false_quarantines,
            ShadowOutcome::Unconfirmed => &mut counts.unconfirmed,
            ShadowOutcome::Pending => &mut counts.pending,
            ShadowOutcome::OperatorOnly => &mut counts.operator_only,
        } += 1;
        let cleared = self.cleared();
        if let Some(decision) = &self.decision {
            let acted = self.acted.as_ref().map(|action| action.at);
            let ended = [acted, cleared].into_iter().flatten().min();
            let lasted = ended.map_or(SignedDuration::ZERO, |at| at.duration_since(decision.at));
            let lasted_ms = u64::try_from(lasted.as_millis()).unwrap_or_default();
            match outcome {
                ShadowOutcome::BothFarrierFirst => {
                    report.saved_low_ms += decision.gpus_at_fault * lasted_ms;
                    report.saved_high_ms += decision.gpus * lasted_ms;
                }
                ShadowOutcome::FalseQuarantine => report.false_cost_ms += decision.gpus * lasted_ms,
                _ => {}
            }
        }
        if report.cases.len() < CASES_MAX {
            report.cases.push(ShadowCase {
                node: self.node,
                pool: self.pool,
                outcome,
                decided: self.decision.as_ref().map(|decision| decision.at),
                reason: self.decision.as_ref().map(|decision| decision.reason.to_owned()),
                finding: self.decision.and_then(|decision| decision.finding),
                acted: self.acted,
                cleared,
            });
        }
    }
}

/// Returns the code as a static string if it is the code of a reason, and `legacy` otherwise.
fn known_code(code: &str) -> &'static str {
    Reason::CODES.into_iter().find(|known| *known == code).unwrap_or("legacy")
}
