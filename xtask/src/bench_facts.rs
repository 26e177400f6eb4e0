//! `cargo xtask bench facts`: speed of check and decode. The runs of each command alternate with
//! runs of a reference program.

use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::bench_log;
use crate::bench_size::Size;
use crate::process::ChildProcess;
use crate::python::target;
use crate::shell::{command, print_status};

/// Sizes of a run.
#[derive(Clone, Copy)]
struct FactsParams {
    log_bytes: u64,
    /// Cold starts of each program.
    starts: usize,
    /// How often each program reads the log.
    passes: usize,
}

/// The sizes that the budgets refer to.
const FULL: FactsParams = FactsParams { log_bytes: 1 << 30, starts: 200, passes: 5 };
const QUICK: FactsParams = FactsParams { log_bytes: 16 << 20, starts: 10, passes: 2 };

/// Arguments of the timed check.
const CHECK: [&str; 7] = ["check", "--gpu", "H100", "--driver", "550.54.15", "--cuda", "12.8"];

/// Runs the benchmark and writes `bench/facts.md`.
pub(crate) fn run(size: Size) -> anyhow::Result<()> {
    size.build(&[])?;
    let (farrier, params) = (size.farrier(), size.pick(FULL, QUICK));
    let cold = cold_starts(&farrier, params.starts)?;
    let in_process = in_process(size)?;
    let decode = decode(&farrier, params)?;
    size.publish("facts", &report(params, &cold, &in_process, &decode)?)?;
    let mut over = Vec::new();
    if cold[0].median_ms() > COLD_MS_MAX {
        over.push("cold start of check".to_owned());
    }
    if decode.times[0].median_ms() / decode.times[1].median_ms() > DECODE_RATIO_MAX {
        over.push("decode compared with grep".to_owned());
    }
    size.judge(&over)
}

/// Budgets: a check that feels instant, and decoding at about the speed of grep.
const COLD_MS_MAX: f64 = 5.0;
const DECODE_RATIO_MAX: f64 = 1.5;

/// Sorted timings of one program.
pub(crate) struct Timings(Vec<Duration>);

impl Timings {
    pub(crate) fn new(mut times: Vec<Duration>) -> Self {
        times.sort();
        Self(times)
    }

    pub(crate) fn median_ms(&self) -> f64 {
        self.0[self.0.len() / 2].as_secs_f64() * 1e3
    }

    pub(crate) fn p99_ms(&self) -> f64 {
        self.0[self.0.len() * 99 / 100].as_secs_f64() * 1e3
    }

    pub(crate) fn max_ms(&self) -> f64 {
        self.0[self.0.len() - 1].as_secs_f64() * 1e3
    }
}

/// Alternates between the commands, so that other load on the machine affects all of them alike.
fn run_interleaved(rounds: usize, commands: &mut [Command]) -> anyhow::Result<Vec<Timings>> {
    let mut times = vec![Vec::new(); commands.len()];
    for _ in 0..rounds {
        for (command, times) in commands.iter_mut().zip(&mut times) {
            let start = Instant::now();
            // stdout is a pipe, because grep stops at the first match if it is /dev/null.
            let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
            let mut output = child.stdout.take().context("the child has no pipe")?;
            std::io::copy(&mut output, &mut std::io::sink())?;
            let status = child.wait()?;
            times.push(start.elapsed());
            // Exit code 1 is a finding of `farrier`, or no match of `grep`; 2 is an error of either
            // program.
            if status.code().is_none_or(|code| code >= 2) {
                bail!("{command:?} failed ({status})");
            }
        }
    }
    Ok(times.into_iter().map(Timings::new).collect())
}

fn cold_starts(farrier: &Path, starts: usize) -> anyhow::Result<Vec<Timings>> {
    let mut check = command(farrier);
    check.args(CHECK);
    run_interleaved(starts, &mut [check, command("true")])
}

