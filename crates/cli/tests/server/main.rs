//! `farrier server` with `farrier agent` on a simulated node: the real binaries, over TLS.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stderr, reason = "prints measured times")]

mod access;
#[path = "../agent/agent_node.rs"]
#[allow(dead_code, reason = "the agent's own tests use the rest")]
mod agent_node;
mod coverage;
#[path = "../support/kill.rs"]
mod kill;
mod killed;
mod killed_notifier;
mod logs;
mod reconnect;
#[path = "../support/server.rs"]
mod server;
#[path = "../support/mod.rs"]
mod support;

use std::fs;

use farrier_fleet::fleet::{Entry, Event, NodePhase};
use farrier_fleet::health::Finding;
use farrier_server::log::sqlite::SqliteLog;
use farrier_server::log::verify;

use agent_node::AgentNode;
use server::{TestServer, reports_finding, until};
use support::run;
use support::wait::wait_for;

/// Whether an event reports the finding: as a change of the agent's journal, or in the findings
/// snapshot of the first session with that journal.
fn has_finding(event: &Event, detail: &str) -> bool {
    let is_open = |open: &[Finding]| open.iter().any(|finding| finding.detail.contains(detail));
    reports_finding(event, detail)
        || matches!(event, Event::FindingsSnapshot { open, .. } if is_open(open))
}

fn open_log(agent_node: &AgentNode) -> SqliteLog {
    SqliteLog::open_to_read(&agent_node.path("server/log")).unwrap()
}

#[test]
fn a_lost_gpu_is_in_the_servers_log_and_its_node_is_quarantined() {
    let agent_node = AgentNode::with_gpus(2);
    let server = TestServer::start(&agent_node.path(""), "127.0.0.1:0", "server-1.log");
    let refused = server.enrol("gpu-1", &agent_node.text("identity"), "fjoin_wrong");
    assert_eq!(refused.code, 2);
    assert!(
        refused.stderr.contains("hint: create another token with `farrier server token create`"),
        "{}",
        refused.stderr
    );
    let secret = server.token(&["--pool", "train"]);
    let enrolled = server.enrol("gpu-1", &agent_node.text("identity"), &secret);
    assert_eq!(enrolled.code, 0, "{}", enrolled.stderr);
    let address = server.log_field("address=").unwrap();
    let section = format!(
        "[server]\nurl = \"https://{address}\"\nidentity = {:?}\n",
        agent_node.text("identity")
    );
    fs::write(agent_node.path("agent.toml"), agent_node.config(&section)).unwrap();
    let checked = run(&["agent", "--check-config", "--config", &agent_node.text("agent.toml")]);
    assert_eq!(checked.code, 0, "{}", checked.stderr);
    let agent = agent_node.agent().ready();
    until("the node reports its inventory", || {
        server.has(
            |event| matches!(event, Event::InventoryReported { inventory, .. } if inventory.gpus.as_ref().is_some_and(|gpus| gpus.len() == 2)),
        )
    });
    agent_node.inject(&["xid", "79", "--gpu", "0"]);
    until("the finding is in the server's log", || {
        server.has(|event| reports_finding(event, "Xid 79"))
    });
    until("the node is quarantined", || {
        server.has(|event| matches!(event, Event::PhaseChanged { to: NodePhase::Quarantined, .. }))
    });
    let entries = server.entries();
    let finding_entry =
        entries.iter().find(|entry| reports_finding(&entry.event, "Xid 79")).unwrap();
    let quarantined = |entry: &&Entry| {
        matches!(entry.event, Event::PhaseChanged { to: NodePhase::Quarantined, .. })
    };
    assert_eq!(
        entries.iter().find(quarantined).unwrap().batch,
        finding_entry.batch,
        "decided in the batch of the finding"
    );
    // After SIGKILL and a restart, the server continues without duplicates.
    server.kill();
    agent_node.inject(&["xid", "79", "--gpu", "1"]);
    let server = TestServer::start(&agent_node.path(""), &address, "server-2.log");
    until("both findings are in the log", || {
        server.entries().iter().filter(|entry| reports_finding(&entry.event, "Xid 79")).count() >= 2
    });
    let mut records: Vec<u64> = Vec::new();
    for entry in server.entries() {
        if let Event::FindingsReported { record, .. } = entry.event {
            records.push(record.number);
        }
    }
    assert!(records.windows(2).all(|pair| pair[0] < pair[1]), "{records:?}");
    assert!(verify(&open_log(&agent_node)).unwrap().is_ok());
    // No file or log of the server or the agent contains the token itself.
    for name in ["server/access", "server/log", "server-1.log", "server-2.log", "log"] {
        let bytes = fs::read(agent_node.path(name)).unwrap();
        assert!(!bytes.windows(secret.len()).any(|window| window == secret.as_bytes()), "{name}");
    }
    let revoked = server.command(&["revoke", "gpu-1"]);
    assert_eq!(revoked.code, 0, "{}", revoked.stderr);
    until("the agent logs the revocation", || agent.log().contains("the certificate was revoked"));
    agent.stop();
    server.stop();
}

