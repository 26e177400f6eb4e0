//! The probe child as an OS process: pipes, deadlines, and the file with its current call.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::STOP_POLL;
use super::current_call::{self, CALL_BYTES, DriverCall, STDERR_BYTES};
use super::probe_child::{ProbeChild, ProbeReply, ProbeSpawner, StartError};

/// Maximum size of a response. For 64 GPUs with 36 links each it has about 300 kB.
const ANSWER_BYTES_MAX: usize = 8 << 20;

pub(super) struct ProcessSpawner {
    pub(super) command: Box<dyn FnMut() -> Command + Send>,
}

pub(super) struct ProbeProcess {
    child: Child,
    requests: Option<ChildStdin>,
    responses: ChildStdout,
    call_file: File,
    /// Bytes read beyond the last line.
    read: Vec<u8>,
}

impl ProbeSpawner for ProcessSpawner {
    type Child = ProbeProcess;

    fn start(&mut self) -> Result<ProbeProcess, StartError> {
        let call_file = current_call::file().map_err(StartError::Spawn)?;
        let stderr = Stdio::from(call_file.try_clone().map_err(StartError::Spawn)?);
        let mut command = (self.command)();
        // The child inherits no descriptors, because a child that never exits must not keep our
        // caller's pipe open.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr);
        // The child gets its own process group, so that terminal signals go only to the parent,
        // which then stops the child.
        let spawned = command.process_group(0).spawn();
        let mut child = spawned.map_err(StartError::Spawn)?;
        let (Some(requests), Some(responses)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(StartError::NoPipes);
        };
        Ok(ProbeProcess { child, requests: Some(requests), responses, call_file, read: Vec::new() })
    }
}

impl ProbeChild for ProbeProcess {
    fn request(&mut self, line: &str, deadline: Duration, stop: &AtomicBool) -> ProbeReply {
        let Some(requests) = &mut self.requests else { return ProbeReply::Exited };
        if requests.write_all(line.as_bytes()).is_err() {
            return ProbeReply::Exited;
        }
        self.keep_waiting(deadline, stop)
    }

