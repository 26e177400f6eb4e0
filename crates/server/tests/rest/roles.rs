//! Each role on each route, with the node in the caller's scope and out of it: the whole table.

use farrier_fleet::fleet::Role;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::test_fleet::TestFleet;

/// Who may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    All,
    Operators,
    Approvers,
    Admins,
}

/// Where it must be, for somebody who has only a part of the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// It answers with what is theirs.
    DisconnectReason,
    /// The node or domain must be theirs.
    Theirs(u16),
    /// They must have the whole fleet.
    Whole,
}

const DIAG: &str = r#"{"level":1,"minutes":1}"#;
const TUNE: &str = r#"{"profile":"shared"}"#;

const CASES: [(&str, &str, &str, Who, Reach); 34] = [
    ("GET", "/api/v1/nodes", "", Who::All, Reach::DisconnectReason),
    ("GET", "/api/v1/nodes/a", "", Who::All, Reach::Theirs(404)),
    ("GET", "/api/v1/nodes/a/explanation", "", Who::All, Reach::Theirs(404)),
    ("GET", "/api/v1/findings", "", Who::All, Reach::DisconnectReason),
    ("GET", "/api/v1/events", "", Who::All, Reach::DisconnectReason),
    ("GET", "/api/v1/domains", "", Who::All, Reach::DisconnectReason),
    ("GET", "/api/v1/domain-faults", "", Who::All, Reach::DisconnectReason),
    ("GET", "/api/v1/freezes", "", Who::All, Reach::DisconnectReason),
    ("GET", "/api/v1/matrix", "", Who::All, Reach::DisconnectReason),
    ("GET", "/api/v1/policy", "", Who::All, Reach::DisconnectReason),
    ("GET", "/api/v1/export", "", Who::All, Reach::DisconnectReason),
    ("GET", "/api/v1/export?what=log", "", Who::All, Reach::DisconnectReason),
    ("GET", "/api/v1/me", "", Who::All, Reach::DisconnectReason),
    ("GET", "/metrics", "", Who::All, Reach::Whole),
    ("POST", "/api/v1/nodes/a/hold", r#"{"reason":"x"}"#, Who::Operators, Reach::Theirs(404)),
    ("POST", "/api/v1/nodes/a/release", "{}", Who::Operators, Reach::Theirs(404)),
    ("POST", "/api/v1/nodes/a/repaired", r#"{"what":"x"}"#, Who::Operators, Reach::Theirs(404)),
    ("POST", "/api/v1/nodes/a/verify", r#"{"level":"v1"}"#, Who::Operators, Reach::Theirs(404)),
    ("POST", "/api/v1/nodes/a/diag", DIAG, Who::Operators, Reach::Theirs(404)),
    ("POST", "/api/v1/nodes/a/tune", TUNE, Who::Operators, Reach::Theirs(404)),
    ("POST", "/api/v1/nodes/a/logs", "{}", Who::Operators, Reach::Theirs(404)),
    ("GET", "/api/v1/nodes/a/artifacts", "", Who::Operators, Reach::Theirs(404)),
    // There is none: whoever may is told so.
    ("GET", "/api/v1/nodes/a/artifacts/7", "", Who::Operators, Reach::Theirs(404)),
    ("POST", "/api/v1/freezes", "FREEZE", Who::Operators, Reach::Theirs(403)),
    ("POST", "/api/v1/unfreezes", r#"{"domain":"pool:train"}"#, Who::Operators, Reach::Theirs(403)),
    // Nothing waits there: whoever may is told so.
    ("POST", "/api/v1/nodes/a/approve", "{}", Who::Approvers, Reach::Theirs(404)),
    ("GET", "/api/v1/tokens", "", Who::Admins, Reach::DisconnectReason),
    ("POST", "/api/v1/tokens", r#"{"pool":"train"}"#, Who::Admins, Reach::Theirs(403)),
    ("POST", "/api/v1/tokens/99/revoke", "{}", Who::Admins, Reach::DisconnectReason),
    ("PUT", "/api/v1/policy", "{}", Who::Admins, Reach::Whole),
    (
        "PUT",
        "/api/v1/nodes/a/location",
        r#"{"pool":"train","tenant":"lab"}"#,
        Who::Admins,
        Reach::Whole,
    ),
    ("POST", "/api/v1/nodes/a/revoke", "{}", Who::Admins, Reach::Theirs(404)),
    ("POST", "/api/v1/nodes/a/retire", r#"{"reason":"x"}"#, Who::Admins, Reach::Theirs(404)),
    ("GET", "/api/v1/events/stream", "", Who::All, Reach::DisconnectReason),
];

fn may(role: Role, who: Who) -> bool {
    match who {
        Who::All => true,
        Who::Operators => matches!(role, Role::Operator | Role::Admin),
        Who::Approvers => matches!(role, Role::Approver | Role::Admin),
        Who::Admins => role == Role::Admin,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_role_does_what_it_may_where_it_may_and_nothing_else() {
    let until = Timestamp::now() + SignedDuration::from_hours(1);
    let freeze = format!(r#"{{"domain":"pool:train","until":"{until}","reason":"x"}}"#);
    for role in Role::ALL {
        for (scope, is_whole, is_inside) in [
            ("fleet", true, true),
            ("pool:train", false, true),
            ("tenant:lab", false, true),
            ("pool:serve", false, false),
            ("tenant:nobody", false, false),
        ] {
            let fleet = TestFleet::open().await;
            let token = fleet.token("ann", role, scope);
            for (method, path, body, who, reach) in CASES {
                // A stream has tests of its own, and `train` is not all of the tenant's.
                let is_of_pool = body.contains("train") || body == "FREEZE";
                if path.ends_with("/stream") {
                    continue;
                }
                let is_inside = is_inside && !(scope == "tenant:lab" && is_of_pool);
                let body = if body == "FREEZE" { freeze.as_str() } else { body };
                let body = Some(body).filter(|it| !it.is_empty());
                let answer = fleet.send(method, path, Some(&token), body).await;
                let wanted = match reach {
                    _ if !may(role, who) => 403,
                    Reach::Whole if !is_whole => 403,
                    Reach::Theirs(refused) if !is_inside => refused,
                    // One errand at a time.
                    _ if ["/approve", "/tune", "/logs"].iter().any(|it| path.ends_with(it)) => 409,
                    _ if path.ends_with("/artifacts/7") => 404,
                    // Nobody enrolled over the wire: there is no certificate; and no such token.
                    _ if path.ends_with("a/revoke") || path.contains("/99/") => 404,
                    _ if path.ends_with("/tokens") && method == "POST" => 201,
                    _ => 200,
                };
                assert_eq!(answer.status, wanted, "{role} of {scope}: {method} {path}: {answer:?}");
                if wanted >= 400 {
                    answer.assert_problem(wanted);
                }
            }
            fleet.server.assert_whole();
        }
    }
}

/// The table above has every route.
#[tokio::test(flavor = "multi_thread")]
async fn no_route_is_left_out_and_without_a_token_there_is_nothing() {
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
            let shown = path.replace("{node}", "a").replace("{id}", "99");
            let shown = shown.replace("{generation}", "7");
            let method = method.to_uppercase();
            let is_there =
                CASES.iter().any(|it| it.0 == method && it.1.split('?').next() == Some(&shown));
            assert!(is_there, "{method} {path} has no line in the table");
            let body = (method != "GET").then_some("{}");
            fleet.send(&method, &shown, None, body).await.assert_problem(401);
            let wrong = fleet.send(&method, &shown, Some("fperson_wrong"), body).await;
            wrong.assert_problem(401);
            assert_eq!(wrong.headers["www-authenticate"], "Bearer");
        }
    }
    let of_log = 1;
    assert_eq!(routes, CASES.len() + open.len() - of_log);
}
