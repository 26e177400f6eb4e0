//! Output at 80 columns.

use crate::simulated_node::SimulatedNode;
use crate::support::{Ran, farrier};

fn narrow(args: &[&str]) -> Ran {
    farrier(args).env("COLUMNS", "80").output().unwrap().into()
}

fn fits(text: &str) {
    for line in text.lines() {
        // A name or path longer than the line is not wrapped.
        let long = line.split_whitespace().any(|word| word.chars().count() > 60);
        assert!(line.chars().count() <= 80 || long, "{line}");
    }
}

#[test]
fn list_output() {
    let ran = narrow(&["tune", "list"]);
    fits(&ran.stdout);
    insta::assert_snapshot!("list", ran.stdout);
}

#[test]
fn show_output() {
    let ran = narrow(&["tune", "show", "training"]);
    fits(&ran.stdout);
    insta::assert_snapshot!("show_training", ran.stdout);
}

#[test]
fn plan_output() {
    let node = SimulatedNode::mistuned();
    let ran = node.tune(&["plan", "training"]);
    let text = node.plain(&ran.stdout.replace('\n', "\u{1}")).replace('\u{1}', "\n");
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
        let ran = narrow(&["tune", verb, "--help"]);
        assert_eq!(ran.code, 0);
        fits(&ran.stdout);
        let text = ran.stdout.replace('\n', " ");
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
    let ran: Ran = command.env("FARRIER_FACTS_DIR", &facts).output().unwrap().into();
    assert_eq!(ran.stderr.matches("failed to list fact sets").count(), 1, "{}", ran.stderr);
}
