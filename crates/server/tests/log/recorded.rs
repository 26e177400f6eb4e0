//! The server can read base snapshots in every format. `testdata/states_v1.jsonl` to
//! `states_v5.jsonl` hold states with every field set, as each format wrote them.
//!
//! `FARRIER_BLESS=1 cargo test -p farrier-server --test log recorded` appends a line when the state
//! format has changed. Recorded lines are never changed or removed.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use farrier_fleet::fleet::event::{
    Cordon, GpuInventory, JournalPosition, NodeInventory, OperatorRequest,
};
use farrier_fleet::fleet::identity::{Actor, DomainKind};
use farrier_fleet::fleet::policy::{DisruptionBudget, PoolPolicy};
use farrier_fleet::fleet::state::{DomainCounts, Symptom};
use farrier_fleet::fleet::window::{Day, Window};
use farrier_fleet::fleet::{
    AccessChange, Domain, Entry, Event, FleetState, LOGIC_VERSION, Location, Node, NodeId,
    NodePhase, Order, OrderKind, OrderStatus, Policy, Rationale, Reason, UnblockedBy,
    VerificationLevel, decide,
};
use farrier_fleet::health::{Finding, GpuUuid};
use farrier_server::log::sqlite::SqliteLog;
use farrier_server::log::{Hash, Log, LogError};
use serde_json::Value;

use crate::{at, node, written};

const RECORDED_V1: &str = include_str!("testdata/states_v1.jsonl");
const RECORDED_V2: &str = include_str!("testdata/states_v2.jsonl");
const RECORDED_V3: &str = include_str!("testdata/states_v3.jsonl");
const RECORDED_V4: &str = include_str!("testdata/states_v4.jsonl");
const RECORDED: &str = include_str!("testdata/states_v5.jsonl");

/// The first line of a base snapshot names its format.
const HEADER_V1: &str = "farrier state 1\n";
const HEADER_V2: &str = "farrier state 2\n";
const HEADER_V3: &str = "farrier state 3\n";
const HEADER_V4: &str = "farrier state 4\n";
const HEADER: &str = "farrier state 5\n";

const SYMPTOMS: [Symptom; 4] =
    [Symptom::HeartbeatLost, Symptom::Network, Symptom::Fabric, Symptom::PowerOrCooling];

fn rationale() -> Rationale {
    Rationale::new(reason(), UnblockedBy::WindowOrApproval { at: at(60) })
}

fn reason() -> Reason {
    let evidence = "a driver waits for a boot".to_owned();
    Reason::VerificationFailed { level: VerificationLevel::V0, evidence, findings: vec![7] }
}

fn location() -> Location {
    Location {
        pool: "train".parse().unwrap(),
        tenant: "lab".parse().ok(),
        site: "north".parse().ok(),
        rack: "r1".parse().ok(),
        leaf: "l1".parse().ok(),
        nvlink: "nv1".parse().ok(),
        spine: "s1".parse().ok(),
        row: "row1".parse().ok(),
        pdu: "p1".parse().ok(),
    }
}

fn inventory(gpus: &[&str]) -> NodeInventory {
    let gpu = |uuid: &&str| GpuInventory {
        uuid: GpuUuid((*uuid).to_owned()),
        name: Some("NVIDIA H200".to_owned()),
        index: Some(3),
        pci: Some("0000:3b:00.0".to_owned()),
        serial: None,
    };
    NodeInventory {
        boot: "b1".to_owned(),
        agent: "0.1.0".to_owned(),
        kernel: Some("6.8.0".to_owned()),
        driver: Some("580.95.05".to_owned()),
        cuda: Some("13.0".to_owned()),
        gpus: Some(gpus.iter().map(gpu).collect()),
        frameworks: vec![("torch".to_owned(), "2.11.0".to_owned())],
        compliance: None,
    }
}

