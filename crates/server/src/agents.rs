//! The gRPC service for agents: enrolment, certificate renewal, sessions and artifacts.

use std::sync::Arc;
use std::time::Instant;

use farrier_fleet::fleet::event::Event;
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{Location, NodeId, Pool};
use farrier_wire::identity::Identity;
use farrier_wire::proof::{self, Purpose};
use farrier_wire::proto::agents_server::Agents;
use farrier_wire::proto::{
    AgentMessage, ArtifactPart, ArtifactReceipt, Certificate, EnrolRequest, RenewRequest,
};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::StreamExt;
use tokio_stream::adapters::Map;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::access::{AccessStore, Authority, JoinError, Joined, LocationUpdate, TokenDigest};
use crate::artifacts::{self, ArtifactStore};
use crate::audit::{Audit, AuditError};
use crate::controller::SubmitError;
use crate::ingest::{self, DisconnectReason, SessionContext};
use crate::renewals::RenewalLimit;
use crate::serve::{NodePeer, Peer};

/// Maximum number of messages in the queue for a node that does not read its stream.
const OUTBOUND_MAX: usize = 16;
/// Maximum number of concurrent enrolments. Each enrolment costs a synced write to disk.
const ENROLMENTS_MAX: usize = 16;

/// Metadata key for the node name. Required on a server without TLS.
pub(crate) const NODE_HEADER: &str = "farrier-node";

#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) context: Arc<SessionContext>,
    pub(crate) store: Arc<AccessStore>,
    pub(crate) changes: Arc<Audit>,
    pub(crate) authority: Arc<Authority>,
    /// Pool of nodes that connect without a certificate. `None` if nodes need certificates.
    pub(crate) plain_pool: Option<Pool>,
    pub(crate) enrolments: Arc<Semaphore>,
    pub(crate) renewals: Arc<RenewalLimit>,
    pub(crate) artifacts: Arc<artifacts::ArtifactReceiver>,
    pub(crate) certificate_life: SignedDuration,
}

#[derive(Debug)]
struct AuthenticatedNode {
    node: NodeId,
    certificate: Option<NodePeer>,
}

impl Service {
    pub(crate) fn new(
        context: Arc<SessionContext>,
        changes: Arc<Audit>,
        authority: Arc<Authority>,
        plain_pool: Option<Pool>,
        artifacts: Arc<ArtifactStore>,
        certificate_life: SignedDuration,
    ) -> Self {
        let artifacts =
            Arc::new(artifacts::ArtifactReceiver::new(artifacts, Arc::clone(&context.space)));
        let enrolments = Arc::new(Semaphore::new(ENROLMENTS_MAX));
        let renewals = Arc::new(RenewalLimit::new(certificate_life));
        let store = Arc::clone(&context.store);
        Self {
            context,
            store,
            changes,
            authority,
            plain_pool,
            enrolments,
            renewals,
            artifacts,
            certificate_life,
        }
    }

    /// Returns the peer's certificate, unless it expired or was revoked.
    fn admitted<T>(&self, request: &Request<T>) -> Result<NodePeer, Status> {
        let Some(Peer::Node(peer)) = request.extensions().get::<Peer>() else {
            return Err(Status::unauthenticated("a node certificate is required"));
        };
        // The handshake checked the validity of the certificate, but the connection may last longer
        // than that validity.
        if peer.until <= Timestamp::now() {
            return Err(ingest::expired());
        }
        let admits = self.store.admits(&peer.identity).map_err(|err| internal(&err))?;
        if !admits {
            return Err(Status::permission_denied("the certificate was revoked"));
        }
        Ok(peer.clone())
    }

    /// Returns the node that opens a stream, and its certificate.
    async fn authenticate<T>(&self, request: &Request<T>) -> Result<AuthenticatedNode, Status> {
        let named = request.metadata().get(NODE_HEADER).map(|name| {
            let name = name.to_str().unwrap_or_default().parse::<NodeId>();
            name.map_err(|err| Status::invalid_argument(err.to_string()))
        });
        let named = named.transpose()?;
        if let (Some(Peer::Local), Some(pool)) =
            (request.extensions().get::<Peer>(), &self.plain_pool)
        {
            let node = named.ok_or_else(|| Status::unauthenticated("`farrier-node` is missing"))?;
            self.enrol_or_move(&node, Location::in_pool(pool.clone()), LocationUpdate::Keep)
                .await?;
            return Ok(AuthenticatedNode { node, certificate: None });
        }
        let certificate = self.admitted(request)?;
        let node = certificate.identity.node.clone();
        if let Some(named) = named.filter(|named| *named != node) {
            self.context.counters.name_refused(&node, named);
            return Err(Status::permission_denied("a node may only act for itself"));
        }
        Ok(AuthenticatedNode { node, certificate: Some(certificate) })
    }

