//! The `farrier login` and `farrier fleet` commands.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use serde_json::Value;

use crate::test_fleet::TestFleet;

#[test]
fn an_operator_logs_in_holds_and_releases_a_node() {
    let fleet = TestFleet::with_tls();
    let logged_out = fleet.run(&["fleet", "nodes"]);
    assert_eq!(logged_out.code, 2);
    assert!(logged_out.stderr.contains("hint: `farrier login"), "{}", logged_out.stderr);
    // The token comes from stdin, which keeps it out of the shell history.
    let created = fleet.add_user(&["ann", "--role", "operator", "--expires", "12h"]);
    let token = created["token"].as_str().unwrap();
    let (url, fingerprint) = (fleet.url(), created["ca_fingerprint"].as_str().unwrap());
    let login = ["login", "--server", &url, "--ca-fingerprint", fingerprint, "--token", "-"];
    let mut child =
        fleet.command(&login).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(token.as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    let out = String::from_utf8(out.stdout).unwrap();
    assert!(
        out.starts_with("logged in as ann, operator of the fleet, at https://127.0.0.1:"),
        "{out}"
    );
    assert!(!out.contains(token));
    let login_file = fleet.path("config/farrier/login.json");
    assert_eq!(std::fs::metadata(&login_file).unwrap().permissions().mode() & 0o777, 0o600);
    // The fingerprint of another CA belongs to another server.
    let other = "ab".repeat(32);
    let wrong =
        fleet.run(&["login", "--server", &url, "--ca-fingerprint", &other, "--token", token]);
    assert_eq!(wrong.code, 2, "{}", wrong.stdout);
    assert!(wrong.stderr.contains("fingerprint"), "{}", wrong.stderr);

    let nodes = fleet.run_ok(&["fleet", "nodes"]);
    assert!(
        nodes.contains("gpu-1") && nodes.contains("8 × H200") && nodes.contains("3 nodes"),
        "{nodes}"
    );
    let listed = fleet.run_ok(&["fleet", "nodes", "--pool", "train", "--output", "json"]);
    let rows: Vec<Value> = listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0]["node"], "gpu-1");

    let held = fleet.run_ok(&["fleet", "cordon", "gpu-1", "--reason", "check the cable"]);
    assert_eq!(held, "gpu-1 is held out of service\n");
    assert_eq!(
        fleet.run_ok(&["fleet", "cordon", "gpu-1", "--reason", "check the cable"]),
        "no change: this is already in effect\n"
    );
    let node = fleet.run(&["fleet", "node", "gpu-1"]);
    assert_eq!(node.code, 1, "the node is not in service: {}", node.stderr);
    assert!(node.stdout.contains("ann: check the cable"), "{}", node.stdout);
    let explained = fleet.run(&["fleet", "explain", "gpu-1"]);
    assert_eq!(explained.code, 1);
    assert!(explained.stdout.contains("held by ann: check the cable"), "{}", explained.stdout);
    assert!(explained.stdout.contains("until"), "{}", explained.stdout);
    assert!(explained.stdout.contains("an operator releases the hold"), "{}", explained.stdout);
    fleet.run_ok(&["fleet", "uncordon", "gpu-1"]);

    let events = fleet.run_ok(&["fleet", "events", "--kind", "operator-requested"]);
    let lines: Vec<&str> = events.lines().collect();
    assert_eq!(lines.len(), 2, "{events}");
    assert!(lines[0].ends_with("gpu-1 hold: check the cable [ann]"), "{events}");

    // Requests that an operator may not make.
    for args in [&["fleet", "approve", "gpu-1"][..], &["fleet", "retire", "gpu-1", "--reason", "x"]]
    {
        let refused = fleet.run(args);
        assert_eq!(refused.code, 2, "{args:?}");
        assert!(refused.stderr.contains("is required; yours is operator"), "{}", refused.stderr);
        assert!(refused.stderr.contains("hint: "), "{}", refused.stderr);
    }
    let unknown = fleet.run(&["fleet", "node", "gpu-9"]);
    assert_eq!(unknown.code, 2);
    assert!(unknown.stderr.contains("`gpu-9` is not a node of the fleet"), "{}", unknown.stderr);
}

