//! The script of the demo: which faults happen when. It depends only on the seed, the
//! number of nodes and the duration.

use std::time::Duration;

use farrier_fleet::fleet::NodeId;
use farrier_sim::fleet::NodeFault;

use super::environment::simulated;

/// A step of the script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Act {
    /// A fault of one simulated node.
    NodeFault { node: NodeId, fault: NodeFault },
    /// A fault of all nodes behind a leaf switch.
    LeafFailure { leaf: String, nodes: Vec<NodeId>, fault: NodeFault },
    /// An Xid in the kernel log of a node with a real agent.
    Xid { agent: usize, gpu: u32, xid: u32 },
    /// A manual repair: a technician replaces a component.
    Repair { node: NodeId },
}

/// The acts and when they happen, relative to the start.
pub(super) fn acts(seed: u64, nodes: u32, duration: Duration) -> Vec<(Duration, Act)> {
    // Stride over the nodes, so that each act affects another node.
    let simulated = u64::from(simulated(nodes));
    let node = |turn: u64| node_name(seed.wrapping_mul(7).wrapping_add(turn * 11) % simulated);
    let mut acts = Vec::new();
    let mut at = |second: u64, act: Option<Act>| {
        let at = Duration::from_secs(second);
        acts.extend(act.filter(|_| at < duration).map(|act| (at, act)));
    };
    let fault = |turn: u64, code: &str, detail: &str| {
        Some(Act::NodeFault { node: node(turn)?, fault: NodeFault::by_code(code, detail)? })
    };
    at(4, fault(1, "gpu.xid", "Xid 48"));
    at(8, Some(Act::Xid { agent: 0, gpu: 3, xid: 79 }));
    at(14, fault(2, "gpu.xid", "Xid 119"));
    at(20, fault(3, "gpu.rows-failed", ""));
    at(26, leaf_failure(seed % 3));
    at(40, node(3).map(|node| Act::Repair { node }));
    // Faults on more nodes than the disruption budget allows out of service at once.
    for turn in 4..14 {
        at(48 + turn / 4, fault(turn, "gpu.xid", "Xid 48"));
    }
    at(70, Some(Act::Xid { agent: 1, gpu: 0, xid: 48 }));
    for round in 1..=(duration.as_secs() / 60) {
        let turn = 20 + round * 2;
        at(90 * round + 5, fault(turn, "gpu.xid", "Xid 79"));
        at(90 * round + 30, fault(turn + 1, "gpu.slowdown-thermal", ""));
    }
    acts
}

/// Failure of a leaf switch, with the 16 nodes behind it.
fn leaf_failure(number: u64) -> Option<Act> {
    let nodes = (number * 16..number * 16 + 16).filter_map(node_name).collect();
    let fault = NodeFault::by_code("nic.down", "")?;
    Some(Act::LeafFailure { leaf: format!("leaf-{number:04}"), nodes, fault })
}

fn node_name(index: u64) -> Option<NodeId> {
    format!("node-{index:05}").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_determines_the_acts_and_their_order() {
        let all = acts(1, 64, Duration::from_secs(200));
        assert_eq!(all, acts(1, 64, Duration::from_secs(200)));
        assert_ne!(all, acts(2, 64, Duration::from_secs(200)));
        assert!(all.is_sorted_by_key(|(at, _)| *at));
        assert!(all.len() > 15, "{}", all.len());
    }

    #[test]
    fn a_short_demo_omits_later_acts() {
        let short = acts(1, 64, Duration::from_secs(20));
        assert!(!short.is_empty());
        assert!(short.iter().all(|(at, _)| *at < Duration::from_secs(20)));
    }
}
