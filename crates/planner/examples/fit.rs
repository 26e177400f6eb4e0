//! Fits the coefficients to published rows and prints how far off they are on rows that had no part.
use farrier_planner::{coefficients::Coefficients, fit, published, time};
fn main() {
    let facts = farrier_facts::FactSet::embedded();
    let rows = published::read(&facts, published::embedded()).unwrap();
    let verbose = std::env::args().any(|a| a == "-v");
    let mut un = std::collections::BTreeMap::new();
    let mut good = vec![];
    for r in rows {
        match r {
            Ok(r) => good.push(r),
            Err(u) => *un.entry((u.complete, u.why, u.model)).or_insert(0) += 1,
        }
    }
    for (k, v) in &un {
        println!("uncovered {v} {k:?}");
    }
    let all: Vec<_> = good.iter().collect();
    let t = std::time::Instant::now();
    let c = fit::fit(&all);
    println!("fit {:?} rows {}", t.elapsed(), good.len());
    for (e, v) in Coefficients::ENTRIES.iter().zip(c.values()) {
        let z = (v / e.prior).ln() / e.spread;
        println!("{:28} {:>10.4e} prior {:>9.2e} z {:+.1}", e.name, v, e.prior, z);
    }
    let cv = fit::cross_validate(&good);
    let mut groups: std::collections::BTreeMap<String, Vec<f64>> = Default::default();
    let mut insample: std::collections::BTreeMap<String, Vec<f64>> = Default::default();
    for (r, e) in good.iter().zip(&cv) {
        let x = e.exp() - 1.0;
        let done = if r.assumed.is_empty() { "complete" } else { "open" };
        let kind = if r.run.model.experts.is_some() { "moe" } else { "dense" };
        let g = r.run.gpu.generation.name();
        let mut keys = vec![
            done.to_string(),
            format!("{done} {kind} {g} {}", r.run.precision.name()),
            format!("{done} {:?} {g}", r.run.stack),
            format!("kind {kind} {}", if g == "blackwell" { "blackwell" } else { "older" }),
        ];
        if done == "open" && kind == "moe" {
            keys.push(format!("moe {} {}", r.run.model.name, g));
        }
        let i = (fit::error(r, &c)).exp() - 1.0;
        for k in keys {
            groups.entry(k.clone()).or_default().push(x);
            insample.entry(k).or_default().push(i);
        }
        if verbose {
            let s = time::step(&r.run, &c);
            let l = &r.run.layout;
            let ph: Vec<String> = time::Phase::ALL
                .iter()
                .map(|p| format!("{:.0}", 100.0 * s.of(*p) / s.total_s()))
                .collect();
            println!(
                "ROW {:+6.1} {:+6.1} {:9} {:22} {:5} {:8} S{:<6} B{:<5} mb{:<3} tp{} pp{} vp{} cp{} ep{} {:?} {:?} {} {} [{}] {:.3}",
                100.0 * x,
                100.0 * i,
                r.date,
                r.run.model.name,
                l.gpus(),
                r.run.precision.name(),
                r.run.seq_len,
                r.run.global_batch,
                l.micro_batch,
                l.tp,
                l.pp,
                l.vp,
                l.cp,
                l.ep,
                l.recompute,
                l.sharding,
                r.gpu,
                &r.source
                    .chars()
                    .rev()
                    .take(20)
                    .collect::<String>()
                    .chars()
                    .rev()
                    .collect::<String>(),
                ph.join(" "),
                r.step_s
            );
        }
    }
    for (k, v) in &groups {
        let mut a: Vec<f64> = v.iter().map(|x| x.abs()).collect();
        a.sort_by(f64::total_cmp);
        let n = a.len();
        let mean = a.iter().sum::<f64>() / n as f64;
        let bias = v.iter().sum::<f64>() / n as f64;
        let im = insample[k].iter().map(|x| x.abs()).sum::<f64>() / n as f64;
        println!(
            "{k:45} n {n:4} mean {:5.1} med {:5.1} p90 {:5.1} bias {:+5.1}  insample {:5.1}",
            mean * 100.0,
            a[n / 2] * 100.0,
            a[(n * 9 / 10).min(n - 1)] * 100.0,
            bias * 100.0,
            im * 100.0
        );
    }
}
