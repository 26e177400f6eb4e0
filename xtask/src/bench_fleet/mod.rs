//! `cargo xtask bench fleet`: cost and latency of the server. Simulated agents run in another
//! process.
//!
//! ```text
//! crates/sim/examples/load ─ gRPC, events ─> farrier server run ─> /proc ─> bench/fleet.md
//! ```

mod load;
mod report;
mod scenarios;
mod server;

use anyhow::bail;

use crate::bench_size::Size;
use crate::shell::print_status;
use scenarios::{
    BurstResult, CertifiedResult, FindingsResult, FloodResult, RestartResult, SteadyResult,
};

/// Sizes of a run.
#[derive(Clone, Copy)]
struct FleetParams {
    /// Number of reporting nodes, and duration in seconds.
    steady: (usize, usize),
    certified: usize,
    /// Nodes, and how many of them fail.
    burst: (usize, usize),
    /// Nodes, and findings on them.
    findings: (usize, usize),
    /// Nodes, flooding nodes, and fatal findings on the other nodes.
    flood: (usize, usize, usize),
    /// Log entries, and how many of them follow the snapshot.
    history: (usize, usize),
}

/// The sizes that the budgets refer to. The server writes a snapshot every 50,000 entries, and more
/// entries arrive while it writes. So `history` has 65,000 entries after its snapshot.
const FULL: FleetParams = FleetParams {
    steady: (100_000, 180),
    certified: 2_000,
    burst: (1_500, 375),
    findings: (1_500, 2_000),
    flood: (200, 1_000, 600),
    history: (1_000_000, 65_000),
};
const QUICK: FleetParams = FleetParams {
    steady: (500, 5),
    certified: 20,
    burst: (200, 50),
    findings: (100, 100),
    flood: (20, 20, 20),
    history: (10_000, 1_000),
};

/// Results by scenario. Scenarios that did not run are missing.
#[derive(Default)]
struct FleetResults {
    steady: Vec<SteadyResult>,
    certified: Option<CertifiedResult>,
    bursts: Vec<BurstResult>,
    findings: Option<FindingsResult>,
    flood: Option<FloodResult>,
    restarts: Vec<RestartResult>,
}

/// Runs all or the named scenarios. Writes `bench/fleet.md` if all ran.
pub(crate) fn run(size: Size, parts: &[&str]) -> anyhow::Result<()> {
    let params = size.pick(FULL, QUICK);
    let names = ["burst", "findings", "flood", "steady", "restart", "certified"];
    if let Some(unknown) = parts.iter().find(|part| !names.contains(part)) {
        bail!("unknown scenario `{unknown}`; expected one of {}", names.join(", "));
    }
    let selected = |part: &str| parts.is_empty() || parts.contains(&part);
    size.build(&[
        "--package=farrier",
        "--package=farrier-sim",
        "--features=farrier-sim/wire",
        "--bin=farrier",
        "--example=load",
    ])?;
    let mut results = FleetResults::default();
    if selected("burst") {
        // `0` keeps the default disruption budget; `0.5` covers all failing nodes.
        for share in ["0", "0.5"] {
            results.bursts.push(scenarios::burst(size, params.burst, share)?);
        }
    }
    if selected("findings") {
        results.findings = Some(scenarios::findings(size, params.findings)?);
    }
    if selected("flood") {
        results.flood = Some(scenarios::flood(size, params.flood)?);
    }
    if selected("steady") {
        for report in ["heartbeat", "inventory"] {
            results.steady.push(scenarios::steady(size, params.steady, report)?);
        }
    }
    if selected("certified") {
        results.certified = Some(scenarios::certified(size, params.certified)?);
    }
    if selected("restart") {
        results.restarts = scenarios::restarts(size, params.history)?;
    }
    let text = report::text(&results)?;
    if parts.is_empty() {
        size.publish("fleet", &text)?;
    } else {
        print_status(&text);
    }
    report::check_nothing_lost(&results)?;
    size.judge(&report::over_budget(&results)?)
}
