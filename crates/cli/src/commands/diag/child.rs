//! The child process that has the CUDA context. It runs one test at a time. Each test has a
//! timeout.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use farrier_facts::diag::{Level, Test, TestOutcome};
use farrier_hardware::cuda::gpu_tests::{TestBudget, TestProgress};
use farrier_hardware::cuda::{GpuInfo, TestEvent, TestRequest};
use farrier_hardware::kill_on_parent_exit;

use super::target::DiagTarget;

/// Timeout for starting CUDA, which is slow on machines with many GPUs.
const OPEN_TIMEOUT: Duration = Duration::from_secs(90);

/// A GPU that could not be opened.
#[derive(Debug, Clone)]
pub(super) struct GpuOpenError {
    pub(super) why: String,
    pub(super) is_gpu_fault: bool,
}

impl GpuOpenError {
    /// The outcome of a test that needed the GPU.
    pub(super) fn outcome(&self) -> TestOutcome {
        let why = self.why.clone();
        if self.is_gpu_fault { TestOutcome::Failed { why } } else { TestOutcome::NotRun { why } }
    }
}

/// A running child.
pub(super) struct TestChild {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<TestEvent>,
    pub(super) about: GpuInfo,
    /// Factor by which timeouts of a simulated GPU are shortened.
    speedup: f64,
    /// Whether a test timed out.
    pub(super) hung: bool,
}

impl TestChild {
    /// Opens a GPU. `peers` are the GPUs to which it may copy.
    pub(super) fn open(target: &DiagTarget, peers: &[&DiagTarget]) -> Result<Self, GpuOpenError> {
        let failed = |why: String| GpuOpenError { why, is_gpu_fault: false };
        // The running executable itself, even if an upgrade has replaced the file.
        let mut command = Command::new("/proc/self/exe");
        command.args(["probe", "cuda"]);
        if let Some((file, index)) = &target.simulated {
            command.arg("--simulated").arg(file).arg("--gpu").arg(index.to_string());
        } else {
            let visible: Vec<&str> = std::iter::once(target)
                .chain(peers.iter().copied())
                .map(|target| target.uuid.as_str())
                .collect();
            command.env("CUDA_VISIBLE_DEVICES", visible.join(","));
            // Load kernels before they are timed.
            command.env("CUDA_MODULE_LOADING", "EAGER");
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        kill_on_parent_exit(&mut command);
        let mut child = command
            .spawn()
            .map_err(|err| failed(format!("failed to start the child process: {err}")))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed("the child process has no pipes".to_owned()));
        };
        let (sender, lines) = channel();
        // The thread ends with the child's output; it is never joined.
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let Ok(message) = serde_json::from_str(&line) else { return };
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let speedup = if target.simulated.is_some() { 2.0 } else { 1.0 };
        let mut child = Self {
            child,
            input: Some(input),
            lines,
            about: GpuInfo::default(),
            speedup,
            hung: false,
        };
        match child.lines.recv_timeout(OPEN_TIMEOUT) {
            Ok(TestEvent::Opened(about)) => {
                child.about = about;
                Ok(child)
            }
            Ok(TestEvent::OpenFailed { why, implicates_gpu }) => {
                Err(GpuOpenError { why, is_gpu_fault: implicates_gpu })
            }
            Ok(TestEvent::Progress(_) | TestEvent::Done(_)) => {
                Err(failed("unexpected message from the child process".to_owned()))
            }
            Err(RecvTimeoutError::Timeout) => {
                let why = format!("CUDA did not start within {} s", OPEN_TIMEOUT.as_secs());
                Err(GpuOpenError { why, is_gpu_fault: true })
            }
            Err(RecvTimeoutError::Disconnected) => {
                let (why, is_gpu_fault) = child.exit_reason();
                Err(GpuOpenError { why, is_gpu_fault })
            }
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Runs a test and returns its outcome. The outcome is an `Err` if the child process is no
    /// longer usable.
    pub(super) fn run(
        &mut self,
        test: Test,
        budget: TestBudget,
        on_progress: &mut dyn FnMut(TestProgress),
    ) -> Result<TestOutcome, TestOutcome> {
        let deadline = deadline(test, &budget).div_f64(self.speedup);
        let until = Instant::now() + deadline;
        let failed = |why: String| Err(TestOutcome::Failed { why });
        let mut line = serde_json::to_vec(&TestRequest { test, budget }).unwrap_or_default();
        line.push(b'\n');
        let written = self.input.as_mut().map(|input| input.write_all(&line));
        if !matches!(written, Some(Ok(()))) {
            return Err(self.lost());
        }
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(TestEvent::Progress(now)) => on_progress(now),
                // After an error the CUDA context is unusable.
                Ok(TestEvent::Done(outcome @ TestOutcome::Failed { .. })) => return Err(outcome),
                Ok(TestEvent::Done(outcome)) => return Ok(outcome),
                Ok(TestEvent::Opened(_) | TestEvent::OpenFailed { .. }) => {
                    return failed("unexpected message from the child process".to_owned());
                }
                Err(RecvTimeoutError::Timeout) => {
                    let _ = self.child.kill();
                    self.hung = true;
                    return failed(format!(
                        "timed out after {} s: the GPU or its driver hangs",
                        deadline.as_secs()
                    ));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.lost()),
            }
        }
    }

    /// The outcome of a test whose child process has exited.
    fn lost(&mut self) -> TestOutcome {
        let (why, is_gpu_fault) = self.exit_reason();
        GpuOpenError { why, is_gpu_fault }.outcome()
    }

    /// Why the child process exited, and whether this means that the GPU has a fault.
    fn exit_reason(&mut self) -> (String, bool) {
        // The child has closed its output, so it is about to exit.
        for _ in 0..100 {
            match self.child.try_wait() {
                Ok(Some(status)) => return describe_exit(status),
                Ok(None) => std::thread::sleep(Duration::from_millis(10)),
                Err(err) => return (format!("the test process exited ({err})"), false),
            }
        }
        ("the test process closed its output and did not exit".to_owned(), true)
    }
}

