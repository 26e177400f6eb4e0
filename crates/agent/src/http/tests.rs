//! The pages, checked with a strict parser and a hostile client.

use std::collections::{BTreeMap, BTreeSet};

use farrier_facts::node::{ReadError, Reading};
use farrier_fleet::health::finding::{Action, ActionBy};
use farrier_fleet::health::{
    Finding, FindingKind, GpuIdentity, GpuUuid, Moment, Severity, Signal, Subject,
};
use jiff::Timestamp;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::hooks::HookCounts;
use crate::monitor::{CollectorState, CoverageLoss, OwnedGpuProcess};
use crate::state::{Cost, JournalState, PublishedFinding, State, Values};
use crate::uplink::UplinkState;

type MetricLine = (String, BTreeMap<String, String>, f64);

/// Parses the text format strictly by its specification.
fn parse(text: &str) -> (BTreeMap<String, String>, Vec<MetricLine>) {
    let mut types = BTreeMap::new();
    let mut lines = Vec::new();
    let mut current = String::new();
    let mut seen = BTreeSet::new();
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(!help.is_empty());
            assert!(!types.contains_key(name), "{name} appears twice");
            name.clone_into(&mut current);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(name, current);
            assert!(["gauge", "counter"].contains(&kind), "{kind}");
            types.insert(name.to_owned(), kind.to_owned());
        } else {
            let sample = sample(line);
            assert_eq!(sample.0, current, "{line}");
            assert!(types.contains_key(&current), "{line}");
            assert!(seen.insert((sample.0.clone(), sample.1.clone())), "twice: {line}");
            lines.push(sample);
        }
    }
    (types, lines)
}

fn sample(line: &str) -> MetricLine {
    let (head, value) = line.rsplit_once(' ').unwrap();
    let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
    assert!(value.is_finite());
    let Some((name, labels)) = head.split_once('{') else {
        assert!(is_valid_name(head), "{line}");
        return (head.to_owned(), BTreeMap::new(), value);
    };
    assert!(is_valid_name(name), "{line}");
    let mut rest = labels.strip_suffix('}').unwrap();
    let mut found = BTreeMap::new();
    while !rest.is_empty() {
        let (label, after) = rest.split_once("=\"").unwrap();
        assert!(is_valid_name(label), "{line}");
        let mut content = String::new();
        let mut letters = after.char_indices();
        let end = loop {
            match letters.next().unwrap() {
                (at, '"') => break at + 1,
                (_, '\\') => content.push(match letters.next().unwrap().1 {
                    'n' => '\n',
                    letter @ ('\\' | '"') => letter,
                    letter => panic!("\\{letter} in {line}"),
                }),
                (_, letter) => content.push(letter),
            }
        };
        assert!(found.insert(label.to_owned(), content).is_none());
        rest = after[end..].strip_prefix(',').unwrap_or(&after[end..]);
    }
    (name.to_owned(), found, value)
}

fn is_valid_name(name: &str) -> bool {
    let is_valid = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    name.chars().all(is_valid) && name.starts_with(|letter: char| !letter.is_ascii_digit())
}

fn uuid() -> GpuUuid {
    GpuUuid("GPU-0".to_owned())
}

fn finding(id: u64, code: &str, subject: Subject) -> PublishedFinding {
    let finding = Finding {
        id,
        code: code.to_owned(),
        detail: String::new(),
        subject,
        kind: FindingKind::Fault,
        severity: Severity::Fatal,
        text: String::new(),
        action: Action::RebootNode,
        remedy: None,
        rule_action: Action::RebootNode,
        action_by: ActionBy::Rule,
        evidence: Vec::new(),
        first_seen: Timestamp::now(),
        last_seen: Timestamp::now(),
        opened_in: None,
        default_severity: None,
        last_in: None,
        count: 1,
        clears_when: String::new(),
        cleared: None,
    };
    PublishedFinding { finding, durable: true }
}

