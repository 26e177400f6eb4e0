//! The driver's installation: will the driver load again, can programs open its device files, and
//! did a container install it?

use crate::check::Verdict;
use crate::node::context::NodeContext;
use crate::node::item_code::{self, ItemCode};
use crate::node::observation::Package;
use crate::node::reading::Reading;
use crate::node::report::NodeFindings;

const SUBJECT: &str = "driver";

pub(crate) fn evaluate(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    if node.inside_container() {
        findings.not_judged("the driver's installation (this is a container)");
        return;
    }
    firmware(node, findings);
    load_disabled(node, findings);
    uvm(node, findings);
    device_files(node, findings);
    cuda_toolkit(node, findings);
    owner(node, findings);
}

/// The open modules always need the GSP firmware on disk. The proprietary modules need it only for
/// GPUs that use GSP. The driver reads the firmware whenever it initialises a GPU.
fn firmware(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    let source = "/lib/firmware/nvidia; NVIDIA driver README, GSP Firmware";
    let Some(loaded) = node.loaded() else { return };
    let is_open = node.flavour() == Some(crate::check::Module::Open);
    let has_gsp = node.devices().iter().any(|device| device.gsp_firmware.value().is_some());
    if !is_open && !has_gsp {
        return;
    }
    let versions = match &node.observation.installation.gsp_firmware {
        Reading::Value(versions) => versions.as_slice(),
        Reading::Absent => return,
        Reading::Unreadable(why) => {
            let what = "the GSP firmware on disk";
            return findings.unreadable(
                item_code::GSP_FIRMWARE_UNKNOWN,
                SUBJECT,
                what,
                why,
                source,
            );
        }
    };
    // After an upgrade, the firmware is that of the driver on disk. Another rule reports that.
    let is_present = |version: Option<&str>| versions.iter().any(|at| Some(at.as_str()) == version);
    if is_present(Some(loaded)) || is_present(node.user_space()) {
        let text = "the GSP firmware of the driver is on disk";
        findings.item(Verdict::Ok, item_code::GSP_FIRMWARE_PRESENT, SUBJECT, text, source);
        return;
    }
    findings.item(
        Verdict::Blocked,
        item_code::GSP_FIRMWARE_MISSING,
        SUBJECT,
        format!(
            "the GSP firmware of driver {loaded} is not on disk: no GPU starts again after a \
             reset, a reload of the driver or a reboot"
        ),
        source,
    );
    findings.remedy(
        "for the GSP firmware",
        &format!("install the driver's firmware package in version {loaded}"),
        Some("ls /lib/firmware/nvidia"),
    );
}

fn load_disabled(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    let source = "/etc/modprobe.d; /proc/cmdline; modprobe.d(5)";
    let lines = match &node.observation.installation.load_disabled {
        Reading::Value(lines) => lines.as_slice(),
        Reading::Absent => return,
        Reading::Unreadable(why) => {
            let what = "whether the driver is kept from loading";
            return findings.unreadable(item_code::MODULE_LOAD_UNKNOWN, SUBJECT, what, why, source);
        }
    };
    let Some(first) = lines.first() else { return };
    let is_loaded = node.loaded().is_some();
    let verdict = if is_loaded { Verdict::Caveat } else { Verdict::Blocked };
    let when = if is_loaded { "does not load after the next boot" } else { "cannot be loaded" };
    findings.item(
        verdict,
        item_code::MODULE_LOAD_DISABLED,
        SUBJECT,
        format!("the driver {when}: {} has `{}`", first.path, first.line),
        source,
    );
    findings.remedy(
        "for a driver that loads at boot",
        &format!("remove the line from {}, and rebuild the initial RAM disk", first.path),
        Some("update-initramfs -u"),
    );
}

const UVM: &str = "/sys/module/nvidia_uvm/version; nvidia-uvm.ko";

