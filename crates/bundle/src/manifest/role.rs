//! What a package is for.

use std::fmt;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PackageRole {
    /// Source of the kernel modules, which DKMS builds on the node.
    KernelModuleSource,
    /// Kernel modules that are built and signed.
    PrebuiltModule,
    /// Libraries and programs that work only with the kernel modules of the same version.
    UserSpace,
    /// GSP firmware.
    Firmware,
    FabricManager,
    Nscq,
    Nvsdm,
    Imex,
    Persistenced,
    ContainerToolkit,
    /// What works with several driver versions, such as `nvidia-modprobe`.
    Other,
}

impl PackageRole {
    pub const ALL: [Self; 11] = [
        Self::KernelModuleSource,
        Self::PrebuiltModule,
        Self::UserSpace,
        Self::Firmware,
        Self::FabricManager,
        Self::Nscq,
        Self::Nvsdm,
        Self::Imex,
        Self::Persistenced,
        Self::ContainerToolkit,
        Self::Other,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::KernelModuleSource => "kernel-module-source",
            Self::PrebuiltModule => "prebuilt-module",
            Self::UserSpace => "user-space",
            Self::Firmware => "firmware",
            Self::FabricManager => "fabric-manager",
            Self::Nscq => "nscq",
            Self::Nvsdm => "nvsdm",
            Self::Imex => "imex",
            Self::Persistenced => "persistenced",
            Self::ContainerToolkit => "container-toolkit",
            Self::Other => "other",
        }
    }

    /// Whether a package of this role has to have the driver's version, to the last digit. The
    /// version of a prebuilt module is often the kernel's.
    pub fn has_driver_version(self) -> bool {
        match self {
            Self::KernelModuleSource
            | Self::UserSpace
            | Self::Firmware
            | Self::FabricManager
            | Self::Nscq
            | Self::Nvsdm
            | Self::Imex => true,
            Self::PrebuiltModule | Self::Persistenced | Self::ContainerToolkit | Self::Other => {
                false
            }
        }
    }
}

impl fmt::Display for PackageRole {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}
