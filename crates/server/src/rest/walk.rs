//! The nodes of the fleet, some at a time: whoever reads many of them does not hold the brain up.

use std::ops::Bound;
use std::sync::Arc;

use farrier_fleet::fleet::{FleetState, Node, NodeId};

use super::caller::Caller;
use super::failure::Failure;
use crate::brain::Brain;

/// Nodes looked at in one turn of the brain: about a millisecond.
const STRIDE: usize = 2000;

/// What a visit makes of a node.
pub(super) type Visit<T> = Arc<dyn Fn(&FleetState, &NodeId, &Node, &mut Vec<T>) + Send + Sync>;

/// Visits the nodes that the caller sees, by name, until there are more than `want`, or no more nodes.
pub(super) async fn nodes<T: Send + 'static>(
    brain: &Brain,
    caller: &Caller,
    (from, to): (Bound<NodeId>, Bound<NodeId>),
    want: usize,
    visit: Visit<T>,
) -> Result<Vec<T>, Failure> {
    let mut all = Vec::new();
    let mut from = from;
    loop {
        let (turn, eyes) = (Arc::clone(&visit), caller.clone());
        let range = (from.clone(), to.clone());
        let left = want.saturating_sub(all.len());
        if is_empty(&from, &to) {
            return Ok(all);
        }
        let (some, last) = brain
            .look(move |state| {
                let mut found = Vec::new();
                let mut last = None;
                let mut looked = 0;
                for (id, node) in state.nodes.range(range) {
                    if eyes.sees(&node.place) {
                        turn(state, id, node, &mut found);
                    }
                    looked += 1;
                    if found.len() > left || looked == STRIDE {
                        last = Some(id.clone());
                        break;
                    }
                }
                (found, last)
            })
            .await?;
        all.extend(some);
        match last {
            Some(last) if all.len() <= want => from = Bound::Excluded(last),
            _ => return Ok(all),
        }
    }
}

/// A map has no range that ends before it begins.
fn is_empty(from: &Bound<NodeId>, to: &Bound<NodeId>) -> bool {
    match (from, to) {
        (Bound::Included(from), Bound::Included(to)) => from > to,
        (Bound::Excluded(from), Bound::Included(to)) => from >= to,
        _ => false,
    }
}
