//! `farrier fleet` with a thousand nodes: order, filters, and requests for many nodes.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use farrier_fleet::fleet::Location;
use farrier_fleet::fleet::event::{Event, GpuInventory, NodeInventory};
use farrier_fleet::health::GpuUuid;
use serde_json::Value;

use crate::test_fleet::TestFleet;

const NODES: u32 = 1000;
const RACKS: u32 = 50;

fn location(rack: u32) -> Location {
    let mut location = Location::in_pool("batch".parse().unwrap());
    location.rack = format!("rack-{rack}").parse().ok();
    location.site = Some(if rack < 25 { "north" } else { "south" }.parse().unwrap());
    location
}

/// A fleet with the nodes n-1 to n-1000, twenty in each of the racks rack-0 to rack-49. Those of
/// rack-7 have reported an inventory.
fn large_fleet() -> TestFleet {
    let fleet = TestFleet::plain();
    fleet.log_in("root", "admin");
    for number in 1..=NODES {
        let node = format!("n-{number}").parse().unwrap();
        fleet.submit(Event::Enrolled { node, location: location(number % RACKS) });
    }
    for number in (1..=NODES).filter(|number| number % RACKS == 7) {
        let gpu = GpuInventory {
            uuid: GpuUuid(format!("GPU-n-{number}")),
            name: Some("NVIDIA H100 80GB HBM3".to_owned()),
            index: Some(3),
            pci: Some("0000:3b:00.0".to_owned()),
            serial: None,
        };
        let inventory = NodeInventory {
            boot: "b".to_owned(),
            driver: Some("570.133.20".to_owned()),
            gpus: Some(vec![gpu; 8]),
            ..NodeInventory::default()
        };
        let node = format!("n-{number}").parse().unwrap();
        fleet.submit(Event::InventoryReported { node, inventory });
    }
    fleet
}

