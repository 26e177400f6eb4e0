//! Will the driver load after the next boot?

use super::driver::remedy_one_driver_version;
use crate::check::{self, Module, Verdict};
use crate::gpu::Modules;
use crate::node::context::NodeContext;
use crate::node::item_code;
use crate::node::observation::{BootChoice, InstalledKernel, ModuleInfo};
use crate::node::reading::Reading;
use crate::node::report::NodeFindings;

const SOURCE: &str = "/lib/modules; /boot; /etc/default/grub";

pub(crate) fn evaluate(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    reboot_required(node, findings);
    let hidden = hidden_reason(node);
    if let Some(why) = hidden {
        let text = format!("the kernel modules on disk cannot be judged: {why}");
        findings.item(Verdict::Unknown, item_code::KERNEL_FILES_HIDDEN, "kernel", text, SOURCE);
        return;
    }
    running(node, findings);
    next(node, findings);
}

/// Why the files of the running kernel cannot be seen, for example in a container.
fn hidden_reason(node: &NodeContext<'_>) -> Option<String> {
    let kernels = &node.observation.kernels;
    if let Some(why) = kernels.running.why_unreadable().or(kernels.installed.why_unreadable()) {
        return Some(why.to_string());
    }
    let Some(running) = kernels.running.value() else {
        return Some("the running kernel is unknown".to_owned());
    };
    let nothing = kernels.installed.value().is_none_or(|kernels| {
        kernels.iter().all(|kernel| {
            kernel.module == Reading::Absent && kernel.bootable != Reading::Value(true)
        })
    });
    if node.inside_container() && nothing {
        return Some(format!(
            "this is a container without the host's /boot and /lib/modules/{running}; give the \
             host's root with --root"
        ));
    }
    None
}

/// The `.modinfo` of a kernel's module.
fn info(kernel: &InstalledKernel) -> Reading<&ModuleInfo> {
    kernel.module.as_ref().and_then(|module| module.info.as_ref())
}

fn running(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    let Some(kernel) = node.running_kernel() else { return };
    let subject = format!("kernel {} (running)", kernel.release);
    let release = &kernel.release;
    let (verdict, code, text) = match (info(kernel), node.loaded()) {
        (Reading::Value(info), loaded) => match (&info.version, loaded) {
            (Some(version), Some(loaded)) if version == loaded => (
                Verdict::Ok,
                item_code::MODULE_ON_DISK_EQUAL,
                format!("the module on disk is {version}, like the loaded one"),
            ),
            (Some(version), Some(loaded)) => (
                Verdict::Caveat,
                item_code::MODULE_ON_DISK_DIFFERS,
                format!(
                    "the module on disk is {version}, but {loaded} is loaded: the next load changes the driver"
                ),
            ),
            (Some(version), None) => {
                (Verdict::Ok, item_code::MODULE_ON_DISK, format!("the module on disk is {version}"))
            }
            (None, _) => (
                Verdict::Unknown,
                item_code::MODULE_ON_DISK_UNKNOWN,
                format!("the module on disk for {release} has no version"),
            ),
        },
        (Reading::Absent, Some(loaded)) => (
            Verdict::Caveat,
            item_code::MODULE_ON_DISK_MISSING,
            format!(
                "{loaded} is loaded, but {release} has no NVIDIA module on disk: it cannot be loaded again"
            ),
        ),
        (Reading::Absent, None) => (
            Verdict::Blocked,
            item_code::MODULE_ON_DISK_MISSING,
            format!("{release} has no NVIDIA module on disk"),
        ),
        (Reading::Unreadable(why), _) => (
            Verdict::Unknown,
            item_code::MODULE_ON_DISK_UNKNOWN,
            format!("the module on disk for {release} cannot be read: {why}"),
        ),
    };
    findings.item(verdict, code, subject, text, "/lib/modules/.../nvidia.ko, .modinfo");
    match code {
        item_code::MODULE_ON_DISK_DIFFERS => remedy_one_driver_version(findings),
        item_code::MODULE_ON_DISK_MISSING => findings.remedy(
            "for a driver that can be loaded again",
            "install the driver's modules for the running kernel",
            None,
        ),
        _ => {}
    }
    if let Reading::Value(info) = info(kernel)
        && let Some(magic) = &info.vermagic
        && magic.split(' ').next() != Some(release)
    {
        findings.item(
            Verdict::Blocked,
            item_code::MODULE_VERMAGIC,
            format!("kernel {release} (running)"),
            format!("the module on disk is built for {magic}: {release} refuses it"),
            "/lib/modules/.../nvidia.ko, .modinfo vermagic",
        );
    }
}

