//! Runs a child process that reads NVML once, and returns its result.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use farrier_facts::node::{Nvml, NvmlDevice, NvmlReading};
use serde::{Deserialize, Serialize};

/// A line of the child's output: the next call, a partial result, or the final reading.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProbeMessage {
    /// This function is called next.
    Call(String),
    /// System-wide values. The GPUs follow.
    System(Nvml),
    Device(Box<NvmlDevice>),
    /// The final reading.
    Answer(NvmlReading),
}

/// Maximum size of the output. The output for 1,024 devices has about 2 MB.
const OUTPUT_BYTES_MAX: u64 = 16 << 20;

/// How long to wait for a killed child to exit. A child stuck in the driver never exits.
const REAP: Duration = Duration::from_millis(200);

/// Runs the probe and waits for its result until `deadline`.
pub fn probe(mut command: Command, deadline: Duration) -> NvmlReading {
    let until = Instant::now() + deadline;
    // The child inherits no descriptors, because a child that never exits must not keep our
    // caller's pipe open.
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(err) => return NvmlReading::Died { why: format!("failed to start: {err}") },
    };
    let Some(output) = child.stdout.take() else {
        return NvmlReading::Died { why: "no stdout pipe".to_owned() };
    };
    let (sender, lines) = channel();
    // The thread ends with the child's output and is not joined.
    std::thread::spawn(move || {
        for line in BufReader::new(output.take(OUTPUT_BYTES_MAX)).split(b'\n') {
            let Ok(line) = line else { return };
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let mut during = "startup".to_owned();
    let mut read: Option<Nvml> = None;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match lines.recv_timeout(left) {
            Ok(line) => match serde_json::from_slice(&line) {
                Ok(ProbeMessage::Call(name)) => during = name,
                Ok(ProbeMessage::System(nvml)) => read = Some(nvml),
                Ok(ProbeMessage::Device(device)) => {
                    if let Some(nvml) = &mut read {
                        nvml.devices.push(*device);
                    }
                }
                Ok(ProbeMessage::Answer(answer)) => {
                    reap(&mut child);
                    return answer;
                }
                Err(_) => {
                    reap(&mut child);
                    let why = format!("malformed output, in {during}");
                    return NvmlReading::Died { why };
                }
            },
            Err(RecvTimeoutError::Timeout) => {
                let _ = child.kill();
                reap(&mut child);
                let read = read.map(Box::new);
                return NvmlReading::Hung { after_s: deadline.as_secs(), during, read };
            }
            Err(RecvTimeoutError::Disconnected) => {
                return NvmlReading::Died {
                    why: format!("{}, in {during}", exit_reason(&mut child)),
                };
            }
        }
    }
}

/// Reaps a child that exits soon. Gives up on a child that does not.
fn reap(child: &mut Child) {
    let until = Instant::now() + REAP;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn exit_reason(child: &mut Child) -> String {
    reap(child);
    match child.try_wait() {
        Ok(Some(status)) => status.to_string(),
        _ => "output closed".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use farrier_facts::node::NvmlStatus;

    use super::*;

    /// Longer than any test should run. Children that a test must not wait for sleep longer.
    const LONG: Duration = Duration::from_secs(300);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn result_is_returned_without_waiting_for_exit() {
        let answer = NvmlReading::Refused { error: NvmlStatus::DRIVER_NOT_LOADED };
        let line = serde_json::to_string(&ProbeMessage::Answer(answer.clone())).unwrap();
        let script = format!("echo '{{\"call\":\"nvmlInit_v2\"}}'; echo '{line}'; exec sleep 900");
        // Waiting for the process to exit would time out here.
        assert_eq!(probe(shell(&script), LONG), answer);
    }

    #[test]
    fn hang_names_the_call() {
        let script = "echo '{\"call\":\"nvmlInit_v2\"}'; exec sleep 900";
        // The deadline is long enough for a shell to start on a busy machine.
        let hung = probe(shell(script), Duration::from_secs(5));
        let during = "nvmlInit_v2".to_owned();
        assert_eq!(hung, NvmlReading::Hung { after_s: 5, during, read: None });
    }

    #[test]
    fn dead_child_and_malformed_output_are_errors() {
        let died = |reading| match reading {
            NvmlReading::Died { why } => why,
            other => panic!("{other:?}"),
        };
        let why = died(probe(shell("echo '{\"call\":\"nvmlInit_v2\"}'; kill -SEGV $$"), LONG));
        assert!(why.contains("nvmlInit_v2") && why.contains("signal"), "{why}");
        assert!(died(probe(shell("echo hello"), LONG)).contains("malformed output"));
        assert!(
            died(probe(Command::new("/nonexistent/farrier"), LONG)).contains("failed to start")
        );
    }

    #[test]
    fn file_that_is_not_nvml_is_no_library() {
        let dir = tempfile::tempdir().unwrap();
        let text = dir.path().join("libnvidia-ml.so.1");
        std::fs::write(&text, "not a library").unwrap();
        let missing = dir.path().join("none.so");
        for path in [text.as_os_str(), missing.as_os_str(), OsStr::new("libc.so.6")] {
            let mut calls = Vec::new();
            let read =
                super::super::read(path, &mut |line: &ProbeMessage| calls.push(line.clone()));
            assert!(matches!(read, NvmlReading::NoLibrary { .. }), "{path:?}: {read:?}");
            assert_eq!(calls[0], ProbeMessage::Call("dlopen".to_owned()));
        }
    }
}
