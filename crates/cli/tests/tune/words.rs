//! What people read, at 80 columns.

use crate::support::{Ran, farrier};
use crate::world::World;

fn narrow(words: &[&str]) -> Ran {
    farrier(words).env("COLUMNS", "80").output().unwrap().into()
}

fn fits(text: &str) {
    for line in text.lines() {
        // A name or a path that is longer than the line is not cut.
        let long = line.split_whitespace().any(|word| word.chars().count() > 60);
        assert!(line.chars().count() <= 80 || long, "{line}");
    }
}

#[test]
fn the_list_is_for_people() {
    let ran = narrow(&["tune", "list"]);
    fits(&ran.stdout);
    insta::assert_snapshot!("list", ran.stdout);
}

#[test]
fn a_profile_is_for_people() {
    let ran = narrow(&["tune", "show", "training"]);
    fits(&ran.stdout);
    insta::assert_snapshot!("show_training", ran.stdout);
}

#[test]
fn a_plan_is_for_people() {
    let world = World::wrong();
    let ran = world.tune(&["plan", "training"]);
    let text = world.plain(&ran.stdout.replace('\n', "\u{1}")).replace('\u{1}', "\n");
    // The headline names the root, whose length differs.
    let (_, steps) = text.split_once("\n\n").unwrap();
    fits(steps);
    insta::assert_snapshot!("plan_training", steps);
}

#[test]
fn help_says_what_each_verb_does() {
    for (verb, says) in [
        ("plan", "Nothing is changed"),
        ("apply", "kept for `revert`"),
        ("verify", "drifted"),
        ("revert", "exactly what was there before"),
    ] {
        let ran = narrow(&["tune", verb, "--help"]);
        assert_eq!(ran.code, 0);
        fits(&ran.stdout);
        let text = ran.stdout.replace('\n', " ");
        assert!(text.contains(says) && text.contains("Exit code 0"), "{text}");
        assert!(text.contains("--root"), "{text}");
    }
    insta::assert_snapshot!("help", narrow(&["tune", "--help"]).stdout);
}

#[test]
fn a_warning_is_said_once() {
    let folder = tempfile::tempdir().unwrap();
    // A link to itself cannot be looked into, by nobody.
    let facts = folder.path().join("facts");
    std::os::unix::fs::symlink(&facts, &facts).unwrap();
    let root = folder.path().to_str().unwrap();
    let mut command = farrier(&["tune", "plan", "training", "--root", root]);
    let ran: Ran = command.env("FARRIER_FACTS_DIR", &facts).output().unwrap().into();
    assert_eq!(ran.stderr.matches("failed to look for fact sets").count(), 1, "{}", ran.stderr);
}
