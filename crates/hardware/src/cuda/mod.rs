//! Work for a GPU: CUDA's driver library, loaded at run time, and only when asked.
//!
//! ```text
//! library::present ─ libcuda is there and new enough ─┬─> launch::measure ─> LaunchTimes
//!                                                     └─> Device ─┐
//!                              SimulatedGpu (on the host) ────────┴─ dyn Edge ─> exam::run ─> Outcome
//! ```
//!
//! Nothing is compiled when this is built, nor when it runs: kernels are PTX, which the driver translates; `kernels/` has
//! their sources. A call into a wedged driver does not return: `farrier diag` has them made by a child.

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

/// Kernels on memory and numbers, for compute capability 7.0 and higher.
const MEMORY_PTX: &str = include_str!("../../kernels/memory.ptx");
/// Kernels for tensor cores, for compute capability 8.0 and higher.
const TENSOR_PTX: &str = include_str!("../../kernels/tensor.ptx");
