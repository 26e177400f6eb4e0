//! Reads of the API: filters, pages and scopes.

use farrier_fleet::fleet::event::{Event, OperatorRequest};
use farrier_fleet::fleet::identity::{Actor, DomainKind};
use farrier_fleet::fleet::policy::{Autonomy, DisruptionBudget};
use farrier_fleet::fleet::{NodePhase, Policy, Rationale, Reason, Role, UnblockedBy};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::test_fleet::TestFleet;
use crate::test_server::{TestNode, TestServer, node};

#[tokio::test(flavor = "multi_thread")]
async fn filters_apply_within_the_scope() {
    let fleet = TestFleet::open().await;
    fleet.report_finding("a", 1).await;
    fleet.report_inventory("b", Some("NVIDIA H200"), Some("580.95.05")).await;
    let all = fleet.token("ann", Role::Viewer, "fleet");
    for (query, names) in [
        ("", vec!["a", "b", "c"]),
        ("?pool=train", vec!["a", "b"]),
        ("?rack=r1", vec!["a", "c"]),
        ("?leaf=l1", vec![]),
        ("?phase=joining", vec!["a", "b", "c"]),
        ("?phase=held", vec![]),
        ("?text=h200", vec!["b"]),
        ("?text=gpu.lost", vec!["a"]),
        ("?pool=train&rack=r2", vec!["b"]),
    ] {
        let page = fleet.get(&format!("/api/v1/nodes{query}"), &all).await;
        assert_eq!(TestFleet::names(&page), names, "{query}");
    }
    for (scope, names) in [
        ("pool:train", vec!["a", "b"]),
        ("pool:serve", vec!["c"]),
        ("tenant:shop", vec!["b", "c"]),
        ("tenant:empty", vec![]),
    ] {
        let token = fleet.token("eve", Role::Viewer, scope);
        let page = fleet.get("/api/v1/nodes", &token).await;
        assert_eq!(TestFleet::names(&page), names, "{scope}");
        // A filter does not widen a scope.
        let page = fleet.get("/api/v1/nodes?rack=r1", &token).await;
        assert!(
            TestFleet::names(&page).iter().all(|name| names.contains(&name.as_str())),
            "{scope}"
        );
        let found = fleet.get("/api/v1/findings", &token).await;
        assert_eq!(!found["findings"].as_array().unwrap().is_empty(), names.contains(&"a"));
        let found = fleet.get("/api/v1/findings?node=a", &token).await;
        assert_eq!(!found["findings"].as_array().unwrap().is_empty(), names.contains(&"a"));
        let export = fleet.send("GET", "/api/v1/export", Some(&token), None).await;
        assert_eq!(export.body.matches("\"node\":").count(), names.len(), "{scope}: {export:?}");
        let matrix = fleet.get("/api/v1/matrix", &token).await;
        let is_seen = !matrix["rows"].as_array().unwrap().is_empty();
        assert_eq!(is_seen, names.contains(&"b"), "{scope}: {matrix}");
    }
}

