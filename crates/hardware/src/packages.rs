//! Packages of the driver, the kernel and the container toolkit, and the apt settings that decide
//! whether they are upgraded.

use farrier_facts::node::{Package, PackageObservation, Pin, ReadError, Reading, Unattended};
use serde::{Deserialize, Serialize};

use crate::apt_conf::AptConf;
use crate::root::{Root, read_text};

const STATUS: &str = "/var/lib/dpkg/status";
const RPM: [&str; 2] = ["/var/lib/rpm", "/usr/lib/sysimage/rpm"];
const CONF_DIR: &str = "/etc/apt/apt.conf.d";
const PREFERENCES: &str = "/etc/apt/preferences";

/// Name prefixes of the packages of interest.
const PREFIXES: [&str; 11] = [
    "nvidia-",
    "libnvidia-",
    "cuda-drivers",
    "cuda-compat",
    "libnvsdm",
    "libxnvctrl",
    "linux-image-",
    "linux-modules-nvidia-",
    "linux-generic",
    "linux-nvidia",
    "unattended-upgrades",
];

pub(crate) fn read(root: &Root) -> PackageObservation {
    PackageObservation {
        dpkg: root.text(STATUS).and_then(|text| packages(&text, false)),
        rpm: rpm(root),
        unattended: unattended(root),
        pins: pins(root),
    }
}

/// The packages of interest with their architecture in the name (`libnvidia-compute-580:amd64`).
/// The architecture is needed because dpkg may have a name twice, and `apt-mark` assumes the host's
/// architecture.
pub(crate) fn with_architectures(root: &Root) -> Reading<Vec<Package>> {
    root.text(STATUS).and_then(|text| packages(&text, true))
}

/// The packages of interest in dpkg's status file. A file that ends in the middle of a line is
/// being written or is corrupt. Such a file is reported as unreadable, because a package that is
/// missing from it may be installed.
fn packages(text: &str, with_architecture: bool) -> Reading<Vec<Package>> {
    let whole = text.is_empty() || text.ends_with("\n\n") || text.ends_with('\n');
    if !whole {
        return Reading::Unreadable(ReadError::malformed(format!(
            "{STATUS} ends in the middle of a line"
        )));
    }
    let mut found = Vec::new();
    for record in text.split("\n\n").filter(|record| !record.trim().is_empty()) {
        let field = |name: &str| {
            record.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
        };
        let Some(name) = field("Package") else {
            return Reading::Unreadable(ReadError::malformed(format!(
                "{STATUS} has a record without a package"
            )));
        };
        let is_cuda = name == "cuda" || name.strip_prefix("cuda-").is_some_and(is_release);
        if !is_cuda && !PREFIXES.iter().any(|start| name.starts_with(start)) {
            continue;
        }
        // `install ok installed`: desired action, error flag, current state.
        let status: Vec<&str> = field("Status").unwrap_or_default().split(' ').collect();
        let [action, _, state] = status[..] else {
            return Reading::Unreadable(ReadError::malformed(format!(
                "{STATUS} has no status for `{name}`"
            )));
        };
        if matches!(state, "config-files" | "not-installed") {
            continue;
        }
        let Some(version) = field("Version") else {
            return Reading::Unreadable(ReadError::malformed(format!(
                "{STATUS} has no version for `{name}`"
            )));
        };
        // A package for all architectures has no suffix.
        let architecture = field("Architecture")
            .filter(|architecture| with_architecture && *architecture != "all");
        found.push(Package {
            name: architecture.map_or_else(|| name.to_owned(), |suffix| format!("{name}:{suffix}")),
            version: version.to_owned(),
            status: state.to_owned(),
            held: action == "hold",
        });
    }
    Reading::Value(found)
}

/// `12-8`: the release in the name of the metapackage `cuda-12-8`.
fn is_release(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
}

fn rpm(root: &Root) -> Reading<bool> {
    for dir in RPM {
        match root.list(dir) {
            Reading::Value(names)
                if names.iter().any(|name| name.starts_with("rpmdb") || name == "Packages") =>
            {
                return Reading::Value(true);
            }
            Reading::Unreadable(why) => return Reading::Unreadable(why),
            Reading::Value(_) | Reading::Absent => {}
        }
    }
    Reading::Value(false)
}

/// The relevant settings of one file. The rest of apt's configuration is not captured, because it
/// may contain a proxy's password.
#[derive(Debug, Serialize, Deserialize)]
struct AptSettings {
    enabled: Option<String>,
    blacklist: Vec<String>,
}

