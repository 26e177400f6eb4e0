//! The fleet server, with the credentials saved by `farrier login`.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use farrier_wire::rest::{NodeDetail, NodePage, NodeRow};
use jiff::Timestamp;

use crate::commands::fleet::session::{FleetSession, Login, Path};
use crate::commands::top::model::{FleetSample, SourceUpdate};
use crate::commands::top::sample::SourceOutage;
use crate::commands::top::view_state::ServerQuery;
use crate::failure;

/// All phases except in service. All nodes in these phases are requested, no matter how large the
/// fleet is.
const NOT_IN_SERVICE: [&str; 6] =
    ["quarantined", "repairing", "suspect", "verifying", "held", "joining"];

/// Maximum number of nodes in service: one page of the server.
const IN_SERVICE_MAX: u32 = 500;

/// Page size: the server's maximum.
const PAGE_SIZE: u32 = 500;

/// A server that is polled.
pub(in crate::commands::top) struct ServerSource {
    login: Login,
    /// The open connection, if any.
    session: Option<FleetSession>,
    query: ServerQuery,
}

impl ServerSource {
    pub(in crate::commands::top) fn from_login() -> anyhow::Result<Self> {
        Ok(Self { login: Login::read()?, session: None, query: ServerQuery::default() })
    }

    /// Polls until the sender of queries is gone.
    pub(in crate::commands::top) fn run(
        mut self,
        interval: Duration,
        queries: &Receiver<ServerQuery>,
        send: &mut dyn FnMut(SourceUpdate),
    ) {
        loop {
            send(match self.sample() {
                Ok(fleet) => SourceUpdate::Fleet(Box::new(fleet)),
                Err(err) => {
                    self.session = None;
                    SourceUpdate::FleetUnavailable(outage(&err))
                }
            });
            match queries.recv_timeout(interval) {
                Ok(query) => self.query = query,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    pub(in crate::commands::top) fn url(&self) -> &str {
        &self.login.server
    }

    /// Requests everything that is shown.
    pub(in crate::commands::top) fn sample(&mut self) -> anyhow::Result<FleetSample> {
        let mut session = match self.session.take() {
            Some(session) => session,
            None => FleetSession::open(&self.login)?,
        };
        let mut fleet = FleetSample { url: self.login.server.clone(), ..FleetSample::default() };
        for phase in NOT_IN_SERVICE {
            fleet.nodes.extend(list_nodes(&mut session, phase)?);
        }
        let path = Path::new("/api/v1/nodes")
            .with("phase", Some("in-service"))
            .with("text", self.query.filter.as_ref())
            .with("limit", Some(IN_SERVICE_MAX));
        let page: NodePage = session.get(path.as_str())?;
        fleet.nodes.extend(page.nodes);
        fleet.has_more = page.next.is_some();
        // If a node changes its phase between two requests, it appears twice. Keep only one.
        fleet.nodes.sort_by(|one, other| one.node.cmp(&other.node));
        fleet.nodes.dedup_by(|one, other| one.node == other.node);
        if let Some(name) = &self.query.open {
            match session.get::<NodeDetail>(&format!("/api/v1/nodes/{name}")) {
                Ok(node) => fleet.open = Some(node),
                Err(err) => fleet.open_failed = Some(format!("{err:#}")),
            }
        }
        fleet.at = Some(Timestamp::now());
        self.session = Some(session);
        Ok(fleet)
    }
}

/// An outage that starts now.
pub(in crate::commands::top) fn outage(err: &anyhow::Error) -> SourceOutage {
    SourceOutage { since: Timestamp::now(), reason: format!("{err:#}"), hint: failure::hint(err) }
}

fn list_nodes(session: &mut FleetSession, phase: &str) -> anyhow::Result<Vec<NodeRow>> {
    let mut nodes = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let path = Path::new("/api/v1/nodes")
            .with("phase", Some(phase))
            .with("cursor", cursor)
            .with("limit", Some(PAGE_SIZE));
        let page: NodePage = session.get(path.as_str())?;
        nodes.extend(page.nodes);
        if page.next.is_none() {
            return Ok(nodes);
        }
        cursor = page.next;
    }
}
