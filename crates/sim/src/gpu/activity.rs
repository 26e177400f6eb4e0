//! GPU utilisation and processes.

use serde::{Deserialize, Serialize};

/// Utilisation in percent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Utilisation {
    /// Share of time in which a kernel ran.
    pub gpu_percent: u32,
    /// Share of time in which memory was read or written.
    pub memory_percent: u32,
    pub encoder_percent: u32,
    pub decoder_percent: u32,
    pub jpeg_percent: u32,
    pub optical_flow_percent: u32,
    /// Share of active multiprocessors.
    pub sm_percent: f64,
    /// Share of warp slots in use.
    pub sm_occupancy_percent: f64,
    /// Share of time in which tensor cores were active.
    pub tensor_percent: f64,
    /// Share of the memory bandwidth in use.
    pub dram_percent: f64,
    /// Share of time in which the FP32 pipe was active, without the tensor cores.
    pub fp32_percent: f64,
    /// Share of time in which the FP64 pipe was active, without the tensor cores.
    #[serde(default)]
    pub fp64_percent: f64,
    /// Share of time in which the FP16 pipe was active, without the tensor cores.
    #[serde(default)]
    pub fp16_percent: f64,
    #[serde(default)]
    pub integer_percent: f64,
}

/// A process with a context on the GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    pub pid: u32,
    pub name: String,
    pub kind: ContextKind,
    /// GPU memory that the process uses.
    pub used_bytes: u64,
    /// Share of the multiprocessors that the process uses.
    #[serde(default)]
    pub sm_percent: u32,
    /// Share of time in which the process reads or writes memory.
    #[serde(default)]
    pub memory_percent: u32,
    /// Command line. If empty, `name` is used.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub command: String,
    /// Cgroup path, which identifies the owner. If empty, the path of a user session is used.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cgroup: String,
    /// Start time, Unix milliseconds.
    #[serde(default)]
    pub started_unix_ms: u64,
}

/// Type of GPU context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ContextKind {
    /// CUDA.
    Compute,
    /// OpenGL or Vulkan.
    Graphics,
    /// CUDA through the Multi-Process Service.
    Mps,
}
