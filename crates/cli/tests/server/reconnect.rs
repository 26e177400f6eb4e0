//! An agent whose server was unreachable.

use std::fs;

use farrier_fleet::fleet::Event;

use crate::agent_node::AgentNode;
use crate::has_finding;
use crate::server::{TestServer, until};

/// The agent's back-off is an hour. If the finding arrives before the test times out, the agent did
/// not wait for the back-off.
#[test]
fn a_fatal_finding_ends_the_reconnect_back_off() {
    let agent_node = AgentNode::with_gpus(2);
    let plain = ["--plain", "train"];
    let server =
        TestServer::start_with(&agent_node.path(""), "127.0.0.1:0", "server-1.log", &plain);
    let address = server.log_field("address=").unwrap();
    let section = format!("[server]\nurl = \"http://{address}\"\n");
    fs::write(agent_node.path("agent.toml"), agent_node.config(&section)).unwrap();
    let agent = agent_node
        .agent_with(|command| {
            command.env("FARRIER_TEST_RECONNECT_WAIT_S", "3600");
        })
        .ready();
    // From here on the server has the findings snapshot, and a finding arrives as a journal change.
    until("the server has the findings snapshot", || {
        server.has(|event| matches!(event, Event::FindingsSnapshot { .. }))
    });
    server.kill();
    agent.until(|status| !status["server"]["connection"]["disconnected"].is_null());
    agent_node.inject(&["xid", "79", "--gpu", "0"]);
    agent.until(|status| status["findings"].to_string().contains("Xid 79"));
    let server = TestServer::start_with(&agent_node.path(""), &address, "server-2.log", &plain);
    until("the finding is in the server's log", || {
        server.has(|event| has_finding(event, "Xid 79"))
    });
    agent.stop();
    server.stop();
}
