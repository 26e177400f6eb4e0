//! Runs other programs with a deadline. A program that is stuck in the kernel is abandoned.

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

/// Maximum number of bytes of output that are kept.
const OUTPUT_BYTES_MAX: usize = 4 << 20;
/// Maximum characters of output in an error.
const ERROR_CHARS_MAX: usize = 300;
/// How often to check whether the program has exited.
const POLL: Duration = Duration::from_millis(5);
/// How long to wait after a kill. A process stuck in the kernel does not exit.
const KILL_WAIT: Duration = Duration::from_millis(500);
/// How long to wait for the end of the output after the program has exited. A child process of the
/// program may keep the pipe open.
const OUTPUT_WAIT: Duration = Duration::from_secs(10);

/// Why a program failed.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    #[error("`{program}` did not start: {err}")]
    DidNotStart { program: String, err: io::Error },
    /// The program exited, but its status is unavailable.
    #[error("`{program}` has no exit status: {err}")]
    NoStatus { program: String, err: io::Error },
    /// The program missed its deadline.
    #[error("`{program}` timed out after {} s and was killed", .after.as_secs())]
    TimedOut { program: String, after: Duration },
    /// The program was killed, because the order is no longer active.
    #[error("`{program}` was killed: the order is no longer active")]
    Cancelled { program: String },
    /// The output is incomplete. This must not look like empty output.
    #[error(
        "the output of `{program}` is incomplete: a child process still has it open, or it exceeds {OUTPUT_BYTES_MAX} bytes"
    )]
    Incomplete { program: String },
    /// The program exited with an error.
    #[error("`{program}` failed ({status}): {output}")]
    Failed {
        program: String,
        /// Exit status of the program, or the signal that ended it.
        status: String,
        /// Output of the program, shortened to one line.
        output: String,
    },
}

#[derive(Debug)]
pub(super) enum End {
    Exited(ExitStatus),
    /// The program missed its deadline and was killed.
    TimedOut,
    /// The program was killed, because the order is no longer active.
    Cancelled,
}

/// A program that has exited, and its output.
#[derive(Debug)]
pub(super) struct CompletedProcess {
    program: String,
    deadline: Duration,
    pub(super) end: End,
    pub(super) stdout: CapturedOutput,
    pub(super) stderr: CapturedOutput,
}

/// Output of a program.
#[derive(Debug)]
pub(super) struct CapturedOutput {
    pub(super) bytes: Vec<u8>,
    /// Number of bytes that came before `bytes` in the output and were dropped.
    pub(super) dropped_bytes: u64,
    /// `true` if the output was read to end of file.
    pub(super) is_complete: bool,
}

/// Which bytes to keep of an output longer than [`OUTPUT_BYTES_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    /// The beginning is kept. The pipe is then closed, which ends most programs with SIGPIPE.
    First,
    /// The end is kept. The program keeps running.
    Last,
}

impl CapturedOutput {
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

impl CompletedProcess {
    fn status(&self) -> Result<ExitStatus, ProcessError> {
        let program = self.program.clone();
        match self.end {
            End::Exited(status) => Ok(status),
            End::TimedOut => Err(ProcessError::TimedOut { program, after: self.deadline }),
            End::Cancelled => Err(ProcessError::Cancelled { program }),
        }
    }

    fn success(&self) -> Result<(), ProcessError> {
        let status = self.status()?;
        if status.success() {
            return Ok(());
        }
        // The reader closed the pipe at the output limit.
        if status.signal() == Some(Signal::PIPE.as_raw()) && !self.stdout.is_complete {
            return Err(ProcessError::Incomplete { program: self.program.clone() });
        }
        let (err, out) = (self.stderr.text(), self.stdout.text());
        let text = [err.trim(), out.trim()].into_iter().find(|text| !text.is_empty());
        let words = text.unwrap_or("no output").split_whitespace();
        let output = words.collect::<Vec<_>>().join(" ").chars().take(ERROR_CHARS_MAX).collect();
        let (program, status) = (self.program.clone(), status.to_string());
        Err(ProcessError::Failed { program, status, output })
    }

    fn complete_stdout(&self) -> Result<String, ProcessError> {
        let complete = self.stdout.is_complete.then(|| self.stdout.text());
        complete.ok_or_else(|| ProcessError::Incomplete { program: self.program.clone() })
    }

