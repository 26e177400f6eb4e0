//! Runs other programs with a deadline. Abandons one that is stuck in the kernel.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::last_bytes::LastBytes;

/// Maximum bytes of output kept.
const OUTPUT_BYTES_MAX: usize = 4 << 20;
/// Maximum characters of output in an error.
const SAID_CHARS_MAX: usize = 300;
/// Polling interval for its exit.
const LOOK: Duration = Duration::from_millis(5);
/// How long to wait after a kill. A process stuck in the kernel does not exit.
const KILL_WAIT: Duration = Duration::from_millis(500);
/// How long to wait for end of file after the exit: a child may hold the pipe open.
const OUTPUT_WAIT: Duration = Duration::from_secs(10);

/// Why a program failed.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    #[error("`{program}` did not start: {err}")]
    DidNotStart { program: String, err: io::Error },
    /// It exited, but its status is unavailable.
    #[error("`{program}` has no exit status: {err}")]
    NoStatus { program: String, err: io::Error },
    /// It missed its deadline.
    #[error("`{program}` has not ended after {} s and was killed", .after.as_secs())]
    Late { program: String, after: Duration },
    /// Killed because the order is no longer wanted.
    #[error("`{program}` was ended: nobody wants it any longer")]
    Unwanted { program: String },
    /// The output is incomplete. Missing output must not count as empty.
    #[error(
        "the output of `{program}` is not complete: a process that it started still has it open, or it is longer than {OUTPUT_BYTES_MAX} bytes"
    )]
    Incomplete { program: String },
    /// It exited with an error.
    #[error("`{program}` failed ({how}): {said}")]
    Failed {
        program: String,
        /// Its exit status or signal.
        how: String,
        /// Its output, shortened to one line.
        said: String,
    },
}

#[derive(Debug)]
pub(super) enum End {
    Exited(ExitStatus),
    /// It missed its deadline and was killed.
    Late,
    /// Killed because the order is no longer wanted.
    Unwanted,
}

/// A program that has exited, and its output.
#[derive(Debug)]
pub(super) struct Ran {
    program: String,
    deadline: Duration,
    pub(super) end: End,
    pub(super) stdout: Printed,
    pub(super) stderr: Printed,
}

/// Output of a program.
#[derive(Debug)]
pub(super) struct Printed {
    pub(super) bytes: Vec<u8>,
    /// Bytes dropped before them.
    pub(super) dropped_bytes: u64,
    /// Whether it was read to end of file.
    pub(super) is_whole: bool,
}

/// Which part of an output longer than [`OUTPUT_BYTES_MAX`] to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    /// The beginning. Then the pipe is closed, which ends most programs with SIGPIPE.
    First,
    /// The end. The program keeps running.
    Last,
}

impl Printed {
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

impl Ran {
    fn status(&self) -> Result<ExitStatus, ProcessError> {
        let program = self.program.clone();
        match self.end {
            End::Exited(status) => Ok(status),
            End::Late => Err(ProcessError::Late { program, after: self.deadline }),
            End::Unwanted => Err(ProcessError::Unwanted { program }),
        }
    }

    fn success(&self) -> Result<(), ProcessError> {
        let status = self.status()?;
        if status.success() {
            return Ok(());
        }
        // The pipe was closed at the limit.
        if status.signal() == Some(Signal::PIPE.as_raw()) && !self.stdout.is_whole {
            return Err(ProcessError::Incomplete { program: self.program.clone() });
        }
        let (err, out) = (self.stderr.text(), self.stdout.text());
        let said = [err.trim(), out.trim()].into_iter().find(|it| !it.is_empty());
        let said = said.unwrap_or("it said nothing").split_whitespace();
        let said = said.collect::<Vec<_>>().join(" ").chars().take(SAID_CHARS_MAX).collect();
        Err(ProcessError::Failed { program: self.program.clone(), how: status.to_string(), said })
    }

    fn whole_stdout(&self) -> Result<String, ProcessError> {
        let whole = self.stdout.is_whole.then(|| self.stdout.text());
        whole.ok_or_else(|| ProcessError::Incomplete { program: self.program.clone() })
    }

