//! Generates a long log of a simulated fleet over weeks of simulated time. Nodes join, fail at
//! seeded random times, and are quarantined, repaired, verified and returned to service. The log
//! ends as if the server had died just before it wrote the next snapshot.

use std::collections::BTreeMap;
use std::path::Path;

use farrier_fleet::fleet::event::OperatorRequest;
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{Event, NodeId, NodePhase, Order};
use farrier_server::access::Authority;
use farrier_server::log::sqlite::SqliteLog;
use farrier_server::state_machine::StateMachine;
use farrier_sim::fleet::{FleetSpec, SimFleet};
use jiff::{SignedDuration, Timestamp};

use crate::print_metric;

/// Simulated time per commit.
const STEP: SignedDuration = SignedDuration::from_mins(2);
/// Time until a technician arrives with a spare part.
const TECHNICIAN_DELAY: SignedDuration = SignedDuration::from_hours(4);
/// How often technicians are called for waiting nodes.
const CALL_INTERVAL: SignedDuration = SignedDuration::from_hours(1);

struct HistoryGenerator {
    state_machine: StateMachine,
    fleet: SimFleet,
    now: Timestamp,
    technician_due: BTreeMap<NodeId, Timestamp>,
    /// Nodes with a logged loss of heartbeat.
    lost_heartbeats: BTreeMap<NodeId, Timestamp>,
    last_call_check: Timestamp,
}

/// Log entries per node, about two weeks' worth.
const ENTRIES_PER_NODE: usize = 50;

/// Writes `folder/log` with `entries` entries, the last `after_snapshot` of them after the
/// snapshot. Also creates the fleet's certificate authority, without which a server refuses to
/// start on an existing log.
pub(crate) fn write(folder: &Path, entries: usize, after_snapshot: usize) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)?;
    let now: Timestamp = "2026-10-01T00:00:00Z".parse()?;
    Authority::open(folder, Timestamp::now())?;
    let nodes = u32::try_from(entries / ENTRIES_PER_NODE)?;
    let spec = FleetSpec { nodes, mean_fault_interval_s: 4 * 86_400, ..FleetSpec::default() };
    let fleet = SimFleet::new(spec, now);
    let log = SqliteLog::open(&folder.join("log"))?;
    let state_machine = StateMachine::open(Box::new(log))?;
    let (technician_due, lost_heartbeats) = (BTreeMap::new(), BTreeMap::new());
    let mut generator = HistoryGenerator {
        state_machine,
        fleet,
        now,
        technician_due,
        lost_heartbeats,
        last_call_check: now,
    };
    let join = |(node, location): (&NodeId, &_)| {
        (Actor::Server, Event::Enrolled { node: node.clone(), location: Clone::clone(location) })
    };
    let joined = generator.fleet.locations().map(join).collect();
    generator.commit(joined)?;
    let (entries, after_snapshot) = (entries as u64, after_snapshot as u64);
    while generator.state_machine.state().seq < entries - after_snapshot {
        generator.step()?;
    }
    generator.state_machine.write_snapshot()?;
    while generator.state_machine.state().seq < entries {
        generator.step()?;
    }
    print_metric("nodes", generator.state_machine.state().nodes.len());
    print_metric("entries", generator.state_machine.state().seq);
    print_metric(
        "days",
        generator.now.duration_since("2026-10-01T00:00:00Z".parse()?).as_hours() / 24,
    );
    Ok(())
}

impl HistoryGenerator {
    fn commit(&mut self, inputs: Vec<(Actor, Event)>) -> anyhow::Result<()> {
        let committed = self.state_machine.commit(inputs, self.now)?;
        let orders: Vec<Order> = committed
            .entries
            .into_iter()
            .filter_map(|entry| match entry.event {
                Event::OrderIssued { order } => Some(order),
                _ => None,
            })
            .collect();
        for order in orders {
            self.fleet.deliver_order(&order, self.now);
        }
        Ok(())
    }

    fn step(&mut self) -> anyhow::Result<()> {
        self.now = self.now.saturating_add(STEP)?;
        let events = self.fleet.advance(self.now);
        let mut inputs: Vec<(Actor, Event)> = events
            .into_iter()
            .filter_map(|event| Some((Actor::Node(event.node()?.clone()), event)))
            .collect();
        if self.now.duration_since(self.last_call_check) >= CALL_INTERVAL {
            self.last_call_check = self.now;
            self.call_technicians();
        }
        inputs.extend(self.heartbeat_events());
        inputs.extend(self.finish_repairs());
        inputs.push((Actor::Server, Event::Tick));
        self.commit(inputs)
    }

    /// Heartbeat events that the server would create: lost and restored.
    fn heartbeat_events(&mut self) -> Vec<(Actor, Event)> {
        let mut events = Vec::new();
        for (id, _) in self.fleet.locations() {
            let is_up = self.fleet.node(id).is_some_and(farrier_sim::fleet::SimNode::is_up);
            let event = match (is_up, self.lost_heartbeats.contains_key(id)) {
                (false, false) => {
                    self.lost_heartbeats.insert(id.clone(), self.now);
                    Event::HeartbeatLost { node: id.clone(), since: self.now }
                }
                (true, true) => {
                    self.lost_heartbeats.remove(id);
                    Event::HeartbeatRestored { node: id.clone() }
                }
                _ => continue,
            };
            events.push((Actor::Server, event));
        }
        events
    }

    /// Calls a technician for nodes that no order can repair.
    fn call_technicians(&mut self) {
        for (id, node) in &self.state_machine.state().nodes {
            let waits = node
                .phase
                .deferred()
                .is_some_and(|rationale| rationale.unblocked_by.needs_operator());
            if node.phase() == NodePhase::Repairing
                && waits
                && !self.technician_due.contains_key(id)
            {
                self.technician_due.insert(
                    id.clone(),
                    self.now.saturating_add(TECHNICIAN_DELAY).unwrap_or(self.now),
                );
            }
        }
    }

    fn finish_repairs(&mut self) -> Vec<(Actor, Event)> {
        let now = self.now;
        let arrived: Vec<NodeId> = self
            .technician_due
            .iter()
            .filter(|(_, at)| **at <= now)
            .map(|(id, _)| id.clone())
            .collect();
        let mut events = Vec::new();
        for id in arrived {
            self.technician_due.remove(&id);
            self.fleet.update_node(&id, |node| node.repair(now));
            let request = OperatorRequest::Repaired { node: id, repair: "a new board".to_owned() };
            events.push((Actor::User("tech".to_owned()), Event::OperatorRequested { request }));
        }
        events
    }
}
