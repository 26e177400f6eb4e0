//! `cargo xtask bench fleet`: what the server costs and how fast it is, with agents of another process on the real wire.
//!
//! ```text
//! crates/sim/examples/load ─ gRPC, server-sent events ─> farrier server run ─> /proc ─> bench/fleet.md
//! ```

mod load;
mod report;
mod scenes;
mod server;

use anyhow::bail;

use crate::bench_size::Size;
use crate::shell::say;
use scenes::{Burst, Certified, Findings, Flood, Restart, Steady};

/// How much of everything.
#[derive(Clone, Copy)]
struct Sizes {
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
const FULL: Sizes = Sizes {
    steady: (100_000, 180),
    certified: 2_000,
    burst: (1_500, 375),
    findings: (1_500, 2_000),
    flood: (200, 1_000, 600),
    history: (1_000_000, 65_000),
};
const QUICK: Sizes = Sizes {
    steady: (500, 5),
    certified: 20,
    burst: (200, 50),
    findings: (100, 100),
    flood: (20, 20, 20),
    history: (10_000, 1_000),
};

/// What was measured; a part that was not asked for is missing.
#[derive(Default)]
struct Measured {
    steady: Vec<Steady>,
    certified: Option<Certified>,
    bursts: Vec<Burst>,
    findings: Option<Findings>,
    flood: Option<Flood>,
    restarts: Vec<Restart>,
}

/// Measures all, or the parts that are named, and writes `bench/fleet.md` where it was all of them.
pub(crate) fn run(size: Size, parts: &[&str]) -> anyhow::Result<()> {
    let sizes = size.pick(FULL, QUICK);
    let known = ["burst", "findings", "flood", "steady", "restart", "certified"];
    if let Some(unknown) = parts.iter().find(|part| !known.contains(part)) {
        bail!("`{unknown}` is none of {}", known.join(", "));
    }
    let wants = |part: &str| parts.is_empty() || parts.contains(&part);
    size.build(&[
        "--package=farrier",
        "--package=farrier-sim",
        "--features=farrier-sim/wire",
        "--bin=farrier",
        "--example=load",
    ])?;
    let mut measured = Measured::default();
    if wants("burst") {
        // As policy has it at first, and with room for all that fail.
        for share in ["0", "0.5"] {
            measured.bursts.push(scenes::burst(size, sizes.burst, share)?);
        }
    }
    if wants("findings") {
        measured.findings = Some(scenes::findings(size, sizes.findings)?);
    }
    if wants("flood") {
        measured.flood = Some(scenes::flood(size, sizes.flood)?);
    }
    if wants("steady") {
        for report in ["heartbeat", "inventory"] {
            measured.steady.push(scenes::steady(size, sizes.steady, report)?);
        }
    }
    if wants("certified") {
        measured.certified = Some(scenes::certified(size, sizes.certified)?);
    }
    if wants("restart") {
        measured.restarts = scenes::restarts(size, sizes.history)?;
    }
    let text = report::text(&measured)?;
    if parts.is_empty() {
        size.publish("fleet", &text)?;
    } else {
        say(&text);
    }
    report::check_nothing_lost(&measured)?;
    size.judge(&report::over_budget(&measured)?)
}
