//! Kills the process at each failpoint; revert must restore everything bit for bit.

use farrier_hardware::tune::FailpointSite;

use crate::simulated_node::SimulatedNode;

/// Applies and reverts with a failpoint, then reverts without one. Returns whether the failpoint
/// killed a process.
fn crash_and_revert(node: &SimulatedNode, crash: &str) -> bool {
    let before = node.state();
    let applied = node.tune_with_failpoint(&["apply", "training", "--yes"], crash);
    let died = applied.code == -1;
    assert!(died || applied.code == 0, "{crash}: {}{}", applied.stdout, applied.stderr);
    let first = node.tune_with_failpoint(&["revert", "--yes"], crash);
    let died_again = first.code == -1;
    assert!(died_again || first.code == 0, "{crash}: {}{}", first.stdout, first.stderr);
    let last = node.tune(&["revert", "--yes"]);
    assert_eq!(last.code, 0, "{crash}: {}{}", last.stdout, last.stderr);
    assert_eq!(node.state(), before, "{crash}");
    died || died_again
}

#[test]
fn revert_restores_everything_after_a_crash_at_each_failpoint() {
    let node = SimulatedNode::mistuned();
    let mut deaths = 0;
    for point in FailpointSite::ALL.map(FailpointSite::name) {
        for times in 1.. {
            if !crash_and_revert(&node, &format!("{point}:{times}")) {
                break;
            }
            deaths += 1;
        }
    }
    // Each of the 17 changes reaches each of the six failpoints at least once.
    assert!(deaths >= 17 * 6, "{deaths}");
}

#[test]
fn apply_continues_after_a_crash() {
    for crash in ["tune-begun:3", "tune-acted:5", "tune-half-written:8"] {
        let node = SimulatedNode::mistuned();
        let before = node.state();
        assert_eq!(node.tune_with_failpoint(&["apply", "training", "--yes"], crash).code, -1);
        for args in [&["verify"][..], &["apply", "--yes"]] {
            let output = node.tune(args);
            assert_eq!(output.code, 2, "{crash}: {}", output.stdout);
            let expected = "the newest from `training`, whose apply was interrupted";
            assert!(output.stderr.contains(expected), "{crash}: {}", output.stderr);
            assert!(
                output.stderr.contains("hint: revert with `farrier tune revert`"),
                "{}",
                output.stderr
            );
        }
        let applied = node.tune(&["apply", "training", "--yes"]);
        assert_eq!(applied.code, 0, "{crash}: {}", applied.stdout);
        assert_eq!(node.tune(&["revert", "--yes"]).code, 0);
        assert_eq!(node.state(), before, "{crash}");
    }
}
