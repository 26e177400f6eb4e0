//! Every state that a log was ever begun with still reads: `testdata/states_v1.jsonl` and `states_v2.jsonl` hold states with every field, as
//! they were written then.
//!
//! Lines are added (`FARRIER_BLESS=1 cargo test -p farrier-server --test log recorded`) and never changed or taken away.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use farrier_fleet::fleet::event::{Cordon, GpuMakeup, Makeup, Record};
use farrier_fleet::fleet::identity::{Actor, DomainKind};
use farrier_fleet::fleet::policy::{Breaker, PoolPolicy};
use farrier_fleet::fleet::reason::OrderFailure;
use farrier_fleet::fleet::state::{
    Blame, Errand, ErrandEnded, Freeze, Hold, Pending, Proof, Repair, Symptom, Tally, Unproven,
};
use farrier_fleet::fleet::window::{Day, Window};
use farrier_fleet::fleet::{
    Answer, Domain, Entry, Event, FleetState, LOGIC_VERSION, Node, Order, OrderKind, Place, Policy,
    Reason, Rung, Standing, UnblockedBy, Why,
};
use farrier_fleet::health::{Finding, GpuUuid};
use farrier_server::log::sqlite::SqliteLog;
use farrier_server::log::{Hash, Log, LogError};
use serde_json::Value;

use crate::{at, node, written};

const RECORDED_V1: &str = include_str!("testdata/states_v1.jsonl");
const RECORDED: &str = include_str!("testdata/states_v2.jsonl");

/// As the file of a log has it.
const FORM_V1: &str = "farrier state 1\n";
const FORM: &str = "farrier state 2\n";

const SYMPTOMS: [Symptom; 4] =
    [Symptom::Silence, Symptom::Network, Symptom::Fabric, Symptom::PowerOrCooling];

fn why() -> Why {
    Why::new(reason(), UnblockedBy::WindowOrApproval { at: at(60) })
}

fn reason() -> Reason {
    let evidence = "a driver waits for a boot".to_owned();
    Reason::VerificationFailed { level: Rung::V0, evidence, findings: vec![7] }
}

fn place() -> Place {
    Place {
        pool: "train".parse().unwrap(),
        tenant: "lab".parse().ok(),
        site: "north".parse().ok(),
        rack: "r1".parse().ok(),
        leaf: "l1".parse().ok(),
        nvlink: "nv1".parse().ok(),
    }
}

fn makeup() -> Makeup {
    let gpu = GpuMakeup {
        uuid: GpuUuid("GPU-1".to_owned()),
        name: Some("NVIDIA H200".to_owned()),
        index: Some(3),
        pci: Some("0000:3b:00.0".to_owned()),
    };
    Makeup {
        boot: "b1".to_owned(),
        agent: "0.1.0".to_owned(),
        kernel: Some("6.8.0".to_owned()),
        driver: Some("580.95.05".to_owned()),
        cuda: Some("13.0".to_owned()),
        gpus: Some(vec![gpu]),
        frameworks: vec![("torch".to_owned(), "2.11.0".to_owned())],
    }
}

fn finding() -> Finding {
    let seen = "2026-11-15T00:00:00Z";
    let in_boot = serde_json::json!({ "boot": "b1", "steady_ms": 5 });
    serde_json::from_value(serde_json::json!({
        "id": 7, "code": "gpu.xid", "detail": "Xid 79", "subject": { "gpu": "GPU-1" }, "kind": "fault",
        "severity": "fatal", "own_severity": "critical", "text": "it is gone", "action": "reset-gpu",
        "remedy": "reset it", "rule_action": "reset-gpu", "action_by": "driver",
        "evidence": [
            { "kernel": { "text": "Xid 79", "line": "NVRM: Xid 79", "pid": 5, "process": "python", "at": seen } },
            { "check": { "text": "seen", "at": seen } },
        ],
        "first_seen": seen, "last_seen": seen, "opened_in": in_boot, "last_in": in_boot, "count": 2,
        "clears": "it is back",
    }))
    .unwrap()
}

fn cordons() -> [Cordon; 4] {
    let theirs = Cordon::Theirs { owner: "root".to_owned(), reason: "cable".to_owned() };
    [Cordon::Unknown, Cordon::None, Cordon::Ours, theirs]
}

