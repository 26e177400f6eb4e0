//! Runs the unfinished shards one after the other.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;

use super::plan::Plan;
use super::shard::{Machine, ShardFile, ShardOutcome, ShardResult, Spec, VERSION, parse_result};
use super::store::ShardStore;
use super::{Args, child, driver_version, progress};
use crate::failure::Hinted;
use crate::stats::thousands;

pub(super) struct ShardRunner<'a> {
    args: &'a Args,
    store: &'a ShardStore,
    plan: &'a Plan,
    machine: Machine,
    command: String,
    stop: Option<Instant>,
}

impl<'a> ShardRunner<'a> {
    pub(super) fn new(args: &'a Args, store: &'a ShardStore, plan: &'a Plan) -> Self {
        let argv = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned());
        let mut argv: Vec<String> = argv.collect();
        if let Some(first) = argv.first_mut() {
            "farrier".clone_into(first);
        }
        Self {
            args,
            store,
            plan,
            machine: machine(),
            command: argv.join(" "),
            stop: args.stop_after.map(|after_s| Instant::now() + Duration::from_secs(after_s)),
        }
    }

    /// Runs the shards. Returns the number of shards that are left.
    pub(super) fn run(&self, shards: &[Spec]) -> anyhow::Result<usize> {
        let mut left = Vec::new();
        let mut times: Vec<(Spec, f64)> = Vec::new();
        for spec in shards {
            match self.finished(spec)? {
                Some(file) => times.push((file.spec, file.wall_s)),
                None => left.push(spec),
            }
        }
        if left.is_empty() {
            return Ok(0);
        }
        check_python(&self.args.python, &left)?;
        progress(&format!("{} of {} shards to run", left.len(), shards.len()));
        for (index, spec) in left.iter().enumerate() {
            let longest = times
                .iter()
                .filter(|(other, _)| other.takes_as_long_as(spec))
                .map(|(_, wall_s)| *wall_s)
                .fold(0.0, f64::max);
            if self.left_s().is_some_and(|left_s| left_s <= longest) {
                return Ok(left.len() - index);
            }
            let Some(wall_s) = self.run_shard(spec, index + 1, left.len())? else {
                return Ok(left.len() - index);
            };
            times.push(((*spec).clone(), wall_s));
        }
        Ok(0)
    }

    fn left_s(&self) -> Option<f64> {
        Some(self.stop?.saturating_duration_since(Instant::now()).as_secs_f64())
    }

    /// The stored result of a shard. `None` if the shard has to run.
    fn finished(&self, spec: &Spec) -> anyhow::Result<Option<ShardFile>> {
        let name = spec.name();
        let Some(read) = self.store.read(&name)? else { return Ok(None) };
        let file = read.map_err(|why| {
            let message = format!("the shard `{name}` in `{}`: {why}", self.args.dir.display());
            Hinted::error(message, "remove its file, or measure into another --dir")
        })?;
        if file.spec != *spec {
            let message = format!(
                "`{}` has the shard `{name}` of another measurement",
                self.args.dir.display()
            );
            let hint = "use the same --warmups, --groups, --steps and --memory-steps as before, or another --dir";
            return Err(Hinted::error(message, hint));
        }
        let again = self.args.retry_failed && matches!(file.outcome, ShardOutcome::Failed(_));
        Ok((!again).then_some(file))
    }

    /// Runs one shard and stores its result. Returns the duration, or `None` if the run is stopped
    /// before the end.
    fn run_shard(&self, spec: &Spec, number: usize, total: usize) -> anyhow::Result<Option<f64>> {
        let mut command = Command::new(&self.args.python);
        command.args(["-m", spec.module(), &spec.argument()?]);
        command.env("TORCHINDUCTOR_CACHE_DIR", self.store.compile_cache(spec.variant())?);
        let deadline = Duration::from_secs(self.args.deadline);
        let began = jiff::Timestamp::now().round(jiff::Unit::Second)?.to_string();
        let output = child::run(command, |stream| self.store.scratch(stream), deadline, self.stop)
            .with_context(|| format!("failed to run `{}`", self.args.python.display()))?;
        let Some(outcome) = child::outcome(spec, &output, deadline) else { return Ok(None) };
        let summary = summarize(spec, &outcome);
        let (title, wall_s) = (spec.title(), output.wall_s);
        progress(&format!("{number}/{total} {title}: {summary} ({wall_s:.0} s)"));
        self.store.write(&ShardFile {
            farrier_shard: VERSION,
            spec: spec.clone(),
            machine: self.machine.clone(),
            began,
            wall_s: output.wall_s,
            command: self.command.clone(),
            farrier: Some(env!("CARGO_PKG_VERSION").to_owned()),
            plan: Some(self.plan.clone()),
            outcome,
        })?;
        Ok(Some(output.wall_s))
    }
}

