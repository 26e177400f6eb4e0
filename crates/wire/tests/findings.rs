//! Findings survive a round trip. Missing, unknown or oversized fields are refused with an error
//! that names the field. They are never decoded as a less severe finding.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use farrier_facts::node::{NvmlStatus, ReadError, Reading};
use farrier_fleet::health::finding::{ActionBy, Cleared, InBoot};
use farrier_fleet::health::{
    Action, Change, Evidence, Finding, FindingKind, GpuUuid, NvmlXid, SERVER_FINDING_ID, Severity,
    Signal, Subject,
};
use farrier_wire::convert::{self, ConvertError};
use farrier_wire::limits::{
    EVIDENCE_MAX, FINDINGS_BYTES_MAX, FINDINGS_MAX, LOGGED_BYTES_MAX, NAME_BYTES_MAX,
    TEXT_BYTES_MAX,
};
use farrier_wire::proto;
use jiff::Timestamp;
use proptest::prelude::*;
use prost::Message;
use prost::bytes::Bytes;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

/// A typical finding, with evidence of each kind.
fn finding(id: u64) -> Finding {
    let gpu = || GpuUuid("GPU-5f2a7c1e-0d2c-4b5e-9d1f-8f3a6c1e7b90".to_owned());
    let text =
        "GPU has fallen off the bus: drain the node and reboot it. Afterwards: contact support.";
    let in_boot = || InBoot {
        boot: "0d2c4b5e-9d1f-4f3a-8c1e-7b905f2a7c1e".to_owned(),
        steady_ms: 86_400_123,
    };
    Finding {
        id,
        code: "gpu.xid".to_owned(),
        detail: "Xid 79".to_owned(),
        subject: Subject::Gpu(gpu()),
        kind: FindingKind::Fault,
        severity: Severity::Fatal,
        default_severity: None,
        text: text.to_owned(),
        action: Action::RebootNode,
        remedy: None,
        rule_action: Action::RebootNode,
        action_by: ActionBy::Rule,
        evidence: vec![
            Evidence::Kernel {
                text: text.to_owned(),
                line: "NVRM: Xid (PCI:0000:1b:00): 79, pid=4242, name=python3, GPU has fallen off \
                       the bus."
                    .to_owned(),
                pid: Some(4242),
                process: Some("python3".to_owned()),
                at: at(0),
            },
            Evidence::Signal {
                signal: Signal::GpuTemperature,
                text: "91 °C, limit 87 °C".to_owned(),
                measure: "mean over 60 s".to_owned(),
                value: Reading::Value(91.25),
                limit: 87.0,
                note: None,
                at: at(1),
            },
            Evidence::Nvml {
                xid: NvmlXid { code: 79, gpu: gpu(), index: Some(5) },
                text: text.to_owned(),
                at: at(2),
            },
            Evidence::Check { text: "7 of 8 GPUs are present".to_owned(), at: at(3) },
        ],
        first_seen: at(0),
        last_seen: at(3),
        opened_in: Some(in_boot()),
        last_in: Some(in_boot()),
        count: 3,
        clears_when: "after a reboot, when NVML lists the GPU again".to_owned(),
        cleared: None,
    }
}

fn message(finding: Finding) -> proto::Finding {
    let sent = convert::findings_message(1, [finding]);
    proto::Finding::decode(sent.open[0].clone()).unwrap()
}

fn decode(message: &proto::Finding) -> Result<Finding, ConvertError> {
    let open = vec![message.encode_to_vec().into()];
    convert::open_findings(proto::Findings { record: 1, open })
        .map(|mut findings| findings.remove(0))
}

/// Decodes a finding whose message was changed in transit.
fn decode_changed(change: impl FnOnce(&mut proto::Finding)) -> Result<Finding, ConvertError> {
    let mut message = message(finding(1));
    change(&mut message);
    decode(&message)
}

fn as_change(kind: i32, finding: Option<proto::Finding>) -> Result<Vec<Change>, ConvertError> {
    let changes = vec![proto::Change { kind, finding }.encode_to_vec().into()];
    convert::changes(proto::Changes { record: 1, after: 0, changes })
}

