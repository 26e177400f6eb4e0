//! The hands of a real node: `nvidia-smi` and `systemctl`, as processes under a deadline.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use farrier_facts::node::Reading;
use farrier_fleet::health::GpuUuid;
use farrier_hardware::Root;
use farrier_hardware::nvml::watch::ProbePause;

use super::hands::{Hands, Service};
use super::node_error::ActuatorError;
use super::process;
use super::tuner::Tuner;

/// A reset takes seconds, and up to a minute where a switch is trained anew.
const RESET_DEADLINE: Duration = Duration::from_secs(180);
/// systemd gives a unit 90 s to start and as much to stop (`DefaultTimeoutStartSec`).
const RESTART_DEADLINE: Duration = Duration::from_secs(200);
const ASK_DEADLINE: Duration = Duration::from_secs(20);
/// How long the agent's own child is waited for: while it has NVML open a GPU is in use.
const HOLD_PATIENCE: Duration = Duration::from_secs(10);

/// Where the kernel says which boot this is.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The hands of a real node.
pub struct NodeHands {
    root: PathBuf,
    nvidia_smi: OsString,
    systemctl: OsString,
    hold: Option<Arc<ProbePause>>,
    hold_patience: Duration,
    is_live: bool,
    tuner: Tuner,
}

impl NodeHands {
    /// Of the machine whose root this is. On another root than `/` nothing is changed: it is not this machine's. `hold` keeps the
    /// agent's own child from NVML.
    pub fn new(root: &Path, hold: Option<Arc<ProbePause>>, tuner: Tuner) -> Self {
        Self {
            root: root.to_owned(),
            nvidia_smi: "nvidia-smi".into(),
            systemctl: "systemctl".into(),
            hold,
            hold_patience: HOLD_PATIENCE,
            is_live: root == Path::new("/"),
            tuner,
        }
    }

    /// With programs from elsewhere.
    #[must_use]
    pub fn with_programs(mut self, nvidia_smi: PathBuf, systemctl: PathBuf) -> Self {
        (self.nvidia_smi, self.systemctl) = (nvidia_smi.into(), systemctl.into());
        self
    }

    fn change(
        &self,
        program: &OsStr,
        words: &[&str],
        deadline: Duration,
        alive: File,
    ) -> Result<(), ActuatorError> {
        if !self.is_live {
            return Err(ActuatorError::NotThisMachine);
        }
        process::change(program, words, deadline, alive)?;
        Ok(())
    }
}

impl Hands for NodeHands {
    fn boot(&self) -> Result<String, ActuatorError> {
        boot(&Root::unrecorded(&self.root))
    }

    fn reset_gpu(&self, gpu: &GpuUuid, alive: File) -> Result<(), ActuatorError> {
        let _held = match &self.hold {
            Some(hold) => {
                Some(ProbePause::acquire(hold, self.hold_patience).ok_or(ActuatorError::NvmlHeld)?)
            }
            None => None,
        };
        self.change(&self.nvidia_smi, &["--gpu-reset", "-i", &gpu.0], RESET_DEADLINE, alive)
    }

    fn reboot(&self, alive: File) -> Result<(), ActuatorError> {
        self.change(&self.systemctl, &["reboot"], ASK_DEADLINE, alive)
    }

    fn service(&self, unit: &str) -> Result<Service, ActuatorError> {
        let words = ["show", "--property=LoadState,ActiveState,SubState,InvocationID", "--", unit];
        service(&process::run(&self.systemctl, words, ASK_DEADLINE)?)
    }

    fn restart_service(&self, unit: &str, alive: File) -> Result<(), ActuatorError> {
        self.change(&self.systemctl, &["restart", "--", unit], RESTART_DEADLINE, alive)
    }

    fn tune(&self, profile: &str, alive: File) -> Result<String, ActuatorError> {
        if !self.is_live {
            return Err(ActuatorError::NotThisMachine);
        }
        Ok(self.tuner.apply(profile, alive)?)
    }
}

/// The boot of the node with this root.
fn boot(root: &Root) -> Result<String, ActuatorError> {
    let path = BOOT_ID;
    match root.trimmed(path) {
        Reading::Value(boot) if !boot.is_empty() => Ok(boot),
        Reading::Value(_) | Reading::Absent => Err(ActuatorError::BootIdEmpty { path }),
        Reading::Unreadable(err) => Err(ActuatorError::BootIdUnreadable { path, err }),
    }
}

/// What `systemctl show` says (`org.freedesktop.systemd1(5)`): an invocation is one run of a unit.
fn service(told: &str) -> Result<Service, ActuatorError> {
    let value = |key: &str| {
        told.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).unwrap_or_default()
    };
    if value("LoadState") != "loaded" {
        return Err(ActuatorError::UnitNotLoaded { load_state: value("LoadState").to_owned() });
    }
    let (active, sub) = (value("ActiveState"), value("SubState"));
    if active.is_empty() {
        return Err(ActuatorError::NoActiveState);
    }
    let run = Some(value("InvocationID")).filter(|run| !run.is_empty()).map(str::to_owned);
    Ok(Service { is_active: active == "active", state: format!("{active} ({sub})"), run })
}

