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
use crate::town::Town;

/// An agent's session that only sends heartbeats, until the task is aborted.
fn session(town: &Town, node: &'static str) -> JoinHandle<()> {
    let url: client::ServerUrl = town.url().parse().unwrap();
    let (welcome, welcomed) = std::sync::mpsc::channel();
    let session = town.spawn(async move {
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

fn state(town: &Town, node: &str) -> Value {
    let ran = town.run(&["fleet", "node", node, "--output", "json"]);
    let node: Value = serde_json::from_str(&ran.stdout)
        .unwrap_or_else(|_| panic!("{}{}", ran.stdout, ran.stderr));
    node["connection"]["state"].clone()
}

/// Masks what differs between runs: ages, times and column widths.
fn steady(text: &str) -> String {
    let word = |word: &str, before: &str| {
        let unit = word.trim_start_matches(|it: char| it.is_ascii_digit());
        let is_age = matches!(unit, "s" | "m") || unit.is_empty() && before == "heartbeat";
        let is_time = word.starts_with("20") && word.contains('T');
        let steady = if is_time { "TIME" } else { word };
        if is_age && unit.len() < word.len() { format!("N{unit}") } else { steady.to_owned() }
    };
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let before = [""].into_iter().chain(words.iter().copied());
        words.iter().zip(before).map(|(it, before)| word(it, before)).collect::<Vec<_>>().join(" ")
    };
    let lines = text.lines().filter(|it| !it.starts_with('─'));
    lines.map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn nodes_are_connected_disconnected_or_not_connected_yet() {
    let town = Town::plain();
    town.log_in("ann", "viewer");
    let _first = session(&town, "gpu-1");
    let second = session(&town, "gpu-2");
    second.abort();
    let explain = || "it still looks connected".to_owned();
    wait_until(explain, || state(&town, "gpu-2") == "disconnected");
    assert_eq!(state(&town, "gpu-1"), "connected");
    assert_eq!(state(&town, "gpu-3"), "never");
    let nodes = town.fine(&["fleet", "nodes"]);
    assert!(nodes.lines().all(|it| it.chars().count() <= 110), "{nodes}");
    insta::assert_snapshot!("fleet_nodes", steady(&nodes));
    let explained =
        ["gpu-1", "gpu-2", "gpu-3"].map(|it| town.run(&["fleet", "explain", it]).stdout);
    let agents = explained.iter().flat_map(|it| it.lines()).filter(|it| it.contains(" agent "));
    insta::assert_snapshot!("fleet_explain", steady(&agents.collect::<Vec<_>>().join("\n")));
}
