//! There and back.

use serde_json::Value;

use crate::support::run;
use crate::world::{World, unfolded};

#[test]
fn a_node_is_made_right_verified_and_given_back() {
    let world = World::wrong();
    let before = world.state();
    assert_eq!(world.tune(&["verify", "training"]).code, 1);
    assert_eq!(world.state(), before, "verify changes nothing");
    let applied = world.tune(&["apply", "training", "--yes"]);
    assert_eq!(applied.code, 0, "{}{}", applied.stdout, applied.stderr);
    let made = "17 of 17 changes made. 2 count after a GPU reset.";
    assert!(applied.stdout.contains(made), "{}", applied.stdout);
    let now = world.state();
    assert_ne!(now, before);
    assert_eq!(
        world.read("sys/kernel/mm/transparent_hugepage/enabled"),
        "always [madvise] never\n"
    );
    assert!(!world.read("var/lib/dpkg/status").contains("install ok installed\nPriority: optional\nSection: multiverse/libs\nMaintainer: Simulated\nArchitecture: amd64\nVersion: 580"));
    assert!(world.read("etc/apt/apt.conf.d/52farrier").contains("\"linux-\""));
    assert!(world.read("etc/farrier/jobs/torch.env").contains("\nNCCL_DEBUG=WARN\n"));
    // ECC counts after a reset: that is said, and is not yet as wanted.
    let verified = world.tune(&["verify", "training"]);
    assert_eq!(verified.code, 1);
    assert!(verified.stdout.contains("2 waits"), "{}", verified.stdout);
    assert!(!verified.stdout.contains("change  "), "{}", verified.stdout);
    let again = world.tune(&["apply", "training", "--yes"]);
    assert!(again.stdout.contains("There is nothing to change."), "{}", again.stdout);
    assert_eq!(world.state(), now);
    for number in 0..2 {
        world.edit(&format!("gpus/{number}.json"), |gpu| gpu["ecc"]["enabled"] = true.into());
    }
    assert_eq!(world.tune(&["verify", "training"]).code, 0);
    for number in 0..2 {
        world.edit(&format!("gpus/{number}.json"), |gpu| gpu["ecc"]["enabled"] = false.into());
    }
    let reverted = world.tune(&["revert", "--yes"]);
    assert_eq!(reverted.code, 0, "{}{}", reverted.stdout, reverted.stderr);
    let folded = "  - power limit of GPU 0-1: 700 W → 500 W";
    assert!(reverted.stdout.contains(folded), "{}", reverted.stdout);
    assert_eq!(world.state(), before);
    let again = world.tune(&["revert", "--yes"]);
    assert!(again.code == 0 && again.stdout.contains("nothing to give back"), "{}", again.stdout);
}

#[test]
fn drift_is_found() {
    let world = World::new();
    assert_eq!(world.tune(&["apply", "training", "--yes"]).code, 0);
    assert_eq!(world.tune(&["verify", "training"]).code, 0);
    world.edit("gpus/1.json", |gpu| gpu["power"]["limit_mw"] = 450_000.into());
    let verified = world.tune(&["verify", "training"]);
    assert_eq!(verified.code, 1);
    let line = "gpu.power-limit, GPU 1: 450 W → 700 W";
    assert!(verified.stdout.contains(line), "{}", verified.stdout);
    // Without a name it is what was applied last, until that is given back.
    let kept = world.tune(&["verify"]);
    assert_eq!((kept.code, &kept.stdout), (1, &verified.stdout));
    assert_eq!(world.tune(&["apply", "training", "--yes"]).code, 0);
    assert_eq!(world.tune(&["verify"]).code, 0);
    let only = ["apply", "inference", "--yes", "--only", "gpu.power-limit"];
    let part = world.tune(&only);
    assert_eq!(part.code, 0);
    assert!(part.stdout.contains("`training` stays the profile of this node"), "{}", part.stdout);
    assert!(world.tune(&["verify"]).stdout.contains("Verify: training"), "a part is no profile");
    assert_eq!(world.tune(&["revert", "--yes"]).code, 0);
    let none = world.tune(&["verify"]);
    assert_eq!(none.code, 2);
    assert!(none.stderr.contains("name one of"), "{}", none.stderr);
}

#[test]
fn two_profiles_are_given_back_newest_first() {
    let world = World::wrong();
    let before = world.state();
    for profile in ["training", "shared", "inference"] {
        assert_eq!(world.tune(&["apply", profile, "--yes"]).code, 0, "{profile}");
    }
    assert_eq!(world.tune(&["revert", "--yes"]).code, 0);
    assert_eq!(world.state(), before);
}

