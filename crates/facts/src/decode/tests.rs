//! Log formats, and robustness against arbitrary bytes.

use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;
use crate::xid::{Action, Severity};

fn facts() -> &'static XidFacts {
    static FACTS: LazyLock<XidFacts> = LazyLock::new(embedded_facts);
    &FACTS
}

/// How tools format a kernel message: `{}` is the message.
const FORMATS: [&str; 16] = [
    "{}",
    "{}\r",
    "\u{1b}[32m[  123.456789] \u{1b}[0m\u{1b}[33m{}\u{1b}[0m",
    "[  123.456789] {}",
    "[Fri Aug 30 11:43:09 2024] {}",
    "[  123.456789][ T1234] {}",
    "kern  :err   : [  123.456789] {}",
    "kern  :err   : 2025-01-25T10:34:54,859532+00:00 {}",
    "<4>[  123.456789] {}",
    "Nov 15 02:25:28 gpu-17 kernel: {}",
    "Nov 15 02:25:28 gpu-17 kernel: [  123.456789] {}",
    "2026-11-15T02:25:28.123456+00:00 gpu-17 kernel: [  123.456789] {}",
    "<4>1 2026-11-15T02:25:28.123456Z gpu-17 kernel - - - {}",
    "6,1234,5678,-;{}",
    "2026-11-15T02:25:28.123456789Z stdout F [  123.456789] {}",
    r#"{"_TRANSPORT":"kernel","PRIORITY":"4","MESSAGE":"{}","_HOSTNAME":"gpu-17"}"#,
];

fn one(log: &str) -> DecodedEvent {
    let events = decode(facts(), log.as_bytes());
    assert_eq!(events.len(), 1, "{log}\n{events:#?}");
    events.into_iter().next().unwrap()
}

#[test]
fn flush_emits_a_pending_event() {
    let mut decoder = Decoder::new(facts());
    let mut events = Vec::new();
    decoder.feed(b"NVRM: Xid (PCI:0000:17:00): 13, x\n", |event| events.push(event));
    let port = b"pcieport 0000:16:01.0: AER: Uncorrected (Fatal) error received: 0000:17:00.0\n";
    decoder.feed(port, |event| events.push(event));
    assert_eq!(events.len(), 1);
    decoder.flush_pending(|event| events.push(event));
    decoder.flush_pending(|event| events.push(event));
    assert_eq!(events.len(), 2);
    assert_eq!((events[1].code.as_str(), events[1].line), ("aer.gpu.fatal", 2));
    decoder.feed(b"NVRM: Xid (PCI:0000:17:00): 79, x\n", |event| events.push(event));
    assert_eq!(events[2].line, 3);
}

#[test]
fn decodes_every_line_format() {
    for format in FORMATS {
        for (message, xid, pid, process, action) in [
            (
                "NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.",
                79,
                None,
                None,
                Action::RebootNode,
            ),
            (
                "NVRM: Xid (PCI:0000:17:00): 13, pid=42, name=python3, Graphics Exception",
                13,
                Some(42),
                Some("python3"),
                Action::RestartApp,
            ),
            (
                "NVRM: Xid (0000:17:00): 48, pid='<unknown>', name=<unknown>, DBE",
                48,
                None,
                None,
                Action::ResetGpu,
            ),
            (
                "NVRM: Xid (PCI:0000:17:00): 31, pid=42, name=python3",
                31,
                Some(42),
                Some("python3"),
                Action::RestartApp,
            ),
            (
                "nvidia-nvswitch0: SXid (PCI:0000:17:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
                20034,
                None,
                None,
                Action::RebootNode,
            ),
        ] {
            let event = one(&format.replace("{}", message));
            assert_eq!(event.xid, Some(xid), "{format}");
            assert_eq!(event.pci.as_deref(), Some("0000:17:00"), "{format}");
            assert_eq!((event.pid, event.process.as_deref()), (pid, process), "{format}");
            assert_eq!(event.action, action, "{format}");
        }
        let bus = "nvidia 0000:17:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer";
        assert_eq!(one(&format.replace("{}", bus)).kind, Kind::PcieAer, "{format}");
    }
}

#[test]
fn ignores_kmsg_continuation_lines() {
    let log =
        "4,1,2,-;NVRM: Xid (PCI:0000:17:00): 79, x\n SUBSYSTEM=pci\n DEVICE=+pci:0000:17:00.0\n";
    assert_eq!(one(log).line, 1);
}

