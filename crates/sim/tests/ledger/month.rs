//! A controller in memory, a simulated fleet, and people: a technician, operators who hold nodes,
//! and a scheduler whose administrators cordon nodes. Networks fail, and the server restarts.

use std::collections::{BTreeMap, BTreeSet};

use farrier_fleet::fleet::event::{Cordon, OperatorRequest};
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::policy::{Autonomy, PoolPolicy};
use farrier_fleet::fleet::{
    Decision, Entry, Event, FleetState, LOGIC_VERSION, Location, NodeId, NodePhase, Policy, decide,
};
use farrier_sim::fleet::{FleetSpec, SimFleet};
use jiff::{SignedDuration, Timestamp};

const TECHNICIAN_H: i64 = 4;
/// How long an operator takes to notice a fault in a pool that only observes.
const OPERATOR_H: i64 = 6;

pub(crate) struct Month {
    pub(crate) start: Timestamp,
    pub(crate) end: Timestamp,
    pub(crate) log: Vec<Entry>,
    state: FleetState,
    fleet: SimFleet,
    now: Timestamp,
    nodes: Vec<NodeId>,
    random: u64,
    /// What people, networks and the server do, by time.
    plan: BTreeMap<(Timestamp, u64), Planned>,
    planned: u64,
    /// Nodes for which a person is on the way.
    awaited: BTreeSet<NodeId>,
    silent: BTreeSet<NodeId>,
}

enum Planned {
    Hold(NodeId),
    Release(NodeId),
    Cordon(NodeId),
    Uncordon(NodeId),
    Silence(NodeId),
    Heard(NodeId),
    Repair(NodeId),
    Restart,
}

impl Month {
    pub(crate) fn simulate(nodes: u32, days: i64, seed: u64) -> Self {
        let start: Timestamp = "2026-11-01T00:00:00Z".parse().unwrap();
        let spec = FleetSpec {
            seed,
            nodes,
            mean_fault_interval_s: 40 * 86_400,
            mean_switch_failure_interval_s: 12 * 86_400,
            ..FleetSpec::default()
        };
        let fleet = SimFleet::new(spec, start);
        let mut month = Self {
            start,
            end: start + SignedDuration::from_hours(24 * days),
            log: Vec::new(),
            state: FleetState::default(),
            nodes: fleet.locations().map(|(id, _)| id.clone()).collect(),
            fleet,
            now: start,
            random: seed,
            plan: BTreeMap::new(),
            planned: 0,
            awaited: BTreeSet::new(),
            silent: BTreeSet::new(),
        };
        month.enrol();
        month.make_plan(days);
        while month.now < month.end {
            month.step();
        }
        month
    }

    /// The first fifth of the fleet only observes.
    fn enrol(&mut self) {
        let observing = PoolPolicy { autonomy: Autonomy::Observe, ..PoolPolicy::default() };
        let pools = BTreeMap::from([("observe".parse().unwrap(), observing)]);
        let policy = Box::new(Policy { pools, ..Policy::default() });
        let mut inputs = vec![(Actor::Server, Event::PolicySet { policy })];
        for (index, (id, location)) in self.fleet.locations().enumerate() {
            let pool = ["observe", "train", "train", "train", "serve"][index % 5];
            let location = Location { pool: pool.parse().unwrap(), ..location.clone() };
            inputs.push((Actor::Server, Event::Enrolled { node: id.clone(), location }));
        }
        self.commit(inputs);
        let reports = self.reports();
        self.commit(reports);
    }

    fn below(&mut self, bound: u64) -> u64 {
        // SplitMix64.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn any_node(&mut self) -> NodeId {
        let index = self.below(self.nodes.len() as u64);
        self.nodes[usize::try_from(index).unwrap()].clone()
    }

    fn schedule(&mut self, at: Timestamp, planned: Planned) {
        self.planned += 1;
        self.plan.insert((at, self.planned), planned);
    }

    /// Holds, maintenance, networks and restarts, a few each day.
    fn make_plan(&mut self, days: i64) {
        for _ in 0..days * 6 {
            let seconds = i64::try_from(self.below(u64::try_from(days).unwrap() * 86_400)).unwrap();
            let at = self.start + SignedDuration::from_secs(seconds);
            let length = i64::try_from(600 + self.below(12 * 3600)).unwrap();
            let until = at + SignedDuration::from_secs(length);
            let node = self.any_node();
            let (begin, end) = match self.below(8) {
                0 | 1 => (Planned::Hold(node.clone()), Some(Planned::Release(node))),
                2..=4 => (Planned::Cordon(node.clone()), Some(Planned::Uncordon(node))),
                5 | 6 => (Planned::Silence(node.clone()), Some(Planned::Heard(node))),
                _ => (Planned::Restart, None),
            };
            self.schedule(at, begin);
            if let Some(end) = end {
                self.schedule(until, end);
            }
        }
    }

    fn commit(&mut self, inputs: Vec<(Actor, Event)>) {
        let batch = self.state.seq + 1;
        let mut dirty = BTreeSet::new();
        for (by, event) in inputs {
            dirty.extend(self.append(batch, by, event));
        }
        let Decision { events, .. } = decide(&self.state, &dirty, self.now);
        for event in events {
            if let Event::OrderIssued { order } = &event {
                self.fleet.deliver_order(order, self.now);
            }
            self.append(batch, Actor::Server, event);
        }
    }

