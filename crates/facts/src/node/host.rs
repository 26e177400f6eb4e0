//! The host around the GPUs: disks, clock, IOMMU, `GPUDirect` RDMA, IMEX.

use serde::{Deserialize, Serialize};

use super::reading::Reading;

/// Settings and state of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostObservation {
    /// Whether a hypervisor runs below this kernel.
    pub virtual_machine: Reading<bool>,
    /// Mounted disk file systems.
    pub disks: Reading<Vec<DiskUsage>>,
    /// Whether the kernel's clock is synchronised to a reference.
    pub clock_synchronised: Reading<bool>,
    /// Number of RDMA devices.
    pub rdma_devices: Reading<u32>,
    /// Whether nvidia-peermem is loaded.
    pub peermem_loaded: Reading<bool>,
    /// Whether the kernel has DMA-BUF and peer-to-peer DMA, from its configuration.
    pub kernel_dma_buf: Reading<bool>,
    /// Type of the IOMMU domain of each GPU. A GPU without a domain is not listed.
    pub iommu: Reading<Vec<IommuDomain>>,
    /// Whether the list of nodes of the IMEX domain has an entry.
    pub imex_nodes: Reading<bool>,
}

/// How full a file system is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskUsage {
    /// Mount point.
    pub path: String,
    pub total_bytes: u64,
    /// Bytes that programs without privileges may still use.
    pub available_bytes: u64,
    pub total_inodes: u64,
    pub available_inodes: u64,
    /// Whether the file system became read-only after an error.
    pub read_only: bool,
}

/// The IOMMU domain of a PCI device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IommuDomain {
    /// PCI address.
    pub address: String,
    /// `identity`, `DMA`, `DMA-FQ` (Linux `Documentation/ABI/testing/sysfs-kernel-iommu_groups`).
    pub kind: String,
}