    async fn is_enrolled(&self, node: &NodeId) -> Result<bool, Status> {
        let id = node.clone();
        let is_enrolled = self.context.controller.read(move |state| state.nodes.contains_key(&id));
        is_enrolled.await.map_err(|err| submit_status(&err))
    }

    async fn location_of(&self, node: &NodeId) -> Result<Option<Location>, Status> {
        let id = node.clone();
        let location = self
            .context
            .controller
            .read(move |state| state.nodes.get(&id).map(|node| node.location.clone()));
        location.await.map_err(|err| submit_status(&err))
    }

    /// Enrols a node. If the node is already enrolled, updates its location as far as
    /// `location_update` allows.
    async fn enrol_or_move(
        &self,
        node: &NodeId,
        location: Location,
        location_update: LocationUpdate,
    ) -> Result<(), Status> {
        let event = match (self.location_of(node).await?, location_update) {
            (None, _) => Event::Enrolled { node: node.clone(), location },
            (Some(_), LocationUpdate::Keep) => return Ok(()),
            (Some(current), LocationUpdate::WithinPool) => {
                let location = Location { pool: current.pool.clone(), ..location };
                Event::LocationChanged {
                    node: node.clone(),
                    location: current.updated_with(&location),
                }
            }
            (Some(current), LocationUpdate::Full) => Event::LocationChanged {
                node: node.clone(),
                location: current.updated_with(&location),
            },
        };
        self.context
            .controller
            .submit(Actor::Node(node.clone()), event)
            .await
            .map_err(|err| submit_status(&err))?;
        Ok(())
    }

    fn certify(&self, identity: &Identity, point: &[u8]) -> Result<Response<Certificate>, Status> {
        let now = Timestamp::now();
        let issued = self.authority.certify(identity, point, self.certificate_life, now);
        let issued = issued.map_err(|err| internal(&err))?;
        Ok(Response::new(Certificate {
            node: issued.certificate.to_vec().into(),
            authority: self.authority.certificate().to_vec().into(),
            not_before_s: issued.not_before.as_second(),
            not_after_s: issued.not_after.as_second(),
            server_time_ms: now.as_millisecond(),
        }))
    }

    async fn enrol_limited(&self, request: EnrolRequest) -> Result<Response<Certificate>, Status> {
        let Ok(turn) = Arc::clone(&self.enrolments).try_acquire_owned() else {
            return Err(Status::resource_exhausted("too many concurrent enrolments; try again"));
        };
        let service = self.clone();
        // The enrolment runs in its own task, so that it completes even if the client disconnects.
        // Otherwise a name could stay reserved for a node that never enrolled.
        let joined = tokio::spawn(async move {
            let _turn = turn;
            service.join(&request).await
        });
        let joined =
            joined.await.map_err(|_| Status::internal("the enrolment did not complete"))?;
        let (identity, point) = joined?;
        self.certify(&identity, &point)
    }

    async fn join(&self, request: &EnrolRequest) -> Result<(Identity, Vec<u8>), Status> {
        let wrong = |err: String| Status::invalid_argument(err);
        let node: NodeId = request.node.parse().map_err(|err| wrong(format!("{err}")))?;
        let key = request.key.clone().unwrap_or_default();
        let purpose = Purpose::Enrol { node: &request.node, token: &request.token };
        let point = proof::verify(&key, purpose).map_err(|err| wrong(err.to_string()))?.to_vec();
        let digest = TokenDigest::from_secret(&request.token);
        // The lock is held until the fleet has the node, so that concurrent requests for the same
        // name run one after the other.
        let _name = self.store.names.lock(&node).await;
        let member_of = self.location_of(&node).await?.map(|location| location.pool);
        let store = Arc::clone(&self.store);
        let (name, public) = (node.clone(), point.clone());
        let joined = tokio::task::spawn_blocking(move || {
            store.join(&digest, &name, &public, member_of.as_ref(), Timestamp::now())
        });
        let joined =
            joined.await.map_err(|_| Status::internal("the enrolment did not complete"))?;
        let Joined { identity, location, location_update } =
            joined.map_err(|err| join_status(&node, &err))?;
        let pool = location.pool.clone();
        // The log has to record the certificate generation before the node gets the certificate.
        self.changes.log_pending().await.map_err(|err| match err {
            AuditError::Submit(err) => submit_status(&err),
            AuditError::Access(err) => internal(&err),
        })?;
        self.enrol_or_move(&node, location, location_update).await?;
        // The node name now belongs to the new certificate generation, so disconnect sessions of
        // older generations.
        let newest = identity.generation;
        self.context.sessions.disconnect(|id, generation| {
            let is_older = *id == node && generation.is_some_and(|generation| generation < newest);
            is_older.then_some(DisconnectReason::Revoked)
        });
        tracing::info!(%node, %pool, generation = identity.generation, "node enrolled");
        Ok((identity, point))
    }
}

