use farrier_fleet::notify::GroupId;

use super::*;

/// The queue of version 1.
const QUEUE_1: &str = "
CREATE TABLE queue (
    id INTEGER PRIMARY KEY AUTOINCREMENT, receiver TEXT NOT NULL, key TEXT NOT NULL UNIQUE,
    message TEXT NOT NULL, queued_ms INTEGER NOT NULL, state TEXT NOT NULL DEFAULT 'waiting',
    attempts INTEGER NOT NULL DEFAULT 0, next_ms INTEGER, ended_ms INTEGER,
    error_code TEXT, error_text TEXT, summarised INTEGER NOT NULL DEFAULT 0);
CREATE INDEX queue_order ON queue (receiver, state, id);
";

fn outgoing(receiver: &str, key: &str) -> Outgoing {
    let notification = Notification::test(receiver, "ann", Timestamp::UNIX_EPOCH);
    let notification = Notification { key: key.to_owned(), ..notification };
    Outgoing { receiver: receiver.to_owned(), notification }
}

fn failure(reached_receiver: bool) -> DeliveryFailure {
    DeliveryFailure {
        code: "status".to_owned(),
        text: "503".to_owned(),
        is_retryable: true,
        reached_receiver,
        retry_after: None,
    }
}

fn store_with(messages: &[Outgoing]) -> (tempfile::TempDir, NotifyStore) {
    let folder = tempfile::tempdir().unwrap();
    let store = NotifyStore::open(folder.path()).unwrap().store;
    let now = Timestamp::UNIX_EPOCH;
    store.save(1, &RouterChanges::default(), messages, None, now).unwrap();
    (folder, store)
}

fn keys(store: &NotifyStore) -> Vec<String> {
    store.messages(true).unwrap().into_iter().map(|message| message.notification.key).collect()
}

#[test]
fn a_queue_of_version_1_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let connection = open_private(&store_path(folder.path())).unwrap();
    let others = TABLES.split("CREATE TABLE queue").next().unwrap();
    let gaps = TABLES.split("CREATE TABLE gaps").nth(1).unwrap();
    connection.execute_batch(&format!("{others}{QUEUE_1}CREATE TABLE gaps{gaps}")).unwrap();
    connection.pragma_update(None, "application_id", APPLICATION_ID).unwrap();
    connection.pragma_update(None, "user_version", 1).unwrap();
    let head = encode(&RouterHead::default()).unwrap();
    connection.execute("INSERT INTO router VALUES (1, 7, ?1)", [head]).unwrap();
    let message = encode(&outgoing("hook", "key-0").notification).unwrap();
    let insert =
        "INSERT INTO queue (receiver, key, message, queued_ms) VALUES ('hook', 'key-0', ?1, 5)";
    connection.execute(insert, [message]).unwrap();
    drop(connection);
    let OpenedStore { store, missing } = NotifyStore::open(folder.path()).unwrap();
    assert_eq!((missing, keys(&store)), (None, vec!["key-0".to_owned()]));
    assert_eq!(store.next_gap().unwrap().database.len(), 32);
    let now = Timestamp::from_second(60).unwrap();
    store.retry(1, &failure(true), now, Duration::ZERO).unwrap();
    drop(store);
    let OpenedStore { store, missing } = NotifyStore::open(folder.path()).unwrap();
    assert_eq!(missing, None);
    assert_eq!(store.next("hook").unwrap().unwrap().reached, Some(now));
}

#[test]
fn a_queue_of_version_2_is_kept() {
    let (folder, store) = store_with(&[outgoing("hook", "key-0")]);
    let undo = "DROP TABLE identity; DROP TABLE dropped; ALTER TABLE queue DROP COLUMN wait_ms";
    store.connection().execute_batch(undo).unwrap();
    store.connection().pragma_update(None, "user_version", 2).unwrap();
    let head = encode(&RouterHead::default()).unwrap();
    store.connection().execute("INSERT INTO router VALUES (1, 7, ?1)", [head]).unwrap();
    drop(store);
    let OpenedStore { store, missing } = NotifyStore::open(folder.path()).unwrap();
    assert_eq!((missing, keys(&store)), (None, vec!["key-0".to_owned()]));
    assert_eq!(store.next("hook").unwrap().unwrap().wait, None);
    assert_eq!(store.depths().unwrap()["hook"].dropped, 0);
}

