//! Tests of an agent that executes orders. It resumes accepted orders, and it continues to monitor
//! the node whatever happens to an order.

use std::fs;

use serde_json::json;

use crate::agent_node::{Agent, AgentNode, find};
use crate::lifecycle::configure;
use crate::orders::{OrdersProcess, order};

#[test]
fn an_agent_resumes_an_order_that_a_killed_one_accepted() {
    let agent_node = AgentNode::with_gpus(1);
    configure(&agent_node, "enabled = true\n");
    let (config, log) = (agent_node.path("agent.toml"), agent_node.path("orders.log"));
    let mut orders = OrdersProcess::start(&config, &log, Some("order-synced"));
    orders.send(&json!({ "order": order(1, json!("cordon"), None) }));
    assert_eq!(orders.next_line(), None, "it died before it could print a status");
    assert!(!orders.wait_for_exit().success());
    let agent = agent_node.agent();
    agent.until(|_| agent_node.path("state/cordon.json").exists());
    agent.until(|_| agent.log().contains("order done"));
    // Only one process may execute orders.
    let mut other = OrdersProcess::start(&config, &log, None);
    assert!(!other.wait_for_exit().success());
    assert!(fs::read_to_string(&log).unwrap().contains("another process executes orders"));
    agent.stop();
}

#[test]
fn a_damaged_order_journal_does_not_stop_monitoring() {
    let agent_node = AgentNode::with_gpus(1);
    configure(&agent_node, "enabled = true\n");
    fs::create_dir_all(agent_node.path("state")).unwrap();
    fs::write(agent_node.path("state/orders.jsonl"), "nonsense\n").unwrap();
    let agent = agent_node.agent().ready();
    let log = agent.log();
    assert!(log.contains("failed to start the order executor") && log.contains("line 1"), "{log}");
    agent.stop();
}

/// Injects a fault whose finding stays open until a component is replaced.
fn inject_fault(agent_node: &AgentNode, agent: &Agent<'_>) {
    agent_node.inject(&["kernel-line", "EDAC MC0: 1 UE memory read error on CPU_SrcID#0"]);
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
    let agent_node = AgentNode::with_gpus(1);
    let config = configure(&agent_node, "");
    let agent = agent_node.agent().ready();
    inject_fault(&agent_node, &agent);
    let mut orders = OrdersProcess::start(&config, &agent_node.path("orders.log"), None);
    orders.done(&repair(1));
    wait_until_cleared(&agent);
    agent.stop();
}

#[test]
fn a_repair_note_of_the_agent_itself_clears_the_finding() {
    let agent_node = AgentNode::with_gpus(1);
    let config = configure(&agent_node, "enabled = true\n");
    let agent = agent_node.agent().ready();
    inject_fault(&agent_node, &agent);
    agent.stop();
    // One process accepts the order and dies; the agent executes it.
    let mut orders =
        OrdersProcess::start(&config, &agent_node.path("orders.log"), Some("order-synced"));
    orders.send(&json!({ "order": repair(1) }));
    assert!(!orders.wait_for_exit().success());
    let agent = agent_node.agent().ready();
    agent.until(|_| agent.log().contains("order done"));
    wait_until_cleared(&agent);
    agent.stop();
}
