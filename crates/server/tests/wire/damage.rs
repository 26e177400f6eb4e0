//! A server whose files were lost, replaced or damaged refuses to start.

use std::path::{Path, PathBuf};

use farrier_fleet::fleet::{AccessChange, Event};
use farrier_server::log::Log;
use farrier_server::log::sqlite::SqliteLog;
use farrier_server::run::{self, ServerOptions, log_path};
use jiff::Timestamp;

use crate::test_server::{TestNode, TestServer, node};

/// The error of a failed start, with its causes.
async fn refused(options: ServerOptions) -> Result<String, &'static str> {
    match run::start(options).await {
        Ok(running) => {
            running.stop().await.unwrap();
            Err("the server started")
        }
        Err(err) => {
            let mut text = err.to_string();
            let mut cause = std::error::Error::source(&err);
            while let Some(err) = cause {
                text.push_str(&format!(": {err}"));
                cause = err.source();
            }
            Ok(text)
        }
    }
}

pub(crate) fn files(dir: &Path, begin: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let has_prefix =
        |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(begin);
    entries.filter(has_prefix).collect()
}

/// Copies a folder without some files, preserving modes.
pub(crate) fn copy(from: &Path, to: &Path, without: &[&str]) {
    std::fs::DirBuilder::new().create(to).unwrap();
    std::fs::set_permissions(to, std::fs::metadata(from).unwrap().permissions()).unwrap();
    for path in files(from, "") {
        let name = path.file_name().unwrap().to_str().unwrap();
        if !without.contains(&name) && path.is_file() {
            std::fs::copy(&path, to.join(name)).unwrap();
        }
    }
}

/// Enough entries for several database pages.
async fn two_hundred_findings(server: &TestServer) {
    let mut agent = TestNode::new("a");
    for number in 1..=200 {
        agent.find(number);
    }
    agent.connect(server);
    agent.acked(200).await;
    agent.disconnect();
}

/// A stopped server with a report in its log.
async fn stopped_after_a_report() -> TestServer {
    let mut server = TestServer::plain().await;
    let mut agent = TestNode::new("a");
    agent.connect(&server);
    agent.acked(0).await;
    agent.disconnect();
    server.running.take().unwrap().stop().await.unwrap();
    server
}

