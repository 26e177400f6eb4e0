//! A fleet's day, written to a log at times of its own: as many reasons as there are, each on a node that is named after it.
//!
//! Everything is decided by the server's own `Core`, with a clock that only this file moves. What waits for time waits for a day, so that
//! a server that is started on the log makes no further decision while a test reads it.

use std::path::Path;

use farrier_fleet::fleet::event::{Cordon, Event, NodeInventory, OperatorRequest, Record};
use farrier_fleet::fleet::{
    AccessChange, Location, NodePhase, OrderKind, OrderStatus, Policy, VerificationLevel,
};
use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::day::{Day, Fault, id, inventory};

const START: &str = "2026-11-15T22:00:00Z";
/// The last entry.
const END: &str = "2026-11-15T23:59:50Z";
const DAY_S: u32 = 86_400;

/// Plays the scenario into a server's folder; gives the number of the last entry.
pub(crate) fn play(dir: &Path) -> u64 {
    let mut day = Day::begin(dir, START.parse().unwrap());
    day.server(Event::PolicySet { policy: Box::new(policy()) });
    joining(&mut day);
    in_service(&mut day);
    out_of_service(&mut day);
    repairs(&mut day);
    repairs_that_wait(&mut day);
    back(&mut day);
    held(&mut day);
    requested_orders(&mut day);
    shared_causes(&mut day);
    failing_orders(&mut day);
    frozen(&mut day);
    rest(&mut day);
    day.now = END.parse().unwrap();
    day.server(Event::Tick);
    day.end()
}

/// Pools for each way to be treated. Waits are a day where nothing else is said.
fn policy() -> Policy {
    let pool = |more: Value| {
        let mut pool = json!({
            "heartbeat_timeout_s": DAY_S, "suspect_timeout_s": DAY_S, "settle_s": DAY_S, "lease_s": DAY_S, "retry_backoff_s": DAY_S,
        });
        pool.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        pool
    };
    let policy: Policy = serde_json::from_value(json!({
        "disruption_budgets": { "nvlink": { "share": 0.5, "nodes": 1 } },
        "pools_default": pool(json!({})),
        "pools": {
            "brief": pool(json!({ "lease_s": 60 })),
            "careful": pool(json!({ "reboot_needs_approval": true })),
            "edge": pool(json!({ "heartbeat_timeout_s": 180 })),
            "empty": pool(json!({ "cordon_joining": true })),
            "manual": pool(json!({ "autonomy": "quarantine" })),
            "night": pool(json!({ "repair_windows": [{ "days": ["sat"], "from": "22:00", "hours": 6 }] })),
            "once": pool(json!({ "tries": 1, "settle_s": 0 })),
            "watch": pool(json!({ "autonomy": "observe" })),
        },
        "blame": { "nodes": 3, "share": 0.5, "window_s": 300 },
        "lemon": { "days": 28, "quarantines": 2 },
        "services": { "host.fabric-manager": "nvidia-fabricmanager.service" },
    }))
    .unwrap();
    policy.check().unwrap();
    policy
}

/// Nodes that have not been in service.
fn joining(day: &mut Day) {
    day.enrol("new-silent", "");
    day.enrol("new-proving", "");
    day.seen("new-proving", "boot-1");
    day.enrol("new-cordoned-first", "pool:empty");
    day.seen("new-cordoned-first", "boot-1");
    day.enrol("new-quarantined", "");
    day.seen("new-quarantined", "boot-1");
    day.find("new-quarantined", &[Fault::Lost]);
    day.enrol("new-not-passed", "");
    day.seen("new-not-passed", "boot-1");
    day.failed("new-not-passed", "two GPUs are missing");
    day.enrol("new-observed", "pool:watch");
    day.seen("new-observed", "boot-1");
    day.find("new-observed", &[Fault::Lost]);
}

