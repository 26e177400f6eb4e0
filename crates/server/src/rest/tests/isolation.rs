//! Isolation: a caller whose scope is one pool sees neither names nor counts of another pool. This
//! is tested for every reason and for every path that reads.

use std::collections::BTreeSet;

use farrier_fleet::fleet::event::{GpuInventory, JournalPosition, NodeInventory};
use farrier_fleet::fleet::reason::samples;
use farrier_fleet::fleet::state::Symptom;
use farrier_fleet::fleet::{NodePhase, Order, OrderKind, Policy, Rationale, Reason, UnblockedBy};
use farrier_fleet::health::{Change, Finding, GpuUuid};

use super::*;

const OWN: &str = "mine";
const FOREIGN: [&str; 3] = ["zz-node-1", "zz-node-2", "zz-node-3"];
const FOREIGN_POOL: &str = "zz-secret";
const FOREIGN_RACK: &str = "zz-rack";
/// A rack with nodes of both pools.
const SHARED_RACK: &str = "shared";
/// Names that only the other pool has.
const NAMES: [&str; 5] = ["zz-node", FOREIGN_POOL, FOREIGN_RACK, "ZZ-GPU", "zz-code"];

fn id(name: &str) -> NodeId {
    name.parse().unwrap()
}

fn domain(text: &str) -> Domain {
    text.parse().unwrap()
}

/// Returns the markers that a text contains: names and counts of the other pool. Counts match whole
/// words only, so that digits of times do not match.
fn markers(text: &str) -> BTreeSet<String> {
    let names = NAMES.into_iter().filter(|name| text.contains(name)).map(str::to_owned);
    let counts = samples::FOREIGN_COUNTS.map(|foreign_count| foreign_count.to_string());
    let words: BTreeSet<&str> = text.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    names.chain(counts.into_iter().filter(|count| words.contains(count.as_str()))).collect()
}

/// All reasons and all conditions that unblock a node, each about the fleet, about the shared rack
/// and about the other pool.
fn cases() -> Vec<Rationale> {
    let domains = [Domain::Fleet, domain("rack:shared"), domain("pool:zz-secret")];
    let mut cases = Vec::new();
    for about in domains {
        let pool = FOREIGN_POOL.parse().ok();
        let reasons = samples::reasons_naming(&about, pool);
        let pool = FOREIGN_POOL.parse().ok();
        let unblocked_by = samples::unblocked_by_naming(&about, pool, Some(id(FOREIGN[0])));
        let count = reasons.len().max(unblocked_by.len());
        let pairs = reasons.into_iter().cycle().zip(unblocked_by.into_iter().cycle());
        cases.extend(
            pairs.take(count).map(|(reason, unblocked_by)| Rationale::new(reason, unblocked_by)),
        );
    }
    cases
}

impl Fixture {
    async fn log(&self, event: Event) {
        let by = event.node().cloned().map_or(Actor::Server, Actor::Node);
        self.app().controller.submit(by, event).await.unwrap();
    }

