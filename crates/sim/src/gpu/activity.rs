//! How busy a GPU is, and with what.

use serde::{Deserialize, Serialize};

/// How busy it is, in per cent and bytes a second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Utilisation {
    /// Share of time in which a kernel ran.
    pub gpu_percent: u32,
    /// Share of time in which memory was read or written.
    pub memory_percent: u32,
    /// Encoders.
    pub encoder_percent: u32,
    /// Decoders.
    pub decoder_percent: u32,
    /// JPEG engines.
    pub jpeg_percent: u32,
    /// Optical flow.
    pub optical_flow_percent: u32,
    /// Share of multiprocessors at work.
    pub sm_percent: f64,
    /// Share of warps in use.
    pub sm_occupancy_percent: f64,
    /// Share of time in which tensor cores worked.
    pub tensor_percent: f64,
    /// Share of the memory bandwidth.
    pub dram_percent: f64,
    /// Single precision outside the tensor cores.
    pub fp32_percent: f64,
    /// Double precision outside the tensor cores.
    #[serde(default)]
    pub fp64_percent: f64,
    /// Half precision outside the tensor cores.
    #[serde(default)]
    pub fp16_percent: f64,
    /// Integers.
    #[serde(default)]
    pub integer_percent: f64,
}

/// A process on the GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// What it holds a context for.
    pub kind: ProcessKind,
    /// Frame buffer.
    pub used_bytes: u64,
    /// Its share of the multiprocessors.
    #[serde(default)]
    pub sm_percent: u32,
    /// Its share of the memory's time.
    #[serde(default)]
    pub memory_percent: u32,
    /// Its command line; its name without.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub command: String,
    /// Its path in the control groups, which says whose it is; a user's session without.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cgroup: String,
    /// When it was started, milliseconds of the Unix clock.
    #[serde(default)]
    pub started_unix_ms: u64,
}

/// What a process holds a context for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProcessKind {
    /// CUDA.
    Compute,
    /// OpenGL, Vulkan.
    Graphics,
    /// CUDA through the multi-process service.
    Mps,
}
