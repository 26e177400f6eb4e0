//! Any configuration of a model is planned or refused, and any table of runs scored or refused; what
//! is planned is finite.
#![no_main]

use farrier_facts::FactSet;
use farrier_planner::gpu::Accelerator;
use farrier_planner::layout::Layout;
use farrier_planner::model::config;
use farrier_planner::precision::Precision;
use farrier_planner::run::{Run, Stack, Task};
use farrier_planner::{Planner, check, plan, published};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&str, &[u8], u8, u32)| {
    let (text, table, dp, seq_len) = input;
    let facts = FactSet::embedded();
    let planner = Planner::shipped();
    if let Ok(rows) = published::read(facts, table) {
        for row in rows.into_iter().flatten() {
            assert!(planner.step_s(&row.run).is_finite());
        }
    }
    let Ok(read) = config::read(text) else { return };
    let run = Run {
        model: read.model,
        gpu: Accelerator::named(facts, "H100-SXM5-80GB").expect("a part of the facts"),
        seq_len,
        global_batch: u32::from(dp),
        precision: Precision::Bf16,
        layout: Layout::copies(u32::from(dp), 1),
        task: Task::Full,
        stack: Stack::Bridge,
        fused_experts: false,
    };
    if check::check(&run).is_ok() {
        let plan = plan::plan(planner, &run, None, None);
        assert!(plan.estimate.step_time_s.is_finite() && plan.memory.p95_gib.is_finite());
    }
});
