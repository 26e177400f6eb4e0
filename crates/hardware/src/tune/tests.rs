//! Changes, crashes and reverts on files below a directory, with fake GPUs.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::rc::Rc;

use farrier_facts::node::{NvmlStatus, ReadError, Reading};
use farrier_facts::tune::{
    Applied, Content, FileContent, GpuControl, Need, PlannedChange, RevertOutcome, Step,
    StepOutcome, StepStatus, StepSubject, Target, Value,
};
use jiff::Timestamp;
use proptest::prelude::*;

use super::system_commands::SystemCommands;
use super::*;
use crate::nvml::{GpuControls, GpuSetError, ProbeError};
use crate::root::Root;

type Gpus = Rc<RefCell<BTreeMap<Target, Value>>>;

/// Why a fake GPU refuses a change.
#[derive(Clone, Copy, PartialEq)]
enum GpuRefusal {
    NoPermission,
    Lost,
}

/// A real actuator for files, with fake GPUs in memory. The GPUs survive a crash, as real ones do.
struct FakeActuator {
    node: NodeSettingActuator,
    gpus: Gpus,
    /// GPUs that refuse changes, with the reason. A lost GPU refuses reads as well.
    refusing: BTreeMap<String, GpuRefusal>,
    /// Power limits are rounded down to multiples of this.
    step_mw: u32,
    /// Values in force that differ from the configured ones.
    in_force: BTreeMap<Target, Value>,
}

impl FakeActuator {
    fn new(root: &Path, gpus: &Gpus) -> Self {
        let node =
            NodeSettingActuator::new(Root::unrecorded(root), GpuControls::unavailable("no GPUs"));
        Self {
            node,
            gpus: Rc::clone(gpus),
            refusing: BTreeMap::new(),
            step_mw: 1,
            in_force: BTreeMap::new(),
        }
    }

    /// A GPU that rounds power limits.
    fn rounding(root: &Path, gpus: &Gpus) -> Self {
        Self { step_mw: 40_000, ..Self::new(root, gpus) }
    }

    fn refusal(&self, target: &Target) -> Option<GpuRefusal> {
        match target {
            Target::Gpu { uuid, .. } => self.refusing.get(uuid).copied(),
            _ => None,
        }
    }
}

impl SettingActuator for FakeActuator {
    fn read(&mut self, target: &Target) -> Reading<Value> {
        if self.refusal(target) == Some(GpuRefusal::Lost) {
            return Reading::Unreadable(ReadError::unavailable("NVML is lost"));
        }
        match target {
            Target::Gpu { .. } => {
                self.gpus.borrow().get(target).cloned().map_or(Reading::Absent, Reading::Value)
            }
            _ => self.node.read(target),
        }
    }

    fn write(&mut self, target: &Target, value: &Value) -> Result<(), SettingActuatorError> {
        match self.refusal(target) {
            Some(GpuRefusal::Lost) => return Err(SettingActuatorError::Lost(ProbeError::Exited)),
            Some(GpuRefusal::NoPermission) => {
                let why = GpuSetError::Call(NvmlStatus::NO_PERMISSION.into());
                return Err(SettingActuatorError::Refused(why));
            }
            None => {}
        }
        match target {
            Target::Gpu { .. } => {
                let made = match value {
                    Value::Number(limit_mw) => {
                        Value::Number(limit_mw / self.step_mw * self.step_mw)
                    }
                    other => other.clone(),
                };
                self.gpus.borrow_mut().insert(target.clone(), made);
                Ok(())
            }
            _ => self.node.write(target, value),
        }
    }

    fn in_force(&mut self, target: &Target) -> Reading<Value> {
        self.in_force.get(target).cloned().map_or_else(|| self.read(target), Reading::Value)
    }

    fn missing_directories(&mut self, target: &Target) -> Vec<String> {
        self.node.missing_directories(target)
    }

    fn clean_up(
        &mut self,
        target: &Target,
        folders: &[String],
    ) -> Result<(), SettingActuatorError> {
        self.node.clean_up(target, folders)
    }
}

const HUGEPAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
const GOVERNOR: &str = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor";
const MEMLOCK: &str = "/etc/security/limits.d/90-farrier-memlock.conf";
const TORCH: &str = "/etc/farrier/jobs/torch.env";
const JAX: &str = "/etc/farrier/jobs/jax.env";

