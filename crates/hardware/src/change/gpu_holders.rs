//! Processes that have a device file of the driver open.

use std::fs;
use std::io;

use farrier_facts::node::{ReadError, Reading};
use farrier_fleet::change::GpuHolder;

use crate::process_owner::{OwnerKind, process_owner};
use crate::root::Root;

/// Start of the names of the driver's device files.
const DEVICES: &str = "/dev/nvidia";

/// A holder, and the systemd unit that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OwnedHolder {
    pub(super) holder: GpuHolder,
    /// Without the suffix `.service`.
    pub(super) unit: Option<String>,
}

/// All processes except this one that have a device file open.
pub(super) fn holders(root: &Root) -> Reading<Vec<OwnedHolder>> {
    let entries = match fs::read_dir("/proc") {
        Ok(entries) => entries,
        Err(err) => return Reading::Unreadable(ReadError::from(&err)),
    };
    let mut found = Vec::new();
    for entry in entries.filter_map(Result::ok) {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        match has_device(pid) {
            Ok(true) if pid != std::process::id() => {}
            Ok(_) => continue,
            // The process ended meanwhile.
            Err(err) if matches!(err.kind(), io::ErrorKind::NotFound) => continue,
            Err(err) if err.raw_os_error() == Some(libc::ESRCH) => continue,
            Err(err) => return Reading::Unreadable(ReadError::from(&err)),
        }
        let owner = process_owner(root, pid);
        let unit = match &owner.kind {
            OwnerKind::Unit { name } => {
                Some(name.strip_suffix(".service").unwrap_or(name).to_owned())
            }
            _ => None,
        };
        let command = owner.command.or(owner.name).unwrap_or_else(|| "unknown".to_owned());
        let owner = owner.kind.to_string();
        found.push(OwnedHolder { holder: GpuHolder { pid, command, owner }, unit });
    }
    found.sort_by_key(|owned| owned.holder.pid);
    Reading::Value(found)
}

fn has_device(pid: u32) -> io::Result<bool> {
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let Ok(target) = fs::read_link(entry?.path()) else { continue };
        if target.to_str().is_some_and(|target| target.starts_with(DEVICES)) {
            return Ok(true);
        }
    }
    Ok(false)
}
