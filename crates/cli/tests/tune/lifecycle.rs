//! Apply, verify, revert.

use serde_json::Value;

use crate::simulated_node::{SimulatedNode, unwrap_lines};
use crate::support::{farrier, run};

#[test]
fn apply_verify_and_revert() {
    let node = SimulatedNode::mistuned();
    let before = node.state();
    assert_eq!(node.tune(&["verify", "training"]).code, 1);
    assert_eq!(node.state(), before, "verify changes nothing");
    let applied = node.tune(&["apply", "training", "--yes"]);
    assert_eq!(applied.code, 0, "{}{}", applied.stdout, applied.stderr);
    let summary = "17 of 17 changes applied. 2 take effect after a GPU reset.";
    assert!(applied.stdout.contains(summary), "{}", applied.stdout);
    let now = node.state();
    assert_ne!(now, before);
    assert_eq!(node.read("sys/kernel/mm/transparent_hugepage/enabled"), "always [madvise] never\n");
    assert!(!node.read("var/lib/dpkg/status").contains("install ok installed\nPriority: optional\nSection: multiverse/libs\nMaintainer: Simulated\nArchitecture: amd64\nVersion: 580"));
    assert!(node.read("etc/apt/apt.conf.d/52farrier").contains("\"linux-\""));
    assert!(node.read("etc/farrier/jobs/torch.env").contains("\nNCCL_DEBUG=WARN\n"));
    // ECC takes effect after a GPU reset. Until then, verify reports that it waits.
    let verified = node.tune(&["verify", "training"]);
    assert_eq!(verified.code, 1);
    assert!(verified.stdout.contains("2 waits"), "{}", verified.stdout);
    assert!(!verified.stdout.contains("change  "), "{}", verified.stdout);
    let again = node.tune(&["apply", "training", "--yes"]);
    assert!(again.stdout.contains("Nothing to change."), "{}", again.stdout);
    assert_eq!(node.state(), now);
    for number in 0..2 {
        node.edit(&format!("gpus/{number}.json"), |gpu| gpu["ecc"]["enabled"] = true.into());
    }
    assert_eq!(node.tune(&["verify", "training"]).code, 0);
    for number in 0..2 {
        node.edit(&format!("gpus/{number}.json"), |gpu| gpu["ecc"]["enabled"] = false.into());
    }
    let reverted = node.tune(&["revert", "--yes"]);
    assert_eq!(reverted.code, 0, "{}{}", reverted.stdout, reverted.stderr);
    let grouped = "  - power limit of GPU 0-1: 700 W → 500 W";
    assert!(reverted.stdout.contains(grouped), "{}", reverted.stdout);
    assert_eq!(node.state(), before);
    let again = node.tune(&["revert", "--yes"]);
    assert!(again.code == 0 && again.stdout.contains("Nothing to revert"), "{}", again.stdout);
}

#[test]
fn drift_is_detected() {
    let node = SimulatedNode::new();
    assert_eq!(node.tune(&["apply", "training", "--yes"]).code, 0);
    assert_eq!(node.tune(&["verify", "training"]).code, 0);
    node.edit("gpus/1.json", |gpu| gpu["power"]["limit_mw"] = 450_000.into());
    let verified = node.tune(&["verify", "training"]);
    assert_eq!(verified.code, 1);
    let line = "gpu.power-limit, GPU 1: 450 W → 700 W";
    assert!(verified.stdout.contains(line), "{}", verified.stdout);
    // Without a name, verify uses the profile that was applied last, until it is reverted.
    let unnamed = node.tune(&["verify"]);
    assert_eq!((unnamed.code, &unnamed.stdout), (1, &verified.stdout));
    assert_eq!(node.tune(&["apply", "training", "--yes"]).code, 0);
    assert_eq!(node.tune(&["verify"]).code, 0);
    let only = ["apply", "inference", "--yes", "--only", "gpu.power-limit"];
    let part = node.tune(&only);
    assert_eq!(part.code, 0);
    assert!(part.stdout.contains("`training` remains the profile of this node"), "{}", part.stdout);
    assert!(
        node.tune(&["verify"]).stdout.contains("Verify: training"),
        "a partial apply does not change the profile"
    );
    assert_eq!(node.tune(&["revert", "--yes"]).code, 0);
    let none = node.tune(&["verify"]);
    assert_eq!(none.code, 2);
    assert!(none.stderr.contains("name one of"), "{}", none.stderr);
}