fn put(root: &Path, path: &str, bytes: impl AsRef<[u8]>) {
    let path = root.join(path.trim_start_matches('/'));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

fn node(root: &Path) {
    put(root, HUGEPAGES, "always [madvise] never\n");
    put(root, GOVERNOR, "powersave\n");
    put(root, "/usr/lib/systemd/system/nvidia-persistenced.service", "[Service]\n");
    fs::create_dir_all(root.join("etc/systemd/system/multi-user.target.wants")).unwrap();
    let record = |name: &str, desired: &str| {
        format!("Package: {name}\nStatus: {desired} ok installed\nVersion: 580.95.05-1\n\n")
    };
    let status = record("nvidia-open", "install") + &record("libc6", "install");
    put(root, "/var/lib/dpkg/status", status + &record("linux-image-generic", "hold"));
}

/// Mode, owner and content.
type Entry = (u32, (u32, u32), Vec<u8>);

/// Everything below a directory: mode, owner and content.
fn tree(root: &Path) -> BTreeMap<String, Entry> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let content = if meta.is_symlink() {
                fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
            } else if meta.is_dir() {
                waiting.push(path.clone());
                Vec::new()
            } else {
                fs::read(&path).unwrap()
            };
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            found.insert(name, (meta.mode(), (meta.uid(), meta.gid()), content));
        }
    }
    found
}

fn gpu(number: u32, control: GpuControl) -> Target {
    Target::Gpu { uuid: format!("GPU-{number}"), control }
}

fn gpus() -> Gpus {
    let mut all = BTreeMap::new();
    for number in 0..2 {
        all.insert(gpu(number, GpuControl::PowerLimit), Value::Number(600_000));
        all.insert(gpu(number, GpuControl::Ecc), Value::Switch(false));
        let clocks = Value::Clocks { memory_mhz: 2619, graphics_mhz: 1980 };
        all.insert(gpu(number, GpuControl::ApplicationClocks), clocks);
    }
    Rc::new(RefCell::new(all))
}

fn step(target: Target, value: Value) -> Step {
    Step {
        setting: "a.setting".to_owned(),
        subject: StepSubject::Gpus,
        current: None,
        wanted: value.words(),
        standing: StepStatus::Change(Vec::new()),
        change: Some(PlannedChange::new(target, value)),
        reason: "a test".to_owned(),
    }
}

fn file(path: &str) -> Target {
    Target::File { path: path.to_owned() }
}

fn text(words: &str) -> Value {
    Value::File(FileContent::text(words))
}

/// A possible change.
fn change() -> impl Strategy<Value = Step> {
    let gpu_step = (0..2_u32, 0..3_u8, 0..4_u32).prop_map(|(number, which, value)| match which {
        0 => step(gpu(number, GpuControl::PowerLimit), Value::Number(500_000 + value * 50_000)),
        1 => step(gpu(number, GpuControl::Ecc), Value::Switch(value % 2 == 1)),
        _ => {
            let graphics_mhz = 1200 + value * 195;
            let clocks = Value::Clocks { memory_mhz: 2619, graphics_mhz };
            step(gpu(number, GpuControl::ApplicationClocks), clocks)
        }
    });
    let paths = prop::sample::select(vec![MEMLOCK, TORCH, JAX]);
    let file_step = (paths, 0..3_u8)
        .prop_map(|(path, value)| step(file(path), text(&format!("content {value}\n"))));
    let words = prop::sample::select(vec!["always", "madvise", "never"]);
    let pages = words.prop_map(|word| {
        step(Target::Kernel { path: HUGEPAGES.to_owned() }, Value::Word(word.to_owned()))
    });
    let words = prop::sample::select(vec!["performance", "powersave"]);
    let governor = words.prop_map(|word| {
        step(Target::Kernel { path: GOVERNOR.to_owned() }, Value::Word(word.to_owned()))
    });
    let names = prop::sample::select(vec!["nvidia-open", "linux-image-generic"]);
    let hold = (names, any::<bool>()).prop_map(|(name, held)| {
        step(Target::Hold { package: name.to_owned() }, Value::Switch(held))
    });
    let service = any::<bool>().prop_map(|enabled| {
        let unit = "nvidia-persistenced".to_owned();
        step(Target::Service { unit }, Value::Service { enabled, running: false })
    });
    prop_oneof![3 => gpu_step, 3 => file_step, 1 => pages, 1 => governor, 1 => hold, 1 => service]
}

/// A failpoint and the pass at which it crashes.
fn crash() -> impl Strategy<Value = (FailpointSite, u32)> {
    (prop::sample::select(FailpointSite::ALL.to_vec()), 1..24_u32)
}

