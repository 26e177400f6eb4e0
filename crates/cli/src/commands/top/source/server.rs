//! The fleet's server, by the login that `farrier login` kept.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use farrier_wire::rest::{NodeDetail, NodePage, NodeRow};
use jiff::Timestamp;

use crate::commands::fleet::session::{Login, Path, Session};
use crate::commands::top::board::{Fleet, Told};
use crate::commands::top::now::Silence;
use crate::failure;

/// How nodes stand that are not in service: all of these are asked for, however large the fleet is.
const OUT: [&str; 6] = ["quarantined", "in-repair", "suspect", "verifying", "held", "joining"];

/// Nodes in service that are shown: more than anybody reads, and one page of the server's.
const IN_SERVICE_MAX: u32 = 500;

/// A server that is asked again and again.
pub(in crate::commands::top) struct Server {
    login: Login,
    /// A connection, until it breaks.
    session: Option<Session>,
    open: Option<String>,
}

impl Server {
    pub(in crate::commands::top) fn kept() -> anyhow::Result<Self> {
        Ok(Self { login: Login::read()?, session: None, open: None })
    }

    /// Asks until nobody listens, or wishes any more.
    pub(in crate::commands::top) fn run(
        mut self,
        interval: Duration,
        wishes: &Receiver<Option<String>>,
        tell: &mut dyn FnMut(Told),
    ) {
        loop {
            tell(match self.ask() {
                Ok(fleet) => Told::Fleet(Box::new(fleet)),
                Err(err) => {
                    self.session = None;
                    Told::FleetSilent(Silence {
                        since: Timestamp::now(),
                        why: format!("{err:#}"),
                        hint: failure::hint(&err),
                    })
                }
            });
            match wishes.recv_timeout(interval) {
                Ok(open) => self.open = open,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// All that is shown.
    pub(in crate::commands::top) fn ask(&mut self) -> anyhow::Result<Fleet> {
        let mut session = match self.session.take() {
            Some(session) => session,
            None => Session::open(&self.login)?,
        };
        let mut fleet = Fleet { url: self.login.server.clone(), ..Fleet::default() };
        for standing in OUT {
            fleet.nodes.extend(all(&mut session, standing)?);
        }
        let (nodes, next) = page(&mut session, "in-service", None, IN_SERVICE_MAX)?;
        fleet.nodes.extend(nodes);
        fleet.has_more = next.is_some();
        // One that changed its standing between two questions is told twice, or the newer way.
        fleet.nodes.sort_by(|one, other| one.node.cmp(&other.node));
        fleet.nodes.dedup_by(|one, other| one.node == other.node);
        if let Some(name) = &self.open {
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

fn all(session: &mut Session, standing: &str) -> anyhow::Result<Vec<NodeRow>> {
    let mut nodes = Vec::new();
    let mut cursor = None;
    loop {
        let (some, next) = page(session, standing, cursor, 500)?;
        nodes.extend(some);
        if next.is_none() {
            return Ok(nodes);
        }
        cursor = next;
    }
}

fn page(
    session: &mut Session,
    standing: &str,
    cursor: Option<String>,
    limit: u32,
) -> anyhow::Result<(Vec<NodeRow>, Option<String>)> {
    let path = Path::new("/api/v1/nodes")
        .with("standing", Some(standing))
        .with("cursor", cursor)
        .with("limit", Some(limit));
    let page: NodePage = session.get(path.as_str())?;
    Ok((page.nodes, page.next))
}
