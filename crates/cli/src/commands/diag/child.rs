//! The child that has the GPU: asked for one test at a time, and not waited for longer than a test may take.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use farrier_facts::diag::{Level, Outcome, Test};
use farrier_hardware::cuda::gpu_tests::{TestBudget, TestProgress};
use farrier_hardware::cuda::{GpuInfo, TestEvent, TestRequest};
use farrier_hardware::kill_on_parent_exit;

use super::card::Card;

/// Starting CUDA on a machine with many GPUs takes its time.
const OPEN: Duration = Duration::from_secs(90);

/// A GPU that could not be opened.
#[derive(Debug, Clone)]
pub(super) struct Closed {
    pub(super) why: String,
    /// Whether that says something of the GPU.
    pub(super) is_of_gpu: bool,
}

impl Closed {
    /// What becomes of a test for which it should have been opened.
    pub(super) fn outcome(&self) -> Outcome {
        let why = self.why.clone();
        if self.is_of_gpu { Outcome::Failed { why } } else { Outcome::NotRun { why } }
    }
}

/// A running child.
pub(super) struct Examiner {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<TestEvent>,
    pub(super) about: GpuInfo,
    /// By how much a simulated GPU is waited for less.
    hurry: f64,
    /// Whether a test did not end.
    pub(super) hung: bool,
}

impl Examiner {
    /// Opens a GPU. `with` are others that it may copy to.
    pub(super) fn open(card: &Card, with: &[&Card]) -> Result<Self, Closed> {
        let failed = |why: String| Closed { why, is_of_gpu: false };
        // The very file that runs, whatever an upgrade has put in its place since.
        let mut command = Command::new("/proc/self/exe");
        command.args(["probe", "cuda"]);
        if let Some((file, index)) = &card.simulated {
            command.arg("--simulated").arg(file).arg("--gpu").arg(index.to_string());
        } else {
            let seen: Vec<&str> = std::iter::once(card)
                .chain(with.iter().copied())
                .map(|it| it.uuid.as_str())
                .collect();
            command.env("CUDA_VISIBLE_DEVICES", seen.join(","));
            // Kernels are loaded before they are timed.
            command.env("CUDA_MODULE_LOADING", "EAGER");
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        kill_on_parent_exit(&mut command);
        let mut child =
            command.spawn().map_err(|err| failed(format!("no child started: {err}")))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed("the child has no pipes".to_owned()));
        };
        let (sender, lines) = channel();
        // The thread ends with the child's output; it is not waited for.
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let Ok(said) = serde_json::from_str(&line) else { return };
                if sender.send(said).is_err() {
                    return;
                }
            }
        });
        let hurry = if card.simulated.is_some() { 2.0 } else { 1.0 };
        let mut examiner = Self {
            child,
            input: Some(input),
            lines,
            about: GpuInfo::default(),
            hurry,
            hung: false,
        };
        match examiner.lines.recv_timeout(OPEN) {
            Ok(TestEvent::Opened(about)) => {
                examiner.about = about;
                Ok(examiner)
            }
            Ok(TestEvent::OpenFailed { why, implicates_gpu: is_of_gpu }) => {
                Err(Closed { why, is_of_gpu })
            }
            Ok(TestEvent::Progress(_) | TestEvent::Done(_)) => {
                Err(failed("the child answers what nobody asked".to_owned()))
            }
            Err(RecvTimeoutError::Timeout) => {
                let why = format!("CUDA did not start within {} s", OPEN.as_secs());
                Err(Closed { why, is_of_gpu: true })
            }
            Err(RecvTimeoutError::Disconnected) => {
                let (why, is_of_gpu) = examiner.ended();
                Err(Closed { why, is_of_gpu })
            }
        }
    }

    /// As NVML may know it.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Runs a test. `Err`: the child is of no use any more; the outcome tells what became of the test.
    pub(super) fn run(
        &mut self,
        test: Test,
        effort: TestBudget,
        beat: &mut dyn FnMut(TestProgress),
    ) -> Result<Outcome, Outcome> {
        let deadline = deadline(test, &effort).div_f64(self.hurry);
        let until = Instant::now() + deadline;
        let failed = |why: String| Err(Outcome::Failed { why });
        let mut line =
            serde_json::to_vec(&TestRequest { test, budget: effort }).unwrap_or_default();
        line.push(b'\n');
        let written = self.input.as_mut().map(|input| input.write_all(&line));
        if !matches!(written, Some(Ok(()))) {
            return Err(self.lost());
        }
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(TestEvent::Progress(now)) => beat(now),
                // After an error the context is of no use.
                Ok(TestEvent::Done(outcome @ Outcome::Failed { .. })) => return Err(outcome),
                Ok(TestEvent::Done(outcome)) => return Ok(outcome),
                Ok(TestEvent::Opened(_) | TestEvent::OpenFailed { .. }) => {
                    return failed("the child lost its place".to_owned());
                }
                Err(RecvTimeoutError::Timeout) => {
                    let _ = self.child.kill();
                    self.hung = true;
                    return failed(format!(
                        "it did not end within {} s: the GPU or its driver hangs",
                        deadline.as_secs()
                    ));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.lost()),
            }
        }
    }

    /// What becomes of a test whose child has ended.
    fn lost(&mut self) -> Outcome {
        let (why, is_of_gpu) = self.ended();
        Closed { why, is_of_gpu }.outcome()
    }

    /// How the child ended, and whether that says something of the GPU.
    fn ended(&mut self) -> (String, bool) {
        // Its output has ended; it itself is about to.
        for _ in 0..100 {
            match self.child.try_wait() {
                Ok(Some(status)) => return how_ended(status),
                Ok(None) => std::thread::sleep(Duration::from_millis(10)),
                Err(err) => return (format!("the process that ran it ended ({err})"), false),
            }
        }
        ("the process that ran it says nothing more".to_owned(), true)
    }
}

// The numbers of POSIX.
const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// A child that somebody killed, or that gave up by itself, tells nothing of the GPU; one that crashed in the driver does.
fn how_ended(status: ExitStatus) -> (String, bool) {
    let why = format!("the process that ran it ended ({status})");
    match status.signal() {
        Some(SIGKILL) => {
            (format!("{why}: somebody killed it, or the kernel did for want of host memory"), false)
        }
        Some(SIGTERM | SIGINT | SIGHUP) => (why, false),
        Some(_) => (why, true),
        None => (format!("{why}: this is a fault of Farrier"), false),
    }
}

impl Drop for Examiner {
    fn drop(&mut self) {
        // With nobody to ask it ends by itself, and gives back what it has.
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

/// Many times what a test takes on the slowest GPU.
fn deadline(test: Test, effort: &TestBudget) -> Duration {
    let seconds = match (test, test.level()) {
        (_, Level::One) => 30.0,
        (Test::MemoryPatterns, _) => 240.0,
        (_, Level::Two) => 60.0,
        (_, Level::Three) => effort.soak_s * 2.0 + 60.0,
    };
    Duration::from_secs_f64(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_was_killed_says_nothing_of_the_gpu() {
        let ended = |raw| how_ended(ExitStatus::from_raw(raw));
        assert!(!ended(SIGKILL).1);
        assert!(ended(SIGKILL).0.contains("for want of host memory"));
        assert!(!ended(SIGTERM).1);
        assert!(!ended(101 << 8).1, "a panic of ours");
        let (bus, segmentation) = (7, 11);
        assert!(ended(bus).1 && ended(segmentation).1);
    }
}