    /// Exit code, stdout and stderr, for any code. With codes 0 and 1 stdout holds the result and
    /// must be complete; with others stderr explains why there is none.
    pub(super) fn ended(&self) -> Result<(Option<i32>, String, String), ProcessError> {
        let code = self.status()?.code();
        let stdout = match code {
            Some(0 | 1) => self.whole_stdout()?,
            _ => self.stdout.text(),
        };
        Ok((code, stdout, self.stderr.text()))
    }
}

/// Runs a program to completion. Returns its complete output.
pub(super) fn run<A: AsRef<OsStr>>(
    program: &OsStr,
    words: impl IntoIterator<Item = A>,
    deadline: Duration,
) -> Result<String, ProcessError> {
    let ran = whole(made(program, words), &Limits::of(deadline), &|| true)?;
    ran.success()?;
    ran.whole_stdout()
}

/// Runs a program that makes a change to completion. It holds `alive` open as its stdin, and reads
/// nothing from it. It may leave behind a process that holds its output open.
pub(super) fn change<A: AsRef<OsStr>>(
    program: &OsStr,
    words: impl IntoIterator<Item = A>,
    deadline: Duration,
    alive: File,
) -> Result<(), ProcessError> {
    let mut command = made(program, words);
    command.stdin(alive);
    // The output is used only for the error.
    let limits = Limits { output_wait: KILL_WAIT, ..Limits::of(deadline) };
    whole(command, &limits, &|| true)?.success()
}

/// Like `change`, but returns the exit code and the output.
pub(super) fn change_and_tell<A: AsRef<OsStr>>(
    program: &OsStr,
    words: impl IntoIterator<Item = A>,
    deadline: Duration,
    alive: File,
) -> Result<(Option<i32>, String, String), ProcessError> {
    let mut command = made(program, words);
    command.stdin(alive);
    whole(command, &Limits::of(deadline), &|| true)?.ended()
}

/// Runs a read-only program. When it is no longer wanted, its whole process group is killed.
pub(super) fn while_wanted<A: AsRef<OsStr>>(
    program: &OsStr,
    words: impl IntoIterator<Item = A>,
    deadline: Duration,
    keep: Keep,
    wanted: &dyn Fn() -> bool,
) -> Result<Ran, ProcessError> {
    let mut command = made(program, words);
    command.process_group(0);
    whole(command, &Limits { group: Group::ItsOwn, keep, ..Limits::of(deadline) }, wanted)
}

fn made<A: AsRef<OsStr>>(program: &OsStr, words: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(program);
    command.args(words).env("LC_ALL", "C");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Group {
    Ours,
    ItsOwn,
}

struct Limits {
    deadline: Duration,
    output_wait: Duration,
    group: Group,
    /// Applies to stdout.
    keep: Keep,
}

impl Limits {
    fn of(deadline: Duration) -> Self {
        Self { deadline, output_wait: OUTPUT_WAIT, group: Group::Ours, keep: Keep::First }
    }
}

fn whole(
    mut command: Command,
    limits: &Limits,
    wanted: &dyn Fn() -> bool,
) -> Result<Ran, ProcessError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let spawned = command.spawn();
    let mut child =
        spawned.map_err(|err| ProcessError::DidNotStart { program: program.clone(), err })?;
    // The command also holds stdin open.
    drop(command);
    let out = Reader::start(child.stdout.take(), limits.keep);
    let err = Reader::start(child.stderr.take(), Keep::First);
    let has_exited = wait(&child, limits.deadline, wanted);
    // Kill before reaping: until then the kernel cannot reuse its PID, which is also the group's
    // id.
    if let (Group::ItsOwn, Some(pid)) = (limits.group, pid(&child)) {
        let _ = kill_process_group(pid, Signal::KILL);
    }
    let end = if has_exited {
        let status = child.wait();
        End::Exited(status.map_err(|err| ProcessError::NoStatus { program: program.clone(), err })?)
    } else {
        let _ = child.kill();
        if wait(&child, KILL_WAIT, &|| true) {
            let _ = child.wait();
        }
        if wanted() { End::Late } else { End::Unwanted }
    };
    let output_wait = if has_exited { limits.output_wait } else { KILL_WAIT };
    let (stdout, stderr) = (out.printed(output_wait), err.printed(output_wait));
    Ok(Ran { program, deadline: limits.deadline, end, stdout, stderr })
}

/// Reads in the background, so that neither a full pipe blocks the program nor endless output
/// blocks us.
struct Reader {
    output: Arc<Mutex<LastBytes>>,
    /// Receives at end of file. Disconnects without a message at the limit.
    ended: Receiver<()>,
}

impl Reader {
    fn start<R: Read + Send + 'static>(from: Option<R>, keep: Keep) -> Self {
        let (sender, ended) = channel();
        let output = Arc::new(Mutex::new(LastBytes::new(OUTPUT_BYTES_MAX)));
        let shared = Arc::clone(&output);
        std::thread::spawn(move || {
            let Some(mut from) = from else { return };
            let mut piece = [0; 16 << 10];
            loop {
                let count = match from.read(&mut piece) {
                    Ok(0) => {
                        let _ = sender.send(());
                        return;
                    }
                    Ok(count) => count,
                    Err(err) if err.kind() == io::ErrorKind::Interrupted => continue,
                    Err(_) => return,
                };
                let mut output = shared.lock().unwrap_or_else(PoisonError::into_inner);
                let room = match keep {
                    Keep::First => OUTPUT_BYTES_MAX - output.len(),
                    Keep::Last => count,
                };
                output.push(&piece[..count.min(room)]);
                // In `Last` mode there is no limit: stop once the output was taken, because a
                // process left behind may print forever.
                let is_taken = keep == Keep::Last && Arc::strong_count(&shared) == 1;
                if count > room || is_taken {
                    return;
                }
            }
        });
        Self { output, ended }
    }

