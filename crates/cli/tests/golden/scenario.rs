//! The log of a fleet in which every reason occurs, each on a node named after it.
//!
//! The server's own [`farrier_server::state_machine::StateMachine`] decides, with a clock that only
//! the scenario advances. Timeouts are a day long, so that a server that starts on the log makes no
//! further decision while a test reads the log.

use std::path::Path;

use farrier_fleet::fleet::event::{Cordon, Event, JournalPosition, NodeInventory, OperatorRequest};
use farrier_fleet::fleet::{
    AccessChange, Location, NodePhase, OrderKind, OrderStatus, Policy, VerificationLevel,
};
use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::scenario_log::{Fault, ScenarioLog, id, inventory};

const START: &str = "2026-11-15T22:00:00Z";
/// Time of the last entry.
const END: &str = "2026-11-15T23:59:50Z";
const DAY_S: u32 = 86_400;

/// Writes the scenario into a server's data directory; returns the number of the last entry.
pub(crate) fn write(dir: &Path) -> u64 {
    let mut log = ScenarioLog::create(dir, START.parse().unwrap());
    log.append(Event::PolicySet { policy: Box::new(policy()) });
    joining(&mut log);
    in_service(&mut log);
    out_of_service(&mut log);
    repairs(&mut log);
    deferred_repairs(&mut log);
    returning(&mut log);
    held(&mut log);
    requested_orders(&mut log);
    common_causes(&mut log);
    failing_orders(&mut log);
    frozen(&mut log);
    other_events(&mut log);
    coverage(&mut log);
    log.now = END.parse().unwrap();
    log.append(Event::Tick);
    log.finish()
}

/// Each pool differs from the default in one or two fields. Timeouts are a day unless a pool sets
/// them.
fn policy() -> Policy {
    let pool = |more: Value| {
        let mut pool = json!({
            "heartbeat_timeout_s": DAY_S, "suspect_timeout_s": DAY_S, "coverage_gap_timeout_s": DAY_S, "settle_s": DAY_S, "lease_s": DAY_S, "retry_backoff_s": DAY_S,
        });
        pool.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        pool
    };
    let policy: Policy = serde_json::from_value(json!({
        "capacity_floors": {},
        "disruption_budgets": { "nvlink": { "share": 0.5, "nodes": 1 } },
        "pools_default": pool(json!({})),
        "pools": {
            "brief": pool(json!({ "lease_s": 60 })),
            "careful": pool(json!({ "reboot_needs_approval": true })),
            "covered": pool(json!({ "coverage_gap_timeout_s": 60 })),
            "edge": pool(json!({ "heartbeat_timeout_s": 180 })),
            "empty": pool(json!({ "cordon_joining": true })),
            "manual": pool(json!({ "autonomy": "quarantine" })),
            "night": pool(json!({ "repair_windows": [{ "days": ["sat"], "from": "22:00", "hours": 6 }] })),
            "once": pool(json!({ "max_attempts": 1, "settle_s": 0 })),
            "watch": pool(json!({ "autonomy": "observe" })),
        },
        "common_cause": { "nodes": 3, "share": 0.5, "window_s": 300 },
        "lemon": { "days": 28, "quarantines": 2 },
        "services": { "host.fabric-manager": "nvidia-fabricmanager.service" },
    }))
    .unwrap();
    policy.check().unwrap();
    policy
}

/// Nodes that were never in service.
fn joining(log: &mut ScenarioLog) {
    log.enrol("new-no-inventory", "");
    log.enrol("new-verifying", "");
    log.report_inventory("new-verifying", "boot-1");
    log.enrol("new-cordoned-first", "pool:empty");
    log.report_inventory("new-cordoned-first", "boot-1");
    log.enrol("new-quarantined", "");
    log.report_inventory("new-quarantined", "boot-1");
    log.report_findings("new-quarantined", &[Fault::Lost]);
    log.enrol("new-verification-failed", "");
    log.report_inventory("new-verification-failed", "boot-1");
    log.fail_order("new-verification-failed", "two GPUs are missing");
    log.enrol("new-observed", "pool:watch");
    log.report_inventory("new-observed", "boot-1");
    log.report_findings("new-observed", &[Fault::Lost]);
}

