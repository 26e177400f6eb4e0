//! The notification queue: its pages, and a database that fails.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use farrier_fleet::fleet::event::{Event, JournalPosition};
use farrier_fleet::fleet::{Policy, Role};
use farrier_fleet::health::{Change, Finding};
use serde_json::{Value, json};

use crate::test_fleet::TestFleet;
use crate::test_server::{finding, node};

/// Each finding is sent to `hook` alone and at once.
async fn set_policy(fleet: &TestFleet, receiver: &Value) {
    let notifications = json!({
        "receivers": { "hook": receiver },
        "routes": [{
            "name": "all", "receivers": ["hook"], "match": { "codes": ["test.*"] },
            "group_by": ["node", "code"], "group_wait_s": 0,
        }],
    });
    let notifications = serde_json::from_value(notifications).unwrap();
    let policy = Policy { notifications, ..Policy::default() };
    policy.check().unwrap();
    fleet.submit(Event::PolicySet { policy: Box::new(policy) }).await;
}

async fn report(fleet: &TestFleet, number: u64) {
    let found = Finding { code: format!("test.code-{number}"), ..finding(number) };
    let record = JournalPosition { journal: "j".to_owned(), number };
    let changes = vec![Change::Opened(found)];
    fleet.submit(Event::FindingsReported { node: node("a"), record, changes }).await;
}

