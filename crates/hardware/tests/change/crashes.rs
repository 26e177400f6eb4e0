//! The process is killed at each journal entry, and resumes.

use std::panic::{AssertUnwindSafe, catch_unwind};

use farrier_fleet::change::{ChangeEntry, ChangeState};
use farrier_hardware::change::{ChangeFailpoint, ChangeFailpointSite, execute};
use jiff::Timestamp;

use crate::node::{JumpingClock, PrintedProgress, TestNode};
use crate::packages::NEW;
use crate::{apt, rpm};

/// Runs a change that is killed once, and resumes it. `None` if the failpoint was not reached.
fn killed_at(
    mut node: TestNode,
    site: ChangeFailpointSite,
    count: u32,
    is_broken: bool,
) -> Option<ChangeState> {
    if is_broken {
        node.host.borrow_mut().broken = Some(NEW.to_owned());
    }
    let before = node.chroot.fingerprint();
    let (old, new) = (node.old.clone(), node.new.clone());
    let request = Box::new(node.request(&old, &new));
    let mut clock = JumpingClock(Timestamp::UNIX_EPOCH);
    let boot = Some("boot-1".to_owned());
    let mut journal = node.journal(ChangeFailpoint::default);
    journal.write(clock.0, &ChangeEntry::Accepted { request, boot: boot.clone() }).unwrap();
    drop(journal);
    let mut journal = node.journal(|| ChangeFailpoint::panicking(site, count));
    let killed = catch_unwind(AssertUnwindSafe(|| {
        execute(&mut journal, &mut node.actuator(), &mut clock, &mut PrintedProgress).unwrap()
    }));
    drop(journal);
    if killed.is_ok() {
        return None;
    }
    let mut journal = node.journal(ChangeFailpoint::default);
    journal.write(clock.0, &ChangeEntry::Resumed { boot }).unwrap();
    let end =
        execute(&mut journal, &mut node.actuator(), &mut clock, &mut PrintedProgress).unwrap();
    let host = node.host.borrow();
    assert!(!host.was_exposed, "schedulable while incoherent");
    assert!(host.is_coherent(), "{end}");
    if end == ChangeState::RolledBack {
        assert_eq!(node.chroot.fingerprint(), before);
    }
    Some(end)
}

fn kill_everywhere(
    node: fn() -> Option<TestNode>,
    site: ChangeFailpointSite,
    step: u32,
    is_broken: bool,
) {
    let mut ends = std::collections::BTreeMap::new();
    for count in (1..).step_by(step as usize) {
        let Some(node) = node() else { return };
        let Some(end) = killed_at(node, site, count, is_broken) else { break };
        println!("{site:?} {count}: {end}");
        let allowed = [ChangeState::RolledBack, ChangeState::Committed];
        assert!(allowed.contains(&end), "{site:?} {count}: {end}");
        assert!(!is_broken || end == ChangeState::RolledBack);
        *ends.entry(end.code()).or_insert(0) += 1;
    }
    println!("{site:?}: {ends:?}");
}

#[test]
fn killed_after_each_action() {
    kill_everywhere(apt::node, ChangeFailpointSite::Acted, 1, false);
}

#[test]
fn killed_after_each_action_of_a_rollback() {
    kill_everywhere(apt::node, ChangeFailpointSite::Acted, 3, true);
}

#[test]
fn killed_in_the_middle_of_a_journal_line() {
    kill_everywhere(apt::node, ChangeFailpointSite::HalfWritten, 7, true);
}

#[test]
fn killed_after_each_action_with_rpm() {
    kill_everywhere(rpm::node, ChangeFailpointSite::Acted, 2, false);
}

#[test]
fn killed_after_each_action_of_a_rollback_with_rpm() {
    kill_everywhere(rpm::node, ChangeFailpointSite::Acted, 5, true);
}