#[test]
fn mismatch_in_one_kmsg_record_names_both_versions() {
    let log = "4,1,2,-;NVRM: API mismatch: the client has the version 535.54.03, but\\x0aNVRM: this kernel \
               module has the version 530.30.02.  Please\\x0aNVRM: make sure";
    let event = one(log);
    assert_eq!(event.kind, Kind::VersionMismatch);
    assert!(
        event.text.ends_with(
            "The library is of version 535.54.03, the loaded module of version 530.30.02."
        ),
        "{}",
        event.text
    );
}

#[test]
fn pending_events_are_emitted_at_the_end_and_in_order() {
    let log = "Failed to initialize NVML: Driver/library version mismatch\nx\nNVRM: Xid (PCI:0000:17:00): 43, x\n\
               NVRM: API mismatch: the client has the version 1.2";
    let lines: Vec<u64> = decode(facts(), log.as_bytes()).iter().map(|event| event.line).collect();
    assert_eq!(lines, [1, 3, 4]);
}

#[test]
fn xid_45_names_the_preceding_xid() {
    let log = "NVRM: Xid (PCI:0000:17:00): 45, pid=1, name=a, Ch 1\nNVRM: Xid (PCI:0000:18:00): 94, x\n\
               NVRM: Xid (PCI:0000:18:00): 45, pid=1, name=a, Ch 1\n";
    let events = decode(facts(), log.as_bytes());
    assert!(
        events
            .iter()
            .filter(|event| event.xid == Some(45))
            .all(|event| event.action == Action::Ignore)
    );
    assert!(events[0].text.contains("without another Xid"), "{}", events[0].text);
    assert!(events[2].text.contains("because of Xid 94"), "{}", events[2].text);
}

#[test]
fn hosts_of_one_log_are_apart() {
    let log = "\
Nov 15 02:25:00 gpu-1 kernel: NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.
Nov 15 02:25:01 gpu-2 kernel: NVRM: Xid (PCI:0000:17:00): 45, pid=1, name=a, Ch 1
2026-11-15T02:25:02.5+00:00 gpu-1 kernel: NVRM: Xid (PCI:0000:17:00): 45, pid=1, name=a, Ch 1
NVRM: Xid (PCI:0000:17:00): 45, pid=1, name=a, Ch 1
";
    let events = decode(facts(), log.as_bytes());
    let place = |event: &DecodedEvent| (event.host.clone(), event.time.clone());
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(
        events.iter().map(place).collect::<Vec<_>>(),
        [
            (some("gpu-1"), some("Nov 15 02:25:00")),
            (some("gpu-2"), some("Nov 15 02:25:01")),
            (some("gpu-1"), some("2026-11-15T02:25:02.5+00:00")),
            (None, None),
        ]
    );
    let follows: Vec<bool> =
        events.iter().map(|event| event.text.contains("because of Xid 79")).collect();
    assert_eq!(follows, [false, false, true, false]);
}

#[test]
fn messages_of_several_lines_do_not_mix_hosts() {
    let log = "\
Nov 15 02:25:00 gpu-1 kernel: NVRM: API mismatch: the client has the version 580.95.05, but
Nov 15 02:25:00 gpu-2 kernel: NVRM: API mismatch: the client has the version 570.1.1, but
Nov 15 02:25:00 gpu-3 kernel: NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.
Nov 15 02:25:00 gpu-1 kernel: NVRM: this kernel module has the version 570.195.03.  Please
Nov 15 02:25:00 gpu-2 kernel: NVRM: this kernel module has the version 570.2.2.  Please
";
    let events = decode(facts(), log.as_bytes());
    let lines: Vec<_> =
        events.iter().map(|event| (event.line, event.host.as_deref().unwrap_or(""))).collect();
    assert_eq!(lines, [(1, "gpu-1"), (2, "gpu-2"), (3, "gpu-3")]);
    assert!(events[0].text.ends_with("580.95.05, the loaded module of version 570.195.03."));
    assert!(events[1].text.ends_with("570.1.1, the loaded module of version 570.2.2."));
}

