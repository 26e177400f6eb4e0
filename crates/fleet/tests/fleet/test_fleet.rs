//! A controller with an in-memory log, and the inputs from its fleet. It checks every decision
//! against the invariants.

use std::collections::{BTreeMap, BTreeSet};

use farrier_facts::node::ReadError;
use farrier_fleet::fleet::coverage::{CoverageReport, GapNames, GapSource, NodeCoverageGap};
use farrier_fleet::fleet::event::{Cordon, JournalPosition, NodeInventory, OperatorRequest};
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::replay::Replay;
use farrier_fleet::fleet::{
    AccessChange, Decision, Domain, Entry, Event, FleetState, LOGIC_VERSION, Location, Node,
    NodeId, NodePhase, OrderKind, OrderStatus, Policy, Reason, VerificationLevel, decide,
};
use farrier_fleet::health::finding::{ActionBy, Cleared};
use farrier_fleet::health::{Action, Change, Finding, FindingKind, GpuUuid, Severity, Subject};
use jiff::{SignedDuration, Timestamp};

pub(crate) const NODES: usize = 12;

pub(crate) fn node(index: usize) -> NodeId {
    format!("n{index:02}").parse().unwrap()
}

pub(crate) fn location(index: usize) -> Location {
    let mut location =
        Location::in_pool(if index.is_multiple_of(2) { "train" } else { "serve" }.parse().unwrap());
    location.rack = Some(format!("r{}", index / 4).parse().unwrap());
    location.leaf = Some(format!("l{}", index / 6).parse().unwrap());
    location
}

pub(crate) fn start() -> Timestamp {
    "2026-11-15T00:00:00Z".parse().unwrap()
}

pub(crate) fn finding(
    id: u64,
    severity: Severity,
    action: Action,
    code: &str,
    at: Timestamp,
) -> Finding {
    Finding {
        id,
        code: code.to_owned(),
        detail: String::new(),
        subject: Subject::Gpu(GpuUuid(format!("GPU-{id}"))),
        kind: FindingKind::Fault,
        severity,
        default_severity: None,
        text: "it is broken".to_owned(),
        action,
        remedy: None,
        rule_action: action,
        action_by: ActionBy::Rule,
        evidence: Vec::new(),
        first_seen: at,
        last_seen: at,
        opened_in: None,
        last_in: None,
        count: 1,
        clears_when: "it is repaired".to_owned(),
        cleared: None,
    }
}

fn ann() -> Actor {
    Actor::User("ann".to_owned())
}

fn operator_request(request: OperatorRequest) -> Event {
    Event::OperatorRequested { request }
}

fn requested_order(index: usize, which: u8) -> Event {
    let order = match which {
        0 => OrderKind::Tune { profile: "training".to_owned() },
        1 => OrderKind::Diag { level: 2, minutes: 0 },
        _ => OrderKind::CollectLogs,
    };
    operator_request(OperatorRequest::RunOrder { node: node(index), order })
}

/// A report of the GPUs in a bit mask that cannot be read, for `age_s` seconds.
pub(crate) fn coverage(gpus: u8, age_s: u32, now: Timestamp) -> CoverageReport {
    let listed = (0..8_u8).filter(|gpu| gpus & (1 << gpu) != 0);
    let gaps = listed.map(|gpu| NodeCoverageGap {
        subject: Subject::Gpu(GpuUuid(format!("GPU-{gpu}"))),
        source: GapSource::Signals(GapNames::new(["gpu.power_w".to_owned()])),
        cause: ReadError::nvml(999),
        since: now - SignedDuration::from_secs(i64::from(age_s)),
    });
    CoverageReport { gaps: gaps.collect(), more: 0 }
}

