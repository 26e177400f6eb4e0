//! Parent side of the control child.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use farrier_facts::node::{ReadError, Reading};
use farrier_facts::tune::{GpuControl, GpusSeen, Value};

use super::{Answer, Request, SetError};

/// Why a GPU setting was not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    #[error("NVML refused: {0}")]
    Refused(SetError),
    /// NVML stopped answering; whether the change took effect is unknown.
    #[error("lost contact with NVML: {0}")]
    Lost(ProbeError),
}

/// Why the control child returned no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// Disabled, with the reason.
    #[error("{0}")]
    NotAsked(String),
    #[error("no probe command")]
    NoCommand,
    #[error("failed to start the NVML probe: {0}")]
    NotStarted(String),
    #[error("the NVML probe has no stdout pipe")]
    NoOutput,
    /// The request could not be serialised.
    #[error("{0}")]
    Request(String),
    /// The child found no working NVML.
    #[error("{0}")]
    Silent(String),
    #[error("malformed output from the NVML probe")]
    Malformed,
    /// The response does not match the request.
    #[error("unexpected response from the NVML probe: {0}")]
    OtherAnswer(String),
    #[error("{}", ReadError::Deadline { limit_s: *limit_s })]
    Late { limit_s: u64 },
    #[error("the NVML probe exited without a response")]
    Ended,
}

impl From<ProbeError> for ReadError {
    fn from(err: ProbeError) -> Self {
        match err {
            ProbeError::Late { limit_s } => Self::Deadline { limit_s },
            ProbeError::NotAsked(why) => Self::unavailable(why),
            other => Self::ProbeEnded { detail: other.to_string() },
        }
    }
}

/// How long the child may take to shut NVML down once its input is closed.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long the kernel may take to end a killed process.
const KILLED: Duration = Duration::from_millis(200);
/// How often to check whether the child has exited.
const LOOK: Duration = Duration::from_millis(2);

/// Timeouts for NVML requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// For reads. The first one includes `nvmlInit` and all GPUs, which take seconds each if
    /// nothing keeps the driver initialised.
    pub read: Duration,
    /// For changes: switching MIG resets the GPU on some cards.
    pub change: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { read: Duration::from_secs(60), change: Duration::from_secs(120) }
    }
}

impl Patience {
    /// The same timeout for reads and changes.
    pub fn of(limit: Duration) -> Self {
        Self { read: limit, change: limit }
    }
}

/// GPU settings, accessed through a child that starts on first use.
#[derive(Debug)]
pub struct Controls {
    command: Option<Command>,
    patience: Patience,
    child: Option<Running>,
    /// Why the child is unusable. Once set, every request fails.
    lost: Option<ProbeError>,
}

#[derive(Debug)]
struct Running {
    child: Option<Child>,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    /// A response is overdue, so the child will not notice that its input was closed.
    is_late: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.input = None;
        let Some(mut child) = self.child.take() else { return };
        // It exits when its input is closed, after shutting NVML down.
        if !self.is_late && ends_within(&mut child, FAREWELL) {
            return;
        }
        let _ = child.kill();
        if ends_within(&mut child, KILLED) {
            return;
        }
        // A child stuck in the driver dies once the driver lets go of it. Reap it in the
        // background, or it stays a zombie.
        std::thread::spawn(move || child.wait());
    }
}

fn ends_within(child: &mut Child, limit: Duration) -> bool {
    let until = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < until => std::thread::sleep(LOOK),
            ended => return !matches!(ended, Ok(None)),
        }
    }
}

impl Controls {
    /// Uses this command to start the child.
    pub fn by(command: Command, patience: Patience) -> Self {
        Self { command: Some(command), patience, child: None, lost: None }
    }

    /// For a node, through `farrier probe control`. Below another root only an explicitly named
    /// library is used: this machine's own would report other GPUs.
    pub fn of_node(
        program: &Path,
        library: Option<&Path>,
        is_this_machine: bool,
        patience: Patience,
    ) -> Self {
        if library.is_none() && !is_this_machine {
            return Self::none("NVML is disabled: another root was given without a library");
        }
        let mut command = Command::new(program);
        command.args(["probe", "control", "--library"]);
        command.arg(library.unwrap_or(Path::new(crate::nvml::LIBRARY)));
        Self::by(command, patience)
    }

    /// Disabled, with the reason.
    pub fn none(why: impl Into<String>) -> Self {
        Self {
            command: None,
            patience: Patience::default(),
            child: None,
            lost: Some(ProbeError::NotAsked(why.into())),
        }
    }

    /// Reads all settings of all GPUs.
    pub fn list(&mut self) -> GpusSeen {
        match self.ask(&Request::List) {
            Ok(Answer::Gpus(seen)) => seen,
            Ok(other) => GpusSeen::Silent(other_answer(&other).to_string()),
            Err(err) => GpusSeen::Silent(err.to_string()),
        }
    }

    /// Reads one setting.
    pub fn get(&mut self, uuid: &str, control: GpuControl) -> Reading<Value> {
        self.value(&Request::Get { uuid: uuid.to_owned(), control })
    }

    /// Reads the value in force for a setting that takes effect at the next reset.
    pub fn in_force(&mut self, uuid: &str, control: GpuControl) -> Reading<Value> {
        self.value(&Request::InForce { uuid: uuid.to_owned(), control })
    }

    fn value(&mut self, request: &Request) -> Reading<Value> {
        match self.ask(request) {
            Ok(Answer::Value(reading)) => reading,
            Ok(other) => Reading::Unreadable(other_answer(&other).into()),
            Err(err) => Reading::Unreadable(err.into()),
        }
    }