fn state() -> State {
    let uuid = uuid();
    let subject = Subject::Gpu(uuid.clone());
    let values = vec![
        (Signal::GpuTemperature, Reading::Value(34.0)),
        (Signal::GpuMemoryTemperature, Reading::Absent),
        (Signal::GpuPower, Reading::Unreadable(ReadError::unavailable("it hangs"))),
        (Signal::GpuUtilisation, Reading::Value(0.93)),
        (Signal::GpuEnergy, Reading::Value(4742.776)),
        (Signal::GpuMemoryUsed, Reading::Value(1_073_741_824.0)),
        (Signal::GpuEccCorrected, Reading::Value(7.0)),
    ];
    let link = Subject::Link { gpu: uuid.clone(), link: 3 };
    let latest = [
        (subject, values),
        (link, vec![(Signal::LinkActive, Reading::Value(1.0))]),
        (Subject::Node, vec![(Signal::NodeGpusPci, Reading::Value(1.0))]),
    ];
    let process = OwnedGpuProcess {
        gpu: uuid.clone(),
        pid: 7,
        command: None,
        memory_bytes: None,
        kind: Some("unit".to_owned()),
        name: Some("a\"b\\c\nd".to_owned()),
    };
    let values = Values {
        gpus: vec![GpuIdentity {
            uuid: uuid.clone(),
            index: 0,
            minor: Some(2),
            pci: Some("0000:1b:00.0".to_owned()),
            name: Some("NVIDIA H100 80GB HBM3".to_owned()),
        }],
        delisted: Vec::new(),
        latest: latest.into_iter().collect(),
        processes: Some(vec![process]),
        driver: Some("580.95.05".to_owned()),
        xids: [((Some(uuid.clone()), 48), 3), ((None, 79), 1)].into(),
        last_xid: [(uuid, 48)].into(),
    };
    State {
        at: Moment { steady_ms: clock::since_boot_ms(), wall: Timestamp::now() },
        hostname: "node-1".to_owned(),
        boot: "boot".to_owned(),
        started: Timestamp::now(),
        up_ms: 1000,
        findings: vec![
            finding(1, "gpu.lost", Subject::Gpu(self::uuid())),
            finding(2, "gpu.fell-off-bus", Subject::Pci("0000:1b:00".to_owned())),
            finding(3, "gpu.xid", Subject::Gpu(GpuUuid("GPU-made-up".to_owned()))),
            finding(4, "node.gpus-missing", Subject::Node),
        ],
        opened: [("gpu.xid".to_owned(), 2)].into(),
        values: Arc::new(values),
        coverage: Arc::default(),
        collectors: Vec::new(),
        coverage_gaps: Vec::new(),
        skipped_checks: None,
        journal: JournalState::default(),
        kernel_records: 12,
        cost: Cost { cpu_us: 1_500_000, ..Cost::default() },
    }
}

fn uplink(is_connected: bool) -> ConnectionStatus {
    let at = Timestamp::from_second(1_800_000_000).unwrap();
    let lost =
        UplinkState::Disconnected { since: at, reason: "no route".to_owned(), must_enrol: false };
    let link = if is_connected { UplinkState::Connected { since: at } } else { lost };
    ConnectionStatus { link, node: None, certificate_expires: Some(at) }
}

#[test]
fn a_disconnected_agent_differs_from_a_standalone_one() {
    let config = Metrics { dcgm: false, hostname: None };
    let connected = |uplink: Option<&ConnectionStatus>| {
        let state = state();
        let (_, lines) = parse(&render(&state, state.at.steady_ms, &[], uplink, &config));
        let until = value(&lines, "farrier_agent_certificate_expiry_timestamp_seconds");
        (value(&lines, "farrier_agent_server_connected"), until)
    };
    assert_eq!(connected(Some(&uplink(true))), (Some(1.0), Some(1.8e9)));
    assert_eq!(connected(Some(&uplink(false))), (Some(0.0), Some(1.8e9)));
    assert_eq!(connected(None), (None, None));
}

/// The page four seconds after its state was published.
fn page(config: &Metrics) -> String {
    let state = state();
    let hook = HookStatus {
        name: "oncall".to_owned(),
        queued: 2,
        waiting: 1,
        counts: HookCounts { delivered: 7, failed: 1, dropped: 3 },
        last_error: Some("refused".to_owned()),
    };
    render(&state, state.at.steady_ms + 4000, &[], Some(&uplink(true)), config)
        + &metrics::render_hooks(&[hook])
}

