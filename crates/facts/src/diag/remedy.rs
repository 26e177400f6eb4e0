//! Remedies for failed and degraded GPUs.

use super::evaluate::Grade;
use super::test::Test;

/// The remedy for a result; `None` if it passed or was not run.
pub fn remedy(test: Test, grade: Grade) -> Option<&'static str> {
    match grade {
        Grade::Pass | Grade::NotRun => None,
        Grade::Fail => Some(
            "take it out of service, reset it (`nvidia-smi --gpu-reset`) or reboot the node, and test it again; what fails again is to be replaced",
        ),
        Grade::Degraded => Some(slow(test)),
    }
}

fn slow(test: Test) -> &'static str {
    match test {
        Test::PcieToGpu | Test::PcieToHost => {
            "look at the link's generation and lanes (`farrier check`, `farrier top`), at the slot, and at who else uses the host's memory"
        }
        Test::LaunchStream | Test::LaunchGraph => {
            "look at the host: its load, and its processors' clocks (`farrier tune plan training`)"
        }
        Test::PeerCopy => "look at NVLink and at the fabric manager (`farrier check`)",
        _ => {
            "look at its power limit, clocks and heat while it works (`farrier top`); where they are as they ought to be, reset it and test it again"
        }
    }
}
