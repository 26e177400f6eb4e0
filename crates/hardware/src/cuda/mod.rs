//! GPU work through CUDA's driver library, which is loaded at run time and only on demand.
//!
//! ```text
//! library::ensure_present ─ libcuda exists and is recent enough ─┬─> launch::measure ─> LaunchTimes
//!                                                                └─> Device ─┐
//!                              SimulatedGpu (on the host) ───── dyn GpuBackend ─> gpu_tests::run ─> Outcome
//! ```
//!
//! Nothing is compiled at build time or at run time: kernels are PTX, which the driver translates;
//! their sources are in `kernels/`. A call into a wedged driver never returns, so `farrier diag`
//! makes these calls in a child.

mod blas;
mod device;
mod edge;
mod error;
pub mod exam;
mod launch;
mod library;
mod numbers;
mod serve;
mod simulated;

pub use device::Device;
pub use edge::{
    About, Block, Edge, Found, HostBlock, NoWay, Pattern, Precision, Product, Work, WrongWord,
};
pub use error::CudaError;
pub use launch::{LaunchPlan, LaunchTimes, Timed, measure};
pub use serve::{Asked, Said, serve};
pub use simulated::{Ailment, SimulatedGpu};

/// Memory and arithmetic kernels, for compute capability 7.0 and higher.
const MEMORY_PTX: &str = include_str!("../../kernels/memory.ptx");
/// Tensor core kernels, for compute capability 8.0 and higher.
const TENSOR_PTX: &str = include_str!("../../kernels/tensor.ptx");
