//! What a run saves, and on what nodes it runs.

use super::checkpoint::{BYTES_PER_PARAMETER, Checkpoint, CheckpointKind};
use super::conditions::Conditions;
use crate::layout::Layout;
use crate::memory;
use crate::model::Parameters;
use crate::run::{Run, Task};

/// Bytes of a frozen weight.
const FROZEN_BYTES: f64 = 2.0;
/// Bytes of a GiB.
const GIB: f64 = 1_073_741_824.0;

impl Conditions {
    /// Those of a run whose step takes so long, with the usual times.
    pub fn of_run(run: &Run, kind: CheckpointKind, storage_bytes_per_s: f64, step_s: f64) -> Self {
        let gpus = run.layout.gpus();
        let checkpoint = Checkpoint {
            host_bytes_per_s: run.gpu.host_bytes_per_s,
            network_bytes_per_s: run.gpu.network_bytes_per_s,
            ..Checkpoint::new(kind, saved_bytes(run), storage_bytes_per_s)
        };
        let mut conditions = Self::new(gpus, checkpoint, step_s);
        conditions.gpus_per_node = run.gpu.gpus_of_node();
        if run.task == Task::Lora {
            // Frozen weights are not saved again, but every start reads them, whatever keeps the
            // adapters.
            let frozen = Checkpoint { bytes: FROZEN_BYTES * weights(run), ..checkpoint };
            conditions.recovery.restart_s += frozen.read_s(f64::from(gpus));
        }
        conditions
    }
}

/// Bytes of a checkpoint of a run: what learns, and its optimizer's state.
pub fn saved_bytes(run: &Run) -> f64 {
    let learning = match run.task {
        Task::Full => weights(run),
        Task::Lora => adapters(run),
    };
    BYTES_PER_PARAMETER * learning
}

fn weights(run: &Run) -> f64 {
    let parameters = Parameters::of(&run.model);
    parameters.total + parameters.further
}

/// Weights of all adapters: on one GPU their gradients are all that there are.
fn adapters(run: &Run) -> f64 {
    let layout = Layout { adapter_rank: run.layout.adapter_rank, ..Layout::copies(1, 1) };
    let whole = Run { layout, ..run.clone() };
    let gradients_gib: f64 =
        memory::of(&whole).stages.iter().map(|stage| stage.p50.gradients_gib).sum();
    gradients_gib * GIB / f64::from(layout.reduce_bytes)
}

#[cfg(test)]
mod tests {
    use farrier_facts::FactSet;

    use super::*;
    use crate::gpu::Accelerator;
    use crate::model::builtin;
    use crate::precision::Precision;
    use crate::run::Stack;

    fn run(model: &str, gpu: &str, task: Task, layout: Layout) -> Run {
        Run {
            model: builtin::named(model).unwrap().model(),
            gpu: Accelerator::named(FactSet::embedded(), gpu).unwrap(),
            seq_len: 8_192,
            global_batch: 256,
            precision: Precision::Bf16,
            layout,
            task,
            stack: Stack::Bridge,
            fused_experts: false,
        }
    }

    fn conditions(run: &Run, kind: CheckpointKind) -> Conditions {
        Conditions::of_run(run, kind, 1e9, 10.0)
    }

    #[test]
    fn all_weights_are_saved_where_all_learn() {
        let run = run("llama3-70b", "H100-SXM5-80GB", Task::Full, Layout::copies(64, 1));
        assert!((saved_bytes(&run) / (14.0 * 70.55e9) - 1.0).abs() < 1e-3, "{}", saved_bytes(&run));
        let usual = conditions(&run, CheckpointKind::Synchronous);
        assert!((usual.recovery.restart_s - 180.0).abs() < 1e-12);
    }

    #[test]
    fn only_adapters_are_saved_where_only_they_learn() {
        // 80 blocks of rank 32: query 8,192 + 8,192, key and value 8,192 + 2·1,024, output
        // 8,192 + 8,192, gate and up 8,192 + 2·28,672, down 28,672 + 8,192; fused products have one
        // adapter, so that query, key and value share its first half.
        let widths = (8_192 + 8_192 + 2 * 1_024) + (8_192 + 8_192);
        let feed_forward = (8_192 + 2 * 28_672) + (28_672 + 8_192);
        let expected = 14.0 * 80.0 * 32.0 * f64::from(widths + feed_forward);
        let one = run("llama3-70b", "H100-SXM5-80GB", Task::Lora, Layout::copies(8, 1));
        let bytes = saved_bytes(&one);
        assert!((bytes / expected - 1.0).abs() < 1e-9, "{bytes} {expected}");
        // However it is split.
        let split = Layout { tp: 4, pp: 2, ..Layout::copies(1, 1) };
        let other = run("llama3-70b", "H100-SXM5-80GB", Task::Lora, split);
        assert!((saved_bytes(&other) / bytes - 1.0).abs() < 1e-12);
    }

    #[test]
    fn frozen_weights_are_read_at_every_start() {
        let run = run("llama3-70b", "H100-SXM5-80GB", Task::Lora, Layout::copies(8, 1));
        for kind in CheckpointKind::ALL {
            // 141 GB at 1 GB/s.
            let restart_s = conditions(&run, kind).recovery.restart_s;
            assert!((restart_s - 180.0 - 141.1).abs() < 0.1, "{restart_s}");
        }
    }

    #[test]
    fn copies_move_at_the_rates_of_the_run() {
        let mut run = run("llama3-70b", "H100-SXM5-80GB", Task::Full, Layout::copies(64, 1));
        let usual = conditions(&run, CheckpointKind::InMemory);
        // PCIe 5, and one port of 400 Gbit/s.
        assert!((usual.checkpoint.host_bytes_per_s - 55e9).abs() < 1.0);
        assert!((usual.checkpoint.network_bytes_per_s - 50e9).abs() < 1.0);
        run.gpu.network_bytes_per_s = 5e8;
        let slow = conditions(&run, CheckpointKind::InMemory);
        let fetched_s = |conditions: &Conditions| conditions.checkpoint.fetched_s(64.0);
        assert!((fetched_s(&slow) / fetched_s(&usual) - 100.0).abs() < 1e-9);
    }

    #[test]
    fn a_node_is_a_tray_where_it_is_one() {
        let paid = |gpu: &str| {
            let run = run("llama3-8b", gpu, Task::Full, Layout::copies(64, 1));
            let mut conditions = conditions(&run, CheckpointKind::Asynchronous);
            conditions.spares.nodes = Some(2);
            conditions.paid_gpus()
        };
        assert!((paid("H100-SXM5-80GB") - 80.0).abs() < 1e-12);
        assert!((paid("GB200") - 72.0).abs() < 1e-12);
        assert!((paid("GB300") - 72.0).abs() < 1e-12);
    }
}
