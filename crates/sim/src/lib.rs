//! Simulated GPU nodes: real NVML clients, and our own agent and checks, run against them unchanged.
//!
//! A node is a directory of readable JSON that may be edited while clients run, beside a tree of the
//! files that a real node has below `/proc`, `/sys`, `/dev` and `/var`:
//!
//! ```text
//! facts + NodeSpec ─ builder::build_node, Host::new (pure) ─> Node, Host, Gpus ─ NodeDir::create ─> DIR/{*.json, gpus/, root/}
//! Fault, HostFault ─ fault::apply* (pure) ─> SimState, kernel records ─ NodeDir::edit (lock, atomic replace) ─┐
//! SimState ─ RootFs::for_node (pure) ─> root/, of which only what changed is written <──────────────────────────────┘
//!
//!                 nvml-sim (libnvidia-ml.so.1) reads node.json and gpus/ on change, writes settings
//! ```
//!
//! The same seed gives the same node, byte for byte. Nothing here spawns tasks or threads.

pub mod builder;
pub mod fault;
pub mod fleet;
pub mod gpu;
pub mod host;
pub mod node;
mod rng;
pub mod rootfs;
mod sku;
mod state;
mod store;

pub use builder::{BuildError, NodeSpec};
pub use fault::{CallFault, Fault, HostFault};
pub use gpu::Gpu;
pub use host::Host;
pub use node::Node;
pub use state::SimState;
pub use store::{NodeDir, StoreError};

/// The version of the JSON form that this build reads and writes.
pub const FORMAT: u32 = 1;
