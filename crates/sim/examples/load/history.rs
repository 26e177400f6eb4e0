//! A long log of a simulated fleet: nodes join, fall ill by a seed, are taken out, mended, proven and given back, over weeks of a
//! time that passes as fast as it can be written. The state is kept where it would be when the server dies just before it is kept next.

use std::collections::BTreeMap;
use std::path::Path;

use farrier_fleet::fleet::event::OperatorRequest;
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{Event, NodeId, NodePhase, Order};
use farrier_server::access::Authority;
use farrier_server::log::sqlite::SqliteLog;
use farrier_server::state_machine::StateMachine;
use farrier_sim::fleet::{Fleet, Plan};
use jiff::{SignedDuration, Timestamp};

use crate::say;

/// What happens in so much time is written at once.
const STEP: SignedDuration = SignedDuration::from_mins(2);
/// How long a person takes to come with a spare part.
const PERSON: SignedDuration = SignedDuration::from_hours(4);
/// People look this often at what waits for them.
const ROUND: SignedDuration = SignedDuration::from_hours(1);

struct World {
    core: StateMachine,
    fleet: Fleet,
    now: Timestamp,
    called: BTreeMap<NodeId, Timestamp>,
    /// Nodes of which the log says that they are silent.
    silent: BTreeMap<NodeId, Timestamp>,
    round: Timestamp,
}

/// Entries of the log for each node: about a fortnight of it.
const ENTRIES_PER_NODE: usize = 50;

/// Writes `folder/log` with so many entries, the last `unkept` of them after the state that is kept,
/// and the authority that belongs to a fleet: a server does not start on a log without one.
pub(crate) fn write(folder: &Path, entries: usize, unkept: usize) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)?;
    let now: Timestamp = "2026-10-01T00:00:00Z".parse()?;
    Authority::open(folder, Timestamp::now())?;
    let nodes = u32::try_from(entries / ENTRIES_PER_NODE)?;
    let plan = Plan { nodes, trouble_every_s: 4 * 86_400, ..Plan::default() };
    let fleet = Fleet::new(plan, now);
    let log = SqliteLog::open(&folder.join("log"))?;
    let core = StateMachine::open(Box::new(log))?;
    let (called, silent) = (BTreeMap::new(), BTreeMap::new());
    let mut world = World { core, fleet, now, called, silent, round: now };
    let join = |(node, place): (&NodeId, &_)| {
        (Actor::Server, Event::Enrolled { node: node.clone(), location: Clone::clone(place) })
    };
    let joined = world.fleet.places().map(join).collect();
    world.commit(joined)?;
    let (entries, unkept) = (entries as u64, unkept as u64);
    while world.core.state().seq < entries - unkept {
        world.step()?;
    }
    world.core.keep()?;
    while world.core.state().seq < entries {
        world.step()?;
    }
    say("nodes", world.core.state().nodes.len());
    say("entries", world.core.state().seq);
    say("days", world.now.duration_since("2026-10-01T00:00:00Z".parse()?).as_hours() / 24);
    Ok(())
}

impl World {
    fn commit(&mut self, inputs: Vec<(Actor, Event)>) -> anyhow::Result<()> {
        let committed = self.core.commit(inputs, self.now)?;
        let orders: Vec<Order> = committed
            .entries
            .into_iter()
            .filter_map(|entry| match entry.event {
                Event::OrderIssued { order } => Some(order),
                _ => None,
            })
            .collect();
        for order in orders {
            self.fleet.order(&order, self.now);
        }
        Ok(())
    }

    fn step(&mut self) -> anyhow::Result<()> {
        self.now = self.now.saturating_add(STEP)?;
        let said = self.fleet.advance(self.now);
        let mut inputs: Vec<(Actor, Event)> = said
            .into_iter()
            .filter_map(|event| Some((Actor::Node(event.node()?.clone()), event)))
            .collect();
        if self.now.duration_since(self.round) >= ROUND {
            self.round = self.now;
            self.call();
        }
        inputs.extend(self.silence());
        inputs.extend(self.repaired());
        inputs.push((Actor::Server, Event::Tick));
        self.commit(inputs)
    }

    /// What the server notices by itself: who is not heard, and who is again.
    fn silence(&mut self) -> Vec<(Actor, Event)> {
        let mut events = Vec::new();
        for (id, _) in self.fleet.places() {
            let is_up = self.fleet.node(id).is_some_and(farrier_sim::fleet::SimNode::is_up);
            let event = match (is_up, self.silent.contains_key(id)) {
                (false, false) => {
                    self.silent.insert(id.clone(), self.now);
                    Event::HeartbeatLost { node: id.clone(), since: self.now }
                }
                (true, true) => {
                    self.silent.remove(id);
                    Event::HeartbeatRestored { node: id.clone() }
                }
                _ => continue,
            };
            events.push((Actor::Server, event));
        }
        events
    }

    /// A person is called to what no order mends.
    fn call(&mut self) {
        for (id, node) in &self.core.state().nodes {
            let waits = node.phase.deferred().is_some_and(|why| why.unblocked_by.needs_operator());
            if node.phase() == NodePhase::Repairing && waits && !self.called.contains_key(id) {
                self.called.insert(id.clone(), self.now.saturating_add(PERSON).unwrap_or(self.now));
            }
        }
    }

    fn repaired(&mut self) -> Vec<(Actor, Event)> {
        let now = self.now;
        let here: Vec<NodeId> =
            self.called.iter().filter(|(_, at)| **at <= now).map(|(id, _)| id.clone()).collect();
        let mut events = Vec::new();
        for id in here {
            self.called.remove(&id);
            self.fleet.change(&id, |node| node.repair(now));
            let what = OperatorRequest::Repaired { node: id, repair: "a new board".to_owned() };
            events
                .push((Actor::User("tech".to_owned()), Event::OperatorRequested { request: what }));
        }
        events
    }
}