#[test]
fn a_missing_required_field_is_named() {
    type Remove = fn(&mut proto::Finding);
    let cases: [(&str, Remove); 9] = [
        ("id", |message| message.id = None),
        ("code", |message| message.code = None),
        ("subject", |message| message.subject = None),
        ("subject", |message| message.subject = Some(proto::Subject::default())),
        ("text", |message| message.text = None),
        ("first_seen_ns", |message| message.first_seen_ns = None),
        ("last_seen_ns", |message| message.last_seen_ns = None),
        ("count", |message| message.count = None),
        ("clears", |message| message.clears = None),
    ];
    for (name, remove) in cases {
        let refused = decode_changed(remove);
        assert!(matches!(refused, Err(ConvertError::Missing(what)) if what == name), "{refused:?}");
    }
    let parts: [(&str, Remove); 7] = [
        ("boot", |message| message.opened_in.as_mut().unwrap().boot = None),
        ("steady_ms", |message| message.last_in.as_mut().unwrap().steady_ms = None),
        ("at_ns", |message| message.cleared = Some(proto::Cleared::default())),
        ("gpu", |message| {
            let link = proto::Link { gpu: None, link: Some(1) };
            message.subject = Some(proto::Subject { what: Some(proto::subject::What::Link(link)) });
        }),
        ("at_ns", |message| message.evidence[0].at_ns = None),
        ("evidence", |message| message.evidence[0].what = None),
        ("limit", |message| signal(message).limit = None),
    ];
    for (name, remove) in parts {
        let refused = decode_changed(remove);
        assert!(matches!(refused, Err(ConvertError::Missing(what)) if what == name), "{refused:?}");
    }
    let nothing = as_change(1, None);
    assert!(matches!(nothing, Err(ConvertError::Missing("finding"))), "{nothing:?}");
}

