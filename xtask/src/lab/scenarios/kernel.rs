use super::{Disk, Lab, expect, expect_eq};
use crate::lab::archive::{OLD, SECURITY};
use crate::lab::driver::{self, DriverState};
use crate::lab::qemu::BootMode;

/// A newer kernel without headers boots without a driver; its headers bring the driver back.
pub(super) fn run(lab: &Lab) -> anyhow::Result<()> {
    let mut machine = lab.boot_firmware("kernel", Disk::WithDriver, BootMode::Firmware)?;
    let driver = lab.archive().driver(OLD)?;
    let before = machine.succeed(&["uname", "-r"])?;
    driver::load(&mut machine)?;
    expect_eq("driver", DriverState::read(&mut machine)?, DriverState::of(&driver))?;

    driver::show(&mut machine, &[SECURITY])?;
    let install = |package: &str| {
        format!("DEBIAN_FRONTEND=noninteractive apt-get --quiet --yes install {package}")
    };
    // apt upgrades packages of one source together.
    machine.succeed(&["apt-mark", "hold", "linux-headers-amd64"])?;
    machine.script(&install("linux-image-amd64"))?;
    machine.reboot()?;
    let after = machine.succeed(&["uname", "-r"])?;
    expect(after != before, || format!("the kernel is still {before}"))?;
    let state = DriverState::read(&mut machine)?;
    expect_eq("module of the new kernel", (state.loaded, state.on_disk), (None, None))?;
    let output = machine.run(&["modprobe", "nvidia"])?;
    expect(output.code != Some(0) && output.all().contains("not found"), || output.all())?;

    machine.succeed(&["apt-mark", "unhold", "linux-headers-amd64"])?;
    machine.script(&install("linux-headers-amd64"))?;
    driver::load(&mut machine)?;
    expect_eq("driver", DriverState::read(&mut machine)?, DriverState::of(&driver))
}
