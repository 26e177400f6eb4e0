//! Fits the coefficients to published rows and prints how far off they are on rows that had no part.
use farrier_planner::{coefficients::Coefficients, fit, local::Likeness, published, time};
use std::collections::BTreeMap;
fn main() {
    let facts = farrier_facts::FactSet::embedded();
    let rows = published::read(facts, published::embedded()).unwrap();
    let verbose = std::env::args().any(|a| a == "-v");
    let mut good = vec![];
    let mut un: BTreeMap<(bool, String, String), usize> = BTreeMap::new();
    for r in rows {
        match r {
            Ok(r) => good.push(r),
            Err(u) => *un.entry((u.complete, u.why, u.model)).or_insert(0) += 1,
        }
    }
    for (k, v) in &un {
        println!("uncovered {v} {k:?}");
    }
    let all: Vec<_> = good.iter().filter(|r| r.caution.is_none()).collect();
    let t = std::time::Instant::now();
    let c = fit::fit(&all);
    println!("fit {:?} rows {}", t.elapsed(), good.len());
    for (e, v) in Coefficients::ENTRIES.iter().zip(c.values()) {
        let z = (v / e.prior).ln() / e.spread;
        println!("{:28} {:>10.4e} prior {:>9.2e} z {:+.1}", e.name, v, e.prior, z);
    }
    let text: String = Coefficients::ENTRIES
        .iter()
        .zip(c.values())
        .map(|(e, v)| format!("{} = {v:.4e}\n", e.name))
        .collect();
    if std::env::args().any(|a| a == "-w") {
        std::fs::write("data/planner/coefficients.toml", text).unwrap();
    }
    let cross = fit::CrossValidation::of(&good);
    if std::env::args().any(|a| a == "-h") {
        // negative log likelihood of trials, robust
        let score = |l: &Likeness| -> f64 {
            let t = cross.trials(l);
            good.iter()
                .zip(&t)
                .filter(|(r, _)| r.caution.is_none())
                .map(|(r, t)| {
                    let w = if r.run.model.experts.is_some() { 0.5 } else { 1.0 };
                    let z = t.corrected / t.deviation;
                    w * (t.deviation.ln() + 2.5 * (1.0 + z * z / 4.0).ln())
                })
                .sum()
        };
        let mut best = Likeness::default();
        let mut cost = score(&best);
        let mut seed = 7u64;
        let mut rnd = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed % 1000003) as f64 / 1000003.0
        };
        for i in 0..400 {
            let mut l = best.clone();
            for _ in 0..2 {
                let f = (2.0 * rnd() - 1.0).exp();
                match (rnd() * 11.0) as usize {
                    0 => l.far *= f,
                    1 => l.far_experts *= f,
                    2 => l.noise *= f,
                    3 => l.open_noise *= f,
                    4 => l.reach *= f,
                    k => l.kinds[k - 5] *= f,
                }
            }
            let c = score(&l);
            if c < cost {
                cost = c;
                best = l;
                println!("{i} {cost:.1} {best:?}");
            }
        }
    }
    let cv = cross.trials(&Likeness::default());
    let mut groups: BTreeMap<String, Vec<[f64; 4]>> = BTreeMap::new();
    for (r, e) in good.iter().zip(&cv) {
        let x = e.corrected.exp() - 1.0;
        let plain = e.plain.exp() - 1.0;
        let inside = e.corrected.abs() < 1.2816 * e.deviation;
        let done = if r.assumed.is_empty() { "complete" } else { "open" };
        let kind = if r.run.model.experts.is_some() { "moe" } else { "dense" };
        let g = r.run.gpu.generation.name();
        let mut keys = vec![
            done.to_string(),
            format!("{done} {kind} {g} {}", r.run.precision.name()),
            format!("{done} {:?} {g}", r.run.stack),
            format!("kind {done} {kind} {}", if g == "blackwell" { "blackwell" } else { "older" }),
        ];
        if kind == "moe" {
            keys.push(format!("moe {} {}", r.run.model.name, g));
        }
        let i = (fit::error(r, &c)).exp() - 1.0;
        for k in keys {
            groups.entry(k).or_default().push([x, plain, i, f64::from(u8::from(inside))]);
        }
        if verbose {
            let s = time::step(&r.run, &c);
            let l = &r.run.layout;
            let ph: Vec<String> = time::Phase::ALL
                .iter()
                .map(|p| format!("{:.0}", 100.0 * s.of(*p) / s.total_s()))
                .collect();
            println!(
                "ROW {:+6.1} {:+6.1} {:+6.1} {:4.1} {:9} {:22} {:5} {:8} S{:<6} B{:<5} mb{:<3} tp{} pp{} vp{} cp{} ep{} {:?} {:?} {} {} [{}] {:.3} {:?}",
                100.0 * x,
                100.0 * plain,
                100.0 * i,
                100.0 * e.deviation,
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
                r.step_s,
                r.assumed
            );
        }
    }
    let mean =
        |v: &[[f64; 4]], i: usize| v.iter().map(|x| x[i].abs()).sum::<f64>() / v.len() as f64;
    for (k, v) in &groups {
        let mut a: Vec<f64> = v.iter().map(|x| x[0].abs()).collect();
        a.sort_by(f64::total_cmp);
        let n = a.len();
        let bias = v.iter().map(|x| x[0]).sum::<f64>() / n as f64;
        println!(
            "{k:45} n {n:4} mean {:5.1} med {:5.1} p90 {:5.1} bias {:+5.1}  plain {:5.1} insample {:5.1} inside {:3.0}",
            mean(v, 0) * 100.0,
            a[n / 2] * 100.0,
            a[(n * 9 / 10).min(n - 1)] * 100.0,
            bias * 100.0,
            mean(v, 1) * 100.0,
            mean(v, 2) * 100.0,
            mean(v, 3) * 100.0
        );
    }
}
