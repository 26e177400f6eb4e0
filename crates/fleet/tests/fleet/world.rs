//! A server without a disk, and what may happen to its fleet. Every decision is held against the promises.

use std::collections::{BTreeMap, BTreeSet};

use farrier_fleet::fleet::event::{Cordon, NodeInventory, OperatorRequest, Record};
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::replay::Replay;
use farrier_fleet::fleet::{
    AccessChange, Decision, Domain, Entry, Event, FleetState, LOGIC_VERSION, Location, Node,
    NodeId, NodePhase, OrderKind, OrderStatus, Policy, VerificationLevel, decide,
};
use farrier_fleet::health::finding::{ActionBy, Cleared};
use farrier_fleet::health::{Action, Change, Finding, FindingKind, GpuUuid, Severity, Subject};
use jiff::{SignedDuration, Timestamp};

pub(crate) const NODES: usize = 12;

pub(crate) fn node(place: usize) -> NodeId {
    format!("n{place:02}").parse().unwrap()
}

pub(crate) fn place(index: usize) -> Location {
    let mut place =
        Location::in_pool(if index.is_multiple_of(2) { "train" } else { "serve" }.parse().unwrap());
    place.rack = Some(format!("r{}", index / 4).parse().unwrap());
    place.leaf = Some(format!("l{}", index / 6).parse().unwrap());
    place
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
        own_severity: None,
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
        clears: "it is mended".to_owned(),
        cleared: None,
    }
}

fn ann() -> Actor {
    Actor::User("ann".to_owned())
}

fn asked(what: OperatorRequest) -> Event {
    Event::OperatorRequested { request: what }
}

fn requested_order(index: usize, which: u8) -> Event {
    let what = match which {
        0 => OrderKind::Tune { profile: "training".to_owned() },
        1 => OrderKind::Diag { level: 2, minutes: 0 },
        _ => OrderKind::CollectLogs,
    };
    asked(OperatorRequest::RunOrder { node: node(index), order: what })
}

/// What the outside world may do.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    Boot(usize),
    Fault(usize, u64, Severity, Action, usize),
    Clear(usize, u64),
    Silent(usize),
    Heard(usize),
    Revoke(usize),
    Theirs(usize),
    TheirsGone(usize),
    OrderStatus(usize, bool),
    Hold(usize),
    Release(usize),
    Repaired(usize),
    Retire(usize),
    Enrol(usize),
    Freeze(u32),
    Approve(usize),
    RequestedOrder(usize, u8),
    Wait(u32),
    /// The server does not run for so long, while time goes on.
    Pause(u32),
    /// The wall clock is stepped.
    ClockStep(i32),
}

/// A server without a disk: it keeps the log in memory and checks every decision.
pub(crate) struct World {
    pub(crate) state: FleetState,
    pub(crate) log: Vec<Entry>,
    pub(crate) now: Timestamp,
    boots: BTreeMap<NodeId, u64>,
    generations: BTreeMap<NodeId, u64>,
}

impl World {
    pub(crate) fn new() -> Self {
        let mut world = Self {
            state: FleetState::default(),
            log: Vec::new(),
            now: start(),
            boots: BTreeMap::new(),
            generations: BTreeMap::new(),
        };
        world
            .batch(vec![(Actor::Server, Event::PolicySet { policy: Box::new(Policy::default()) })]);
        for index in 0..NODES {
            world.act(&Act::Enrol(index));
            world.act(&Act::Boot(index));
        }
        world
    }

    /// Takes inputs in, decides, checks, and takes the decisions in.
    pub(crate) fn batch(&mut self, inputs: Vec<(Actor, Event)>) {
        let batch = self.state.seq + 1;
        let mut dirty = BTreeSet::new();
        for (by, event) in inputs {
            dirty.extend(self.append(batch, by, event));
        }
        let Decision { events, .. } = decide(&self.state, &dirty, self.now);
        assert!(
            events.len() <= 16 * dirty.len().max(1),
            "a decision that does not end: {events:#?}"
        );
        for event in events {
            self.check(&event);
            self.append(batch, Actor::Server, event);
        }
        let again = decide(&self.state, &dirty, self.now);
        assert_eq!(again.events, [], "what was decided is decided again");
        let shut_out = |it: &Node| {
            it.liveness.certificate_revoked_at().is_some() && it.phase() != NodePhase::Held
        };
        let at_work = self.state.nodes.iter().find(|(_, it)| shut_out(it));
        assert!(at_work.is_none(), "it may not speak, and counts as more than held: {at_work:?}");
    }

    fn append(&mut self, batch: u64, by: Actor, event: Event) -> BTreeSet<NodeId> {
        let (seq, at, logic) = (self.state.seq + 1, self.now, LOGIC_VERSION);
        let entry = Entry { seq, batch, at, by, logic, event };
        let dirty = self.state.apply(&entry);
        self.log.push(entry);
        dirty
    }

