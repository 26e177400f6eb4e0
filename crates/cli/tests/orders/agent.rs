//! An agent that carries out orders: it carries on what was accepted, and watches whatever becomes of its orders.

use std::fs;

use serde_json::json;

use crate::orders::{OrdersProcess, order};
use crate::way::configured;
use crate::world::{Agent, World, find};

#[test]
fn an_agent_carries_on_an_order_that_was_accepted_before_it_died() {
    let world = World::of(1);
    configured(&world, "enabled = true\n");
    let (config, log) = (world.path("agent.toml"), world.path("orders.log"));
    let mut orders = OrdersProcess::start(&config, &log, Some("order-synced"));
    orders.say(&json!({ "order": order(1, json!("cordon"), None) }));
    assert_eq!(orders.hear(), None, "it died before it could say anything");
    assert!(!orders.ended().success());
    let agent = world.agent();
    agent.until(|_| world.path("state/cordon.json").exists());
    agent.until(|_| agent.log().contains("an order is done"));
    // Two cannot carry out orders.
    let mut other = OrdersProcess::start(&config, &log, None);
    assert!(!other.ended().success());
    assert!(fs::read_to_string(&log).unwrap().contains("another process carries out orders"));
    agent.stop();
}

#[test]
fn a_journal_of_orders_that_does_not_read_keeps_no_agent_from_watching() {
    let world = World::of(1);
    configured(&world, "enabled = true\n");
    fs::create_dir_all(world.path("state")).unwrap();
    fs::write(world.path("state/orders.jsonl"), "nonsense\n").unwrap();
    let agent = world.agent().ready();
    let log = agent.log();
    assert!(log.contains("orders are not carried out") && log.contains("line 1"), "{log}");
    agent.stop();
}

/// A fault that stays until a part was replaced.
fn broken(world: &World, agent: &Agent<'_>) {
    world.inject(&["kernel-line", "EDAC MC0: 1 UE memory read error on CPU_SrcID#0"]);
    agent.until_found("host.kernel-error");
}

fn until_repaired(agent: &Agent<'_>) {
    agent.until(|status| find(status, "host.kernel-error").is_none());
}

fn repair(generation: u64) -> serde_json::Value {
    order(generation, json!({ "note-repair": { "what": "a new module" } }), None)
}

#[test]
fn a_repair_that_another_process_notes_reaches_the_agent_that_watches() {
    let world = World::of(1);
    let config = configured(&world, "");
    let agent = world.agent().ready();
    broken(&world, &agent);
    let mut orders = OrdersProcess::start(&config, &world.path("orders.log"), None);
    orders.done(&repair(1));
    until_repaired(&agent);
    agent.stop();
}

#[test]
fn a_repair_that_the_agent_itself_notes_ends_what_waited_for_it() {
    let world = World::of(1);
    let config = configured(&world, "enabled = true\n");
    let agent = world.agent().ready();
    broken(&world, &agent);
    agent.stop();
    // It is accepted by one that dies then, and carried out by the agent.
    let mut orders = OrdersProcess::start(&config, &world.path("orders.log"), Some("order-synced"));
    orders.say(&json!({ "order": repair(1) }));
    assert!(!orders.ended().success());
    let agent = world.agent().ready();
    agent.until(|_| agent.log().contains("an order is done"));
    until_repaired(&agent);
    agent.stop();
}