#[test]
fn indented_lines_belong_to_the_host_before_them() {
    let log = "\
Nov 15 02:25:00 gpu-1 kernel: NVRM: The NVIDIA GPU 0000:b3:00.0
                              NVRM: (PCI ID: 10de:26b5) installed in this system has
                              NVRM: fallen off the bus and is not responding to commands.
Nov 15 02:25:00 gpu-1 train.py[7]: dmesg says
                              NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.
";
    // The fourth line has no text that the decoder looks for, so it only sees the fifth.
    let events = decode(facts(), log.replace("dmesg", "NVRM dmesg").as_bytes());
    assert_eq!(events.len(), 1, "{events:#?}");
    assert_eq!((events[0].line, events[0].host.as_deref()), (3, Some("gpu-1")));
    assert_eq!(events[0].time.as_deref(), Some("Nov 15 02:25:00"));
}

#[test]
fn decodes_a_journal_message_of_bytes() {
    let message =
        b"NVRM: Xid (PCI:0000:17:00): 13, pid=42, name=py\xff\x1b[31m, Graphics Exception";
    let bytes: Vec<String> = message.iter().map(u8::to_string).collect();
    let record = |head: &str| format!("{{{head}\"MESSAGE\":[{}]}}\n", bytes.join(","));
    let event = one(&record(
        "\"_HOSTNAME\":\"gpu-17\",\"__REALTIME_TIMESTAMP\":\"1763173528123456\",\"_TRANSPORT\":\"kernel\",",
    ));
    assert_eq!((event.xid, event.pid, event.process.as_deref()), (Some(13), Some(42), Some("py�")));
    assert_eq!(event.host.as_deref(), Some("gpu-17"));
    assert_eq!(event.time.as_deref(), Some("2025-11-15T02:25:28.123456Z"));
    let quoted = record("\"SYSLOG_IDENTIFIER\":\"train.py\",");
    assert_eq!(decode(facts(), quoted.as_bytes()), []);
}

#[test]
fn decodes_coloured_lines() {
    // As `dmesg --color=always` prints it.
    let event = one("\u{1b}[32m[  123.456789] \u{1b}[0m\u{1b}[33mNVRM: \u{1b}[0m\u{1b}[1mXid \
                     (PCI:0000:17:00): 13, pid=42, name=py\u{1b}[31mthon3, x\u{1b}[0m");
    assert_eq!((event.xid, event.pci.as_deref()), (Some(13), Some("0000:17:00")));
    assert_eq!((event.pid, event.process.as_deref()), (Some(42), Some("python3")));
}

#[test]
fn texts_state_each_action_once() {
    let text = |line: &str| one(line).text;
    let xid = |code: u32| text(&format!("NVRM: Xid (PCI:0000:17:00): {code}, x"));
    for code in [13, 31, 43, 92] {
        let text = xid(code);
        assert_eq!(text.matches("If it comes back").count(), 1, "{text}");
        assert!(text.matches("run a diagnostic").count() < 2, "{text}");
        assert!(!text.contains("Afterwards"), "{text}");
    }
    let hardware = "suspect the hardware and run a diagnostic.";
    assert!(xid(13).ends_with(&format!("of the same GPU, {hardware}")), "{}", xid(13));
    assert!(xid(31).ends_with(&format!("another application, {hardware}")), "{}", xid(31));
    assert!(xid(79).contains(" Afterwards: collect nvidia-bug-report"), "{}", xid(79));
    assert!(xid(94).ends_with("drain. If other Xids came with it, follow those."), "{}", xid(94));
    let mig = text("NVRM: Xid (PCI:0000:17:00 GPU-I:01 GPU-CI:02): 43, x");
    assert!(mig.ends_with(" The log names MIG GPU instance 1, compute instance 2."), "{mig}");
}

#[test]
fn nvlink_text_and_action_agree() {
    for (registers, action, end) in [
        ("0x1, 0x0, 0x0", Action::Ignore, "can be ignored. Nothing to do."),
        ("0x2, 0x0, 0x0", Action::ResetGpu, "came with it). Drain the GPU and reset it."),
        ("0x11, 0x0, 0x0", Action::ResetGpu, "recurs after that, have the part replaced."),
        ("0x111, 0x0, 0x0", Action::ResetGpu, "recurs after that, have the part replaced."),
        ("0x0, 0x0, 0x0", Action::ResetGpu, "the maker of the node."),
    ] {
        let line = format!(
            "NVRM: Xid (PCI:0000:17:00): 74, NVLink: fatal error detected on link 14({registers}, 0x0)"
        );
        let event = one(&line);
        assert_eq!(event.action, action, "{line}");
        assert!(event.text.ends_with(end), "{}", event.text);
    }
}

