//! The shards that have not run, one after the other.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;

use super::plan::Plan;
use super::shard::{Ending, Machine, Measured, ShardFile, Spec, VERSION, measured};
use super::store::Store;
use super::{Args, child, driver_version, progress};
use crate::failure::Hinted;
use crate::stats::thousands;

/// Runs the shards that have not run.
pub(super) struct Runner<'a> {
    args: &'a Args,
    store: &'a Store,
    plan: &'a Plan,
    machine: Machine,
    command: String,
    stop: Option<Instant>,
}

impl<'a> Runner<'a> {
    pub(super) fn new(args: &'a Args, store: &'a Store, plan: &'a Plan) -> Self {
        let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
        let mut words: Vec<String> = words.collect();
        if let Some(first) = words.first_mut() {
            "farrier".clone_into(first);
        }
        Self {
            args,
            store,
            plan,
            machine: machine(),
            command: words.join(" "),
            stop: args.stop_after.map(|after_s| Instant::now() + Duration::from_secs(after_s)),
        }
    }

    /// How many are left.
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
        importable(&self.args.python, &left)?;
        progress(&format!("{} of {} shards to run", left.len(), shards.len()));
        for (place, spec) in left.iter().enumerate() {
            let longest = times
                .iter()
                .filter(|(other, _)| other.takes_as_long_as(spec))
                .map(|(_, wall_s)| *wall_s)
                .fold(0.0, f64::max);
            if self.left_s().is_some_and(|left_s| left_s <= longest) {
                return Ok(left.len() - place);
            }
            let Some(wall_s) = self.one(spec, place + 1, left.len())? else {
                return Ok(left.len() - place);
            };
            times.push(((*spec).clone(), wall_s));
        }
        Ok(0)
    }

    fn left_s(&self) -> Option<f64> {
        Some(self.stop?.saturating_duration_since(Instant::now()).as_secs_f64())
    }

    /// What a shard gave before, if it is not to be run again.
    fn finished(&self, spec: &Spec) -> anyhow::Result<Option<ShardFile>> {
        let name = spec.name();
        let Some(read) = self.store.read(&name)? else { return Ok(None) };
        let file = read.map_err(|why| {
            let message = format!("the shard `{name}` in `{}`: {why}", self.args.dir.display());
            Hinted::error(message, "remove its file, or measure into another --dir")
        })?;
        if file.spec != *spec {
            let message = format!(
                "`{}` holds the shard `{name}` of another measurement",
                self.args.dir.display()
            );
            let hint = "give the same --warmups, --groups, --steps and --memory-steps as before, or another --dir";
            return Err(Hinted::error(message, hint));
        }
        let again = self.args.retry_failed && matches!(file.outcome, Ending::Failed(_));
        Ok((!again).then_some(file))
    }

    /// Runs one and keeps it. None if the run has to stop before it is done.
    fn one(&self, spec: &Spec, place: usize, of: usize) -> anyhow::Result<Option<f64>> {
        let mut command = Command::new(&self.args.python);
        command.args(["-m", spec.module(), &spec.argument()?]);
        command.env("TORCHINDUCTOR_CACHE_DIR", self.store.compiled(spec.variant())?);
        let deadline = Duration::from_secs(self.args.deadline);
        let began = jiff::Timestamp::now().round(jiff::Unit::Second)?.to_string();
        let ran = child::run(command, |stream| self.store.scratch(stream), deadline, self.stop)
            .with_context(|| format!("failed to run `{}`", self.args.python.display()))?;
        let Some(outcome) = child::ending(spec, &ran, deadline) else { return Ok(None) };
        let said = said(spec, &outcome);
        progress(&format!("{place}/{of} {}: {said} ({:.0} s)", spec.title(), ran.wall_s));
        self.store.write(&ShardFile {
            farrier_shard: VERSION,
            spec: spec.clone(),
            machine: self.machine.clone(),
            began,
            wall_s: ran.wall_s,
            command: self.command.clone(),
            farrier: Some(env!("CARGO_PKG_VERSION").to_owned()),
            plan: Some(self.plan.clone()),
            outcome,
        })?;
        Ok(Some(ran.wall_s))
    }
}

/// A word on what became of a shard.
fn said(spec: &Spec, outcome: &Ending) -> String {
    let value = match outcome {
        Ending::Failed(failure) => return format!("FAILED, {}", failure.why),
        Ending::Done(value) => value,
    };
    match measured(spec, value) {
        Ok(Measured::Steps(it)) => {
            let least_s = it.step_s.iter().copied().fold(f64::INFINITY, f64::min);
            format!("up to {} tokens/s", thousands(it.tokens / least_s))
        }
        Ok(Measured::Memory(it)) => format!("{} of {} steps lost", it.lost.len(), it.steps_asked),
        Err(why) => why,
    }
}

/// Says all that the shards would miss, a line each. torch is not imported, which takes seconds: each shard does that
/// itself.
const QUESTION: &str = "\
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

/// Asks Python whether it has what the shards need: better one answer now than every shard's failure.
pub(super) fn importable(python: &Path, shards: &[&Spec]) -> anyhow::Result<()> {
    let mut modules: Vec<&str> = shards.iter().map(|spec| spec.module()).collect();
    modules.sort_unstable();
    modules.dedup();
    modules.push("torch");
    let shown = python.display();
    let asked = Command::new(python).args(["-c", QUESTION]).args(&modules).output();
    let asked = asked.map_err(|err| {
        let hint = Hinted::plain(format!("failed to run `{shown}`"), INSTALL);
        anyhow::Error::new(err).context(hint)
    })?;
    if asked.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&asked.stderr);
    let lines: Vec<&str> = words.lines().filter(|line| !line.trim().is_empty()).collect();
    let missing = lines.iter().map(|line| lack(line)).collect::<Option<Vec<_>>>();
    let Some(missing) = missing.filter(|all| !all.is_empty()) else {
        let last = lines.last().copied().unwrap_or_default();
        let message = format!("`{shown}` does not say what it has ({}): {last}", asked.status);
        return Err(Hinted::error(message, INSTALL));
    };
    let messages: Vec<&str> = missing.iter().map(|(message, _)| message.as_str()).collect();
    let mut hints: Vec<&str> = missing.iter().map(|&(_, hint)| hint).collect();
    hints.dedup();
    let message = format!("`{shown}` cannot measure here: {}", messages.join("; "));
    Err(Hinted::error(message, hints.join("; ")))
}

const INSTALL: &str = "install the package with its torch extra into that Python (`pip install './python[torch]'` in a checkout of \
                       farrier), set PYTHONPATH to `python/src` of one, or name another Python with --python";

/// What is missing, and what helps, of a line of the answer; none where it is no such line.
fn lack(line: &str) -> Option<(String, &'static str)> {
    let (what, rest) = line.split_once(' ')?;
    match what {
        "module" => Some((format!("there is no module `{rest}`"), INSTALL)),
        "cuda" => Some((
            "its torch is built without CUDA".to_owned(),
            "install a torch for CUDA, or name another Python with --python",
        )),
        "gpu" => Some((
            format!("there is no GPU: {rest}"),
            "this needs a machine with an NVIDIA GPU and its driver; `farrier check` says what is wrong with this node",
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