#[test]
fn several_profiles_are_reverted_newest_first() {
    let node = SimulatedNode::mistuned();
    let before = node.state();
    for profile in ["training", "shared", "inference"] {
        assert_eq!(node.tune(&["apply", profile, "--yes"]).code, 0, "{profile}");
    }
    assert_eq!(node.tune(&["revert", "--yes"]).code, 0);
    assert_eq!(node.state(), before);
}

#[test]
fn foreign_changes_are_left_alone_unless_forced() {
    let node = SimulatedNode::mistuned();
    let before = node.state();
    assert_eq!(node.tune(&["apply", "training", "--yes"]).code, 0);
    node.edit("gpus/0.json", |gpu| gpu["power"]["limit_mw"] = 350_000.into());
    let reverted = node.tune(&["revert", "--yes"]);
    assert_eq!(reverted.code, 1);
    let text = unwrap_lines(&reverted.stdout);
    assert!(text.contains("changed by others since, to 350 W"), "{text}");
    assert!(reverted.stdout.contains("--force"), "{}", reverted.stdout);
    assert_eq!(node.tune(&["revert", "--yes", "--force"]).code, 0);
    assert_eq!(node.state(), before);
}

#[test]
fn created_directories_are_removed_with_their_last_file() {
    let node = SimulatedNode::mistuned();
    let before = node.state();
    assert_eq!(node.tune(&["apply", "training", "--yes"]).code, 0);
    let torch = node.read("etc/farrier/jobs/torch.env");
    node.put("etc/farrier/jobs/torch.env", &format!("{torch}X=1\n"));
    assert_eq!(node.tune(&["revert", "--yes"]).code, 1, "the file was changed by others");
    assert_eq!(node.tune(&["revert", "--yes", "--force"]).code, 0);
    assert_eq!(node.state(), before);
}

#[test]
fn a_fully_refused_profile_does_not_become_the_profile_of_the_node() {
    let node = SimulatedNode::new();
    let profile = node.path("ours.toml");
    let text = "name = \"ours\"\nsummary = \"a test\"\n[[setting]]\nname = \"gpu.power-limit\"\nwant = \"900 W\"\nreason = \"a test\"\n";
    std::fs::write(&profile, text).unwrap();
    let own = ["apply", "--profile", profile.to_str().unwrap(), "--yes"];
    let refused = node.tune(&own);
    assert_eq!(refused.code, 1, "{}", refused.stdout);
    let expected = "Nothing can be changed: 2 refused. `ours` did not become";
    assert!(refused.stdout.contains(expected), "{}", refused.stdout);
    let none = node.tune(&["verify"]);
    assert!(none.code == 2 && none.stderr.contains("no profile is named"), "{}", none.stderr);
    let reverted = node.tune(&["revert", "--yes"]);
    assert!(reverted.stdout.contains("Nothing to revert."), "{}", reverted.stdout);
    assert_eq!(node.tune(&["apply", "training", "--yes"]).code, 0);
    let refused = node.tune(&own);
    assert!(refused.stdout.contains("`training` remains the profile"), "{}", refused.stdout);
    assert!(node.tune(&["verify"]).stdout.contains("Verify: training"));
}

