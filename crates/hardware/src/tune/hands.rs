//! The actuator: reads and changes settings. The only interface between a plan and a node.

use std::collections::BTreeMap;
use std::io;
use std::process::ExitStatus;

use farrier_facts::node::Reading;
use farrier_facts::tune::{GpuReadings, GpusSeen, Target, Value};

use super::machine::Machine;
use super::{files, holds, service};
use crate::nvml::{ControlError, Controls, ProbeError, SetError};
use crate::root::Root;

/// Why a change was not made.
#[derive(Debug, thiserror::Error)]
pub enum HandError {
    #[error("NVML refused: {0}")]
    Refused(SetError),
    /// NVML stopped answering; whether the change took effect is unknown.
    #[error("lost contact with NVML: {0}")]
    Lost(ProbeError),
    #[error("failed to write `{path}`")]
    File {
        path: String,
        #[source]
        err: io::Error,
    },
    #[error("`{line}` failed: {why}")]
    Command { line: String, why: CommandFailure },
    /// A command timed out; its work may still be in progress.
    #[error("`{line}` did not finish within {limit_s} s")]
    Late { line: String, limit_s: u64 },
    /// The value's type does not match the target.
    #[error("the value has the wrong type for this setting")]
    Value,
}

#[derive(Debug, thiserror::Error)]
pub enum CommandFailure {
    /// The command could not be run.
    #[error("{0}")]
    NotRun(io::Error),
    /// The last line of its stderr.
    #[error("{0}")]
    Stderr(String),
    /// It failed without output on stderr.
    #[error("{0}")]
    Status(ExitStatus),
}

impl CommandFailure {
    /// Whether the failure is a missing permission. Commands run with `LC_ALL=C`.
    fn is_permission(&self) -> bool {
        match self {
            Self::NotRun(err) => err.kind() == io::ErrorKind::PermissionDenied,
            Self::Stderr(line) => {
                line.contains("ermission denied") || line.contains("authentication required")
            }
            Self::Status(_) => false,
        }
    }
}

impl HandError {
    pub(super) fn io(path: &str, err: io::Error) -> Self {
        Self::File { path: path.to_owned(), err }
    }

    /// Whether the failure is a missing permission.
    pub fn is_permission(&self) -> bool {
        match self {
            Self::Refused(why) => why.is_permission(),
            Self::File { err, .. } => err.kind() == io::ErrorKind::PermissionDenied,
            Self::Command { why, .. } => why.is_permission(),
            Self::Lost(_) | Self::Late { .. } | Self::Value => false,
        }
    }

    /// Whether the operation may still be in progress.
    pub fn is_late(&self) -> bool {
        matches!(self, Self::Late { .. })
    }

    /// Whether the GPUs can no longer be reached.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost(_))
    }
}

/// Reads and changes the targets of a plan.
pub trait Hands {
    /// The configured value.
    fn read(&mut self, target: &Target) -> Reading<Value>;
    /// The value in force, for targets that take effect later.
    fn in_force(&mut self, target: &Target) -> Reading<Value> {
        self.read(target)
    }
    fn write(&mut self, target: &Target, value: &Value) -> Result<(), HandError>;
    /// Directories that a write would have to create, outermost first.
    fn missing_folders(&mut self, target: &Target) -> Vec<String>;
    /// Removes what an interrupted change left next to the target, and empty directories.
    fn tidy(&mut self, target: &Target, folders: &[String]) -> Result<(), HandError>;
}

/// The actuator of a node.
#[derive(Debug)]
pub struct NodeHands {
    root: Root,
    controls: Controls,
    /// `None` below another root, where no command is run.
    machine: Option<Machine>,
}

impl NodeHands {
    /// For the files below `root` and the GPUs that `controls` reaches.
    pub fn new(root: Root, controls: Controls) -> Self {
        let machine = root.is_this_machine().then(Machine::default);
        Self { root, controls, machine }
    }