fn join_status(node: &NodeId, err: &JoinError) -> Status {
    tracing::debug!(%node, reason = %err, "enrolment refused");
    match err {
        JoinError::Token => Status::permission_denied(err.to_string()),
        JoinError::Taken(_) => Status::already_exists(err.to_string()),
        JoinError::Access(err) => internal(err),
    }
}

/// Logs the error with its cause. The node only gets the information that the request failed.
fn internal(err: &dyn std::error::Error) -> Status {
    tracing::error!(%err, cause = ?err.source().map(ToString::to_string), "failed to answer a request");
    Status::internal("internal error")
}

fn submit_status(err: &SubmitError) -> Status {
    match err {
        SubmitError::UnknownNode(_) => Status::failed_precondition(err.to_string()),
        SubmitError::TooManyFindings(_) | SubmitError::LowSpace => {
            Status::resource_exhausted(err.to_string())
        }
        SubmitError::Stopped => Status::unavailable(err.to_string()),
    }
}

#[tonic::async_trait]
impl Agents for Service {
    type SessionStream = Map<
        ReceiverStream<Box<ingest::OutboundMessage>>,
        fn(Box<ingest::OutboundMessage>) -> ingest::OutboundMessage,
    >;

    async fn enrol(&self, request: Request<EnrolRequest>) -> Result<Response<Certificate>, Status> {
        let request = request.into_inner();
        let node = request.node.parse().ok();
        self.enrol_limited(request).await.inspect_err(|status| {
            self.context.counters.enrolment_refused(node, status.code().into());
        })
    }

    async fn renew(&self, request: Request<RenewRequest>) -> Result<Response<Certificate>, Status> {
        let NodePeer { identity, .. } = self.admitted(&request)?;
        if !self.is_enrolled(&identity.node).await? {
            return Err(ingest::unknown_node());
        }
        let too_soon = || {
            self.context.counters.renewal_throttled(&identity.node);
            Status::resource_exhausted("the certificate was renewed recently; try again later")
        };
        // The rate limit is checked first, because verifying the proof is more expensive.
        if !self.renewals.admits(&identity.node, Instant::now()) {
            return Err(too_soon());
        }
        let key = request.into_inner().key.unwrap_or_default();
        let point = proof::verify(&key, Purpose::Renew)
            .map_err(|err| Status::invalid_argument(err.to_string()))?;
        if !self.renewals.claim(&identity.node, Instant::now()) {
            return Err(too_soon());
        }
        self.context.counters.renewed(&identity.node);
        self.certify(&identity, &point)
    }

    async fn send_artifact(
        &self,
        request: Request<Streaming<ArtifactPart>>,
    ) -> Result<Response<ArtifactReceipt>, Status> {
        let AuthenticatedNode { node, certificate } = self.authenticate(&request).await?;
        // If the access store is unreadable, no artifact is accepted.
        let is_admitted = || match &certificate {
            Some(peer) => self.store.admits(&peer.identity).unwrap_or(false),
            None => true,
        };
        let parts = request.into_inner();
        self.artifacts.receive(&self.context.controller, &node, is_admitted, parts).await?;
        Ok(Response::new(ArtifactReceipt {}))
    }

    async fn session(
        &self,
        request: Request<Streaming<AgentMessage>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let AuthenticatedNode { node, certificate } = self.authenticate(&request).await?;
        let (out, outbound) = mpsc::channel(OUTBOUND_MAX);
        let context = Arc::clone(&self.context);
        tokio::spawn(ingest::serve(context, node, certificate, request.into_inner(), out));
        let unboxed: fn(Box<ingest::OutboundMessage>) -> ingest::OutboundMessage =
            |message| *message;
        Ok(Response::new(ReceiverStream::new(outbound).map(unboxed)))
    }
}
