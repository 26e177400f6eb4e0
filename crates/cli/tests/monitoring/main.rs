//! The rules in `deploy/prometheus` and the dashboards in `deploy/grafana`, on a real Prometheus
//! that scrapes a real server and agents on simulated nodes. Faults are injected until every alert
//! has fired and every panel has data.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stderr, reason = "a skipped test prints why")]

#[expect(dead_code, reason = "the agent tests use all of it")]
#[path = "../agent/agent_node.rs"]
mod agent_node;
#[path = "../support/kill.rs"]
mod kill;
#[path = "../support/server.rs"]
#[expect(dead_code, reason = "the server tests use all of it")]
mod server;
#[path = "../support/mod.rs"]
mod support;

mod dashboards;
mod faults;
mod fleet;
mod prometheus;
mod rules;