    /// Creates the caller's pool with one node, and another pool with three nodes, one of them in
    /// the same rack.
    async fn two_pools() -> Self {
        let fixture = Self::new().await;
        fixture.enrol(OWN, "train", SHARED_RACK).await;
        let racks = [SHARED_RACK, FOREIGN_RACK, FOREIGN_RACK];
        for (name, rack) in FOREIGN.into_iter().zip(racks) {
            fixture.enrol(name, FOREIGN_POOL, rack).await;
        }
        for name in FOREIGN.into_iter().chain([OWN]) {
            let is_own = name == OWN;
            let gpu = |at: u32| GpuInventory {
                uuid: GpuUuid(format!("{}-{at}", if is_own { "GPU" } else { "ZZ-GPU" })),
                name: Some(if is_own { "NVIDIA H200" } else { "ZZ-GPU" }.to_owned()),
                index: Some(at),
                pci: None,
                serial: None,
            };
            let gpus = Some((0..2).map(gpu).collect());
            let inventory =
                NodeInventory { boot: "b".to_owned(), gpus, ..NodeInventory::default() };
            fixture.log(Event::InventoryReported { node: id(name), inventory }).await;
            let record = JournalPosition { journal: "j".to_owned(), number: 1 };
            let changes = vec![Change::Opened(finding(is_own))];
            fixture.log(Event::FindingsReported { node: id(name), record, changes }).await;
            let reason = "a look".to_owned();
            let hold = OperatorRequest::Hold { node: id(name), reason };
            fixture.log(Event::OperatorRequested { request: hold }).await;
        }
        let mut policy = Policy::default();
        // One node is enough to detect a domain fault.
        (policy.common_cause.nodes, policy.common_cause.share) = (1, 0.01);
        policy.pools.insert(FOREIGN_POOL.parse().unwrap(), policy.pools_default.clone());
        fixture.log(Event::PolicySet { policy: Box::new(policy) }).await;
        let until = fixture.app().controller.now() + SignedDuration::from_hours(1);
        for name in ["rack:zz-rack", "pool:zz-secret"] {
            let what =
                OperatorRequest::Freeze { domain: domain(name), until, reason: "work".to_owned() };
            fixture.log(Event::OperatorRequested { request: what }).await;
        }
        fixture
    }

    /// Logs the reason wherever a reason can appear: phase, deferral, order, cancelled order,
    /// operator-requested order and domain fault.
    async fn log_reason(&self, why: &Rationale) {
        let reason = || why.reason.clone();
        for name in [OWN, FOREIGN[0]] {
            let node = || id(name);
            let orders = self.app().controller.read({
                let node = node();
                move |state| {
                    let orders = &state.nodes[&node].orders;
                    (orders.generation(), orders.pending().map(|pending| pending.order.generation))
                }
            });
            let (last, pending) = orders.await.unwrap();
            if let Some(generation) = pending {
                let why = reason();
                self.log(Event::OrderCancelled { node: node(), generation, reason: why }).await;
            }
            let order = |generation, what| Order {
                node: node(),
                generation,
                kind: what,
                boot: None,
                lease_until: self.app().controller.now() + SignedDuration::from_hours(1),
                reason: reason(),
            };
            let diag = OrderKind::Diag { level: 1, minutes: 0 };
            self.log(Event::OrderIssued { order: order(last + 10, diag) }).await;
            let (generation, refused) = (last + 10, reason());
            self.log(Event::OrderCancelled { node: node(), generation, reason: refused }).await;
            self.log(Event::PhaseChanged {
                node: node(),
                to: NodePhase::Held,
                rationale: why.clone(),
            })
            .await;
            self.log(Event::OrderIssued { order: order(last + 20, OrderKind::Cordon) }).await;
            self.log(Event::Deferred { node: node(), rationale: why.clone() }).await;
        }
        for (name, nodes) in [
            ("rack:shared", vec![id(OWN), id(FOREIGN[0])]),
            ("rack:zz-rack", vec![id(FOREIGN[1]), id(FOREIGN[2])]),
        ] {
            let (domain, symptom) = (domain(name), Symptom::Network);
            let cleared =
                Event::DomainFaultCleared { domain: domain.clone(), rationale: why.clone() };
            self.log(cleared).await;
            self.log(Event::DomainFaultDetected { domain, symptom, nodes, rationale: why.clone() })
                .await;
        }
    }

    /// Cancels the pending order for this reason. The last result is shown only while no order is
    /// pending.
    async fn withdraw(&self, why: &Rationale) {
        let pending = self.app().controller.read(|state| {
            state.nodes[&id(OWN)].orders.pending().map(|pending| pending.order.generation)
        });
        let generation = pending.await.unwrap().unwrap();
        let (node, why) = (id(OWN), why.reason.clone());
        self.log(Event::OrderCancelled { node, generation, reason: why }).await;
    }

