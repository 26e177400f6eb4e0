//! Virtual machines with a real Debian, real packages and a stand-in kernel module: the lab in
//! which driver changes are tried.
//!
//! ```text
//! debian (mirrors) -> image (root file system, disk) ─┐
//!                  -> archive (packages, stand-in) ───┴> machine (qemu + agent) -> scenarios
//! ```

mod accelerator;
mod archive;
mod cache;
mod channel;
mod debian;
mod driver;
mod fingerprint;
mod image;
mod machine;
mod qemu;
mod scenarios;
mod stand_in;
mod uefi;

use std::path::PathBuf;

use anyhow::{Context, bail};

use crate::requirements;
use crate::shell::print_status;
use archive::Archive;
use cache::{CacheEntry, lab_folder};
use debian::Mirrors;
use image::Image;
use machine::Machine;
use qemu::{Boot, Qemu};

/// What scenarios run with.
pub(crate) struct Lab {
    image: Image,
    archive: Archive,
    qemu: Qemu,
}

impl Lab {
    pub(crate) fn prepare() -> anyhow::Result<Self> {
        requirements::ensure_lab()?;
        let mirrors = Mirrors::of_this_machine()?;
        let image = Image::ensure(&mirrors)?;
        let archive = Archive::ensure(&mirrors, &image)?;
        let accelerator = accelerator::choose(&image.kernel())?;
        let qemu = Qemu { accelerator, archive: archive.disk() };
        Ok(Self { image, archive, qemu })
    }

    pub(crate) fn archive(&self) -> &Archive {
        &self.archive
    }

    /// The kernel and the initramfs of the image, loaded by qemu.
    pub(crate) fn direct(&self) -> Boot {
        Boot::Direct { kernel: self.image.kernel(), initrd: self.image.initrd() }
    }

    /// The image with the driver of `archive::OLD`, installed once.
    pub(crate) fn driver_disk(&self) -> anyhow::Result<PathBuf> {
        let entry = CacheEntry::new("driver", &[self.archive.key(), &driver::preparation()]);
        let folder = entry.ensure(|folder| {
            let mut machine = self.boot("driver", &self.direct())?;
            driver::prepare(&mut machine)?;
            machine.power_off()?;
            std::fs::rename(machine.disk(), folder.join("disk.qcow2"))?;
            Ok(())
        })?;
        Ok(folder.join("disk.qcow2"))
    }

    /// A fresh machine of this name, with a driver installed but no module loaded.
    pub(crate) fn boot_with_driver(&self, name: &str, boot: &Boot) -> anyhow::Result<Machine> {
        let disk = self.driver_disk()?;
        Machine::boot(self.qemu.clone(), &disk, &Self::machine_folder(name), boot)
    }

    fn machine_folder(name: &str) -> PathBuf {
        lab_folder().join("machines").join(name)
    }

    /// A fresh machine of this name.
    pub(crate) fn boot(&self, name: &str, boot: &Boot) -> anyhow::Result<Machine> {
        Machine::boot(self.qemu.clone(), &self.image.disk(), &Self::machine_folder(name), boot)
    }
}

pub(crate) fn run(args: &[&str]) -> anyhow::Result<()> {
    match args {
        [] => scenarios::run_all(|_| true),
        ["--quick"] => scenarios::run_all(|scenario| scenario.quick),
        ["list"] => {
            scenarios::list();
            Ok(())
        }
        ["run", names @ ..] if !names.is_empty() => scenarios::run_named(names),
        ["shell"] => shell(),
        ["exec", script] => execute(script, Lab::boot),
        ["exec", "--driver", script] => execute(script, Lab::boot_with_driver),
        _ => bail!("unknown arguments of `cargo xtask lab`: `{}`", args.join(" ")),
    }
}

/// Runs a shell script in a fresh machine.
fn execute(
    script: &str,
    boot: fn(&Lab, &str, &Boot) -> anyhow::Result<Machine>,
) -> anyhow::Result<()> {
    let lab = Lab::prepare()?;
    let mut machine = boot(&lab, "exec", &lab.direct())?;
    let output = machine.run(&["/bin/bash", "-c", script])?;
    print_status(output.all().trim_end());
    if output.code == Some(0) { Ok(()) } else { bail!("the script ended with {:?}", output.code) }
}

/// A machine whose console is this terminal; Ctrl-A X ends it.
fn shell() -> anyhow::Result<()> {
    let lab = Lab::prepare()?;
    let folder = Lab::machine_folder("shell");
    print_status("--- lab: root needs no password; Ctrl-A X ends the machine");
    let mut qemu = Machine::interactive(&lab.qemu, &lab.image.disk(), &folder, &lab.direct())?;
    let status = qemu.status().context("failed to start qemu")?;
    if !status.success() {
        bail!("qemu failed ({status})");
    }
    Ok(())
}
