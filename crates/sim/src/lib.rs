//! Simulated GPU nodes. Real NVML clients, the agent and the checks run against them unchanged.
//!
//! A node is a directory of JSON files, which may be edited while clients run, next to a root file
//! system with the files that a real node has in `/proc`, `/sys`, `/dev` and `/var`:
//!
//! ```text
//! facts + NodeSpec ─ build_node, Host::new (pure) ─> Node, Host, Gpus ─ NodeDir::create ─> DIR
//! Fault, HostFault ─ fault::apply* (pure) ─> SimState ─ NodeDir::edit (lock, atomic rename) ─┐
//! SimState ─ RootFs::for_node (pure) ─> DIR/root/; only changed files are written <──────────┘
//!
//! nvml-sim (libnvidia-ml.so.1) re-reads node.json and gpus/ when they change and writes settings
//! ```
//!
//! The same seed gives the same node, byte for byte. This crate spawns no tasks or threads, except
//! in `fleet::wire`.

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
pub use gpu::SimGpu;
pub use host::Host;
pub use node::SharedNodeState;
pub use state::SimState;
pub use store::{NodeDir, StoreError};

/// Version of the JSON format that this build reads and writes.
pub const FORMAT: u32 = 1;
