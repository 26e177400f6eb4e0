//! The probe child as an OS process: pipes, deadlines, and the file with its current call.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::NOTICE;
use super::note::{self, COMPLAINT_BYTES, DriverCall, NOTE_BYTES};
use super::prober::{Asked, Children, Prober, StartError};

/// The response for 64 GPUs with 36 links each is about 300 kB.
const ANSWER_BYTES_MAX: usize = 8 << 20;

pub(super) struct Processes {
    pub(super) command: Box<dyn FnMut() -> Command + Send>,
}

pub(super) struct Process {
    child: Child,
    requests: Option<ChildStdin>,
    answers: ChildStdout,
    note: File,
    /// Bytes read beyond the last line.
    read: Vec<u8>,
}

impl Children for Processes {
    type Child = Process;

    fn start(&mut self) -> Result<Process, StartError> {
        let note = note::file().map_err(StartError::Spawn)?;
        let stderr = Stdio::from(note.try_clone().map_err(StartError::Spawn)?);
        let mut command = (self.command)();
        // Inherit no descriptors: a child that never exits must not keep our caller's pipe open.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr);
        // A separate process group: terminal signals go to the parent only, which then stops the
        // child.
        let spawned = command.process_group(0).spawn();
        let mut child = spawned.map_err(StartError::Spawn)?;
        let (Some(requests), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(StartError::NoPipes);
        };
        Ok(Process { child, requests: Some(requests), answers, note, read: Vec::new() })
    }
}

impl Prober for Process {
    fn ask(&mut self, line: &str, deadline: Duration, stop: &AtomicBool) -> Asked {
        let Some(requests) = &mut self.requests else { return Asked::Ended };
        if requests.write_all(line.as_bytes()).is_err() {
            return Asked::Ended;
        }
        let until = Instant::now() + deadline;
        let mut searched = 0;
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.read[searched..]) {
                let rest = self.read.split_off(searched + end + 1);
                let line = std::mem::replace(&mut self.read, rest);
                return if self.read.is_empty() { Asked::Line(line) } else { Asked::Babble };
            }
            searched = self.read.len();
            if searched > ANSWER_BYTES_MAX {
                return Asked::Babble;
            }
            if stop.load(Ordering::Relaxed) {
                return Asked::Stopped;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Asked::Late;
            }
            if wait(&self.answers, libc::POLLIN, left.min(NOTICE)) {
                let mut piece = [0; 16 << 10];
                match self.answers.read(&mut piece) {
                    Ok(0) | Err(_) => return Asked::Ended,
                    Ok(count) => self.read.extend_from_slice(&piece[..count]),
                }
            }
        }
    }

    fn idle(&mut self, limit: Duration) -> bool {
        // With no requested events, `poll` reports only the hang-up when the child exits.
        wait(&self.answers, 0, limit)
    }

    fn during(&self) -> DriverCall {
        let mut note = [0; NOTE_BYTES];
        match self.note.read_at(&mut note, 0) {
            Ok(count) => DriverCall::of(String::from_utf8_lossy(&note[..count]).trim()),
            Err(err) => {
                let name = format!("an unknown call (failed to read its name: {err})").into();
                DriverCall { name, gpu: None }
            }
        }
    }

    fn complaint(&self) -> String {
        let mut text = [0; COMPLAINT_BYTES];
        let count = self.note.read_at(&mut text, NOTE_BYTES as u64).unwrap_or(0);
        let text = String::from_utf8_lossy(&text[..count]);
        text.trim_matches(|letter: char| letter == '\0' || letter.is_whitespace()).to_owned()
    }

    fn dismiss(&mut self) {
        self.requests = None;
    }

    fn kill(&mut self) {
        self.requests = None;
        let _ = self.child.kill();
    }

    fn ended(&mut self) -> Option<String> {
        match self.child.try_wait() {
            Ok(Some(status)) => Some(status.to_string()),
            Ok(None) => None,
            // The child was reaped elsewhere.
            Err(err) => Some(err.to_string()),
        }
    }
}

