//! The disks of the guest: Debian with systemd, a kernel with headers, DKMS and the lab's agent.

use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::archive::{Archive, OLD};
use super::cache::CacheEntry;
use super::debian::{Mirrors, Suite};
use super::stand_in::Flavour;
use crate::shell::{command, run};

const PACKAGES: [&str; 20] = [
    "apt-utils",
    "dbus",
    "dkms",
    "grub-efi-amd64",
    "grub-efi-amd64-signed",
    "initramfs-tools",
    "kmod",
    "less",
    "linux-headers-amd64",
    "linux-image-amd64",
    "lsof",
    "mokutil",
    "nftables",
    "openssl",
    "procps",
    "shim-signed",
    "systemd-sysv",
    "udev",
    "unattended-upgrades",
    "zstd",
];

const AGENT: &str = include_str!("guest/agent.pl");
const AGENT_UNIT: &str = include_str!("guest/farrier-lab-agent.service");
/// Runs in the new root: `mmdebstrap` passes its path.
const CUSTOMIZE: &str = include_str!("guest/customize.sh");
const SETUP: &str = include_str!("guest/setup.sh");
/// This file lays out the disks.
const SOURCE: &str = include_str!("image.rs");
const INSTALL_DRIVER: &str = include_str!("guest/install-driver.sh");

/// Sectors of 512 bytes.
const ESP_START: u64 = 2048;
const ESP_SECTORS: u64 = 64 * 2048;
const ROOT_START: u64 = ESP_START + ESP_SECTORS;
const ROOT_MIB: u64 = 5 * 1024;

/// The root file system of the guest, as a folder: the input of its disks.
pub(crate) struct RootFs {
    folder: PathBuf,
    key: String,
}

impl RootFs {
    /// That of this or an earlier run.
    pub(crate) fn ensure(mirrors: &Mirrors) -> anyhow::Result<Self> {
        let suite = Suite::Bookworm.name();
        let inputs = [&PACKAGES.join(" "), AGENT, AGENT_UNIT, CUSTOMIZE, SETUP, suite];
        let entry = CacheEntry::new("root", &inputs);
        let folder = entry.ensure(|folder| {
            if fs::metadata("/proc/self")?.uid() != 0 {
                bail!("the lab builds its disks as root; run `cargo xtask lab` as root once");
            }
            let root = folder.join("root");
            if root.exists() {
                fs::remove_dir_all(&root)?;
            }
            install(folder, &root, mirrors)
        })?;
        Ok(Self { folder, key: entry.key().to_owned() })
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.join("root")
    }

    /// The package database before any driver is installed.
    pub(crate) fn package_status(&self) -> PathBuf {
        self.path().join("var/lib/dpkg/status")
    }
}

/// A disk, and the kernel and the initramfs on it.
pub(crate) struct Image {
    folder: PathBuf,
}

impl Image {
    /// Debian without a driver.
    pub(crate) fn bare(root: &RootFs) -> anyhow::Result<Self> {
        let entry = CacheEntry::new("bare", &[root.key(), SOURCE]);
        let folder = entry.ensure(|folder| assemble(&root.path(), folder))?;
        Ok(Self { folder })
    }

    /// Debian with the driver that guests start with.
    pub(crate) fn with_driver(root: &RootFs, archive: &Archive) -> anyhow::Result<Self> {
        let inputs = [archive.key(), SOURCE, INSTALL_DRIVER];
        let entry = CacheEntry::new("driver", &inputs);
        let folder = entry.ensure(|folder| {
            let own_root = folder.join("root");
            let mut copy = command("cp");
            run(copy.args(["-a", "--reflink=auto"]).arg(root.path()).arg(&own_root), "cp")?;
            let mut sh = command("unshare");
            sh.args(["--mount", "--", "/bin/bash", "-euo", "pipefail", "-c", INSTALL_DRIVER]);
            sh.arg("install-driver").arg(&own_root).arg(archive.tree());
            sh.args(OLD.driver_packages(Flavour::Proprietary));
            sh.stdout(fs::File::create(folder.join("install.log"))?);
            run(&mut sh, "install the driver")?;
            assemble(&own_root, folder)?;
            fs::remove_dir_all(&own_root)?;
            Ok(())
        })?;
        Ok(Self { folder })
    }

    pub(crate) fn disk(&self) -> PathBuf {
        self.folder.join("disk.raw")
    }

    pub(crate) fn kernel(&self) -> PathBuf {
        self.folder.join("vmlinuz")
    }

    pub(crate) fn initrd(&self) -> PathBuf {
        self.folder.join("initrd.img")
    }
}