    /// The text of the answer, even if the request is refused.
    async fn get(&self, path: &str, scope: &str) -> String {
        let mut body = match self.request(&Method::GET, path, scope, "").await {
            Ok(reply) => reply.into_response(None).into_body(),
            Err(failure) => return serde_json::to_string(&failure.problem).unwrap(),
        };
        let mut text = String::new();
        while let Some(frame) = body.frame().await {
            let bytes = frame.unwrap().into_data().unwrap_or_default();
            text.push_str(str::from_utf8(&bytes).unwrap());
        }
        text
    }

    /// Reads the stream up to the last entry that the caller may see.
    async fn follow(&self, after: u64, scope: &str) -> String {
        let page = self.get(&format!("/api/v1/events?after={after}&limit=500"), scope).await;
        let page: serde_json::Value = serde_json::from_str(&page).unwrap();
        let Some(last) = page["events"].as_array().and_then(|items| items.last()) else {
            return String::new();
        };
        let last = format!("id: {}\n", last["seq"]);
        let path = format!("/api/v1/events/stream?after={after}");
        let stream = self.request(&Method::GET, &path, scope, "").await;
        let Ok(reply) = stream else { panic!("{path} is a stream") };
        let mut body = reply.into_response(None).into_body();
        let mut text = String::new();
        while !text.contains(&last) {
            let frame = body.frame().await.unwrap().unwrap();
            text.push_str(str::from_utf8(&frame.into_data().unwrap()).unwrap());
        }
        text
    }
}

fn finding(is_own: bool) -> Finding {
    let (code, gpu) = if is_own { ("nic.down", "GPU-0") } else { ("nic.zz-code", "ZZ-GPU-0") };
    serde_json::from_value(serde_json::json!({
        "id": 1, "code": code, "subject": { "gpu": gpu }, "kind": "fault", "severity": "fatal",
        "text": "it is gone", "action": "investigate", "rule_action": "investigate",
        "action_by": "rule", "evidence": [], "first_seen": "2026-11-15T00:00:00Z",
        "last_seen": "2026-11-15T00:00:00Z", "count": 1, "clears": "a reset",
    }))
    .unwrap()
}

/// Every path that reads, from the table of routes, so that new routes are covered. The stream is
/// tested separately.
fn paths(after: u64) -> Vec<String> {
    let reads = routes::TABLE.iter().filter(|table| table.method == Method::GET);
    let each = reads.flat_map(|route| match route.path {
        "/api/v1/events/stream" => Vec::new(),
        "/api/v1/events" => vec![format!("{}?after={after}&limit=500", route.path)],
        "/api/v1/export" => vec![
            format!("{}?data=log&after={after}", route.path),
            format!("{}?data=state", route.path),
        ],
        path => vec![path.replace("{node}", OWN).replace("{generation}", "1")],
    });
    each.collect()
}

#[tokio::test]
async fn a_caller_of_one_pool_sees_no_name_or_count_of_another_for_any_reason() {
    let fixture = Fixture::two_pools().await;
    let all = NAMES.join(" ")
        + &samples::FOREIGN_COUNTS.map(|foreign_count| format!(" {foreign_count}")).concat();
    let (mut codes, mut shown, mut domain_faults) = (BTreeSet::new(), BTreeSet::new(), 0);
    for why in cases() {
        let after = fixture.app().tail.end();
        fixture.log_reason(&why).await;
        codes.insert(why.reason.code().to_owned());
        let explanation = format!("/api/v1/nodes/{OWN}/explanation");
        let is_complete = |shown: &BTreeSet<String>| *shown == markers(&all);
        for path in paths(after) {
            let answer = fixture.get(&path, "pool:train").await;
            assert_eq!(markers(&answer), BTreeSet::new(), "{path} for {why:?}: {answer}");
            domain_faults += usize::from(path == "/api/v1/domain-faults" && answer.contains(OWN));
            // A caller with the whole fleet as scope sees the markers. This proves that they are in
            // the log.
            if !is_complete(&shown) {
                shown.extend(markers(&fixture.get(&path, "fleet").await));
            }
        }
        let answer = fixture.follow(after, "pool:train").await;
        assert_eq!(markers(&answer), BTreeSet::new(), "the stream for {why:?}: {answer}");
        assert!(answer.contains(OWN), "{answer}");
        fixture.withdraw(&why).await;
        let answer = fixture.get(&explanation, "pool:train").await;
        // An order that another order replaced has not failed.
        let is_failure = !matches!(why.reason, Reason::OrderSuperseded { .. });
        assert!(!is_failure || answer.contains("the last failed at"), "{answer}");
        assert_eq!(markers(&answer), BTreeSet::new(), "{explanation} for {why:?}: {answer}");
    }
    assert!(Reason::CODES.iter().all(|code| codes.contains(*code)), "{codes:?}");
    assert_eq!(domain_faults, cases().len(), "the domain fault is shown with the caller's node");
    assert_eq!(shown, markers(&all), "a marker that is never shown tests nothing");
}

