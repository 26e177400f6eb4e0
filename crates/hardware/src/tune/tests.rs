//! Changes, crashes and the way back, on files below a folder and GPUs in memory.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::rc::Rc;

use farrier_facts::node::{NvmlStatus, ReadError, Reading};
use farrier_facts::tune::{
    Applied, Change, Content, FileContent, Given, GpuControl, Need, Outcome, Standing, Step,
    Subject, Target, Value,
};
use jiff::Timestamp;
use proptest::prelude::*;

use super::machine::Machine;
use super::*;
use crate::nvml::{Controls, ProbeError, SetError};
use crate::root::Root;

type Gpus = Rc<RefCell<BTreeMap<Target, Value>>>;

/// Why a GPU in memory refuses.
#[derive(Clone, Copy, PartialEq)]
enum Refusal {
    NoPermission,
    Lost,
}

/// Real hands on files; GPUs in memory, which outlive a crash as cards do.
struct Fake {
    node: NodeHands,
    gpus: Gpus,
    /// GPUs that refuse, with why; one that is lost refuses to be read as well.
    refusing: BTreeMap<String, Refusal>,
    /// Limits are taken in steps of so many milliwatts, downwards.
    step_mw: u32,
    /// What counts, where that is not what is set.
    in_force: BTreeMap<Target, Value>,
}

impl Fake {
    fn on(root: &Path, gpus: &Gpus) -> Self {
        let node = NodeHands::new(Root::unrecorded(root), Controls::none("there is none"));
        Self {
            node,
            gpus: Rc::clone(gpus),
            refusing: BTreeMap::new(),
            step_mw: 1,
            in_force: BTreeMap::new(),
        }
    }

    /// A card that takes limits in steps.
    fn rounding(root: &Path, gpus: &Gpus) -> Self {
        Self { step_mw: 40_000, ..Self::on(root, gpus) }
    }

    fn refusal(&self, target: &Target) -> Option<Refusal> {
        match target {
            Target::Gpu { uuid, .. } => self.refusing.get(uuid).copied(),
            _ => None,
        }
    }
}

impl Hands for Fake {
    fn read(&mut self, target: &Target) -> Reading<Value> {
        if self.refusal(target) == Some(Refusal::Lost) {
            return Reading::Unreadable(ReadError::unavailable("NVML is gone"));
        }
        match target {
            Target::Gpu { .. } => {
                self.gpus.borrow().get(target).cloned().map_or(Reading::Absent, Reading::Value)
            }
            _ => self.node.read(target),
        }
    }