/// Waits for `events` or a hang-up. Returns whether either happened.
fn wait(pipe: &ChildStdout, events: libc::c_short, limit: Duration) -> bool {
    let mut poll = libc::pollfd { fd: pipe.as_raw_fd(), events, revents: 0 };
    // Rounded up: a timeout below one millisecond would become a busy loop.
    let limit_ms = i32::try_from(limit.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
    // SAFETY: `poll` is one live structure and the count is one; the pipe is open while borrowed.
    let ready = unsafe { libc::poll(&raw mut poll, 1, limit_ms) };
    ready > 0 && poll.revents != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &'static str) -> Process {
        let command = move || {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        Processes { command: Box::new(command) }.start().unwrap()
    }

    fn ask(child: &mut Process, deadline: Duration) -> Asked {
        child.ask("fast\n", deadline, &AtomicBool::new(false))
    }

    /// Waits for the exit of a child that is about to exit.
    fn end_of(child: &mut Process) -> String {
        loop {
            if let Some(how) = child.ended() {
                return how;
            }
            child.idle(Duration::from_millis(5));
        }
    }

    /// Longer than any test should run; children that must not be waited for sleep longer.
    const LONG: Duration = Duration::from_secs(300);

    #[test]
    fn each_request_gets_one_line() {
        let mut child = shell("while read -r word; do echo \"said $word\"; done");
        for _ in 0..3 {
            assert_eq!(ask(&mut child, LONG), Asked::Line(b"said fast\n".to_vec()));
        }
        assert_eq!(child.ended(), None);
        child.dismiss();
        assert!(end_of(&mut child).contains("exit status: 0"));
    }

    #[test]
    fn timeout_names_the_call_and_leaves_no_zombie() {
        // A shell cannot write at an offset, so it writes only stderr and the call stays the
        // initial one.
        let mut child = shell("read -r word; echo 'something is odd' >&2; exec sleep 900");
        assert_eq!(ask(&mut child, Duration::from_millis(300)), Asked::Late);
        assert_eq!(child.during().to_string(), "startup");
        child.note.write_all_at(b"nvmlDeviceGetName\t3", 0).unwrap();
        assert_eq!(child.during().gpu, Some(3));
        assert_eq!(child.during().to_string(), "nvmlDeviceGetName of GPU 3");
        while child.complaint().is_empty() {
            child.idle(Duration::from_millis(5));
        }
        assert_eq!(child.complaint(), "something is odd");
        child.kill();
        assert!(end_of(&mut child).contains("signal: 9"));
    }

    #[test]
    fn exit_is_detected_while_idle_and_on_request() {
        let mut child = shell("exit 3");
        while !child.idle(LONG) {}
        assert_eq!(ask(&mut child, LONG), Asked::Ended);
        assert!(end_of(&mut child).contains("exit status: 3"));
    }

    #[test]
    fn more_than_one_line_is_malformed() {
        let mut child = shell("read -r word; printf 'one\\ntwo\\n'; exec sleep 900");
        // The two lines may arrive in one read or in two.
        let first = ask(&mut child, LONG);
        if first != Asked::Babble {
            assert_eq!(first, Asked::Line(b"one\n".to_vec()));
            assert_eq!(ask(&mut child, LONG), Asked::Line(b"two\n".to_vec()));
        }
        child.kill();
        end_of(&mut child);
    }

    #[test]
    fn stderr_is_bounded() {
        let script = "head -c 1000000 /dev/zero | tr '\\0' x >&2; read -r word; echo done";
        let mut child = shell(script);
        assert_eq!(ask(&mut child, LONG), Asked::Line(b"done\n".to_vec()));
        assert_eq!(child.note.metadata().unwrap().len(), (NOTE_BYTES + COMPLAINT_BYTES) as u64);
        assert!(child.complaint().starts_with("xxx"));
    }

    #[test]
    fn stop_interrupts_the_wait() {
        let mut child = shell("exec sleep 900");
        assert_eq!(child.ask("fast\n", LONG, &AtomicBool::new(true)), Asked::Stopped);
        child.kill();
        end_of(&mut child);
    }

    #[test]
    fn spawn_failure_is_reported() {
        let mut none = Processes { command: Box::new(|| Command::new("/nonexistent/farrier")) };
        assert!(matches!(none.start(), Err(StartError::Spawn(_))));
    }
}
