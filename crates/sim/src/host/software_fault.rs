//! Faults of installed software and of settings, which only the node's files show.

use serde::{Deserialize, Serialize};

/// A fault of software or settings. It stays until `clear`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SoftwareFault {
    /// The GSP firmware of the driver is not on disk.
    GspFirmwareMissing,
    /// A file in `/etc/modprobe.d` keeps the driver from loading.
    ModuleLoadDisabled,
    /// nvidia-uvm is neither loaded nor on disk.
    UvmMissing,
    /// nvidia-uvm is not loaded.
    UvmNotLoaded,
    /// nvidia-uvm on disk has another version.
    UvmOnDiskDiffers,
    /// `/dev/nvidiaN` of the last GPU is missing.
    DeviceFileMissing,
    /// `/dev/nvidia-uvm` is missing.
    UvmDeviceMissing,
    /// The metapackage `cuda` is installed.
    CudaMetapackage,
    /// The installer of the CUDA toolkit installed the driver.
    CudaRunFile,
    /// A container of the GPU Operator provides the driver.
    DriverContainer,
    /// `/scratch` is full.
    DiskFull,
    /// `/` is nearly full.
    DiskNearlyFull,
    /// No time service keeps the clock.
    ClockUnsynchronised,
    /// Neither nvidia-peermem nor DMA-BUF is available.
    GpudirectRdmaMissing,
    /// The IOMMU translates the GPUs' addresses.
    IommuTranslates,
    /// No container runtime is configured for GPUs.
    RuntimeUnconfigured,
    /// Fabric manager has ended.
    FabricManagerStopped,
    /// Fabric manager has another version than the driver.
    FabricManagerDiffers,
    /// nvidia-imex has ended.
    ImexStopped,
    /// The list of nodes of the IMEX domain is missing.
    ImexNodesMissing,
}

impl SoftwareFault {
    /// All faults, with the names that the command line uses and a description.
    pub const ALL: [(Self, &'static str, &'static str); 20] = [
        (Self::GspFirmwareMissing, "gsp-firmware-missing", "the GSP firmware is missing"),
        (Self::ModuleLoadDisabled, "module-load-disabled", "modprobe.d disables the driver"),
        (Self::UvmMissing, "uvm-missing", "nvidia-uvm is missing"),
        (Self::UvmNotLoaded, "uvm-not-loaded", "nvidia-uvm is not loaded"),
        (Self::UvmOnDiskDiffers, "uvm-on-disk-differs", "nvidia-uvm on disk has another version"),
        (Self::DeviceFileMissing, "device-file-missing", "a device file of a GPU is missing"),
        (Self::UvmDeviceMissing, "uvm-device-missing", "/dev/nvidia-uvm is missing"),
        (Self::CudaMetapackage, "cuda-metapackage", "the package cuda is installed"),
        (Self::CudaRunFile, "cuda-run-file", "the CUDA toolkit's .run file installed the driver"),
        (Self::DriverContainer, "driver-container", "a container provides the driver"),
        (Self::DiskFull, "disk-full", "/scratch is full"),
        (Self::DiskNearlyFull, "disk-nearly-full", "/ is nearly full"),
        (Self::ClockUnsynchronised, "clock-unsynchronised", "the clock is not synchronised"),
        (Self::GpudirectRdmaMissing, "gpudirect-rdma-missing", "GPUDirect RDMA is not available"),
        (Self::IommuTranslates, "iommu-translates", "the IOMMU translates the GPUs' addresses"),
        (Self::RuntimeUnconfigured, "runtime-unconfigured", "no runtime is configured for GPUs"),
        (Self::FabricManagerStopped, "fabric-manager-stopped", "fabric manager has ended"),
        (
            Self::FabricManagerDiffers,
            "fabric-manager-differs",
            "fabric manager has another version than the driver",
        ),
        (Self::ImexStopped, "imex-stopped", "nvidia-imex has ended"),
        (Self::ImexNodesMissing, "imex-nodes-missing", "the nodes of the IMEX domain are missing"),
    ];

    /// The fault with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known, _)| *known == name).map(|(fault, ..)| *fault)
    }

    pub(crate) fn description(self) -> &'static str {
        Self::ALL.iter().find(|(fault, ..)| *fault == self).map_or("", |(.., text)| text)
    }
}
