//! How the driver is installed: firmware, module options, device files, and whether a container
//! installed it.

use std::collections::BTreeSet;
use std::path::Path;

use farrier_facts::node::{
    DeviceFile, InstallationObservation, LoadDisabled, ModuleOnDisk, ReadError, Reading,
};

use crate::driver::where_mounted;
use crate::modules;
use crate::root::{Root, read_text};

/// Files that exist while a driver container (NVIDIA GPU Operator) provides the driver.
const CONTAINER_MARKS: [&str; 2] =
    ["/run/nvidia/driver/usr/bin/nvidia-smi", "/run/nvidia/validations/.driver-ctr-ready"];

/// Where the kernel searches firmware, after the path in its parameter (Linux
/// `Documentation/driver-api/firmware/fw_search_path.rst`).
const FIRMWARE_DIRS: [&str; 2] = ["/lib/firmware/updates", "/lib/firmware"];
const FIRMWARE_PARAMETER: &str = "/sys/module/firmware_class/parameters/path";

/// Folders of module options, in modprobe's order of preference.
const MODPROBE_DIRS: [&str; 5] = [
    "/etc/modprobe.d",
    "/run/modprobe.d",
    "/usr/local/lib/modprobe.d",
    "/usr/lib/modprobe.d",
    "/lib/modprobe.d",
];

/// Commands in an `install` line of modprobe that load no module.
const NO_LOAD: [&str; 3] = ["false", "true", ":"];

const MODULES: [&str; 3] = ["nvidia", "nvidia-uvm", "nvidia_uvm"];

const GPUS: &str = "/proc/driver/nvidia/gpus";

pub(crate) fn read(root: &Root) -> InstallationObservation {
    let running = root.trimmed("/proc/sys/kernel/osrelease");
    InstallationObservation {
        gsp_firmware: firmware(root),
        load_disabled: load_disabled(root),
        uvm_loaded: where_mounted(root, root.trimmed("/sys/module/nvidia_uvm/version")),
        uvm_on_disk: running
            .and_then(|release| modules::uvm_for_kernel(root, &release))
            .and_then(version),
        modprobe_helper: root.exists("/usr/bin/nvidia-modprobe"),
        device_files: device_files(root),
        cuda_run_file: root.exists("/var/log/cuda-installer.log"),
        driver_container: driver_container(root),
    }
}

/// Whether a container provides the driver.
pub(crate) fn driver_container(root: &Root) -> Reading<bool> {
    for mark in CONTAINER_MARKS {
        match root.exists(mark) {
            Reading::Value(false) | Reading::Absent => {}
            found => return found,
        }
    }
    Reading::Value(false)
}

fn version(module: ModuleOnDisk) -> Reading<String> {
    module.info.and_then(|info| info.version.map_or(Reading::Absent, Reading::Value))
}

fn firmware(root: &Root) -> Reading<Vec<String>> {
    let parameter = match root.trimmed(FIRMWARE_PARAMETER) {
        Reading::Unreadable(why) => return Reading::Unreadable(why),
        parameter => parameter,
    };
    let parameter = parameter.value().filter(|path| path.starts_with('/'));
    let dirs = parameter.map(String::as_str).into_iter().chain(FIRMWARE_DIRS);
    let (mut versions, mut searched) = (Vec::new(), false);
    for dir in dirs {
        match root.list(&format!("{dir}/nvidia")) {
            Reading::Value(names) => {
                searched = true;
                // Next to the versions are per-chip directories, which belong to nouveau.
                let is_version = |name: &String| name.starts_with(|c: char| c.is_ascii_digit());
                versions.extend(names.into_iter().filter(is_version));
            }
            Reading::Absent => searched |= root.exists(dir) == Reading::Value(true),
            Reading::Unreadable(why) => return Reading::Unreadable(why.at(dir)),
        }
    }
    if !searched {
        let why = "there is no firmware folder below this root";
        return Reading::Unreadable(ReadError::unavailable(why));
    }
    Reading::Value(versions)
}