#[test]
fn a_single_setting_and_json_output() {
    let node = SimulatedNode::mistuned();
    let args = ["apply", "training", "--yes", "--only", "gpu.power-limit", "--output", "json"];
    let applied = node.tune(&args);
    assert_eq!(applied.code, 0, "{}", applied.stderr);
    let report: Value = serde_json::from_str(&applied.stdout).unwrap();
    assert_eq!(report["v"], 1);
    assert_eq!(report["applied"].as_array().unwrap().len(), 2, "{report}");
    assert_eq!(report["applied"][0]["outcome"], "done");
    assert_eq!(report["steps"][0]["current"], "500 W");
    let planned = node.tune(&["plan", "training", "--output", "json"]);
    let plan: Value = serde_json::from_str(&planned.stdout).unwrap();
    assert_eq!((planned.code, &plan["is_fine"]), (1, &Value::from(false)));
    for (args, place) in [(["show", "training"], ""), (["list", ""], "/0")] {
        let args = ["tune", args[0], args[1], "--output", "json"];
        let args: Vec<&str> = args.into_iter().filter(|word| !word.is_empty()).collect();
        let shown: Value = serde_json::from_str(&run(&args).stdout).unwrap();
        assert_eq!(shown.pointer(place).unwrap()["v"], 1, "{shown}");
    }
    let reverted = node.tune(&["revert", "--yes", "--output", "json"]);
    let report: Value = serde_json::from_str(&reverted.stdout).unwrap();
    assert_eq!((&report["v"], &report["reverted"][0]["given"]), (&1.into(), &"back".into()));
}

#[test]
fn apply_without_a_name_repeats_the_last_profile() {
    let node = SimulatedNode::new();
    let profile = node.path("ours.toml");
    let text = "name = \"ours\"\nsummary = \"a test\"\n[[setting]]\nname = \"gpu.power-limit\"\nwant = \"450 W\"\nreason = \"a test\"\nunverified = true\n";
    std::fs::write(&profile, text).unwrap();
    let none = node.tune(&["apply", "--yes"]);
    assert!(none.code == 2 && none.stderr.contains("no profile is named"), "{}", none.stderr);
    let own = ["apply", "--profile", profile.to_str().unwrap(), "--unverified", "--yes"];
    assert_eq!(node.tune(&own).code, 0);
    std::fs::remove_file(&profile).unwrap();
    node.edit("gpus/1.json", |gpu| gpu["power"]["limit_mw"] = 500_000.into());
    assert_eq!(node.tune(&["verify"]).code, 1);
    let again = node.tune(&["apply", "--yes"]);
    assert!(again.code == 0 && again.stdout.contains("1 of 1 change applied."), "{}", again.stdout);
    assert_eq!(node.tune(&["verify"]).code, 0);
}

#[test]
fn drift_reporting_ends_only_after_a_complete_revert() {
    let node = SimulatedNode::new();
    assert_eq!(node.tune(&["apply", "training", "--yes"]).code, 0);
    assert_eq!(node.tune(&["revert", "--yes"]).code, 0);
    // A partial apply sets no profile, so verify has nothing to compare the node with.
    let first = node.tune(&["apply", "training", "--yes", "--only", "gpu.ecc"]);
    assert!(first.stdout.contains("Nothing to change."), "{}", first.stdout);
    assert_eq!(node.tune(&["verify"]).code, 2, "a partial apply sets no profile");
    assert_eq!(node.tune(&["apply", "training", "--yes"]).code, 0);
    node.edit("gpus/1.json", |gpu| gpu["power"]["limit_mw"] = 450_000.into());
    for number in 0..2 {
        // Files that others changed stay.
        let path = format!("etc/farrier/jobs/{}.env", ["torch", "jax"][number]);
        node.put(&path, "# theirs\n");
    }
    let left = node.tune(&["revert", "--yes"]);
    assert_eq!(left.code, 1, "{}", left.stdout);
    assert!(node.path("state/applied.json").exists());
    let unconfirmed = node.tune(&["revert"]);
    assert!(
        unconfirmed.code == 2 && unconfirmed.stderr.contains("hint: pass --yes"),
        "{}",
        unconfirmed.stderr
    );
    assert!(node.path("state/applied.json").exists());
    let forced = node.tune(&["revert", "--yes", "--force"]);
    assert!(
        forced.stdout.contains("Drift from `training` is no longer reported."),
        "{}",
        forced.stdout
    );
    assert!(!node.path("state/applied.json").exists());
    // The same holds for a profile that changes nothing.
    let profile = node.path("ours.toml");
    let text = "name = \"ours\"\nsummary = \"a test\"\n[[setting]]\nname = \"gpu.ecc\"\nwant = \"on\"\nreason = \"a test\"\n";
    std::fs::write(&profile, text).unwrap();
    let own = ["apply", "--profile", profile.to_str().unwrap(), "--yes"];
    assert_eq!(node.tune(&own).code, 0);
    let unconfirmed = node.tune(&["revert"]);
    assert_eq!(unconfirmed.code, 2);
    assert!(unconfirmed.stdout.contains("Nothing to revert."), "{}", unconfirmed.stdout);
    assert!(node.path("state/applied.json").exists());
    let reverted = node.tune(&["revert", "--yes"]);
    assert!(
        reverted.code == 0 && reverted.stdout.contains("Drift from `ours`"),
        "{}",
        reverted.stdout
    );
}

