//! The loaded module, and whether the user-space libraries have the same version.

use crate::check::Verdict;
use crate::node::context::NodeContext;
use crate::node::item_code;
use crate::node::observation::Library;
use crate::node::reading::Reading;
use crate::node::report::NodeFindings;

const LOADED: &str = "/sys/module/nvidia/version";
const SUBJECT: &str = "driver";

pub(crate) fn evaluate(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    nouveau(node, findings);
    module(node, findings);
    libraries(node, findings);
    firmware(node, findings);
}

fn nouveau(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    let source = "/sys/module/nouveau";
    match &node.observation.driver.nouveau_loaded {
        Reading::Value(true) => {
            findings.item(
                Verdict::Blocked,
                item_code::NOUVEAU_LOADED,
                SUBJECT,
                "nouveau is loaded: the NVIDIA driver cannot bind the GPUs that nouveau holds",
                source,
            );
            findings.remedy(
                "for the NVIDIA driver",
                "keep nouveau from loading, rebuild the initial RAM disk, and reboot",
                Some(
                    "printf 'blacklist nouveau\\noptions nouveau modeset=0\\n' > \
                     /etc/modprobe.d/blacklist-nouveau.conf && update-initramfs -u",
                ),
            );
        }
        Reading::Value(false) | Reading::Absent => {
            findings.item(
                Verdict::Ok,
                item_code::NOUVEAU_ABSENT,
                SUBJECT,
                "nouveau is not loaded",
                source,
            );
        }
        Reading::Unreadable(why) => findings.item(
            Verdict::Unknown,
            item_code::NOUVEAU_UNKNOWN,
            SUBJECT,
            format!("cannot read whether nouveau is loaded: {why}"),
            source,
        ),
    }
}

fn module(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    match (&node.observation.driver.loaded, node.loaded()) {
        (_, Some(version)) => {
            let flavour = match node.flavour() {
                Some(crate::check::Module::Open) => "open ",
                Some(crate::check::Module::Proprietary) => "proprietary ",
                None => "",
            };
            let text = format!("{flavour}kernel module {version} is loaded");
            findings.item(Verdict::Ok, item_code::MODULE_LOADED, SUBJECT, text, LOADED);
        }
        (Reading::Value(_) | Reading::Absent, None) => {
            findings.item(
                Verdict::Blocked,
                item_code::MODULE_NOT_LOADED,
                SUBJECT,
                "the NVIDIA kernel module is not loaded",
                LOADED,
            );
            findings.remedy(
                "for the GPUs",
                "load the driver; if that fails, the kernel log says why",
                Some("modprobe nvidia"),
            );
        }
        (Reading::Unreadable(why), None) => findings.item(
            Verdict::Unknown,
            item_code::MODULE_LOADED_UNKNOWN,
            SUBJECT,
            format!("cannot read whether the kernel module is loaded: {why}"),
            LOADED,
        ),
    }
}

/// Remedy if the driver on disk differs from the loaded one.
pub(super) fn remedy_one_driver_version(findings: &mut NodeFindings) {
    findings.remedy(
        "for matching driver versions",
        "drain the node and reboot it, or stop all users of the GPUs and reload the modules; then \
         hold the driver's packages",
        None,
    );
}

fn libraries(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    const SOURCE: &str = "links libcuda.so.1 and libnvidia-ml.so.1 in the library folders";
    let mut unknown = |text: String| {
        findings.item(Verdict::Unknown, item_code::LIBRARY_UNKNOWN, SUBJECT, text, SOURCE);
    };
    let libraries = match &node.observation.driver.libraries {
        Reading::Value(libraries) => libraries.as_slice(),
        Reading::Absent => &[],
        Reading::Unreadable(why) => {
            return unknown(format!("the driver's libraries cannot be listed: {why}"));
        }
    };
    if libraries.is_empty() {
        findings.item(
            Verdict::Blocked,
            item_code::LIBRARY_MISSING,
            SUBJECT,
            "neither libcuda.so.1 nor libnvidia-ml.so.1 is installed: no CUDA program starts",
            SOURCE,
        );
        findings.remedy(
            "for CUDA programs",
            "install the driver's libraries in the version of the kernel module",
            None,
        );
        return;
    }
    let path_and_version = |library: &Library| {
        library.version.value().map(|version| (library.path.clone(), version.clone()))
    };
    let versions: Vec<(String, String)> = libraries.iter().filter_map(path_and_version).collect();
    let versions = if versions.is_empty() { nvml_library_version(node) } else { versions };
    let why = libraries.iter().find_map(|library| library.version.why_unreadable());
    if let Some(why) = why.filter(|_| versions.is_empty()) {
        unknown(format!("a library's version cannot be read: {why}"));
    }
    let Some(loaded) = node.loaded() else { return };
    let differs: Vec<&(String, String)> =
        versions.iter().filter(|(_, version)| version != loaded).collect();
    let has_loaded_version =
        |list: &[(String, String)]| list.iter().any(|(_, version)| version == loaded);
    let is_nvml_right =
        has_loaded_version(&nvml_library_version(node)) && has_loaded_version(&versions);
    if let Some((path, version)) = differs.first().filter(|_| is_nvml_right) {
        findings.item(
            Verdict::Caveat,
            item_code::LIBRARY_STRAY,
            SUBJECT,
            format!(
                "{path} is {version}, but {loaded} is loaded: NVML has the right version, but a \
                 program that finds this library first fails"
            ),
            SOURCE,
        );
        findings.remedy(
            "for programs that find another library",
            &format!("remove {path}, or install the package that it came with in version {loaded}"),
            None,
        );
    } else if let Some((path, version)) = differs.first() {
        findings.item(
            Verdict::Blocked,
            item_code::DRIVER_LIBRARY_MISMATCH,
            SUBJECT,
            format!(
                "kernel module {loaded} is loaded, {path} is {version}: programs that start now fail \
                 with `Driver/library version mismatch` (an upgrade replaced the libraries, but \
                 the old module is still loaded)"
            ),
            format!("{LOADED}; {SOURCE}"),
        );
        remedy_one_driver_version(findings);
    } else if !versions.is_empty() {
        findings.item(
            Verdict::Ok,
            item_code::DRIVER_LIBRARY_EQUAL,
            SUBJECT,
            format!("user space {loaded} equals the loaded module"),
            format!("{LOADED}; {SOURCE}"),
        );
    }
}

/// The version that NVML reports for itself. The rules need this version in containers, where the
/// file name of a mounted library has no version. NVML 13 of driver 580.95.05 reports
/// `13.580.95.05`.
fn nvml_library_version(node: &NodeContext<'_>) -> Vec<(String, String)> {
    let nvml = node.observation.nvml.answered();
    let version = nvml.and_then(|nvml| nvml.library_version.value()?.split_once('.'));
    version
        .map(|(_, driver)| ("the NVML library".to_owned(), driver.to_owned()))
        .into_iter()
        .collect()
}

fn firmware(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    let Some(loaded) = node.loaded() else { return };
    let versions = node.devices().iter().filter_map(|device| device.gsp_firmware.value());
    let mut differs: Vec<&str> =
        versions.map(String::as_str).filter(|version| *version != loaded).collect();
    differs.sort_unstable();
    differs.dedup();
    if !differs.is_empty() {
        findings.item(
            Verdict::Blocked,
            item_code::GSP_FIRMWARE_DIFFERS,
            SUBJECT,
            format!("the GPUs run GSP firmware {}, but the module is {loaded}", differs.join(", ")),
            "NVML, nvmlDeviceGetGspFirmwareVersion",
        );
    }
}
