//! What to do about a GPU that failed a test or is degraded.

use super::evaluate::Grade;
use super::test::Test;

/// What to do about a result. `None` if the test passed or was not run.
pub fn remedy(test: Test, grade: Grade) -> Option<&'static str> {
    match grade {
        Grade::Pass | Grade::NotRun => None,
        Grade::Fail => Some(
            "take it out of service, reset it (`nvidia-smi --gpu-reset`) or reboot the node, and test it again; replace it if it fails again",
        ),
        Grade::Degraded => Some(remedy_for_slow(test)),
    }
}

fn remedy_for_slow(test: Test) -> &'static str {
    match test {
        Test::PcieToGpu | Test::PcieToHost => {
            "check the PCIe link's generation and lanes (`farrier check`, `farrier top`), the slot, and other load on host memory"
        }
        Test::LaunchStream | Test::LaunchGraph => {
            "check the host's load and CPU clocks (`farrier tune plan training`)"
        }
        Test::PeerCopy => "check NVLink and the fabric manager (`farrier check`)",
        _ => {
            "check its power limit, clocks and temperature under load (`farrier top`); if they are normal, reset it and test it again"
        }
    }
}
