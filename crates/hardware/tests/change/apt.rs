//! Changes with real packages.

use std::cell::RefCell;
use std::fs;
use std::path::PathBuf;
use std::rc::Rc;

use farrier_bundle::{Bundle, PackageRole};
use farrier_fleet::change::{
    ActionFailure, BundleRef, ChangeAction, ChangeClass, ChangeEntry, ChangeId, ChangeLimits,
    ChangeReason, ChangeRecord, ChangeRequest, ChangeState, ReloadMethod, StepDeadlines,
};
use farrier_hardware::change::{
    AptPackages, BundleFiles, ChangeClock, ChangeFailpoint, ChangeJournal, ChangeProgress,
    NodeChangeActuator, execute,
};
use jiff::Timestamp;

use crate::chroot::Chroot;
use crate::packages::{NEW, OLD, Recipe, bundle, new_packages, old_packages};
use crate::simulated_host::{HostState, SimulatedHost};

/// A clock that jumps to the end of each wait.
pub(crate) struct JumpingClock(pub(crate) Timestamp);

impl ChangeClock for JumpingClock {
    fn now(&self) -> Timestamp {
        self.0
    }

    fn wait_until(&mut self, until: Timestamp) {
        self.0 = self.0.max(until);
    }
}

/// Prints each step, so that a failed test shows them.
pub(crate) struct PrintedProgress;

impl ChangeProgress for PrintedProgress {
    fn moved(&mut self, record: &ChangeRecord) {
        println!("{}: {}", record.state, record.reason);
    }

    fn begun(&mut self, _record: &ChangeRecord, action: &ChangeAction) {
        println!("  {action}");
    }

    fn failed(&mut self, action: &ChangeAction, failure: &ActionFailure) {
        println!("  {} failed: {failure}", action.code());
    }

    fn waiting(&mut self, _record: &ChangeRecord, reason: &ChangeReason, _until: Timestamp) {
        println!("  wait: {reason}");
    }
}

/// A node in a chroot that has the old driver.
pub(crate) struct AptNode {
    pub(crate) chroot: Chroot,
    pub(crate) old: Bundle,
    pub(crate) new: Bundle,
    pub(crate) host: Rc<RefCell<HostState>>,
    generation: u64,
}

impl AptNode {
    pub(crate) fn new() -> Option<Self> {
        Self::with_packages(&new_packages())
    }

