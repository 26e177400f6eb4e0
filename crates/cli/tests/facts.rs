//! `farrier facts`: lookups, the matrix, and installed fact sets.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use support::{CommandOutput, farrier, run};

#[test]
fn every_kind_lists_finds_and_suggests() {
    let cases = [
        ("gpu", "NVIDIA H100 80GB HBM3", "H10O", "`H100`"),
        ("driver", "550.54.15", "551", "`550`"),
        ("cuda", "12.8", "12.7", "12.6, 12.8"),
        ("framework", "torch==2.11.0", "toch", "`torch`"),
        ("xid", "79", "GPS_RPC_TIMEOUT", "`GSP_RPC_TIMEOUT`"),
        ("advisory", "CVE-2026-24187", "CVE-2026-24188x", "`CVE-2026-24187`"),
    ];
    for (kind, name, misspelt, suggestion) in cases {
        for output in ["table", "json"] {
            let list = run(&["facts", kind, "--output", output]);
            let found = run(&["facts", kind, name, "--output", output]);
            assert_eq!((list.code, found.code), (0, 0), "{kind}: {}", found.stderr);
            assert!(list.stdout.len() > found.stdout.len(), "{kind}");
            for shown in [&list, &found] {
                assert!(
                    shown.stdout.contains("farrier-2026.11.18"),
                    "{kind} does not name its set"
                );
            }
        }
        let refused = run(&["facts", kind, misspelt]);
        assert_eq!(refused.code, 2, "{kind}");
        assert!(refused.stderr.contains(suggestion), "{kind}: {}", refused.stderr);
    }
}

#[test]
fn unverified_and_disputed_values_are_shown_as_such() {
    let lookup = |args: &[&str]| {
        let text = run(args).stdout;
        // Removes line wrapping.
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let gpu = lookup(&["facts", "gpu", "A30"]);
    assert!(gpu.contains("933 (unverified)"), "{gpu}");
    let gpu = lookup(&["facts", "gpu", "B300"]);
    assert!(gpu.contains("not used: kept as the maximum"), "{gpu}");
    let branch = lookup(&["facts", "driver", "580"]);
    assert!(branch.contains("v580 says 2028-08; not used"), "{branch}");
    let xid = lookup(&["facts", "xid", "63"]);
    assert!(xid.contains("gpud says fatal"), "{xid}");
}

#[test]
fn the_matrix_applies_to_a_day() {
    let status = |on: &str, branch: u64| {
        let output = run(&["facts", "matrix", "--output", "json", "--on", on]);
        let matrix: Value = serde_json::from_str(&output.stdout).unwrap();
        let rows = matrix["matrix"].as_array().unwrap().clone();
        rows.into_iter().find(|row| row["branch"] == branch).unwrap()
    };
    let row = status("2026-11-15", 580);
    assert_eq!(row["status"], "supported");
    assert_eq!((&row["cuda"], &row["cuda_by_minor_version"]), (&json!("13.0"), &json!("13.4")));
    assert_eq!(row["architectures"][0], "Maxwell");
    assert_eq!(status("2028-06-30", 580)["status"], "supported");
    assert_eq!(status("2028-07-01", 580)["status"], "ended");
    assert_eq!(status("2026-11-15", 590)["status"], "unknown");
}

/// The embedded set under another name, dated a day later.
fn newer() -> Value {
    let mut set: Value = serde_json::from_str(&run(&["facts", "export"]).stdout).unwrap();
    set["set"]["name"] = json!("site-2026.11.19");
    set["set"]["date"] = json!("2026-11-19");
    set
}

fn in_folder(folder: &Path, args: &[&str]) -> CommandOutput {
    farrier(args).env("FARRIER_FACTS_DIR", folder).output().unwrap().into()
}

fn install(folder: &Path, set: &Value) -> CommandOutput {
    let file = folder.join("new.json");
    fs::write(&file, set.to_string()).unwrap();
    in_folder(&folder.join("facts"), &["facts", "update", "--from", file.to_str().unwrap()])
}

/// The fact set that a report is based on, and the warnings on stderr.
fn active_set(folder: &Path) -> (Value, String) {
    let args = ["check", "--gpu", "H100", "--driver", "580.95.05", "--output", "json"];
    let output = in_folder(&folder.join("facts"), &args);
    let report: Value = serde_json::from_str(&output.stdout).unwrap();
    (report["data"].clone(), output.stderr)
}

#[test]
fn a_newer_set_is_installed_and_reports_name_it() {
    let folder = tempfile::tempdir().unwrap();
    let output = install(folder.path(), &newer());
    assert_eq!(output.code, 0, "{}", output.stderr);
    assert!(
        output.stdout.contains("installed `site-2026.11.19` of 2026-11-19"),
        "{}",
        output.stdout
    );
    let expected = json!({"set": "site-2026.11.19", "date": "2026-11-19"});
    assert_eq!(active_set(folder.path()), (expected, String::new()));
    let sets = in_folder(&folder.path().join("facts"), &["facts", "sets"]).stdout;
    assert!(sets.contains("site-2026.11.19") && sets.contains("farrier-2026.11.18"), "{sets}");

    // A set is not newer than itself.
    let again = install(folder.path(), &newer());
    assert_eq!(again.code, 2);
    assert!(again.stderr.contains("is not newer than the active one"), "{}", again.stderr);
}

#[test]
fn a_set_with_a_future_date_or_a_path_as_name_is_refused() {
    for (key, value, problem) in [
        ("date", "2999-01-01", "is dated 2999-01-01, and today is"),
        ("name", "../../etc/passwd", "is not a valid fact set name"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut set = newer();
        set["set"][key] = json!(value);
        let output = install(folder.path(), &set);
        assert_eq!(output.code, 2);
        assert!(output.stderr.contains(problem), "{}", output.stderr);
        assert!(!folder.path().join("facts").exists());
    }
}

#[test]
fn a_damaged_set_is_skipped_for_the_next_newest() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(install(folder.path(), &newer()).code, 0);
    let mut next = newer();
    next["set"] = json!({"schema": 1, "name": "site-2026.11.20", "date": "2026-11-20"});
    assert_eq!(install(folder.path(), &next).code, 0);

    let facts = folder.path().join("facts");
    let damaged = fs::read_dir(&facts)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.to_str().unwrap().contains("2026-11-20"))
        .unwrap();
    let text = fs::read_to_string(&damaged).unwrap().replace("\"Hopper\"", "\"Hoppel\"");
    fs::write(&damaged, text).unwrap();
    let (data, stderr) = active_set(folder.path());
    assert_eq!(data["set"], "site-2026.11.19");
    assert!(stderr.contains("skipped installed fact set `site-2026.11.20`"), "{stderr}");
    assert!(stderr.contains("does not match its checksum"), "{stderr}");
}

