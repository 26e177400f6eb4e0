//! Connection limits: idle peers, revoked nodes, and nodes with too many connections.

use std::sync::Arc;
use std::time::Duration;

use farrier_agent::uplink::Keep;
use farrier_wire::proto;
use jiff::Timestamp;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tonic::Code;

use crate::access::{ServerMessage, heartbeats, open, raw};
use crate::test_server::{PATIENCE, TestNode, TestServer, node};

/// More than the number of handshakes that may compute at the same time.
const MANY: usize = 300;

/// Keeps many connections open that send only `data`. Reopens those that the server closes, so that
/// they exist during the whole test, even on a slow machine.
async fn idle(server: &TestServer, data: impl Fn() -> Vec<u8>) -> JoinSet<()> {
    let mut connections = JoinSet::new();
    let opened = Arc::new(Semaphore::new(0));
    for _ in 0..MANY {
        let (address, data, opened) = (server.address, data(), Arc::clone(&opened));
        connections.spawn(async move {
            loop {
                let Ok(mut socket) = TcpStream::connect(address).await else { continue };
                let _ = socket.write_all(&data).await;
                opened.add_permits(1);
                let _ = socket.read_to_end(&mut Vec::new()).await;
            }
        });
    }
    drop(opened.acquire_many(u32::try_from(MANY).unwrap()).await.unwrap());
    connections
}

/// Checks that a node can enrol.
async fn is_open(server: &TestServer, name: &str) {
    let folder = tempfile::tempdir().unwrap();
    let token = server.token(None, 1);
    let enrolled = tokio::time::timeout(PATIENCE, server.enrol(name, folder.path(), &token)).await;
    assert_eq!(enrolled.expect("enrolment works").unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_do_not_block_others() {
    let server = TestServer::with_tls().await;
    let _idle = idle(&server, Vec::new).await;
    is_open(&server, "a").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_stop_after_the_client_hello_do_not_block_others() {
    let server = TestServer::with_tls().await;
    let hello = || {
        let name = "localhost".try_into().unwrap();
        let tls = farrier_wire::client::no_tls();
        let mut client = rustls::ClientConnection::new(tls, name).unwrap();
        let mut hello = Vec::new();
        client.write_tls(&mut hello).unwrap();
        hello
    };
    let _idle = idle(&server, hello).await;
    is_open(&server, "a").await;
}

/// Waits until the session ends. The connection may end with it.
async fn ended(down: &mut ServerMessage) {
    let end = async { while let Ok(Some(_)) = down.message().await {} };
    tokio::time::timeout(PATIENCE, end).await.expect("the connection is closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nodes_oldest_connection_is_evicted_and_others_stay() {
    let server = TestServer::with_tls().await;
    let (mut other, agent) = (TestNode::new("b"), TestNode::new("a"));
    for each in [&other, &agent] {
        server.enrol(&each.name, &each.identity(), &server.token(None, 1)).await.unwrap();
    }
    other.connect(&server);
    other.find(1);
    other.acked(1).await;
    let mut first = raw(&server, &agent).await;
    let (_out, mut down) = open(&mut first, None).await.unwrap();
    let mut later = Vec::new();
    for _ in 0..4 {
        later.push(raw(&server, &agent).await);
    }
    ended(&mut down).await;
    let gone = first.renew(proto::RenewRequest::default()).await.unwrap_err();
    assert_eq!(gone.code(), Code::Unknown, "the connection is closed: {gone:?}");
    for agents in &mut later {
        // The request is invalid, but the server answers it.
        let answer = agents.renew(proto::RenewRequest::default()).await.unwrap_err();
        assert_eq!(answer.code(), Code::InvalidArgument, "{answer:?}");
    }
    other.find(2);
    other.acked(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_node_takes_no_slot_of_its_successor() {
    let server = TestServer::with_tls().await;
    let old = TestNode::new("a");
    server.enrol("a", &old.identity(), &server.token(None, 1)).await.unwrap();
    server.store().revoke(&node("a"), Timestamp::now()).unwrap();
    let new = TestNode::new("a");
    server.enrol("a", &new.identity(), &server.token(Some("a"), 1)).await.unwrap();
    let mut agents = raw(&server, &new).await;
    let (_out, _down) = open(&mut agents, None).await.unwrap();
    let mut revoked = Vec::new();
    for _ in 0..8 {
        let mut agents = raw(&server, &old).await;
        let refused = agents.renew(proto::RenewRequest::default()).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied);
        revoked.push(agents);
    }
    let answer = agents.renew(proto::RenewRequest::default()).await.unwrap_err();
    assert_eq!(answer.code(), Code::InvalidArgument, "it is open: {answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_connection_without_a_session_idles_out() {
    let mut server = TestServer::with_tls().await;
    // Long enough to open a session on a busy machine.
    server.idle_timeout = Duration::from_secs(10);
    drop(server.running.take());
    server.start(None).await;
    let agent = TestNode::new("a");
    server.enrol("a", &agent.identity(), &server.token(None, 1)).await.unwrap();
    let mut agents = raw(&server, &agent).await;
    let (out, _down) = open(&mut agents, None).await.unwrap();
    let _heartbeats = heartbeats(out);
    let tls = Keep::new(&agent.identity(), None).tls().unwrap();
    let tcp = TcpStream::connect(server.address).await.unwrap();
    let name = "localhost".try_into().unwrap();
    let mut idle = tokio_rustls::TlsConnector::from(tls).connect(name, tcp).await.unwrap();
    // The HTTP/2 preface without a request.
    idle.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut data = Vec::new();
    let gone = tokio::time::timeout(PATIENCE, idle.read_to_end(&mut data)).await;
    assert!(gone.is_ok(), "the connection is closed");
    let answer = agents.renew(proto::RenewRequest::default()).await.unwrap_err();
    assert_eq!(answer.code(), Code::InvalidArgument, "the one with a session stays: {answer:?}");
}
