//! Killed at each step, for real: nothing is done twice, no order is lost and no answer forgotten.

use std::fs;

use farrier_agent::crash::Point;
use serde_json::{Value, json};

use crate::orders::{OrdersProcess, order};
use crate::way::{boot, configured};
use crate::world::World;

fn desk(world: &World, crash: Option<&str>) -> OrdersProcess {
    OrdersProcess::start(&world.path("agent.toml"), &world.path("orders.log"), crash)
}

/// Gives an order to a desk that dies of it, where it gets so far; then to one that does not. Gives how it ended; none: the
/// first desk got to the end.
fn killed(world: &World, crash: &str, order: &Value) -> Option<Value> {
    let mut first = desk(world, Some(crash));
    first.say(&json!({ "order": order }));
    let last = std::iter::from_fn(|| first.hear()).find(|told| is_end(told, order));
    if last.is_some() {
        // It may still die of having told it.
        acknowledge(&mut first, order);
    }
    if first.ended().success() {
        return None;
    }
    drop(first);
    // It is carried on without being told so; and the server, which has heard nothing, gives it again.
    let mut second = desk(world, None);
    let answer = second.carry(order);
    acknowledge(&mut second, order);
    assert!(second.ended().success());
    let mut third = desk(world, None);
    assert!(third.ended().success());
    let told: Vec<Value> = std::iter::from_fn(|| third.hear()).collect();
    assert!(
        !told.iter().any(|told| is_end(told, order)),
        "what is acknowledged is told again: {told:?}"
    );
    Some(answer)
}

/// Whether this ends the order.
fn is_end(told: &Value, order: &Value) -> bool {
    let answer = &told["answer"];
    answer["generation"] == order["generation"] && answer["answer"] != "accepted"
}

fn acknowledge(orders: &mut OrdersProcess, order: &Value) {
    orders.say(&json!({ "acknowledged": { "generation": order["generation"] } }));
}

#[test]
fn killed_at_each_step_a_mark_is_set_once_and_taken_away_once() {
    let world = World::of(1);
    configured(&world, "");
    let _agent = world.agent().ready();
    let mark = world.path("state/cordon.json");
    let mut generation = 0;
    let mut deaths = 0;
    for point in Point::OF_ORDERS.map(Point::name) {
        for times in 1..20 {
            let mut lived = 0;
            for what in ["cordon", "uncordon"] {
                generation += 1;
                let crash = format!("{point}:{times}");
                let answer = killed(&world, &crash, &order(generation, json!(what), None));
                if let Some(answer) = answer {
                    deaths += 1;
                    assert!(answer["done"].is_object(), "{what}, {crash}: {answer}");
                } else {
                    lived += 1;
                }
                assert_eq!(mark.exists(), what == "cordon", "{what}, {crash}");
            }
            if lived == 2 {
                break;
            }
        }
    }
    assert!(deaths >= 30, "{deaths}");
    let bytes = fs::metadata(world.path("state/orders.jsonl")).unwrap().len();
    assert!(bytes < 200 << 10, "{bytes}");
}

/// Points around a change. What is on disk when it was made is killed in the agent's own tests.
const AROUND: [&str; 2] = ["order-begun", "order-acted"];

