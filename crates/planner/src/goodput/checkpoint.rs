//! Checkpoint kinds and their costs.

use serde::{Deserialize, Serialize};

use super::error::{GoodputError, at_least_zero, positive, share};

/// How long a checkpoint stalls training, and which failures it survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckpointKind {
    /// Training stalls until the checkpoint is in storage.
    Synchronous,
    /// Training stalls for the copy to host memory; storage is written in the background.
    Asynchronous,
    /// Training stalls for the copy to host memory; a peer holds a replica. After the loss of one
    /// node, the run restores from the peer. After a larger loss, the run restores from storage,
    /// which is written in the background.
    InMemory,
}

impl CheckpointKind {
    pub const ALL: [Self; 3] = [Self::Synchronous, Self::Asynchronous, Self::InMemory];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Synchronous => "synchronous",
            Self::Asynchronous => "asynchronous",
            Self::InMemory => "in-memory",
        }
    }
}

/// Size and bandwidths of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    pub kind: CheckpointKind,
    /// Size of the checkpoint, over all GPUs.
    pub bytes: f64,
    /// Write bandwidth of storage, for the whole cluster.
    pub storage_bytes_per_s: f64,
    /// Read bandwidth of storage; equal to the write bandwidth if `None`.
    pub storage_read_bytes_per_s: Option<f64>,
    /// Bandwidth from a GPU to its host.
    pub host_bytes_per_s: f64,
    /// Bandwidth from a host to a peer, per GPU.
    pub network_bytes_per_s: f64,
    /// Share of failures that an in-memory replica does not survive.
    pub beyond_memory_share: f64,
    /// Minimum interval of storage writes behind in-memory checkpoints; continuous if `None`.
    pub storage_interval_s: Option<f64>,
    /// Measured stall of training per checkpoint.
    pub stall_s: Option<f64>,
    /// Measured write time to storage.
    pub write_s: Option<f64>,
}

/// Checkpoint bytes per parameter: 2 for weights, 12 for master weights and Adam's moments.
pub const BYTES_PER_PARAMETER: f64 = 14.0;

/// Fixed stall of every checkpoint, independent of its size: synchronization of ranks, shard
/// planning, buffer allocation. With `PyTorch`'s asynchronous checkpoints a 7B model on 128 GPUs
/// stalled 6.3 s (`PyTorch` blog, "Reducing Model Checkpointing Times by Over 10x", 2024), of which
/// the copy took less than 1 s.
const START_S: f64 = 5.0;

/// Fixed stall of an in-memory checkpoint: only synchronization of ranks. A guess; Gemini (SOSP
/// 2023) checkpoints to memory in every step without measurable loss.
const START_IN_MEMORY_S: f64 = 0.5;

impl Checkpoint {
    /// A checkpoint of this size, with default bandwidths except for storage.
    pub fn new(kind: CheckpointKind, bytes: f64, storage_bytes_per_s: f64) -> Self {
        Self {
            kind,
            bytes,
            storage_bytes_per_s,
            storage_read_bytes_per_s: None,
            // Measured bandwidth of PCIe 4 x16, which Ampere has. Later generations are faster.
            host_bytes_per_s: 26e9,
            // One 200 Gbit/s port per GPU, the default of Ampere. Later generations have faster
            // ports.
            network_bytes_per_s: 25e9,
            // Failures that can affect more than a node: 35 of Llama 3's 419 interruptions were of
            // switches and cables (arXiv:2407.21783, table 5). This is an upper bound: many such
            // failures leave host memory intact.
            beyond_memory_share: 35.0 / 419.0,
            storage_interval_s: None,
            stall_s: None,
            write_s: None,
        }
    }

    /// Time until the checkpoint is in storage.
    pub(super) fn write_time_s(&self, gpus: f64) -> f64 {
        let host_s = self.bytes / gpus / self.host_bytes_per_s;
        self.write_s.unwrap_or_else(|| (self.bytes / self.storage_bytes_per_s).max(host_s))
    }

    /// Stall of training.
    pub(super) fn stall_time_s(&self, gpus: f64) -> f64 {
        self.stall_s.unwrap_or_else(|| {
            let moved = match self.kind {
                CheckpointKind::Synchronous => self.write_time_s(gpus),
                _ => self.bytes / gpus / self.host_bytes_per_s,
            };
            let begin = match self.kind {
                CheckpointKind::InMemory => START_IN_MEMORY_S,
                _ => START_S,
            };
            begin + moved
        })
    }

    /// Time until a peer has the replica.
    pub(super) fn replication_s(&self, gpus: f64) -> f64 {
        self.bytes / gpus / self.network_bytes_per_s
    }

    /// Time to load the checkpoint from storage.
    pub(super) fn read_s(&self, gpus: f64) -> f64 {
        let storage = self.storage_read_bytes_per_s.unwrap_or(self.storage_bytes_per_s);
        (self.bytes / storage).max(self.bytes / gpus / self.host_bytes_per_s)
    }

    /// Time to load the checkpoint from a peer's memory.
    pub(super) fn fetch_s(&self, gpus: f64) -> f64 {
        self.bytes / gpus / self.network_bytes_per_s.min(self.host_bytes_per_s)
    }

    pub(super) fn check(&self) -> Result<(), GoodputError> {
        at_least_zero("bytes", self.bytes)?;
        positive("storage_bytes_per_s", self.storage_bytes_per_s)?;
        positive("host_bytes_per_s", self.host_bytes_per_s)?;
        positive("network_bytes_per_s", self.network_bytes_per_s)?;
        share("beyond_memory_share", self.beyond_memory_share)?;
        if let Some(bytes_per_s) = self.storage_read_bytes_per_s {
            positive("storage_read_bytes_per_s", bytes_per_s)?;
        }
        for (what, seconds) in [
            ("storage_interval_s", self.storage_interval_s),
            ("stall_s", self.stall_s),
            ("write_s", self.write_s),
        ] {
            seconds.map_or(Ok(()), |seconds| at_least_zero(what, seconds))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stall_depends_on_the_kind() {
        // 405B parameters on 16,384 GPUs: 5.67 TB, 346 MB per GPU, and storage of 2 TB/s.
        let bytes = 405e9 * BYTES_PER_PARAMETER;
        let checkpoint = |kind| Checkpoint::new(kind, bytes, 2e12);
        let wait_s = checkpoint(CheckpointKind::Synchronous).stall_time_s(16_384.0);
        assert!((wait_s - START_S - 2.835).abs() < 1e-9, "{wait_s}");
        let copy_s = checkpoint(CheckpointKind::Asynchronous).stall_time_s(16_384.0);
        assert!((copy_s - START_S - 0.01331).abs() < 1e-4, "{copy_s}");
        let fetch_s = checkpoint(CheckpointKind::InMemory).fetch_s(16_384.0);
        assert!((fetch_s - 0.01384).abs() < 1e-4, "{fetch_s}");
    }

    #[test]
    fn storage_is_limited_by_pcie() {
        let one = Checkpoint::new(CheckpointKind::Synchronous, 52e9, 1e15);
        assert!((one.write_time_s(1.0) - 2.0).abs() < 1e-9);
        assert!((one.read_s(1.0) - 2.0).abs() < 1e-9);
    }

    #[test]
    fn measured_times_take_precedence() {
        let mut one = Checkpoint::new(CheckpointKind::Asynchronous, 1e12, 1e9);
        one.stall_s = Some(3.0);
        one.write_s = Some(7.0);
        assert!((one.stall_time_s(8.0) - 3.0).abs() < 1e-12);
        assert!((one.write_time_s(8.0) - 7.0).abs() < 1e-12);
    }
}
