//! What agents may ask for: to enrol, to renew, to talk.

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

use crate::access::{Authority, JoinError, Joined, Placing, Store, TokenDigest};
use crate::artifacts::{self, ArtifactStore};
use crate::audit::{Audit, AuditError};
use crate::controller::SubmitError;
use crate::ingest::{self, DisconnectReason, SessionContext};
use crate::renewals::RenewalLimit;
use crate::serve::{NodePeer, Peer};

/// What may wait for a stream to be read.
const OUT_MAX: usize = 16;
/// Enrolments at a time: each costs a write to disk.
const ENROLMENTS_MAX: usize = 16;

/// Where a node says its name that has no certificate, on a server that allows that.
pub(crate) const NODE_HEADER: &str = "farrier-node";

/// Answers agents.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) desk: Arc<SessionContext>,
    pub(crate) store: Arc<Store>,
    pub(crate) changes: Arc<Audit>,
    pub(crate) authority: Arc<Authority>,
    /// The pool of nodes that come without a certificate; none: they are not let in.
    pub(crate) plain_pool: Option<Pool>,
    pub(crate) enrolments: Arc<Semaphore>,
    pub(crate) renewals: Arc<RenewalLimit>,
    pub(crate) artifacts: Arc<artifacts::Receiver>,
    /// How long a certificate counts.
    pub(crate) certificate_life: SignedDuration,
}

/// Who opens a stream.
#[derive(Debug)]
struct Speaker {
    node: NodeId,
    certificate: Option<NodePeer>,
}

