//! Real log lines decode to the expected events; ordinary lines to none.

use farrier_facts::decode::{DecodedEvent, Kind, decode};
use farrier_facts::xid::{Action, Severity, XidFacts};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Lines {
    case: Vec<Case>,
    #[serde(default)]
    ordinary: Vec<Ordinary>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    source: String,
    log: String,
    events: Vec<Expected>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ordinary {
    source: String,
    log: String,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    line: u64,
    kind: Kind,
    #[serde(default)]
    xid: Option<u32>,
    #[serde(default)]
    pci: Option<String>,
    #[serde(default)]
    pid: Option<u32>,
    #[serde(default)]
    process: Option<String>,
    severity: Severity,
    action: Action,
}

impl From<DecodedEvent> for Expected {
    fn from(event: DecodedEvent) -> Self {
        assert!(!event.text.is_empty() && !event.source.is_empty(), "{event:?}");
        Self {
            line: event.line,
            kind: event.kind,
            xid: event.xid,
            pci: event.pci,
            pid: event.pid,
            process: event.process,
            severity: event.severity,
            action: event.action,
        }
    }
}

fn facts() -> &'static XidFacts {
    &farrier_facts::FactSet::embedded().xids
}

fn check(lines: &Lines) {
    let facts = facts();
    for case in &lines.case {
        let found: Vec<Expected> =
            decode(facts, case.log.as_bytes()).into_iter().map(Expected::from).collect();
        assert_eq!(found, case.events, "{}:\n{}", case.source, case.log);
    }
    for ordinary in &lines.ordinary {
        for line in ordinary.log.lines().chain([ordinary.log.as_str()]) {
            let found = decode(facts, line.as_bytes());
            assert!(found.is_empty(), "{}: {line}\n{found:#?}", ordinary.source);
        }
    }
}

#[test]
fn real_lines_decode_to_expected_events() {
    let lines: Lines = toml::from_str(include_str!("decode/lines.toml")).unwrap();
    check(&lines);
    let events: usize = lines.case.iter().map(|case| case.events.len()).sum();
    let ordinary: usize = lines.ordinary.iter().map(|case| case.log.lines().count()).sum();
    assert!(events >= 70 && ordinary >= 25, "{events} events, {ordinary} ordinary lines");
}

#[test]
fn synthetic_lines_decode_to_expected_events() {
    check(&toml::from_str(include_str!("decode/synthetic.toml")).unwrap());
}

#[test]
fn event_json_has_twelve_keys() {
    let events = decode(facts(), b"NVRM: Xid: 13, 0003 00000000");
    let json = serde_json::to_string(&events[0]).unwrap();
    let keys = [
        "line", "kind", "xid", "pci", "pid", "process", "severity", "action", "text", "source",
        "host", "time",
    ];
    let mut from = 0;
    for key in keys {
        from +=
            json[from..].find(&format!("\"{key}\":")).unwrap_or_else(|| panic!("{key}: {json}"));
    }
    assert!(
        json.starts_with(
            r#"{"line":1,"kind":"xid","xid":13,"pci":null,"pid":null,"process":null,"#
        )
    );
    let mut read = serde_json::from_str::<DecodedEvent>(&json).unwrap();
    assert_eq!(read.code, "");
    read.code.clone_from(&events[0].code);
    assert_eq!(read, events[0]);
    // As an older version wrote it.
    let (old, _) = json.split_once(r#","host""#).unwrap();
    assert_eq!(serde_json::from_str::<DecodedEvent>(&format!("{old}}}")).unwrap().host, None);
}

#[test]
fn events_have_stable_codes() {
    for (line, code, unit) in [
        ("NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.", "xid.79", None),
        ("NVRM: Xid (PCI:0000:17:00): 9999, from a newer driver", "xid.9999", None),
        (
            "NVRM: Xid (PCI:0000:17:00): 13, pid=7, name=a, Graphics SM Warp Exception on (GPC 7, TPC 5, SM 0): x",
            "xid.13",
            Some("GPC7 TPC5"),
        ),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
            "sxid.20034",
            None,
        ),
        (
            "nvidia 0000:17:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Data Link Layer",
            "aer.gpu.fatal",
            None,
        ),
        (
            "pcieport 0000:16:01.0: DPC: containment event, status:0x1f01 source:0x0000",
            "pcie.port.contained",
            None,
        ),
        ("NVRM: Xid (PCI:0000:17:00", "xid.unreadable", None),
        (
            "mlx5_core 0000:17:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer",
            "aer.nic.corrected",
            None,
        ),
        ("INFO: task nv_queue:1234 blocked for more than 120 seconds.", "hung-task", None),
        ("INFO: task kcompactd1:7 blocked for more than 120 seconds.", "hung-task-other", None),
        (
            "md/raid1:md127: Disk failure on nvme1n1, disabling device.",
            "raid-disk-failure",
            Some("nvme1n1"),
        ),
        (
            "Buffer I/O error on dev sdb1, logical block 7, async page read",
            "buffer-io-error",
            Some("sdb1"),
        ),
        (
            "nfs: server 10.0.0.27 not responding, still trying",
            "nfs-not-responding",
            Some("10.0.0.27"),
        ),
        ("nfs: server 10.0.0.27 OK", "nfs-ok", Some("10.0.0.27")),
        ("EXT4-fs (dm-0): Remounting filesystem read-only", "read-only", Some("dm-0")),
        (
            "mlx5_core 0000:17:00.0 eth0: NETDEV WATCHDOG: CPU: 1: transmit queue 3 timed out",
            "mlx5-tx-timeout",
            None,
        ),
    ] {
        let events = decode(facts(), line.as_bytes());
        assert_eq!(events.len(), 1, "{line}");
        assert_eq!((events[0].code.as_str(), events[0].unit.as_deref()), (code, unit), "{line}");
    }
}
