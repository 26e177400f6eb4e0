//! Simulated GPU nodes: real NVML clients, and our own agent and checks, run against them unchanged.
//!
//! A node is a directory of readable JSON that may be edited while clients run, beside a tree of the
//! files that a real node has below `/proc`, `/sys`, `/dev` and `/var`:
//!
//! ```text
//! facts + Spec ─ make::node (pure) ─> Node, Gpus ─┐
//!                tree::files (pure) ─> root/ ─────┼─ NodeDir::create ─> DIR/{node.json, gpus/N.json, root/}
//! Fault ─ fault::apply (pure) ─> Gpu, kernel line ┴─ NodeDir::edit_gpu (lock, atomic replace)
//!                                                      │
//!                 nvml-sim (libnvidia-ml.so.1) <───────┘ reads on change, writes settings
//! ```
//!
//! The same seed gives the same node, byte for byte. Nothing here spawns tasks or threads.

pub mod fault;
pub mod gpu;
pub mod make;
pub mod node;
mod random;
mod sku;
mod store;
pub mod tree;

pub use fault::{CallFault, Fault};
pub use gpu::Gpu;
pub use make::{MakeError, Spec};
pub use node::Node;
pub use store::{NodeDir, StoreError};

/// The version of the JSON form that this build reads and writes.
pub const FORMAT: u32 = 1;