fn load_disabled(root: &Root) -> Reading<Vec<LoadDisabled>> {
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    for dir in MODPROBE_DIRS {
        let names = match root.list(dir) {
            Reading::Value(names) => names,
            Reading::Absent => continue,
            Reading::Unreadable(why) => return Reading::Unreadable(why.at(dir)),
        };
        for name in names.into_iter().filter(|name| is_conf(name)) {
            let path = format!("{dir}/{name}");
            // A file hides files of the same name in later folders.
            if !seen.insert(name) {
                continue;
            }
            let lines = root.extract(&path, |file| {
                read_text(file).map(|text| install_lines(&text, is_disabling_install))
            });
            match lines {
                Reading::Value(lines) => found.extend(
                    lines.into_iter().map(|line| LoadDisabled { path: path.clone(), line }),
                ),
                Reading::Absent => {}
                Reading::Unreadable(why) => return Reading::Unreadable(why.at(path)),
            }
        }
    }
    let path = "/proc/cmdline";
    let words = root.extract(path, |file| {
        read_text(file).map(|text| {
            let words = text.split_whitespace().filter(|word| is_module_blacklist(word));
            words.map(str::to_owned).collect::<Vec<_>>()
        })
    });
    match words {
        Reading::Value(words) => {
            let line = |line| LoadDisabled { path: path.to_owned(), line };
            found.extend(words.into_iter().map(line));
        }
        Reading::Absent => {}
        Reading::Unreadable(why) => return Reading::Unreadable(why.at(path)),
    }
    Reading::Value(found)
}

/// modprobe reads only files with this extension.
fn is_conf(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension == "conf")
}

fn install_lines(text: &str, is_disabling: fn(&str) -> bool) -> Vec<String> {
    text.lines().map(str::trim).filter(|line| is_disabling(line)).map(str::to_owned).collect()
}

/// `install nvidia /bin/false`
fn is_disabling_install(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let ["install", module, command, ..] = words[..] else { return false };
    let program = command.rsplit('/').next().unwrap_or(command);
    MODULES.contains(&module) && NO_LOAD.contains(&program)
}

/// `module_blacklist=nvidia`
fn is_module_blacklist(word: &str) -> bool {
    let modules = word.strip_prefix("module_blacklist=");
    modules.is_some_and(|modules| modules.split(',').any(|module| MODULES.contains(&module)))
}

fn device_files(root: &Root) -> Reading<Vec<DeviceFile>> {
    let gpus = match root.list(GPUS) {
        Reading::Value(gpus) => gpus,
        Reading::Absent => return Reading::Absent,
        Reading::Unreadable(why) => return Reading::Unreadable(why),
    };
    match root.exists("/dev") {
        Reading::Value(true) => {}
        Reading::Value(false) | Reading::Absent => {
            return Reading::Unreadable(ReadError::unavailable("there is no /dev below this root"));
        }
        Reading::Unreadable(why) => return Reading::Unreadable(why),
    }
    let mut paths = vec!["/dev/nvidiactl".to_owned(), "/dev/nvidia-uvm".to_owned()];
    for gpu in gpus {
        let path = format!("{GPUS}/{gpu}/information");
        match root.extract(&path, |file| read_text(file).and_then(|text| minor(&text))) {
            Reading::Value(minor) => paths.push(format!("/dev/nvidia{minor}")),
            // An excluded GPU has no device file.
            Reading::Absent => {}
            Reading::Unreadable(why) => return Reading::Unreadable(why.at(path)),
        }
    }
    let file = |path: String| DeviceFile { exists: root.exists(&path), path };
    Reading::Value(paths.into_iter().map(file).collect())
}

/// The number in `Device Minor:     3`.
fn minor(information: &str) -> Reading<u32> {
    let value = information.lines().find_map(|line| line.strip_prefix("Device Minor:"));
    value.and_then(|value| value.trim().parse().ok()).map_or(Reading::Absent, Reading::Value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_keep_a_module_from_loading() {
        for line in ["install nvidia /bin/false", "install nvidia-uvm true", "install nvidia : x"] {
            assert!(is_disabling_install(line), "{line}");
        }
        for line in [
            "# install nvidia /bin/false",
            "install nvidia /sbin/modprobe --ignore-install nvidia",
            "install nouveau /bin/false",
            "options nvidia NVreg_OpenRmEnableUnsupportedGpus=1",
            "blacklist nvidia",
        ] {
            assert!(!is_disabling_install(line), "{line}");
        }
        assert!(is_module_blacklist("module_blacklist=nouveau,nvidia"));
        assert!(!is_module_blacklist("module_blacklist=nvidiafb"));
        assert!(!is_module_blacklist("rd.driver.blacklist=nouveau"));
    }

    #[test]
    fn minor_is_read_from_the_drivers_information() {
        let text = "Model: \t\t NVIDIA H100\nDevice Minor: \t 5\nGPU Excluded:\t No\n";
        assert_eq!(minor(text), Reading::Value(5));
        assert_eq!(minor("Model: x\n"), Reading::Absent);
    }
}
