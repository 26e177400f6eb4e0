//! Accepts connections and dispatches requests. Limits the number of connections, ends handshakes
//! that take too long, and attaches the peer's identity to each request.

mod activity;
mod handshake_gate;
mod slot_pool;
mod tls;
mod unauthenticated_requests;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use farrier_fleet::fleet::NodeId;
use farrier_wire::identity::Identity;
use farrier_wire::limits::MESSAGE_BYTES_MAX;
use farrier_wire::proto::agents_server::AgentsServer;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use jiff::Timestamp;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tonic::Status;
use tonic::body::Body;
use tower_service::Service;

pub(crate) use activity::{ActiveRequest, ConnectionActivity};
use handshake_gate::HandshakeGate;
use slot_pool::SlotPool;
pub(crate) use tls::{Tls, TlsError};

use crate::access::AccessStore;
use crate::agents::Service as Agents;
use crate::counters::Counters;
use crate::rest::Rest;

/// Maximum concurrent connections. Each takes tens of kilobytes of memory.
const CONNECTIONS_MAX: usize = 20_000;
/// Timeout of a handshake, and of the headers of the first request.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Default idle timeout for connections without an authenticated request.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum concurrent unauthenticated connections: a fifth of all connections.
const UNAUTHENTICATED_MAX: usize = 4096;
/// Maximum number of concurrent connections per node. A node needs one connection. After a network
/// failure, its old connections remain until their pings time out.
const NODE_CONNECTIONS_MAX: usize = 4;
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// HTTP/2 receive window of a stream.
const WINDOW_BYTES: u32 = 64 << 10;
/// HTTP/2 send buffer of a connection whose peer is neither an admitted node nor local. Once the
/// rest of a REST answer fits into this buffer, the answer no longer counts towards its token's
/// limit on concurrent answers (`rest/answer_body.rs`).
const UNAUTHENTICATED_SEND_BYTES: usize = 16 << 10;
const HEADERS_BYTES_MAX: u32 = 16 << 10;
/// HTTP/1 read buffer of an unauthenticated connection.
const UNAUTHENTICATED_BUFFER_BYTES: usize = 32 << 10;

/// Limits of one connection.
#[derive(Debug, Clone, Copy)]
struct ConnectionLimits {
    streams: u32,
    /// HTTP/2 receive window of the connection.
    window_bytes: u32,
    /// HTTP/2 send buffer.
    send_bytes: usize,
    /// Whether the peer is an admitted node or a local peer.
    is_authenticated: bool,
}

/// A node needs one stream for its session and one to renew its certificate.
const NODE_LIMITS: ConnectionLimits = ConnectionLimits {
    streams: 64,
    window_bytes: WINDOW_BYTES * 16,
    send_bytes: WINDOW_BYTES as usize,
    is_authenticated: true,
};
/// A server without TLS listens only on loopback. There, a simulation runs many nodes over one
/// connection.
const PLAIN_LIMITS: ConnectionLimits = ConnectionLimits { streams: 20_000, ..NODE_LIMITS };
/// Limits for enrolments and for users. A user sends a token with each request.
const UNAUTHENTICATED_LIMITS: ConnectionLimits = ConnectionLimits {
    streams: 8,
    window_bytes: WINDOW_BYTES,
    send_bytes: UNAUTHENTICATED_SEND_BYTES,
    is_authenticated: false,
};
/// How long connections may take to finish when the server stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Peer {
    /// A local peer, on a server without TLS.
    Local,
    /// A peer without a certificate.
    Unauthenticated,
    Node(NodePeer),
    /// A peer with a certificate from this authority, but the certificate names no node.
    UnknownCertificate,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodePeer {
    pub(crate) identity: Identity,
    /// When the certificate expires.
    pub(crate) until: Timestamp,
}

