//! `cargo xtask bench fleet`: what the server costs and how fast it is, with agents of another process on the real wire.
//!
//! ```text
//! crates/sim/examples/load ─ gRPC, server-sent events ─> farrier server run ─> /proc ─> bench/fleet.md
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

/// How much of everything.
#[derive(Clone, Copy)]
struct FleetParams {
    /// Nodes that report, for so many seconds.
    steady: (usize, usize),
    certified: usize,
    /// Nodes, and how many of them fail.
    burst: (usize, usize),
    /// Nodes, and findings on them.
    findings: (usize, usize),
    /// Nodes, nodes that flood, and fatal findings on the others.
    flood: (usize, usize, usize),
    /// Entries of the log, and how many of them come after the state that was kept.
    history: (usize, usize),
}

/// What the budgets are stated for. The state is kept every 50,000 entries, and more come while it is written.
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

/// What was measured; a part that was not asked for is missing.
#[derive(Default)]
struct FleetResults {
    steady: Vec<SteadyResult>,
    certified: Option<CertifiedResult>,
    bursts: Vec<BurstResult>,
    findings: Option<FindingsResult>,
    flood: Option<FloodResult>,
    restarts: Vec<RestartResult>,
}

/// Measures all, or the parts that are named, and writes `bench/fleet.md` where it was all of them.
pub(crate) fn run(size: Size, parts: &[&str]) -> anyhow::Result<()> {
    let params = size.pick(FULL, QUICK);
    let known = ["burst", "findings", "flood", "steady", "restart", "certified"];
    if let Some(unknown) = parts.iter().find(|part| !known.contains(part)) {
        bail!("`{unknown}` is none of {}", known.join(", "));
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
        // As policy has it at first, and with room for all that fail.
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
