//! Who owns the driver, if packages do not.

use farrier_facts::node::Reading;
use farrier_fleet::change::PreflightFailure;

use crate::installation::driver_container;
use crate::root::Root;

/// `ID` of systems whose root file system is an image.
const IMAGE_SYSTEMS: [&str; 6] =
    ["bottlerocket", "flatcar", "talos", "cos", "fedora-coreos", "rhcos"];

/// The owner of the driver. Absent if packages own it.
pub fn driver_owner(root: &Root) -> Reading<PreflightFailure> {
    match driver_container(root) {
        Reading::Value(true) => return Reading::Value(PreflightFailure::DriverContainer),
        Reading::Unreadable(why) => return Reading::Unreadable(why),
        Reading::Value(false) | Reading::Absent => {}
    }
    match root.exists("/usr/bin/nvidia-uninstall") {
        Reading::Value(true) => return Reading::Value(PreflightFailure::RunFile),
        Reading::Unreadable(why) => return Reading::Unreadable(why),
        Reading::Value(false) | Reading::Absent => {}
    }
    let release = match root.text("/etc/os-release") {
        Reading::Value(text) => text,
        Reading::Absent => String::new(),
        Reading::Unreadable(why) => return Reading::Unreadable(why),
    };
    let id = field(&release, "ID");
    let image = |system: &str| {
        Reading::Value(PreflightFailure::ImageBasedSystem { system: system.to_owned() })
    };
    if IMAGE_SYSTEMS.contains(&id) {
        return image(id);
    }
    match root.exists("/run/ostree-booted") {
        Reading::Value(true) => image(if id.is_empty() { "an OSTree system" } else { id }),
        Reading::Unreadable(why) => Reading::Unreadable(why),
        Reading::Value(false) | Reading::Absent => Reading::Absent,
    }
}

/// A value of `os-release`. Empty if it is missing.
pub(super) fn field<'a>(release: &'a str, name: &str) -> &'a str {
    let value = release
        .lines()
        .find_map(|line| line.strip_prefix(name).and_then(|rest| rest.strip_prefix('=')));
    value.unwrap_or_default().trim_matches('"')
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn owners_are_recognised() {
        let owner = |files: &[(&str, &str)]| {
            let folder = tempfile::tempdir().unwrap();
            for (path, text) in files {
                let path = folder.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            driver_owner(&Root::unrecorded(folder.path()))
        };
        assert_eq!(owner(&[("etc/os-release", "ID=debian\n")]), Reading::Absent);
        assert_eq!(
            owner(&[("run/nvidia/validations/.driver-ctr-ready", "")]),
            Reading::Value(PreflightFailure::DriverContainer)
        );
        assert_eq!(
            owner(&[("usr/bin/nvidia-uninstall", "")]),
            Reading::Value(PreflightFailure::RunFile)
        );
        let system = |name: &str| {
            Reading::Value(PreflightFailure::ImageBasedSystem { system: name.to_owned() })
        };
        assert_eq!(owner(&[("etc/os-release", "ID=bottlerocket\n")]), system("bottlerocket"));
        let files = [("etc/os-release", "ID=\"fedora\"\n"), ("run/ostree-booted", "")];
        assert_eq!(owner(&files), system("fedora"));
    }
}
