//! Runs a child process with a timeout. The output of the child goes to files. The runner is
//! therefore not blocked if a process that the child started keeps the output open.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::shard::{ShardFailure, ShardOutcome, Spec, parse_result};

/// Maximum size of the output. A shard prints one line, so more output than this is an error.
const OUTPUT_BYTES_MAX: u64 = 64 << 20;
/// Bytes read from the end of each output file.
const TAIL_BYTES: u64 = 256 << 10;
/// Lines of stderr stored for a failed child.
const STDERR_LINES: usize = 20;
/// Poll interval. It is short compared with a shard, which takes seconds.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(crate) enum ChildEnd {
    Exit(ExitStatus),
    /// The child was killed because of the timeout.
    Deadline,
    /// The child was killed because the time of `--stop-after` is over.
    Stopped,
    /// The child was killed because of too much output.
    Flood,
}

#[derive(Debug)]
pub(crate) struct ChildOutput {
    pub(crate) end: ChildEnd,
    pub(crate) wall_s: f64,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs the child until one of these events: it exits, it prints too much, `deadline` is over, or
/// `stop` is reached.
pub(crate) fn run(
    mut command: Command,
    scratch: impl Fn(&str) -> std::path::PathBuf,
    deadline: Duration,
    stop: Option<Instant>,
) -> io::Result<ChildOutput> {
    let (stdout, stderr) = (scratch("stdout"), scratch("stderr"));
    command
        .stdin(Stdio::null())
        .stdout(Stdio::from(File::create(&stdout)?))
        .stderr(Stdio::from(File::create(&stderr)?));
    farrier_hardware::kill_on_parent_exit(&mut command);
    let started = Instant::now();
    let mut child = command.spawn()?;
    let end = loop {
        if let Some(status) = child.try_wait()? {
            break ChildEnd::Exit(status);
        }
        let now = Instant::now();
        let kill_reason = if now - started >= deadline {
            Some(ChildEnd::Deadline)
        } else if stop.is_some_and(|stop| now >= stop) {
            Some(ChildEnd::Stopped)
        } else if size(&stdout) + size(&stderr) > OUTPUT_BYTES_MAX {
            Some(ChildEnd::Flood)
        } else {
            None
        };
        if let Some(reason) = kill_reason {
            kill(&mut child)?;
            break reason;
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    let wall_s = started.elapsed().as_secs_f64();
    Ok(ChildOutput { end, wall_s, stdout: tail(&stdout)?, stderr: tail(&stderr)? })
}

fn kill(child: &mut Child) -> io::Result<()> {
    child.kill()?;
    child.wait()?;
    Ok(())
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}

/// The end of a file as text.
fn tail(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The outcome of the shard. `None` if the run was stopped before the end, so that the shard has to
/// run again.
pub(crate) fn outcome(
    spec: &Spec,
    output: &ChildOutput,
    deadline: Duration,
) -> Option<ShardOutcome> {
    let failed = |why: String| {
        let lines: Vec<&str> =
            output.stderr.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = lines.iter().rev().take(STDERR_LINES).rev();
        ShardOutcome::Failed(ShardFailure {
            why,
            stderr: last.map(|&line| line.to_owned()).collect(),
        })
    };
    Some(match output.end {
        ChildEnd::Stopped => return None,
        ChildEnd::Deadline => failed(format!("timed out after {} s", deadline.as_secs())),
        ChildEnd::Flood => failed("it printed more than 64 MiB".to_owned()),
        ChildEnd::Exit(status) if !status.success() => failed(format!("it exited with {status}")),
        ChildEnd::Exit(_) => match result(spec, &output.stdout) {
            Ok(value) => ShardOutcome::Done(value),
            Err(why) => failed(why),
        },
    })
}

/// Parses the last line of stdout, which contains the result. Libraries may print other lines
/// before this line.
fn result(spec: &Spec, stdout: &str) -> Result<Value, String> {
    let last = stdout.lines().rev().find(|line| !line.trim().is_empty());
    let last = last.ok_or("it printed nothing")?;
    let value: Value = serde_json::from_str(last)
        .map_err(|err| format!("its last line is not JSON ({err}): {:.200}", last.trim()))?;
    parse_result(spec, &value)?;
    Ok(value)
}
