//! Goodput conditions of a training run: checkpoint size and node size.

use super::checkpoint::{BYTES_PER_PARAMETER, Checkpoint, CheckpointKind};
use super::conditions::Conditions;
use crate::memory;
use crate::model::ParameterCounts;
use crate::parallelism::ParallelConfig;
use crate::run::{TrainingRun, TrainingTask};

const FROZEN_BYTES: f64 = 2.0;
const GIB: f64 = 1_073_741_824.0;

impl Conditions {
    /// Conditions of a run with the given step time and default recovery times.
    pub fn for_run(
        run: &TrainingRun,
        kind: CheckpointKind,
        storage_bytes_per_s: f64,
        step_s: f64,
    ) -> Self {
        let gpus = run.parallelism.gpus();
        let checkpoint = Checkpoint {
            host_bytes_per_s: run.gpu.host_bytes_per_s,
            network_bytes_per_s: run.gpu.network_bytes_per_s,
            ..Checkpoint::new(kind, checkpoint_bytes(run), storage_bytes_per_s)
        };
        let mut conditions = Self::new(gpus, checkpoint, step_s);
        conditions.gpus_per_node = run.gpu.gpus_per_node;
        if run.task == TrainingTask::Lora {
            // Frozen weights are not part of the checkpoint, but every start reads them from
            // storage, whatever the checkpoint kind.
            let frozen = Checkpoint { bytes: FROZEN_BYTES * weights(run), ..checkpoint };
            conditions.recovery.restart_s += frozen.read_s(f64::from(gpus));
        }
        conditions
    }
}

/// Checkpoint size of a run: trained weights and their optimizer state.
pub fn checkpoint_bytes(run: &TrainingRun) -> f64 {
    let trained = match run.task {
        TrainingTask::Full => weights(run),
        TrainingTask::Lora => adapters(run),
    };
    BYTES_PER_PARAMETER * trained
}

fn weights(run: &TrainingRun) -> f64 {
    let parameters = ParameterCounts::new(&run.model);
    parameters.total + parameters.mtp
}

/// Number of adapter weights, from the gradients of the run on a single GPU.
fn adapters(run: &TrainingRun) -> f64 {
    let parallelism = ParallelConfig {
        adapter_rank: run.parallelism.adapter_rank,
        ..ParallelConfig::data_parallel(1, 1)
    };
    let single_gpu = TrainingRun { parallelism, ..run.clone() };
    let gradients_gib: f64 =
        memory::estimate(&single_gpu).stages.iter().map(|stage| stage.p50.gradients_gib).sum();
    gradients_gib * GIB / f64::from(parallelism.reduce_bytes)
}

#[cfg(test)]
mod tests {
    use farrier_facts::FactSet;

    use super::*;
    use crate::gpu::Accelerator;
    use crate::model::builtin;
    use crate::precision::Precision;
    use crate::run::Framework;

    fn run(model: &str, gpu: &str, task: TrainingTask, parallelism: ParallelConfig) -> TrainingRun {
        TrainingRun {
            model: builtin::by_name(model).unwrap().model(),
            gpu: Accelerator::by_name(FactSet::embedded(), gpu).unwrap(),
            seq_len: 8_192,
            global_batch: 256,
            precision: Precision::Bf16,
            parallelism,
            task,
            framework: Framework::Bridge,
            fused_experts: false,
        }
    }

    fn conditions(run: &TrainingRun, kind: CheckpointKind) -> Conditions {
        Conditions::for_run(run, kind, 1e9, 10.0)
    }

    #[test]
    fn full_training_saves_all_weights() {
        let run = run(
            "llama3-70b",
            "H100-SXM5-80GB",
            TrainingTask::Full,
            ParallelConfig::data_parallel(64, 1),
        );
        assert!(
            (checkpoint_bytes(&run) / (14.0 * 70.55e9) - 1.0).abs() < 1e-3,
            "{}",
            checkpoint_bytes(&run)
        );
        let default = conditions(&run, CheckpointKind::Synchronous);
        assert!((default.recovery.restart_s - 180.0).abs() < 1e-12);
    }

    #[test]
    fn lora_saves_only_adapters() {
        // 80 layers with adapters of rank 32. An adapter has rank × (input width + output width)
        // weights. Query, key and value are one fused projection with one adapter, and so are gate
        // and up. In the order below: query, key and value; output; gate and up; down.
        let widths = (8_192 + 8_192 + 2 * 1_024) + (8_192 + 8_192);
        let feed_forward = (8_192 + 2 * 28_672) + (28_672 + 8_192);
        let expected = 14.0 * 80.0 * 32.0 * f64::from(widths + feed_forward);
        let one = run(
            "llama3-70b",
            "H100-SXM5-80GB",
            TrainingTask::Lora,
            ParallelConfig::data_parallel(8, 1),
        );
        let bytes = checkpoint_bytes(&one);
        assert!((bytes / expected - 1.0).abs() < 1e-9, "{bytes} {expected}");
        // The size does not depend on the parallelism config.
        let parallelism = ParallelConfig { tp: 4, pp: 2, ..ParallelConfig::data_parallel(1, 1) };
        let other = run("llama3-70b", "H100-SXM5-80GB", TrainingTask::Lora, parallelism);
        assert!((checkpoint_bytes(&other) / bytes - 1.0).abs() < 1e-12);
    }

    #[test]
    fn frozen_weights_are_read_at_every_start() {
        let run = run(
            "llama3-70b",
            "H100-SXM5-80GB",
            TrainingTask::Lora,
            ParallelConfig::data_parallel(8, 1),
        );
        for kind in CheckpointKind::ALL {
            // Reading 141 GB of frozen weights at 1 GB/s takes 141 s.
            let restart_s = conditions(&run, kind).recovery.restart_s;
            assert!((restart_s - 180.0 - 141.1).abs() < 0.1, "{restart_s}");
        }
    }

    #[test]
    fn in_memory_checkpoints_use_the_network_of_the_run() {
        let mut run = run(
            "llama3-70b",
            "H100-SXM5-80GB",
            TrainingTask::Full,
            ParallelConfig::data_parallel(64, 1),
        );
        let default = conditions(&run, CheckpointKind::InMemory);
        // By default, an H100 has PCIe 5 and one 400 Gbit/s port.
        assert!((default.checkpoint.host_bytes_per_s - 55e9).abs() < 1.0);
        assert!((default.checkpoint.network_bytes_per_s - 50e9).abs() < 1.0);
        run.gpu.network_bytes_per_s = 5e8;
        let slow = conditions(&run, CheckpointKind::InMemory);
        let fetch_s = |conditions: &Conditions| conditions.checkpoint.fetch_s(64.0);
        assert!((fetch_s(&slow) / fetch_s(&default) - 100.0).abs() < 1e-9);
    }

    #[test]
    fn spare_nodes_have_the_node_size_of_the_sku() {
        let paid = |gpu: &str| {
            let run =
                run("llama3-8b", gpu, TrainingTask::Full, ParallelConfig::data_parallel(64, 1));
            let mut conditions = conditions(&run, CheckpointKind::Asynchronous);
            conditions.spares.nodes = Some(2);
            conditions.paid_gpus()
        };
        assert!((paid("H100-SXM5-80GB") - 80.0).abs() < 1e-12);
        assert!((paid("GB200") - 72.0).abs() < 1e-12);
        assert!((paid("GB300") - 72.0).abs() < 1e-12);
    }
}
