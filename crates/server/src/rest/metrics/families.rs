//! Every metric family of the server.

use super::page::{Family, MetricKind};

macro_rules! families {
    ($( $name:ident = $metric:literal, $kind:ident, [$($label:literal),*], $help:literal; )+) => {
        $( pub(super) const $name: Family = Family {
            name: $metric, kind: MetricKind::$kind, labels: &[$($label),*], help: $help,
        }; )+

        /// All families, in the order of the reference page.
        #[cfg(test)]
        pub(super) const ALL: &[&Family] = &[$(&$name),+];
    };
}

families! {
    NODES = "farrier_fleet_nodes", Gauge, ["pool", "phase"], "Nodes by phase.";
    OLDEST_PHASE = "farrier_fleet_oldest_phase_age_seconds", Gauge, ["pool", "phase"],
        "The longest time for which a node has been in this phase; no sample for a phase without nodes, nor for nodes in service.";
    RACK_NODES = "farrier_fleet_rack_nodes", Gauge, ["pool", "rack", "phase"],
        "Nodes of a rack by phase; no sample for a phase without nodes.";
    RACKS_OMITTED = "farrier_fleet_racks_omitted", Gauge, [],
        "Racks without samples, because there are more racks than the query parameter `racks` allows.";
    CONNECTIONS = "farrier_fleet_node_connections", Gauge, ["pool", "state"],
        "Nodes by the state of their agent's session.";
    HEARTBEAT_LOST = "farrier_fleet_nodes_heartbeat_lost", Gauge, ["pool"],
        "Nodes whose heartbeat is lost.";
    COVERAGE = "farrier_fleet_node_coverage", Gauge, ["pool", "coverage"],
        "Nodes by whether their agent can read everything: `full`, `gaps`, or `unknown` for agents that do not report it.";
    COVERAGE_GAPS = "farrier_fleet_coverage_gaps", Gauge, ["pool"], "Open coverage gaps.";
    DEFERRED = "farrier_fleet_nodes_deferred", Gauge, ["pool", "reason"],
        "Nodes with a deferred action, by the code of the reason; no sample for a reason without nodes.";
    APPROVALS = "farrier_fleet_nodes_waiting_for_approval", Gauge, ["pool"],
        "Nodes whose order waits for an approval.";
    OVER_QUOTA = "farrier_fleet_nodes_over_quota", Gauge, ["pool"],
        "Nodes that report more than their quota, so that their reports arrive late.";
    FINDINGS = "farrier_fleet_findings", Gauge, ["pool", "severity"], "Open findings.";
    FINDINGS_BY_CODE = "farrier_fleet_findings_by_code", Gauge, ["severity", "code"],
        "Open findings by rule; `other` has the least frequent codes beyond a limit.";
    ORDERS_PENDING = "farrier_fleet_orders_pending", Gauge, ["pool", "kind"],
        "Orders without a final status, by kind; no sample for a kind without orders.";
    ORDERS_FAILED = "farrier_fleet_nodes_order_failed", Gauge, ["pool", "kind"],
        "Nodes whose last order failed and has not succeeded since; no sample for a kind without nodes.";
    BUDGET_LIMIT = "farrier_fleet_disruption_budget_limit_nodes", Gauge, ["kind", "name"],
        "Nodes that the controller may keep out of service at once, for the fleet, each pool, and each other domain that uses its budget.";
    BUDGET_USED = "farrier_fleet_disruption_budget_used_nodes", Gauge, ["kind", "name"],
        "Nodes that use the disruption budget.";
    BUDGET_HEADROOM = "farrier_fleet_disruption_budget_headroom_nodes", Gauge, ["kind", "name"],
        "Nodes that may still be taken out of service; negative if the limit was lowered.";
    SCHEDULABLE = "farrier_fleet_schedulable_nodes", Gauge, ["kind", "name"],
        "Nodes that may get new work, of domains with a capacity floor.";
    CAPACITY_FLOOR = "farrier_fleet_capacity_floor_nodes", Gauge, ["kind", "name"],
        "Nodes that have to take work, by the policy.";
    CAPACITY_HEADROOM = "farrier_fleet_capacity_headroom_nodes", Gauge, ["kind", "name"],
        "Schedulable nodes above the capacity floor; negative below it.";
    DOMAIN_FAULTS = "farrier_fleet_domain_faults", Gauge, ["kind"],
        "Failure domains with a domain fault.";
    FREEZES = "farrier_fleet_freezes", Gauge, [], "Domains in which no order may change a node.";
    BUILD_INFO = "farrier_server_build_info", Gauge, ["version"], "The server's version.";
    CONTROLLER_RESPONDING = "farrier_server_controller_responding", Gauge, [],
        "1 if the controller answered this scrape; otherwise 0, and all `farrier_fleet_` metrics are missing.";
    COMMIT_DURATION = "farrier_server_commit_duration_seconds", Histogram, [],
        "Time to decide on a batch and write it to the log.";
    COMMITS = "farrier_server_commits_total", Counter, [], "Batches written to the log.";
    INPUTS_QUEUED = "farrier_server_inputs_queued", Gauge, [], "Inputs queued for the controller.";
    INPUTS_QUEUED_MAX = "farrier_server_inputs_queued_max", Gauge, [],
        "Length at which the queue is full, and sessions wait.";
    LOG_ENTRIES = "farrier_server_log_entries", Gauge, [], "Number of the log's last entry.";
    LOG_BYTES = "farrier_server_log_bytes", Gauge, [],
        "Size of the log on disk; no sample if it is unknown.";
    DISK_FREE = "farrier_server_disk_free_bytes", Gauge, [],
        "Free disk space in the log's folder; no sample if it is unknown.";
    DISK_LOW = "farrier_server_disk_low", Gauge, [],
        "Whether disk space is low, and reports that change no decision are not logged.";
    CLOCK = "farrier_server_clock_timestamp_seconds", Gauge, [],
        "The server's clock, in seconds since 1970.";
    CLOCK_STEPS = "farrier_server_clock_steps_total", Counter, [],
        "Steps of the server's wall clock.";
    PAUSES = "farrier_server_controller_pauses_total", Counter, [],
        "Pauses of several seconds in which the controller did not run.";
    AGENTS_CONNECTED = "farrier_server_agents_connected", Gauge, [], "Open sessions of agents.";
    THROTTLED = "farrier_server_reports_throttled_total", Counter, [],
        "Times that a node's reports were throttled by its quota.";
    SESSIONS_ENDED = "farrier_server_sessions_ended_total", Counter, [],
        "Sessions ended by the server.";
    NAMES_REFUSED = "farrier_server_node_names_refused_total", Counter, [],
        "Sessions refused because a node used another node's name.";
    GENERATIONS_REFUSED = "farrier_server_order_generations_refused_total", Counter, [],
        "Sessions refused because of an unknown order generation.";
    HANDSHAKES_FAILED = "farrier_server_tls_handshakes_failed_total", Counter, ["reason"],
        "Failed TLS handshakes.";
    UNAUTHENTICATED_FAILED = "farrier_server_unauthenticated_requests_failed_total", Counter, ["reason"],
        "Requests without a certificate that were not read.";
    ENROLMENTS_REFUSED = "farrier_server_enrolments_refused_total", Counter, ["reason"],
        "Refused enrolments.";
    RENEWALS = "farrier_server_certificate_renewals_total", Counter, ["result"],
        "Renewals of node certificates.";
    NOTIFICATION_GAPS = "farrier_server_notification_gaps_total", Counter, [],
        "Times that notifications may be missing.";
    NOTIFICATION_LAG_ENTRIES = "farrier_server_notification_log_lag_entries", Gauge, [],
        "Entries of the log that the notifier has not read.";
    NOTIFICATION_LAG_SECONDS = "farrier_server_notification_log_lag_seconds", Gauge, [],
        "Time for which the notifier has not read the whole log; 0 if it has.";
    NOTIFICATION_DATABASE_FAILED = "farrier_server_notification_database_failed_seconds", Gauge, [],
        "Time for which the notification database has failed, so that nothing is delivered; 0 if it works.";
    NOTIFICATIONS_DELIVERED = "farrier_server_notifications_delivered_total", Counter, ["receiver"],
        "Delivered notifications.";
    NOTIFICATIONS_UNDELIVERABLE = "farrier_server_notifications_undeliverable_total", Counter, ["receiver"],
        "Notifications that cannot be delivered.";
    NOTIFICATIONS_RETRIES = "farrier_server_notifications_retries_total", Counter, ["receiver"],
        "Failed deliveries that are repeated.";
    NOTIFICATIONS_KEPT = "farrier_server_notifications_kept_undeliverable", Gauge, ["receiver"],
        "Undeliverable notifications until they are retried or dropped; no sample if the queue is unknown.";
    NOTIFICATIONS_DROPPED = "farrier_server_notifications_undeliverable_dropped_total", Counter, ["receiver"],
        "Undeliverable notifications that made room for further ones; no sample if the queue is unknown.";
    NOTIFICATIONS_QUEUED = "farrier_server_notifications_queued", Gauge, ["receiver"],
        "Notifications that wait for delivery; no sample if the queue is unknown.";
    NOTIFICATION_OLDEST = "farrier_server_notification_oldest_seconds", Gauge, ["receiver"],
        "Age of the oldest notification that waits for delivery; no sample if the queue is unknown.";
    STREAMS_OPEN = "farrier_server_log_streams_open", Gauge, [], "Open streams and exports.";
    RESPONSES = "farrier_server_http_responses_total", Counter, ["class"], "HTTP responses.";
}
