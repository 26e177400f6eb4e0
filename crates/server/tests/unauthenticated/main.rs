//! Peers without a certificate and without a token: what they send and do not finish takes little of the server's memory, and keeps
//! nobody from enrolling. In a process of its own, one test at a time: they measure the memory of all of it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../log_volume/metrics.rs"]
mod metrics;
#[path = "../wire/test_server.rs"]
#[allow(dead_code, reason = "the agents' tests use the rest")]
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

/// Held by the test that measures.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

const CONNECTIONS: usize = 6;
const STREAMS: usize = 64;
/// One chunk less than a message of a node may have.
const CHUNKS: usize = 63;
const CHUNK: &[u8] = &[0; 16 << 10];
/// Far less than what is sent, 378 MiB, and far more than what else happens meanwhile.
const GROWTH_BYTES_MAX: usize = 100 << 20;

/// What the process has in memory, in bytes.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|it| it.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// A message that says that it has a mebibyte, and never ends. Counted when all that comes of it was taken.
fn unfinished(taken: Arc<AtomicUsize>) -> impl Body<Data = Bytes, Error = Infallible> + Send {
    let prefix = Bytes::from_static(&[0, 0, 0x10, 0, 0]);
    let chunks = std::iter::repeat_n(Bytes::from_static(CHUNK), CHUNKS);
    let data = std::iter::once(prefix).chain(chunks).enumerate().map(move |(at, bytes)| {
        taken.fetch_add(usize::from(at == CHUNKS), Ordering::Relaxed);
        Ok(Frame::data(bytes))
    });
    StreamBody::new(tokio_stream::iter(data).chain(tokio_stream::pending()))
}

/// Begins many requests on many connections and ends none; the answers so far, as text.
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
                .body(unfinished(Arc::clone(&answers.taken)))
                .unwrap();
            let (mut sender, given) = (sender.clone(), Arc::clone(&answers.given));
            tasks.spawn(async move {
                // Those beyond the limit of streams are reset.
                let answer = sender
                    .send_request(request)
                    .await
                    .ok()
                    .map(|it| (it.status().as_u16(), it.headers().get("grpc-status").cloned()));
                given.lock().unwrap().push(answer);
                // The connection stays as it is.
                std::future::pending::<()>().await;
            });
        }
    }
    (tasks, answers)
}

/// The status of HTTP and of gRPC.
type Answer = (u16, Option<HeaderValue>);

#[derive(Default)]
struct Answers {
    /// `None`: the request was cut off.
    given: Arc<Mutex<Vec<Option<Answer>>>>,
    /// Requests of which the server has taken all that there is.
    taken: Arc<AtomicUsize>,
}

impl Answers {
    /// Waits until each request was answered, or the server has taken all that there is of it.
    async fn settled(&self) {
        until("the server has done with each request", || {
            let answered = self.given.lock().unwrap().len();
            answered.max(self.taken.load(Ordering::Relaxed)) >= CONNECTIONS * STREAMS
        })
        .await;
    }

    /// All that were answered were answered so, and some were.
    fn assert_all(&self, expected: &Answer) {
        let given = self.given.lock().unwrap();
        assert!(given.iter().any(Option::is_some), "none was answered");
        assert!(given.iter().flatten().all(|it| it == expected), "{given:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unfinished_enrolments_are_not_kept_in_memory_and_keep_nobody_out() {
    let _alone = ALONE.lock().await;
    let server = TestServer::with_tls().await;
    let agent = TestNode::new("a");
    server.enrol("a", &agent.identity(), &server.token(None, 1)).await.unwrap();
    let before = resident_bytes();
    let (_tasks, answers) = attack(&server, &agent, "POST", "/farrier.v1.Agents/Enrol").await;
    answers.settled().await;
    let growth = resident_bytes().saturating_sub(before);
    assert!(growth < GROWTH_BYTES_MAX, "{growth} bytes are kept");
    let out_of_range = HeaderValue::from_static("11");
    answers.assert_all(&(200, Some(out_of_range)));
    let refused = answers.given.lock().unwrap().iter().flatten().count();
    let text = metrics(&server, trusting(&agent)).await;
    let name = "farrier_server_unauthenticated_requests_failed_total{reason=\"too-large\"} ";
    let counted = text.lines().find_map(|line| line.strip_prefix(name)?.parse::<usize>().ok());
    // An answer to a request that was reset does not reach its client.
    assert!(counted >= Some(refused), "{counted:?} of {refused} are counted: {text}");
    let other = TestNode::new("b");
    assert_eq!(server.enrol("b", &other.identity(), &server.token(None, 1)).await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_requests_that_anybody_may_make_are_not_kept_in_memory() {
    let _alone = ALONE.lock().await;
    let server = TestServer::with_tls().await;
    let agent = TestNode::new("a");
    server.enrol("a", &agent.identity(), &server.token(None, 1)).await.unwrap();
    let before = resident_bytes();
    let (_tasks, answers) = attack(&server, &agent, "GET", "/healthz").await;
    answers.settled().await;
    let growth = resident_bytes().saturating_sub(before);
    assert!(growth < GROWTH_BYTES_MAX, "{growth} bytes are kept");
    answers.assert_all(&(200, None));
}
