//! The project's own commands: `cargo xtask test | audit | bench | kernels | picture`.

mod audit;
mod bench;
mod bench_agent;
mod bench_fleet;
mod bench_log;
mod bench_planner;
mod bench_top;
mod kernels;
mod needs;
mod picture;
mod process;
mod python;
mod shell;
mod test;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  test              format, lints, every test, doc tests: what a change must pass
  test python       of these, lints and tests of the Python package; they need no framework
  test frameworks   the Python package with torch, Keras on each backend and JAX, on the CPU (installs 7 GB once)
  test gpu          the Python package on the GPU of this machine, with the torch of `python3`
  audit             cargo-deny: licences, bans and sources of the dependencies
  bench facts       speed of check and decode, kept in bench/facts.md
  bench agent       cost and speed of the agent on a simulated node, kept in bench/agent.md
  bench fleet       cost and speed of the server under a simulated fleet, kept in bench/fleet.md (half an hour, 12 GB of memory);
                    `--quick` for a minute of it; burst, findings, steady, certified, restart: only that
  bench planner     how far the planner is from published runs, kept in docs/planner_scoreboard.md, and its errors and speed beside
                    llm-analysis, kept in bench/planner.md; `--check`: only whether the scoreboard is what is committed
  kernels           the GPU kernels of `farrier diag` from their sources, with clang-14; only where a source was changed
  bench top         cost of `farrier top` beside nvitop and nvtop, kept in bench/top.md; `--debug` with what `cargo build` made
  picture top       `farrier top` on a simulated node, recorded in tmux: docs/top_80x24.svg, docs/top_wide.svg, docs/top_gpu.svg, docs/top.cast
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["test"] => test::run(),
        ["test", "python"] => test::python(),
        ["test", "frameworks"] => python::frameworks(),
        ["test", "gpu"] => python::gpu(),
        ["audit"] => audit::run(),
        ["bench", "facts"] => bench::facts(),
        ["bench", "agent"] => bench_agent::run(),
        ["bench", "planner"] => bench_planner::measure(),
        ["bench", "planner", "--check"] => bench_planner::check(),
        ["bench", "top"] => bench_top::run_all(false),
        ["bench", "top", "--debug"] => bench_top::run_all(true),
        ["picture", "top"] => picture::top(),
        ["bench", "fleet", how @ ..] => bench_fleet::run(how),
        ["kernels"] => kernels::build(),
        _ => {
            shell::say(USAGE);
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            shell::say(&format!("error: {err:#}"));
            ExitCode::from(1)
        }
    }
}