/// Runs the in-process benchmark, which prints microseconds per check. A quick run makes a single
/// round with the dev build, as `cargo test` runs benchmarks.
fn in_process(size: Size) -> anyhow::Result<String> {
    let full = ["bench", "--package", "farrier-facts"];
    let quick = ["test", "--workspace", "--exclude=xtask"];
    let output = command("cargo")
        .args(size.pick(full, quick))
        .args(["--quiet", "--locked", "--bench", "check"])
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        bail!("the in-process benchmark failed ({})", output.status);
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Timings of decode and grep, and the peak memory of decode by log size.
struct DecodeTimings {
    times: Vec<Timings>,
    resident_kib: [(u64, u64); 2],
}

fn decode(farrier: &Path, params: FactsParams) -> anyhow::Result<DecodeTimings> {
    let (bytes, small_bytes) = (params.log_bytes, params.log_bytes / 16);
    let (log, small) = (log_file(bytes)?, log_file(small_bytes)?);
    let decode = || {
        let mut decode = command(farrier);
        decode.args(["decode", "--output", "json"]);
        decode
    };
    let mut decode_file = decode();
    decode_file.arg(&log);
    let mut grep = command("grep");
    grep.env("LC_ALL", "C").args(["-F", "NVRM"]).arg(&log);
    // Reads the file once, so that it is in the page cache.
    std::io::copy(&mut File::open(&log)?, &mut std::io::sink())?;
    let times = run_interleaved(params.passes, &mut [decode_file, grep])?;
    let resident_kib = [
        (small_bytes, peak_resident_kib(decode(), &small)?),
        (bytes, peak_resident_kib(decode(), &log)?),
    ];
    Ok(DecodeTimings { times, resident_kib })
}

/// A log of this size in target/, created once.
fn log_file(bytes: u64) -> anyhow::Result<PathBuf> {
    let folder = target().join("bench");
    std::fs::create_dir_all(&folder)?;
    let path = folder.join(format!("kernel-{}-mib.log", bytes >> 20));
    if std::fs::metadata(&path).is_ok_and(|metadata| metadata.len() >= bytes) {
        return Ok(path);
    }
    print_status(&format!("--- writing {}", path.display()));
    bench_log::write(File::create(&path)?, bytes)?;
    Ok(path)
}

/// Peak memory of a command that reads the log from stdin. The memory is sampled after the last
/// byte was written and before stdin is closed, while the process still exists.
fn peak_resident_kib(mut command: Command, log: &Path) -> anyhow::Result<u64> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut input = child.stdin.take().context("the child has no pipe")?;
    let mut output = child.stdout.take().context("the child has no pipe")?;
    let mut process = ChildProcess(child);
    let drain = std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
    std::io::copy(&mut File::open(log)?, &mut input)?;
    let text = std::fs::read_to_string(format!("/proc/{}/status", process.pid()))?;
    drop(input);
    let status = process.0.wait()?;
    drain.join().map_err(|_| anyhow::anyhow!("the thread reading decode's output panicked"))??;
    if status.code().is_none_or(|code| code >= 2) {
        bail!("{command:?} failed ({status})");
    }
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    kib.and_then(|kib| kib.parse().ok()).context("no VmHWM in the status of decode")
}

fn report(
    params: FactsParams,
    cold: &[Timings],
    in_process: &str,
    decode: &DecodeTimings,
) -> anyhow::Result<String> {
    let (check, true_command) = (&cold[0], &cold[1]);
    let (ours, grep) = (&decode.times[0], &decode.times[1]);
    let ratio = ours.median_ms() / grep.median_ms();
    let mut text = String::new();
    writeln!(text, "# Speed of `farrier check` and `farrier decode`\n")?;
    writeln!(text, "Generated by `cargo xtask bench facts` on {}: {}.\n", today()?, machine()?)?;
    writeln!(text, "| what | measured | budget |")?;
    writeln!(text, "|---|---|---|")?;
    writeln!(
        text,
        "| `farrier {}`, cold process, median of {} (P99 {:.2} ms; starts alternate with \
         starts of `true`, which take {:.2} ms) | {:.2} ms | 5 ms |",
        CHECK.join(" "),
        params.starts,
        check.p99_ms(),
        true_command.median_ms(),
        check.median_ms()
    )?;
    for line in in_process.lines() {
        let (name, time) = line.split_once('\t').context("expected a name and a time")?;
        writeln!(text, "| {name} | {time} µs | 20 µs |")?;
    }
    writeln!(
        text,
        "| `farrier decode --output json` of a log of {} MiB, median of {} (runs alternate with \
         runs of `grep -F NVRM`, which take {:.0} ms) | {:.0} ms, ratio {ratio:.2} | ratio 1.5 |",
        params.log_bytes >> 20,
        params.passes,
        grep.median_ms(),
        ours.median_ms()
    )?;
    for (bytes, kib) in decode.resident_kib {
        writeln!(
            text,
            "| peak memory of decode, {} MiB of log | {:.1} MiB | the same for any size |",
            bytes >> 20,
            f64::from(u32::try_from(kib)?) / 1024.0
        )?;
    }
    Ok(text)
}

pub(crate) fn today() -> anyhow::Result<String> {
    let output = command("date").args(["-u", "+%Y-%m-%d"]).output()?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

pub(crate) fn machine() -> anyhow::Result<String> {
    let cpus = std::fs::read_to_string("/proc/cpuinfo")?;
    let field = |name: &str| {
        let line = cpus.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(": ")).map_or("unknown", |(_, value)| value).to_owned()
    };
    let cores = std::thread::available_parallelism()?;
    Ok(format!("{}, {cores} cores, a shared virtual machine", field("model name")))
}
