//! The REST API on the same port as the agents: `/api/v1`, `/metrics`, `/healthz`.
//!
//! ```text
//! request ─> routes::TABLE ─> authenticate ─> limits ─> query, body ─> handler
//!                │            (AccessStore)                              ├─ Controller::read
//!                └─> openapi                                             ├─ Controller::submit
//!                                                                        └─ LogTail ─> SSE, export
//! ```
//!
//! Each handler has an entry in the table of [`routes`]. The OpenAPI document is generated from
//! this table. Each handler limits its answer to the caller's scope ([`caller`]), and redacts log
//! entries ([`redact`]).

mod answer_body;
mod artifacts;
mod body;
mod caller;
mod compatibility;
mod domain_impacts;
mod events;
mod export;
mod extent;
mod failure;
mod findings;
mod fleet;
mod health;
mod history;
mod limits;
mod matrix;
mod metrics;
mod node_filter;
mod nodes;
mod notify;
mod openapi;
mod pagination;
mod query;
mod read;
mod redact;
mod reply;
mod report;
mod requests;
mod routes;
mod similar;
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
use farrier_notify::ReceiverFiles;
use farrier_wire::rest::{ConnectionView, EmptyRequest, HintCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap};
use hyper::http::request;
use hyper::{Request, Response, Version};
use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{Semaphore, watch};
use tonic::body::Body;

pub use limits::Rate;
#[doc(hidden)]
pub use read::reads;

use crate::access::{AccessStore, TokenDigest};
use crate::artifacts::ArtifactStore;
use crate::audit::Audit;
use crate::controller::Controller;
use crate::counters::Counters;
use crate::ingest::SessionRegistry;
use crate::log_tail::LogTail;
use crate::notify::NotifyHandle;
use crate::policy_key::PolicyKey;
use crate::serve::{ActiveRequest, ConnectionActivity};
use crate::space::DiskSpace;
use answer_body::AnswerHold;
use body::parse_body;
use caller::Caller;
use compatibility::SharedVerdictCache;
use failure::{Failure, internal_error};
use limits::{
    ANSWER_TIMEOUT, BODY_BYTES_MAX, BODY_TIMEOUT, Limits, PATH_BYTES_MAX, StreamSlot,
    TOKEN_CHECK_INTERVAL,
};
use query::Params;
use reply::Reply;
use routes::{Route, RouteMatch};

#[derive(Debug)]
pub(crate) struct AppState {
    pub(crate) controller: Controller,
    pub(crate) tail: LogTail,
    pub(crate) sessions: Arc<SessionRegistry>,
    pub(crate) space: Arc<DiskSpace>,
    pub(crate) heartbeat_interval: Duration,
    pub(crate) store: Arc<AccessStore>,
    pub(crate) artifacts: Arc<ArtifactStore>,
    pub(crate) fingerprint: String,
    pub(crate) counters: Arc<Counters>,
    pub(crate) facts: Cow<'static, FactSet>,
    /// Keys of which one has to have signed a new policy, if there are any.
    pub(crate) policy_keys: Vec<PolicyKey>,
    pub(crate) changes: Arc<Audit>,
    pub(crate) notify: Arc<NotifyHandle>,
    /// Which programs and secrets the receivers of a policy may name.
    pub(crate) receiver_files: ReceiverFiles,
    /// Becomes true when the server stops. This ends streams.
    pub(crate) stopped: watch::Receiver<bool>,
}

impl AppState {
    fn connection(&self, node: &NodeId) -> ConnectionView {
        self.sessions.connection(node, self.heartbeat_interval, self.controller.now())
    }
}

/// The REST service.
#[derive(Debug, Clone)]
pub(crate) struct Rest {
    app: Arc<AppState>,
    limits: Arc<Limits>,
    /// The number of answers, by the first digit of their status.
    answered: Arc<[AtomicU64; 6]>,
    health: Arc<health::Health>,
    verdicts: SharedVerdictCache,
    /// A lock: only one request at a time computes a report from the log.
    reports: Arc<Semaphore>,
}