#[test]
fn a_server_with_a_full_disk_exits_with_an_error_and_keeps_acknowledged_entries() {
    let agent_node = AgentNode::with_gpus(4);
    let dir = agent_node.text("server");
    // `ulimit -f` counts blocks of 512 bytes; the log reaches the limit after some commits.
    let run = format!(
        "trap '' XFSZ; ulimit -f 160; exec {} server run --dir {dir} --plain train --listen 127.0.0.1:0",
        env!("CARGO_BIN_EXE_farrier")
    );
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &run]);
    let mut server = TestServer::spawn(&agent_node.path(""), "full.log", &mut command);
    let address = server.log_field("address=").unwrap();
    let section = format!("[server]\nurl = \"http://{address}\"\n");
    fs::write(agent_node.path("agent.toml"), agent_node.config(&section)).unwrap();
    let agent = agent_node.agent().ready();
    let mut turn = 0;
    let explain = || "the server exits when its disk is full".to_owned();
    let status = wait_for(explain, || {
        let (xid, gpu) =
            (["79", "48", "94", "63", "31", "13"][turn % 6], (turn / 6 % 4).to_string());
        agent_node.inject(&["xid", xid, "--gpu", &gpu]);
        turn += 1;
        server.exit_status()
    });
    let output = server.log();
    assert_eq!(status.code(), Some(2), "{output}");
    assert!(output.contains("error: the log failed: failed to "), "{output}");
    assert!(verify(&open_log(&agent_node)).unwrap().is_ok());
    let before = server.entries().len();
    let plain = ["--plain", "train"];
    let server = TestServer::start_with(&agent_node.path(""), &address, "again.log", &plain);
    // This Xid was not injected before, so it causes a new finding, whatever the server
    // acknowledged before it exited.
    agent_node.inject(&["xid", "119", "--gpu", "1"]);
    until("the server continues", || {
        server.entries().len() > before && server.has(|event| has_finding(event, "Xid 79"))
    });
    let numbers: Vec<u64> = server
        .entries()
        .into_iter()
        .filter_map(|entry| match entry.event {
            Event::FindingsReported { record, .. } => Some(record.number),
            _ => None,
        })
        .collect();
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{numbers:?}");
    agent.stop();
    server.stop();
}

#[test]
fn join_tokens_are_listed_and_revoked_and_plain_http_needs_loopback() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("server").to_str().unwrap().to_owned();
    let empty = run(&["server", "token", "list", "--dir", &dir]);
    assert!(empty.stdout.starts_with("no join tokens; "), "{}", empty.stdout);
    let create = ["server", "token", "create", "--dir", &dir, "--pool", "train", "--expires", "2h"];
    let created = run(&create);
    assert_eq!(created.code, 0, "{}", created.stderr);
    let secret = created.stdout.lines().next().unwrap();
    assert!(
        created.stdout.contains("farrier agent enrol --server https://HOST:9443 --ca-fingerprint "),
        "{}",
        created.stdout
    );
    run(&[&create[..], &["--node", "gpu-7"]].concat());
    let listed = run(&["server", "token", "list", "--dir", &dir]);
    let has = |listed: &str, row: &str| {
        let lines =
            listed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        lines.into_iter().any(|line| line.starts_with(row))
    };
    assert!(
        has(&listed.stdout, "Token State Location Node Uses left Expires"),
        "{}",
        listed.stdout
    );
    assert!(has(&listed.stdout, "1 open pool train any 1 2"), "{}", listed.stdout);
    assert!(
        has(&listed.stdout, "2 open pool train gpu-7 1") && !listed.stdout.contains(secret),
        "{}",
        listed.stdout
    );
    let located = run(&[&create[..], &["--uses", "18", "--rack", "r1", "--nvlink", "n1"]].concat());
    assert!(
        located.stdout.contains("18 nodes in pool train, rack r1, NVLink domain n1."),
        "{}",
        located.stdout
    );
    let listed = run(&["server", "token", "list", "--dir", &dir]);
    let row = "3 open pool train, rack r1, NVLink domain n1 any 18";
    assert!(has(&listed.stdout, row), "{}", listed.stdout);
    assert_eq!(run(&["server", "token", "revoke", "1", "--dir", &dir]).code, 0);
    let listed = run(&["server", "token", "list", "--dir", &dir, "--output", "json"]);
    assert!(listed.stdout.contains("\"state\":\"revoked\""), "{}", listed.stdout);
    assert_eq!(run(&["server", "token", "revoke", "9", "--dir", &dir]).code, 2);
    assert_eq!(run(&["server", "revoke", "unknown", "--dir", &dir]).code, 2);
    let refused =
        run(&["server", "run", "--dir", &dir, "--plain", "train", "--listen", "0.0.0.0:0"]);
    assert_eq!(refused.code, 2);
    assert!(
        refused.stderr.contains("is not a loopback address, which a server without TLS requires"),
        "{}",
        refused.stderr
    );
}
