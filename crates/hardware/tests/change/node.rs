//! A node with the old driver, and the changes of it.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use farrier_bundle::store::Store;
use farrier_bundle::{Bundle, PackageRole};
use farrier_fleet::change::{
    ActionFailure, BundleRef, ChangeAction, ChangeClass, ChangeEntry, ChangeId, ChangeLimits,
    ChangeReason, ChangeRecord, ChangeRequest, ChangeState, ReloadMethod, StepDeadlines,
};
use farrier_hardware::change::{
    BundleFiles, ChangeClock, ChangeFailpoint, ChangeJournal, ChangeJournalError, ChangeProgress,
    NodeChangeActuator, PackageManager, execute, package_manager,
};
use jiff::Timestamp;

use crate::chroot::Chroot;
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
pub(crate) struct TestNode {
    pub(crate) chroot: Chroot,
    pub(crate) old: Bundle,
    pub(crate) new: Bundle,
    pub(crate) host: Rc<RefCell<HostState>>,
    generation: u64,
}

impl TestNode {
    /// `chroot` has the packages of `old`.
    pub(crate) fn new(chroot: Chroot, old: Bundle, new: Bundle) -> Self {
        let host = Rc::new(RefCell::new(HostState::new(chroot.root())));
        assert!(host.borrow().is_coherent());
        Self { chroot, old, new, host, generation: 0 }
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.chroot.folder().join("store")
    }

    pub(crate) fn actuator(&self) -> NodeChangeActuator<SimulatedHost> {
        NodeChangeActuator::new(
            BundleFiles::new(Store::open_existing(&self.store()).unwrap()),
            self.packages(),
            SimulatedHost(Rc::clone(&self.host)),
        )
    }

    pub(crate) fn packages(&self) -> Box<dyn PackageManager> {
        package_manager(self.old.platform.format, self.chroot.programs())
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

    /// Opens the journal to write it. A program that another test is starting can still have its
    /// lock, between `fork` and `exec`.
    pub(crate) fn journal(&self, failpoint: impl Fn() -> ChangeFailpoint) -> ChangeJournal {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            match ChangeJournal::open(&self.state(), failpoint()) {
                Err(ChangeJournalError::InUse { .. }) if Instant::now() < until => {
                    std::thread::yield_now();
                }
                opened => return opened.unwrap(),
            }
        }
    }

    fn state(&self) -> PathBuf {
        self.chroot.folder().join("state")
    }

    /// Runs a change to its end.
    pub(crate) fn change(&mut self, from: &Bundle, to: &Bundle) -> ChangeState {
        let request = Box::new(self.request(from, to));
        let mut clock = JumpingClock(Timestamp::UNIX_EPOCH);
        let mut journal = self.journal(ChangeFailpoint::default);
        let boot = Some(format!("boot-{}", self.host.borrow().boot));
        journal.write(clock.0, &ChangeEntry::Accepted { request, boot }).unwrap();
        let end =
            execute(&mut journal, &mut self.actuator(), &mut clock, &mut PrintedProgress).unwrap();
        assert!(!self.host.borrow().was_exposed, "schedulable while incoherent");
        end
    }

    pub(crate) fn cause(&self) -> ChangeReason {
        let journal = ChangeJournal::read(&self.state()).unwrap();
        journal.history().last().unwrap().cause.clone().unwrap()
    }
}