/// The names of the nodes that a command lists.
fn names(fleet: &TestFleet, args: &[&str]) -> Vec<String> {
    let json = fleet.run_ok(&[&["fleet", "nodes", "--output", "json"], args].concat());
    let rows = json.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    rows.map(|row| row["node"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_list_of_a_thousand_nodes_has_one_line_each_in_natural_order() {
    let fleet = large_fleet();
    let all = names(&fleet, &[]);
    assert_eq!(all.len(), 1003);
    let in_order = |name: &str, next: &str| {
        let place = all.iter().position(|other| other == name).unwrap();
        assert_eq!(all[place + 1], next);
    };
    in_order("n-9", "n-10");
    in_order("n-99", "n-100");
    in_order("gpu-3", "n-1");

    let table = fleet.run_ok(&["fleet", "nodes"]);
    let rows = table.lines().filter(|line| line.starts_with(" n-")).count();
    assert_eq!(rows, 1000);
    assert!(table.contains("1003 nodes: 1003 joining"), "{table}");
    for width in ["80", "120"] {
        let output = fleet.command(&["fleet", "nodes"]).env("COLUMNS", width).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let table = text.lines().filter(|line| line.starts_with(' '));
        let widest = table.map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= width.parse().unwrap(), "{widest} of {width}: {text}");
    }
    let limited = fleet.run_ok(&["fleet", "nodes", "--limit", "2"]);
    assert!(limited.contains("gpu-1") && !limited.contains("gpu-3"), "{limited}");
    assert!(limited.contains("shown: 2 of 1003 nodes; without --limit, all"), "{limited}");

    // Filters combine with AND, the values of a filter with OR.
    assert_eq!(names(&fleet, &["--rack", "rack-7"]).len(), 20);
    assert_eq!(names(&fleet, &["--rack", "rack-7,rack-8", "--site", "north"]).len(), 40);
    assert!(names(&fleet, &["--rack", "rack-7", "--site", "south"]).is_empty());
    assert_eq!(names(&fleet, &["--gpu", "h100", "--driver", "570"]).len(), 20);
    assert_eq!(names(&fleet, &["--driver", "unknown"]).len(), 980);
    assert!(names(&fleet, &["--phase", "held,suspect"]).is_empty());
    fleet.report_finding("n-7", 1);
    for code in ["79", "xid.79", "gpu.xid"] {
        assert_eq!(names(&fleet, &["--finding", code]), ["n-7"], "{code}");
    }
    // An unknown name is reported, with similar ones. It selects nothing.
    let unknown = fleet.run(&["fleet", "nodes", "--rack", "rack-7,rack-77", "--limit", "1"]);
    assert_eq!(unknown.code, 0, "{}", unknown.stderr);
    assert!(
        unknown.stderr.contains("no node in your scope is in rack rack-77; did you mean `rack-17`"),
        "{}",
        unknown.stderr
    );
    let wrong = fleet.run(&["fleet", "nodes", "--phase", "quarantine"]);
    assert_eq!(wrong.code, 2);
    assert!(wrong.stderr.contains("quarantined"), "{}", wrong.stderr);
}

#[test]
fn a_request_for_many_nodes_is_shown_confirmed_and_may_be_repeated() {
    let fleet = large_fleet();
    let cordon = ["fleet", "cordon", "--rack", "rack-7,rack-8", "--reason", "PDU"];
    // Without a terminal, the preview is all that happens.
    let unconfirmed = fleet.run(&cordon);
    assert_eq!(unconfirmed.code, 2);
    assert!(unconfirmed.stdout.starts_with("cordon 40 nodes\n"), "{}", unconfirmed.stdout);
    assert!(
        unconfirmed.stdout.contains("pool batch: 40 nodes fewer, 960 of 1000 nodes still take work; the capacity floor is 500"),
        "{}",
        unconfirmed.stdout
    );
    assert!(unconfirmed.stderr.contains("hint: pass --yes"), "{}", unconfirmed.stderr);
    assert!(names(&fleet, &["--phase", "held"]).is_empty());

    let cordon = [&cordon[..], &["--yes"]].concat();
    let done = fleet.run_ok(&cordon);
    assert!(done.contains("40 nodes, n-[7-8,57-58,"), "{done}");
    assert!(done.ends_with(": done\n"), "{done}");
    assert_eq!(names(&fleet, &["--phase", "held"]).len(), 40);
    assert!(fleet.run_ok(&cordon).ends_with(": already in effect\n"));

    // A request that fits only some nodes skips the others.
    let diag = fleet.run_ok(&["fleet", "diag", "n-7", "n-57", "n-9", "--yes"]);
    assert!(diag.starts_with("diag 2 nodes\n"), "{diag}");
    assert!(diag.contains("skipped   1 node, n-9: takes work"), "{diag}");
    // Some nodes refuse: the exit code is 2, the other nodes are done.
    let other = ["fleet", "diag", "n-7", "n-107", "--level", "2", "--yes"];
    let partly = fleet.run(&other);
    assert_eq!(partly.code, 2, "{}", partly.stdout);
    assert!(partly.stdout.contains("1 node, n-107: done"), "{}", partly.stdout);
    assert!(partly.stdout.contains("1 node, n-7: conflict with"), "{}", partly.stdout);
    assert!(partly.stderr.contains("`diag` failed for 1 of 2 nodes"), "{}", partly.stderr);
    let again = fleet.run(&other);
    assert!(again.stdout.contains("1 node, n-107: already in effect"), "{}", again.stdout);

    // A misspelt name or rack refuses the whole request.
    for (args, message) in [
        (&["cordon", "n-1", "n-2000", "--reason", "x", "--yes"][..], "not in your scope: n-2000"),
        (
            &["uncordon", "--rack", "rack-7,rack-99", "--yes"],
            "no node in your scope is in rack rack-99",
        ),
        (
            &["uncordon", "--rack", "rack-7", "--phase", "suspect", "--yes"],
            "no node in your scope matches",
        ),
        (&["uncordon", "--yes"], "`uncordon` needs at least one node"),
        (&["uncordon", "n-7", "--rack", "rack-7", "--yes"], "either name nodes or select them"),
        (&["approve", "--rack", "rack-7", "--yes"], "no repair waits for approval"),
    ] {
        let refused = fleet.run(&[&["fleet"], args].concat());
        assert_eq!(refused.code, 2, "{args:?}");
        assert!(refused.stderr.contains(message), "{args:?}: {}", refused.stderr);
    }
    assert_eq!(names(&fleet, &["--phase", "held"]).len(), 40, "nothing was changed");
    // Half of the pool has to take work.
    let floor = fleet.run(&["fleet", "cordon", "--site", "south,north", "--reason", "x"]);
    assert!(floor.stdout.contains("below the capacity floor of 500"), "{}", floor.stdout);
    assert!(
        fleet.run_ok(&["fleet", "uncordon", "--rack", "rack-7,rack-8", "--yes"]).contains("done")
    );
    assert!(names(&fleet, &["--phase", "held"]).is_empty());
}

/// Types `answer` when a command on a terminal asks, after `meanwhile`. `None` without util-linux's
/// `script`, which creates the terminal.
fn answering(
    fleet: &TestFleet,
    args: &str,
    meanwhile: impl FnOnce(),
    answer: &str,
) -> Option<String> {
    let line = format!("{} {args}", env!("CARGO_BIN_EXE_farrier"));
    let mut script = Command::new("script")
        .args(["--quiet", "--return", "--command", &line, "/dev/null"])
        .env("XDG_CONFIG_HOME", fleet.path("config"))
        .env("NO_COLOR", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut out = script.stdout.take().unwrap();
    let mut text = Vec::new();
    let mut byte = [0];
    while !text.ends_with(b"[y/N] ") && out.read(&mut byte).unwrap() > 0 {
        text.push(byte[0]);
    }
    meanwhile();
    script.stdin.take().unwrap().write_all(answer.as_bytes()).unwrap();
    out.read_to_end(&mut text).unwrap();
    script.wait().unwrap();
    Some(String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn only_nodes_that_were_shown_and_still_match_are_changed() {
    let fleet = large_fleet();
    let cordon = "fleet cordon --rack rack-7 --reason PDU";
    let Some(declined) = answering(&fleet, cordon, || {}, "n\n") else {
        eprintln!("skipped: no `script` to create a terminal");
        return;
    };
    assert!(declined.contains("cordon 20 nodes? [y/N]"), "{declined}");
    assert!(declined.contains("Nothing was changed."), "{declined}");
    // While the person decides, n-7 leaves the rack and n-8 is moved into it.
    let move_nodes = || {
        for (name, rack) in [("n-7", 8), ("n-8", 7)] {
            let node = name.parse().unwrap();
            fleet.submit(Event::LocationChanged { node, location: location(rack) });
        }
    };
    let text = answering(&fleet, cordon, move_nodes, "y\n").unwrap();
    assert!(text.contains("1 node, n-7: no longer match"), "{text}");
    assert!(text.contains("1 node, n-8: match by now, but were not shown"), "{text}");
    let held = names(&fleet, &["--phase", "held"]);
    assert_eq!(held.len(), 19);
    assert!(!held.contains(&"n-7".to_owned()) && !held.contains(&"n-8".to_owned()), "{held:?}");

    // Other holds take the pool to its floor while the person decides.
    let hold_others = || {
        let others = "rack-10,rack-11,rack-12,rack-13,rack-14,rack-15,rack-16,rack-17,rack-18,rack-19,rack-20,rack-21";
        fleet.run_ok(&["fleet", "cordon", "--rack", others, "--reason", "x", "--yes"]);
    };
    let racks: Vec<String> = (25..48).map(|rack| format!("rack-{rack}")).collect();
    let south = format!("fleet cordon --rack {} --reason PDU", racks.join(","));
    let text = answering(&fleet, &south, hold_others, "y\n").unwrap();
    assert!(text.contains("nothing was changed: meanwhile other nodes left service"), "{text}");
    assert_eq!(names(&fleet, &["--phase", "held", "--site", "south"]).len(), 0);
}

#[test]
fn a_node_that_needs_a_person_is_listed_with_the_next_step() {
    let fleet = TestFleet::plain();
    fleet.log_in("root", "admin");
    let nothing = fleet.run_ok(&["fleet", "nodes", "--needs-attention"]);
    assert_eq!(nothing, "no node in your scope needs attention\n");
    let policy = fleet.path("observe.json");
    std::fs::write(&policy, r#"{"pools_default": {"autonomy": "observe"}}"#).unwrap();
    fleet.run_ok(&["policy", "set", "--yes", policy.to_str().unwrap()]);
    fleet.report_finding("gpu-2", 1);
    let listed = fleet.run_ok(&["fleet", "nodes", "--needs-attention"]);
    assert!(listed.contains("unfit at work"), "{listed}");
    assert!(listed.contains("cordon gpu-2 --reason TEXT"), "{listed}");
    assert!(!listed.contains("gpu-1"), "{listed}");
    let json = fleet.run_ok(&["fleet", "nodes", "--needs-attention", "--output", "json"]);
    let row: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(row["attention"]["code"], "quarantine-blocked");
    assert_eq!(row["attention"]["severity"], "fatal");
    // The advice is printed once, with the command to run and the runbook.
    let explained = fleet.run(&["fleet", "explain", "gpu-2"]);
    assert!(
        explained.stdout.contains("\n  runbook   farrier runbook xid.79\n"),
        "{}",
        explained.stdout
    );
    let findings = fleet.run(&["fleet", "findings"]);
    assert!(
        findings.stdout.starts_with("1 open finding on 1 node: 1 fatal\n"),
        "{}",
        findings.stdout
    );
    assert_eq!(
        findings.stdout.matches("drain the node and reboot it").count(),
        1,
        "{}",
        findings.stdout
    );
}