/// Runs work that may crash at a failpoint. A panic for another reason fails the test.
fn run_until_crash(work: impl FnOnce()) {
    if let Err(cause) = catch_unwind(AssertUnwindSafe(work))
        && cause.downcast_ref::<&str>() != Some(&failpoint::INJECTED)
    {
        resume_unwind(cause);
    }
}

/// Opens a journal. Retries while it is in use, because another test that spawns a process holds
/// our locks between its fork and its exec.
fn open_journal(state: &Path, interrupt: impl Fn() -> TuneFailpoint) -> TuneJournal {
    for _ in 0..1_000_000 {
        match TuneJournal::open(state, interrupt()) {
            Err(TuneJournalError::InUse { .. }) => std::thread::yield_now(),
            opened => return opened.unwrap(),
        }
    }
    panic!("the journal stays in use");
}

/// A directory in memory if available, because every journal line is synced, which is slow on a
/// disk.
fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn crash_anywhere_reverts_bit_for_bit(
        before in prop::option::of((prop::collection::vec(any::<u8>(), 0..40), 0..0o777_u32)),
        dir in any::<bool>(),
        enabled in any::<bool>(),
        first in prop::collection::vec(change(), 1..12),
        second in prop::collection::vec(change(), 0..6),
        crashes in (crash(), crash(), crash()),
    ) {
        let place = self::dir();
        let (root, state) = (place.path().join("root"), place.path().join("state"));
        node(&root);
        if let Some((bytes, mode)) = before {
            put(&root, MEMLOCK, bytes);
            let path = root.join(&MEMLOCK[1..]);
            // Keep the file readable, because only root can read a file without read permission.
            fs::set_permissions(path, fs::Permissions::from_mode(mode | 0o400)).unwrap();
        }
        if dir {
            fs::create_dir_all(root.join("etc/farrier")).unwrap();
        }
        // A file of another user must keep its owner. Only root can create such files, so ignore
        // errors.
        for path in [GOVERNOR, HUGEPAGES, MEMLOCK, "/var/lib/dpkg/status"] {
            let _ = std::os::unix::fs::chown(root.join(&path[1..]), Some(4242), Some(4243));
        }
        if enabled {
            let unit = "nvidia-persistenced.service";
            let link = root.join("etc/systemd/system/multi-user.target.wants").join(unit);
            symlink(format!("/usr/lib/systemd/system/{unit}"), link).unwrap();
        }
        let gpus = gpus();
        let (files_before, gpus_before) = (tree(&root), gpus.borrow().clone());
        let now = Timestamp::UNIX_EPOCH;
        for (steps, (point, times)) in [(&first, crashes.0), (&second, crashes.1)] {
            run_until_crash(|| {
                let mut journal = open_journal(&state, || TuneFailpoint::panic_at(point, times));
                let mut actuator = FakeActuator::rounding(&root, &gpus);
                for applied in apply("a", steps, &mut actuator, &mut journal, now) {
                    let rounds = matches!(applied.step.change.as_ref().unwrap().value, Value::Number(_));
                    assert!(rounds || applied.outcome.is_made(), "{applied:?}");
                    assert!(!matches!(applied.outcome, StepOutcome::Unknown(_) | StepOutcome::NotDone(_)));
                }
            });
        }
        run_until_crash(|| {
            let (point, times) = crashes.2;
            let mut journal = open_journal(&state, || TuneFailpoint::panic_at(point, times));
            revert(&mut FakeActuator::rounding(&root, &gpus), &mut journal, false, now);
        });
        let mut journal = open_journal(&state, TuneFailpoint::default);
        let reverted = revert(&mut FakeActuator::rounding(&root, &gpus), &mut journal, false, now);
        for change in &reverted {
            prop_assert!(matches!(change.outcome, RevertOutcome::Back | RevertOutcome::Already), "{change:?}");
        }
        prop_assert_eq!(tree(&root), files_before);
        prop_assert_eq!(&*gpus.borrow(), &gpus_before);
        prop_assert!(journal.open_changes().is_empty());
        drop(journal);
        prop_assert!(TuneJournal::read(&state).unwrap().open_changes().is_empty());
    }
}

struct TestNode {
    place: tempfile::TempDir,
    gpus: Gpus,
}

impl TestNode {
    fn new() -> Self {
        let node_under_test = Self { place: dir(), gpus: gpus() };
        node(&node_under_test.root());
        node_under_test
    }

    fn root(&self) -> std::path::PathBuf {
        self.place.path().join("root")
    }

    fn actuator(&self) -> FakeActuator {
        FakeActuator::new(&self.root(), &self.gpus)
    }

