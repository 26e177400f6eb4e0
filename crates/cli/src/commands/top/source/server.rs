//! The fleet's server, by the login that `farrier login` kept.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use farrier_wire::rest::{NodeDetail, NodePage, NodeRow};
use jiff::Timestamp;

use crate::commands::fleet::session::{Login, Path, Session};
use crate::commands::top::board::{Fleet, Told};
use crate::commands::top::now::Silence;
use crate::commands::top::screen::Question;
use crate::failure;

/// How nodes stand that are not in service: all of these are asked for, however large the fleet is.
const OUT: [&str; 6] = ["quarantined", "repairing", "suspect", "verifying", "held", "joining"];

/// Nodes in service that are shown: more than anybody reads, and one page of the server's.
const IN_SERVICE_MAX: u32 = 500;

/// Nodes in one answer, the most that the server gives.
const PAGE: u32 = 500;

/// A server that is asked again and again.
pub(in crate::commands::top) struct Server {
    login: Login,
    /// A connection, until it breaks.
    session: Option<Session>,
    question: Question,
}

impl Server {
    pub(in crate::commands::top) fn kept() -> anyhow::Result<Self> {
        Ok(Self { login: Login::read()?, session: None, question: Question::default() })
    }

    /// Asks until nobody listens, or wishes any more.
    pub(in crate::commands::top) fn run(
        mut self,
        interval: Duration,
        wishes: &Receiver<Question>,
        tell: &mut dyn FnMut(Told),
    ) {
        loop {
            tell(match self.ask() {
                Ok(fleet) => Told::Fleet(Box::new(fleet)),
                Err(err) => {
                    self.session = None;
                    Told::FleetSilent(silence(&err))
                }
            });
            match wishes.recv_timeout(interval) {
                Ok(question) => self.question = question,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Where it is.
    pub(in crate::commands::top) fn url(&self) -> &str {
        &self.login.server
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
        let like = Path::new("/api/v1/nodes")
            .with("standing", Some("in-service"))
            .with("text", self.question.filter.as_ref())
            .with("limit", Some(IN_SERVICE_MAX));
        let some: NodePage = session.get(like.as_str())?;
        fleet.nodes.extend(some.nodes);
        fleet.has_more = some.next.is_some();
        // One that changed its standing between two questions is told twice, or the newer way.
        fleet.nodes.sort_by(|one, other| one.node.cmp(&other.node));
        fleet.nodes.dedup_by(|one, other| one.node == other.node);
        if let Some(name) = &self.question.open {
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

/// That it does not answer from now on, and why.
pub(in crate::commands::top) fn silence(err: &anyhow::Error) -> Silence {
    Silence { since: Timestamp::now(), why: format!("{err:#}"), hint: failure::hint(err) }
}

fn all(session: &mut Session, standing: &str) -> anyhow::Result<Vec<NodeRow>> {
    let mut nodes = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let path = Path::new("/api/v1/nodes")
            .with("standing", Some(standing))
            .with("cursor", cursor)
            .with("limit", Some(PAGE));
        let page: NodePage = session.get(path.as_str())?;
        nodes.extend(page.nodes);
        if page.next.is_none() {
            return Ok(nodes);
        }
        cursor = page.next;
    }
}