/// Nodes in service, some of them suspect.
fn in_service(log: &mut ScenarioLog) {
    log.add_in_service("healthy", "tenant:lab site:north rack:r1 leaf:l1");
    log.add_in_service("healthy-with-advice", "");
    log.report_findings("healthy-with-advice", &[Fault::Advice]);
    log.add_in_service("suspect", "");
    log.report_findings("suspect", &[Fault::Warning]);
    log.add_in_service("suspect-cleared", "");
    log.report_findings("suspect-cleared", &[Fault::Warning]);
    log.clear_findings("suspect-cleared");
    log.add_in_service("heartbeat-lost", "");
    let since = log.now;
    log.append(Event::HeartbeatLost { node: id("heartbeat-lost"), since });
    log.add_in_service("heartbeat-restored", "");
    let since = log.now;
    log.append(Event::HeartbeatLost { node: id("heartbeat-restored"), since });
    log.report(Event::HeartbeatRestored { node: id("heartbeat-restored") });
    log.add_in_service("unreadable", "");
    log.append(Event::ReportsUnreadable { node: id("unreadable") });
    log.add_in_service("readable-again", "");
    log.append(Event::ReportsUnreadable { node: id("readable-again") });
    log.append(Event::ReportsReadable { node: id("readable-again") });
    log.add_in_service("gpus-unreadable", "");
    let inventory = NodeInventory { gpus: None, ..inventory("gpus-unreadable", "boot-1") };
    log.report(Event::InventoryReported { node: id("gpus-unreadable"), inventory });
    log.add_in_service("verify-requested", "");
    log.request(OperatorRequest::Verify {
        node: id("verify-requested"),
        level: VerificationLevel::V2,
    });
    // The pool only observes.
    log.add_in_service("observed", "pool:watch");
    log.report_findings("observed", &[Fault::Lost]);
    // The disruption budget lets one node of the NVLink domain be out of service.
    for name in ["budget-used", "budget-waits", "budget-in-service"] {
        log.add_in_service(name, "nvlink:n1 tenant:lab");
    }
    log.report_findings("budget-used", &[Fault::Lost]);
    log.report_findings("budget-waits", &[Fault::Lost]);
    log.enrol("budget-joins", "nvlink:n1 tenant:lab");
    log.report_inventory("budget-joins", "boot-1");
    log.report_findings("budget-joins", &[Fault::Lost]);
}

/// Nodes whose agent reports its coverage.
fn coverage(log: &mut ScenarioLog) {
    log.add_in_service("coverage-full", "");
    log.report_coverage("coverage-full", 0);
    log.add_in_service("coverage-gap", "");
    log.report_coverage("coverage-gap", 0);
    log.report_coverage("coverage-gap", 2);
    log.add_in_service("coverage-gap-lasting", "pool:covered");
    log.report_coverage("coverage-gap-lasting", 1);
    log.advance(60);
    log.append(Event::Tick);
    log.add_in_service("verification-inconclusive", "");
    log.report_coverage("verification-inconclusive", 1);
    let (node, level) = (id("verification-inconclusive"), VerificationLevel::V1);
    log.request(OperatorRequest::Verify { node, level });
    for _ in 0..2 {
        let reason = "gpu-signals: GPU 0: gpu.power_w cannot be read".to_owned();
        let status = OrderStatus::Inconclusive { reason };
        log.report_status("verification-inconclusive", status);
    }
}

