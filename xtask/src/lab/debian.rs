//! Debian's package archives, as this machine reaches them, read with a private apt configuration.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::shell::{command, run};

/// A release of Debian, or a part of it with its own versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Suite {
    /// The release of the guest.
    Bookworm,
    BookwormSecurity,
    BookwormBackports,
    /// The release after it.
    Trixie,
}

impl Suite {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::BookwormSecurity => "bookworm-security",
            Self::BookwormBackports => "bookworm-backports",
            Self::Trixie => "trixie",
        }
    }

    /// What Debian's own index says, and unattended-upgrades matches.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::BookwormSecurity => "Debian-Security",
            Self::BookwormBackports => "Debian Backports",
            Self::Bookworm | Self::Trixie => "Debian",
        }
    }
}

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The addresses of Debian's archives.
#[derive(Clone, Debug)]
pub(crate) struct Mirrors {
    main: String,
    security: String,
}

impl Mirrors {
    /// Takes the mirrors that apt on this machine uses, so that the lab names none of its own.
    pub(crate) fn of_this_machine() -> anyhow::Result<Self> {
        let mut apt = command("apt-get");
        apt.args(["indextargets", "--format", "$(LABEL) $(REPO_URI)", "Created-By: Packages"]);
        let output = apt.output().context("failed to start apt-get; the lab needs Debian")?;
        let text = String::from_utf8(output.stdout)?;
        let uri = |label: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(label)?.strip_prefix(' '));
            line.map(|uri| uri.trim_end_matches('/').to_owned()).with_context(|| {
                format!(
                    "apt on this machine has no archive with the label `{label}`; \
                     add Debian's archives to its sources and run `apt-get update`"
                )
            })
        };
        Ok(Self { main: uri("Debian")?, security: uri("Debian-Security")? })
    }

    /// A line of `sources.list(5)`.
    pub(crate) fn source(&self, suite: Suite, components: &str) -> String {
        let uri = match suite {
            Suite::Bookworm | Suite::BookwormBackports | Suite::Trixie => &self.main,
            Suite::BookwormSecurity => &self.security,
        };
        format!("deb [signed-by={KEYRING}] {uri} {} {components}\n", suite.name())
    }
}

/// apt with a root of its own: this machine's sources and packages stay untouched.
pub(crate) struct PrivateApt {
    folder: PathBuf,
}

impl PrivateApt {
    /// `status` is the package database of the system that packages are resolved for.
    pub(crate) fn new(
        folder: &Path,
        sources: &str,
        preferences: &str,
        status: &Path,
    ) -> anyhow::Result<Self> {
        if folder.exists() {
            fs::remove_dir_all(folder)?;
        }
        for part in ["etc", "lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(folder.join(part))?;
        }
        fs::write(folder.join("etc/sources.list"), sources)?;
        fs::write(folder.join("etc/preferences"), preferences)?;
        fs::copy(status, folder.join("status"))
            .with_context(|| format!("failed to copy `{}`", status.display()))?;
        let folder = folder.to_owned();
        let path = folder.display();
        let config = format!(
            "Dir::Etc \"{path}/etc/\";\n\
             Dir::Etc::sourcelist \"{path}/etc/sources.list\";\n\
             Dir::Etc::sourceparts \"{path}/none/\";\n\
             Dir::Etc::preferences \"{path}/etc/preferences\";\n\
             Dir::Etc::preferencesparts \"{path}/none/\";\n\
             Dir::Etc::parts \"{path}/none/\";\n\
             Dir::State::lists \"{path}/lists/\";\n\
             Dir::State::status \"{path}/status\";\n\
             Dir::Cache \"{path}/cache/\";\n\
             APT::Architecture \"amd64\";\n\
             APT::Architectures {{ \"amd64\"; }};\n\
             APT::Sandbox::User \"root\";\n\
             APT::Install-Recommends \"false\";\n\
             Acquire::Languages \"none\";\n\
             #clear APT::Update;\n\
             #clear DPkg;\n"
        );
        fs::create_dir_all(folder.join("none"))?;
        fs::write(folder.join("apt.conf"), config)?;
        let apt = Self { folder };
        run(apt.command().args(["--quiet=2", "update"]), "apt-get update, for the lab")?;
        Ok(apt)
    }

    fn command(&self) -> Command {
        let mut apt = command("apt-get");
        apt.env("APT_CONFIG", self.folder.join("apt.conf"));
        apt
    }

    /// Downloads these packages and what they need besides the installed packages.
    pub(crate) fn download(&self, packages: &[&str]) -> anyhow::Result<()> {
        let mut apt = self.command();
        apt.args(["--quiet=2", "--yes", "--download-only", "install"]).args(packages);
        run(&mut apt, &format!("download {}", packages.join(" ")))
    }

    /// The downloaded packages.
    pub(crate) fn packages(&self) -> anyhow::Result<Vec<PathBuf>> {
        let mut packages = Vec::new();
        for entry in fs::read_dir(self.folder.join("cache/archives"))? {
            let path = entry?.path();
            if path.extension().is_some_and(|end| end == "deb") {
                packages.push(path);
            }
        }
        if packages.is_empty() {
            bail!("apt downloaded no package to `{}`", self.folder.display());
        }
        packages.sort();
        Ok(packages)
    }
}