/// Nodes that have work, some with a doubt.
fn in_service(day: &mut Day) {
    day.serving("serves", "tenant:lab site:north rack:r1 leaf:l1");
    day.serving("serves-advised", "");
    day.find("serves-advised", &[Fault::Advice]);
    day.serving("doubt", "");
    day.find("doubt", &[Fault::Doubt]);
    day.serving("doubt-over", "");
    day.find("doubt-over", &[Fault::Doubt]);
    day.clear("doubt-over");
    day.serving("silent", "");
    let since = day.now;
    day.server(Event::HeartbeatLost { node: id("silent"), since });
    day.serving("heard-again", "");
    let since = day.now;
    day.server(Event::HeartbeatLost { node: id("heard-again"), since });
    day.said(Event::HeartbeatRestored { node: id("heard-again") });
    day.serving("unreadable", "");
    day.server(Event::ReportsUnreadable { node: id("unreadable") });
    day.serving("readable-again", "");
    day.server(Event::ReportsUnreadable { node: id("readable-again") });
    day.server(Event::ReportsReadable { node: id("readable-again") });
    day.serving("gpus-not-read", "");
    let inventory = NodeInventory { gpus: None, ..inventory("gpus-not-read", "boot-1") };
    day.said(Event::InventoryReported { node: id("gpus-not-read"), inventory });
    day.serving("proof-asked", "");
    day.ask(OperatorRequest::Verify { node: id("proof-asked"), level: VerificationLevel::V2 });
    // The pool only observes.
    day.serving("observed", "pool:watch");
    day.find("observed", &[Fault::Lost]);
    // Of one NVLink domain one node may be out.
    for name in ["budget-taken", "budget-waits", "budget-serves"] {
        day.serving(name, "nvlink:n1 tenant:lab");
    }
    day.find("budget-taken", &[Fault::Lost]);
    day.find("budget-waits", &[Fault::Lost]);
    day.enrol("budget-joins", "nvlink:n1 tenant:lab");
    day.seen("budget-joins", "boot-1");
    day.find("budget-joins", &[Fault::Lost]);
}

/// Nodes that were taken out, and are emptied.
fn out_of_service(day: &mut Day) {
    day.serving("quarantined", "");
    day.find("quarantined", &[Fault::Lost]);
    day.serving("quarantined-for-many", "");
    day.find("quarantined-for-many", &[Fault::Memory, Fault::Lost, Fault::Link]);
    day.serving("draining", "");
    day.find("draining", &[Fault::Lost]);
    day.obey_until("draining", |what| matches!(what, OrderKind::Drain { .. }));
    day.answer("draining", OrderStatus::Accepted);
    day.serving("not-passed-in-service", "");
    day.ask(OperatorRequest::Verify {
        node: id("not-passed-in-service"),
        level: VerificationLevel::V0,
    });
    day.failed("not-passed-in-service", "the driver on disk is another");
    // Its heartbeats ended, and the timeout passed.
    day.serving("silent-for-long", "pool:edge");
    let since = day.now;
    day.server(Event::HeartbeatLost { node: id("silent-for-long"), since });
    day.wait(200);
    day.server(Event::Tick);
    day.drained("drained-anew", "", &[Fault::Part]);
    day.said(Event::CordonObserved { node: id("drained-anew"), cordon: Cordon::None });
}

/// Nodes that are being mended.
fn repairs(day: &mut Day) {
    day.drained("rebooting", "", &[Fault::Lost]);
    day.drained("resetting", "", &[Fault::Memory]);
    day.answer("resetting", OrderStatus::Accepted);
    day.drained("restarting-service", "", &[Fault::Service]);
    day.drained("needs-part", "", &[Fault::Part]);
    day.drained("needs-look", "", &[Fault::Link]);
    // What could be ordered was, and the fault is still there.
    day.drained("did-not-help", "pool:once", &[Fault::Memory]);
    day.obey("did-not-help");
    // A reboot for one fault, and then another fault.
    day.drained("rebooted-for-another", "pool:once", &[Fault::Lost]);
    day.done("rebooted-for-another");
    day.clear("rebooted-for-another");
    day.find("rebooted-for-another", &[Fault::Firmware]);
    day.obey("rebooted-for-another");
    day.drained("lemon", "", &[Fault::Lost]);
    day.done("lemon");
    day.clear("lemon");
    day.obey("lemon");
    assert_eq!(day.phase("lemon"), NodePhase::InService);
    day.find("lemon", &[Fault::Lost]);
    day.obey("lemon");
    day.drained("not-passed-after-repair", "", &[Fault::Lost]);
    day.done("not-passed-after-repair");
    day.clear("not-passed-after-repair");
    day.obey_until("not-passed-after-repair", |what| {
        *what == OrderKind::Verify { level: VerificationLevel::V1 }
    });
    day.failed("not-passed-after-repair", "a GPU is missing");
}

