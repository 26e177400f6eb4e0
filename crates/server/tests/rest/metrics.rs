//! Every metric of the reference has a sample with its labels.

use std::collections::{BTreeMap, BTreeSet};

use farrier_fleet::fleet::event::{Event, JournalPosition};
use farrier_fleet::fleet::{OrderStatus, Policy, Role};
use farrier_fleet::health::{Action, Change, Severity};
use farrier_fleet::notify::Receiver;
use farrier_server::controller::Controller;

use crate::test_fleet::TestFleet;
use crate::test_server::{finding, node};

/// The labels of each metric in the server's section of the reference.
fn reference() -> BTreeMap<String, BTreeSet<String>> {
    let page = include_str!("../../../../docs/metrics.md");
    let server = page.split("## Agent").next().unwrap();
    let quoted = |cell: &str| -> BTreeSet<String> {
        cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    let rows = server.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').collect();
        (quoted(cells[1]).pop_first().unwrap(), quoted(cells[3]))
    })
    .collect()
}

/// The labels of each metric on the page.
fn sampled(page: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut sampled: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut family = "";
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            family = rest.split(' ').next().unwrap();
        } else if !line.starts_with('#') {
            assert!(line.starts_with(family), "{line} is not below its type");
            let labels = line.split_once('{').map_or("", |(_, labels)| labels);
            let names = labels.split("=\"").map(|part| part.rsplit(['"', ',']).next().unwrap());
            let names = names.filter(|name| !name.is_empty() && *name != "le");
            let names = names.filter(|name| !name.contains('}')).map(str::to_owned);
            sampled.entry(family.to_owned()).or_default().extend(names);
        }
    }
    sampled
}

async fn report_fatal(fleet: &TestFleet, name: &str) {
    let mut finding = finding(1);
    finding.severity = Severity::Fatal;
    (finding.action, finding.rule_action) = (Action::RebootNode, Action::RebootNode);
    let record = JournalPosition { journal: "j".to_owned(), number: 1 };
    let changes = vec![Change::Opened(finding)];
    fleet.submit(Event::FindingsReported { node: node(name), record, changes }).await;
}

/// Reports that the pending order of a node failed.
async fn fail_order(fleet: &TestFleet, controller: &Controller, name: &str) {
    let id = node(name);
    let generation = controller.read(move |state| state.nodes[&id].orders.generation());
    let generation = generation.await.unwrap();
    let status = OrderStatus::Failed { reason: "no".to_owned() };
    fleet.submit(Event::OrderStatusReported { node: node(name), generation, status }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_metric_of_the_reference_has_a_sample() {
    let fleet = TestFleet::open().await;
    // The first node uses the budget of the fleet, and the second waits for it. The verification of
    // the first fails.
    for name in ["a", "b", "c"] {
        fleet.report_inventory(name, Some("NVIDIA H200"), Some("580.95.05")).await;
    }
    report_fatal(&fleet, "a").await;
    report_fatal(&fleet, "b").await;
    fail_order(&fleet, fleet.controller(), "a").await;
    let receiver: Receiver =
        serde_json::from_str(r#"{"command": {"argv": ["/bin/true"]}}"#).unwrap();
    let mut policy = Policy::default();
    policy.notifications.receivers.insert("oncall".to_owned(), receiver);
    fleet.submit(Event::PolicySet { policy: Box::new(policy) }).await;
    let token = fleet.token("prometheus", Role::Viewer, "fleet");
    let page = loop {
        let page = fleet.send("GET", "/metrics", Some(&token), None).await.body;
        // The disk is measured once a second.
        if page.contains("farrier_server_log_bytes") {
            break page;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(sampled(&page), reference(), "{page}");
    for line in [
        "farrier_fleet_nodes_deferred{pool=\"train\",reason=\"disruption-budget\"} 1",
        "farrier_fleet_nodes_order_failed{pool=\"train\",kind=\"verify\"} 1",
        "farrier_fleet_disruption_budget_headroom_nodes{kind=\"fleet\",name=\"\"} 0",
        "farrier_fleet_disruption_budget_used_nodes{kind=\"rack\",name=\"r1\"} 1",
    ] {
        assert!(page.contains(line), "{line} is missing: {page}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn racks_are_limited_by_a_parameter() {
    let fleet = TestFleet::open().await;
    let token = fleet.token("prometheus", Role::Viewer, "fleet");
    let page = fleet.send("GET", "/metrics?racks=1", Some(&token), None).await.body;
    let racks = page.lines().filter(|line| line.starts_with("farrier_fleet_rack_nodes{"));
    assert_eq!(racks.count(), 1, "{page}");
    assert!(page.contains("farrier_fleet_racks_omitted 2\n"), "{page}");
    fleet.send("GET", "/metrics?racks=many", Some(&token), None).await.assert_problem(400);
}
