//! Actuator of a real node: runs `nvidia-smi` and `systemctl` with a deadline.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use farrier_facts::node::Reading;
use farrier_fleet::health::GpuUuid;
use farrier_hardware::Root;
use farrier_hardware::nvml::watch::ProbePause;

use super::actuator::{Actuator, ServiceStatus};
use super::node_error::ActuatorError;
use super::process;
use super::tuner::Tuner;

/// Deadline of a reset. A reset takes seconds, or up to a minute if a switch has to retrain its
/// links.
const RESET_DEADLINE: Duration = Duration::from_secs(180);
/// Deadline of a restart. systemd allows a unit 90 s to stop and 90 s to start
/// (`DefaultTimeoutStartSec`).
const RESTART_DEADLINE: Duration = Duration::from_secs(200);
const QUERY_DEADLINE: Duration = Duration::from_secs(20);
/// How long to wait until the agent's own NVML probe has stopped. As long as the probe has NVML
/// open, the GPU is in use.
const PAUSE_TIMEOUT: Duration = Duration::from_secs(10);

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

pub struct NodeActuator {
    root: PathBuf,
    nvidia_smi: OsString,
    systemctl: OsString,
    pause: Option<Arc<ProbePause>>,
    pause_timeout: Duration,
    is_live: bool,
    tuner: Tuner,
}

impl NodeActuator {
    /// Creates an actuator. If the root is not `/`, the node is not this machine, and every change
    /// is refused. `pause` stops the agent's own NVML probe during a reset.
    pub fn new(root: &Path, pause: Option<Arc<ProbePause>>, tuner: Tuner) -> Self {
        Self {
            root: root.to_owned(),
            nvidia_smi: "nvidia-smi".into(),
            systemctl: "systemctl".into(),
            pause,
            pause_timeout: PAUSE_TIMEOUT,
            is_live: root == Path::new("/"),
            tuner,
        }
    }

    /// Uses other programs, for tests.
    #[must_use]
    pub fn with_programs(mut self, nvidia_smi: PathBuf, systemctl: PathBuf) -> Self {
        (self.nvidia_smi, self.systemctl) = (nvidia_smi.into(), systemctl.into());
        self
    }

    fn change(
        &self,
        program: &OsStr,
        args: &[&str],
        deadline: Duration,
        lock: File,
    ) -> Result<(), ActuatorError> {
        if !self.is_live {
            return Err(ActuatorError::NotThisMachine);
        }
        process::change(program, args, deadline, lock)?;
        Ok(())
    }
}

impl Actuator for NodeActuator {
    fn boot(&self) -> Result<String, ActuatorError> {
        boot(&Root::unrecorded(&self.root))
    }

    fn reset_gpu(&self, gpu: &GpuUuid, lock: File) -> Result<(), ActuatorError> {
        let _paused = match &self.pause {
            Some(pause) => Some(
                ProbePause::acquire(pause, self.pause_timeout).ok_or(ActuatorError::NvmlHeld)?,
            ),
            None => None,
        };
        self.change(&self.nvidia_smi, &["--gpu-reset", "-i", &gpu.0], RESET_DEADLINE, lock)
    }

    fn reboot(&self, lock: File) -> Result<(), ActuatorError> {
        self.change(&self.systemctl, &["reboot"], QUERY_DEADLINE, lock)
    }

    fn service(&self, unit: &str) -> Result<ServiceStatus, ActuatorError> {
        let args = ["show", "--property=LoadState,ActiveState,SubState,InvocationID", "--", unit];
        service(&process::run(&self.systemctl, args, QUERY_DEADLINE)?)
    }

    fn restart_service(&self, unit: &str, lock: File) -> Result<(), ActuatorError> {
        self.change(&self.systemctl, &["restart", "--", unit], RESTART_DEADLINE, lock)
    }

    fn tune(&self, profile: &str, lock: File) -> Result<String, ActuatorError> {
        if !self.is_live {
            return Err(ActuatorError::NotThisMachine);
        }
        Ok(self.tuner.apply(profile, lock)?)
    }
}

fn boot(root: &Root) -> Result<String, ActuatorError> {
    let path = BOOT_ID;
    match root.trimmed(path) {
        Reading::Value(boot) if !boot.is_empty() => Ok(boot),
        Reading::Value(_) | Reading::Absent => Err(ActuatorError::BootIdEmpty { path }),
        Reading::Unreadable(err) => Err(ActuatorError::BootIdUnreadable { path, err }),
    }
}

/// Parses `systemctl show` (`org.freedesktop.systemd1(5)`). An invocation id identifies one run of
/// a unit.
fn service(output: &str) -> Result<ServiceStatus, ActuatorError> {
    let value = |key: &str| {
        output
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
            .unwrap_or_default()
    };
    if value("LoadState") != "loaded" {
        return Err(ActuatorError::UnitNotLoaded { load_state: value("LoadState").to_owned() });
    }
    let (active, sub) = (value("ActiveState"), value("SubState"));
    if active.is_empty() {
        return Err(ActuatorError::NoActiveState);
    }
    let run = Some(value("InvocationID")).filter(|run| !run.is_empty()).map(str::to_owned);
    Ok(ServiceStatus { is_active: active == "active", state: format!("{active} ({sub})"), run })
}

