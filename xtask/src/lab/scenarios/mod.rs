//! What is tried in the virtual machines. Each scenario has a machine of its own, and fails at the
//! first check that does not hold.

mod boot;
mod change;
mod disk;
mod dkms;
mod kernel;
mod module;
mod power;
mod secure_boot;
mod unattended;
mod upgrade;

use std::time::Instant;

use anyhow::bail;

use super::{Disk, Lab};
use crate::shell::print_status;

pub(crate) struct Scenario {
    name: &'static str,
    shows: &'static str,
    /// Whether CI runs it.
    pub(crate) quick: bool,
    run: fn(&Lab) -> anyhow::Result<()>,
}

const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "boot",
        shows: "a machine boots, runs commands, takes a file and reboots",
        quick: true,
        run: boot::run,
    },
    Scenario {
        name: "module",
        shows: "the stand-in loads with the driver's version, and an open device keeps it loaded",
        quick: true,
        run: module::run,
    },
    Scenario {
        name: "dkms",
        shows: "no headers: no module; a failed DKMS build fails apt and can be repaired",
        quick: false,
        run: dkms::run,
    },
    Scenario {
        name: "power",
        shows: "a power cut loses what was not synced, and nothing else",
        quick: true,
        run: power::loses_unsynced,
    },
    Scenario {
        name: "power-cut",
        shows: "dpkg recovers from a power cut while apt unpacks a driver",
        quick: false,
        run: power::recovers,
    },
    Scenario {
        name: "upgrade",
        shows: "a driver change by hand and back leaves the node as it was",
        quick: false,
        run: upgrade::run,
    },
    Scenario {
        name: "change",
        shows: "`farrier change` is rolled back without a trace, and committed at the next try",
        quick: false,
        run: change::run,
    },
    Scenario {
        name: "change-power-cut",
        shows: "power cuts at 20 random moments: each change ends by itself, with one driver",
        quick: false,
        run: change::power_cuts,
    },
    Scenario {
        name: "full-disk",
        shows: "a driver change on a full disk fails and is completed later",
        quick: false,
        run: disk::run,
    },
    Scenario {
        name: "unattended",
        shows: "unattended-upgrades moves the driver under the loaded module; held kernels stay",
        quick: false,
        run: unattended::run,
    },
    Scenario {
        name: "kernel",
        shows: "a new kernel without headers boots without a driver; its headers bring it back",
        quick: false,
        run: kernel::run,
    },
    Scenario {
        name: "secure-boot",
        shows: "the kernel rejects a module until the key of DKMS is enrolled",
        quick: false,
        run: secure_boot::run,
    },
];

pub(crate) fn list() {
    for scenario in SCENARIOS {
        let quick = if scenario.quick { "quick" } else { "" };
        print_status(&format!("{:<20} {quick:<6} {}", scenario.name, scenario.shows));
    }
}

pub(crate) fn run_named(names: &[&str]) -> anyhow::Result<()> {
    if let Some(name) = names.iter().find(|name| !SCENARIOS.iter().any(|it| it.name == **name)) {
        bail!("no scenario is named `{name}`; `cargo xtask lab list` prints all names");
    }
    run_all(|scenario| names.contains(&scenario.name))
}

/// Runs the selected scenarios, even after one has failed.
pub(crate) fn run_all(is_selected: impl Fn(&Scenario) -> bool) -> anyhow::Result<()> {
    let started = Instant::now();
    let lab = Lab::prepare()?;
    print_status(&format!("--- lab: ready after {:.0} s", started.elapsed().as_secs_f64()));
    let mut failed = Vec::new();
    let mut passed = 0;
    for scenario in SCENARIOS.iter().filter(|scenario| is_selected(scenario)) {
        let started = Instant::now();
        let result = (scenario.run)(&lab);
        let elapsed_s = started.elapsed().as_secs_f64();
        let verdict = if result.is_ok() { "ok" } else { "FAILED" };
        print_status(&format!("{verdict:<6} {:<20} {elapsed_s:>6.1} s", scenario.name));
        match result {
            Ok(()) => passed += 1,
            Err(err) => {
                print_status(&format!("       {err:#}"));
                failed.push(scenario.name);
            }
        }
    }
    let elapsed_s = started.elapsed().as_secs_f64();
    print_status(&format!("{passed} passed, {} failed ({elapsed_s:.0} s)", failed.len()));
    if failed.is_empty() { Ok(()) } else { bail!("failed scenarios: {}", failed.join(", ")) }
}

/// Fails with both values if they differ.
#[expect(clippy::needless_pass_by_value, reason = "as assert_eq, for literals and new values")]
fn expect_eq<T: PartialEq + std::fmt::Debug>(
    what: &str,
    actual: T,
    expected: T,
) -> anyhow::Result<()> {
    if actual == expected {
        return Ok(());
    }
    bail!("{what}: expected {expected:?}, got {actual:?}")
}

fn expect(condition: bool, what: impl FnOnce() -> String) -> anyhow::Result<()> {
    if condition { Ok(()) } else { bail!("{}", what()) }
}