    fn keep_waiting(&mut self, deadline: Duration, stop: &AtomicBool) -> ProbeReply {
        let until = Instant::now() + deadline;
        let mut searched = 0;
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.read[searched..]) {
                let rest = self.read.split_off(searched + end + 1);
                let line = std::mem::replace(&mut self.read, rest);
                return if self.read.is_empty() {
                    ProbeReply::Line(line)
                } else {
                    ProbeReply::Malformed
                };
            }
            searched = self.read.len();
            if searched > ANSWER_BYTES_MAX {
                return ProbeReply::Malformed;
            }
            if stop.load(Ordering::Relaxed) {
                return ProbeReply::Stopped;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return ProbeReply::TimedOut;
            }
            if wait(&self.responses, libc::POLLIN, left.min(STOP_POLL)) {
                let mut chunk = [0; 16 << 10];
                match self.responses.read(&mut chunk) {
                    Ok(0) | Err(_) => return ProbeReply::Exited,
                    Ok(count) => self.read.extend_from_slice(&chunk[..count]),
                }
            }
        }
    }

    fn wait_for_exit(&mut self, limit: Duration) -> bool {
        // Without requested events, `poll` reports only the hang-up that follows the child's exit.
        wait(&self.responses, 0, limit)
    }

    fn current_call(&self) -> DriverCall {
        let mut text = [0; CALL_BYTES];
        match self.call_file.read_at(&mut text, 0) {
            Ok(count) => DriverCall::parse(String::from_utf8_lossy(&text[..count]).trim()),
            Err(err) => {
                let name = format!("an unknown call (failed to read its name: {err})").into();
                DriverCall { name, gpu: None }
            }
        }
    }

    fn stderr(&self) -> String {
        let mut text = [0; STDERR_BYTES];
        let count = self.call_file.read_at(&mut text, CALL_BYTES as u64).unwrap_or(0);
        let text = String::from_utf8_lossy(&text[..count]);
        text.trim_matches(|letter: char| letter == '\0' || letter.is_whitespace()).to_owned()
    }

    fn request_exit(&mut self) {
        self.requests = None;
    }

    fn kill(&mut self) {
        self.requests = None;
        let _ = self.child.kill();
    }

    fn exit_status(&mut self) -> Option<String> {
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
    // Round up, because a timeout below one millisecond would become a busy loop.
    let limit_ms = i32::try_from(limit.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
    // SAFETY: `poll` is one live structure and the count is one; the pipe is open while borrowed.
    let ready = unsafe { libc::poll(&raw mut poll, 1, limit_ms) };
    ready > 0 && poll.revents != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &'static str) -> ProbeProcess {
        let command = move || {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        ProcessSpawner { command: Box::new(command) }.start().unwrap()
    }

    fn request(child: &mut ProbeProcess, deadline: Duration) -> ProbeReply {
        child.request("fast\n", deadline, &AtomicBool::new(false))
    }

    /// Waits for the exit of a child that is about to exit.
    fn wait_for_status(child: &mut ProbeProcess) -> String {
        loop {
            if let Some(how) = child.exit_status() {
                return how;
            }
            child.wait_for_exit(Duration::from_millis(5));
        }
    }

    /// Longer than any test should run. Children that a test must not wait for sleep longer.
    const LONG: Duration = Duration::from_secs(300);

    #[test]
    fn each_request_gets_one_line() {
        let mut child = shell("while read -r word; do echo \"answer $word\"; done");
        for _ in 0..3 {
            assert_eq!(request(&mut child, LONG), ProbeReply::Line(b"answer fast\n".to_vec()));
        }
        assert_eq!(child.exit_status(), None);
        child.request_exit();
        assert!(wait_for_status(&mut child).contains("exit status: 0"));
    }

    #[test]
    fn timeout_names_the_call_and_leaves_no_zombie() {
        // A shell cannot write at an offset, so it writes only stderr and the call stays the
        // initial one.
        let mut child = shell("read -r word; echo 'something is odd' >&2; exec sleep 900");
        assert_eq!(request(&mut child, Duration::from_millis(300)), ProbeReply::TimedOut);
        assert_eq!(child.current_call().to_string(), "startup");
        child.call_file.write_all_at(b"nvmlDeviceGetName\t3", 0).unwrap();
        assert_eq!(child.current_call().gpu, Some(3));
        assert_eq!(child.current_call().to_string(), "nvmlDeviceGetName of GPU 3");
        while child.stderr().is_empty() {
            child.wait_for_exit(Duration::from_millis(5));
        }
        assert_eq!(child.stderr(), "something is odd");
        child.kill();
        assert!(wait_for_status(&mut child).contains("signal: 9"));
    }

    #[test]
    fn exit_is_detected_while_idle_and_on_request() {
        let mut child = shell("exit 3");
        while !child.wait_for_exit(LONG) {}
        assert_eq!(request(&mut child, LONG), ProbeReply::Exited);
        assert!(wait_for_status(&mut child).contains("exit status: 3"));
    }

    #[test]
    fn more_than_one_line_is_malformed() {
        let mut child = shell("read -r word; printf 'one\\ntwo\\n'; exec sleep 900");
        // The two lines may arrive in one read or in two.
        let first = request(&mut child, LONG);
        if first != ProbeReply::Malformed {
            assert_eq!(first, ProbeReply::Line(b"one\n".to_vec()));
            assert_eq!(request(&mut child, LONG), ProbeReply::Line(b"two\n".to_vec()));
        }
        child.kill();
        wait_for_status(&mut child);
    }

    #[test]
    fn stderr_is_bounded() {
        let script = "head -c 1000000 /dev/zero | tr '\\0' x >&2; read -r word; echo done";
        let mut child = shell(script);
        assert_eq!(request(&mut child, LONG), ProbeReply::Line(b"done\n".to_vec()));
        assert_eq!(child.call_file.metadata().unwrap().len(), (CALL_BYTES + STDERR_BYTES) as u64);
        assert!(child.stderr().starts_with("xxx"));
    }

    #[test]
    fn stop_interrupts_the_wait() {
        let mut child = shell("exec sleep 900");
        assert_eq!(child.request("fast\n", LONG, &AtomicBool::new(true)), ProbeReply::Stopped);
        child.kill();
        wait_for_status(&mut child);
    }

    #[test]
    fn spawn_failure_is_reported() {
        let mut none =
            ProcessSpawner { command: Box::new(|| Command::new("/nonexistent/farrier")) };
        assert!(matches!(none.start(), Err(StartError::Spawn(_))));
    }
}
