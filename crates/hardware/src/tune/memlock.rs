//! Reads the files that limit locked memory.

use std::collections::BTreeMap;
use std::path::Path;

use farrier_facts::node::Reading;
use farrier_facts::tune::{ConfigFile, MEMLOCK_SERVICES, MemlockReadings};

use crate::root::Root;
use crate::services::UNIT_DIRS;

const LIMITS_FILE: &str = "/etc/security/limits.conf";
const LIMITS_DIR: &str = "/etc/security/limits.d";

pub(super) fn read(root: &Root) -> MemlockReadings {
    MemlockReadings { limits: limits(root), services: services(root) }
}

/// The files that `pam_limits` reads, in its order: `limits.conf`, then the files of `limits.d` by
/// name (limits.conf(5)).
fn limits(root: &Root) -> Reading<Vec<ConfigFile>> {
    let names = match root.list(LIMITS_DIR) {
        Reading::Value(names) => names,
        Reading::Absent => Vec::new(),
        Reading::Unreadable(why) => return Reading::Unreadable(why),
    };
    let dropped = names.iter().filter(|name| is_conf(name));
    let paths = dropped.map(|name| format!("{LIMITS_DIR}/{name}"));
    config_files(root, [LIMITS_FILE.to_owned()].into_iter().chain(paths))
}

/// The installed services that start jobs, each with its unit and drop-ins in the order in which
/// systemd reads them.
fn services(root: &Root) -> Reading<BTreeMap<String, Vec<ConfigFile>>> {
    let mut services = BTreeMap::new();
    for unit in MEMLOCK_SERVICES {
        match service_files(root, unit) {
            Reading::Value(files) => drop(services.insert(unit.to_owned(), files)),
            Reading::Absent => {}
            Reading::Unreadable(why) => return Reading::Unreadable(why),
        }
    }
    Reading::Value(services)
}

fn service_files(root: &Root, unit: &str) -> Reading<Vec<ConfigFile>> {
    let unit = format!("{unit}.service");
    let paths = UNIT_DIRS.iter().map(|dir| format!("{dir}/{unit}"));
    let Some(path) = paths.into_iter().find(|path| root.exists(path) == Reading::Value(true))
    else {
        return Reading::Absent;
    };
    if root.link(&path).value().is_some_and(|target| target == "/dev/null") {
        // A masked service does not start.
        return Reading::Absent;
    }
    // A drop-in hides a drop-in of the same name in a later directory (systemd.unit(5)).
    let mut drop_ins: BTreeMap<String, String> = BTreeMap::new();
    for dir in UNIT_DIRS {
        let dir = format!("{dir}/{unit}.d");
        match root.list(&dir) {
            Reading::Value(names) => {
                for name in names.into_iter().filter(|name| is_conf(name)) {
                    let path = format!("{dir}/{name}");
                    drop_ins.entry(name).or_insert(path);
                }
            }
            Reading::Absent => {}
            Reading::Unreadable(why) => return Reading::Unreadable(why),
        }
    }
    config_files(root, [path].into_iter().chain(drop_ins.into_values()))
}

fn is_conf(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension == "conf")
}

/// The files that exist, in this order.
fn config_files(root: &Root, paths: impl Iterator<Item = String>) -> Reading<Vec<ConfigFile>> {
    let mut files = Vec::new();
    for path in paths {
        match root.text(&path) {
            Reading::Value(text) => files.push(ConfigFile { path, text }),
            Reading::Absent => {}
            Reading::Unreadable(why) => return Reading::Unreadable(why),
        }
    }
    Reading::Value(files)
}