// POSIX signal numbers.
const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// Describes an exit, and returns whether the GPU has a fault. If the child was killed, or exited
/// by itself, the GPU has no fault. Any other signal is considered a crash in the driver.
fn describe_exit(status: ExitStatus) -> (String, bool) {
    let why = format!("the test process exited ({status})");
    match status.signal() {
        Some(SIGKILL) => {
            (format!("{why}: killed by a user, or by the kernel for lack of host memory"), false)
        }
        Some(SIGTERM | SIGINT | SIGHUP) => (why, false),
        Some(_) => (why, true),
        None => (format!("{why}: this is a bug in Farrier"), false),
    }
}

impl Drop for TestChild {
    fn drop(&mut self) {
        // When the input ends, the child exits by itself and frees its resources.
        drop(self.input.take());
        for _ in 0..300 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.try_wait();
    }
}

/// Timeout of a test. It is many times the duration of the test on the slowest GPU.
fn deadline(test: Test, budget: &TestBudget) -> Duration {
    let seconds = match (test, test.level()) {
        (_, Level::One) => 30.0,
        (Test::MemoryPatterns, _) => 240.0,
        (_, Level::Two) => 60.0,
        (_, Level::Three) => budget.soak_s * 2.0 + 60.0,
    };
    Duration::from_secs_f64(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_child_does_not_blame_the_gpu() {
        let ended = |raw| describe_exit(ExitStatus::from_raw(raw));
        assert!(!ended(SIGKILL).1);
        assert!(ended(SIGKILL).0.contains("for lack of host memory"));
        assert!(!ended(SIGTERM).1);
        assert!(!ended(101 << 8).1, "a panic in Farrier");
        let (bus, segmentation) = (7, 11);
        assert!(ended(bus).1 && ended(segmentation).1);
    }
}
