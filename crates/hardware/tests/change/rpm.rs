//! Changes with real rpm packages, rpm and dnf.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use farrier_bundle::PackageRole;
use farrier_facts::node::Reading;
use farrier_fleet::change::{ActionFailure, ChangeReason, ChangeState, PreflightFailure};

use crate::chroot::{BaseSystem, Chroot};
use crate::node::TestNode;
use crate::packages::{NEW, OLD};
use crate::rpm_packages::{RpmRecipe, base_package, bundle, new_packages, old_packages};

const LIMIT: Duration = Duration::from_secs(300);
const PLUGIN: &str = "etc/dnf/plugins/versionlock.conf";

pub(crate) fn node() -> Option<TestNode> {
    node_with(&old_packages(), &new_packages())
}

/// A node with the old driver, and with a package of someone else that uses it.
fn node_with(old: &[RpmRecipe], new: &[RpmRecipe]) -> Option<TestNode> {
    let chroot = Chroot::new(BaseSystem::Rpm)?;
    let store = chroot.folder().join("store");
    let old = bundle(&store, OLD, old);
    let new = bundle(&store, NEW, new);
    let folder = chroot.root().join("rpms");
    fs::create_dir(&folder).unwrap();
    let other = RpmRecipe::new("gpu-tools", "1", PackageRole::Other)
        .relation("Requires: nvidia-driver, nvidia-kmod");
    let mut words = vec!["rpm".to_owned(), "--install".to_owned()];
    for recipe in [base_package(), other] {
        words.push(inside(&recipe.build(&folder)));
    }
    for package in &old.packages {
        let path = folder.join(&package.file);
        fs::copy(store.join("packages").join(package.sha256.to_string()), &path).unwrap();
        words.push(inside(&path));
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    chroot.run(&words);
    Some(TestNode::new(chroot, old, new))
}

/// Path of a package for programs in the chroot.
fn inside(path: &Path) -> String {
    format!("/rpms/{}", path.file_name().unwrap().to_str().unwrap())
}

/// Installs a package that no bundle has.
fn install(node: &TestNode, recipe: &RpmRecipe) {
    let path = inside(&recipe.build(&node.chroot.root().join("rpms")));
    node.chroot.run(&["rpm", "--install", &path]);
}

fn installed(node: &TestNode) -> Vec<String> {
    let text = node.chroot.run(&["rpm", "--query", "--all"]);
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// What dnf would do with a repository that has a newer driver than both bundles.
fn dnf_upgrade(node: &TestNode) -> String {
    let folder = node.chroot.root().join("newer");
    if !folder.exists() {
        fs::create_dir(&folder).unwrap();
        for mut recipe in new_packages() {
            "590.44.01".clone_into(&mut recipe.version);
            recipe.relations.clear();
            recipe.build(&folder);
        }
        let made = Command::new("createrepo_c").arg("--quiet").arg(&folder).status().unwrap();
        assert!(made.success());
        let repository = "[newer]\nname=newer\nbaseurl=file:///newer\ngpgcheck=0\n";
        fs::create_dir_all(node.chroot.root().join("etc/yum.repos.d")).unwrap();
        fs::write(node.chroot.root().join("etc/yum.repos.d/newer.repo"), repository).unwrap();
    }
    // dnf ends with 1 if it would do something.
    // Debian enables a plugin with a repository that does not exist.
    let args = ["--releasever=9", "--disableplugin=local", "--assumeno", "upgrade"];
    let output = node.chroot.programs().run("dnf", &args, LIMIT).unwrap();
    format!("{}{}", output.stdout, output.stderr)
}

#[test]
fn a_change_installs_exactly_the_bundle_and_the_way_back_restores_everything() {
    let Some(mut node) = node() else { return };
    let before = node.chroot.fingerprint();
    let packages_before = installed(&node);
    let (old, new) = (node.old.clone(), node.new.clone());
    assert_eq!(node.change(&old, &new), ChangeState::Committed);
    let expected = [
        "base-system-9-1.el9.x86_64".to_owned(),
        "gpu-tools-1-1.el9.x86_64".to_owned(),
        format!("kmod-nvidia-open-dkms-{NEW}-1.el9.x86_64"),
        format!("nvidia-driver-{NEW}-1.el9.x86_64"),
        format!("nvidia-driver-libs-{NEW}-1.el9.x86_64"),
        format!("nvidia-fabricmanager-{NEW}-1.el9.x86_64"),
        format!("nvidia-persistenced-{NEW}-1.el9.x86_64"),
    ];
    assert_eq!(installed(&node), expected);
    assert_eq!(node.chroot.run(&["rpm", "--verify", "--all"]), "");
    // The way back is a change too. It holds the old driver, so its holds differ from before.
    assert_eq!(node.change(&new, &old), ChangeState::Committed);
    assert_eq!(installed(&node), packages_before);
    let locks = fs::read_to_string(node.chroot.root().join("etc/dnf/plugins/versionlock.list"));
    assert!(locks.unwrap().contains("kmod-nvidia-latest-dkms-3:535.216.03-1.el9.*\n"));
    assert_ne!(node.chroot.fingerprint(), before);
}

#[test]
fn a_failed_verification_rolls_back_to_the_same_packages_and_holds() {
    let Some(mut node) = node() else { return };
    let list = node.chroot.root().join("etc/dnf/plugins/versionlock.list");
    fs::write(list, "# mine\nbase-system-0:9-1.el9.*\n").unwrap();
    let before = node.chroot.fingerprint();
    node.host.borrow_mut().broken = Some(NEW.to_owned());
    let (old, new) = (node.old.clone(), node.new.clone());
    assert_eq!(node.change(&old, &new), ChangeState::RolledBack);
    assert_eq!(node.chroot.fingerprint(), before);
    assert!(node.host.borrow().is_coherent());
}

#[test]
fn dnf_leaves_a_held_driver_alone_and_upgrades_it_again_after_the_holds() {
    for has_plugin in [true, false] {
        let Some(mut node) = node() else { return };
        if !has_plugin {
            fs::remove_file(node.chroot.root().join(PLUGIN)).unwrap();
            let plugin = "usr/lib/python3/dist-packages/dnf-plugins/versionlock.py";
            fs::remove_file(node.chroot.root().join(plugin)).unwrap();
        }
        let before = node.chroot.fingerprint();
        let upgrade = dnf_upgrade(&node);
        assert!(upgrade.contains("Upgrading:\n nvidia-driver "), "without holds: {upgrade}");
        let (old, new) = (node.old.clone(), node.new.clone());
        assert_eq!(node.change(&old, &new), ChangeState::Committed);
        let upgrade = dnf_upgrade(&node);
        assert!(upgrade.contains("Nothing to do"), "{has_plugin}: {upgrade}");
        let conf = fs::read_to_string(node.chroot.root().join("etc/dnf/dnf.conf")).unwrap();
        assert_eq!(conf.contains("excludepkgs=kmod-nvidia-open-dkms "), !has_plugin, "{conf}");
        let automatic =
            fs::read_to_string(node.chroot.root().join("etc/dnf/automatic.conf")).unwrap();
        assert!(automatic.contains("\nexcludepkgs=*nvidia* "), "{automatic}");
        // A rollback restores the holds of before: none.
        assert_eq!(node.change(&new, &old), ChangeState::Committed);
        let saved = farrier_fleet::change::SavedNode::default();
        let packages = node.packages();
        packages.install(&new, &old, Some(&saved)).unwrap();
        assert_eq!(node.chroot.fingerprint(), before);
        assert!(dnf_upgrade(&node).contains("Upgrading:\n nvidia-driver "), "holds remain");
    }
}

#[test]
fn a_post_script_that_fails_rolls_back() {
    // rpm ends with 0 and has the package in its database.
    failing_script_rolls_back("%post", "echo 'no device' >&2; exit 1");
}

#[test]
fn a_post_script_in_lua_that_fails_rolls_back() {
    failing_script_rolls_back("%post -p <lua>", "error('no device')");
}

#[test]
fn a_pre_script_in_lua_that_fails_rolls_back() {
    failing_script_rolls_back("%pre -p <lua>", "error('no device')");
}

fn failing_script_rolls_back(section: &str, script: &str) {
    let mut packages = new_packages();
    packages[2].scripts = vec![(section.to_owned(), script.to_owned())];
    let Some(mut node) = node_with(&old_packages(), &packages) else { return };
    let before = node.chroot.fingerprint();
    let (old, new) = (node.old.clone(), node.new.clone());
    assert_eq!(node.change(&old, &new), ChangeState::RolledBack);
    let cause = node.cause();
    let ChangeReason::ActionFailed { failure: ActionFailure::PackageManager { detail }, .. } =
        &cause
    else {
        panic!("{cause:?}");
    };
    assert!(detail.contains("script"), "{detail}");
    assert_eq!(node.chroot.fingerprint(), before);
}

#[test]
fn a_script_of_the_old_driver_that_fails_in_both_directions_ends_in_quarantine() {
    // The packages are those of the old bundle again, which shows nothing of the failed script.
    let mut old = old_packages();
    old[2] = old[2].clone().script("%posttrans", "if [ -e /broken ]; then exit 1; fi");
    old[2].scripts.push(("%preun".to_owned(), "touch /broken".to_owned()));
    let Some(mut node) = node_with(&old, &new_packages()) else { return };
    node.host.borrow_mut().broken = Some(NEW.to_owned());
    let (old, new) = (node.old.clone(), node.new.clone());
    assert_eq!(node.change(&old, &new), ChangeState::Quarantined);
}

#[test]
fn rpm_killed_between_two_packages_leaves_two_versions_and_is_rolled_back() {
    let Some(mut node) = node() else { return };
    let before = node.chroot.fingerprint();
    fs::write(node.chroot.root().join("kill-rpm"), "").unwrap();
    let (old, new) = (node.old.clone(), node.new.clone());
    assert_eq!(node.change(&old, &new), ChangeState::RolledBack);
    assert_eq!(node.chroot.fingerprint(), before);
    assert!(node.host.borrow().is_coherent());
}

#[test]
fn two_versions_of_a_driver_package_are_refused() {
    let Some(node) = node() else { return };
    fs::write(node.chroot.root().join("kill-rpm"), "").unwrap();
    let (old, new) = (node.old.clone(), node.new.clone());
    let package = new.package("nvidia-persistenced").unwrap();
    let path = node.chroot.root().join("rpms").join(&package.file);
    fs::copy(node.store().join("packages").join(package.sha256.to_string()), &path).unwrap();
    let args = ["--upgrade", "--nodeps", &inside(&path)];
    assert!(!node.chroot.programs().run("rpm", &args, LIMIT).unwrap().status.success());
    let bundles = [&old, &new];
    let expected = format!("nvidia-persistenced 3:{OLD}-1.el9 3:{NEW}-1.el9");
    assert_eq!(node.packages().audit(&bundles).unwrap(), [expected.as_str()]);
    let failures = node.actuator().preflight(&new, &old);
    let packages = vec![expected];
    let expected = PreflightFailure::DirtyPackageDatabase { packages };
    assert!(failures.value().unwrap().contains(&expected), "{failures:?}");
}

#[test]
fn a_database_that_rpm_cannot_read_is_never_taken_for_a_driver() {
    let mut packages = new_packages();
    let script = "echo damaged > /var/lib/rpm/rpmdb.sqlite; kill -9 $PPID; sleep 1";
    packages[2].scripts = vec![("%post".to_owned(), script.to_owned())];
    let Some(mut node) = node_with(&old_packages(), &packages) else { return };
    let (old, new) = (node.old.clone(), node.new.clone());
    assert_eq!(node.change(&old, &new), ChangeState::Quarantined);
    let kept = "var/lib/farrier-change/rpmdb-damaged/rpmdb.sqlite";
    assert_eq!(fs::read_to_string(node.chroot.root().join(kept)).unwrap(), "damaged\n");
}

#[test]
fn a_transaction_of_another_process_is_waited_for() {
    let Some(mut node) = node() else { return };
    let root = node.chroot.root();
    node.chroot.run(&["mkfifo", "/begun", "/go"]);
    let slow = RpmRecipe::new("slow", "1", PackageRole::Other)
        .script("%post", "echo begun > /begun; read line < /go");
    let path = inside(&slow.build(&root.join("rpms")));
    let mut rpm = Command::new("chroot")
        .arg(&root)
        .args(["rpm", "--install", &path])
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let mut text = String::new();
    fs::File::open(root.join("begun")).unwrap().read_to_string(&mut text).unwrap();
    let packages = node.packages();
    assert_eq!(packages.is_lock_free(), Reading::Value(false));
    let (old, new) = (node.old.clone(), node.new.clone());
    let failure = packages.install(&old, &new, None).unwrap_err();
    assert!(matches!(failure, ActionFailure::PackageLock { .. }), "{failure:?}");
    assert_eq!(node.change(&old, &new), ChangeState::Deferred);
    let write = fs::OpenOptions::new().write(true).open(root.join("go"));
    write.unwrap().write_all(b"go\n").unwrap();
    assert!(rpm.wait().unwrap().success());
    assert_eq!(node.packages().is_lock_free(), Reading::Value(true));
    assert_eq!(node.change(&old, &new), ChangeState::Committed);
    assert!(installed(&node).contains(&"slow-1-1.el9.x86_64".to_owned()));
}

#[test]
fn a_transaction_that_breaks_other_packages_is_refused() {
    let Some(mut node) = node() else { return };
    // Packages of someone else that work only with the old driver.
    let monitor = RpmRecipe::new("gpu-monitor", "1", PackageRole::Other);
    install(&node, &monitor.clone().relation("Requires: kmod-nvidia-latest-dkms"));
    let before = node.chroot.fingerprint();
    let (old, new) = (node.old.clone(), node.new.clone());
    assert_eq!(node.change(&old, &new), ChangeState::Rejected);
    let dirty = |cause: &ChangeReason| match cause {
        ChangeReason::ActionFailed {
            failure: ActionFailure::DirtyTransaction { packages },
            ..
        } => packages.clone(),
        other => panic!("{other:?}"),
    };
    let expected = "gpu-monitor-3:1-1.el9.x86_64 (needs kmod-nvidia-latest-dkms)";
    assert_eq!(dirty(&node.cause()), [expected]);
    assert_eq!(node.chroot.fingerprint(), before);
    node.chroot.run(&["rpm", "--erase", "gpu-monitor"]);
    install(&node, &monitor.relation(&format!("Requires: nvidia-driver-libs = 3:{OLD}")));
    assert_eq!(node.change(&old, &new), ChangeState::Rejected);
    assert_eq!(dirty(&node.cause()).len(), 1);
}

#[test]
fn packages_that_need_something_outside_the_bundle_are_refused() {
    let mut packages = new_packages();
    packages[0].relations.push("Requires: libfoo7".to_owned());
    let Some(mut node) = node_with(&old_packages(), &packages) else { return };
    let (old, new) = (node.old.clone(), node.new.clone());
    assert_eq!(node.change(&old, &new), ChangeState::Rejected);
    let cause = node.cause();
    let ChangeReason::ActionFailed { failure: ActionFailure::Unsatisfiable { detail }, .. } =
        &cause
    else {
        panic!("{cause:?}");
    };
    assert!(detail.starts_with("libfoo7 is needed by nvidia-driver-libs"), "{detail}");
}

#[test]
fn a_file_of_another_package_is_never_overwritten() {
    let Some(mut node) = node() else { return };
    let path = format!("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{NEW}");
    install(&node, &RpmRecipe::new("other", "1", PackageRole::Other).file(&path, "other\n"));
    let before = node.chroot.fingerprint();
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
    assert_eq!(node.chroot.fingerprint(), before);
}

#[test]
fn a_changed_file_of_the_driver_fails_the_verification() {
    let Some(node) = node() else { return };
    node.packages().verify(&node.old).unwrap();
    let path = node.chroot.root().join("usr/lib/nvidia-test/fabric");
    fs::remove_file(&path).unwrap();
    fs::write(&path, "changed").unwrap();
    let failure = node.packages().verify(&node.old).unwrap_err();
    assert!(matches!(failure, ActionFailure::CheckFailed { .. }), "{failure:?}");
}
