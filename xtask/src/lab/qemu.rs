//! Command lines of qemu.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::shell::command;

/// How the processor of a machine is emulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accelerator {
    Kvm,
    /// Software emulation: works everywhere, and is 10 to 50 times slower.
    Tcg,
}

impl Accelerator {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kvm => "KVM",
            Self::Tcg => "TCG (software emulation)",
        }
    }

    fn args(self) -> [&'static str; 4] {
        match self {
            Self::Kvm => ["-accel", "kvm", "-cpu", "host"],
            Self::Tcg => ["-accel", "tcg,tb-size=512", "-cpu", "max,la57=off"],
        }
    }
}

/// What starts the kernel.
#[derive(Clone, Debug)]
pub(crate) enum BootMode {
    /// qemu loads a kernel and an initramfs from the host: fast, but a new kernel or initramfs on
    /// the disk has no effect.
    Direct { kernel: PathBuf, initrd: PathBuf },
    /// UEFI firmware, shim and GRUB load what is on the disk.
    Firmware,
    /// As `Firmware`, with Secure Boot and these UEFI variables at the first start.
    SecureBoot { variables: PathBuf },
}

/// What all machines have in common.
#[derive(Clone, Debug)]
pub(crate) struct Qemu {
    pub(crate) accelerator: Accelerator,
    /// The package archive, as a read-only second disk.
    pub(crate) archive: PathBuf,
}

pub(crate) const KERNEL_ARGUMENTS: &str = "root=LABEL=farrier-lab rw console=ttyS0 loglevel=5 mitigations=off systemd.show_status=false panic=-1";
/// Files in the folder of a machine, in which qemu runs.
pub(crate) const DISK: &str = "disk.qcow2";
pub(crate) const SHARE: &str = "share";
pub(crate) const CONSOLE: &str = "console.log";
pub(crate) const VARIABLES: &str = "variables.fd";
const FIRMWARE: &str = "/usr/share/OVMF";

impl Qemu {
    /// Stdin and stdout of this command are the port of the guest's agent.
    pub(crate) fn command(&self, folder: &Path, boot: &BootMode) -> anyhow::Result<Command> {
        let mut qemu = self.headless(folder);
        qemu.args(["-chardev", "stdio,id=agent,signal=off", "-device", "virtio-serial-pci"]);
        qemu.args(["-device", "virtserialport,chardev=agent,name=farrier.lab"]);
        qemu.arg("-chardev").arg(format!("file,id=console,path={CONSOLE},append=on"));
        qemu.args(["-serial", "chardev:console"]);
        add_boot(&mut qemu, folder, boot)?;
        Ok(qemu)
    }

    /// A machine whose serial console is the terminal.
    pub(crate) fn interactive(&self, folder: &Path, boot: &BootMode) -> anyhow::Result<Command> {
        let mut qemu = self.headless(folder);
        qemu.args(["-serial", "mon:stdio"]);
        add_boot(&mut qemu, folder, boot)?;
        Ok(qemu)
    }

    fn headless(&self, folder: &Path) -> Command {
        // The kernel ends qemu if xtask is killed.
        let mut qemu = Command::new("setpriv");
        qemu.args(["--pdeathsig", "KILL", "--", "qemu-system-x86_64"]).current_dir(folder);
        qemu.args([
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-smp",
            "1",
            "-m",
            "1024",
        ]);
        qemu.args(self.accelerator.args());
        qemu.arg("-drive");
        qemu.arg(format!("file={DISK},if=none,id=disk,format=qcow2,cache=writeback"));
        qemu.args(["-device", "virtio-blk-pci,drive=disk,serial=system"]);
        let archive = self.archive.display();
        qemu.arg("-drive");
        qemu.arg(format!("file={archive},if=none,id=archive,format=raw,readonly=on"));
        qemu.args(["-device", "virtio-blk-pci,drive=archive,serial=archive"]);
        qemu.args(["-device", "virtio-rng-pci"]);
        qemu.arg("-virtfs");
        qemu.arg(format!("local,path={SHARE},mount_tag=share,security_model=none,readonly=on"));
        qemu
    }
}

fn add_boot(qemu: &mut Command, folder: &Path, boot: &BootMode) -> anyhow::Result<()> {
    let (code, variables, machine) = match boot {
        BootMode::Direct { kernel, initrd } => {
            qemu.args(["-machine", "q35", "-append", KERNEL_ARGUMENTS]);
            qemu.arg("-kernel").arg(kernel).arg("-initrd").arg(initrd);
            return Ok(());
        }
        BootMode::Firmware => {
            ("OVMF_CODE_4M.fd", Path::new(FIRMWARE).join("OVMF_VARS_4M.fd"), "q35")
        }
        BootMode::SecureBoot { variables } => {
            qemu.args(["-global", "driver=cfi.pflash01,property=secure,value=on"]);
            ("OVMF_CODE_4M.secboot.fd", variables.clone(), "q35,smm=on")
        }
    };
    let own_variables = folder.join(VARIABLES);
    if !own_variables.exists() {
        fs::copy(&variables, &own_variables)
            .with_context(|| format!("failed to copy `{}`", variables.display()))?;
    }
    qemu.args(["-machine", machine]);
    qemu.arg("-drive");
    qemu.arg(format!("if=pflash,unit=0,format=raw,readonly=on,file={FIRMWARE}/{code}"));
    qemu.arg("-drive").arg(format!("if=pflash,unit=1,format=raw,file={VARIABLES}"));
    Ok(())
}

/// An overlay, which takes the writes of one machine. qcow2 keeps new clusters in memory until
/// the guest flushes, so killing qemu loses writes that the guest has not flushed.
pub(crate) fn create_overlay(disk: &Path, overlay: &Path) -> anyhow::Result<()> {
    let mut create = command("qemu-img");
    create.args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"]).arg(disk).arg(overlay);
    let status = create.status().context("failed to start qemu-img")?;
    if !status.success() {
        bail!("qemu-img failed ({status}) to create `{}`", overlay.display());
    }
    Ok(())
}
