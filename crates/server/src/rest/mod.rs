//! What people and programs may ask for over HTTP, on the agents' port: `/api/v1`, `/metrics`, `/healthz`.
//!
//! ```text
//! request ─> routes::TABLE ─> who asks (access::Store) ─> limits ─> query, body ─> handler ─┬─ Brain::look, a few thousand nodes at a time
//!               │                                                                           ├─ Brain::take ─> on disk, with their name
//!               └─> openapi                                                                 └─ follow::Tail ─> SSE, export: at the reader's pace
//! ```
//!
//! A handler is an entry of one table ([`routes`]), from which the OpenAPI document is made too. What a caller sees is cut to
//! their scope in each handler ([`caller`]), also in the log ([`sight`]).

mod answer_body;
mod artifacts;
mod body;
mod caller;
mod compatibility;
mod events;
mod export;
mod extent;
mod failure;
mod fleet;
mod limits;
mod matrix;
mod metrics;
mod near;
mod nodes;
mod openapi;
mod pagination;
mod query;
mod read;
mod redact;
mod reply;
mod requests;
mod routes;
mod stream;
#[cfg(test)]
mod tests;
mod tokens;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use farrier_facts::FactSet;
use farrier_fleet::fleet::NodeId;
use farrier_wire::rest::{ConnectionView, EmptyRequest, HintCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap};
use hyper::http::request;
use hyper::{Request, Response, Version};
use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tonic::body::Body;

pub use limits::Rate;
#[doc(hidden)]
pub use read::reads;

use crate::access::{Store, TokenDigest};
use crate::artifacts::ArtifactStore;
use crate::audit::Audit;
use crate::controller::Controller;
use crate::counters::Counters;
use crate::follow::Tail;
use crate::ingest::SessionRegistry;
use crate::serve::{ActiveRequest, ConnectionActivity};
use crate::space::Space;
use answer_body::Hold;
use body::body_of;
use caller::Caller;
use compatibility::SharedJudgements;
use failure::{Failure, unwell};
use limits::{
    ANSWER_WAIT, BODY_BYTES_MAX, BODY_WAIT, Limits, PATH_BYTES_MAX, StreamPlace, TOKEN_EVERY,
};
use query::Params;
use reply::Reply;
use routes::{Found, Route};

/// What handlers need.
#[derive(Debug)]
pub(crate) struct AppState {
    pub(crate) brain: Controller,
    pub(crate) tail: Tail,
    pub(crate) roster: Arc<SessionRegistry>,
    pub(crate) space: Arc<Space>,
    pub(crate) heartbeat_interval: Duration,
    pub(crate) store: Arc<Store>,
    pub(crate) artifacts: Arc<ArtifactStore>,
    pub(crate) fingerprint: String,
    pub(crate) counters: Arc<Counters>,
    pub(crate) facts: Cow<'static, FactSet>,
    pub(crate) changes: Arc<Audit>,
    /// Whether the server ends: who follows the log is let go then.
    pub(crate) stopped: watch::Receiver<bool>,
}

impl AppState {
    /// Whether there is a session with a node's agent.
    fn connection(&self, node: &NodeId) -> ConnectionView {
        self.roster.connection(node, self.heartbeat_interval, self.brain.now())
    }
}

/// Answers people and programs.
#[derive(Debug, Clone)]
pub(crate) struct Rest {
    site: Arc<AppState>,
    limits: Arc<Limits>,
    /// Answers by the first digit of their status.
    answered: Arc<[AtomicU64; 6]>,
    health: Arc<metrics::Health>,
    judgements: SharedJudgements,
}

/// One request, with all that its handler may look at.
struct Call {
    site: Arc<AppState>,
    rest: Rest,
    /// None where anybody may ask.
    caller: Option<Caller>,
    path: Params,
    query: Params,
    headers: HeaderMap,
    body: Bytes,
    /// A place among the token's requests; a stream gives it back for one of its own. The body of the answer has it, too.
    hold: Option<Hold>,
}

impl Call {
    /// Who asks; a route that asks for a deed has one.
    fn caller(&self) -> Result<&Caller, Failure> {
        self.caller.as_ref().ok_or_else(Failure::unknown_caller)
    }

    /// The body, read strictly.
    fn body<T: DeserializeOwned + Serialize>(&self) -> Result<T, Failure> {
        body_of(&self.body)
    }

    /// A place for an answer that may last for long, in place of that for a short one.
    fn stream_place(&mut self) -> Result<StreamPlace, Failure> {
        let place = self.rest.limits.stream(self.caller()?.person.token)?;
        self.hold = None;
        Ok(place)
    }

    /// Returns when the token of the caller holds no more, or that cannot be looked up.
    async fn token_lost(&self) -> Failure {
        let digest = match self.caller() {
            Ok(caller) => &caller.digest,
            Err(failure) => return failure,
        };
        loop {
            tokio::time::sleep(TOKEN_EVERY).await;
            match self.site.holder(digest.clone()).await {
                Ok(Some(_)) => {}
                Ok(None) => return Failure::unknown_caller(),
                Err(failure) => return failure,
            }
        }
    }

    /// Nothing is said, or nothing in so many words.
    fn nothing(&self) -> Result<(), Failure> {
        if self.body.is_empty() { Ok(()) } else { self.body().map(|EmptyRequest {}| ()) }
    }
}

impl Rest {
    pub(crate) fn new(site: AppState, rate: Rate) -> Self {
        let limits = Arc::new(Limits::new(rate));
        Self {
            site: Arc::new(site),
            limits,
            answered: Arc::default(),
            health: Arc::default(),
            judgements: SharedJudgements::default(),
        }
    }