    fn journal(&self) -> TuneJournal {
        open_journal(&self.place.path().join("state"), TuneFailpoint::default)
    }

    fn apply(&self, steps: &[Step], actuator: &mut FakeActuator) -> Vec<StepOutcome> {
        let applied = apply("a", steps, actuator, &mut self.journal(), Timestamp::UNIX_EPOCH);
        applied.into_iter().map(|applied| applied.outcome).collect()
    }

    fn revert(&self, force: bool) -> Vec<RevertOutcome> {
        let mut actuator = self.actuator();
        let at = Timestamp::UNIX_EPOCH;
        let reverted = revert(&mut actuator, &mut self.journal(), force, at);
        reverted.into_iter().map(|reverted| reverted.outcome).collect()
    }
}

fn steps() -> Vec<Step> {
    vec![
        step(gpu(0, GpuControl::PowerLimit), Value::Number(700_000)),
        step(gpu(1, GpuControl::PowerLimit), Value::Number(700_000)),
        step(file(MEMLOCK), text("unlimited\n")),
    ]
}

#[test]
fn applying_twice_changes_nothing() {
    let node_under_test = TestNode::new();
    let once = node_under_test.apply(&steps(), &mut node_under_test.actuator());
    assert_eq!(once, [StepOutcome::Done, StepOutcome::Done, StepOutcome::Done]);
    let again = node_under_test.apply(&steps(), &mut node_under_test.actuator());
    assert_eq!(again, [StepOutcome::Already, StepOutcome::Already, StepOutcome::Already]);
    assert_eq!(node_under_test.journal().open_changes().len(), 3);
}

#[test]
fn failed_step_does_not_prevent_the_others() {
    let node_under_test = TestNode::new();
    let mut actuator = node_under_test.actuator();
    actuator.refusing.insert("GPU-0".to_owned(), GpuRefusal::NoPermission);
    let outcomes = node_under_test.apply(&steps(), &mut actuator);
    let why = "NVML refused: NVML_ERROR_NO_PERMISSION".to_owned();
    assert_eq!(outcomes[0], StepOutcome::Failed { why, permission: true });
    assert_eq!(outcomes[1..], [StepOutcome::Done, StepOutcome::Done]);
    // Settings that were not changed are not reverted.
    assert_eq!(node_under_test.revert(false), [RevertOutcome::Back, RevertOutcome::Back]);
}

#[test]
fn lost_nvml_leaves_the_rest_undone_and_revertible() {
    let node_under_test = TestNode::new();
    let mut actuator = node_under_test.actuator();
    actuator.refusing.insert("GPU-1".to_owned(), GpuRefusal::Lost);
    let outcomes = node_under_test.apply(&steps(), &mut actuator);
    assert_eq!(outcomes[0], StepOutcome::Done);
    // The value cannot be read, so the change is not begun.
    assert!(matches!(&outcomes[1], StepOutcome::NotDone(why) if why.contains("failed to read")));
    assert_eq!(outcomes[2], StepOutcome::Done);
    assert_eq!(node_under_test.revert(false), [RevertOutcome::Back, RevertOutcome::Back]);
}

/// An actuator that loses NVML in the middle of a change.
struct LosingActuator(FakeActuator);

impl SettingActuator for LosingActuator {
    fn read(&mut self, target: &Target) -> Reading<Value> {
        self.0.read(target)
    }

    fn write(&mut self, target: &Target, value: &Value) -> Result<(), SettingActuatorError> {
        if let Target::Gpu { uuid, .. } = target
            && uuid == "GPU-1"
        {
            self.0.write(target, value)?;
            self.0.refusing.insert(uuid.clone(), GpuRefusal::Lost);
            return Err(SettingActuatorError::Lost(ProbeError::TimedOut { limit_s: 10 }));
        }
        self.0.write(target, value)
    }

    fn missing_directories(&mut self, target: &Target) -> Vec<String> {
        self.0.missing_directories(target)
    }

    fn clean_up(
        &mut self,
        target: &Target,
        folders: &[String],
    ) -> Result<(), SettingActuatorError> {
        self.0.clean_up(target, folders)
    }
}