/// One request, as its handler sees it.
struct Call {
    app: Arc<AppState>,
    rest: Rest,
    /// `None` for routes that need no permission.
    caller: Option<Caller>,
    path: Params,
    query: Params,
    headers: HeaderMap,
    body: Bytes,
    /// One of the slots that limit how many answers the caller's token gets at a time. The body of
    /// the answer shares the slot. If the answer is a stream, the slot is exchanged for a stream
    /// slot.
    hold: Option<AnswerHold>,
}

impl Call {
    /// Returns the caller. A request has a caller if its route needs a permission.
    fn caller(&self) -> Result<&Caller, Failure> {
        self.caller.as_ref().ok_or_else(Failure::unauthenticated)
    }

    /// Parses the body as JSON. Unknown fields are an error.
    fn body<T: DeserializeOwned + Serialize>(&self) -> Result<T, Failure> {
        parse_body(&self.body)
    }

    /// Exchanges the answer slot for a stream slot.
    fn stream_slot(&mut self) -> Result<StreamSlot, Failure> {
        let slot = self.rest.limits.stream(self.caller()?.user.token)?;
        self.hold = None;
        Ok(slot)
    }

    /// Returns when the caller's token becomes invalid or cannot be checked.
    async fn token_invalidated(&self) -> Failure {
        let digest = match self.caller() {
            Ok(caller) => &caller.digest,
            Err(failure) => return failure,
        };
        loop {
            tokio::time::sleep(TOKEN_CHECK_INTERVAL).await;
            match self.app.caller_for(digest.clone()).await {
                Ok(Some(_)) => {}
                Ok(None) => return Failure::unauthenticated(),
                Err(failure) => return failure,
            }
        }
    }

    /// Accepts no body, or an empty object.
    fn expect_empty_body(&self) -> Result<(), Failure> {
        if self.body.is_empty() { Ok(()) } else { self.body().map(|EmptyRequest {}| ()) }
    }
}

impl Rest {
    pub(crate) fn new(app: AppState, rate: Rate) -> Self {
        let limits = Arc::new(Limits::new(rate));
        Self {
            app: Arc::new(app),
            limits,
            answered: Arc::default(),
            health: Arc::default(),
            verdicts: SharedVerdictCache::default(),
            reports: Arc::new(Semaphore::new(1)),
        }
    }

    pub(crate) async fn answer(
        &self,
        request: Request<Incoming>,
        activity: &Arc<ConnectionActivity>,
    ) -> Response<Body> {
        let (head, mut body) = request.into_parts();
        let is_http2 = head.version == Version::HTTP_2;
        let mut hold = None;
        let answer = self.handle(head, &mut body, activity, &mut hold).await;
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

    async fn handle(
        &self,
        head: request::Parts,
        body: &mut Incoming,
        activity: &Arc<ConnectionActivity>,
        hold: &mut Option<AnswerHold>,
    ) -> Result<Reply, Failure> {
        let query = head.uri.query().unwrap_or_default();
        if head.uri.path().len() + query.len() > PATH_BYTES_MAX {
            return Err(Failure::bad_request("the path and the query are too long"));
        }
        let RouteMatch { route, path } = routes::find(&head.method, head.uri.path())?;
        let caller = match route.permission {
            Some(permission) => {
                let caller = self.authenticate(&head.headers).await?;
                caller.check(permission)?;
                Some(caller)
            }
            None => None,
        };
        if let Some(caller) = &caller {
            let slot = self.limits.admit(caller.user.token, Instant::now())?;
            *hold = Some(AnswerHold::new(slot, ActiveRequest::new(activity)));
        }
        let query = Params::read(query, route.query)?;
        let body = self.read(route, &head.headers, body).await?;
        let call = Call {
            app: Arc::clone(&self.app),
            rest: self.clone(),
            caller,
            path,
            query,
            headers: head.headers,
            body,
            hold: hold.clone(),
        };
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, (route.run)(call)).await;
        answer.map_err(|_| Failure::overloaded())?
    }