    /// Exit code, stdout and stderr, for any exit code. With codes 0 and 1, stdout is the result
    /// and must be complete. With other codes, stderr explains why there is no result.
    pub(super) fn result(&self) -> Result<(Option<i32>, String, String), ProcessError> {
        let code = self.status()?.code();
        let stdout = match code {
            Some(0 | 1) => self.complete_stdout()?,
            _ => self.stdout.text(),
        };
        Ok((code, stdout, self.stderr.text()))
    }
}

/// Runs a program to completion. Returns its complete output.
pub(super) fn run<A: AsRef<OsStr>>(
    program: &OsStr,
    args: impl IntoIterator<Item = A>,
    deadline: Duration,
) -> Result<String, ProcessError> {
    let completed =
        run_command(build_command(program, args), &Limits::with_deadline(deadline), &|| true)?;
    completed.success()?;
    completed.complete_stdout()
}

/// Runs a program that makes a change, until it ends. The program has `lock` open as its stdin, but
/// does not read from it. A process that the program leaves behind may keep the output open.
pub(super) fn change<A: AsRef<OsStr>>(
    program: &OsStr,
    args: impl IntoIterator<Item = A>,
    deadline: Duration,
    lock: File,
) -> Result<(), ProcessError> {
    let mut command = build_command(program, args);
    command.stdin(lock);
    // The output is needed only for the error, so the wait for its end is short.
    let limits = Limits { output_wait: KILL_WAIT, ..Limits::with_deadline(deadline) };
    run_command(command, &limits, &|| true)?.success()
}

/// Like `change`, but returns the exit code and the output.
pub(super) fn change_with_output<A: AsRef<OsStr>>(
    program: &OsStr,
    args: impl IntoIterator<Item = A>,
    deadline: Duration,
    lock: File,
) -> Result<(Option<i32>, String, String), ProcessError> {
    let mut command = build_command(program, args);
    command.stdin(lock);
    run_command(command, &Limits::with_deadline(deadline), &|| true)?.result()
}

/// Runs a read-only program. Kills its process group once `is_active` returns false.
pub(super) fn run_cancellable<A: AsRef<OsStr>>(
    program: &OsStr,
    args: impl IntoIterator<Item = A>,
    deadline: Duration,
    keep: Keep,
    is_active: &dyn Fn() -> bool,
) -> Result<CompletedProcess, ProcessError> {
    let mut command = build_command(program, args);
    command.process_group(0);
    run_command(
        command,
        &Limits { group: Group::Own, keep, ..Limits::with_deadline(deadline) },
        is_active,
    )
}

fn build_command<A: AsRef<OsStr>>(program: &OsStr, args: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(program);
    command.args(args).env("LC_ALL", "C");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Group {
    Inherited,
    Own,
}

struct Limits {
    deadline: Duration,
    output_wait: Duration,
    group: Group,
    /// Which bytes of stdout are kept.
    keep: Keep,
}

impl Limits {
    fn with_deadline(deadline: Duration) -> Self {
        Self { deadline, output_wait: OUTPUT_WAIT, group: Group::Inherited, keep: Keep::First }
    }
}

fn run_command(
    mut command: Command,
    limits: &Limits,
    is_active: &dyn Fn() -> bool,
) -> Result<CompletedProcess, ProcessError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let spawned = command.spawn();
    let mut child =
        spawned.map_err(|err| ProcessError::DidNotStart { program: program.clone(), err })?;
    // The command still has its stdin open, and that stdin may be the lock.
    drop(command);
    let out = Reader::start(child.stdout.take(), limits.keep);
    let err = Reader::start(child.stderr.take(), Keep::First);
    let has_exited = wait(&child, limits.deadline, is_active);
    // Kill the group before reaping the child. Until then the kernel cannot reuse the child's PID,
    // which is also the id of the group.
    if let (Group::Own, Some(pid)) = (limits.group, pid(&child)) {
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
        if is_active() { End::TimedOut } else { End::Cancelled }
    };
    let output_wait = if has_exited { limits.output_wait } else { KILL_WAIT };
    let (stdout, stderr) = (out.finish(output_wait), err.finish(output_wait));
    Ok(CompletedProcess { program, deadline: limits.deadline, end, stdout, stderr })
}

/// Reads output in the background. A full pipe therefore does not block the program, and endless
/// output does not block the agent.
struct Reader {
    output: Arc<Mutex<LastBytes>>,
    /// The receiver gets a message at the end of the output. If the reader stops earlier, the
    /// channel is closed without a message.
    ended: Receiver<()>,
}

impl Reader {
    fn start<R: Read + Send + 'static>(pipe: Option<R>, keep: Keep) -> Self {
        let (sender, ended) = channel();
        let output = Arc::new(Mutex::new(LastBytes::new(OUTPUT_BYTES_MAX)));
        let shared = Arc::clone(&output);
        std::thread::spawn(move || {
            let Some(mut pipe) = pipe else { return };
            let mut chunk = [0; 16 << 10];
            loop {
                let count = match pipe.read(&mut chunk) {
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
                output.push(&chunk[..count.min(room)]);
                // `Keep::Last` has no limit on the output. Stop once the output has been taken,
                // because a process that was left behind may print forever.
                let is_abandoned = keep == Keep::Last && Arc::strong_count(&shared) == 1;
                if count > room || is_abandoned {
                    return;
                }
            }
        });
        Self { output, ended }
    }

