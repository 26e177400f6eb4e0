//! `cargo xtask bench top`: cost of `farrier top`, compared with nvitop and nvtop. Each program
//! runs in an 80×24 tmux terminal with one refresh per second on the same simulated node. The
//! programs run one after the other, in several rounds.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};

use crate::bench_agent::peers;
use crate::bench_facts::{machine, today};
use crate::bench_size::Size;
use crate::process::{CpuTime, MemoryUsage};
use crate::python::target;
use crate::requirements;
use crate::shell::{command, print_status, run};

/// Prefix of this benchmark's tmux socket names.
const SOCKET: &str = "farrier-bench-top";

/// Sizes of a run.
#[derive(Clone, Copy)]
struct TopParams {
    rounds: usize,
    /// Measured time per program and round.
    watch: Duration,
    /// Time until charts, process lists and caches have filled.
    warm_up: Duration,
}

/// One minute per program in total.
const FULL: TopParams =
    TopParams { rounds: 3, watch: Duration::from_secs(20), warm_up: Duration::from_secs(6) };
const QUICK: TopParams =
    TopParams { rounds: 1, watch: Duration::from_secs(3), warm_up: Duration::from_secs(3) };

/// 1 % of a core.
const BUDGET_MS_PER_S: f64 = 10.0;

/// A measured program.
struct Program {
    name: String,
    line: String,
    ms_per_s: Vec<f64>,
    rss_mb: f64,
}

/// Runs the benchmark and writes `bench/top.md`.
pub(crate) fn run_all(size: Size) -> anyhow::Result<()> {
    requirements::ensure_tmux()?;
    size.build(&["--quiet", "--package=farrier", "--package=farrier-nvml-sim"])?;
    let (farrier, params) = (size.farrier(), size.pick(FULL, QUICK));
    let node = create_node(&farrier)?;
    let mut programs = programs(&farrier, &node)?;
    for round in 0..params.rounds {
        for program in &mut programs {
            print_status(&format!(
                "--- round {} of {}: {}",
                round + 1,
                params.rounds,
                program.name
            ));
            measure(program, params)?;
        }
    }
    size.publish("top", &text(&programs, params)?)?;
    let own = median(&programs[0].ms_per_s);
    let over = (own > BUDGET_MS_PER_S)
        .then(|| format!("`farrier top` takes {own:.1} ms of CPU per second"));
    size.judge(&over.into_iter().collect::<Vec<_>>())
}

/// Creates a node with eight H100 and a job on all of them.
fn create_node(farrier: &Path) -> anyhow::Result<PathBuf> {
    let folder = target().join("bench/top");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let node = folder.join("node");
    let mut make = command(farrier);
    make.args(["simulate", "node"]).arg(&node).args(["--sku", "H100-SXM5-80GB", "--gpus", "8"]);
    run(make.stdout(Stdio::null()), "farrier simulate node")?;
    for gpu in 0..8 {
        let (pid, gpu) = ((4000 + gpu).to_string(), gpu.to_string());
        let process = ["process", &pid, "--memory-mib", "69000", "--sm", "93", "--gpu", &gpu];
        for args in [&process[..], &["utilisation", "97", "--gpu", &gpu]] {
            let mut inject = command(farrier);
            inject.args(["simulate", "inject"]).arg(&node).args(args).stdout(Stdio::null());
            if !inject.status()?.success() {
                bail!("`farrier simulate inject {}` failed", args.join(" "));
            }
        }
    }
    Ok(node)
}

