//! Everything that a plan rests on.

use std::collections::BTreeMap;

use farrier_facts::node::Reading;
use farrier_facts::tune::{Choice, Kind, PERSISTENCED, Profile, Readings};

use super::{files, service};
use crate::nvml::Controls;
use crate::root::Root;
use crate::{driver, packages};

const CPUS: &str = "/sys/devices/system/cpu";
const HUGEPAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
const APT: &str = "/etc/apt/apt.conf.d";

/// Reads what the settings of a profile need.
pub fn look(root: &Root, controls: &mut Controls, profile: &Profile) -> Readings {
    let kinds = profile.setting.iter().filter_map(|setting| Kind::of(&setting.name).ok());
    let paths = kinds.filter_map(|kind| kind.file());
    let files = paths.map(|path| (path.clone(), files::read(root, &path))).collect();
    Readings {
        gpus: controls.list(),
        governors: governors(root),
        hugepages: files::read_choice(root, HUGEPAGES, None),
        files,
        packages: packages::read(root).dpkg,
        has_apt: root.exists(APT),
        persistenced: service::read(root, PERSISTENCED),
        can_start_services: root.is_this_machine(),
        module_parameters: driver::read(root).parameters,
    }
}

/// A policy of the kernel's is of one CPU or of several; a host without their folder has a file a CPU.
fn governors(root: &Root) -> Reading<BTreeMap<String, Choice>> {
    let policies = folders(root, &format!("{CPUS}/cpufreq"), "policy");
    let folders = match policies {
        Reading::Value(folders) if !folders.is_empty() => Reading::Value(folders),
        Reading::Unreadable(why) => Reading::Unreadable(why),
        _ => folders(root, CPUS, "cpu")
            .map(|cpus| cpus.into_iter().map(|cpu| format!("{cpu}/cpufreq")).collect()),
    };
    folders.map(|folders| {
        let read = |folder: String| {
            let path = format!("{folder}/scaling_governor");
            let list = format!("{folder}/scaling_available_governors");
            match files::read_choice(root, &path, Some(&list)) {
                Reading::Value(choice) => Some((path, choice)),
                // A CPU without a governor has none to set.
                Reading::Absent => None,
                Reading::Unreadable(why) => {
                    let current = Reading::Unreadable(why);
                    Some((path, Choice { current, available: Reading::Absent }))
                }
            }
        };
        folders.into_iter().filter_map(read).collect()
    })
}

/// Folders of a name and a number.
fn folders(root: &Root, parent: &str, name: &str) -> Reading<Vec<String>> {
    root.list(parent).map(|names| {
        let numbered = |entry: &&String| {
            entry.strip_prefix(name).is_some_and(|rest| rest.parse::<u32>().is_ok())
        };
        names.iter().filter(numbered).map(|entry| format!("{parent}/{entry}")).collect()
    })
}