fn kinds() -> [OrderKind; 8] {
    [
        OrderKind::Cordon,
        OrderKind::Drain { wait_s: 60 },
        OrderKind::ResetGpu { gpu: GpuUuid("GPU-1".to_owned()) },
        OrderKind::Reboot,
        OrderKind::RestartService { unit: "nvidia-fabricmanager.service".to_owned() },
        OrderKind::Verify { rung: Rung::V0 },
        OrderKind::Uncordon,
        OrderKind::NoteRepair { what: "a board".to_owned() },
    ]
}

/// A node with every field told; those of other numbers have other variants.
fn sample_node(number: usize) -> Node {
    let proof = Proof { at: at(1), passed: true, evidence: "all is well".to_owned() };
    let order = Order {
        node: node(1),
        generation: 4,
        what: kinds()[number % 8].clone(),
        boot: Some("b1".to_owned()),
        lease_until: at(90),
        reason: reason(),
    };
    Node {
        place: place(),
        standing: Standing::ALL[number % 7],
        since: at(2),
        why: why(),
        makeup: Some(Arc::new(makeup())),
        gone: makeup().gpus.unwrap_or_default(),
        silent_since: Some(at(3)),
        revoked: Some(at(3)),
        record: Some(Record { journal: "j1".to_owned(), number: 3 }),
        findings: BTreeMap::from([(7, finding())]),
        cordon: cordons()[number % 4].clone(),
        drained: true,
        hold: Some(Hold { by: Actor::Person("ann".to_owned()), reason: "a look".to_owned() }),
        approved: true,
        generation: 4,
        order: Some(Pending { order, accepted: true, faults: vec!["gpu.xid on GPU-1".to_owned()] }),
        failures: 2,
        failed: Some((at(4), OrderFailure::Reported("job 5 runs on".to_owned()))),
        proven: [Rung::V0, Rung::V1, Rung::V2, Rung::V3].map(|it| (it, proof.clone())).into(),
        unproven: Some(Unproven { rung: Rung::V0, why: "a driver waits for a boot".to_owned() }),
        prove_now: Some(Rung::V1),
        errand: Some(Errand {
            what: OrderKind::Tune { profile: "training".to_owned() },
            by: Actor::Person("ann".to_owned()),
        }),
        errands_ended: vec![ErrandEnded {
            what: OrderKind::Diag { level: 3, minutes: 10 },
            at: at(9),
            answer: Answer::Done { evidence: "every GPU passed".to_owned() },
            withdrawn: Some(reason()),
        }],
        owed: BTreeSet::from([Rung::V3]),
        repairs: vec![Repair::Ordered(OrderKind::Reboot), Repair::ByHand("a board".to_owned())],
        tried: BTreeMap::from([("gpu.xid on GPU-1".to_owned(), vec![OrderKind::Reboot])]),
        untold_repair: Some("a board".to_owned()),
        mended: true,
        quarantines: vec![at(5)],
        held_back: Some(why()),
        shows: BTreeMap::from([(Symptom::Silence, at(3))]),
        over_quota_since: Some(at(9)),
        unreadable_since: Some(at(9)),
        first_seq: 2,
        uncounted_s: 320,
        heartbeat_uncounted_s: 40,
        first_served: Some(at(1)),
        failed_order: Some(OrderKind::Cordon),
        wake: Some(at(60)),
    }
}

fn policy() -> Policy {
    let from = jiff::civil::time(22, 0, 0, 0);
    let window = Window { days: vec![Day::Sat], from, hours: 6 };
    let pool = PoolPolicy { repair_windows: vec![window], ..PoolPolicy::default() };
    let mut policy = Policy::default();
    policy.breakers.insert(DomainKind::Site, Breaker { share: 0.1, nodes: Some(4) });
    policy.breakers.insert(DomainKind::Tenant, Breaker { share: 0.1, nodes: None });
    policy.pools_default = pool.clone();
    policy.pools.insert("train".parse().unwrap(), pool);
    policy.services.insert("fabric.down".to_owned(), "nvidia-fabricmanager.service".to_owned());
    policy
}