    fn append(&mut self, batch: u64, by: Actor, event: Event) -> BTreeSet<NodeId> {
        let (seq, at, logic) = (self.state.seq + 1, self.now, LOGIC_VERSION);
        let entry = Entry { seq, batch, at, by, logic, event };
        let dirty = self.state.apply(&entry);
        self.log.push(entry);
        dirty
    }

    fn reports(&mut self) -> Vec<(Actor, Event)> {
        let events = self.fleet.advance(self.now).into_iter();
        events.map(|event| (Actor::Node(event.node().unwrap().clone()), event)).collect()
    }

    fn step(&mut self) {
        // A quarantine that the policy defers is due at every tick.
        let tick = self.now + SignedDuration::from_mins(10);
        let deadline = self.state.deadlines.first().map(|(at, _)| *at);
        let deadline = deadline.map(|at| if at > self.now { at } else { tick });
        let planned = self.plan.keys().next().map(|(at, _)| *at);
        let next = [self.fleet.next_at(), deadline, planned].into_iter().flatten().min();
        let soonest = self.now + SignedDuration::from_secs(1);
        self.now = next.unwrap_or(self.end).max(soonest).min(self.end);
        let mut inputs = self.reports();
        while let Some(entry) = self.plan.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let planned = entry.remove();
            inputs.extend(self.act(planned));
        }
        inputs.push((Actor::Server, Event::Tick));
        let first = self.log.len();
        self.commit(inputs);
        self.call_people(first);
    }

    /// What a planned action puts into the log.
    fn act(&mut self, planned: Planned) -> Vec<(Actor, Event)> {
        let ann =
            |request| vec![(Actor::User("ann".to_owned()), Event::OperatorRequested { request })];
        match planned {
            Planned::Hold(node) => {
                ann(OperatorRequest::Hold { node, reason: "firmware <update>".to_owned() })
            }
            Planned::Release(node) => ann(OperatorRequest::Release { node }),
            Planned::Cordon(node) => {
                let (owner, reason) = ("slurm".to_owned(), "cabling".to_owned());
                self.set_cordon(&node, Cordon::External { owner, reason })
            }
            Planned::Uncordon(node) => self.set_cordon(&node, Cordon::None),
            Planned::Silence(node) => {
                if !self.silent.insert(node.clone()) {
                    return Vec::new();
                }
                let since = self.now - SignedDuration::from_secs(95);
                vec![(Actor::Server, Event::HeartbeatLost { node, since })]
            }
            Planned::Heard(node) => {
                let was_silent = self.silent.remove(&node);
                let restored = (Actor::Server, Event::HeartbeatRestored { node });
                if was_silent { vec![restored] } else { Vec::new() }
            }
            Planned::Repair(node) => {
                self.awaited.remove(&node);
                let now = self.now;
                self.fleet.update_node(&node, |sim| sim.repair(now));
                ann(OperatorRequest::Repaired { node, repair: "a new board".to_owned() })
            }
            Planned::Restart => {
                let last_ran = self.now;
                self.now += SignedDuration::from_secs(240);
                vec![(Actor::Server, Event::ControllerResumed { last_ran })]
            }
        }
    }

    fn set_cordon(&mut self, node: &NodeId, cordon: Cordon) -> Vec<(Actor, Event)> {
        let cordoned = |cordon: &Cordon| matches!(cordon, Cordon::External { .. });
        let before = self.fleet.node(node).map(|sim| sim.cordon().clone());
        // Administrators leave Farrier's cordon alone.
        if before.is_none_or(|before| {
            cordoned(&before) == cordoned(&cordon) || before == Cordon::ByFarrier
        }) {
            return Vec::new();
        }
        self.fleet.update_node(node, |sim| sim.set_cordon(cordon));
        Vec::new()
    }

    /// A technician repairs what no order can repair. In the pool that only observes, an operator
    /// notices most faults after a while.
    fn call_people(&mut self, first: usize) {
        let mut called = Vec::new();
        for entry in &self.log[first..] {
            let Event::Deferred { node, rationale } = &entry.event else { continue };
            let phase = self.state.nodes.get(node).map(|node| node.phase());
            let delay_h = match phase {
                Some(NodePhase::Repairing) if rationale.unblocked_by.needs_operator() => {
                    TECHNICIAN_H
                }
                Some(NodePhase::Suspect | NodePhase::Joining) => OPERATOR_H,
                _ => continue,
            };
            called.push((node.clone(), delay_h));
        }
        for (node, delay_h) in called {
            if self.below(4) == 0 || !self.awaited.insert(node.clone()) {
                continue;
            }
            let at = self.now + SignedDuration::from_hours(delay_h);
            let is_observed = self.state.nodes[&node].location.pool.as_str() == "observe";
            if is_observed {
                self.schedule(at - SignedDuration::from_hours(1), Planned::Cordon(node.clone()));
                self.schedule(at + SignedDuration::from_hours(3), Planned::Uncordon(node.clone()));
            }
            self.schedule(at, Planned::Repair(node));
        }
    }
}
