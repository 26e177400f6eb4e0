//! GPU work through CUDA's driver library, which is loaded at run time and only on demand.
//!
//! ```text
//! library::ensure_present ─ is libcuda recent enough? ─┬─> launch::measure ─> LaunchTimes
//!                                                      └─> Device ─────────┐
//! SimulatedGpu::open (on the host) ─> SimulatedDevice ─────────────────────┤
//!                                                                          └─ dyn GpuBackend
//! gpu_tests::run(dyn GpuBackend) ─> TestOutcome
//! ```
//!
//! The build needs no CUDA compiler, because the kernels are stored as PTX, which the driver
//! translates. Their sources are in `kernels/`. A call into a wedged driver never returns, so
//! `farrier diag` makes these calls in a child process.

mod backend;
mod blas;
mod device;
mod error;
pub mod gpu_tests;
mod launch;
mod library;
mod matrix_values;
mod serve;
mod simulated;

pub use backend::{
    DeviceBuffer, Gemm, GemmPrecision, GpuBackend, GpuInfo, HostBuffer, MemoryMismatch,
    MemoryMismatches, MemoryPattern, UnsupportedGemm, Work,
};
pub use device::Device;
pub use error::CudaError;
pub use launch::{LaunchPlan, LaunchTimes, LaunchTiming, measure};
pub use serve::{TestEvent, TestRequest, serve};
pub use simulated::{SimulatedFault, SimulatedGpu};

/// Memory and arithmetic kernels, for compute capability 7.0 and higher.
const MEMORY_PTX: &str = include_str!("../../kernels/memory.ptx");
/// Tensor core kernels, for compute capability 8.0 and higher.
const TENSOR_PTX: &str = include_str!("../../kernels/tensor.ptx");
