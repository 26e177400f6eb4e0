//! Verification detects an edited log. A backup of a live log is complete, and a server can
//! continue from it.

use std::path::Path;

use serde_json::Value;

use crate::support::wait::wait_until;
use crate::support::{CommandOutput, run};
use crate::test_fleet::TestFleet;

fn verify(path: &str, more: &[&str]) -> CommandOutput {
    run(&[&["server", "verify-log", path], more].concat())
}

fn edit(log: &Path, statements: &str) {
    let connection = rusqlite::Connection::open(log).unwrap();
    connection.execute_batch(statements).unwrap();
}

/// A fleet whose server is stopped, with 20 reports of findings in its log.
fn stopped_fleet() -> TestFleet {
    let mut fleet = TestFleet::plain();
    for number in 1..=20 {
        fleet.report_finding("gpu-1", number);
    }
    fleet.stop();
    fleet
}

#[test]
fn verify_log_detects_every_edit() {
    let fleet = stopped_fleet();
    let intact = verify(&fleet.path_text("server"), &["--replay"]);
    assert_eq!(intact.code, 0, "{} {}", intact.stdout, intact.stderr);
    assert!(intact.stdout.contains("entries, hash chain intact, every decision reproduced"));
    let hash = intact.stdout.lines().last().unwrap().strip_prefix("hash ").unwrap().to_owned();
    let edits = [
        (
            "a byte",
            "UPDATE entries SET bytes = replace(bytes, 'seq', 'sep') WHERE seq = 7",
            "entry 7, or its hash, was changed",
        ),
        (
            "a hash",
            "UPDATE entries SET hash = zeroblob(32) WHERE seq = 5",
            "entry 5, or its hash, was changed",
        ),
        ("a missing row", "DELETE FROM entries WHERE seq = 9", "entry 9 is missing"),
        (
            "two swapped rows",
            "UPDATE entries SET seq = -1 WHERE seq = 4; UPDATE entries SET seq = 4 WHERE seq = 6;
             UPDATE entries SET seq = 6 WHERE seq = -1",
            "entry 4, or its hash, was changed",
        ),
        ("another type", "UPDATE entries SET bytes = 5 WHERE seq = 3", ""),
        ("a truncated log", "DELETE FROM entries WHERE seq > 10", "the snapshot at entry "),
    ];
    for (number, (edit_name, statements, expected)) in edits.into_iter().enumerate() {
        let copy = fleet.path(&format!("edited-{number}"));
        std::fs::create_dir(&copy).unwrap();
        for name in ["log", "log.state"] {
            std::fs::copy(fleet.path("server").join(name), copy.join(name)).unwrap();
        }
        edit(&copy.join("log"), statements);
        let refused = verify(copy.to_str().unwrap(), &[]);
        assert_eq!(refused.code, 1, "{edit_name}: {} {}", refused.stdout, refused.stderr);
        assert!(
            refused.stdout.starts_with("VERIFICATION FAILED: ")
                && refused.stdout.contains(expected),
            "{edit_name}: {}",
            refused.stdout
        );
        let report: Value =
            serde_json::from_str(&verify(copy.to_str().unwrap(), &["--output", "json"]).stdout)
                .unwrap();
        assert_eq!(report["intact"], false);
    }
    // If the snapshots are gone too, only a hash noted earlier reveals that the log was truncated.
    let copy = fleet.path("cut");
    std::fs::create_dir(&copy).unwrap();
    std::fs::copy(fleet.path("server/log"), copy.join("log")).unwrap();
    edit(&copy.join("log"), "DELETE FROM entries WHERE seq > 10");
    let copy = copy.to_str().unwrap().to_owned();
    assert_eq!(verify(&copy, &[]).code, 0, "the remaining entries are intact");
    let cut = verify(&copy, &["--require-hash", &hash]);
    assert_eq!(cut.code, 1);
    assert!(
        cut.stdout.contains("The hash chain is intact: the log was truncated"),
        "{}",
        cut.stdout
    );
    let malformed = verify(&copy, &["--require-hash", "0000"]);
    assert_eq!(malformed.code, 2);
    assert!(
        malformed.stderr.contains("expected the 64 hexadecimal digits"),
        "{}",
        malformed.stderr
    );
    assert_eq!(verify(&fleet.path_text("server"), &["--require-hash", &hash]).code, 0);
    assert_eq!(verify("/nonexistent", &[]).code, 2);
}