    /// For the files below `root`, treated as this machine's.
    #[cfg(test)]
    pub(super) fn on_machine(root: Root, controls: Controls, machine: Machine) -> Self {
        Self { root, controls, machine: Some(machine) }
    }

    /// NVML indices of the GPUs by UUID; empty if NVML does not answer.
    pub fn gpu_numbers(&mut self) -> BTreeMap<String, u32> {
        let GpusSeen::Answered(gpus) = self.controls.list() else { return BTreeMap::new() };
        let numbered = |gpu: GpuReadings| Some((gpu.uuid.value()?.clone(), gpu.index));
        gpus.into_iter().filter_map(numbered).collect()
    }

    /// Reads everything that a plan needs.
    pub fn look(
        &mut self,
        profile: &farrier_facts::tune::Profile,
    ) -> farrier_facts::tune::Readings {
        super::look(&self.root, &mut self.controls, profile, self.machine.is_some())
    }
}

impl Hands for NodeHands {
    fn read(&mut self, target: &Target) -> Reading<Value> {
        match target {
            Target::Gpu { uuid, control } => self.controls.get(uuid, *control),
            Target::File { path } => files::read(&self.root, path),
            Target::Kernel { path } => files::read_choice(&self.root, path, None)
                .and_then(|choice| choice.current)
                .map(Value::Word),
            Target::Hold { package } => holds::read(&self.root, package).map(Value::Switch),
            Target::Service { unit } => service::read(&self.root, unit, self.machine.is_some())
                .map(|state| Value::Service { enabled: state.enabled, running: state.running }),
        }
    }

    fn in_force(&mut self, target: &Target) -> Reading<Value> {
        match target {
            Target::Gpu { uuid, control } if control.is_at_reset() => {
                self.controls.in_force(uuid, *control)
            }
            other => self.read(other),
        }
    }

    fn write(&mut self, target: &Target, value: &Value) -> Result<(), HandError> {
        match (target, value) {
            (Target::Gpu { uuid, control }, value) => {
                self.controls.set(uuid, *control, value).map_err(|err| match err {
                    ControlError::Refused(why) => HandError::Refused(why),
                    ControlError::Lost(why) => HandError::Lost(why),
                })
            }
            (Target::File { path }, value) => {
                files::write(&self.root, path, value).map_err(|err| HandError::io(path, err))
            }
            (Target::Kernel { path }, Value::Word(word)) => {
                let is_kernel = self.machine.is_some();
                files::choose(&self.root, path, word, is_kernel)
                    .map_err(|err| HandError::io(path, err))
            }
            (Target::Hold { package }, Value::Switch(held)) => {
                holds::write(&self.root, self.machine.as_ref(), package, *held)
            }
            (Target::Service { unit }, Value::Service { enabled, running }) => {
                let machine = self.machine.as_ref();
                service::write(&self.root, machine, unit, *enabled, *running)
            }
            _ => Err(HandError::Value),
        }
    }

    fn missing_folders(&mut self, target: &Target) -> Vec<String> {
        match target {
            Target::File { path } => files::missing_folders(&self.root, path),
            _ => Vec::new(),
        }
    }

    fn tidy(&mut self, target: &Target, folders: &[String]) -> Result<(), HandError> {
        let part = match target {
            Target::File { path } => Some(path.as_str()),
            // Below another root these are replaced as whole files.
            Target::Kernel { path } if self.machine.is_none() => Some(path.as_str()),
            Target::Hold { .. } if self.machine.is_none() => Some("/var/lib/dpkg/status"),
            _ => None,
        };
        if let Some(path) = part {
            files::remove_part(&self.root, path).map_err(|err| HandError::io(path, err))?;
        }
        for folder in folders.iter().rev() {
            files::remove_folder(&self.root, folder).map_err(|err| HandError::io(folder, err))?;
        }
        Ok(())
    }
}
