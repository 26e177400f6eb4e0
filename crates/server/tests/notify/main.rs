//! Notifications of a real server: from the log to a receiver, across kills and outages.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod gaps;
mod receivers;
mod test_server;

use std::collections::{BTreeMap, BTreeSet};

use farrier_fleet::notify::NotificationStatus;
use farrier_server::notify::NotifyFailpoint;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use test_server::{NotifyServer, Recorder, each_alone, finding, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_finding_reaches_a_webhook() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let request = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        // The body is one JSON object that ends the request.
        while !request.ends_with(b"}") {
            assert_ne!(stream.read_buf(&mut request).await.unwrap(), 0);
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        String::from_utf8(request).unwrap()
    });
    let mut server = NotifyServer::new(None);
    server.start(None).await;
    server
        .set_policy(&json!({
            "receivers": { "hook": { "webhook": { "url": url } } },
            "routes": [{ "name": "all", "receivers": ["hook"], "group_wait_s": 0 }],
        }))
        .await;
    server.enrol("gpu-1").await;
    server.report("gpu-1", vec![finding(1, "gpu.ecc-off")]).await;
    let request = request.await.unwrap();
    assert!(request.starts_with("POST /hook"), "{request}");
    let body: serde_json::Value =
        serde_json::from_str(request.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(
        (&body["code"], &body["nodes"][0]["node"]),
        (&json!("gpu.ecc-off"), &json!("gpu-1"))
    );
    server.stop().await;
}

/// The server is killed at every step between the log and the end of a delivery, several times.
#[tokio::test(flavor = "multi_thread")]
async fn a_kill_at_any_step_loses_nothing_and_duplicates_have_the_same_key() {
    let recorder = Recorder::new();
    let mut server = NotifyServer::new(Some(recorder.clone()));
    server.start(None).await;
    server.set_policy(&each_alone()).await;
    server.enrol("gpu-1").await;
    let mut expected = BTreeSet::new();
    for point in NotifyFailpoint::ALL {
        for passes in 0..3 {
            server.kill().await;
            server.start(Some((point, passes))).await;
            let halted = server.running().notifier_halted();
            // Each finding passes every step once.
            while !*halted.borrow() {
                let number = expected.len() as u64 + 1;
                let code = format!("test.code-{number}");
                server.report("gpu-1", vec![finding(number, &code)]).await;
                expected.insert(code.clone());
                until("the finding is delivered, or the notifier has stopped", || {
                    *halted.borrow() || recorder.codes().contains(&code)
                })
                .await;
            }
        }
    }
    server.kill().await;
    server.start(None).await;
    until("everything is delivered", || recorder.codes() == expected).await;
    let mut keys: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for outgoing in recorder.delivered() {
        let notification = &outgoing.notification;
        assert_eq!(notification.status, NotificationStatus::Firing);
        keys.entry(notification.code.clone()).or_default().insert(notification.key.clone());
    }
    let several: Vec<_> = keys.iter().filter(|(_, keys)| keys.len() > 1).collect();
    assert!(several.is_empty(), "a repeated delivery has another key: {several:#?}");
    let deliveries = recorder.delivered().len();
    assert!(deliveries > expected.len(), "no delivery was repeated: {deliveries}");
    let by_key: BTreeSet<String> = recorder
        .delivered()
        .iter()
        .map(|outgoing| serde_json::to_string(outgoing).unwrap())
        .collect();
    assert_eq!(by_key.len(), expected.len(), "a duplicate has the same content");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notifier_that_panics_starts_again() {
    for point in [NotifyFailpoint::FollowerPanic, NotifyFailpoint::WorkerPanic] {
        let recorder = Recorder::new();
        let mut server = NotifyServer::new(Some(recorder.clone()));
        server.start(Some((point, 1))).await;
        server.set_policy(&each_alone()).await;
        server.enrol("gpu-1").await;
        for number in 1..=3 {
            let code = format!("test.code-{number}");
            server.report("gpu-1", vec![finding(number, &code)]).await;
            until("the finding is delivered", || recorder.codes().contains(&code)).await;
        }
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_is_down_delays_no_other() {
    let recorder = Recorder::new();
    recorder.set_down("hook", true);
    let mut server = NotifyServer::new(Some(recorder.clone()));
    server.start(None).await;
    let mut policy = each_alone();
    policy["receivers"]["other"] = json!({ "webhook": { "url": "http://127.0.0.1:1/" } });
    policy["routes"][0]["receivers"] = json!(["hook", "other"]);
    server.set_policy(&policy).await;
    server.enrol("gpu-1").await;
    for number in 1..=20 {
        server.report("gpu-1", vec![finding(number, &format!("test.code-{number}"))]).await;
    }
    until("the other receiver has everything", || recorder.of("other").len() == 20).await;
    assert!(recorder.of("hook").is_empty());
    recorder.set_down("hook", false);
    until("the receiver has everything", || recorder.of("hook").len() == 20).await;
    assert_eq!(recorder.of("hook"), recorder.of("other"), "in order");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_ten_thousand_findings_is_a_handful_of_messages() {
    let recorder = Recorder::new();
    let mut server = NotifyServer::new(Some(recorder.clone()));
    server.start(None).await;
    server.set_policy(&json!({
        "receivers": { "hook": { "webhook": { "url": "http://127.0.0.1:1/" } } },
        "routes": [{ "name": "all", "receivers": ["hook"], "group_wait_s": 2, "group_interval_s": 2 }],
    })).await;
    let nodes: Vec<String> = (0..500).map(|index| format!("gpu-{index}")).collect();
    for node in &nodes {
        server.enrol(node).await;
    }
    for node in &nodes {
        let code = |number: u64| ["gpu.ecc-off", "gpu.pages-many"][(number % 2) as usize];
        let findings = (1..=20).map(|number| finding(number, code(number))).collect();
        server.report(node, findings).await;
    }
    let total = || -> u32 {
        let mut last: BTreeMap<String, u32> = BTreeMap::new();
        for outgoing in recorder.delivered() {
            last.insert(outgoing.notification.group, outgoing.notification.nodes_total);
        }
        last.values().sum()
    };
    until("every node is in a message", || total() == 1000).await;
    // Reports take some seconds on a busy machine, and each group is updated every two seconds.
    let messages = recorder.delivered().len();
    assert!(messages < 100, "{messages} messages for 10,000 findings");
    server.stop().await;
}