/// Quarantined nodes, which are cordoned and drained.
fn out_of_service(log: &mut ScenarioLog) {
    log.add_in_service("quarantined", "");
    log.report_findings("quarantined", &[Fault::Lost]);
    log.add_in_service("quarantined-for-many", "");
    log.report_findings("quarantined-for-many", &[Fault::Memory, Fault::Lost, Fault::Link]);
    log.add_in_service("draining", "");
    log.report_findings("draining", &[Fault::Lost]);
    log.execute_orders_until("draining", |order| matches!(order, OrderKind::Drain { .. }));
    log.report_status("draining", OrderStatus::Accepted);
    log.add_in_service("verification-failed-in-service", "");
    log.request(OperatorRequest::Verify {
        node: id("verification-failed-in-service"),
        level: VerificationLevel::V0,
    });
    log.fail_order("verification-failed-in-service", "the driver on disk has another version");
    // The heartbeats of the node ended, and the timeout passed.
    log.add_in_service("heartbeat-timeout", "pool:edge");
    let since = log.now;
    log.append(Event::HeartbeatLost { node: id("heartbeat-timeout"), since });
    log.advance(200);
    log.append(Event::Tick);
    log.add_drained("drained-again", "", &[Fault::Part]);
    log.report(Event::CordonObserved { node: id("drained-again"), cordon: Cordon::None });
}

/// Nodes in repair.
fn repairs(log: &mut ScenarioLog) {
    log.add_drained("rebooting", "", &[Fault::Lost]);
    log.add_drained("resetting", "", &[Fault::Memory]);
    log.report_status("resetting", OrderStatus::Accepted);
    log.add_drained("restarting-service", "", &[Fault::Service]);
    log.add_drained("needs-part", "", &[Fault::Part]);
    log.add_drained("needs-investigation", "", &[Fault::Link]);
    // All automatic repairs ran, and the fault persists.
    log.add_drained("repair-failed", "pool:once", &[Fault::Memory]);
    log.execute_orders("repair-failed");
    // A reboot for one fault, followed by another fault.
    log.add_drained("rebooted-for-other-fault", "pool:once", &[Fault::Lost]);
    log.complete_order("rebooted-for-other-fault");
    log.clear_findings("rebooted-for-other-fault");
    log.report_findings("rebooted-for-other-fault", &[Fault::Firmware]);
    log.execute_orders("rebooted-for-other-fault");
    log.add_drained("lemon", "", &[Fault::Lost]);
    log.complete_order("lemon");
    log.clear_findings("lemon");
    log.execute_orders("lemon");
    assert_eq!(log.phase("lemon"), NodePhase::InService);
    log.report_findings("lemon", &[Fault::Lost]);
    log.execute_orders("lemon");
    log.add_drained("verification-failed-after-repair", "", &[Fault::Lost]);
    log.complete_order("verification-failed-after-repair");
    log.clear_findings("verification-failed-after-repair");
    log.execute_orders_until("verification-failed-after-repair", |order| {
        *order == OrderKind::Verify { level: VerificationLevel::V1 }
    });
    log.fail_order("verification-failed-after-repair", "a GPU is missing");
}

/// Repairs that are due, but wait for an approval, a repair window or an operator.
fn deferred_repairs(log: &mut ScenarioLog) {
    log.add_drained("waits-for-approval", "pool:careful", &[Fault::Lost]);
    log.add_drained("approved", "pool:careful", &[Fault::Lost]);
    log.request(OperatorRequest::Approve { node: id("approved") });
    log.add_drained("waits-for-window", "pool:night", &[Fault::Lost]);
    log.add_drained("left-to-operators", "pool:manual", &[Fault::Lost]);
}

