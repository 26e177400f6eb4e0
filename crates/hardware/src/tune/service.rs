//! A service: whether it starts at boot and whether it runs.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::symlink;

use farrier_facts::node::Reading;
use farrier_facts::tune::ServiceState;

use super::actuator::SettingActuatorError;
use super::system_commands::SystemCommands;
use crate::root::Root;
use crate::services;

const WANTS: &str = "/etc/systemd/system/multi-user.target.wants";
/// State of a service. Absent if it is not installed.
pub(super) fn read(root: &Root, unit: &str, is_machine: bool) -> Reading<ServiceState> {
    let Some(service) = services::read(root).remove(unit) else { return Reading::Absent };
    match service.unit {
        Reading::Value(true) => {}
        Reading::Unreadable(why) => return Reading::Unreadable(why),
        Reading::Value(false) | Reading::Absent => return Reading::Absent,
    }
    let enabled = match service.enabled {
        Reading::Value(enabled) => enabled,
        Reading::Absent => false,
        Reading::Unreadable(why) => return Reading::Unreadable(why),
    };
    let running = match service.running {
        Reading::Value(running) => running,
        // If the root is not this machine, no service is started or stopped, so the state does not
        // matter.
        _ if !is_machine => false,
        Reading::Absent => false,
        Reading::Unreadable(why) => return Reading::Unreadable(why),
    };
    is_static(root, unit).map(|is_static| ServiceState { enabled, running, is_static })
}

/// Whether the unit is static, which means that it has no `[Install]` section. `systemctl enable`
/// does nothing for such a unit (systemctl(1)).
fn is_static(root: &Root, unit: &str) -> Reading<bool> {
    let Some(dir) = unit_directory(root, unit) else { return Reading::Value(false) };
    let text = root.text(&format!("{dir}/{unit}.service"));
    text.map(|text| !text.lines().any(|line| line.trim() == "[Install]"))
}

/// The first directory with the unit file, in systemd's lookup order.
fn unit_directory(root: &Root, unit: &str) -> Option<&'static str> {
    let has = |dir: &&&str| root.exists(&format!("{dir}/{unit}.service")) == Reading::Value(true);
    services::UNIT_DIRS.iter().find(has).copied()
}

pub(super) fn write(
    root: &Root,
    commands: Option<&SystemCommands>,
    unit: &str,
    enabled: bool,
    running: bool,
) -> Result<(), SettingActuatorError> {
    let path = format!("{WANTS}/{unit}.service");
    let Some(commands) = commands else {
        return link(root, unit, enabled).map_err(|err| SettingActuatorError::from_io(&path, err));
    };
    let name = format!("{unit}.service");
    // Do not enable or disable a unit whose state would not change, because a static unit cannot be
    // enabled.
    let now = read(root, unit, true).value().copied();
    if now.is_none_or(|now| now.enabled != enabled) {
        commands.systemctl(&[if enabled { "enable" } else { "disable" }, &name])?;
    }
    commands.systemctl(&[if running { "start" } else { "stop" }, &name])
}

/// Enables or disables a unit as `systemctl` does if `multi-user.target` wants it.
fn link(root: &Root, unit: &str, enabled: bool) -> io::Result<()> {
    let name = format!("{unit}.service");
    let place = root.resolve_existing(WANTS)?.join(&name);
    if !enabled {
        return match fs::remove_file(place) {
            Err(err) if err.kind() != ErrorKind::NotFound => Err(err),
            _ => Ok(()),
        };
    }
    let dir = unit_directory(root, unit).ok_or(ErrorKind::NotFound)?;
    match symlink(format!("{dir}/{name}"), place) {
        Err(err) if err.kind() != ErrorKind::AlreadyExists => Err(err),
        _ => Ok(()),
    }
}
