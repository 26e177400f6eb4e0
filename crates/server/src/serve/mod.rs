//! From a socket to requests: connections are counted, handshakes have a deadline, and who is at the other end goes with each request.

mod door;
mod presence;
mod room;
mod tls;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use farrier_wire::identity::Identity;
use farrier_wire::limits::MESSAGE_BYTES_MAX;
use farrier_wire::proto::agents_server::AgentsServer;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use jiff::Timestamp;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tower_service::Service;

use door::Door;
pub(crate) use presence::{Presence, Present};
pub(crate) use tls::{Tls, TlsError};

use crate::agents::Service as Agents;
use crate::rest::Rest;

/// Connections at a time; each costs some tens of kilobytes.
const CONNECTIONS_MAX: usize = 20_000;
/// How long a handshake may take, and a client to send its first request's head.
const HANDSHAKE_WAIT: Duration = Duration::from_secs(10);
/// How long somebody without a certificate may stay after the last request of somebody known: places are few.
const STRANGER_WAIT: Duration = Duration::from_secs(30);
/// Streams of one connection: a node needs one, and one to renew its certificate.
const STREAMS_MAX: u32 = 64;
/// On loopback without TLS a simulation has many nodes on one connection.
const PLAIN_STREAMS_MAX: u32 = 20_000;
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_WAIT: Duration = Duration::from_secs(20);
/// What may be on its way to a stream that is not read.
const WINDOW_BYTES: u32 = 64 << 10;
const HEADERS_BYTES_MAX: u32 = 16 << 10;
/// How long connections are given to end.
const END_WAIT: Duration = Duration::from_secs(3);

/// Who is at the other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Peer {
    /// Somebody on this machine, where that is enough.
    Local,
    /// Somebody without a certificate.
    Nobody,
    /// A node, by its certificate.
    Node(NodePeer),
    /// Somebody with a certificate of ours that names no node.
    Unknown,
}

/// What a node's certificate says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodePeer {
    pub(crate) identity: Identity,
    /// Until when it counts.
    pub(crate) until: Timestamp,
}

/// Where agents' calls begin; everything else is people's.
const AGENTS_PATH: &str = "/farrier.v1.Agents/";

/// Who answers.
#[derive(Clone)]
struct Front {
    agents: AgentsServer<Agents>,
    rest: Rest,
}

/// Accepts until it is told to stop; then ends what there is.
pub(crate) async fn run(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    agents: Agents,
    rest: Rest,
    mut stop: watch::Receiver<bool>,
) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let door = Arc::new(Door::new());
    let agents = AgentsServer::new(agents)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let front = Front { agents, rest };
    let mut tasks = JoinSet::new();
    loop {
        // With all places taken nobody is accepted; the kernel lets them wait.
        let Ok(place) = Arc::clone(&connections).acquire_owned().await else { break };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let (socket, from) = match accepted {
            Ok(accepted) => accepted,
            Err(err) => {
                passing(&err).await;
                continue;
            }
        };
        while tasks.try_join_next().is_some() {}
        let (tls, front, stop) = (tls.clone(), front.clone(), stop.clone());
        let door = Arc::clone(&door);
        tasks.spawn(async move {
            let _place = place;
            connection(socket, from, tls, front, &door, stop).await;
        });
    }
    let all = async { while tasks.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(END_WAIT, all).await;
}

/// Too many open files pass; a peer that is gone before it is accepted is no matter.
async fn passing(err: &io::Error) {
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
    front: Front,
    door: &Door,
    stop: watch::Receiver<bool>,
) {
    let _ = socket.set_nodelay(true);
    let presence = Arc::new(Presence::new());
    let Some(tls) = tls else {
        return serve(socket, Peer::Local, front, presence, PLAIN_STREAMS_MAX, stop).await;
    };
    match door.enter(&tls, socket).await {
        Ok((stream, peer @ Peer::Node(_))) => {
            serve(stream, peer, front, presence, STREAMS_MAX, stop).await;
        }
        // Whoever enrols is done soon. People stay while they are answered, and a little longer.
        Ok((stream, peer)) => {
            let watched = Arc::clone(&presence);
            let served = serve(stream, peer, front, presence, STREAMS_MAX, stop);
            tokio::select! {
                () = served => (),
                () = watched.absent_for(STRANGER_WAIT) => (),
            }
        }
        Err(err) => tracing::info!(%from, %err, "a handshake has failed"),
    }
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Peer,
    front: Front,
    presence: Arc<Presence>,
    streams: u32,
    mut stop: watch::Receiver<bool>,
) {
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(peer.clone());
        let (mut front, presence) = (front.clone(), Arc::clone(&presence));
        async move {
            if request.uri().path().starts_with(AGENTS_PATH) {
                front.agents.call(request).await
            } else {
                Ok(front.rest.answer(request, &presence).await)
            }
        }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HANDSHAKE_WAIT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(streams)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES * 16)
        .max_send_buf_size(WINDOW_BYTES as usize)
        .max_header_list_size(HEADERS_BYTES_MAX)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_WAIT);
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
        tracing::debug!(%err, "a connection has ended");
    }
}
