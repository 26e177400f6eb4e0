//! Programs that tests and benchmarks need besides Rust and a C compiler.

use std::path::Path;
use std::process::Stdio;

use anyhow::bail;

use crate::shell::{command, print_status};

/// Python with venv, for tests that run real NVML clients on the simulated library.
pub(crate) fn ensure_python() -> anyhow::Result<()> {
    if has_python() {
        return Ok(());
    }
    print_status("--- Python with venv is missing: installing python3-venv");
    if install(&["python3-venv"]) && has_python() {
        return Ok(());
    }
    let advice =
        "Python with venv could not be installed; run `apt-get install python3-venv` as root";
    continue_without(advice, "tests with Python clients will be skipped")
}

/// Slurm, for tests of orders on a real Slurm cluster.
pub(crate) fn ensure_slurm() -> anyhow::Result<()> {
    if has_slurm() {
        return Ok(());
    }
    print_status("--- Slurm is missing: installing slurm-wlm and munge");
    if install(&["--no-install-recommends", "slurm-wlm", "munge"]) && has_slurm() {
        return Ok(());
    }
    let advice = "Slurm could not be installed; run `apt-get install slurm-wlm munge` as root";
    continue_without(advice, "tests with Slurm will be skipped")
}

/// Alertmanager, Prometheus and an SMTP server, for tests of notifications.
pub(crate) fn ensure_receivers() -> anyhow::Result<()> {
    if has_receivers() {
        return Ok(());
    }
    print_status("--- Alertmanager, Prometheus or aiosmtpd is missing: installing them");
    let packages = ["prometheus-alertmanager", "prometheus", "python3-aiosmtpd"];
    if install(&[&["--no-install-recommends"], &packages[..]].concat()) && has_receivers() {
        return Ok(());
    }
    let advice = format!(
        "Alertmanager, Prometheus and aiosmtpd could not be installed; run `apt-get install {}` as root",
        packages.join(" ")
    );
    continue_without(&advice, "tests with real receivers of notifications will be skipped")
}

/// debootstrap, rpmbuild and createrepo, for tests of driver changes with real packages in a chroot.
/// dnf is installed in the chroot.
pub(crate) fn ensure_package_tools() -> anyhow::Result<()> {
    let programs = [
        ("/usr/sbin/debootstrap", "debootstrap"),
        ("/usr/bin/rpmbuild", "rpm"),
        ("/usr/bin/createrepo_c", "createrepo-c"),
    ];
    let has_all = || programs.iter().all(|(path, _)| Path::new(path).exists());
    if has_all() {
        return Ok(());
    }
    let packages = programs.map(|(_, package)| package);
    print_status(&format!("--- installing what tests of packages need: {}", packages.join(" ")));
    if install(&[&["--no-install-recommends"], &packages[..]].concat()) && has_all() {
        return Ok(());
    }
    let advice = format!(
        "tools for packages could not be installed; run `apt-get install {}` as root",
        packages.join(" ")
    );
    continue_without(&advice, "tests of driver changes with real packages will be skipped")
}

/// tmux, which provides the terminals of `cargo xtask bench top`.
pub(crate) fn ensure_tmux() -> anyhow::Result<()> {
    let has_tmux = || {
        let mut tmux = command("tmux");
        tmux.arg("-V").stdout(Stdio::null()).stderr(Stdio::null());
        tmux.status().is_ok_and(|status| status.success())
    };
    if has_tmux() {
        return Ok(());
    }
    print_status("--- tmux is missing: installing it");
    if install(&["tmux"]) && has_tmux() {
        return Ok(());
    }
    bail!("tmux could not be installed; run `apt-get install tmux` as root")
}

/// What `cargo xtask lab` builds and runs virtual machines with.
pub(crate) fn ensure_lab() -> anyhow::Result<()> {
    let programs = [
        ("/usr/bin/qemu-system-x86_64", "qemu-system-x86"),
        ("/usr/bin/qemu-img", "qemu-utils"),
        ("/usr/bin/mmdebstrap", "mmdebstrap"),
        ("/usr/share/OVMF/OVMF_CODE_4M.fd", "ovmf"),
        ("/usr/bin/mcopy", "mtools"),
        ("/usr/sbin/sfdisk", "fdisk"),
        ("/usr/sbin/mke2fs", "e2fsprogs"),
        ("/usr/bin/apt-ftparchive", "apt-utils"),
        ("/usr/bin/setpriv", "util-linux"),
        ("/usr/share/keyrings/debian-archive-keyring.gpg", "debian-archive-keyring"),
    ];
    // Twice, because the installation of qemu-system-x86 removes a qemu-utils of another release.
    for _ in 0..2 {
        let is_missing = |(path, _): &&(&str, &str)| !Path::new(path).exists();
        let packages: Vec<&str> =
            programs.iter().filter(is_missing).map(|(_, package)| *package).collect();
        if packages.is_empty() {
            return Ok(());
        }
        print_status(&format!("--- installing what the lab needs: {}", packages.join(" ")));
        if !install(&[&["--no-install-recommends"], &packages[..]].concat()) {
            break;
        }
    }
    let packages = programs.map(|(_, package)| package);
    bail!(
        "the lab's programs could not be installed; run `apt-get install {}` as root",
        packages.join(" ")
    )
}

/// Installs Debian packages, as root or with sudo.
fn install(packages: &[&str]) -> bool {
    for (program, args) in [("apt-get", &[][..]), ("sudo", &["--non-interactive", "apt-get"])] {
        let run = |step: &[&str]| {
            let mut apt = command(program);
            // The lock may be held by a timer that has just started.
            apt.args(args).args(["-o", "DPkg::Lock::Timeout=300"]).args(step);
            apt.env("DEBIAN_FRONTEND", "noninteractive");
            apt.stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .is_ok_and(|status| status.success())
        };
        if run(&["update"]) && run(&[&["install", "--yes"], packages].concat()) {
            return true;
        }
    }
    false
}

/// Warns that tests are skipped, or fails on CI.
fn continue_without(advice: &str, consequence: &str) -> anyhow::Result<()> {
    if std::env::var_os("CI").is_some() {
        bail!("{advice}");
    }
    print_status(&format!("warning: {advice}; {consequence}"));
    Ok(())
}

fn has_slurm() -> bool {
    let folders = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
    let has = |program: &str| folders.iter().any(|folder| Path::new(folder).join(program).exists());
    ["slurmctld", "slurmd", "scontrol", "munged"].into_iter().all(has)
}

fn has_receivers() -> bool {
    let programs = ["/usr/bin/prometheus-alertmanager", "/usr/bin/prometheus", "/usr/bin/promtool"];
    // Debian's Python, which has Debian's packages.
    let mut python = command("/usr/bin/python3");
    python.args(["-c", "import aiosmtpd"]).stdout(Stdio::null()).stderr(Stdio::null());
    programs.iter().all(|program| Path::new(program).exists())
        && python.status().is_ok_and(|status| status.success())
}

fn has_python() -> bool {
    let mut python = command("python3");
    python.args(["-c", "import ensurepip, venv"]).stdout(Stdio::null()).stderr(Stdio::null());
    python.status().is_ok_and(|status| status.success())
}
