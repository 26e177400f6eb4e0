//! Reads the nodes in batches, so that the controller is not blocked.

use std::ops::Bound;
use std::sync::Arc;

use farrier_fleet::fleet::{FleetState, Node, NodeId};

use super::caller::Caller;
use super::failure::Failure;
use crate::controller::Controller;

/// Nodes per batch. A batch takes about a millisecond of the controller's time. The number is small
/// in tests, because their fleets are small.
pub(super) const BATCH_NODES: usize = if cfg!(test) { 4 } else { 2000 };

/// Appends the results for one node.
pub(super) type Visit<T> = Arc<dyn Fn(&FleetState, &NodeId, &Node, &mut Vec<T>) + Send + Sync>;

/// Visits the nodes that the caller may see, in order of their names. Stops when there are more
/// than `want` results or no more nodes.
pub(super) async fn nodes<T: Send + 'static>(
    controller: &Controller,
    caller: &Caller,
    (from, to): (Bound<NodeId>, Bound<NodeId>),
    want: usize,
    visit: Visit<T>,
) -> Result<Vec<T>, Failure> {
    let mut all = Vec::new();
    let mut batches = Batches { controller, caller, range: Some((from, to)), visit };
    while all.len() <= want
        && let Some(batch) = batches.next(want - all.len()).await?
    {
        all.extend(batch);
    }
    Ok(all)
}

pub(super) struct Batches<'c, T> {
    controller: &'c Controller,
    caller: &'c Caller,
    /// The range of names that were not visited yet. `None` at the end.
    range: Option<(Bound<NodeId>, Bound<NodeId>)>,
    visit: Visit<T>,
}

impl<'c, T: Send + 'static> Batches<'c, T> {
    pub(super) fn new(controller: &'c Controller, caller: &'c Caller, visit: Visit<T>) -> Self {
        Self { controller, caller, range: Some((Bound::Unbounded, Bound::Unbounded)), visit }
    }

    /// Returns the results of the next batch, or `None` at the end. A batch ends early when it has
    /// more than `want` results.
    pub(super) async fn next(&mut self, want: usize) -> Result<Option<Vec<T>>, Failure> {
        let Some((from, to)) = self.range.take().filter(|(from, to)| !is_empty(from, to)) else {
            return Ok(None);
        };
        let (visit, caller) = (Arc::clone(&self.visit), self.caller.clone());
        let until = to.clone();
        let batch = self.controller.read(move |state| {
            let mut rows = Vec::new();
            let mut visited = 0;
            for (id, node) in state.nodes.range((from, to)) {
                if caller.sees(&node.location) {
                    visit(state, id, node, &mut rows);
                }
                visited += 1;
                if rows.len() > want || visited == BATCH_NODES {
                    return (rows, Some(id.clone()));
                }
            }
            (rows, None)
        });
        let (rows, last) = batch.await?;
        self.range = last.map(|last| (Bound::Excluded(last), until));
        Ok(Some(rows))
    }
}

/// Whether the range ends before it starts, or excludes the only name in it. `BTreeMap::range`
/// panics on a range that ends before it starts.
fn is_empty(from: &Bound<NodeId>, to: &Bound<NodeId>) -> bool {
    match (from, to) {
        (Bound::Included(from), Bound::Included(to)) => from > to,
        (Bound::Excluded(from), Bound::Included(to)) => from >= to,
        _ => false,
    }
}
