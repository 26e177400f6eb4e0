//! Current faults.

use super::Verdict::{Blocked, Caveat, Ok as Fine, Unknown};
use super::*;

pub(super) fn healthy_device() -> DeviceHealth {
    DeviceHealth {
        ecc_uncorrected: Reading::Value(0),
        clock_reasons: Reading::Value(0),
        pcie: Reading::Value(PcieLink {
            generation: 1,
            generation_max: 5,
            width: 16,
            width_max: 16,
        }),
        utilisation_percent: Reading::Value(0),
        links: Reading::Value(NvlinkHealth { up: 18, down: Vec::new() }),
    }
}

pub(super) fn healthy_host() -> HostHealth {
    let port = |number: u32| PortHealth {
        device: format!("mlx5_{number}"),
        port: 1,
        kind: "MT4129 InfiniBand".to_owned(),
        up: Reading::Value(true),
        went_down: Reading::Value(false),
    };
    HostHealth {
        ports: Reading::Value((0..8).map(port).collect()),
        xid_lines: Reading::Value(Vec::new()),
        acs_bridges: Reading::Value(Vec::new()),
    }
}

fn third(node: &mut NodeObservation) -> &mut DeviceHealth {
    nvml(node).devices[3].now.as_mut().unwrap()
}

fn width(device: &mut DeviceHealth, generation: u32, width: u32) {
    let link = PcieLink { generation, generation_max: 5, width, width_max: 16 };
    device.pcie = Reading::Value(link);
}

fn port(node: &mut NodeObservation) -> &mut PortHealth {
    let Reading::Value(ports) = &mut node.now.as_mut().unwrap().ports else { panic!() };
    &mut ports[3]
}

fn log(node: &mut NodeObservation, lines: &[&str]) {
    let lines = lines.iter().map(|line| (*line).to_owned()).collect();
    node.now.as_mut().unwrap().xid_lines = Reading::Value(lines);
}

const XID_95: &str = "NVRM: Xid (PCI:0000:03:00): 95, pid=7, name=python, Uncontained ECC error";
const XID_154: &str = "NVRM: Xid (PCI:0000:03:00): 154, pid='<unknown>', name=<unknown>, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)";

#[test]
fn current_faults() {
    check_all(&[
        ("ecc-uncorrected", Blocked, |s| third(s).ecc_uncorrected = Reading::Value(3)),
        ("ecc-errors-unknown", Unknown, |s| third(s).ecc_uncorrected = denied()),
        ("pcie-narrow", Blocked, |s| width(third(s), 5, 4)),
        ("pcie-wide", Fine, |s| width(third(s), 1, 16)),
        ("pcie-slow", Blocked, |s| {
            width(third(s), 1, 16);
            third(s).utilisation_percent = Reading::Value(95);
        }),
        ("pcie-unknown", Unknown, |s| third(s).pcie = denied()),
        ("hardware-slowdown", Blocked, |s| third(s).clock_reasons = Reading::Value(0x40)),
        ("clocks-free", Fine, |s| third(s).clock_reasons = Reading::Value(0x4)),
        ("clocks-unknown", Unknown, |s| third(s).clock_reasons = denied()),
        ("nvlink-down", Blocked, |s| {
            third(s).links = Reading::Value(NvlinkHealth { up: 17, down: vec![5] });
        }),
        ("nvlinks-unknown", Unknown, |s| third(s).links = denied()),
        ("port-down", Blocked, |s| {
            *port(s) = PortHealth {
                up: Reading::Value(false),
                went_down: Reading::Value(true),
                ..port(s).clone()
            };
        }),
        ("port-not-up", Caveat, |s| port(s).up = Reading::Value(false)),
        ("port-unknown", Unknown, |s| port(s).up = denied()),
        ("ports-up", Fine, |s| {
            port(s).up = Reading::Value(false);
            port(s).kind = "another".to_owned();
        }),
        ("xid-critical", Blocked, |s| log(s, &[XID_95, XID_95])),
        ("xid-critical", Blocked, |s| {
            log(s, &[XID_95, XID_154]);
            nvml(s).devices[3].recovery_action = Reading::Value(1);
        }),
        ("xid-recovered", Caveat, |s| log(s, &[XID_95, XID_154])),
        ("xid-seen", Caveat, |s| {
            log(s, &["NVRM: Xid (PCI:0000:03:00): 31, pid=7, name=x, MMU Fault"]);
        }),
    ]);
}

#[test]
fn faults_have_a_remedy_and_name_the_gpu() {
    let mut node = healthy();
    third(&mut node).ecc_uncorrected = Reading::Value(3);
    third(&mut node).clock_reasons = Reading::Value(0x80);
    third(&mut node).links = Reading::Value(NvlinkHealth { up: 16, down: vec![5, 7] });
    width(third(&mut node), 5, 8);
    port(&mut node).went_down = Reading::Value(true);
    port(&mut node).up = Reading::Value(false);
    log(&mut node, &[XID_95]);
    let report = evaluated(&node);
    let open: Vec<&Item> = report.items.iter().filter(|item| item.verdict != Fine).collect();
    assert_eq!(open.len(), 6, "{open:#?}");
    for item in open {
        assert!(item.remedy.is_some(), "{item:?}");
        assert!(item.subject == "GPU 3" || item.subject == "mlx5_3 port 1", "{item:?}");
    }
}

#[test]
fn row_remapping_and_recovery_have_a_remedy() {
    for (failed, action, code) in [
        (true, 0, "row-remap-failed"),
        (false, 0, "row-remap-pending"),
        (false, 2, "recovery-needed"),
    ] {
        let mut node = healthy();
        let pending = !failed;
        nvml(&mut node).devices[0].remapped_rows =
            Reading::Value(RemappedRows { correctable: 0, uncorrectable: 1, pending, failed });
        nvml(&mut node).devices[0].recovery_action = Reading::Value(action);
        let report = evaluated(&node);
        let item = report.items.iter().find(|item| item.code == code).unwrap();
        assert!(item.remedy.is_some(), "{item:?}");
        assert!(!report.remedies.is_empty());
    }
}

#[test]
fn skipped_checks_are_listed_and_do_not_affect_the_verdict() {
    let mut node = healthy();
    let before = evaluated(&node);
    assert_eq!(
        before.not_judged,
        ["rates and trends (the agent evaluates them: `farrier status`)"]
    );
    all(&mut node, |device| device.now = None);
    let acs_bridges = Reading::Unreadable(ReadError::NotInCapture);
    node.now = Some(HostHealth { ports: denied(), xid_lines: denied(), acs_bridges });
    let report = evaluated(&node);
    assert_eq!(report.verdict, Fine);
    let not_judged = report.not_judged.join("; ");
    for what in ["NVML", "network ports", "Xids", "permission denied"] {
        assert!(not_judged.contains(what), "{not_judged}");
    }
    // Older captures without this field still evaluate.
    node.now = None;
    assert_eq!(evaluated(&node).verdict, Fine);
}