fn finding() -> Finding {
    let time = "2026-11-15T00:00:00Z";
    let in_boot = serde_json::json!({ "boot": "b1", "steady_ms": 5 });
    serde_json::from_value(serde_json::json!({
        "id": 7, "code": "gpu.xid", "detail": "Xid 79", "subject": { "gpu": "GPU-1" }, "kind": "fault",
        "severity": "fatal", "own_severity": "critical", "text": "it is gone", "action": "reset-gpu",
        "remedy": "reset it", "rule_action": "reset-gpu", "action_by": "driver",
        "evidence": [
            { "kernel": { "text": "Xid 79", "line": "NVRM: Xid 79", "pid": 5, "process": "python", "at": time } },
            { "check": { "text": "seen", "at": time } },
        ],
        "first_seen": time, "last_seen": time, "opened_in": in_boot, "last_in": in_boot, "count": 2,
        "clears": "it is back",
    }))
    .unwrap()
}

fn cordons() -> [Cordon; 4] {
    let external = Cordon::External { owner: "root".to_owned(), reason: "cable".to_owned() };
    [Cordon::Unknown, Cordon::None, Cordon::ByFarrier, external]
}

fn kinds() -> [OrderKind; 8] {
    [
        OrderKind::Cordon,
        OrderKind::Drain { wait_s: 60 },
        OrderKind::ResetGpu { gpu: GpuUuid("GPU-1".to_owned()) },
        OrderKind::Reboot,
        OrderKind::RestartService { unit: "nvidia-fabricmanager.service".to_owned() },
        OrderKind::Verify { level: VerificationLevel::V0 },
        OrderKind::Uncordon,
        OrderKind::AcknowledgeRepair { repair: "a board".to_owned() },
    ]
}

fn policy() -> Policy {
    let from = jiff::civil::time(22, 0, 0, 0);
    let window = Window { days: vec![Day::Sat], from, hours: 6, tz: None };
    let pool = PoolPolicy { repair_windows: vec![window], ..PoolPolicy::default() };
    let mut policy = Policy::default();
    policy.disruption_budgets.insert(
        DomainKind::Site,
        DisruptionBudget { share: 0.1, nodes: Some(4), allow_min_one: None },
    );
    policy.disruption_budgets.insert(
        DomainKind::Tenant,
        DisruptionBudget { share: 0.1, nodes: None, allow_min_one: None },
    );
    policy.pools_default = pool.clone();
    policy.pools.insert("train".parse().unwrap(), pool);
    policy.services.insert("fabric.down".to_owned(), "nvidia-fabricmanager.service".to_owned());
    policy
}

#[derive(Default)]
struct StateBuilder {
    state: FleetState,
}

impl StateBuilder {
    fn fold(&mut self, second: i64, event: Event) {
        let (seq, by, logic) = (self.state.seq + 1, Actor::User("ann".to_owned()), LOGIC_VERSION);
        self.state.apply(&Entry { seq, batch: seq, at: at(second), by, logic, event });
    }

    fn request(&mut self, second: i64, request: OperatorRequest) {
        self.fold(second, Event::OperatorRequested { request });
    }

    fn enter(&mut self, node: &NodeId, second: i64, to: NodePhase) {
        self.fold(second, Event::PhaseChanged { node: node.clone(), to, rationale: rationale() });
    }

    fn issue(&mut self, node: &NodeId, second: i64, kind: OrderKind) -> u64 {
        let generation = self.state.nodes[node].orders.generation() + 1;
        let order = Order {
            node: node.clone(),
            generation,
            kind,
            boot: Some("b1".to_owned()),
            lease_until: at(90),
            reason: reason(),
        };
        self.fold(second, Event::OrderIssued { order });
        generation
    }

    fn report_status(&mut self, node: &NodeId, second: i64, generation: u64, status: OrderStatus) {
        self.fold(second, Event::OrderStatusReported { node: node.clone(), generation, status });
    }

    fn issue_and_complete(&mut self, node: &NodeId, second: i64, kind: OrderKind) {
        let generation = self.issue(node, second, kind);
        self.report_status(
            node,
            second,
            generation,
            OrderStatus::Done { evidence: "all is well".to_owned() },
        );
    }

    fn issue_and_fail(&mut self, node: &NodeId, second: i64, kind: OrderKind) {
        let generation = self.issue(node, second, kind);
        self.report_status(
            node,
            second,
            generation,
            OrderStatus::Failed { reason: "job 5 runs on".to_owned() },
        );
    }