#[test]
fn a_server_refuses_a_log_without_its_ca() {
    let fleet = stopped_fleet();
    let dir = fleet.path_text("server");
    std::fs::remove_file(fleet.path("server").join("ca.key")).unwrap();
    for args in [
        &["server", "run", "--dir", &dir, "--listen", "127.0.0.1:0"][..],
        &["server", "token", "create", "--pool", "train", "--dir", &dir],
    ] {
        let refused = run(args);
        assert_eq!(refused.code, 2, "{args:?}");
        assert!(
            refused.stderr.contains("has the log of a fleet, but lacks `ca.key` or `ca.pem`"),
            "{}",
            refused.stderr
        );
        assert!(refused.stderr.contains("--new-authority"), "{}", refused.stderr);
    }
}

#[test]
fn replay_detects_an_edited_decision() {
    let fleet = stopped_fleet();
    // Recompute every hash, which anyone who has the binary can do.
    let path = fleet.path("server/log");
    let log = farrier_server::log::sqlite::SqliteLog::open_to_read(&path).unwrap();
    let rows = farrier_server::log::Log::read(&log, 0, usize::MAX).unwrap();
    drop(log);
    let connection = rusqlite::Connection::open(&path).unwrap();
    let mut hash = farrier_server::log::Hash::genesis();
    let mut changed = 0;
    for row in rows {
        let text = String::from_utf8(row.bytes).unwrap();
        let edited = text.replace("\"to\":\"quarantined\"", "\"to\":\"suspect\"");
        changed += u32::from(edited != text);
        hash = hash.then(row.seq, edited.as_bytes());
        connection
            .execute(
                "UPDATE entries SET bytes = ?2, hash = ?3 WHERE seq = ?1",
                rusqlite::params![row.seq, edited.as_bytes(), hash.0],
            )
            .unwrap();
    }
    drop(connection);
    for name in ["log.state", "log-head"] {
        std::fs::remove_file(fleet.path("server").join(name)).unwrap();
    }
    assert!(changed > 0, "no decision to edit");
    assert_eq!(
        verify(&fleet.path_text("server"), &[]).code,
        0,
        "the hash chain alone does not reveal the edit"
    );
    let replayed = verify(&fleet.path_text("server"), &["--replay"]);
    assert_eq!(replayed.code, 1, "{}", replayed.stdout);
    assert!(replayed.stdout.contains("differ from the replayed ones"), "{}", replayed.stdout);
}

#[test]
fn a_backup_of_a_running_server_is_complete_and_can_be_restored() {
    let mut fleet = TestFleet::plain();
    let (dir, copy) = (fleet.path_text("server"), fleet.path_text("copy"));
    let backup = std::thread::scope(|scope| {
        let backup = scope.spawn(|| run(&["server", "backup", &dir, &copy]));
        let mut number = 0;
        while !backup.is_finished() {
            number += 1;
            fleet.report_finding("gpu-1", number);
        }
        assert!(number > 0);
        backup.join().unwrap()
    });
    assert_eq!(backup.code, 0, "{}", backup.stderr);
    assert!(backup.stdout.contains("entries, hash chain intact, hash "), "{}", backup.stdout);
    assert!(
        backup.stdout.contains("ca.key") && backup.stdout.contains("access"),
        "{}",
        backup.stdout
    );
    let permissions =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&copy).unwrap().permissions());
    assert_eq!(permissions & 0o777, 0o600);
    assert_eq!(verify(&copy, &["--replay"]).code, 0);
    let again = run(&["server", "backup", &dir, &copy]);
    assert_eq!(again.code, 2, "an existing file is not overwritten");
    assert!(again.stderr.contains("already exists"), "{}", again.stderr);
    // A restore never overwrites an existing log.
    let refused = run(&["server", "restore", &copy, &dir]);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("already exists"), "{}", refused.stderr);
    let fresh = fleet.path_text("fresh");
    let restored = run(&["server", "restore", &copy, &fresh]);
    assert_eq!(restored.code, 0, "{}", restored.stderr);
    assert!(restored.stdout.contains("is missing; the CA's private key"), "{}", restored.stdout);
    let verified = verify(&fresh, &["--replay"]);
    assert_eq!(verified.code, 0, "{}", verified.stdout);
    // A server continues from the restored log, with the same state. A backup of the log does not
    // contain the CA, so copy the CA as well.
    for name in ["ca.key", "ca.pem"] {
        std::fs::copy(fleet.path("server").join(name), fleet.path("fresh").join(name)).unwrap();
    }
    fleet.start("fresh");
    let state: Value = serde_json::from_slice(&fleet.state()).unwrap();
    assert_eq!(state["nodes"].as_object().unwrap().len(), 3);
    fleet.report_finding("gpu-2", 1);
    fleet.stop();
    assert_eq!(verify(&fresh, &["--replay"]).code, 0);
    // A log with an integrity error is not restored.
    edit(Path::new(&copy), "DELETE FROM entries WHERE seq = 2");
    let broken = run(&["server", "restore", &copy, &fleet.path_text("other")]);
    assert_eq!(broken.code, 2);
    assert!(broken.stderr.contains("failed: entry 2 is missing"), "{}", broken.stderr);
    assert!(!fleet.path("other/log").exists());
}

