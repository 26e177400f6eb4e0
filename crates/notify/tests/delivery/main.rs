//! Deliveries to real receivers: Alertmanager, an SMTP server, HTTP servers and commands.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stderr, reason = "a skipped test prints why")]

mod alertmanager;
mod command;
mod email;
mod http_faults;
mod http_server;
mod sample;
mod webhooks;
