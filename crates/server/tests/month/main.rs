//! A month of a simulated fleet, in seconds: faults arrive by a seed, nodes carry orders out, a person mends what no order can.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};

use farrier_fleet::fleet::event::Ask;
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::replay::Replay;
use farrier_fleet::fleet::{Event, NodeId, Order, Reason, Standing};
use farrier_server::core::Core;
use farrier_server::log::sqlite::SqliteLog;
use farrier_server::log::{Log, verify};
use farrier_sim::fleet::{FleetSpec, SimFleet};
use jiff::{SignedDuration, Timestamp};

/// How long a person takes to come with a spare part.
const PERSON: SignedDuration = SignedDuration::from_hours(4);

/// How soon a node that is gone is missed.
const MISSED: SignedDuration = SignedDuration::from_secs(30);

struct World {
    core: Core,
    fleet: SimFleet,
    now: Timestamp,
    /// Orders that were given; each once.
    ordered: BTreeSet<(NodeId, u64)>,
    /// Nodes that are gone, since when, and whether the server knows.
    gone: BTreeMap<NodeId, (Timestamp, bool)>,
    /// When a person comes to a node.
    called: BTreeMap<NodeId, Timestamp>,
    /// Ill nodes, since when.
    ill: BTreeMap<NodeId, Timestamp>,
    /// The longest that an ill node stayed in service, and where.
    longest: Option<(SignedDuration, NodeId)>,
    /// Seconds of all nodes in service, and of all.
    served_s: (i64, i64),
}

impl World {
    fn new(plan: FleetSpec, log: Box<dyn Log + Send>) -> Self {
        let now: Timestamp = "2026-11-01T00:00:00Z".parse().unwrap();
        let fleet = SimFleet::new(plan, now);
        let mut world = Self {
            core: Core::open(log).unwrap(),
            fleet,
            now,
            ordered: BTreeSet::new(),
            gone: BTreeMap::new(),
            called: BTreeMap::new(),
            ill: BTreeMap::new(),
            longest: None,
            served_s: (0, 0),
        };
        let join = |(node, place): (&NodeId, &_)| {
            (Actor::Server, Event::Enrolled { node: node.clone(), place: Clone::clone(place) })
        };
        let joined = world.fleet.locations().map(join).collect();
        world.commit(joined);
        world
    }

    fn commit(&mut self, inputs: Vec<(Actor, Event)>) {
        let committed = self.core.commit(inputs, self.now).unwrap();
        let orders: Vec<Order> = committed
            .entries
            .into_iter()
            .filter_map(|entry| match entry.event {
                Event::Ordered { order } => Some(order),
                _ => None,
            })
            .collect();
        for order in orders {
            let name = (order.node.clone(), order.generation);
            assert!(self.ordered.insert(name), "an order is given twice: {order:?}");
            self.fleet.deliver_order(&order, self.now);
        }
    }

    /// One step: to the next moment at which anything happens.
    fn step(&mut self, end: Timestamp) {
        let wake = self.core.state().wakes.first().map(|(at, _)| *at);
        let missed =
            self.gone.values().filter(|(_, known)| !known).map(|(at, _)| *at + MISSED).min();
        let person = self.called.values().min().copied();
        let next = [self.fleet.next_at(), wake, missed, person].into_iter().flatten().min();
        let next = next.unwrap_or(end).clamp(self.now + SignedDuration::from_secs(1), end);
        self.account(next);
        self.now = next;
        let mut inputs: Vec<(Actor, Event)> = self
            .fleet
            .advance(next)
            .into_iter()
            .map(|event| (Actor::Node(event.node().unwrap().clone()), event))
            .collect();
        inputs.extend(self.silence());
        inputs.extend(self.people());
        inputs.push((Actor::Server, Event::TimePassed));
        self.commit(inputs);
        self.hold_to_promises();
    }

    /// What the server notices by itself: who is not heard, and who is again.
    fn silence(&mut self) -> Vec<(Actor, Event)> {
        let mut events = Vec::new();
        for (id, _) in self.fleet.locations() {
            let up = self.fleet.node(id).unwrap().is_up();
            match self.gone.get_mut(id) {
                None if !up => {
                    self.gone.insert(id.clone(), (self.now, false));
                }
                Some((since, known)) if !up && !*known && *since + MISSED <= self.now => {
                    *known = true;
                    events.push((Actor::Server, Event::Silent { node: id.clone(), since: *since }));
                }
                Some((_, known)) if up => {
                    if *known {
                        events.push((Actor::Server, Event::Heard { node: id.clone() }));
                    }
                    self.gone.remove(id);
                }
                _ => {}
            }
        }
        events
    }