fn codes(queue: &Value) -> Vec<String> {
    let messages = queue["messages"].as_array().unwrap();
    messages.iter().map(|message| message["code"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_queue_has_pages() {
    let fleet = TestFleet::open().await;
    let token = fleet.token("olga", Role::Operator, "fleet");
    // Nothing listens there, so everything waits.
    set_policy(&fleet, &json!({ "webhook": { "url": "http://127.0.0.1:1/" } })).await;
    for number in 1..=5 {
        report(&fleet, number).await;
    }
    let queue = "/api/v1/notifications";
    let all = fleet.wait_for(queue, &token, |queue, _| codes(queue).len() == 5).await;
    assert_eq!(
        (&all["next"], &all["more"], &all["database"]),
        (&Value::Null, &json!(0), &Value::Null)
    );
    let (mut found, mut path) = (Vec::new(), format!("{queue}?limit=2"));
    loop {
        let page = fleet.get(&path, &token).await;
        found.extend(codes(&page));
        assert_eq!(page["more"], json!(5 - found.len()));
        assert_eq!(page["receivers"][0]["waiting"], 5, "each page has the receivers");
        assert_eq!(page["receivers"][0]["dropped"], 0);
        let Some(next) = page["next"].as_str() else { break };
        path = format!("{queue}?limit=2&cursor={next}");
    }
    assert_eq!(found, codes(&all));
    for wrong in ["cursor=hook", "cursor=hook/x", "cursor=", "limit=501"] {
        let answer = fleet.send("GET", &format!("{queue}?{wrong}"), Some(&token), None).await;
        answer.assert_problem(400);
    }
}

/// Makes changes of tables of the notification database fail, like a full disk.
fn fill(dir: &Path, changes: &[&str]) {
    for (number, change) in changes.iter().enumerate() {
        let raise = "SELECT RAISE(ABORT, 'database or disk is full')";
        let name = format!("full_{}_{number}", changes.len());
        execute(dir, &format!("CREATE TRIGGER {name} BEFORE {change} BEGIN {raise}; END"));
    }
}

fn execute(dir: &Path, statements: &str) {
    let database = rusqlite::Connection::open(dir.join("notify")).unwrap();
    database.busy_timeout(std::time::Duration::from_secs(60)).unwrap();
    database.execute_batch(statements).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_database_is_full_nothing_is_delivered_again_and_the_queue_says_so() {
    let fleet = TestFleet::open().await;
    let token = fleet.token("olga", Role::Operator, "fleet");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    let keys = || -> Vec<String> {
        let text = fs::read_to_string(&file).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    };
    let script = r#"echo "$FARRIER_KEY" >> "$0""#;
    set_policy(&fleet, &json!({ "command": { "argv": ["/usr/bin/sh", "-c", script, file] } }))
        .await;
    report(&fleet, 1).await;
    let (queue, all) = ("/api/v1/notifications", "/api/v1/notifications?state=all");
    let is_delivered = |queue: &Value, count| {
        let messages = queue["messages"].as_array().unwrap();
        messages.iter().filter(|message| message["state"] == "delivered").count() == count
    };
    fleet.wait_for(all, &token, |queue, _| is_delivered(queue, 1)).await;
    // The notification of the second finding is in the queue when the database becomes full.
    set_policy(&fleet, &json!({ "command": { "argv": ["/usr/bin/false"] } })).await;
    report(&fleet, 2).await;
    let has_failed = |queue: &Value| queue["messages"][0]["attempts"].as_u64() > Some(0);
    fleet.wait_for(queue, &token, |queue, _| has_failed(queue)).await;
    let dir = fleet.server.dir();
    fill(&dir, &["UPDATE ON queue"]);
    set_policy(&fleet, &json!({ "command": { "argv": ["/usr/bin/sh", "-c", script, file] } }))
        .await;
    fleet.wait_for(queue, &token, |queue, _| !queue["database"].is_null()).await;
    let before = keys();
    // The notifier cannot store anything either, and starts again every few seconds.
    fill(&dir, &["UPDATE ON router", "INSERT ON router"]);
    report(&fleet, 3).await;
    let fails =
        |queue: &Value| !queue["database"].is_null() && queue["behind_s"].as_u64() > Some(7);
    let failing = fleet.wait_for(queue, &token, |queue, _| fails(queue)).await;
    let error = failing["database"]["error"].as_str().unwrap();
    assert!(error.contains("database or disk is full"), "{error}");
    assert_eq!(codes(&failing), ["test.code-2"], "the queue can still be read");
    assert_eq!(keys(), before, "delivered again");
    let metrics = fleet.send("GET", "/metrics", Some(&token), None).await.body;
    let failed_s = metrics
        .lines()
        .find_map(|line| line.strip_prefix("farrier_server_notification_database_failed_seconds "));
    assert!(failed_s.unwrap().parse::<u64>().unwrap() > 0, "{metrics}");
    execute(&dir, "DROP TRIGGER full_1_0; DROP TRIGGER full_2_0; DROP TRIGGER full_2_1");
    let done = fleet.wait_for(all, &token, |queue, _| is_delivered(queue, 3)).await;
    assert_eq!(done["database"], Value::Null);
    let distinct: BTreeSet<String> = keys().into_iter().collect();
    assert_eq!((keys().len(), distinct.len()), (3, 3), "each is delivered once");
}

/// Rack `r2` has one node, of the pool `train`. Then a node of another pool comes there.
#[tokio::test(flavor = "multi_thread")]
async fn a_mute_has_the_scope_of_its_operator_who_may_always_end_it() {
    let fleet = TestFleet::open().await;
    let own = fleet.token("olga", Role::Operator, "pool:train");
    let all = fleet.token("ann", Role::Operator, "fleet");
    let body = r#"{"domain":"rack:r2","duration_s":3600,"reason":"known"}"#;
    assert_eq!(fleet.post("/api/v1/mutes", &own, body).await.status, 200);
    let mutes = fleet.get("/api/v1/mutes", &all).await;
    assert_eq!(mutes["mutes"][0]["scope"], "pool:train");
    fleet.enrol("d", "serve", Some("shop"), Some("r2")).await;
    assert_eq!(
        fleet.post("/api/v1/mutes", &own, body).await.status,
        403,
        "not all of it is theirs"
    );
    let number = mutes["mutes"][0]["mute"].as_u64().unwrap();
    let other = fleet.token("oscar", Role::Operator, "pool:serve");
    let end = format!(r#"{{"mute":{number}}}"#);
    fleet.post("/api/v1/unmutes", &other, &end).await.assert_problem(404);
    assert_eq!(fleet.post("/api/v1/unmutes", &own, &end).await.status, 200);
    assert_eq!(fleet.get("/api/v1/mutes", &all).await["mutes"], json!([]));
    // A mute of an operator with the whole fleet is not ended by others.
    assert_eq!(fleet.post("/api/v1/mutes", &all, body).await.status, 200);
    let mutes = fleet.get("/api/v1/mutes", &all).await;
    let end = format!(r#"{{"mute":{}}}"#, mutes["mutes"][0]["mute"]);
    fleet.post("/api/v1/unmutes", &own, &end).await.assert_problem(404);
}