/// CUDA needs nvidia-uvm in the version of the driver.
fn uvm(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    let Some(loaded) = node.loaded() else { return };
    match &node.observation.installation.uvm_loaded {
        Reading::Value(uvm) if uvm != loaded => {
            let text =
                format!("nvidia-uvm {uvm} is loaded with driver {loaded}: no CUDA program starts");
            uvm_blocks(findings, item_code::UVM_DIFFERS, text);
        }
        Reading::Value(uvm) => uvm_at_next_boot(node, uvm, findings),
        Reading::Absent => uvm_not_loaded(node, loaded, findings),
        Reading::Unreadable(why) => {
            findings.unreadable(item_code::UVM_UNKNOWN, SUBJECT, "nvidia-uvm", why, UVM);
        }
    }
}

fn uvm_blocks(findings: &mut NodeFindings, code: ItemCode, text: String) {
    findings.item(Verdict::Blocked, code, SUBJECT, text, UVM);
    findings.remedy(
        "for CUDA",
        "install nvidia-uvm in the version of the driver, then load it",
        Some("modprobe nvidia-uvm"),
    );
}

fn uvm_at_next_boot(node: &NodeContext<'_>, uvm: &str, findings: &mut NodeFindings) {
    let on_disk = node.observation.installation.uvm_on_disk.value();
    let module = node.running_kernel().and_then(|kernel| kernel.module.value());
    let module = module.and_then(|module| module.info.value()?.version.as_deref());
    match (on_disk, module) {
        (Some(on_disk), Some(module)) if on_disk != module => {
            let text = format!(
                "nvidia-uvm on disk is {on_disk}, the driver's module is {module}: after the next \
                 boot, no CUDA program starts"
            );
            findings.item(Verdict::Caveat, item_code::UVM_NEXT_BOOT_DIFFERS, SUBJECT, text, UVM);
            findings.remedy(
                "for CUDA after the next boot",
                "install nvidia-uvm in the version of the driver's module",
                Some("modinfo nvidia-uvm"),
            );
        }
        _ => {
            let text = format!("nvidia-uvm {uvm} is loaded");
            findings.item(Verdict::Ok, item_code::UVM_LOADED, SUBJECT, text, UVM);
        }
    }
}

fn uvm_not_loaded(node: &NodeContext<'_>, loaded: &str, findings: &mut NodeFindings) {
    let installation = &node.observation.installation;
    match &installation.uvm_on_disk {
        Reading::Value(on_disk) if on_disk != loaded => {
            let text = format!(
                "nvidia-uvm is not loaded, and {on_disk} on disk does not fit driver {loaded}: no \
                 CUDA program starts"
            );
            uvm_blocks(findings, item_code::UVM_ON_DISK_DIFFERS, text);
        }
        Reading::Absent => {
            let text = "nvidia-uvm is neither loaded nor on disk: no CUDA program starts";
            uvm_blocks(findings, item_code::UVM_MISSING, text.to_owned());
        }
        _ if installation.modprobe_helper == Reading::Value(true) => {
            let text = "nvidia-uvm is not loaded; nvidia-modprobe loads it for programs";
            findings.item(Verdict::Ok, item_code::UVM_ON_DEMAND, SUBJECT, text, UVM);
        }
        _ => {
            let text = "nvidia-uvm is not loaded, and nvidia-modprobe is not installed: only root \
                        can start CUDA programs";
            uvm_blocks(findings, item_code::UVM_NOT_LOADED, text.to_owned());
        }
    }
}

fn device_files(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    let source = "/dev; /proc/driver/nvidia/gpus/*/information, Device Minor";
    let files = match &node.observation.installation.device_files {
        Reading::Value(files) => files.as_slice(),
        Reading::Absent => return,
        Reading::Unreadable(why) => {
            let what = "the driver's device files";
            return findings.unreadable(
                item_code::DEVICE_FILES_UNKNOWN,
                SUBJECT,
                what,
                why,
                source,
            );
        }
    };
    // nvidia-modprobe creates the file of nvidia-uvm together with the module.
    let is_on_demand = |path: &str| {
        path.starts_with("/dev/nvidia-uvm")
            && node.observation.installation.uvm_loaded == Reading::Absent
    };
    let missing: Vec<&str> = files
        .iter()
        .filter(|file| file.exists == Reading::Value(false) && !is_on_demand(&file.path))
        .map(|file| file.path.as_str())
        .collect();
    if !missing.is_empty() {
        findings.item(
            Verdict::Blocked,
            item_code::DEVICE_FILE_MISSING,
            SUBJECT,
            format!("{} is missing: programs without root cannot open it", missing.join(", ")),
            source,
        );
        findings.remedy(
            "for the device files",
            "create them, and find out what removed them (udev rules, a container runtime)",
            Some("nvidia-modprobe -c 0 -u"),
        );
    } else if let Some(why) = files.iter().find_map(|file| file.exists.why_unreadable()) {
        let what = "the driver's device files";
        findings.unreadable(item_code::DEVICE_FILES_UNKNOWN, SUBJECT, what, why, source);
    } else if !files.is_empty() {
        let text = format!("all {} device files of the driver exist", files.len());
        findings.item(Verdict::Ok, item_code::DEVICE_FILES_PRESENT, SUBJECT, text, source);
    }
}

