//! The parent's end of the connection to the control child.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use farrier_facts::node::{ReadError, Reading};
use farrier_facts::tune::{GpuControl, GpusSeen, Value};

use super::{ControlRequest, ControlResponse, GpuSetError};

/// Why a GPU setting was not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    #[error("NVML refused: {0}")]
    Refused(GpuSetError),
    /// NVML stopped answering. Whether the change took effect is unknown.
    #[error("lost contact with NVML: {0}")]
    Lost(ProbeError),
}

/// Why the control child returned no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// NVML is disabled, for this reason.
    #[error("{0}")]
    Disabled(String),
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
    NoNvml(String),
    #[error("malformed output from the NVML probe")]
    Malformed,
    /// The response does not match the request.
    #[error("unexpected response from the NVML probe: {0}")]
    UnexpectedResponse(String),
    #[error("{}", ReadError::Deadline { limit_s: *limit_s })]
    TimedOut { limit_s: u64 },
    #[error("the NVML probe exited without a response")]
    Exited,
}

impl From<ProbeError> for ReadError {
    fn from(err: ProbeError) -> Self {
        match err {
            ProbeError::TimedOut { limit_s } => Self::Deadline { limit_s },
            ProbeError::Disabled(why) => Self::unavailable(why),
            other => Self::ProbeEnded { detail: other.to_string() },
        }
    }
}

/// How long the child may take to shut NVML down once its input is closed.
const EXIT_GRACE: Duration = Duration::from_secs(2);
/// How long the kernel may take to end a killed process.
const KILL_GRACE: Duration = Duration::from_millis(200);
/// How often to check whether the child has exited.
const EXIT_POLL: Duration = Duration::from_millis(2);

/// Timeouts for NVML requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlTimeouts {
    /// For reads. The first read includes `nvmlInit` for all GPUs, which takes seconds per GPU if
    /// nothing keeps the driver initialised.
    pub read: Duration,
    /// For changes. They may take long, because switching MIG resets some GPU models.
    pub change: Duration,
}

impl Default for ControlTimeouts {
    fn default() -> Self {
        Self { read: Duration::from_secs(60), change: Duration::from_secs(120) }
    }
}

impl ControlTimeouts {
    /// The same timeout for reads and changes.
    pub fn uniform(limit: Duration) -> Self {
        Self { read: limit, change: limit }
    }
}

/// GPU settings, accessed through a child that starts on first use.
#[derive(Debug)]
pub struct GpuControls {
    command: Option<Command>,
    timeouts: ControlTimeouts,
    child: Option<ControlChild>,
    /// Why the child is unusable. When this is set, every request fails.
    lost: Option<ProbeError>,
}

#[derive(Debug)]
struct ControlChild {
    child: Option<Child>,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    /// A response is overdue, so the child will not notice that its input was closed.
    is_overdue: bool,
}

impl Drop for ControlChild {
    fn drop(&mut self) {
        self.input = None;
        let Some(mut child) = self.child.take() else { return };
        // The child exits when its input is closed, after it has shut NVML down.
        if !self.is_overdue && exits_within(&mut child, EXIT_GRACE) {
            return;
        }
        let _ = child.kill();
        if exits_within(&mut child, KILL_GRACE) {
            return;
        }
        // A child stuck in the driver dies when the driver call returns. Reap it in the background,
        // so that it does not stay a zombie.
        std::thread::spawn(move || child.wait());
    }
}

fn exits_within(child: &mut Child, limit: Duration) -> bool {
    let until = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < until => std::thread::sleep(EXIT_POLL),
            ended => return !matches!(ended, Ok(None)),
        }
    }
}

impl GpuControls {
    /// Creates controls that start their child with this command.
    pub fn new(command: Command, timeouts: ControlTimeouts) -> Self {
        Self { command: Some(command), timeouts, child: None, lost: None }
    }

    /// Accesses a node through `farrier probe control`. If the node is not this machine, only an
    /// explicitly named library is used, because the library of this machine would report the GPUs
    /// of this machine.
    pub fn for_node(
        program: &Path,
        library: Option<&Path>,
        is_this_machine: bool,
        timeouts: ControlTimeouts,
    ) -> Self {
        if library.is_none() && !is_this_machine {
            return Self::unavailable("NVML is disabled: another root was given without a library");
        }
        let mut command = Command::new(program);
        command.args(["probe", "control", "--library"]);
        command.arg(library.unwrap_or(Path::new(crate::nvml::LIBRARY)));
        Self::new(command, timeouts)
    }

    /// Creates controls that are disabled for the reason `why`. Every request to them fails.
    pub fn unavailable(why: impl Into<String>) -> Self {
        Self {
            command: None,
            timeouts: ControlTimeouts::default(),
            child: None,
            lost: Some(ProbeError::Disabled(why.into())),
        }
    }

    /// Reads all settings of all GPUs.
    pub fn list(&mut self) -> GpusSeen {
        match self.request(&ControlRequest::List) {
            Ok(ControlResponse::Gpus(gpus)) => gpus,
            Ok(other) => GpusSeen::Silent(unexpected(&other).to_string()),
            Err(err) => GpusSeen::Silent(err.to_string()),
        }
    }

    /// Reads one setting.
    pub fn get(&mut self, uuid: &str, control: GpuControl) -> Reading<Value> {
        self.value(&ControlRequest::Get { uuid: uuid.to_owned(), control })
    }

    /// Reads the value in force for a setting that takes effect at the next reset.
    pub fn in_force(&mut self, uuid: &str, control: GpuControl) -> Reading<Value> {
        self.value(&ControlRequest::InForce { uuid: uuid.to_owned(), control })
    }