#[test]
fn hooks_have_a_counter_for_each_result() {
    let text = page(&Metrics { dcgm: false, hostname: None });
    for line in [
        "farrier_hook_notifications_total{hook=\"oncall\",result=\"delivered\"} 7",
        "farrier_hook_notifications_total{hook=\"oncall\",result=\"dropped\"} 3",
        "farrier_hook_queued{hook=\"oncall\"} 2",
        "farrier_hook_waiting{hook=\"oncall\"} 1",
        "farrier_hook_failing{hook=\"oncall\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}:\n{text}");
    }
}

fn value(lines: &[MetricLine], name: &str) -> Option<f64> {
    lines.iter().find(|line| line.0 == name).map(|line| line.2)
}

#[test]
fn the_page_parses_and_omits_unknown_values() {
    let config = Metrics { dcgm: true, hostname: None };
    let (types, lines) = parse(&page(&config));
    assert_eq!(value(&lines, "farrier_gpu_temperature_c"), Some(34.0));
    assert_eq!(value(&lines, "farrier_gpu_ecc_corrected_total"), Some(7.0));
    assert_eq!(types["farrier_gpu_ecc_corrected_total"], "counter");
    assert_eq!(value(&lines, "farrier_node_gpus_pci"), Some(1.0));
    assert_eq!(value(&lines, "farrier_findings_opened_total"), Some(2.0));
    assert_eq!(value(&lines, "farrier_agent_cpu_seconds_total"), Some(1.5));
    assert_eq!(value(&lines, "farrier_agent_snapshot_age_seconds"), Some(4.0));
    // Absent and unreadable values are omitted.
    for name in ["farrier_gpu_power_w", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_MEMORY_TEMP"] {
        assert_eq!(value(&lines, name), None, "{name}");
        assert!(!types.contains_key(name), "{name}");
    }
    let xids: Vec<f64> =
        lines.iter().filter(|line| line.0 == "farrier_xid_total").map(|line| line.2).collect();
    assert_eq!(xids, [1.0, 3.0]);
    let owner = lines.iter().find(|line| line.0 == "farrier_gpu_owner_processes").unwrap();
    assert_eq!(owner.1["name"], "a\"b\\c\nd");
}

#[test]
fn names_labels_and_units_match_dcgm_exporter() {
    let config = Metrics { dcgm: true, hostname: None };
    let text = page(&config);
    // As dcgm-exporter prints it for an L4, with this GPU's values.
    let labels = "{gpu=\"0\",UUID=\"GPU-0\",pci_bus_id=\"00000000:1B:00.0\",device=\"nvidia2\",modelName=\"NVIDIA H100 80GB \
         HBM3\",Hostname=\"node-1\",DCGM_FI_DRIVER_VERSION=\"580.95.05\"}";
    for (name, kind, help, value) in [
        ("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C).", "34"),
        ("DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %).", "93"),
        ("DCGM_FI_DEV_FB_USED", "gauge", "Framebuffer memory used (in MiB).", "1024"),
        ("DCGM_FI_DEV_XID_ERRORS", "gauge", "Value of the last XID error encountered.", "48"),
        (
            "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
            "counter",
            "Total energy consumption since boot (in mJ).",
            "4742776",
        ),
    ] {
        let expected =
            format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{name}{labels} {value}\n");
        assert!(text.contains(&expected), "{expected}\nin\n{text}");
    }
    let config = Metrics { dcgm: false, hostname: None };
    assert!(!page(&config).contains("DCGM"));
}

#[test]
fn a_stuck_health_monitor_is_not_healthy() {
    let published = Published::default();
    assert_eq!(coverage_gaps(&published, 0).len(), 1);
    let mut state = state();
    state.at.steady_ms = 50_000;
    published.set(state.clone());
    assert!(coverage_gaps(&published, 51_000).is_empty());
    assert!(coverage_gaps(&published, 61_000)[0].starts_with("monitor: "));
    let reason = "it hangs".to_owned();
    state.coverage_gaps = vec![CoverageLoss { source: "nvml".to_owned(), reason }];
    published.set(state);
    assert_eq!(coverage_gaps(&published, 51_000), ["nvml: it hangs"]);
}

