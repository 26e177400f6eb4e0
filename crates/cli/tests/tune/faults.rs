//! Invalid input, and nodes that refuse changes: messages are clear, and the journal stays
//! consistent.

use std::fs;

use serde_json::json;

use crate::simulated_node::{SimulatedNode, unwrap_lines};
use crate::support::run;

#[test]
fn without_a_terminal_apply_needs_yes() {
    let node = SimulatedNode::mistuned();
    let before = node.state();
    let applied = node.tune(&["apply", "training"]);
    assert_eq!(applied.code, 2);
    assert!(applied.stdout.starts_with("Plan: training"), "{}", applied.stdout);
    assert!(applied.stderr.contains("hint: pass --yes"), "{}", applied.stderr);
    assert_eq!(node.state(), before);
    assert!(!node.path("state").exists());
}

#[test]
fn unknown_profiles_and_settings_get_a_suggestion() {
    let output = run(&["tune", "show", "trainning"]);
    assert_eq!(output.code, 2);
    assert!(output.stderr.contains("there is no profile `trainning`"), "{}", output.stderr);
    assert!(output.stderr.contains("hint: did you mean `training`?"), "{}", output.stderr);
    let output = run(&["tune", "show", "gaming"]);
    assert!(
        output.stderr.contains("hint: available: inference, shared, training"),
        "{}",
        output.stderr
    );
    let node = SimulatedNode::new();
    let output = node.tune(&["plan", "training", "--only", "gpu.powerlimit"]);
    assert_eq!(output.code, 2);
    assert!(output.stderr.contains("did you mean `gpu.power-limit`?"), "{}", output.stderr);
    let output = node.tune(&["plan", "training", "--only", "gpu.accounting"]);
    assert_eq!(output.code, 2);
    assert!(output.stderr.contains("has no setting `gpu.accounting`"), "{}", output.stderr);
    assert_eq!(run(&["tune", "plan"]).code, 2);
}

