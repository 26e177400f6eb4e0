//! The loaded driver and the user-space libraries that programs would load.

use std::collections::BTreeMap;

use farrier_facts::node::{DriverObservation, Library, ReadError, Reading};

use crate::installation;
use crate::root::Root;

/// Library directories of distributions, `.run` installers and container toolkits.
const DIRS: [&str; 7] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/lib",
    "/opt/nvidia/lib64",
];

/// Library directories of a driver container.
const CONTAINER_DIRS: [&str; 3] = [
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
    "/run/nvidia/driver/usr/lib/aarch64-linux-gnu",
    "/run/nvidia/driver/usr/lib64",
];

/// Libraries that every CUDA program and every tool needs.
const NAMES: [&str; 2] = ["libcuda.so", "libnvidia-ml.so"];

pub(crate) fn read(root: &Root) -> DriverObservation {
    DriverObservation {
        loaded: where_mounted(root, root.trimmed("/sys/module/nvidia/version")),
        nvrm_line: root
            .text("/proc/driver/nvidia/version")
            .map(|text| text.lines().next().unwrap_or_default().to_owned()),
        libraries: libraries(root),
        parameters: root.text("/proc/driver/nvidia/params").map(|text| parameters(&text)),
        firmware: root.list("/lib/firmware/nvidia").map(|names| {
            // Skip the per-chip directories, which belong to nouveau.
            names
                .into_iter()
                .filter(|name| name.starts_with(|letter: char| letter.is_ascii_digit()))
                .collect()
        }),
        nouveau_loaded: match where_mounted(root, Reading::<()>::Absent) {
            Reading::Unreadable(why) => Reading::Unreadable(why),
            _ => root.exists("/sys/module/nouveau"),
        },
        run_file_install: root.exists("/usr/bin/nvidia-uninstall"),
    }
}

/// A file that is missing in sysfs counts as absent only if sysfs is mounted.
pub(crate) fn where_mounted<T>(root: &Root, reading: Reading<T>) -> Reading<T> {
    match (&reading, root.exists("/sys/module")) {
        (Reading::Absent, Reading::Value(false)) => {
            Reading::Unreadable(ReadError::unavailable("/sys is not mounted below this root"))
        }
        (Reading::Absent, Reading::Unreadable(why)) => Reading::Unreadable(why),
        _ => reading,
    }
}

/// The libraries that a program would load, by directory.
fn libraries(root: &Root) -> Reading<Vec<Library>> {
    let mut found = Vec::new();
    let mut dirs = 0;
    // A driver container keeps its libraries below its own root.
    let is_contained = installation::driver_container(root) == Reading::Value(true);
    let contained = CONTAINER_DIRS.into_iter().filter(|_| is_contained);
    for dir in DIRS.into_iter().chain(contained) {
        let names = match root.list(dir) {
            Reading::Value(names) => {
                dirs += 1;
                names
            }
            Reading::Absent => continue,
            Reading::Unreadable(why) => return Reading::Unreadable(why.at(dir)),
        };
        for name in NAMES {
            if names.iter().any(|file| file.strip_prefix(name) == Some(".1")) {
                let path = format!("{dir}/{name}.1");
                let version = linked_version(root, &path, name);
                found.push(Library { path, version });
                continue;
            }
            // Even without the `.1` symlink, the loader's cache may resolve the library.
            for file in &names {
                if let Some(version) = named_version(file, name) {
                    let path = format!("{dir}/{file}");
                    found.push(Library { path, version: Reading::Value(version.to_owned()) });
                }
            }
        }
    }
    if dirs == 0 {
        return Reading::Unreadable(ReadError::unavailable("no library directory below this root"));
    }
    Reading::Value(found)
}

/// The version suffix of the file that a symlink points to.
fn linked_version(root: &Root, path: &str, name: &str) -> Reading<String> {
    root.link(path).and_then(|target| {
        let file = target.rsplit('/').next().unwrap_or_default();
        named_version(file, name).map_or_else(
            || {
                Reading::Unreadable(ReadError::malformed(format!(
                    "`{path}` points to `{target}`, which has no version suffix"
                )))
            },
            |version| Reading::Value(version.to_owned()),
        )
    })
}

/// `580.95.05` from `libcuda.so.580.95.05`.
fn named_version<'a>(file: &'a str, name: &str) -> Option<&'a str> {
    let version = file.strip_prefix(name)?.strip_prefix('.')?;
    let plain = version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    (plain && version.contains('.')).then_some(version)
}

/// Parses `Name: value` lines. String values are in quotes.
fn parameters(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.trim().to_owned(), value.trim().trim_matches('"').to_owned()))
        .collect()
}
