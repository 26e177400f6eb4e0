//! What befalls the fleet, and when: the same for one seed.

use std::time::Duration;

use farrier_fleet::fleet::NodeId;
use farrier_sim::fleet::NodeFault;

use super::stage::SIMULATED;

/// Something that happens on the stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Act {
    /// Something goes wrong with a simulated node.
    Trouble { node: NodeId, trouble: NodeFault },
    /// Something goes wrong with all nodes behind a leaf switch.
    Leaf { leaf: String, nodes: Vec<NodeId>, trouble: NodeFault },
    /// A line of the kernel's on a node that has a real agent.
    Xid { agent: usize, gpu: u32, xid: u32 },
    /// A person comes with a spare part.
    Repair { node: NodeId },
}

/// The acts, by the time since the beginning.
pub(super) fn acts(seed: u64, duration: Duration) -> Vec<(Duration, Act)> {
    // Nodes by turns, so that each act meets another one.
    let node =
        |turn: u64| name(seed.wrapping_mul(7).wrapping_add(turn * 11) % u64::from(SIMULATED));
    let mut acts = Vec::new();
    let mut at = |second: u64, act: Option<Act>| {
        let at = Duration::from_secs(second);
        acts.extend(act.filter(|_| at < duration).map(|act| (at, act)));
    };
    let trouble = |turn: u64, code: &str, detail: &str| {
        Some(Act::Trouble { node: node(turn)?, trouble: NodeFault::by_code(code, detail)? })
    };
    at(4, trouble(1, "gpu.xid", "Xid 48"));
    at(8, Some(Act::Xid { agent: 0, gpu: 3, xid: 79 }));
    at(14, trouble(2, "gpu.xid", "Xid 119"));
    at(20, trouble(3, "gpu.rows-failed", ""));
    at(26, leaf(seed % 3));
    at(40, node(3).map(|node| Act::Repair { node }));
    // More at once than may be out of service.
    for turn in 4..14 {
        at(48 + turn / 4, trouble(turn, "gpu.xid", "Xid 48"));
    }
    at(70, Some(Act::Xid { agent: 1, gpu: 0, xid: 48 }));
    for again in 1..=(duration.as_secs() / 60) {
        let turn = 20 + again * 2;
        at(90 * again + 5, trouble(turn, "gpu.xid", "Xid 79"));
        at(90 * again + 30, trouble(turn + 1, "gpu.slowdown-thermal", ""));
    }
    acts
}

/// The leaf switch of that number, with the nodes behind it: sixteen by the plan.
fn leaf(number: u64) -> Option<Act> {
    let nodes = (number * 16..number * 16 + 16).filter_map(name).collect();
    let trouble = NodeFault::by_code("nic.down", "")?;
    Some(Act::Leaf { leaf: format!("leaf-{number:04}"), nodes, trouble })
}

fn name(index: u64) -> Option<NodeId> {
    format!("node-{index:05}").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_and_acts_come_in_order() {
        let all = acts(1, Duration::from_secs(200));
        assert_eq!(all, acts(1, Duration::from_secs(200)));
        assert_ne!(all, acts(2, Duration::from_secs(200)));
        assert!(all.is_sorted_by_key(|(at, _)| *at));
        assert!(all.len() > 15, "{}", all.len());
    }

    #[test]
    fn a_short_demo_has_only_what_fits() {
        let short = acts(1, Duration::from_secs(20));
        assert!(!short.is_empty());
        assert!(short.iter().all(|(at, _)| *at < Duration::from_secs(20)));
    }
}