#[test]
fn an_invalid_set_is_refused_entirely() {
    let cases: [(&str, Value); 3] = [
        ("/gpus/gpu/0/compute_capability", json!("1.0")),
        ("/drivers/release/3/version", json!("515")),
        ("/cuda/toolkit/0/origin/source", json!([])),
    ];
    for (pointer, value) in cases {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("bad.json");
        let mut set = newer();
        *set.pointer_mut(pointer).unwrap() = value;
        fs::write(&file, set.to_string()).unwrap();
        let facts = folder.path().join("facts");
        let output = in_folder(&facts, &["facts", "update", "--from", file.to_str().unwrap()]);
        assert_eq!(output.code, 2, "{pointer}");
        assert!(output.stderr.contains("rejected fact set"), "{pointer}: {}", output.stderr);
        assert!(output.stderr.contains("nothing was changed"), "{pointer}: {}", output.stderr);
        assert!(!facts.exists(), "{pointer}: a file was written");
    }
}

#[test]
fn other_files_are_refused_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("notes.json");
    for (content, reason) in
        [("", "EOF"), ("{\"set\": 1}", "invalid type"), ("\u{0}", "expected value")]
    {
        fs::write(&file, content).unwrap();
        let output =
            in_folder(folder.path(), &["facts", "update", "--from", file.to_str().unwrap()]);
        assert_eq!(output.code, 2);
        assert!(output.stderr.contains(reason), "{}", output.stderr);
    }
    for (path, reason) in [("/dev/zero", "not a regular file"), ("/", "not a regular file")] {
        let output = in_folder(folder.path(), &["facts", "update", "--from", path]);
        assert_eq!(output.code, 2);
        assert!(output.stderr.contains(reason), "{}", output.stderr);
    }
    let output = in_folder(folder.path(), &["facts", "update", "--from", "/nonexistent.json"]);
    assert_eq!(output.code, 2);
    assert!(output.stderr.contains("failed to read `/nonexistent.json`"), "{}", output.stderr);
}
