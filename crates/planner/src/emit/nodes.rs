//! Number of nodes, and GPUs per node.

use crate::gpu::Accelerator;

/// Nodes of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Nodes {
    pub(super) count: u32,
    pub(super) gpus_used: u32,
    /// GPUs that a node of this SKU has.
    pub(super) gpus_per_node: u32,
}

impl Nodes {
    /// As few nodes as possible, each with the same number of GPUs.
    pub(super) fn new(gpu: &Accelerator, gpus: u32) -> Self {
        let gpus_per_node = gpu.gpus_per_node;
        let gpus = gpus.max(1);
        let gpus_used = (1..=gpus_per_node.min(gpus))
            .rev()
            .find(|used| gpus.is_multiple_of(*used))
            .unwrap_or(1);
        Self { count: gpus / gpus_used, gpus_used, gpus_per_node }
    }
}

#[cfg(test)]
mod tests {
    use farrier_facts::FactSet;

    use super::*;

    #[test]
    fn nodes_are_uniform_and_as_few_as_possible() {
        let nodes = |gpu: &str, gpus| {
            let gpu = Accelerator::by_name(FactSet::embedded(), gpu).unwrap();
            let nodes = Nodes::new(&gpu, gpus);
            (nodes.count, nodes.gpus_used)
        };
        assert_eq!(nodes("H100-SXM5-80GB", 512), (64, 8));
        assert_eq!(nodes("H100-SXM5-80GB", 2), (1, 2));
        assert_eq!(nodes("H100-SXM5-80GB", 12), (2, 6));
        assert_eq!(nodes("GB200", 72), (18, 4));
        assert_eq!(nodes("GB300", 6), (2, 3));
    }
}
