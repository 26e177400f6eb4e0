//! Injects faults until every alert has fired and every panel has returned data.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::agent_node::{Agent, AgentNode};
use crate::dashboards::{PanelQuery, queries};
use crate::fleet::{Fleet, metrics_address, node};
use crate::prometheus::{Prometheus, is_installed};
use crate::rules::{alerts, rules_with_short_times};
use crate::support::wait::{wait_for, wait_until};

/// Panels that are empty in a healthy fleet. All others must have data then.
const EMPTY_IN_HEALTH: [&str; 10] = [
    "farrier-fleet: Deferred actions by reason",
    "farrier-fleet: Most frequent findings",
    "farrier-node: Open findings",
    "farrier-node: Xids",
    "farrier-pool: Deferred actions by reason",
    "farrier-pool: Failing orders",
    "farrier-pool: Longest time in a phase",
    "farrier-pool: Pending orders",
    "farrier-pool: Racks with nodes out of service",
    "farrier-pool: Racks, switches and NVLink domains that use their budget",
];

/// Alerts that fire without a further fault: node certificates of this server last an hour, and a
/// debug build of the agent may need more than its CPU budget.
const FIRE_IN_HEALTH: [&str; 2] = ["FarrierCertificateExpiring", "FarrierAgentHighCpu"];

const MISMATCH: &str = "NVRM: API mismatch: the client has the version 580.105.08, but this kernel module has the version 580.95.05.";

/// Each opens a finding of its own.
const XIDS: [&str; 8] = ["13", "43", "45", "48", "63", "95", "119", "120"];

/// How long the log is locked at once.
const LOCK_MAX: Duration = Duration::from_secs(5);

/// A Prometheus that scrapes a fleet. Remembers which alerts fired.
struct Monitoring {
    prometheus: Prometheus,
    server: String,
    start: Instant,
    agents: Vec<String>,
    /// The labels and annotations of an alert at the first time at which it fired.
    fired: RefCell<BTreeMap<String, Value>>,
}

impl Monitoring {
    fn add_agent(&mut self, agent: &Agent<'_>) {
        self.agents.push(metrics_address(agent));
        self.prometheus.set_agents(&self.agents);
    }

    fn note_firing(&self) {
        for alert in self.prometheus.firing() {
            let name = alert["labels"]["alertname"].as_str().unwrap().to_owned();
            self.fired.borrow_mut().entry(name).or_insert(alert);
        }
    }

    fn fired(&self) -> BTreeSet<String> {
        self.fired.borrow().keys().cloned().collect()
    }

    /// Whether all these alerts have fired.
    fn have_fired(&self, names: &[&str]) -> bool {
        self.note_firing();
        names.iter().all(|name| self.fired.borrow().contains_key(*name))
    }

    /// Waits until all these alerts have fired.
    #[track_caller]
    fn until_fired(&self, names: &[&str]) {
        let explain = || format!("{names:?} have not all fired, but {:?}", self.fired());
        wait_until(explain, || self.have_fired(names));
        let s = self.start.elapsed().as_secs();
        eprintln!("{s:3} s: {names:?}");
    }

    #[track_caller]
    fn until_data(&self, expression: &str) {
        let explain = || format!("no data: {expression}");
        wait_until(explain, || !self.prometheus.query(expression).is_empty());
    }

    /// Waits until the query has data, for any agent if it is about a node.
    #[track_caller]
    fn until_panel(&self, query: &PanelQuery) {
        let nodes = if query.is_about_node() { &self.agents[..] } else { &self.agents[..1] };
        let expressions: Vec<String> =
            nodes.iter().map(|node| query.expression(&self.server, node)).collect();
        let explain = || format!("no data in {}: {}", query.panel, expressions[0]);
        wait_until(explain, || {
            expressions.iter().any(|expression| !self.prometheus.query(expression).is_empty())
        });
    }
}

fn is_empty_in_health(query: &PanelQuery) -> bool {
    EMPTY_IN_HEALTH.contains(&query.panel.as_str())
}

