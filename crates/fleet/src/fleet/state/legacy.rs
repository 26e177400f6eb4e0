//! Decodes states of formats 1 to 4. A log may start from such a state. In formats 1 and 2, a node
//! was a flat list of fields.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;

use jiff::Timestamp;
use serde::Deserialize;

use super::inventory::Inventory;
use super::liveness::Liveness;
use super::node::{Hold, Node, RequestedOrder, RequestedOrderResult};
use super::orders::{FailureStreak, Orders, PendingOrder};
use super::phase::{NodePhase, PhaseStatus};
use super::repairs::{RepairAttempt, Repairs};
use super::reports::Reports;
use super::requests::OperatorRequests;
use super::scheduling::Scheduling;
use super::verification::{FailedVerification, Verification};
use super::{DisruptionIndex, DomainFault, FleetState, Freeze, Symptom};
use crate::fleet::event::{Cordon, GpuInventory, JournalPosition, NodeInventory};
use crate::fleet::identity::{Domain, Location, NodeId};
use crate::fleet::order::{Order, OrderKind, VerificationLevel};
use crate::fleet::policy::Policy;
use crate::fleet::reason::{self, OrderFailure, Rationale};
use crate::health::Finding;

#[derive(Deserialize)]
struct StateV2 {
    seq: u64,
    at: Timestamp,
    policy: Policy,
    nodes: BTreeMap<NodeId, NodeV2>,
    retired: BTreeMap<NodeId, u64>,
    freezes: BTreeMap<Domain, Freeze>,
    symptoms: BTreeMap<Domain, BTreeMap<Symptom, BTreeMap<NodeId, Timestamp>>>,
    blamed: BTreeMap<Domain, DomainFault>,
    #[serde(default)]
    access: u64,
    wakes: BTreeSet<(Timestamp, NodeId)>,
}

/// A node of format 2. The field `tried` had texts as keys, and is not read.
#[derive(Deserialize)]
struct NodeV2 {
    place: Location,
    standing: NodePhase,
    since: Timestamp,
    why: Rationale,
    makeup: Option<Arc<NodeInventory>>,
    #[serde(default)]
    gone: Vec<GpuInventory>,
    silent_since: Option<Timestamp>,
    #[serde(default)]
    revoked: Option<Timestamp>,
    record: Option<JournalPosition>,
    findings: BTreeMap<u64, Finding>,
    cordon: Cordon,
    drained: bool,
    hold: Option<Hold>,
    approved: bool,
    generation: u64,
    order: Option<PendingV2>,
    failures: u32,
    failed: Option<(Timestamp, OrderFailure)>,
    #[serde(default)]
    failed_order: Option<OrderKind>,
    proven: BTreeMap<VerificationLevel, ProofV2>,
    #[serde(default)]
    unproven: Option<UnprovenV2>,
    #[serde(default)]
    prove_now: Option<VerificationLevel>,
    #[serde(default)]
    errand: Option<RequestedOrder>,
    #[serde(default)]
    errands_ended: Vec<RequestedOrderResult>,
    #[serde(default)]
    owed: BTreeSet<VerificationLevel>,
    repairs: Vec<RepairV2>,
    #[serde(default)]
    untold_repair: Option<String>,
    mended: bool,
    quarantines: Vec<Timestamp>,
    held_back: Option<Rationale>,
    #[serde(default)]
    shows: BTreeMap<Symptom, Timestamp>,
    #[serde(default)]
    over_quota_since: Option<Timestamp>,
    #[serde(default)]
    unreadable_since: Option<Timestamp>,
    #[serde(default)]
    first_seq: u64,
    #[serde(default)]
    uncounted_s: u32,
    #[serde(default)]
    heartbeat_uncounted_s: u32,
    #[serde(default)]
    first_served: Option<Timestamp>,
    wake: Option<Timestamp>,
}

/// A pending order of format 2. The field `faults` had texts, and is not read.
#[derive(Deserialize)]
struct PendingV2 {
    order: Order,
    accepted: bool,
}

#[derive(Deserialize)]
struct ProofV2 {
    at: Timestamp,
    passed: bool,
    evidence: String,
}

#[derive(Deserialize)]
struct UnprovenV2 {
    rung: VerificationLevel,
    why: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RepairV2 {
    Ordered(OrderKind),
    ByHand(String),
}

impl NodeV2 {
    fn phase(&self) -> PhaseStatus {
        let mut phase = PhaseStatus::new(self.standing, self.why.clone(), self.since);
        phase.extend_timeouts(self.uncounted_s);
        phase.defer(self.held_back.clone());
        if let Some(level) = self.prove_now {
            phase.request_verification(level);
        }
        phase
    }

    fn liveness(&self) -> Liveness {
        let mut liveness = Liveness::default();
        if let Some(since) = self.silent_since {
            liveness.lose_heartbeat(since);
            liveness.extend_timeout(self.heartbeat_uncounted_s);
        }
        if let Some(at) = self.revoked {
            liveness.revoke_certificate(at);
        }
        liveness
    }

    fn scheduling(&self) -> Scheduling {
        let mut scheduling = Scheduling::default();
        scheduling.observe(&self.cordon);
        if self.drained {
            scheduling.drained();
        }
        scheduling
    }

