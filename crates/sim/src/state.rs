//! All of a node at once.

use std::collections::BTreeMap;

use crate::gpu::Gpu;
use crate::host::Host;
use crate::node::Node;
use crate::rootfs::KernelRecord;

/// A node, its host and its GPUs, and what the kernel is about to write.
#[derive(Debug, Clone, PartialEq)]
pub struct SimState {
    /// What the GPUs share.
    pub node: Node,
    /// What there is besides GPUs.
    pub host: Host,
    /// The GPUs by their number.
    pub gpus: BTreeMap<u32, Gpu>,
    /// The number of the next record in the kernel log, if none is lost.
    pub next_sequence: u64,
    /// Records for the kernel log.
    pub records: Vec<KernelRecord>,
    /// Whether the log of an earlier start is forgotten.
    pub resets_kernel_log: bool,
}
