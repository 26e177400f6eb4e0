//! Serves `farrier status`. The response is cached until the health monitor publishes a new state,
//! or the state of the server connection, of the orders or of the hooks changes.

use std::sync::{Arc, Mutex, PoisonError};

use farrier_hardware::clock;
use tokio::sync::watch;

use crate::config::Config;
use crate::hooks::{HookStatus, Hooks};
use crate::jobs::protocol::{Answer, ProtocolErrorCode};
use crate::jobs::{JobRegistry, StatusProvider};
use crate::monitor::CoverageLoss;
use crate::orders::{OrderExecutor, OrdersError};
use crate::state::{Published, State};
use crate::status::{OrdersStatus, ServerStatus, Status};
use crate::uplink::{ConnectionStatus, Uplink, UplinkState};

/// State that the health monitor does not have: the server connection, the orders and the hooks.
#[derive(Debug, Clone, PartialEq)]
struct ServerState {
    server: ServerStatus,
    orders: OrdersStatus,
    hooks: Vec<HookStatus>,
}

/// Sources of [`ServerState`].
pub(crate) struct StatusSources {
    url: Option<String>,
    uplink: Option<(watch::Receiver<ConnectionStatus>, watch::Receiver<Option<u64>>)>,
    orders: Orders,
    hooks: Option<watch::Receiver<Vec<HookStatus>>>,
}

enum Orders {
    Off,
    On(OrderExecutor),
    /// Orders are enabled, but the executor failed to start.
    Failed(String),
}

impl StatusSources {
    /// `executor` is `Ok(None)` if orders are disabled, and an error if the executor failed to
    /// start.
    pub(crate) fn new(
        config: &Config,
        uplink: Option<&Uplink>,
        executor: &Result<Option<OrderExecutor>, OrdersError>,
        hooks: Option<&Hooks>,
    ) -> Self {
        Self {
            url: config.server.url.clone(),
            uplink: uplink.map(|uplink| (uplink.connection_status(), uplink.acked())),
            orders: match executor {
                Ok(Some(executor)) => Orders::On(executor.clone()),
                Ok(None) => Orders::Off,
                Err(err) => Orders::Failed(crate::monitor::Chain(err).to_string()),
            },
            hooks: hooks.map(Hooks::status),
        }
    }

    /// Reads the state without blocking. While the executor writes its journal, the state from the
    /// last call is used.
    fn read(&self, last: Option<&OrdersStatus>) -> ServerState {
        let server = match &self.uplink {
            Some((connection, acked)) => {
                let connection = connection.borrow().clone();
                ServerStatus {
                    url: self.url.clone(),
                    node: connection.node,
                    connection: connection.link,
                    acknowledged: *acked.borrow(),
                    certificate_expires: connection.certificate_expires,
                }
            }
            None => ServerStatus {
                url: None,
                node: None,
                connection: UplinkState::Standalone,
                acknowledged: None,
                certificate_expires: None,
            },
        };
        let orders = match &self.orders {
            Orders::On(executor) => {
                executor.status().or_else(|| last.cloned()).unwrap_or_else(|| {
                    OrdersStatus::Unknown {
                        reason: "the order journal is being written".to_owned(),
                    }
                })
            }
            Orders::Off => OrdersStatus::Off,
            Orders::Failed(reason) => OrdersStatus::Failed { reason: reason.clone() },
        };
        let hooks = self.hooks.as_ref().map(|hooks| hooks.borrow().clone());
        ServerState { server, orders, hooks: hooks.unwrap_or_default() }
    }
}

/// The cached response and the inputs that it was built from. If the state is stale, the response
/// is built again each second, because it contains the age of the state.
pub(crate) struct StatusCache {
    published: Published,
    registry: Arc<JobRegistry>,
    sources: StatusSources,
    cached: Mutex<Option<CachedStatus>>,
}

struct CachedStatus {
    state: Arc<State>,
    staleness: Option<CoverageLoss>,
    server_state: ServerState,
    line: Arc<str>,
}

impl StatusCache {
    pub(crate) fn new(
        published: Published,
        registry: Arc<JobRegistry>,
        sources: StatusSources,
    ) -> Self {
        Self { published, registry, sources, cached: Mutex::new(None) }
    }
}

impl StatusProvider for StatusCache {
    fn status(&self) -> Arc<str> {
        let Some(state) = self.published.get() else {
            let message = "the agent is starting";
            return Answer::Error { code: ProtocolErrorCode::Starting, message }.line().into();
        };
        let now_ms = clock::since_boot_ms();
        let staleness = state.staleness(now_ms);
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        let last = cached.as_ref().map(|cached| &cached.server_state.orders);
        let server_state = self.sources.read(last);
        let is_current = |cached: &&CachedStatus| {
            Arc::ptr_eq(&cached.state, &state)
                && cached.staleness == staleness
                && cached.server_state == server_state
        };
        if let Some(cached) = cached.as_ref().filter(is_current) {
            return Arc::clone(&cached.line);
        }
        let status = Status {
            server: Some(server_state.server.clone()),
            orders: Some(server_state.orders.clone()),
            hooks: server_state.hooks.clone(),
            ..Status::from_state(&state, self.registry.jobs(), now_ms)
        };
        let mut line = serde_json::to_string(&status).unwrap_or_default();
        line.push('\n');
        let line: Arc<str> = line.into();
        *cached = Some(CachedStatus { state, staleness, server_state, line: Arc::clone(&line) });
        line
    }
}
