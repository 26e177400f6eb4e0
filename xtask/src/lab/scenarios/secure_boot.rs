use std::fs;
use std::path::Path;

use super::{Disk, Lab, expect, expect_eq};
use crate::lab::archive::OLD;
use crate::lab::driver::{self, DriverState};
use crate::lab::qemu::BootMode;
use crate::lab::uefi;

/// Microsoft's keys, which Debian's shim is signed with.
const MICROSOFT_KEYS: &str = "/usr/share/OVMF/OVMF_VARS_4M.ms.fd";

/// Under Secure Boot the kernel takes DKMS modules only once their key is enrolled.
pub(super) fn run(lab: &Lab) -> anyhow::Result<()> {
    let boot = BootMode::SecureBoot { variables: Path::new(MICROSOFT_KEYS).to_owned() };
    let mut machine = lab.boot_firmware("secure-boot", Disk::WithDriver, boot)?;
    let state = machine.succeed(&["mokutil", "--sb-state"])?;
    expect(state.contains("SecureBoot enabled"), || state.clone())?;
    let output = machine.run(&["modprobe", "nvidia"])?;
    let is_rejected = output.all().contains("Key was rejected by service");
    expect(output.code != Some(0) && is_rejected, || output.all())?;

    // DKMS made this key when it built the first module.
    let certificate = machine.run(&["cat", "/var/lib/dkms/mok.pub"])?.stdout;
    machine.power_off()?;
    let variables = machine.variables();
    let enrolled = uefi::with_machine_owner_key(&fs::read(&variables)?, &certificate)?;
    fs::write(&variables, enrolled)?;
    machine.power_on()?;
    driver::load(&mut machine)?;
    let driver = lab.archive().driver(OLD)?;
    expect_eq("driver", DriverState::read(&mut machine)?, DriverState::of(&driver))
}