/// Installs the guest's packages into a folder.
fn install(folder: &Path, root: &Path, mirrors: &Mirrors) -> anyhow::Result<()> {
    let files = folder.join("files");
    fs::create_dir_all(&files)?;
    for (name, text) in [
        ("agent.pl", AGENT),
        ("farrier-lab-agent.service", AGENT_UNIT),
        ("customize.sh", CUSTOMIZE),
        ("setup.sh", SETUP),
    ] {
        let path = files.join(name);
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    }
    let files = files.display();
    let mut mmdebstrap = command("mmdebstrap");
    mmdebstrap.args(["--quiet", "--mode=root", "--variant=minbase", "--format=directory"]);
    mmdebstrap.arg(format!("--include={}", PACKAGES.join(",")));
    mmdebstrap.arg(format!("--setup-hook={files}/setup.sh \"$1\""));
    mmdebstrap.arg(format!("--customize-hook={files}/customize.sh \"$1\" {files}"));
    mmdebstrap.arg(Suite::Bookworm.name()).arg(root);
    mmdebstrap.arg(mirrors.source(Suite::Bookworm, "main"));
    run(&mut mmdebstrap, "mmdebstrap")
}

/// Makes a disk with a boot partition and a root partition, without loop devices.
fn assemble(root: &Path, folder: &Path) -> anyhow::Result<()> {
    for name in ["vmlinuz", "initrd.img"] {
        let from = root.join(name);
        fs::copy(&from, folder.join(name))
            .with_context(|| format!("failed to copy `{}`", from.display()))?;
    }
    let disk = &folder.join("disk.raw");
    let bytes = (ROOT_START + (ROOT_MIB + 2) * 2048) * 512;
    fs::File::create(disk)?.set_len(bytes)?;
    let table = format!(
        "label: gpt\n\
         start={ESP_START}, size={ESP_SECTORS}, type=uefi\n\
         start={ROOT_START}, size={}, type=linux\n",
        ROOT_MIB * 2048
    );
    let layout = disk.with_extension("layout");
    fs::write(&layout, table)?;
    let mut sfdisk = command("sfdisk");
    sfdisk.arg("--quiet").arg(disk).stdin(fs::File::open(&layout)?);
    run(&mut sfdisk, "sfdisk")?;
    let mut mke2fs = command("mke2fs");
    mke2fs.args(["-q", "-F", "-t", "ext4", "-L", "farrier-lab"]);
    mke2fs.arg("-E").arg(format!("offset={},lazy_itable_init=0", ROOT_START * 512));
    mke2fs.arg("-d").arg(root).arg(disk).arg(format!("{ROOT_MIB}M"));
    run(&mut mke2fs, "mke2fs")?;
    boot_partition(root, disk)
}

/// The boot loader's configuration on the boot partition: goes on with the one on the root
/// partition, which Debian's tools maintain.
const GRUB: &str = "search --no-floppy --label farrier-lab --set=root\n\
                    set prefix=($root)/boot/grub\n\
                    configfile $prefix/grub.cfg\n";

/// Debian's signed boot loaders: the firmware starts shim, shim starts GRUB.
fn boot_partition(root: &Path, disk: &Path) -> anyhow::Result<()> {
    let partition = format!("{}@@{}", disk.display(), ESP_START * 512);
    let mtools = |program: &str, args: &[&str]| -> anyhow::Result<()> {
        let mut mtools = command(program);
        mtools.env("MTOOLS_SKIP_CHECK", "1").args(["-i", &partition]).args(args);
        let output = mtools.output().with_context(|| format!("failed to start `{program}`"))?;
        if !output.status.success() {
            bail!("`{program}` failed: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    };
    mtools("mformat", &["-F", "-T", &ESP_SECTORS.to_string(), "-v", "ESP", "::"])?;
    // mformat writes a partition table of its own into the boot sector, which confuses GRUB's tools.
    let file = fs::File::options().write(true).open(disk)?;
    file.write_all_at(&[0; 64], ESP_START * 512 + 446)?;
    mtools("mmd", &["::/EFI", "::/EFI/BOOT", "::/EFI/debian"])?;
    let source = |path: &str| root.join(path).display().to_string();
    mtools("mcopy", &[&source("usr/lib/shim/shimx64.efi.signed"), "::/EFI/BOOT/BOOTX64.EFI"])?;
    mtools("mcopy", &[&source("usr/lib/shim/mmx64.efi.signed"), "::/EFI/BOOT/mmx64.efi"])?;
    let grub = source("usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed");
    mtools("mcopy", &[&grub, "::/EFI/BOOT/grubx64.efi"])?;
    let config = disk.with_extension("grub");
    fs::write(&config, GRUB)?;
    mtools("mcopy", &[&config.display().to_string(), "::/EFI/debian/grub.cfg"])
}