    /// Changes one setting.
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
            Ok(other) => Err(ControlError::Lost(other_answer(&other))),
            Err(err) => Err(ControlError::Lost(err)),
        }
    }

    fn ask(&mut self, request: &Request) -> Result<Answer, ProbeError> {
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

    fn exchange(&mut self, request: &Request) -> Result<Answer, ProbeError> {
        if self.child.is_none() {
            self.child = Some(self.start()?);
        }
        let Some(running) = &mut self.child else { return Err(ProbeError::NoCommand) };
        let mut text =
            serde_json::to_vec(request).map_err(|err| ProbeError::Request(err.to_string()))?;
        text.push(b'\n');
        if let Some(input) = &mut running.input {
            // A child that already exited gave the reason in its last line.
            let _ = input.write_all(&text);
        }
        let limit = match request {
            Request::Set { .. } => self.patience.change,
            Request::List | Request::Get { .. } | Request::InForce { .. } => self.patience.read,
        };
        match running.lines.recv_timeout(limit) {
            Ok(line) => match serde_json::from_str(&line) {
                Ok(Answer::Silent(why)) => Err(ProbeError::Silent(why)),
                Ok(answer) => Ok(answer),
                Err(_) => Err(ProbeError::Malformed),
            },
            Err(RecvTimeoutError::Timeout) => {
                running.is_late = true;
                Err(ProbeError::Late { limit_s: limit.as_secs() })
            }
            Err(RecvTimeoutError::Disconnected) => Err(ProbeError::Ended),
        }
    }

    fn start(&mut self) -> Result<Running, ProbeError> {
        let command = self.command.as_mut().ok_or(ProbeError::NoCommand)?;
        let spawned =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut child = spawned.map_err(|err| ProbeError::NotStarted(err.to_string()))?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or(ProbeError::NoOutput)?;
        let (sender, lines) = channel();
        // The thread ends with the child's output and is not joined.
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                let Ok(line) = line else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Running { child: Some(child), input, lines, is_late: false })
    }
}

fn other_answer(answer: &Answer) -> ProbeError {
    ProbeError::OtherAnswer(format!("{answer:?}"))
}

#[cfg(test)]
mod tests {
    use farrier_facts::node::NvmlStatus;

    use super::*;

    fn shell(script: &str) -> Controls {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Controls::by(command, Patience::of(Duration::from_secs(300)))
    }

    /// Whether a process exists, zombies included.
    fn is_there(pid: u32) -> bool {
        Path::new(&format!("/proc/{pid}")).exists()
    }

    fn pid(controls: &Controls) -> u32 {
        controls.child.as_ref().unwrap().child.as_ref().unwrap().id()
    }

    #[test]
    fn no_zombie_is_left_behind() {
        let mut controls = shell("while read line; do echo '{\"refused\":\"no-such-gpu\"}'; done");
        let _ = controls.set("GPU-1", GpuControl::Ecc, &Value::Switch(true));
        let answers = pid(&controls);
        drop(controls);
        assert!(!is_there(answers));
        // A child that does not exit when its input is closed is killed and reaped.
        let mut command = Command::new("sh");
        command.args(["-c", "read line; echo '\"done\"'; exec sleep 900"]);
        let mut controls = Controls::by(command, Patience::of(Duration::from_secs(300)));
        assert_eq!(controls.set("GPU-1", GpuControl::Ecc, &Value::Switch(true)), Ok(()));
        let stays = pid(&controls);
        controls.child.as_mut().unwrap().is_late = true;
        drop(controls);
        assert!(!is_there(stays));
    }

    #[test]
    fn changes_have_their_own_timeout() {
        let mut command = Command::new("sh");
        command.args(["-c", "read line; sleep 0.2; echo '\"done\"'; read line; exec sleep 900"]);
        let patience =
            Patience { read: Duration::from_millis(50), change: Duration::from_secs(300) };
        let mut controls = Controls::by(command, patience);
        assert_eq!(controls.set("GPU-1", GpuControl::Mig, &Value::Switch(true)), Ok(()));
        assert!(matches!(controls.list(), GpusSeen::Silent(why) if why.contains("did not answer")));
    }

    #[test]
    fn dead_child_stays_lost() {
        let mut controls = shell("read line; exit 1");
        let lost = controls.set("GPU-1", GpuControl::Ecc, &Value::Switch(true));
        assert!(matches!(lost, Err(ControlError::Lost(_))), "{lost:?}");
        let reading = controls.get("GPU-1", GpuControl::Ecc);
        assert_eq!(reading.why_unreadable(), Some(&ProbeError::Ended.into()));
    }

    #[test]
    fn refusal_keeps_the_child() {
        let why = SetError::Call(NvmlStatus::NO_PERMISSION.into());
        assert!(why.is_permission());
        let refusal = Answer::Refused(why.clone());
        let mut controls = shell(&format!(
            "while read line; do echo '{}'; done",
            serde_json::to_string(&refusal).unwrap()
        ));
        for _ in 0..2 {
            let refused = controls.set("GPU-1", GpuControl::Ecc, &Value::Switch(true));
            assert_eq!(refused, Err(ControlError::Refused(why.clone())));
        }
    }

    #[test]
    fn silent_child_times_out() {
        let mut command = Command::new("sh");
        command.args(["-c", "exec sleep 900"]);
        let mut controls = Controls::by(command, Patience::of(Duration::from_millis(50)));
        assert!(matches!(controls.list(), GpusSeen::Silent(why) if why.contains("did not answer")));
    }
}