impl Service {
    pub(crate) fn new(
        desk: Arc<SessionContext>,
        changes: Arc<Audit>,
        authority: Arc<Authority>,
        plain_pool: Option<Pool>,
        artifacts: Arc<ArtifactStore>,
        certificate_life: SignedDuration,
    ) -> Self {
        let artifacts = Arc::new(artifacts::Receiver::new(artifacts, Arc::clone(&desk.space)));
        let enrolments = Arc::new(Semaphore::new(ENROLMENTS_MAX));
        let renewals = Arc::new(RenewalLimit::new(certificate_life));
        let store = Arc::clone(&desk.store);
        Self {
            desk,
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

    /// The certificate of whoever asks, where it counts.
    fn admitted<T>(&self, request: &Request<T>) -> Result<NodePeer, Status> {
        let Some(Peer::Node(peer)) = request.extensions().get::<Peer>() else {
            return Err(Status::unauthenticated("a certificate of a node is asked for"));
        };
        // The handshake looked at its dates; a connection may be older than a certificate gets.
        if peer.until <= Timestamp::now() {
            return Err(ingest::expired());
        }
        let admits = self.store.admits(&peer.identity).map_err(|err| unwell(&err))?;
        if !admits {
            return Err(Status::permission_denied("the certificate was revoked"));
        }
        Ok(peer.clone())
    }

    /// The node that talks, and its certificate.
    async fn speaker<T>(&self, request: &Request<T>) -> Result<Speaker, Status> {
        let named = request.metadata().get(NODE_HEADER).map(|name| {
            let name = name.to_str().unwrap_or_default().parse::<NodeId>();
            name.map_err(|err| Status::invalid_argument(err.to_string()))
        });
        let named = named.transpose()?;
        if let (Some(Peer::Local), Some(pool)) =
            (request.extensions().get::<Peer>(), &self.plain_pool)
        {
            let node = named.ok_or_else(|| Status::unauthenticated("`farrier-node` is missing"))?;
            self.enrol_in(&node, Location::in_pool(pool.clone()), Placing::Nothing).await?;
            return Ok(Speaker { node, certificate: None });
        }
        let certificate = self.admitted(request)?;
        let node = certificate.identity.node.clone();
        if let Some(named) = named.filter(|named| *named != node) {
            self.desk.counters.name_refused(&node, named);
            return Err(Status::permission_denied("a node speaks only for itself"));
        }
        Ok(Speaker { node, certificate: Some(certificate) })
    }

    /// Whether the node is of the fleet, and was not retired.
    async fn is_member(&self, node: &NodeId) -> Result<bool, Status> {
        let id = node.clone();
        let is_member = self.desk.brain.look(move |state| state.nodes.contains_key(&id));
        is_member.await.map_err(|err| ending(&err))
    }

    /// Where a node of the fleet stands.
    async fn place_of(&self, node: &NodeId) -> Result<Option<Location>, Status> {
        let id = node.clone();
        let look =
            self.desk.brain.look(move |state| state.nodes.get(&id).map(|it| it.location.clone()));
        look.await.map_err(|err| ending(&err))
    }

    /// Brings a node into the fleet; where it is there, it stands where it stood but for what is told anew.
    async fn enrol_in(
        &self,
        node: &NodeId,
        told: Location,
        placing: Placing,
    ) -> Result<(), Status> {
        let event = match (self.place_of(node).await?, placing) {
            (None, _) => Event::Enrolled { node: node.clone(), location: told },
            (Some(_), Placing::Nothing) => return Ok(()),
            (Some(known), Placing::InPool) => {
                let told = Location { pool: known.pool.clone(), ..told };
                Event::LocationChanged { node: node.clone(), location: known.updated_with(&told) }
            }
            (Some(known), Placing::AnyPool) => {
                Event::LocationChanged { node: node.clone(), location: known.updated_with(&told) }
            }
        };
        self.desk.brain.take(Actor::Node(node.clone()), event).await.map_err(|err| ending(&err))?;
        Ok(())
    }

    fn certify(&self, identity: &Identity, point: &[u8]) -> Result<Response<Certificate>, Status> {
        let now = Timestamp::now();
        let issued = self.authority.certify(identity, point, self.certificate_life, now);
        let issued = issued.map_err(|err| unwell(&err))?;
        Ok(Response::new(Certificate {
            node: issued.certificate.to_vec().into(),
            authority: self.authority.certificate().to_vec().into(),
            not_before_s: issued.not_before.as_second(),
            not_after_s: issued.not_after.as_second(),
            server_time_ms: now.as_millisecond(),
        }))
    }

    async fn enrol_once(&self, asked: EnrolRequest) -> Result<Response<Certificate>, Status> {
        let Ok(turn) = Arc::clone(&self.enrolments).try_acquire_owned() else {
            return Err(Status::resource_exhausted("too many enrol at once; try again"));
        };
        let service = self.clone();
        // Finished also where the client goes away: a name must not stay with a node that the fleet does not know.
        let joined = tokio::spawn(async move {
            let _turn = turn;
            service.join(&asked).await
        });
        let joined =
            joined.await.map_err(|_| Status::internal("the enrolment was not finished"))?;
        let (identity, point) = joined?;
        self.certify(&identity, &point)
    }

    async fn join(&self, asked: &EnrolRequest) -> Result<(Identity, Vec<u8>), Status> {
        let wrong = |err: String| Status::invalid_argument(err);
        let node: NodeId = asked.node.parse().map_err(|err| wrong(format!("{err}")))?;
        let key = asked.key.clone().unwrap_or_default();
        let purpose = Purpose::Enrol { node: &asked.node, token: &asked.token };
        let point = proof::proven(&key, purpose).map_err(|err| wrong(err.to_string()))?.to_vec();
        let digest = TokenDigest::of(&asked.token);
        // Until the fleet knows the node: whoever asks for the name meanwhile is answered as if they had asked later.
        let _name = self.store.names.lock(&node).await;
        let member_of = self.place_of(&node).await?.map(|it| it.pool);
        let store = Arc::clone(&self.store);
        let (name, public) = (node.clone(), point.clone());
        let joined = tokio::task::spawn_blocking(move || {
            store.join(&digest, &name, &public, member_of.as_ref(), Timestamp::now())
        });
        let joined =
            joined.await.map_err(|_| Status::internal("the enrolment was not finished"))?;
        let Joined { identity, place, placing } = joined.map_err(|err| refused(&node, &err))?;
        let pool = place.pool.clone();
        // From which generation on its certificates count is in the log before it has one.
        self.changes.bring().await.map_err(|err| match err {
            AuditError::Take(err) => ending(&err),
            AuditError::Access(err) => unwell(&err),
        })?;
        self.enrol_in(&node, place, placing).await?;
        // Whoever had the name before has it no more.
        let newest = identity.generation;
        self.desk.roster.cut(|it, generation| {
            let is_older = *it == node && generation.is_some_and(|generation| generation < newest);
            is_older.then_some(DisconnectReason::Revoked)
        });
        tracing::info!(%node, %pool, generation = identity.generation, "a node has enrolled");
        Ok((identity, point))
    }
}

fn refused(node: &NodeId, err: &JoinError) -> Status {
    tracing::debug!(%node, why = %err, "an enrolment was refused");
    match err {
        JoinError::Token => Status::permission_denied(err.to_string()),
        JoinError::Taken(_) => Status::already_exists(err.to_string()),
        JoinError::Access(err) => unwell(err),
    }
}

/// What a node need not know more of.
fn unwell(err: &dyn std::error::Error) -> Status {
    tracing::error!(%err, cause = ?err.source().map(ToString::to_string), "a request could not be answered");
    Status::internal("the server cannot do that now")
}

fn ending(err: &SubmitError) -> Status {
    match err {
        SubmitError::Stranger(_) => Status::failed_precondition(err.to_string()),
        SubmitError::TooMany(_) | SubmitError::LowSpace => {
            Status::resource_exhausted(err.to_string())
        }
        SubmitError::Ended => Status::unavailable(err.to_string()),
    }
}

#[tonic::async_trait]
impl Agents for Service {
    type SessionStream =
        Map<ReceiverStream<Box<ingest::Told>>, fn(Box<ingest::Told>) -> ingest::Told>;

    async fn enrol(&self, request: Request<EnrolRequest>) -> Result<Response<Certificate>, Status> {
        let asked = request.into_inner();
        let node = asked.node.parse().ok();
        self.enrol_once(asked).await.inspect_err(|status| {
            self.desk.counters.enrolment_refused(node, status.code().into());
        })
    }

    async fn renew(&self, request: Request<RenewRequest>) -> Result<Response<Certificate>, Status> {
        let NodePeer { identity, .. } = self.admitted(&request)?;
        if !self.is_member(&identity.node).await? {
            return Err(ingest::stranger());
        }
        let too_soon = || {
            self.desk.counters.renewal_throttled(&identity.node);
            Status::resource_exhausted("the certificate was renewed a moment ago; try again later")
        };
        // Before its proof is verified, which costs more.
        if !self.renewals.admits(&identity.node, Instant::now()) {
            return Err(too_soon());
        }
        let key = request.into_inner().key.unwrap_or_default();
        let point = proof::proven(&key, Purpose::Renew)
            .map_err(|err| Status::invalid_argument(err.to_string()))?;
        if !self.renewals.claim(&identity.node, Instant::now()) {
            return Err(too_soon());
        }
        self.desk.counters.renewed(&identity.node);
        self.certify(&identity, &point)
    }

    async fn send_artifact(
        &self,
        request: Request<Streaming<ArtifactPart>>,
    ) -> Result<Response<ArtifactReceipt>, Status> {
        let Speaker { node, certificate } = self.speaker(&request).await?;
        // Where the store cannot be read nobody is admitted.
        let is_admitted = || match &certificate {
            Some(peer) => self.store.admits(&peer.identity).unwrap_or(false),
            None => true,
        };
        let parts = request.into_inner();
        self.artifacts.receive(&self.desk.brain, &node, is_admitted, parts).await?;
        Ok(Response::new(ArtifactReceipt {}))
    }

    async fn session(
        &self,
        request: Request<Streaming<AgentMessage>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let Speaker { node, certificate } = self.speaker(&request).await?;
        let (out, outbound) = mpsc::channel(OUT_MAX);
        let desk = Arc::clone(&self.desk);
        tokio::spawn(ingest::serve(desk, node, certificate, request.into_inner(), out));
        let unboxed: fn(Box<ingest::Told>) -> ingest::Told = |told| *told;
        Ok(Response::new(ReceiverStream::new(outbound).map(unboxed)))
    }
}