/// Nodes that return to service.
fn returning(log: &mut ScenarioLog) {
    log.add_drained("repaired", "", &[Fault::Lost]);
    log.complete_order("repaired");
    log.clear_findings("repaired");
    log.add_drained("returned", "rack:r1", &[Fault::Lost]);
    log.complete_order("returned");
    log.clear_findings("returned");
    log.execute_orders("returned");
    assert_eq!(log.phase("returned"), NodePhase::InService);
    log.add_in_service("findings-cleared", "");
    log.report_findings("findings-cleared", &[Fault::Lost]);
    log.complete_order("findings-cleared");
    log.clear_findings("findings-cleared");
    log.add_drained("repaired-by-hand", "", &[Fault::Part]);
    let repair = "a new GPU".to_owned();
    log.request(OperatorRequest::Repaired { node: id("repaired-by-hand"), repair });
    log.add_drained("fault-persists", "pool:once", &[Fault::Lost]);
    log.complete_order("fault-persists");
    // A finding arrives while the uncordon is pending.
    log.add_drained("uncordon-cancelled", "", &[Fault::Lost]);
    log.complete_order("uncordon-cancelled");
    log.clear_findings("uncordon-cancelled");
    log.execute_orders_until("uncordon-cancelled", |order| *order == OrderKind::Uncordon);
    log.report_findings("uncordon-cancelled", &[Fault::Lost]);
    log.add_in_service("healthy-but-cordoned", "");
    log.report_findings("healthy-but-cordoned", &[Fault::Lost]);
    log.execute_orders_until("healthy-but-cordoned", |order| *order == OrderKind::Reboot);
    log.complete_order("healthy-but-cordoned");
    log.clear_findings("healthy-but-cordoned");
    log.cordon_externally("healthy-but-cordoned");
    log.execute_orders("healthy-but-cordoned");
}

/// Nodes that an operator or another tool keeps out of service.
fn held(log: &mut ScenarioLog) {
    log.add_in_service("held", "");
    log.hold("held", "check the cable");
    log.complete_order("held");
    log.add_in_service("held-not-cordoned", "pool:watch");
    log.hold("held-not-cordoned", "check the fan");
    log.add_in_service("released", "");
    log.hold("released", "check the cable");
    log.complete_order("released");
    log.request(OperatorRequest::Release { node: id("released") });
    log.add_in_service("cordoned-by-others", "");
    log.cordon_externally("cordoned-by-others");
    // The reboot order is cancelled.
    log.add_drained("held-before-reboot", "", &[Fault::Lost]);
    log.hold("held-before-reboot", "do not reboot");
    log.add_in_service("revoked", "");
    let change = AccessChange::CertificateRevoked { node: id("revoked") };
    let at = log.now;
    // The access store of the server that starts on this log does not have this change. Access
    // stores number their changes from 1, so number 0 does not clash with them.
    log.append(Event::AccessChanged { number: 0, at, change });
}

fn requested_orders(log: &mut ScenarioLog) {
    let diag = |name: &str| OperatorRequest::RunOrder {
        node: id(name),
        order: OrderKind::Diag { level: 2, minutes: 10 },
    };
    let tune = |name: &str| OperatorRequest::RunOrder {
        node: id(name),
        order: OrderKind::Tune { profile: "training".to_owned() },
    };
    log.add_in_service("requested-order-in-use", "");
    log.request(diag("requested-order-in-use"));
    for name in [
        "requested-order-issued",
        "requested-order-done",
        "requested-order-failed",
        "requested-order-refused",
    ] {
        log.add_in_service(name, "");
        log.hold(name, "a test");
        log.complete_order(name);
        log.request(if name == "requested-order-done" { tune(name) } else { diag(name) });
    }
    log.report_status(
        "requested-order-done",
        OrderStatus::Done { evidence: "13 settings match the profile".to_owned() },
    );
    log.fail_order("requested-order-failed", "hbm-read: 3.1 of 4.4 TB/s");
    log.report_status(
        "requested-order-refused",
        OrderStatus::Refused { reason: "GPU 3 is in use".to_owned() },
    );
}