/// An input from outside the controller.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    Boot(usize),
    /// A finding opens: node, finding number, severity, action, and index of the finding code.
    Fault(usize, u64, Severity, Action, usize),
    /// A finding clears: node and finding number.
    Clear(usize, u64),
    HeartbeatLost(usize),
    HeartbeatRestored(usize),
    Revoke(usize),
    ExternalCordon(usize),
    ExternalUncordon(usize),
    /// A node reports that its pending order is done (`true`) or failed.
    OrderStatus(usize, bool),
    /// A node reports that its pending order has no result, if it is a verification.
    Inconclusive(usize),
    /// An operator requests V1.
    Verify(usize),
    /// A node reports its coverage gaps: which of two GPUs it cannot read, as a bit mask, and for
    /// how many seconds.
    Gaps(usize, u8, u32),
    /// The policy sets `coverage_gap_timeout_s` and `coverage_gap_quarantines`.
    GapPolicy(Option<u32>, bool),
    Hold(usize),
    Release(usize),
    Repaired(usize),
    Retire(usize),
    Enrol(usize),
    /// The fleet is frozen for this many seconds.
    Freeze(u32),
    Approve(usize),
    /// An operator says that this rack, or else leaf switch, is repaired.
    DomainRepaired(bool, usize),
    /// An operator requests an order for a node: 0 to tune, 1 for a diagnostic, otherwise to
    /// collect logs.
    RequestedOrder(usize, u8),
    /// This many seconds pass.
    Wait(u32),
    /// The server is paused for this many seconds.
    Pause(u32),
    /// The wall clock steps by this many seconds.
    ClockStep(i32),
}

/// A controller that keeps the log in memory and checks every decision.
pub(crate) struct TestFleet {
    pub(crate) state: FleetState,
    pub(crate) log: Vec<Entry>,
    pub(crate) now: Timestamp,
    boots: BTreeMap<NodeId, u64>,
    generations: BTreeMap<NodeId, u64>,
    /// Nodes that the controller took out of service and that no hold has claimed since.
    quarantined: BTreeSet<NodeId>,
}

impl TestFleet {
    pub(crate) fn new() -> Self {
        let mut fleet = Self {
            state: FleetState::default(),
            log: Vec::new(),
            now: start(),
            boots: BTreeMap::new(),
            generations: BTreeMap::new(),
            quarantined: BTreeSet::new(),
        };
        fleet
            .batch(vec![(Actor::Server, Event::PolicySet { policy: Box::new(Policy::default()) })]);
        for index in 0..NODES {
            fleet.act(&Act::Enrol(index));
            fleet.act(&Act::Boot(index));
        }
        fleet
    }

    /// Applies the inputs, then checks and applies the decisions on them.
    pub(crate) fn batch(&mut self, inputs: Vec<(Actor, Event)>) {
        let batch = self.state.seq + 1;
        let mut dirty = BTreeSet::new();
        for (by, event) in inputs {
            dirty.extend(self.append(batch, by, event));
        }
        let Decision { events, .. } = decide(&self.state, &dirty, self.now);
        assert!(
            events.len() <= 16 * dirty.len().max(1),
            "too many events for {} nodes: {events:#?}",
            dirty.len()
        );
        for event in events {
            self.check(&event);
            self.append(batch, Actor::Server, event);
        }
        let again = decide(&self.state, &dirty, self.now);
        assert_eq!(again.events, [], "a second decision on the same state must be empty");
        self.check_counts();
        self.check_coverage();
        let is_revoked_but_not_held = |node: &Node| {
            node.liveness.certificate_revoked_at().is_some() && node.phase() != NodePhase::Held
        };
        let violation = self.state.nodes.iter().find(|(_, node)| is_revoked_but_not_held(node));
        assert!(
            violation.is_none(),
            "a node with a revoked certificate is not held: {violation:?}"
        );
    }

    /// A node with a coverage gap past its timeout is never plainly in service.
    fn check_coverage(&self) {
        for (id, node) in &self.state.nodes {
            let pool = self.state.policy.for_pool(&node.location.pool);
            let deadline = node.coverage_deadline(pool);
            assert!(
                node.phase() != NodePhase::InService || deadline.is_none_or(|at| at > self.now),
                "{id} is in service with a gap since {:?}",
                node.coverage().gaps()
            );
        }
    }