    fn printed(self, patience: Duration) -> Printed {
        let is_whole = self.ended.recv_timeout(patience).is_ok();
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        let (bytes, dropped_bytes) = output.take();
        Printed { bytes, dropped_bytes, is_whole }
    }
}

fn pid(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

/// Whether it exited before the deadline. Does not reap it.
fn wait(child: &Child, deadline: Duration, wanted: &dyn Fn() -> bool) -> bool {
    let until = Instant::now() + deadline;
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    loop {
        let exited = pid(child).map(|pid| waitid(WaitId::Pid(pid), look));
        if matches!(exited, Some(Ok(Some(_)) | Err(rustix::io::Errno::CHILD))) {
            return true;
        }
        if Instant::now() >= until || !wanted() {
            return false;
        }
        std::thread::sleep(LOOK);
    }
}

pub(super) fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bounds a hang. A process that must not be waited for lives longer.
    const PATIENCE: Duration = Duration::from_secs(300);

    fn shell(script: &str, deadline_ms: u64) -> Result<String, ProcessError> {
        run(OsStr::new("sh"), ["-c", script], Duration::from_millis(deadline_ms))
    }

    fn shell_while(wanted: &dyn Fn() -> bool, script: &str, keep: Keep) -> Ran {
        while_wanted(OsStr::new("sh"), ["-c", script], PATIENCE, keep, wanted).unwrap()
    }

    #[test]
    fn what_it_prints_and_how_it_ends_is_told() {
        assert_eq!(shell("echo well", 300_000).unwrap(), "well\n");
        let err = shell("echo fine; echo 'GPU is in use' >&2; exit 3", 300_000).unwrap_err();
        assert_eq!(err.to_string(), "`sh` failed (exit status: 3): GPU is in use");
        let err = run(OsStr::new("/nonexistent"), [""; 0], Duration::from_secs(1));
        assert!(matches!(err, Err(ProcessError::DidNotStart { .. })), "{err:?}");
    }

    #[test]
    fn one_that_does_not_end_is_not_waited_for() {
        let begun = Instant::now();
        let err = shell("exec sleep 900", 50).unwrap_err();
        assert!(matches!(err, ProcessError::Late { .. }), "{err}");
        assert!(begun.elapsed() < PATIENCE);
    }

    #[test]
    fn one_that_is_no_longer_wanted_is_ended() {
        let (begun, looks) = (Instant::now(), std::cell::Cell::new(0));
        let wanted = || {
            looks.set(looks.get() + 1);
            looks.get() < 3
        };
        let ran =
            while_wanted(OsStr::new("sleep"), ["900"], 2 * PATIENCE, Keep::First, &wanted).unwrap();
        assert!(matches!(ran.end, End::Unwanted), "{ran:?}");
        assert!(begun.elapsed() < PATIENCE);
    }

    #[test]
    fn the_last_bytes_of_a_long_output_are_kept_from_the_beginning_of_a_line() {
        let script = "yes 'a line' | head -c 14000000; echo the last line; exit 3";
        let Ran { end, stdout, .. } = shell_while(&|| true, script, Keep::Last);
        assert!(matches!(end, End::Exited(status) if status.code() == Some(3)), "{end:?}");
        let text = stdout.text();
        assert!(text.starts_with("a line\n") && text.ends_with("\nthe last line\n"));
        assert!(stdout.is_whole && text.len() <= OUTPUT_BYTES_MAX);
        assert_eq!(stdout.dropped_bytes + text.len() as u64, 14_000_014);
    }

    #[test]
    fn a_lock_is_held_while_it_runs_and_no_longer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let open = || File::options().create(true).append(true).open(&path).unwrap();
        let held = open();
        held.lock().unwrap();
        let path = path.display().to_string();
        let script = format!("! flock --nonblock {path} true");
        change(OsStr::new("sh"), ["-c", &script], PATIENCE, held).unwrap();
        open().try_lock().unwrap();
    }

    /// Starts a process that outlives the script, and stores its PID.
    fn leaves_a_child(path: &std::path::Path, then: &str) -> String {
        format!("sleep 3600 & echo $! > {0}.new; mv {0}.new {0}; {then}", path.display())
    }

    fn until_it_is_over(path: &std::path::Path) {
        let pid = std::fs::read_to_string(path).unwrap();
        let stat = format!("/proc/{}/stat", pid.trim());
        // Killed, but perhaps not reaped yet.
        let is_over = || std::fs::read_to_string(&stat).map_or(true, |it| it.contains(") Z "));
        let until = Instant::now() + PATIENCE;
        while !is_over() {
            assert!(Instant::now() < until, "it still runs");
            std::thread::sleep(LOOK);
        }
    }

    #[test]
    fn what_a_script_has_started_ends_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pid");
        let wanted = || !path.exists();
        let script = leaves_a_child(&path, "echo so far; wait");
        let ran = shell_while(&wanted, &script, Keep::First);
        assert!(matches!(ran.end, End::Unwanted), "{ran:?}");
        until_it_is_over(&path);
        std::fs::remove_file(&path).unwrap();
        let script = leaves_a_child(&path, "echo all; exit 3");
        let ran = shell_while(&|| true, &script, Keep::First);
        assert_eq!(ran.ended().unwrap(), (Some(3), "all\n".to_owned(), String::new()));
        until_it_is_over(&path);
    }

    /// Truncated output must not look like empty output: from `squeue` that would mean no jobs.
    #[test]
    fn output_that_is_not_read_to_its_end_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pid");
        let script = leaves_a_child(&path, "echo '4711|RUNNING'");
        let command = made("sh".as_ref(), ["-c", &script]);
        let limits = Limits { output_wait: Duration::ZERO, ..Limits::of(PATIENCE) };
        let ran = whole(command, &limits, &|| true).unwrap();
        ran.success().unwrap();
        let err = ran.whole_stdout().unwrap_err();
        assert!(matches!(err, ProcessError::Incomplete { .. }), "{err}");
        let pid = std::fs::read_to_string(&path).unwrap();
        shell(&format!("kill {pid}"), 300_000).unwrap();
        // A program that makes a change may leave a process behind.
        let null = File::open("/dev/null").unwrap();
        let script = leaves_a_child(&path, "exit 0");
        change(OsStr::new("sh"), ["-c", &script], PATIENCE, null).unwrap();
        let pid = std::fs::read_to_string(&path).unwrap();
        shell(&format!("kill {pid}"), 300_000).unwrap();
        // A program that prints too much dies of SIGPIPE.
        let err = shell("exec head -c 5000000 /dev/zero", 300_000).unwrap_err();
        assert!(matches!(err, ProcessError::Incomplete { .. }), "{err}");
    }

    #[test]
    fn why_a_program_failed_is_known_where_its_output_is_not_whole() {
        let ended = |code: u8| {
            let script = format!("head -c 5000000 /dev/zero; echo no GPU >&2; exit {code}");
            shell_while(&|| true, &script, Keep::First).ended()
        };
        let (code, _, stderr) = ended(2).unwrap();
        assert_eq!((code, stderr.as_str()), (Some(2), "no GPU\n"));
        for code in [0, 1] {
            assert!(matches!(ended(code), Err(ProcessError::Incomplete { .. })), "{code}");
        }
    }
}
