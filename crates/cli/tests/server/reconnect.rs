//! An agent whose server was away.

use std::fs;

use farrier_fleet::fleet::Event;

use crate::reported;
use crate::server::{TestServer, until};
use crate::world::World;

/// The back-off of this agent is an hour: what arrives sooner did not wait for it.
#[test]
fn a_fatal_finding_found_while_the_server_is_away_does_not_wait_for_the_back_off() {
    let world = World::of(2);
    let plain = ["--plain", "train"];
    let server = TestServer::start_with(&world.path(""), "127.0.0.1:0", "server-1.log", &plain);
    let address = server.said("address=").unwrap();
    let section = format!("[server]\nurl = \"http://{address}\"\n");
    fs::write(world.path("agent.toml"), world.config(&section)).unwrap();
    let agent = world
        .agent_with(|command| {
            command.env("FARRIER_TEST_RECONNECT_WAIT_S", "3600");
        })
        .ready();
    // From here on the server knows the agent's journal, and a finding comes as a change of it.
    until("the findings are known", || server.has(|it| matches!(it, Event::Resynced { .. })));
    server.kill();
    agent.until(|status| !status["server"]["link"]["not-connected"].is_null());
    world.inject(&["xid", "79", "--gpu", "0"]);
    agent.until(|status| status["findings"].to_string().contains("Xid 79"));
    let server = TestServer::start_with(&world.path(""), &address, "server-2.log", &plain);
    until("the finding is in the server's log", || server.has(|it| reported(it, "Xid 79")));
    agent.stop();
    server.stop();
}
