//! `/metrics`, `/healthz` and an index, over HTTP/1.1.
//!
//! ```text
//! TcpListener ─ guard (connections, request bytes, time) ─> axum ─> Published snapshot ─> text
//! ```
//!
//! A request reads the newest snapshot and never waits for the health monitor. An old snapshot
//! means that the health monitor is stuck, which counts as unhealthy.

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
use crate::jobs::JobRegistry;
use crate::state::Published;
use crate::uplink::ConnectionStatus;

#[derive(Debug, Clone)]
pub struct Pages {
    pub published: Published,
    pub board: Arc<JobRegistry>,
    /// Metrics settings. A reload changes them.
    pub metrics: Arc<RwLock<Metrics>>,
    /// `None` if no server is configured.
    pub uplink: Option<watch::Receiver<ConnectionStatus>>,
}

/// Serves until dropped.
pub async fn run(listener: TcpListener, pages: Pages) {
    let router = Router::new()
        .route("/", get(index))
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .with_state(pages);
    if let Err(err) = axum::serve(guard::Guard::new(listener), router).await {
        tracing::error!(%err, "HTTP has ended");
    }
}

async fn index() -> &'static str {
    "farrier agent: /metrics for Prometheus, /healthz for whether it sees\n"
}

async fn metrics(Shared(pages): Shared<Pages>) -> Response {
    let Some(state) = pages.published.get() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "nothing is known yet\n").into_response();
    };
    let config = pages.metrics.read().unwrap_or_else(PoisonError::into_inner).clone();
    let uplink = pages.uplink.as_ref().map(|sight| sight.borrow().clone());
    let now_ms = clock::since_boot_ms();
    let text = metrics::render(&state, now_ms, &pages.board.jobs(), uplink.as_ref(), &config);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

async fn healthz(Shared(pages): Shared<Pages>) -> Response {
    let reasons = blind(&pages.published, clock::since_boot_ms());
    if reasons.is_empty() {
        return "ok\n".into_response();
    }
    let mut text = String::from("blind\n");
    for reason in reasons {
        text.push_str(&reason);
        text.push('\n');
    }
    (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
}

/// Reasons why coverage is incomplete. Empty if it is complete.
pub fn blind(published: &Published, now_ms: i64) -> Vec<String> {
    let Some(state) = published.get() else {
        return vec!["the agent has only just started".to_owned()];
    };
    let still = state.standstill(now_ms);
    let mut reasons: Vec<String> =
        state.blind.iter().chain(&still).map(|it| format!("{}: {}", it.what, it.why)).collect();
    // Nothing is known until every fast collector has reported. A specific reason says more.
    if reasons.is_empty() {
        let early = state.collectors.iter().filter(|it| it.name.ends_with("-fast"));
        let early = early.filter(|it| it.age_s.is_none());
        reasons.extend(early.map(|it| format!("collectors: {} has not looked yet", it.name)));
    }
    reasons
}

#[cfg(test)]
mod tests;
