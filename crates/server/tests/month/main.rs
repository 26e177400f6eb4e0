//! Simulates a month of a fleet within seconds. A seed determines the faults, the nodes execute
//! orders, and a technician repairs what no order can repair.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};

use farrier_fleet::fleet::event::OperatorRequest;
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::replay::Replay;
use farrier_fleet::fleet::{Event, NodeId, NodePhase, Order, Reason};
use farrier_server::log::sqlite::SqliteLog;
use farrier_server::log::{Log, verify};
use farrier_server::state_machine::StateMachine;
use farrier_sim::fleet::{FleetSpec, SimFleet};
use jiff::{SignedDuration, Timestamp};

/// Time until a technician arrives with a replacement.
const TECHNICIAN_DELAY: SignedDuration = SignedDuration::from_hours(4);

/// Time after which the server logs that a disconnected node has lost its heartbeat.
const HEARTBEAT_TIMEOUT: SignedDuration = SignedDuration::from_secs(30);

struct SimulatedFleet {
    state_machine: StateMachine,
    fleet: SimFleet,
    now: Timestamp,
    /// Node and generation of every issued order, to detect an order that is issued twice.
    ordered: BTreeSet<(NodeId, u64)>,
    /// When each node was disconnected, and whether the loss of its heartbeat is logged.
    disconnected: BTreeMap<NodeId, (Timestamp, bool)>,
    /// When a technician arrives at each node that waits for one.
    technician_due: BTreeMap<NodeId, Timestamp>,
    /// Since when each faulty node has been in service without a heartbeat loss.
    faulty_since: BTreeMap<NodeId, Timestamp>,
    /// The longest time that a faulty node stayed in service.
    longest_in_service: Option<(SignedDuration, NodeId)>,
    /// Node-seconds in service, and in total.
    served_s: (i64, i64),
}

impl SimulatedFleet {
    fn new(spec: FleetSpec, log: Box<dyn Log + Send>) -> Self {
        let now: Timestamp = "2026-11-01T00:00:00Z".parse().unwrap();
        let fleet = SimFleet::new(spec, now);
        let mut simulated = Self {
            state_machine: StateMachine::open(log).unwrap(),
            fleet,
            now,
            ordered: BTreeSet::new(),
            disconnected: BTreeMap::new(),
            technician_due: BTreeMap::new(),
            faulty_since: BTreeMap::new(),
            longest_in_service: None,
            served_s: (0, 0),
        };
        let join = |(node, location): (&NodeId, &_)| {
            (
                Actor::Server,
                Event::Enrolled { node: node.clone(), location: Clone::clone(location) },
            )
        };
        let joined = simulated.fleet.locations().map(join).collect();
        simulated.commit(joined);
        simulated
    }

    fn commit(&mut self, inputs: Vec<(Actor, Event)>) {
        let committed = self.state_machine.commit(inputs, self.now).unwrap();
        let orders: Vec<Order> = committed
            .entries
            .into_iter()
            .filter_map(|entry| match entry.event {
                Event::OrderIssued { order } => Some(order),
                _ => None,
            })
            .collect();
        for order in orders {
            let order_id = (order.node.clone(), order.generation);
            assert!(self.ordered.insert(order_id), "an order is issued twice: {order:?}");
            self.fleet.deliver_order(&order, self.now);
        }
    }

    /// Advances to the next event.
    fn step(&mut self, end: Timestamp) {
        let deadline = self.state_machine.state().deadlines.first().map(|(at, _)| *at);
        let heartbeat_lost = self
            .disconnected
            .values()
            .filter(|(_, is_logged)| !is_logged)
            .map(|(at, _)| *at + HEARTBEAT_TIMEOUT)
            .min();
        let technician = self.technician_due.values().min().copied();
        let next = [self.fleet.next_at(), deadline, heartbeat_lost, technician]
            .into_iter()
            .flatten()
            .min();
        let next = next.unwrap_or(end).clamp(self.now + SignedDuration::from_secs(1), end);
        self.count_served_time(next);
        self.now = next;
        let mut inputs: Vec<(Actor, Event)> = self
            .fleet
            .advance(next)
            .into_iter()
            .map(|event| (Actor::Node(event.node().unwrap().clone()), event))
            .collect();
        inputs.extend(self.heartbeat_events());
        inputs.extend(self.technician_events());
        inputs.push((Actor::Server, Event::Tick));
        self.commit(inputs);
        self.check_invariants();
    }

    /// Events that the server detects itself: lost and restored heartbeats.
    fn heartbeat_events(&mut self) -> Vec<(Actor, Event)> {
        let mut events = Vec::new();
        for (id, _) in self.fleet.locations() {
            let up = self.fleet.node(id).unwrap().is_up();
            match self.disconnected.get_mut(id) {
                None if !up => {
                    self.disconnected.insert(id.clone(), (self.now, false));
                }
                Some((since, is_logged))
                    if !up && !*is_logged && *since + HEARTBEAT_TIMEOUT <= self.now =>
                {
                    *is_logged = true;
                    events.push((
                        Actor::Server,
                        Event::HeartbeatLost { node: id.clone(), since: *since },
                    ));
                }
                Some((_, is_logged)) if up => {
                    if *is_logged {
                        events.push((Actor::Server, Event::HeartbeatRestored { node: id.clone() }));
                    }
                    self.disconnected.remove(id);
                }
                _ => {}
            }
        }
        events
    }

