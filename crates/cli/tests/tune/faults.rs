//! Bad input and nodes that refuse: each with a clear message, and nothing left half-told.

use std::fs;

use serde_json::json;

use crate::support::run;
use crate::world::{World, unfolded};

#[test]
fn without_a_terminal_nothing_is_changed_unless_asked_for() {
    let world = World::wrong();
    let before = world.state();
    let applied = world.tune(&["apply", "training"]);
    assert_eq!(applied.code, 2);
    assert!(applied.stdout.starts_with("Plan: training"), "{}", applied.stdout);
    assert!(applied.stderr.contains("hint: --yes"), "{}", applied.stderr);
    assert_eq!(world.state(), before);
    assert!(!world.path("state").exists());
}

#[test]
fn an_unknown_profile_or_setting_is_an_error_with_what_was_meant() {
    let ran = run(&["tune", "show", "trainning"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("there is no profile `trainning`"), "{}", ran.stderr);
    assert!(ran.stderr.contains("hint: did you mean `training`?"), "{}", ran.stderr);
    let ran = run(&["tune", "show", "gaming"]);
    assert!(ran.stderr.contains("hint: there are inference, shared, training"), "{}", ran.stderr);
    let world = World::new();
    let ran = world.tune(&["plan", "training", "--only", "gpu.powerlimit"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("did you mean `gpu.power-limit`?"), "{}", ran.stderr);
    let ran = world.tune(&["plan", "training", "--only", "gpu.accounting"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("says nothing of `gpu.accounting`"), "{}", ran.stderr);
    assert_eq!(run(&["tune", "plan"]).code, 2);
}

fn own(world: &World, settings: &str) -> String {
    let path = world.path("own.toml");
    let text = format!("name = \"own\"\nsummary = \"a test\"\n{settings}");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn setting(name: &str, want: &str) -> String {
    format!("[[setting]]\nname = \"{name}\"\nwant = \"{want}\"\nreason = \"a test\"\n")
}

#[test]
fn a_value_outside_the_cards_range_is_refused_with_the_range() {
    let world = World::new();
    let before = world.state();
    let profile = own(&world, &setting("gpu.power-limit", "900 W"));
    let ran = world.tune(&["apply", "--profile", &profile, "--yes"]);
    assert_eq!(ran.code, 1);
    assert!(ran.stdout.contains("refused"), "{}", ran.stdout);
    let text = unfolded(&ran.stdout);
    assert!(text.contains("the card takes 200 W to 700 W"), "{text}");
    assert_eq!(world.state(), before);
}

#[test]
fn bad_profiles_of_ones_own_are_refused() {
    let world = World::new();
    let refused = |settings: &str| {
        let profile = own(&world, settings);
        let ran = world.tune(&["plan", "--profile", &profile]);
        assert_eq!(ran.code, 2, "{}", ran.stdout);
        assert!(ran.stderr.contains("hint: "), "{}", ran.stderr);
        ran.stderr
    };
    assert!(refused("colour = 1\n").contains("unknown field `colour`"));
    assert!(refused("[[setting]]\nname = \"gpu.ecc\"\n").contains("missing field"));
    assert!(refused(&setting("gpu.ecc", "maybe")).contains("it takes `on` or `off`"));
    assert!(refused(&setting("gpu.locked-clocks", "1410 MHz")).contains("could not be reverted"));
    let variables = "[[setting]]\nname = \"jobs.torch\"\nreason = \"a test\"\n[[setting.variables]]\nname = \"PYTORCH_CUDA_ALOC_CONF\"\nvalue = \"x\"\nreason = \"a slip\"\n";
    assert!(refused(variables).contains("PYTORCH_CUDA_ALOC_CONF"));
    let missing = run(&["tune", "plan", "--profile", "/nonexistent.toml"]);
    assert_eq!(missing.code, 2);
    assert!(missing.stderr.contains("failed to read the profile"), "{}", missing.stderr);
}

#[test]
fn without_the_right_each_step_says_so() {
    let world = World::wrong();
    world.edit("node.json", |node| node["as_root"] = false.into());
    let ran = world.tune(&["apply", "training", "--yes", "--only", "gpu.power-limit"]);
    assert_eq!(ran.code, 1);
    assert!(ran.stdout.contains("NVML_ERROR_NO_PERMISSION"), "{}", ran.stdout);
    assert!(ran.stdout.contains("0 of 2 changes made."), "{}", ran.stdout);
    assert!(ran.stdout.contains("run it with sudo"), "{}", ran.stdout);
    // Nothing was changed, and so nothing is given back.
    assert!(world.tune(&["revert", "--yes"]).stdout.contains("nothing to give back"));
}

#[test]
fn a_card_that_refuses_keeps_no_other_from_being_set() {
    let world = World::wrong();
    world.fault(
        0,
        Some(json!({ "call": "nvmlDeviceSetPowerManagementLimit", "effect": { "error": 3 } })),
    );
    let ran = world.tune(&["apply", "training", "--yes", "--only", "gpu.power-limit"]);
    assert_eq!(ran.code, 1);
    assert!(ran.stdout.contains("NVML_ERROR_NOT_SUPPORTED"), "{}", ran.stdout);
    assert!(ran.stdout.contains("1 of 2 changes made."), "{}", ran.stdout);
}

#[test]
fn nvml_that_is_lost_in_the_middle_leaves_the_rest_undone_and_the_journal_right() {
    let world = World::wrong();
    let before = world.state();
    world.fault(1, Some(json!({ "call": "nvmlDeviceSetComputeMode", "effect": "hang-forever" })));
    let ran = world.tune(&["apply", "training", "--yes", "--nvml-deadline", "1"]);
    assert_eq!(ran.code, 1);
    assert!(ran.stdout.contains("NVML did not answer within 1 s"), "{}", ran.stdout);
    assert!(ran.stdout.contains("not done   host.memlock"), "{}", ran.stdout);
    world.fault(1, None);
    assert_eq!(world.tune(&["revert", "--yes"]).code, 0);
    assert_eq!(world.state(), before);
}

#[test]
fn a_gpu_that_is_lost_is_unknown_and_never_fine() {
    let world = World::new();
    assert_eq!(world.tune(&["apply", "training", "--yes"]).code, 0);
    world.edit("gpus/1.json", |gpu| gpu["lost"] = true.into());
    let ran = world.tune(&["verify", "training"]);
    assert_eq!(ran.code, 1);
    assert!(ran.stdout.contains("unknown"), "{}", ran.stdout);
    assert!(ran.stdout.contains("GPU_IS_LOST"), "{}", ran.stdout);
}

#[test]
fn without_nvml_the_gpus_are_unknown() {
    let world = World::new();
    let root = world.text("node/root");
    let ran = run(&["tune", "verify", "training", "--root", &root]);
    assert_eq!(ran.code, 1);
    assert!(ran.stdout.contains("another root was given without a library"), "{}", ran.stdout);
    let ran = run(&["tune", "verify", "training", "--root", &root, "--nvml", "/nonexistent.so"]);
    assert!(ran.code == 1 && ran.stdout.contains("no NVML library"), "{}", ran.stdout);
}

#[test]
fn a_container_is_not_taken_for_its_host() {
    let world = World::new();
    world.put(".dockerenv", "");
    let ran = world.tune(&["apply", "training", "--yes"]);
    assert_eq!(ran.code, 1);
    let text = unfolded(&ran.stdout);
    assert!(text.contains("unknown    host.memlock"), "{text}");
    assert!(text.contains("this is a container"), "{text}");
    assert!(text.contains("2 of 2 changes made."), "the environment of its own jobs: {text}");
}

#[test]
fn a_gpu_that_is_cut_up_is_said_to_be() {
    let world = World::new();
    world.edit("gpus/0.json", |gpu| {
        gpu["mig"]["enabled"] = true.into();
        gpu["mig"]["pending"] = true.into();
    });
    let ran = world.tune(&["plan", "shared"]);
    let text = unfolded(&ran.stdout);
    assert!(text.contains("the card does not change it while MIG is on"), "{text}");
    assert!(text.contains("gpu.accounting, GPU 1: off → on"), "{text}");
    let ran = world.tune(&["plan", "training", "--only", "gpu.mig"]);
    assert!(ran.stdout.contains("gpu.mig, GPU 0: on → off"), "{}", ran.stdout);
    assert!(ran.stdout.contains("takes effect after a GPU reset"), "{}", ran.stdout);
    let profile = own(&world, &setting("gpu.mig-layout", "1g.10gb, 1g.10gb"));
    let ran = world.tune(&["verify", "--profile", &profile]);
    assert_eq!(ran.code, 1);
    assert!(ran.stdout.contains("no instances → 1g.10gb, 1g.10gb"), "{}", ran.stdout);
}

#[test]
fn a_journal_that_is_damaged_is_not_gone_on_with() {
    let world = World::wrong();
    assert_eq!(world.tune(&["apply", "training", "--yes"]).code, 0);
    let before = world.state();
    fs::write(world.path("state/journal.jsonl"), "nonsense\n").unwrap();
    for words in [&["revert", "--yes"][..], &["revert", "--yes", "--force"]] {
        let ran = world.tune(words);
        assert_eq!(ran.code, 2);
        assert!(ran.stderr.contains("line 1 of"), "{}", ran.stderr);
        assert!(ran.stderr.contains("hint: put the line right"), "{}", ran.stderr);
    }
    assert_eq!(world.state(), before);
}

#[test]
fn a_capture_or_a_folder_that_is_not_there_is_no_node() {
    let ran = run(&["tune", "plan", "training", "--root", "/nonexistent"]);
    assert!(ran.code == 2 && ran.stderr.contains("is not a folder"), "{}", ran.stderr);
    let ran = run(&["tune", "plan", "training", "--root", "docs/tour/node"]);
    assert!(ran.code == 2 && ran.stderr.contains("is a capture"), "{}", ran.stderr);
}

#[test]
fn a_journal_in_a_folder_that_others_can_write_is_not_gone_by() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::wrong();
    assert_eq!(world.tune(&["apply", "training", "--yes"]).code, 0);
    let before = world.state();
    let mode = fs::metadata(world.path("state/journal.jsonl")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    fs::set_permissions(world.path("state"), fs::Permissions::from_mode(0o777)).unwrap();
    for words in [&["revert", "--yes"][..], &["apply", "inference", "--yes"], &["verify"]] {
        let ran = world.tune(words);
        assert_eq!(ran.code, 2, "{words:?}: {}", ran.stdout);
        assert!(ran.stderr.contains("is writable by other users"), "{}", ran.stderr);
    }
    assert_eq!(world.state(), before);
    fs::set_permissions(world.path("state"), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(world.tune(&["revert", "--yes"]).code, 0);
}