#[test]
fn the_time_when_a_receiver_was_first_reached_stays() {
    let (_folder, store) = store_with(&[outgoing("hook", "key-0")]);
    let at = |second| Timestamp::from_second(second).unwrap();
    let reached = || store.next("hook").unwrap().unwrap().reached;
    store.retry(1, &failure(false), at(10), Duration::from_secs(1)).unwrap();
    assert_eq!(reached(), None);
    store.retry(1, &failure(true), at(20), Duration::from_secs(1)).unwrap();
    store.retry(1, &failure(false), at(30), Duration::from_secs(1)).unwrap();
    store.retry(1, &failure(true), at(40), Duration::from_secs(1)).unwrap();
    assert_eq!(reached(), Some(at(20)));
    store.retry_now("hook", None).unwrap();
    assert_eq!(reached(), None);
}

#[test]
fn an_earlier_summary_takes_no_more() {
    let fill = |from: u32, count: u32| -> Vec<Outgoing> {
        (from..from + count).map(|number| outgoing("hook", &format!("key-{number}"))).collect()
    };
    let (_folder, store) = store_with(&fill(0, WAITING_MAX + 3));
    let now = Timestamp::UNIX_EPOCH;
    let summaries = || -> Vec<(i64, u64)> {
        let all = store.messages(false).unwrap().into_iter();
        all.filter(|one| one.summarised > 0).map(|one| (one.id, one.summarised)).collect()
    };
    let first = summaries()[0];
    assert_eq!((summaries().len(), first.1), (1, 3));
    // Everything before the summary is delivered, and the queue fills again behind it.
    while store.next("hook").unwrap().unwrap().id < first.0 {
        store.delivered(store.next("hook").unwrap().unwrap().id, now).unwrap();
    }
    let more = fill(5000, WAITING_MAX + 6);
    store.save(2, &RouterChanges::default(), &more, None, now).unwrap();
    let counts: Vec<u64> = summaries().into_iter().map(|(_, count)| count).collect();
    assert_eq!(counts, [3, 7], "the summary that is in delivery does not change");
    let last = store.messages(false).unwrap().pop().unwrap();
    assert_eq!(last.summarised, 7, "the order is kept");
}

#[test]
fn one_receiver_does_not_push_out_what_another_could_not_get() {
    let count = UNDELIVERABLE_MAX + 5;
    let many: Vec<Outgoing> = (0..count)
        .map(|number| outgoing(&format!("bad-{}", number % 5), &format!("key-{number}")))
        .collect();
    let (_folder, store) = store_with(&[outgoing("hook", "kept")]);
    let now = Timestamp::UNIX_EPOCH;
    let lost = DeliveryFailure { is_retryable: false, ..failure(true) };
    store.undeliverable(1, &lost, now).unwrap();
    store.save(2, &RouterChanges::default(), &many, None, now).unwrap();
    for number in 0..5 {
        while let Some(next) = store.next(&format!("bad-{number}")).unwrap() {
            store.undeliverable(next.id, &lost, now).unwrap();
        }
    }
    assert!(keys(&store).contains(&"kept".to_owned()));
}