/// Whether a package is the metapackage that installs toolkit and driver: `cuda`, `cuda-12-8`.
fn is_cuda_metapackage(package: &Package) -> bool {
    let rest = package.name.strip_prefix("cuda");
    rest.is_some_and(|rest| {
        rest.is_empty()
            || rest.starts_with('-')
                && rest[1..].bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
    })
}

/// NVIDIA's guides advise against installing a production driver with the toolkit.
fn cuda_toolkit(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    let source = "/var/lib/dpkg/status; /var/log/cuda-installer.log; CUDA Installation Guide for \
                  Linux, Meta Packages; CUDA Compatibility";
    let observation = node.observation;
    let packages = observation.packages.dpkg.value().map_or(&[][..], Vec::as_slice);
    if let Some(package) = packages.iter().find(|package| is_cuda_metapackage(package)) {
        findings.item(
            Verdict::Caveat,
            item_code::DRIVER_FROM_CUDA_METAPACKAGE,
            SUBJECT,
            format!(
                "the package {} {} installs toolkit and driver together: an upgrade of the toolkit \
                 replaces the driver",
                package.name, package.version
            ),
            source,
        );
        findings.remedy(
            "for a driver that changes only on purpose",
            "install the toolkit with `cuda-toolkit`, and the driver with its own packages",
            Some(&format!("apt-get remove {}", package.name)),
        );
    }
    let is_run_file = observation.driver.run_file_install == Reading::Value(true);
    if is_run_file && observation.installation.cuda_run_file == Reading::Value(true) {
        findings.item(
            Verdict::Caveat,
            item_code::DRIVER_FROM_CUDA_RUN_FILE,
            SUBJECT,
            "the installer of the CUDA toolkit (.run) installed a driver: that driver is meant for \
             development, and no package manager knows it",
            source,
        );
        findings.remedy(
            "for a production driver",
            "uninstall the driver, and install NVIDIA's data-centre driver from packages",
            Some("nvidia-uninstall"),
        );
    }
}

/// A driver that a container installed must not be changed by the host's package manager.
fn owner(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    if node.observation.installation.driver_container != Reading::Value(true) {
        return;
    }
    let source = "/run/nvidia/driver; NVIDIA GPU Operator, GPU Driver Upgrades";
    let packages = node.observation.packages.dpkg.value().map_or(&[][..], Vec::as_slice);
    let own = packages.iter().find(|package| super::packages::is_driver(package));
    let text = "the driver belongs to a container (NVIDIA GPU Operator, /run/nvidia/driver)";
    let (verdict, code, text) = match own {
        Some(package) => (
            Verdict::Blocked,
            item_code::DRIVER_CONTAINER_CONFLICT,
            format!("{text}, but the host also has the package {}: one replaces the other", {
                &package.name
            }),
        ),
        None => (
            Verdict::Caveat,
            item_code::DRIVER_IN_CONTAINER,
            format!("{text}: the host's package manager must leave it alone"),
        ),
    };
    findings.item(verdict, code, SUBJECT, text, source);
    findings.remedy(
        "for a driver with one owner",
        "upgrade the driver through the GPU Operator only, and keep driver packages off the host",
        Some("kubectl get clusterpolicies.nvidia.com -o yaml"),
    );
}
