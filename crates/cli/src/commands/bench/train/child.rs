//! A child with a deadline. What it prints goes to files: a grandchild that holds a pipe open keeps nobody waiting.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::shard::{Ending, Failure, Spec, measured};

/// A shard prints a line; what prints more than this does something else.
const OUTPUT_BYTES_MAX: u64 = 64 << 20;
/// As much of the end of its output is looked at.
const TAIL_BYTES: u64 = 256 << 10;
/// Lines of stderr that are kept of a child that failed.
const STDERR_LINES: usize = 20;
/// How often a child is looked at; a shard takes seconds.
const LOOK: Duration = Duration::from_millis(10);

/// How a child ended.
#[derive(Debug)]
pub(crate) enum End {
    /// By itself.
    Exit(ExitStatus),
    /// It was killed: too slow.
    Deadline,
    /// It was killed: the run stops here.
    Stopped,
    /// It was killed: it printed and printed.
    Flood,
}

/// What a child left.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) end: End,
    pub(crate) wall_s: f64,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs to the end, to the deadline, or until the run stops.
pub(crate) fn run(
    mut command: Command,
    scratch: impl Fn(&str) -> std::path::PathBuf,
    deadline: Duration,
    stop: Option<Instant>,
) -> io::Result<Ran> {
    let (stdout, stderr) = (scratch("stdout"), scratch("stderr"));
    command
        .stdin(Stdio::null())
        .stdout(Stdio::from(File::create(&stdout)?))
        .stderr(Stdio::from(File::create(&stderr)?));
    farrier_hardware::kill_on_parent_exit(&mut command);
    let began = Instant::now();
    let mut child = command.spawn()?;
    let end = loop {
        if let Some(status) = child.try_wait()? {
            break End::Exit(status);
        }
        let now = Instant::now();
        let cut = if now - began >= deadline {
            Some(End::Deadline)
        } else if stop.is_some_and(|stop| now >= stop) {
            Some(End::Stopped)
        } else if size(&stdout) + size(&stderr) > OUTPUT_BYTES_MAX {
            Some(End::Flood)
        } else {
            None
        };
        if let Some(cut) = cut {
            killed(&mut child)?;
            break cut;
        }
        std::thread::sleep(LOOK);
    };
    let wall_s = began.elapsed().as_secs_f64();
    Ok(Ran { end, wall_s, stdout: tail(&stdout)?, stderr: tail(&stderr)? })
}

fn killed(child: &mut Child) -> io::Result<()> {
    child.kill()?;
    child.wait()?;
    Ok(())
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |it| it.len())
}

/// The end of a file, as text.
fn tail(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// What became of the shard; none if the run stopped and the shard is still to do.
pub(crate) fn ending(spec: &Spec, ran: &Ran, deadline: Duration) -> Option<Ending> {
    let failed = |why: String| {
        let lines: Vec<&str> = ran.stderr.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = lines.iter().rev().take(STDERR_LINES).rev();
        Ending::Failed(Failure { why, stderr: last.map(|&line| line.to_owned()).collect() })
    };
    Some(match ran.end {
        End::Stopped => return None,
        End::Deadline => failed(format!("it had not ended after {} s", deadline.as_secs())),
        End::Flood => failed("it printed more than 64 MiB".to_owned()),
        End::Exit(status) if !status.success() => failed(format!("it ended with {status}")),
        End::Exit(_) => match result(spec, &ran.stdout) {
            Ok(value) => Ending::Done(value),
            Err(why) => failed(why),
        },
    })
}

/// The last line is the result: libraries print before it.
fn result(spec: &Spec, stdout: &str) -> Result<Value, String> {
    let last = stdout.lines().rev().find(|line| !line.trim().is_empty());
    let last = last.ok_or("it printed nothing")?;
    let value: Value = serde_json::from_str(last)
        .map_err(|err| format!("its last line is no JSON ({err}): {:.200}", last.trim()))?;
    measured(spec, &value)?;
    Ok(value)
}