#[test]
fn what_somebody_else_changed_is_left_alone_unless_forced() {
    let world = World::wrong();
    let before = world.state();
    assert_eq!(world.tune(&["apply", "training", "--yes"]).code, 0);
    world.edit("gpus/0.json", |gpu| gpu["power"]["limit_mw"] = 350_000.into());
    let reverted = world.tune(&["revert", "--yes"]);
    assert_eq!(reverted.code, 1);
    let text = unfolded(&reverted.stdout);
    assert!(text.contains("somebody has changed it since, to 350 W"), "{text}");
    assert!(reverted.stdout.contains("--force"), "{}", reverted.stdout);
    assert_eq!(world.tune(&["revert", "--yes", "--force"]).code, 0);
    assert_eq!(world.state(), before);
}

#[test]
fn folders_go_with_the_last_file_in_them_whichever_that_is() {
    let world = World::wrong();
    let before = world.state();
    assert_eq!(world.tune(&["apply", "training", "--yes"]).code, 0);
    let torch = world.read("etc/farrier/jobs/torch.env");
    world.put("etc/farrier/jobs/torch.env", &format!("{torch}X=1\n"));
    assert_eq!(world.tune(&["revert", "--yes"]).code, 1, "somebody has changed it");
    assert_eq!(world.tune(&["revert", "--yes", "--force"]).code, 0);
    assert_eq!(world.state(), before);
}

#[test]
fn a_profile_of_which_nothing_can_be_had_does_not_become_the_nodes() {
    let world = World::new();
    let profile = world.path("ours.toml");
    let text = "name = \"ours\"\nsummary = \"a test\"\n[[setting]]\nname = \"gpu.power-limit\"\nwant = \"900 W\"\nreason = \"a test\"\n";
    std::fs::write(&profile, text).unwrap();
    let own = ["apply", "--profile", profile.to_str().unwrap(), "--yes"];
    let refused = world.tune(&own);
    assert_eq!(refused.code, 1, "{}", refused.stdout);
    let said = "Nothing can be changed: 2 refused. `ours` does not become";
    assert!(refused.stdout.contains(said), "{}", refused.stdout);
    let none = world.tune(&["verify"]);
    assert!(none.code == 2 && none.stderr.contains("no profile is named"), "{}", none.stderr);
    let given = world.tune(&["revert", "--yes"]);
    assert!(given.stdout.contains("There is nothing to give back."), "{}", given.stdout);
    assert_eq!(world.tune(&["apply", "training", "--yes"]).code, 0);
    let refused = world.tune(&own);
    assert!(refused.stdout.contains("`training` stays the profile"), "{}", refused.stdout);
    assert!(world.tune(&["verify"]).stdout.contains("Verify: training"));
}

#[test]
fn one_setting_may_be_asked_for_alone_and_programs_are_answered() {
    let world = World::wrong();
    let words = ["apply", "training", "--yes", "--only", "gpu.power-limit", "--output", "json"];
    let applied = world.tune(&words);
    assert_eq!(applied.code, 0, "{}", applied.stderr);
    let report: Value = serde_json::from_str(&applied.stdout).unwrap();
    assert_eq!(report["v"], 1);
    assert_eq!(report["applied"].as_array().unwrap().len(), 2, "{report}");
    assert_eq!(report["applied"][0]["outcome"], "done");
    assert_eq!(report["steps"][0]["current"], "500 W");
    let planned = world.tune(&["plan", "training", "--output", "json"]);
    let plan: Value = serde_json::from_str(&planned.stdout).unwrap();
    assert_eq!((planned.code, &plan["is_fine"]), (1, &Value::from(false)));
    for (words, place) in [(["show", "training"], ""), (["list", ""], "/0")] {
        let words = ["tune", words[0], words[1], "--output", "json"];
        let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        let shown: Value = serde_json::from_str(&run(&words).stdout).unwrap();
        assert_eq!(shown.pointer(place).unwrap()["v"], 1, "{shown}");
    }
    let reverted = world.tune(&["revert", "--yes", "--output", "json"]);
    let report: Value = serde_json::from_str(&reverted.stdout).unwrap();
    assert_eq!((&report["v"], &report["reverted"][0]["given"]), (&1.into(), &"back".into()));
}

