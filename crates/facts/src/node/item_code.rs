//! The codes of items, and how the agent handles each item. A rule can only use a code from this
//! table, so that the handling of every item is defined.

/// The code of an item, with its handling by the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ItemCode {
    pub(crate) name: &'static str,
    pub(crate) monitoring: Monitoring,
}

/// How the agent handles an item with a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Monitoring {
    pub area: Area,
    pub severity: CaveatSeverity,
    /// Whether a caveat makes the node unfit for service, although it works.
    pub is_unfit: bool,
    /// Whether the state may last less than a second, so that one reading is not enough.
    pub is_momentary: bool,
    /// Whether the item depends on whether NVML answers or the driver is loaded. Rules watch both
    /// every few seconds, so the agent does not report the item.
    pub is_left_to_rules: bool,
    /// Health rules that report the same problem, usually sooner and for each GPU. While such a
    /// rule has a finding that is at least as severe, the item is not reported again.
    pub reported_by: &'static [&'static str],
}

/// What an item is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Area {
    /// Driver, kernel, packages and host: verification level V0.
    Node,
    /// The GPUs: verification level V1.
    Gpus,
    /// Python, frameworks and CUDA, which jobs provide themselves. The agent does not check them.
    Job,
}

/// The severity of a finding for a caveat. A blocked item is critical.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaveatSeverity {
    Info,
    /// The problem gets worse without action.
    Warning,
    /// A version mismatch that is harmless now, or that takes effect at the next boot or module
    /// load. The finding is a warning even if the item is blocked, and it makes the node unfit for
    /// service.
    Coherence,
}

const NODE: Monitoring = Monitoring {
    area: Area::Node,
    severity: CaveatSeverity::Info,
    is_unfit: false,
    is_momentary: false,
    is_left_to_rules: false,
    reported_by: &[],
};
const GPU: Monitoring = Monitoring { area: Area::Gpus, ..NODE };
const JOB: Monitoring = Monitoring { area: Area::Job, ..NODE };

impl Monitoring {
    const fn warning(self) -> Self {
        Self { severity: CaveatSeverity::Warning, ..self }
    }

    const fn coherence(self) -> Self {
        Self { severity: CaveatSeverity::Coherence, is_unfit: true, ..self }
    }

    const fn unfit(self) -> Self {
        Self { is_unfit: true, ..self }
    }

    const fn momentary(self) -> Self {
        Self { is_momentary: true, ..self }
    }

    const fn left_to_rules(self) -> Self {
        Self { is_left_to_rules: true, ..self }
    }

    const fn reported_by(self, rules: &'static [&'static str]) -> Self {
        Self { reported_by: rules, ..self }
    }
}

impl ItemCode {
    /// The code of a reason of a compatibility rule. Such a reason is about versions, which do not
    /// change while a rule watches.
    pub(crate) fn of_reason(name: &'static str) -> Self {
        let starts_with =
            |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
        let monitoring = if starts_with(&["framework-", "cuda-"]) {
            JOB
        } else if starts_with(&["gpu-", "mig-"]) {
            GPU
        } else {
            NODE
        };
        Self { name, monitoring }
    }
}

macro_rules! item_codes {
    ($($code:ident = $name:literal: $monitoring:expr;)*) => {
        $(
            pub(crate) const $code: ItemCode = ItemCode { name: $name, monitoring: $monitoring };
        )*

        /// How the agent handles each item of the node rules, by code.
        pub const ITEMS: &[(&str, Monitoring)] = &[$(($name, $monitoring)),*];
    };
}

