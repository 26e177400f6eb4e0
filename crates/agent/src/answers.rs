//! Serves `farrier status`. The response is cached per snapshot, and rebuilt when the server or
//! order state changes.

use std::sync::{Arc, Mutex, PoisonError};

use farrier_hardware::clock;
use tokio::sync::watch;

use crate::config::Config;
use crate::jobs::protocol::{Answer, ErrorCode};
use crate::jobs::{Answers, JobRegistry};
use crate::monitor::CoverageLoss;
use crate::orders::{OrderExecutor, OrdersError};
use crate::state::{Published, State};
use crate::status::{OrdersStatus, ServerStatus, Status};
use crate::uplink::{ConnectionStatus, Link, Uplink};

/// State that the health monitor does not have: the server and its orders.
#[derive(Debug, Clone, PartialEq)]
struct Outside {
    server: ServerStatus,
    orders: OrdersStatus,
}

/// Sources of that state.
pub(crate) struct StatusCache {
    url: Option<String>,
    uplink: Option<(watch::Receiver<ConnectionStatus>, watch::Receiver<Option<u64>>)>,
    orders: Orders,
}

enum Orders {
    Off,
    OrderExecutor(OrderExecutor),
    /// Enabled, but failed to start.
    Failed(String),
}

impl StatusCache {
    /// `desk` is `None` if orders are disabled, and an error if they failed to start.
    pub(crate) fn new(
        config: &Config,
        uplink: Option<&Uplink>,
        desk: &Result<Option<OrderExecutor>, OrdersError>,
    ) -> Self {
        Self {
            url: config.server.url.clone(),
            uplink: uplink.map(|it| (it.sight(), it.acked())),
            orders: match desk {
                Ok(Some(desk)) => Orders::OrderExecutor(desk.clone()),
                Ok(None) => Orders::Off,
                Err(err) => Orders::Failed(crate::monitor::Chain(err).to_string()),
            },
        }
    }

    /// Never blocks: while the executor is busy with its disk, its last known state is reused.
    fn look(&self, last: Option<&OrdersStatus>) -> Outside {
        let server = match &self.uplink {
            Some((sight, acked)) => {
                let sight = sight.borrow().clone();
                ServerStatus {
                    url: self.url.clone(),
                    node: sight.node,
                    link: sight.link,
                    acknowledged: *acked.borrow(),
                    certificate_until: sight.certificate_until,
                }
            }
            None => ServerStatus {
                url: None,
                node: None,
                link: Link::Alone,
                acknowledged: None,
                certificate_until: None,
            },
        };
        let orders = match &self.orders {
            Orders::OrderExecutor(desk) => {
                desk.at_hand().or_else(|| last.cloned()).unwrap_or_else(|| OrdersStatus::Unknown {
                    why: "their journal is being written".to_owned(),
                })
            }
            Orders::Off => OrdersStatus::Off,
            Orders::Failed(why) => OrdersStatus::Failed { why: why.clone() },
        };
        Outside { server, orders }
    }
}

/// The cached response and its inputs. A stale snapshot is rendered again each second.
pub(crate) struct StatusLine {
    published: Published,
    board: Arc<JobRegistry>,
    neighbours: StatusCache,
    made: Mutex<Option<Made>>,
}

struct Made {
    of: Arc<State>,
    still: Option<CoverageLoss>,
    outside: Outside,
    line: Arc<str>,
}

impl StatusLine {
    pub(crate) fn new(
        published: Published,
        board: Arc<JobRegistry>,
        neighbours: StatusCache,
    ) -> Self {
        Self { published, board, neighbours, made: Mutex::new(None) }
    }
}

impl Answers for StatusLine {
    fn status(&self) -> Arc<str> {
        let Some(state) = self.published.get() else {
            let message = "the agent has only just started";
            return Answer::Error { code: ErrorCode::Starting, message }.line().into();
        };
        let now_ms = clock::since_boot_ms();
        let still = state.standstill(now_ms);
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let outside = self.neighbours.look(made.as_ref().map(|it| &it.outside.orders));
        let same = |made: &&Made| {
            Arc::ptr_eq(&made.of, &state) && made.still == still && made.outside == outside
        };
        if let Some(made) = made.as_ref().filter(same) {
            return Arc::clone(&made.line);
        }
        let status = Status {
            server: Some(outside.server.clone()),
            orders: Some(outside.orders.clone()),
            ..Status::of(&state, self.board.jobs(), now_ms)
        };
        let mut line = serde_json::to_string(&status).unwrap_or_default();
        line.push('\n');
        let line: Arc<str> = line.into();
        *made = Some(Made { of: state, still, outside, line: Arc::clone(&line) });
        line
    }
}
