//! Virtual machines with a real Debian, real packages and a stand-in kernel module: the lab in
//! which driver changes are tried.
//!
//! ```text
//! debian (mirrors) ─> root file system ─┬─> disks (image) ─┐
//!                  ─> archive (stand_in) ┴──────────────────┴> machine (qemu, agent) ─> scenarios
//! ```

mod accelerator;
mod archive;
mod cache;
mod channel;
mod debian;
mod driver;
mod fingerprint;
mod folder;
mod image;
mod machine;
mod node;
mod qemu;
mod scenarios;
mod stand_in;
mod uefi;

use anyhow::{Context, bail};

use crate::requirements;
use crate::shell::print_status;
use archive::Archive;
use debian::Mirrors;
use folder::MachineFolder;
use image::{Image, RootFs};
use machine::Machine;
use qemu::{BootMode, Qemu};

/// What scenarios run with.
pub(crate) struct Lab {
    bare: Image,
    with_driver: Image,
    archive: Archive,
    qemu: Qemu,
}

impl Lab {
    pub(crate) fn prepare() -> anyhow::Result<Self> {
        requirements::ensure_lab()?;
        let mirrors = Mirrors::of_this_machine()?;
        let root = RootFs::ensure(&mirrors)?;
        let archive = Archive::ensure(&mirrors, &root)?;
        let bare = Image::bare(&root)?;
        let with_driver = Image::with_driver(&root, &archive)?;
        let accelerator = accelerator::choose(&bare.kernel())?;
        let qemu = Qemu { accelerator, archive: archive.disk() };
        Ok(Self { bare, with_driver, archive, qemu })
    }

    pub(crate) fn archive(&self) -> &Archive {
        &self.archive
    }

    fn image(&self, disk: Disk) -> &Image {
        match disk {
            Disk::Bare => &self.bare,
            Disk::WithDriver => &self.with_driver,
        }
    }

    /// A fresh machine of this name. qemu loads the kernel and the initramfs that its disk had at
    /// first.
    pub(crate) fn boot(&self, name: &str, disk: Disk) -> anyhow::Result<Machine> {
        let image = self.image(disk);
        let boot = BootMode::Direct { kernel: image.kernel(), initrd: image.initrd() };
        let folder = MachineFolder::claim(name, &image.disk())?;
        Machine::boot(self.qemu.clone(), folder, boot)
    }

    /// A fresh machine of this name, whose firmware loads what is on the disk.
    pub(crate) fn boot_firmware(
        &self,
        name: &str,
        disk: Disk,
        boot: BootMode,
    ) -> anyhow::Result<Machine> {
        let folder = MachineFolder::claim(name, &self.image(disk).disk())?;
        Machine::boot(self.qemu.clone(), folder, boot)
    }
}

/// What a machine starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disk {
    Bare,
    /// The driver of `archive::OLD` is installed.
    WithDriver,
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
        ["exec", script] => execute(script, Disk::Bare),
        ["exec", "--driver", script] => execute(script, Disk::WithDriver),
        _ => bail!("unknown arguments of `cargo xtask lab`: `{}`", args.join(" ")),
    }
}

/// Runs a shell script in a fresh machine.
fn execute(script: &str, disk: Disk) -> anyhow::Result<()> {
    let lab = Lab::prepare()?;
    let mut machine = lab.boot("exec", disk)?;
    let output = machine.run(&["/bin/bash", "-c", script])?;
    print_status(output.all().trim_end());
    if output.code == Some(0) { Ok(()) } else { bail!("the script ended with {:?}", output.code) }
}

/// A machine whose console is this terminal; Ctrl-A X ends it.
fn shell() -> anyhow::Result<()> {
    let lab = Lab::prepare()?;
    let image = lab.image(Disk::WithDriver);
    print_status("--- lab: root needs no password; Ctrl-A X ends the machine");
    let folder = MachineFolder::claim("shell", &image.disk())?;
    let mut qemu = lab.qemu.interactive(folder.path(), &BootMode::Firmware)?;
    let status = qemu.status().context("failed to start qemu")?;
    if !status.success() {
        bail!("qemu failed ({status})");
    }
    Ok(())
}