fn next(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    let kernels = &node.observation.kernels;
    let Some(installed) = kernels.installed.value() else { return };
    let maybe = |kernel: &&InstalledKernel| kernel.bootable != Reading::Value(false);
    let candidates: Vec<&InstalledKernel> = installed.iter().filter(maybe).collect();
    let Some(newest) = candidates.last() else {
        findings.item(
            Verdict::Unknown,
            item_code::NEXT_KERNEL_UNKNOWN,
            "next boot",
            "found no kernel that can be booted",
            SOURCE,
        );
        return;
    };
    let (chosen, doubt) = match &kernels.boot_choice {
        BootChoice::Newest => (Some(*newest), None),
        BootChoice::Named(name) => {
            // Debian's menu appends words to the release: `6.8.0-60-generic-advanced-…`.
            let matches_name = |kernel: &&&InstalledKernel| {
                let rest = name.strip_prefix(&kernel.release);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
            };
            let longest = |kernel: &&&InstalledKernel| kernel.release.len();
            let named = candidates.iter().filter(matches_name).max_by_key(longest).copied();
            (named, Some(format!("the boot loader names {name}, which is not installed")))
        }
        BootChoice::Unknown(why) => (None, Some(why.clone())),
    };
    match chosen {
        Some(kernel) => {
            evaluate_next_module(node, kernel, findings);
            evaluate_next_load(node, kernel, findings);
        }
        // If all kernels have the module, it does not matter which one boots.
        None if candidates.iter().all(|kernel| ready(node, kernel)) => findings.item(
            Verdict::Ok,
            item_code::NEXT_KERNEL_READY,
            "next boot",
            format!("every installed kernel has the module; the newest is {}", newest.release),
            SOURCE,
        ),
        None => {
            let without: Vec<&str> = candidates
                .iter()
                .filter(|kernel| !ready(node, kernel))
                .map(|kernel| kernel.release.as_str())
                .collect();
            findings.item(
                Verdict::Unknown,
                item_code::NEXT_KERNEL_UNKNOWN,
                "next boot",
                format!(
                    "cannot tell which kernel boots next ({}); kernels without a matching module: {}",
                    doubt.unwrap_or_default(),
                    without.join(", ")
                ),
                SOURCE,
            );
        }
    }
}

fn ready(node: &NodeContext<'_>, kernel: &InstalledKernel) -> bool {
    let Some(module) = info(kernel).value().and_then(|info| info.version.as_deref()) else {
        return false;
    };
    node.user_space().is_none_or(|library| library == module)
}

fn evaluate_next_module(
    node: &NodeContext<'_>,
    kernel: &InstalledKernel,
    findings: &mut NodeFindings,
) {
    let release = &kernel.release;
    let subject = format!("kernel {release} (next boot)");
    let mut item = |verdict, code, text: String| {
        findings.item(verdict, code, subject.clone(), text, SOURCE);
    };
    match info(kernel) {
        Reading::Value(info) => match (info.version.as_deref(), node.user_space()) {
            (Some(module), Some(library)) if module != library => {
                item(
                    Verdict::Blocked,
                    item_code::NEXT_BOOT_MISMATCH,
                    format!(
                        "after the next boot the module is {module} and the user space {library}: no CUDA program will start"
                    ),
                );
                findings.remedy(
                    "for the next boot",
                    "install module and libraries of one version before the next boot",
                    None,
                );
            }
            (Some(module), _) => item(
                Verdict::Ok,
                item_code::NEXT_KERNEL_READY,
                format!("{release} boots next and has module {module}"),
            ),
            (None, _) => item(
                Verdict::Unknown,
                item_code::NEXT_KERNEL_UNKNOWN,
                format!("the module for {release}, which boots next, has no version"),
            ),
        },
        Reading::Absent => {
            item(
                Verdict::Blocked,
                item_code::NEXT_KERNEL_WITHOUT_MODULE,
                format!("{release} boots next and has no NVIDIA module: a reboot loses the GPUs"),
            );
            let headers = kernel.headers == Reading::Value(true);
            let built = node.observation.dkms.value().is_some_and(|trees| !trees.is_empty());
            let (text, command) = if built {
                let install = format!("dkms autoinstall -k {release}");
                let full = if headers {
                    install
                } else {
                    format!("apt-get install linux-headers-{release} && {install}")
                };
                ("build the module for the kernel that boots next", Some(full))
            } else {
                (
                    "install the driver's modules for the kernel that boots next, or boot the running one",
                    None,
                )
            };
            findings.remedy("for the next boot", text, command.as_deref());
        }
        Reading::Unreadable(why) => item(
            Verdict::Unknown,
            item_code::NEXT_KERNEL_UNKNOWN,
            format!("the module for {release}, which boots next, cannot be read: {why}"),
        ),
    }
}

