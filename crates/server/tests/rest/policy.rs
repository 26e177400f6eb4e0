//! Setting a policy: conflicts, signatures, and what a caller with a narrower scope sees.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use farrier_fleet::fleet::{Policy, Role};
use farrier_server::policy_key::{PolicyKey, PolicySigningKey};
use serde_json::{Value, json};

use crate::test_fleet::{Answer, TestFleet};
use crate::test_server::TestServer;

const PRIVATE: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f\n-----END PRIVATE KEY-----\n";
const PUBLIC: &str = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAA6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=\n-----END PUBLIC KEY-----\n";

async fn put(fleet: &TestFleet, token: &str, policy: &Value) -> Answer {
    fleet.send("PUT", "/api/v1/policy", Some(token), Some(&policy.to_string())).await
}

fn detail(answer: &Answer) -> String {
    answer.assert_problem(400);
    answer.json()["detail"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_conflicts_for_the_nodes_of_the_fleet_is_refused() {
    let fleet = TestFleet::open().await;
    let admin = fleet.token("ann", Role::Admin, "fleet");
    let tied = json!({ "version": 2, "disruption_budgets": {}, "changes": { "rules": {
        "one": { "select": { "pool": ["train"] }, "track": "long-term" },
        "two": { "select": { "tenant": ["lab"] }, "track": "production" },
    } } });
    assert_eq!(
        detail(&put(&fleet, &admin, &tied).await),
        "rule one (long-term) and rule two (production) are equally specific and give track two values for the same nodes"
    );
    // A rack of the fleet has one node.
    let rack = json!({ "version": 2, "disruption_budgets": { "rack": { "share": 0.5 } } });
    assert_eq!(
        detail(&put(&fleet, &admin, &rack).await),
        "disruption_budgets.rack: a share of 0.5 of the 1 nodes of rack r2 is no node: set allow_min_one to allow one"
    );
    let allowed = json!({ "version": 2,
        "disruption_budgets": { "rack": { "share": 0.5, "allow_min_one": true } } });
    assert_eq!(put(&fleet, &admin, &allowed).await.status, 200);
    let shown = fleet.get("/api/v1/policy", &admin).await;
    assert_eq!(shown["policy"]["disruption_budgets"]["rack"]["allow_min_one"], true);
    assert_eq!(shown["policy"]["version"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_policy_keys_accepts_only_signed_policies() {
    let mut server = TestServer::new(true);
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| -> PathBuf {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    };
    server.policy_keys = vec![PolicyKey::read(&file("a.pub", PUBLIC)).unwrap()];
    let signing = PolicySigningKey::read(&file("a.key", PRIVATE)).unwrap();
    let fleet = TestFleet::with(server.started().await).await;
    let admin = fleet.token("ann", Role::Admin, "fleet");
    let mut policy = Policy::default();
    policy.lemon.days = 7;
    let unsigned = serde_json::to_value(&policy).unwrap();
    assert_eq!(detail(&put(&fleet, &admin, &unsigned).await), "the policy has no signature");
    policy.signatures = vec![signing.sign(&policy)];
    let signed = serde_json::to_value(&policy).unwrap();
    assert_eq!(put(&fleet, &admin, &signed).await.status, 200);
    let mut changed = signed.clone();
    changed["lemon"]["days"] = 8.into();
    let refused = detail(&put(&fleet, &admin, &changed).await);
    assert!(refused.ends_with("it was changed after it was signed"), "{refused}");
    let shown = fleet.get("/api/v1/policy", &admin).await;
    assert_eq!(shown["policy"], signed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scoped_caller_sees_only_rules_that_can_concern_the_scope() {
    let fleet = TestFleet::open().await;
    let admin = fleet.token("ann", Role::Admin, "fleet");
    let exception = |select: Value| {
        json!({ "select": select, "pinned": "580.95.05", "reason": "r", "owner": "o",
            "expires": "9999-12-31" })
    };
    let freeze = |scope: &str| {
        json!({ "scope": scope, "from": "2026-12-01T00:00:00Z", "to": "2026-12-02T00:00:00Z",
            "reason": "r", "owner": "o" })
    };
    let policy = json!({ "version": 2, "disruption_budgets": {}, "changes": {
        "rules": {
            "all": { "track": "long-term" },
            "h200": { "select": { "gpu": ["H200*"] }, "flavour": "open" },
            "train": { "select": { "pool": ["tr*"] }, "cadence_days": 7 },
            "secret-serve": { "select": { "pool": ["serve"] }, "cadence_days": 9 },
            "secret-node": { "select": { "node": ["c"] }, "cadence_days": 9 },
        },
        "tenants": { "lab": [{ "minimum": "580.65.06" }], "secret": [{ "minimum": "580.65.06" }] },
        "freezes": { "all": freeze("fleet"), "secret": freeze("pool:serve") },
        "exceptions": {
            "train": exception(json!({ "pool": ["train"] })),
            "secret": exception(json!({ "node": ["c"] })),
        },
    } });
    let set = put(&fleet, &admin, &policy).await;
    assert_eq!(set.status, 200, "{set:?}");
    let viewer = fleet.token("vic", Role::Viewer, "pool:train");
    let shown = fleet.get("/api/v1/policy", &viewer).await;
    assert!(!shown.to_string().contains("secret"), "{shown}");
    let changes = &shown["policy"]["changes"];
    let names = |part: &str| changes[part].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(names("rules"), ["all", "h200", "train"]);
    assert_eq!(names("tenants"), ["lab"]);
    assert_eq!((names("freezes"), names("exceptions")), (vec!["all".into()], vec!["train".into()]));
}