/// Symptoms that several nodes of a failure domain share.
fn common_causes(log: &mut ScenarioLog) {
    for name in ["rack-1", "rack-2", "rack-3", "rack-4"] {
        log.add_in_service(name, "rack:faulty");
    }
    // The first two are quarantined before the common cause is detected.
    for name in ["rack-1", "rack-2", "rack-3"] {
        log.report_findings(name, &[Fault::Network]);
    }
    log.execute_orders("rack-1");
    for name in ["dark-1", "dark-2", "dark-3"] {
        log.add_in_service(name, "pool:edge leaf:dark");
    }
    let since = log.now;
    for name in ["dark-1", "dark-2", "dark-3"] {
        log.append(Event::HeartbeatLost { node: id(name), since });
    }
    log.advance(200);
    log.append(Event::Tick);
    for name in ["fault-cleared-1", "fault-cleared-2", "fault-cleared-3"] {
        log.add_in_service(name, "rack:fault-cleared");
    }
    for name in ["fault-cleared-1", "fault-cleared-2", "fault-cleared-3"] {
        log.report_findings(name, &[Fault::Link]);
    }
    for name in ["fault-cleared-2", "fault-cleared-3"] {
        log.clear_findings(name);
    }
}

/// Orders that fail or expire.
fn failing_orders(log: &mut ScenarioLog) {
    log.add_in_service("cordon-failed", "pool:once");
    log.report_findings("cordon-failed", &[Fault::Lost]);
    log.fail_order("cordon-failed", "the scheduler does not answer");
    log.add_in_service("cordon-failed-once", "");
    log.report_findings("cordon-failed-once", &[Fault::Lost]);
    log.fail_order("cordon-failed-once", "the scheduler does not answer");
    log.add_drained("reboot-failed", "pool:once", &[Fault::Lost]);
    log.fail_order("reboot-failed", "`systemctl reboot` ended with code 1");
    log.add_drained("reboot-refused", "", &[Fault::Lost]);
    log.report_status(
        "reboot-refused",
        OrderStatus::Refused { reason: "a user is logged in".to_owned() },
    );
    log.add_in_service("order-expired", "pool:brief");
    log.report_findings("order-expired", &[Fault::Lost]);
    log.advance(100);
    log.append(Event::Tick);
}

/// A frozen rack.
fn frozen(log: &mut ScenarioLog) {
    let freeze = |log: &mut ScenarioLog, domain: &str| {
        let (domain, until) = (domain.parse().unwrap(), log.now + SignedDuration::from_hours(48));
        log.request(OperatorRequest::Freeze { domain, until, reason: "a deadline".to_owned() });
    };
    log.add_drained("frozen-before-reboot", "rack:frozen", &[Fault::Lost]);
    log.add_in_service("frozen-requested-order", "rack:frozen");
    log.hold("frozen-requested-order", "settings");
    log.complete_order("frozen-requested-order");
    freeze(log, "rack:frozen");
    log.add_drained("frozen", "rack:frozen", &[Fault::Lost]);
    let tune = OrderKind::Tune { profile: "training".to_owned() };
    log.request(OperatorRequest::RunOrder { node: id("frozen-requested-order"), order: tune });
    freeze(log, "pool:empty");
    log.request(OperatorRequest::Unfreeze { domain: "pool:empty".parse().unwrap() });
}

/// Events that the other parts of the scenario do not cause.
fn other_events(log: &mut ScenarioLog) {
    log.add_in_service("location-changed", "rack:r1");
    let mut location = Location::in_pool("train".parse().unwrap());
    location.rack = Some("r2".parse().unwrap());
    log.append(Event::LocationChanged { node: id("location-changed"), location });
    log.add_in_service("over-quota", "");
    log.append(Event::QuotaExceeded { node: id("over-quota") });
    log.append(Event::QuotaRestored { node: id("over-quota") });
    log.report(Event::OrderGenerationObserved { node: id("over-quota"), generation: 40 });
    let record = JournalPosition { journal: "k".to_owned(), number: 1 };
    let open = vec![Fault::Warning.finding("findings-snapshot", 1, log.now)];
    log.add_in_service("findings-snapshot", "");
    log.report(Event::FindingsSnapshot { node: id("findings-snapshot"), record, open });
    log.add_in_service("retired", "");
    log.append(Event::Retired { node: id("retired"), reason: "sold".to_owned() });
}