fn own(node: &SimulatedNode, settings: &str) -> String {
    let path = node.path("own.toml");
    let text = format!("name = \"own\"\nsummary = \"a test\"\n{settings}");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn setting(name: &str, want: &str) -> String {
    format!("[[setting]]\nname = \"{name}\"\nwant = \"{want}\"\nreason = \"a test\"\n")
}

#[test]
fn a_value_out_of_range_is_refused_with_the_range() {
    let node = SimulatedNode::new();
    let before = node.state();
    let profile = own(&node, &setting("gpu.power-limit", "900 W"));
    let output = node.tune(&["apply", "--profile", &profile, "--yes"]);
    assert_eq!(output.code, 1);
    assert!(output.stdout.contains("refused"), "{}", output.stdout);
    let text = unwrap_lines(&output.stdout);
    assert!(text.contains("the GPU accepts 200 W to 700 W"), "{text}");
    assert_eq!(node.state(), before);
}

#[test]
fn invalid_profile_files_are_rejected() {
    let node = SimulatedNode::new();
    let refused = |settings: &str| {
        let profile = own(&node, settings);
        let output = node.tune(&["plan", "--profile", &profile]);
        assert_eq!(output.code, 2, "{}", output.stdout);
        assert!(output.stderr.contains("hint: "), "{}", output.stderr);
        output.stderr
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
fn missing_permission_is_reported_per_step() {
    let node = SimulatedNode::mistuned();
    node.edit("node.json", |node| node["as_root"] = false.into());
    let output = node.tune(&["apply", "training", "--yes", "--only", "gpu.power-limit"]);
    assert_eq!(output.code, 1);
    assert!(output.stdout.contains("NVML_ERROR_NO_PERMISSION"), "{}", output.stdout);
    assert!(output.stdout.contains("0 of 2 changes applied."), "{}", output.stdout);
    assert!(output.stdout.contains("run this command with sudo"), "{}", output.stdout);
    // Nothing was changed, so there is nothing to revert.
    assert!(node.tune(&["revert", "--yes"]).stdout.contains("Nothing to revert"));
}

#[test]
fn a_gpu_that_refuses_does_not_stop_the_others() {
    let node = SimulatedNode::mistuned();
    node.fault(
        0,
        Some(json!({ "call": "nvmlDeviceSetPowerManagementLimit", "effect": { "error": 3 } })),
    );
    let output = node.tune(&["apply", "training", "--yes", "--only", "gpu.power-limit"]);
    assert_eq!(output.code, 1);
    assert!(output.stdout.contains("NVML_ERROR_NOT_SUPPORTED"), "{}", output.stdout);
    assert!(output.stdout.contains("1 of 2 changes applied."), "{}", output.stdout);
}

#[test]
fn an_nvml_hang_leaves_a_consistent_journal() {
    let node = SimulatedNode::mistuned();
    let before = node.state();
    node.fault(1, Some(json!({ "call": "nvmlDeviceSetComputeMode", "effect": "hang-forever" })));
    let output = node.tune(&["apply", "training", "--yes", "--nvml-deadline", "1"]);
    assert_eq!(output.code, 1);
    assert!(output.stdout.contains("NVML did not answer within 1 s"), "{}", output.stdout);
    assert!(output.stdout.contains("not done   host.memlock"), "{}", output.stdout);
    node.fault(1, None);
    assert_eq!(node.tune(&["revert", "--yes"]).code, 0);
    assert_eq!(node.state(), before);
}

#[test]
fn a_lost_gpu_is_unknown() {
    let node = SimulatedNode::new();
    assert_eq!(node.tune(&["apply", "training", "--yes"]).code, 0);
    node.edit("gpus/1.json", |gpu| gpu["lost"] = true.into());
    let output = node.tune(&["verify", "training"]);
    assert_eq!(output.code, 1);
    assert!(output.stdout.contains("unknown"), "{}", output.stdout);
    assert!(output.stdout.contains("GPU_IS_LOST"), "{}", output.stdout);
}

#[test]
fn without_nvml_the_gpus_are_unknown() {
    let node = SimulatedNode::new();
    let root = node.text("node/root");
    let output = run(&["tune", "verify", "training", "--root", &root]);
    assert_eq!(output.code, 1);
    assert!(
        output.stdout.contains("another root was given without a library"),
        "{}",
        output.stdout
    );
    let output = run(&["tune", "verify", "training", "--root", &root, "--nvml", "/nonexistent.so"]);
    assert!(output.code == 1 && output.stdout.contains("no NVML library"), "{}", output.stdout);
}

#[test]
fn host_settings_are_unknown_in_a_container() {
    let node = SimulatedNode::new();
    node.put(".dockerenv", "");
    let output = node.tune(&["apply", "training", "--yes"]);
    assert_eq!(output.code, 1);
    let text = unwrap_lines(&output.stdout);
    assert!(text.contains("unknown    host.memlock"), "{text}");
    assert!(text.contains("this is a container"), "{text}");
    assert!(text.contains("2 of 2 changes applied."), "only the environment of jobs: {text}");
}

#[test]
fn mig_blocks_settings() {
    let node = SimulatedNode::new();
    node.edit("gpus/0.json", |gpu| {
        gpu["mig"]["enabled"] = true.into();
        gpu["mig"]["pending"] = true.into();
    });
    let output = node.tune(&["plan", "shared"]);
    let text = unwrap_lines(&output.stdout);
    assert!(text.contains("the GPU does not change it while MIG is on"), "{text}");
    assert!(text.contains("gpu.accounting, GPU 1: off → on"), "{text}");
    let output = node.tune(&["plan", "training", "--only", "gpu.mig"]);
    assert!(output.stdout.contains("gpu.mig, GPU 0: on → off"), "{}", output.stdout);
    assert!(output.stdout.contains("takes effect after a GPU reset"), "{}", output.stdout);
    let profile = own(&node, &setting("gpu.mig-layout", "1g.10gb, 1g.10gb"));
    let output = node.tune(&["verify", "--profile", &profile]);
    assert_eq!(output.code, 1);
    assert!(output.stdout.contains("no instances → 1g.10gb, 1g.10gb"), "{}", output.stdout);
}

#[test]
fn a_damaged_journal_is_rejected() {
    let node = SimulatedNode::mistuned();
    assert_eq!(node.tune(&["apply", "training", "--yes"]).code, 0);
    let before = node.state();
    fs::write(node.path("state/journal.jsonl"), "nonsense\n").unwrap();
    for args in [&["revert", "--yes"][..], &["revert", "--yes", "--force"]] {
        let output = node.tune(args);
        assert_eq!(output.code, 2);
        assert!(output.stderr.contains("line 1 of"), "{}", output.stderr);
        assert!(output.stderr.contains("hint: repair the line"), "{}", output.stderr);
    }
    assert_eq!(node.state(), before);
}

#[test]
fn captures_and_missing_directories_are_rejected() {
    let output = run(&["tune", "plan", "training", "--root", "/nonexistent"]);
    assert!(output.code == 2 && output.stderr.contains("is not a directory"), "{}", output.stderr);
    let output = run(&["tune", "plan", "training", "--root", "docs/tour/node"]);
    assert!(output.code == 2 && output.stderr.contains("is a capture"), "{}", output.stderr);
}

#[test]
fn a_world_writable_journal_is_rejected() {
    use std::os::unix::fs::PermissionsExt;
    let node = SimulatedNode::mistuned();
    assert_eq!(node.tune(&["apply", "training", "--yes"]).code, 0);
    let before = node.state();
    let mode = fs::metadata(node.path("state/journal.jsonl")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    fs::set_permissions(node.path("state"), fs::Permissions::from_mode(0o777)).unwrap();
    for args in [&["revert", "--yes"][..], &["apply", "inference", "--yes"], &["verify"]] {
        let output = node.tune(args);
        assert_eq!(output.code, 2, "{args:?}: {}", output.stdout);
        assert!(output.stderr.contains("is writable by other users"), "{}", output.stderr);
    }
    assert_eq!(node.state(), before);
    fs::set_permissions(node.path("state"), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(node.tune(&["revert", "--yes"]).code, 0);
}
