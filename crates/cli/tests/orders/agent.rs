//! Tests of an agent that executes orders. It resumes accepted orders, and it continues to monitor
//! the node whatever happens to an order.

use std::fs;

use serde_json::json;

use crate::lifecycle::configure;
use crate::orders::{OrdersProcess, order};
use crate::world::{Agent, World, find};

#[test]
fn an_agent_resumes_an_order_that_a_killed_one_accepted() {
    let world = World::of(1);
    configure(&world, "enabled = true\n");
    let (config, log) = (world.path("agent.toml"), world.path("orders.log"));
    let mut orders = OrdersProcess::start(&config, &log, Some("order-synced"));
    orders.say(&json!({ "order": order(1, json!("cordon"), None) }));
    assert_eq!(orders.hear(), None, "it died before it could print a status");
    assert!(!orders.ended().success());
    let agent = world.agent();
    agent.until(|_| world.path("state/cordon.json").exists());
    agent.until(|_| agent.log().contains("order done"));
    // Only one process may execute orders.
    let mut other = OrdersProcess::start(&config, &log, None);
    assert!(!other.ended().success());
    assert!(fs::read_to_string(&log).unwrap().contains("another process executes orders"));
    agent.stop();
}

#[test]
fn a_damaged_order_journal_does_not_stop_monitoring() {
    let world = World::of(1);
    configure(&world, "enabled = true\n");
    fs::create_dir_all(world.path("state")).unwrap();
    fs::write(world.path("state/orders.jsonl"), "nonsense\n").unwrap();
    let agent = world.agent().ready();
    let log = agent.log();
    assert!(log.contains("failed to start the order executor") && log.contains("line 1"), "{log}");
    agent.stop();
}

/// Injects a fault whose finding stays open until a component is replaced.
fn inject_fault(world: &World, agent: &Agent<'_>) {
    world.inject(&["kernel-line", "EDAC MC0: 1 UE memory read error on CPU_SrcID#0"]);
    agent.until_found("host.kernel-error");
}

fn wait_until_cleared(agent: &Agent<'_>) {
    agent.until(|status| find(status, "host.kernel-error").is_none());
}

fn repair(generation: u64) -> serde_json::Value {
    order(generation, json!({ "acknowledge-repair": { "repair": "a new module" } }), None)
}

#[test]
fn a_repair_note_of_another_process_reaches_the_agent() {
    let world = World::of(1);
    let config = configure(&world, "");
    let agent = world.agent().ready();
    inject_fault(&world, &agent);
    let mut orders = OrdersProcess::start(&config, &world.path("orders.log"), None);
    orders.done(&repair(1));
    wait_until_cleared(&agent);
    agent.stop();
}

#[test]
fn a_repair_note_of_the_agent_itself_clears_the_finding() {
    let world = World::of(1);
    let config = configure(&world, "enabled = true\n");
    let agent = world.agent().ready();
    inject_fault(&world, &agent);
    agent.stop();
    // One process accepts the order and dies. The agent then executes the order.
    let mut orders = OrdersProcess::start(&config, &world.path("orders.log"), Some("order-synced"));
    orders.say(&json!({ "order": repair(1) }));
    assert!(!orders.ended().success());
    let agent = world.agent().ready();
    agent.until(|_| agent.log().contains("order done"));
    wait_until_cleared(&agent);
    agent.stop();
}