/// A state with every field told.
fn sample() -> FleetState {
    let domains = place().domains();
    let by = [Actor::Server, Actor::Node(node(1)), Actor::Person("ann".to_owned())];
    let freeze = |(index, domain): (usize, &Domain)| {
        let by = by[index % by.len()].clone();
        (
            domain.clone(),
            Freeze { until: at(90), since: Some(at(30)), by, reason: "a deadline".to_owned() },
        )
    };
    let blame = |(index, domain): (usize, &Domain)| {
        let symptom = SYMPTOMS[index % 4];
        (domain.clone(), Blame { symptom, nodes: vec![node(1)], since: at(6), why: why() })
    };
    let shown = SYMPTOMS.map(|symptom| (symptom, BTreeMap::from([(node(1), at(7))])));
    let nodes = (0..8).map(|number| (node(number as u64), Arc::new(sample_node(number))));
    FleetState {
        seq: 5,
        at: at(8),
        policy: policy(),
        nodes: nodes.collect(),
        retired: BTreeMap::from([(node(9), 12)]),
        tallies: domains.iter().map(|it| (it.clone(), Tally { members: 7, out: 5 })).collect(),
        freezes: domains.iter().enumerate().map(freeze).collect(),
        symptoms: domains.iter().map(|it| (it.clone(), shown.clone().into())).collect(),
        blamed: domains.iter().enumerate().map(blame).collect(),
        access: 3,
        wakes: BTreeSet::from([(at(60), node(1))]),
    }
}

/// What a log that begins with these bytes begins with.
fn begun_with(bytes: &[u8]) -> Result<FleetState, LogError> {
    let folder = tempfile::tempdir().unwrap();
    let (log, head) = written(&folder, 5);
    let path = folder.path().join("log");
    drop(log);
    let digest = Hash::of(bytes);
    let row = rusqlite::params![head.seq, head.hash.0, bytes, digest.0];
    let edited = rusqlite::Connection::open(&path).unwrap();
    edited.execute("INSERT INTO anchor VALUES (1, ?1, ?2, ?3, ?4)", row).unwrap();
    SqliteLog::open(&path).unwrap().beginning()
}

/// Whether all that was written is there still; more may be.
fn holds(now: &Value, then: &Value) -> bool {
    match (now, then) {
        (Value::Object(now), Value::Object(then)) => {
            then.iter().all(|(name, it)| now.get(name).is_some_and(|now| holds(now, it)))
        }
        (Value::Array(now), Value::Array(then)) => {
            now.len() == then.len() && now.iter().zip(then).all(|(now, it)| holds(now, it))
        }
        _ => now == then,
    }
}

#[test]
fn a_state_that_is_written_today_is_recorded() {
    let line = serde_json::to_string(&sample()).unwrap();
    if RECORDED.lines().any(|it| it == line) {
        return;
    }
    assert!(
        std::env::var_os("FARRIER_BLESS").is_some(),
        "states have another form than what is recorded"
    );
    let mut recorded = RECORDED.to_owned();
    writeln!(recorded, "{line}").unwrap();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/log/testdata/states_v2.jsonl");
    std::fs::write(file, recorded).unwrap();
}

#[test]
fn a_state_that_was_written_ever_still_reads() {
    assert!(!RECORDED.is_empty() && !RECORDED_V1.is_empty());
    for line in RECORDED.lines() {
        let then: Value = serde_json::from_str(line).unwrap();
        let state = begun_with(format!("{FORM}{line}").as_bytes()).unwrap();
        let now = serde_json::to_value(&state).unwrap();
        assert!(holds(&now, &then), "something is lost: {now}");
    }
    for line in RECORDED_V1.lines() {
        let mut then: Value = serde_json::from_str(line).unwrap();
        // Counted again by today's rules.
        then.as_object_mut().unwrap().remove("tallies");
        // Sentences are kept as such; the rest is as it was.
        without_reasons(&mut then);
        // Before it had a version it was the state and nothing else.
        for form in [FORM_V1, ""] {
            let state = begun_with(format!("{form}{line}").as_bytes()).unwrap();
            let now = serde_json::to_value(&state).unwrap();
            assert!(holds(&now, &then), "something is lost: {now}");
        }
    }
}