#[test]
fn a_single_nvlink_error_asks_for_a_reset_and_a_third_one_for_a_replacement() {
    let line =
        "NVRM: Xid (PCI:0000:17:00): 74, NVLink: fatal error detected on link 3(0x10000, 0x0)";
    let lines = [line; 3].join("\n");
    let events = decode(facts(), lines.as_bytes());
    let actions: Vec<Action> = events.iter().map(|event| event.action).collect();
    assert_eq!(actions, [Action::ResetGpu, Action::ResetGpu, Action::DrainAndReplace]);
}

#[test]
fn names_disagreeing_sources() {
    let event = one("NVRM: Xid (PCI:0000:17:00): 94, Contained");
    assert_eq!((event.severity, event.action), (Severity::Warning, Action::RestartApp));
    assert!(
        event.source.ends_with("gpud says fatal, RebootSystem, IgnoreNoActionRequired"),
        "{}",
        event.source
    );
    let agreed = one("NVRM: Xid (PCI:0000:17:00): 79, x");
    assert!(!agreed.source.contains("gpud says"), "{}", agreed.source);
}

/// The table of the ADR that maps buckets to actions.
#[test]
fn severities_and_actions_match_the_adr() {
    let facts = facts();
    for (codes, severity, action) in [
        (&[46, 48, 62, 64, 95, 110, 119, 120, 140, 143][..], Severity::Fatal, Action::ResetGpu),
        (&[74, 109, 136, 155, 156, 158, 169, 171, 172], Severity::Critical, Action::ResetGpu),
        (&[79, 151, 167, 173], Severity::Fatal, Action::RebootNode),
        (&[8, 13, 31, 32, 94], Severity::Warning, Action::RestartApp),
        (&[63, 92], Severity::Warning, Action::Ignore),
        (&[38, 43, 44, 45, 121, 137, 162, 164], Severity::Info, Action::Ignore),
        (&[54, 56, 61, 78, 159, 165], Severity::Warning, Action::Investigate),
    ] {
        for code in codes {
            let xid = facts.by_code(*code).unwrap();
            assert_eq!((xid.severity, xid.action), (severity, action), "Xid {code}");
        }
    }
}