/// PCI address of a GPU.
fn pci_address(agent: &Agent<'_>) -> String {
    let explain = || "no GPU is listed".to_owned();
    wait_for(explain, || {
        let status = agent.until(|_| true);
        status["gpus"][0]["identity"]["pci"].as_str().map(str::to_owned)
    })
}

#[test]
fn every_alert_fires_and_every_panel_has_data() {
    if !is_installed() {
        return;
    }
    let mut fleet = Fleet::start();
    let nodes = ["1", "2", "3", "4"].map(node);
    let [drained, busy, silent, hung] = &nodes;
    let orders = "enabled = true\nscheduler = \"host\"";
    let hook = "\n[[hook]]\nname = \"broken\"\n[hook.command]\nargv = [\"/bin/false\"]\n";
    fleet.enrol("gpu-1", "train", drained, &format!("{orders}{hook}"));
    fleet.enrol("gpu-2", "train", busy, orders);
    let (drained_agent, busy_agent) = (drained.agent().ready(), busy.agent().ready());
    let (rules, token) = (rules_with_short_times(), fleet.token());
    let prometheus = Prometheus::start(&fleet.path(""), &rules, fleet.address(), &token);
    let server = fleet.address().to_owned();
    let mut monitoring = Monitoring {
        prometheus,
        server,
        start: Instant::now(),
        agents: Vec::new(),
        fired: RefCell::default(),
    };
    monitoring.until_data("sum(farrier_fleet_nodes{phase=\"in-service\"}) == 2");
    monitoring.add_agent(&drained_agent);
    monitoring.add_agent(&busy_agent);
    healthy(&monitoring);

    faults_of_nodes(&mut monitoring, &fleet, [drained, busy, silent], &busy_agent);
    hung_agent(&mut monitoring, hung);
    monitoring.until_fired(&["FarrierHeartbeatsLost"]);
    faults_of_the_server(&monitoring, &mut fleet, busy);

    assert_eq!(monitoring.fired(), alerts(), "each alert has a fault");
    check_texts(&monitoring);
}

/// Waits until everything but the panels about faults has data, and no other alert fires.
fn healthy(monitoring: &Monitoring) {
    monitoring.until_data("count(farrier_nic_active) > 0");
    let all = queries();
    let panels: BTreeSet<&str> = all.iter().map(|query| query.panel.as_str()).collect();
    assert!(EMPTY_IN_HEALTH.iter().all(|panel| panels.contains(panel)), "{panels:?}");
    for query in all.iter().filter(|query| !is_empty_in_health(query)) {
        monitoring.until_panel(query);
    }
    // A scrape may fail on a busy machine, so wait for a moment without such alerts.
    let is_expected = |alert: &Value| FIRE_IN_HEALTH.iter().any(|name| is_about(alert, name));
    let explain = || format!("alerts fire: {:#?}", monitoring.prometheus.firing());
    wait_until(explain, || {
        let firing = monitoring.prometheus.firing();
        firing.iter().any(|alert| is_about(alert, FIRE_IN_HEALTH[0]))
            && firing.iter().all(is_expected)
    });
}

fn is_about(alert: &Value, name: &str) -> bool {
    alert["labels"]["alertname"] == name
}