    fn write(&mut self, target: &Target, value: &Value) -> Result<(), HandError> {
        match self.refusal(target) {
            Some(Refusal::Lost) => return Err(HandError::Lost(ProbeError::Ended)),
            Some(Refusal::NoPermission) => {
                let why = SetError::Call(NvmlStatus::NO_PERMISSION.into());
                return Err(HandError::Refused(why));
            }
            None => {}
        }
        match target {
            Target::Gpu { .. } => {
                let made = match value {
                    Value::Number(asked) => Value::Number(asked / self.step_mw * self.step_mw),
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

    fn missing_folders(&mut self, target: &Target) -> Vec<String> {
        self.node.missing_folders(target)
    }

    fn tidy(&mut self, target: &Target, folders: &[String]) -> Result<(), HandError> {
        self.node.tidy(target, folders)
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
    let record = |name: &str, wanted: &str| {
        format!("Package: {name}\nStatus: {wanted} ok installed\nVersion: 580.95.05-1\n\n")
    };
    let status = record("nvidia-open", "install") + &record("libc6", "install");
    put(root, "/var/lib/dpkg/status", status + &record("linux-image-generic", "hold"));
}

/// Kind and permissions, user and group, content.
type Entry = (u32, (u32, u32), Vec<u8>);

/// Everything below a folder: kind, permissions, owner and content.
fn tree(root: &Path) -> BTreeMap<String, Entry> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
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
        subject: Subject::Gpus,
        current: None,
        wanted: value.words(),
        standing: Standing::Change(Vec::new()),
        change: Some(Change::new(target, value)),
        reason: "a test".to_owned(),
    }
}

fn file(path: &str) -> Target {
    Target::File { path: path.to_owned() }
}

fn text(words: &str) -> Value {
    Value::File(FileContent::text(words))
}

/// What may be changed, and to what.
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

/// A crash: where, and when it is reached for how often.
fn crash() -> impl Strategy<Value = (Point, u32)> {
    (prop::sample::select(Point::ALL.to_vec()), 1..24_u32)
}

/// Runs something that may die on the way, of what a test asked for and of nothing else.
fn until_death(work: impl FnOnce()) {
    if let Err(cause) = catch_unwind(AssertUnwindSafe(work))
        && cause.downcast_ref::<&str>() != Some(&interrupt::ASKED_FOR)
    {
        resume_unwind(cause);
    }
}

/// Opens a journal. Another test that starts a process holds every lock of ours between its fork and its exec.
fn opened(state: &Path, interrupt: impl Fn() -> Interrupt) -> Journal {
    for _ in 0..1_000_000 {
        match Journal::open(state, interrupt()) {
            Err(JournalError::InUse { .. }) => std::thread::yield_now(),
            opened => return opened.unwrap(),
        }
    }
    panic!("the journal is in use for ever");
}

/// A folder in memory where there is one: every line of a journal is brought to disk, which takes its time on a disk.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn killed_anywhere_everything_is_given_back_bit_for_bit(
        before in prop::option::of((prop::collection::vec(any::<u8>(), 0..40), 0..0o777_u32)),
        folder in any::<bool>(),
        enabled in any::<bool>(),
        first in prop::collection::vec(change(), 1..12),
        second in prop::collection::vec(change(), 0..6),
        deaths in (crash(), crash(), crash()),
    ) {
        let place = self::folder();
        let (root, state) = (place.path().join("root"), place.path().join("state"));
        node(&root);
        if let Some((bytes, mode)) = before {
            put(&root, MEMLOCK, bytes);
            let path = root.join(&MEMLOCK[1..]);
            // One that its owner may not read is unknown to who is not root.
            fs::set_permissions(path, fs::Permissions::from_mode(mode | 0o400)).unwrap();
        }
        if folder {
            fs::create_dir_all(root.join("etc/farrier")).unwrap();
        }
        // Files of others stay theirs; only root can make some.
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
        for (steps, (point, times)) in [(&first, deaths.0), (&second, deaths.1)] {
            until_death(|| {
                let mut journal = opened(&state, || Interrupt::panic_at(point, times));
                let mut hands = Fake::rounding(&root, &gpus);
                for it in apply("a", steps, &mut hands, &mut journal, now) {
                    let rounds = matches!(it.step.change.as_ref().unwrap().value, Value::Number(_));
                    assert!(rounds || it.outcome.is_made(), "{it:?}");
                    assert!(!matches!(it.outcome, Outcome::Unknown(_) | Outcome::NotDone(_)));
                }
            });
        }
        until_death(|| {
            let (point, times) = deaths.2;
            let mut journal = opened(&state, || Interrupt::panic_at(point, times));
            revert(&mut Fake::rounding(&root, &gpus), &mut journal, false, now);
        });
        let mut journal = opened(&state, Interrupt::default);
        let reverted = revert(&mut Fake::rounding(&root, &gpus), &mut journal, false, now);
        for it in &reverted {
            prop_assert!(matches!(it.given, Given::Back | Given::Already), "{it:?}");
        }
        prop_assert_eq!(tree(&root), files_before);
        prop_assert_eq!(&*gpus.borrow(), &gpus_before);
        prop_assert!(journal.open_changes().is_empty());
        drop(journal);
        prop_assert!(Journal::read(&state).unwrap().open_changes().is_empty());
    }
}

struct World {
    place: tempfile::TempDir,
    gpus: Gpus,
}

impl World {
    fn new() -> Self {
        let world = Self { place: folder(), gpus: gpus() };
        node(&world.root());
        world
    }

