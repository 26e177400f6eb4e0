use farrier_planner::{
    gpu::Accelerator,
    layout::*,
    model::builtin,
    precision::Precision,
    run::*,
    search::{self, Axes},
    *,
};
fn main() {
    let facts = farrier_facts::FactSet::embedded();
    let t = std::time::Instant::now();
    let planner = Planner::shipped();
    println!("load {:?}", t.elapsed());
    for (m, g, n, s, b, p) in [
        ("llama3.1-405b", "H100-SXM-80GB", 16384, 8192, 2048, Precision::Bf16),
        ("llama3-70b", "H100-SXM-80GB", 8, 4096, 128, Precision::Bf16),
        ("llama3-8b", "H100-SXM-80GB", 8, 8192, 128, Precision::Fp8),
        ("deepseek-v3", "GB200", 256, 4096, 4096, Precision::Mxfp8),
    ] {
        let mut run = Run {
            model: builtin::named(m).unwrap().model(),
            gpu: Accelerator::named(facts, g).unwrap(),
            seq_len: s,
            global_batch: b,
            precision: p,
            layout: Layout { reduce_bytes: 2, ..Layout::copies(n, 1) },
            task: Task::Full,
            stack: Stack::Bridge,
            fused_experts: false,
        };
        let t = std::time::Instant::now();
        match search::search(planner, &run, n, &Axes::default()) {
            Ok(r) => {
                println!("{m} {g} {n}: {} tried {} fit {:?}", r.tried, r.fit, t.elapsed());
                for c in &r.best[..r.best.len().min(3)] {
                    println!(
                        "  {:.3} s {:.1} GiB {}",
                        c.step_s,
                        c.p95_gib,
                        search::describe(&c.layout)
                    );
                }
                for o in &r.others {
                    println!("     {} {:?} {:?}", o.change, o.slower, o.needs_gib);
                }
                for o in &r.ruled_out {
                    println!("     out {} {}", o.count, o.why);
                }
                run.layout = r.best[0].layout;
                run.stack = Axes::default().stack_for(&run.layout, run.stack);
                let t = std::time::Instant::now();
                for _ in 0..1000 {
                    std::hint::black_box(planner.step_s(&run));
                }
                println!("step {:?}", t.elapsed() / 1000);
                let t = std::time::Instant::now();
                for _ in 0..1000 {
                    std::hint::black_box(farrier_planner::memory::worst(&run));
                }
                println!("mem {:?}", t.elapsed() / 1000);
                let t = std::time::Instant::now();
                let e = planner.estimate(&run);
                println!(
                    "estimate {:?} {:.0} tok/s [{:.0} {:.0}] mfu {:.3} {:.3} corr {:+.3} {:?}",
                    t.elapsed(),
                    e.tokens_per_s_per_gpu,
                    e.tokens_per_s_per_gpu_p10,
                    e.tokens_per_s_per_gpu_p90,
                    e.mfu_causal,
                    e.mfu_full,
                    e.correction,
                    e.nearest_measured.map(|n| (
                        n.model,
                        n.gpu,
                        n.gpus,
                        n.tokens_per_s_per_gpu,
                        n.distance
                    ))
                );
            }
            Err(e) => println!("{m}: {e}"),
        }
    }
}
