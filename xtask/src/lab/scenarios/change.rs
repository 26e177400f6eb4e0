//! `farrier change` in a virtual machine.

use std::time::{Duration, Instant};

use anyhow::Context;

use super::power::is_consistent;
use super::upgrade::{check_is_complete, lines};
use super::{Disk, Lab, expect, expect_eq};
use crate::lab::archive::{DriverVersion, OLD, STABLE};
use crate::lab::driver::{self, DriverState};
use crate::lab::fingerprint::{NodeFingerprint, Part};
use crate::lab::machine::{COMMAND_DEADLINE, Machine, Moment};
use crate::lab::node;
use crate::lab::stand_in::Flavour;
use crate::shell::print_status;

const POWER_CUTS: u32 = 20;

/// A change is verified, rolled back in probation, applied again and committed.
pub(super) fn run(lab: &Lab) -> anyhow::Result<()> {
    let mut machine = lab.boot("change", Disk::WithDriver)?;
    driver::show(&mut machine, &[OLD, STABLE])?;
    node::install(&mut machine)?;
    let (old, new) = (lab.archive().driver(OLD)?, lab.archive().driver(STABLE)?);
    node::create_bundle(&mut machine, OLD, &old, Flavour::Proprietary)?;
    let target = node::create_bundle(&mut machine, STABLE, &new, Flavour::Proprietary)?;
    driver::load(&mut machine)?;
    expect_eq("driver before", DriverState::read(&mut machine)?, DriverState::of(&old))?;
    let before = NodeFingerprint::read(&mut machine)?;
    check_is_complete(&before)?;

    let options = ["--no-reboot", "--probation", "3600"];
    let job = node::start_change(&mut machine, &target, &options)?;
    machine.wait_for_output(job, "watching the node")?;
    expect_eq("driver", DriverState::read(&mut machine)?, DriverState::of(&new))?;
    let changed = before.differences(&NodeFingerprint::read(&mut machine)?);
    for part in [Part::Packages, Part::Modules, Part::Holds, Part::Apt] {
        expect(changed.iter().any(|difference| difference.part == part), || {
            format!("{part:?} did not change:\n{}", lines(&changed))
        })?;
    }
    machine.succeed(&["pkill", "-INT", "-x", "farrier"])?;
    machine.finish(job, Duration::from_secs(60))?;
    machine.succeed(&["farrier", "change", "rollback", "--yes"])?;
    expect_eq("end", node::wait_for_end(&mut machine)?.as_str(), "rolled-back")?;
    expect_eq("driver after", DriverState::read(&mut machine)?, DriverState::of(&old))?;
    let left = before.differences(&NodeFingerprint::read(&mut machine)?);
    expect(left.is_empty(), || format!("the node is not as before:\n{}", lines(&left)))?;

    let job = node::start_change(&mut machine, &target, &["--no-reboot", "--probation", "5"])?;
    let output = machine.finish(job, COMMAND_DEADLINE)?;
    expect_eq(&output.all(), output.code, Some(0))?;
    expect_eq("end", node::wait_for_end(&mut machine)?.as_str(), "committed")?;
    expect_eq("driver", DriverState::read(&mut machine)?, DriverState::of(&new))
}

/// Cuts the power at random moments of changes there and back. Each change must end by itself after
/// the boot, with one driver everywhere, complete packages and no cordon.
pub(super) fn power_cuts(lab: &Lab) -> anyhow::Result<()> {
    let mut machine = lab.boot("change-power-cut", Disk::WithDriver)?;
    driver::show(&mut machine, &[OLD, STABLE])?;
    node::install(&mut machine)?;
    node::load_driver_at_boot(&mut machine)?;
    let (old, new) = (lab.archive().driver(OLD)?, lab.archive().driver(STABLE)?);
    let mut from = (node::create_bundle(&mut machine, OLD, &old, Flavour::Proprietary)?, old);
    let mut to = (node::create_bundle(&mut machine, STABLE, &new, Flavour::Proprietary)?, new);
    driver::load(&mut machine)?;
    // The first change shows how long one takes, and leaves the pins and holds of a bundle.
    let started = Instant::now();
    machine.succeed(&["farrier", "change", "apply", &to.0, "--yes", "--probation", "5"])?;
    let longest = started.elapsed();
    print_status(&format!("       a change takes {:.0} s", longest.as_secs_f64()));
    std::mem::swap(&mut from, &mut to);

    let mut moments = Moments::new(535);
    for number in 1..=POWER_CUTS {
        let before = NodeFingerprint::read(&mut machine)?;
        let changes = node::count_changes(&mut machine)?;
        let wait = longest.mul_f64(moments.next());
        node::start_change(&mut machine, &to.0, &["--probation", "5"])?;
        machine.power_cut_at(&Moment::After(wait))?;
        machine.power_on()?;
        let mut state = node::wait_for_end(&mut machine)?;
        if node::count_changes(&mut machine)? == changes {
            // The cut came while the plan was made.
            "not accepted".clone_into(&mut state);
        }
        print_status(&format!(
            "       cut {number} of {POWER_CUTS}, after {:.0} s: {state}",
            wait.as_secs_f64()
        ));
        let context = || format!("power cut {number}, after {:.1} s: {state}", wait.as_secs_f64());
        check_end(&mut machine, &state, (&from.1, &to.1), &before).with_context(context)?;
        if state == "committed" {
            std::mem::swap(&mut from, &mut to);
        }
    }
    Ok(())
}

/// Checks a node whose change has ended.
fn check_end(
    machine: &mut Machine,
    state: &str,
    (from, to): (&DriverVersion, &DriverVersion),
    before: &NodeFingerprint,
) -> anyhow::Result<()> {
    let ends = ["committed", "rolled-back", "cancelled", "deferred", "not accepted"];
    expect(ends.contains(&state), || "the change did not end well".to_owned())?;
    let is_committed = state == "committed";
    let driver = if is_committed { to } else { from };
    expect_eq("driver", DriverState::read(machine)?, DriverState::of(driver))?;
    expect(is_consistent(machine)?, || "packages are not configured".to_owned())?;
    let cordon = machine.run(&["cat", "/var/lib/farrier/cordon.json"])?;
    expect(cordon.code != Some(0), || format!("the node is cordoned: {}", cordon.text()))?;
    if is_committed {
        return Ok(());
    }
    let left = before.differences(&NodeFingerprint::read(machine)?);
    expect(left.is_empty(), || format!("the node is not as before:\n{}", lines(&left)))
}

/// Fractions of a change, the same in each run.
struct Moments(u64);

impl Moments {
    fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// From 0 to 1 (xorshift64).
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        f64::from(u32::try_from(self.0 >> 32).unwrap_or(0)) / f64::from(u32::MAX)
    }
}
