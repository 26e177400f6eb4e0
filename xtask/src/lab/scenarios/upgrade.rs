//! A driver change by hand, and the comparison that every automated change has to pass.

use anyhow::Context;

use super::{Disk, Lab, expect, expect_eq};
use crate::lab::archive::{DriverVersion, OLD, STABLE};
use crate::lab::driver::{self, DriverState};
use crate::lab::fingerprint::{Difference, NodeFingerprint, Part};
use crate::lab::machine::Machine;
use crate::lab::stand_in::Flavour;

pub(super) fn run(lab: &Lab) -> anyhow::Result<()> {
    let mut machine = lab.boot("upgrade", Disk::WithDriver)?;
    driver::show(&mut machine, &[OLD, STABLE])?;
    let (old, new) = (lab.archive().driver(OLD)?, lab.archive().driver(STABLE)?);
    there_and_back(&mut machine, &old, &new, |machine, version| {
        let repository = if *version == new { STABLE } else { OLD };
        driver::unload(machine)?;
        machine.script(&driver::install_script(repository, Flavour::Proprietary))?;
        driver::load(machine)
    })
}

/// Moves a node from one driver to another and back with `change`, which leaves the new driver
/// loaded. The node must be as before in every part of its fingerprint.
pub(crate) fn there_and_back(
    machine: &mut Machine,
    old: &DriverVersion,
    new: &DriverVersion,
    mut change: impl FnMut(&mut Machine, &DriverVersion) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    driver::load(machine)?;
    expect_eq("driver before", DriverState::read(machine)?, DriverState::of(old))?;
    let before = NodeFingerprint::read(machine)?;
    check_is_complete(&before)?;

    change(machine, new).context("the change")?;
    expect_eq("driver", DriverState::read(machine)?, DriverState::of(new))?;
    let changed = before.differences(&NodeFingerprint::read(machine)?);
    for part in [Part::Packages, Part::Modules] {
        expect(changed.iter().any(|difference| difference.part == part), || {
            format!("{part:?} did not change:\n{}", lines(&changed))
        })?;
    }

    change(machine, old).context("the way back")?;
    expect_eq("driver after", DriverState::read(machine)?, DriverState::of(old))?;
    let left = before.differences(&NodeFingerprint::read(machine)?);
    expect(left.is_empty(), || format!("the node is not as before:\n{}", lines(&left)))
}

/// An empty part would compare as equal for ever.
pub(super) fn check_is_complete(fingerprint: &NodeFingerprint) -> anyhow::Result<()> {
    for (part, at_least) in [
        (Part::Packages, 200),
        (Part::AutomaticallyInstalled, 10),
        (Part::Apt, 5),
        (Part::ModuleConfiguration, 4),
        (Part::Modules, 5),
        (Part::Initramfs, 100),
        (Part::Units, 100),
        (Part::Alternatives, 5),
        (Part::BootEntries, 1),
    ] {
        let count = fingerprint.count(part);
        expect(count >= at_least, || format!("the fingerprint has only {count} of {part:?}"))?;
    }
    Ok(())
}

pub(super) fn lines(differences: &[Difference]) -> String {
    let lines: Vec<String> = differences.iter().map(ToString::to_string).collect();
    lines.join("\n")
}