    /// Applies the events before the node enters its current phase.
    fn earlier_events(&mut self, id: &NodeId, number: usize) {
        let node = || id.clone();
        let verify = |level| OrderKind::Verify { level };
        self.fold(1, Event::Enrolled { node: node(), location: location() });
        self.fold(
            1,
            Event::InventoryReported { node: node(), inventory: inventory(&["GPU-1", "GPU-2"]) },
        );
        self.fold(2, Event::InventoryReported { node: node(), inventory: inventory(&["GPU-1"]) });
        self.enter(id, 3, NodePhase::InService);
        let record = JournalPosition { journal: "j1".to_owned(), number: 3 };
        self.fold(4, Event::FindingsSnapshot { node: node(), record, open: vec![finding()] });
        self.enter(id, 5, NodePhase::Quarantined);
        self.issue_and_complete(id, 6, OrderKind::Cordon);
        self.issue_and_complete(id, 7, OrderKind::Drain { wait_s: 60 });
        self.fold(8, Event::CordonObserved { node: node(), cordon: cordons()[number % 4].clone() });
        self.issue_and_fail(id, 9, verify(VerificationLevel::V2));
        self.enter(id, 10, NodePhase::Repairing);
        self.issue_and_complete(id, 11, OrderKind::Reboot);
        self.enter(id, 12, NodePhase::Quarantined);
        self.request(13, OperatorRequest::Repaired { node: node(), repair: "a board".to_owned() });
        self.request(13, OperatorRequest::Approve { node: node() });
    }

    /// Applies the node's change to its current phase, and the events in that phase.
    fn current_events(&mut self, id: &NodeId, number: usize) {
        let node = || id.clone();
        let verify = |level| OrderKind::Verify { level };
        self.enter(id, 14, NodePhase::ALL[number % 7]);
        self.issue_and_complete(id, 15, verify(VerificationLevel::V0));
        self.issue_and_fail(id, 16, verify(VerificationLevel::V1));
        self.request(17, OperatorRequest::Verify { node: node(), level: VerificationLevel::V3 });
        self.request(17, OperatorRequest::Hold { node: node(), reason: "a look".to_owned() });
        self.request(
            18,
            OperatorRequest::RunOrder {
                node: node(),
                order: OrderKind::Diag { level: 3, minutes: 10 },
            },
        );
        let diag = self.issue(id, 18, OrderKind::Diag { level: 3, minutes: 10 });
        self.fold(19, Event::OrderCancelled { node: node(), generation: diag, reason: reason() });
        let tune = OrderKind::Tune { profile: "training".to_owned() };
        self.request(19, OperatorRequest::RunOrder { node: node(), order: tune });
        self.issue_and_fail(id, 20, OrderKind::Cordon);
        let generation = self.issue(id, 21, kinds()[number].clone());
        self.report_status(id, 21, generation, OrderStatus::Accepted);
        self.fold(22, Event::QuotaExceeded { node: node() });
        self.fold(22, Event::ReportsUnreadable { node: node() });
        self.fold(23, Event::Deferred { node: node(), rationale: rationale() });
        if number > 0 {
            self.fold(24, Event::HeartbeatLost { node: node(), since: at(24) });
        }
        if number > 1 {
            let change = AccessChange::CertificateRevoked { node: node() };
            self.fold(25, Event::AccessChanged { number: number as u64, at: at(25), change });
        }
    }
}

/// A state with every field set.
fn sample() -> FleetState {
    let mut builder = StateBuilder::default();
    builder.fold(0, Event::PolicySet { policy: Box::new(policy()) });
    for number in 0..8 {
        let id = node(number as u64);
        builder.earlier_events(&id, number);
        builder.current_events(&id, number);
    }
    builder.fold(26, Event::Enrolled { node: node(9), location: location() });
    builder.fold(27, Event::Retired { node: node(9), reason: "sold".to_owned() });
    for (index, domain) in location().domains().into_iter().enumerate() {
        let freeze = OperatorRequest::Freeze {
            domain: domain.clone(),
            until: at(90),
            reason: "a deadline".to_owned(),
        };
        builder.request(30, freeze);
        let (symptom, nodes) = (SYMPTOMS[index % 4], vec![node(1)]);
        builder.fold(
            30,
            Event::DomainFaultDetected { domain, symptom, nodes, rationale: rationale() },
        );
    }
    let domain: Domain = "rack:r1".parse().unwrap();
    builder.request(31, OperatorRequest::DomainRepaired { domain, repair: "a fan".to_owned() });
    builder.fold(40, Event::ControllerResumed { last_ran: at(31) });
    builder.state
}

