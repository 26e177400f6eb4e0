//! `cargo xtask bench facts`: speed of check and decode, each against a peer in the same run.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::bench_log;
use crate::shell::{cargo, command, root, say};

/// The size that the budget of decode is stated for.
const LOG_BYTES: u64 = 1 << 30;
/// Cold starts measured of each program.
const STARTS: usize = 200;
/// Passes over the log of each program.
const PASSES: usize = 5;

/// The words of the check that is timed.
const CHECK: [&str; 7] = ["check", "--gpu", "H100", "--driver", "550.54.15", "--cuda", "12.8"];

/// Measures and writes `bench/facts.md`.
pub(crate) fn facts() -> anyhow::Result<()> {
    cargo(&["build", "--release", "--locked"])?;
    let farrier = root().join("target/release/farrier");
    let cold = cold_starts(&farrier)?;
    let in_process = in_process()?;
    let decode = decode(&farrier)?;
    let report = report(&cold, &in_process, &decode)?;
    let file = root().join("bench/facts.md");
    std::fs::create_dir_all(root().join("bench"))?;
    std::fs::write(&file, &report)
        .with_context(|| format!("failed to write `{}`", file.display()))?;
    say(&report);
    let ratio = decode.times[0].median_ms() / decode.times[1].median_ms();
    if cold[0].median_ms() > COLD_MS_MAX || ratio > DECODE_RATIO_MAX {
        bail!("over budget; is the machine busy with something else?");
    }
    Ok(())
}

/// Budgets: an answer "at once", and a log read as fast as a person would grep it.
const COLD_MS_MAX: f64 = 5.0;
const DECODE_RATIO_MAX: f64 = 1.5;

/// Times of one program, sorted.
pub(crate) struct Times(Vec<Duration>);

impl Times {
    pub(crate) fn of(mut times: Vec<Duration>) -> Self {
        times.sort();
        Self(times)
    }

    pub(crate) fn median_ms(&self) -> f64 {
        self.0[self.0.len() / 2].as_secs_f64() * 1e3
    }

    pub(crate) fn worst_of_ninety_nine_percent_ms(&self) -> f64 {
        self.0[self.0.len() * 99 / 100].as_secs_f64() * 1e3
    }

    pub(crate) fn worst_ms(&self) -> f64 {
        self.0[self.0.len() - 1].as_secs_f64() * 1e3
    }
}

/// Runs the commands by turns, so that what else the machine does falls on all alike.
fn interleaved(rounds: usize, commands: &mut [Command]) -> anyhow::Result<Vec<Times>> {
    let mut times = vec![Vec::new(); commands.len()];
    for _ in 0..rounds {
        for (command, times) in commands.iter_mut().zip(&mut times) {
            let start = Instant::now();
            // A pipe, not /dev/null: grep stops at the first match when nobody reads on.
            let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
            let mut output = child.stdout.take().context("the child has a pipe")?;
            std::io::copy(&mut output, &mut std::io::sink())?;
            child.wait()?;
            times.push(start.elapsed());
        }
    }
    Ok(times.into_iter().map(Times::of).collect())
}

fn cold_starts(farrier: &Path) -> anyhow::Result<Vec<Times>> {
    let mut check = command(farrier);
    check.args(CHECK);
    interleaved(STARTS, &mut [check, command("true")])
}

/// What the in-process benchmark prints: microseconds a check.
fn in_process() -> anyhow::Result<String> {
    let output = command("cargo")
        .args(["bench", "--quiet", "--locked", "--package", "farrier-facts", "--bench", "check"])
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        bail!("the in-process benchmark failed ({})", output.status);
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Times of decode and of its peer, and the memory of decode.
struct Decode {
    times: Vec<Times>,
    resident_kib: [(u64, u64); 2],
}

fn decode(farrier: &Path) -> anyhow::Result<Decode> {
    let log = log_file(LOG_BYTES)?;
    let small = log_file(LOG_BYTES / 16)?;
    let decode = |log: &Path| {
        let mut decode = command(farrier);
        decode.args(["decode", "--output", "json"]).arg(log);
        decode
    };
    let mut grep = command("grep");
    grep.env("LC_ALL", "C").args(["-F", "NVRM"]).arg(&log);
    // Once over the file, so that neither pays for the disk.
    std::io::copy(&mut File::open(&log)?, &mut std::io::sink())?;
    let times = interleaved(PASSES, &mut [decode(&log), grep])?;
    let resident_kib = [
        (LOG_BYTES / 16, peak_resident_kib(decode(&small))?),
        (LOG_BYTES, peak_resident_kib(decode(&log))?),
    ];
    Ok(Decode { times, resident_kib })
}

/// A log of that size under target/, made once.
fn log_file(bytes: u64) -> anyhow::Result<PathBuf> {
    let folder = root().join("target/bench");
    std::fs::create_dir_all(&folder)?;
    let path = folder.join(format!("kernel-{}-mib.log", bytes >> 20));
    if std::fs::metadata(&path).is_ok_and(|metadata| metadata.len() >= bytes) {
        return Ok(path);
    }
    say(&format!("--- writing {}", path.display()));
    bench_log::write(File::create(&path)?, bytes)?;
    Ok(path)
}

/// The peak of a child's memory, read while its last output waits in the pipe.
fn peak_resident_kib(mut command: Command) -> anyhow::Result<u64> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let mut output = child.stdout.take().context("the child has a pipe")?;
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    let mut buffer = vec![0; 64 << 10];
    while output.read(&mut buffer)? > 0 {
        let Ok(text) = std::fs::read_to_string(&status) else { continue };
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.split_whitespace().next());
        peak = kib.and_then(|kib| kib.parse().ok()).unwrap_or(peak);
    }
    child.wait()?;
    if peak == 0 {
        bail!("the memory of decode could not be read");
    }
    Ok(peak)
}

fn report(cold: &[Times], in_process: &str, decode: &Decode) -> anyhow::Result<String> {
    let (check, peer) = (&cold[0], &cold[1]);
    let (ours, grep) = (&decode.times[0], &decode.times[1]);
    let ratio = ours.median_ms() / grep.median_ms();
    let mut text = String::new();
    writeln!(text, "# Speed of check and decode\n")?;
    writeln!(text, "Made by `cargo xtask bench facts` on {}: {}.\n", today()?, machine()?)?;
    writeln!(text, "| what | measured | budget |")?;
    writeln!(text, "|---|---|---|")?;
    writeln!(
        text,
        "| `farrier {}`, cold process, median of {STARTS} (99 %: {:.2} ms; `true`, by turns: {:.2} ms) \
         | {:.2} ms | 5 ms |",
        CHECK.join(" "),
        check.worst_of_ninety_nine_percent_ms(),
        peer.median_ms(),
        check.median_ms()
    )?;
    for line in in_process.lines() {
        let (name, time) = line.split_once('\t').context("the benchmark prints name and time")?;
        writeln!(text, "| {name} | {time} µs | 20 µs |")?;
    }
    writeln!(
        text,
        "| `farrier decode --output json` of a 1 GiB log, median of {PASSES}, by turns with \
         `grep -F NVRM` ({:.0} ms) | {:.0} ms, ratio {ratio:.2} | ratio 1.5 |",
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
