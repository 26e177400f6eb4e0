//! Connection state of agents in the output of `farrier fleet`.

use std::time::Duration;

use farrier_wire::client;
use farrier_wire::proto::{self, AgentMessage, agent_message, report};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;

use crate::support::wait::wait_until;
use crate::test_fleet::TestFleet;

/// An agent's session that only sends heartbeats, until the task is aborted.
fn session(fleet: &TestFleet, node: &'static str) -> JoinHandle<()> {
    let url: client::ServerUrl = fleet.url().parse().unwrap();
    let (welcome, welcomed) = std::sync::mpsc::channel();
    let session = fleet.spawn(async move {
        let mut agents = client::connect(&url, client::no_tls()).await.unwrap();
        let (out, outbound) = mpsc::channel(4);
        let inventory = Some(proto::NodeInventory { boot: "b".to_owned(), ..Default::default() });
        let hello = proto::Hello { inventory, journal: "j".to_owned(), ..Default::default() };
        out.send(AgentMessage { what: Some(agent_message::What::Hello(hello)) }).await.unwrap();
        let mut request = Request::new(ReceiverStream::new(outbound));
        request.metadata_mut().insert("farrier-node", node.parse().unwrap());
        let mut inbound = agents.session(request).await.unwrap().into_inner();
        inbound.message().await.unwrap().unwrap();
        welcome.send(()).unwrap();
        loop {
            let heartbeat = Some(report::What::Heartbeat(proto::Heartbeat {}));
            let report = agent_message::What::Report(proto::Report { what: heartbeat });
            out.send(AgentMessage { what: Some(report) }).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    welcomed.recv().unwrap();
    session
}

fn state(fleet: &TestFleet, node: &str) -> Value {
    let output = fleet.run(&["fleet", "node", node, "--output", "json"]);
    let node: Value = serde_json::from_str(&output.stdout)
        .unwrap_or_else(|_| panic!("{}{}", output.stdout, output.stderr));
    node["connection"]["state"].clone()
}

/// Masks what differs between runs: ages, times and column widths.
fn masked(text: &str) -> String {
    let word = |word: &str, before: &str| {
        let unit = word.trim_start_matches(|letter: char| letter.is_ascii_digit());
        let is_age = matches!(unit, "s" | "m") || unit.is_empty() && before == "heartbeat";
        let is_time = word.starts_with("20") && word.contains('T');
        let masked = if is_time { "TIME" } else { word };
        if is_age && unit.len() < word.len() { format!("N{unit}") } else { masked.to_owned() }
    };
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let before = [""].into_iter().chain(words.iter().copied());
        words
            .iter()
            .zip(before)
            .map(|(text, before)| word(text, before))
            .collect::<Vec<_>>()
            .join(" ")
    };
    let lines = text.lines().filter(|line| !line.starts_with('─'));
    lines.map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn nodes_are_connected_disconnected_or_not_connected_yet() {
    let fleet = TestFleet::plain();
    fleet.log_in("ann", "viewer");
    let _first = session(&fleet, "gpu-1");
    let second = session(&fleet, "gpu-2");
    second.abort();
    let explain = || "gpu-2 is disconnected".to_owned();
    wait_until(explain, || state(&fleet, "gpu-2") == "disconnected");
    assert_eq!(state(&fleet, "gpu-1"), "connected");
    assert_eq!(state(&fleet, "gpu-3"), "never");
    let nodes = fleet.run_ok(&["fleet", "nodes"]);
    assert!(nodes.lines().all(|line| line.chars().count() <= 110), "{nodes}");
    insta::assert_snapshot!("fleet_nodes", masked(&nodes));
    let explained =
        ["gpu-1", "gpu-2", "gpu-3"].map(|node| fleet.run(&["fleet", "explain", node]).stdout);
    let agents =
        explained.iter().flat_map(|text| text.lines()).filter(|line| line.contains(" agent "));
    insta::assert_snapshot!("fleet_explain", masked(&agents.collect::<Vec<_>>().join("\n")));
}