    pub(crate) fn with_packages(new: &[Recipe]) -> Option<Self> {
        let chroot = Chroot::new()?;
        let store = chroot.folder().join("store");
        let old = bundle(&store, OLD, &old_packages());
        let new = bundle(&store, NEW, new);
        let folder = chroot.root().join("debs");
        fs::create_dir(&folder).unwrap();
        let mut words = vec!["dpkg".to_owned(), "--install".to_owned()];
        for package in &old.packages {
            let from = store.join("packages").join(package.sha256.to_string());
            fs::copy(from, folder.join(&package.file)).unwrap();
            words.push(format!("/debs/{}", package.file));
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        chroot.run(&words);
        chroot.run(&["apt-mark", "hold", "nvidia-driver-535"]);
        chroot.run(&["apt-mark", "auto", "libnvidia-ml1"]);
        let host = Rc::new(RefCell::new(HostState::new(chroot.root())));
        assert!(host.borrow().is_coherent());
        Some(Self { chroot, old, new, host, generation: 0 })
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.chroot.folder().join("store")
    }

    pub(crate) fn actuator(&self) -> NodeChangeActuator<SimulatedHost> {
        NodeChangeActuator::new(
            BundleFiles::new(&self.store()),
            AptPackages::new(self.chroot.programs()),
            SimulatedHost(Rc::clone(&self.host)),
        )
    }

    pub(crate) fn request(&mut self, from: &Bundle, to: &Bundle) -> ChangeRequest {
        self.generation += 1;
        let reference = |bundle: &Bundle| BundleRef {
            id: bundle.id(),
            driver: bundle.driver.to_string(),
            has_fabric_manager: bundle.with_role(PackageRole::FabricManager).next().is_some(),
            reload: ReloadMethod::ReloadModules,
        };
        ChangeRequest {
            id: ChangeId(format!("c{}", self.generation)),
            generation: self.generation,
            class: ChangeClass::Driver,
            from: reference(from),
            to: reference(to),
            rollback: reference(from),
            deadlines: StepDeadlines::default(),
            policy: ChangeLimits::default(),
        }
    }

    pub(crate) fn journal(&self, failpoint: ChangeFailpoint) -> ChangeJournal {
        ChangeJournal::open(&self.chroot.folder().join("state"), failpoint).unwrap()
    }

    /// Runs a change to its end.
    pub(crate) fn change(&mut self, from: &Bundle, to: &Bundle) -> ChangeState {
        let request = Box::new(self.request(from, to));
        let mut clock = JumpingClock(Timestamp::UNIX_EPOCH);
        let mut journal = self.journal(ChangeFailpoint::default());
        let boot = Some(format!("boot-{}", self.host.borrow().boot));
        journal.write(clock.0, &ChangeEntry::Accepted { request, boot }).unwrap();
        let end =
            execute(&mut journal, &mut self.actuator(), &mut clock, &mut PrintedProgress).unwrap();
        assert!(!self.host.borrow().was_exposed, "schedulable while incoherent");
        end
    }

    pub(crate) fn cause(&self) -> ChangeReason {
        let journal = self.journal(ChangeFailpoint::default());
        journal.history().last().unwrap().cause.clone().unwrap()
    }

    fn versions(&self) -> String {
        self.chroot.run(&[
            "dpkg-query",
            "--show",
            "--showformat",
            "${Package} ${Version} ${db:Status-Abbrev}\n",
            "*nvidia*",
        ])
    }
}

#[test]
fn a_change_installs_exactly_the_bundle_and_the_way_back_restores_everything() {
    let Some(mut node) = AptNode::new() else { return };
    let before = node.chroot.fingerprint();
    let (old, new) = (node.old.clone(), node.new.clone());
    assert_eq!(node.change(&old, &new), ChangeState::Committed);
    let versions = node.versions();
    println!("{versions}");
    assert!(versions.contains(&format!("libnvidia-ml1 {NEW}-1 hi")), "{versions}");
    assert!(versions.contains(&format!("nvidia-driver {NEW}-1 hi")), "{versions}");
    assert!(!versions.contains("nvidia-driver-535 535.216.03-1 hi"), "{versions}");
    let pins = fs::read_to_string(node.chroot.root().join("etc/apt/preferences.d/50-farrier.pref"))
        .unwrap();
    assert!(pins.contains("Package: nvidia-fabricmanager\nPin: version 580.95.05-1\n"), "{pins}");
    // The way back is a change too. It pins the old driver, so its pins differ from before.
    assert_eq!(node.change(&new, &old), ChangeState::Committed);
    assert!(node.versions().contains(&format!("nvidia-driver-535 {OLD}-1 hi")));
    for path in ["etc/apt/preferences.d/50-farrier.pref", "etc/apt/apt.conf.d/52farrier"] {
        fs::remove_file(node.chroot.root().join(path)).unwrap();
    }
    for name in
        ["libnvidia-ml1", "nvidia-kernel-open", "nvidia-persistenced", "nvidia-fabricmanager-535"]
    {
        node.chroot.run(&["apt-mark", "unhold", name]);
    }
    node.chroot.run(&["apt-mark", "auto", "libnvidia-ml1"]);
    assert_eq!(node.chroot.fingerprint(), before);
}

#[test]
fn a_failed_verification_rolls_back_to_the_same_packages_holds_and_pins() {
    let Some(mut node) = AptNode::new() else { return };
    let before = node.chroot.fingerprint();
    node.host.borrow_mut().broken = Some(NEW.to_owned());
    let (old, new) = (node.old.clone(), node.new.clone());
    assert_eq!(node.change(&old, &new), ChangeState::RolledBack);
    assert_eq!(node.chroot.fingerprint(), before);
    assert!(node.host.borrow().is_coherent());
}

#[test]
fn a_failing_script_rolls_back() {
    let Some(mut node) = AptNode::new() else { return };
    let before = node.chroot.fingerprint();
    // The script of the old package succeeds, because the file is gone by then.
    let mut packages = new_packages();
    packages[2].postinst = Some("echo 'the script failed' >&2; exit 1".to_owned());
    let store = node.store();
    node.new = bundle(&store, NEW, &packages);
    let (old, new) = (node.old.clone(), node.new.clone());
    assert_eq!(node.change(&old, &new), ChangeState::RolledBack);
    assert!(matches!(
        node.cause(),
        ChangeReason::ActionFailed { failure: ActionFailure::PackageManager { .. }, .. }
            | ChangeReason::InstallIncomplete { .. }
    ));
    assert_eq!(node.chroot.fingerprint(), before);
}

#[test]
fn dpkg_killed_in_the_middle_ends_in_a_known_state() {
    let Some(mut node) = AptNode::new() else { return };
    fs::write(node.chroot.root().join("kill-dpkg"), "").unwrap();
    let (old, new) = (node.old.clone(), node.new.clone());
    let end = node.change(&old, &new);
    assert!(matches!(end, ChangeState::Committed | ChangeState::RolledBack), "{end}");
    assert!(node.host.borrow().is_coherent());
    assert_eq!(node.chroot.run(&["dpkg", "--audit"]), "");
}

#[test]
fn a_changed_file_is_refused_before_anything_happens() {
    let Some(mut node) = AptNode::new() else { return };
    let before = node.chroot.fingerprint();
    let (old, new) = (node.old.clone(), node.new.clone());
    let path = node.store().join("packages").join(new.packages[0].sha256.to_string());
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    assert_eq!(node.change(&old, &new), ChangeState::Rejected);
    assert!(matches!(
        node.cause(),
        ChangeReason::ActionFailed { failure: ActionFailure::Tampered { .. }, .. }
    ));
    assert_eq!(node.chroot.fingerprint(), before);
}

#[test]
fn a_transaction_that_touches_other_packages_is_refused() {
    let Some(mut node) = AptNode::new() else { return };
    // A package of someone else that works only with the old driver.
    let mut other = old_packages().swap_remove(3);
    other.name = "gpu-monitor".to_owned();
    other.relations = vec!["Depends: nvidia-driver-535".to_owned()];
    let file = other.build(&node.chroot.root().join("debs"));
    let name = file.file_name().unwrap().to_string_lossy().into_owned();
    node.chroot.run(&["dpkg", "--install", &format!("/debs/{name}")]);
    let before = node.chroot.fingerprint();
    let (old, new) = (node.old.clone(), node.new.clone());
    assert_eq!(node.change(&old, &new), ChangeState::Rejected);
    let ChangeReason::ActionFailed {
        failure: ActionFailure::DirtyTransaction { packages }, ..
    } = node.cause()
    else {
        panic!("{:?}", node.cause());
    };
    assert_eq!(packages, ["gpu-monitor (removed)"]);
    assert_eq!(node.chroot.fingerprint(), before);
}

#[test]
fn packages_that_need_something_outside_the_bundle_are_refused() {
    let mut packages = new_packages();
    packages[0].relations.push("Depends: libfoo7".to_owned());
    let Some(mut node) = AptNode::with_packages(&packages) else { return };
    let (old, new) = (node.old.clone(), node.new.clone());
    assert_eq!(node.change(&old, &new), ChangeState::Rejected);
    assert!(
        matches!(
            node.cause(),
            ChangeReason::ActionFailed { failure: ActionFailure::Unsatisfiable { .. }, .. }
        ),
        "{:?}",
        node.cause()
    );
}

#[test]
fn a_missing_rollback_bundle_is_refused() {
    let Some(mut node) = AptNode::new() else { return };
    let (old, new) = (node.old.clone(), node.new.clone());
    let path = node.store().join("packages").join(old.packages[0].sha256.to_string());
    fs::remove_file(path).unwrap();
    assert_eq!(node.change(&old, &new), ChangeState::Rejected);
    assert!(matches!(
        node.cause(),
        ChangeReason::ActionFailed { failure: ActionFailure::NoWayBack { .. }, .. }
    ));
}

#[test]
fn a_drifted_node_is_refused() {
    let Some(mut node) = AptNode::new() else { return };
    node.chroot.run(&["dpkg", "--purge", "--force-all", "nvidia-driver-535"]);
    let (old, new) = (node.old.clone(), node.new.clone());
    assert_eq!(node.change(&old, &new), ChangeState::Rejected);
    assert!(matches!(node.cause(), ChangeReason::Drift { .. }), "{:?}", node.cause());
}