/// Checks the module of the kernel that boots next. The open module needs GSP firmware of its
/// version. If the next boot switches between the open and the proprietary module, the GPUs must
/// support the new one.
fn evaluate_next_load(
    node: &NodeContext<'_>,
    kernel: &InstalledKernel,
    findings: &mut NodeFindings,
) {
    let Reading::Value(info) = info(kernel) else { return };
    let subject = format!("kernel {} (next boot)", kernel.release);
    let Some(version) = info.version.as_deref() else { return };
    let open = info.license.as_deref().is_some_and(|license| license != "NVIDIA");
    match &node.observation.driver.firmware {
        // Only the open module requires GSP firmware; the proprietary one also supports GPUs
        // without a GSP.
        Reading::Value(versions) if open && !versions.iter().any(|known| known == version) => findings.item(
            Verdict::Blocked,
            item_code::GSP_FIRMWARE_MISSING,
            subject.clone(),
            format!("the open module {version} finds no GSP firmware of its version: the GPUs will not start"),
            "/lib/firmware/nvidia",
        ),
        Reading::Unreadable(why) if open => findings.item(
            Verdict::Unknown,
            item_code::GSP_FIRMWARE_UNKNOWN,
            subject.clone(),
            format!("the GSP firmware on disk cannot be listed: {why}"),
            "/lib/firmware/nvidia",
        ),
        Reading::Value(_) | Reading::Absent | Reading::Unreadable(_) => {}
    }
    let flavour = if open { Module::Open } else { Module::Proprietary };
    if node.flavour().is_some_and(|loaded| loaded != flavour) && info.license.is_some() {
        let (now, then) = if open { ("proprietary", "open") } else { ("open", "proprietary") };
        let refused = !open
            && node
                .models()
                .iter()
                .filter_map(|model| model.gpu)
                .any(|gpu| check::modules_of(node.set, gpu) == Modules::Open);
        let (verdict, end) = if refused {
            (Verdict::Blocked, ", which does not support these GPUs")
        } else {
            (Verdict::Caveat, "")
        };
        findings.item(
            verdict,
            item_code::NEXT_BOOT_FLAVOUR,
            subject,
            format!("the {now} module is loaded, but the one on disk is {then}{end}"),
            "/lib/modules/.../nvidia.ko, .modinfo license",
        );
    }
}

fn reboot_required(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    let source = "/run/reboot-required";
    match &node.observation.kernels.reboot_required {
        Reading::Value(packages) => {
            let by = if packages.is_empty() {
                String::new()
            } else {
                format!(" by {}", packages.join(", "))
            };
            let text = format!("a reboot is required{by}");
            findings.item(Verdict::Caveat, item_code::REBOOT_REQUIRED, "node", text, source);
            findings.remedy(
                "for installed updates to take effect",
                "drain the node and reboot it",
                None,
            );
        }
        Reading::Absent => {}
        Reading::Unreadable(why) => {
            let text = format!("cannot read whether a reboot is required: {why}");
            findings.item(
                Verdict::Unknown,
                item_code::REBOOT_REQUIRED_UNKNOWN,
                "node",
                text,
                source,
            );
        }
    }
}