#[test]
fn findings_matrix_freezes_policy_and_export() {
    let fleet = TestFleet::plain();
    fleet.log_in("root", "admin");
    assert_eq!(fleet.run_ok(&["fleet", "findings"]), "no open findings\n");
    fleet.report_finding("gpu-2", 1);
    let findings = fleet.run(&["fleet", "findings", "--severity", "critical"]);
    assert_eq!(findings.code, 1);
    assert!(findings.stdout.contains("the GPU has fallen off the bus"), "{}", findings.stdout);
    let matrix = fleet.run_ok(&["fleet", "matrix"]);
    assert!(
        matrix.contains("H200") && matrix.contains("580.95.05") && matrix.contains("13.0"),
        "{matrix}"
    );
    assert!(matrix.contains("2028-06") && matrix.contains("advisories, worst CVE-"), "{matrix}");
    let matrix: Value =
        serde_json::from_str(&fleet.run_ok(&["fleet", "matrix", "--output", "json"])).unwrap();
    assert_eq!((&matrix["rows"][0]["nodes"], &matrix["rows"][0]["gpus"]), (&3.into(), &24.into()));

    let frozen =
        fleet.run_ok(&["fleet", "freeze", "rack:r2", "--for", "2h", "--reason", "a deadline"]);
    assert_eq!(frozen, "repairs in rack r2 are frozen for 2h\n");
    let domains = fleet.run_ok(&["fleet", "domains", "--all"]);
    assert!(domains.contains("rack r2 by root until"), "{domains}");
    assert_eq!(fleet.run_ok(&["fleet", "unfreeze", "rack:r2"]), "rack r2 is no longer frozen\n");

    let policy = fleet.run_ok(&["policy", "show"]);
    let mut policy: Value = serde_json::from_str(&policy).unwrap();
    policy["pools_default"]["autonomy"] = "observe".into();
    let file = fleet.path("policy.json");
    std::fs::write(&file, policy.to_string()).unwrap();
    let set = ["policy", "set", "--yes", file.to_str().unwrap()];
    let shown = fleet.run_ok(&set);
    assert!(shown.contains("3 of 3 nodes have another effective policy"), "{shown}");
    assert!(shown.ends_with("\nthe policy is in force\n"), "{shown}");
    assert_eq!(fleet.run_ok(&set), "no change: this policy is already in force\n");
    policy["pools_default"]["max_attempts"] = 0.into();
    std::fs::write(&file, policy.to_string()).unwrap();
    let refused = fleet.run(&set);
    assert_eq!(refused.code, 2);
    assert!(
        refused.stderr.contains("pools_default.max_attempts: expected 1 to 100, found 0"),
        "{}",
        refused.stderr
    );

    let state = fleet.run_ok(&["fleet", "export"]);
    assert_eq!(state.lines().count(), 3);
    let log = fleet.run_ok(&["fleet", "export", "log"]);
    let last: Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
    assert_eq!(last["seq"], log.lines().count());
    fleet.run_ok(&["fleet", "retire", "gpu-3", "--reason", "sold"]);
    assert!(!fleet.run_ok(&["fleet", "nodes"]).contains("gpu-3"));
}

#[test]
fn set_location_sets_the_given_parts_of_a_location_and_keeps_the_others() {
    let fleet = TestFleet::plain();
    fleet.log_in("root", "admin");
    let set_location =
        |args: &[&str]| fleet.run_ok(&[&["fleet", "set-location", "gpu-1"], args].concat());
    let set = set_location(&["--rack", "r9", "--leaf", "l1", "--tenant", "lab"]);
    assert_eq!(set, "gpu-1 is now in pool train, tenant lab, leaf switch l1, rack r9\n");
    assert_eq!(
        set_location(&["--rack", "r9"]),
        "no change: gpu-1 is already in pool train, tenant lab, leaf switch l1, rack r9\n"
    );
    let in_rack = fleet.run_ok(&["fleet", "nodes", "--rack", "r9"]);
    assert!(in_rack.contains("gpu-1") && !in_rack.contains("gpu-2"), "{in_rack}");
    let domains = fleet.run_ok(&["fleet", "domains", "--all"]);
    assert!(domains.contains("tenant lab") && !domains.contains("rack r1"), "{domains}");
    let changed = set_location(&["--pool", "serve", "--clear", "leaf,tenant", "--nvlink", "n1"]);
    assert_eq!(changed, "gpu-1 is now in pool serve, rack r9, NVLink domain n1\n");
    let empty = fleet.run(&["fleet", "set-location", "gpu-1"]);
    assert_eq!(empty.code, 2);
    assert!(
        empty.stderr.contains("hint: name at least one part, such as `--rack r1"),
        "{}",
        empty.stderr
    );
}

#[test]
fn follow_prints_each_event_once_and_resumes_after_a_server_restart() {
    let mut fleet = TestFleet::plain();
    fleet.log_in("ann", "viewer");
    let end = fleet.server().tail().end().to_string();
    let args = [
        "fleet",
        "events",
        "--follow",
        "--kind",
        "findings-reported",
        "--limit",
        "3",
        "--after",
        &end,
    ];
    let mut child =
        fleet.command(&args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    fleet.report_finding("gpu-1", 1);
    let first = lines.next().unwrap().unwrap();
    assert!(
        first.contains("gpu-1 fatal gpu.xid (Xid 79) on GPU-1: the GPU has fallen off the bus"),
        "{first}"
    );
    // Restart the server. The command must print each event exactly once, even one from before it
    // has reconnected.
    fleet.start("server");
    fleet.report_finding("gpu-2", 1);
    fleet.report_finding("gpu-3", 1);
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    assert_eq!(rest.len(), 2, "{rest:?}");
    assert!(rest[0].contains("gpu-2 fatal") && rest[1].contains("gpu-3 fatal"), "{rest:?}");
    assert!(child.wait().unwrap().success(), "the command ends after --limit events");
    fleet.stop();
    let refused = fleet.run(&["fleet", "nodes"]);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("failed to connect"), "{}", refused.stderr);
}

#[test]
fn a_login_file_that_others_can_read_is_refused() {
    let fleet = TestFleet::plain();
    fleet.log_in("ann", "viewer");
    let login_file = fleet.path("config/farrier/login.json");
    std::fs::set_permissions(&login_file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let refused = fleet.run(&["fleet", "nodes"]);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("other users can read the saved token"), "{}", refused.stderr);
    assert!(refused.stderr.contains("`chmod 600 "), "{}", refused.stderr);
}
