//! Crashes the order executor at each failpoint. No order is lost or executed twice, and no status
//! is lost.

use std::fs;

use farrier_agent::failpoint::Point;
use serde_json::{Value, json};

use crate::agent_node::AgentNode;
use crate::lifecycle::{boot, configure};
use crate::orders::{OrdersProcess, order};

fn start_executor(agent_node: &AgentNode, crash: Option<&str>) -> OrdersProcess {
    OrdersProcess::start(&agent_node.path("agent.toml"), &agent_node.path("orders.log"), crash)
}

/// Gives an order to an executor that dies at the failpoint, and then to an executor that does not
/// die. Returns the final status, or `None` if the first executor did not reach the failpoint.
fn run_with_crash(agent_node: &AgentNode, crash: &str, order: &Value) -> Option<Value> {
    let mut first = start_executor(agent_node, Some(crash));
    first.send(&json!({ "order": order }));
    let last = std::iter::from_fn(|| first.next_line()).find(|line| is_final(line, order));
    if last.is_some() {
        // The executor may still die after it has sent the final status.
        acknowledge(&mut first, order);
    }
    if first.wait_for_exit().success() {
        return None;
    }
    drop(first);
    // The second executor resumes the order, and the server, which has no status yet, sends the
    // order again.
    let mut second = start_executor(agent_node, None);
    let status = second.run_order(order);
    acknowledge(&mut second, order);
    assert!(second.wait_for_exit().success());
    let mut third = start_executor(agent_node, None);
    assert!(third.wait_for_exit().success());
    let lines: Vec<Value> = std::iter::from_fn(|| third.next_line()).collect();
    assert!(
        !lines.iter().any(|line| is_final(line, order)),
        "an acknowledged status is printed again: {lines:?}"
    );
    Some(status)
}

/// Whether this line is the final status of the order.
fn is_final(line: &Value, order: &Value) -> bool {
    let status = &line["order-status"];
    status["generation"] == order["generation"] && status["status"] != "accepted"
}

fn acknowledge(orders: &mut OrdersProcess, order: &Value) {
    orders.send(&json!({ "acknowledged": { "generation": order["generation"] } }));
}

#[test]
fn a_crash_at_any_step_sets_and_removes_a_cordon_once() {
    let agent_node = AgentNode::with_gpus(1);
    configure(&agent_node, "");
    let _agent = agent_node.agent().ready();
    let cordon = agent_node.path("state/cordon.json");
    let mut generation = 0;
    let mut crashes = 0;
    for point in Point::ORDER_POINTS.map(Point::name) {
        for times in 1..20 {
            let mut survived = 0;
            for kind in ["cordon", "uncordon"] {
                generation += 1;
                let crash = format!("{point}:{times}");
                let status =
                    run_with_crash(&agent_node, &crash, &order(generation, json!(kind), None));
                if let Some(status) = status {
                    crashes += 1;
                    assert!(status["done"].is_object(), "{kind}, {crash}: {status}");
                } else {
                    survived += 1;
                }
                assert_eq!(cordon.exists(), kind == "cordon", "{kind}, {crash}");
            }
            if survived == 2 {
                break;
            }
        }
    }
    assert!(crashes >= 30, "{crashes}");
    let bytes = fs::metadata(agent_node.path("state/orders.jsonl")).unwrap().len();
    assert!(bytes < 200 << 10, "{bytes}");
}

/// Failpoints before and after the action itself. Other tests cover the failpoints around disk
/// writes.
const ACTION_POINTS: [&str; 2] = ["order-begun", "order-acted"];