    fn root(&self) -> std::path::PathBuf {
        self.place.path().join("root")
    }

    fn hands(&self) -> Fake {
        Fake::on(&self.root(), &self.gpus)
    }

    fn journal(&self) -> Journal {
        opened(&self.place.path().join("state"), Interrupt::default)
    }

    fn apply(&self, steps: &[Step], hands: &mut Fake) -> Vec<Outcome> {
        let applied = apply("a", steps, hands, &mut self.journal(), Timestamp::UNIX_EPOCH);
        applied.into_iter().map(|it| it.outcome).collect()
    }

    fn revert(&self, force: bool) -> Vec<Given> {
        let mut hands = self.hands();
        let at = Timestamp::UNIX_EPOCH;
        let reverted = revert(&mut hands, &mut self.journal(), force, at);
        reverted.into_iter().map(|it| it.given).collect()
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
fn a_second_time_changes_nothing() {
    let world = World::new();
    let once = world.apply(&steps(), &mut world.hands());
    assert_eq!(once, [Outcome::Done, Outcome::Done, Outcome::Done]);
    let again = world.apply(&steps(), &mut world.hands());
    assert_eq!(again, [Outcome::Already, Outcome::Already, Outcome::Already]);
    assert_eq!(world.journal().open_changes().len(), 3);
}

#[test]
fn a_step_that_fails_keeps_no_other_from_being_made() {
    let world = World::new();
    let mut hands = world.hands();
    hands.refusing.insert("GPU-0".to_owned(), Refusal::NoPermission);
    let outcomes = world.apply(&steps(), &mut hands);
    let why = "NVML refused: NVML_ERROR_NO_PERMISSION".to_owned();
    assert_eq!(outcomes[0], Outcome::Failed { why, permission: true });
    assert_eq!(outcomes[1..], [Outcome::Done, Outcome::Done]);
    // What was not changed is not given back.
    assert_eq!(world.revert(false), [Given::Back, Given::Back]);
}

#[test]
fn when_nvml_is_lost_the_rest_is_not_done_and_can_be_given_back_later() {
    let world = World::new();
    let mut hands = world.hands();
    hands.refusing.insert("GPU-1".to_owned(), Refusal::Lost);
    let outcomes = world.apply(&steps(), &mut hands);
    assert_eq!(outcomes[0], Outcome::Done);
    // It cannot be read, and so it is not begun.
    assert!(matches!(&outcomes[1], Outcome::NotDone(why) if why.contains("could not be read")));
    assert_eq!(outcomes[2], Outcome::Done);
    assert_eq!(world.revert(false), [Given::Back, Given::Back]);
}

/// Hands that lose NVML in the middle of a change.
struct Losing(Fake);

impl Hands for Losing {
    fn read(&mut self, target: &Target) -> Reading<Value> {
        self.0.read(target)
    }

    fn write(&mut self, target: &Target, value: &Value) -> Result<(), HandError> {
        if let Target::Gpu { uuid, .. } = target
            && uuid == "GPU-1"
        {
            self.0.write(target, value)?;
            self.0.refusing.insert(uuid.clone(), Refusal::Lost);
            return Err(HandError::Lost(ProbeError::Late { limit_s: 10 }));
        }
        self.0.write(target, value)
    }

    fn missing_folders(&mut self, target: &Target) -> Vec<String> {
        self.0.missing_folders(target)
    }

    fn tidy(&mut self, target: &Target, folders: &[String]) -> Result<(), HandError> {
        self.0.tidy(target, folders)
    }
}

#[test]
fn a_change_in_which_nvml_is_lost_is_unknown_and_stays_in_the_journal() {
    let world = World::new();
    let mut hands = Losing(world.hands());
    let at = Timestamp::UNIX_EPOCH;
    let applied = apply("a", &steps(), &mut hands, &mut world.journal(), at);
    assert_eq!(applied[0].outcome, Outcome::Done);
    assert!(matches!(&applied[1].outcome, Outcome::Unknown(why) if why.contains("10 s")));
    assert!(matches!(&applied[2].outcome, Outcome::NotDone(why) if why.contains("lost")));
    assert_eq!(world.journal().open_changes().len(), 2);
    assert_eq!(world.revert(false), [Given::Back, Given::Back]);
    assert_eq!(*world.gpus.borrow(), *gpus().borrow());
}

#[test]
fn what_somebody_else_has_changed_is_left_alone() {
    let world = World::new();
    world.apply(&steps(), &mut world.hands());
    put(&world.root(), MEMLOCK, "somebody's\n");
    world.gpus.borrow_mut().insert(gpu(0, GpuControl::PowerLimit), Value::Number(300_000));
    let given = world.revert(false);
    assert!(matches!(given[0], Given::Foreign(_)), "{given:?}");
    assert_eq!(given[1], Given::Back);
    assert_eq!(given[2], Given::Foreign("300 W".to_owned()));
    assert_eq!(fs::read(world.root().join(&MEMLOCK[1..])).unwrap(), b"somebody's\n");
    assert_eq!(world.revert(true), [Given::Back, Given::Back]);
    assert!(!world.root().join("etc/security").exists());
    assert_eq!(*world.gpus.borrow(), *gpus().borrow());
    assert_eq!(world.revert(false), []);
}

#[test]
fn a_gpu_that_was_replaced_is_forgotten_only_when_asked_for() {
    let world = World::new();
    world.apply(&steps(), &mut world.hands());
    world.gpus.borrow_mut().remove(&gpu(1, GpuControl::PowerLimit));
    let given = world.revert(false);
    assert_eq!((&given[0], &given[2]), (&Given::Back, &Given::Back));
    assert!(matches!(&given[1], Given::Failed { why, .. } if why.contains("no longer there")));
    assert_eq!(world.journal().open_changes().len(), 1);
    assert_eq!(world.revert(true), [Given::Forgotten]);
    assert!(world.journal().open_changes().is_empty());
}

#[test]
fn an_older_change_is_not_given_back_over_somebody_elses() {
    let world = World::new();
    for limit in [500_000, 550_000] {
        let steps = [step(gpu(0, GpuControl::PowerLimit), Value::Number(limit))];
        world.apply(&steps, &mut world.hands());
    }
    // What the first of both had set is somebody else's now.
    world.gpus.borrow_mut().insert(gpu(0, GpuControl::PowerLimit), Value::Number(650_000));
    let given = world.revert(false);
    assert_eq!(given[0], Given::Foreign("650 W".to_owned()));
    assert!(matches!(given[1], Given::NotDone(_)), "{given:?}");
}

/// A service whose start fails after it was enabled.
struct HalfService(bool, bool);

impl Hands for HalfService {
    fn read(&mut self, _: &Target) -> Reading<Value> {
        Reading::Value(Value::Service { enabled: self.0, running: self.1 })
    }

    fn write(&mut self, _: &Target, value: &Value) -> Result<(), HandError> {
        let Value::Service { enabled, running } = value else { return Err(HandError::Value) };
        self.0 = *enabled;
        if *running {
            let (line, why) =
                ("systemctl start".to_owned(), CommandFailure::Stderr("it failed".to_owned()));
            return Err(HandError::Command { line, why });
        }
        self.1 = false;
        Ok(())
    }

    fn missing_folders(&mut self, _: &Target) -> Vec<String> {
        Vec::new()
    }

    fn tidy(&mut self, _: &Target, _: &[String]) -> Result<(), HandError> {
        Ok(())
    }
}

#[test]
fn what_we_changed_by_half_is_ours_to_give_back() {
    let world = World::new();
    let target = Target::Service { unit: "nvidia-persistenced".to_owned() };
    let steps = [step(target, Value::Service { enabled: true, running: true })];
    let mut hands = HalfService(false, false);
    let at = Timestamp::UNIX_EPOCH;
    let applied = apply("a", &steps, &mut hands, &mut world.journal(), at);
    assert!(matches!(&applied[0].outcome, Outcome::Unknown(why) if why.contains("it failed")));
    let reverted = revert(&mut hands, &mut world.journal(), false, at);
    assert_eq!(reverted[0].given, Given::Back);
    assert_eq!((hands.0, hands.1), (false, false));
}

#[test]
fn what_another_user_may_do_is_told_apart() {
    let refused =
        |status: NvmlStatus| HandError::Refused(SetError::Call(status.into())).is_permission();
    assert!(refused(NvmlStatus::NO_PERMISSION) && !refused(NvmlStatus::INVALID_ARGUMENT));
    let file = |kind: std::io::ErrorKind| HandError::io("/etc/x", kind.into());
    assert!(file(std::io::ErrorKind::PermissionDenied).is_permission());
    assert!(!file(std::io::ErrorKind::StorageFull).is_permission());
    let machine = Machine::default();
    let run = |program: &str, words: &[&str]| machine.run(program.as_ref(), words);
    let failed = run("sh", &["-c", "echo 'E: Permission denied' >&2; exit 1"]).unwrap_err();
    assert!(failed.is_permission(), "{failed}");
    let failed = run("/nonexistent/apt-mark", &["hold", "x"]).unwrap_err();
    assert!(failed.to_string().starts_with("`/nonexistent/apt-mark hold x` failed"), "{failed}");
    assert!(run("true", &[]).is_ok());
}

#[test]
fn on_a_full_disk_nothing_is_changed_and_what_is_given_back_is_told_later() {
    let world = World::new();
    let at = Timestamp::UNIX_EPOCH;
    let before = tree(&world.root());
    let mut journal = world.journal();
    journal.fill_disk(true);
    let applied = apply("a", &steps(), &mut world.hands(), &mut journal, at);
    let full =
        |it: &Applied| matches!(&it.outcome, Outcome::NotDone(why) if why.contains("No space"));
    assert!(applied.len() == 3 && applied.iter().all(full), "{applied:?}");
    assert_eq!((tree(&world.root()), &*world.gpus.borrow()), (before.clone(), &*gpus().borrow()));
    journal.fill_disk(false);
    apply("a", &steps(), &mut world.hands(), &mut journal, at);
    journal.fill_disk(true);
    let reverted = revert(&mut world.hands(), &mut journal, false, at);
    assert!(matches!(&reverted[0].given, Given::Failed { why, .. } if why.contains("No space")));
    assert!(matches!(&reverted[1].given, Given::NotDone(_)), "{reverted:?}");
    journal.fill_disk(false);
    let reverted = revert(&mut world.hands(), &mut journal, false, at);
    let given: Vec<&Given> = reverted.iter().map(|it| &it.given).collect();
    assert_eq!(given, [&Given::Already, &Given::Back, &Given::Back]);
    assert_eq!((tree(&world.root()), &*world.gpus.borrow()), (before, &*gpus().borrow()));
}

#[test]
fn a_journal_that_does_not_read_is_not_gone_on_with() {
    let world = World::new();
    world.apply(&steps(), &mut world.hands());
    let (state, path) =
        (world.place.path().join("state"), world.place.path().join("state").join(FILE));
    let good = fs::read_to_string(&path).unwrap();
    // A last line without its end was never acted on.
    fs::write(&path, format!("{good}{{\"v\":1,\"at\"")).unwrap();
    assert_eq!(world.journal().open_changes().len(), 3);
    assert_eq!(fs::read_to_string(&path).unwrap(), good);
    fs::write(&path, format!("nonsense\n{good}")).unwrap();
    assert!(matches!(Journal::read(&state), Err(JournalError::Damaged { line: 1, .. })));
    fs::write(&path, "{\"v\":3,\"at\":\"2030-01-01T00:00:00Z\",\"note\":\"new\"}\n").unwrap();
    assert!(matches!(Journal::read(&state), Err(JournalError::Newer { version: 3, .. })));
    fs::write(&path, good).unwrap();
    let held = world.journal();
    let second = Journal::open(&state, Interrupt::default());
    assert!(matches!(second, Err(JournalError::InUse { .. })));
    assert_eq!(held.open_changes().len(), 3);
}

#[test]
fn a_journal_of_the_first_version_reads_as_it_was_written() {
    let place = tempfile::tempdir().unwrap();
    let line = r#"{"v":1,"at":"2026-11-15T21:48:33Z","note":{"begun":{"number":4,"profile":"training","target":{"gpu":{"uuid":"GPU-1","control":"power-limit"}},"old":{"number":600000},"new":{"number":700000}}}}"#;
    fs::write(place.path().join(FILE), format!("{line}\n")).unwrap();
    let journal = Journal::read(place.path()).unwrap();
    let [change] = journal.open_changes() else { panic!("{journal:?}") };
    assert_eq!((change.number, &change.old), (4, &Value::Number(600_000)));
    assert_eq!((&change.made, change.is_beside), (&None, false));
    assert_eq!(journal.next(), 5);
}

#[test]
fn a_journal_that_somebody_planted_is_not_gone_by() {
    let place = tempfile::tempdir().unwrap();
    let (state, path) = (place.path().join("state"), place.path().join("state").join(FILE));
    fs::create_dir(&state).unwrap();
    let line = |target: &str, rest: &str| {
        format!(
            r#"{{"v":1,"at":"2026-11-15T21:48:33Z","note":{{"begun":{{"number":1,"profile":"x","target":{target},"old":"no-file","new":"no-file"{rest}}}}}}}"#
        ) + "\n"
    };
    fs::write(&path, line(r#"{"file":{"path":"/etc/sudoers.d/x"}}"#, "")).unwrap();
    assert!(matches!(Journal::read(&state), Err(JournalError::Target { line: 1, .. })));
    let ours = format!(r#"{{"file":{{"path":"{TORCH}"}}}}"#);
    fs::write(&path, line(&ours, r#","folders":["/etc/farrier/jobs"]"#)).unwrap();
    assert_eq!(Journal::read(&state).unwrap().open_changes().len(), 1);
    // Folders are taken away when they are empty: only those on the way to the file.
    fs::write(&path, line(&ours, r#","folders":["/srv/empty"]"#)).unwrap();
    assert!(matches!(Journal::read(&state), Err(JournalError::Target { .. })));
    let elsewhere = place.path().join("elsewhere");
    fs::rename(&path, &elsewhere).unwrap();
    symlink(&elsewhere, &path).unwrap();
    let before = fs::read(&elsewhere).unwrap();
    assert!(matches!(
        Journal::open(&state, Interrupt::default()),
        Err(JournalError::Untrusted { .. })
    ));
    fs::remove_file(&path).unwrap();
    let _ = fs::remove_file(state.join("lock"));
    symlink(&elsewhere, state.join("lock")).unwrap();
    assert!(matches!(
        Journal::open(&state, Interrupt::default()),
        Err(JournalError::Untrusted { .. })
    ));
    assert_eq!(fs::read(&elsewhere).unwrap(), before);
    fs::set_permissions(&state, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(matches!(Journal::read(&state), Err(JournalError::Untrusted { .. })));
}

#[test]
fn no_link_leads_a_write_out_of_the_root() {
    let world = World::new();
    let outside = tempfile::tempdir().unwrap();
    fs::create_dir_all(world.root().join("etc/security")).unwrap();
    symlink(outside.path(), world.root().join("etc/security/limits.d")).unwrap();
    let outcomes = world.apply(&steps()[2..], &mut world.hands());
    assert!(!matches!(outcomes[0], Outcome::Done | Outcome::Already), "{outcomes:?}");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    // A file that is a link itself is not replaced.
    fs::remove_file(world.root().join("etc/security/limits.d")).unwrap();
    fs::create_dir(world.root().join("etc/security/limits.d")).unwrap();
    symlink("/etc/hostname", world.root().join(&MEMLOCK[1..])).unwrap();
    let outcomes = world.apply(&steps()[2..], &mut world.hands());
    assert!(matches!(&outcomes[0], Outcome::NotDone(why) if why.contains("link")), "{outcomes:?}");
}

#[test]
fn bytes_that_are_no_text_come_back() {
    let world = World::new();
    put(&world.root(), MEMLOCK, [0_u8, 255, 10, 200]);
    world.apply(&steps()[2..], &mut world.hands());
    assert_eq!(world.revert(false), [Given::Back]);
    assert_eq!(fs::read(world.root().join(&MEMLOCK[1..])).unwrap(), [0_u8, 255, 10, 200]);
    assert!(matches!(Content::from_bytes(vec![0, 255]), Content::Hex(_)));
}

#[test]
fn what_a_card_rounds_is_ours_to_give_back() {
    let world = World::new();
    let limit = gpu(0, GpuControl::PowerLimit);
    let steps = [step(limit.clone(), Value::Number(650_000))];
    let mut hands = Fake::rounding(&world.root(), &world.gpus);
    assert_eq!(world.apply(&steps, &mut hands), [Outcome::Otherwise("640 W".to_owned())]);
    assert_eq!(world.gpus.borrow()[&limit], Value::Number(640_000));
    assert_eq!(world.journal().open_changes()[0].made, Some(Value::Number(640_000)));
    // What somebody sets afterwards is still theirs.
    world.gpus.borrow_mut().insert(limit.clone(), Value::Number(610_000));
    assert_eq!(world.revert(false), [Given::Foreign("610 W".to_owned())]);
    world.gpus.borrow_mut().insert(limit, Value::Number(640_000));
    assert_eq!(world.revert(false), [Given::Back]);
    assert_eq!(*world.gpus.borrow(), *gpus().borrow());
}

#[test]
fn what_counts_after_a_reset_is_told_as_waiting() {
    let world = World::new();
    let ecc = gpu(0, GpuControl::Ecc);
    let steps = [step(ecc.clone(), Value::Switch(true))];
    assert_eq!(world.apply(&steps, &mut world.hands()), [Outcome::Done]);
    let mut hands = world.hands();
    // A reset came between.
    hands.in_force.insert(ecc, Value::Switch(true));
    let reverted = revert(&mut hands, &mut world.journal(), false, Timestamp::UNIX_EPOCH);
    assert_eq!(reverted[0].given, Given::Waits(vec![Need::Reset]));
    assert!(reverted[0].given.is_back() && world.journal().open_changes().is_empty());
}

#[test]
fn what_a_service_does_on_the_side_is_given_back() {
    for (before, after_stop) in [(true, false), (false, true), (true, true), (false, false)] {
        let world = World::new();
        let mode = gpu(0, GpuControl::Persistence);
        world.gpus.borrow_mut().insert(mode.clone(), Value::Switch(before));
        let unit = "nvidia-persistenced".to_owned();
        let mut step =
            step(Target::Service { unit }, Value::Service { enabled: true, running: false });
        step.change.as_mut().unwrap().beside = vec![mode.clone()];
        assert_eq!(world.apply(&[step], &mut world.hands()), [Outcome::Done]);
        // The daemon turned it on, and what is left when it ends is its own affair.
        world.gpus.borrow_mut().insert(mode.clone(), Value::Switch(after_stop));
        let given = world.revert(false);
        assert!(given.len() == 2 && given.iter().all(Given::is_back), "{given:?}");
        assert_eq!(world.gpus.borrow()[&mode], Value::Switch(before));
    }
    let world = World::new();
    let unit = "nvidia-persistenced".to_owned();
    let mut step = step(Target::Service { unit }, Value::Service { enabled: true, running: false });
    step.change.as_mut().unwrap().beside = vec![gpu(0, GpuControl::Ecc)];
    let mut hands = world.hands();
    hands.refusing.insert("GPU-0".to_owned(), Refusal::Lost);
    let outcomes = world.apply(&[step], &mut hands);
    assert!(matches!(&outcomes[0], Outcome::NotDone(why) if why.contains("as well")));
    assert!(world.journal().open_changes().is_empty());
}