#[test]
fn killed_around_a_reset_the_gpu_is_reset_once_at_the_most() {
    let world = World::of(1);
    configured(&world, "");
    let agent = world.agent().ready();
    let gpu = world.status().0["gpus"][0]["identity"]["uuid"].clone();
    let mut orders = desk(&world, None);
    orders.done(&order(1, json!("cordon"), None));
    assert!(orders.ended().success());
    let resets = || {
        let text = fs::read_to_string(world.path("node/gpus/0.json")).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["resets"].as_u64().unwrap_or(0)
    };
    for (generation, point) in (2..).zip(AROUND) {
        // A driver that asks for it, and a GPU that answers nothing until it comes.
        if point == "order-begun" {
            world.inject(&["recovery-action", "1"]);
        } else {
            world.inject(&["error", "*", "RESET_REQUIRED"]);
            agent.until_found("gpu.reset-required");
        }
        let before = resets();
        let order = order(generation, json!({ "reset-gpu": { "gpu": gpu } }), Some(&boot(&world)));
        let answer = killed(&world, point, &order).unwrap();
        let made = resets() - before;
        if point == "order-begun" {
            // Nobody can know whether it was begun, and so it is not begun again.
            let why = answer["failed"]["why"].as_str().unwrap();
            assert!(
                why.contains("whether it was is not known: the driver asks for recovery action 1"),
                "{why}"
            );
            assert_eq!(made, 0);
        } else {
            let evidence = answer["done"]["evidence"].as_str().unwrap();
            assert!(evidence.starts_with("it was reset"), "{point}: {evidence}");
            assert_eq!(made, 1, "{point}");
        }
    }
    // A GPU in use is not reset at all.
    world.inject(&["process", "4242"]);
    agent.until(|status| status["gpus"][0]["processes"][0]["pid"] == 4242);
    let mut orders = desk(&world, None);
    let what = json!({ "reset-gpu": { "gpu": gpu } });
    let why = orders.not_done(&order(9, what, Some(&boot(&world))));
    assert!(why.contains("process 4242"), "{why}");
    assert_eq!(resets(), 1);
    agent.stop();
}

#[test]
fn killed_around_a_reboot_the_node_is_rebooted_once() {
    let world = World::of(1);
    configured(&world, "");
    let mut orders = desk(&world, None);
    orders.done(&order(1, json!("cordon"), None));
    assert!(orders.ended().success());
    for (generation, point) in (2..).zip(["order-begun", "none"]) {
        let agent = world.agent().ready();
        let before = boot(&world);
        let order = order(generation, json!("reboot"), Some(&before));
        let mut first = desk(&world, Some(point));
        first.say(&json!({ "order": order }));
        while first.hear().is_some() {}
        let died = !first.ended().success();
        assert_eq!(died, point == "order-begun");
        drop(first);
        if died {
            assert_eq!(boot(&world), before, "it was not begun");
            // The second one finds the same boot, and reboots.
            let mut second = desk(&world, None);
            while second.hear().is_some() {}
            assert!(second.ended().success());
        }
        let after = boot(&world);
        assert_ne!(after, before);
        agent.kill();
        let mut third = desk(&world, None);
        let answer = third.carry(&order);
        assert_eq!(answer["done"]["evidence"], format!("boot {after}, before it boot {before}"));
        assert_eq!(boot(&world), after, "once");
        acknowledge(&mut third, &order);
        assert!(third.ended().success());
    }
}

#[test]
fn killed_around_the_restart_of_a_service_it_is_restarted_once() {
    let world = World::of(1);
    configured(&world, "");
    let agent = world.agent().ready();
    let mut orders = desk(&world, None);
    orders.done(&order(1, json!("cordon"), None));
    let unit = |unit: &str| json!({ "restart-service": { "unit": unit } });
    let why = orders.not_done(&order(2, unit("ssh.service"), None));
    assert!(why.contains("is not in `orders.services`"), "{why}");
    assert!(orders.ended().success());
    let started = || {
        let text = fs::read_to_string(world.path("node/host.json")).unwrap();
        let host: Value = serde_json::from_str(&text).unwrap();
        let tasks = host["tasks"].as_array().unwrap();
        let task = tasks.iter().find(|task| task["name"] == "nv-fabricmanage").unwrap();
        task["started_unix_ms"].as_u64().unwrap()
    };
    for (generation, point) in (3..).zip(AROUND) {
        let before = started();
        let order = order(generation, unit("nvidia-fabricmanager.service"), Some(&boot(&world)));
        let answer = killed(&world, point, &order).unwrap();
        let evidence = answer["done"]["evidence"].as_str().unwrap();
        assert!(evidence.contains("was started anew and is active"), "{point}: {evidence}");
        assert!(started() > before, "{point}");
    }
    agent.stop();
}
