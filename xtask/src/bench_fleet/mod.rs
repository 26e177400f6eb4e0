//! `cargo xtask bench fleet`: what the server costs and how fast it is, with agents of another process on the real wire.
//!
//! ```text
//! crates/sim/examples/load ─ gRPC, server-sent events ─> farrier server run ─> /proc ─> bench/fleet.md
//! ```

mod load;
mod report;
mod scenes;
mod server;

use anyhow::{Context, bail};

use crate::shell::{cargo, root, say};
use scenes::{Burst, Certified, Findings, Restart, Steady};

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
    /// Entries of the log, and how many of them come after the state that was kept.
    history: (usize, usize),
}

/// What the budgets are stated for. The state is kept every 50,000 entries, and more come while it is written.
const WHOLE: Sizes = Sizes {
    steady: (100_000, 180),
    certified: 2_000,
    burst: (1_500, 375),
    findings: (1_500, 2_000),
    history: (1_000_000, 65_000),
};
/// To see whether it works.
const QUICK: Sizes = Sizes {
    steady: (5_000, 10),
    certified: 100,
    burst: (200, 50),
    findings: (200, 200),
    history: (200_000, 20_000),
};

/// What was measured; a part that was not asked for is missing.
#[derive(Default)]
struct Measured {
    steady: Vec<Steady>,
    certified: Option<Certified>,
    bursts: Vec<Burst>,
    findings: Option<Findings>,
    restarts: Vec<Restart>,
}

/// Measures all, or the parts that are named, and writes `bench/fleet.md` where it was all of the whole.
pub(crate) fn run(words: &[&str]) -> anyhow::Result<()> {
    let is_quick = words.contains(&"--quick");
    let parts: Vec<&str> = words.iter().copied().filter(|word| *word != "--quick").collect();
    let sizes = if is_quick { QUICK } else { WHOLE };
    let known = ["burst", "findings", "steady", "restart", "certified"];
    if let Some(unknown) = parts.iter().find(|part| !known.contains(part)) {
        bail!("`{unknown}` is none of {}", known.join(", "));
    }
    let wants = |part: &str| parts.is_empty() || parts.contains(&part);
    cargo(&[
        "build",
        "--release",
        "--locked",
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
            measured.bursts.push(scenes::burst(sizes.burst, share)?);
        }
    }
    if wants("findings") {
        measured.findings = Some(scenes::findings(sizes.findings)?);
    }
    if wants("steady") {
        for report in ["heartbeat", "makeup"] {
            measured.steady.push(scenes::steady(sizes.steady, report)?);
        }
    }
    if wants("certified") {
        measured.certified = Some(scenes::certified(sizes.certified)?);
    }
    if wants("restart") {
        measured.restarts = scenes::restarts(sizes.history)?;
    }
    let text = report::text(&measured)?;
    say(&text);
    if !is_quick && parts.is_empty() {
        let file = root().join("bench/fleet.md");
        std::fs::write(&file, &text)
            .with_context(|| format!("failed to write `{}`", file.display()))?;
    }
    let over = report::over_budget(&measured)?;
    if !over.is_empty() {
        bail!("over budget: {}; is the machine busy with something else?", over.join(", "));
    }
    Ok(())
}
