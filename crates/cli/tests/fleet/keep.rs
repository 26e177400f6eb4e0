//! Verification detects an edited log. A backup of a live log is complete, and a server can
//! continue from it.

use std::path::Path;

use serde_json::Value;

use crate::support::wait::wait_until;
use crate::support::{Ran, run};
use crate::town::Town;

fn verify(path: &str, more: &[&str]) -> Ran {
    run(&[&["server", "verify-log", path], more].concat())
}

fn edit(log: &Path, statements: &str) {
    let connection = rusqlite::Connection::open(log).unwrap();
    connection.execute_batch(statements).unwrap();
}

/// A stopped server with a log of some length.
fn written() -> Town {
    let mut town = Town::plain();
    for number in 1..=20 {
        town.find("gpu-1", number);
    }
    town.stop();
    town
}

#[test]
fn whatever_was_edited_is_found() {
    let town = written();
    let whole = verify(&town.text("server"), &["--replay"]);
    assert_eq!(whole.code, 0, "{} {}", whole.stdout, whole.stderr);
    assert!(
        whole.stdout.contains("entries, hash chain intact, every decision reproduced")
    );
    let hash = whole.stdout.lines().last().unwrap().strip_prefix("hash ").unwrap().to_owned();
    let edits = [
        (
            "a byte",
            "UPDATE entries SET bytes = replace(bytes, 'seq', 'sep') WHERE seq = 7",
            "entry 7 was changed",
        ),
        ("a hash", "UPDATE entries SET hash = zeroblob(32) WHERE seq = 5", "entry 5 was changed"),
        ("a missing row", "DELETE FROM entries WHERE seq = 9", "entry 9 is missing"),
        (
            "two swapped rows",
            "UPDATE entries SET seq = -1 WHERE seq = 4; UPDATE entries SET seq = 4 WHERE seq = 6;
             UPDATE entries SET seq = 6 WHERE seq = -1",
            "entry 4 was changed",
        ),
        ("another type", "UPDATE entries SET bytes = 5 WHERE seq = 3", ""),
        (
            "an end that was cut off",
            "DELETE FROM entries WHERE seq > 10",
            "the state that was kept",
        ),
    ];
    for (number, (what, statements, told)) in edits.into_iter().enumerate() {
        let copy = town.path(&format!("edited-{number}"));
        std::fs::create_dir(&copy).unwrap();
        for name in ["log", "log.state"] {
            std::fs::copy(town.path("server").join(name), copy.join(name)).unwrap();
        }
        edit(&copy.join("log"), statements);
        let found = verify(copy.to_str().unwrap(), &[]);
        assert_eq!(found.code, 1, "{what}: {} {}", found.stdout, found.stderr);
        assert!(
            found.stdout.starts_with("VERIFICATION FAILED: ") && found.stdout.contains(told),
            "{what}: {}",
            found.stdout
        );
        let told: Value =
            serde_json::from_str(&verify(copy.to_str().unwrap(), &["--output", "json"]).stdout)
                .unwrap();
        assert_eq!(told["whole"], false);
    }
    // A log truncated together with its snapshots: only a hash noted earlier reveals it.
    let copy = town.path("cut");
    std::fs::create_dir(&copy).unwrap();
    std::fs::copy(town.path("server/log"), copy.join("log")).unwrap();
    edit(&copy.join("log"), "DELETE FROM entries WHERE seq > 10");
    let copy = copy.to_str().unwrap().to_owned();
    assert_eq!(verify(&copy, &[]).code, 0, "what is left is as it was written");
    let cut = verify(&copy, &["--require-hash", &hash]);
    assert_eq!(cut.code, 1);
    assert!(cut.stdout.contains("The hash chain is intact: the log was truncated"), "{}", cut.stdout);
    let wrong = verify(&copy, &["--require-hash", "0000"]);
    assert_eq!(wrong.code, 2);
    assert!(wrong.stderr.contains("expected the 64 hexadecimal digits"), "{}", wrong.stderr);
    assert_eq!(verify(&town.text("server"), &["--require-hash", &hash]).code, 0);
    assert_eq!(verify("/nonexistent", &[]).code, 2);
}

#[test]
fn a_log_without_its_authority_is_not_served_unasked() {
    let town = written();
    let dir = town.text("server");
    std::fs::remove_file(town.path("server").join("ca.key")).unwrap();
    for words in [
        &["server", "run", "--dir", &dir, "--listen", "127.0.0.1:0"][..],
        &["server", "token", "create", "--pool", "train", "--dir", &dir],
    ] {
        let refused = run(words);
        assert_eq!(refused.code, 2, "{words:?}");
        assert!(
            refused.stderr.contains("`ca.key` and `ca.pem` are not both there"),
            "{}",
            refused.stderr
        );
        assert!(refused.stderr.contains("--new-authority"), "{}", refused.stderr);
    }
}