/// Path prefix of the gRPC service. Everything else is REST.
const AGENTS_PATH: &str = "/farrier.v1.Agents/";
/// Path of the session call. If the peer is unauthenticated, the call is refused before its body is
/// read.
const SESSION_PATH: &str = "/farrier.v1.Agents/Session";

#[derive(Clone)]
struct Services {
    agents: AgentsServer<Agents>,
    /// Serves peers without an admitted certificate.
    unauthenticated: AgentsServer<Agents>,
    requests: Arc<unauthenticated_requests::Requests>,
    counters: Arc<Counters>,
    rest: Rest,
}

impl Services {
    fn new(agents: &Agents, rest: Rest) -> Self {
        let server = |message_bytes_max| {
            AgentsServer::new(agents.clone())
                .max_decoding_message_size(message_bytes_max)
                .max_encoding_message_size(MESSAGE_BYTES_MAX)
        };
        Self {
            agents: server(MESSAGE_BYTES_MAX),
            unauthenticated: server(unauthenticated_requests::MESSAGE_BYTES_MAX),
            requests: Arc::new(unauthenticated_requests::Requests::new()),
            counters: Arc::clone(&agents.context.counters),
            rest,
        }
    }

    /// Serves a gRPC call.
    async fn call(
        &mut self,
        request: hyper::Request<Incoming>,
        is_authenticated: bool,
    ) -> hyper::Response<Body> {
        let reply = if is_authenticated {
            self.agents.call(request).await
        } else if request.uri().path() == SESSION_PATH {
            self.unauthenticated.call(request).await
        } else {
            let (head, body) = request.into_parts();
            match self.requests.read(body).await {
                Ok(bytes) => {
                    let whole = hyper::Request::from_parts(head, Full::new(bytes));
                    self.unauthenticated.call(whole).await
                }
                Err(err) => {
                    self.counters.request_failed(err.metric());
                    return Status::from(err).into_http();
                }
            }
        };
        reply.unwrap_or_else(|never| match never {})
    }
}

/// Limits that all connections share.
struct SharedLimits {
    handshakes: HandshakeGate,
    store: Arc<AccessStore>,
    counters: Arc<Counters>,
    unauthenticated: Arc<SlotPool<()>>,
    nodes: Arc<SlotPool<NodeId>>,
    idle_timeout: Duration,
}

impl SharedLimits {
    /// Returns the node of an admitted certificate. If the access store is unreadable, the
    /// certificate counts as admitted, because a disk failure must not look as if the whole fleet
    /// were revoked. Each request is checked again.
    fn admitted_node(&self, peer: &Peer) -> Option<NodeId> {
        let Peer::Node(NodePeer { identity, .. }) = peer else { return None };
        self.store.admits(identity).unwrap_or(true).then(|| identity.node.clone())
    }

    /// Waits until a connection has to close. If a node has no open stream, its connection is
    /// closed when idle, like that of any other peer. A revoked node counts as unauthenticated.
    async fn until_closed(&self, node: Option<NodeId>, activity: &ConnectionActivity) {
        if let Some(node) = node {
            let mut slot = self.nodes.acquire(node);
            tokio::select! {
                () = slot.evicted() => (),
                () = activity.idle_for(self.idle_timeout) => (),
            }
            return;
        }
        let mut slot = self.unauthenticated.acquire(());
        tokio::select! {
            () = slot.evicted() => if !activity.is_authenticated() { return },
            () = activity.idle_for(self.idle_timeout) => return,
        }
        activity.idle_for(self.idle_timeout).await;
    }
}

