use super::{Disk, Lab, expect, expect_eq, power};
use crate::lab::archive::{OLD, STABLE};
use crate::lab::driver::{self, DriverState};
use crate::lab::stand_in::Flavour;

/// A driver change on a full disk fails, and is completed once there is space.
pub(super) fn run(lab: &Lab) -> anyhow::Result<()> {
    let mut machine = lab.boot("full-disk", Disk::WithDriver)?;
    driver::show(&mut machine, &[OLD, STABLE])?;
    let new = lab.archive().driver(STABLE)?;
    // Enough for small packages, not for the firmware.
    machine.script(
        "free=$(df --output=avail --block-size=1M / | tail -1)\n\
         fallocate --length $((free - 30))M /root/ballast",
    )?;
    let install = driver::install_script(STABLE, Flavour::Proprietary);
    let output = machine.run(&["/bin/sh", "-c", &install])?;
    expect(output.code != Some(0), || "the driver fits on the full disk".into())?;
    expect(output.all().contains("No space left on device"), || output.all())?;
    let state = DriverState::read(&mut machine)?;
    expect(state != DriverState::of(&new), || format!("the change is complete: {state:?}"))?;

    machine.script("rm /root/ballast; dpkg --configure -a || true")?;
    machine.script(&install)?;
    expect(power::is_consistent(&mut machine)?, || "packages are not configured".into())?;
    driver::load(&mut machine)?;
    expect_eq("driver", DriverState::read(&mut machine)?, DriverState::of(&new))
}