#[test]
fn every_field_of_a_node_is_recorded() {
    let state = serde_json::to_value(sample()).unwrap();
    let nodes = state["nodes"].as_object().unwrap();
    let mut fields = BTreeSet::new();
    for node in nodes.values() {
        for (field, value) in node.as_object().unwrap() {
            fields.insert(field.clone());
            for name in value.as_object().into_iter().flat_map(|value| value.keys()) {
                fields.insert(format!("{field}.{name}"));
            }
        }
    }
    let expected = [
        "first_in_service_at",
        "first_seq",
        "held_since_service",
        "inventory.reported",
        "inventory.missing_gpus",
        "liveness.certificate-revoked",
        "liveness.heartbeat-lost",
        "location.pool",
        "next_deadline",
        "orders.failures",
        "orders.generation",
        "orders.pending",
        "phase.deferred",
        "phase.phase",
        "phase.since",
        "phase.uncounted_s",
        "phase.rationale",
        "quarantines",
        "repairs.approved",
        "repairs.earlier",
        "repairs.pending_ack",
        "repairs.unverified",
        "reports.journal",
        "reports.trouble",
        "requests.hold",
        "requests.requested_order",
        "requests.results",
        "scheduling.cordoned",
        "symptoms.heartbeat-lost",
        "urgency.severity",
        "verification.failure",
        "verification.v0",
        "verification.v1",
        "verification.v2",
    ];
    for name in expected {
        assert!(fields.contains(name), "no node has {name}");
    }
}

/// Reads the base state of a log whose base snapshot consists of `bytes`.
fn base_state_from(bytes: &[u8]) -> Result<FleetState, LogError> {
    let folder = tempfile::tempdir().unwrap();
    let (log, head) = written(&folder, 5);
    let path = folder.path().join("log");
    drop(log);
    let digest = Hash::digest(bytes);
    let row = rusqlite::params![head.seq, head.hash.0, bytes, digest.0];
    let edited = rusqlite::Connection::open(&path).unwrap();
    edited.execute("INSERT INTO anchor VALUES (1, ?1, ?2, ?3, ?4)", row).unwrap();
    SqliteLog::open(&path).unwrap().base_state()
}

/// Names that changed after a state was recorded: the key of the enclosing value (`*` for any key),
/// the old name and the current name.
const RENAMED: [(&str, &str, &str); 34] = [
    ("failures", "why", "reason"),
    ("refused", "why", "reason"),
    ("*", "why", "rationale"),
    ("requested_order", "what", "order"),
    ("results", "what", "order"),
    ("by-hand", "what", "what"),
    ("acknowledge-repair", "what", "repair"),
    ("*", "what", "kind"),
    ("results", "answer", "status"),
    ("results", "withdrawn", "cancelled"),
    ("verify", "rung", "level"),
    ("*", "approve_reboot", "reboot_needs_approval"),
    ("*", "blame", "common_cause"),
    ("*", "blamed", "domain_faults"),
    ("*", "breakers", "disruption_budgets"),
    ("*", "drain_wait_s", "drain_timeout_s"),
    ("*", "errand", "requested_order"),
    ("*", "errands_ended", "results"),
    ("*", "in-repair", "repairing"),
    ("*", "makeup", "reported"),
    ("*", "note-repair", "acknowledge-repair"),
    ("*", "ours", "by-farrier"),
    ("*", "person", "user"),
    ("*", "place", "location"),
    ("*", "prove", "required_verifications"),
    ("*", "retry_s", "retry_backoff_s"),
    ("*", "silence", "heartbeat-lost"),
    ("*", "silent_s", "heartbeat_timeout_s"),
    ("*", "suspect_s", "suspect_timeout_s"),
    ("*", "tallies", "domain_counts"),
    ("*", "theirs", "external"),
    ("*", "tries", "max_attempts"),
    ("*", "wake", "next_deadline"),
    ("*", "wakes", "deadlines"),
];

