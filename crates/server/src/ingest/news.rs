//! Whether an event tells the log something that it does not know: by the truth, at the moment of the commit.

use farrier_fleet::fleet::event::{Event, Record};
use farrier_fleet::fleet::state::Node;
use farrier_fleet::fleet::{Answer, FleetState, NodeId};

/// What an event is to the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It belongs there.
    News,
    /// It is there, or changes nothing.
    Known,
    /// It is about a node that nobody knows.
    Stranger(NodeId),
}

/// Judges an input. What people and the server itself say is always news.
pub(crate) fn judge(state: &FleetState, event: &Event) -> Verdict {
    let (Event::Placed { node: id, .. }
    | Event::Retired { node: id, .. }
    | Event::Seen { node: id, .. }
    | Event::Silent { node: id, .. }
    | Event::Heard { node: id }
    | Event::Found { node: id, .. }
    | Event::Resynced { node: id, .. }
    | Event::CordonSeen { node: id, .. }
    | Event::Answered { node: id, .. }) = event
    else {
        return Verdict::News;
    };
    let Some(node) = state.nodes.get(id) else { return Verdict::Stranger(id.clone()) };
    let is_news = match event {
        Event::Placed { place, .. } => node.place != *place,
        Event::Seen { makeup, .. } => node.makeup.as_ref() != Some(makeup),
        Event::Silent { .. } => node.silent_since.is_none(),
        Event::Heard { .. } => node.silent_since.is_some(),
        Event::Found { record, .. } => !node.has(record),
        Event::Resynced { record, open, .. } => {
            !is_older(node, record) && {
                let same = |it: &Record| it == record;
                let as_it_was = open.len() == node.findings.len()
                    && open.iter().all(|it| node.findings.get(&it.id) == Some(it));
                !(node.record.as_ref().is_some_and(same) && as_it_was)
            }
        }
        Event::CordonSeen { cordon, .. } => node.cordon != *cordon,
        Event::Answered { generation, answer, .. } => {
            let pending = node.order.as_ref().filter(|it| it.order.generation == *generation);
            pending.is_some_and(|it| !(it.accepted && *answer == Answer::Accepted))
        }
        _ => true,
    };
    if is_news { Verdict::News } else { Verdict::Known }
}

/// Whether the log has something later of the same journal.
fn is_older(node: &Node, record: &Record) -> bool {
    let last = node.record.as_ref().filter(|it| it.journal == record.journal);
    last.is_some_and(|last| record.number < last.number)
}
