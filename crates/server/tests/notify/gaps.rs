//! A lost or damaged notification database, and a log that was archived too early.

use std::collections::BTreeSet;
use std::fs;

use farrier_fleet::notify::NotificationKind;
use farrier_server::log::sqlite::SqliteLog;
use farrier_server::log::{Archived, archive};
use farrier_server::notify::NotifyFailpoint;
use farrier_server::run::log_path;
use jiff::{SignedDuration, Timestamp};

use crate::test_server::{NotifyServer, Recorder, each_alone, finding, until};

async fn server_with_an_alert(recorder: &Recorder) -> NotifyServer {
    let mut server = NotifyServer::new(Some(recorder.clone()));
    server.start(None).await;
    server.set_policy(&each_alone()).await;
    server.enrol("gpu-1").await;
    server.report("gpu-1", vec![finding(1, "test.first")]).await;
    until("the alert is delivered", || recorder.codes().contains("test.first")).await;
    server
}

fn gaps(recorder: &Recorder) -> usize {
    let delivered = recorder.delivered();
    let is_gap = |kind| kind == NotificationKind::Notifier;
    delivered.iter().filter(|outgoing| is_gap(outgoing.notification.kind)).count()
}

/// What fired before is sent again, and every receiver is told.
async fn assert_gap_is_told(server: &mut NotifyServer, recorder: &Recorder) {
    let before = recorder.of("hook").len();
    server.start(None).await;
    server.report("gpu-1", vec![finding(2, "test.second")]).await;
    until("the server notifies again", || recorder.codes().contains("test.second")).await;
    let after = recorder.of("hook").split_off(before);
    assert_eq!(after, ["notification-gap", "test.first", "test.second"]);
    assert_eq!(gaps(recorder), 1);
    server.stop().await;
    server.start(None).await;
    server.report("gpu-1", vec![finding(3, "test.third")]).await;
    until("the server notifies again", || recorder.codes().contains("test.third")).await;
    assert_eq!(gaps(recorder), 1, "the gap is told once");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_database_is_replaced_and_receivers_are_told() {
    let recorder = Recorder::new();
    let mut server = server_with_an_alert(&recorder).await;
    server.stop().await;
    for suffix in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(server.dir().join(format!("notify{suffix}")));
    }
    assert_gap_is_told(&mut server, &recorder).await;
}

/// Nothing is logged between the losses.
#[tokio::test(flavor = "multi_thread")]
async fn each_loss_of_the_database_has_a_notice_of_its_own() {
    let recorder = Recorder::new();
    let mut server = server_with_an_alert(&recorder).await;
    for losses in 1..=3 {
        server.stop().await;
        for suffix in ["", "-wal", "-shm"] {
            let _ = fs::remove_file(server.dir().join(format!("notify{suffix}")));
        }
        server.start(None).await;
        until("the loss is told", || gaps(&recorder) == losses).await;
        // What fires is sent again.
        until("everything is sent", || recorder.delivered().len() == 1 + 2 * losses).await;
    }
    let delivered = recorder.delivered().into_iter().map(|outgoing| outgoing.notification);
    let keys: BTreeSet<String> = delivered.map(|one| one.key).collect();
    assert_eq!(keys.len(), 7, "a receiver would drop what has a known key: {keys:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_database_is_kept_aside_and_replaced() {
    let recorder = Recorder::new();
    let mut server = server_with_an_alert(&recorder).await;
    server.stop().await;
    for suffix in ["-wal", "-shm"] {
        let _ = fs::remove_file(server.dir().join(format!("notify{suffix}")));
    }
    fs::write(server.dir().join("notify"), "not a database, but longer than a header".repeat(99))
        .unwrap();
    assert_gap_is_told(&mut server, &recorder).await;
    assert!(server.dir().join("notify.damaged").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_that_were_archived_unread_are_a_gap() {
    let recorder = Recorder::new();
    let mut server = server_with_an_alert(&recorder).await;
    server.kill().await;
    // The notifier stops before it stores anything about the next entries.
    server.start(Some((NotifyFailpoint::BeforeSave, 0))).await;
    server.report("gpu-1", vec![finding(9, "test.archived")]).await;
    server.halted().await;
    server.stop().await;
    let mut log = SqliteLog::open(&log_path(&server.dir())).unwrap();
    let later = Timestamp::now() + SignedDuration::from_hours(1);
    let path = server.dir().join("archive");
    let archived = archive(&mut log, later, &path).unwrap().unwrap();
    assert!(matches!(archived, Archived::Moved { .. }), "{archived:?}");
    drop(log);
    let before = recorder.of("hook").len();
    server.start(None).await;
    server.report("gpu-1", vec![finding(10, "test.later")]).await;
    until("the server notifies again", || recorder.codes().contains("test.later")).await;
    let after = recorder.of("hook").split_off(before);
    assert!(after.contains(&"notification-gap".to_owned()), "{after:?}");
    assert!(after.contains(&"test.archived".to_owned()), "what still fires is sent: {after:?}");
    assert!(!after.contains(&"test.first".to_owned()), "known alerts are not repeated: {after:?}");
    server.stop().await;
}