    fn value(&mut self, request: &ControlRequest) -> Reading<Value> {
        match self.request(request) {
            Ok(ControlResponse::Value(reading)) => reading,
            Ok(other) => Reading::Unreadable(unexpected(&other).into()),
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
        let request = ControlRequest::Set { uuid: uuid.to_owned(), control, value: value.clone() };
        match self.request(&request) {
            Ok(ControlResponse::Done) => Ok(()),
            Ok(ControlResponse::Refused(why)) => Err(ControlError::Refused(why)),
            Ok(other) => Err(ControlError::Lost(unexpected(&other))),
            Err(err) => Err(ControlError::Lost(err)),
        }
    }

    fn request(&mut self, request: &ControlRequest) -> Result<ControlResponse, ProbeError> {
        if let Some(why) = &self.lost {
            return Err(why.clone());
        }
        let response = self.round_trip(request);
        if let Err(why) = &response {
            self.lost = Some(why.clone());
            self.child = None;
        }
        response
    }

    fn round_trip(&mut self, request: &ControlRequest) -> Result<ControlResponse, ProbeError> {
        if self.child.is_none() {
            self.child = Some(self.start()?);
        }
        let Some(running) = &mut self.child else { return Err(ProbeError::NoCommand) };
        let mut text =
            serde_json::to_vec(request).map_err(|err| ProbeError::Request(err.to_string()))?;
        text.push(b'\n');
        if let Some(input) = &mut running.input {
            // Ignore errors. A child that has exited gave the reason in its last line.
            let _ = input.write_all(&text);
        }
        let limit = match request {
            ControlRequest::Set { .. } => self.timeouts.change,
            ControlRequest::List | ControlRequest::Get { .. } | ControlRequest::InForce { .. } => {
                self.timeouts.read
            }
        };
        match running.lines.recv_timeout(limit) {
            Ok(line) => match serde_json::from_str(&line) {
                Ok(ControlResponse::NoNvml(why)) => Err(ProbeError::NoNvml(why)),
                Ok(response) => Ok(response),
                Err(_) => Err(ProbeError::Malformed),
            },
            Err(RecvTimeoutError::Timeout) => {
                running.is_overdue = true;
                Err(ProbeError::TimedOut { limit_s: limit.as_secs() })
            }
            Err(RecvTimeoutError::Disconnected) => Err(ProbeError::Exited),
        }
    }

    fn start(&mut self) -> Result<ControlChild, ProbeError> {
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
        Ok(ControlChild { child: Some(child), input, lines, is_overdue: false })
    }
}

fn unexpected(response: &ControlResponse) -> ProbeError {
    ProbeError::UnexpectedResponse(format!("{response:?}"))
}

#[cfg(test)]
mod tests {
    use farrier_facts::node::NvmlStatus;

    use super::*;

    fn shell(script: &str) -> GpuControls {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        GpuControls::new(command, ControlTimeouts::uniform(Duration::from_secs(300)))
    }

    /// Whether a process exists, zombies included.
    fn exists(pid: u32) -> bool {
        Path::new(&format!("/proc/{pid}")).exists()
    }

    fn pid(controls: &GpuControls) -> u32 {
        controls.child.as_ref().unwrap().child.as_ref().unwrap().id()
    }

    #[test]
    fn no_zombie_is_left_behind() {
        let mut controls = shell("while read line; do echo '{\"refused\":\"no-such-gpu\"}'; done");
        let _ = controls.set("GPU-1", GpuControl::Ecc, &Value::Switch(true));
        let exits_on_close = pid(&controls);
        drop(controls);
        assert!(!exists(exits_on_close));
        // A child that does not exit when its input is closed is killed and reaped.
        let mut command = Command::new("sh");
        command.args(["-c", "read line; echo '\"done\"'; exec sleep 900"]);
        let mut controls =
            GpuControls::new(command, ControlTimeouts::uniform(Duration::from_secs(300)));
        assert_eq!(controls.set("GPU-1", GpuControl::Ecc, &Value::Switch(true)), Ok(()));
        let stays = pid(&controls);
        controls.child.as_mut().unwrap().is_overdue = true;
        drop(controls);
        assert!(!exists(stays));
    }

    #[test]
    fn changes_have_their_own_timeout() {
        let mut command = Command::new("sh");
        command.args(["-c", "read line; sleep 0.2; echo '\"done\"'; read line; exec sleep 900"]);
        let timeouts =
            ControlTimeouts { read: Duration::from_millis(50), change: Duration::from_secs(300) };
        let mut controls = GpuControls::new(command, timeouts);
        assert_eq!(controls.set("GPU-1", GpuControl::Mig, &Value::Switch(true)), Ok(()));
        assert!(matches!(controls.list(), GpusSeen::Silent(why) if why.contains("did not answer")));
    }

    #[test]
    fn dead_child_stays_lost() {
        let mut controls = shell("read line; exit 1");
        let lost = controls.set("GPU-1", GpuControl::Ecc, &Value::Switch(true));
        assert!(matches!(lost, Err(ControlError::Lost(_))), "{lost:?}");
        let reading = controls.get("GPU-1", GpuControl::Ecc);
        assert_eq!(reading.why_unreadable(), Some(&ProbeError::Exited.into()));
    }

    #[test]
    fn refusal_keeps_the_child() {
        let why = GpuSetError::Call(NvmlStatus::NO_PERMISSION.into());
        assert!(why.is_permission());
        let refusal = ControlResponse::Refused(why.clone());
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
        let mut controls =
            GpuControls::new(command, ControlTimeouts::uniform(Duration::from_millis(50)));
        assert!(matches!(controls.list(), GpusSeen::Silent(why) if why.contains("did not answer")));
    }
}