/// Fragments of real lines.
fn pieces() -> impl Strategy<Value = Vec<u8>> {
    const PIECES: [&str; 25] = [
        "Nov 15 02:25:28 gpu-17 kernel: ",
        "Nov 15 02:25:28 gpu-18 kernel: ",
        "Nov 15 02:25:28 gpu-18 train.py[7]: ",
        "{\"_HOSTNAME\":\"gpu-17\",\"MESSAGE\":\"",
        "pcieport 0000:16:01.0: AER: Uncorrected (Fatal) error received: 0000:17:00.0",
        "pcieport 0000:16:01.0: pciehp: Slot(3): Link Down",
        "general protection fault: 0000 [#1]",
        "NVRM: ",
        "Xid ",
        "(PCI:0000:17:00)",
        ": 79, ",
        "pid='<unknown>', name=<unknown>, ",
        "pid=7, name=\u{1b}[31m",
        "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, ",
        ": 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x0)",
        ": 74, NVLink: fatal error detected on link 14(0x0, 0x0, 0xffffffff, ",
        "API mismatch: the client has the version 1.2, but",
        "this kernel module has the version 3.4.",
        "fallen off the bus",
        "The NVIDIA GPU 0000:0b:00.0",
        "\n",
        "#012",
        "\\x0a",
        "nvidia 0000:17:00.0: PCIe Bus Error: severity=Corrected",
        ": 154, GPU recovery action changed from 0x0 (None) to 0x2 (",
    ];
    let piece = prop_oneof![
        6 => proptest::sample::select(&PIECES[..]).prop_map(|text| text.as_bytes().to_vec()),
        2 => proptest::collection::vec(any::<u8>(), 0..12),
        1 => (any::<u8>(), 1000..70_000_usize).prop_map(|(byte, length)| vec![byte; length]),
    ];
    proptest::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

fn in_chunks(facts: &XidFacts, log: &[u8], cuts: &[usize]) -> Vec<DecodedEvent> {
    let mut decoder = Decoder::new(facts);
    let mut events = Vec::new();
    let mut rest = log;
    for cut in cuts {
        let (chunk, after) = rest.split_at((*cut).min(rest.len()));
        decoder.feed(chunk, |event| events.push(event));
        rest = after;
    }
    decoder.feed(rest, |event| events.push(event));
    decoder.finish(|event| events.push(event));
    events
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn events_do_not_depend_on_chunking(
        log in prop_oneof![pieces(), proptest::collection::vec(any::<u8>(), 0..4096)],
        cuts in proptest::collection::vec(0..9000_usize, 0..30),
    ) {
        let whole = decode(facts(), &log);
        prop_assert_eq!(&in_chunks(facts(), &log, &cuts), &whole);
        prop_assert!(whole.is_sorted_by_key(|event| event.line));
        let lines = memchr::memchr_iter(b'\n', &log).count() as u64 + 1;
        prop_assert!(whole.iter().all(|event| (1..=lines).contains(&event.line)));
        for event in &whole {
            prop_assert!(event.process.iter().all(|name| !name.contains(char::is_control)));
            prop_assert!(!event.text.contains(char::is_control), "{}", event.text);
            let place = event.host.iter().chain(&event.time);
            prop_assert!(place.clone().all(|part| !part.contains(char::is_control)));
        }
    }
}

#[test]
fn truncated_lines_do_not_panic_or_name_other_devices() {
    let lines = include_str!("../../tests/decode/lines.toml");
    let mut log = Vec::new();
    for line in lines.lines().filter(|line| line.contains("NVRM") || line.contains("SXid")) {
        for end in 0..line.len() {
            log.extend_from_slice(&line.as_bytes()[..end]);
            log.push(b'\n');
        }
    }
    let events = decode(facts(), &log);
    assert!(events.len() > 1000, "{}", events.len());
    for event in events {
        let whole = event.pci.is_none_or(|pci| lines.contains(&pci));
        assert!(whole, "line {} of the cut ones", event.line);
    }
}

#[test]
fn finds_events_after_a_megabyte_of_nul_bytes() {
    let mut log = b"first\n".to_vec();
    log.resize(log.len() + (2 << 20), 0);
    log.extend_from_slice(b"Nov 15 02:25:28 gpu-17 kernel: NVRM: Xid (PCI:0000:17:00): 79, x\n");
    let events = decode(facts(), &log);
    assert_eq!(
        events.iter().map(|event| (event.line, event.xid)).collect::<Vec<_>>(),
        [(2, Some(79))]
    );
}

#[test]
fn nvlink_error_says_what_the_sheet_does_not_list() {
    let unnamed =
        "NVLink 5 error without a unit name, so NVIDIA's decode sheet does not cover it: follow";
    let unlisted =
        "NVLink 5 error of unit NETIR_NEW that NVIDIA's decode sheet does not list: follow";
    let bits = "NVLink 5 error, fatal according to the driver, of unit NETIR_LINK_EVT with bits \
                that NVIDIA's decode sheet does not list for it (0xffffffff, status 0xdeadbeef): \
                follow";
    let words = "NVLink 5 error of unit NETIR_LINK_EVT without the two words that NVIDIA's decode \
                 sheet tells errors apart by: follow";
    for (code, detail, expected) in [
        (145, "", unnamed),
        (145, " x", unnamed),
        (145, " NETIR_NEW Nonfatal", unlisted),
        (149, " NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0xffffffff 0xdeadbeef 0x0)", bits),
        (149, " NETIR_LINK_EVT Nonfatal", words),
    ] {
        let line = format!("NVRM: Xid (PCI:0000:1b:00): {code},{detail}\n");
        let text = &decode(facts(), line.as_bytes())[0].text;
        assert!(text.starts_with(expected), "{detail}: {text}");
    }
}

#[test]
fn xid_without_line_equals_line_with_code_only() {
    let address = "0000:1b:00.0";
    for code in 0..=300 {
        let line = format!("NVRM: Xid (PCI:{address}): {code}, \n");
        let mut decoded = decode(facts(), line.as_bytes());
        assert_eq!(decoded.len(), 1, "{code}");
        decoded[0].line = 0;
        assert_eq!(event_for_xid(facts(), code, address.parse().ok()), decoded[0]);
        let unplaced = event_for_xid(facts(), code, None);
        assert_eq!(unplaced, DecodedEvent { pci: None, ..decoded.remove(0) });
    }
}