#[test]
fn a_crash_around_a_reset_resets_the_gpu_at_most_once() {
    let agent_node = AgentNode::with_gpus(1);
    configure(&agent_node, "");
    let agent = agent_node.agent().ready();
    let gpu = agent_node.status().0["gpus"][0]["identity"]["uuid"].clone();
    let mut orders = start_executor(&agent_node, None);
    orders.done(&order(1, json!("cordon"), None));
    assert!(orders.wait_for_exit().success());
    let resets = || {
        let text = fs::read_to_string(agent_node.path("node/gpus/0.json")).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["resets"].as_u64().unwrap_or(0)
    };
    for (generation, point) in (2..).zip(ACTION_POINTS) {
        // Use two reasons for a reset: a driver that recommends it, and a GPU that returns errors
        // until it is reset.
        if point == "order-begun" {
            agent_node.inject(&["recovery-action", "1"]);
        } else {
            agent_node.inject(&["error", "*", "RESET_REQUIRED"]);
            agent.until_found("gpu.reset-required");
        }
        let before = resets();
        let order =
            order(generation, json!({ "reset-gpu": { "gpu": gpu } }), Some(&boot(&agent_node)));
        let status = run_with_crash(&agent_node, point, &order).unwrap();
        let made = resets() - before;
        if point == "order-begun" {
            // The second executor cannot know whether the first has started the reset, so it does
            // not start it again.
            let reason = status["failed"]["reason"].as_str().unwrap();
            assert!(
                reason.contains("reset is unknown: the driver requests recovery action 1"),
                "{reason}"
            );
            assert_eq!(made, 0);
        } else {
            let evidence = status["done"]["evidence"].as_str().unwrap();
            assert!(evidence.starts_with("the GPU was reset"), "{point}: {evidence}");
            assert_eq!(made, 1, "{point}");
        }
    }
    // The executor never resets a GPU that is in use.
    agent_node.inject(&["process", "4242"]);
    agent.until(|status| status["gpus"][0]["processes"][0]["pid"] == 4242);
    let mut orders = start_executor(&agent_node, None);
    let kind = json!({ "reset-gpu": { "gpu": gpu } });
    let why = orders.fails(&order(9, kind, Some(&boot(&agent_node))));
    assert!(why.contains("process 4242"), "{why}");
    assert_eq!(resets(), 1);
    agent.stop();
}

#[test]
fn a_crash_around_a_reboot_reboots_the_node_once() {
    let agent_node = AgentNode::with_gpus(1);
    configure(&agent_node, "");
    let mut orders = start_executor(&agent_node, None);
    orders.done(&order(1, json!("cordon"), None));
    assert!(orders.wait_for_exit().success());
    for (generation, point) in (2..).zip(["order-begun", "none"]) {
        let agent = agent_node.agent().ready();
        let before = boot(&agent_node);
        let order = order(generation, json!("reboot"), Some(&before));
        let mut first = start_executor(&agent_node, Some(point));
        first.send(&json!({ "order": order }));
        while first.next_line().is_some() {}
        let crashed = !first.wait_for_exit().success();
        assert_eq!(crashed, point == "order-begun");
        drop(first);
        if crashed {
            assert_eq!(boot(&agent_node), before, "the reboot was not started");
            // The second executor finds the same boot ID, and reboots.
            let mut second = start_executor(&agent_node, None);
            while second.next_line().is_some() {}
            assert!(second.wait_for_exit().success());
        }
        let after = boot(&agent_node);
        assert_ne!(after, before);
        agent.kill();
        let mut third = start_executor(&agent_node, None);
        let status = third.run_order(&order);
        assert_eq!(status["done"]["evidence"], format!("boot {after}, previous boot {before}"));
        assert_eq!(boot(&agent_node), after, "one reboot");
        acknowledge(&mut third, &order);
        assert!(third.wait_for_exit().success());
    }
}

#[test]
fn a_crash_around_a_service_restart_restarts_it_once() {
    let agent_node = AgentNode::with_gpus(1);
    configure(&agent_node, "");
    let agent = agent_node.agent().ready();
    let mut orders = start_executor(&agent_node, None);
    orders.done(&order(1, json!("cordon"), None));
    let unit = |unit: &str| json!({ "restart-service": { "unit": unit } });
    let why = orders.fails(&order(2, unit("ssh.service"), None));
    assert!(why.contains("is not in `orders.services`"), "{why}");
    assert!(orders.wait_for_exit().success());
    let started_ms = || {
        let text = fs::read_to_string(agent_node.path("node/host.json")).unwrap();
        let host: Value = serde_json::from_str(&text).unwrap();
        let tasks = host["tasks"].as_array().unwrap();
        let task = tasks.iter().find(|task| task["name"] == "nv-fabricmanage").unwrap();
        task["started_unix_ms"].as_u64().unwrap()
    };
    for (generation, point) in (3..).zip(ACTION_POINTS) {
        let before = started_ms();
        let order =
            order(generation, unit("nvidia-fabricmanager.service"), Some(&boot(&agent_node)));
        let status = run_with_crash(&agent_node, point, &order).unwrap();
        let evidence = status["done"]["evidence"].as_str().unwrap();
        assert!(evidence.contains("was restarted and is active"), "{point}: {evidence}");
        assert!(started_ms() > before, "{point}");
    }
    agent.stop();
}