#[test]
fn change_interrupted_by_lost_nvml_stays_in_the_journal() {
    let node_under_test = TestNode::new();
    let mut actuator = LosingActuator(node_under_test.actuator());
    let at = Timestamp::UNIX_EPOCH;
    let applied = apply("a", &steps(), &mut actuator, &mut node_under_test.journal(), at);
    assert_eq!(applied[0].outcome, StepOutcome::Done);
    assert!(matches!(&applied[1].outcome, StepOutcome::Unknown(why) if why.contains("10 s")));
    assert!(matches!(&applied[2].outcome, StepOutcome::NotDone(why) if why.contains("lost")));
    assert_eq!(node_under_test.journal().open_changes().len(), 2);
    assert_eq!(node_under_test.revert(false), [RevertOutcome::Back, RevertOutcome::Back]);
    assert_eq!(*node_under_test.gpus.borrow(), *gpus().borrow());
}

#[test]
fn foreign_changes_are_left_alone() {
    let node_under_test = TestNode::new();
    node_under_test.apply(&steps(), &mut node_under_test.actuator());
    put(&node_under_test.root(), MEMLOCK, "foreign\n");
    node_under_test
        .gpus
        .borrow_mut()
        .insert(gpu(0, GpuControl::PowerLimit), Value::Number(300_000));
    let outcomes = node_under_test.revert(false);
    assert!(matches!(outcomes[0], RevertOutcome::Foreign(_)), "{outcomes:?}");
    assert_eq!(outcomes[1], RevertOutcome::Back);
    assert_eq!(outcomes[2], RevertOutcome::Foreign("300 W".to_owned()));
    assert_eq!(fs::read(node_under_test.root().join(&MEMLOCK[1..])).unwrap(), b"foreign\n");
    assert_eq!(node_under_test.revert(true), [RevertOutcome::Back, RevertOutcome::Back]);
    assert!(!node_under_test.root().join("etc/security").exists());
    assert_eq!(*node_under_test.gpus.borrow(), *gpus().borrow());
    assert_eq!(node_under_test.revert(false), []);
}

#[test]
fn replaced_gpu_is_dropped_only_with_force() {
    let node_under_test = TestNode::new();
    node_under_test.apply(&steps(), &mut node_under_test.actuator());
    node_under_test.gpus.borrow_mut().remove(&gpu(1, GpuControl::PowerLimit));
    let outcomes = node_under_test.revert(false);
    assert_eq!((&outcomes[0], &outcomes[2]), (&RevertOutcome::Back, &RevertOutcome::Back));
    assert!(
        matches!(&outcomes[1], RevertOutcome::Failed { why, .. } if why.contains("no longer exists"))
    );
    assert_eq!(node_under_test.journal().open_changes().len(), 1);
    assert_eq!(node_under_test.revert(true), [RevertOutcome::Forgotten]);
    assert!(node_under_test.journal().open_changes().is_empty());
}

#[test]
fn older_change_is_not_reverted_over_a_foreign_one() {
    let node_under_test = TestNode::new();
    for limit in [500_000, 550_000] {
        let steps = [step(gpu(0, GpuControl::PowerLimit), Value::Number(limit))];
        node_under_test.apply(&steps, &mut node_under_test.actuator());
    }
    // The value now belongs to someone else.
    node_under_test
        .gpus
        .borrow_mut()
        .insert(gpu(0, GpuControl::PowerLimit), Value::Number(650_000));
    let outcomes = node_under_test.revert(false);
    assert_eq!(outcomes[0], RevertOutcome::Foreign("650 W".to_owned()));
    assert!(matches!(outcomes[1], RevertOutcome::NotDone(_)), "{outcomes:?}");
}

/// A service whose start fails after it was enabled.
struct HalfService(bool, bool);

impl SettingActuator for HalfService {
    fn read(&mut self, _: &Target) -> Reading<Value> {
        Reading::Value(Value::Service { enabled: self.0, running: self.1 })
    }

    fn write(&mut self, _: &Target, value: &Value) -> Result<(), SettingActuatorError> {
        let Value::Service { enabled, running } = value else {
            return Err(SettingActuatorError::Value);
        };
        self.0 = *enabled;
        if *running {
            let (line, why) =
                ("systemctl start".to_owned(), CommandFailure::Stderr("it failed".to_owned()));
            return Err(SettingActuatorError::Command { line, why });
        }
        self.1 = false;
        Ok(())
    }

    fn missing_directories(&mut self, _: &Target) -> Vec<String> {
        Vec::new()
    }

    fn clean_up(&mut self, _: &Target, _: &[String]) -> Result<(), SettingActuatorError> {
        Ok(())
    }
}

