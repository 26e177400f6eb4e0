//! Tests that `docs/metrics.md` lists every metric, and that `/metrics` stays small for a large
//! fleet.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use farrier_fleet::fleet::coverage::CoverageReport;
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{Entry, Event, FleetState, LOGIC_VERSION, Location};
use farrier_wire::rest::ConnectionState;
use jiff::Timestamp;

use super::domains::DomainTally;
use super::families;
use super::page::MetricsPage;
use super::tally::NodeTally;
use super::{READ_TIMEOUT_MAX, SCRAPE_TIMEOUT_HEADER, read_timeout};

const BEGIN: &str = "<!-- generated from crates/server: do not edit until the next comment -->\n";
const END: &str = "<!-- end of the server's metrics -->\n";

#[test]
fn the_metrics_page_lists_every_family_of_the_server() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let current = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = current.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let mut table = "\n| metric | type | labels | meaning |\n|---|---|---|---|\n".to_owned();
    for family in families::ALL {
        let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        let (name, kind, help) = (family.name, family.kind.name(), family.help);
        table.push_str(&format!("| `{name}` | {kind} | {} | {help} |\n", labels.join(", ")));
    }
    let expected = format!("{before}{BEGIN}{table}\n{END}{after}");
    if std::env::var_os("FARRIER_BLESS").is_some() {
        std::fs::write(&path, expected).unwrap();
        return;
    }
    assert!(current == expected, "docs/metrics.md is not current: run with FARRIER_BLESS=1");
}

#[test]
fn names_are_unique_and_say_their_type() {
    let names: BTreeSet<&str> = families::ALL.iter().map(|family| family.name).collect();
    assert_eq!(names.len(), families::ALL.len());
    for family in families::ALL {
        let is_counter = family.kind.name() == "counter";
        assert_eq!(family.name.ends_with("_total"), is_counter, "{}", family.name);
        assert!(family.help.ends_with('.'), "{}", family.help);
    }
}

/// A state with this many nodes, eight in a rack. Every fourth rack is in pool `serve`.
fn fleet(nodes: usize) -> FleetState {
    let mut state = FleetState::default();
    for number in 0..nodes {
        let rack = number / 8;
        let pool = if rack % 4 == 3 { "serve" } else { "train" };
        let mut location = Location::in_pool(pool.parse().unwrap());
        location.rack = format!("r{rack}").parse().ok();
        let node = format!("n{number}").parse().unwrap();
        let (seq, at, by) = (number as u64 + 1, Timestamp::UNIX_EPOCH, Actor::Server);
        let event = Event::Enrolled { node, location };
        state.apply(&Entry { seq, batch: seq, at, by, logic: LOGIC_VERSION, event });
    }
    state
}

fn page(state: &FleetState, racks_max: usize) -> String {
    // In batches, as the controller reads them.
    let mut all = NodeTally::default();
    let nodes: Vec<_> = state.nodes.values().collect();
    for batch in nodes.chunks(2000) {
        let mut tally = NodeTally::default();
        for node in batch {
            tally.add(node, ConnectionState::Connected);
        }
        all.merge(tally);
    }
    let mut page = MetricsPage::default();
    all.write(&mut page, Timestamp::UNIX_EPOCH, racks_max);
    DomainTally::new(state, Timestamp::UNIX_EPOCH).write(&mut page);
    page.finish()
}

#[test]
fn the_coverage_of_a_silent_node_is_unknown() {
    let mut state = fleet(2);
    let node: farrier_fleet::fleet::NodeId = "n0".parse().unwrap();
    let events = [
        Event::CoverageReported { node: node.clone(), coverage: CoverageReport::default() },
        Event::HeartbeatLost { node, since: Timestamp::UNIX_EPOCH },
    ];
    let full = "farrier_fleet_node_coverage{pool=\"train\",coverage=\"full\"} ";
    let unknown = "farrier_fleet_node_coverage{pool=\"train\",coverage=\"unknown\"} ";
    for (seq, event, counts) in [(3, &events[0], (1, 1)), (4, &events[1], (0, 2))] {
        let (at, by, event) = (Timestamp::UNIX_EPOCH, Actor::Server, event.clone());
        state.apply(&Entry { seq, batch: seq, at, by, logic: LOGIC_VERSION, event });
        let page = page(&state, 300);
        assert!(page.contains(&format!("{full}{}\n", counts.0)), "{page}");
        assert!(page.contains(&format!("{unknown}{}\n", counts.1)), "{page}");
    }
}

fn samples<'p>(page: &'p str, family: &str) -> Vec<&'p str> {
    page.lines().filter(|line| line.starts_with(&format!("{family}{{"))).collect()
}

#[test]
fn counts_of_batches_add_up_and_racks_are_limited() {
    let page = page(&fleet(8000), 300);
    for line in [
        "farrier_fleet_nodes{pool=\"train\",phase=\"joining\"} 6000\n",
        "farrier_fleet_nodes{pool=\"serve\",phase=\"joining\"} 2000\n",
        "farrier_fleet_node_connections{pool=\"serve\",state=\"connected\"} 2000\n",
        "farrier_fleet_rack_nodes{pool=\"serve\",rack=\"r3\",phase=\"joining\"} 8\n",
        "farrier_fleet_racks_omitted 700\n",
        "farrier_fleet_disruption_budget_limit_nodes{kind=\"fleet\",name=\"\"} 800\n",
        "farrier_fleet_disruption_budget_headroom_nodes{kind=\"pool\",name=\"train\"} 1200\n",
        "farrier_fleet_capacity_headroom_nodes{kind=\"pool\",name=\"serve\"} 1000\n",
        "farrier_fleet_domain_faults{kind=\"rack\"} 0\n",
    ] {
        assert!(page.contains(line), "{line} is not in {page}");
    }
    assert_eq!(samples(&page, "farrier_fleet_rack_nodes").len(), 300);
    // Racks that use no budget have no samples of it.
    assert_eq!(samples(&page, "farrier_fleet_disruption_budget_used_nodes").len(), 3);
}

#[test]
fn a_page_does_not_grow_with_the_number_of_nodes() {
    let lines = |nodes| page(&fleet(nodes), 100).lines().count();
    assert_eq!(lines(800), lines(4000));
}

#[test]
fn half_of_the_scrape_timeout_is_left_to_send_the_page() {
    let timeout = |header: Option<&str>| {
        let value = header.map(|text| (SCRAPE_TIMEOUT_HEADER, text.parse().unwrap()));
        let headers = value.into_iter().map(|(name, value)| (name.parse().unwrap(), value));
        read_timeout(&headers.collect())
    };
    assert_eq!(timeout(Some("1")), Duration::from_millis(500));
    for other in [None, Some("30"), Some("soon"), Some("-1"), Some("NaN")] {
        assert_eq!(timeout(other), READ_TIMEOUT_MAX, "{other:?}");
    }
}