#[test]
fn old_entries_are_archived_while_the_server_runs_and_the_chain_continues() {
    let mut fleet = stopped_fleet();
    fleet.start("server");
    let (dir, file) = (fleet.path_text("server"), fleet.path_text("archive"));
    let mut number = 0;
    let archived = loop {
        number += 1;
        fleet.report_finding("gpu-2", number);
        let output = run(&["server", "archive", &dir, &file, "--older-than", "1s"]);
        assert_eq!(output.code, 0, "{}", output.stderr);
        if !output.stdout.starts_with("nothing was archived") {
            break output;
        }
        assert!(!Path::new(&file).exists(), "an empty archive is removed");
    };
    assert!(archived.stdout.contains("archive: entries 1 to "), "{}", archived.stdout);
    assert_eq!(
        run(&["server", "archive", &dir, &file]).code,
        2,
        "an existing file is not overwritten"
    );
    fleet.log_in("ann", "viewer");
    let events = fleet.run_ok(&["fleet", "events", "--limit", "1000"]);
    assert!(events.contains("gpu-2") && !events.contains("policy-set"), "{events}");
    fleet.stop();
    let alone = verify(&dir, &[]);
    assert_eq!(alone.code, 0, "{}", alone.stdout);
    assert!(alone.stdout.contains("are in an archive that ends with hash "), "{}", alone.stdout);
    assert_eq!(verify(&dir, &["--replay"]).code, 0, "replay starts from the base snapshot");
    let both = verify(&dir, &["--replay", "--archive", &file]);
    assert_eq!(both.code, 0, "{} {}", both.stdout, both.stderr);
    assert!(both.stdout.contains("every decision reproduced"), "{}", both.stdout);
    edit(Path::new(&file), "UPDATE entries SET bytes = replace(bytes, 'seq', 'sep') WHERE seq = 1");
    let edited = verify(&dir, &["--archive", &file]);
    assert_eq!(edited.code, 1);
    assert!(edited.stdout.contains("entry 1, or its hash, was changed"), "{}", edited.stdout);
}

#[test]
fn replay_detects_a_base_snapshot_that_does_not_follow_from_the_archive() {
    let fleet = stopped_fleet();
    let (dir, file) = (fleet.path_text("server"), fleet.path_text("archive"));
    loop {
        let output = run(&["server", "archive", &dir, &file, "--older-than", "1s"]);
        if !output.stdout.starts_with("nothing was archived") {
            break;
        }
    }
    assert_eq!(verify(&dir, &["--replay", "--archive", &file]).code, 0);
    // Recompute the digest, which anyone who has the binary can do.
    let connection = rusqlite::Connection::open(fleet.path("server/log")).unwrap();
    let state: Vec<u8> =
        connection.query_row("SELECT state FROM anchor", [], |row| row.get(0)).unwrap();
    let edited = String::from_utf8(state)
        .unwrap()
        .replace("\"heartbeat_timeout_s\":300", "\"heartbeat_timeout_s\":301");
    let digest = farrier_server::log::Hash::digest(edited.as_bytes());
    connection
        .execute(
            "UPDATE anchor SET state = ?1, digest = ?2",
            rusqlite::params![edited.as_bytes(), digest.0],
        )
        .unwrap();
    drop(connection);
    let replayed = verify(&dir, &["--replay", "--archive", &file]);
    assert_eq!(replayed.code, 1, "{}", replayed.stdout);
    assert!(replayed.stdout.contains("does not belong to this log"), "{}", replayed.stdout);
}