#[test]
fn partial_change_is_reverted() {
    let node_under_test = TestNode::new();
    let target = Target::Service { unit: "nvidia-persistenced".to_owned() };
    let steps = [step(target, Value::Service { enabled: true, running: true })];
    let mut actuator = HalfService(false, false);
    let at = Timestamp::UNIX_EPOCH;
    let applied = apply("a", &steps, &mut actuator, &mut node_under_test.journal(), at);
    assert!(matches!(&applied[0].outcome, StepOutcome::Unknown(why) if why.contains("it failed")));
    let reverted = revert(&mut actuator, &mut node_under_test.journal(), false, at);
    assert_eq!(reverted[0].outcome, RevertOutcome::Back);
    assert_eq!((actuator.0, actuator.1), (false, false));
}

#[test]
fn permission_failures_are_recognised() {
    let refused = |status: NvmlStatus| {
        SettingActuatorError::Refused(GpuSetError::Call(status.into())).is_permission()
    };
    assert!(refused(NvmlStatus::NO_PERMISSION) && !refused(NvmlStatus::INVALID_ARGUMENT));
    let file = |kind: std::io::ErrorKind| SettingActuatorError::from_io("/etc/x", kind.into());
    assert!(file(std::io::ErrorKind::PermissionDenied).is_permission());
    assert!(!file(std::io::ErrorKind::StorageFull).is_permission());
    let commands = SystemCommands::default();
    let run = |program: &str, words: &[&str]| commands.run(program.as_ref(), words);
    let failed = run("sh", &["-c", "echo 'E: Permission denied' >&2; exit 1"]).unwrap_err();
    assert!(failed.is_permission(), "{failed}");
    let failed = run("/nonexistent/apt-mark", &["hold", "x"]).unwrap_err();
    assert!(failed.to_string().starts_with("`/nonexistent/apt-mark hold x` failed"), "{failed}");
    assert!(run("true", &[]).is_ok());
}

#[test]
fn full_disk_prevents_changes_and_delays_revert_entries() {
    let node_under_test = TestNode::new();
    let at = Timestamp::UNIX_EPOCH;
    let before = tree(&node_under_test.root());
    let mut journal = node_under_test.journal();
    journal.fill_disk(true);
    let applied = apply("a", &steps(), &mut node_under_test.actuator(), &mut journal, at);
    let full = |applied: &Applied| matches!(&applied.outcome, StepOutcome::NotDone(why) if why.contains("No space"));
    assert!(applied.len() == 3 && applied.iter().all(full), "{applied:?}");
    assert_eq!(
        (tree(&node_under_test.root()), &*node_under_test.gpus.borrow()),
        (before.clone(), &*gpus().borrow())
    );
    journal.fill_disk(false);
    apply("a", &steps(), &mut node_under_test.actuator(), &mut journal, at);
    journal.fill_disk(true);
    let reverted = revert(&mut node_under_test.actuator(), &mut journal, false, at);
    assert!(
        matches!(&reverted[0].outcome, RevertOutcome::Failed { why, .. } if why.contains("No space"))
    );
    assert!(matches!(&reverted[1].outcome, RevertOutcome::NotDone(_)), "{reverted:?}");
    journal.fill_disk(false);
    let reverted = revert(&mut node_under_test.actuator(), &mut journal, false, at);
    let outcomes: Vec<&RevertOutcome> = reverted.iter().map(|reverted| &reverted.outcome).collect();
    assert_eq!(outcomes, [&RevertOutcome::Already, &RevertOutcome::Back, &RevertOutcome::Back]);
    assert_eq!(
        (tree(&node_under_test.root()), &*node_under_test.gpus.borrow()),
        (before, &*gpus().borrow())
    );
}

#[test]
fn malformed_journal_is_rejected() {
    let node_under_test = TestNode::new();
    node_under_test.apply(&steps(), &mut node_under_test.actuator());
    let (state, path) = (
        node_under_test.place.path().join("state"),
        node_under_test.place.path().join("state").join(FILE),
    );
    let good = fs::read_to_string(&path).unwrap();
    // A last line without a newline is dropped, because no change was made after it.
    fs::write(&path, format!("{good}{{\"v\":1,\"at\"")).unwrap();
    assert_eq!(node_under_test.journal().open_changes().len(), 3);
    assert_eq!(fs::read_to_string(&path).unwrap(), good);
    fs::write(&path, format!("nonsense\n{good}")).unwrap();
    assert!(matches!(TuneJournal::read(&state), Err(TuneJournalError::Damaged { line: 1, .. })));
    fs::write(&path, "{\"v\":3,\"at\":\"2030-01-01T00:00:00Z\",\"note\":\"new\"}\n").unwrap();
    assert!(matches!(TuneJournal::read(&state), Err(TuneJournalError::Newer { version: 3, .. })));
    fs::write(&path, good).unwrap();
    let held = node_under_test.journal();
    let second = TuneJournal::open(&state, TuneFailpoint::default());
    assert!(matches!(second, Err(TuneJournalError::InUse { .. })));
    assert_eq!(held.open_changes().len(), 3);
}