#[cfg(test)]
mod tests {
    use super::super::process::ProcessError;
    use super::*;
    use crate::config::Config;

    #[test]
    fn a_service_is_as_systemd_says() {
        let told = "LoadState=loaded\nActiveState=active\nSubState=running\nInvocationID=8c1d\n";
        let seen = service(told).unwrap();
        assert!(seen.is_active);
        assert_eq!((seen.state.as_str(), seen.run.as_deref()), ("active (running)", Some("8c1d")));
        let told = "LoadState=loaded\nActiveState=failed\nSubState=failed\nInvocationID=\n";
        let seen = service(told).unwrap();
        assert!(!seen.is_active && seen.run.is_none());
        let err = service("LoadState=not-found\nActiveState=inactive\n").unwrap_err();
        assert!(matches!(err, ActuatorError::UnitNotLoaded { .. }), "{err:?}");
        assert_eq!(err.to_string(), "systemd does not know it (`not-found`)");
        assert!(matches!(service(""), Err(ActuatorError::UnitNotLoaded { .. })));
        assert!(matches!(service("LoadState=loaded\n"), Err(ActuatorError::NoActiveState)));
    }

    fn tuner() -> Tuner {
        Tuner::new(&Config::default(), Path::new("/nowhere/farrier"))
    }

    /// Hands of this machine whose programs are one script, which writes down how it was called.
    fn hands(folder: &Path, text: &str, hold: Option<Arc<ProbePause>>) -> NodeHands {
        let calls = folder.join("calls");
        let text = format!("echo \"$@\" >> {}\n{text}", calls.display());
        let program = crate::orders::tests::script(folder, &text);
        NodeHands::new(Path::new("/"), hold, tuner()).with_programs(program.clone(), program)
    }

    #[test]
    fn programs_are_called_with_these_words_and_what_they_say_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let alive = || File::create(folder.path().join("alive")).unwrap();
        let gpu = GpuUuid("GPU-1".to_owned());
        let well = hands(folder.path(), "", None);
        well.reset_gpu(&gpu, alive()).unwrap();
        well.reboot(alive()).unwrap();
        well.restart_service("nvidia-fabricmanager.service", alive()).unwrap();
        let calls = std::fs::read_to_string(folder.path().join("calls")).unwrap();
        let calls: Vec<&str> = calls.lines().collect();
        assert_eq!(
            calls,
            ["--gpu-reset -i GPU-1", "reboot", "restart -- nvidia-fabricmanager.service"]
        );
        let ill = hands(folder.path(), "echo 'GPU 00000000:1B:00.0 is in use' >&2; exit 19", None);
        let err = ill.reset_gpu(&gpu, alive()).unwrap_err();
        let ActuatorError::Process(ProcessError::Failed { how, said, .. }) = &err else {
            panic!("{err:?}")
        };
        assert_eq!(
            (how.as_str(), said.as_str()),
            ("exit status: 19", "GPU 00000000:1B:00.0 is in use")
        );
        assert!(err.to_string().ends_with(&format!(" failed ({how}): {said}")), "{err}");
        let show =
            "printf 'LoadState=loaded\\nActiveState=active\\nSubState=running\\nInvocationID=a\\n'";
        let seen = hands(folder.path(), show, None).service("x.service").unwrap();
        assert!(seen.is_active && seen.run.as_deref() == Some("a"), "{seen:?}");
        assert_eq!(well.boot().unwrap().len(), 36, "a UUID");
    }

    #[test]
    fn a_gpu_is_not_reset_while_the_agents_own_child_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let alive = || File::create(folder.path().join("alive")).unwrap();
        let hold = Arc::new(ProbePause::default());
        let mut hands = hands(folder.path(), "", Some(Arc::clone(&hold)));
        hands.hold_patience = Duration::from_millis(10);
        let err = hands.reset_gpu(&GpuUuid("GPU-1".to_owned()), alive()).unwrap_err();
        assert!(matches!(err, ActuatorError::NvmlHeld), "{err:?}");
        assert!(!folder.path().join("calls").exists());
    }

    #[test]
    fn on_another_root_nothing_is_changed() {
        let folder = tempfile::tempdir().unwrap();
        let alive = || File::create(folder.path().join("alive")).unwrap();
        let called = folder.path().join("called");
        let program =
            crate::orders::tests::script(folder.path(), &format!("touch {}", called.display()));
        let hands =
            NodeHands::new(folder.path(), None, tuner()).with_programs(program.clone(), program);
        let gpu = GpuUuid("GPU-1".to_owned());
        for refused in [
            hands.reset_gpu(&gpu, alive()),
            hands.reboot(alive()),
            hands.restart_service("x.service", alive()),
            hands.tune("training", alive()).map(drop),
        ] {
            assert!(matches!(refused, Err(ActuatorError::NotThisMachine)), "{refused:?}");
        }
        assert!(!called.exists());
        let err = hands.boot().unwrap_err();
        assert_eq!(err.to_string(), "`/proc/sys/kernel/random/boot_id` says nothing");
    }
}
