//! The package archive of the guest: Debian's real packages of several drivers and a newer kernel,
//! with the stand-in in place of the kernel module's sources.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, bail};

use super::cache::CacheEntry;
use super::debian::{Mirrors, PrivateApt, Suite};
use super::image::RootFs;
use super::stand_in::{self, Flavour};
use crate::shell::{command, run};

/// The user space of a compute node, without the display.
const USER_SPACE: [&str; 5] =
    ["firmware-nvidia-gsp", "libcuda1", "libnvidia-ml1", "nvidia-persistenced", "nvidia-smi"];
/// Trixie's `libcuda1` needs a newer libc than the guest's.
const NEXT_USER_SPACE: [&str; 4] =
    ["firmware-nvidia-gsp", "libnvidia-ml1", "nvidia-persistenced", "nvidia-smi"];

const KERNEL: [&str; 2] = ["linux-headers-amd64", "linux-image-amd64"];
const COMPONENTS: &str = "main contrib non-free non-free-firmware";

/// A part of the archive: a repository of its own, which a guest sees once it is in its sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Repository {
    pub(crate) suite: Suite,
    pub(crate) flavours: &'static [Flavour],
    pub(crate) user_space: &'static [&'static str],
    has_kernel: bool,
    /// Packages that come from this suite even if bookworm has other versions of them.
    preferred: &'static str,
}

/// The driver that a guest starts with: 535.216.
pub(crate) const OLD: Repository = Repository {
    suite: Suite::BookwormBackports,
    flavours: &[Flavour::Proprietary],
    user_space: &USER_SPACE,
    has_kernel: false,
    preferred: "*nvidia* libcuda1",
};
/// A newer version of the same branch: 535.261.
pub(crate) const STABLE: Repository = Repository {
    suite: Suite::Bookworm,
    flavours: &[Flavour::Proprietary, Flavour::Open],
    user_space: &USER_SPACE,
    has_kernel: false,
    preferred: "",
};
/// What unattended-upgrades installs: the newest version of the same branch, and a newer kernel.
pub(crate) const SECURITY: Repository = Repository {
    suite: Suite::BookwormSecurity,
    flavours: &[Flavour::Proprietary],
    user_space: &USER_SPACE,
    has_kernel: true,
    preferred: "",
};
/// A newer branch: 550.
pub(crate) const NEXT: Repository = Repository {
    suite: Suite::Trixie,
    flavours: &[Flavour::Proprietary, Flavour::Open],
    user_space: &NEXT_USER_SPACE,
    has_kernel: false,
    preferred: "nvidia-[!p]* nvidia-*-p* libnvidia-* firmware-nvidia-gsp glx-* dkms",
};
const REPOSITORIES: [Repository; 4] = [OLD, STABLE, SECURITY, NEXT];

impl Repository {
    /// All packages of the driver.
    pub(crate) fn driver_packages(&self, flavour: Flavour) -> Vec<&'static str> {
        [&[flavour.package()], self.user_space].concat()
    }

    /// `apt_preferences(5)`: prefers only some packages of a suite other than the guest's.
    fn preferences(&self) -> String {
        if self.preferred.is_empty() {
            return String::new();
        }
        let name = self.suite.name();
        format!(
            "Package: *\nPin: release n={name}\nPin-Priority: 100\n\n\
             Package: {}\nPin: release n={name}\nPin-Priority: 990\n",
            self.preferred
        )
    }
}

/// The version of a driver: `535.261.03-1` of the package, `535.261.03` of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DriverVersion {
    pub(crate) package: String,
}

impl DriverVersion {
    pub(crate) fn upstream(&self) -> &str {
        self.package.split('-').next().unwrap_or(&self.package)
    }
}

pub(crate) struct Archive {
    folder: PathBuf,
    key: String,
}

impl Archive {
    pub(crate) fn ensure(mirrors: &Mirrors, root: &RootFs) -> anyhow::Result<Self> {
        let set = format!("{KERNEL:?} {REPOSITORIES:?} {COMPONENTS}");
        let sources: String = stand_in::sources().collect();
        let entry = CacheEntry::new("archive", &[root.key(), &set, &sources]);
        let folder = entry.ensure(|folder| build(folder, mirrors, &root.package_status()))?;
        Ok(Self { folder, key: entry.key().to_owned() })
    }

