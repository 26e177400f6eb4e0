//! The actuator with scripts in place of system commands. Tests which commands it runs and what
//! they change.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use farrier_facts::node::Reading;
use farrier_facts::tune::{
    PlannedChange, RevertOutcome, Step, StepOutcome, StepStatus, StepSubject, Target, Value,
};
use jiff::Timestamp;

use super::system_commands::SystemCommands;
use super::*;
use crate::nvml::GpuControls;
use crate::root::Root;

const UNIT: &str = "nvidia-persistenced.service";
const PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

struct TestNode(tempfile::TempDir);

impl TestNode {
    fn new() -> Self {
        let node = Self(tempfile::tempdir().unwrap());
        let processes = "[Unit]\n[Service]\n[Install]\nWantedBy=multi-user.target\n";
        node.put(&format!("lib/systemd/system/{UNIT}"), processes);
        node.put(&format!("sys/fs/cgroup/system.slice/{UNIT}/cgroup.procs"), "");
        node.put(&PAGES[1..], "[always] madvise never\n");
        fs::create_dir_all(node.path("etc/systemd/system/multi-user.target.wants")).unwrap();
        let record = |architecture: &str| {
            format!(
                "Package: libnvidia-gl-580\nStatus: install ok installed\nArchitecture: {architecture}\nVersion: 580\n\n"
            )
        };
        node.put("var/lib/dpkg/status", &(record("i386") + &record("amd64")));
        node.script("systemctl", SYSTEMCTL);
        node.script("apt-mark", APT_MARK);
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join("root").join(name)
    }

    fn put(&self, name: &str, text: &str) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
    }

    fn script(&self, name: &str, text: &str) {
        let path = self.0.path().join(name);
        let root = self.path("");
        let text = text.replace("ROOT", root.to_str().unwrap().trim_end_matches('/'));
        fs::write(
            &path,
            format!("#!/bin/sh\necho \"$0 $*\" | sed 's:.*/::' >> ROOT.log\n{text}")
                .replace("ROOT.log", &self.log().display().to_string()),
        )
        .unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn log(&self) -> PathBuf {
        self.0.path().join("log")
    }

    /// Commands run since the last call.
    fn ran(&self) -> Vec<String> {
        let text = fs::read_to_string(self.log()).unwrap_or_default();
        let _ = fs::remove_file(self.log());
        text.lines().map(str::to_owned).collect()
    }

    fn actuator(&self, limit: Duration) -> NodeSettingActuator {
        let commands = SystemCommands {
            systemctl: self.0.path().join("systemctl").into(),
            apt_mark: self.0.path().join("apt-mark").into(),
            limit,
        };
        let root = Root::unrecorded(self.path(""));
        NodeSettingActuator::with_commands(root, GpuControls::unavailable("no GPUs"), commands)
    }

    fn state(&self) -> PathBuf {
        self.0.path().join("state")
    }

    fn apply(&self, target: Target, value: Value) -> StepOutcome {
        self.apply_within(target, value, Duration::from_secs(20))
    }

    fn apply_within(&self, target: Target, value: Value, limit: Duration) -> StepOutcome {
        let step = Step {
            setting: "a.setting".to_owned(),
            subject: StepSubject::Gpus,
            current: None,
            wanted: value.words(),
            standing: StepStatus::Change(Vec::new()),
            change: Some(PlannedChange::new(target, value)),
            reason: "a test".to_owned(),
        };
        let mut journal = journal(&self.state());
        let mut actuator = self.actuator(limit);
        let mut applied = apply("a", &[step], &mut actuator, &mut journal, Timestamp::UNIX_EPOCH);
        applied.remove(0).outcome
    }

    fn revert(&self) -> Vec<RevertOutcome> {
        let mut actuator = self.actuator(Duration::from_secs(20));
        let at = Timestamp::UNIX_EPOCH;
        let reverted = revert(&mut actuator, &mut journal(&self.state()), false, at);
        reverted.into_iter().map(|reverted| reverted.outcome).collect()
    }
}

/// Opens the journal. Retries while it is in use, because another test that spawns a process holds
/// our locks between its fork and its exec.
fn journal(state: &Path) -> TuneJournal {
    loop {
        match TuneJournal::open(state, TuneFailpoint::default()) {
            Err(TuneJournalError::InUse { .. }) => std::thread::yield_now(),
            opened => return opened.unwrap(),
        }
    }
}

/// Maintains the symlinks and the cgroup as systemd does.
const SYSTEMCTL: &str = r#"
link="ROOT/etc/systemd/system/multi-user.target.wants/$2"
case "$1" in
enable) grep -q Install "ROOT/lib/systemd/system/$2" && ln -sf "/lib/systemd/system/$2" "$link" ;;
disable) rm -f "$link" ;;
start) echo 1 > "ROOT/sys/fs/cgroup/system.slice/$2/cgroup.procs" ;;
stop) : > "ROOT/sys/fs/cgroup/system.slice/$2/cgroup.procs" ;;
esac
"#;

/// A fake `apt-mark`. Without an architecture in the package name, it uses amd64.
const APT_MARK: &str = r#"
status="ROOT/var/lib/dpkg/status"
name="${2%%:*}"; architecture="${2##*:}"; [ "$architecture" = "$2" ] && architecture=amd64
want=install; [ "$1" = hold ] && want=hold
awk -v RS= -v ORS='\n\n' -v n="$name" -v a="$architecture" -v w="$want" \
  '$0 ~ "Package: " n "\n" && $0 ~ "Architecture: " a { sub(/Status: [a-z]+/, "Status: " w) } { print }' \
  "$status" > "$status.new" && mv "$status.new" "$status"
