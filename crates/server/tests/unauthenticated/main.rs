//! Unfinished requests from peers without a certificate or a token take little memory, and do not
//! block enrolments. The tests run in their own process and one at a time, because they measure the
//! memory of the process.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../log_volume/metrics.rs"]
mod metrics;
#[path = "../wire/test_server.rs"]
#[allow(dead_code, reason = "the `wire` tests use the rest")]
mod test_server;

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use http_body_util::StreamBody;
use hyper::body::{Body, Bytes, Frame};
use hyper::client::conn::http2;
use hyper::header::HeaderValue;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_stream::StreamExt;

use metrics::metrics;
use test_server::{TestNode, TestServer, trusting, until};

/// A test holds this lock while it measures memory, so that no other test allocates memory.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

const CONNECTIONS: usize = 6;
const STREAMS: usize = 64;
/// One chunk less than 1 MiB, the largest message from an enrolled node.
const CHUNKS: usize = 63;
const CHUNK: &[u8] = &[0; 16 << 10];
/// Far below the 378 MiB that the requests hold together, and far above what the process otherwise
/// allocates.
const GROWTH_BYTES_MAX: usize = 100 << 20;

/// Resident memory of the process.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// A message that announces a mebibyte and never ends. `sent_completely` counts it when its last
/// chunk is sent.
fn unfinished(
    sent_completely: Arc<AtomicUsize>,
) -> impl Body<Data = Bytes, Error = Infallible> + Send {
    let prefix = Bytes::from_static(&[0, 0, 0x10, 0, 0]);
    let chunks = std::iter::repeat_n(Bytes::from_static(CHUNK), CHUNKS);
    let data = std::iter::once(prefix).chain(chunks).enumerate().map(move |(at, bytes)| {
        sent_completely.fetch_add(usize::from(at == CHUNKS), Ordering::Relaxed);
        Ok(Frame::data(bytes))
    });
    StreamBody::new(tokio_stream::iter(data).chain(tokio_stream::pending()))
}

/// Starts [`STREAMS`] requests on each of [`CONNECTIONS`] connections, and finishes none. Returns
/// the tasks that keep the connections open, and the answers.
async fn attack(
    server: &TestServer,
    agent: &TestNode,
    method: &str,
    path: &str,
) -> (JoinSet<()>, Answers) {
    let answers = Answers::default();
    let mut tasks = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let tcp = TcpStream::connect(server.address).await.unwrap();
        let name = "localhost".try_into().unwrap();
        let tls = tokio_rustls::TlsConnector::from(trusting(agent)).connect(name, tcp).await;
        let io = TokioIo::new(tls.unwrap());
        let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
        tasks.spawn(async move {
            let _ = connection.await;
        });
        for _ in 0..STREAMS {
            let request = hyper::Request::builder()
                .method(method)
                .uri(format!("https://localhost{path}"))
                .header("content-type", "application/grpc")
                .body(unfinished(Arc::clone(&answers.sent_completely)))
                .unwrap();
            let (mut sender, received) = (sender.clone(), Arc::clone(&answers.received));
            tasks.spawn(async move {
                // The server resets streams beyond its limit.
                let answer = sender.send_request(request).await.ok().map(|response| {
                    (response.status().as_u16(), response.headers().get("grpc-status").cloned())
                });
                received.lock().unwrap().push(answer);
                // The task keeps its sender, so the connection stays open.
                std::future::pending::<()>().await;
            });
        }
    }
    (tasks, answers)
}

/// HTTP status and gRPC status.
type Answer = (u16, Option<HeaderValue>);

#[derive(Default)]
struct Answers {
    /// `None` if the request was reset.
    received: Arc<Mutex<Vec<Option<Answer>>>>,
    /// Number of requests whose last chunk was sent.
    sent_completely: Arc<AtomicUsize>,
}

impl Answers {
    /// Waits until all requests are answered, or all are sent completely.
    async fn settled(&self) {
        until("all requests are answered or sent", || {
            let answered = self.received.lock().unwrap().len();
            answered.max(self.sent_completely.load(Ordering::Relaxed)) >= CONNECTIONS * STREAMS
        })
        .await;
    }

    /// Asserts that there is at least one answer, and that each answer is `expected`.
    fn assert_all(&self, expected: &Answer) {
        let received = self.received.lock().unwrap();
        assert!(received.iter().any(Option::is_some), "no request was answered");
        assert!(received.iter().flatten().all(|answer| answer == expected), "{received:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unfinished_enrolments_take_no_memory_and_do_not_block_others() {
    let _alone = ALONE.lock().await;
    let server = TestServer::with_tls().await;
    let agent = TestNode::new("a");
    server.enrol("a", &agent.identity(), &server.token(None, 1)).await.unwrap();
    let before = resident_bytes();
    let (_tasks, answers) = attack(&server, &agent, "POST", "/farrier.v1.Agents/Enrol").await;
    answers.settled().await;
    let growth = resident_bytes().saturating_sub(before);
    assert!(growth < GROWTH_BYTES_MAX, "memory grew by {growth} bytes");
    let out_of_range = HeaderValue::from_static("11");
    answers.assert_all(&(200, Some(out_of_range)));
    let refused = answers.received.lock().unwrap().iter().flatten().count();
    let text = metrics(&server, trusting(&agent)).await;
    let name = "farrier_server_unauthenticated_requests_failed_total{reason=\"too-large\"} ";
    let counted = text.lines().find_map(|line| line.strip_prefix(name)?.parse::<usize>().ok());
    // The server also counts refused requests whose stream was reset before the client read the
    // answer.
    assert!(counted >= Some(refused), "{counted:?} of {refused} are counted: {text}");
    let other = TestNode::new("b");
    assert_eq!(server.enrol("b", &other.identity(), &server.token(None, 1)).await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn unauthenticated_request_bodies_take_no_memory() {
    let _alone = ALONE.lock().await;
    let server = TestServer::with_tls().await;
    let agent = TestNode::new("a");
    server.enrol("a", &agent.identity(), &server.token(None, 1)).await.unwrap();
    let before = resident_bytes();
    let (_tasks, answers) = attack(&server, &agent, "GET", "/healthz").await;
    answers.settled().await;
    let growth = resident_bytes().saturating_sub(before);
    assert!(growth < GROWTH_BYTES_MAX, "memory grew by {growth} bytes");
    answers.assert_all(&(200, None));
}