    /// Answers a request, whatever it is.
    pub(crate) async fn answer(
        &self,
        request: Request<Incoming>,
        presence: &Arc<ConnectionActivity>,
    ) -> Response<Body> {
        let (head, mut body) = request.into_parts();
        let is_http2 = head.version == Version::HTTP_2;
        let mut hold = None;
        let answer = self.answer_or_fail(head, &mut body, presence, &mut hold).await;
        if is_http2 && !body.is_end_stream() {
            tokio::spawn(body::drain(body));
        }
        let response = match answer {
            Ok(reply) => reply.into_response(hold),
            Err(failure) => reply::failed(&failure, hold),
        };
        let class = usize::from(response.status().as_u16() / 100);
        if let Some(count) = self.answered.get(class) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        response
    }

    async fn answer_or_fail(
        &self,
        head: request::Parts,
        body: &mut Incoming,
        presence: &Arc<ConnectionActivity>,
        hold: &mut Option<Hold>,
    ) -> Result<Reply, Failure> {
        let query = head.uri.query().unwrap_or_default();
        if head.uri.path().len() + query.len() > PATH_BYTES_MAX {
            return Err(Failure::wrong("the path is too long"));
        }
        let Found { route, path } = routes::find(&head.method, head.uri.path())?;
        let caller = match route.deed {
            Some(deed) => {
                let caller = self.known(&head.headers).await?;
                caller.check(deed)?;
                Some(caller)
            }
            None => None,
        };
        if let Some(caller) = &caller {
            let place = self.limits.admit(caller.person.token, Instant::now())?;
            *hold = Some(Hold::new(place, ActiveRequest::new(presence)));
        }
        let query = Params::read(query, route.query)?;
        let body = self.read(route, &head.headers, body).await?;
        let call = Call {
            site: Arc::clone(&self.site),
            rest: self.clone(),
            caller,
            path,
            query,
            headers: head.headers,
            body,
            hold: hold.clone(),
        };
        let answer = tokio::time::timeout(ANSWER_WAIT, (route.run)(call)).await;
        answer.map_err(|_| Failure::slow())?
    }

    /// Whose token is in the head.
    async fn known(&self, headers: &HeaderMap) -> Result<Caller, Failure> {
        let mut given = headers.get_all(AUTHORIZATION).iter();
        let (Some(first), None) = (given.next(), given.next()) else {
            return Err(Failure::unknown_caller());
        };
        let text = first.to_str().map_err(|_| Failure::unknown_caller())?;
        let (scheme, token) = text.split_once(' ').ok_or_else(Failure::unknown_caller)?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(Failure::unknown_caller());
        }
        let digest = TokenDigest::of(token);
        self.site.holder(digest).await?.ok_or_else(Failure::unknown_caller)
    }

    async fn read(
        &self,
        route: &Route,
        headers: &HeaderMap,
        body: &mut Incoming,
    ) -> Result<Bytes, Failure> {
        let Some(_) = route.body else { return nothing(route, body).await };
        let read = Limited::new(body, BODY_BYTES_MAX).collect();
        let read = tokio::time::timeout(BODY_WAIT, read).await.map_err(|_| Failure::slow_body())?;
        let read = read.map_err(|err| match err.downcast_ref::<LengthLimitError>() {
            Some(_) => Failure::too_large(BODY_BYTES_MAX),
            None => Failure::wrong("the body was cut off"),
        })?;
        let bytes = read.to_bytes();
        let media = headers.get(CONTENT_TYPE).and_then(|it| it.to_str().ok()).unwrap_or_default();
        let media = media.split(';').next().unwrap_or_default().trim();
        if !bytes.is_empty() && !media.eq_ignore_ascii_case("application/json") {
            return Err(Failure::no_json());
        }
        Ok(bytes)
    }
}

/// Does to its end what changes more than one place, also where its client goes away or is told that it takes too long.
async fn finished(
    change: impl Future<Output = Result<Reply, Failure>> + Send + 'static,
) -> Result<Reply, Failure> {
    tokio::spawn(change).await.map_err(|_| Failure::ending())?
}

/// The body of a route that takes none: nothing of it is kept, and where anybody may ask nothing is waited for.
async fn nothing(route: &Route, body: &mut Incoming) -> Result<Bytes, Failure> {
    if route.deed.is_none() {
        return Ok(Bytes::new());
    }
    let ended = async {
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Failure::wrong("the body was cut off"))?;
            if frame.data_ref().is_some_and(|it| !it.is_empty()) {
                return Err(Failure::wrong("this path takes no body"));
            }
        }
        Ok(Bytes::new())
    };
    tokio::time::timeout(BODY_WAIT, ended).await.map_err(|_| Failure::slow_body())?
}

impl AppState {
    /// Who has this token, where it holds.
    async fn holder(&self, digest: TokenDigest) -> Result<Option<Caller>, Failure> {
        let person = self.stored({
            let digest = digest.clone();
            move |store| store.person(&digest, Timestamp::now())
        });
        Ok(person.await?.map(|person| Caller { person, digest }))
    }

    /// Asks the list of who may speak, which is on disk.
    async fn stored<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Store) -> Result<T, crate::access::AccessError> + Send + 'static,
    ) -> Result<T, Failure> {
        let store = Arc::clone(&self.store);
        let asked = tokio::task::spawn_blocking(move || ask(&store)).await;
        asked.map_err(|_| Failure::ending())?.map_err(|err| access_failed(&err))
    }
}

fn access_failed(err: &crate::access::AccessError) -> Failure {
    use crate::access::AccessError::{NoSuchNode, NoSuchToken};
    match err {
        NoSuchNode(node) => Failure::no_node(node.as_str()),
        NoSuchToken(_) => Failure::not_found(err.to_string(), HintCode::ListTokens),
        _ => unwell(err),
    }
}