    fn append(&mut self, batch: u64, by: Actor, event: Event) -> BTreeSet<NodeId> {
        let (seq, at, logic) = (self.state.seq + 1, self.now, LOGIC_VERSION);
        let entry = Entry { seq, batch, at, by, logic, event };
        self.note_quarantine(&entry.event);
        let dirty = self.state.apply(&entry);
        self.log.push(entry);
        dirty
    }

    /// Checks that a decision keeps the invariants. The state does not contain the decision yet.
    fn check(&mut self, event: &Event) {
        match event {
            Event::PhaseChanged { node, to, rationale } => {
                let before = &self.state.nodes[node];
                let pool = self.state.policy.for_pool(&before.location.pool);
                assert!(
                    *to != NodePhase::Quarantined
                        || pool.coverage_gap_quarantines
                        || !rationale.reason.is_missing_coverage(),
                    "{node} is quarantined because of a coverage gap"
                );
                if *to == NodePhase::InService {
                    assert!(
                        before.reported_inventory().is_some(),
                        "{node} is in service without an inventory"
                    );
                    assert!(
                        before.liveness.heartbeat_loss().is_none(),
                        "{node} is in service without heartbeats"
                    );
                    let is_serious = |finding: &Finding| finding.severity >= Severity::Critical;
                    assert!(
                        !before.findings().values().any(is_serious),
                        "{node} is in service with a serious finding"
                    );
                    let out = !before.phase().in_service();
                    let passed = |level| before.verification.has_passed(level);
                    let is_verified =
                        passed(VerificationLevel::V0) && passed(VerificationLevel::V1);
                    assert!(!out || is_verified, "{node} returns to service unverified");
                }
                let was_not_out =
                    before.phase().in_service() || before.phase() == NodePhase::Joining;
                if was_not_out && *to == NodePhase::Quarantined {
                    for domain in before.location.domains() {
                        self.check_disruption_budget(&domain);
                        self.check_capacity_floor(before, &domain);
                    }
                    self.check_order_of_quarantines(node);
                }
            }
            Event::OrderIssued { order } => {
                let node = &self.state.nodes[&order.node];
                assert!(node.orders.pending().is_none(), "two orders at once on {}", order.node);
                let last = self.generations.insert(order.node.clone(), order.generation);
                assert!(
                    last.is_none_or(|last| last < order.generation),
                    "a generation did not increase"
                );
                let is_external = node.scheduling.external_cordon().is_some();
                assert!(
                    !(is_external && order.kind == OrderKind::Uncordon),
                    "the order would remove an external cordon"
                );
                let in_service = matches!(node.phase(), NodePhase::InService | NodePhase::Suspect);
                let verifies = matches!(order.kind, OrderKind::Verify { .. });
                let reads = verifies || order.kind == OrderKind::CollectLogs;
                assert!(!in_service || reads, "{:?} ordered on a node in service", order.kind);
                assert!(
                    !order.kind.is_repair() || node.scheduling.is_drained(),
                    "{:?} ordered on a node that is not drained",
                    order.kind
                );
                let verifying = node.phase() == NodePhase::Verifying && verifies;
                let cordoned = node.scheduling.is_cordoned();
                assert!(!verifying || cordoned, "{} is verified while it takes work", order.node);
                let frozen = self.state.freezes.values().any(|freeze| freeze.until > self.now);
                assert!(!(order.kind.changes() && frozen), "a change ordered during a freeze");
            }
            _ => {}
        }
    }

    fn check_disruption_budget(&self, domain: &Domain) {
        let counts = self.state.domain_counts[domain];
        let Some(limit) = self.state.policy.disruption_limit(domain.kind(), counts.members) else {
            return;
        };
        assert!(counts.disrupted < limit, "{domain}: {counts:?}");
    }

    fn members(&self, domain: &Domain) -> impl Iterator<Item = (&NodeId, &Node)> {
        let nodes = self.state.nodes.iter().map(|(id, node)| (id, &**node));
        nodes.filter(move |(_, node)| node.location.domains().contains(domain))
    }