/// No answer may contain the name of a node or pool outside the caller's scope.
#[tokio::test(flavor = "multi_thread")]
async fn a_scoped_reader_sees_nothing_of_others() {
    let fleet = TestFleet::open().await;
    let mut policy = Policy::default();
    for pool in ["train", "serve"] {
        policy.pools.insert(pool.parse().unwrap(), policy.pools_default.clone());
    }
    fleet.submit(Event::PolicySet { policy: Box::new(policy) }).await;
    // Three nodes of the rack lost their heartbeat. This is a domain fault of the rack.
    fleet.enrol("secret-d", "serve", Some("shop"), Some("r1")).await;
    let since = Timestamp::now();
    for name in ["a", "c", "secret-d"] {
        fleet.submit(Event::HeartbeatLost { node: node(name), since }).await;
    }
    let root = Actor::User("root".to_owned());
    let until = since + SignedDuration::from_hours(1);
    for (domain, reason) in [("rack:r1", "visible"), ("pool:serve", "hidden"), ("fleet", "all")] {
        let domain = domain.parse().unwrap();
        let request = OperatorRequest::Freeze { domain, until, reason: reason.to_owned() };
        fleet
            .controller()
            .submit(root.clone(), Event::OperatorRequested { request })
            .await
            .unwrap();
    }
    let request = OperatorRequest::Hold { node: node("c"), reason: "theirs".to_owned() };
    fleet.controller().submit(root, Event::OperatorRequested { request }).await.unwrap();
    let token = fleet.token("eve", Role::Viewer, "pool:train");
    let domain_faults = fleet.get("/api/v1/domain-faults", &token).await;
    assert_eq!(
        domain_faults["domain_faults"][0]["nodes"],
        serde_json::json!(["a"]),
        "{domain_faults}"
    );
    let mut everything = String::new();
    for path in [
        "/api/v1/nodes",
        "/api/v1/nodes/a",
        "/api/v1/nodes/a/explanation",
        "/api/v1/findings",
        "/api/v1/events?limit=500",
        "/api/v1/events?limit=500&after=0",
        "/api/v1/domains",
        "/api/v1/domain-faults",
        "/api/v1/freezes",
        "/api/v1/matrix",
        "/api/v1/policy",
        "/api/v1/export",
        "/api/v1/export?data=log",
    ] {
        let answer = fleet.send("GET", path, Some(&token), None).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        for foreign in ["\"c\"", "secret-d", "serve", "hidden", "theirs", "local:test"] {
            assert!(!answer.body.contains(foreign), "{path} has {foreign}: {}", answer.body);
        }
        everything.push_str(&answer.body);
    }
    for own in ["visible", "all", "\"a\"", "domain_faults", "policy-set"] {
        assert!(everything.contains(own), "{own} is missing");
    }
    let domains = fleet.get("/api/v1/domains", &token).await;
    let rack =
        domains["domains"].as_array().unwrap().iter().find(|domain| domain["domain"] == "rack:r1");
    let rack = rack.unwrap();
    assert_eq!((&rack["members"], &rack["limit"]), (&Value::from(1), &Value::Null), "{rack}");
}