#[test]
fn a_decision_that_does_not_follow_is_found_by_deciding_again() {
    let town = written();
    // Recompute every hash, as anyone with the binary can.
    let path = town.path("server/log");
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
        std::fs::remove_file(town.path("server").join(name)).unwrap();
    }
    assert!(changed > 0, "there was a decision to change");
    assert_eq!(verify(&town.text("server"), &[]).code, 0, "the chain alone does not show it");
    let found = verify(&town.text("server"), &["--replay"]);
    assert_eq!(found.code, 1, "{}", found.stdout);
    assert!(
        found.stdout.contains("differ from the replayed ones"),
        "{}",
        found.stdout
    );
}

#[test]
fn a_backup_of_a_server_that_runs_is_whole_and_can_be_gone_on_from() {
    let mut town = Town::plain();
    let (dir, copy) = (town.text("server"), town.text("copy"));
    let made = std::thread::scope(|scope| {
        let backup = scope.spawn(|| run(&["server", "backup", &dir, &copy]));
        let mut number = 0;
        while !backup.is_finished() {
            number += 1;
            town.find("gpu-1", number);
        }
        assert!(number > 0);
        backup.join().unwrap()
    });
    assert_eq!(made.code, 0, "{}", made.stderr);
    assert!(made.stdout.contains("entries, hash chain intact, hash "), "{}", made.stdout);
    assert!(made.stdout.contains("ca.key") && made.stdout.contains("access"), "{}", made.stdout);
    let permissions =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&copy).unwrap().permissions());
    assert_eq!(permissions & 0o777, 0o600);
    assert_eq!(verify(&copy, &["--replay"]).code, 0);
    let again = run(&["server", "backup", &dir, &copy]);
    assert_eq!(again.code, 2, "nothing is written over");
    assert!(again.stderr.contains("already exists"), "{}", again.stderr);
    // A restore never overwrites an existing log.
    let refused = run(&["server", "restore", &copy, &dir]);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("already exists"), "{}", refused.stderr);
    let fresh = town.text("fresh");
    let restored = run(&["server", "restore", &copy, &fresh]);
    assert_eq!(restored.code, 0, "{}", restored.stderr);
    assert!(restored.stdout.contains("is missing; the CA's private key"), "{}", restored.stdout);
    let told = verify(&fresh, &["--replay"]);
    assert_eq!(told.code, 0, "{}", told.stdout);
    // A server continues from the restored log, with the same state. The CA is backed up separately
    // from the log, and restored with it.
    for name in ["ca.key", "ca.pem"] {
        std::fs::copy(town.path("server").join(name), town.path("fresh").join(name)).unwrap();
    }
    town.start("fresh");
    let state: Value = serde_json::from_slice(&town.state()).unwrap();
    assert_eq!(state["nodes"].as_object().unwrap().len(), 3);
    town.find("gpu-2", 1);
    town.stop();
    assert_eq!(verify(&fresh, &["--replay"]).code, 0);
    // A log with an integrity error is not restored.
    edit(Path::new(&copy), "DELETE FROM entries WHERE seq = 2");
    let broken = run(&["server", "restore", &copy, &town.text("other")]);
    assert_eq!(broken.code, 2);
    assert!(broken.stderr.contains("failed: entry 2 is missing"), "{}", broken.stderr);
    assert!(!town.path("other/log").exists());
}

#[test]
fn what_is_old_is_archived_while_the_server_runs_and_the_chain_goes_on() {
    let mut town = written();
    town.start("server");
    let (dir, file) = (town.text("server"), town.text("archive"));
    let mut number = 0;
    let moved = loop {
        number += 1;
        town.find("gpu-2", number);
        let ran = run(&["server", "archive", &dir, &file, "--older-than", "1s"]);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        if !ran.stdout.starts_with("nothing was archived") {
            break ran;
        }
        assert!(!Path::new(&file).exists(), "nothing is left of an archive that was none");
    };
    assert!(moved.stdout.contains("archive: entries 1 to "), "{}", moved.stdout);
    assert_eq!(run(&["server", "archive", &dir, &file]).code, 2, "nothing is written over");
    town.log_in("ann", "viewer");
    let all = town.fine(&["fleet", "events", "--limit", "1000"]);
    assert!(all.contains("gpu-2") && !all.contains("policy-set"), "the rest is there: {all}");
    town.stop();
    let alone = verify(&dir, &[]);
    assert_eq!(alone.code, 0, "{}", alone.stdout);
    assert!(alone.stdout.contains("are in an archive that ends with hash "), "{}", alone.stdout);
    assert_eq!(verify(&dir, &["--replay"]).code, 0, "from the state that it begins with");
    let both = verify(&dir, &["--replay", "--archive", &file]);
    assert_eq!(both.code, 0, "{} {}", both.stdout, both.stderr);
    assert!(both.stdout.contains("every decision reproduced"), "{}", both.stdout);
    edit(Path::new(&file), "UPDATE entries SET bytes = replace(bytes, 'seq', 'sep') WHERE seq = 1");
    let edited = verify(&dir, &["--archive", &file]);
    assert_eq!(edited.code, 1);
    assert!(edited.stdout.contains("entry 1 was changed"), "{}", edited.stdout);
}

