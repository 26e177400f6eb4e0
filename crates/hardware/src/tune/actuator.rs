//! The actuator reads and changes settings. A plan changes a node only through the actuator.

use std::collections::BTreeMap;
use std::io;
use std::process::ExitStatus;

use farrier_facts::node::Reading;
use farrier_facts::tune::{GpuReadings, GpusSeen, Target, Value};

use super::system_commands::SystemCommands;
use super::{files, package_holds, service};
use crate::nvml::{ControlError, GpuControls, GpuSetError, ProbeError};
use crate::root::Root;

/// Why a change was not made.
#[derive(Debug, thiserror::Error)]
pub enum SettingActuatorError {
    #[error("NVML refused: {0}")]
    Refused(GpuSetError),
    /// NVML stopped answering. Whether the change took effect is unknown.
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
    /// A command timed out. Its work may still be in progress.
    #[error("`{line}` did not finish within {limit_s} s")]
    TimedOut { line: String, limit_s: u64 },
    /// The value's type does not match the target.
    #[error("the value has the wrong type for this setting")]
    Value,
}

#[derive(Debug, thiserror::Error)]
pub enum CommandFailure {
    /// The command could not be run.
    #[error("{0}")]
    NotRun(io::Error),
    /// The last line of the command's stderr.
    #[error("{0}")]
    Stderr(String),
    /// The command failed without output on stderr.
    #[error("{0}")]
    Status(ExitStatus),
}

impl CommandFailure {
    /// Whether the failure is a missing permission. Commands run with `LC_ALL=C`, so their messages
    /// are in English.
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

impl SettingActuatorError {
    pub(super) fn from_io(path: &str, err: io::Error) -> Self {
        Self::File { path: path.to_owned(), err }
    }

    /// Whether the failure is a missing permission.
    pub fn is_permission(&self) -> bool {
        match self {
            Self::Refused(why) => why.is_permission(),
            Self::File { err, .. } => err.kind() == io::ErrorKind::PermissionDenied,
            Self::Command { why, .. } => why.is_permission(),
            Self::Lost(_) | Self::TimedOut { .. } | Self::Value => false,
        }
    }

    /// Whether the operation may still be in progress.
    pub fn is_timed_out(&self) -> bool {
        matches!(self, Self::TimedOut { .. })
    }

    /// Whether the GPUs can no longer be reached.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost(_))
    }
}

/// Reads and changes the targets of a plan.
pub trait SettingActuator {
    /// The configured value.
    fn read(&mut self, target: &Target) -> Reading<Value>;
    /// The value in force, for targets that take effect later.
    fn in_force(&mut self, target: &Target) -> Reading<Value> {
        self.read(target)
    }
    fn write(&mut self, target: &Target, value: &Value) -> Result<(), SettingActuatorError>;
    /// Directories that a write would have to create, outermost first.
    fn missing_directories(&mut self, target: &Target) -> Vec<String>;
    /// Removes the temporary file that an interrupted change left next to the target, and the empty
    /// directories among `folders`.
    fn clean_up(&mut self, target: &Target, folders: &[String])
    -> Result<(), SettingActuatorError>;
}

/// The actuator of a node.
#[derive(Debug)]
pub struct NodeSettingActuator {
    root: Root,
    controls: GpuControls,
    /// `None` if the root is not this machine. Then no command is run.
    commands: Option<SystemCommands>,
}

impl NodeSettingActuator {
    /// Uses the files below `root` and the GPUs that `controls` reaches.
    pub fn new(root: Root, controls: GpuControls) -> Self {
        let commands = root.is_this_machine().then(SystemCommands::default);
        Self { root, controls, commands }
    }

    /// Uses the files below `root` as if they were this machine's.
    #[cfg(test)]
    pub(super) fn with_commands(
        root: Root,
        controls: GpuControls,
        commands: SystemCommands,
    ) -> Self {
        Self { root, controls, commands: Some(commands) }
    }

    /// NVML indices of the GPUs by UUID. Empty if NVML does not answer.
    pub fn gpu_indices(&mut self) -> BTreeMap<String, u32> {
        let GpusSeen::Answered(gpus) = self.controls.list() else { return BTreeMap::new() };
        let index_of = |gpu: GpuReadings| Some((gpu.uuid.value()?.clone(), gpu.index));
        gpus.into_iter().filter_map(index_of).collect()
    }

    /// Reads everything that a plan needs.
    pub fn read_settings(
        &mut self,
        profile: &farrier_facts::tune::Profile,
    ) -> farrier_facts::tune::Readings {
        super::read_settings(&self.root, &mut self.controls, profile, self.commands.is_some())
    }
}

impl SettingActuator for NodeSettingActuator {
    fn read(&mut self, target: &Target) -> Reading<Value> {
        match target {
            Target::Gpu { uuid, control } => self.controls.get(uuid, *control),
            Target::File { path } => files::read(&self.root, path),
            Target::Kernel { path } => files::read_choice(&self.root, path, None)
                .and_then(|choice| choice.current)
                .map(Value::Word),
            Target::Hold { package } => package_holds::read(&self.root, package).map(Value::Switch),
            Target::Service { unit } => service::read(&self.root, unit, self.commands.is_some())
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

    fn write(&mut self, target: &Target, value: &Value) -> Result<(), SettingActuatorError> {
        match (target, value) {
            (Target::Gpu { uuid, control }, value) => {
                self.controls.set(uuid, *control, value).map_err(|err| match err {
                    ControlError::Refused(why) => SettingActuatorError::Refused(why),
                    ControlError::Lost(why) => SettingActuatorError::Lost(why),
                })
            }
            (Target::File { path }, value) => files::write(&self.root, path, value)
                .map_err(|err| SettingActuatorError::from_io(path, err)),
            (Target::Kernel { path }, Value::Word(word)) => {
                let is_kernel = self.commands.is_some();
                files::choose(&self.root, path, word, is_kernel)
                    .map_err(|err| SettingActuatorError::from_io(path, err))
            }
            (Target::Hold { package }, Value::Switch(held)) => {
                package_holds::write(&self.root, self.commands.as_ref(), package, *held)
            }
            (Target::Service { unit }, Value::Service { enabled, running }) => {
                let commands = self.commands.as_ref();
                service::write(&self.root, commands, unit, *enabled, *running)
            }
            _ => Err(SettingActuatorError::Value),
        }
    }

    fn missing_directories(&mut self, target: &Target) -> Vec<String> {
        match target {
            Target::File { path } => files::missing_directories(&self.root, path),
            _ => Vec::new(),
        }
    }

    fn clean_up(
        &mut self,
        target: &Target,
        folders: &[String],
    ) -> Result<(), SettingActuatorError> {
        let part = match target {
            Target::File { path } => Some(path.as_str()),
            // If the root is not this machine, these targets are changed by replacing a file.
            Target::Kernel { path } if self.commands.is_none() => Some(path.as_str()),
            Target::Hold { .. } if self.commands.is_none() => Some("/var/lib/dpkg/status"),
            _ => None,
        };
        if let Some(path) = part {
            files::remove_temporary(&self.root, path)
                .map_err(|err| SettingActuatorError::from_io(path, err))?;
        }
        for dir in folders.iter().rev() {
            files::remove_directory(&self.root, dir)
                .map_err(|err| SettingActuatorError::from_io(dir, err))?;
        }
        Ok(())
    }
}
