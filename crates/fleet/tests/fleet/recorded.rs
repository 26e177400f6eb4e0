//! Entries in every format stay readable. `testdata/v1.jsonl` to `v3.jsonl` hold entries with every
//! kind of event, as each format wrote them.
//!
//! `FARRIER_BLESS=1 cargo test -p farrier-fleet --test fleet recorded` appends missing lines.
//! Recorded lines are never changed.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use farrier_facts::node::ReadError;
use farrier_fleet::fleet::coverage::{CoverageReport, GapNames, GapSource, NodeCoverageGap};
use farrier_fleet::fleet::describe_event::KINDS;
use farrier_fleet::fleet::event::{
    Cordon, DecodeError, GpuInventory, JournalPosition, NodeInventory, OperatorRequest,
};
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::order::VerificationLevel;
use farrier_fleet::fleet::policy::PolicySignature;
use farrier_fleet::fleet::reason::samples;
use farrier_fleet::fleet::state::Symptom;
use farrier_fleet::fleet::window::{Day, Window};
use farrier_fleet::fleet::{
    AccessChange, Domain, Entry, Event, FleetState, Location, NodePhase, Order, OrderKind,
    OrderStatus, Policy, Rationale, Reason, Role, UnblockedBy,
};
use farrier_fleet::health::finding::Cleared;
use farrier_fleet::health::{Action, Change, GpuUuid, Severity, Subject};

use crate::test_fleet::{finding, location, node, start};

const RECORDED_V1: &str = include_str!("testdata/v1.jsonl");
const RECORDED_V2: &str = include_str!("testdata/v2.jsonl");
const RECORDED: &str = include_str!("testdata/v3.jsonl");

fn rationale() -> Rationale {
    Rationale::new(reason(), UnblockedBy::Repair)
}

fn reason() -> Reason {
    Reason::HeartbeatLost { since: start() }
}

fn node_events() -> Vec<Event> {
    let id = node(1);
    let mut location = location(1);
    (location.tenant, location.site, location.nvlink) =
        ("lab".parse().ok(), "north".parse().ok(), "nv1".parse().ok());
    let gpu = GpuInventory {
        uuid: GpuUuid("GPU-1".to_owned()),
        name: Some("NVIDIA H200".to_owned()),
        index: Some(3),
        pci: Some("0000:3b:00.0".to_owned()),
        serial: None,
    };
    let inventory = NodeInventory {
        boot: "b1".to_owned(),
        agent: "0.1.0".to_owned(),
        kernel: Some("6.8.0".to_owned()),
        driver: Some("580.95.05".to_owned()),
        cuda: Some("13.0".to_owned()),
        gpus: Some(vec![gpu]),
        frameworks: vec![("torch".to_owned(), "2.11.0".to_owned())],
        compliance: None,
    };
    vec![
        Event::Enrolled { node: id.clone(), location },
        Event::LocationChanged {
            node: id.clone(),
            location: Location::in_pool("serve".parse().unwrap()),
        },
        Event::Retired { node: id.clone(), reason: "sold".to_owned() },
        Event::InventoryReported { node: id.clone(), inventory },
        Event::HeartbeatLost { node: id.clone(), since: start() },
        Event::HeartbeatRestored { node: id },
    ]
}

fn finding_events() -> Vec<Event> {
    let open = finding(7, Severity::Fatal, Action::ResetGpu, "gpu.xid", start());
    let mut closed = open.clone();
    closed.cleared = Some(Cleared { at: start(), reason: "a reset".to_owned() });
    let record = JournalPosition { journal: "j1".to_owned(), number: 3 };
    let changes =
        vec![Change::Opened(open.clone()), Change::Updated(open.clone()), Change::Cleared(closed)];
    vec![
        Event::FindingsReported { node: node(1), record: record.clone(), changes },
        Event::FindingsSnapshot { node: node(1), record, open: vec![open] },
    ]
}

fn cordon_and_order_status_events() -> Vec<Event> {
    let external = Cordon::External { owner: "root".to_owned(), reason: "cable".to_owned() };
    let cordons = [Cordon::Unknown, Cordon::None, Cordon::ByFarrier, external];
    let statuses = [
        OrderStatus::Accepted,
        OrderStatus::Done { evidence: "drained".to_owned() },
        OrderStatus::Failed { reason: "job 5 runs on".to_owned() },
        OrderStatus::Refused { reason: "the lease is over".to_owned() },
    ];
    let observed = cordons.map(|cordon| Event::CordonObserved { node: node(1), cordon });
    let reported =
        statuses.map(|status| Event::OrderStatusReported { node: node(1), generation: 4, status });
    observed.into_iter().chain(reported).collect()
}

