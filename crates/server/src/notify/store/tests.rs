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
    let now = Timestamp::from_second(60).unwrap();
    store.retry(1, &failure(true), now, now).unwrap();
    drop(store);
    let OpenedStore { store, missing } = NotifyStore::open(folder.path()).unwrap();
    assert_eq!(missing, None);
    assert_eq!(store.next("hook").unwrap().unwrap().reached, Some(now));
}

#[test]
fn the_time_when_a_receiver_was_first_reached_stays() {
    let (_folder, store) = store_with(&[outgoing("hook", "key-0")]);
    let at = |second| Timestamp::from_second(second).unwrap();
    let reached = || store.next("hook").unwrap().unwrap().reached;
    store.retry(1, &failure(false), at(10), at(11)).unwrap();
    assert_eq!(reached(), None);
    store.retry(1, &failure(true), at(20), at(21)).unwrap();
    store.retry(1, &failure(false), at(30), at(31)).unwrap();
    store.retry(1, &failure(true), at(40), at(41)).unwrap();
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
    store.retry(2, &failure(true), now, Timestamp::MAX).unwrap();
    store.delivered(3, now).unwrap();
    assert_eq!(store.count_open("hook", None).unwrap(), 2);
    assert_eq!(store.retry_now("hook", Some("c")).unwrap(), 0, "it is delivered");
    assert_eq!(store.retry_now("hook", Some("a")).unwrap(), 1);
    let next = store.next("hook").unwrap().unwrap();
    assert_eq!((next.notification.key.as_str(), next.next), ("a", None), "it keeps its place");
    assert_eq!(store.retry_now("hook", None).unwrap(), 2);
    assert_eq!(store.discard("hook", Some("a")).unwrap(), 1);
    assert_eq!(store.next("hook").unwrap().unwrap().next, None);
    assert_eq!(store.discard("hook", None).unwrap(), 1);
    assert_eq!(keys(&store), ["c", "d"]);
}
