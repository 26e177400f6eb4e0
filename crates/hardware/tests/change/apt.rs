//! Changes with real Debian packages.

use std::fs;

use farrier_fleet::change::{ActionFailure, ChangeReason, ChangeState};

use crate::chroot::{BaseSystem, Chroot};
use crate::node::TestNode;
use crate::packages::{NEW, OLD, Recipe, bundle, new_packages, old_packages};

pub(crate) fn node() -> Option<TestNode> {
    node_with(&new_packages())
}

fn node_with(new: &[Recipe]) -> Option<TestNode> {
    let chroot = Chroot::new(BaseSystem::Apt)?;
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
    Some(TestNode::new(chroot, old, new))
}

fn versions(node: &TestNode) -> String {
    node.chroot.run(&[
        "dpkg-query",
        "--show",
        "--showformat",
        "${Package} ${Version} ${db:Status-Abbrev}\n",
        "*nvidia*",
    ])
}

#[test]
fn a_change_installs_exactly_the_bundle_and_the_way_back_restores_everything() {
    let Some(mut node) = node() else { return };
    let before = node.chroot.fingerprint();
    let (old, new) = (node.old.clone(), node.new.clone());
    assert_eq!(node.change(&old, &new), ChangeState::Committed);
    let found = versions(&node);
    println!("{found}");
    assert!(found.contains(&format!("libnvidia-ml1 {NEW}-1 hi")), "{found}");
    assert!(found.contains(&format!("nvidia-driver {NEW}-1 hi")), "{found}");
    assert!(!found.contains("nvidia-driver-535 535.216.03-1 hi"), "{found}");
    let pins = fs::read_to_string(node.chroot.root().join("etc/apt/preferences.d/50-farrier.pref"))
        .unwrap();
    assert!(pins.contains("Package: nvidia-fabricmanager\nPin: version 580.95.05-1\n"), "{pins}");
    // The way back is a change too. It pins the old driver, so its pins differ from before.
    assert_eq!(node.change(&new, &old), ChangeState::Committed);
    assert!(versions(&node).contains(&format!("nvidia-driver-535 {OLD}-1 hi")));
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
    let Some(mut node) = node() else { return };
    let before = node.chroot.fingerprint();
    node.host.borrow_mut().broken = Some(NEW.to_owned());
    let (old, new) = (node.old.clone(), node.new.clone());
    assert_eq!(node.change(&old, &new), ChangeState::RolledBack);
    assert_eq!(node.chroot.fingerprint(), before);
    assert!(node.host.borrow().is_coherent());
}

#[test]
fn a_failing_script_rolls_back() {
    let Some(mut node) = node() else { return };
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
    let Some(mut node) = node() else { return };
    fs::write(node.chroot.root().join("kill-dpkg"), "").unwrap();
    let (old, new) = (node.old.clone(), node.new.clone());
    let end = node.change(&old, &new);
    assert!(matches!(end, ChangeState::Committed | ChangeState::RolledBack), "{end}");
    assert!(node.host.borrow().is_coherent());
    assert_eq!(node.chroot.run(&["dpkg", "--audit"]), "");
}

#[test]
fn a_changed_file_is_refused_before_anything_happens() {
    let Some(mut node) = node() else { return };
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
    let Some(mut node) = node() else { return };
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
    let Some(mut node) = node_with(&packages) else { return };
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
    let Some(mut node) = node() else { return };
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
    let Some(mut node) = node() else { return };
    node.chroot.run(&["dpkg", "--purge", "--force-all", "nvidia-driver-535"]);
    let (old, new) = (node.old.clone(), node.new.clone());
    assert_eq!(node.change(&old, &new), ChangeState::Rejected);
    assert!(matches!(node.cause(), ChangeReason::Drift { .. }), "{:?}", node.cause());
}
