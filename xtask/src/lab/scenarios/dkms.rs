use super::{Disk, Lab, expect, expect_eq};
use crate::lab::archive::{OLD, STABLE};
use crate::lab::driver::{self, DriverState};
use crate::lab::stand_in::Flavour;

pub(super) fn run(lab: &Lab) -> anyhow::Result<()> {
    let mut machine = lab.boot("dkms", Disk::WithDriver)?;
    let old = lab.archive().driver(OLD)?;
    let status = machine.succeed(&["dkms", "status"])?;
    let expected = format!("nvidia-current/{}, ", old.upstream());
    expect(status.starts_with(&expected) && status.ends_with(": installed"), || status.clone())?;

    // Without the headers of the running kernel no module can be built.
    machine.script("mv /lib/modules/$(uname -r)/build /root/build")?;
    driver::show(&mut machine, &[STABLE])?;
    machine.script(&driver::install_script(STABLE, Flavour::Proprietary))?;
    let state = DriverState::read(&mut machine)?;
    expect_eq("module without headers", state.on_disk, None)?;
    machine.script("mv /root/build /lib/modules/$(uname -r)/build")?;

    // A source that does not compile fails the package's configuration.
    let new = lab.archive().driver(STABLE)?;
    let source = format!("/usr/src/nvidia-current-{}/nvidia.c", new.upstream());
    machine.script(&format!("echo '#error the kernel changed' >>{source}"))?;
    let output =
        machine.run(&["dpkg-reconfigure", "-f", "noninteractive", "nvidia-kernel-dkms"])?;
    expect(output.code != Some(0), || format!("the build succeeded:\n{}", output.all()))?;
    expect(output.all().contains("Bad return status for module build"), || output.all())?;

    machine.script(&format!("sed -i '/the kernel changed/d' {source}; dpkg --configure -a"))?;
    let state = DriverState::read(&mut machine)?;
    expect_eq("module", state.on_disk.as_deref(), Some(new.upstream()))
}