#[cfg(test)]
mod tests {
    use super::super::process::ProcessError;
    use super::*;
    use crate::config::Config;

    #[test]
    fn systemctl_show_is_parsed() {
        let output = "LoadState=loaded\nActiveState=active\nSubState=running\nInvocationID=8c1d\n";
        let parsed = service(output).unwrap();
        assert!(parsed.is_active);
        assert_eq!(
            (parsed.state.as_str(), parsed.run.as_deref()),
            ("active (running)", Some("8c1d"))
        );
        let output = "LoadState=loaded\nActiveState=failed\nSubState=failed\nInvocationID=\n";
        let parsed = service(output).unwrap();
        assert!(!parsed.is_active && parsed.run.is_none());
        let err = service("LoadState=not-found\nActiveState=inactive\n").unwrap_err();
        assert!(matches!(err, ActuatorError::UnitNotLoaded { .. }), "{err:?}");
        assert_eq!(err.to_string(), "systemd has not loaded the unit (`not-found`)");
        assert!(matches!(service(""), Err(ActuatorError::UnitNotLoaded { .. })));
        assert!(matches!(service("LoadState=loaded\n"), Err(ActuatorError::NoActiveState)));
    }

    fn tuner() -> Tuner {
        Tuner::new(&Config::default(), Path::new("/nowhere/farrier"))
    }

    /// An actuator whose programs are one script that logs its arguments.
    fn actuator(folder: &Path, text: &str, pause: Option<Arc<ProbePause>>) -> NodeActuator {
        let calls = folder.join("calls");
        let text = format!("echo \"$@\" >> {}\n{text}", calls.display());
        let program = crate::orders::tests::script(folder, &text);
        NodeActuator::new(Path::new("/"), pause, tuner()).with_programs(program.clone(), program)
    }

    #[test]
    fn programs_get_these_arguments_and_their_errors_are_returned() {
        let folder = tempfile::tempdir().unwrap();
        let lock = || File::create(folder.path().join("lock")).unwrap();
        let gpu = GpuUuid("GPU-1".to_owned());
        let succeeding = actuator(folder.path(), "", None);
        succeeding.reset_gpu(&gpu, lock()).unwrap();
        succeeding.reboot(lock()).unwrap();
        succeeding.restart_service("nvidia-fabricmanager.service", lock()).unwrap();
        let calls = std::fs::read_to_string(folder.path().join("calls")).unwrap();
        let calls: Vec<&str> = calls.lines().collect();
        assert_eq!(
            calls,
            ["--gpu-reset -i GPU-1", "reboot", "restart -- nvidia-fabricmanager.service"]
        );
        let failing =
            actuator(folder.path(), "echo 'GPU 00000000:1B:00.0 is in use' >&2; exit 19", None);
        let err = failing.reset_gpu(&gpu, lock()).unwrap_err();
        let ActuatorError::Process(ProcessError::Failed { status, output, .. }) = &err else {
            panic!("{err:?}")
        };
        assert_eq!(
            (status.as_str(), output.as_str()),
            ("exit status: 19", "GPU 00000000:1B:00.0 is in use")
        );
        assert!(err.to_string().ends_with(&format!(" failed ({status}): {output}")), "{err}");
        let show =
            "printf 'LoadState=loaded\\nActiveState=active\\nSubState=running\\nInvocationID=a\\n'";
        let parsed = actuator(folder.path(), show, None).service("x.service").unwrap();
        assert!(parsed.is_active && parsed.run.as_deref() == Some("a"), "{parsed:?}");
        assert_eq!(succeeding.boot().unwrap().len(), 36, "a UUID");
    }

    #[test]
    fn a_gpu_is_not_reset_while_the_agents_probe_has_it_open() {
        let folder = tempfile::tempdir().unwrap();
        let lock = || File::create(folder.path().join("lock")).unwrap();
        let pause = Arc::new(ProbePause::default());
        let mut actuator = actuator(folder.path(), "", Some(Arc::clone(&pause)));
        actuator.pause_timeout = Duration::from_millis(10);
        let err = actuator.reset_gpu(&GpuUuid("GPU-1".to_owned()), lock()).unwrap_err();
        assert!(matches!(err, ActuatorError::NvmlHeld), "{err:?}");
        assert!(!folder.path().join("calls").exists());
    }

    #[test]
    fn nothing_is_changed_on_another_root() {
        let folder = tempfile::tempdir().unwrap();
        let lock = || File::create(folder.path().join("lock")).unwrap();
        let called = folder.path().join("called");
        let program =
            crate::orders::tests::script(folder.path(), &format!("touch {}", called.display()));
        let actuator =
            NodeActuator::new(folder.path(), None, tuner()).with_programs(program.clone(), program);
        let gpu = GpuUuid("GPU-1".to_owned());
        for result in [
            actuator.reset_gpu(&gpu, lock()),
            actuator.reboot(lock()),
            actuator.restart_service("x.service", lock()),
            actuator.tune("training", lock()).map(drop),
        ] {
            assert!(matches!(result, Err(ActuatorError::NotThisMachine)), "{result:?}");
        }
        assert!(!called.exists());
        let err = actuator.boot().unwrap_err();
        assert_eq!(err.to_string(), "`/proc/sys/kernel/random/boot_id` is absent or empty");
    }
}
