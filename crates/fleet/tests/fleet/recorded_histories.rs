//! Logs of generated histories as format 1 wrote them: what a server of then has on disk is read, folded and, by the same logic, decided again.

use farrier_fleet::fleet::replay::Replay;
use farrier_fleet::fleet::{Entry, Event, FleetState, Standing};

const HISTORIES: [&str; 3] = [
    include_str!("testdata/history_v1_a.jsonl"),
    include_str!("testdata/history_v1_b.jsonl"),
    include_str!("testdata/history_v1_c.jsonl"),
];

#[test]
fn histories_of_format_1_are_folded() {
    for history in HISTORIES {
        let mut replay = Replay::on(FleetState::default());
        let (mut folded, mut quarantines) = (FleetState::default(), 0);
        for line in history.lines() {
            let entry = Entry::decode(line.as_bytes()).unwrap();
            folded.apply(&entry);
            quarantines +=
                usize::from(matches!(entry.event, Event::Moved { to: Standing::Quarantined, .. }));
            replay.take(entry).unwrap();
        }
        assert_eq!(replay.finish().unwrap(), folded);
        assert!(quarantines > 0, "{quarantines}");
    }
}