    /// Enough nodes still take work after the quarantine, whatever took the others out of service.
    fn check_capacity_floor(&self, node: &Node, domain: &Domain) {
        let takes_work = |node: &Node| {
            let phase = node.phase();
            let is_out = !phase.in_service() && phase != NodePhase::Joining;
            !is_out && !node.scheduling.is_cordoned()
        };
        let members = u32::try_from(self.members(domain).count()).unwrap();
        let Some(floor) = self.state.policy.capacity_floor(domain.kind(), members) else { return };
        let left = self.members(domain).filter(|(_, node)| takes_work(node)).count();
        let is_kept = u32::try_from(left).unwrap() > floor;
        assert!(is_kept || !takes_work(node), "{domain}: {left} nodes take work, floor {floor}");
    }

    /// No milder or younger node is quarantined while a more severe or older one waits for the same
    /// slot.
    fn check_order_of_quarantines(&self, id: &NodeId) {
        let node = &self.state.nodes[id];
        let (claim, domains) = (node.quarantine_claim(id), node.location.domains());
        for (other, waiting) in &self.state.nodes {
            let Some(deferred) = waiting.phase.deferred().filter(|_| other != id) else { continue };
            let (Reason::DisruptionBudget { domain, .. } | Reason::CapacityFloor { domain, .. }) =
                &deferred.reason
            else {
                continue;
            };
            let is_first = waiting.quarantine_claim(other) < claim;
            assert!(
                !(is_first && domains.contains(domain)),
                "{id} is quarantined before {other}, which waits for {domain}"
            );
        }
    }

    fn note_quarantine(&mut self, event: &Event) {
        match event {
            Event::PhaseChanged { node, to: NodePhase::Quarantined, .. } => {
                let phase = self.state.nodes[node].phase();
                if phase.in_service() || phase == NodePhase::Joining {
                    self.quarantined.insert(node.clone());
                }
            }
            Event::PhaseChanged { node, to: NodePhase::InService | NodePhase::Held, .. }
            | Event::Retired { node, .. }
            | Event::Enrolled { node, .. } => {
                self.quarantined.remove(node);
            }
            _ => {}
        }
    }

    /// Only quarantines by the controller use a budget; holds do not.
    fn check_counts(&self) {
        let disrupted: BTreeSet<NodeId> =
            self.state.disruptions.disrupted(&Domain::Fleet).cloned().collect();
        assert_eq!(disrupted, self.quarantined);
        for (domain, counts) in &self.state.domain_counts {
            let members = self.members(domain).filter(|(id, _)| self.quarantined.contains(*id));
            assert_eq!(counts.disrupted as usize, members.count(), "{domain}");
        }
    }

    /// Moves the clock by `seconds`, which may be negative. Returns the previous time.
    fn advance(&mut self, seconds: i64) -> Timestamp {
        let before = self.now;
        self.now += SignedDuration::from_secs(seconds);
        before
    }