/// A short summary of a shard's outcome.
fn summarize(spec: &Spec, outcome: &ShardOutcome) -> String {
    let value = match outcome {
        ShardOutcome::Failed(failure) => return format!("FAILED, {}", failure.why),
        ShardOutcome::Done(value) => value,
    };
    match parse_result(spec, value) {
        Ok(ShardResult::Steps(steps)) => {
            let min_s = steps.step_s.iter().copied().fold(f64::INFINITY, f64::min);
            format!("up to {} tokens/s", thousands(steps.tokens / min_s))
        }
        Ok(ShardResult::Memory(memory)) => {
            format!("{} of {} steps lost", memory.lost.len(), memory.steps_asked)
        }
        Err(why) => why,
    }
}

/// Python preflight. It prints one line for each requirement of the shards that is missing. It does
/// not import torch, because this takes seconds, and each shard imports torch anyway.
const PREFLIGHT: &str = "\
import ctypes, importlib.util, pathlib, runpy, sys
missing = []
for name in sys.argv[1:]:
    try:
        found = importlib.util.find_spec(name)
    except ImportError:
        found = None
    if found is None:
        missing.append(f'module {name}')
    elif name == 'torch' and found.origin:
        version = pathlib.Path(found.origin).with_name('version.py')
        if version.is_file() and not any(map(runpy.run_path(str(version)).get, ('cuda', 'hip'))):
            missing.append('cuda of torch')
try:
    code = ctypes.CDLL('libcuda.so.1').cuInit(0)
    if code:
        missing.append(f'gpu cuInit gives {code}')
except OSError as error:
    missing.append(f'gpu {error}')
print(*missing, sep='\\n', file=sys.stderr)
sys.exit(bool(missing))
";

/// Checks that Python has what the shards need. If not, there is one error now, instead of one
/// error per shard.
pub(super) fn check_python(python: &Path, shards: &[&Spec]) -> anyhow::Result<()> {
    let mut modules: Vec<&str> = shards.iter().map(|spec| spec.module()).collect();
    modules.sort_unstable();
    modules.dedup();
    modules.push("torch");
    let shown = python.display();
    let output = Command::new(python).args(["-c", PREFLIGHT]).args(&modules).output();
    let output = output.map_err(|err| {
        let hint = Hinted::plain(format!("failed to run `{shown}`"), INSTALL);
        anyhow::Error::new(err).context(hint)
    })?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let missing = lines.iter().map(|line| parse_missing(line)).collect::<Option<Vec<_>>>();
    let Some(missing) = missing.filter(|all| !all.is_empty()) else {
        let last = lines.last().copied().unwrap_or_default();
        let message = format!("`{shown}` failed the preflight check ({}): {last}", output.status);
        return Err(Hinted::error(message, INSTALL));
    };
    let messages: Vec<&str> = missing.iter().map(|(message, _)| message.as_str()).collect();
    let mut hints: Vec<&str> = missing.iter().map(|&(_, hint)| hint).collect();
    hints.dedup();
    let message = format!("`{shown}` cannot measure here: {}", messages.join("; "));
    Err(Hinted::error(message, hints.join("; ")))
}

const INSTALL: &str = "install the package with its torch extra into that Python (`pip install './python[torch]'` in a checkout \
                       of farrier), set PYTHONPATH to its `python/src`, or name another Python with --python";

/// Parses a preflight line into what is missing and a hint; `None` for any other line.
fn parse_missing(line: &str) -> Option<(String, &'static str)> {
    let (kind, rest) = line.split_once(' ')?;
    match kind {
        "module" => Some((format!("no module `{rest}`"), INSTALL)),
        "cuda" => Some((
            "its torch is built without CUDA".to_owned(),
            "install a torch for CUDA, or name another Python with --python",
        )),
        "gpu" => Some((
            format!("no GPU: {rest}"),
            "this needs a machine with an NVIDIA GPU and its driver; `farrier check` diagnoses this node",
        )),
        _ => None,
    }
}

fn machine() -> Machine {
    let processor = fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    });
    Machine {
        driver: driver_version(),
        processor,
        cores: std::thread::available_parallelism().ok().map(std::num::NonZero::get),
        boot: fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .ok()
            .map(|id| id.chars().take(8).collect()),
    }
}
