//! Other programs, under a deadline. One that is stuck in the kernel is left behind.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// So much of what a program prints is kept.
const OUTPUT_BYTES_MAX: u64 = 4 << 20;
/// So much of it is repeated where it failed.
const SAID_CHARS_MAX: usize = 300;
/// How often its end is looked for.
const LOOK: Duration = Duration::from_millis(5);
/// How long what it printed is waited for after its end: a child of its own may hold the pipe.
const OUTPUT_WAIT: Duration = Duration::from_millis(500);

/// Why a program did not do it.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The system did not start it.
    #[error("`{program}` did not start: {err}")]
    DidNotStart {
        /// The program.
        program: String,
        /// Why.
        err: io::Error,
    },
    /// It ran into its deadline.
    #[error("`{program}` has not ended after {} s and was killed", .after.as_secs())]
    Late {
        /// The program.
        program: String,
        /// The deadline.
        after: Duration,
    },
    /// It was killed because the order is not wanted any longer.
    #[error("`{program}` was ended: nobody wants it any longer")]
    Unwanted {
        /// The program.
        program: String,
    },
    /// It ended with an error.
    #[error("`{program}` failed ({how}): {said}")]
    Failed {
        /// The program.
        program: String,
        /// Its exit status, or the signal.
        how: String,
        /// What it printed, abridged, in one line.
        said: String,
    },
}

/// Runs a program to its end; gives what it printed. `alive` stays open in it while it runs, as its input, of which it reads
/// nothing.
pub(super) fn run<A: AsRef<OsStr>>(
    program: &OsStr,
    words: impl IntoIterator<Item = A>,
    deadline: Duration,
    alive: Option<File>,
) -> Result<String, ProcessError> {
    let mut command = made(program, words);
    command.stdin(alive.map_or_else(Stdio::null, Stdio::from));
    let (status, out, err) = whole(command, deadline, &|| true)?;
    if status.success() {
        return Ok(out);
    }
    let said = [err.trim(), out.trim()].into_iter().find(|it| !it.is_empty());
    let said = said.unwrap_or("it said nothing").split_whitespace().collect::<Vec<_>>().join(" ");
    let said = said.chars().take(SAID_CHARS_MAX).collect();
    let program = program.to_string_lossy().into_owned();
    Err(ProcessError::Failed { program, how: status.to_string(), said })
}

/// Runs a program to its end, whichever that is; gives its exit code and what it printed on stdout and stderr. `alive` as above.
pub(super) fn ended<A: AsRef<OsStr>>(
    program: &OsStr,
    words: impl IntoIterator<Item = A>,
    deadline: Duration,
    alive: Option<File>,
) -> Result<(Option<i32>, String, String), ProcessError> {
    let mut command = made(program, words);
    command.stdin(alive.map_or_else(Stdio::null, Stdio::from));
    let (status, out, err) = whole(command, deadline, &|| true)?;
    Ok((status.code(), out, err))
}

/// The same for a program that changes nothing: it is ended when it is no longer wanted.
pub(super) fn while_wanted<A: AsRef<OsStr>>(
    program: &OsStr,
    words: impl IntoIterator<Item = A>,
    deadline: Duration,
    wanted: &dyn Fn() -> bool,
) -> Result<(Option<i32>, String, String), ProcessError> {
    let mut command = made(program, words);
    // A group of its own: a script ends with all that it has started.
    command.stdin(Stdio::null()).process_group(0);
    let (status, out, err) = whole(command, deadline, wanted)?;
    Ok((status.code(), out, err))
}

fn made<A: AsRef<OsStr>>(program: &OsStr, words: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(program);
    command.args(words).env("LC_ALL", "C");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn whole(
    mut command: Command,
    deadline: Duration,
    wanted: &dyn Fn() -> bool,
) -> Result<(ExitStatus, String, String), ProcessError> {
    let program = command.get_program().to_owned();
    let name = || program.to_string_lossy().into_owned();
    let mut child =
        command.spawn().map_err(|err| ProcessError::DidNotStart { program: name(), err })?;
    // The command has the input open as well.
    drop(command);
    let (out, err) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let Some(status) = wait(&mut child, deadline, wanted) else {
        // Of a program without a group of its own there is no such group.
        if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = child.kill();
        wait(&mut child, OUTPUT_WAIT, &|| true);
        return Err(if wanted() {
            ProcessError::Late { program: name(), after: deadline }
        } else {
            ProcessError::Unwanted { program: name() }
        });
    };
    let printed = |from: Receiver<Vec<u8>>| {
        let bytes = from.recv_timeout(OUTPUT_WAIT).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    Ok((status, printed(out), printed(err)))
}

/// Reads in the background: a program that prints much must not wait for us, nor we for one that prints for ever.
fn reader<R: Read + Send + 'static>(from: Option<R>) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(from) = from {
            let _ = from.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes);
        }
        let _ = sender.send(bytes);
    });
    receiver
}

fn wait(child: &mut Child, deadline: Duration, wanted: &dyn Fn() -> bool) -> Option<ExitStatus> {
    let until = Instant::now() + deadline;
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if Instant::now() >= until || !wanted() {
            return None;
        }
        std::thread::sleep(LOOK);
    }
}

/// Where the system's programs are found.
pub(super) fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ends a hang; a process that is not to be waited for lives longer.
    const PATIENCE: Duration = Duration::from_secs(300);

    fn shell(script: &str, deadline_ms: u64) -> Result<String, ProcessError> {
        run(OsStr::new("sh"), ["-c", script], Duration::from_millis(deadline_ms), None)
    }

    #[test]
    fn what_it_prints_and_how_it_ends_is_told() {
        assert_eq!(shell("echo well", 300_000).unwrap(), "well\n");
        let err = shell("echo fine; echo 'GPU is in use' >&2; exit 3", 300_000).unwrap_err();
        assert_eq!(err.to_string(), "`sh` failed (exit status: 3): GPU is in use");
        let err = run(OsStr::new("/nonexistent"), [""; 0], Duration::from_secs(1), None);
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
        let err = while_wanted(OsStr::new("sleep"), ["900"], 2 * PATIENCE, &wanted).unwrap_err();
        assert!(matches!(err, ProcessError::Unwanted { .. }), "{err}");
        assert!(begun.elapsed() < PATIENCE);
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
        run(OsStr::new("sh"), ["-c", &script], PATIENCE, Some(held)).unwrap();
        open().try_lock().unwrap();
    }

    #[test]
    fn what_a_script_has_started_ends_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pid");
        let script =
            format!("sleep 3600 & echo $! > {0}.new; mv {0}.new {0}; wait", path.display());
        let wanted = || !path.exists();
        let ran = while_wanted("sh".as_ref(), ["-c", &script], PATIENCE, &wanted);
        assert!(matches!(ran, Err(ProcessError::Unwanted { .. })), "{ran:?}");
        let pid = std::fs::read_to_string(&path).unwrap();
        let stat = format!("/proc/{}/stat", pid.trim());
        // Killed, and perhaps not reaped yet.
        let is_over = || std::fs::read_to_string(&stat).map_or(true, |it| it.contains(") Z "));
        let until = Instant::now() + PATIENCE;
        while !is_over() {
            assert!(Instant::now() < until, "it still runs");
            std::thread::sleep(LOOK);
        }
    }
}
