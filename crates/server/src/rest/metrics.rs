//! `/metrics` in the Prometheus text format, and `/healthz`. The values of labels are bounded:
//! phases, severities, connection states, reasons and classes of answers.

mod notify;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use farrier_fleet::fleet::NodePhase;
use farrier_fleet::health::Severity;
use farrier_wire::rest::ConnectionState;
use tokio::sync::Mutex;

use super::failure::Failure;
use super::reply::{self, Reply};
use super::{Call, pagination};
use crate::counters::{Counters, EnrolmentRefusal, HandshakeFailure, RequestFailure};
use crate::space::DiskSpace;

const SEVERITIES: [Severity; 4] =
    [Severity::Info, Severity::Warning, Severity::Critical, Severity::Fatal];

struct NodeMetrics {
    phase: NodePhase,
    connection: ConnectionState,
    is_heartbeat_lost: bool,
    is_deferred: bool,
    findings: Vec<Severity>,
}

/// Minimum time between two checks of the controller. `/healthz` needs no token, so anyone can send
/// many requests.
const HEALTH_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// When the controller was last checked, and the result.
pub(super) type Health = Mutex<Option<(Instant, bool)>>;

pub(super) async fn healthz(call: Call) -> Result<Reply, Failure> {
    let mut last = call.rest.health.lock().await;
    let is_well = match *last {
        Some((at, is_well)) if at.elapsed() < HEALTH_CHECK_INTERVAL => is_well,
        _ => {
            let is_well = call.app.controller.read(|_| ()).await.is_ok();
            *last = Some((Instant::now(), is_well));
            is_well
        }
    };
    if is_well {
        Ok(Reply::bytes(reply::TEXT, health(&call.app.space)))
    } else {
        Ok(Reply::unavailable("the server is stopping\n"))
    }
}

/// Returns `ok` and the disk space.
fn health(space: &DiskSpace) -> String {
    let bytes = space.bytes();
    let text_or_unknown =
        |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), |bytes| bytes.to_string());
    format!(
        "ok\nlog_bytes {}\ndisk_free_bytes {}\ndisk_low {}\n",
        text_or_unknown(bytes.map(|(log, _)| log)),
        text_or_unknown(bytes.map(|(_, free)| free)),
        space.is_low()
    )
}

pub(super) async fn metrics(call: Call) -> Result<Reply, Failure> {
    let caller = call.caller()?;
    caller.check_fleet_wide()?;
    let app = Arc::clone(&call.app);
    let visit: pagination::Visit<NodeMetrics> = Arc::new(move |_, id, node, found| {
        found.push(NodeMetrics {
            phase: node.phase(),
            connection: app.connection(id).state,
            is_heartbeat_lost: node.liveness.heartbeat_loss().is_some(),
            is_deferred: node.phase.deferred().is_some(),
            findings: node.open_findings().map(|finding| finding.severity).collect(),
        });
    });
    let everything = (Bound::Unbounded, Bound::Unbounded);
    let most = usize::MAX - 1;
    let nodes = pagination::nodes(&call.app.controller, caller, everything, most, visit).await?;
    let domain_faults = call.app.controller.read(|state| state.domain_faults.len()).await?;
    let mut text = render(&call, &nodes, domain_faults);
    notify::render(&call, &mut text).await?;
    Ok(Reply::bytes(reply::METRICS, text.0))
}

fn render(call: &Call, nodes: &[NodeMetrics], domain_faults: usize) -> MetricsText {
    let mut text = MetricsText::default();
    let mut severities: BTreeMap<Severity, usize> = BTreeMap::new();
    for severity in nodes.iter().flat_map(|node| &node.findings) {
        *severities.entry(*severity).or_default() += 1;
    }
    let phases = NodePhase::ALL.map(|phase| {
        let count = nodes.iter().filter(|node| node.phase == phase).count();
        (phase.code().to_owned(), count as u64)
    });
    text.labelled("farrier_fleet_nodes", "gauge", "Nodes by phase", "phase", phases);
    let connections = ConnectionState::ALL.map(|state| {
        let count = nodes.iter().filter(|node| node.connection == state).count();
        (state.name().to_owned(), count as u64)
    });
    text.labelled(
        "farrier_fleet_node_connections",
        "gauge",
        "Nodes by the state of their agent's session",
        "state",
        connections,
    );
    let severities = SEVERITIES.map(|severity| {
        (severity.to_string(), severities.get(&severity).copied().unwrap_or_default() as u64)
    });
    text.labelled("farrier_fleet_findings", "gauge", "Open findings", "severity", severities);
    let count = |is: fn(&&NodeMetrics) -> bool| nodes.iter().filter(is).count() as u64;
    text.gauge(
        "farrier_fleet_nodes_heartbeat_lost",
        "Nodes whose heartbeat is lost",
        count(|node| node.is_heartbeat_lost),
    );
    let deferred = count(|node| node.is_deferred);
    text.gauge("farrier_fleet_nodes_deferred", "Nodes with a deferred action", deferred);
    text.gauge(
        "farrier_fleet_domain_faults",
        "Racks, switches and NVLink domains with a domain fault",
        domain_faults as u64,
    );
    render_server(&mut text, call);
    text
}

