//! The hands on this machine, with scripts in place of its commands: what they are asked, and what they leave behind.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use farrier_facts::node::Reading;
use farrier_facts::tune::{Change, Given, Outcome, Standing, Step, Subject, Target, Value};
use jiff::Timestamp;

use super::machine::Machine;
use super::*;
use crate::nvml::Controls;
use crate::root::Root;

const UNIT: &str = "nvidia-persistenced.service";
const PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

struct Live(tempfile::TempDir);

impl Live {
    fn new() -> Self {
        let live = Self(tempfile::tempdir().unwrap());
        let processes = "[Unit]\n[Service]\n[Install]\nWantedBy=multi-user.target\n";
        live.put(&format!("lib/systemd/system/{UNIT}"), processes);
        live.put(&format!("sys/fs/cgroup/system.slice/{UNIT}/cgroup.procs"), "");
        live.put(&PAGES[1..], "[always] madvise never\n");
        fs::create_dir_all(live.path("etc/systemd/system/multi-user.target.wants")).unwrap();
        let record = |architecture: &str| {
            format!(
                "Package: libnvidia-gl-580\nStatus: install ok installed\nArchitecture: {architecture}\nVersion: 580\n\n"
            )
        };
        live.put("var/lib/dpkg/status", &(record("i386") + &record("amd64")));
        live.script("systemctl", SYSTEMCTL);
        live.script("apt-mark", APT_MARK);
        live
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

    /// What was run since the last time.
    fn ran(&self) -> Vec<String> {
        let text = fs::read_to_string(self.log()).unwrap_or_default();
        let _ = fs::remove_file(self.log());
        text.lines().map(str::to_owned).collect()
    }

    fn hands(&self, limit: Duration) -> NodeHands {
        let machine = Machine {
            systemctl: self.0.path().join("systemctl").into(),
            apt_mark: self.0.path().join("apt-mark").into(),
            limit,
        };
        let root = Root::unrecorded(self.path(""));
        NodeHands::on_machine(root, Controls::none("there is none"), machine)
    }

    fn state(&self) -> PathBuf {
        self.0.path().join("state")
    }

    fn apply(&self, target: Target, value: Value) -> Outcome {
        self.apply_within(target, value, Duration::from_secs(20))
    }

    fn apply_within(&self, target: Target, value: Value, limit: Duration) -> Outcome {
        let step = Step {
            setting: "a.setting".to_owned(),
            subject: Subject::Gpus,
            current: None,
            wanted: value.words(),
            standing: Standing::Change(Vec::new()),
            change: Some(Change::new(target, value)),
            reason: "a test".to_owned(),
        };
        let mut journal = journal(&self.state());
        let mut hands = self.hands(limit);
        let mut applied = apply("a", &[step], &mut hands, &mut journal, Timestamp::UNIX_EPOCH);
        applied.remove(0).outcome
    }

    fn revert(&self) -> Vec<Given> {
        let mut hands = self.hands(Duration::from_secs(20));
        let at = Timestamp::UNIX_EPOCH;
        let reverted = revert(&mut hands, &mut journal(&self.state()), false, at);
        reverted.into_iter().map(|it| it.given).collect()
    }
}

/// Another test that starts a process holds every lock of ours between its fork and its exec.
fn journal(state: &Path) -> Journal {
    loop {
        match Journal::open(state, Interrupt::default()) {
            Err(JournalError::InUse { .. }) => std::thread::yield_now(),
            opened => return opened.unwrap(),
        }
    }
}

/// Keeps the links and the cgroup as systemd does.
const SYSTEMCTL: &str = r#"
link="ROOT/etc/systemd/system/multi-user.target.wants/$2"
case "$1" in
enable) grep -q Install "ROOT/lib/systemd/system/$2" && ln -sf "/lib/systemd/system/$2" "$link" ;;
disable) rm -f "$link" ;;
start) echo 1 > "ROOT/sys/fs/cgroup/system.slice/$2/cgroup.procs" ;;
stop) : > "ROOT/sys/fs/cgroup/system.slice/$2/cgroup.procs" ;;
esac
"#;

/// Takes a package of the architecture that is named; without one, amd64.
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
fn a_service_is_enabled_and_started_and_given_back() {
    let live = Live::new();
    let both = Value::Service { enabled: true, running: true };
    assert_eq!(live.apply(service(), both), Outcome::Done);
    assert_eq!(live.ran(), [format!("systemctl enable {UNIT}"), format!("systemctl start {UNIT}")]);
    assert!(live.path(&format!("etc/systemd/system/multi-user.target.wants/{UNIT}")).is_symlink());
    assert_eq!(live.revert(), [Given::Back]);
    assert_eq!(live.ran(), [format!("systemctl disable {UNIT}"), format!("systemctl stop {UNIT}")]);
}

