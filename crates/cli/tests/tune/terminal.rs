//! On a terminal a person is asked.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::world::World;

/// Runs `farrier tune apply` on a terminal of util-linux's `script`, and answers; none where there is no such program.
fn answered(world: &World, answer: &str) -> Option<String> {
    let line = format!(
        "{} tune apply training --root {} --nvml {} --state-dir {}",
        env!("CARGO_BIN_EXE_farrier"),
        world.text("node/root"),
        world.text("node/lib/libnvidia-ml.so.1"),
        world.text("state")
    );
    let mut script = Command::new("script")
        .args(["--quiet", "--return", "--command", &line, "/dev/null"])
        .env("NO_COLOR", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    script.stdin.take().unwrap().write_all(answer.as_bytes()).unwrap();
    let output = script.wait_with_output().unwrap();
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn a_person_says_yes_or_no() {
    let world = World::wrong();
    let before = world.state();
    let Some(said) = answered(&world, "n\n") else {
        eprintln!("skipped: there is no `script` to make a terminal with");
        return;
    };
    assert!(said.contains("Make 17 changes? [y/N]"), "{said}");
    assert!(said.contains("Nothing was changed."), "{said}");
    assert_eq!(world.state(), before);
    let said = answered(&world, "y\n").unwrap();
    assert!(said.contains("17 of 17 changes made."), "{said}");
    assert_ne!(world.state(), before);
}