/// Replaces the old names in a recorded value with the current names.
fn renamed(parent_key: &str, value: &Value) -> Value {
    let new_name = |name: &str| {
        let rename = RENAMED
            .iter()
            .find(|(parent, old, _)| (*parent == "*" || *parent == parent_key) && *old == name);
        rename.map_or(name, |(_, _, new)| new).to_owned()
    };
    match value {
        Value::Object(fields) => {
            let rename = |(name, value): (&String, &Value)| {
                let name = new_name(name);
                let value = renamed(&name, value);
                (name, value)
            };
            Value::Object(fields.iter().map(rename).collect())
        }
        Value::Array(items) => items.iter().map(|item| renamed(parent_key, item)).collect(),
        Value::String(text) => new_name(text).into(),
        _ => value.clone(),
    }
}

/// Whether `now` has every value of `then`. `now` may have more fields.
fn contains(now: &Value, then: &Value) -> bool {
    match (now, then) {
        (Value::Object(now), Value::Object(then)) => {
            then.iter().all(|(name, then)| now.get(name).is_some_and(|now| contains(now, then)))
        }
        (Value::Array(now), Value::Array(then)) => {
            now.len() == then.len() && now.iter().zip(then).all(|(now, then)| contains(now, then))
        }
        _ => now == then,
    }
}

#[test]
fn the_current_state_format_is_recorded() {
    let line = serde_json::to_string(&sample()).unwrap();
    if RECORDED.lines().any(|other| other == line) {
        return;
    }
    assert!(
        std::env::var_os("FARRIER_BLESS").is_some(),
        "the state format differs from the recorded one"
    );
    let mut recorded = RECORDED.to_owned();
    writeln!(recorded, "{line}").unwrap();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/log/testdata/states_v5.jsonl");
    std::fs::write(file, recorded).unwrap();
}

#[test]
fn every_recorded_state_still_reads() {
    for recorded in [RECORDED, RECORDED_V4, RECORDED_V3, RECORDED_V2, RECORDED_V1] {
        assert!(!recorded.is_empty());
    }
    let flat = [(RECORDED, HEADER), (RECORDED_V4, HEADER_V4), (RECORDED_V3, HEADER_V3)];
    for (recorded, header) in flat {
        for line in recorded.lines() {
            let then = renamed("", &serde_json::from_str(line).unwrap());
            let state = base_state_from(format!("{header}{line}").as_bytes()).unwrap();
            let now = serde_json::to_value(&state).unwrap();
            assert!(contains(&now, &then), "a field is lost: {now}");
        }
    }
    // Before format 1, base snapshots had the same JSON without a header.
    let old = [(RECORDED_V2, HEADER_V2), (RECORDED_V1, HEADER_V1), (RECORDED_V1, "")];
    for (recorded, header) in old {
        for line in recorded.lines() {
            let then: Value = serde_json::from_str(line).unwrap();
            let state = base_state_from(format!("{header}{line}").as_bytes()).unwrap();
            for (id, node) in &state.nodes {
                check_converted_node(node, &then["nodes"][id.as_str()]);
            }
            let now = serde_json::to_value(&state).unwrap();
            // Other fields are not compared: nodes are checked above, reading counts the nodes of
            // each domain again, and the reason of a domain fault is a sentence in format 1.
            let then = renamed("", &then);
            for name in ["seq", "at", "policy", "retired", "freezes", "symptoms", "deadlines"] {
                assert!(contains(&now[name], &then[name]), "{name} is lost: {now}");
            }
        }
    }
}