fn render_server(text: &mut MetricsText, call: &Call) {
    let app = &call.app;
    text.gauge("farrier_server_log_entries", "Number of the log's last entry", app.tail.end());
    text.counter(
        "farrier_server_commits_total",
        "Batches written to the log",
        app.controller.commits(),
    );
    text.counter(
        "farrier_server_clock_steps_total",
        "Steps of the server's wall clock",
        app.controller.clock_steps(),
    );
    text.counter(
        "farrier_server_controller_pauses_total",
        "Times that the controller did not run for seconds",
        app.controller.pauses(),
    );
    text.gauge(
        "farrier_server_inputs_queued",
        "Inputs queued for the controller",
        app.controller.waiting() as u64,
    );
    text.counter(
        "farrier_server_reports_throttled_total",
        "Times that a node's reports were throttled by its quota",
        app.sessions.times_throttled(),
    );
    // If the disk space is unknown, its metrics are left out.
    if let Some((log_bytes, free_bytes)) = app.space.bytes() {
        text.gauge("farrier_server_log_bytes", "Size of the log on disk", log_bytes);
        text.gauge(
            "farrier_server_disk_free_bytes",
            "Free disk space in the log's folder",
            free_bytes,
        );
    }
    text.gauge(
        "farrier_server_disk_low",
        "Whether disk space is low, and reports that change no decision are not logged",
        app.space.is_low().into(),
    );
    text.gauge(
        "farrier_server_agents_connected",
        "Open sessions of agents",
        app.sessions.connected() as u64,
    );
    let failed =
        HandshakeFailure::ALL.map(|reason| (reason.to_string(), app.counters.handshakes(reason)));
    text.labelled(
        "farrier_server_tls_handshakes_failed_total",
        "counter",
        "Failed TLS handshakes",
        "reason",
        failed,
    );
    let unread = RequestFailure::ALL.map(|request_failure| {
        (request_failure.to_string(), app.counters.requests_failed(request_failure))
    });
    text.labelled(
        "farrier_server_unauthenticated_requests_failed_total",
        "counter",
        "Requests without a certificate that were not read",
        "reason",
        unread,
    );
    refusals(text, &app.counters);
    text.counter(
        "farrier_server_order_generations_refused_total",
        "Sessions refused because of an unknown order generation",
        app.counters.order_generations_refused(),
    );
    let streams = call.rest.limits.streams_open() as u64;
    text.gauge("farrier_server_log_streams_open", "Open streams and exports", streams);
    let classes = (2..6).map(|class: usize| {
        (format!("{class}xx"), call.rest.answered[class].load(Ordering::Relaxed))
    });
    text.labelled(
        "farrier_server_http_responses_total",
        "counter",
        "HTTP responses",
        "class",
        classes,
    );
}

fn refusals(text: &mut MetricsText, counters: &Counters) {
    let refused = EnrolmentRefusal::ALL
        .map(|reason| (reason.to_string(), counters.enrolments_refused(reason)));
    text.labelled(
        "farrier_server_enrolments_refused_total",
        "counter",
        "Refused enrolments",
        "reason",
        refused,
    );
    let renewals = [("issued", counters.renewals()), ("throttled", counters.renewals_throttled())];
    text.labelled(
        "farrier_server_certificate_renewals_total",
        "counter",
        "Renewals of node certificates",
        "result",
        renewals.map(|(result, count)| (result.to_owned(), count)),
    );
    text.counter(
        "farrier_server_node_names_refused_total",
        "Sessions refused because a node used another node's name",
        counters.names_refused(),
    );
    text.counter(
        "farrier_server_sessions_ended_total",
        "Sessions ended by the server",
        counters.sessions_ended(),
    );
}

#[derive(Default)]
struct MetricsText(String);

impl MetricsText {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, "gauge", help);
        let _ = writeln!(self.0, "{name} {value}");
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, "counter", help);
        let _ = writeln!(self.0, "{name} {value}");
    }

    /// Label values are constants, so they need no escaping.
    fn labelled(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (String, u64)>,
    ) {
        self.head(name, kind, help);
        for (word, value) in values {
            let _ = writeln!(self.0, "{name}{{{label}=\"{word}\"}} {value}");
        }
    }
}
