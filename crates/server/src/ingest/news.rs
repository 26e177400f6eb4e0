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
    if let Event::Enrolled { node, .. } = event {
        // Who is there does not begin anew by asking twice at once.
        let is_there = state.nodes.contains_key(node);
        return if is_there { Verdict::Known } else { Verdict::News };
    }
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

#[cfg(test)]
mod tests {
    use farrier_fleet::fleet::event::{Cordon, Makeup};
    use farrier_fleet::fleet::identity::Actor;
    use farrier_fleet::fleet::{Entry, Place};
    use jiff::Timestamp;

    use super::*;

    fn node() -> NodeId {
        "a".parse().unwrap()
    }

    fn record(journal: &str, number: u64) -> Record {
        Record { journal: journal.to_owned(), number }
    }

    fn found(journal: &str, number: u64) -> Event {
        Event::Found { node: node(), record: record(journal, number), changes: Vec::new() }
    }

    fn resynced(journal: &str, number: u64) -> Event {
        Event::Resynced { node: node(), record: record(journal, number), open: Vec::new() }
    }

    /// A fleet in which these have happened.
    fn after(events: Vec<Event>) -> FleetState {
        let mut state = FleetState::default();
        for (seq, event) in (1..).zip(events) {
            let at = Timestamp::UNIX_EPOCH;
            state.apply(&Entry { seq, batch: seq, at, by: Actor::Server, event });
        }
        state
    }

    fn enrolled() -> Event {
        Event::Enrolled { node: node(), place: Place::in_pool("train".parse().unwrap()) }
    }

    #[test]
    fn a_stranger_has_no_news_but_that_it_joins() {
        let empty = FleetState::default();
        assert_eq!(judge(&empty, &found("j", 1)), Verdict::Stranger(node()));
        assert_eq!(judge(&empty, &enrolled()), Verdict::News);
        assert_eq!(judge(&after(vec![enrolled()]), &enrolled()), Verdict::Known);
        assert_eq!(judge(&empty, &Event::TimePassed), Verdict::News);
    }

    #[test]
    fn what_was_said_is_no_news() {
        let seen = || Event::Seen { node: node(), makeup: Makeup::default() };
        let heard = || Event::Heard { node: node() };
        let silent = || Event::Silent { node: node(), since: Timestamp::UNIX_EPOCH };
        let cordon = || Event::CordonSeen { node: node(), cordon: Cordon::Ours };
        let before = after(vec![enrolled()]);
        let state = after(vec![enrolled(), seen(), silent(), cordon(), found("j", 3)]);
        for event in [seen(), silent(), cordon(), found("j", 3)] {
            assert_eq!(judge(&before, &event), Verdict::News, "{event:?}");
            assert_eq!(judge(&state, &event), Verdict::Known, "{event:?}");
        }
        assert_eq!(judge(&before, &heard()), Verdict::Known);
        assert_eq!(judge(&state, &heard()), Verdict::News);
    }

    #[test]
    fn records_count_up_in_each_journal() {
        let state = after(vec![enrolled(), found("j", 3)]);
        for (event, verdict) in [
            (found("j", 2), Verdict::Known),
            (found("j", 4), Verdict::News),
            (found("k", 1), Verdict::News),
            (resynced("j", 2), Verdict::Known),
            (resynced("j", 3), Verdict::Known),
            (resynced("j", 4), Verdict::News),
            (resynced("k", 0), Verdict::News),
        ] {
            assert_eq!(judge(&state, &event), verdict, "{event:?}");
        }
    }

    #[test]
    fn only_the_order_that_waits_is_answered() {
        let state = after(vec![enrolled()]);
        let answer = Event::Answered { node: node(), generation: 1, answer: Answer::Accepted };
        assert_eq!(judge(&state, &answer), Verdict::Known);
    }
}