#[test]
fn a_mode_that_needs_a_reset_is_reported_as_waiting() {
    let node = SimulatedNode::mistuned();
    let only = ["apply", "training", "--yes", "--only", "gpu.ecc"];
    assert_eq!(node.tune(&only).code, 0);
    node.edit("gpus/0.json", |gpu| gpu["ecc"]["enabled"] = true.into());
    let reverted = node.tune(&["revert", "--yes"]);
    assert_eq!(reverted.code, 0, "{}", reverted.stderr);
    let text = unwrap_lines(&reverted.stdout);
    assert!(text.contains("pending    ECC of GPU 0 (GPU-"), "{text}");
    assert!(text.contains("set back to off: takes effect after a GPU reset"), "{text}");
    assert!(text.contains("1 of 2 changes reverted."), "{text}");
}

#[test]
fn json_output_does_not_ask() {
    let node = SimulatedNode::mistuned();
    let before = node.state();
    let output = node.tune(&["apply", "training", "--output", "json"]);
    assert_eq!((output.code, output.stdout.as_str()), (2, ""));
    assert!(
        output.stderr.contains("--output json does not ask for confirmation"),
        "{}",
        output.stderr
    );
    assert_eq!(node.state(), before);
}

#[test]
fn memlock_reaches_services_and_a_later_file_is_reported() {
    let node = SimulatedNode::new();
    let unit = "[Service]\nExecStart=/usr/sbin/slurmd\nLimitMEMLOCK=64K\n";
    node.put("lib/systemd/system/slurmd.service", unit);
    let memlock = ["training", "--only", "host.memlock"];
    let applied = node.tune(&[&["apply", "--yes"], &memlock[..]].concat());
    assert_eq!(applied.code, 0, "{}{}", applied.stdout, applied.stderr);
    let drop_in = "etc/systemd/system/slurmd.service.d/90-farrier-memlock.conf";
    assert!(node.read(drop_in).contains("[Service]\nLimitMEMLOCK=infinity\n"));
    assert!(!node.path("node/root/etc/systemd/system/docker.service.d").exists());
    let verify = || node.tune(&[&["verify"], &memlock[..]].concat());
    assert_eq!(verify().code, 0, "{}", verify().stdout);
    node.put("etc/security/limits.d/99-site.conf", "* hard memlock 65536\n");
    node.put("etc/systemd/system/slurmd.service.d/99-site.conf", "[Service]\nLimitMEMLOCK=8M\n");
    let overridden = verify();
    assert_eq!(overridden.code, 1);
    let text = unwrap_lines(&overridden.stdout);
    assert!(text.contains("/etc/security/limits.d/99-site.conf: 65536 → unlimited"), "{text}");
    assert!(text.contains("8M → infinity"), "{text}");
    assert!(text.contains("slurmd.service.d/99-site.conf is read later and wins"), "{text}");
    assert_eq!(node.tune(&["revert", "--yes"]).code, 0);
    assert!(!node.path("node/root").join(drop_in).exists());
    assert!(!node.path("node/root/etc/security/limits.d/90-farrier-memlock.conf").exists());
}

#[test]
fn a_user_who_is_not_root_gets_one_line() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let built = farrier(&["tune", "apply", "training", "--yes"]);
    // Tests may run as root, and the checkout may be in a folder that only root can enter.
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = folder.path().join("farrier");
    std::fs::copy(built.get_program(), &program).unwrap();
    let mut command = std::process::Command::new(program);
    command.args(built.get_args()).current_dir(folder.path());
    for (name, value) in built.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    if farrier_hardware::access::is_root() {
        command.uid(65_534);
    }
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        stderr,
        "error: changing settings needs root; nothing was changed\nhint: run it with sudo\n"
    );
}
