//! Reads everything that a plan needs.

use std::collections::BTreeMap;

use farrier_facts::node::{ReadError, Reading};
use farrier_facts::tune::{
    Choice, ENVIRONMENTS, HUGEPAGES_FILE, MEMLOCK_SERVICES, MemlockReadings, PERSISTENCED, Profile,
    Readings, SettingKind, memlock_drop_in,
};

use super::{files, memlock, service};
use crate::nvml::GpuControls;
use crate::root::Root;
use crate::{containers, driver, packages};

const CPUS: &str = "/sys/devices/system/cpu";
const APT: &str = "/etc/apt/apt.conf.d";

/// Reads the values that the settings of a profile need. `is_machine` says whether services can be
/// started.
pub fn read_settings(
    root: &Root,
    controls: &mut GpuControls,
    profile: &Profile,
    is_machine: bool,
) -> Readings {
    let hidden = host_hidden_reason(root);
    let kinds =
        profile.setting.iter().filter_map(|setting| SettingKind::from_name(&setting.name).ok());
    let kinds: Vec<SettingKind> = kinds.collect();
    let drop_ins = MEMLOCK_SERVICES.map(memlock_drop_in).into_iter();
    let drop_ins = drop_ins.filter(|_| kinds.contains(&SettingKind::Memlock));
    let paths = kinds.iter().filter_map(SettingKind::file).chain(drop_ins);
    let file = |path: String| {
        // Read the environment files for jobs even in a container, because its jobs use the
        // container's own.
        let read = if path.starts_with(ENVIRONMENTS) || hidden.is_none() {
            files::read(root, &path)
        } else {
            hidden_from_container(hidden)
        };
        (path, read)
    };
    let files = paths.map(file).collect();
    Readings {
        gpus: controls.list(),
        governors: governors(root),
        hugepages: files::read_choice(root, HUGEPAGES_FILE, None),
        files,
        memlock: hidden.map_or_else(
            || memlock::read(root),
            |_| MemlockReadings {
                limits: hidden_from_container(hidden),
                services: hidden_from_container(hidden),
            },
        ),
        packages: hidden
            .map_or_else(|| packages::with_architectures(root), |_| hidden_from_container(hidden)),
        has_apt: hidden.map_or_else(|| root.exists(APT), |_| hidden_from_container(hidden)),
        persistenced: hidden.map_or_else(
            || service::read(root, PERSISTENCED, is_machine),
            |_| hidden_from_container(hidden),
        ),
        can_start_services: is_machine,
        module_parameters: driver::read(root).parameters,
    }
}

/// Why the host's files are not visible: a container has its own files. `None` outside of a
/// container.
fn host_hidden_reason(root: &Root) -> Option<&'static str> {
    (containers::inside(root) == Reading::Value(true)).then_some(
        "this is a container, the host's files are not visible; pass the host's root with --root",
    )
}

fn hidden_from_container<T>(why: Option<&'static str>) -> Reading<T> {
    Reading::Unreadable(ReadError::unavailable(why.unwrap_or_default()))
}

/// Governors by file. A cpufreq policy covers one CPU or several. A host without policies has one
/// file per CPU.
fn governors(root: &Root) -> Reading<BTreeMap<String, Choice>> {
    let policies = dirs(root, &format!("{CPUS}/cpufreq"), "policy");
    let dirs = match policies {
        Reading::Value(dirs) if !dirs.is_empty() => Reading::Value(dirs),
        Reading::Unreadable(why) => Reading::Unreadable(why),
        _ => dirs(root, CPUS, "cpu")
            .map(|cpus| cpus.into_iter().map(|cpu| format!("{cpu}/cpufreq")).collect()),
    };
    dirs.map(|dirs| {
        let read = |dir: String| {
            let path = format!("{dir}/scaling_governor");
            let list = format!("{dir}/scaling_available_governors");
            match files::read_choice(root, &path, Some(&list)) {
                Reading::Value(choice) => Some((path, choice)),
                // A CPU without a governor has nothing to set.
                Reading::Absent => None,
                Reading::Unreadable(why) => {
                    let current = Reading::Unreadable(why);
                    Some((path, Choice { current, available: Reading::Absent }))
                }
            }
        };
        dirs.into_iter().filter_map(read).collect()
    })
}

/// Directories named by a prefix and a number.
fn dirs(root: &Root, parent: &str, name: &str) -> Reading<Vec<String>> {
    root.list(parent).map(|names| {
        let numbered = |entry: &&String| {
            entry.strip_prefix(name).is_some_and(|rest| rest.parse::<u32>().is_ok())
        };
        names.iter().filter(numbered).map(|entry| format!("{parent}/{entry}")).collect()
    })
}