    fn finish(self, timeout: Duration) -> CapturedOutput {
        let is_complete = self.ended.recv_timeout(timeout).is_ok();
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        let (bytes, dropped_bytes) = output.take();
        CapturedOutput { bytes, dropped_bytes, is_complete }
    }
}

fn pid(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

/// `true` if the child exited before the deadline. The child is not reaped.
fn wait(child: &Child, deadline: Duration, is_active: &dyn Fn() -> bool) -> bool {
    let until = Instant::now() + deadline;
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    loop {
        let exited = pid(child).map(|pid| waitid(WaitId::Pid(pid), options));
        if matches!(exited, Some(Ok(Some(_)) | Err(rustix::io::Errno::CHILD))) {
            return true;
        }
        if Instant::now() >= until || !is_active() {
            return false;
        }
        std::thread::sleep(POLL);
    }
}

pub(super) fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ends a test that hangs. Processes that a test must not wait for live longer than this.
    const TEST_TIMEOUT: Duration = Duration::from_secs(300);

    fn shell(script: &str, deadline_ms: u64) -> Result<String, ProcessError> {
        run(OsStr::new("sh"), ["-c", script], Duration::from_millis(deadline_ms))
    }

    fn shell_while(is_active: &dyn Fn() -> bool, script: &str, keep: Keep) -> CompletedProcess {
        run_cancellable(OsStr::new("sh"), ["-c", script], TEST_TIMEOUT, keep, is_active).unwrap()
    }

    #[test]
    fn output_and_failure_are_returned() {
        assert_eq!(shell("echo well", 300_000).unwrap(), "well\n");
        let err = shell("echo fine; echo 'GPU is in use' >&2; exit 3", 300_000).unwrap_err();
        assert_eq!(err.to_string(), "`sh` failed (exit status: 3): GPU is in use");
        let err = run(OsStr::new("/nonexistent"), [""; 0], Duration::from_secs(1));
        assert!(matches!(err, Err(ProcessError::DidNotStart { .. })), "{err:?}");
    }

    #[test]
    fn a_program_that_does_not_exit_times_out() {
        let start = Instant::now();
        let err = shell("exec sleep 900", 50).unwrap_err();
        assert!(matches!(err, ProcessError::TimedOut { .. }), "{err}");
        assert!(start.elapsed() < TEST_TIMEOUT);
    }

    #[test]
    fn a_cancelled_program_is_killed() {
        let (start, polls) = (Instant::now(), std::cell::Cell::new(0));
        let is_active = || {
            polls.set(polls.get() + 1);
            polls.get() < 3
        };
        let completed = run_cancellable(
            OsStr::new("sleep"),
            ["900"],
            2 * TEST_TIMEOUT,
            Keep::First,
            &is_active,
        )
        .unwrap();
        assert!(matches!(completed.end, End::Cancelled), "{completed:?}");
        assert!(start.elapsed() < TEST_TIMEOUT);
    }

    #[test]
    fn the_tail_of_a_long_output_starts_at_a_line_boundary() {
        let script = "yes 'a line' | head -c 14000000; echo the last line; exit 3";
        let CompletedProcess { end, stdout, .. } = shell_while(&|| true, script, Keep::Last);
        assert!(matches!(end, End::Exited(status) if status.code() == Some(3)), "{end:?}");
        let text = stdout.text();
        assert!(text.starts_with("a line\n") && text.ends_with("\nthe last line\n"));
        assert!(stdout.is_complete && text.len() <= OUTPUT_BYTES_MAX);
        assert_eq!(stdout.dropped_bytes + text.len() as u64, 14_000_014);
    }

    #[test]
    fn the_lock_is_held_only_while_the_program_runs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let open = || File::options().create(true).append(true).open(&path).unwrap();
        let locked = open();
        locked.lock().unwrap();
        let path = path.display().to_string();
        let script = format!("! flock --nonblock {path} true");
        change(OsStr::new("sh"), ["-c", &script], TEST_TIMEOUT, locked).unwrap();
        open().try_lock().unwrap();
    }