    #[expect(clippy::too_many_lines, reason = "one arm per input")]
    pub(crate) fn act(&mut self, act: &Act) {
        let mut inputs = Vec::new();
        let mut push = |by, event| inputs.push((by, event));
        match *act {
            Act::Boot(index) => {
                let id = node(index);
                let boot = self.boots.entry(id.clone()).and_modify(|boot| *boot += 1).or_default();
                let inventory = NodeInventory {
                    boot: format!("boot-{boot}"),
                    gpus: Some(Vec::new()),
                    ..NodeInventory::default()
                };
                push(Actor::Node(id.clone()), Event::InventoryReported { node: id, inventory });
            }
            Act::Fault(index, number, severity, action, code) => {
                let code = ["gpu.xid", "nic.down", "gpu.slowdown-thermal"][code];
                let finding = finding(number, severity, action, code, self.now);
                let id = node(index);
                push(Actor::Node(id.clone()), self.finding_report(&id, Change::Opened(finding)));
            }
            Act::Clear(index, number) => {
                let id = node(index);
                let Some(mut finding) = self
                    .state
                    .nodes
                    .get(&id)
                    .and_then(|node| node.findings().get(&number))
                    .cloned()
                else {
                    return;
                };
                finding.cleared = Some(Cleared { at: self.now, reason: "repaired".to_owned() });
                push(Actor::Node(id.clone()), self.finding_report(&id, Change::Cleared(finding)));
            }
            Act::HeartbeatLost(index) => {
                push(Actor::Server, Event::HeartbeatLost { node: node(index), since: self.now });
            }
            Act::HeartbeatRestored(index) => {
                push(Actor::Server, Event::HeartbeatRestored { node: node(index) });
            }
            Act::Revoke(index) => {
                let number = self.state.access + 1;
                let change = AccessChange::CertificateRevoked { node: node(index) };
                push(ann(), Event::AccessChanged { number, at: self.now, change });
            }
            Act::ExternalCordon(index) => {
                let cordon = Cordon::External {
                    owner: "slurm admin".to_owned(),
                    reason: "cable".to_owned(),
                };
                push(Actor::Server, Event::CordonObserved { node: node(index), cordon });
            }
            Act::ExternalUncordon(index) => {
                let current = self.state.nodes.get(&node(index));
                if current.is_some_and(|node| node.scheduling.external_cordon().is_some()) {
                    push(
                        Actor::Server,
                        Event::CordonObserved { node: node(index), cordon: Cordon::None },
                    );
                }
            }
            Act::OrderStatus(index, succeeds) => {
                let id = node(index);
                let Some(pending) =
                    self.state.nodes.get(&id).and_then(|node| node.orders.pending().cloned())
                else {
                    return;
                };
                let status = if succeeds {
                    OrderStatus::Done { evidence: "seen".to_owned() }
                } else {
                    OrderStatus::Failed { reason: "no".to_owned() }
                };
                let generation = pending.order.generation;
                push(
                    Actor::Node(id.clone()),
                    Event::OrderStatusReported { node: id, generation, status },
                );
            }
            Act::Inconclusive(index) => {
                let id = node(index);
                let Some(node) = self.state.nodes.get(&id) else { return };
                let Some(pending) = node.orders.pending() else { return };
                if !matches!(pending.order.kind, OrderKind::Verify { .. }) {
                    return;
                }
                let generation = pending.order.generation;
                let status = OrderStatus::Inconclusive { reason: "a reading failed".to_owned() };
                push(
                    Actor::Node(id.clone()),
                    Event::OrderStatusReported { node: id, generation, status },
                );
            }
            Act::Verify(index) => {
                let (node, level) = (node(index), VerificationLevel::V1);
                push(ann(), operator_request(OperatorRequest::Verify { node, level }));
            }
            Act::Gaps(index, gpus, age_s) => {
                let id = node(index);
                let coverage = coverage(gpus, age_s, self.now);
                push(Actor::Node(id.clone()), Event::CoverageReported { node: id, coverage });
            }
            Act::GapPolicy(timeout_s, quarantines) => {
                let mut policy = self.state.policy.clone();
                policy.pools_default.coverage_gap_timeout_s = timeout_s;
                policy.pools_default.coverage_gap_quarantines = quarantines;
                push(ann(), Event::PolicySet { policy: Box::new(policy) });
            }
            Act::Hold(index) => {
                push(
                    ann(),
                    operator_request(OperatorRequest::Hold {
                        node: node(index),
                        reason: "look".to_owned(),
                    }),
                );
            }
            Act::Release(index) => {
                push(ann(), operator_request(OperatorRequest::Release { node: node(index) }));
            }
            Act::Repaired(index) => {
                push(
                    ann(),
                    operator_request(OperatorRequest::Repaired {
                        node: node(index),
                        repair: "board".to_owned(),
                    }),
                );
            }
            Act::Approve(index) => {
                push(ann(), operator_request(OperatorRequest::Approve { node: node(index) }));
            }
            Act::DomainRepaired(is_rack, index) => {
                let name =
                    if is_rack { format!("rack:r{index}") } else { format!("leaf:l{index}") };
                let (domain, repair) = (name.parse().unwrap(), "cable".to_owned());
                push(ann(), operator_request(OperatorRequest::DomainRepaired { domain, repair }));
            }
            Act::RequestedOrder(index, which) => push(ann(), requested_order(index, which)),
            Act::Freeze(seconds) => {
                let until = self.now + SignedDuration::from_secs(i64::from(seconds));
                let reason = "launch".to_owned();
                push(
                    ann(),
                    operator_request(OperatorRequest::Freeze {
                        domain: Domain::Fleet,
                        until,
                        reason,
                    }),
                );
            }
            Act::Retire(index) => {
                push(ann(), Event::Retired { node: node(index), reason: "old".to_owned() });
            }
            Act::Enrol(index) => {
                push(
                    Actor::Server,
                    Event::Enrolled { node: node(index), location: location(index) },
                );
            }
            Act::Wait(seconds) => {
                self.advance(i64::from(seconds));
                push(Actor::Server, Event::Tick);
            }
            Act::Pause(seconds) => {
                let last_ran = self.advance(i64::from(seconds));
                push(Actor::Server, Event::ControllerResumed { last_ran });
            }
            Act::ClockStep(seconds) => {
                let from = self.advance(i64::from(seconds));
                push(Actor::Server, Event::ClockStepped { from, to: self.now });
            }
        }
        self.batch(inputs);
    }