/// Repairs that should be ordered and are not.
fn repairs_that_wait(day: &mut Day) {
    day.drained("waits-for-approval", "pool:careful", &[Fault::Lost]);
    day.drained("approved", "pool:careful", &[Fault::Lost]);
    day.ask(OperatorRequest::Approve { node: id("approved") });
    day.drained("waits-for-window", "pool:night", &[Fault::Lost]);
    day.drained("left-to-people", "pool:manual", &[Fault::Lost]);
}

/// Nodes on their way back.
fn back(day: &mut Day) {
    day.drained("mended", "", &[Fault::Lost]);
    day.done("mended");
    day.clear("mended");
    day.drained("returned", "rack:r1", &[Fault::Lost]);
    day.done("returned");
    day.clear("returned");
    day.obey("returned");
    assert_eq!(day.phase("returned"), NodePhase::InService);
    day.serving("cleared-by-itself", "");
    day.find("cleared-by-itself", &[Fault::Lost]);
    day.done("cleared-by-itself");
    day.clear("cleared-by-itself");
    day.drained("repaired-by-hand", "", &[Fault::Part]);
    let what = "a new GPU".to_owned();
    day.ask(OperatorRequest::Repaired { node: id("repaired-by-hand"), repair: what });
    day.drained("unfit-again", "pool:once", &[Fault::Lost]);
    day.done("unfit-again");
    // An uncordon that is on its way when something is found.
    day.drained("uncordon-withdrawn", "", &[Fault::Lost]);
    day.done("uncordon-withdrawn");
    day.clear("uncordon-withdrawn");
    day.obey_until("uncordon-withdrawn", |what| *what == OrderKind::Uncordon);
    day.find("uncordon-withdrawn", &[Fault::Lost]);
    day.serving("fit-but-cordoned", "");
    day.find("fit-but-cordoned", &[Fault::Lost]);
    day.obey_until("fit-but-cordoned", |what| *what == OrderKind::Reboot);
    day.done("fit-but-cordoned");
    day.clear("fit-but-cordoned");
    day.cordoned_by_others("fit-but-cordoned");
    day.obey("fit-but-cordoned");
}

/// Nodes that somebody keeps out.
fn held(day: &mut Day) {
    day.serving("held", "");
    day.hold("held", "a look at the cable");
    day.done("held");
    day.serving("held-not-cordoned", "pool:watch");
    day.hold("held-not-cordoned", "a look at the fan");
    day.serving("released", "");
    day.hold("released", "a look");
    day.done("released");
    day.ask(OperatorRequest::Release { node: id("released") });
    day.serving("cordoned-by-others", "");
    day.cordoned_by_others("cordoned-by-others");
    // The order is withdrawn.
    day.drained("held-before-reboot", "", &[Fault::Lost]);
    day.hold("held-before-reboot", "let it be");
    day.serving("revoked", "");
    let what = AccessChange::CertificateRevoked { node: id("revoked") };
    let at = day.now;
    // Number 0 is of no access store: the server that is started on the log has another one.
    day.server(Event::AccessChanged { number: 0, at, change: what });
}

/// What people want done once.
fn requested_orders(day: &mut Day) {
    let diag = |name: &str| OperatorRequest::RunOrder {
        node: id(name),
        order: OrderKind::Diag { level: 2, minutes: 10 },
    };
    let tune = |name: &str| OperatorRequest::RunOrder {
        node: id(name),
        order: OrderKind::Tune { profile: "training".to_owned() },
    };
    day.serving("requested_order-at-work", "");
    day.ask(diag("requested_order-at-work"));
    for name in [
        "requested_order-ordered",
        "requested_order-done",
        "requested_order-failed",
        "requested_order-refused",
    ] {
        day.serving(name, "");
        day.hold(name, "a test");
        day.done(name);
        day.ask(if name == "requested_order-done" { tune(name) } else { diag(name) });
    }
    day.answer(
        "requested_order-done",
        OrderStatus::Done { evidence: "13 settings are as wanted".to_owned() },
    );
    day.failed("requested_order-failed", "hbm-read: 3.1 of 4.4 TB/s");
    day.answer(
        "requested_order-refused",
        OrderStatus::Refused { reason: "something runs on GPU 3".to_owned() },
    );
}