    /// Identifies the caller by means of the bearer token.
    async fn authenticate(&self, headers: &HeaderMap) -> Result<Caller, Failure> {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let (Some(first), None) = (values.next(), values.next()) else {
            return Err(Failure::unauthenticated());
        };
        let text = first.to_str().map_err(|_| Failure::unauthenticated())?;
        let (scheme, token) = text.split_once(' ').ok_or_else(Failure::unauthenticated)?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(Failure::unauthenticated());
        }
        let digest = TokenDigest::from_secret(token);
        self.app.caller_for(digest).await?.ok_or_else(Failure::unauthenticated)
    }

    async fn read(
        &self,
        route: &Route,
        headers: &HeaderMap,
        body: &mut Incoming,
    ) -> Result<Bytes, Failure> {
        let Some(_) = route.body else { return discard_body(route, body).await };
        let read = Limited::new(body, BODY_BYTES_MAX).collect();
        let read = tokio::time::timeout(BODY_TIMEOUT, read)
            .await
            .map_err(|_| Failure::request_timeout())?;
        let read = read.map_err(|err| match err.downcast_ref::<LengthLimitError>() {
            Some(_) => Failure::too_large(BODY_BYTES_MAX),
            None => Failure::bad_request("the body was truncated"),
        })?;
        let bytes = read.to_bytes();
        let media =
            headers.get(CONTENT_TYPE).and_then(|header| header.to_str().ok()).unwrap_or_default();
        let media = media.split(';').next().unwrap_or_default().trim();
        if !bytes.is_empty() && !media.eq_ignore_ascii_case("application/json") {
            return Err(Failure::unsupported_media_type());
        }
        Ok(bytes)
    }
}

/// Completes a change that concerns several stores, even if the client disconnects or the request
/// times out.
async fn run_to_completion(
    change: impl Future<Output = Result<Reply, Failure>> + Send + 'static,
) -> Result<Reply, Failure> {
    tokio::spawn(change).await.map_err(|_| Failure::stopping())?
}

/// Checks that a request to a route without a body has none: waits for the end of the body, and
/// fails if the body has content. Ignores the body if the route needs no token.
async fn discard_body(route: &Route, body: &mut Incoming) -> Result<Bytes, Failure> {
    if route.permission.is_none() {
        return Ok(Bytes::new());
    }
    let ended = async {
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Failure::bad_request("the body was truncated"))?;
            if frame.data_ref().is_some_and(|data| !data.is_empty()) {
                return Err(Failure::bad_request("this path accepts no body"));
            }
        }
        Ok(Bytes::new())
    };
    tokio::time::timeout(BODY_TIMEOUT, ended).await.map_err(|_| Failure::request_timeout())?
}

impl AppState {
    /// Returns the caller if the token is valid.
    async fn caller_for(&self, digest: TokenDigest) -> Result<Option<Caller>, Failure> {
        let user = self.with_store({
            let digest = digest.clone();
            move |store| store.user(&digest, Timestamp::now())
        });
        Ok(user.await?.map(|user| Caller { user, digest }))
    }

    /// Accesses the access store on a blocking thread.
    async fn with_store<T: Send + 'static>(
        &self,
        access: impl FnOnce(&AccessStore) -> Result<T, crate::access::AccessError> + Send + 'static,
    ) -> Result<T, Failure> {
        let store = Arc::clone(&self.store);
        let result = tokio::task::spawn_blocking(move || access(&store)).await;
        result.map_err(|_| Failure::stopping())?.map_err(|err| access_failure(&err))
    }
}

fn access_failure(err: &crate::access::AccessError) -> Failure {
    use crate::access::AccessError::{NoSuchNode, NoSuchToken};
    match err {
        NoSuchNode(node) => Failure::node_not_found(node.as_str()),
        NoSuchToken(_) => Failure::not_found(err.to_string(), HintCode::ListTokens),
        _ => internal_error(err),
    }
}
