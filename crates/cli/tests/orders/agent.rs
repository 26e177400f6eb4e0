//! An agent that carries out orders: it carries on what was accepted, and watches whatever becomes of its orders.

use std::fs;

use serde_json::json;

use crate::orders::{Orders, order};
use crate::way::configured;
use crate::world::World;

#[test]
fn an_agent_carries_on_an_order_that_was_accepted_before_it_died() {
    let world = World::of(1);
    configured(&world, "enabled = true\n");
    let (config, log) = (world.path("agent.toml"), world.path("orders.log"));
    let mut orders = Orders::start(&config, &log, Some("order-synced"));
    orders.say(&json!({ "order": order(1, json!("cordon"), None) }));
    assert_eq!(orders.hear(), None, "it died before it could say anything");
    assert!(!orders.ended().success());
    let agent = world.agent();
    agent.until(|_| world.path("state/cordon.json").exists());
    agent.until(|_| agent.log().contains("an order is done"));
    // Two cannot carry out orders.
    let mut other = Orders::start(&config, &log, None);
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