    /// Converts the results of verifications. If a level has passed and is also required, it has to
    /// pass again.
    fn verification(&self) -> Verification {
        let mut verification = Verification::default();
        for (level, ProofV2 { at, passed, evidence }) in &self.proven {
            if *passed {
                verification.pass(*level, *at, evidence);
            } else {
                verification.fail(*level, *at, evidence);
            }
        }
        verification.dismiss_failure();
        for level in &self.owed {
            verification.require(*level);
        }
        if let Some(UnprovenV2 { rung, why }) = &self.unproven {
            let failure = FailedVerification { level: *rung, evidence: why.clone() };
            verification.set_failure(failure);
        }
        verification
    }
}

impl From<NodeV2> for Node {
    fn from(node: NodeV2) -> Self {
        let (phase, liveness) = (node.phase(), node.liveness());
        let (scheduling, verification) = (node.scheduling(), node.verification());
        // Without the last failure, the count of failures is dropped too. A failing order then gets
        // further attempts before it waits for an operator.
        let failures = node.failed.zip(node.failed_order).zip(NonZeroU32::new(node.failures));
        let failures = failures.map(|(((at, why), order), count)| FailureStreak {
            order,
            count,
            at,
            reason: why,
        });
        let pending = node.order.map(|pending| {
            let PendingV2 { order, accepted } = pending;
            PendingOrder { order, accepted, faults: None }
        });
        let attempts = node.repairs.into_iter().map(|attempt| match attempt {
            RepairV2::Ordered(order) => RepairAttempt::Ordered { order, faults: None, at: None },
            RepairV2::ByHand(what) => RepairAttempt::Manual { what },
        });
        let (hold, errand, errands_ended) = (node.hold, node.errand, node.errands_ended);
        let repairs =
            Repairs::from_parts(attempts.collect(), node.mended, node.approved, node.untold_repair);
        Self {
            location: node.place,
            first_seq: node.first_seq,
            phase,
            inventory: node
                .makeup
                .map(|makeup| Inventory { reported: makeup, missing_gpus: node.gone }),
            liveness,
            reports: Reports::from_parts(
                node.record,
                node.findings,
                node.over_quota_since,
                node.unreadable_since,
            ),
            scheduling,
            requests: OperatorRequests { hold, requested_order: errand, results: errands_ended }
                .into(),
            orders: Orders::from_parts(node.generation, pending, failures),
            verification,
            repairs: repairs.into(),
            first_in_service_at: node.first_served,
            quarantines: node.quarantines,
            held_since_service: false,
            urgency: None,
            symptoms: node.shows,
            next_deadline: node.wake,
        }
    }
}

impl From<StateV2> for FleetState {
    fn from(state: StateV2) -> Self {
        let nodes = state.nodes.into_iter().map(|(id, node)| (id, Arc::new(node.into())));
        Self {
            seq: state.seq,
            at: state.at,
            policy: state.policy,
            nodes: nodes.collect(),
            retired: state.retired,
            domain_counts: BTreeMap::new(),
            disruptions: DisruptionIndex::default(),
            freezes: state.freezes,
            mutes: BTreeMap::new(),
            symptoms: state.symptoms,
            domain_faults: state.blamed,
            domain_recoveries: BTreeMap::new(),
            access: state.access,
            deadlines: state.wakes,
        }
    }
}

impl Node {
    /// Adds the fields that format 1 lacks. Format 1 does not record which nodes have been in
    /// service, so every node that is not joining counts as having been in service. If that is
    /// wrong, a healthy node stays in service. The opposite mistake would take a healthy node out
    /// of service.
    fn upgrade_from_v1(&mut self) {
        if self.phase() != NodePhase::Joining {
            self.first_in_service_at.get_or_insert(self.phase.since());
        }
    }
}

impl Node {
    /// Adds the fields that formats before 5 lack. The age of a node's worst condition is unknown
    /// there, so the start of its phase is used.
    fn upgrade_from_v4(&mut self) {
        self.held_since_service = self.phase() == NodePhase::Held;
        self.note_urgency(self.phase.since());
    }
}

impl FleetState {
    /// Decodes a state of format 3 or 4. These formats differ from the current one only in names,
    /// which are still accepted, and in missing fields.
    pub fn from_v4(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        Ok(serde_json::from_slice::<Self>(bytes)?.upgraded_from_v4())
    }

    fn upgraded_from_v4(mut self) -> Self {
        for node in self.nodes.values_mut() {
            Arc::make_mut(node).upgrade_from_v4();
        }
        self.count_again();
        self
    }

    pub fn from_v2(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        Ok(Self::from(serde_json::from_slice::<StateV2>(bytes)?).upgraded_from_v4())
    }

    /// Decodes a state of format 1, and adds the missing fields.
    pub fn from_v1(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        let mut value: serde_json::Value = serde_json::from_slice(bytes)?;
        reason::upgrade_state(&mut value);
        let mut state: Self = serde_json::from_value::<StateV2>(value)?.into();
        for node in state.nodes.values_mut() {
            Arc::make_mut(node).upgrade_from_v1();
        }
        Ok(state.upgraded_from_v4())
    }
}