fn operator_request_events() -> Vec<Event> {
    let id = node(1);
    let domain = Domain::Rack("r1".parse().unwrap());
    let requests = [
        OperatorRequest::Hold { node: id.clone(), reason: "a look".to_owned() },
        OperatorRequest::Release { node: id.clone() },
        OperatorRequest::Repaired { node: id.clone(), repair: "a new board".to_owned() },
        OperatorRequest::Approve { node: id.clone() },
        OperatorRequest::Freeze {
            domain: domain.clone(),
            until: start(),
            reason: "a deadline".to_owned(),
        },
        OperatorRequest::Unfreeze { domain: domain.clone() },
        OperatorRequest::Verify { node: id, level: VerificationLevel::V1 },
        OperatorRequest::DomainRepaired { domain, repair: "a new switch".to_owned() },
    ];
    requests.map(|request| Event::OperatorRequested { request }).into_iter().collect()
}

fn ordered(kind: OrderKind) -> Event {
    Event::OrderIssued {
        order: Order {
            node: node(1),
            generation: 4,
            kind,
            boot: Some("b1".to_owned()),
            lease_until: start(),
            reason: reason(),
        },
    }
}

fn decision_events() -> Vec<Event> {
    let id = node(1);
    let kinds = [
        OrderKind::Cordon,
        OrderKind::Drain { wait_s: 60 },
        OrderKind::ResetGpu { gpu: GpuUuid("GPU-1".to_owned()) },
        OrderKind::Reboot,
        OrderKind::RestartService { unit: "nvidia-fabricmanager.service".to_owned() },
        OrderKind::Verify { level: VerificationLevel::V0 },
        OrderKind::Uncordon,
    ];
    let orders = kinds.map(ordered);
    let phase_changes =
        NodePhase::ALL.map(|to| Event::PhaseChanged { node: node(1), to, rationale: rationale() });
    let symptoms =
        [Symptom::HeartbeatLost, Symptom::Network, Symptom::Fabric, Symptom::PowerOrCooling];
    let domain = Domain::Leaf("l1".parse().unwrap());
    let domain_faults = symptoms.map(|symptom| Event::DomainFaultDetected {
        domain: domain.clone(),
        symptom,
        nodes: vec![node(1), node(2)],
        rationale: rationale(),
    });
    let mut events: Vec<Event> =
        orders.into_iter().chain(phase_changes).chain(domain_faults).collect();
    events.push(Event::OrderCancelled { node: id.clone(), generation: 4, reason: reason() });
    events.push(Event::Deferred { node: id.clone(), rationale: rationale() });
    // Every `Reason` once, and every `UnblockedBy` in turn.
    let mut unblocked_by = samples::unblocked_by().into_iter().cycle();
    for reason in samples::reasons() {
        let rationale = Rationale::new(reason, unblocked_by.next().unwrap());
        events.push(Event::Deferred { node: id.clone(), rationale });
    }
    events.push(Event::DomainFaultCleared { domain, rationale: rationale() });
    events
}

fn access_events() -> Vec<Event> {
    let changes = [
        AccessChange::JoinTokenCreated {
            token: 1,
            pool: "train".parse().unwrap(),
            node: Some(node(1)),
            uses: 4,
            expires: start(),
            location: None,
        },
        AccessChange::UserAdded {
            token: 2,
            name: "ann".to_owned(),
            role: Role::Operator,
            scope: "pool:train".parse().unwrap(),
            expires: start(),
        },
        AccessChange::TokenRevoked { token: 2, name: Some("ann".to_owned()) },
        AccessChange::CertificateRevoked { node: node(1) },
    ];
    let event = |(number, change)| Event::AccessChanged { number, at: start(), change };
    (1..).zip(changes).map(event).collect()
}

/// Events that were added after the first recording. They come last, so that the recorded lines
/// keep their sequence numbers.
fn events_of_later_versions() -> Vec<Event> {
    let token_with_location = AccessChange::JoinTokenCreated {
        token: 3,
        pool: "train".parse().unwrap(),
        node: None,
        uses: 18,
        expires: start(),
        location: Some(Box::new(location(1))),
    };
    let diag = OrderKind::Diag { level: 3, minutes: 10 };
    let tune = OrderKind::Tune { profile: "training".to_owned() };
    vec![
        Event::AccessChanged { number: 5, at: start(), change: token_with_location },
        Event::OrderGenerationObserved { node: node(1), generation: 41 },
        Event::OperatorRequested {
            request: OperatorRequest::RunOrder { node: node(1), order: diag.clone() },
        },
        Event::OperatorRequested {
            request: OperatorRequest::RunOrder { node: node(1), order: tune.clone() },
        },
        ordered(diag),
        ordered(tune),
        ordered(OrderKind::AcknowledgeRepair { repair: "a board".to_owned() }),
        Event::ClockStepped { from: start(), to: start() },
        Event::ControllerResumed { last_ran: start() },
        Event::QuotaExceeded { node: node(1) },
        Event::QuotaRestored { node: node(1) },
        Event::ReportsUnreadable { node: node(1) },
        Event::ReportsReadable { node: node(1) },
        Event::OrderStatusReported {
            node: node(1),
            generation: 4,
            status: OrderStatus::Inconclusive { reason: "a reading is missing".to_owned() },
        },
        Event::CoverageReported { node: node(1), coverage: coverage() },
    ]
}

