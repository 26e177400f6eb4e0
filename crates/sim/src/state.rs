//! The complete state of a simulated node.

use std::collections::BTreeMap;

use crate::gpu::SimGpu;
use crate::host::Host;
use crate::node::SharedNodeState;
use crate::rootfs::KernelRecord;

/// A node, its host and its GPUs, plus pending kernel log records.
#[derive(Debug, Clone, PartialEq)]
pub struct SimState {
    pub node: SharedNodeState,
    pub host: Host,
    /// GPUs by index.
    pub gpus: BTreeMap<u32, SimGpu>,
    /// Next sequence number in the kernel log, without injected gaps.
    pub next_sequence: u64,
    /// Records to append to the kernel log.
    pub records: Vec<KernelRecord>,
    /// Whether the kernel log restarts with a new boot.
    pub resets_kernel_log: bool,
}