#[test]
fn a_truncated_log_is_used_only_after_accept_log() {
    let mut fleet = stopped_fleet();
    let dir = fleet.path_text("server");
    edit(&fleet.path("server/log"), "DELETE FROM entries WHERE seq > 10");
    let truncated = verify(&dir, &[]);
    assert_eq!(truncated.code, 1, "{}", truncated.stderr);
    assert!(truncated.stdout.contains("log ends at entry 10, but entry"), "{}", truncated.stdout);
    let refused = run(&["server", "run", "--dir", &dir, "--listen", "127.0.0.1:0"]);
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert!(refused.stderr.contains("was acknowledged"), "{}", refused.stderr);
    assert!(refused.stderr.contains("farrier server accept-log"), "{}", refused.stderr);
    let accepted = run(&["server", "accept-log", "--dir", &dir]);
    assert_eq!(accepted.code, 0, "{}", accepted.stderr);
    assert!(
        accepted.stdout.contains("accepted: the acknowledged entries 11 to "),
        "{}",
        accepted.stdout
    );
    assert_eq!(verify(&dir, &["--replay"]).code, 0);
    fleet.start("server");
    fleet.report_finding("gpu-1", 100);
    let running = run(&["server", "accept-log", "--dir", &dir]);
    assert_eq!(running.code, 2, "accept-log needs a stopped server: {}", running.stdout);
    fleet.stop();
    assert_eq!(verify(&dir, &["--replay"]).code, 0);
    // A log with an integrity error is not accepted.
    edit(&fleet.path("server/log"), "UPDATE entries SET hash = zeroblob(32) WHERE seq = 5");
    let damaged = run(&["server", "accept-log", "--dir", &dir]);
    assert_eq!(damaged.code, 1, "{}", damaged.stderr);
    assert!(damaged.stdout.contains("entry 5, or its hash, was changed"), "{}", damaged.stdout);
}

fn copy_log(from: &Path, to: &Path) {
    for name in ["log", "log-head", "log.state"] {
        std::fs::copy(from.join(name), to.join(name)).unwrap();
    }
}

#[test]
fn an_older_copy_of_the_log_is_used_only_after_accept_log() {
    let mut fleet = stopped_fleet();
    let (dir, older) = (fleet.path_text("server"), fleet.path("older"));
    std::fs::create_dir(&older).unwrap();
    copy_log(&fleet.path("server"), &older);
    // The log grows, and the server restarts with the new entries.
    fleet.start("server");
    fleet.report_finding("gpu-1", 100);
    fleet.stop();
    fleet.start("server");
    fleet.stop();
    copy_log(&older, &fleet.path("server"));
    let _ = std::fs::remove_file(fleet.path("server/log.state.before"));
    assert_eq!(verify(&dir, &[]).code, 0, "the older log is intact");
    let refused = run(&["server", "run", "--dir", &dir, "--listen", "127.0.0.1:0"]);
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert!(
        refused.stderr.contains("last used this access store with another log"),
        "{}",
        refused.stderr
    );
    assert!(refused.stderr.contains("farrier server accept-log"), "{}", refused.stderr);
    assert_eq!(run(&["server", "accept-log", "--dir", &dir]).code, 0);
    fleet.start("server");
    fleet.report_finding("gpu-1", 100);
    fleet.stop();
}

#[test]
fn accept_log_refuses_a_directory_that_others_may_write() {
    use std::os::unix::fs::PermissionsExt;

    let fleet = stopped_fleet();
    let mode = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(fleet.path("server"), mode).unwrap();
    let refused = run(&["server", "accept-log", "--dir", &fleet.path_text("server")]);
    assert_eq!(refused.code, 2, "{}", refused.stdout);
    assert!(refused.stderr.contains("chmod 700"), "{}", refused.stderr);
}

#[test]
fn a_log_in_a_later_format_is_not_reported_as_empty() {
    let fleet = stopped_fleet();
    let dir = fleet.path_text("server");
    edit(&fleet.path("server/log"), "PRAGMA user_version = 9");
    let start = ["server", "run", "--dir", &dir, "--listen", "127.0.0.1:0"];
    for command in [&["server", "accept-log", "--dir", &dir][..], &start] {
        let refused = run(command);
        assert_eq!(refused.code, 2, "{}", refused.stderr);
        assert!(refused.stderr.contains("its format is 9"), "{}", refused.stderr);
        assert!(refused.stderr.contains("the version that wrote it"), "{}", refused.stderr);
        assert!(!refused.stderr.contains("WAL"), "{}", refused.stderr);
    }
    std::fs::write(fleet.path("server/log"), "").unwrap();
    let empty = run(&["server", "accept-log", "--dir", &dir]);
    assert_eq!(empty.code, 2, "{}", empty.stderr);
    assert!(
        empty.stderr.contains("its WAL is missing, or it was never written"),
        "{}",
        empty.stderr
    );
    assert!(empty.stderr.contains("farrier server restore"), "{}", empty.stderr);
}

