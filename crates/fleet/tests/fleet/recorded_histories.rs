//! Logs of generated histories, as format 1 wrote them. A replay reads and folds them, and does not
//! derive their decisions again.

use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::replay::Replay;
use farrier_fleet::fleet::{
    Entry, Event, FleetState, LOGIC_VERSION, NodePhase, Rationale, Reason, UnblockedBy,
};

pub(crate) const HISTORIES: [&str; 3] = [
    include_str!("testdata/history_v1_a.jsonl"),
    include_str!("testdata/history_v1_b.jsonl"),
    include_str!("testdata/history_v1_c.jsonl"),
];

#[test]
fn histories_of_format_1_are_folded() {
    for history in HISTORIES {
        let mut replay = Replay::from_state(FleetState::default());
        let (mut folded, mut quarantines) = (FleetState::default(), 0);
        for line in history.lines() {
            let entry = Entry::decode(line.as_bytes()).unwrap();
            folded.apply(&entry);
            quarantines += usize::from(matches!(
                entry.event,
                Event::PhaseChanged { to: NodePhase::Quarantined, .. }
            ));
            replay.apply(entry).unwrap();
        }
        assert_eq!(*replay.state().unwrap(), folded);
        assert_eq!(replay.not_rederived(), history.lines().count() as u64);
        assert!(quarantines > 0, "{quarantines}");
    }
}

/// In a log with entries of several logic versions, a replay derives only the decisions of the
/// current version again.
#[test]
fn a_forged_decision_is_detected_after_entries_of_another_version() {
    let replayed = |forge: bool, logic: u32| {
        let mut replay = Replay::from_state(FleetState::default());
        let mut seq = 0;
        for line in HISTORIES[0].lines() {
            let entry = Entry::decode(line.as_bytes()).unwrap();
            seq = entry.seq;
            replay.apply(entry).unwrap();
        }
        let at = replay.state().unwrap().at;
        let event = if forge {
            let node = replay.state().unwrap().nodes.keys().next().unwrap().clone();
            let why = Rationale::new(Reason::Repaired, UnblockedBy::Finding);
            Event::PhaseChanged { node, to: NodePhase::InService, rationale: why }
        } else {
            Event::ControllerResumed { last_ran: at }
        };
        let (seq, by) = (seq + 1, Actor::Server);
        replay.apply(Entry { seq, batch: seq, at, by, logic, event }).unwrap();
        let is_whole = replay.state().is_ok();
        (is_whole, replay.not_rederived() - HISTORIES[0].lines().count() as u64)
    };
    assert_eq!(replayed(false, LOGIC_VERSION), (true, 0));
    assert_eq!(replayed(true, LOGIC_VERSION), (false, 0), "the forged decision diverges");
    assert_eq!(replayed(true, LOGIC_VERSION + 1), (true, 1), "folded without a check");
}
