//! The project's own commands: `cargo xtask test | words | audit | bench | kernels | lab | picture`.

mod audit;
mod bench_agent;
mod bench_facts;
mod bench_fleet;
mod bench_log;
mod bench_planner;
mod bench_size;
mod bench_top;
mod kernels;
mod lab;
mod own_text;
mod picture;
mod process;
mod python;
mod requirements;
mod shell;
mod test;
mod words;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::bail;

use bench_size::Size;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  test              format, lints, all tests and doc tests: every change must pass
  test python       only lints and tests of the Python package that need no framework
  test sentences    only the check that no code parses our own messages
  test frameworks   the Python package with torch, Keras on each backend and JAX, on the CPU
                    (installs 7 GB once)
  test gpu          the Python package on the GPU of this machine, with the torch of `python3`
  words             fails on retired words, and on type names that several files define;
                    `cargo xtask test` runs it too
  audit             cargo-deny: licences, bans and sources of the dependencies
  bench facts       speed of check and decode, written to bench/facts.md
  bench agent       cost and latency of the agent on a simulated node, written to bench/agent.md
  bench fleet       cost and latency of the server with a simulated fleet, written to
                    bench/fleet.md (half an hour, 12 GB of memory); name scenarios to run only
                    these: burst, findings, flood, steady, certified, restart
  bench planner     error of the planner against published runs, written to
                    docs/planner_scoreboard.md, and comparison with llm-analysis, written to
                    bench/planner.md; with `--check` only checks the committed scoreboard
  bench top         cost of `farrier top` compared with nvitop and nvtop, written to bench/top.md
  bench all         all benchmarks, one after the other
                    --quick, with any benchmark: all stages with small sizes on a dev build, to
                    check that it works; the report goes to target/bench/quick and budgets are
                    not enforced
  kernels           compile the GPU kernels of `farrier diag` with clang-14, after source changes
  lab               driver changes in virtual machines with Debian's real packages: builds the
                    machine's disk once (needs root), then runs all scenarios
  lab --quick       the short set of CI
  lab list          all scenarios; `lab run NAME...` runs some of them
  lab shell         a machine with its console on this terminal; `lab exec SCRIPT` runs a script in
                    one, `lab exec --driver SCRIPT` with a driver installed
  picture top       record `farrier top` on a simulated node in tmux: docs/top_80x24.svg,
                    docs/top_wide.svg, docs/top_gpu.svg, docs/top.cast
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        ["test"] => test::run(),
        ["test", "python"] => test::python(),
        ["test", "frameworks"] => python::frameworks(),
        ["test", "gpu"] => python::gpu(),
        ["test", "sentences"] => test::sentences(),
        ["words"] => test::words(),
        ["audit"] => audit::run(),
        ["bench", "planner", "--check"] => bench_planner::check(),
        ["bench", which, more @ ..] => bench(which, more),
        ["picture", "top"] => picture::top(),
        ["kernels"] => kernels::build(),
        ["lab", args @ ..] => lab::run(args),
        _ => {
            shell::print_status(USAGE);
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            shell::print_status(&format!("error: {err:#}"));
            ExitCode::from(1)
        }
    }
}

/// All benchmarks, shortest first.
const BENCHES: [&str; 5] = ["planner", "facts", "top", "agent", "fleet"];

fn bench(which: &str, args: &[&str]) -> anyhow::Result<()> {
    let (size, more) = Size::parse(args);
    match (which, more.as_slice()) {
        ("facts", []) => bench_facts::run(size),
        ("agent", []) => bench_agent::run(size),
        ("planner", []) => bench_planner::measure(size),
        ("top", []) => bench_top::run_all(size),
        ("fleet", parts) => bench_fleet::run(size, parts),
        ("all", []) => bench_all(args),
        _ => bail!("unknown benchmark `{which} {}`\n\n{USAGE}", more.join(" ")),
    }
}

/// Runs every benchmark, even after one has failed.
fn bench_all(args: &[&str]) -> anyhow::Result<()> {
    let mut failed = Vec::new();
    for which in BENCHES {
        let started = Instant::now();
        shell::print_status(&format!("=== bench {which}"));
        let result = bench(which, args);
        shell::print_status(&format!(
            "=== bench {which}: {:.0} s",
            started.elapsed().as_secs_f64()
        ));
        if let Err(err) = result {
            failed.push(format!("bench {which}: {err:#}"));
        }
    }
    if !failed.is_empty() {
        bail!("{} of {} benchmarks failed\n{}", failed.len(), BENCHES.len(), failed.join("\n"));
    }
    shell::print_status(&format!("{} benchmarks completed", BENCHES.len()));
    Ok(())
}