#[test]
fn an_agent_is_not_healthy_before_its_fast_collectors_reported() {
    let published = Published::default();
    let mut state = state();
    state.at.steady_ms = 50_000;
    let collector = |name: &str| CollectorState {
        name: name.to_owned(),
        period_s: 1.0,
        age_s: None,
        stalled: false,
    };
    state.collectors = ["nvml-fast", "nvml-rare"].map(collector).into();
    published.set(state.clone());
    assert_eq!(coverage_gaps(&published, 51_000), ["collectors: nvml-fast has not reported yet"]);
    state.collectors[0].age_s = Some(0.2);
    published.set(state);
    assert!(coverage_gaps(&published, 51_000).is_empty());
}

#[test]
fn only_listed_gpus_become_labels_of_findings() {
    let (_, lines) = parse(&page(&Metrics { dcgm: false, hostname: None }));
    let named: Vec<_> = lines
        .iter()
        .filter(|line| line.0 == "farrier_findings")
        .map(|line| (line.1["code"].as_str(), line.1["gpu"].as_str(), line.1["UUID"].as_str()))
        .collect();
    assert_eq!(
        named,
        [
            ("gpu.fell-off-bus", "0", "GPU-0"),
            ("gpu.lost", "0", "GPU-0"),
            ("gpu.xid", "", ""),
            ("node.gpus-missing", "", ""),
        ]
    );
}

#[test]
fn findings_have_labels_for_reason_and_action() {
    let mut state = state();
    let details = [
        ("gpu.xid", "Xid 79", "Xid 79"),
        ("check", "module-not-loaded-version", "module-not-loaded-version"),
        ("gpu.xid-same-unit", "xid.13 GPC 2, TPC 3, SM 1", ""),
    ];
    state.findings.clear();
    for (id, (code, detail, _)) in (0..).zip(details) {
        let mut open = finding(id, code, Subject::Node);
        open.finding.detail = detail.to_owned();
        state.findings.push(open);
    }
    let config = Metrics { dcgm: false, hostname: None };
    let (_, lines) = parse(&render(&state, state.at.steady_ms, &[], None, &config));
    for (code, detail, reason) in details {
        let line = lines
            .iter()
            .find(|line| line.1.get("code").is_some_and(|label| label == code))
            .unwrap();
        let labels = (line.1["reason"].as_str(), line.1["action"].as_str());
        assert_eq!(labels, (reason, "reboot-node"), "{detail}");
    }
}

#[test]
fn incomplete_coverage_gives_the_verdict_unknown() {
    let config = Metrics { dcgm: false, hostname: None };
    let verdict = |state: &State| {
        let (_, lines) = parse(&render(state, state.at.steady_ms, &[], None, &config));
        let mut current =
            lines.iter().filter(|line| line.0 == "farrier_node_verdict" && line.2 > 0.0);
        let name = current.next().unwrap().1["verdict"].clone();
        assert!(current.next().is_none());
        name
    };
    let mut state = state();
    assert_eq!(verdict(&state), "faulty");
    state.findings.clear();
    state.skipped_checks = Some(std::sync::Arc::default());
    state.collectors.clear();
    state.coverage_gaps.clear();
    state.coverage = std::sync::Arc::default();
    let with_temperature = |reading: Reading<f64>| {
        let mut values = (*state.values).clone();
        let subject = Subject::Gpu(uuid());
        let readings = vec![(Signal::GpuTemperature, reading)];
        values.latest = [(subject, readings)].into_iter().collect();
        State { values: values.into(), ..state.clone() }
    };
    assert_eq!(verdict(&with_temperature(Reading::Value(40.0))), "healthy");
    assert_eq!(
        verdict(&with_temperature(Reading::Unreadable(ReadError::unavailable("it fails")))),
        "unknown"
    );
    let mut incomplete = with_temperature(Reading::Value(40.0));
    incomplete.coverage_gaps =
        vec![CoverageLoss { source: "gpus".to_owned(), reason: "why".to_owned() }];
    assert_eq!(verdict(&incomplete), "unknown");
}

