//! Operator requests are logged with the name of the user before they are answered. A repeated
//! request has no effect.

use farrier_fleet::fleet::event::{Event, OperatorRequest};
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{
    Entry, Node, NodeId, NodePhase, OrderKind, Policy, Rationale, Reason, Role, UnblockedBy,
};
use farrier_server::access::{JoinError, NewJoinToken};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::test_fleet::TestFleet;
use crate::test_server::node;

fn logged_requests(fleet: &TestFleet) -> Vec<(Actor, OperatorRequest)> {
    let request = |entry: Entry| match entry.event {
        Event::OperatorRequested { request } => Some((entry.by, request)),
        _ => None,
    };
    fleet.server.entries().into_iter().filter_map(request).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_applies_at_once_and_another_user_may_release_it() {
    let fleet = TestFleet::open().await;
    let ann = fleet.token("ann", Role::Operator, "pool:train");
    let bob = fleet.token("bob", Role::Operator, "fleet");
    for changed in [true, false] {
        let answer = fleet.post("/api/v1/nodes/a/hold", &ann, r#"{"reason":"a look"}"#).await;
        assert_eq!(answer.json(), json!({ "changed": changed }));
    }
    assert_eq!(fleet.read_node("a", Node::phase).await, NodePhase::Held);
    let node = fleet.get("/api/v1/nodes/a", &ann).await;
    assert_eq!(node["hold"], json!({ "by": "ann", "reason": "a look" }), "{node}");
    assert_eq!(node["history"], "/api/v1/events?node=a");
    let explanation = fleet.get("/api/v1/nodes/a/explanation", &ann).await;
    assert_eq!(explanation["rationale"]["reason"]["text"], "held by ann: a look", "{explanation}");
    for changed in [true, false] {
        let released = fleet.post("/api/v1/nodes/a/release", &bob, "").await;
        assert_eq!(released.json(), json!({ "changed": changed }));
    }
    let logged_requests = logged_requests(&fleet);
    let names: Vec<String> = logged_requests.iter().map(|(by, _)| by.to_string()).collect();
    assert_eq!(names, ["ann", "bob"], "{logged_requests:?}");
    let events = fleet.get("/api/v1/events?kind=operator-requested&node=a&by=ann", &bob).await;
    assert_eq!(events["events"].as_array().unwrap().len(), 1, "{events}");
    assert_eq!(events["events"][0]["text"], "hold: a look");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_freeze_requires_the_whole_domain_in_scope() {
    let fleet = TestFleet::open().await;
    let ann = fleet.token("ann", Role::Operator, "pool:train");
    let until = Timestamp::now() + SignedDuration::from_hours(1);
    let freeze = |domain: &str, until: Timestamp| {
        json!({ "domain": domain, "until": until, "reason": "a deadline" }).to_string()
    };
    for (domain, status) in [
        ("pool:train", 200),
        ("rack:r2", 200),
        // The first domain also has a node of another pool, the second has no nodes, and the third
        // is the whole fleet.
        ("rack:r1", 403),
        ("rack:r9", 403),
        ("fleet", 403),
        ("tenant:lab", 200),
        ("tenant:shop", 403),
    ] {
        let answer = fleet.post("/api/v1/freezes", &ann, &freeze(domain, until)).await;
        assert_eq!(answer.status, status, "{domain}: {answer:?}");
    }
    let past = Timestamp::now() - SignedDuration::from_secs(1);
    let far = Timestamp::now() + SignedDuration::from_hours(366 * 24);
    for wrong in [past, far] {
        fleet.post("/api/v1/freezes", &ann, &freeze("pool:train", wrong)).await.assert_problem(400);
    }
    let freezes = fleet.get("/api/v1/freezes", &ann).await;
    assert_eq!(freezes["freezes"].as_array().unwrap().len(), 3, "{freezes}");
    assert_eq!(freezes["freezes"][0]["by"], "ann");
    for changed in [true, false] {
        let unfrozen = fleet.post("/api/v1/unfreezes", &ann, r#"{"domain":"pool:train"}"#).await;
        assert_eq!(unfrozen.json(), json!({ "changed": changed }));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_tested_and_tuned_only_while_held() {
    let fleet = TestFleet::open().await;
    let ann = fleet.token("ann", Role::Operator, "pool:train");
    let (diag, tune) = (r#"{"level":3,"minutes":10}"#, r#"{"profile":"training"}"#);
    for (what, body) in [("diag", diag), ("tune", tune), ("verify", r#"{"level":"v2"}"#)] {
        let refused = fleet.post(&format!("/api/v1/nodes/a/{what}"), &ann, body).await;
        refused.assert_problem(409);
        assert!(format!("{refused:?}").contains("hold the node first"), "{refused:?}");
    }
    fleet.post("/api/v1/nodes/a/hold", &ann, r#"{"reason":"a look"}"#).await;
    for changed in [true, false] {
        let answer = fleet.post("/api/v1/nodes/a/diag", &ann, diag).await;
        assert_eq!(answer.json(), json!({ "changed": changed }), "{answer:?}");
    }
    // A node has at most one operator-requested order at a time.
    let refused = fleet.post("/api/v1/nodes/a/tune", &ann, tune).await;
    refused.assert_problem(409);
    let node = fleet.get("/api/v1/nodes/a", &ann).await;
    assert_eq!(node["requested_order"], "diag, level 3, 10 min", "{node}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_waiting_repairs_are_approved() {
    let fleet = TestFleet::open().await;
    let ann = fleet.token("ann", Role::Approver, "fleet");
    fleet.post("/api/v1/nodes/a/approve", &ann, "{}").await.assert_problem(409);
    assert!(!fleet.read_node("a", |node| node.repairs.is_approved()).await);
    // A reboot waits for approval.
    let reason = Reason::NeedsApproval { order: OrderKind::Reboot };
    let why = Rationale::new(reason, UnblockedBy::Approval);
    fleet.submit(Event::Deferred { node: node("a"), rationale: why }).await;
    assert_eq!(fleet.get("/api/v1/nodes/a", &ann).await["waits_for_approval"], true);
    for changed in [true, false] {
        let approved = fleet.post("/api/v1/nodes/a/approve", &ann, "{}").await;
        assert_eq!(approved.json(), json!({ "changed": changed }), "{approved:?}");
    }
    assert!(fleet.read_node("a", |node| node.repairs.is_approved()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_is_replaced_as_a_whole_if_valid() {
    let fleet = TestFleet::open().await;
    let ann = fleet.token("ann", Role::Admin, "fleet");
    let put = |body: String| {
        let (fleet, ann) = (&fleet, &ann);
        async move { fleet.send("PUT", "/api/v1/policy", Some(ann), Some(&body)).await }
    };
    for wrong in [
        json!({ "disruption_budgets": { "pool": { "share": 2.0 } } }),
        json!({ "pools_default": { "heartbeat_timeout_s": 0 } }),
        json!({ "polls": {} }),
        json!({ "pools": { "a b": {} } }),
        json!({ "services": { "gpu.x": "x; rm -rf /" } }),
        json!([]),
        json!({ "common_cause": [3, 0.5, 300] }),
    ] {
        put(wrong.to_string()).await.assert_problem(400);
    }
    put("{".to_owned()).await.assert_problem(400);
    let request_body = json!({ "pools": { "train": { "autonomy": "observe" } } });
    for changed in [true, false] {
        assert_eq!(put(request_body.to_string()).await.json(), json!({ "changed": changed }));
    }
    let policy = fleet.get("/api/v1/policy", &ann).await;
    assert_eq!(policy["policy"]["pools"]["train"]["autonomy"], "observe");
    assert_eq!(
        policy["policy"]["lemon"],
        serde_json::to_value(Policy::default()).unwrap()["lemon"]
    );
    let sets = fleet.server.entries().into_iter();
    let sets =
        sets.filter(|entry| matches!(entry.event, Event::PolicySet { .. })).map(|entry| entry.by);
    let by = [Actor::Server, Actor::User("ann".to_owned())];
    assert_eq!(sets.collect::<Vec<_>>(), by, "a log starts with the fleet's policy");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retired_node_is_not_found() {
    let fleet = TestFleet::open().await;
    let ann = fleet.token("ann", Role::Admin, "pool:train");
    let body = r#"{"reason":"sold"}"#;
    assert_eq!(fleet.post("/api/v1/nodes/b/retire", &ann, body).await.status, 200);
    fleet.post("/api/v1/nodes/b/retire", &ann, body).await.assert_problem(404);
    fleet.post("/api/v1/nodes/b/hold", &ann, body).await.assert_problem(404);
    let retired: NodeId = node("b");
    assert!(
        !fleet.controller().read(move |state| state.nodes.contains_key(&retired)).await.unwrap()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_name_of_a_retired_node_is_free() {
    let fleet = TestFleet::open().await;
    let ann = fleet.token("ann", Role::Admin, "pool:train");
    let (store, now) = (fleet.server.store(), Timestamp::now());
    let expires = now + SignedDuration::from_hours(1);
    let request = NewJoinToken { uses: 9, ..NewJoinToken::new("train".parse().unwrap(), expires) };
    let token = store.create(&request, now).unwrap().digest();
    let enrol = |key: &[u8]| store.join(&token, &node("b"), key, None, now);
    enrol(b"one").unwrap();
    assert!(matches!(enrol(b"two"), Err(JoinError::Taken(_))));
    let body = r#"{"reason":"sold"}"#;
    assert_eq!(fleet.post("/api/v1/nodes/b/retire", &ann, body).await.status, 200);
    assert_eq!(enrol(b"two").unwrap().identity.generation, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_wide_admin_sets_locations() {
    let fleet = TestFleet::open().await;
    let root = fleet.token("root", Role::Admin, "fleet");
    let lab = fleet.token("lea", Role::Viewer, "tenant:lab");
    let location = |body: &str| {
        let (root, body) = (root.clone(), body.to_owned());
        let fleet = &fleet;
        async move { fleet.send("PUT", "/api/v1/nodes/b/location", Some(&root), Some(&body)).await }
    };
    assert_eq!(TestFleet::names(&fleet.get("/api/v1/nodes", &lab).await), ["a"]);
    let whole =
        r#"{"pool":"train","tenant":"lab","site":"north","rack":"r1","leaf":"l1","nvlink":null}"#;
    for changed in [true, false] {
        assert_eq!(location(whole).await.json(), json!({ "changed": changed }));
    }
    // The location applies at once to visibility, filters and decisions.
    assert_eq!(TestFleet::names(&fleet.get("/api/v1/nodes?rack=r1", &lab).await), ["a", "b"]);
    let domains = fleet.get("/api/v1/domains", &root).await;
    let members = |domain: &str| {
        let rows = domains["domains"].as_array().unwrap();
        rows.iter().find(|row| row["domain"] == domain).map(|row| row["members"].clone())
    };
    assert_eq!((members("rack:r1"), members("rack:r2")), (Some(json!(3)), None), "{domains}");
    let changes = fleet.server.entries().into_iter().filter_map(|entry| match entry.event {
        Event::LocationChanged { location, .. } => {
            Some((entry.by.to_string(), location.leaf.unwrap().to_string()))
        }
        _ => None,
    });
    assert_eq!(changes.collect::<Vec<_>>(), [("root".to_owned(), "l1".to_owned())]);
    for wrong in ["{}", r#"{"pool":"train","floor":"1"}"#, r#"{"pool":"train","rack":"a b"}"#] {
        location(wrong).await.assert_problem(400);
    }
    let absent = fleet.send("PUT", "/api/v1/nodes/z/location", Some(&root), Some(whole)).await;
    absent.assert_problem(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_with_a_location_requires_the_whole_fleet_as_scope() {
    let fleet = TestFleet::open().await;
    let root = fleet.token("root", Role::Admin, "fleet");
    let eve = fleet.token("eve", Role::Admin, "pool:train");
    let request_body = r#"{"pool":"train","rack":"r1","nvlink":"n1"}"#;
    fleet.post("/api/v1/tokens", &eve, request_body).await.assert_problem(403);
    assert_eq!(fleet.post("/api/v1/tokens", &root, request_body).await.status, 201);
    let listed = fleet.get("/api/v1/tokens", &eve).await;
    let location = json!({ "pool": "train", "rack": "r1", "nvlink": "n1" });
    assert_eq!(listed["tokens"][0]["location"], location, "{listed}");
}

/// Only a domain that is entirely in the caller's scope can be declared repaired. Without a fault
/// the request changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_faulty_domain_is_declared_repaired() {
    let fleet = TestFleet::open().await;
    fleet.enrol("d", "serve", Some("shop"), Some("r1")).await;
    let (whole, train) = (
        fleet.token("ann", Role::Operator, "fleet"),
        fleet.token("eve", Role::Operator, "pool:train"),
    );
    let body = r#"{"domain":"rack:r1","repair":"new optics"}"#;
    let changed = async |body: &str| {
        let answer = fleet.post("/api/v1/domain-repairs", &whole, body).await;
        answer.json()["changed"].clone()
    };
    assert_eq!(changed(body).await, false, "no fault is known");
    for name in ["a", "c", "d"] {
        let event = Event::HeartbeatLost { node: node(name), since: Timestamp::now() };
        fleet.submit(event).await;
    }
    let faults = fleet.get("/api/v1/domain-faults", &whole).await;
    assert_eq!(faults["domain_faults"][0]["domain"], "rack:r1", "{faults}");
    fleet.post("/api/v1/domain-repairs", &train, body).await.assert_problem(403);
    let missing = r#"{"domain":"rack:r9","repair":"new optics"}"#;
    fleet.post("/api/v1/domain-repairs", &whole, missing).await.assert_problem(404);
    assert_eq!(changed(body).await, true);
    let faults = fleet.get("/api/v1/domain-faults", &whole).await;
    assert_eq!(faults["domain_faults"].as_array().unwrap().len(), 0, "{faults}");
    assert_eq!(changed(body).await, false, "a repeated request has no effect");
}
