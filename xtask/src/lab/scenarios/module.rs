use super::{Disk, Lab, expect, expect_eq};
use crate::lab::archive::OLD;
use crate::lab::driver::{self, DriverState};

/// `rmmod` of a module whose device is open.
const IN_USE: &str = "Module nvidia is in use";

pub(super) fn run(lab: &Lab) -> anyhow::Result<()> {
    let mut machine = lab.boot("module", Disk::WithDriver)?;
    let version = lab.archive().driver(OLD)?;
    driver::load(&mut machine)?;
    expect_eq("driver", DriverState::read(&mut machine)?, DriverState::of(&version))?;
    let nvrm = machine.succeed(&["head", "-1", "/proc/driver/nvidia/version"])?;
    let expected =
        format!("NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  ", version.upstream());
    expect(nvrm.starts_with(&expected), || format!("unexpected NVRM line: {nvrm}"))?;

    // Other modules need `nvidia`, so the order matters.
    let output = machine.run(&["rmmod", "nvidia"])?;
    expect(output.code == Some(1) && output.all().contains("nvidia_uvm"), || output.all())?;
    machine.succeed(&["rmmod", "nvidia_drm", "nvidia_modeset", "nvidia_uvm"])?;

    let holder = ["sh", "-c", "exec 3</dev/nvidia0; echo holding; exec sleep infinity"];
    let holder = machine.start(&holder)?;
    machine.wait_for_output(holder, "holding")?;
    // An open file counts twice: for its device and for its operations.
    expect_eq("references", machine.succeed(&["cat", "/sys/module/nvidia/refcnt"])?.as_str(), "2")?;
    let output = machine.run(&["rmmod", "nvidia"])?;
    expect(output.code == Some(1) && output.all().contains(IN_USE), || output.all())?;
    let users = machine.succeed(&["lsof", "-t", "/dev/nvidia0"])?;
    machine.succeed(&["kill", &users])?;
    machine.finish(holder, crate::lab::machine::COMMAND_DEADLINE)?;
    driver::unload(&mut machine)?;
    expect_eq("loaded", DriverState::read(&mut machine)?.loaded, None)?;

    // What a GPU that fails to start looks like.
    let output = machine.run(&["modprobe", "nvidia-current", "stand_in_init_error=19"])?;
    expect(output.code != Some(0) && output.all().contains("No such device"), || output.all())?;
    Ok(())
}
