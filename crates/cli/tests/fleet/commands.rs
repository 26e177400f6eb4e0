//! The `farrier login` and `farrier fleet` commands.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use serde_json::Value;

use crate::town::Town;

#[test]
fn a_person_logs_in_looks_holds_and_releases() {
    let town = Town::with_tls();
    let nobody = town.run(&["fleet", "nodes"]);
    assert_eq!(nobody.code, 2);
    assert!(nobody.stderr.contains("hint: `farrier login"), "{}", nobody.stderr);
    // The token comes from stdin, which keeps it out of the shell history.
    let made = town.person(&["ann", "--role", "operator", "--expires", "12h"]);
    let token = made["token"].as_str().unwrap();
    let (url, fingerprint) = (town.url(), made["ca_fingerprint"].as_str().unwrap());
    let login = ["login", "--server", &url, "--ca-fingerprint", fingerprint, "--token", "-"];
    let mut child =
        town.command(&login).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(token.as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    let out = String::from_utf8(out.stdout).unwrap();
    assert!(out.starts_with("logged in as ann, operator of the fleet, at https://127.0.0.1:"), "{out}");
    assert!(!out.contains(token));
    let kept = town.path("config/farrier/login.json");
    assert_eq!(std::fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o600);
    // The fingerprint of another CA means another server.
    let other = "ab".repeat(32);
    let wrong =
        town.run(&["login", "--server", &url, "--ca-fingerprint", &other, "--token", token]);
    assert_eq!(wrong.code, 2, "{}", wrong.stdout);
    assert!(wrong.stderr.contains("fingerprint"), "{}", wrong.stderr);

    let nodes = town.fine(&["fleet", "nodes"]);
    assert!(
        nodes.contains("gpu-1") && nodes.contains("8 × H200") && nodes.contains("3 nodes"),
        "{nodes}"
    );
    let some = town.fine(&["fleet", "nodes", "--pool", "train", "--output", "json"]);
    let names: Vec<Value> = some.lines().map(|it| serde_json::from_str(it).unwrap()).collect();
    assert_eq!(names.len(), 2);
    assert_eq!(names[0]["node"], "gpu-1");

    let held = town.fine(&["fleet", "cordon", "gpu-1", "--reason", "a look at the cable"]);
    assert_eq!(held, "gpu-1 is held out of service\n");
    assert_eq!(
        town.fine(&["fleet", "cordon", "gpu-1", "--reason", "a look at the cable"]),
        "no change: this is already in effect\n"
    );
    let node = town.run(&["fleet", "node", "gpu-1"]);
    assert_eq!(node.code, 1, "it is not in service: {}", node.stderr);
    assert!(node.stdout.contains("ann: a look at the cable"), "{}", node.stdout);
    let why = town.run(&["fleet", "explain", "gpu-1"]);
    assert_eq!(why.code, 1);
    assert!(why.stdout.contains("ann holds it: a look at the cable"), "{}", why.stdout);
    assert!(why.stdout.contains("until") && why.stdout.contains("whoever holds it releases it"));
    town.fine(&["fleet", "uncordon", "gpu-1"]);

    let events = town.fine(&["fleet", "events", "--kind", "operator-requested"]);
    let lines: Vec<&str> = events.lines().collect();
    assert_eq!(lines.len(), 2, "{events}");
    assert!(lines[0].ends_with("gpu-1 hold it: a look at the cable [ann]"), "{events}");

    // Requests that an operator may not make.
    for words in
        [&["fleet", "approve", "gpu-1"][..], &["fleet", "retire", "gpu-1", "--reason", "x"]]
    {
        let refused = town.run(words);
        assert_eq!(refused.code, 2, "{words:?}");
        assert!(refused.stderr.contains("is required; yours is operator"), "{}", refused.stderr);
        assert!(refused.stderr.contains("hint: "), "{}", refused.stderr);
    }
    let stranger = town.run(&["fleet", "node", "gpu-9"]);
    assert_eq!(stranger.code, 2);
    assert!(stranger.stderr.contains("`gpu-9` is not a node of the fleet"), "{}", stranger.stderr);
}

#[test]
fn findings_the_matrix_freezes_and_the_policy() {
    let town = Town::plain();
    town.log_in("root", "admin");
    assert_eq!(town.fine(&["fleet", "findings"]), "no open findings\n");
    town.find("gpu-2", 1);
    let found = town.run(&["fleet", "findings", "--severity", "critical"]);
    assert_eq!(found.code, 1);
    assert!(found.stdout.contains("the GPU has fallen off the bus"), "{}", found.stdout);
    let matrix = town.fine(&["fleet", "matrix"]);
    assert!(
        matrix.contains("H200") && matrix.contains("580.95.05") && matrix.contains("13.0"),
        "{matrix}"
    );
    assert!(matrix.contains("2028-06") && matrix.contains("advisories, worst CVE-"), "{matrix}");
    let matrix: Value =
        serde_json::from_str(&town.fine(&["fleet", "matrix", "--output", "json"])).unwrap();
    assert_eq!((&matrix["rows"][0]["nodes"], &matrix["rows"][0]["gpus"]), (&3.into(), &24.into()));

    let frozen =
        town.fine(&["fleet", "freeze", "rack:r2", "--for", "2h", "--reason", "a deadline"]);
    assert_eq!(frozen, "repairs in rack r2 are frozen for 2h\n");
    let domains = town.fine(&["fleet", "domains"]);
    assert!(domains.contains("rack r2 by root until"), "{domains}");
    assert_eq!(town.fine(&["fleet", "unfreeze", "rack:r2"]), "rack r2 is no longer frozen\n");

    let policy = town.fine(&["fleet", "policy", "show"]);
    let mut policy: Value = serde_json::from_str(&policy).unwrap();
    policy["pools_default"]["autonomy"] = "observe".into();
    let file = town.path("policy.json");
    std::fs::write(&file, policy.to_string()).unwrap();
    let set = ["fleet", "policy", "set", file.to_str().unwrap()];
    assert_eq!(town.fine(&set), "the policy is in force\n");
    assert_eq!(town.fine(&set), "no change: this policy is already in force\n");
    policy["pools_default"]["tries"] = 0.into();
    std::fs::write(&file, policy.to_string()).unwrap();
    let wrong = town.run(&set);
    assert_eq!(wrong.code, 2);
    assert!(
        wrong.stderr.contains("pools_default.tries: expected 1 to 100, found 0"),
        "{}",
        wrong.stderr
    );

    let state = town.fine(&["fleet", "export"]);
    assert_eq!(state.lines().count(), 3);
    let log = town.fine(&["fleet", "export", "log"]);
    let last: Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
    assert_eq!(last["seq"], log.lines().count());
    town.fine(&["fleet", "retire", "gpu-3", "--reason", "sold"]);
    assert!(!town.fine(&["fleet", "nodes"]).contains("gpu-3"));
}

#[test]
fn a_person_says_where_a_node_stands_and_what_is_not_told_stays() {
    let town = Town::plain();
    town.log_in("root", "admin");
    let place = |words: &[&str]| town.fine(&[&["fleet", "set-location", "gpu-1"], words].concat());
    let placed = place(&["--rack", "r9", "--leaf", "l1", "--tenant", "lab"]);
    assert_eq!(placed, "gpu-1 is now in pool train, tenant lab, leaf switch l1, rack r9\n");
    assert_eq!(
        place(&["--rack", "r9"]),
        "no change: gpu-1 is already in pool train, tenant lab, leaf switch l1, rack r9\n"
    );
    let racked = town.fine(&["fleet", "nodes", "--rack", "r9"]);
    assert!(racked.contains("gpu-1") && !racked.contains("gpu-2"), "{racked}");
    let domains = town.fine(&["fleet", "domains"]);
    assert!(domains.contains("tenant lab") && !domains.contains("rack r1"), "{domains}");
    let moved = place(&["--pool", "serve", "--clear", "leaf,tenant", "--nvlink", "n1"]);
    assert_eq!(moved, "gpu-1 is now in pool serve, rack r9, NVLink domain n1\n");
    let nothing = town.run(&["fleet", "set-location", "gpu-1"]);
    assert_eq!(nothing.code, 2);
    assert!(nothing.stderr.contains("hint: name at least one part, such as `--rack r1"), "{}", nothing.stderr);
}

#[test]
fn whoever_follows_hears_of_it_and_goes_on_after_a_restart() {
    let mut town = Town::plain();
    town.log_in("ann", "viewer");
    let end = town.running().tail().end().to_string();
    let words = ["fleet", "events", "--follow", "--kind", "findings-reported", "--limit", "3", "--after", &end];
    let mut child =
        town.command(&words).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    town.find("gpu-1", 1);
    let first = lines.next().unwrap().unwrap();
    assert!(
        first.contains("gpu-1 fatal gpu.xid (Xid 79) on GPU-1: the GPU has fallen off the bus"),
        "{first}"
    );
    // Events that happen during the disconnect are printed too, once.
    town.start("server");
    town.find("gpu-2", 1);
    town.find("gpu-3", 1);
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    assert_eq!(rest.len(), 2, "{rest:?}");
    assert!(rest[0].contains("gpu-2 fatal") && rest[1].contains("gpu-3 fatal"), "{rest:?}");
    assert!(child.wait().unwrap().success(), "as many as were asked for");
    town.stop();
    let gone = town.run(&["fleet", "nodes"]);
    assert_eq!(gone.code, 2);
    assert!(gone.stderr.contains("failed to connect"), "{}", gone.stderr);
}

#[test]
fn a_login_that_others_can_read_is_not_used() {
    let town = Town::plain();
    town.log_in("ann", "viewer");
    let kept = town.path("config/farrier/login.json");
    std::fs::set_permissions(&kept, std::fs::Permissions::from_mode(0o644)).unwrap();
    let refused = town.run(&["fleet", "nodes"]);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("other users can read the saved token"), "{}", refused.stderr);
    assert!(refused.stderr.contains("`chmod 600 "), "{}", refused.stderr);
}