#[test]
fn a_state_that_a_log_begins_with_and_its_archive_does_not_lead_to_is_found() {
    let town = written();
    let (dir, file) = (town.text("server"), town.text("archive"));
    loop {
        let ran = run(&["server", "archive", &dir, &file, "--older-than", "1s"]);
        if !ran.stdout.starts_with("nothing was archived") {
            break;
        }
    }
    assert_eq!(verify(&dir, &["--replay", "--archive", &file]).code, 0);
    // Recompute the digest, as anyone with the binary can.
    let connection = rusqlite::Connection::open(town.path("server/log")).unwrap();
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
    let found = verify(&dir, &["--replay", "--archive", &file]);
    assert_eq!(found.code, 1, "{}", found.stdout);
    assert!(found.stdout.contains("does not belong to this log"), "{}", found.stdout);
}

#[test]
fn a_log_whose_end_is_gone_is_gone_on_with_only_on_purpose() {
    let mut town = written();
    let dir = town.text("server");
    edit(&town.path("server/log"), "DELETE FROM entries WHERE seq > 10");
    let found = verify(&dir, &[]);
    assert_eq!(found.code, 1, "{}", found.stderr);
    assert!(found.stdout.contains("it ends at entry 10, and entry "), "{}", found.stdout);
    let refused = run(&["server", "run", "--dir", &dir, "--listen", "127.0.0.1:0"]);
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert!(refused.stderr.contains("was acknowledged"), "{}", refused.stderr);
    assert!(refused.stderr.contains("farrier server accept-log"), "{}", refused.stderr);
    let accepted = run(&["server", "accept-log", "--dir", &dir]);
    assert_eq!(accepted.code, 0, "{}", accepted.stderr);
    assert!(accepted.stdout.contains("accepted: the acknowledged entries 11 to "), "{}", accepted.stdout);
    assert_eq!(verify(&dir, &["--replay"]).code, 0);
    town.start("server");
    town.find("gpu-1", 100);
    let running = run(&["server", "accept-log", "--dir", &dir]);
    assert_eq!(running.code, 2, "while a server runs nothing is accepted: {}", running.stdout);
    town.stop();
    assert_eq!(verify(&dir, &["--replay"]).code, 0);
    // A log with an integrity error is not accepted.
    edit(&town.path("server/log"), "UPDATE entries SET hash = zeroblob(32) WHERE seq = 5");
    let flawed = run(&["server", "accept-log", "--dir", &dir]);
    assert_eq!(flawed.code, 1, "{}", flawed.stderr);
    assert!(flawed.stdout.contains("entry 5 was changed"), "{}", flawed.stdout);
}

fn copy_log(from: &Path, to: &Path) {
    for name in ["log", "log-head", "log.state"] {
        std::fs::copy(from.join(name), to.join(name)).unwrap();
    }
}

#[test]
fn an_older_log_with_its_own_head_is_gone_on_with_only_on_purpose() {
    let mut town = written();
    let (dir, older) = (town.text("server"), town.path("older"));
    std::fs::create_dir(&older).unwrap();
    copy_log(&town.path("server"), &older);
    // The log grows, and the server restarts with the new entries.
    town.start("server");
    town.find("gpu-1", 100);
    town.stop();
    town.start("server");
    town.stop();
    copy_log(&older, &town.path("server"));
    let _ = std::fs::remove_file(town.path("server/log.state.before"));
    assert_eq!(verify(&dir, &[]).code, 0, "it is whole in itself");
    let refused = run(&["server", "run", "--dir", &dir, "--listen", "127.0.0.1:0"]);
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert!(refused.stderr.contains("last started with another log"), "{}", refused.stderr);
    assert!(refused.stderr.contains("farrier server accept-log"), "{}", refused.stderr);
    assert_eq!(run(&["server", "accept-log", "--dir", &dir]).code, 0);
    town.start("server");
    town.find("gpu-1", 100);
    town.stop();
}

#[test]
fn a_log_is_not_accepted_in_a_folder_that_others_may_change() {
    use std::os::unix::fs::PermissionsExt;

    let town = written();
    let mode = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(town.path("server"), mode).unwrap();
    let refused = run(&["server", "accept-log", "--dir", &town.text("server")]);
    assert_eq!(refused.code, 2, "{}", refused.stdout);
    assert!(refused.stderr.contains("chmod 700"), "{}", refused.stderr);
}

