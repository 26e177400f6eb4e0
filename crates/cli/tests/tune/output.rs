//! Output at 80 columns.

use crate::simulated_node::SimulatedNode;
use crate::support::{CommandOutput, farrier};

fn narrow(args: &[&str]) -> CommandOutput {
    farrier(args).env("COLUMNS", "80").output().unwrap().into()
}

fn fits(text: &str) {
    for line in text.lines() {
        // A long name or path is not wrapped.
        let has_long_word = line.split_whitespace().any(|word| word.chars().count() > 60);
        assert!(line.chars().count() <= 80 || has_long_word, "{line}");
    }
}

#[test]
fn list_output() {
    let output = narrow(&["tune", "list"]);
    fits(&output.stdout);
    insta::assert_snapshot!("list", output.stdout);
}

#[test]
fn show_output() {
    let output = narrow(&["tune", "show", "training"]);
    fits(&output.stdout);
    insta::assert_snapshot!("show_training", output.stdout);
}

#[test]
fn plan_output() {
    let node = SimulatedNode::mistuned();
    let output = node.tune(&["plan", "training"]);
    let text = node.plain(&output.stdout.replace('\n', "\u{1}")).replace('\u{1}', "\n");
    // The headline contains the root, whose length varies.
    let (_, steps) = text.split_once("\n\n").unwrap();
    fits(steps);
    insta::assert_snapshot!("plan_training", steps);
}

#[test]
fn help_describes_each_subcommand() {
    for (verb, expected) in [
        ("plan", "Nothing is changed"),
        ("apply", "saved for `revert`"),
        ("verify", "drifted"),
        ("revert", "Restore the previous values"),
    ] {
        let output = narrow(&["tune", verb, "--help"]);
        assert_eq!(output.code, 0);
        fits(&output.stdout);
        let text = output.stdout.replace('\n', " ");
        assert!(text.contains(expected) && text.contains("Exit code 0"), "{text}");
        assert!(text.contains("--root"), "{text}");
    }
    insta::assert_snapshot!("help", narrow(&["tune", "--help"]).stdout);
}

#[test]
fn a_warning_is_printed_once() {
    let folder = tempfile::tempdir().unwrap();
    // Even root cannot follow a link to itself.
    let facts = folder.path().join("facts");
    std::os::unix::fs::symlink(&facts, &facts).unwrap();
    let root = folder.path().to_str().unwrap();
    let mut command = farrier(&["tune", "plan", "training", "--root", root]);
    let output: CommandOutput = command.env("FARRIER_FACTS_DIR", &facts).output().unwrap().into();
    assert_eq!(output.stderr.matches("failed to list fact sets").count(), 1, "{}", output.stderr);
}