    /// Reports a change of a finding as the next record of the node's journal.
    pub(crate) fn finding_report(&self, id: &NodeId, change: Change) -> Event {
        let last = self.state.nodes.get(id).and_then(|node| node.reports.record());
        let number = last.map_or(0, |record| record.number) + 1;
        let record = JournalPosition { journal: "first".to_owned(), number };
        Event::FindingsReported { node: id.clone(), record, changes: vec![change] }
    }

    pub(crate) fn report_finding(&mut self, index: usize, finding: Finding) {
        let id = node(index);
        let report = self.finding_report(&id, Change::Opened(finding));
        self.batch(vec![(Actor::Node(id), report)]);
    }

    /// The network ports of several nodes go down in one batch.
    pub(crate) fn ports_down(&mut self, nodes: impl Iterator<Item = usize>) {
        let down = finding(1, Severity::Critical, Action::Investigate, "nic.down", self.now);
        let reports = nodes.map(node).map(|id| {
            (Actor::Node(id.clone()), self.finding_report(&id, Change::Opened(down.clone())))
        });
        let inputs = reports.collect();
        self.batch(inputs);
    }

    pub(crate) fn set_policy(&mut self, policy: Policy) {
        self.batch(vec![(Actor::Server, Event::PolicySet { policy: Box::new(policy) })]);
    }

    pub(crate) fn request(&mut self, request: OperatorRequest) {
        self.batch(vec![(ann(), operator_request(request))]);
    }

    /// Completes up to 20 orders of each node, one after the other.
    pub(crate) fn complete_all_orders(&mut self) {
        for _ in 0..20 {
            for index in 0..NODES {
                self.act(&Act::OrderStatus(index, true));
            }
        }
    }

    /// Completes orders of a node, up to and including the first order for which `is_last` holds.
    pub(crate) fn complete_orders_until(
        &mut self,
        id: &NodeId,
        is_last: impl Fn(&OrderKind) -> bool,
    ) {
        let index = (0..NODES).find(|index| node(*index) == *id).unwrap();
        while let Some(pending) = self.state.nodes[id].orders.pending().cloned() {
            self.act(&Act::OrderStatus(index, true));
            if is_last(&pending.order.kind) {
                break;
            }
        }
    }

    /// Replays the encoded log from the start: every batch must lead to the same decisions, and the
    /// whole log to the same state.
    pub(crate) fn replay(&self) {
        let mut replay = Replay::default();
        for entry in &self.log {
            let bytes = entry.encode().unwrap();
            let read = Entry::decode(&bytes).unwrap();
            assert_eq!(read.encode().unwrap(), bytes);
            replay.apply(read).unwrap();
        }
        let bytes = |state: &FleetState| serde_json::to_vec(state).unwrap();
        assert_eq!(bytes(&replay.finish().unwrap()), bytes(&self.state));
    }
}