fn programs(farrier: &Path, node: &Path) -> anyhow::Result<Vec<Program>> {
    let library = format!("{}/lib", node.display());
    let program = |name: &str, line: String| Program {
        name: name.to_owned(),
        line,
        ms_per_s: Vec::new(),
        rss_mb: 0.0,
    };
    let own = format!(
        "exec {} top --nvml {library}/libnvidia-ml.so.1 --root {}/root",
        farrier.display(),
        node.display()
    );
    let python = peers::install()?;
    let by_python =
        format!("LD_LIBRARY_PATH={library} exec {} -m nvitop --interval 1", python.display());
    let mut programs = vec![program("farrier top", own), program("nvitop 1.7.2", by_python)];
    // nvtop is in Debian's `contrib` and may be missing. FARRIER_NVTOP can name another binary.
    let nvtop = std::env::var("FARRIER_NVTOP").unwrap_or_else(|_| "nvtop".to_owned());
    match command(&nvtop).arg("--version").output() {
        Ok(output) => {
            let version = String::from_utf8_lossy(&output.stdout).trim().replace("version ", "");
            // The delay is in tenths of a second.
            let line = format!("LD_LIBRARY_PATH={library} exec {nvtop} -d 10");
            programs.push(program(&version, line));
        }
        Err(_) => print_status("warning: nvtop is not installed; skipping it"),
    }
    Ok(programs)
}

fn measure(program: &mut Program, params: TopParams) -> anyhow::Result<()> {
    // A tmux server keeps running for a while after its last session, so each run has its own.
    let socket = format!("{SOCKET}-{}-{}", program.name.replace(' ', "-"), program.ms_per_s.len());
    let tmux = || {
        let mut tmux = command("tmux");
        tmux.args(["-L", &socket, "-f", "/dev/null"]);
        tmux
    };
    let mut start = tmux();
    start.args(["new-session", "-d", "-s", "bench", "-x", "80", "-y", "24", &program.line]);
    start.env("TERM", "xterm-256color");
    if !start.status().context("tmux is required: `apt-get install tmux`")?.success() {
        bail!("tmux failed to start `{}`", program.line);
    }
    std::thread::sleep(params.warm_up);
    let output = tmux().args(["display-message", "-p", "-t", "bench", "#{pane_pid}"]).output()?;
    let pid: u32 = String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .with_context(|| format!("`{}` has ended", program.name))?;
    let before = CpuTime::measure(pid, "child")?;
    std::thread::sleep(params.watch);
    let rates = CpuTime::measure(pid, "child")?.rates_since(&before);
    program.ms_per_s.push(rates.values().sum());
    program.rss_mb = program.rss_mb.max(MemoryUsage::of_process(pid)?.rss_mb());
    tmux().args(["kill-session", "-t", "bench"]).status()?;
    Ok(())
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

fn text(programs: &[Program], params: TopParams) -> anyhow::Result<String> {
    let mut text = String::from("# Cost of `farrier top`\n\n");
    writeln!(text, "Generated by `cargo xtask bench top` on {}: {}.\n", today()?, machine()?)?;
    writeln!(
        text,
        "The node is simulated: eight H100 with one process on each. Every program runs in a terminal of\n\
         80×24 with an interval of one second. The programs alternate, in {} rounds of {} s each. CPU time\n\
         and memory include child processes. `farrier top` has one child, the probe, which calls NVML.\n",
        params.rounds,
        params.watch.as_secs()
    )?;
    writeln!(
        text,
        "| program | CPU, ms/s: median | rounds | × `farrier top` | RSS, MB | budget |"
    )?;
    writeln!(text, "|---|---|---|---|---|---|")?;
    let own = median(&programs[0].ms_per_s);
    for (index, program) in programs.iter().enumerate() {
        let rounds: Vec<String> = program.ms_per_s.iter().map(|ms| format!("{ms:.2}")).collect();
        let median_ms = median(&program.ms_per_s);
        let budget = if index == 0 {
            format!("{BUDGET_MS_PER_S:.0} (1 % of a core)")
        } else {
            String::new()
        };
        writeln!(
            text,
            "| {} | {median_ms:.2} | {} | {:.2} | {:.1} | {budget} |",
            program.name,
            rounds.join(", "),
            median_ms / own,
            program.rss_mb
        )?;
    }
    writeln!(
        text,
        "\nThe simulated NVML library returns values from memory in the calling process. The cost of real NVML\n\
         calls is in [agent_h200.md](agent_h200.md), and [docs/top.md](../docs/top.md) lists how often\n\
         `farrier top` reads each value."
    )?;
    Ok(text)
}
