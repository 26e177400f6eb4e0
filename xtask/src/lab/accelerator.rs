//! Whether guests run under KVM on this machine.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Context;

use super::cache::lab_folder;
use super::qemu::Accelerator;
use crate::process::ChildProcess;
use crate::shell::{command, print_status};

/// `/dev/kvm` may exist although guests hang, for example in a nested virtual machine. A kernel
/// without a root file system panics within two seconds under KVM.
const KVM_DEADLINE: Duration = Duration::from_secs(20);

/// Tries KVM once per boot of this machine.
pub(crate) fn choose(kernel: &Path) -> anyhow::Result<Accelerator> {
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let answer = lab_folder().join("accelerator");
    let known = fs::read_to_string(&answer).unwrap_or_default();
    let accelerator = match known.strip_prefix(&boot_id) {
        Some("kvm") => Accelerator::Kvm,
        Some("tcg") => Accelerator::Tcg,
        _ => {
            let accelerator = probe(kernel)?;
            let name = if accelerator == Accelerator::Kvm { "kvm" } else { "tcg" };
            fs::write(&answer, format!("{boot_id}{name}"))?;
            accelerator
        }
    };
    print_status(&format!("--- lab: guests run under {}", accelerator.name()));
    Ok(accelerator)
}

fn probe(kernel: &Path) -> anyhow::Result<Accelerator> {
    if !Path::new("/dev/kvm").exists() {
        print_status("--- lab: this machine has no /dev/kvm");
        return Ok(Accelerator::Tcg);
    }
    let console = lab_folder().join("probe.log");
    let _ = fs::remove_file(&console);
    let mut qemu = command("qemu-system-x86_64");
    qemu.args(["-nodefaults", "-no-user-config", "-display", "none", "-m", "256", "-no-reboot"]);
    qemu.args(["-accel", "kvm", "-cpu", "host", "-append", "console=ttyS0 panic=-1"]);
    qemu.arg("-kernel").arg(kernel).arg("-serial").arg(format!("file:{}", console.display()));
    qemu.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut process = ChildProcess(qemu.spawn().context("failed to start qemu")?);
    let deadline = Instant::now() + KVM_DEADLINE;
    let reason = loop {
        if let Some(status) = process.0.try_wait()? {
            let text = fs::read(&console).unwrap_or_default();
            if String::from_utf8_lossy(&text).contains("Linux version") {
                return Ok(Accelerator::Kvm);
            }
            break format!("qemu ended with {status} before the kernel started");
        }
        if Instant::now() > deadline {
            break format!("a kernel hung for {} s", KVM_DEADLINE.as_secs());
        }
        sleep(Duration::from_millis(50));
    };
    print_status(&format!("--- lab: KVM does not work here: {reason}"));
    Ok(Accelerator::Tcg)
}
