//! Output for a login that is scoped to one pool. The commands print only the server's responses,
//! and the server redacts them. So no output contains names or counts of another pool, even if the
//! reason that the server stores for a phase or a deferral does.

use std::path::Path;

use farrier_fleet::fleet::event::{Event, OperatorRequest};
use farrier_fleet::fleet::reason::samples;
use farrier_fleet::fleet::{Domain, Location, NodeId, NodePhase, Rationale};

use crate::test_fleet::TestFleet;

const FOREIGN_POOL: &str = "zz-secret";

/// Names and counts of the other pool in a text. A count must be a word of its own: digits within a
/// time do not match.
fn markers(text: &str) -> Vec<String> {
    let words: Vec<&str> = text.split(|letter: char| !letter.is_ascii_alphanumeric()).collect();
    let counts = samples::FOREIGN_COUNTS.map(|count| count.to_string());
    let counts = counts.into_iter().filter(|count| words.contains(&count.as_str()));
    counts.chain(text.contains("zz-").then(|| "zz-".to_owned())).collect()
}

#[test]
fn no_command_prints_names_or_counts_of_another_pool() {
    let fleet = TestFleet::plain();
    let [own, other]: [NodeId; 2] = ["gpu-1", "zz-node"].map(|name| name.parse().unwrap());
    let mut location = Location::in_pool(FOREIGN_POOL.parse().unwrap());
    location.rack = "r1".parse().ok();
    fleet.submit(Event::Enrolled { node: other, location });
    let hold = OperatorRequest::Hold { node: own.clone(), reason: "check the cable".to_owned() };
    fleet.submit(Event::OperatorRequested { request: hold });
    fleet.report_finding("gpu-1", 1);
    fleet.report_finding("zz-node", 1);
    let created = fleet.add_user(&["bob", "--role", "viewer", "--pool", "train"]);
    let (token, fingerprint) =
        (created["token"].as_str().unwrap(), created["ca_fingerprint"].as_str().unwrap());
    let url = fleet.url();
    fleet.run_ok(&["login", "--server", &url, "--ca-fingerprint", fingerprint, "--token", token]);
    let prints = |args: &[&str]| {
        let output = fleet.run(args);
        assert!(output.code < 2, "{args:?}: {}", output.stderr);
        let text = output.stdout + &output.stderr;
        assert_eq!(markers(&text), [""; 0], "{args:?} prints {text}");
        text
    };
    let other_pool = Domain::Pool(FOREIGN_POOL.parse().unwrap());
    let mut count = 0;
    for about in [Domain::Fleet, other_pool] {
        let reasons = samples::reasons_naming(&about, FOREIGN_POOL.parse().ok());
        let (pool, node) = (FOREIGN_POOL.parse().ok(), "zz-node".parse().ok());
        let unblocked_by = samples::unblocked_by_naming(&about, pool, node);
        for (reason, unblocked_by) in reasons.into_iter().zip(unblocked_by.into_iter().cycle()) {
            let rationale = Rationale::new(reason, unblocked_by);
            let (to, node) = (NodePhase::Held, own.clone());
            fleet.submit(Event::PhaseChanged {
                node: node.clone(),
                to,
                rationale: rationale.clone(),
            });
            fleet.submit(Event::Deferred { node, rationale });
            assert!(prints(&["fleet", "explain", "gpu-1"]).contains("gpu-1"));
            count += 1;
        }
    }
    assert!(count > 60, "{count}");
    for command in [
        &["fleet", "nodes"][..],
        &["fleet", "node", "gpu-1"],
        &["fleet", "findings"],
        &["fleet", "events", "--limit", "500"],
        &["fleet", "domains", "--all"],
        &["fleet", "matrix"],
        &["top", "--server", "--once"],
    ] {
        prints(command);
        prints(&[command, &["--output", "json"]].concat());
    }
    prints(&["policy", "show"]);
    prints(&["fleet", "export", "state"]);
    prints(&["fleet", "export", "log"]);
}

/// The source of the commands names no type that holds unredacted state. They print only what the
/// server sends, which the server has already redacted.
#[test]
fn fleet_commands_print_only_server_responses() {
    let commands = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/commands/fleet");
    let mut count = 0;
    for file in std::fs::read_dir(commands).unwrap().map(|entry| entry.unwrap().path()) {
        if file.extension().is_some_and(|extension| extension == "rs") {
            let source = std::fs::read_to_string(&file).unwrap();
            for other in ["farrier_server", "FleetState", "fleet::state"] {
                assert!(!source.contains(other), "{} uses {other}", file.display());
            }
            count += 1;
        }
    }
    assert!(count > 8, "{count}");
}