fn signal(message: &mut proto::Finding) -> &mut proto::SignalEvidence {
    match message.evidence[1].what.as_mut().unwrap() {
        proto::evidence::What::Signal(signal) => signal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_unknown_value_is_refused_and_never_read_as_another() {
    type Set = fn(&mut proto::Finding, i32);
    let cases: [(&str, Set); 6] = [
        ("kind", |message, value| message.kind = value),
        ("severity", |message, value| message.severity = value),
        ("severity", |message, value| message.own_severity = Some(value)),
        ("action", |message, value| message.action = value),
        ("action", |message, value| message.rule_action = value),
        ("action_by", |message, value| message.action_by = value),
    ];
    for (name, set) in cases {
        for number in [0, 99, -1, i32::MAX] {
            let refused = decode_changed(|message| set(message, number));
            match refused {
                Err(ConvertError::UnknownValue { what, value }) => {
                    assert_eq!((what, value), (name, number));
                }
                other => panic!("{name} {number}: {other:?}"),
            }
        }
    }
    for number in [0, 4] {
        let refused = as_change(number, Some(message(finding(1))));
        assert!(matches!(refused, Err(ConvertError::UnknownValue { what: "change", .. })));
    }
    let refused = decode_changed(|message| signal(message).signal = Some("gpu.unknown".to_owned()));
    assert!(matches!(refused, Err(ConvertError::UnknownSignal(_))), "{refused:?}");
    // A oneof case of a later version counts as missing. Here the subject has only the unknown
    // field 15.
    let mut later = message(finding(1));
    later.subject = None;
    let mut bytes = later.encode_to_vec();
    bytes.extend([0x22, 0x02, 0x7a, 0x00]);
    let later = convert::open_findings(proto::Findings { record: 1, open: vec![bytes.into()] });
    assert!(matches!(later, Err(ConvertError::Missing("subject"))), "{later:?}");
}

#[test]
fn bytes_that_do_not_decode_are_refused() {
    // The third and fourth inputs are JSON, which agents sent before findings were protobuf
    // messages.
    for bytes in
        [&b"nothing"[..], &[0x0a], b"[]", b"[{\"opened\":{}}]", &[0x08, 0x01, 0x12, 0x05, 0xff]]
    {
        let open = vec![Bytes::copy_from_slice(bytes)];
        let refused = convert::open_findings(proto::Findings { record: 1, open });
        assert!(matches!(refused, Err(ConvertError::Decode(_))), "{bytes:?}: {refused:?}");
    }
    let none = convert::open_findings(proto::Findings { record: 1, open: vec![Bytes::new()] });
    assert!(matches!(none, Err(ConvertError::Missing(_) | ConvertError::UnknownValue { .. })));
}

#[test]
fn nan_and_infinity_are_refused_by_both_sides() {
    for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let value = proto::Reading { what: Some(proto::reading::What::Value(number)) };
        let refused = decode_changed(|message| signal(message).value = Some(value));
        assert!(matches!(refused, Err(ConvertError::NotFinite(_))), "{refused:?}");
        let refused = decode_changed(|message| signal(message).limit = Some(number));
        assert!(matches!(refused, Err(ConvertError::NotFinite(_))), "{refused:?}");
        let mut own = finding(1);
        for evidence in &mut own.evidence {
            if let Evidence::Signal { limit, .. } = evidence {
                *limit = number;
            }
        }
        let refused = convert::changes_message(1, 0, vec![Change::Opened(own.clone())]);
        assert!(matches!(refused, Err(ConvertError::NotFinite(_))), "{refused:?}");
        // A snapshot still has the finding, without its evidence.
        let open = convert::open_findings(convert::findings_message(1, [own.clone()])).unwrap();
        assert_eq!(open, [Finding { evidence: Vec::new(), ..own }]);
    }
}

#[test]
fn input_over_a_limit_is_refused_by_both_sides() {
    type Grow = fn(&mut Finding);
    let cases: [(&str, Grow); 12] = [
        ("code", |finding| finding.code = "x".repeat(NAME_BYTES_MAX + 1)),
        ("detail", |finding| finding.detail = "x".repeat(TEXT_BYTES_MAX + 1)),
        ("text", |finding| finding.text = "x".repeat(TEXT_BYTES_MAX + 1)),
        ("clears", |finding| finding.clears_when = "x".repeat(TEXT_BYTES_MAX + 1)),
        ("remedy", |finding| finding.remedy = Some("x".repeat(TEXT_BYTES_MAX + 1))),
        ("subject", |finding| finding.subject = Subject::Pci("x".repeat(NAME_BYTES_MAX + 1))),
        ("boot", |finding| finding.last_in.as_mut().unwrap().boot = "x".repeat(NAME_BYTES_MAX + 1)),
        ("evidence", |finding| {
            finding.evidence = vec![finding.evidence[3].clone(); EVIDENCE_MAX + 1];
        }),
        ("evidence", |finding| {
            finding.evidence[3] =
                Evidence::Check { text: "x".repeat(TEXT_BYTES_MAX + 1), at: at(0) };
        }),
        ("evidence", |finding| {
            let Evidence::Signal { measure, .. } = &mut finding.evidence[1] else { panic!() };
            *measure = "x".repeat(TEXT_BYTES_MAX + 1);
        }),
        ("evidence", |finding| {
            let Evidence::Signal { value, .. } = &mut finding.evidence[1] else { panic!() };
            *value = Reading::Unreadable(ReadError::malformed("x".repeat(TEXT_BYTES_MAX + 1)));
        }),
        ("cleared", |finding| {
            finding.cleared = Some(Cleared { at: at(9), reason: "x".repeat(TEXT_BYTES_MAX + 1) });
        }),
    ];
    for (name, grow) in cases {
        let mut large = finding(1);
        grow(&mut large);
        let sent = convert::changes_message(1, 0, vec![Change::Opened(large.clone())]);
        assert!(
            matches!(sent, Err(ConvertError::TooMuch { what, .. }) if what == name),
            "{name}: {sent:?}"
        );
    }
    // The decoder refuses messages from a sender that ignores the limits.
    let refused = decode_changed(|message| message.text = Some("x".repeat(TEXT_BYTES_MAX + 1)));
    assert!(matches!(refused, Err(ConvertError::TooMuch { what: "text", .. })), "{refused:?}");
    let refused = decode_changed(|message| {
        message.evidence = vec![message.evidence[3].clone(); EVIDENCE_MAX + 1];
    });
    assert!(matches!(refused, Err(ConvertError::TooMuch { what: "evidence", .. })), "{refused:?}");
    let many = |open| convert::open_findings(proto::Findings { record: 1, open });
    let refused = many(vec![Bytes::new(); FINDINGS_MAX + 1]);
    assert!(
        matches!(refused, Err(ConvertError::TooMuch { found, .. }) if found == FINDINGS_MAX + 1)
    );
    let refused = many(vec![vec![0; FINDINGS_BYTES_MAX].into()]);
    assert!(matches!(refused, Err(ConvertError::TooMuch { what: "findings", .. })), "{refused:?}");
}

#[test]
fn a_small_message_cannot_fill_the_log() {
    // Each of these findings takes at least 512 bytes of the log, but only about 60 of the message.
    let bare = Finding {
        code: String::new(),
        detail: String::new(),
        subject: Subject::Node,
        text: String::new(),
        clears_when: String::new(),
        evidence: Vec::new(),
        opened_in: None,
        last_in: None,
        ..finding(1)
    };
    let encoded: Bytes = message(bare).encode_to_vec().into();
    let (count, bytes) = (LOGGED_BYTES_MAX / 512 + 1, encoded.len());
    assert!(count < FINDINGS_MAX && count * (bytes + 3) < FINDINGS_BYTES_MAX, "{bytes}");
    let refused = convert::open_findings(proto::Findings { record: 1, open: vec![encoded; count] });
    assert!(matches!(refused, Err(ConvertError::TooMuch { most: LOGGED_BYTES_MAX, .. })));
    // JSON escapes each of these NUL characters with six bytes.
    let zeros =
        |id| Finding { text: "\0".repeat(TEXT_BYTES_MAX), evidence: Vec::new(), ..finding(id) };
    let open = convert::open_findings(convert::findings_message(1, (0..60).map(zeros))).unwrap();
    assert!(open.len() < 60 && serde_json::to_vec(&open).unwrap().len() <= LOGGED_BYTES_MAX);
}

#[test]
fn a_reserved_finding_id_is_refused() {
    for (id, is_accepted) in [
        (0, true),
        (SERVER_FINDING_ID - 1, true),
        (SERVER_FINDING_ID, false),
        (SERVER_FINDING_ID + 1, false),
        (u64::MAX, false),
    ] {
        let refused = decode_changed(|message| message.id = Some(id));
        assert_eq!(refused.is_ok(), is_accepted, "{id}");
        assert!(
            is_accepted
                || matches!(refused, Err(ConvertError::ReservedId(reserved)) if reserved == id)
        );
        let sent = convert::changes_message(1, 0, vec![Change::Opened(finding(id))]);
        assert_eq!(sent.is_ok(), is_accepted, "{id}");
    }
}

#[test]
fn a_change_that_contradicts_itself_is_refused() {
    let cleared = as_change(proto::ChangeKind::Cleared.into(), Some(message(finding(5))));
    assert!(matches!(cleared, Err(ConvertError::Contradiction(5))));
    let clearance = Some(Cleared { at: at(9), reason: "rebooted".to_owned() });
    let over = Finding { cleared: clearance, ..finding(5) };
    let opened = convert::changes_message(1, 0, vec![Change::Opened(over.clone())]).unwrap();
    assert!(matches!(convert::changes(opened), Err(ConvertError::Contradiction(5))));
    let open = convert::findings_message(1, [over]);
    assert!(matches!(convert::open_findings(open), Err(ConvertError::Contradiction(5))));
}

#[test]
fn the_most_severe_of_too_many_findings_are_reported() {
    let large = |id: u64| Finding {
        text: "x".repeat(8000),
        severity: if id == 1500 { Severity::Fatal } else { Severity::Info },
        ..finding(id)
    };
    let open = convert::open_findings(convert::findings_message(1, (1..=2000).map(large))).unwrap();
    assert!((120..2000).contains(&open.len()), "{}", open.len());
    assert_eq!(open[0].id, 1500);
    assert!(open.iter().all(|finding| finding.evidence.is_empty()));
    let few: Vec<Finding> = (1..=3).map(finding).collect();
    let decoded = convert::open_findings(convert::findings_message(1, few.clone())).unwrap();
    assert_eq!(decoded, few);
}

#[test]
fn a_time_out_of_range_saturates() {
    for (first_seen, saturated) in [
        ("1500-01-01T00:00:00Z", "1677-09-21T00:12:43.145224192Z"),
        ("2500-01-01T00:00:00Z", "2262-04-11T23:47:16.854775807Z"),
    ] {
        let off = Finding { first_seen: first_seen.parse().unwrap(), ..finding(1) };
        let decoded = decode(&message(off.clone())).unwrap();
        assert_eq!(decoded, Finding { first_seen: saturated.parse().unwrap(), ..off });
    }
}

#[test]
fn a_message_is_smaller_than_its_json() {
    // Most findings have one kernel log line as evidence; `finding` has evidence of each kind.
    let typical = |id| Finding { evidence: finding(id).evidence[..1].to_vec(), ..finding(id) };
    let sizes = |name: &str, findings: Vec<Finding>| {
        let json = serde_json::to_vec(&findings).unwrap().len();
        let message = convert::findings_message(1, findings.clone());
        let bytes = message.encoded_len();
        assert_eq!(convert::open_findings(message).unwrap(), findings, "no finding is dropped");
        println!("{name}: {json} bytes of JSON, {bytes} of a message");
        assert!(bytes * 10 < json * 7, "{name}: {json} bytes of JSON, {bytes} of a message");
        json
    };
    let one = sizes("a typical finding", vec![typical(1)]);
    sizes("1,000 typical findings", (1..=1000).map(typical).collect());
    let rich = sizes("a finding with four observations", vec![finding(1)]);
    // The estimate that bounds the log is not too low.
    assert!(typical(1).estimated_bytes() >= one && finding(1).estimated_bytes() >= rich);
}

fn texts() -> impl Strategy<Value = String> {
    any::<String>()
}

fn times() -> impl Strategy<Value = Timestamp> {
    any::<i64>().prop_map(|ns| Timestamp::from_nanosecond(ns.into()).unwrap())
}

fn subjects() -> impl Strategy<Value = Subject> {
    prop_oneof![
        Just(Subject::Node),
        Just(Subject::Agent),
        texts().prop_map(|gpu| Subject::Gpu(GpuUuid(gpu))),
        (texts(), any::<u32>()).prop_map(|(gpu, link)| Subject::Link { gpu: GpuUuid(gpu), link }),
        (texts(), any::<u32>()).prop_map(|(device, port)| Subject::Nic { device, port }),
        texts().prop_map(Subject::Pci),
    ]
}

fn readings() -> impl Strategy<Value = Reading<f64>> {
    prop_oneof![
        numbers().prop_map(Reading::Value),
        Just(Reading::Absent),
        read_errors().prop_map(Reading::Unreadable),
    ]
}

/// Every kind of read error.
fn read_errors() -> impl Strategy<Value = ReadError> {
    let plain = [
        ReadError::NotRegularFile,
        ReadError::NotALink,
        ReadError::LinkNotUtf8,
        ReadError::LinkLoop,
        ReadError::NotInCapture,
        ReadError::DeviceNotOpened,
        ReadError::NotListed,
        ReadError::NoLongerListed,
        ReadError::NotReadSince,
        ReadError::NotReadYet,
        ReadError::AgentNotRunning,
        ReadError::NotANumber,
    ];
    let status = || any::<u32>().prop_map(NvmlStatus);
    let leaf = prop_oneof![
        proptest::sample::select(plain.to_vec()),
        status().prop_map(|status| ReadError::Nvml { status }),
        proptest::option::of(texts())
            .prop_map(|call| ReadError::MissingCall { call: call.map(Into::into) }),
        any::<i32>().prop_map(|errno| ReadError::Os { errno }),
        any::<u64>().prop_map(|limit_bytes| ReadError::TooLarge { limit_bytes }),
        any::<u32>().prop_map(|limit| ReadError::TooManyEntries { limit: limit as usize }),
        texts().prop_map(|path| ReadError::NotText { path }),
        proptest::collection::vec((any::<u32>(), status()), 0..4)
            .prop_map(|gpus| ReadError::GpusNotOpened { gpus }),
        texts().prop_map(|call| ReadError::CallHung { call }),
        any::<Option<u64>>().prop_map(|avoid_s| ReadError::CallStuck { avoid_s }),
        any::<u64>().prop_map(|limit_s| ReadError::Deadline { limit_s }),
        texts().prop_map(ReadError::malformed),
        texts().prop_map(|detail| ReadError::ProbeEnded { detail }),
        texts().prop_map(|detail| ReadError::NoLibrary { detail }),
        texts().prop_map(ReadError::unavailable),
        texts().prop_map(ReadError::Legacy),
    ];
    leaf.prop_recursive(2, 4, 1, |inner| {
        let boxed = inner.clone().prop_map(Box::new);
        prop_oneof![
            (any::<u32>(), boxed.clone()).prop_map(|(link, err)| ReadError::Link { link, err }),
            boxed.prop_map(|err| ReadError::LinkCount { err }),
            (texts(), inner).prop_map(|(place, err)| err.at(place)),
        ]
    })
}

fn numbers() -> impl Strategy<Value = f64> {
    use proptest::num::f64::{NEGATIVE, NORMAL, POSITIVE, SUBNORMAL, ZERO};
    POSITIVE | NEGATIVE | NORMAL | SUBNORMAL | ZERO
}

fn signals() -> impl Strategy<Value = Signal> {
    prop::sample::select(Signal::ALL)
}

fn evidence() -> impl Strategy<Value = Evidence> {
    let signal =
        (signals(), texts(), texts(), readings(), numbers(), any::<Option<String>>(), times());
    prop_oneof![
        signal.prop_map(|(signal, text, measure, value, limit, note, at)| Evidence::Signal {
            signal,
            text,
            measure,
            value,
            limit,
            note,
            at
        }),
        (texts(), texts(), any::<Option<u32>>(), any::<Option<String>>(), times()).prop_map(
            |(text, line, pid, process, at)| { Evidence::Kernel { text, line, pid, process, at } }
        ),
        (any::<u32>(), texts(), any::<Option<u32>>(), texts(), times()).prop_map(
            |(code, gpu, index, text, at)| {
                Evidence::Nvml { xid: NvmlXid { code, gpu: GpuUuid(gpu), index }, text, at }
            }
        ),
        (texts(), times()).prop_map(|(text, at)| Evidence::Check { text, at }),
    ]
}

fn in_boots() -> impl Strategy<Value = Option<InBoot>> {
    prop::option::of(
        (texts(), any::<i64>()).prop_map(|(boot, steady_ms)| InBoot { boot, steady_ms }),
    )
}

fn severities() -> impl Strategy<Value = Severity> {
    use Severity::{Critical, Fatal, Info, Warning};
    prop::sample::select(vec![Info, Warning, Critical, Fatal])
}

fn actions() -> impl Strategy<Value = Action> {
    prop::sample::select(vec![
        Action::Ignore,
        Action::RestartApp,
        Action::Investigate,
        Action::ResetGpu,
        Action::RebootNode,
        Action::DrainAndReplace,
    ])
}

prop_compose! {
    fn findings()(
        (id, count) in (0..SERVER_FINDING_ID, any::<u64>()),
        (code, detail, text, clears_when) in (texts(), texts(), texts(), texts()),
        (subject, remedy) in (subjects(), any::<Option<String>>()),
        kind in prop::sample::select(vec![FindingKind::Fault, FindingKind::Advice]),
        (severity, default_severity) in (severities(), prop::option::of(severities())),
        (action, rule_action) in (actions(), actions()),
        action_by in prop::sample::select(vec![ActionBy::Rule, ActionBy::Driver]),
        evidence in prop::collection::vec(evidence(), 0..5),
        (first_seen, last_seen, opened_in, last_in) in (times(), times(), in_boots(), in_boots()),
        cleared in prop::option::of((times(), texts()).prop_map(|(at, reason)| Cleared { at, reason })),
    ) -> Finding {
        Finding {
            id, code, detail, subject, kind, severity, default_severity, text, action, remedy,
            rule_action, action_by, evidence, first_seen, last_seen, opened_in, last_in, count,
            clears_when, cleared,
        }
    }
}

proptest! {
    #[test]
    fn any_change_survives_a_round_trip(
        cases in prop::collection::vec((findings(), any::<bool>()), 0..4),
    ) {
        let changes: Vec<Change> = cases
            .into_iter()
            .map(|(finding, is_new)| match (finding.is_open(), is_new) {
                (true, true) => Change::Opened(finding),
                (true, false) => Change::Updated(finding),
                (false, _) => Change::Cleared(finding),
            })
            .collect();
        let sent = convert::changes_message(7, 6, changes.clone()).unwrap();
        // Encode to bytes and decode again, as other programs do.
        let sent = proto::Changes::decode(&sent.encode_to_vec()[..]).unwrap();
        prop_assert_eq!((sent.record, sent.after), (7, 6));
        prop_assert_eq!(convert::changes(sent).unwrap(), changes);
    }

    #[test]
    fn any_open_finding_survives_a_round_trip(finding in findings()) {
        let finding = Finding { cleared: None, ..finding };
        let sent = convert::findings_message(7, [finding.clone()]);
        prop_assert_eq!(convert::open_findings(sent).unwrap(), [finding]);
    }

    #[test]
    fn a_message_with_changed_bytes_makes_no_decoder_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let changes = convert::changes_message(7, 6, vec![Change::Opened(finding(1))]).unwrap();
        let mut bytes = changes.changes[0].to_vec();
        for (index, to) in edits {
            let at = index.index(bytes.len());
            bytes[at] = to;
        }
        let changes = vec![bytes.into()];
        let _ = convert::changes(proto::Changes { record: 7, after: 6, changes });
    }
}
