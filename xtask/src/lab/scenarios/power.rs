//! Power cuts in the middle of a package transaction.

use std::time::Duration;

use super::{Disk, Lab, expect, expect_eq};
use crate::lab::archive::{OLD, STABLE};
use crate::lab::driver::{self, DriverState};
use crate::lab::machine::{Machine, Moment};
use crate::lab::stand_in::Flavour;

/// A cut loses what was not synced, and nothing else.
pub(super) fn loses_unsynced(lab: &Lab) -> anyhow::Result<()> {
    let mut machine = lab.boot("power", Disk::Bare)?;
    machine.start(&[
        "sh",
        "-c",
        "echo kept >/root/synced; sync; echo lost >/root/late; echo 'step 1' >/run/journal",
    ])?;
    machine.power_cut_at(&Moment::File { path: "/run/journal", text: "step 1" })?;
    machine.power_on()?;
    expect_eq("synced", machine.succeed(&["cat", "/root/synced"])?.as_str(), "kept")?;
    let late = machine.run(&["cat", "/root/late"])?;
    expect(late.stdout.is_empty(), || "a file outlived the power cut without being synced".into())?;

    machine.start(&["sh", "-c", "echo step 2 >/dev/console; exec sleep infinity"])?;
    machine.power_cut_at(&Moment::Console("step 2"))?;
    machine.power_on()?;
    expect_eq("synced", machine.succeed(&["cat", "/root/synced"])?.as_str(), "kept")
}

/// The package manager recovers from a cut while it unpacks.
pub(super) fn recovers(lab: &Lab) -> anyhow::Result<()> {
    let mut machine = lab.boot("power-cut", Disk::WithDriver)?;
    driver::show(&mut machine, &[OLD, STABLE])?;
    let new = lab.archive().driver(STABLE)?;
    let install = driver::install_script(STABLE, Flavour::Proprietary);
    let apt = machine.start(&["/bin/sh", "-c", &install])?;
    machine.power_cut_at(&Moment::Output { job: apt, text: "Unpacking libcuda1" })?;
    machine.power_on()?;

    expect(!is_consistent(&mut machine)?, || "no package was interrupted".into())?;
    // The repair may be interrupted as well.
    machine.start(&["dpkg", "--configure", "-a"])?;
    machine.power_cut_at(&Moment::After(Duration::from_secs(3)))?;
    machine.power_on()?;
    // It fails as long as unpacked packages depend on packages that were not unpacked yet; only then
    // can apt complete the transaction.
    machine.run(&["dpkg", "--configure", "-a"])?;
    machine.script(&install)?;
    expect(is_consistent(&mut machine)?, || "packages are still not configured".into())?;
    driver::load(&mut machine)?;
    expect_eq("driver", DriverState::read(&mut machine)?, DriverState::of(&new))
}

/// Whether dpkg has every package installed and configured.
pub(super) fn is_consistent(machine: &mut Machine) -> anyhow::Result<bool> {
    let audit = machine.run(&["dpkg", "--audit"])?;
    let states = machine
        .script("dpkg-query --show --showformat '${db:Status-Status}\\n' | sort | uniq --count")?;
    let journal = machine.script("ls /var/lib/dpkg/updates | wc --lines")?;
    let only_installed =
        states.lines().all(|line| line.ends_with(" installed") || line.ends_with(" config-files"));
    Ok(audit.stdout.is_empty() && only_installed && journal == "0")
}
