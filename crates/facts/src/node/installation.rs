//! How the driver is installed: firmware, module options, device files, and whether a container
//! installed it.

use serde::{Deserialize, Serialize};

use super::reading::Reading;

/// The driver's installation, beyond its module and libraries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstallationObservation {
    /// Driver versions with GSP firmware in the kernel's search path.
    pub gsp_firmware: Reading<Vec<String>>,
    /// Settings that keep the kernel from loading the driver.
    pub load_disabled: Reading<Vec<LoadDisabled>>,
    /// Version of the loaded module nvidia-uvm. Absent if it is not loaded.
    pub uvm_loaded: Reading<String>,
    /// Version of nvidia-uvm on disk, for the running kernel.
    pub uvm_on_disk: Reading<String>,
    /// Whether nvidia-modprobe is installed, which loads modules and creates device files for
    /// programs without privileges.
    pub modprobe_helper: Reading<bool>,
    /// The device files that CUDA opens. Absent if no driver is loaded.
    pub device_files: Reading<Vec<DeviceFile>>,
    /// Whether the installer of the CUDA toolkit (`.run`) ran on this node.
    pub cuda_run_file: Reading<bool>,
    /// Whether a container, such as that of the GPU Operator, installed the driver.
    pub driver_container: Reading<bool>,
}

/// A line that keeps the kernel from loading a module of the driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadDisabled {
    pub path: String,
    /// `install nvidia /bin/false`
    pub line: String,
}

/// A device file of the driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceFile {
    /// `/dev/nvidia0`
    pub path: String,
    pub exists: Reading<bool>,
}
