//! Nodes with a certificate and a connection each, as in production. Then the server is killed, and
//! all nodes reconnect at once.

use std::collections::{BTreeMap, HashSet};
use std::io::BufRead;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use farrier_wire::client::{self, ServerUrl, connect};
use farrier_wire::proof::{NodeKey, Purpose};
use farrier_wire::proto::EnrolRequest;
use rustls::crypto::ring as provider;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio::task::JoinSet;

use crate::agent::{self, LoadAgent, ReportMode, ServerLink};
use crate::coordinator::{Coordinator, NodeCommand, print_latencies};
use crate::feed::EventFeed;
use crate::findings::warning;
use crate::print_metric;

/// Concurrent enrolments; the server allows 16.
const ENROLLING_MAX: usize = 12;
/// Findings per node before the server is killed. One more finding follows while the server is
/// down.
const FINDINGS: usize = 2;
/// Settling time before memory is measured.
const SETTLE_TIME: Duration = Duration::from_secs(5);

/// A finding that is not streamed within this time is lost, even on a busy machine.
const FEED_TIMEOUT: Duration = Duration::from_secs(120);

/// Join token, CA fingerprint and user token.
pub(crate) struct Credentials {
    pub(crate) join: String,
    pub(crate) fingerprint: String,
    pub(crate) user: String,
}

pub(crate) async fn run(
    url: &ServerUrl,
    credentials: &Credentials,
    nodes: usize,
) -> anyhow::Result<()> {
    let start = Instant::now();
    let identities = enrol(url, credentials, nodes).await?;
    print_metric("enrol_s", start.elapsed().as_secs_f64());
    tokio::time::sleep(SETTLE_TIME).await;
    print_metric("mark", "enrolled");
    wait_for_parent()?;
    let coordinator = Arc::new(Coordinator::new(nodes));
    let start = Instant::now();
    for (index, tls) in identities.into_iter().enumerate() {
        let link = ServerLink::Dedicated(url.clone(), tls);
        tokio::spawn(LoadAgent::new(index).run(
            link,
            ReportMode::Heartbeat,
            Arc::clone(&coordinator),
            None,
        ));
    }
    coordinator.wait_until(|coordinator| coordinator.connected() == nodes).await?;
    print_metric("connect_s", start.elapsed().as_secs_f64());
    coordinator.wait_until(|coordinator| coordinator.completed_orders() >= 2 * nodes).await?;
    print_metric("in_service_s", start.elapsed().as_secs_f64());
    for _ in 0..FINDINGS {
        inject_warning(&coordinator, nodes).await?;
    }
    tokio::time::sleep(SETTLE_TIME).await;
    print_latencies("change_to_acknowledgement", coordinator.take_latencies());
    print_metric("mark", "connected");
    // The parent kills the server here, with changes in flight, and restarts it.
    let sender = Arc::clone(&coordinator);
    let last = tokio::spawn(async move { inject_warning(&sender, nodes).await });
    wait_for_parent()?;
    coordinator.wait_until(|coordinator| coordinator.connected() < nodes / 2).await?;
    print_metric("mark", "gone");
    wait_for_parent()?;
    let start = Instant::now();
    coordinator.wait_until(|coordinator| coordinator.connected() == nodes).await?;
    print_metric("reconnect_s", start.elapsed().as_secs_f64());
    last.await??;
    tokio::time::sleep(SETTLE_TIME).await;
    print_metric("mark", "back");
    compare(url, credentials, nodes * (FINDINGS + 1)).await
}

/// Waits until the parent has handled the last mark.
fn wait_for_parent() -> anyhow::Result<()> {
    let mut line = String::new();
    if std::io::stdin().lock().read_line(&mut line)? == 0 {
        bail!("the parent closed stdin");
    }
    Ok(())
}

async fn inject_warning(coordinator: &Coordinator, nodes: usize) -> anyhow::Result<()> {
    let fault = warning()?;
    for node in 0..nodes {
        coordinator.send_command(node, NodeCommand::InjectFault(fault)).await;
    }
    Ok(())
}

/// Checks that the log has every finding once.
async fn compare(url: &ServerUrl, credentials: &Credentials, sent: usize) -> anyhow::Result<()> {
    let pinned = client::pinned(client::fingerprint(&credentials.fingerprint)?)?;
    let mut feed = EventFeed::after(url, pinned, &credentials.user, Some(0)).await?;
    let (mut logged, mut records) = (0_usize, HashSet::new());
    let mut findings: BTreeMap<String, HashSet<u64>> = BTreeMap::new();
    let end = tokio::time::Instant::now() + FEED_TIMEOUT;
    while findings.values().map(HashSet::len).sum::<usize>() < sent {
        let Ok(next) = tokio::time::timeout_at(end, feed.next()).await else { break };
        for row in next?.1.into_iter().filter(|row| row.kind == "findings-reported") {
            let node = row.node.context("finding without a node")?.to_string();
            let number = |path: &str| row.event.pointer(path).and_then(serde_json::Value::as_u64);
            logged += 1;
            records.insert((node.clone(), number("/findings-reported/record/number")));
            let id = number("/findings-reported/changes/0/opened/id");
            findings.entry(node).or_default().extend(id);
        }
    }
    print_metric("findings_sent", sent);
    print_metric("findings_logged", findings.values().map(HashSet::len).sum::<usize>());
    print_metric("records_duplicated", logged - records.len());
    Ok(())
}

async fn enrol(
    url: &ServerUrl,
    credentials: &Credentials,
    nodes: usize,
) -> anyhow::Result<Vec<Arc<ClientConfig>>> {
    let mut configs = vec![None; nodes];
    let mut enrolling = JoinSet::new();
    let mut next = 0..nodes;
    loop {
        while enrolling.len() < ENROLLING_MAX
            && let Some(index) = next.next()
        {
            let (url, token) = (url.clone(), credentials.join.clone());
            let pinned = client::pinned(client::fingerprint(&credentials.fingerprint)?)?;
            enrolling.spawn(async move { enrol_one(&url, &token, pinned, index).await });
        }
        let Some(joined) = enrolling.join_next().await else { break };
        let (index, tls) = joined??;
        configs[index] = Some(tls);
    }
    configs.into_iter().map(|config| config.context("a node did not enrol")).collect()
}

async fn enrol_one(
    url: &ServerUrl,
    token: &str,
    pinned: Arc<ClientConfig>,
    index: usize,
) -> anyhow::Result<(usize, Arc<ClientConfig>)> {
    let node = agent::name(index);
    let key = NodeKey::generate()?;
    let purpose = Purpose::Enrol { node: node.as_str(), token };
    let request = EnrolRequest {
        token: token.to_owned(),
        node: node.to_string(),
        key: Some(key.prove(purpose)?),
    };
    let mut agents = connect(url, pinned).await?;
    let signed = agents.enrol(request).await?.into_inner();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(signed.authority.to_vec()))?;
    let key = PrivatePkcs8KeyDer::from(key.pkcs8().to_vec());
    let certificate = CertificateDer::from(signed.node.to_vec());
    let mut tls = ClientConfig::builder_with_provider(Arc::new(provider::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![certificate], key.into())?;
    tls.alpn_protocols = vec![b"h2".to_vec()];
    tls.resumption = rustls::client::Resumption::disabled();
    Ok((index, Arc::new(tls)))
}
