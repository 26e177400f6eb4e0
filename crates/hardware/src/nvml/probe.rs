//! The child that makes the calls, as its parent sees it.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use farrier_facts::node::{Nvml, NvmlDevice, NvmlReading};
use serde::{Deserialize, Serialize};

/// A line of the child's: the call that comes next, or what came of all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Line {
    /// This call is made next.
    Call(String),
    /// What is known of no GPU in particular; their own answers follow.
    System(Nvml),
    /// A GPU that was read.
    Device(Box<NvmlDevice>),
    /// The end.
    Answer(NvmlReading),
}

/// Answers of 1,024 devices have about 2 MB.
const OUTPUT_BYTES_MAX: u64 = 16 << 20;

/// How long a killed child is given to go. One that is stuck in the driver does not go at all.
const REAP: Duration = Duration::from_millis(200);

/// Runs the probe and waits for its answer, but no longer than `deadline`.
pub fn ask(mut command: Command, deadline: Duration) -> NvmlReading {
    let until = Instant::now() + deadline;
    // Nothing of ours is inherited: a child that never ends must not keep our reader's pipe open.
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(err) => return NvmlReading::Died { why: format!("it did not start: {err}") },
    };
    let Some(output) = child.stdout.take() else {
        return NvmlReading::Died { why: "it has no output".to_owned() };
    };
    let (sender, lines) = channel();
    // The thread ends with the child's output; it is not waited for.
    std::thread::spawn(move || {
        for line in BufReader::new(output.take(OUTPUT_BYTES_MAX)).split(b'\n') {
            let Ok(line) = line else { return };
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let mut during = "its start".to_owned();
    let mut read: Option<Nvml> = None;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match lines.recv_timeout(left) {
            Ok(line) => match serde_json::from_slice(&line) {
                Ok(Line::Call(name)) => during = name,
                Ok(Line::System(nvml)) => read = Some(nvml),
                Ok(Line::Device(device)) => {
                    if let Some(nvml) = &mut read {
                        nvml.devices.push(*device);
                    }
                }
                Ok(Line::Answer(answer)) => {
                    end(&mut child);
                    return answer;
                }
                Err(_) => {
                    end(&mut child);
                    let why = format!("it wrote what does not read, in {during}");
                    return NvmlReading::Died { why };
                }
            },
            Err(RecvTimeoutError::Timeout) => {
                let _ = child.kill();
                end(&mut child);
                let read = read.map(Box::new);
                return NvmlReading::Hung { after_s: deadline.as_secs(), during, read };
            }
            Err(RecvTimeoutError::Disconnected) => {
                return NvmlReading::Died { why: format!("{}, in {during}", ending(&mut child)) };
            }
        }
    }
}

/// Collects a child that ends soon; leaves one that does not.
fn end(child: &mut Child) {
    let until = Instant::now() + REAP;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn ending(child: &mut Child) -> String {
    end(child);
    match child.try_wait() {
        Ok(Some(status)) => status.to_string(),
        _ => "its output ended".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use farrier_facts::node::NvmlStatus;

    use super::*;

    /// Ends a hang; a child that is not to be waited for lives longer.
    const LONG: Duration = Duration::from_secs(300);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn an_answer_is_taken_at_once() {
        let answer = NvmlReading::Refused { error: NvmlStatus::DRIVER_NOT_LOADED };
        let line = serde_json::to_string(&Line::Answer(answer.clone())).unwrap();
        let script = format!("echo '{{\"call\":\"nvmlInit_v2\"}}'; echo '{line}'; exec sleep 900");
        // Whoever waited for the end of the process would call this a hang.
        assert_eq!(ask(shell(&script), LONG), answer);
    }

    #[test]
    fn a_hang_is_an_answer_that_names_the_call() {
        let script = "echo '{\"call\":\"nvmlInit_v2\"}'; exec sleep 900";
        // Long enough for a shell to start on a busy machine.
        let hung = ask(shell(script), Duration::from_secs(5));
        let during = "nvmlInit_v2".to_owned();
        assert_eq!(hung, NvmlReading::Hung { after_s: 5, during, read: None });
    }

    #[test]
    fn a_child_that_dies_or_babbles_is_no_answer() {
        let died = |reading| match reading {
            NvmlReading::Died { why } => why,
            other => panic!("{other:?}"),
        };
        let why = died(ask(shell("echo '{\"call\":\"nvmlInit_v2\"}'; kill -SEGV $$"), LONG));
        assert!(why.contains("nvmlInit_v2") && why.contains("signal"), "{why}");
        assert!(died(ask(shell("echo hello"), LONG)).contains("does not read"));
        assert!(died(ask(Command::new("/nonexistent/farrier"), LONG)).contains("did not start"));
    }

    #[test]
    fn what_is_no_library_is_said_so() {
        let folder = tempfile::tempdir().unwrap();
        let text = folder.path().join("libnvidia-ml.so.1");
        std::fs::write(&text, "not a library").unwrap();
        let missing = folder.path().join("none.so");
        for path in [text.as_os_str(), missing.as_os_str(), OsStr::new("libc.so.6")] {
            let mut calls = Vec::new();
            let read = super::super::read(path, &mut |line: &Line| calls.push(line.clone()));
            assert!(matches!(read, NvmlReading::NoLibrary { .. }), "{path:?}: {read:?}");
            assert_eq!(calls[0], Line::Call("dlopen".to_owned()));
        }
    }
}
