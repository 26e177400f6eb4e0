//! Services, from systemd's unit files and cgroups.

use std::collections::BTreeMap;

use farrier_facts::node::{ReadError, Reading, ServiceObservation};

use crate::root::Root;

/// Services that a GPU node needs or may need.
pub(crate) const NAMES: [&str; 4] =
    ["nvidia-persistenced", "nvidia-fabricmanager", "nvidia-imex", "nvidia-dcgm"];

/// Unit directories in systemd's lookup order.
pub(crate) const UNIT_DIRS: [&str; 4] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

/// systemd's cgroup for services, in cgroup v2 and in v1.
const SLICES: [&str; 2] = ["/sys/fs/cgroup/system.slice", "/sys/fs/cgroup/systemd/system.slice"];

pub(crate) fn read(root: &Root) -> BTreeMap<String, ServiceObservation> {
    let enabled = enabled_units(root);
    NAMES.iter().map(|name| ((*name).to_owned(), service(root, name, &enabled))).collect()
}

fn service(root: &Root, name: &str, enabled: &Reading<Vec<String>>) -> ServiceObservation {
    let unit = format!("{name}.service");
    let target = root.link(&format!("/etc/systemd/system/{unit}"));
    ServiceObservation {
        unit: any(UNIT_DIRS.iter().map(|dir| root.exists(&format!("{dir}/{unit}")))),
        enabled: enabled.as_ref().map(|units| units.contains(&unit)),
        // A unit file that is not a link is not masked.
        masked: Reading::Value(target.value().is_some_and(|target| target == "/dev/null")),
        running: running(root, &unit),
    }
}

/// True if any reading is true. Unreadable if none is true and one could not be read.
fn any(readings: impl IntoIterator<Item = Reading<bool>>) -> Reading<bool> {
    let mut unreadable = None;
    for reading in readings {
        match reading {
            Reading::Value(true) => return Reading::Value(true),
            Reading::Unreadable(why) => unreadable = Some(why),
            Reading::Value(false) | Reading::Absent => {}
        }
    }
    unreadable.map_or(Reading::Value(false), Reading::Unreadable)
}

/// Units that some target wants or requires at boot.
fn enabled_units(root: &Root) -> Reading<Vec<String>> {
    let dir = "/etc/systemd/system";
    root.list(dir).and_then(|names| {
        let mut units = Vec::new();
        for name in names {
            if matches!(name.rsplit_once('.'), Some((_, "wants" | "requires"))) {
                match root.list(&format!("{dir}/{name}")) {
                    Reading::Value(names) => units.extend(names),
                    Reading::Absent => {}
                    Reading::Unreadable(why) => return Reading::Unreadable(why),
                }
            }
        }
        Reading::Value(units)
    })
}

fn running(root: &Root, unit: &str) -> Reading<bool> {
    for slice in SLICES {
        match root.exists(slice) {
            Reading::Value(true) => {
                return match root.text(&format!("{slice}/{unit}/cgroup.procs")) {
                    Reading::Value(processes) => Reading::Value(!processes.trim().is_empty()),
                    Reading::Absent => Reading::Value(false),
                    Reading::Unreadable(why) => Reading::Unreadable(why),
                };
            }
            Reading::Value(false) | Reading::Absent => {}
            Reading::Unreadable(why) => return Reading::Unreadable(why),
        }
    }
    Reading::Unreadable(ReadError::unavailable("systemd's cgroups are not visible here"))
}