/// Checks a node that was converted from format 1 or 2: the conversion keeps all consistent values.
fn check_converted_node(node: &Node, then: &Value) {
    let check = |name: &str, now: Value| {
        let above = if name == "errand" { "requested_order" } else { name };
        assert_eq!(now, renamed(above, &then[name]), "{name}");
    };
    let time = |other: Option<jiff::Timestamp>| serde_json::to_value(other).unwrap();
    let text = |value: Option<&str>| serde_json::to_value(value).unwrap();
    check("standing", serde_json::to_value(node.phase()).unwrap());
    check("since", time(Some(node.phase.since())));
    check("silent_since", time(node.liveness.heartbeat_lost_since()));
    check("revoked", time(node.liveness.certificate_revoked_at()));
    check("over_quota_since", time(node.reports.over_quota_since()));
    check("unreadable_since", time(node.reports.unreadable_since()));
    check("wake", time(node.next_deadline));
    check("cordon", serde_json::to_value(node.scheduling.cordon()).unwrap());
    check("generation", node.orders.generation().into());
    check("approved", node.repairs.is_approved().into());
    check("mended", node.repairs.unverified().is_some().into());
    check("untold_repair", text(node.repairs.pending_ack()));
    check("hold", serde_json::to_value(&node.requests.hold).unwrap());
    check("errand", serde_json::to_value(&node.requests.requested_order).unwrap());
    check("record", serde_json::to_value(node.reports.record()).unwrap());
    check("quarantines", serde_json::to_value(&node.quarantines).unwrap());
    check("makeup", serde_json::to_value(node.reported_inventory()).unwrap());
    assert!(contains(&serde_json::to_value(node.findings()).unwrap(), &then["findings"]));
    assert_eq!(node.repairs.attempts().count(), then["repairs"].as_array().unwrap().len());
    assert_eq!(node.phase.deferred().is_some(), then["held_back"].is_object());
    let pending = node.orders.pending().unwrap();
    assert_eq!(pending.accepted, then["order"]["accepted"].as_bool().unwrap());
    assert_eq!((&pending.faults, &then["order"]["order"]["generation"]), (&None, &Value::from(4)));
    // The conversion drops inconsistent values: a drain without a cordon, a requested verification
    // of a node out of service, and the pass of a level that is still required.
    let drained = node.scheduling.is_cordoned() && then["drained"] == true;
    assert_eq!(node.scheduling.is_drained(), drained);
    let requested = node.phase.requested_verification().is_some();
    assert_eq!(requested, node.phase().in_service() && then["prove_now"].is_string());
    let failures = node.orders.failures().map_or(0, |failure| failure.count.get());
    assert_eq!(failures, if then["failed_order"].is_null() { 0 } else { 2 });
    for result in node.verification.results() {
        assert!(result.passed && result.evidence == "all is well");
    }
    let required: Vec<VerificationLevel> = node.verification.required().collect();
    let required_then = [("unproven", VerificationLevel::V0), ("owed", VerificationLevel::V3)];
    let required_then = required_then.into_iter().filter(|(name, _)| !then[*name].is_null());
    assert_eq!(required, required_then.map(|(_, level)| level).collect::<Vec<_>>());
}

/// In earlier formats, only a sentence names the faults that a repair was for, and the server does
/// not parse this sentence. It therefore assumes that the repair was for any fault, and does not
/// repeat the repair.
#[test]
fn a_repair_of_an_earlier_format_is_not_repeated() {
    let mut line: Value = serde_json::from_str(RECORDED_V2.lines().last().unwrap()).unwrap();
    let id = node(1);
    let recorded_node = &mut line["nodes"][id.as_str()];
    for (name, value) in [
        ("standing", "in-repair".into()),
        ("cordon", "ours".into()),
        ("repairs", serde_json::json!([{ "ordered": "reboot" }])),
        ("mended", false.into()),
        ("order", Value::Null),
        ("hold", Value::Null),
        ("revoked", Value::Null),
        ("errand", Value::Null),
        ("failed", Value::Null),
        ("unproven", Value::Null),
    ] {
        recorded_node[name] = value;
    }
    recorded_node["findings"]["7"]["action"] = "reboot-node".into();
    line["freezes"] = serde_json::json!({});
    line["blamed"] = serde_json::json!({});
    let mut state = base_state_from(format!("{HEADER_V2}{line}").as_bytes()).unwrap();
    state.policy = Policy::default();
    let dirty = BTreeSet::from([id.clone()]);
    let decided = decide(&state, &dirty, at(100)).events;
    let [Event::Deferred { rationale, .. }] = decided.as_slice() else { panic!("{decided:?}") };
    assert_eq!(rationale.unblocked_by, UnblockedBy::OperatorRepair, "{rationale:?}");
    // Without that repair the node is rebooted.
    line["nodes"][id.as_str()]["repairs"] = serde_json::json!([]);
    let mut state = base_state_from(format!("{HEADER_V2}{line}").as_bytes()).unwrap();
    state.policy = Policy::default();
    let decided = decide(&state, &dirty, at(100)).events;
    let [Event::OrderIssued { order }] = decided.as_slice() else { panic!("{decided:?}") };
    assert_eq!(order.kind, OrderKind::Reboot);
}

