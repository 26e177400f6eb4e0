//! The role of a package by its name, in the repositories of Debian, Ubuntu, RHEL and NVIDIA.

use crate::manifest::{ModuleFlavour, PackageRole};

/// Packages with version numbers of their own.
const INDEPENDENT: [&str; 18] = [
    "glx-alternative",
    "glx-diversions",
    "libnvidia-egl-gbm",
    "libnvidia-egl-wayland",
    "libnvidia-egl-xcb",
    "libnvidia-egl-xlib",
    "libxnvctrl",
    "nvidia-driver-assistant",
    "nvidia-driver-pinning",
    "nvidia-fs",
    "nvidia-installer-cleanup",
    "nvidia-kernel-common",
    "nvidia-modprobe",
    "nvidia-prime",
    "nvidia-settings",
    "nvidia-support",
    "nvidia-xconfig",
    "update-glx",
];

/// Beginnings of the names of libraries and programs that need the driver's version.
const USER_SPACE: [&str; 15] = [
    "cuda-drivers",
    "libcuda1",
    "libegl-nvidia",
    "libegl1-nvidia",
    "libgl1-nvidia",
    "libgles-nvidia",
    "libglx-nvidia",
    "libnvcuvid",
    "libnvidia-",
    "libnvoptix",
    "nvidia-",
    "xorg-x11-nvidia",
    "xserver-xorg-video-nvidia",
    "libcudadebugger",
    "libnvidia",
];

const CONTAINER_TOOLKIT: [&str; 3] =
    ["libnvidia-container", "nvidia-container-toolkit", "nvidia-container-runtime"];

/// Beginnings of the names of packages that have kernel modules for one kernel.
const PREBUILT: [&str; 4] =
    ["linux-modules-nvidia-", "linux-objects-nvidia-", "linux-signatures-nvidia-", "kmod-nvidia-"];

/// The role of a package.
pub fn role_of(name: &str) -> PackageRole {
    let starts = |list: &[&str]| list.iter().any(|start| name.starts_with(start));
    if starts(&CONTAINER_TOOLKIT) {
        PackageRole::ContainerToolkit
    } else if name.contains("persistenced") {
        PackageRole::Persistenced
    } else if starts(&INDEPENDENT) {
        PackageRole::Other
    } else if name.contains("fabricmanager") || name.contains("fabric-manager") {
        PackageRole::FabricManager
    } else if name.contains("nvidia-nscq") {
        PackageRole::Nscq
    } else if name.contains("nvsdm") {
        PackageRole::Nvsdm
    } else if name.contains("nvidia-imex") {
        PackageRole::Imex
    } else if is_firmware(name) {
        PackageRole::Firmware
    } else if is_module_source(name) {
        PackageRole::KernelModuleSource
    } else if starts(&PREBUILT) {
        PackageRole::PrebuiltModule
    } else if starts(&USER_SPACE) {
        PackageRole::UserSpace
    } else {
        PackageRole::Other
    }
}

/// `firmware-nvidia-graphics` is for another driver, Nouveau.
fn is_firmware(name: &str) -> bool {
    name.starts_with("firmware-nvidia-") && name.ends_with("gsp")
        || name.starts_with("nvidia-firmware")
        || name.starts_with("nvidia-driver-firmware")
}

fn is_module_source(name: &str) -> bool {
    name.contains("nvidia")
        && (name.ends_with("-dkms")
            || name.contains("-dkms-")
            || name.contains("nvidia-kernel-source")
            || name.contains("kernel-source") && name.contains("-open-"))
}

/// Whether a package is part of the driver, in contrast to the operating system.
pub fn is_driver_package(name: &str) -> bool {
    role_of(name) != PackageRole::Other
        || name.contains("nvidia")
        || INDEPENDENT.iter().any(|start| name.starts_with(start))
        || name.starts_with("nvlsm")
}

/// The flavour of the modules in a package with modules or their source.
pub fn flavour_of(name: &str) -> ModuleFlavour {
    if name.split('-').any(|part| part == "open") {
        ModuleFlavour::Open
    } else {
        ModuleFlavour::Proprietary
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_repositories_have_their_role() {
        use PackageRole::*;
        for (role, names) in [
            (
                KernelModuleSource,
                "nvidia-kernel-dkms nvidia-open-kernel-dkms nvidia-tesla-470-kernel-dkms \
                 nvidia-dkms-580-server-open nvidia-kernel-source-580-open kmod-nvidia-open-dkms \
                 kmod-nvidia-latest-dkms",
            ),
            (
                PrebuiltModule,
                "linux-modules-nvidia-580-server-open-6.8.0-60-generic kmod-nvidia-580.95.05-5.14.0-503",
            ),
            (
                UserSpace,
                "libcuda1 nvidia-smi libnvidia-ml1 nvidia-alternative nvidia-driver cuda-drivers-580 \
                 nvidia-kernel-support nvidia-legacy-check libnvidia-compute-580-server nvidia-utils-580",
            ),
            (
                Firmware,
                "firmware-nvidia-gsp nvidia-firmware-580-580.95.05 firmware-nvidia-tesla-535-gsp",
            ),
            (FabricManager, "nvidia-fabricmanager-580 nvidia-fabric-manager nvidia-fabricmanager"),
            (Nscq, "libnvidia-nscq-580 libnvidia-nscq"),
            (Nvsdm, "libnvsdm-580 libnvsdm"),
            (Imex, "nvidia-imex-580 nvidia-imex"),
            (Persistenced, "nvidia-persistenced"),
            (
                ContainerToolkit,
                "nvidia-container-toolkit libnvidia-container1 nvidia-container-toolkit-base",
            ),
            (
                Other,
                "nvidia-modprobe nvidia-settings nvidia-support glx-alternative-nvidia nvidia-fs-dkms libc6 dkms gcc firmware-nvidia-graphics nvidia-kernel-common",
            ),
        ] {
            for name in names.split_whitespace() {
                assert_eq!(role_of(name), role, "{name}");
            }
        }
        assert!(is_driver_package("nvidia-modprobe") && is_driver_package("glx-diversions"));
        assert!(!is_driver_package("libc6") && !is_driver_package("dkms"));
    }

    #[test]
    fn open_modules_have_open_in_the_name() {
        assert_eq!(flavour_of("nvidia-open-kernel-dkms"), ModuleFlavour::Open);
        assert_eq!(flavour_of("nvidia-dkms-580-server-open"), ModuleFlavour::Open);
        assert_eq!(flavour_of("nvidia-kernel-dkms"), ModuleFlavour::Proprietary);
        assert_eq!(flavour_of("kmod-nvidia-openssl-dkms"), ModuleFlavour::Proprietary);
    }
}
