use super::{Disk, Lab, expect_eq};
use crate::lab::archive::{OLD, SECURITY};
use crate::lab::driver::{self, DriverState};

/// Debian's own security updates move the driver while its old module is loaded.
pub(super) fn run(lab: &Lab) -> anyhow::Result<()> {
    let mut machine = lab.boot("unattended", Disk::WithDriver)?;
    let (old, new) = (lab.archive().driver(OLD)?, lab.archive().driver(SECURITY)?);
    driver::load(&mut machine)?;
    driver::show(&mut machine, &[SECURITY])?;
    machine.script("apt-mark hold linux-image-amd64 linux-headers-amd64")?;
    let kernels = machine.script("ls /lib/modules")?;
    machine.script("unattended-upgrade --verbose")?;
    let upstream = |version: &str| Some(version.to_owned());
    let expected = DriverState {
        loaded: upstream(old.upstream()),
        on_disk: upstream(new.upstream()),
        library: upstream(new.upstream()),
    };
    expect_eq("driver", DriverState::read(&mut machine)?, expected)?;
    expect_eq("kernels on hold", machine.script("ls /lib/modules")?, kernels)
}