/// What several nodes of one place show.
fn shared_causes(day: &mut Day) {
    for name in ["rack-1", "rack-2", "rack-3", "rack-4"] {
        day.serving(name, "rack:domain_faults");
    }
    // The first two are taken out before anybody knows.
    for name in ["rack-1", "rack-2", "rack-3"] {
        day.find(name, &[Fault::Network]);
    }
    day.obey("rack-1");
    for name in ["dark-1", "dark-2", "dark-3"] {
        day.serving(name, "pool:edge leaf:dark");
    }
    let since = day.now;
    for name in ["dark-1", "dark-2", "dark-3"] {
        day.server(Event::HeartbeatLost { node: id(name), since });
    }
    day.wait(200);
    day.server(Event::Tick);
    for name in ["absolved-1", "absolved-2", "absolved-3"] {
        day.serving(name, "rack:absolved");
    }
    for name in ["absolved-1", "absolved-2", "absolved-3"] {
        day.find(name, &[Fault::Link]);
    }
    for name in ["absolved-2", "absolved-3"] {
        day.clear(name);
    }
}

/// Orders that fail, or are not answered.
fn failing_orders(day: &mut Day) {
    day.serving("cordon-failed", "pool:once");
    day.find("cordon-failed", &[Fault::Lost]);
    day.failed("cordon-failed", "the scheduler does not answer");
    day.serving("cordon-failed-once", "");
    day.find("cordon-failed-once", &[Fault::Lost]);
    day.failed("cordon-failed-once", "the scheduler does not answer");
    day.drained("reboot-failed", "pool:once", &[Fault::Lost]);
    day.failed("reboot-failed", "`systemctl reboot` ended with code 1");
    day.drained("reboot-refused", "", &[Fault::Lost]);
    day.answer(
        "reboot-refused",
        OrderStatus::Refused { reason: "somebody is logged in".to_owned() },
    );
    day.serving("not-answered", "pool:brief");
    day.find("not-answered", &[Fault::Lost]);
    day.wait(100);
    day.server(Event::Tick);
}

/// Nothing may be changed there.
fn frozen(day: &mut Day) {
    let freeze = |day: &mut Day, domain: &str| {
        let (domain, until) = (domain.parse().unwrap(), day.now + SignedDuration::from_hours(48));
        day.ask(OperatorRequest::Freeze { domain, until, reason: "a deadline".to_owned() });
    };
    day.drained("frozen-before-reboot", "rack:frozen", &[Fault::Lost]);
    day.serving("frozen-requested_order", "rack:frozen");
    day.hold("frozen-requested_order", "settings");
    day.done("frozen-requested_order");
    freeze(day, "rack:frozen");
    day.drained("frozen", "rack:frozen", &[Fault::Lost]);
    let what = OrderKind::Tune { profile: "training".to_owned() };
    day.ask(OperatorRequest::RunOrder { node: id("frozen-requested_order"), order: what });
    freeze(day, "pool:empty");
    day.ask(OperatorRequest::Unfreeze { domain: "pool:empty".parse().unwrap() });
}

/// What leaves no reason, and is in the log all the same.
fn rest(day: &mut Day) {
    day.serving("moved", "rack:r1");
    let mut place = Location::in_pool("train".parse().unwrap());
    place.rack = Some("r2".parse().unwrap());
    day.server(Event::LocationChanged { node: id("moved"), location: place });
    day.serving("over-quota", "");
    day.server(Event::QuotaExceeded { node: id("over-quota") });
    day.server(Event::QuotaRestored { node: id("over-quota") });
    day.said(Event::OrderGenerationObserved { node: id("over-quota"), generation: 40 });
    let record = Record { journal: "k".to_owned(), number: 1 };
    let open = vec![Fault::Doubt.finding("resynced", 1, day.now)];
    day.serving("resynced", "");
    day.said(Event::FindingsSnapshot { node: id("resynced"), record, open });
    day.serving("retired", "");
    day.server(Event::Retired { node: id("retired"), reason: "sold".to_owned() });
}
