//! Measures one in-process check with the facts already parsed. Prints one line per case: its name
//! and the time in microseconds.
#![expect(clippy::print_stdout, reason = "a benchmark prints its result")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::hint::black_box;
use std::time::Instant;

use farrier_facts::FactSet;
use farrier_facts::check::{CheckRequest, Query, check};
use jiff::civil::date;

fn main() {
    // `cargo bench` passes `--bench`; under `cargo test` one iteration is enough.
    let measured = std::env::args().any(|word| word == "--bench");
    let rounds: u32 = if measured { 20_000 } else { 1 };
    let request = |framework: Option<&str>| CheckRequest {
        gpu: "H100".to_owned(),
        driver: "550.54.15".to_owned(),
        cuda: Some("12.8".to_owned()),
        framework: framework.map(str::to_owned),
        ..CheckRequest::default()
    };
    for (name, request) in [
        (
            "check of H100, 550.54.15, CUDA 12.8 in process, including parsing the request",
            request(None),
        ),
        ("the same with torch 2.11.0", request(Some("torch==2.11.0"))),
    ] {
        let set = FactSet::embedded();
        let mut best = f64::MAX;
        for _ in 0..5 {
            let start = Instant::now();
            for _ in 0..rounds {
                let query = Query::parse(set, black_box(&request), date(2026, 11, 15));
                let _ = black_box(check(set, &query.expect("the request is good")));
            }
            best = best.min(start.elapsed().as_secs_f64() * 1e6 / f64::from(rounds));
        }
        println!("{name}\t{best:.1}");
    }
}
