//! How many nodes, of how many GPUs.

use crate::gpu::Accelerator;

/// Nodes that a job runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Nodes {
    pub(super) count: u32,
    pub(super) gpus_each: u32,
    /// GPUs that a node of this kind has.
    pub(super) gpus_of_node: u32,
}

impl Nodes {
    /// As few as can be, all alike.
    pub(super) fn of(gpu: &Accelerator, gpus: u32) -> Self {
        let gpus_of_node = gpu.gpus_of_node();
        let gpus = gpus.max(1);
        let gpus_each =
            (1..=gpus_of_node.min(gpus)).rev().find(|each| gpus.is_multiple_of(*each)).unwrap_or(1);
        Self { count: gpus / gpus_each, gpus_each, gpus_of_node }
    }
}

#[cfg(test)]
mod tests {
    use farrier_facts::FactSet;

    use super::*;

    #[test]
    fn nodes_are_alike_and_as_few_as_can_be() {
        let nodes = |gpu: &str, gpus| {
            let gpu = Accelerator::named(FactSet::embedded(), gpu).unwrap();
            let nodes = Nodes::of(&gpu, gpus);
            (nodes.count, nodes.gpus_each)
        };
        assert_eq!(nodes("H100-SXM5-80GB", 512), (64, 8));
        assert_eq!(nodes("H100-SXM5-80GB", 2), (1, 2));
        assert_eq!(nodes("H100-SXM5-80GB", 12), (2, 6));
        assert_eq!(nodes("GB200", 72), (18, 4));
        assert_eq!(nodes("GB300", 6), (2, 3));
    }
}