/// Accepts connections until `stop` is true, then shuts them down.
pub(crate) async fn run(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    agents: Agents,
    rest: Rest,
    idle_timeout: Duration,
    mut stop: watch::Receiver<bool>,
) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let shared = Arc::new(SharedLimits {
        handshakes: HandshakeGate::new(),
        store: Arc::clone(&agents.store),
        counters: Arc::clone(&agents.context.counters),
        unauthenticated: SlotPool::new(UNAUTHENTICATED_MAX),
        nodes: SlotPool::new(NODE_CONNECTIONS_MAX),
        idle_timeout,
    });
    let services = Services::new(&agents, rest);
    let mut tasks = JoinSet::new();
    loop {
        // At the limit, new connections wait in the kernel's backlog.
        let Ok(permit) = Arc::clone(&connections).acquire_owned().await else { break };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let (socket, from) = match accepted {
            Ok(accepted) => accepted,
            Err(err) => {
                back_off_accept(&err).await;
                continue;
            }
        };
        while tasks.try_join_next().is_some() {}
        let (tls, services, stop) = (tls.clone(), services.clone(), stop.clone());
        let shared = Arc::clone(&shared);
        tasks.spawn(async move {
            let _permit = permit;
            connection(socket, from, tls, services, &shared, stop).await;
        });
    }
    let all = async { while tasks.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, all).await;
}

/// Waits before the next accept, for example if the process has no more file descriptors. If only
/// the peer has disconnected, there is no need to wait.
async fn back_off_accept(err: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset};
    if !matches!(err.kind(), ConnectionAborted | ConnectionReset) {
        tracing::error!(%err, "failed to accept a connection");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn connection(
    socket: TcpStream,
    from: SocketAddr,
    tls: Option<Arc<Tls>>,
    services: Services,
    shared: &SharedLimits,
    stop: watch::Receiver<bool>,
) {
    let _ = socket.set_nodelay(true);
    let activity = Arc::new(ConnectionActivity::new());
    let Some(tls) = tls else {
        return serve(socket, Peer::Local, services, activity, PLAIN_LIMITS, stop).await;
    };
    match shared.handshakes.enter(&tls, socket).await {
        Ok((stream, peer)) => {
            let node = shared.admitted_node(&peer);
            let limits = if node.is_some() { NODE_LIMITS } else { UNAUTHENTICATED_LIMITS };
            let served = serve(stream, peer, services, Arc::clone(&activity), limits, stop);
            tokio::select! {
                () = served => (),
                () = shared.until_closed(node, &activity) => (),
            }
        }
        Err(err) => {
            shared.counters.handshake_failed(from, err.metric());
            tracing::debug!(%from, %err, "TLS handshake failed");
        }
    }
}

/// Marks the connection as active until the body of the reply ends. The body of a stream ends with
/// the stream. Refused calls do not count.
fn track_activity(
    reply: hyper::Response<Body>,
    activity: &Arc<ConnectionActivity>,
) -> hyper::Response<Body> {
    if reply.headers().contains_key(Status::GRPC_STATUS) {
        return reply;
    }
    let active = ActiveRequest::new(activity);
    reply.map(|body| {
        Body::new(body.map_frame(move |frame| {
            let _present = &active;
            frame
        }))
    })
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Peer,
    services: Services,
    activity: Arc<ConnectionActivity>,
    limits: ConnectionLimits,
    mut stop: watch::Receiver<bool>,
) {
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(peer.clone());
        let (mut services, activity) = (services.clone(), Arc::clone(&activity));
        // Boxed, because hyper reserves space for the future while a stream is open.
        Box::pin(async move {
            Ok::<_, Infallible>(if request.uri().path().starts_with(AGENTS_PATH) {
                track_activity(services.call(request, limits.is_authenticated).await, &activity)
            } else {
                services.rest.answer(request, &activity).await
            })
        })
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HANDSHAKE_TIMEOUT);
    if !limits.is_authenticated {
        builder.http1().max_buf_size(UNAUTHENTICATED_BUFFER_BYTES);
    }
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(limits.window_bytes)
        .max_send_buf_size(limits.send_bytes)
        .max_header_list_size(HEADERS_BYTES_MAX)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let stopped = async {
        let _ = stop.wait_for(|stop| *stop).await;
    };
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopped => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(err) = ended {
        tracing::debug!(%err, "connection ended with an error");
    }
}
