//! A service: whether it starts at boot and whether it runs.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::symlink;

use farrier_facts::node::Reading;
use farrier_facts::tune::ServiceState;

use super::hands::HandError;
use super::holds::run;
use crate::root::Root;
use crate::services;

const WANTS: &str = "/etc/systemd/system/multi-user.target.wants";
const UNIT_FOLDERS: [&str; 3] =
    ["/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"];

/// Its state; absent where it is not installed.
pub(super) fn read(root: &Root, unit: &str) -> Reading<ServiceState> {
    let Some(seen) = services::read(root).remove(unit) else { return Reading::Absent };
    match seen.unit {
        Reading::Value(true) => {}
        Reading::Unreadable(why) => return Reading::Unreadable(why),
        Reading::Value(false) | Reading::Absent => return Reading::Absent,
    }
    let enabled = match seen.enabled {
        Reading::Value(enabled) => enabled,
        Reading::Absent => false,
        Reading::Unreadable(why) => return Reading::Unreadable(why),
    };
    let running = match seen.running {
        Reading::Value(running) => running,
        // Below another root nothing is started or stopped, whatever it is.
        _ if !root.is_this_machine() => false,
        Reading::Absent => false,
        Reading::Unreadable(why) => return Reading::Unreadable(why),
    };
    Reading::Value(ServiceState { enabled, running })
}

pub(super) fn write(root: &Root, unit: &str, wanted: ServiceState) -> Result<(), HandError> {
    let path = format!("{WANTS}/{unit}.service");
    if !root.is_this_machine() {
        return link(root, unit, wanted.enabled).map_err(|err| HandError::io(&path, err));
    }
    let name = format!("{unit}.service");
    run("systemctl", &[if wanted.enabled { "enable" } else { "disable" }, &name])?;
    run("systemctl", &[if wanted.running { "start" } else { "stop" }, &name])
}

/// What `systemctl enable` does for a unit that the target of a server wants.
fn link(root: &Root, unit: &str, enabled: bool) -> io::Result<()> {
    let name = format!("{unit}.service");
    let place = root.real(WANTS)?.join(&name);
    if !enabled {
        return match fs::remove_file(place) {
            Err(err) if err.kind() != ErrorKind::NotFound => Err(err),
            _ => Ok(()),
        };
    }
    let folder = UNIT_FOLDERS
        .iter()
        .find(|folder| root.exists(&format!("{folder}/{name}")) == Reading::Value(true))
        .ok_or(ErrorKind::NotFound)?;
    match symlink(format!("{folder}/{name}"), place) {
        Err(err) if err.kind() != ErrorKind::AlreadyExists => Err(err),
        _ => Ok(()),
    }
}