    /// A script that starts a process, stores its PID, and does not wait for it.
    fn script_with_child(path: &std::path::Path, then: &str) -> String {
        format!("sleep 3600 & echo $! > {0}.new; mv {0}.new {0}; {then}", path.display())
    }

    fn wait_for_exit(path: &std::path::Path) {
        let pid = std::fs::read_to_string(path).unwrap();
        let stat = format!("/proc/{}/stat", pid.trim());
        // The process was killed, but perhaps not reaped yet.
        let has_exited =
            || std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "));
        let until = Instant::now() + TEST_TIMEOUT;
        while !has_exited() {
            assert!(Instant::now() < until, "the process is still running");
            std::thread::sleep(POLL);
        }
    }

    #[test]
    fn child_processes_of_a_script_are_killed_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pid");
        let is_active = || !path.exists();
        let script = script_with_child(&path, "echo so far; wait");
        let completed = shell_while(&is_active, &script, Keep::First);
        assert!(matches!(completed.end, End::Cancelled), "{completed:?}");
        wait_for_exit(&path);
        std::fs::remove_file(&path).unwrap();
        let script = script_with_child(&path, "echo all; exit 3");
        let completed = shell_while(&|| true, &script, Keep::First);
        assert_eq!(completed.result().unwrap(), (Some(3), "all\n".to_owned(), String::new()));
        wait_for_exit(&path);
    }

    /// Truncated output must not look like empty output: from `squeue` that would mean no jobs.
    #[test]
    fn incomplete_output_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pid");
        let script = script_with_child(&path, "echo '4711|RUNNING'");
        let command = build_command("sh".as_ref(), ["-c", &script]);
        let limits = Limits { output_wait: Duration::ZERO, ..Limits::with_deadline(TEST_TIMEOUT) };
        let completed = run_command(command, &limits, &|| true).unwrap();
        completed.success().unwrap();
        let err = completed.complete_stdout().unwrap_err();
        assert!(matches!(err, ProcessError::Incomplete { .. }), "{err}");
        let pid = std::fs::read_to_string(&path).unwrap();
        shell(&format!("kill {pid}"), 300_000).unwrap();
        // A program that makes a change may leave a process behind.
        let null = File::open("/dev/null").unwrap();
        let script = script_with_child(&path, "exit 0");
        change(OsStr::new("sh"), ["-c", &script], TEST_TIMEOUT, null).unwrap();
        let pid = std::fs::read_to_string(&path).unwrap();
        shell(&format!("kill {pid}"), 300_000).unwrap();
        // A program that prints too much dies of SIGPIPE.
        let err = shell("exec head -c 5000000 /dev/zero", 300_000).unwrap_err();
        assert!(matches!(err, ProcessError::Incomplete { .. }), "{err}");
    }

    #[test]
    fn stderr_of_a_failed_program_is_returned_with_incomplete_stdout() {
        let run_script = |code: u8| {
            let script = format!("head -c 5000000 /dev/zero; echo no GPU >&2; exit {code}");
            shell_while(&|| true, &script, Keep::First).result()
        };
        let (code, _, stderr) = run_script(2).unwrap();
        assert_eq!((code, stderr.as_str()), (Some(2), "no GPU\n"));
        for code in [0, 1] {
            assert!(matches!(run_script(code), Err(ProcessError::Incomplete { .. })), "{code}");
        }
    }
}