#[test]
fn the_profile_that_was_applied_is_applied_again_without_a_name() {
    let world = World::new();
    let profile = world.path("ours.toml");
    let text = "name = \"ours\"\nsummary = \"a test\"\n[[setting]]\nname = \"gpu.power-limit\"\nwant = \"450 W\"\nreason = \"a test\"\nunverified = true\n";
    std::fs::write(&profile, text).unwrap();
    let none = world.tune(&["apply", "--yes"]);
    assert!(none.code == 2 && none.stderr.contains("no profile is named"), "{}", none.stderr);
    let own = ["apply", "--profile", profile.to_str().unwrap(), "--unverified", "--yes"];
    assert_eq!(world.tune(&own).code, 0);
    std::fs::remove_file(&profile).unwrap();
    world.edit("gpus/1.json", |gpu| gpu["power"]["limit_mw"] = 500_000.into());
    assert_eq!(world.tune(&["verify"]).code, 1);
    let again = world.tune(&["apply", "--yes"]);
    assert!(again.code == 0 && again.stdout.contains("1 of 1 change made."), "{}", again.stdout);
    assert_eq!(world.tune(&["verify"]).code, 0);
}

#[test]
fn what_is_watched_is_given_up_only_when_somebody_says_so() {
    let world = World::new();
    assert_eq!(world.tune(&["apply", "training", "--yes"]).code, 0);
    assert_eq!(world.tune(&["revert", "--yes"]).code, 0);
    // Nothing is left to change, and drift is told from then on.
    let first = world.tune(&["apply", "training", "--yes", "--only", "gpu.ecc"]);
    assert!(first.stdout.contains("There is nothing to change."), "{}", first.stdout);
    assert_eq!(world.tune(&["verify"]).code, 2, "a part is no profile");
    assert_eq!(world.tune(&["apply", "training", "--yes"]).code, 0);
    world.edit("gpus/1.json", |gpu| gpu["power"]["limit_mw"] = 450_000.into());
    for number in 0..2 {
        // Somebody else's, so that it stays.
        let path = format!("etc/farrier/jobs/{}.env", ["torch", "jax"][number]);
        world.put(&path, "# theirs\n");
    }
    let left = world.tune(&["revert", "--yes"]);
    assert_eq!(left.code, 1, "{}", left.stdout);
    assert!(world.path("state/applied.json").exists());
    let unasked = world.tune(&["revert"]);
    assert!(unasked.code == 2 && unasked.stderr.contains("hint: --yes"), "{}", unasked.stderr);
    assert!(world.path("state/applied.json").exists());
    let forced = world.tune(&["revert", "--yes", "--force"]);
    assert!(
        forced.stdout.contains("Drift from `training` is no longer told."),
        "{}",
        forced.stdout
    );
    assert!(!world.path("state/applied.json").exists());
    // The same where nothing was changed.
    let profile = world.path("ours.toml");
    let text = "name = \"ours\"\nsummary = \"a test\"\n[[setting]]\nname = \"gpu.ecc\"\nwant = \"on\"\nreason = \"a test\"\n";
    std::fs::write(&profile, text).unwrap();
    let own = ["apply", "--profile", profile.to_str().unwrap(), "--yes"];
    assert_eq!(world.tune(&own).code, 0);
    let unasked = world.tune(&["revert"]);
    assert_eq!(unasked.code, 2);
    assert!(unasked.stdout.contains("There is nothing to give back."), "{}", unasked.stdout);
    assert!(world.path("state/applied.json").exists());
    let given = world.tune(&["revert", "--yes"]);
    assert!(given.code == 0 && given.stdout.contains("Drift from `ours`"), "{}", given.stdout);
}

#[test]
fn a_mode_that_counts_after_a_reset_is_told_as_waiting() {
    let world = World::wrong();
    let only = ["apply", "training", "--yes", "--only", "gpu.ecc"];
    assert_eq!(world.tune(&only).code, 0);
    world.edit("gpus/0.json", |gpu| gpu["ecc"]["enabled"] = true.into());
    let reverted = world.tune(&["revert", "--yes"]);
    assert_eq!(reverted.code, 0, "{}", reverted.stderr);
    let text = unfolded(&reverted.stdout);
    assert!(text.contains("waits      ECC of GPU 0 (GPU-"), "{text}");
    assert!(text.contains("it is set to off again: takes effect after a GPU reset"), "{text}");
    assert!(text.contains("1 of 2 changes undone."), "{text}");
}

#[test]
fn programs_are_not_asked() {
    let world = World::wrong();
    let before = world.state();
    let asked = world.tune(&["apply", "training", "--output", "json"]);
    assert_eq!((asked.code, asked.stdout.as_str()), (2, ""));
    assert!(asked.stderr.contains("nobody is asked with --output json"), "{}", asked.stderr);
    assert_eq!(world.state(), before);
}
