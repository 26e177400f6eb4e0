//! `/metrics` in the Prometheus text format.
//!
//! The number of label values is bounded. There are few pools, and by rack only the number of nodes
//! is counted. The query parameter `racks` limits the number of racks. `docs/metrics.md` is
//! generated from `families`.

mod domains;
mod families;
mod notify;
mod page;
mod server;
mod tally;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use farrier_fleet::fleet::FleetState;
use hyper::header::HeaderMap;
use jiff::Timestamp;

use super::Call;
use super::failure::Failure;
use super::pagination::{Batches, Visit};
use super::query::{Parameter, ParameterKind};
use super::reply::{self, Reply};
use domains::DomainTally;
use page::MetricsPage;
use tally::NodeTally;

/// Default number of racks with samples. A rack has one sample, or one sample for each phase of its
/// nodes.
const RACKS_DEFAULT: u64 = 1000;

pub(super) const QUERY: &[Parameter] = &[Parameter {
    name: "racks",
    about: "How many racks have samples (1000). Racks with the most nodes out of service come first.",
    kind: ParameterKind::Number { min: 0, max: 100_000 },
}];

/// How long the controller may take to answer. After this time, the page has only the metrics of
/// the server process. A controller that hangs can thus be distinguished from a server that is
/// down.
const READ_TIMEOUT_MAX: Duration = Duration::from_secs(5);

/// Prometheus sends its scrape timeout in this header.
const SCRAPE_TIMEOUT_HEADER: &str = "x-prometheus-scrape-timeout-seconds";

struct FleetMetrics {
    nodes: NodeTally,
    domains: DomainTally,
    /// Receivers of notifications in the policy.
    receivers: Vec<String>,
    at: Timestamp,
}

pub(super) async fn metrics(call: Call) -> Result<Reply, Failure> {
    call.caller()?.check_fleet_wide()?;
    let fleet = match tokio::time::timeout(read_timeout(&call.headers), fleet(&call)).await {
        Ok(fleet) => Some(fleet?),
        Err(_) => None,
    };
    let mut page = MetricsPage::default();
    if let Some(fleet) = &fleet {
        let racks = call.query.number("racks").unwrap_or(RACKS_DEFAULT);
        fleet.nodes.write(&mut page, fleet.at, usize::try_from(racks).unwrap_or(usize::MAX));
        fleet.domains.write(&mut page);
    }
    server::write(&mut page, &call, fleet.is_some());
    let receivers = fleet.map(|fleet| fleet.receivers).unwrap_or_default();
    notify::write(&mut page, &call, &receivers).await;
    Ok(Reply::bytes(reply::METRICS, page.finish()))
}

/// Half of the scrape timeout, which leaves time to send the page.
fn read_timeout(headers: &HeaderMap) -> Duration {
    let timeout_s = headers.get(SCRAPE_TIMEOUT_HEADER).and_then(|value| value.to_str().ok());
    let timeout = timeout_s.and_then(|text| text.parse::<f64>().ok());
    let timeout = timeout.and_then(|seconds| Duration::try_from_secs_f64(seconds / 2.0).ok());
    timeout.unwrap_or(READ_TIMEOUT_MAX).min(READ_TIMEOUT_MAX)
}

/// Counts the nodes in batches, so that the controller is not blocked. Each batch returns one tally.
async fn fleet(call: &Call) -> Result<FleetMetrics, Failure> {
    let app = Arc::clone(&call.app);
    let visit: Visit<NodeTally> = Arc::new(move |_, id, node, tallies| {
        if tallies.is_empty() {
            tallies.push(NodeTally::default());
        }
        tallies[0].add(node, app.connection(id).state);
    });
    let mut batches = Batches::new(&call.app.controller, call.caller()?, visit);
    let mut nodes = NodeTally::default();
    while let Some(tallies) = batches.next(1).await? {
        for tally in tallies {
            nodes.merge(tally);
        }
    }
    let at = call.app.controller.now();
    let read = move |state: &FleetState| {
        let receivers = state.policy.notifications.receivers.keys().cloned().collect();
        (DomainTally::new(state, at), receivers)
    };
    let (domains, receivers) = call.app.controller.read(read).await?;
    Ok(FleetMetrics { nodes, domains, receivers, at })
}
