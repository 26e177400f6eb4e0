//! The stand-in for NVIDIA's kernel modules, which need a GPU: small modules with the same names,
//! version and references. They replace the sources inside Debian's real DKMS packages, whose name,
//! version, dependencies, `dkms.conf` and maintainer scripts stay.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::shell::{command, run};

/// NVIDIA publishes two builds of its modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    Proprietary,
    Open,
}

impl Flavour {
    /// The DKMS package of these modules.
    pub(crate) fn package(self) -> &'static str {
        match self {
            Self::Proprietary => "nvidia-kernel-dkms",
            Self::Open => "nvidia-open-kernel-dkms",
        }
    }

    fn license(self) -> &'static str {
        match self {
            Self::Proprietary => "NVIDIA",
            Self::Open => "Dual MIT/GPL",
        }
    }

    /// The line in `/proc/driver/nvidia/version`, as the real driver prints it.
    fn nvrm(self, version: &str) -> String {
        match self {
            Self::Proprietary => {
                format!("NVIDIA UNIX x86_64 Kernel Module  {version}  Thu Jan  1 00:00:00 UTC 2026")
            }
            Self::Open => format!(
                "NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  \
                 (stand-in@farrier-lab)  Thu Jan  1 00:00:00 UTC 2026"
            ),
        }
    }
}

const FILES: [(&str, &str); 6] = [
    ("Makefile", include_str!("stand_in/Makefile")),
    ("nvidia.c", include_str!("stand_in/nvidia.c")),
    ("nvidia-drm.c", include_str!("stand_in/nvidia-drm.c")),
    ("nvidia-modeset.c", include_str!("stand_in/nvidia-modeset.c")),
    ("nvidia-peermem.c", include_str!("stand_in/nvidia-peermem.c")),
    ("nvidia-uvm.c", include_str!("stand_in/nvidia-uvm.c")),
];

/// All text that decides what the stand-in is.
pub(crate) fn sources() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(_, text)| *text).chain([include_str!("stand_in.rs")])
}

fn header(flavour: Flavour, version: &str) -> String {
    format!(
        "#define STAND_IN_VERSION \"{version}\"\n\
         #define STAND_IN_LICENSE \"{}\"\n\
         #define STAND_IN_NVRM \"{}\"\n\
         int nvidia_stand_in_attach(void);\n\
         int nvidia_modeset_stand_in_attach(void);\n",
        flavour.license(),
        flavour.nvrm(version)
    )
}

/// Replaces the sources in the DKMS package in this folder, and returns the package's version.
pub(crate) fn replace(packages: &Path, flavour: Flavour, scratch: &Path) -> anyhow::Result<String> {
    let package = find(packages, flavour.package())?;
    if scratch.exists() {
        fs::remove_dir_all(scratch)?;
    }
    run(
        command("dpkg-deb").arg("--raw-extract").arg(&package).arg(scratch),
        &format!("stand-in for {}", flavour.package()),
    )?;
    let sources = only_folder(&scratch.join("usr/src"))?;
    let version = sources
        .file_name()
        .and_then(|name| name.to_str()?.rsplit_once('-'))
        .map(|(_, version)| version.to_owned())
        .context("the DKMS sources have no version")?;
    for entry in fs::read_dir(&sources)? {
        let entry = entry?;
        if entry.file_name() == "dkms.conf" {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    for (name, text) in FILES {
        fs::write(sources.join(name), text)?;
    }
    fs::write(sources.join("stand_in.h"), header(flavour, &version))?;
    write_checksums(scratch)?;
    fs::remove_file(&package)?;
    let mut build = command("dpkg-deb");
    build.args(["--root-owner-group", "-Zgzip", "--build"]).arg(scratch).arg(&package);
    run(build.stdout(std::process::Stdio::null()), "dpkg-deb --build")?;
    let mut field = command("dpkg-deb");
    let output = field.arg("--field").arg(&package).arg("Version").output()?;
    fs::remove_dir_all(scratch)?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

fn find(packages: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let prefix = format!("{name}_");
    for entry in fs::read_dir(packages)? {
        let path = entry?.path();
        let file = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
        if file.starts_with(&prefix) {
            return Ok(path);
        }
    }
    bail!("`{}` has no package `{name}`", packages.display())
}

fn only_folder(parent: &Path) -> anyhow::Result<PathBuf> {
    let mut entries = fs::read_dir(parent)?;
    match (entries.next().transpose()?, entries.next()) {
        (Some(entry), None) => Ok(entry.path()),
        _ => bail!("`{}` does not have exactly one entry", parent.display()),
    }
}

/// `dpkg --verify` compares the installed files with these.
fn write_checksums(unpacked: &Path) -> anyhow::Result<()> {
    let mut find = command("sh");
    find.current_dir(unpacked).args([
        "-c",
        "find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum >DEBIAN/md5sums",
    ]);
    run(&mut find, "md5sum")
}