#[test]
fn sentences_of_format_1_and_their_deadlines_are_kept() {
    let line = RECORDED_V1.lines().last().unwrap();
    let state = base_state_from(format!("{HEADER_V1}{line}").as_bytes()).unwrap();
    let node = &state.nodes[&node(1)];
    let rationale = node.phase.rationale();
    assert_eq!(rationale.reason.to_string(), "Xid 79 on GPU 3");
    assert_eq!(rationale.reason.findings(), [7]);
    assert_eq!(rationale.unblocked_by.to_string(), "the finding clears");
    assert_eq!(rationale.unblocked_by.changes_at(), Some(at(60)));
    assert!(rationale.unblocked_by.is_approvable());
    assert_eq!(node.orders.pending().unwrap().order.reason.to_string(), "Xid 79");
    assert_eq!(node.orders.failures().unwrap().reason.to_string(), "job 5 runs on");
}

/// Format 1 does not record which nodes have been in service. A held node must still leave its
/// domains' count of nodes out of service when it returns to service.
#[test]
fn nodes_of_format_1_are_counted_by_current_rules() {
    let entry = |seq, at, event| {
        let logic = LOGIC_VERSION;
        Entry { seq, batch: seq, at, by: Actor::Server, logic, event }
    };
    let location = Location::in_pool("train".parse().unwrap());
    let fleet = location.domains().remove(0);
    let change_phase = |state: &mut FleetState, number: u64, to: NodePhase| {
        let event = Event::PhaseChanged { node: node(number), to, rationale: rationale() };
        state.apply(&entry(5, at(2), event));
    };
    // A state as format 1 wrote it, which counted the held node as out of service.
    let mut state_v1: Value = serde_json::from_str(RECORDED_V1.lines().next().unwrap()).unwrap();
    let template = state_v1["nodes"]["n1"].clone();
    let mut nodes = serde_json::Map::new();
    for (number, phase) in [(1, "held"), (2, "in-service"), (3, "joining")] {
        let mut node_v1 = template.clone();
        node_v1["place"] = serde_json::to_value(&location).unwrap();
        node_v1["standing"] = phase.into();
        node_v1["quarantines"] = serde_json::json!([]);
        nodes.insert(node(number).to_string(), node_v1);
    }
    state_v1["nodes"] = nodes.into();
    state_v1["tallies"] = serde_json::json!({ "fleet": { "members": 3, "out": 1 } });
    let mut state = base_state_from(format!("{HEADER_V1}{state_v1}").as_bytes()).unwrap();
    let out = |state: &FleetState| {
        let DomainCounts { members, out, disrupted, .. } = state.domain_counts[&fleet];
        (members, out, disrupted)
    };
    assert_eq!(out(&state), (3, 1, 0));
    change_phase(&mut state, 2, NodePhase::Held);
    assert_eq!(out(&state), (3, 2, 0), "it was in service");
    change_phase(&mut state, 1, NodePhase::Verifying);
    assert_eq!(out(&state), (3, 2, 0), "a node that was held uses no budget");
    change_phase(&mut state, 1, NodePhase::InService);
    assert_eq!(out(&state), (3, 1, 0));
    change_phase(&mut state, 1, NodePhase::Quarantined);
    assert_eq!(out(&state), (3, 2, 1));
}

#[test]
fn a_base_snapshot_starts_with_its_version() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, _) = written(&folder, 5);
    let old = folder.path().join("old");
    farrier_server::log::archive(&mut log, at(1), &old).unwrap().unwrap();
    let file = rusqlite::Connection::open(folder.path().join("log")).unwrap();
    let bytes: Vec<u8> = file.query_row("SELECT state FROM anchor", [], |row| row.get(0)).unwrap();
    let state = log.base_state().unwrap();
    let expected = format!("{HEADER}{}", serde_json::to_string(&state).unwrap());
    assert_eq!(String::from_utf8(bytes).unwrap(), expected);
    let later = base_state_from(expected.replacen('5', "6", 1).as_bytes()).unwrap_err().to_string();
    assert!(later.contains("by a later version"), "{later}");
    let nothing = base_state_from(b"farrier").unwrap_err();
    assert!(matches!(nothing, LogError::MissingBaseSnapshot(5)), "{nothing}");
}
