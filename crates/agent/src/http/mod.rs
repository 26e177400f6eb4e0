//! `/metrics`, `/healthz` and an index, over HTTP/1.1.
//!
//! ```text
//! TcpListener ─ guard (connections, request bytes, time) ─> axum ─> Published state ─> text
//! ```
//!
//! A request reads the state that was published last, and never waits for the health monitor. If
//! that state is old, the health monitor is stuck. `/healthz` then reports incomplete coverage.

mod dcgm;
mod guard;
mod metrics;
mod text;

use std::sync::{Arc, PoisonError, RwLock};

use axum::Router;
use axum::extract::State as Shared;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use farrier_hardware::clock;
use tokio::net::TcpListener;
use tokio::sync::watch;

pub use metrics::render;

use crate::config::Metrics;
use crate::hooks::HookStatus;
use crate::jobs::JobRegistry;
use crate::state::Published;
use crate::uplink::ConnectionStatus;

#[derive(Debug, Clone)]
pub struct Pages {
    pub published: Published,
    pub registry: Arc<JobRegistry>,
    /// Settings of the metrics page. A reload of the configuration changes them.
    pub metrics: Arc<RwLock<Metrics>>,
    /// `None` if no server is configured.
    pub uplink: Option<watch::Receiver<ConnectionStatus>>,
    /// `None` if no hook is configured.
    pub hooks: Option<watch::Receiver<Vec<HookStatus>>>,
}

/// Serves until the future is dropped.
pub async fn run(listener: TcpListener, pages: Pages) {
    let router = Router::new()
        .route("/", get(index))
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .with_state(pages);
    if let Err(err) = axum::serve(guard::Guard::new(listener), router).await {
        tracing::error!(%err, "the HTTP server has ended");
    }
}

async fn index() -> &'static str {
    "farrier agent: /metrics for Prometheus, /healthz for its coverage\n"
}

async fn metrics(Shared(pages): Shared<Pages>) -> Response {
    let Some(state) = pages.published.get() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "the agent is starting\n").into_response();
    };
    let config = pages.metrics.read().unwrap_or_else(PoisonError::into_inner).clone();
    let uplink = pages.uplink.as_ref().map(|status| status.borrow().clone());
    let now_ms = clock::since_boot_ms();
    let mut text =
        metrics::render(&state, now_ms, &pages.registry.jobs(), uplink.as_ref(), &config);
    if let Some(hooks) = &pages.hooks {
        text.push_str(&metrics::render_hooks(&hooks.borrow()));
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

async fn healthz(Shared(pages): Shared<Pages>) -> Response {
    let reasons = coverage_gaps(&pages.published, clock::since_boot_ms());
    if reasons.is_empty() {
        return "ok\n".into_response();
    }
    let mut text = String::from("coverage is incomplete\n");
    for reason in reasons {
        text.push_str(&reason);
        text.push('\n');
    }
    (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
}

/// Reasons why coverage is incomplete. Empty if it is complete.
pub fn coverage_gaps(published: &Published, now_ms: i64) -> Vec<String> {
    let Some(state) = published.get() else {
        return vec!["the agent is starting".to_owned()];
    };
    let staleness = state.staleness(now_ms);
    let losses = state.coverage_gaps.iter().chain(&staleness);
    let mut reasons: Vec<String> =
        losses.map(|loss| format!("{}: {}", loss.source, loss.reason)).collect();
    // Coverage is incomplete until every fast collector has reported. This reason is given only if
    // there is no more specific one.
    if reasons.is_empty() {
        let fast = state.collectors.iter().filter(|collector| collector.name.ends_with("-fast"));
        let silent = fast.filter(|collector| collector.age_s.is_none());
        let reason = |name: &str| format!("collectors: {name} has not reported yet");
        reasons.extend(silent.map(|collector| reason(&collector.name)));
    }
    reasons
}

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
