//! Each role on each route, with the node inside and outside of the caller's scope.

use farrier_fleet::fleet::Role;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::test_fleet::TestFleet;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Allowed {
    All,
    Operators,
    Approvers,
    Admins,
}

/// What scope a caller needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScopeRule {
    /// Any scope. The answer is limited to it.
    Filtered,
    /// The node or domain must be in scope. Otherwise the answer has this status.
    InScope(u16),
    /// The scope must be the whole fleet.
    FleetWide,
}

const DIAG: &str = r#"{"level":1,"minutes":1}"#;
const TUNE: &str = r#"{"profile":"shared"}"#;

const CASES: [(&str, &str, &str, Allowed, ScopeRule); 47] = [
    ("GET", "/api/v1/nodes", "", Allowed::All, ScopeRule::Filtered),
    ("GET", "/api/v1/nodes/a", "", Allowed::All, ScopeRule::InScope(404)),
    ("GET", "/api/v1/nodes/a/explanation", "", Allowed::All, ScopeRule::InScope(404)),
    ("GET", "/api/v1/findings", "", Allowed::All, ScopeRule::Filtered),
    ("GET", "/api/v1/events", "", Allowed::All, ScopeRule::Filtered),
    ("GET", "/api/v1/domains", "", Allowed::All, ScopeRule::Filtered),
    ("GET", "/api/v1/domain-faults", "", Allowed::All, ScopeRule::Filtered),
    ("GET", "/api/v1/freezes", "", Allowed::All, ScopeRule::Filtered),
    ("GET", "/api/v1/matrix", "", Allowed::All, ScopeRule::Filtered),
    ("GET", "/api/v1/policy", "", Allowed::All, ScopeRule::Filtered),
    ("GET", "/api/v1/export", "", Allowed::All, ScopeRule::Filtered),
    ("GET", "/api/v1/export?data=log", "", Allowed::All, ScopeRule::Filtered),
    ("GET", "/api/v1/report", "", Allowed::All, ScopeRule::Filtered),
    ("GET", "/api/v1/me", "", Allowed::All, ScopeRule::Filtered),
    ("GET", "/metrics", "", Allowed::All, ScopeRule::FleetWide),
    (
        "POST",
        "/api/v1/nodes/a/hold",
        r#"{"reason":"x"}"#,
        Allowed::Operators,
        ScopeRule::InScope(404),
    ),
    ("POST", "/api/v1/nodes/a/release", "{}", Allowed::Operators, ScopeRule::InScope(404)),
    (
        "POST",
        "/api/v1/nodes/a/repaired",
        r#"{"repair":"x"}"#,
        Allowed::Operators,
        ScopeRule::InScope(404),
    ),
    (
        "POST",
        "/api/v1/nodes/a/verify",
        r#"{"level":"v1"}"#,
        Allowed::Operators,
        ScopeRule::InScope(404),
    ),
    ("POST", "/api/v1/nodes/a/diag", DIAG, Allowed::Operators, ScopeRule::InScope(404)),
    ("POST", "/api/v1/nodes/a/tune", TUNE, Allowed::Operators, ScopeRule::InScope(404)),
    ("POST", "/api/v1/nodes/a/logs", "{}", Allowed::Operators, ScopeRule::InScope(404)),
    ("GET", "/api/v1/nodes/a/artifacts", "", Allowed::Operators, ScopeRule::InScope(404)),
    // There is no such artifact, so callers with permission get 404 too.
    ("GET", "/api/v1/nodes/a/artifacts/7", "", Allowed::Operators, ScopeRule::InScope(404)),
    ("POST", "/api/v1/freezes", "FREEZE", Allowed::Operators, ScopeRule::InScope(403)),
    (
        "POST",
        "/api/v1/unfreezes",
        r#"{"domain":"pool:train"}"#,
        Allowed::Operators,
        ScopeRule::InScope(403),
    ),
    (
        "POST",
        "/api/v1/domain-repairs",
        r#"{"domain":"pool:train","repair":"x"}"#,
        Allowed::Operators,
        ScopeRule::InScope(403),
    ),
    ("GET", "/api/v1/mutes", "", Allowed::All, ScopeRule::Filtered),
    (
        "POST",
        "/api/v1/mutes",
        r#"{"node":"a","duration_s":60,"reason":"x"}"#,
        Allowed::Operators,
        ScopeRule::InScope(404),
    ),
    (
        "POST",
        "/api/v1/mutes",
        r#"{"domain":"pool:train","duration_s":60,"reason":"x"}"#,
        Allowed::Operators,
        ScopeRule::InScope(403),
    ),
    (
        "POST",
        "/api/v1/mutes",
        r#"{"code":"gpu.*","duration_s":60,"reason":"x"}"#,
        Allowed::Operators,
        ScopeRule::FleetWide,
    ),
    // There is no such mute, group or receiver, so callers with permission get 404 too.
    ("POST", "/api/v1/unmutes", r#"{"mute":99999}"#, Allowed::Operators, ScopeRule::InScope(404)),
    ("GET", "/api/v1/notifications", "", Allowed::Operators, ScopeRule::FleetWide),
    ("GET", "/api/v1/receiver-problems", "", Allowed::Operators, ScopeRule::FleetWide),
    (
        "POST",
        "/api/v1/notification-tests",
        r#"{"receiver":"none"}"#,
        Allowed::Admins,
        ScopeRule::FleetWide,
    ),
    (
        "POST",
        "/api/v1/notification-retries",
        r#"{"receiver":"none"}"#,
        Allowed::Admins,
        ScopeRule::FleetWide,
    ),
    (
        "POST",
        "/api/v1/notification-drops",
        r#"{"receiver":"none"}"#,
        Allowed::Admins,
        ScopeRule::FleetWide,
    ),
    (
        "POST",
        "/api/v1/acknowledgements",
        r#"{"group":"none"}"#,
        Allowed::Operators,
        ScopeRule::FleetWide,
    ),
    // Nothing waits for approval, so callers with permission get 409.
    ("POST", "/api/v1/nodes/a/approve", "{}", Allowed::Approvers, ScopeRule::InScope(404)),
    ("GET", "/api/v1/tokens", "", Allowed::Admins, ScopeRule::Filtered),
    ("POST", "/api/v1/tokens", r#"{"pool":"train"}"#, Allowed::Admins, ScopeRule::InScope(403)),
    ("POST", "/api/v1/tokens/99/revoke", "{}", Allowed::Admins, ScopeRule::Filtered),
    ("PUT", "/api/v1/policy", "{}", Allowed::Admins, ScopeRule::FleetWide),
    (
        "PUT",
        "/api/v1/nodes/a/location",
        r#"{"pool":"train","tenant":"lab"}"#,
        Allowed::Admins,
        ScopeRule::FleetWide,
    ),
    ("POST", "/api/v1/nodes/a/revoke", "{}", Allowed::Admins, ScopeRule::InScope(404)),
    (
        "POST",
        "/api/v1/nodes/a/retire",
        r#"{"reason":"x"}"#,
        Allowed::Admins,
        ScopeRule::InScope(404),
    ),
    ("GET", "/api/v1/events/stream", "", Allowed::All, ScopeRule::Filtered),
];

fn may(role: Role, allowed: Allowed) -> bool {
    match allowed {
        Allowed::All => true,
        Allowed::Operators => matches!(role, Role::Operator | Role::Admin),
        Allowed::Approvers => matches!(role, Role::Approver | Role::Admin),
        Allowed::Admins => role == Role::Admin,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_role_has_exactly_its_permissions_in_its_scope() {
    let until = Timestamp::now() + SignedDuration::from_hours(1);
    let freeze = format!(r#"{{"domain":"pool:train","until":"{until}","reason":"x"}}"#);
    for role in Role::ALL {
        for (scope, is_whole, is_inside) in [
            ("fleet", true, true),
            ("pool:train", false, true),
            ("tenant:lab", false, true),
            ("pool:serve", false, false),
            ("tenant:empty", false, false),
        ] {
            let fleet = TestFleet::open().await;
            let token = fleet.token("ann", role, scope);
            for (method, path, body, allowed, scope_rule) in CASES {
                // Streams have their own tests. The pool `train` has nodes of several tenants, so
                // it is not entirely in the scope of one tenant.
                let names_pool = body.contains("train") || body == "FREEZE";
                if path.ends_with("/stream") {
                    continue;
                }
                let is_inside = is_inside && !(scope == "tenant:lab" && names_pool);
                let body = if body == "FREEZE" { freeze.as_str() } else { body };
                let body = Some(body).filter(|value| !value.is_empty());
                let answer = fleet.send(method, path, Some(&token), body).await;
                let expected = match scope_rule {
                    _ if !may(role, allowed) => 403,
                    ScopeRule::FleetWide if !is_whole => 403,
                    ScopeRule::InScope(refused) if !is_inside => refused,
                    // Nothing waits for approval, and only one operator-requested order may be
                    // pending.
                    _ if ["/approve", "/tune", "/logs"]
                        .iter()
                        .any(|other| path.ends_with(other)) =>
                    {
                        409
                    }
                    _ if path.ends_with("/artifacts/7") => 404,
                    _ if [
                        "/unmutes",
                        "/notification-tests",
                        "/notification-retries",
                        "/notification-drops",
                        "/acknowledgements",
                    ]
                    .iter()
                    .any(|other| path.ends_with(other)) =>
                    {
                        404
                    }
                    // No node enrolled over a connection, so there is no certificate to revoke.
                    // There is no token 99 either.
                    _ if path.ends_with("a/revoke") || path.contains("/99/") => 404,
                    _ if path.ends_with("/tokens") && method == "POST" => 201,
                    _ => 200,
                };
                assert_eq!(
                    answer.status, expected,
                    "{role} of {scope}: {method} {path}: {answer:?}"
                );
                if expected >= 400 {
                    answer.assert_problem(expected);
                }
            }
            fleet.server.assert_whole();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_is_tested_and_requires_a_token() {
    let fleet = TestFleet::open().await;
    let document = fleet.send("GET", "/api/v1/openapi.json", None, None).await;
    assert_eq!(document.status, 200);
    let open = ["/api/v1/openapi.json", "/healthz"];
    let document: Value = document.json();
    let mut routes = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        for method in operations.as_object().unwrap().keys() {
            routes += 1;
            if open.contains(&path.as_str()) {
                continue;
            }
            let example = path.replace("{node}", "a").replace("{id}", "99");
            let example = example.replace("{generation}", "7");
            let method = method.to_uppercase();
            let is_tested = CASES
                .iter()
                .any(|case| case.0 == method && case.1.split('?').next() == Some(&example));
            assert!(is_tested, "{method} {path} is missing in the table");
            let body = (method != "GET").then_some("{}");
            fleet.send(&method, &example, None, body).await.assert_problem(401);
            let wrong = fleet.send(&method, &example, Some("fperson_wrong"), body).await;
            wrong.assert_problem(401);
            assert_eq!(wrong.headers["www-authenticate"], "Bearer");
        }
    }
    let (second_export_case, more_mute_cases) = (1, 2);
    assert_eq!(routes, CASES.len() + open.len() - second_export_case - more_mute_cases);
}
