//! `farrier demo` end to end, with the real protocol and real agents, in seconds.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/kill.rs"]
mod kill;
#[path = "../support/mod.rs"]
mod support;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Stdio};

use support::{farrier, run};

const LOG_VERIFIED: &str =
    "A replay from the first entry gives the same decisions and, byte for byte, the same state";

fn start(args: &[&str]) -> (Child, BufReader<ChildStdout>) {
    let mut demo = farrier(args).stdout(Stdio::piped()).spawn().unwrap();
    let out = BufReader::new(demo.stdout.take().unwrap());
    (demo, out)
}

/// Interrupts the demo with SIGINT, and returns the rest of its output.
fn interrupt(demo: &mut Child, out: &mut BufReader<ChildStdout>) -> String {
    kill::kill("-INT", &demo.id().to_string());
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert!(demo.wait().unwrap().success(), "{rest}");
    rest
}

#[test]
fn the_demo_prints_faults_findings_and_decisions_and_verifies_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("kept").display().to_string();
    // The test interrupts the demo as soon as it has seen enough.
    let demo = ["demo", "--headless", "--seed", "3", "--duration", "10m", "--dir", &dir];
    let (mut demo, mut out) = start(&demo);
    let mut expected = vec![
        "64 nodes have joined and passed V0 and V1",
        "(a real agent): the driver logs Xid 79 for GPU 3",
        "fatal gpu.xid (Xid 79)",
        "is quarantined: fatal gpu.xid (Xid 48)",
        ": reset the GPU",
        "is in service: passed all required verifications",
        "leaf switch leaf-0000: domain fault, not ",
    ];
    while !expected.is_empty() {
        let mut line = String::new();
        assert!(out.read_line(&mut line).unwrap() > 0, "the demo ended without {expected:?}");
        expected.retain(|text| !line.contains(text));
    }
    let rest = interrupt(&mut demo, &mut out);
    for expected in [LOG_VERIFIED, "The log is kept in"] {
        assert!(rest.contains(expected), "`{expected}` is not in\n{rest}");
    }
    assert!(folder.path().join("kept/server/log").is_file());
    let again = run(&["demo", "--headless", "--duration", "20s", "--dir", &dir]);
    assert_eq!(again.code, 2, "{}", again.stdout);
    assert!(again.stderr.contains("is not empty"), "{}", again.stderr);
}

#[test]
fn an_interrupt_ends_the_demo_cleanly() {
    let (mut demo, mut out) = start(&["demo", "--headless", "--duration", "10m"]);
    let mut line = String::new();
    while !line.contains("have joined") {
        line.clear();
        assert!(out.read_line(&mut line).unwrap() > 0, "the demo ended early");
    }
    let rest = interrupt(&mut demo, &mut out);
    assert!(rest.contains(LOG_VERIFIED), "{rest}");
}

#[test]
fn an_invalid_duration_is_refused_with_an_example() {
    for invalid in ["5", "10s", "x", "2h"] {
        let refused = run(&["demo", "--duration", invalid]);
        assert_eq!(refused.code, 2);
        assert!(refused.stderr.contains("such as 90s or 5m"), "{}", refused.stderr);
    }
}