#[test]
fn notifications_are_retried_or_discarded_by_receiver_and_key() {
    let messages =
        [outgoing("hook", "a"), outgoing("hook", "b"), outgoing("hook", "c"), outgoing("x", "d")];
    let (_folder, store) = store_with(&messages);
    let now = Timestamp::UNIX_EPOCH;
    store.undeliverable(1, &failure(true), now).unwrap();
    store.retry(2, &failure(true), now, Duration::MAX).unwrap();
    store.delivered(3, now).unwrap();
    assert_eq!(store.count_open("hook", None).unwrap(), 2);
    let retry = |key| {
        let Retried { due, obsolete } = store.retry_now("hook", key).unwrap();
        (due, obsolete)
    };
    assert_eq!(retry(Some("c")), (0, 0), "it is delivered");
    assert_eq!(retry(Some("a")), (1, 0));
    let next = store.next("hook").unwrap().unwrap();
    assert_eq!((next.notification.key.as_str(), next.next), ("a", None), "it keeps its place");
    assert_eq!(retry(None), (2, 0));
    assert_eq!(store.discard("hook", Some("a")).unwrap(), 1);
    assert_eq!(store.next("hook").unwrap().unwrap().next, None);
    assert_eq!(store.discard("hook", None).unwrap(), 1);
    assert_eq!(keys(&store), ["c", "d"]);
}

#[test]
fn undeliverable_notifications_that_make_room_for_others_are_counted() {
    let count = |range: std::ops::Range<u32>| -> Vec<Outgoing> {
        range.map(|number| outgoing("hook", &format!("key-{number}"))).collect()
    };
    let (folder, store) = store_with(&count(0..UNDELIVERABLE_MAX));
    let now = Timestamp::UNIX_EPOCH;
    let lost = DeliveryFailure { is_retryable: false, ..failure(true) };
    let give_up_all = || {
        while let Some(next) = store.next("hook").unwrap() {
            store.undeliverable(next.id, &lost, now).unwrap();
        }
    };
    give_up_all();
    let counts = |store: &NotifyStore| {
        let depth = store.depths().unwrap()["hook"].clone();
        (depth.undeliverable, depth.dropped)
    };
    let max = u64::from(UNDELIVERABLE_MAX);
    assert_eq!(counts(&store), (max, 0), "each receiver may keep that many");
    let changes = RouterChanges::default();
    store.save(2, &changes, &count(5000..5003), None, now).unwrap();
    give_up_all();
    assert_eq!(counts(&store), (max, 3));
    assert!(!keys(&store).contains(&"key-2".to_owned()), "the oldest make room");
    store.discard("hook", None).unwrap();
    drop(store);
    let store = NotifyStore::open(folder.path()).unwrap().store;
    assert_eq!(counts(&store), (0, 3), "the count stays");
}

#[test]
fn what_waits_for_a_receiver_that_was_removed_is_given_up_with_the_policy() {
    let names = [("hook", "a"), ("other", "b"), ("hook", "c")];
    let messages = names.map(|(receiver, key)| outgoing(receiver, key));
    let (_folder, store) = store_with(&messages);
    let now = Timestamp::from_second(60).unwrap();
    let policy = serde_json::json!({
        "receivers": { "other": { "webhook": { "url": "http://127.0.0.1:1/" } } },
    });
    let policy: NotificationPolicy = serde_json::from_value(policy).unwrap();
    let head = Some(RouterHead { policy, ..RouterHead::default() });
    let changes = RouterChanges { head, ..RouterChanges::default() };
    store.save(2, &changes, &[outgoing("other", "d")], None, now).unwrap();
    assert!(store.next("hook").unwrap().is_none());
    let given_up = store.page(false, None, 10).unwrap().messages;
    let states: Vec<(&str, QueueState)> =
        given_up.iter().map(|one| (one.notification.key.as_str(), one.state)).collect();
    let (waiting, lost) = (QueueState::Waiting, QueueState::Undeliverable);
    assert_eq!(states, [("a", lost), ("c", lost), ("b", waiting), ("d", waiting)]);
    assert_eq!(given_up[0].error.as_ref().unwrap().0, "receiver-removed");
    // The delivery of the first was in progress. It fails, which changes nothing, or succeeds.
    store.retry(1, &failure(true), now, Duration::ZERO).unwrap();
    let first = store.page(false, None, 1).unwrap().messages.remove(0);
    assert_eq!((first.state, first.error.unwrap().0.as_str()), (lost, "receiver-removed"));
    store.delivered(1, now).unwrap();
    assert_eq!(store.depths().unwrap()["hook"].undeliverable, 1);
}

