//! The child as its parent sees it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use farrier_facts::node::Reading;
use farrier_facts::tune::{GpuControl, GpusSeen, Value};

use super::{Answer, Request};

/// Why a setting of a GPU was not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// The card or the driver refused.
    #[error("NVML refused: {0}")]
    Refused(String),
    /// NVML answers no more; whether it was changed is not known.
    #[error("NVML is lost: {0}")]
    Lost(String),
}

/// Settings of GPUs, by a child that is started when it is first asked.
#[derive(Debug)]
pub struct Controls {
    command: Option<Command>,
    deadline: Duration,
    child: Option<Running>,
    /// Why nobody answers any more.
    lost: Option<String>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Drop for Running {
    fn drop(&mut self) {
        // Its end is that of its input; one that is stuck in the driver is not waited for.
        self.input = None;
        let _ = self.child.kill();
        let _ = self.child.try_wait();
    }
}

impl Controls {
    /// By this command, each answer within `deadline`.
    pub fn by(command: Command, deadline: Duration) -> Self {
        Self { command: Some(command), deadline, child: None, lost: None }
    }

    /// Nobody to ask, and why.
    pub fn none(why: impl Into<String>) -> Self {
        Self { command: None, deadline: Duration::ZERO, child: None, lost: Some(why.into()) }
    }

    /// All settings of all GPUs.
    pub fn list(&mut self) -> GpusSeen {
        match self.ask(&Request::List) {
            Ok(Answer::Gpus(seen)) => seen,
            Ok(other) => GpusSeen::Silent(format!("the probe answered {other:?}")),
            Err(why) => GpusSeen::Silent(why),
        }
    }

    /// One setting.
    pub fn get(&mut self, uuid: &str, control: GpuControl) -> Reading<Value> {
        match self.ask(&Request::Get { uuid: uuid.to_owned(), control }) {
            Ok(Answer::Value(reading)) => reading,
            Ok(other) => Reading::Unreadable(format!("the probe answered {other:?}")),
            Err(why) => Reading::Unreadable(why),
        }
    }

    /// Changes one.
    pub fn set(
        &mut self,
        uuid: &str,
        control: GpuControl,
        value: &Value,
    ) -> Result<(), ControlError> {
        let request = Request::Set { uuid: uuid.to_owned(), control, value: value.clone() };
        match self.ask(&request) {
            Ok(Answer::Done) => Ok(()),
            Ok(Answer::Refused(why)) => Err(ControlError::Refused(why)),
            Ok(other) => Err(ControlError::Lost(format!("the probe answered {other:?}"))),
            Err(why) => Err(ControlError::Lost(why)),
        }
    }

    fn ask(&mut self, request: &Request) -> Result<Answer, String> {
        if let Some(why) = &self.lost {
            return Err(why.clone());
        }
        let answer = self.exchange(request);
        if let Err(why) = &answer {
            self.lost = Some(why.clone());
            self.child = None;
        }
        answer
    }

    fn exchange(&mut self, request: &Request) -> Result<Answer, String> {
        if self.child.is_none() {
            self.child = Some(self.start()?);
        }
        let Some(running) = &mut self.child else { return Err("there is no probe".to_owned()) };
        let mut text = serde_json::to_vec(request).map_err(|err| err.to_string())?;
        text.push(b'\n');
        if let Some(input) = &mut running.input {
            // One that has ended already has said why in its last line.
            let _ = input.write_all(&text);
        }
        match running.lines.recv_timeout(self.deadline) {
            Ok(line) => match serde_json::from_str(&line) {
                Ok(Answer::Silent(why)) => Err(why),
                Ok(answer) => Ok(answer),
                Err(_) => Err("the NVML probe wrote what does not read".to_owned()),
            },
            Err(RecvTimeoutError::Timeout) => {
                Err(format!("NVML did not answer within {} s", self.deadline.as_secs()))
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err("the NVML probe ended without an answer".to_owned())
            }
        }
    }

    fn start(&mut self) -> Result<Running, String> {
        let command = self.command.as_mut().ok_or("there is no probe")?;
        let spawned =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut child = spawned.map_err(|err| format!("the NVML probe did not start: {err}"))?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or("the NVML probe has no output")?;
        let (sender, lines) = channel();
        // The thread ends with the child's output; it is not waited for.
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                let Ok(line) = line else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Running { child, input, lines })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Controls {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Controls::by(command, Duration::from_secs(20))
    }

    #[test]
    fn a_probe_that_dies_is_lost_and_stays_lost() {
        let mut controls = shell("read line; exit 1");
        let lost = controls.set("GPU-1", GpuControl::Ecc, &Value::Switch(true));
        assert!(matches!(lost, Err(ControlError::Lost(_))), "{lost:?}");
        let reading = controls.get("GPU-1", GpuControl::Ecc);
        assert!(reading.why_unreadable().is_some_and(|why| why.contains("ended")), "{reading:?}");
    }

    #[test]
    fn a_refusal_is_not_a_loss() {
        let mut controls =
            shell("while read line; do echo '{\"refused\":\"NVML_ERROR_NO_PERMISSION\"}'; done");
        for _ in 0..2 {
            let refused = controls.set("GPU-1", GpuControl::Ecc, &Value::Switch(true));
            let why = "NVML_ERROR_NO_PERMISSION".to_owned();
            assert_eq!(refused, Err(ControlError::Refused(why)));
        }
    }

    #[test]
    fn one_that_does_not_answer_is_not_waited_for() {
        let mut command = Command::new("sh");
        command.args(["-c", "exec sleep 60"]);
        let mut controls = Controls::by(command, Duration::from_millis(50));
        assert!(matches!(controls.list(), GpusSeen::Silent(why) if why.contains("did not answer")));
    }
}