#[test]
fn a_log_that_this_version_does_not_read_is_not_called_empty() {
    let town = written();
    let dir = town.text("server");
    edit(&town.path("server/log"), "PRAGMA user_version = 9");
    let start = ["server", "run", "--dir", &dir, "--listen", "127.0.0.1:0"];
    for command in [&["server", "accept-log", "--dir", &dir][..], &start] {
        let later = run(command);
        assert_eq!(later.code, 2, "{}", later.stderr);
        assert!(later.stderr.contains("its format is 9"), "{}", later.stderr);
        assert!(later.stderr.contains("the version that wrote it"), "{}", later.stderr);
        assert!(!later.stderr.contains("WAL"), "{}", later.stderr);
    }
    std::fs::write(town.path("server/log"), "").unwrap();
    let empty = run(&["server", "accept-log", "--dir", &dir]);
    assert_eq!(empty.code, 2, "{}", empty.stderr);
    assert!(empty.stderr.contains("its WAL is gone, or it was never written"), "{}", empty.stderr);
    assert!(empty.stderr.contains("farrier server restore"), "{}", empty.stderr);
}

#[test]
fn a_lost_access_store_is_rebuilt_from_the_log() {
    use farrier_fleet::fleet::Location;
    use farrier_server::access::{NewJoinToken, Store};
    use jiff::{SignedDuration, Timestamp};

    let mut town = Town::plain();
    let dir = town.text("server");
    let user = ["server", "user", "add", "vic", "--role", "viewer", "--pool", "train"];
    let user = run(&[&user[..], &["--dir", &dir]].concat());
    assert_eq!(user.code, 0, "{}", user.stderr);
    let now = Timestamp::now();
    let store = Store::open(&town.path("server")).unwrap();
    let wanted = NewJoinToken::new("train".parse().unwrap(), now + SignedDuration::from_hours(1));
    let place = Location { rack: Some("r1".parse().unwrap()), ..wanted.location.clone() };
    let token = store
        .create(&NewJoinToken { uses: 3, location: place, ..wanted.clone() }, now)
        .unwrap()
        .digest();
    let used_up = store.create(&wanted, now).unwrap().digest();
    store.join(&used_up, &"other".parse().unwrap(), b"other", None, now).unwrap();
    let [good, bad] = ["good", "bad"].map(|name| {
        let name = name.parse().unwrap();
        store.join(&token, &name, name.as_str().as_bytes(), None, now).unwrap().identity
    });
    assert_eq!(run(&["server", "revoke", "bad", "--dir", &dir]).code, 0);
    drop(store);
    // Access changes that are not in the log yet are appended after the next start, while the
    // server serves.
    town.stop();
    town.start("server");
    town.log_in("ann", "admin");
    wait_until(
        || format!("the revocation in the log:\n{}", town.fine(&["fleet", "events"])),
        || {
            let all = town.fine(&["fleet", "events", "--limit", "1000"]);
            all.contains("no certificate of it counts any more")
        },
    );
    town.stop();
    for name in ["access", "access-wal", "access-shm"] {
        let _ = std::fs::remove_file(town.path("server").join(name));
    }
    for words in [
        &["server", "run", "--dir", &dir, "--listen", "127.0.0.1:0"][..],
        &["server", "token", "create", "--pool", "train", "--dir", &dir],
    ] {
        let refused = run(words);
        assert_eq!(refused.code, 2, "{words:?}: {}", refused.stdout);
        assert!(refused.stderr.contains("rebuild-access"), "{words:?}: {}", refused.stderr);
    }
    let rebuilt = run(&["server", "rebuild-access", "--dir", &dir]);
    assert_eq!(rebuilt.code, 0, "{}", rebuilt.stderr);
    let told = rebuilt.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    for line in [
        "Revoked: bad".to_owned(),
        format!(
            "vic, viewer of pool train: `farrier server user add vic --role viewer --pool train --dir {dir}`"
        ),
        format!(
            "nodes of pool train: `farrier server token create --pool train --rack r1 --dir {dir}`"
        ),
    ] {
        assert!(told.contains(&line), "{line}: {told}");
    }
    assert_eq!(told.matches("token create").count(), 1, "one is used up: {told}");
    let users = run(&["server", "user", "list", "--dir", &dir]).stdout;
    assert!(users.contains("vic") && users.contains("revoked"), "{users}");
    let store = Store::open(&town.path("server")).unwrap();
    assert!(store.admits(&good).unwrap() && !store.admits(&bad).unwrap());
    drop(store);
    let again = run(&["server", "rebuild-access", "--dir", &dir]);
    assert!(again.stdout.contains("has every change"), "{}", again.stdout);
    town.start("server");
    town.log_in("bob", "viewer");
    town.fine(&["fleet", "nodes"]);
}
