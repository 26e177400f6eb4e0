//! Everything that a plan rests on.

use std::collections::BTreeMap;

use farrier_facts::node::{ReadError, Reading};
use farrier_facts::tune::{
    Choice, ENVIRONMENTS, HUGEPAGES_FILE, PERSISTENCED, Profile, Readings, SettingKind,
};

use super::{files, service};
use crate::nvml::Controls;
use crate::root::Root;
use crate::{containers, driver, packages};

const CPUS: &str = "/sys/devices/system/cpu";
const APT: &str = "/etc/apt/apt.conf.d";

/// Reads what the settings of a profile need. `is_machine`: services of it can be started.
pub fn look(root: &Root, controls: &mut Controls, profile: &Profile, is_machine: bool) -> Readings {
    let hidden = is_hidden(root);
    let kinds =
        profile.setting.iter().filter_map(|setting| SettingKind::from_name(&setting.name).ok());
    let paths = kinds.filter_map(|kind| kind.file());
    let file = |path: String| {
        // A job's environment may well be the container's.
        let read = if path.starts_with(ENVIRONMENTS) || hidden.is_none() {
            files::read(root, &path)
        } else {
            unseen(hidden)
        };
        (path, read)
    };
    let files = paths.map(file).collect();
    Readings {
        gpus: controls.list(),
        governors: governors(root),
        hugepages: files::read_choice(root, HUGEPAGES_FILE, None),
        files,
        packages: hidden.map_or_else(|| packages::of_architectures(root), |_| unseen(hidden)),
        has_apt: hidden.map_or_else(|| root.exists(APT), |_| unseen(hidden)),
        persistenced: hidden
            .map_or_else(|| service::read(root, PERSISTENCED, is_machine), |_| unseen(hidden)),
        can_start_services: is_machine,
        module_parameters: driver::read(root).parameters,
    }
}

/// Why the files are not the host's: those of a container are its own.
fn is_hidden(root: &Root) -> Option<&'static str> {
    (containers::inside(root) == Reading::Value(true)).then_some(
        "this is a container: the host's files cannot be seen; give the host's root with --root",
    )
}

fn unseen<T>(why: Option<&'static str>) -> Reading<T> {
    Reading::Unreadable(ReadError::unavailable(why.unwrap_or_default()))
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