    /// The promises, at the moment of a decision.
    fn check(&mut self, event: &Event) {
        match event {
            Event::PhaseChanged { node, to, .. } => {
                let before = &self.state.nodes[node];
                if *to == NodePhase::InService {
                    assert!(
                        before.reported_inventory().is_some(),
                        "{node} is in service, and nobody knows what it is"
                    );
                    assert!(
                        before.liveness.heartbeat_loss().is_none(),
                        "{node} is silent and in service"
                    );
                    let serious = |it: &Finding| it.severity >= Severity::Critical;
                    assert!(
                        !before.findings().values().any(serious),
                        "{node} is broken and in service"
                    );
                    let out = !before.phase().in_service();
                    let passed = |level| before.verification.has_passed(level);
                    let proven = passed(VerificationLevel::V0) && passed(VerificationLevel::V1);
                    assert!(!out || proven, "{node} comes back unproven");
                }
                let was_in = before.phase().in_service() || before.phase() == NodePhase::Joining;
                if was_in && *to == NodePhase::Quarantined {
                    for domain in before.location.domains() {
                        self.check_breaker(&domain);
                    }
                }
            }
            Event::OrderIssued { order } => {
                let node = &self.state.nodes[&order.node];
                assert!(node.orders.pending().is_none(), "two orders at once on {}", order.node);
                let last = self.generations.insert(order.node.clone(), order.generation);
                assert!(last.is_none_or(|last| last < order.generation), "a generation went back");
                let theirs = node.scheduling.external_cordon().is_some();
                assert!(
                    !(theirs && order.kind == OrderKind::Uncordon),
                    "another's cordon is removed"
                );
                let fit = matches!(node.phase(), NodePhase::InService | NodePhase::Suspect);
                let proof = matches!(order.kind, OrderKind::Verify { .. });
                let reads = proof || order.kind == OrderKind::CollectLogs;
                assert!(!fit || reads, "{:?} ordered on a node that works", order.kind);
                assert!(
                    !order.kind.is_repair() || node.scheduling.is_drained(),
                    "{:?} where work may run",
                    order.kind
                );
                let verifying = node.phase() == NodePhase::Verifying && proof;
                let cordoned = node.scheduling.is_cordoned();
                assert!(!verifying || cordoned, "{} is verified while it takes work", order.node);
                let frozen = self.state.freezes.values().any(|it| it.until > self.now);
                assert!(!(order.kind.changes() && frozen), "a change in a freeze");
            }
            _ => {}
        }
    }

    fn check_breaker(&self, domain: &Domain) {
        let Some(breaker) = self.state.policy.disruption_budgets.get(&domain.kind()) else {
            return;
        };
        let tally = self.state.domain_counts[domain];
        assert!(tally.out < breaker.limit(tally.members), "{domain}: {tally:?}");
    }