#[test]
fn pages_have_each_notification_once_and_in_order() {
    let messages: Vec<Outgoing> =
        (0..7).map(|number| outgoing(["a/b", "a"][number % 2], &format!("key-{number}"))).collect();
    let (_folder, store) = store_with(&messages);
    store.delivered(2, Timestamp::UNIX_EPOCH).unwrap();
    for (all, total) in [(true, 7), (false, 6)] {
        let (mut found, mut after) = (Vec::new(), None::<QueuePlace>);
        loop {
            let page = store.page(all, after.as_ref(), 2).unwrap();
            let Some(last) = page.messages.last() else { break };
            after = Some((last.receiver.clone(), last.id));
            found.extend(page.messages.into_iter().map(|one| (one.receiver, one.id)));
            assert_eq!(page.more, total - found.len() as u64);
        }
        let expected = if all { store.messages(true) } else { store.messages(false) };
        let expected: Vec<QueuePlace> =
            expected.unwrap().into_iter().map(|one| (one.receiver, one.id)).collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn each_gap_has_an_identity_until_it_is_recorded() {
    let (_folder, store) = store_with(&[]);
    let (_other, replaced) = store_with(&[]);
    let gap =
        LogGap { at: Timestamp::UNIX_EPOCH, after_seq: None, end_seq: 7, cause: GapCause::Lost };
    let key =
        |store: &NotifyStore| Notification::gap("hook", &store.next_gap().unwrap(), gap.at).key;
    let first = key(&store);
    assert_eq!(first, key(&store), "the notifier may start again before it records the gap");
    store.save(7, &RouterChanges::default(), &[], Some(&gap), gap.at).unwrap();
    assert_ne!(first, key(&store), "a second gap at the same position");
    assert_ne!(first, key(&replaced), "the database was lost a second time");
}

/// Limits the size of the database to what it has, like a full disk.
fn fill(store: &NotifyStore) {
    let connection = store.connection();
    let pages: i64 = connection.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
    connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(())).unwrap();
}

#[test]
fn a_full_database_is_neither_damaged_nor_half_written() {
    let (_folder, store) = store_with(&[outgoing("hook", "a")]);
    fill(&store);
    let mut large = outgoing("hook", "b");
    large.notification.cause = "x".repeat(1 << 20);
    let saved = store.save(2, &RouterChanges::default(), &[large], None, Timestamp::UNIX_EPOCH);
    let err = saved.unwrap_err();
    assert!(matches!(
        &err,
        NotifyStoreError::Sqlite { err, .. } if err.sqlite_error_code() == Some(ErrorCode::DiskFull)
    ));
    assert!(!err.is_damage());
    assert_eq!((keys(&store), store.router().unwrap().seq()), (vec!["a".to_owned()], 0));
}

/// SQLite leaves out pages that do not change, so that a full disk would not be noticed.
#[test]
fn a_probe_writes_although_nothing_changes() {
    let (_folder, store) = store_with(&[outgoing("hook", "a")]);
    for id in [Some(1), None] {
        let pages_in_log = |mode: &str| -> i64 {
            let pragma = format!("PRAGMA wal_checkpoint({mode})");
            store.connection().query_row(&pragma, [], |row| row.get(1)).unwrap()
        };
        assert_eq!(pages_in_log("TRUNCATE"), 0);
        store.probe(id).unwrap();
        assert!(pages_in_log("PASSIVE") > 0, "{id:?}");
    }
    assert_eq!(store.next("hook").unwrap().unwrap().attempts, 0);
}

#[test]
fn another_notification_with_a_known_key_is_not_mistaken_for_a_repetition() {
    let (_folder, store) = store_with(&[outgoing("hook", "a")]);
    let mut connection = store.connection();
    let transaction = connection.transaction().unwrap();
    let queue = |message: &Outgoing| enqueue(&transaction, message, Timestamp::UNIX_EPOCH).unwrap();
    assert_eq!(queue(&outgoing("hook", "b")), Queued::Added);
    assert_eq!(queue(&outgoing("hook", "a")), Queued::Known);
    let mut other = outgoing("hook", "a");
    "it is wrong again".clone_into(&mut other.notification.cause);
    assert_eq!(queue(&other), Queued::KeyInUse);
}

/// The state of a group that has an alert, or has one no more.
fn group(id: &str, fires: bool) -> RouterChanges {
    let at = Timestamp::UNIX_EPOCH;
    let group = serde_json::json!({
        "route": "all", "labels": {}, "opened": at, "opened_seq": 1, "cause_seq": 1, "number": 1,
        "is_changed": false, "is_escalated": false,
    });
    let incident = Incident {
        started: at,
        opened_seq: 1,
        nodes: Vec::new(),
        conditions: Vec::new(),
        actions: None,
        is_suppressed: false,
        groups: BTreeMap::from([(GroupId(id.to_owned()), true)]),
    };
    let key = IncidentKey::Finding("gpu-1".parse().unwrap(), id.to_owned());
    RouterChanges {
        incidents: vec![(key, fires.then_some(incident))],
        groups: vec![(GroupId(id.to_owned()), Some(serde_json::from_value(group).unwrap()))],
        ..RouterChanges::default()
    }
}

/// Two notifications of each group could not be delivered, or only the first.
#[test]
fn a_retry_of_everything_leaves_out_what_is_over() {
    let (firing, resolved) = (NotificationStatus::Firing, NotificationStatus::Resolved);
    let about = |group: &str, status: NotificationStatus| {
        let mut one = outgoing("hook", &format!("{group}-{status:?}"));
        one.notification.group = group.to_owned();
        (one.notification.kind, one.notification.status) = (NotificationKind::Finding, status);
        one
    };
    let (_folder, store) = store_with(&[
        about("fires", firing),
        about("told", firing),
        about("told", resolved),
        about("gone", firing),
        about("untold", firing),
        about("again", resolved),
        about("again", firing),
        about("end", resolved),
    ]);
    let now = Timestamp::UNIX_EPOCH;
    let groups = [("fires", true), ("again", true), ("told", false), ("untold", false)];
    for (number, (id, fires)) in groups.into_iter().enumerate() {
        store.save(2 + number as u64, &group(id, fires), &[], None, now).unwrap();
    }
    let lost = DeliveryFailure { is_retryable: false, ..failure(true) };
    let open = |one: &QueuedMessage| (one.notification.key.clone(), one.state);
    while let Some(next) = store.next("hook").unwrap() {
        match next.notification.key.as_str() {
            "told-Resolved" | "again-Firing" => store.delivered(next.id, now).unwrap(),
            _ => store.undeliverable(next.id, &lost, now).unwrap(),
        }
    }
    let notice = Outgoing {
        receiver: "hook".to_owned(),
        notification: Notification::summary("notice".to_owned(), 7, Severity::Warning, now),
    };
    store.save(9, &RouterChanges::default(), &[notice], None, now).unwrap();
    let notice = store.next("hook").unwrap().unwrap();
    store.undeliverable(notice.id, &lost, now).unwrap();
    let by_key = store.retry_now("hook", Some("gone-Firing")).unwrap();
    assert_eq!(by_key, Retried { due: 1, obsolete: 0 }, "the operator wants it");
    let gone = store.next("hook").unwrap().unwrap();
    store.undeliverable(gone.id, &lost, now).unwrap();
    assert_eq!(store.retry_now("hook", None).unwrap(), Retried { due: 4, obsolete: 3 });
    let left: Vec<_> = store.messages(false).unwrap().iter().map(open).collect();
    let waits = |key: &str| (key.to_owned(), QueueState::Waiting);
    assert_eq!(left, ["fires-Firing", "untold-Firing", "end-Resolved", "notice"].map(waits));
}