fn unattended(root: &Root) -> Reading<Unattended> {
    let names = match root.list(CONF_DIR) {
        Reading::Value(names) => names,
        Reading::Absent => return Reading::Absent,
        Reading::Unreadable(why) => return Reading::Unreadable(why.at(CONF_DIR)),
    };
    let mut enabled = false;
    let mut blacklist = Vec::new();
    for name in names.iter().filter(|name| is_read_by_apt(name)) {
        let path = format!("{CONF_DIR}/{name}");
        let part = root.extract(&path, |file| {
            read_text(file).map(|text| {
                let mut conf = AptConf::default();
                conf.read(&text);
                AptSettings {
                    enabled: conf.last("APT::Periodic::Unattended-Upgrade").map(str::to_owned),
                    blacklist: conf.all("Unattended-Upgrade::Package-Blacklist").to_vec(),
                }
            })
        });
        match part {
            Reading::Value(part) => {
                if let Some(value) = part.enabled {
                    enabled = !matches!(value.as_str(), "0" | "" | "never");
                }
                blacklist.extend(part.blacklist);
            }
            Reading::Absent => {}
            Reading::Unreadable(why) => return Reading::Unreadable(why.at(path.as_str())),
        }
    }
    Reading::Value(Unattended { enabled, blacklist })
}

/// Whether apt reads a file. apt reads files with plain names that have no extension or the
/// extension `conf` (apt.conf(5)).
fn is_read_by_apt(name: &str) -> bool {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    name.chars().all(plain)
        && !name.starts_with('.')
        && name.rsplit_once('.').is_none_or(|(_, extension)| extension == "conf")
}

fn pins(root: &Root) -> Reading<Vec<Pin>> {
    let mut paths = vec![PREFERENCES.to_owned()];
    match root.list(&format!("{PREFERENCES}.d")) {
        Reading::Value(names) => {
            paths.extend(names.iter().map(|name| format!("{PREFERENCES}.d/{name}")));
        }
        Reading::Absent => {}
        Reading::Unreadable(why) => return Reading::Unreadable(why),
    }
    let mut found = Vec::new();
    for path in paths {
        match root.text(&path) {
            Reading::Value(text) => found.extend(text.split("\n\n").flat_map(stanza)),
            Reading::Absent => {}
            Reading::Unreadable(why) => return Reading::Unreadable(why.at(path.as_str())),
        }
    }
    Reading::Value(found)
}

fn stanza(text: &str) -> Vec<Pin> {
    let field = |name: &str| {
        text.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
    };
    let (Some(packages), Some(pin), Some(priority)) =
        (field("Package"), field("Pin"), field("Pin-Priority").and_then(|text| text.parse().ok()))
    else {
        return Vec::new();
    };
    packages
        .split_whitespace()
        .map(|package| Pin { package: package.to_owned(), pin: pin.to_owned(), priority })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELD: &str =
        "Package: nvidia-open\nStatus: hold ok installed\nVersion: 1:580.95.05-1\n\n";

    #[test]
    fn holds_states_and_versions_are_parsed() {
        let text = format!(
            "{HELD}Package: bash\nStatus: install ok installed\nVersion: 5\n\n\
             Package: nvidia-utils-570\nStatus: deinstall ok config-files\nVersion: 570.1-1\n\n\
             Package: libnvidia-compute-580\nStatus: install ok half-configured\nVersion: 580.95.05-0ubuntu1\n\n"
        );
        let read = packages(&text, false);
        let found = read.value().unwrap();
        assert_eq!(found.len(), 2);
        assert!(found[0].held);
        assert_eq!(found[0].upstream(), "580.95.05");
        assert_eq!((found[1].status.as_str(), found[1].held), ("half-configured", false));
    }

    #[test]
    fn same_name_in_two_architectures_is_two_packages() {
        let record = |architecture: &str| {
            format!(
                "Package: libnvidia-gl-580\nStatus: install ok installed\nArchitecture: {architecture}\nVersion: 580\n\n"
            )
        };
        let text = ["i386", "amd64", "all"].map(record).concat();
        let names = |named| {
            let read = packages(&text, named);
            read.value().unwrap().iter().map(|package| package.name.clone()).collect::<Vec<_>>()
        };
        let expected = ["libnvidia-gl-580:i386", "libnvidia-gl-580:amd64", "libnvidia-gl-580"];
        assert_eq!(names(true), expected);
        assert_eq!(names(false), ["libnvidia-gl-580"; 3]);
    }

    #[test]
    fn corrupt_status_file_is_rejected() {
        for text in [
            "Package: nvidia-open\nStatus: hold ok inst",
            "Package: nvidia-open\nStatus: hold\nVersion: 1\n\n",
            "Package: nvidia-open\nStatus: hold ok installed\n\n",
            "Status: hold ok installed\n\n",
        ] {
            assert!(packages(text, false).why_unreadable().is_some(), "{text}");
        }
        assert_eq!(packages("", false).value().map(Vec::len), Some(0));
    }

    #[test]
    fn pins_are_stanzas() {
        let text = "Explanation: ours\nPackage: nvidia-open libnvidia-*\nPin: version 580.95.05*\nPin-Priority: 1001\n";
        let found = stanza(text);
        assert_eq!(found.len(), 2);
        assert_eq!((found[1].package.as_str(), found[1].priority), ("libnvidia-*", 1001));
        assert!(stanza("Package: x\nPin: version 1\n").is_empty());
    }

    #[test]
    fn apt_ignores_backup_files() {
        assert!(is_read_by_apt("20auto-upgrades"));
        assert!(is_read_by_apt("99local.conf"));
        assert!(!is_read_by_apt("20auto-upgrades.ucf-dist"));
        assert!(!is_read_by_apt("50unattended-upgrades~"));
    }
}
