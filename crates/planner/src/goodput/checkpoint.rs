//! How a run is saved.

use serde::{Deserialize, Serialize};

use super::error::{GoodputError, at_least_zero, positive, share};

/// What holds a run up while it is saved, and what a save outlives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckpointKind {
    /// Training waits until storage has it.
    Synchronous,
    /// Training waits for the copy to the host; storage is written meanwhile.
    Asynchronous,
    /// Training waits for the copy to the host; a peer keeps another. The loss of one node is
    /// restored from the peer, that of more from storage, which is written meanwhile.
    InMemory,
}

impl CheckpointKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Synchronous, Self::Asynchronous, Self::InMemory];

    /// Its name, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Synchronous => "synchronous",
            Self::Asynchronous => "asynchronous",
            Self::InMemory => "in-memory",
        }
    }
}

/// What is saved, and where to.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// How.
    pub kind: CheckpointKind,
    /// All of it, over all GPUs.
    pub bytes: f64,
    /// What storage takes from the whole cluster, bytes/s.
    pub storage_bytes_per_s: f64,
    /// What storage gives to the whole cluster, bytes/s; as much as it takes if not said.
    pub storage_read_bytes_per_s: Option<f64>,
    /// From a GPU to its host, bytes/s.
    pub host_bytes_per_s: f64,
    /// From a GPU's host to a peer, bytes/s.
    pub network_bytes_per_s: f64,
    /// Share of failures that a replica in a peer's memory does not outlive.
    pub beyond_memory_share: f64,
    /// Behind an in-memory checkpoint, storage is written as often as it can be, or this rarely.
    pub storage_interval_s: Option<f64>,
    /// What training waits for at a checkpoint, where it was measured.
    pub stall_s: Option<f64>,
    /// How long storage takes to write one, where it was measured.
    pub write_s: Option<f64>,
}

/// Bytes saved for each parameter: 2 of weights, 12 of the master copy and Adam's moments.
pub const BYTES_PER_PARAMETER: f64 = 14.0;

/// What every checkpoint makes training wait for, however fast its bytes move: ranks agree, shards
/// are planned, buffers are found. With `PyTorch`'s asynchronous checkpoints a 7B model on 128 GPUs
/// waited 6.3 s (`PyTorch` blog, "Reducing Model Checkpointing Times by Over 10x", 2024), of which its
/// bytes take less than one.
const BEGINNING_S: f64 = 5.0;

/// Likewise where nothing is planned or written: ranks only agree (a guess; Gemini, SOSP 2023, checkpoints
/// to memory in each step without a loss that it could measure).
const BEGINNING_IN_MEMORY_S: f64 = 0.5;

impl Checkpoint {
    /// So many bytes to storage of such bandwidth; the rest as is usual.
    pub fn new(kind: CheckpointKind, bytes: f64, storage_bytes_per_s: f64) -> Self {
        Self {
            kind,
            bytes,
            storage_bytes_per_s,
            storage_read_bytes_per_s: None,
            // PCIe 4 x16 as measured, the slower of what Ampere and Hopper have.
            host_bytes_per_s: 26e9,
            // One port of 200 Gbit/s, the slower of the usual ones.
            network_bytes_per_s: 25e9,
            // What can take more than a node: 35 of 419 interruptions of Llama 3 were of switches
            // and cables (arXiv:2407.21783, table 5). An upper bound: many of them spare memory.
            beyond_memory_share: 35.0 / 419.0,
            storage_interval_s: None,
            stall_s: None,
            write_s: None,
        }
    }

    /// Until storage has it.
    pub(super) fn written_s(&self, gpus: f64) -> f64 {
        let host_s = self.bytes / gpus / self.host_bytes_per_s;
        self.write_s.unwrap_or_else(|| (self.bytes / self.storage_bytes_per_s).max(host_s))
    }

    /// What training waits for.
    pub(super) fn stalled_s(&self, gpus: f64) -> f64 {
        self.stall_s.unwrap_or_else(|| {
            let moved = match self.kind {
                CheckpointKind::Synchronous => self.written_s(gpus),
                _ => self.bytes / gpus / self.host_bytes_per_s,
            };
            let begin = match self.kind {
                CheckpointKind::InMemory => BEGINNING_IN_MEMORY_S,
                _ => BEGINNING_S,
            };
            begin + moved
        })
    }

    /// Until a peer has it.
    pub(super) fn copied_s(&self, gpus: f64) -> f64 {
        self.bytes / gpus / self.network_bytes_per_s
    }

    /// From storage to the GPUs.
    pub(super) fn read_s(&self, gpus: f64) -> f64 {
        let storage = self.storage_read_bytes_per_s.unwrap_or(self.storage_bytes_per_s);
        (self.bytes / storage).max(self.bytes / gpus / self.host_bytes_per_s)
    }

    /// From a peer's memory to the GPUs.
    pub(super) fn fetched_s(&self, gpus: f64) -> f64 {
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
    fn what_is_waited_for_depends_on_the_kind() {
        // 405B parameters on 16,384 GPUs: 5.67 TB, 346 MB a GPU, and storage of 2 TB/s.
        let bytes = 405e9 * BYTES_PER_PARAMETER;
        let of = |kind| Checkpoint::new(kind, bytes, 2e12);
        let wait_s = of(CheckpointKind::Synchronous).stalled_s(16_384.0);
        assert!((wait_s - BEGINNING_S - 2.835).abs() < 1e-9, "{wait_s}");
        let copy_s = of(CheckpointKind::Asynchronous).stalled_s(16_384.0);
        assert!((copy_s - BEGINNING_S - 0.01331).abs() < 1e-4, "{copy_s}");
        let fetch_s = of(CheckpointKind::InMemory).fetched_s(16_384.0);
        assert!((fetch_s - 0.01384).abs() < 1e-4, "{fetch_s}");
    }

    #[test]
    fn fast_storage_does_not_outrun_the_gpu() {
        let one = Checkpoint::new(CheckpointKind::Synchronous, 52e9, 1e15);
        assert!((one.written_s(1.0) - 2.0).abs() < 1e-9);
        assert!((one.read_s(1.0) - 2.0).abs() < 1e-9);
    }

    #[test]
    fn measured_times_go_first() {
        let mut one = Checkpoint::new(CheckpointKind::Asynchronous, 1e12, 1e9);
        one.stall_s = Some(3.0);
        one.write_s = Some(7.0);
        assert!((one.stalled_s(8.0) - 3.0).abs() < 1e-12);
        assert!((one.written_s(8.0) - 7.0).abs() < 1e-12);
    }
}