fn faults_of_nodes(
    monitoring: &mut Monitoring,
    fleet: &Fleet,
    [drained, busy, silent]: [&AgentNode; 3],
    busy_agent: &Agent<'_>,
) {
    // The first node leaves service, and its reboot needs an approval.
    drained.inject(&["--gpu", "0", "xid", "79"]);
    // It uses up the budget, so the second node has to wait.
    monitoring.until_data("farrier_fleet_nodes{phase=~\"quarantined|repairing\"} > 0");
    busy.inject(&["kernel-line", MISMATCH]);
    busy.inject(&["--gpu", "0", "nvlink-down", "3"]);
    busy.inject(&["--gpu", "0", "xid", "94"]);
    for node in [busy, drained] {
        node.inject(&["--gpu", "1", "utilisation", "95"]);
    }
    silent_node(monitoring, fleet, silent);
    monitoring.until_fired(&["FarrierFatalFinding", "FarrierApprovalsWaiting"]);
    monitoring.until_fired(&["FarrierNotificationsStuck", "FarrierNotificationsUndeliverable"]);
    monitoring.until_fired(&["FarrierHookFailing"]);
    monitoring.until_fired(&["FarrierCriticalFinding", "FarrierWarningFinding"]);
    monitoring.until_fired(&["FarrierNodesWaitForBudget"]);
    // Now only a person can repair the first node.
    drained.inject(&["--gpu", "1", "remap", "--failed"]);
    for node in [busy, drained] {
        node.inject(&["--gpu", "1", "throttle", "hw-slowdown"]);
    }
    // The agent that would execute this order is gone.
    let mut request = fleet.operator().spawn(&["fleet", "logs", "gpu-3"]);
    monitoring.until_data("farrier_fleet_orders_pending{kind=\"collect-logs\"}");
    request.kill().unwrap();
    request.wait().unwrap();
    for query in queries().iter().filter(|query| is_empty_in_health(query)) {
        monitoring.until_panel(query);
    }
    monitoring.until_fired(&["FarrierGpuThrottled", "FarrierDomainFault"]);
    flood(monitoring, busy, &pci_address(busy_agent));
    monitoring.until_fired(&["FarrierLinkFault", "FarrierNodesNeedRepair"]);
}

/// A node that cannot join, because its agent executes no orders. Its GPU becomes unreadable, and
/// then the node falls silent.
fn silent_node(monitoring: &mut Monitoring, fleet: &Fleet, silent: &AgentNode) {
    fleet.enrol("gpu-3", "serve", silent, "enabled = false");
    let agent = silent.agent().ready();
    monitoring.add_agent(&agent);
    monitoring.until_fired(&["FarrierOrdersFailing", "FarrierNodeOutOfServiceLong"]);
    for call in ["nvmlDeviceGetTemperature", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetEccMode"] {
        silent.inject(&["--gpu", "0", "error", call, "UNKNOWN"]);
    }
    monitoring.until_fired(&["FarrierGpuSignalsUnreadable", "FarrierNodeUnknown"]);
    monitoring.until_fired(&["FarrierRulesInactive"]);
    silent.inject(&["--gpu", "0", "error", "*", "UNKNOWN"]);
    monitoring.until_fired(&["FarrierAgentCoverageGap"]);
    agent.kill();
    monitoring.until_fired(&["FarrierAgentDown"]);
}

/// A flood of kernel log lines with an Xid.
fn flood(monitoring: &Monitoring, node: &AgentNode, pci: &str) {
    let line = format!("NVRM: Xid (PCI:{pci}): 31, pid=7, name=python, MMU Fault");
    // A counter that is not there yet has no rate.
    node.inject(&["kernel-line", &line]);
    monitoring.until_data("farrier_xid_total{xid=\"31\"}");
    let explain = || format!("no alert about the flood: {:?}", monitoring.fired());
    wait_until(explain, || {
        node.inject(&["kernel-line", &line, "--count", "2000"]);
        monitoring.have_fired(&["FarrierXidStorm", "FarrierAgentHighCpu"])
    });
}

/// The agent of a node without a server hangs when it writes a finding.
fn hung_agent(monitoring: &mut Monitoring, node: &AgentNode) {
    let agent = node.agent_with(|command| {
        command.env("FARRIER_CRASH_AT", "written:hang");
    });
    let agent = agent.ready();
    monitoring.add_agent(&agent);
    node.inject(&["--gpu", "0", "xid", "79"]);
    monitoring.until_fired(&["FarrierAgentStalled"]);
}