/// Leaves out what has another form since: reasons of nodes and of domains that are to blame.
fn without_reasons(state: &mut Value) {
    for kind in ["nodes", "blamed"] {
        for each in state[kind].as_object_mut().unwrap().values_mut() {
            let each = each.as_object_mut().unwrap();
            let why = each.remove("why").unwrap();
            assert_eq!(why["text"], "Xid 79 on GPU 3");
            each.remove("held_back");
            each.remove("failed");
            if let Some(order) = each.get_mut("order").and_then(|it| it.get_mut("order")) {
                order.as_object_mut().unwrap().remove("reason");
            }
        }
    }
}

#[test]
fn sentences_of_a_state_of_format_1_are_kept_and_what_they_were_bound_to() {
    let line = RECORDED_V1.lines().last().unwrap();
    let state = begun_with(format!("{FORM_V1}{line}").as_bytes()).unwrap();
    let node = &state.nodes[&node(1)];
    assert_eq!(node.why.reason.to_string(), "Xid 79 on GPU 3");
    assert_eq!(node.why.reason.findings(), [7]);
    assert_eq!(node.why.unblocked_by.to_string(), "the finding clears");
    assert_eq!(node.why.unblocked_by.changes_at(), Some(at(60)));
    assert!(node.why.unblocked_by.is_approvable());
    assert_eq!(node.order.as_ref().unwrap().order.reason.to_string(), "Xid 79");
    assert_eq!(node.failed.as_ref().unwrap().1.to_string(), "job 5 runs on");
}

/// A state of format 1 does not say which nodes were in service. A node that was held then must leave the count of its domains again.
#[test]
fn nodes_of_a_state_of_format_1_are_counted_by_the_rules_of_now() {
    let entry = |seq, at, event| {
        let logic = LOGIC_VERSION;
        Entry { seq, batch: seq, at, by: Actor::Server, logic, event }
    };
    let place = Place::in_pool("train".parse().unwrap());
    let fleet = place.domains().remove(0);
    let mut state = FleetState { seq: 5, ..FleetState::default() };
    for number in 1..=3 {
        let event = Event::Enrolled { node: node(number), place: place.clone() };
        state.apply(&entry(number, at(1), event));
    }
    let moved = |state: &mut FleetState, number: u64, to: Standing| {
        let event = Event::Moved { node: node(number), to, why: why() };
        state.apply(&entry(5, at(2), event));
    };
    moved(&mut state, 1, Standing::Held);
    moved(&mut state, 2, Standing::InService);
    // As the version before counted: every node that is not in service.
    state.tallies.insert(fleet.clone(), Tally { members: 3, out: 1 });
    let mut written = serde_json::to_value(&state).unwrap();
    let why = serde_json::json!({ "text": "it was so", "until": "it is not" });
    for it in written["nodes"].as_object_mut().unwrap().values_mut() {
        it.as_object_mut().unwrap().remove("first_served");
        it["why"] = why.clone();
    }
    let mut state = begun_with(format!("{FORM_V1}{written}").as_bytes()).unwrap();
    assert_eq!(state.tallies[&fleet], Tally { members: 3, out: 1 });
    moved(&mut state, 2, Standing::Held);
    assert_eq!(state.tallies[&fleet], Tally { members: 3, out: 2 }, "it was in service");
    moved(&mut state, 1, Standing::Verifying);
    moved(&mut state, 1, Standing::InService);
    assert_eq!(state.tallies[&fleet], Tally { members: 3, out: 1 });
}

#[test]
fn a_log_begins_with_the_version_of_its_state() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, _) = written(&folder, 5);
    let old = folder.path().join("old");
    farrier_server::log::archive(&mut log, at(1), &old).unwrap().unwrap();
    let file = rusqlite::Connection::open(folder.path().join("log")).unwrap();
    let bytes: Vec<u8> = file.query_row("SELECT state FROM anchor", [], |row| row.get(0)).unwrap();
    let state = log.beginning().unwrap();
    let meant = format!("{FORM}{}", serde_json::to_string(&state).unwrap());
    assert_eq!(String::from_utf8(bytes).unwrap(), meant);
    let later = begun_with(meant.replacen('2', "3", 1).as_bytes()).unwrap_err().to_string();
    assert!(later.contains("of a later version"), "{later}");
    let nothing = begun_with(b"farrier").unwrap_err();
    assert!(matches!(nothing, LogError::Beheaded(5)), "{nothing}");
}