"#;

fn service() -> Target {
    Target::Service { unit: "nvidia-persistenced".to_owned() }
}

#[test]
fn service_is_enabled_started_and_reverted() {
    let node = TestNode::new();
    let both = Value::Service { enabled: true, running: true };
    assert_eq!(node.apply(service(), both), StepOutcome::Done);
    assert_eq!(node.ran(), [format!("systemctl enable {UNIT}"), format!("systemctl start {UNIT}")]);
    assert!(node.path(&format!("etc/systemd/system/multi-user.target.wants/{UNIT}")).is_symlink());
    assert_eq!(node.revert(), [RevertOutcome::Back]);
    assert_eq!(node.ran(), [format!("systemctl disable {UNIT}"), format!("systemctl stop {UNIT}")]);
}

#[test]
fn static_unit_is_started_but_not_enabled() {
    let node = TestNode::new();
    node.put(&format!("lib/systemd/system/{UNIT}"), "[Unit]\n[Service]\n");
    let state = super::service::read(&Root::unrecorded(node.path("")), "nvidia-persistenced", true);
    assert!(state.value().unwrap().is_static);
    let running = Value::Service { enabled: false, running: true };
    assert_eq!(node.apply(service(), running), StepOutcome::Done);
    assert_eq!(node.ran(), [format!("systemctl start {UNIT}")]);
    assert_eq!(node.revert(), [RevertOutcome::Back]);
    assert_eq!(node.ran(), [format!("systemctl stop {UNIT}")]);
}

#[test]
fn runtime_unit_is_linked_from_its_directory() {
    let node = TestNode::new();
    fs::remove_file(node.path(&format!("lib/systemd/system/{UNIT}"))).unwrap();
    node.put(&format!("run/systemd/system/{UNIT}"), "[Install]\n");
    let mut actuator = NodeSettingActuator::new(
        Root::unrecorded(node.path("")),
        GpuControls::unavailable("no GPUs"),
    );
    actuator.write(&service(), &Value::Service { enabled: true, running: false }).unwrap();
    let link = node.path(&format!("etc/systemd/system/multi-user.target.wants/{UNIT}"));
    assert_eq!(fs::read_link(link).unwrap(), Path::new(&format!("/run/systemd/system/{UNIT}")));
}

#[test]
fn holds_are_per_architecture() {
    let node = TestNode::new();
    let before = fs::read_to_string(node.path("var/lib/dpkg/status")).unwrap();
    for architecture in ["i386", "amd64"] {
        let package = format!("libnvidia-gl-580:{architecture}");
        let target = Target::Hold { package: package.clone() };
        assert_eq!(node.apply(target, Value::Switch(true)), StepOutcome::Done);
        assert_eq!(node.ran(), [format!("apt-mark hold {package}")]);
    }
    let held = fs::read_to_string(node.path("var/lib/dpkg/status")).unwrap();
    assert_eq!(held.matches("Status: hold ok installed").count(), 2, "{held}");
    assert_eq!(node.revert(), [RevertOutcome::Back, RevertOutcome::Back]);
    assert_eq!(fs::read_to_string(node.path("var/lib/dpkg/status")).unwrap(), before);
}

#[test]
fn failed_and_timed_out_commands_are_reported() {
    let node = TestNode::new();
    let target = Target::Hold { package: "libnvidia-gl-580:amd64".to_owned() };
    node.script("apt-mark", "echo 'E: dpkg is locked' >&2; exit 100");
    let failed = node.apply(target.clone(), Value::Switch(true));
    assert!(
        matches!(&failed, StepOutcome::Failed { why, .. } if why.ends_with("E: dpkg is locked"))
    );
    assert_eq!(node.revert(), []);
    // The command may still be running, so the outcome is unknown, and the change stays in the
    // journal.
    node.script("apt-mark", "exec sleep 60");
    let late = node.apply_within(target, Value::Switch(true), Duration::from_millis(50));
    assert!(
        matches!(&late, StepOutcome::Unknown(why) if why.contains("did not finish")),
        "{late:?}"
    );
    assert_eq!(node.revert(), [RevertOutcome::Already]);
}

#[test]
fn kernel_gets_the_bare_word() {
    let node = TestNode::new();
    let target = Target::Kernel { path: PAGES.to_owned() };
    let mut actuator = node.actuator(Duration::from_secs(20));
    assert_eq!(actuator.read(&target), Reading::Value(Value::Word("always".to_owned())));
    actuator.write(&target, &Value::Word("madvise".to_owned())).unwrap();
    // A write to sysfs starts at the first byte and does not truncate.
    let text = fs::read_to_string(node.path(&PAGES[1..])).unwrap();
    assert!(text.starts_with("madvise") && text.len() == "[always] madvise never\n".len());
    // Symlinks do not lead out of the root.
    fs::remove_file(node.path(&PAGES[1..])).unwrap();
    symlink("/nonexistent/elsewhere", node.path(&PAGES[1..])).unwrap();
    assert!(actuator.write(&target, &Value::Word("never".to_owned())).is_err());
}