    /// Differs whenever the image or the packages may differ.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// The repositories, as folders.
    pub(crate) fn tree(&self) -> PathBuf {
        self.folder.join("tree")
    }

    pub(crate) fn disk(&self) -> PathBuf {
        self.folder.join("archive.ext4")
    }

    /// The version of the driver in this repository.
    pub(crate) fn driver(&self, repository: Repository) -> anyhow::Result<DriverVersion> {
        let packages = fs::read_to_string(self.folder.join("drivers"))?;
        let line = packages
            .lines()
            .find_map(|line| line.strip_prefix(repository.suite.name())?.strip_prefix(' '));
        let package = line
            .with_context(|| format!("the archive has no driver of {}", repository.suite.name()))?;
        Ok(DriverVersion { package: package.to_owned() })
    }
}

fn build(folder: &Path, mirrors: &Mirrors, status: &Path) -> anyhow::Result<()> {
    let tree = folder.join("tree");
    if tree.exists() {
        fs::remove_dir_all(&tree)?;
    }
    let mut drivers = String::new();
    for repository in REPOSITORIES {
        let name = repository.suite.name();
        let packages = tree.join(name);
        fs::create_dir_all(&packages)?;
        fetch(folder, &packages, mirrors, status, repository)?;
        for flavour in repository.flavours {
            let version = stand_in::replace(&packages, *flavour, &folder.join("unpacked"))?;
            if *flavour == Flavour::Proprietary {
                drivers += &format!("{name} {version}\n");
            }
        }
        index(&packages, repository.suite)?;
    }
    fs::write(folder.join("drivers"), drivers)?;
    let disk = folder.join("archive.ext4");
    let mut mke2fs = command("mke2fs");
    mke2fs.args(["-q", "-F", "-t", "ext4", "-L", "farrier-archive", "-O", "^has_journal", "-d"]);
    mke2fs.arg(&tree).arg(&disk).arg("1G");
    run(&mut mke2fs, "mke2fs")
}

/// Downloads the packages of one repository that the image lacks.
fn fetch(
    folder: &Path,
    packages: &Path,
    mirrors: &Mirrors,
    status: &Path,
    repository: Repository,
) -> anyhow::Result<()> {
    let mut sources = mirrors.source(Suite::Bookworm, COMPONENTS);
    if repository.suite != Suite::Bookworm {
        sources += &mirrors.source(repository.suite, COMPONENTS);
    }
    let preferences = repository.preferences();
    let apt = PrivateApt::new(&folder.join("apt"), &sources, &preferences, status)?;
    for flavour in repository.flavours {
        apt.download(&repository.driver_packages(*flavour))?;
    }
    if repository.has_kernel {
        apt.download(&KERNEL)?;
    }
    for package in apt.packages()? {
        let name = package.file_name().context("a package without name")?;
        fs::rename(&package, packages.join(name))?;
    }
    fs::remove_dir_all(folder.join("apt"))?;
    Ok(())
}

/// Writes the index files of a flat repository, with the origin that Debian's have.
fn index(packages: &Path, suite: Suite) -> anyhow::Result<()> {
    let ftparchive = |args: &[&str], to: &str| -> anyhow::Result<()> {
        let mut apt = command("apt-ftparchive");
        apt.current_dir(packages).args(args).stderr(Stdio::null());
        let output = apt.output().context("failed to start apt-ftparchive")?;
        if !output.status.success() {
            bail!("apt-ftparchive failed in `{}`", packages.display());
        }
        fs::write(packages.join(to), output.stdout)?;
        Ok(())
    };
    ftparchive(&["packages", "."], "Packages")?;
    let name = suite.name();
    let option = |key: &str, value: &str| format!("APT::FTPArchive::Release::{key}={value}");
    let (origin, label) = (option("Origin", "Debian"), option("Label", suite.label()));
    let (suite, codename) = (option("Suite", name), option("Codename", name));
    ftparchive(
        &["-o", &origin, "-o", &label, "-o", &suite, "-o", &codename, "release", "."],
        "Release",
    )
}
