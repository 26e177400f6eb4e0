//! The folder of one machine: its disk, its console and qemu's messages.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::cache::lab_folder;
use super::qemu;

/// An exclusive claim of a machine's name. The files stay after it, for a look at a failure.
pub(crate) struct MachineFolder {
    path: PathBuf,
    /// Held until the end of the claim.
    _lock: File,
}

impl MachineFolder {
    /// Removes what an earlier machine of this name left, and creates an overlay of `disk`.
    pub(crate) fn claim(name: &str, disk: &Path) -> anyhow::Result<Self> {
        let machines = lab_folder().join("machines");
        fs::create_dir_all(&machines)?;
        let lock = File::create(machines.join(format!("{name}.lock")))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                bail!("another run of the lab has a machine named `{name}`")
            }
            Err(TryLockError::Error(err)) => return Err(err).context("a lock file"),
        }
        let path = machines.join(name);
        if path.exists() {
            fs::remove_dir_all(&path)?;
        }
        fs::create_dir_all(path.join(qemu::SHARE))?;
        qemu::create_overlay(disk, &path.join(qemu::DISK))?;
        Ok(Self { path, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What the guest sees as 9p share.
    pub(crate) fn share(&self) -> PathBuf {
        self.path.join(qemu::SHARE)
    }

    pub(crate) fn console(&self) -> PathBuf {
        self.path.join(qemu::CONSOLE)
    }

    pub(crate) fn messages(&self) -> PathBuf {
        self.path.join("qemu.log")
    }

    /// The UEFI variables, if firmware boots the machine.
    pub(crate) fn variables(&self) -> PathBuf {
        self.path.join(qemu::VARIABLES)
    }
}
