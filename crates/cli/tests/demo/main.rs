//! `farrier demo` end to end, with the real protocol and real agents, in seconds.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/kill.rs"]
mod kill;
#[path = "../support/mod.rs"]
mod support;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Stdio};

use support::{farrier, run};

const AUDITED: &str = "A replay from the first entry gives the same decisions and, byte for byte, the same state";

fn started(words: &[&str]) -> (Child, BufReader<ChildStdout>) {
    let mut demo = farrier(words).stdout(Stdio::piped()).spawn().unwrap();
    let out = BufReader::new(demo.stdout.take().unwrap());
    (demo, out)
}

/// Interrupts the demo with SIGINT, and returns the rest of its output.
fn interrupted(demo: &mut Child, out: &mut BufReader<ChildStdout>) -> String {
    kill::kill("-INT", &demo.id().to_string());
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert!(demo.wait().unwrap().success(), "{rest}");
    rest
}

#[test]
fn it_tells_what_happened_what_was_found_and_decided_and_audits_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("kept").display().to_string();
    // The test interrupts the demo as soon as it has seen enough.
    let demo = ["demo", "--headless", "--seed", "3", "--duration", "10m", "--dir", &dir];
    let (mut demo, mut out) = started(&demo);
    let mut expected = vec![
        "64 nodes have joined and passed V0 and V1",
        "(a real agent): the driver logs Xid 79 for GPU 3",
        "fatal gpu.xid (Xid 79)",
        "is quarantined: fatal gpu.xid (Xid 48)",
        ": reset the GPU",
        "is in service: it passed what its pool asks for",
        "leaf switch leaf-0000: domain fault, not ",
    ];
    while !expected.is_empty() {
        let mut line = String::new();
        assert!(out.read_line(&mut line).unwrap() > 0, "it ended without {expected:?}");
        expected.retain(|it| !line.contains(it));
    }
    let rest = interrupted(&mut demo, &mut out);
    for expected in [AUDITED, "The log is kept in"] {
        assert!(rest.contains(expected), "`{expected}` is not in\n{rest}");
    }
    assert!(folder.path().join("kept/server/log").is_file());
    let again = run(&["demo", "--headless", "--duration", "20s", "--dir", &dir]);
    assert_eq!(again.code, 2, "{}", again.stdout);
    assert!(again.stderr.contains("is not empty"), "{}", again.stderr);
}

#[test]
fn an_interrupt_ends_it_cleanly() {
    let (mut demo, mut out) = started(&["demo", "--headless", "--duration", "10m"]);
    let mut line = String::new();
    while !line.contains("have joined") {
        line.clear();
        assert!(out.read_line(&mut line).unwrap() > 0, "it has ended");
    }
    let rest = interrupted(&mut demo, &mut out);
    assert!(rest.contains(AUDITED), "{rest}");
}

#[test]
fn a_time_that_is_none_is_refused_with_what_is_expected() {
    for wrong in ["5", "10s", "x", "2h"] {
        let ran = run(&["demo", "--duration", wrong]);
        assert_eq!(ran.code, 2);
        assert!(ran.stderr.contains("such as 90s or 5m"), "{}", ran.stderr);
    }
}
