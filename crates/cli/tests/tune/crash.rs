//! Killed at each step, for real, with the library of the simulated NVML: everything is given back bit for bit.

use farrier_hardware::tune::FailpointSite;

use crate::world::World;

/// Applies until it dies, then gives back, which may die as well, then gives back. Says whether it died.
fn killed(world: &World, crash: &str) -> bool {
    let before = world.state();
    let applied = world.tune_dying(&["apply", "training", "--yes"], crash);
    let died = applied.code == -1;
    assert!(died || applied.code == 0, "{crash}: {}{}", applied.stdout, applied.stderr);
    let first = world.tune_dying(&["revert", "--yes"], crash);
    let died_again = first.code == -1;
    assert!(died_again || first.code == 0, "{crash}: {}{}", first.stdout, first.stderr);
    let last = world.tune(&["revert", "--yes"]);
    assert_eq!(last.code, 0, "{crash}: {}{}", last.stdout, last.stderr);
    assert_eq!(world.state(), before, "{crash}");
    died || died_again
}

#[test]
fn killed_at_each_step_everything_is_given_back() {
    let world = World::wrong();
    let mut deaths = 0;
    for point in FailpointSite::ALL.map(FailpointSite::name) {
        for times in 1.. {
            if !killed(&world, &format!("{point}:{times}")) {
                break;
            }
            deaths += 1;
        }
    }
    // Each of 17 changes has a line before and one after it, and one when it is given back.
    assert!(deaths >= 17 * 6, "{deaths}");
}

#[test]
fn what_was_killed_can_be_applied_on() {
    for crash in ["tune-begun:3", "tune-acted:5", "tune-half-written:8"] {
        let world = World::wrong();
        let before = world.state();
        assert_eq!(world.tune_dying(&["apply", "training", "--yes"], crash).code, -1);
        for words in [&["verify"][..], &["apply", "--yes"]] {
            let ran = world.tune(words);
            assert_eq!(ran.code, 2, "{crash}: {}", ran.stdout);
            let said = "the newest for `training`, whose apply was interrupted";
            assert!(ran.stderr.contains(said), "{crash}: {}", ran.stderr);
            assert!(
                ran.stderr.contains("hint: `farrier tune revert` gives back"),
                "{}",
                ran.stderr
            );
        }
        let applied = world.tune(&["apply", "training", "--yes"]);
        assert_eq!(applied.code, 0, "{crash}: {}", applied.stdout);
        assert_eq!(world.tune(&["revert", "--yes"]).code, 0);
        assert_eq!(world.state(), before, "{crash}");
    }
}