fn revoked(event: &Event) -> bool {
    matches!(event, Event::AccessChanged { change: AccessChange::CertificateRevoked { .. }, .. })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_fails_with_an_access_store_behind_the_log() {
    let mut server = TestServer::with_tls().await;
    let agent = TestNode::new("a");
    server.enrol("a", &agent.identity(), &server.token(None, 1)).await.unwrap();
    let older = server.folder.path().join("older");
    server.store().revoke(&node("a"), Timestamp::now()).unwrap();
    server.wait_for("the revocation", |all| all.iter().any(|entry| revoked(&entry.event))).await;
    server.running.take().unwrap().stop().await.unwrap();
    // The access store is missing, for example because only the log was restored from a backup.
    copy(&server.dir(), &older, &["access", "access-wal", "access-shm", "log-head"]);
    let head = || SqliteLog::open_to_read(&log_path(&older)).unwrap().head().unwrap();
    let before = head();
    let text = refused(ServerOptions { dir: older.clone(), ..server.options() }).await.unwrap();
    assert!(text.contains("access") && text.contains("the log"), "{text}");
    assert_eq!(head(), before, "no writer took over");
    assert_eq!(files(&older, "log-head"), Vec::<PathBuf>::new());
    // The original server still starts.
    server.start(None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_fails_with_an_older_copy_of_the_access_store() {
    let mut server = TestServer::with_tls().await;
    let agent = TestNode::new("a");
    server.enrol("a", &agent.identity(), &server.token(None, 1)).await.unwrap();
    server.running.take().unwrap().stop().await.unwrap();
    let older = server.folder.path().join("older");
    copy(&server.dir(), &older, &["log", "log.state", "log-head"]);
    server.start(None).await;
    server.store().revoke(&node("a"), Timestamp::now()).unwrap();
    server.wait_for("the revocation", |all| all.iter().any(|entry| revoked(&entry.event))).await;
    server.running.take().unwrap().stop().await.unwrap();
    for path in files(&server.dir(), "log") {
        std::fs::copy(&path, older.join(path.file_name().unwrap())).unwrap();
    }
    let text = refused(ServerOptions { dir: older, ..server.options() }).await.unwrap();
    assert!(text.contains("access") && text.contains("the log"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_fails_with_a_log_without_its_wal() {
    let server = TestServer::plain().await;
    let mut agent = TestNode::new("a");
    agent.connect(&server);
    agent.acked(0).await;
    // Copy the files of a running server, as if it was killed, but without the WAL.
    let killed = server.folder.path().join("killed");
    copy(&server.dir(), &killed, &["log-wal", "log-shm", "lock"]);
    let options = ServerOptions { dir: killed.clone(), ..server.options() };
    let options = ServerOptions { listen: ([127, 0, 0, 1], 0).into(), ..options };
    let text = refused(options.clone()).await.unwrap();
    assert!(text.contains("ends at entry 0"), "{text}");
    // A second start fails as well.
    refused(options).await.unwrap();
}

/// The start fails because the access store records where the log ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_fails_if_the_log_is_missing() {
    let server = stopped_after_a_report().await;
    // A start records the end of the log in the access store.
    run::start(server.options()).await.unwrap().stop().await.unwrap();
    for path in files(&server.dir(), "log") {
        std::fs::remove_file(path).unwrap();
    }
    let text = refused(server.options()).await.unwrap();
    assert!(text.contains("access") && text.contains("another log"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_fails_with_a_blank_or_truncated_log_head() {
    let mut server = stopped_after_a_report().await;
    let whole = std::fs::read(server.dir().join("log-head")).unwrap();
    for damaged in [vec![0; whole.len()], whole[..100].to_vec(), Vec::new()] {
        std::fs::write(server.dir().join("log-head"), &damaged).unwrap();
        let text = refused(server.options()).await.unwrap();
        assert!(text.contains("log-head` is unreadable"), "{text}");
        assert!(std::fs::read(server.dir().join("log-head")).unwrap() == damaged);
    }
    farrier_server::log::accept(&log_path(&server.dir())).unwrap().unwrap();
    server.start(None).await;
}

/// Two stopped servers, each with an enrolled node.
async fn two_servers() -> [TestServer; 2] {
    let mut sites = [TestServer::with_tls().await, TestServer::with_tls().await];
    for (server, name) in sites.iter_mut().zip(["a", "b"]) {
        let agent = TestNode::new(name);
        server.enrol(name, &agent.identity(), &server.token(None, 1)).await.unwrap();
        server.running.take().unwrap().stop().await.unwrap();
    }
    sites
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_fails_with_the_log_of_another_server() {
    let [server, other] = two_servers().await;
    for path in files(&other.dir(), "log") {
        std::fs::copy(&path, server.dir().join(path.file_name().unwrap())).unwrap();
    }
    let text = refused(server.options()).await.unwrap();
    assert!(text.contains("access") && text.contains("another log"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_fails_with_the_authority_of_another_server() {
    let [server, other] = two_servers().await;
    for name in ["ca.key", "ca.pem"] {
        std::fs::copy(other.dir().join(name), server.dir().join(name)).unwrap();
    }
    let text = refused(server.options()).await.unwrap();
    assert!(text.contains("ca.pem"), "{text}");
    // The server creates a new authority only if the option says so.
    let options = ServerOptions { new_authority: true, ..server.options() };
    run::start(options).await.unwrap().stop().await.unwrap();
    run::start(server.options()).await.unwrap().stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_fails_with_a_log_older_than_its_snapshot() {
    let mut server = TestServer::plain().await;
    let older = server.folder.path().join("older");
    SqliteLog::open_to_read(&log_path(&server.dir())).unwrap().back_up(&older).unwrap();
    let mut agent = TestNode::new("a");
    agent.connect(&server);
    agent.acked(0).await;
    agent.disconnect();
    server.running.take().unwrap().stop().await.unwrap();
    for path in ["log", "log-wal", "log-shm", "log-head"] {
        let _ = std::fs::remove_file(server.dir().join(path));
    }
    std::fs::copy(older, log_path(&server.dir())).unwrap();
    let text = refused(server.options()).await.unwrap();
    assert!(text.contains("the snapshot at entry"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_database_is_not_appended_to() {
    let mut server = TestServer::plain().await;
    two_hundred_findings(&server).await;
    server.running.take().unwrap().stop().await.unwrap();
    let whole = std::fs::read(log_path(&server.dir())).unwrap();
    // Damage a bit of the header, or a page of old entries, which a start does not read.
    let mut bit = whole.clone();
    bit[20] ^= 1;
    let mut page = whole.clone();
    page[9 * 4096..9 * 4096 + 64].fill(0xff);
    for damaged in [page, bit] {
        std::fs::write(log_path(&server.dir()), &damaged).unwrap();
        let text = refused(server.options()).await.unwrap();
        assert!(text.contains("damaged"), "{text}");
        assert!(std::fs::read(log_path(&server.dir())).unwrap() == damaged, "nothing was written");
    }
    std::fs::write(log_path(&server.dir()), &whole).unwrap();
    server.start(None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_between_append_and_acknowledgement_is_no_damage() {
    let mut server = TestServer::plain().await;
    let mut agent = TestNode::new("a");
    agent.connect(&server);
    agent.acked(0).await;
    let behind = std::fs::read(server.dir().join("log-head")).unwrap();
    agent.find(1);
    agent.acked(1).await;
    agent.disconnect();
    server.running.take().unwrap().stop().await.unwrap();
    assert_ne!(std::fs::read(server.dir().join("log-head")).unwrap(), behind);
    std::fs::write(server.dir().join("log-head"), &behind).unwrap();
    server.start(None).await;
    server.assert_whole();
    let end = SqliteLog::open_to_read(&log_path(&server.dir())).unwrap().head().unwrap().seq;
    assert!(end > 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebuilt_access_store_keeps_revocations_and_valid_certificates() {
    use farrier_server::access::{AccessStore, changes_in};

    let mut server = TestServer::with_tls().await;
    let (good, bad) = (TestNode::new("good"), TestNode::new("bad"));
    server.enrol("good", &good.identity(), &server.token(None, 1)).await.unwrap();
    server.enrol("bad", &bad.identity(), &server.token(None, 2)).await.unwrap();
    server.store().revoke(&node("bad"), Timestamp::now()).unwrap();
    server.wait_for("the revocation", |all| all.iter().any(|entry| revoked(&entry.event))).await;
    server.running.take().unwrap().stop().await.unwrap();
    for path in files(&server.dir(), "access") {
        std::fs::remove_file(path).unwrap();
    }
    refused(server.options()).await.unwrap();
    let log = SqliteLog::open_to_read(&log_path(&server.dir())).unwrap();
    let changes = changes_in(&[&log]).unwrap();
    let rebuilt =
        AccessStore::open(&server.dir()).unwrap().rebuild(&changes, Timestamp::now()).unwrap();
    assert_eq!((rebuilt.revoked, rebuilt.lost.len()), (vec![node("bad")], 1));
    drop(log);
    server.start(None).await;
    let mut agents = crate::access::raw(&server, &good).await;
    crate::access::open(&mut agents, None).await.unwrap();
    let mut agents = crate::access::raw(&server, &bad).await;
    let status = crate::access::open(&mut agents, None).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::PermissionDenied);
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_found_by_a_reader_stops_the_server() {
    let mut server = TestServer::plain().await;
    two_hundred_findings(&server).await;
    // Move the WAL into the database file, and then damage a page of the file.
    let path = log_path(&server.dir());
    let other = rusqlite::Connection::open(&path).unwrap();
    other.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    drop(other);
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xff; 4096], 9 * 4096).unwrap();
    let mut running = server.running.take().unwrap();
    let read = running.tail().read(0, usize::MAX).await;
    assert!(read.as_ref().is_err_and(farrier_server::log::LogError::is_damage), "{read:?}");
    let err = running.failed().await;
    let is_damage = |err: &farrier_server::log::LogError| err.is_damage();
    assert!(matches!(&err, run::ServerError::Log(log) if is_damage(log)), "{err:?}");
    // The server appends nothing to the damaged log.
    let event = Event::Retired { node: node("a"), reason: "sold".to_owned() };
    let by = farrier_fleet::fleet::identity::Actor::Server;
    assert!(running.controller().submit(by, event).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_fails_if_others_can_read_keys_or_change_stores() {
    use std::fs::{Permissions, metadata, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    let mut server = stopped_after_a_report().await;
    for (name, mode) in [
        ("", 0o755),
        ("", 0o777),
        ("", 0o770),
        ("ca.key", 0o644),
        ("ca.key", 0o640),
        ("access", 0o644),
        ("log", 0o666),
        ("log.state", 0o604),
        ("log-head", 0o620),
    ] {
        let path = server.dir().join(name);
        let path = path.as_path();
        let before = metadata(path).unwrap().permissions();
        set_permissions(path, Permissions::from_mode(mode)).unwrap();
        let text = refused(server.options()).await.unwrap();
        assert!(text.contains(&format!("has mode {mode:04o}")), "{name}: {text}");
        let expected_mode = if name.is_empty() { "700" } else { "600" };
        assert!(text.contains(&format!("chmod {expected_mode} ")), "{name}: {text}");
        set_permissions(path, before).unwrap();
    }
    // Files without keys may be readable by the group.
    for (name, mode) in [("", 0o750), ("log", 0o640)] {
        set_permissions(server.dir().join(name), Permissions::from_mode(mode)).unwrap();
    }
    server.start(None).await;
}