    /// Moves the clock. Gives what it showed before.
    fn advance(&mut self, seconds: i64) -> Timestamp {
        let before = self.now;
        self.now += SignedDuration::from_secs(seconds);
        before
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each thing that may happen")]
    pub(crate) fn act(&mut self, act: &Act) {
        let mut inputs = Vec::new();
        let mut push = |by, event| inputs.push((by, event));
        match *act {
            Act::Boot(index) => {
                let id = node(index);
                let boot = self.boots.entry(id.clone()).and_modify(|it| *it += 1).or_default();
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
                push(Actor::Node(id.clone()), self.found(&id, Change::Opened(finding)));
            }
            Act::Clear(index, number) => {
                let id = node(index);
                let Some(mut found) =
                    self.state.nodes.get(&id).and_then(|it| it.findings().get(&number)).cloned()
                else {
                    return;
                };
                found.cleared = Some(Cleared { at: self.now, why: "mended".to_owned() });
                push(Actor::Node(id.clone()), self.found(&id, Change::Cleared(found)));
            }
            Act::Silent(index) => {
                push(Actor::Server, Event::HeartbeatLost { node: node(index), since: self.now });
            }
            Act::Heard(index) => {
                push(Actor::Server, Event::HeartbeatRestored { node: node(index) })
            }
            Act::Revoke(index) => {
                let number = self.state.access + 1;
                let what = AccessChange::CertificateRevoked { node: node(index) };
                push(ann(), Event::AccessChanged { number, at: self.now, change: what });
            }
            Act::Theirs(index) => {
                let cordon = Cordon::External {
                    owner: "slurm admin".to_owned(),
                    reason: "cable".to_owned(),
                };
                push(Actor::Server, Event::CordonObserved { node: node(index), cordon });
            }
            Act::TheirsGone(index) => {
                let known = self.state.nodes.get(&node(index));
                let theirs = known.is_some_and(|it| it.scheduling.external_cordon().is_some());
                if theirs {
                    push(
                        Actor::Server,
                        Event::CordonObserved { node: node(index), cordon: Cordon::None },
                    );
                }
            }
            Act::OrderStatus(index, well) => {
                let id = node(index);
                let Some(pending) =
                    self.state.nodes.get(&id).and_then(|it| it.orders.pending().cloned())
                else {
                    return;
                };
                let answer = if well {
                    OrderStatus::Done { evidence: "seen".to_owned() }
                } else {
                    OrderStatus::Failed { reason: "no".to_owned() }
                };
                let generation = pending.order.generation;
                push(
                    Actor::Node(id.clone()),
                    Event::OrderStatusReported { node: id, generation, status: answer },
                );
            }
            Act::Hold(index) => {
                push(
                    ann(),
                    asked(OperatorRequest::Hold { node: node(index), reason: "look".to_owned() }),
                );
            }
            Act::Release(index) => {
                push(ann(), asked(OperatorRequest::Release { node: node(index) }))
            }
            Act::Repaired(index) => {
                push(
                    ann(),
                    asked(OperatorRequest::Repaired {
                        node: node(index),
                        repair: "board".to_owned(),
                    }),
                );
            }
            Act::Approve(index) => {
                push(ann(), asked(OperatorRequest::Approve { node: node(index) }))
            }
            Act::RequestedOrder(index, which) => push(ann(), requested_order(index, which)),
            Act::Freeze(seconds) => {
                let until = self.now + SignedDuration::from_secs(i64::from(seconds));
                let reason = "launch".to_owned();
                push(
                    ann(),
                    asked(OperatorRequest::Freeze { domain: Domain::Fleet, until, reason }),
                );
            }
            Act::Retire(index) => {
                push(ann(), Event::Retired { node: node(index), reason: "old".to_owned() });
            }
            Act::Enrol(index) => {
                push(Actor::Server, Event::Enrolled { node: node(index), location: place(index) });
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

    /// A change of a finding, as the next record of the node's journal.
    fn found(&self, id: &NodeId, change: Change) -> Event {
        let last =
            self.state.nodes.get(id).and_then(|it| it.reports.record()).map_or(0, |it| it.number);
        let record = Record { journal: "first".to_owned(), number: last + 1 };
        Event::FindingsReported { node: id.clone(), record, changes: vec![change] }
    }

    pub(crate) fn found_on(&mut self, index: usize, finding: Finding) {
        let id = node(index);
        let found = self.found(&id, Change::Opened(finding));
        self.batch(vec![(Actor::Node(id), found)]);
    }

    /// Ports of several nodes go down at once.
    pub(crate) fn ports_down(&mut self, nodes: impl Iterator<Item = usize>) {
        let down = finding(1, Severity::Critical, Action::Investigate, "nic.down", self.now);
        let each = nodes
            .map(node)
            .map(|id| (Actor::Node(id.clone()), self.found(&id, Change::Opened(down.clone()))));
        let inputs = each.collect();
        self.batch(inputs);
    }

    pub(crate) fn set_policy(&mut self, policy: Policy) {
        self.batch(vec![(Actor::Server, Event::PolicySet { policy: Box::new(policy) })]);
    }

    pub(crate) fn ask(&mut self, what: OperatorRequest) {
        self.batch(vec![(ann(), asked(what))]);
    }

    /// Every order is done at once, until there is none.
    pub(crate) fn everybody_answers(&mut self) {
        for _ in 0..20 {
            for index in 0..NODES {
                self.act(&Act::OrderStatus(index, true));
            }
        }
    }

    /// Orders of a node are done until one is of the kind; that one is done too.
    pub(crate) fn answer_until(&mut self, id: &NodeId, last: impl Fn(&OrderKind) -> bool) {
        let index = (0..NODES).find(|index| node(*index) == *id).unwrap();
        while let Some(pending) = self.state.nodes[id].orders.pending().cloned() {
            self.act(&Act::OrderStatus(index, true));
            if last(&pending.order.kind) {
                break;
            }
        }
    }

    /// The log again, from the start and through its bytes: the same state, and at each batch the same decisions.
    pub(crate) fn replay(&self) {
        let mut replay = Replay::default();
        for entry in &self.log {
            let bytes = entry.encode().unwrap();
            let read = Entry::decode(&bytes).unwrap();
            assert_eq!(read.encode().unwrap(), bytes);
            replay.take(read).unwrap();
        }
        let bytes = |state: &FleetState| serde_json::to_vec(state).unwrap();
        assert_eq!(bytes(&replay.finish().unwrap()), bytes(&self.state));
    }
}
