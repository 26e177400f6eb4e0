//! A peer can repeat requests that the server refuses. The server counts them, and does not write a
//! log line for each. This test runs alone in its process, because it counts all log lines.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod metrics;
#[path = "../wire/test_server.rs"]
#[allow(dead_code, reason = "the `wire` tests use the rest")]
mod test_server;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use farrier_agent::uplink::IdentityStore;
use farrier_fleet::fleet::event::NodeInventory;
use farrier_wire::client::{self, Agents};
use farrier_wire::convert;
use farrier_wire::proof::{NodeKey, Purpose};
use farrier_wire::proto::{AgentMessage, EnrolRequest, Hello, RenewRequest, agent_message};
use tonic::{Code, Request, Status};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use metrics::metrics;
use test_server::{TestNode, TestServer};

const TIMES: usize = 50;

/// Counts the server's log lines at the default level.
struct LineCounter(Arc<AtomicUsize>);

impl Subscriber for LineCounter {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO && metadata.target().starts_with("farrier_server")
    }

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

async fn enrol(agents: &mut Agents, token: &str) -> Status {
    let key = NodeKey::generate().unwrap().prove(Purpose::Enrol { node: "b", token }).unwrap();
    let request = EnrolRequest { node: "b".to_owned(), token: token.to_owned(), key: Some(key) };
    agents.enrol(request).await.unwrap_err()
}

fn hello(last_order: u64) -> Hello {
    let inventory =
        NodeInventory { boot: "b".to_owned(), gpus: Some(Vec::new()), ..NodeInventory::default() };
    let inventory = Some(convert::inventory_message(&inventory));
    Hello { inventory, journal: "j".to_owned(), last_order, ..Hello::default() }
}

async fn session(agents: &mut Agents, name: &str, hello: Hello) -> Status {
    let up = AgentMessage { what: Some(agent_message::What::Hello(hello)) };
    let mut request = Request::new(tokio_stream::iter([up]));
    request.metadata_mut().insert("farrier-node", name.parse().unwrap());
    match agents.session(request).await {
        Ok(down) => down.into_inner().message().await.unwrap_err(),
        Err(status) => status,
    }
}

async fn renewal(agents: &mut Agents) -> Code {
    let key = NodeKey::generate().unwrap().prove(Purpose::Renew).unwrap();
    let renewed = agents.renew(RenewRequest { key: Some(key) }).await;
    renewed.map_or_else(|status| status.code(), |_| Code::Ok)
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_refusals_are_counted_without_a_log_line_each() {
    let lines = Arc::new(AtomicUsize::new(0));
    tracing::subscriber::set_global_default(LineCounter(Arc::clone(&lines))).unwrap();
    let server = TestServer::with_tls().await;
    let agent = TestNode::new("a");
    server.enrol("a", &agent.identity(), &server.token(None, 1)).await.unwrap();
    let tls = IdentityStore::new(&agent.identity(), None).tls().unwrap();
    let mut agents =
        client::connect(&server.url().parse().unwrap(), Arc::clone(&tls)).await.unwrap();
    let before = lines.load(Ordering::Relaxed);
    assert!(before > 0, "no log line was counted");
    for _ in 0..TIMES {
        assert_eq!(enrol(&mut agents, "fjoin_wrong").await.code(), Code::PermissionDenied);
        assert_eq!(
            session(&mut agents, "a", hello(u64::MAX)).await.code(),
            Code::FailedPrecondition
        );
        assert_eq!(session(&mut agents, "b", hello(0)).await.code(), Code::PermissionDenied);
        let malformed = session(&mut agents, "a", Hello::default()).await;
        assert_eq!(malformed.code(), Code::InvalidArgument);
    }
    let first = renewal(&mut agents).await;
    let mut later = Vec::new();
    for _ in 1..TIMES {
        later.push(renewal(&mut agents).await);
    }
    // A few lines may appear: lines about the server itself and, on a slow machine, the summary
    // that the server writes each minute.
    let written = lines.load(Ordering::Relaxed) - before;
    assert!(written < TIMES / 2, "{written} lines for {} refusals", 5 * TIMES);
    assert_eq!(first, Code::Ok);
    // Only one renewal per minute is allowed. On a slow machine more than a minute may pass between
    // two renewals, so not every later renewal is refused.
    assert!(later.contains(&Code::ResourceExhausted), "{later:?}");
    let text = metrics(&server, tls).await;
    for line in [
        format!("farrier_server_enrolments_refused_total{{reason=\"token\"}} {TIMES}"),
        format!("farrier_server_order_generations_refused_total {TIMES}"),
        format!("farrier_server_node_names_refused_total {TIMES}"),
        format!("farrier_server_sessions_ended_total {TIMES}"),
    ] {
        assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
    }
    let renewals = text
        .lines()
        .filter_map(|line| line.strip_prefix("farrier_server_certificate_renewals_total"));
    let counts = renewals.filter_map(|renewal| renewal.rsplit(' ').next()?.parse::<usize>().ok());
    assert_eq!(counts.sum::<usize>(), TIMES, "{text}");
}