item_codes! {
    // rules/cdmm.rs
    CDMM_OFF = "cdmm-off": NODE;
    CDMM_ON = "cdmm-on": NODE;
    CDMM_UNKNOWN = "cdmm-unknown": NODE;
    CDMM_UNSUPPORTED = "cdmm-unsupported": NODE;
    // rules/compliance.rs
    IMAGE_POLICY = "image-policy": NODE;
    TPM_ABSENT = "tpm-absent": NODE;
    TPM_PRESENT = "tpm-present": NODE;
    VOLUMES_ENCRYPTED = "volumes-encrypted": NODE;
    VOLUMES_PLAIN = "volumes-plain": NODE;
    // rules/containers.rs
    CDI_CURRENT = "cdi-current": NODE;
    CDI_STALE = "cdi-stale": NODE.coherence();
    CDI_UNKNOWN = "cdi-unknown": NODE;
    CONTAINER_RUNTIME_CONFIGURED = "container-runtime-configured": NODE;
    CONTAINER_RUNTIME_NONE = "container-runtime-none": NODE;
    CONTAINER_RUNTIME_UNCONFIGURED = "container-runtime-unconfigured": NODE;
    CONTAINER_RUNTIME_UNKNOWN = "container-runtime-unknown": NODE;
    CONTAINER_RUNTIME_UNREAD = "container-runtime-unread": NODE;
    CONTAINER_TOOLKIT_EXPOSED = "container-toolkit-exposed": NODE;
    CONTAINER_TOOLKIT_FIXED = "container-toolkit-fixed": NODE;
    CONTAINER_TOOLKIT_MISSING = "container-toolkit-missing": NODE;
    CONTAINER_TOOLKIT_PRESENT = "container-toolkit-present": NODE;
    CONTAINER_TOOLKIT_UNKNOWN = "container-toolkit-unknown": NODE;
    CONTAINER_TOOLKIT_VERSION_UNKNOWN = "container-toolkit-version-unknown": NODE;
    // rules/dkms.rs
    DKMS_BUILT = "dkms-built": NODE;
    DKMS_DIFFERS = "dkms-differs": NODE.coherence();
    DKMS_NOT_BUILT = "dkms-not-built": NODE.coherence();
    DKMS_SEVERAL = "dkms-several": NODE;
    DKMS_UNKNOWN = "dkms-unknown": NODE;
    // rules/driver.rs
    DRIVER_LIBRARY_EQUAL = "driver-library-equal": NODE;
    DRIVER_LIBRARY_MISMATCH = "driver-library-mismatch": NODE;
    GSP_FIRMWARE_DIFFERS = "gsp-firmware-differs": NODE;
    LIBRARY_MISSING = "library-missing": NODE;
    LIBRARY_STRAY = "library-stray": NODE.coherence();
    LIBRARY_UNKNOWN = "library-unknown": NODE;
    MODULE_LOADED = "module-loaded": NODE;
    MODULE_LOADED_UNKNOWN = "module-loaded-unknown": NODE;
    MODULE_NOT_LOADED = "module-not-loaded": NODE.left_to_rules();
    NOUVEAU_ABSENT = "nouveau-absent": NODE;
    NOUVEAU_LOADED = "nouveau-loaded": NODE;
    NOUVEAU_UNKNOWN = "nouveau-unknown": NODE;
    // rules/fabric.rs
    FABRIC_JOINED = "fabric-joined": NODE;
    FABRIC_MANAGER_AHEAD = "fabric-manager-ahead": NODE;
    FABRIC_MANAGER_MISSING = "fabric-manager-missing": NODE;
    FABRIC_MANAGER_NOT_ENABLED = "fabric-manager-not-enabled": NODE.coherence();
    FABRIC_MANAGER_NOT_RUNNING = "fabric-manager-not-running": NODE;
    FABRIC_MANAGER_RUNNING = "fabric-manager-running": NODE;
    FABRIC_MANAGER_RUNNING_UNKNOWN = "fabric-manager-running-unknown": NODE;
    FABRIC_MANAGER_VERSION_UNKNOWN = "fabric-manager-version-unknown": NODE;
    FABRIC_NOT_JOINED = "fabric-not-joined": NODE.reported_by(&["gpu.fabric-not-ready", "gpu.fabric-failed"]);
    FABRIC_UNKNOWN = "fabric-unknown": NODE;
    // rules/frameworks.rs
    FRAMEWORK_NONE = "framework-none": JOB;
    FRAMEWORK_NOT_IN_DATA = "framework-not-in-data": JOB;
    FRAMEWORK_PARTS_DIFFER = "framework-parts-differ": JOB;
    PYTHON_ABSENT = "python-absent": JOB;
    PYTHON_UNKNOWN = "python-unknown": JOB;
    // rules/gpus.rs
    GPU_COUNT = "gpu-count": GPU.unfit().left_to_rules();
    GPU_GIVEN_AWAY = "gpu-given-away": GPU;
    GPU_KNOWN = "gpu-known": GPU;
    GPU_MODELS_MIXED = "gpu-models-mixed": GPU.unfit();
    GPU_UNKNOWN = "gpu-unknown": GPU;
    GPU_UNREACHABLE = "gpu-unreachable": GPU.reported_by(&["gpu.lost", "gpu.reset-required", "gpu.unreadable", "node.gpus-unseen"]);
    GPUS_UNREAD = "gpus-unread": GPU;
    NO_NVIDIA_GPU = "no-nvidia-gpu": NODE;
    NVML_ANSWERS = "nvml-answers": GPU;
    NVML_HUNG = "nvml-hung": GPU;
    NVML_MISMATCH = "nvml-mismatch": GPU.reported_by(&["driver.nvml-silent"]);
    NVML_REFUSED = "nvml-refused": GPU;
    NVML_SILENT = "nvml-silent": GPU.left_to_rules();
    VBIOS_MIXED = "vbios-mixed": NODE;
    // rules/health.rs
    ACS_OFF = "acs-off": NODE;
    ACS_ON = "acs-on": NODE;
    ACS_UNKNOWN = "acs-unknown": NODE;
    CLOCKS_FREE = "clocks-free": NODE;
    CLOCKS_UNKNOWN = "clocks-unknown": NODE;
    ECC_ERRORS_NONE = "ecc-errors-none": GPU;
    ECC_ERRORS_UNKNOWN = "ecc-errors-unknown": GPU;
    ECC_UNCORRECTED = "ecc-uncorrected": GPU.reported_by(&["gpu.ecc-uncorrected"]);
    HARDWARE_SLOWDOWN = "hardware-slowdown": NODE.reported_by(&["gpu.slowdown-thermal", "gpu.slowdown-power-brake", "gpu.slowdown-hardware"]).momentary();
    NVLINK_DOWN = "nvlink-down": GPU.reported_by(&["link.down"]);
    NVLINKS_UNKNOWN = "nvlinks-unknown": NODE;
    NVLINKS_UP = "nvlinks-up": NODE;
    PCIE_NARROW = "pcie-narrow": NODE.reported_by(&["gpu.pcie-narrow", "gpu.pcie-below-peers"]);
    PCIE_SLOW = "pcie-slow": NODE.reported_by(&["gpu.pcie-slow"]).momentary();
    PCIE_UNKNOWN = "pcie-unknown": NODE;
    PCIE_WIDE = "pcie-wide": NODE;
    PORT_DOWN = "port-down": NODE;
    PORT_NOT_UP = "port-not-up": NODE;
    PORT_UNKNOWN = "port-unknown": NODE;
    PORTS_UP = "ports-up": NODE;
    XID_CRITICAL = "xid-critical": NODE;
    XID_RECOVERED = "xid-recovered": NODE;
    XID_SEEN = "xid-seen": NODE;
    XIDS_NONE = "xids-none": NODE;
    // rules/host.rs
    CLOCK_SYNCHRONISED = "clock-synchronised": NODE;
    CLOCK_UNKNOWN = "clock-unknown": NODE;
    CLOCK_UNSYNCHRONISED = "clock-unsynchronised": NODE.warning();
    DISK_FULL = "disk-full": NODE;
    DISK_NEARLY_FULL = "disk-nearly-full": NODE.warning();
    DISKS_FREE = "disks-free": NODE;
    DISKS_UNKNOWN = "disks-unknown": NODE;
    FILE_SYSTEM_READ_ONLY = "file-system-read-only": NODE.reported_by(&["host.read-only"]);
    GPUDIRECT_RDMA = "gpudirect-rdma": GPU;
    GPUDIRECT_RDMA_MISSING = "gpudirect-rdma-missing": GPU;
    GPUDIRECT_RDMA_UNKNOWN = "gpudirect-rdma-unknown": GPU;
    IMEX_NODES_MISSING = "imex-nodes-missing": NODE;
    IMEX_NODES_UNKNOWN = "imex-nodes-unknown": NODE;
    IMEX_NOT_RUNNING = "imex-not-running": NODE;
    IOMMU_PASSES = "iommu-passes": NODE;
    IOMMU_TRANSLATES = "iommu-translates": NODE;
    IOMMU_UNKNOWN = "iommu-unknown": NODE;
    // rules/installation.rs
    DEVICE_FILE_MISSING = "device-file-missing": NODE;
    DEVICE_FILES_PRESENT = "device-files-present": NODE;
    DEVICE_FILES_UNKNOWN = "device-files-unknown": NODE;
    DRIVER_CONTAINER_CONFLICT = "driver-container-conflict": NODE;
    DRIVER_FROM_CUDA_METAPACKAGE = "driver-from-cuda-metapackage": NODE;
    DRIVER_FROM_CUDA_RUN_FILE = "driver-from-cuda-run-file": NODE;
    DRIVER_IN_CONTAINER = "driver-in-container": NODE;
    GSP_FIRMWARE_MISSING = "gsp-firmware-missing": NODE;
    GSP_FIRMWARE_PRESENT = "gsp-firmware-present": NODE;
    GSP_FIRMWARE_UNKNOWN = "gsp-firmware-unknown": NODE;
    MODULE_LOAD_DISABLED = "module-load-disabled": NODE.coherence();
    MODULE_LOAD_UNKNOWN = "module-load-unknown": NODE;
    UVM_DIFFERS = "uvm-differs": NODE;
    UVM_LOADED = "uvm-loaded": NODE;
    UVM_MISSING = "uvm-missing": NODE;
    UVM_NEXT_BOOT_DIFFERS = "uvm-next-boot-differs": NODE.coherence();
    UVM_NOT_LOADED = "uvm-not-loaded": NODE.reported_by(&["driver.not-loaded"]);
    UVM_ON_DEMAND = "uvm-on-demand": NODE;
    UVM_ON_DISK_DIFFERS = "uvm-on-disk-differs": NODE;
    UVM_UNKNOWN = "uvm-unknown": NODE;
    // rules/kernels.rs
    KERNEL_FILES_HIDDEN = "kernel-files-hidden": NODE;
    MODULE_ON_DISK = "module-on-disk": NODE;
    MODULE_ON_DISK_DIFFERS = "module-on-disk-differs": NODE.coherence();
    MODULE_ON_DISK_EQUAL = "module-on-disk-equal": NODE;
    MODULE_ON_DISK_MISSING = "module-on-disk-missing": NODE.coherence();
    MODULE_ON_DISK_UNKNOWN = "module-on-disk-unknown": NODE;
    MODULE_VERMAGIC = "module-vermagic": NODE;
    NEXT_BOOT_FLAVOUR = "next-boot-flavour": NODE;
    NEXT_BOOT_MISMATCH = "next-boot-mismatch": NODE.coherence();
    NEXT_KERNEL_READY = "next-kernel-ready": NODE;
    NEXT_KERNEL_UNKNOWN = "next-kernel-unknown": NODE;
    NEXT_KERNEL_WITHOUT_MODULE = "next-kernel-without-module": NODE.coherence();
    REBOOT_REQUIRED = "reboot-required": NODE.coherence();
    REBOOT_REQUIRED_UNKNOWN = "reboot-required-unknown": NODE;
    // rules/packages.rs
    PACKAGES_BROKEN = "packages-broken": NODE;
    PACKAGES_HELD = "packages-held": NODE;
    PACKAGES_HELD_UNKNOWN = "packages-held-unknown": NODE;
    PACKAGES_HIDDEN = "packages-hidden": NODE;
    PACKAGES_NONE = "packages-none": NODE;
    PACKAGES_NOT_HELD = "packages-not-held": NODE;
    PACKAGES_PINNED = "packages-pinned": NODE;
    PACKAGES_RPM = "packages-rpm": NODE;
    PACKAGES_UNKNOWN = "packages-unknown": NODE;
    PACKAGES_VERSION_DIFFERS = "packages-version-differs": NODE.coherence();
    PACKAGES_VERSION_EQUAL = "packages-version-equal": NODE;
    PACKAGES_VERSIONS_MIXED = "packages-versions-mixed": NODE.coherence();
    RUN_FILE_INSTALL = "run-file-install": NODE;
    // rules/platform.rs
    DRIVER_NOT_IN_DATA = "driver-not-in-data": NODE;
    MODULE_FLAVOUR_UNKNOWN = "module-flavour-unknown": NODE;
    // rules/secure_boot.rs
    MODULE_SIGNATURE_UNKNOWN = "module-signature-unknown": NODE;
    MODULE_SIGNED = "module-signed": NODE;
    MODULE_SIGNED_UNPROVEN = "module-signed-unproven": NODE;
    MODULE_UNSIGNED = "module-unsigned": NODE;
    SECURE_BOOT_OFF = "secure-boot-off": NODE;
    SECURE_BOOT_UNKNOWN = "secure-boot-unknown": NODE;
    // rules/settings.rs
    APPLICATION_CLOCKS_DEFAULT = "application-clocks-default": NODE;
    APPLICATION_CLOCKS_LOWERED = "application-clocks-lowered": NODE;
    APPLICATION_CLOCKS_UNKNOWN = "application-clocks-unknown": NODE;
    COMPUTE_MODE_DEFAULT = "compute-mode-default": GPU;
    COMPUTE_MODE_EXCLUSIVE = "compute-mode-exclusive": GPU;
    COMPUTE_MODE_PROHIBITED = "compute-mode-prohibited": GPU;
    COMPUTE_MODE_UNKNOWN = "compute-mode-unknown": GPU;
    ECC_OFF = "ecc-off": GPU.reported_by(&["gpu.ecc-off"]);
    ECC_ON = "ecc-on": GPU;
    ECC_PENDING = "ecc-pending": GPU.unfit();
    ECC_UNKNOWN = "ecc-unknown": GPU;
    INFOROM_INVALID = "inforom-invalid": NODE;
    INFOROM_UNKNOWN = "inforom-unknown": NODE;
    INFOROM_VALID = "inforom-valid": NODE;
    MIG_OFF = "mig-off": GPU;
    MIG_ON = "mig-on": GPU;
    MIG_PENDING = "mig-pending": GPU.unfit();
    MIG_UNKNOWN = "mig-unknown": GPU;
    NVLINK_DISABLED = "nvlink-disabled": GPU;
    PERSISTENCE_OFF = "persistence-off": GPU.reported_by(&["gpu.persistence-off"]);
    PERSISTENCE_ON = "persistence-on": GPU;
    PERSISTENCE_UNKNOWN = "persistence-unknown": GPU;
    PERSISTENCED_NOT_ENABLED = "persistenced-not-enabled": GPU;
    POWER_LIMIT_DEFAULT = "power-limit-default": GPU;
    POWER_LIMIT_LOWERED = "power-limit-lowered": GPU.reported_by(&["gpu.power-limit-low"]);
    POWER_LIMIT_OUTSIDE = "power-limit-outside": GPU.unfit();
    POWER_LIMIT_RAISED = "power-limit-raised": GPU;
    POWER_LIMIT_UNKNOWN = "power-limit-unknown": GPU;
    RECOVERY_NEEDED = "recovery-needed": GPU.reported_by(&["gpu.recovery-reset", "gpu.recovery-reboot", "gpu.recovery-drain-and-reset", "gpu.recovery-other"]);
    RECOVERY_NONE = "recovery-none": GPU;
    RECOVERY_UNKNOWN = "recovery-unknown": GPU;
    ROW_REMAP_CLEAN = "row-remap-clean": GPU;
    ROW_REMAP_FAILED = "row-remap-failed": GPU.reported_by(&["gpu.rows-failed"]);
    ROW_REMAP_PENDING = "row-remap-pending": GPU.reported_by(&["gpu.rows-pending"]).unfit();
    ROW_REMAP_UNKNOWN = "row-remap-unknown": GPU;
    SETTINGS_UNKNOWN = "settings-unknown": GPU.left_to_rules();
    // rules/upgrades.rs
    UNATTENDED_UPGRADES_ABSENT = "unattended-upgrades-absent": NODE;
    UNATTENDED_UPGRADES_KEPT_OUT = "unattended-upgrades-kept-out": NODE;
    UNATTENDED_UPGRADES_MAY_REPLACE = "unattended-upgrades-may-replace": NODE;
    UNATTENDED_UPGRADES_OFF = "unattended-upgrades-off": NODE;
    UNATTENDED_UPGRADES_UNKNOWN = "unattended-upgrades-unknown": NODE;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_code_has_one_row() {
        let names: BTreeSet<&str> = ITEMS.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), ITEMS.len());
    }
}
