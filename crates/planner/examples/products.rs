//! Prints what tables of measured products say of each GPU and precision.
use farrier_planner::fit::products::{Product, shape};
use std::collections::BTreeMap;
fn main() {
    let dir = std::env::args().nth(1).expect("the folder of the tables");
    for (gpu, half) in [("a100", 312e12), ("h100", 989e12), ("h200", 989e12), ("b200", 2250e12)] {
        let out = std::process::Command::new("gzip")
            .args(["-dc", &format!("{dir}/gemm_measured_{gpu}.csv.gz")])
            .output()
            .unwrap();
        let mut kinds: BTreeMap<String, Vec<Product>> = BTreeMap::new();
        for line in String::from_utf8(out.stdout).unwrap().lines().skip(1) {
            let c: Vec<&str> = line.split(',').collect();
            let f = |i: usize| c[i].parse::<f64>().unwrap();
            kinds.entry(c[3].to_owned()).or_default().push(Product {
                rows: f(4),
                columns: f(5),
                depth: f(6),
                seconds: f(7) * 1e-3,
            });
        }
        for (kind, p) in kinds {
            let peak = half
                * match kind.as_str() {
                    "bfloat16" => 1.0,
                    "fp8" | "fp8_block" => 2.0,
                    "nvfp4" => 4.0,
                    _ => continue,
                };
            let bw = match gpu {
                "a100" => 2.0e12,
                "h100" => 3.35e12,
                "h200" => 4.8e12,
                _ => 8e12,
            };
            for bytes in [0.0, 3.0, 5.0] {
                println!(
                    "{gpu} {kind} {bytes} {:?}",
                    shape(&p, peak, if kind == "bfloat16" { 0.0 } else { bytes / (bw * 0.8) })
                );
            }
        }
    }
}
