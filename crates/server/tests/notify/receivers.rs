//! Receivers that a policy removes, adds again or renames while alerts fire.

use serde_json::{Value, json};

use crate::test_server::{NotifyServer, Recorder, each_alone, finding, until};

/// The policy in which each finding is sent to these receivers at once.
fn to(receivers: &[&str]) -> Value {
    let mut policy = each_alone();
    let webhook = |name: &&str| ((*name).to_owned(), policy["receivers"]["hook"].clone());
    let all: serde_json::Map<String, Value> = receivers.iter().map(webhook).collect();
    policy["receivers"] = all.into();
    policy["routes"][0]["receivers"] = json!(receivers);
    policy
}

/// Codes of the notifications that a receiver could not get, by the reason.
fn undeliverable(server: &NotifyServer, receiver: &str) -> Vec<(String, String)> {
    let database = rusqlite::Connection::open(server.dir().join("notify")).unwrap();
    let query = "SELECT json_extract(message, '$.code'), error_code FROM queue
        WHERE state = 'undeliverable' AND receiver = ?1 ORDER BY id";
    let mut select = database.prepare(query).unwrap();
    let rows = select.query_map([receiver], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    rows.map(Result::unwrap).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_is_removed_and_added_again_gets_what_fires() {
    let recorder = Recorder::new();
    let mut server = NotifyServer::new(Some(recorder.clone()));
    server.start(None).await;
    server.enrol("gpu-1").await;
    server.set_policy(&to(&["hook", "other"])).await;
    server.report("gpu-1", vec![finding(1, "test.code-1")]).await;
    until("both are told", || recorder.delivered().len() == 2).await;
    let mut expected = vec!["test.code-1"; 1];
    for round in 2..=6 {
        server.set_policy(&to(&["other"])).await;
        let code = format!("test.code-{round}");
        server.report("gpu-1", vec![finding(round, &code)]).await;
        until("the other receiver is told", || recorder.of("other").contains(&code)).await;
        server.set_policy(&to(&["hook", "other"])).await;
        // Everything that fires, of which the last is new to it.
        let fires = usize::try_from(round).unwrap();
        expected.extend(vec![""; fires]);
        until("the receiver is told again", || recorder.of("hook").len() >= expected.len()).await;
        let mut last = recorder.of("hook").split_off(expected.len() - fires);
        last.sort();
        let codes: Vec<String> = (1..=round).map(|number| format!("test.code-{number}")).collect();
        assert_eq!(last, codes);
        assert_eq!(undeliverable(&server, "hook"), []);
    }
    assert_eq!(recorder.of("hook").len(), expected.len());
    assert_eq!(recorder.of("other").len(), 6, "the other receiver is told once");
    server.stop().await;
}

/// The receiver is down when the alert fires, and is then removed and added again, or renamed.
#[tokio::test(flavor = "multi_thread")]
async fn what_waited_for_a_removed_receiver_is_sent_again_if_it_still_fires() {
    for name in ["hook", "renamed"] {
        let recorder = Recorder::new();
        recorder.set_down("hook", true);
        let mut server = NotifyServer::new(Some(recorder.clone()));
        server.start(None).await;
        server.enrol("gpu-1").await;
        server.set_policy(&to(&["hook", "other"])).await;
        server.report("gpu-1", vec![finding(1, "test.fires")]).await;
        until("the other receiver is told", || recorder.of("other").len() == 1).await;
        if name == "hook" {
            server.set_policy(&to(&["other"])).await;
            until("it is given up", || !undeliverable(&server, "hook").is_empty()).await;
            recorder.set_down("hook", false);
        }
        server.set_policy(&to(&[name, "other"])).await;
        server.report("gpu-1", vec![finding(2, "test.later")]).await;
        let told = || recorder.of(name);
        until("the receiver is told", || told().contains(&"test.later".to_owned())).await;
        assert_eq!(told(), ["test.fires", "test.later"], "once");
        let removed = ("test.fires".to_owned(), "receiver-removed".to_owned());
        assert_eq!(undeliverable(&server, "hook"), [removed], "nothing is dropped silently");
        server.stop().await;
    }
}