#[test]
fn version_one_journal_is_readable() {
    let place = tempfile::tempdir().unwrap();
    let line = r#"{"v":1,"at":"2026-11-15T21:48:33Z","note":{"begun":{"number":4,"profile":"training","target":{"gpu":{"uuid":"GPU-1","control":"power-limit"}},"old":{"number":600000},"new":{"number":700000}}}}"#;
    fs::write(place.path().join(FILE), format!("{line}\n")).unwrap();
    let journal = TuneJournal::read(place.path()).unwrap();
    let [change] = journal.open_changes() else { panic!("{journal:?}") };
    assert_eq!((change.number, &change.old), (4, &Value::Number(600_000)));
    assert_eq!((&change.made, change.is_side_effect), (&None, false));
    assert_eq!(journal.next(), 5);
}

#[test]
fn planted_journal_is_rejected() {
    let place = tempfile::tempdir().unwrap();
    let (state, path) = (place.path().join("state"), place.path().join("state").join(FILE));
    fs::create_dir(&state).unwrap();
    let line = |target: &str, rest: &str| {
        format!(
            r#"{{"v":1,"at":"2026-11-15T21:48:33Z","note":{{"begun":{{"number":1,"profile":"x","target":{target},"old":"no-file","new":"no-file"{rest}}}}}}}"#
        ) + "\n"
    };
    fs::write(&path, line(r#"{"file":{"path":"/etc/sudoers.d/x"}}"#, "")).unwrap();
    assert!(matches!(TuneJournal::read(&state), Err(TuneJournalError::Target { line: 1, .. })));
    let ours = format!(r#"{{"file":{{"path":"{TORCH}"}}}}"#);
    fs::write(&path, line(&ours, r#","folders":["/etc/farrier/jobs"]"#)).unwrap();
    assert_eq!(TuneJournal::read(&state).unwrap().open_changes().len(), 1);
    // Empty directories are removed, but only those on the path of the file.
    fs::write(&path, line(&ours, r#","folders":["/srv/empty"]"#)).unwrap();
    assert!(matches!(TuneJournal::read(&state), Err(TuneJournalError::Target { .. })));
    let elsewhere = place.path().join("elsewhere");
    fs::rename(&path, &elsewhere).unwrap();
    symlink(&elsewhere, &path).unwrap();
    let before = fs::read(&elsewhere).unwrap();
    assert!(matches!(
        TuneJournal::open(&state, TuneFailpoint::default()),
        Err(TuneJournalError::Untrusted { .. })
    ));
    fs::remove_file(&path).unwrap();
    let _ = fs::remove_file(state.join("lock"));
    symlink(&elsewhere, state.join("lock")).unwrap();
    assert!(matches!(
        TuneJournal::open(&state, TuneFailpoint::default()),
        Err(TuneJournalError::Untrusted { .. })
    ));
    assert_eq!(fs::read(&elsewhere).unwrap(), before);
    fs::set_permissions(&state, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(matches!(TuneJournal::read(&state), Err(TuneJournalError::Untrusted { .. })));
}

#[test]
fn writes_do_not_follow_symlinks_out_of_the_root() {
    let node_under_test = TestNode::new();
    let outside = tempfile::tempdir().unwrap();
    fs::create_dir_all(node_under_test.root().join("etc/security")).unwrap();
    symlink(outside.path(), node_under_test.root().join("etc/security/limits.d")).unwrap();
    let outcomes = node_under_test.apply(&steps()[2..], &mut node_under_test.actuator());
    assert!(!matches!(outcomes[0], StepOutcome::Done | StepOutcome::Already), "{outcomes:?}");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    // A file that is itself a symlink is not replaced.
    fs::remove_file(node_under_test.root().join("etc/security/limits.d")).unwrap();
    fs::create_dir(node_under_test.root().join("etc/security/limits.d")).unwrap();
    symlink("/etc/hostname", node_under_test.root().join(&MEMLOCK[1..])).unwrap();
    let outcomes = node_under_test.apply(&steps()[2..], &mut node_under_test.actuator());
    assert!(
        matches!(&outcomes[0], StepOutcome::NotDone(why) if why.contains("link")),
        "{outcomes:?}"
    );
}

#[test]
fn binary_content_is_restored() {
    let node_under_test = TestNode::new();
    put(&node_under_test.root(), MEMLOCK, [0_u8, 255, 10, 200]);
    node_under_test.apply(&steps()[2..], &mut node_under_test.actuator());
    assert_eq!(node_under_test.revert(false), [RevertOutcome::Back]);
    assert_eq!(fs::read(node_under_test.root().join(&MEMLOCK[1..])).unwrap(), [0_u8, 255, 10, 200]);
    assert!(matches!(Content::from_bytes(vec![0, 255]), Content::Hex(_)));
}

#[test]
fn rounded_value_is_reverted() {
    let node_under_test = TestNode::new();
    let limit = gpu(0, GpuControl::PowerLimit);
    let steps = [step(limit.clone(), Value::Number(650_000))];
    let mut actuator = FakeActuator::rounding(&node_under_test.root(), &node_under_test.gpus);
    assert_eq!(
        node_under_test.apply(&steps, &mut actuator),
        [StepOutcome::Otherwise("640 W".to_owned())]
    );
    assert_eq!(node_under_test.gpus.borrow()[&limit], Value::Number(640_000));
    assert_eq!(node_under_test.journal().open_changes()[0].made, Some(Value::Number(640_000)));
    // A value that someone sets afterwards is left alone.
    node_under_test.gpus.borrow_mut().insert(limit.clone(), Value::Number(610_000));
    assert_eq!(node_under_test.revert(false), [RevertOutcome::Foreign("610 W".to_owned())]);
    node_under_test.gpus.borrow_mut().insert(limit, Value::Number(640_000));
    assert_eq!(node_under_test.revert(false), [RevertOutcome::Back]);
    assert_eq!(*node_under_test.gpus.borrow(), *gpus().borrow());
}

#[test]
fn revert_that_needs_a_reset_is_reported_as_waiting() {
    let node_under_test = TestNode::new();
    let ecc = gpu(0, GpuControl::Ecc);
    let steps = [step(ecc.clone(), Value::Switch(true))];
    assert_eq!(node_under_test.apply(&steps, &mut node_under_test.actuator()), [StepOutcome::Done]);
    let mut actuator = node_under_test.actuator();
    // A reset happened in between.
    actuator.in_force.insert(ecc, Value::Switch(true));
    let reverted =
        revert(&mut actuator, &mut node_under_test.journal(), false, Timestamp::UNIX_EPOCH);
    assert_eq!(reverted[0].outcome, RevertOutcome::Waits(vec![Need::Reset]));
    assert!(reverted[0].outcome.is_back() && node_under_test.journal().open_changes().is_empty());
}

#[test]
fn side_effects_of_a_service_are_reverted() {
    for (before, after_stop) in [(true, false), (false, true), (true, true), (false, false)] {
        let node_under_test = TestNode::new();
        let mode = gpu(0, GpuControl::Persistence);
        node_under_test.gpus.borrow_mut().insert(mode.clone(), Value::Switch(before));
        let unit = "nvidia-persistenced".to_owned();
        let mut step =
            step(Target::Service { unit }, Value::Service { enabled: true, running: false });
        step.change.as_mut().unwrap().beside = vec![mode.clone()];
        assert_eq!(
            node_under_test.apply(&[step], &mut node_under_test.actuator()),
            [StepOutcome::Done]
        );
        // The daemon has enabled the mode. The mode after the daemon exits is undefined.
        node_under_test.gpus.borrow_mut().insert(mode.clone(), Value::Switch(after_stop));
        let outcomes = node_under_test.revert(false);
        assert!(outcomes.len() == 2 && outcomes.iter().all(RevertOutcome::is_back), "{outcomes:?}");
        assert_eq!(node_under_test.gpus.borrow()[&mode], Value::Switch(before));
    }
    let node_under_test = TestNode::new();
    let unit = "nvidia-persistenced".to_owned();
    let mut step = step(Target::Service { unit }, Value::Service { enabled: true, running: false });
    step.change.as_mut().unwrap().beside = vec![gpu(0, GpuControl::Ecc)];
    let mut actuator = node_under_test.actuator();
    actuator.refusing.insert("GPU-0".to_owned(), GpuRefusal::Lost);
    let outcomes = node_under_test.apply(&[step], &mut actuator);
    assert!(matches!(&outcomes[0], StepOutcome::NotDone(why) if why.contains("side effect")));
    assert!(node_under_test.journal().open_changes().is_empty());
}