/// A report with every kind of gap.
fn coverage() -> CoverageReport {
    let names = || GapNames::new(["a", "b", "c", "d", "e"].map(str::to_owned));
    let sources = [
        GapSource::Nvml,
        GapSource::Gpus { opened: 7, on_bus: 8 },
        GapSource::Gpu,
        GapSource::Signals(names()),
        GapSource::Peers,
        GapSource::KernelLog,
        GapSource::Journal,
        GapSource::Collectors(names()),
        GapSource::Monitor,
        GapSource::NodeCheck,
        GapSource::Check { check: "ecc-pending".to_owned() },
        GapSource::Unknown,
    ];
    let gaps = sources.map(|source| NodeCoverageGap {
        subject: Subject::Gpu(GpuUuid("GPU-1".to_owned())),
        source,
        cause: ReadError::nvml(999),
        since: start(),
    });
    CoverageReport { gaps: gaps.into(), more: 3 }
}

fn policy_with_a_window() -> Policy {
    let mut policy = Policy::default();
    let from = jiff::civil::time(22, 0, 0, 0);
    policy.pools_default.repair_windows.push(Window {
        days: vec![Day::Sat, Day::Sun],
        from,
        hours: 6,
        tz: None,
    });
    policy
}

/// The second version of the document, with every part.
fn policy_with_changes() -> Policy {
    let mut policy = crate::policy::example();
    policy.signatures.push(PolicySignature { key: "00".to_owned(), signature: "11".to_owned() });
    policy
}

/// Entries with at least one event of each kind, with every field set.
fn samples() -> Vec<Entry> {
    let mut events = node_events();
    events.extend(finding_events());
    events.extend(cordon_and_order_status_events());
    events.extend(operator_request_events());
    events.push(Event::PolicySet { policy: Box::new(Policy::default()) });
    events.push(Event::PolicySet { policy: Box::new(policy_with_a_window()) });
    events.push(Event::Tick);
    events.extend(decision_events());
    events.extend(access_events());
    events.extend(events_of_later_versions());
    events.push(Event::PolicySet { policy: Box::new(policy_with_changes()) });
    let by = [Actor::Server, Actor::Node(node(1)), Actor::User("ann".to_owned())];
    let entry = |(index, event): (usize, Event)| {
        let seq = index as u64 + 1;
        // The logic version is constant, so that a new version needs no new lines.
        let (by, logic) = (by[index % by.len()].clone(), 1);
        Entry { seq, batch: seq, at: start(), by, logic, event }
    };
    events.into_iter().enumerate().map(entry).collect()
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test writes its data when asked to bless")]
fn entries_of_the_current_format_are_recorded() {
    let missing: Vec<String> = samples()
        .iter()
        .map(|entry| String::from_utf8(entry.encode().unwrap()).unwrap())
        .filter(|line| !RECORDED.lines().any(|recorded| recorded == line))
        .collect();
    if std::env::var_os("FARRIER_BLESS").is_some() {
        let mut recorded = RECORDED.to_owned();
        for line in &missing {
            writeln!(recorded, "{line}").unwrap();
        }
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fleet/testdata/v3.jsonl");
        std::fs::write(file, recorded).unwrap();
        return;
    }
    assert_eq!(missing, [""; 0], "the encoding of events differs from the recorded one");
}

#[test]
fn entries_of_every_format_still_decode() {
    // Formats 1 and 2 are no longer written, so they have no events of a later kind.
    let later = BTreeSet::from(["coverage-reported"]);
    let all: BTreeSet<&str> = KINDS.into_iter().collect();
    let before = || all.difference(&later).copied().collect();
    for (recorded, expected) in
        [(RECORDED_V1, before()), (RECORDED_V2, before()), (RECORDED, all.clone())]
    {
        let mut kinds = BTreeSet::new();
        let mut state = FleetState::default();
        for line in recorded.lines() {
            let entry = Entry::decode(line.as_bytes()).unwrap();
            let kind = entry.event.kind();
            assert!(!entry.event.describe().is_empty());
            kinds.insert(kind);
            state.apply(&entry);
        }
        assert_eq!(kinds, expected, "one event of each kind is recorded");
    }
}

#[test]
fn an_entry_in_a_newer_format_is_rejected() {
    let mut line = String::from_utf8(samples()[0].encode().unwrap()).unwrap();
    line = line.replacen("{\"v\":3", "{\"v\":4", 1);
    assert!(matches!(Entry::decode(line.as_bytes()), Err(DecodeError::Newer { found: 4 })));
}

#[test]
fn the_event_kind_is_the_json_key() {
    for line in RECORDED.lines() {
        let kind = Entry::decode(line.as_bytes()).unwrap().event.kind();
        assert!(line.contains(&format!("\"{kind}\"")), "{kind}: {line}");
    }
}
