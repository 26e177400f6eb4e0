//! Remedies for failed and degraded GPUs.

use super::evaluate::Grade;
use super::test::Test;

/// The remedy for a result; `None` if it passed or was not run.
pub fn remedy(test: Test, grade: Grade) -> Option<&'static str> {
    match grade {
        Grade::Pass | Grade::NotRun => None,
        Grade::Fail => Some(
            "take it out of service, reset it (`nvidia-smi --gpu-reset`) or reboot the node, and test it again; replace it if it fails again",
        ),
        Grade::Degraded => Some(slow(test)),
    }
}

fn slow(test: Test) -> &'static str {
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