fn faults_of_the_server(monitoring: &Monitoring, fleet: &mut Fleet, busy: &AgentNode) {
    slow_disk(monitoring, fleet);
    monitoring.until_fired(&["FarrierServerLogGrowth"]);
    locked_queue(monitoring, fleet);
    fleet.stop_server();
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(fleet.path(&format!("server/notify{suffix}")));
    }
    monitoring.until_fired(&["FarrierServerDown", "FarrierAgentDisconnected"]);
    // A reserve of 4 PiB, and the smallest quota. While space is low, reports cost more.
    let reserve = ["--disk-reserve", "4294967295"];
    fleet.start_server(
        &[&reserve[..], &["--report-entries", "1", "--report-bytes", "1024"]].concat(),
    );
    monitoring.until_fired(&["FarrierServerDiskLow", "FarrierNotificationsGap"]);
    let mut xids = XIDS.iter().cycle();
    let explain = || format!("no node is throttled: {:?}", monitoring.fired());
    wait_until(explain, || {
        busy.inject(&["--gpu", "1", "xid", xids.next().unwrap()]);
        monitoring.have_fired(&["FarrierNodesThrottled"])
    });
}

/// Another process locks the log, as if the disk hung. The server would end after ten seconds, so
/// the lock is released after five, and taken again until the alerts have fired.
fn slow_disk(monitoring: &Monitoring, fleet: &Fleet) {
    let operator = fleet.operator();
    let log = rusqlite::Connection::open(fleet.path("server/log")).unwrap();
    let explain = || format!("the log was locked, but {:?}", monitoring.fired());
    wait_until(explain, || {
        log.execute_batch("BEGIN IMMEDIATE").unwrap();
        let locked = Instant::now();
        // The request commits an entry.
        let mut request = operator.spawn(&["fleet", "verify", "gpu-2"]);
        while locked.elapsed() < LOCK_MAX && !monitoring.have_fired(&["FarrierServerNotCommitting"])
        {
            std::thread::yield_now();
        }
        log.execute_batch("ROLLBACK").unwrap();
        request.wait().unwrap();
        monitoring.have_fired(&["FarrierServerNotCommitting", "FarrierServerSlowCommits"])
    });
}

/// Another process locks the notification database, so the notifier cannot go on.
fn locked_queue(monitoring: &Monitoring, fleet: &Fleet) {
    let operator = fleet.operator();
    let queue = rusqlite::Connection::open(fleet.path("server/notify")).unwrap();
    queue.execute_batch("BEGIN IMMEDIATE").unwrap();
    let explain = || format!("the queue was locked, but {:?}", monitoring.fired());
    wait_until(explain, || {
        // The request commits an entry, which the notifier has to read.
        let mut request = operator.spawn(&["fleet", "verify", "gpu-2"]);
        request.wait().unwrap();
        monitoring.have_fired(&["FarrierNotificationsLag", "FarrierNotificationDatabaseFails"])
    });
    queue.execute_batch("ROLLBACK").unwrap();
}

/// The texts of the alerts name what they are about.
fn check_texts(monitoring: &Monitoring) {
    let fired = monitoring.fired.borrow();
    for (name, alert) in fired.iter() {
        for key in ["summary", "description", "runbook_url"] {
            let text = alert["annotations"][key].as_str().unwrap();
            let is_complete =
                !text.contains("<no value>") && !text.contains("  ") && !text.contains(" :");
            assert!(is_complete, "{name}: {text}");
        }
    }
    let summary = |name: &str| fired[name]["annotations"]["summary"].as_str().unwrap();
    assert!(summary("FarrierLinkFault").contains("GPU 0: NVLink or network port fault link.down"));
    assert!(summary("FarrierNodesWaitForBudget").starts_with("1 unfit nodes of pool train"));
    assert!(summary("FarrierHeartbeatsLost").starts_with("100% of pool serve"));
    let records = monitoring.prometheus.rules("record");
    assert!(records.iter().all(|rule| rule["health"] == "ok"), "{records:#?}");
}