#[test]
fn a_static_unit_is_started_and_not_enabled() {
    let live = Live::new();
    live.put(&format!("lib/systemd/system/{UNIT}"), "[Unit]\n[Service]\n");
    let state = super::service::read(&Root::unrecorded(live.path("")), "nvidia-persistenced", true);
    assert!(state.value().unwrap().is_static);
    let running = Value::Service { enabled: false, running: true };
    assert_eq!(live.apply(service(), running), Outcome::Done);
    assert_eq!(live.ran(), [format!("systemctl start {UNIT}")]);
    assert_eq!(live.revert(), [Given::Back]);
    assert_eq!(live.ran(), [format!("systemctl stop {UNIT}")]);
}

#[test]
fn a_unit_that_runtime_configuration_has_is_linked_from_there() {
    let live = Live::new();
    fs::remove_file(live.path(&format!("lib/systemd/system/{UNIT}"))).unwrap();
    live.put(&format!("run/systemd/system/{UNIT}"), "[Install]\n");
    let mut hands =
        NodeHands::new(Root::unrecorded(live.path("")), Controls::none("there is none"));
    hands.write(&service(), &Value::Service { enabled: true, running: false }).unwrap();
    let link = live.path(&format!("etc/systemd/system/multi-user.target.wants/{UNIT}"));
    assert_eq!(fs::read_link(link).unwrap(), Path::new(&format!("/run/systemd/system/{UNIT}")));
}

#[test]
fn a_hold_is_of_one_architecture() {
    let live = Live::new();
    let before = fs::read_to_string(live.path("var/lib/dpkg/status")).unwrap();
    for architecture in ["i386", "amd64"] {
        let package = format!("libnvidia-gl-580:{architecture}");
        let target = Target::Hold { package: package.clone() };
        assert_eq!(live.apply(target, Value::Switch(true)), Outcome::Done);
        assert_eq!(live.ran(), [format!("apt-mark hold {package}")]);
    }
    let held = fs::read_to_string(live.path("var/lib/dpkg/status")).unwrap();
    assert_eq!(held.matches("Status: hold ok installed").count(), 2, "{held}");
    assert_eq!(live.revert(), [Given::Back, Given::Back]);
    assert_eq!(fs::read_to_string(live.path("var/lib/dpkg/status")).unwrap(), before);
}

#[test]
fn a_command_that_fails_or_does_not_end_is_told() {
    let live = Live::new();
    let target = Target::Hold { package: "libnvidia-gl-580:amd64".to_owned() };
    live.script("apt-mark", "echo 'E: dpkg is locked' >&2; exit 100");
    let failed = live.apply(target.clone(), Value::Switch(true));
    assert!(matches!(&failed, Outcome::Failed { why, .. } if why.ends_with("E: dpkg is locked")));
    assert_eq!(live.revert(), []);
    // It may go on without us: what came of it is not known, and it stays in the journal.
    live.script("apt-mark", "exec sleep 60");
    let late = live.apply_within(target, Value::Switch(true), Duration::from_millis(50));
    assert!(matches!(&late, Outcome::Unknown(why) if why.contains("did not end")), "{late:?}");
    assert_eq!(live.revert(), [Given::Already]);
}

#[test]
fn the_kernel_is_given_the_word_alone() {
    let live = Live::new();
    let target = Target::Kernel { path: PAGES.to_owned() };
    let mut hands = live.hands(Duration::from_secs(20));
    assert_eq!(hands.read(&target), Reading::Value(Value::Word("always".to_owned())));
    hands.write(&target, &Value::Word("madvise".to_owned())).unwrap();
    // As the kernel is written to: from the first byte on, without cutting.
    let text = fs::read_to_string(live.path(&PAGES[1..])).unwrap();
    assert!(text.starts_with("madvise") && text.len() == "[always] madvise never\n".len());
    // A link in the kernel's files does not lead out.
    fs::remove_file(live.path(&PAGES[1..])).unwrap();
    symlink("/nonexistent/elsewhere", live.path(&PAGES[1..])).unwrap();
    assert!(hands.write(&target, &Value::Word("never".to_owned())).is_err());
}