    /// Calls a technician for each node that waits for an operator. The technician arrives
    /// [`TECHNICIAN_DELAY`] later, repairs the node and reports the repair.
    fn technician_events(&mut self) -> Vec<(Actor, Event)> {
        for (id, node) in &self.state_machine.state().nodes {
            let waits = node
                .phase
                .deferred()
                .is_some_and(|rationale| rationale.unblocked_by.needs_operator());
            if node.phase() == NodePhase::Repairing
                && waits
                && !self.technician_due.contains_key(id)
            {
                self.technician_due.insert(id.clone(), self.now + TECHNICIAN_DELAY);
            }
        }
        let arrived: Vec<NodeId> = self
            .technician_due
            .iter()
            .filter(|(_, at)| **at <= self.now)
            .map(|(id, _)| id.clone())
            .collect();
        let mut events = Vec::new();
        for id in arrived {
            self.technician_due.remove(&id);
            let now = self.now;
            self.fleet.update_node(&id, |node| node.repair(now));
            let request = OperatorRequest::Repaired { node: id, repair: "a new board".to_owned() };
            events.push((Actor::User("tech".to_owned()), Event::OperatorRequested { request }));
        }
        events
    }

    fn count_served_time(&mut self, next: Timestamp) {
        let seconds = next.duration_since(self.now).as_secs();
        let nodes = self.state_machine.state().nodes.values();
        let (mut served, mut total) = (0, 0);
        for node in nodes {
            total += 1;
            served += i64::from(node.phase().in_service());
        }
        self.served_s.0 += served * seconds;
        self.served_s.1 += total * seconds;
    }

    fn check_invariants(&mut self) {
        let state = self.state_machine.state();
        for (domain, counts) in &state.domain_counts {
            if let Some(limit) = state.policy.disruption_limit(domain.kind(), counts.members) {
                assert!(counts.out <= limit, "{domain}: {counts:?}, limit {limit}");
            }
        }
        for (id, node) in &state.nodes {
            let is_faulty = self.fleet.node(id).unwrap().is_faulty();
            if is_faulty
                && node.phase() == NodePhase::InService
                && node.liveness.heartbeat_loss().is_none()
            {
                let since = *self.faulty_since.entry(id.clone()).or_insert(self.now);
                let lasted = self.now.duration_since(since);
                if self.longest_in_service.as_ref().is_none_or(|(longest, _)| lasted > *longest) {
                    self.longest_in_service = Some((lasted, id.clone()));
                }
            } else {
                self.faulty_since.remove(id);
            }
        }
    }
}

fn run(spec: &FleetSpec, days: i64, folder: &std::path::Path) -> SimulatedFleet {
    let log = SqliteLog::open(&folder.join("log")).unwrap();
    let mut fleet = SimulatedFleet::new(spec.clone(), Box::new(log));
    let end = fleet.now + SignedDuration::from_hours(24 * days);
    while fleet.now < end {
        fleet.step(end);
    }
    fleet
}

#[test]
fn a_month_of_faults_is_detected_repaired_and_verified() {
    let folder = tempfile::tempdir().unwrap();
    let spec = FleetSpec {
        seed: 7,
        nodes: 48,
        mean_fault_interval_s: 14 * 86_400,
        mean_switch_failure_interval_s: 10 * 86_400,
        ..FleetSpec::default()
    };
    let fleet = run(&spec, 30, folder.path());
    let state = fleet.state_machine.state();
    let out: Vec<_> = state
        .nodes
        .iter()
        .filter(|(_, node)| !node.phase().in_service())
        .map(|(id, node)| {
            format!("{id}: {} because {}", node.phase(), node.phase.rationale().reason)
        })
        .collect();
    assert!(out.len() <= 3, "at the end of the month: {out:#?}");
    assert!(
        fleet.longest_in_service.is_none(),
        "a faulty node stayed in service for {:?}",
        fleet.longest_in_service
    );
    let (served, total) = fleet.served_s;
    assert!(1000 * served > 970 * total, "nodes were in service {served} s of {total} s");
    let log = SqliteLog::open_to_read(&folder.path().join("log")).unwrap();
    let returned = check_replay(&log, &fleet);
    assert!(returned > 50, "nodes returned to service only {returned} times");
}

/// Checks that the log on disk is intact, and that its replay leads to the same decisions and
/// state. Returns how often a node returned to service after verification.
fn check_replay(log: &SqliteLog, fleet: &SimulatedFleet) -> usize {
    verify(log).unwrap().unwrap();
    let mut replay = Replay::default();
    let (mut seq, mut returned) = (0, 0);
    loop {
        let page = log.read(seq, 4096).unwrap();
        let Some(last) = page.last() else { break };
        seq = last.seq;
        for stored in page {
            let entry = stored.entry().unwrap();
            if let Event::PhaseChanged { to: NodePhase::InService, rationale, .. } = &entry.event {
                returned += usize::from(matches!(rationale.reason, Reason::Verified { .. }));
            }
            replay.apply(entry).unwrap();
        }
    }
    let state = replay.finish().unwrap();
    let bytes = |state| serde_json::to_vec(state).unwrap();
    assert_eq!(bytes(&state), bytes(fleet.state_machine.state()));
    returned
}

#[test]
fn a_run_is_deterministic_by_seed() {
    let spec =
        FleetSpec { seed: 3, nodes: 24, mean_fault_interval_s: 5 * 86_400, ..FleetSpec::default() };
    let head = |_: u32| {
        let folder = tempfile::tempdir().unwrap();
        run(&spec, 5, folder.path()).state_machine.head()
    };
    assert_eq!(head(1).hash, head(2).hash);
}