    /// A person is called to what no order mends, comes after a while, and says so.
    fn people(&mut self) -> Vec<(Actor, Event)> {
        for (id, node) in &self.core.state().nodes {
            let waits = node.phase.deferred().is_some_and(|why| why.unblocked_by.needs_operator());
            if node.standing() == Standing::InRepair && waits && !self.called.contains_key(id) {
                self.called.insert(id.clone(), self.now + PERSON);
            }
        }
        let here: Vec<NodeId> = self
            .called
            .iter()
            .filter(|(_, at)| **at <= self.now)
            .map(|(id, _)| id.clone())
            .collect();
        let mut events = Vec::new();
        for id in here {
            self.called.remove(&id);
            let now = self.now;
            self.fleet.update_node(&id, |node| node.repair(now));
            let what = Ask::Repaired { node: id, what: "a new board".to_owned() };
            events.push((Actor::Person("tech".to_owned()), Event::Asked { what }));
        }
        events
    }

    fn account(&mut self, next: Timestamp) {
        let seconds = next.duration_since(self.now).as_secs();
        let nodes = self.core.state().nodes.values();
        let (mut served, mut all) = (0, 0);
        for node in nodes {
            all += 1;
            served += i64::from(node.standing().in_service());
        }
        self.served_s.0 += served * seconds;
        self.served_s.1 += all * seconds;
    }

    fn hold_to_promises(&mut self) {
        let state = self.core.state();
        for (domain, tally) in &state.tallies {
            if let Some(breaker) = state.policy.breakers.get(&domain.kind()) {
                let limit = breaker.limit(tally.members);
                assert!(tally.out <= limit, "{domain}: {tally:?}, at most {limit}");
            }
        }
        for (id, node) in &state.nodes {
            let ill = self.fleet.node(id).unwrap().is_faulty();
            if ill
                && node.standing() == Standing::InService
                && node.liveness.heartbeat_loss().is_none()
            {
                let since = *self.ill.entry(id.clone()).or_insert(self.now);
                let lasted = self.now.duration_since(since);
                if self.longest.as_ref().is_none_or(|(longest, _)| lasted > *longest) {
                    self.longest = Some((lasted, id.clone()));
                }
            } else {
                self.ill.remove(id);
            }
        }
    }
}

fn run(plan: &FleetSpec, days: i64, folder: &std::path::Path) -> World {
    let log = SqliteLog::open(&folder.join("log")).unwrap();
    let mut world = World::new(plan.clone(), Box::new(log));
    let end = world.now + SignedDuration::from_hours(24 * days);
    while world.now < end {
        world.step(end);
    }
    world
}

#[test]
fn a_month_of_faults_is_found_mended_and_proven() {
    let folder = tempfile::tempdir().unwrap();
    let plan = FleetSpec {
        seed: 7,
        nodes: 48,
        mean_fault_interval_s: 14 * 86_400,
        mean_switch_failure_interval_s: 10 * 86_400,
        ..FleetSpec::default()
    };
    let world = run(&plan, 30, folder.path());
    let state = world.core.state();
    let out: Vec<_> = state
        .nodes
        .iter()
        .filter(|(_, it)| !it.standing().in_service())
        .map(|(id, it)| {
            format!("{id}: {} because {}", it.standing().words(), it.phase.why().reason)
        })
        .collect();
    assert!(out.len() <= 3, "at the end of the month: {out:#?}");
    assert!(world.longest.is_none(), "an ill node stayed in service for {:?}", world.longest);
    let (served, all) = world.served_s;
    assert!(1000 * served > 970 * all, "nodes were in service {served} s of {all} s");
    let log = SqliteLog::open_to_read(&folder.path().join("log")).unwrap();
    let repaired = replayed(&log, &world);
    assert!(repaired > 50, "only {repaired} nodes came back from repair");
}

/// The log on disk is whole, and leads to the same decisions and the same state. How often a node came back from repair.
fn replayed(log: &SqliteLog, world: &World) -> usize {
    verify(log).unwrap().unwrap();
    let mut replay = Replay::default();
    let (mut seq, mut returned) = (0, 0);
    loop {
        let page = log.read(seq, 4096).unwrap();
        let Some(last) = page.last() else { break };
        seq = last.seq;
        for stored in page {
            let entry = stored.entry().unwrap();
            if let Event::Moved { to: Standing::InService, why, .. } = &entry.event {
                returned += usize::from(matches!(why.reason, Reason::Verified { .. }));
            }
            replay.take(entry).unwrap();
        }
    }
    let state = replay.finish().unwrap();
    let bytes = |state| serde_json::to_vec(state).unwrap();
    assert_eq!(bytes(&state), bytes(world.core.state()));
    returned
}

#[test]
fn a_seed_decides_everything() {
    let plan =
        FleetSpec { seed: 3, nodes: 24, mean_fault_interval_s: 5 * 86_400, ..FleetSpec::default() };
    let head = |_: u32| {
        let folder = tempfile::tempdir().unwrap();
        run(&plan, 5, folder.path()).core.head()
    };
    assert_eq!(head(1).hash, head(2).hash);
}