/// The words that follow a marker in a text.
fn words_after<'t>(text: &'t str, mark: &'t str) -> impl Iterator<Item = &'t str> {
    let word = |rest: &'t str| {
        let end = rest.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        &rest[..end.unwrap_or(rest.len())]
    };
    text.match_indices(mark).map(move |(at, _)| word(&text[at + mark.len()..]))
}

#[test]
fn alerts_use_existing_metrics_and_labels() {
    let rules = include_str!("../../../../deploy/prometheus/farrier.rules.yml");
    let (_, lines) = parse(&page(&Metrics { dcgm: false, hostname: None }));
    let mut about_findings = 0;
    for alert in rules.split("- alert: ").skip(1) {
        let name = alert.lines().next().unwrap();
        let expr = alert.lines().find_map(|line| line.trim().strip_prefix("expr: ")).unwrap();
        // Prometheus adds these labels. The metrics add theirs below.
        let mut labels = BTreeSet::from(["instance", "job"]);
        for metric in words_after(expr, "farrier_").map(|rest| format!("farrier_{rest}")) {
            let found = lines.iter().find(|line| line.0 == metric);
            let found = found.unwrap_or_else(|| panic!("{name}: there is no {metric}"));
            labels.extend(found.1.keys().map(String::as_str));
        }
        if let Some((_, by)) = expr.split_once(" by (") {
            let by: BTreeSet<&str> = by.split(')').next().unwrap().split(", ").collect();
            assert!(by.is_subset(&labels), "{name}: {by:?}");
            labels = by;
        }
        let used: BTreeSet<&str> = words_after(alert, "$labels.").collect();
        assert!(used.is_subset(&labels), "{name} uses {used:?} and has {labels:?}");
        if expr.contains("farrier_findings") {
            about_findings += 1;
            assert!(
                ["instance", "code", "reason", "gpu", "UUID"]
                    .iter()
                    .all(|label| used.contains(label)),
                "{name}"
            );
        }
    }
    assert_eq!(about_findings, 3);
}

async fn get(address: std::net::SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The server may close in the middle of an oversized request.
    let _ = stream.write_all(request.as_bytes()).await;
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response).await;
    String::from_utf8_lossy(&response).into_owned()
}

#[test]
fn valid_requests_are_served_and_oversized_ones_are_not() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let published = Published::default();
        let metrics = Arc::new(RwLock::new(Metrics { dcgm: true, hostname: None }));
        let registry = Arc::new(JobRegistry::default());
        let pages =
            Pages { published: published.clone(), registry, metrics, uplink: None, hooks: None };
        tokio::spawn(run(listener, pages));
        let request =
            |path: &str| format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        assert!(get(address, &request("/healthz")).await.starts_with("HTTP/1.1 503"));
        published.set(state());
        let healthy = get(address, &request("/healthz")).await;
        assert!(healthy.starts_with("HTTP/1.1 200") && healthy.ends_with("ok\n"), "{healthy}");
        let page = get(address, &request("/metrics")).await;
        assert!(page.contains("text/plain; version=0.0.4"), "{page}");
        assert!(get(address, &request("/")).await.contains("/metrics"));
        assert!(get(address, &request("/nothing")).await.starts_with("HTTP/1.1 404"));
        // Endless headers.
        let endless = format!("GET / HTTP/1.1\r\nX: {}", "a".repeat(1 << 20));
        assert!(!get(address, &endless).await.contains("200 OK"));
        // Excess connections do not lock others out permanently.
        let idle: Vec<TcpStream> = {
            let mut idle = Vec::new();
            for _ in 0..120 {
                idle.push(TcpStream::connect(address).await.unwrap());
            }
            idle
        };
        drop(idle);
        assert!(get(address, &request("/healthz")).await.ends_with("ok\n"));
    });
}