/// No reason that a scoped reader sees may reveal how many nodes others have, or how many of these
/// are out of service.
#[tokio::test(flavor = "multi_thread")]
async fn reasons_do_not_count_other_pools_nodes() {
    let fleet = TestFleet::open().await;
    let mut policy = Policy::default();
    policy.pools_default.autonomy = Autonomy::Quarantine;
    policy.disruption_budgets.insert(
        DomainKind::Fleet,
        DisruptionBudget { share: 0.0, nodes: Some(0), allow_min_one: None },
    );
    fleet.submit(Event::PolicySet { policy: Box::new(policy) }).await;
    // One node should be quarantined, but the budget of the fleet is used up. Three nodes of a rack
    // lost their heartbeat, which is a domain fault.
    let why = Rationale::new(Reason::Verified { joining: true }, UnblockedBy::Finding);
    fleet
        .submit(Event::PhaseChanged { node: node("b"), to: NodePhase::InService, rationale: why })
        .await;
    let since = Timestamp::now() - SignedDuration::from_hours(24);
    fleet.submit(Event::HeartbeatLost { node: node("b"), since }).await;
    fleet.submit(Event::Tick).await;
    fleet.enrol("secret-d", "serve", Some("shop"), Some("r1")).await;
    for name in ["a", "c", "secret-d"] {
        fleet.submit(Event::HeartbeatLost { node: node(name), since: Timestamp::now() }).await;
    }
    let all = fleet.token("ann", Role::Viewer, "fleet");
    let scoped = ["pool:train", "tenant:lab", "tenant:shop"]
        .map(|scope| fleet.token("eve", Role::Viewer, scope));
    let everything = async |token: &str| {
        let mut text = String::new();
        for path in [
            "/api/v1/nodes",
            "/api/v1/nodes/a",
            "/api/v1/nodes/b",
            "/api/v1/nodes/a/explanation",
            "/api/v1/nodes/b/explanation",
            "/api/v1/events?limit=500",
            "/api/v1/domain-faults",
            "/api/v1/export",
            "/api/v1/export?data=log",
        ] {
            text.push_str(&fleet.send("GET", path, Some(token), None).await.body);
        }
        text
    };
    let whole = everything(&all).await;
    for counted in ["keeps 0 of 3 nodes out of service", "3 of 3 nodes of rack r1 started"] {
        assert!(whole.contains(counted), "{counted} is missing: {whole}");
    }
    let mut visible = String::new();
    for token in &scoped {
        let text = everything(token).await;
        for counted in [" of 3 nodes", " of 4 nodes", "0 allowed"] {
            assert!(!text.contains(counted), "{counted}: {text}");
        }
        visible.push_str(&text);
    }
    for text in [
        "the disruption budget of the fleet is used up",
        "a node of the fleet returns to service",
        "several nodes of rack r1 started to show lost heartbeats: common cause",
    ] {
        assert!(visible.contains(text), "{text} is missing: {visible}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_are_complete_while_nodes_come_and_go() {
    let fleet = TestFleet::open().await;
    for number in 0..57 {
        fleet.enrol(&format!("n{number:03}"), "train", None, None).await;
    }
    let token = fleet.token("ann", Role::Viewer, "fleet");
    let mut visible: Vec<String> = Vec::new();
    let mut path = "/api/v1/nodes?limit=7".to_owned();
    let mut pages = 0;
    loop {
        let page = fleet.get(&path, &token).await;
        visible.extend(TestFleet::names(&page));
        pages += 1;
        if pages == 3 {
            // One node before the cursor and one after it are retired, and one node is added on
            // each side.
            for name in ["n001", "n050"] {
                fleet.submit(Event::Retired { node: node(name), reason: "x".to_owned() }).await;
            }
            fleet.enrol("n000a", "train", None, None).await;
            fleet.enrol("n051a", "train", None, None).await;
        }
        match page["next"].as_str() {
            Some(next) => path = format!("/api/v1/nodes?limit=7&cursor={next}"),
            None => break,
        }
    }
    let mut sorted = visible.clone();
    sorted.sort();
    sorted.dedup();
    assert_eq!(visible, sorted, "each once, in order");
    assert_eq!(visible.len(), 60 - 1 + 1);
    assert!(visible.contains(&"n051a".to_owned()) && !visible.contains(&"n050".to_owned()));
    // Findings of one node can also span two pages.
    for number in 1..=9 {
        fleet.report_finding("a", number).await;
        fleet.report_finding("b", number).await;
    }
    let mut found = Vec::new();
    let mut path = "/api/v1/findings?limit=4".to_owned();
    loop {
        let page = fleet.get(&path, &token).await;
        for row in page["findings"].as_array().unwrap() {
            found.push((
                row["node"].as_str().unwrap().to_owned(),
                row["finding"]["id"].as_u64().unwrap(),
            ));
        }
        match page["next"].as_str() {
            Some(next) => {
                path = format!("/api/v1/findings?limit=4&cursor={}", next.replace('/', "%2F"));
            }
            None => break,
        }
    }
    let expected: Vec<(String, u64)> =
        ["a", "b"].iter().flat_map(|name| (1..=9).map(|id| ((*name).to_owned(), id))).collect();
    assert_eq!(found, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_complete_in_both_directions_and_with_filters() {
    let fleet = TestFleet::open().await;
    for number in 1..=40 {
        fleet.report_finding("a", number).await;
    }
    let token = fleet.token("ann", Role::Admin, "fleet");
    let kinds =
        ["", "&kind=findings-reported", "&node=a", "&by=node%20a", "&kind=phase-changed&node=b"];
    crate::test_server::until("the token is in the log", || {
        fleet.server.count(|event| matches!(event, Event::AccessChanged { .. })) == 1
    })
    .await;
    for filter in kinds {
        let mut directions = Vec::new();
        for (name, start) in [("after", Some(0)), ("before", None)] {
            let mut seqs: Vec<u64> = Vec::new();
            let mut cursor: Option<u64> = start;
            loop {
                let cursor_text =
                    cursor.map(|cursor| format!("&{name}={cursor}")).unwrap_or_default();
                let page = fleet
                    .get(&format!("/api/v1/events?limit=6{cursor_text}{filter}"), &token)
                    .await;
                seqs.extend(
                    page["events"]
                        .as_array()
                        .unwrap()
                        .iter()
                        .map(|row| row["seq"].as_u64().unwrap()),
                );
                cursor = page["next"].as_u64();
                if cursor.is_none() {
                    break;
                }
            }
            if name == "before" {
                seqs.reverse();
            }
            directions.push(seqs);
        }
        // A tick may be logged between the two reads, so compare only the common part.
        let least = directions[0].len().min(directions[1].len());
        assert_eq!(directions[0][..least], directions[1][..least], "{filter}");
        if filter.is_empty() {
            assert!(
                directions[0].iter().copied().eq(1..=directions[0].len() as u64),
                "{:?}",
                directions[0]
            );
        }
        if filter == "&kind=findings-reported" {
            assert_eq!(directions[0].len(), 40);
        }
    }
    fleet
        .send("GET", "/api/v1/events?after=1&before=9", Some(&token), None)
        .await
        .assert_problem(400);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_matrix_shows_known_and_unknown_combinations() {
    let fleet = TestFleet::open().await;
    fleet.report_inventory("a", Some("NVIDIA H200"), Some("580.95.05")).await;
    fleet.report_inventory("b", Some("NVIDIA H100 80GB HBM3"), Some("550.54.15")).await;
    fleet.report_inventory("c", None, None).await;
    fleet.enrol("d", "train", None, None).await;
    fleet.report_inventory("d", Some("NVIDIA Weird 9000"), Some("580.95.05")).await;
    let token = fleet.token("ann", Role::Viewer, "fleet");
    let matrix = fleet.get("/api/v1/matrix", &token).await;
    let rows = matrix["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3, "{matrix}");
    assert_eq!(matrix["unknown_nodes"], 1);
    let row_for = |gpu: &str| rows.iter().find(|row| row["gpu"] == gpu).unwrap();
    let old = row_for("NVIDIA H100 80GB HBM3");
    assert_eq!((&old["sku"], &old["gpus"]), (&Value::from("H100-SXM5-80GB"), &Value::from(8)));
    assert_eq!(old["support"]["status"], "ended", "{old}");
    assert!(old["exposure"]["advisories"].as_u64().unwrap() > 0, "{old}");
    assert!(
        old["reasons"]
            .as_array()
            .unwrap()
            .iter()
            .any(|reason| reason.as_str().unwrap().contains("out of support"))
    );
    let new = row_for("NVIDIA H200");
    assert_eq!(
        (&new["support"]["status"], &new["verdict"]),
        (&"supported".into(), &"ok".into()),
        "{new}"
    );
    // A combination that the facts lack is not `ok`.
    let weird = row_for("NVIDIA Weird 9000");
    assert_eq!((&weird["verdict"], &weird["exposure"]), (&"unknown".into(), &Value::Null));
    assert_eq!(weird["support"]["branch"], "R580");
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_counted_and_health_needs_no_token() {
    let fleet = TestFleet::open().await;
    fleet.report_finding("a", 1).await;
    let token = fleet.token("prometheus", Role::Viewer, "fleet");
    let answer = fleet.send("GET", "/metrics", Some(&token), None).await;
    assert!(answer.headers["content-type"].starts_with("text/plain; version=0.0.4"));
    for line in [
        "farrier_fleet_nodes{pool=\"train\",phase=\"joining\"} 2",
        "farrier_fleet_nodes{pool=\"serve\",phase=\"joining\"} 1",
        "farrier_fleet_nodes{pool=\"serve\",phase=\"held\"} 0",
        "farrier_fleet_rack_nodes{pool=\"serve\",rack=\"r1\",phase=\"joining\"} 1",
        "farrier_fleet_findings{pool=\"train\",severity=\"warning\"} 1",
        "farrier_server_controller_responding 1",
        "farrier_server_agents_connected 0",
        "# TYPE farrier_server_commits_total counter",
        // These may be above zero: the machine may stall, and its clock may be stepped.
        "\nfarrier_server_clock_steps_total ",
        "\nfarrier_server_controller_pauses_total ",
        "farrier_server_reports_throttled_total 0",
        "farrier_server_disk_low ",
    ] {
        assert!(answer.body.contains(line), "{line} is missing: {}", answer.body);
    }
    let health = fleet.send("GET", "/healthz", None, None).await;
    let text: Vec<&str> =
        health.body.lines().filter_map(|line| line.split_ascii_whitespace().next()).collect();
    assert_eq!(health.status, 200);
    assert_eq!(text, ["ok", "log_bytes", "disk_free_bytes", "disk_low"], "{}", health.body);
}

/// Covers a connection that was never opened, is open, has ended, and is unknown after a restart.
#[tokio::test(flavor = "multi_thread")]
async fn a_nodes_connection_is_shown_and_unknown_after_a_restart() {
    // With a long interval, no heartbeat is late on a slow machine.
    let server = TestServer { heartbeat_interval_s: 3600, ..TestServer::new(true) };
    let mut fleet = TestFleet::with(server.started().await).await;
    let ann = fleet.token("ann", Role::Viewer, "fleet");
    let mut agent = TestNode::new("a");
    agent.connect(&fleet.server);
    agent.acked(0).await;
    let page = fleet.get("/api/v1/nodes", &ann).await;
    let states: Vec<&Value> =
        page["nodes"].as_array().unwrap().iter().map(|row| &row["connection"]["state"]).collect();
    assert_eq!(states, ["connected", "never", "never"], "{page}");
    assert_eq!(page["nodes"][1]["connection"]["last_heartbeat_age_s"], Value::Null);
    assert!(page["nodes"][0]["connection"]["last_heartbeat_age_s"].is_u64(), "{page}");
    agent.disconnect();
    // The agent closes its socket. The server notices at once, whatever the heartbeat timeout is.
    fleet
        .wait_for("/api/v1/nodes/a", &ann, |node, _| node["connection"]["state"] == "disconnected")
        .await;
    let explained = fleet.get("/api/v1/nodes/a/explanation", &ann).await;
    assert_eq!(explained["connection"]["state"], "disconnected", "{explained}");
    let metrics = fleet.send("GET", "/metrics", Some(&ann), None).await.body;
    for line in [
        "farrier_fleet_node_connections{pool=\"train\",state=\"connected\"} 0\n",
        "farrier_fleet_node_connections{pool=\"train\",state=\"heartbeat-late\"} 0\n",
        "farrier_fleet_node_connections{pool=\"train\",state=\"disconnected\"} 1\n",
        "farrier_fleet_node_connections{pool=\"train\",state=\"never\"} 1\n",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    let before = Timestamp::now();
    fleet.server.running.take().unwrap().stop().await.unwrap();
    fleet.server.start(None).await;
    let node = fleet.get("/api/v1/nodes/a", &ann).await;
    assert_eq!(node["connection"]["state"], "never", "{node}");
    let since: Timestamp = node["connection"]["since"].as_str().unwrap().parse().unwrap();
    assert!(since > before, "the server started after {before}: {node}");
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_of_an_idle_node_are_counted() {
    let fleet = TestFleet::open().await;
    let ann = fleet.token("ann", Role::Viewer, "fleet");
    let mut agent = TestNode::new("a");
    agent.connect(&fleet.server);
    // After a while, the session only sends heartbeats. If they did not count, the last message
    // would be as old as the session.
    fleet
        .wait_for("/api/v1/nodes/a", &ann, |node, sent_at| {
            let connection = &node["connection"];
            let opened: Timestamp = connection["since"].as_str().unwrap().parse().unwrap();
            let age_s = connection["last_heartbeat_age_s"].as_i64();
            age_s.is_some_and(|age_s| sent_at.duration_since(opened).as_secs() > age_s + 3)
        })
        .await;
}

/// The name of a retired node may now belong to another owner. This owner must not see earlier
/// entries.
#[tokio::test(flavor = "multi_thread")]
async fn a_scoped_reader_sees_nothing_of_an_earlier_node_of_that_name() {
    let fleet = TestFleet::open().await;
    fleet.report_finding("a", 1).await;
    let hold = OperatorRequest::Hold { node: node("a"), reason: "hidden".to_owned() };
    fleet.submit(Event::OperatorRequested { request: hold }).await;
    fleet.submit(Event::Retired { node: node("a"), reason: "sold".to_owned() }).await;
    fleet.enrol("a", "serve", None, None).await;
    fleet.report_finding("a", 7).await;
    let token = fleet.token("eve", Role::Viewer, "pool:serve");
    let mut everything = String::new();
    for path in ["/api/v1/events?node=a&limit=500", "/api/v1/export?data=log"] {
        everything.push_str(&fleet.send("GET", path, Some(&token), None).await.body);
    }
    assert!(!everything.contains("hidden") && !everything.contains("sold"), "{everything}");
    assert!(!everything.contains("train"), "{everything}");
    assert!(everything.contains("findings-reported"), "later findings are theirs: {everything}");
    let all = fleet.token("ann", Role::Viewer, "fleet");
    let events = fleet.send("GET", "/api/v1/events?node=a&limit=500", Some(&all), None).await;
    assert!(events.body.contains("hidden"), "a fleet-wide reader sees all of it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_cannot_begin_in_the_future() {
    let fleet = TestFleet::open().await;
    let token = fleet.token("vic", Role::Viewer, "fleet");
    for query in ["from=2100-01-01T00:00:00Z", "from=2100-01-01T00:00:00Z&to=2101-01-01T00:00:00Z"]
    {
        let answer =
            fleet.send("GET", &format!("/api/v1/report?{query}"), Some(&token), None).await;
        answer.assert_problem(400);
        let detail = answer.json()["detail"].as_str().unwrap().to_owned();
        assert!(
            detail.starts_with("`from` is 2100-01-01T00:00:00Z, which is in the future"),
            "{detail}"
        );
        assert!(
            detail.ends_with("expected an earlier time, or no `from` for the begin of the log")
        );
    }
    let past = fleet.send("GET", "/api/v1/report?from=2020-01-01T00:00:00Z", Some(&token), None);
    assert_eq!(past.await.status, 200);
}