#[test]
fn a_lost_access_store_is_rebuilt_from_the_log() {
    use farrier_fleet::fleet::Location;
    use farrier_server::access::{AccessStore, NewJoinToken};
    use jiff::{SignedDuration, Timestamp};

    let mut fleet = TestFleet::plain();
    let dir = fleet.path_text("server");
    let user = ["server", "user", "add", "vic", "--role", "viewer", "--pool", "train"];
    let user = run(&[&user[..], &["--dir", &dir]].concat());
    assert_eq!(user.code, 0, "{}", user.stderr);
    let now = Timestamp::now();
    let store = AccessStore::open(&fleet.path("server")).unwrap();
    let new_token =
        NewJoinToken::new("train".parse().unwrap(), now + SignedDuration::from_hours(1));
    let location = Location { rack: Some("r1".parse().unwrap()), ..new_token.location.clone() };
    let token = store
        .create(&NewJoinToken { uses: 3, location, ..new_token.clone() }, now)
        .unwrap()
        .digest();
    let used_up = store.create(&new_token, now).unwrap().digest();
    store.join(&used_up, &"other".parse().unwrap(), b"other", None, now).unwrap();
    let [good, bad] = ["good", "bad"].map(|name| {
        let name = name.parse().unwrap();
        store.join(&token, &name, name.as_str().as_bytes(), None, now).unwrap().identity
    });
    assert_eq!(run(&["server", "revoke", "bad", "--dir", &dir]).code, 0);
    drop(store);
    // The access changes are not in the log yet. The server appends them after its next start, when
    // it already serves requests.
    fleet.stop();
    fleet.start("server");
    fleet.log_in("ann", "admin");
    wait_until(
        || format!("the revocation in the log:\n{}", fleet.run_ok(&["fleet", "events"])),
        || {
            let events = fleet.run_ok(&["fleet", "events", "--limit", "1000"]);
            events.contains("certificate revoked; out of service until it enrols again")
        },
    );
    fleet.stop();
    for name in ["access", "access-wal", "access-shm"] {
        let _ = std::fs::remove_file(fleet.path("server").join(name));
    }
    for args in [
        &["server", "run", "--dir", &dir, "--listen", "127.0.0.1:0"][..],
        &["server", "token", "create", "--pool", "train", "--dir", &dir],
    ] {
        let refused = run(args);
        assert_eq!(refused.code, 2, "{args:?}: {}", refused.stdout);
        assert!(refused.stderr.contains("rebuild-access"), "{args:?}: {}", refused.stderr);
    }
    let rebuilt = run(&["server", "rebuild-access", "--dir", &dir]);
    assert_eq!(rebuilt.code, 0, "{}", rebuilt.stderr);
    let text = rebuilt.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    for line in [
        "Revoked: bad".to_owned(),
        format!(
            "vic, viewer of pool train: `farrier server user add vic --role viewer --pool train --dir {dir}`"
        ),
        format!(
            "nodes of pool train: `farrier server token create --pool train --rack r1 --dir {dir}`"
        ),
    ] {
        assert!(text.contains(&line), "{line}: {text}");
    }
    assert_eq!(text.matches("token create").count(), 1, "the other token is used up: {text}");
    let users = run(&["server", "user", "list", "--dir", &dir]).stdout;
    assert!(users.contains("vic") && users.contains("revoked"), "{users}");
    let store = AccessStore::open(&fleet.path("server")).unwrap();
    assert!(store.admits(&good).unwrap() && !store.admits(&bad).unwrap());
    drop(store);
    let again = run(&["server", "rebuild-access", "--dir", &dir]);
    assert!(again.stdout.contains("has every change"), "{}", again.stdout);
    fleet.start("server");
    fleet.log_in("bob", "viewer");
    fleet.run_ok(&["fleet", "nodes"]);
}