/// Reads the whole log, also in the other direction: the other pool does not see this one.
#[tokio::test]
async fn the_log_of_a_pool_names_only_its_own_nodes() {
    let fixture = Fixture::two_pools().await;
    let why = Rationale::new(Reason::Repaired, UnblockedBy::Finding);
    fixture.log_reason(&why).await;
    for (scope, own, other) in
        [("pool:train", OWN, FOREIGN[0]), ("pool:zz-secret", FOREIGN[0], OWN)]
    {
        for path in ["/api/v1/events?after=0", "/api/v1/export?data=log&after=0"] {
            let answer = fixture.get(path, scope).await;
            assert!(answer.contains(own), "{path} of {scope}: {answer}");
            assert!(!answer.contains(other), "{path} of {scope}: {answer}");
        }
    }
    let metrics = fixture.get("/metrics", "pool:train").await;
    assert!(metrics.contains(r#""status":403"#), "{metrics}");
    assert!(fixture.get("/metrics", "fleet").await.contains("farrier_fleet_nodes"));
}

/// Artifacts that a node sent while it was in another pool stay with that pool.
#[tokio::test]
async fn artifacts_from_before_a_node_entered_the_pool_are_hidden() {
    use std::io::Write as _;

    use crate::artifacts;

    let fixture = Fixture::two_pools().await;
    let first_seq = fixture.app().controller.read(|state| state.nodes[&id(OWN)].first_seq);
    let first_seq = first_seq.await.unwrap();
    for (generation, pool) in [(1, FOREIGN_POOL), (2, "train")] {
        let location = Location::in_pool(pool.parse().unwrap());
        let at = Timestamp::now();
        let mut record = artifacts::ArtifactRecord::new(
            generation,
            "collect-logs".to_owned(),
            first_seq,
            location,
            at,
        );
        (record.bytes, record.sha256) = (9, "ab".to_owned());
        let mut incoming = fixture.app().artifacts.begin(generation).unwrap();
        incoming.write_all(b"zz-secret").unwrap();
        fixture.app().artifacts.finish(&id(OWN), &record, incoming).unwrap();
    }
    let list = format!("/api/v1/nodes/{OWN}/artifacts");
    let generations = |text: &str| {
        let listed: serde_json::Value = serde_json::from_str(text).unwrap();
        let listed = listed["artifacts"].as_array().unwrap().clone();
        listed.iter().map(|row| row["generation"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(generations(&fixture.get(&list, "fleet").await), [2, 1]);
    assert_eq!(generations(&fixture.get(&list, "pool:train").await), [2]);
    assert_eq!(fixture.get(&format!("{list}/2"), "pool:train").await, "zz-secret");
    let hidden = fixture.get(&format!("{list}/1"), "pool:train").await;
    assert!(hidden.contains("there is no such artifact"), "{hidden}");
    // The other pool does not see the node at all. A retired node has no artifacts.
    let other = fixture.get(&list, "pool:zz-secret").await;
    assert!(other.contains("is not a node of the fleet"), "{other}");
    let retire = format!("/api/v1/nodes/{OWN}/retire");
    fixture.request(&Method::POST, &retire, "fleet", r#"{"reason":"gone"}"#).await.unwrap();
    let left = fixture.app().artifacts.list(&id(OWN), first_seq, Timestamp::now());
    assert!(left.unwrap().is_empty());
}
