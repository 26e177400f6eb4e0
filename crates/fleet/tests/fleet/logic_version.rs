//! The decision logic has a version, [`LOGIC_VERSION`]. These tests fail if decisions change and
//! the version does not.
//!
//! `testdata/logic.txt` records, for each version, a digest of the decisions on fixed histories.
//! The digest does not cover the sentences that describe a decision, so these may change. After you
//! raise the version, `FARRIER_BLESS=1 cargo test -p farrier-fleet --test fleet logic_version`
//! records its digest.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{Entry, Event, FleetState, LOGIC_VERSION, decide};

use crate::recorded_histories::HISTORIES;

const RECORDED: &str = include_str!("testdata/logic.txt");

/// Decisions of the current logic on the inputs of recorded histories. These inputs include
/// statuses of orders that the current logic may not issue. This does not matter, because the
/// digest only needs inputs that stay the same.
fn histories() -> Vec<Vec<Entry>> {
    HISTORIES.iter().map(|history| decide_again(history)).collect()
}

fn decide_again(history: &str) -> Vec<Entry> {
    let entries = history.lines().map(|line| Entry::decode(line.as_bytes()).unwrap());
    let inputs: Vec<Entry> = entries.filter(|entry| !entry.event.is_decision()).collect();
    let (mut state, mut log) = (FleetState::default(), Vec::new());
    for batch in inputs.chunk_by(|previous, next| previous.batch == next.batch) {
        let mut dirty = BTreeSet::new();
        for entry in batch {
            dirty.extend(state.apply(entry));
        }
        let at = batch[0].at;
        for event in decide(&state, &dirty, at).events {
            let (seq, by, logic) = (state.seq + 1, Actor::Server, LOGIC_VERSION);
            let entry = Entry { seq, batch: seq, at, by, logic, event };
            state.apply(&entry);
            log.push(entry);
        }
    }
    log
}

/// FNV-1a digest of the decisions, which does not depend on the compiler.
fn digest<'e>(entries: impl Iterator<Item = &'e Entry>) -> u64 {
    let mut digest = 0xcbf2_9ce4_8422_2325_u64;
    for entry in entries.filter(|entry| entry.event.is_decision()) {
        for byte in serde_json::to_vec(&entry.event).unwrap() {
            digest = (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    digest
}

/// Why `digest` is not the recorded digest of `version`. `None` if it is.
fn digest_problem(recorded: &str, version: u32, digest: u64) -> Option<String> {
    let versions: BTreeMap<u32, &str> = recorded
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(version, digest)| (version.parse().unwrap(), digest))
        .collect();
    match versions.get(&version) {
        Some(known) if *known == format!("{digest:016x}") => None,
        Some(_) => Some(format!("decisions changed: raise LOGIC_VERSION above {version}")),
        None => Some(format!("version {version} is not recorded")),
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test writes its data when asked to bless")]
fn decisions_match_the_recorded_digest_of_their_version() {
    let histories = histories();
    let found = digest(histories.iter().flatten());
    let problem = digest_problem(RECORDED, LOGIC_VERSION, found);
    let is_new = !RECORDED.lines().any(|line| line.starts_with(&format!("{LOGIC_VERSION} ")));
    if is_new && std::env::var_os("FARRIER_BLESS").is_some() {
        let mut recorded = RECORDED.to_owned();
        writeln!(recorded, "{LOGIC_VERSION} {found:016x}").unwrap();
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fleet/testdata/logic.txt");
        std::fs::write(file, recorded).unwrap();
        return;
    }
    assert_eq!(problem, None);
}

/// Tests the check itself: it detects a removed decision and a changed order.
#[test]
fn a_changed_decision_without_a_version_bump_is_detected() {
    let histories = histories();
    let entries: Vec<Entry> = histories.into_iter().flatten().collect();
    let decided: Vec<usize> =
        (0..entries.len()).filter(|at| entries[*at].event.is_decision()).collect();
    assert!(decided.len() > 200, "{}", decided.len());
    for at in decided.into_iter().step_by(29) {
        let mut changed = entries.clone();
        match &mut changed[at].event {
            Event::OrderIssued { order } => order.lease_until = entries[0].at,
            _ => drop(changed.remove(at)),
        }
        let problem = digest_problem(RECORDED, LOGIC_VERSION, digest(changed.iter()));
        assert!(problem.is_some_and(|problem| problem.contains("raise LOGIC_VERSION")));
    }
}
